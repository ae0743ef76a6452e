"""A fitted model in words: its weights by name, and a sentence for a methods section."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

import dptoolkit
from dptoolkit._validate import whole
from dptoolkit.accounting.report import at_most, delta_text, number, table
from dptoolkit.adjacency import Adjacency
from dptoolkit.models.routes import CLASSIFICATION
from dptoolkit.solvers.frame.fit import SEEDED_NOTE

if TYPE_CHECKING:
    from dptoolkit.models.model import Model

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
    fit = f"A sparse linear {kind} was fitted to {model.plan.n:,} records with dptoolkit {dptoolkit.__version__} " \
          f"({model.solver})."  # fmt: skip
    guarantee, delta = model.guarantee, model.guarantee.asked_delta
    epsilon = math.inf if delta is None else guarantee.epsilon(delta)
    if any(note.startswith(SEEDED_NOTE.partition(",")[0]) for note in guarantee.notes):
        return f"{fit} It was fitted from a seed for testing: it is not a private release and must not be published."
    if math.isinf(epsilon) or delta is None:
        return f"{fit} It has no guarantee of differential privacy."
    assert guarantee.adjacency is not None
    claim = f"Its coefficients are ({at_most(epsilon)}, {delta_text(delta)})-differentially private for " \
            f"{_NEIGHBOURS[guarantee.adjacency]}."  # fmt: skip
    # Notes may end with advice, which is not for readers of a paper.
    assumed = "; ".join(note.partition("; give ")[0] for note in guarantee.assumptions)
    return f"{fit} {claim} Assumptions: {assumed}."
