"""A fitted model: it predicts, states what its fit guarantees, and describes itself in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import dptoolkit
from dptoolkit import losses, solvers
from dptoolkit._validate import invalid, whole
from dptoolkit.accounting import Guarantee
from dptoolkit.accounting.report import as_html, at_most, delta_text, number, table
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import check_rows
from dptoolkit.models.joint import JointPlan
from dptoolkit.models.routes import CLASSIFICATION
from dptoolkit.solvers import FitResult, Plan
from dptoolkit.solvers._pipeline_stages import Preparation
from dptoolkit.solvers.frame.fit import SEEDED_NOTE
from dptoolkit.tables import check_names, column_names
from dptoolkit.types import Array


@dataclass(frozen=True, repr=False, eq=False)
class Model:
    """A fitted model: what the fit has released, and how it predicts.

    Attributes
    ----------
    task : {"classification", "regression"}
        What is predicted.
    solver : str
        The name of the solver.
    coef : ndarray of shape (k, d)
        The weights: one row for regression and for two classes, otherwise one row per class.
    intercept : ndarray of shape (k,)
        The intercepts.
    plan : Plan
        What the fit released.
    guarantee : Guarantee
        What the fit guarantees.
    steps : int
        The number of iterations; for several fits the largest number.
    preparations : tuple of Preparation or None
        How rows are transformed before the weights apply; None if they are used unchanged. One entry for all rows of
        ``coef``, or one per row.
    classes : ndarray or None, default None
        The class labels; None for regression.
    feature_names : tuple of str or None, default None
        The names of the columns of X, if they are known.
    columns : mapping of str to object, or None, default None
        How a table is read, if the model was fitted to one: the names of its columns and of the label, the categories,
        and the constants for missing cells. All of them are public.
    """

    task: str
    solver: str
    coef: Array
    intercept: Array
    plan: Plan
    guarantee: Guarantee
    steps: int
    preparations: tuple[Preparation | None, ...]
    classes: NDArray[Any] | None = None
    feature_names: tuple[str, ...] | None = None
    columns: Mapping[str, Any] | None = None

    @property
    def n_features(self) -> int:
        """The number of columns of X."""
        return int(self.coef.shape[1])

    def margins(self, X: Any, n_features: int | None = None) -> Array:
        """(rows, rows of ``coef``): what is predicted before it is turned into a class.

        A table with named columns must have those of the fit, in their order.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows. A table with named columns must have those of the fit, in the same order.
        n_features : int or None, default None
            The public width: a narrower X gets columns of zeros.

        Privacy
        -------
        A model is public: what is computed from it and from other rows gives nothing away about the rows of the fit.
        """
        check_names(column_names(X), self.feature_names)
        rows = check_rows(X, n_features)
        if rows.shape[1] != self.n_features:
            repair = "It must have the columns of the data of the fit."
            raise invalid("X", f"a matrix with {rows.shape[1]} columns", f"{self.n_features} columns wide", repair)
        if not any(self.preparations):
            return np.asarray(rows.matrix @ self.coef.T + self.intercept)
        fits: Any = zip(self.coef, self.intercept, self.preparations, strict=False)
        if len(self.preparations) < len(self.coef):
            fits = [(self.coef, self.intercept, self.preparations[0])]
        results = (FitResult(w, b, None, None, {"preparation": how}) for w, b, how in fits)
        return np.column_stack([solvers.margins(result, rows.matrix) for result in results])

    def probabilities(self, X: Any, n_features: int | None = None) -> Array:
        """(rows, classes): the probability of every class.

        Where each class was fitted against the rest, these are the separate probabilities, divided by their sum.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows.
        n_features : int or None, default None
            The public width: a narrower X gets columns of zeros.

        Privacy
        -------
        As for ``margins``.
        """
        classes, margins = self._known_classes(), self.margins(X, n_features)
        if len(classes) == 2:
            return np.column_stack([expit(-margins[:, 0]), expit(margins[:, 0])])
        if not isinstance(self.plan, JointPlan):
            return losses.softmax(margins)
        # Separate probabilities may all be 0 in floats: their logarithms are not.
        return losses.softmax(-np.logaddexp(0.0, -margins))

    def predict(self, X: Any, n_features: int | None = None) -> NDArray[Any]:
        """A class, or the predicted target, for every row.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows.
        n_features : int or None, default None
            The public width: a narrower X gets columns of zeros.

        Privacy
        -------
        As for ``margins``.
        """
        margins = self.margins(X, n_features)
        if self.classes is None:
            return margins[:, 0]
        which = (margins[:, 0] > 0).astype(int) if len(self.classes) == 2 else margins.argmax(axis=1)
        return np.asarray(self.classes[which])

    def _known_classes(self) -> NDArray[Any]:
        if self.classes is None:
            raise invalid("task", self.task, CLASSIFICATION, "Regression has no probabilities.")
        return self.classes

    def summary(self, top: int = 20) -> str:
        """The ``top`` largest weights by name, the guarantee, and a sentence for a methods section.

        Parameters
        ----------
        top : int, default 20
            The number of weights to show.
        """
        return summary(self, top)

    def with_notes(self, *notes: str) -> Model:
        """The same model, with these notes added to its guarantee; files keep those of ``notes.OWN`` unmarked.

        Parameters
        ----------
        *notes : str
            The notes to add.
        """
        return replace(self, guarantee=replace(self.guarantee, notes=(*self.guarantee.notes, *notes)))

    def _repr_html_(self) -> str:
        return as_html(self.summary())

    def __repr__(self) -> str:
        count = int(np.count_nonzero(self.coef.any(axis=0)))
        return f"<Model for {self.task} by {self.solver}: {count:,} of {self.n_features:,} features are used>"


# --- A model in words: its weights by name, and a sentence for a methods section ------------------------------

_NEIGHBOURS = {
    Adjacency.REPLACE_ONE: "data sets of equal size that differ in one record (replace-one)",
    Adjacency.ZERO_OUT: "data sets of which one lacks the contribution of one record (zero-out)",
}
_DIRECTIONS = (
    "Rows are scaled to norm 1 and features weighted before these weights apply: they rank features and are not "
    "effects per unit."
)


def summary(model: Model, top: int = 20) -> str:
    """The model's task and classes, its largest weights, its guarantee, and a sentence for a methods section."""
    parts = [
        _head(model), weight_table(model, top), *([_DIRECTIONS] if _is_directional(model) else []),
        str(model.guarantee), "For a methods section\n" + methods(model),
    ]  # fmt: skip
    return "\n\n".join(parts)


