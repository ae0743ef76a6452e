"""Worst pairs for gradient hard thresholding: one record on a coordinate that the other records keep in the model.

The records are a canary x = L e_1, whose label gives its gradient the largest size, and pushing records on the same
coordinate with the opposite label. They push the coordinate into the top s, so that thresholding hides nothing of the
canary. In the neighbouring dataset the canary has the opposite label (replace-one) or is a zero row (zero-out).

Where gradients are clipped, labels lie so far out that every gradient stays at its bound, whatever the weights. Then
steps do not contract, and the last iterate shows as much as all noisy gradients together. A logistic canary's gradient
moves by exactly its row when the label flips; there pushing records are few, so that the weights stay small, where the
adaptive noise is smallest.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dptoolkit import losses, solvers
from dptoolkit._validate import invalid
from dptoolkit.accounting import Gaussian, Repeated, Subsampled, account
from dptoolkit.accounting.events import POISSON, WITHOUT_REPLACEMENT, Event
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import layout
from dptoolkit.audit.pairs.likelihood import (
    BatchRatio,
    EpochRatio,
    GradientRatio,
    IterateRatio,
    Projection,
    gradients,
)
from dptoolkit.audit.pairs.pair import Counted, Pair, Score
from dptoolkit.audit.streams import Streams
from dptoolkit.solvers.plan import Plan

Array = NDArray[np.float64]
# The delta at which the epsilon of a pair is compared with that of the guarantee.
_DELTA = 1e-5
# Standard deviations by which a pushed coordinate must lead after one step to count as kept.
_LEAD = 5.0
# Trials from which the reach of a pair is estimated where there is no formula for it.
_PILOT = 256
# Shares that the random number of weakly pushing records in a Poisson batch may add to the variance of the noise. A
# larger share means a stronger push, which keeps the coordinate more surely. The best of these is taken.
_EXTRA = (0.03, 0.1, 0.3, 1.0)


class _Records(NamedTuple):
    """The kinds of record: the canary with its two labels, the pushing records and the rest."""

    row: Array
    low: float
    high: float
    pusher: Array
    pusher_label: float


def dp_ight(plan: Plan) -> Pair:
    """The kept coordinate for ``dp_ight``, in three or four different rows.

    Scores: for "final" the canary's coordinate; for "gradients", "step" and "iterates" the exact likelihood ratio. With
    clipped gradients the pair attains the guarantee. With the logistic loss it does near w = 0 (``reach`` is estimated
    from 256 runs). With bounded labels and margins it shows the label's share of the gradient bound.
    """
    expect_solver(plan, "dp_ight", "dp_dual_averaging")
    records = _records(plan, 1.0)
    pushing = _pushing(plan, records)
    first, second = _pair_of(plan, records, pushing)
    both = [gradients(plan, data.X, data.y, data.counts) for data in (first, second)]
    every, on_support = GradientRatio(*both), IterateRatio(*both)
    scores = _scores(plan, records) | {"gradients": every, "releases": every, "step": every, "iterates": on_support}
    text = f"kept coordinate: one record of {plan.n}, {pushing} push the same coordinate"
    return Pair(first, second, plan.adjacency, text, scores, _reach_of_gradients(plan, every, first, second, pushing))


dp_dual_averaging = dp_ight


def dp_sgd_ht(plan: Plan) -> Pair:
    """The kept coordinate for ``dp_sgd_ht``: the canary, and n - 1 other records that are all alike.

    In batches of fixed size the others equal the canary's replacement, so that a batch shows only whether the canary is
    in it. In Poisson batches their random number is additional noise, so there they push weakly. The score for
    "iterates" is the likelihood ratio summed over the steps, a mixture in each of them.
    """
    expect_solver(plan, "dp_sgd_ht")
    return batched(plan, BatchRatio, plan.settings.batch_size)


def natural(plan: Plan, X: Any, y: Any) -> Pair:
    """The data as they are, and with one record changed: its label flipped, or the record zeroed.

    The record is the one of the highest leverage among the features that a fit without privacy selects. Such pairs show
    what a guarantee is worth on real data: usually far less is given away than it allows.
    """
    _check_zero_out(plan)
    dense = np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=float)
    labels = np.asarray(y, dtype=float)
    index, support = _highest_leverage(plan, dense, labels)
    row, label = dense[index].copy(), labels[index]
    changed, flipped = dense.copy(), labels.copy()
    if plan.adjacency is Adjacency.ZERO_OUT:
        changed[index] = 0.0
    else:
        binary = _is_binary(plan)
        flipped[index] = (-label if (labels < 0).any() else 1 - label) if binary else -label
    towards = np.zeros(layout.width(plan))
    # A larger label moves the weights along its row.
    towards[support] = math.copysign(1.0, label - 0.5 if _is_binary(plan) else label) * row[support]
    scores: dict[str, Score] = {"final": Projection(towards)}
    if plan.solver in ("dp_ight", "dp_dual_averaging"):
        ours, theirs = gradients(plan, dense, labels), gradients(plan, changed, flipped)
        every = GradientRatio(ours, theirs)
        scores |= {"gradients": every, "releases": every, "step": every, "iterates": IterateRatio(ours, theirs)}
    return Pair((X, y), (changed, flipped), plan.adjacency, f"data as given, record {index} changed", scores)


def _highest_leverage(plan: Plan, X: Array, y: Array) -> tuple[int, NDArray[np.intp]]:
    s = plan.settings
    steps = getattr(s, "steps", 50)
    fit = solvers.ight(X, y, loss=s.loss, sparsity=s.sparsity or plan.d, steps=steps, step_size=_safe_step(plan, X))
    support = np.flatnonzero(fit.coef)
    part = X[:, support]
    curvature = part.T @ part / len(X) + 1e-6 * np.eye(len(support))
    leverage = np.einsum("ij,ij->i", part, np.linalg.solve(curvature, part.T).T)
    # Flipping the label of a regression record changes little if the label is near 0.
    change = np.ones(len(X)) if _is_binary(plan) else np.minimum(np.abs(y), np.quantile(np.abs(y), 0.9))
    return int(np.argmax(leverage * change**2)), support


def _safe_step(plan: Plan, X: Array) -> float:
    """The plan's step, unless the rows are so long that it would diverge without clipping."""
    longest = float((X**2).sum(axis=1).max())
    return float(min(plan.settings.step_size, 1 / longest)) if longest > 0 else 1.0


