"""Worst pairs for one client of a federation, whose adversary is the server: it also chooses the model of a round.

Scalar losses: the kept coordinate, as for dp_sgd_ht and dp_ight, from a model whose first weight is always kept.
Where rows have no bound, their length is chosen such that gradients reach grad_norm at all weights that noise can lead
to. For the logistic loss x sigmoid(-x) is at most 0.278, so that this needs short steps; else opposite rows are used.

Softmax: the model of ``FederatedPlan.attacked`` gives classes 0 and 1 a large weight of feature 0, and the others none.
A record on that feature then has probabilities (1/2, 1/2, 0, ...), and its gradients with label 0 and with label 1 are
opposite, both at their bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid
from dptoolkit.accounting.events import POISSON
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import layout
from dptoolkit.audit.pair import Pair, Score
from dptoolkit.audit.pairs import _ight
from dptoolkit.audit.theory import kept
from dptoolkit.audit.theory.batched import repeated
from dptoolkit.audit.theory.likelihood import Batch, BatchRatio, IterateRatio, Projection
from dptoolkit.data import check_rows
from dptoolkit.federated.plan import FederatedPlan
from dptoolkit.solvers.engine.softmax import clipped_residuals
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

# The x at which x sigmoid(-x) is largest, and the margin up to which the smoothed hinge has its full slope.
_LOGISTIC, _HINGE = 1.278, 0.5
# Standard deviations that a weight may move by noise.
_REACH = 4.0


def dp_fed_sgd_ht(plan: Plan | FederatedPlan) -> Pair:
    """The pair for one client of ``dp_fed_sgd_ht``; of a federation for one message of its worst client.

    Scores: "iterates" is the trace of local steps, by the likelihood ratio summed over them, and "final" the message.
    """
    one = _client(plan, "dp_fed_sgd_ht")
    if one.settings.is_multiclass:
        return _softmax(one)
    return _longest(one, _ight.dp_sgd_ht, "iterates")


def dp_fed_gd_ht(plan: Plan | FederatedPlan) -> Pair:
    """The pair for one client of ``dp_fed_gd_ht``, as ``dp_fed_sgd_ht``."""
    one = _client(plan, "dp_fed_gd_ht")
    if one.settings.is_multiclass:
        return _softmax(one)
    return _longest(one, _ight.dp_ight, "final")


def _client(plan: Any, solver: str) -> Plan:
    one: Plan = plan.attacked() if isinstance(plan, FederatedPlan) else plan
    if one.solver != solver:
        raise invalid("plan.solver", one.solver, repr(solver))
    return one


def _longest(plan: Plan, make: Any, adversary: str) -> Pair:
    """The pair with the rows that show most, where their length is free."""
    settings: Any = plan.settings
    if settings.row_norm is not None or not settings.loss_row.is_bounded:
        found: Pair = make(plan)
        return found
    bound = settings.grad_norm
    lengths = [4 * bound]
    if settings.loss_row.task == losses.BINARY:
        reach = _largest_weight(plan)
        lengths += [length for length in (_LOGISTIC / reach, _HINGE / reach) if bound < length < 1e6 * bound]
    # A bound of the rows that the pair obeys changes nothing but what the pair is made of.
    pairs = [make(replace(plan, settings=replace(settings, row_norm=length))) for length in lengths]
    return max(pairs, key=lambda pair: pair.reach.get(adversary, 0.0))


def _largest_weight(plan: Plan) -> float:
    """What the first weight hardly ever exceeds."""
    settings: Any = plan.settings
    noise = settings.step_size * plan.noise * math.sqrt(settings.steps)
    return float(layout.start(plan)[0]) + _REACH * noise + settings.steps * settings.step_size * settings.grad_norm


# --- softmax -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SoftmaxGradients:
    """Records of a client, clipped as it clips them, and their flat gradients at many weights at once."""

    plan: Plan
    rows: Array
    y: Array
    caps: Array
    weights: Array

    def each(self, w: Array) -> list[Array]:
        """The gradient of every record, (trials, weights) each."""
        table = w.reshape(len(w), self.rows.shape[1], -1)
        found = []
        for row, label, cap in zip(self.rows, self.y, self.caps, strict=True):
            margins = np.einsum("tjk,j->tk", table, row)
            r = clipped_residuals(margins, np.tile(label, (len(w), 1)), np.full(len(w), cap))
            found.append((row[None, :, None] * r[:, None, :]).reshape(len(w), -1))
        return found

    def mean(self, w: Array) -> Array:
        """The mean gradient, (trials, weights)."""
        return np.asarray(sum(share * one for share, one in zip(self.weights, self.each(w), strict=True)))


def _gradients(plan: Plan, X: Array, y: Array, counts: Any = None) -> SoftmaxGradients:
    settings: Any = plan.settings
    rows, _, caps = settings.bounds.clip(check_rows(X), np.zeros(0))
    times = np.ones(len(y)) if counts is None else np.asarray(counts, dtype=float)
    return SoftmaxGradients(plan, rows.matrix, settings.labels(y, len(y)), caps, times / times.sum())


def _softmax(plan: Plan) -> Pair:
    """A record of class 0 or class 1 on feature 0; the others are its replacement, or zero where they would add noise.

    The number of others in a Poisson batch is random, and so would their sum be.
    """
    settings: Any = plan.settings
    if settings.outputs < 2 or not layout.start(plan)[:2].all():
        repair = "Use FederatedPlan.attacked(), whose model gives classes 0 and 1 a large weight."
        raise invalid("plan.settings.initial", settings.initial, "a model that the pair is for", repair)
    kept.check_zero_out(plan)
    zeroed, is_random = plan.adjacency is Adjacency.ZERO_OUT, getattr(settings, "sampling", "") == POISSON
    row = _softmax_length(plan) * np.eye(1, plan.d)[0]
    other = 0 * row if is_random or zeroed else row
    rows = np.array([row, 0 * row if zeroed else row, other])
    labels = np.array([0.0, 0.0 if zeroed else 1.0, 1.0])
    first, second = (kept.as_counted(plan, list(rows), labels.tolist(), [*one, plan.n - 1]) for one in ((1, 0), (0, 1)))
    text = f"class 0 or 1: one record of {plan.n}, the others {'are zero' if not other.any() else 'are of class 1'}"
    start = layout.start(plan)[None, :]
    kinds = _gradients(plan, rows, labels)
    one, two, _ = kinds.each(start)
    along = (two - one)[0] / float(np.linalg.norm(two - one))
    scores: dict[str, Score] = {"final": Projection(along)}
    size = getattr(settings, "batch_size", None)
    if size is None:
        both = [_gradients(plan, data.X, data.y, data.counts) for data in (first, second)]
        scores["iterates"] = IterateRatio(*both)  # type: ignore[arg-type]
        signal = float(((both[0].mean(start) - both[1].mean(start)) ** 2).sum()) / plan.noise**2 if plan.noise else 0.0
        event = repeated(signal, 1.0, plan.adjacency, settings.steps)
    else:
        scores["iterates"] = BatchRatio(kinds)  # type: ignore[arg-type]
        rate = size / plan.n
        batch = Batch(size, rate, plan.n, is_random)
        signal = float(batch.signal(kinds.each(start), np.array([plan.noise]))[0]) if plan.noise else 0.0
        # Batches of fixed size are those of the second dataset, or hold the canary: one-sided, as under zero-out.
        event = repeated(signal, rate, plan.adjacency if is_random else Adjacency.ZERO_OUT, settings.steps)
    # By the first step: later ones differ a little less, as the two classes' weights drift apart.
    reach = {"iterates": min(1.0, kept.share(event, plan))} if plan.noise > 0 else {}
    return Pair(first, second, plan.adjacency, text, scores, reach)


def _softmax_length(plan: Plan) -> float:
    """The length of the row: long enough for the gradient's bound, and short enough that neither class is certain."""
    settings: Any = plan.settings
    apart = _REACH * settings.step_size * plan.noise * math.sqrt(2 * settings.steps)
    apart += settings.steps * settings.step_size * settings.grad_norm * math.sqrt(2)
    length = max(_LOGISTIC / apart, 2 * settings.grad_norm)
    return float(length if settings.row_norm is None else min(length, settings.row_norm))
