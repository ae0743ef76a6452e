"""A fitted model: it predicts, and states what its fit guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dptoolkit import losses, solvers
from dptoolkit._validate import invalid
from dptoolkit.accounting import Guarantee
from dptoolkit.accounting.report import as_html
from dptoolkit.data import check_rows
from dptoolkit.models.joint import JointPlan
from dptoolkit.models.routes import CLASSIFICATION
from dptoolkit.solvers import FitResult, Plan
from dptoolkit.solvers._pipeline_stages import Preparation
from dptoolkit.tables import check_names, column_names
from dptoolkit.types import Array


@dataclass(frozen=True, repr=False, eq=False)
class Model:
    """What a fit has released, and how it predicts.

    ``coef`` has one row for numbers and for two classes, and otherwise one a class; ``classes`` is None for numbers.
    ``preparations`` says for each fit how rows of X are prepared, None if they are used as they are: one fit for all
    rows of ``coef``, or one for each. ``steps`` is the number of iterations, the most of any class. ``columns`` says
    how a table is read, if the model was fitted to one: the names of its columns and of the label, categories and
    constants for missing cells, which are all public.
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
        """A class or a number for every row.

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
            raise invalid("task", self.task, CLASSIFICATION, "Numbers have no probabilities.")
        return self.classes

    def summary(self, top: int = 20) -> str:
        """The ``top`` largest weights by name, the guarantee, and a sentence for a methods section."""
        from dptoolkit.models.summary import summary

        return summary(self, top)

    def with_notes(self, *notes: str) -> Model:
        """The same model, with these notes added to its guarantee; files keep those of ``notes.OWN`` unmarked."""
        return replace(self, guarantee=replace(self.guarantee, notes=(*self.guarantee.notes, *notes)))

    def _repr_html_(self) -> str:
        return as_html(self.summary())

    def __repr__(self) -> str:
        count = int(np.count_nonzero(self.coef.any(axis=0)))
        return f"<Model for {self.task} by {self.solver}: {count:,} of {self.n_features:,} features are used>"