# --- records -------------------------------------------------------------------------------------------


def expect_solver(plan: Plan, *solvers: str) -> None:
    """Refuse plans of other solvers, and those for which no pair of this kind is known."""
    if plan.solver not in solvers:
        raise invalid("plan.solver", plan.solver, " or ".join(map(repr, solvers)))
    if plan.settings.terms.task == losses.MULTICLASS:
        raise invalid("plan.settings.loss", plan.settings.loss, "another than 'softmax'", "No worst pair is known yet.")
    _check_zero_out(plan)


def _check_zero_out(plan: Plan) -> None:
    if plan.adjacency is Adjacency.ZERO_OUT and plan.settings.fit_intercept:
        repair = "A zero row still moves the intercept, so zero-out neighbours with one are not two datasets."
        raise invalid("fit_intercept", True, "False under zero-out", repair)


def _is_binary(plan: Plan) -> bool:
    return plan.settings.terms.task == losses.BINARY


def _number_of_steps(plan: Plan) -> int:
    """The number of thresholdings, or of those that the adversary looks at."""
    settings = plan.settings
    return settings.epochs * layout.most_inner_steps(plan) if layout.is_reduced(plan) else settings.steps


def keeps_all(plan: Plan) -> bool:
    """Whether nothing is thresholded away."""
    sparsity = plan.settings.sparsity
    return sparsity is None or sparsity >= plan.d


def _is_saturated(plan: Plan) -> bool:
    """Whether labels can lie so far out that gradients stay at their bound for all weights."""
    return not _is_binary(plan) and plan.settings.label_bound is None


def gradient_bound(plan: Plan) -> float:
    """The bound on one record's gradient."""
    return float(plan.settings.bounds.gradient)


def _records(plan: Plan, strength: float) -> _Records:
    """A canary along e_1, and records that push the other way with ``strength`` times a full gradient."""
    limit = plan.settings.row_norm
    length = 1.0 if limit is None else limit
    row = length * np.eye(1, plan.d)[0]
    low, high = _labels(plan, length)
    if strength < 1 and _is_saturated(plan) and plan.settings.grad_norm is not None:
        # A tiny row with a huge label: its gradient is label times row, short of the bound and nearly constant.
        tiny = 1e-6 * length
        label = min(strength * gradient_bound(plan) / tiny, high)
        return _Records(row, low, high, tiny / length * row, label)
    return _Records(row, low, high, strength * row, high)