def _head(model: Model) -> str:
    lines = [repr(model)[1:-1]]
    if model.classes is not None:
        lines.append(f"Classes: {', '.join(_labels(model))}")
    if model.columns is not None and model.columns["label"] is not None:
        lines.append(f"Label: {_printable(model.columns['label'])}")
    return "\n".join(lines)


def names_of(model: Model) -> tuple[str, ...]:
    """The names of the features, by number from 1 where the model has none."""
    return model.feature_names or tuple(f"column {j + 1}" for j in range(model.n_features))


def _printable(name: object) -> str:
    """A name from a file in one line, without control characters, which could imitate the lines around it."""
    return "".join(character if character.isprintable() else "?" for character in str(name))


def rows_of(model: Model) -> tuple[str, ...]:
    """What each row of ``coef`` is for: a class, or the prediction itself."""
    if model.classes is None:
        return ("weight",)
    labels = _labels(model)
    return labels[1:] if len(labels) == 2 else labels


def _labels(model: Model) -> tuple[str, ...]:
    """The classes as they are written in files: 1, not 1.0."""
    labels = [] if model.classes is None else model.classes.tolist()
    return tuple(f"{label:g}" if isinstance(label, float) else _printable(label) for label in labels)


def largest(model: Model) -> list[int]:
    """The features with a weight that is not 0, the largest of any class first."""
    sizes = np.abs(model.coef).max(axis=0)
    order = np.argsort(-sizes, kind="stable")
    return [int(j) for j in order if sizes[j] > 0]


def weight_table(model: Model, top: int = 20) -> str:
    """The largest weights by name, and the intercept; positive weights speak for the class above them."""
    used, names = largest(model), names_of(model)
    shown = used[: whole("top", top, low=1)]
    rows = [[_printable(names[j]), *(number(float(w)) for w in model.coef[:, j])] for j in shown]
    rows.append(["(intercept)", *(number(float(b)) for b in model.intercept)])
    text = table(["feature", *rows_of(model)], rows)
    left = len(used) - len(shown)
    return text if left == 0 else f"{text}\nand {left:,} smaller weights"


def _is_directional(model: Model) -> bool:
    return any(how is not None and how.units.row_norm is None for how in model.preparations)


def methods(model: Model) -> str:
    """What a paper that uses the model has to say about its privacy, from the guarantee."""
    kind = "classifier" if model.task == CLASSIFICATION else "regression model"
    fit = (
        f"A sparse linear {kind} was fitted to {model.plan.n:,} records with dptoolkit {dptoolkit.__version__} "
        f"({model.solver})."
    )
    guarantee, delta = model.guarantee, model.guarantee.asked_delta
    epsilon = math.inf if delta is None else guarantee.epsilon(delta)
    if any(note.startswith(SEEDED_NOTE.partition(",")[0]) for note in guarantee.notes):
        return f"{fit} It was fitted from a seed for testing: it is not a private release and must not be published."
    if math.isinf(epsilon) or delta is None:
        return f"{fit} It has no guarantee of differential privacy."
    assert guarantee.adjacency is not None
    claim = (
        f"Its coefficients are ({at_most(epsilon)}, {delta_text(delta)})-differentially private for "
        f"{_NEIGHBOURS[guarantee.adjacency]}."
    )
    # Notes may end with advice, which is not for readers of a paper.
    assumed = "; ".join(note.partition("; give ")[0] for note in guarantee.assumptions)
    return f"{fit} {claim} Assumptions: {assumed}."
