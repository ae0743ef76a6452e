"""Pairs for solvers that look at batches: a canary among n - 1 other records that are all alike.

A batch of fixed size shows whether the canary is in it, and most where the others equal its replacement. The number of
records in a Poisson batch is random and so is their push, which is additional noise along its direction: there they
push weakly, or across the direction in which the canaries differ (opposite rows).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit.accounting import Gaussian, Repeated, Subsampled
from dptoolkit.accounting.events import POISSON
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import layout
from dptoolkit.audit.pairs import kept, opposite
from dptoolkit.audit.pairs.likelihood import BatchRatio, EpochRatio, Projection, gradients
from dptoolkit.audit.pairs.pair import Counted, Pair
from dptoolkit.solvers.plan import Plan

Array = NDArray[np.float64]
Ratio = type[BatchRatio] | type[EpochRatio]
# Shares that the random number of weakly pushing records in a Poisson batch may add to the variance of the noise. A
# larger share means a stronger push, which keeps the coordinate more surely. The best of these is taken.
_EXTRA = (0.03, 0.1, 0.3, 1.0)
_ANGLES, _LENGTHS = (89.0, 80.0, 70.0, 60.0, 40.0, 5.0), (1.0, 0.3)


class _Batched(NamedTuple):
    """Two datasets, the score of their traces, the mean (shift / noise)^2 over the batches, and the epsilon of that.

    ``direction``: along which the final weights differ.
    """

    first: Counted
    second: Counted
    score: BatchRatio | EpochRatio
    direction: Array
    text: str
    shown: float


def batched(plan: Plan, ratio: Ratio, size: int) -> Pair:
    """The pair for batches of ``size`` rows that show the canary: the one with the largest reach."""
    best = max(_candidates(plan, ratio, size), key=lambda made: made.shown)
    scores = {"final": Projection(best.direction), "iterates": best.score}
    reach = {"iterates": best.shown} if best.shown > 0 else {}
    return Pair(best.first, best.second, plan.adjacency, best.text, scores, reach)


def _candidates(plan: Plan, ratio: Ratio, size: int) -> Iterator[_Batched]:
    random_size = plan.settings.sampling == POISSON and size < plan.n
    for strength in [_weak_push(plan, size, extra) for extra in _EXTRA] if random_size else [1.0]:
        yield _kept(plan, ratio, size, strength)
    if opposite.applies(plan) and not plan.settings.fit_intercept:
        for length in _LENGTHS:
            for angle in _ANGLES:
                yield _opposite(plan, ratio, size, opposite.Design(angle, 1.0, length))


def _weak_push(plan: Plan, size: int, extra: float) -> float:
    """The push, as a share of a full gradient, at which the records' random number adds ``extra`` to the variance."""
    if kept.keeps_all(plan):
        return 0.0
    noise = plan.releases[-1].scale * size / kept.gradient_bound(plan)
    return min(1.0, noise * math.sqrt(extra / size))


def _kept(plan: Plan, ratio: Ratio, size: int, strength: float) -> _Batched:
    records = kept.records_of(plan, strength)
    first, second = kept.pair_of(plan, records, plan.n - 1)
    zeroed = plan.adjacency is Adjacency.ZERO_OUT
    kinds = np.array([records.row, 0 * records.row if zeroed else records.row, records.pusher])
    labels = [records.low, 0.0 if zeroed else records.high, records.pusher_label]
    score = ratio(gradients(plan, kinds, labels))
    text = f"kept coordinate: one record of {plan.n}, all others push the same coordinate"
    text += " weakly" if strength < 1 else ""
    # Batches of fixed size are those of the second dataset, or hold the canary: one-sided, as under zero-out.
    one_sided = plan.settings.sampling != POISSON or size == plan.n
    shown = _shown(plan, score, size, first, second, one_sided)
    return _Batched(first, second, score, -kept.direction(plan, records), text, shown)


def _opposite(plan: Plan, ratio: Ratio, size: int, design: opposite.Design) -> _Batched:
    rows, labels, _ = opposite.records(plan, design)
    first, second = opposite.datasets(plan, design)
    # In a Poisson batch the number of others is random along their way, so the score looks across it.
    v = opposite.ways(plan)[1] if plan.settings.sampling == POISSON and size < plan.n else None
    score = ratio(gradients(plan, np.array(rows[:3]), labels[:3]), v)
    text = f"opposite rows: one record of {plan.n} at {design.angle:g} degrees to the way of all others"
    shown = _shown(plan, score, size, first, second, False)
    direction = -(rows[0] - rows[1]) / float(np.linalg.norm(rows[0] - rows[1]))
    return _Batched(first, second, score, direction, text, shown)


def _shown(
    plan: Plan, score: BatchRatio | EpochRatio, size: int, first: Counted, second: Counted, one_sided: bool
) -> float:
    """The reach by accounting: a batch shows whether it holds the canary, which is the pair of Poisson sampling."""
    if plan.releases[-1].scale == 0:
        return 0.0
    views = _views(plan, score, kept.few_runs(plan, first, second))
    batch, law = score.batch(size), plan.settings.noise_law(plan)
    signals = [
        batch.signal([score.shown(kind, support) for kind in score.kinds.each(w)], law.at(w)) for w, support in views
    ]
    signal = float(np.mean(signals))
    if signal <= 0:
        return 0.0
    relation = Adjacency.ZERO_OUT if one_sided else plan.adjacency
    event = Subsampled(Gaussian(1 / math.sqrt(signal)), POISSON, size / plan.n, relation)
    return kept.share(Repeated(event, len(views)), plan)


def _views(plan: Plan, score: BatchRatio | EpochRatio, path: Array) -> list[tuple[Array, Array]]:
    """(weights, mask of visible coordinates) of every batch that shows the canary: of steps, or of snapshots."""
    if isinstance(score, EpochRatio):
        ends = layout.read_epochs(plan, path).iterates[:, :-1, -1]
        return [(w, np.ones_like(w)) for w in kept.from_zero(ends)]
    steps = path.reshape(len(path), -1, layout.width(plan))
    return list(zip(kept.from_zero(steps[:, :-1]), (steps != 0).swapaxes(0, 1), strict=True))