def _labels(plan: Plan, length: float) -> tuple[float, float]:
    """Labels that make the gradient of a record point along its row, and against it."""
    if _is_binary(plan):
        return 0.0, 1.0
    if plan.settings.label_bound is not None:
        return -plan.settings.label_bound, plan.settings.label_bound
    bound = gradient_bound(plan)
    steps = _number_of_steps(plan)
    furthest = steps * plan.settings.step_size * (bound + 40 * max(r.scale for r in plan.releases))
    far = 1e3 * (length * furthest + bound / length + 1.0)
    return -far, far


def _pair_of(plan: Plan, records: _Records, pushing: int) -> tuple[Counted, Counted]:
    """The canary, ``pushing`` records, and zero rows; and its neighbour."""
    zero, rest = np.zeros(plan.d), plan.n - 1 - pushing
    # Zero rows pull an intercept, so half of them pull it each way.
    ends = (0.0, 1.0) if _is_binary(plan) else (0.0, 0.0)
    rows = [records.row, records.row, records.pusher, zero, zero]
    labels = [records.low, records.high, records.pusher_label, *ends]
    common = [0, 0, pushing, rest - rest // 2, rest // 2]
    first, second = common.copy(), common.copy()
    first[0] += 1
    second[3 if plan.adjacency is Adjacency.ZERO_OUT else 1] += 1
    return as_counted(plan, rows, labels, first), as_counted(plan, rows, labels, second)


def as_counted(plan: Plan, rows: list[Array], labels: list[float], counts: list[int]) -> Counted:
    """These rows with their labels, each ``counts`` times; equal ones are merged and those of count 0 left out."""
    times: dict[tuple[float, ...], int] = {}
    for row, label, count in zip(rows, labels, counts, strict=True):
        if count > 0:
            key = (*row.tolist(), label)
            times[key] = times.get(key, 0) + count
    both = np.array(list(times)).reshape(len(times), plan.d + 1)
    return Counted(both[:, :-1].copy(), both[:, -1].copy(), np.array(list(times.values()), dtype=np.int64))


def _pushing(plan: Plan, records: _Records) -> int:
    """How many records of dp_ight push. At bounded gradients all of them; elsewhere just enough, as they contract."""
    if keeps_all(plan):
        return 0
    if _is_saturated(plan) or plan.noise == 0:
        return plan.n - 1
    w = np.zeros((1, layout.width(plan)))
    alone = gradients(plan, records.pusher[None, :], [records.pusher_label])
    push = float(np.linalg.norm(alone.mean(w))) / plan.n
    law = plan.settings.noise_law(plan)
    return min(plan.n - 1, math.ceil(_LEAD * float(law.at(w)[0]) / push))


def _direction(plan: Plan, records: _Records) -> Array:
    row = np.append(records.row, 1.0) if plan.settings.fit_intercept else records.row
    return np.asarray(row / np.linalg.norm(row))


def _scores(plan: Plan, records: _Records) -> dict[str, Score]:
    # The first dataset's gradient points along the row, so its weights move against it.
    return {"final": Projection(-_direction(plan, records))}


# --- what the pairs give away --------------------------------------------------------------------------


def _epsilon(event: Event) -> float:
    return account(event).epsilon(_DELTA)


def share(event: Event, plan: Plan) -> float:
    """The epsilon of an event over the plan's."""
    whole = plan.guarantee.epsilon(_DELTA)
    return _epsilon(event) / whole if 0 < whole < math.inf else math.nan


def _reach_of_gradients(
    plan: Plan, score: GradientRatio, first: Counted, second: Counted, pushing: int
) -> dict[str, float]:
    """The reach by adversary: noisy gradients are Gaussian, so mu^2 is the expected sum of (difference / noise)^2."""
    if plan.noise == 0:
        return {}
    push = gradient_bound(plan) * pushing / plan.n
    if _is_saturated(plan):
        kept = keeps_all(plan) or push >= _LEAD * plan.noise
        return dict.fromkeys(("gradients", "releases", *(("iterates", "final") if kept else ())), 1.0)
    every, on_support = (share(Gaussian(1 / mu), plan) if mu > 0 else 0.0 for mu in _pilot(plan, score, first, second))
    return {"gradients": every, "releases": every, "iterates": on_support}


def _pilot(plan: Plan, score: GradientRatio, first: Counted, second: Counted) -> tuple[float, float]:
    """mu of all noisy gradients, and of their coordinates that stay in the model, from a few runs of the solver."""
    path = few_runs(plan, first, second).reshape(_PILOT, -1, layout.width(plan))
    squares = np.zeros(2)
    for w, support in zip(_from_zero(path[:, :-1]), (path != 0).swapaxes(0, 1), strict=True):
        difference = score.first.mean(w) - score.second.mean(w)
        for k, part in enumerate((difference, difference * support)):
            squares[k] += float(np.mean((part**2).sum(axis=1) / plan.settings.noise_law(plan).at(w) ** 2))
    return math.sqrt(squares[0]), math.sqrt(squares[1])


def few_runs(plan: Plan, first: Counted, second: Counted) -> Array:
    """The iterates of a few runs on each dataset, as an adversary sees them."""
    from dptoolkit.audit.targets import PlanTarget

    bits = np.arange(_PILOT, dtype=np.int8) % 2
    return PlanTarget(plan, Pair(first, second), "iterates").run(bits, 0, Streams(0, "pairs"))


class _Batched(NamedTuple):
    """A canary among n - 1 equal records, the score of its traces, and the mean (shift / noise)^2 over its batches."""

    first: Counted
    second: Counted
    records: _Records
    score: BatchRatio | EpochRatio
    signal: float
    batches: int


def batched(plan: Plan, ratio: type[BatchRatio] | type[EpochRatio], size: int) -> Pair:
    """The pair for batches of ``size`` rows that show the canary."""
    random_size = plan.settings.sampling == POISSON and size < plan.n
    strengths = [_weak_push(plan, size, extra) for extra in _EXTRA] if random_size else [1.0]
    best = max((_with_push(plan, ratio, size, strength) for strength in strengths), key=lambda m: m.signal)
    kind = "weakly " if random_size else ""
    text = f"kept coordinate: one record of {plan.n}, all others push the same coordinate {kind}".rstrip()
    scores = _scores(plan, best.records) | {"iterates": best.score}
    return Pair(best.first, best.second, plan.adjacency, text, scores, _reach_of_batches(plan, size, best))


def _weak_push(plan: Plan, size: int, extra: float) -> float:
    """The push, as a share of a full gradient, at which the records' random number adds ``extra`` to the variance."""
    if keeps_all(plan):
        return 0.0
    noise = plan.releases[-1].scale * size / gradient_bound(plan)
    return min(1.0, noise * math.sqrt(extra / size))


def _with_push(plan: Plan, ratio: type[BatchRatio] | type[EpochRatio], size: int, strength: float) -> _Batched:
    records = _records(plan, strength)
    first, second = _pair_of(plan, records, plan.n - 1)
    zeroed = plan.adjacency is Adjacency.ZERO_OUT
    kinds = np.array([records.row, 0 * records.row if zeroed else records.row, records.pusher])
    labels = [records.low, 0.0 if zeroed else records.high, records.pusher_label]
    score = ratio(gradients(plan, kinds, labels))
    scale = plan.releases[-1].scale
    if scale == 0:
        return _Batched(first, second, records, score, 0.0, 0)
    views = _views(plan, score, few_runs(plan, first, second))
    batch = score.batch(size)
    signals = [batch.signal(score.kinds.each(w), support, plan.settings.noise_law(plan).at(w)) for w, support in views]
    return _Batched(first, second, records, score, float(np.mean(signals)), len(views))


def _views(plan: Plan, score: BatchRatio | EpochRatio, path: Array) -> list[tuple[Array, Array]]:
    """(weights, mask of visible coordinates) of every batch that shows the canary: of steps, or of snapshots."""
    if isinstance(score, EpochRatio):
        ends = layout.read_epochs(plan, path).iterates[:, :-1, -1]
        return [(w, np.ones_like(w)) for w in _from_zero(ends)]
    steps = path.reshape(_PILOT, -1, layout.width(plan))
    return list(zip(_from_zero(steps[:, :-1]), (steps != 0).swapaxes(0, 1), strict=True))


def _reach_of_batches(plan: Plan, size: int, pair: _Batched) -> dict[str, float]:
    """The reach by accounting: a batch shows whether it holds the canary, which is the pair of Poisson sampling."""
    if pair.signal <= 0:
        return {}
    relation = Adjacency.ZERO_OUT if plan.settings.sampling == WITHOUT_REPLACEMENT else plan.adjacency
    event = Subsampled(Gaussian(1 / math.sqrt(pair.signal)), POISSON, size / plan.n, relation)
    return {"iterates": share(Repeated(event, pair.batches), plan)}


def _from_zero(path: Array) -> list[Array]:
    """The weights before every step, from those after all but the last: (trials, steps, width) to a list."""
    return [np.zeros((len(path), path.shape[2])), *path.swapaxes(0, 1)]
