"""Data as they are, for solvers that choose vertices: the record that shows most in the first selection is changed.

The score is the exact likelihood ratio of all vertices, as for the worst pairs; only the data are not made up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import softmax

from dptoolkit import losses
from dptoolkit._validate import invalid
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Pair, counted
from dptoolkit.audit.pairs._frank_wolfe import check_plan, vertex_reach, vertex_scores
from dptoolkit.audit.theory.replay import Later, Replay
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

SOLVERS = ("dp_frank_wolfe", "dp_multinomial_frank_wolfe")


def natural_choice(plan: Plan, X: Any, y: Any) -> Pair:
    """The data and, with one record's label changed or the record zeroed, their neighbour; both as dense arrays."""
    check_plan(plan, plan.solver, intercept=True)
    if plan.settings.law != "gumbel":
        raise invalid("law", plan.settings.law, "'gumbel'", "The likelihood of other noise is known for ties alone.")
    rows = np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=float)
    bound = plan.settings.feature_bound
    clipped, labels = np.clip(rows, -bound, bound), np.asarray(y, dtype=float)
    limit = plan.settings.label_limit
    if limit is not None:
        labels = np.clip(labels, -limit, limit)
    changed = _changed_labels(plan, labels)
    zeroed = plan.adjacency is Adjacency.ZERO_OUT
    index = int(np.argmax(_leaks(plan, clipped, labels, changed, zeroed)))
    X2, y2 = rows.copy(), labels.copy()
    if zeroed:
        X2[index] = 0.0
    else:
        y2[index] = changed[index]
    replay = Replay(plan, counted(clipped, labels), counted(np.clip(X2, -bound, bound), y2))
    scores = vertex_scores(replay)
    description = f"data as given, record {index} changed"
    return Pair((rows, labels), (X2, y2), plan.adjacency, description, scores, Later(vertex_reach, replay, scores))


def _changed_labels(plan: Plan, labels: Array) -> Array:
    """The other class, the next of several, or minus the number."""
    task = plan.settings.loss_row.task
    if task == losses.MULTICLASS:
        return np.asarray((labels + 1) % plan.settings.classes)
    if task == losses.REGRESSION:
        return -labels
    if not np.isin(labels, (0.0, 1.0)).all():
        raise invalid("y", "other labels", "0 and 1 for this pair")
    return 1 - labels


def _leaks(plan: Plan, X: Array, y: Array, changed: Array, zeroed: bool) -> Array:
    """For every record the variance of the log ratio of the first selection: what a round leaks where that is small."""
    data = counted(X, y)
    replay = Replay(plan, data, data)
    start = np.zeros((1, replay.groups, replay.size))
    scores = next(replay.raw_scores(start))[0]
    law = softmax(np.concatenate([scores, -scores], axis=1), axis=1)
    unit = plan.settings.l1_radius / plan.n / float(plan.settings.noise_law(plan)(_zero(plan))[0])
    rows = np.column_stack([X, np.full(len(X), plan.settings.bounds.level)]) if plan.settings.fit_intercept else X
    ours, theirs = (_residuals(plan, labels) for labels in (y, changed))
    moves = unit * (ours - (0 * ours if zeroed else theirs))[:, :, None] * rows[:, None, :]
    # As the scores are: one group of all classes and features, or one group for every feature.
    moves = moves.transpose(0, 2, 1) if replay.groups > 1 else moves.reshape(len(X), 1, -1)
    both = np.concatenate([moves, -moves], axis=2)
    mean = (law * both).sum(axis=2, keepdims=True)
    return np.asarray((law * (both - mean) ** 2).sum(axis=(1, 2)))


def _residuals(plan: Plan, labels: Array) -> Array:
    """The residuals at zero weights, (records, classes)."""
    terms, classes = plan.settings.loss_row, plan.settings.class_count
    if classes:
        return np.asarray(terms.residual(np.zeros((len(labels), classes)), np.eye(classes)[labels.astype(int)]))
    return np.asarray(terms.residual(np.zeros(len(labels)), labels))[:, None]


def _zero(plan: Plan) -> Array:
    """Zero weights, in the form in which the noise law takes them."""
    width, classes = plan.settings.width(plan.d), plan.settings.class_count
    return np.zeros((1, classes, width)) if classes else np.zeros((1, width))
