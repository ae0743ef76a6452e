"""Pairs for solvers that look at batches: a canary among n - 1 other records that are all alike.

A batch of fixed size shows whether the canary is in it, and most where the others equal its replacement. The number of
records in a Poisson batch is random and so is their push, which is additional noise along its direction: there they
push weakly, or across the direction in which the canaries differ (opposite rows).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from dptoolkit.accounting import Composed, Gaussian, Repeated, Subsampled
from dptoolkit.accounting.events import POISSON
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import layout
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.audit.theory import kept, opposite
from dptoolkit.audit.theory.likelihood import BatchRatio, EpochRatio, Projection, gradients
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

Ratio = type[BatchRatio] | type[EpochRatio]
# Shares that the random number of weakly pushing records in a Poisson batch may add to the variance of the noise. A
# larger share means a stronger push, which keeps the coordinate more surely. The best of these is taken.
_EXTRA = (0.03, 0.1, 0.3, 1.0)
_ANGLES, _LENGTHS = (89.0, 80.0, 70.0, 60.0, 45.0, 30.0, 5.0), (1.0, 0.3, 0.1)
# Of records at an angle to all others: the shares of these that push one way, if a snapshot has them all.
_SHARES = (1.0, 0.8, 0.6, 0.53)


class _Batched(NamedTuple):
    """Two datasets, the score of their traces, and what it shows of the guarantee.

    ``direction``: along which the final weights differ. ``one_sided``: whether batches without the canary are those of
    the second dataset.
    """

    first: Counted
    second: Counted
    score: BatchRatio | EpochRatio
    direction: Array
    text: str
    one_sided: bool
    shown: float


def batched(plan: Plan, ratio: Ratio, size: float) -> Pair:
    """The pair for batches of ``size`` rows that show the canary: the one with the largest reach."""
    best = max(_candidates(plan, ratio, size), key=lambda made: made.shown)
    best = best._replace(shown=_shown(plan, best.score, size, best.first, best.second, best.one_sided, kept.PILOT))
    scores = {"final": Projection(best.direction), "iterates": best.score}
    reach = {"iterates": best.shown} if best.shown > 0 else {}
    return Pair(best.first, best.second, plan.adjacency, best.text, scores, reach)


def _candidates(plan: Plan, ratio: Ratio, size: float) -> Iterator[_Batched]:
    random_size = plan.settings.sampling == POISSON and size < plan.n
    for strength in [_weak_push(plan, size, extra) for extra in _EXTRA] if random_size else [1.0]:
        yield _kept(plan, ratio, size, strength)
    if not opposite.applies(plan):
        return
    if not plan.settings.fit_intercept:
        yield _best(lambda angle, length: _opposite(plan, ratio, size, opposite.Design(angle, 1.0, length)), _LENGTHS)
    if ratio is EpochRatio and plan.settings.sampling != POISSON:
        shares = _SHARES if size == plan.n else (1.0,)
        yield _best(lambda angle, share: _tilted(plan, size, angle, share), shares)


def _best(make: Callable[[float, float], _Batched], values: tuple[float, ...]) -> _Batched:
    """The best angle for the middle of the values, the best value for that, and the best angle for the latter."""
    angle, value = _ANGLES[0], values[len(values) // 2]
    made: dict[tuple[float, float], _Batched] = {}

    def shown(a: float, v: float) -> float:
        if (a, v) not in made:
            made[a, v] = make(a, v)
        return made[a, v].shown

    for _ in range(2):
        angle = max(_ANGLES, key=lambda a: shown(a, value))
        value = max(values, key=lambda v: shown(angle, v))
    return made[angle, value]


def _weak_push(plan: Plan, size: float, extra: float) -> float:
    """The push, as a share of a full gradient, at which the records' random number adds ``extra`` to the variance."""
    if kept.keeps_all(plan):
        return 0.0
    noise = plan.releases[-1].scale * size / kept.gradient_bound(plan)
    return min(1.0, noise * math.sqrt(extra / size))


def _kept(plan: Plan, ratio: Ratio, size: float, strength: float) -> _Batched:
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
    return _Batched(first, second, score, -kept.direction(plan, records), text, one_sided, shown)


def _opposite(plan: Plan, ratio: Ratio, size: float, design: opposite.Design) -> _Batched:
    rows, labels, _ = opposite.records(plan, design)
    first, second = opposite.datasets(plan, design)
    # In a Poisson batch the number of others is random along their way, so the score looks across it.
    v = opposite.ways(plan)[1] if plan.settings.sampling == POISSON and size < plan.n else None
    score = ratio(gradients(plan, np.array(rows[:3]), labels[:3]), v)
    text = f"opposite rows: one record of {plan.n} at {design.angle:g} degrees to the way of all others"
    shown = _shown(plan, score, size, first, second, False)
    direction = -(rows[0] - rows[1]) / float(np.linalg.norm(rows[0] - rows[1]))
    return _Batched(first, second, score, direction, text, False, shown)


def _tilted(plan: Plan, size: float, angle: float, share: float) -> _Batched:
    """One record of the other label at an angle to all others, against one more of them: batches of fixed size.

    Gradients change with the weights along their rows, so that inner steps show it too. That change is the same for
    both labels. So ``share`` of the others have one label and the rest the other, if all of them are in a snapshot:
    then the margins stay small, where gradients change most.
    """
    u, v = (plan.settings.row_norm * way for way in opposite.ways(plan))
    cosine = math.cos(math.radians(angle))
    if plan.settings.fit_intercept:
        # The angle of the rows with their entry for the intercept, which is 1: longer rows turn by less.
        square = plan.settings.row_norm**2
        cosine = max(((square + 1) * cosine - 1) / square, -1.0)
    low, high = kept.labels_of(plan, plan.settings.row_norm)
    rows, labels = [cosine * u + math.sqrt(1 - cosine**2) * v, u, u, u], [low, high, high, low]
    back = round((1 - share) * (plan.n - 1))
    counts = [plan.n - 1 - back, back]
    first, second = (kept.as_counted(plan, rows, labels, [*one, *counts]) for one in ((1, 0), (0, 1)))
    score = EpochRatio(gradients(plan, np.array(rows), labels), None, tuple(c / (plan.n - 1) for c in counts))
    text = f"tilted row: one record of {plan.n} at {angle:g} degrees to all others, with the other label"
    towards = np.append(rows[0] + u, [2.0] * plan.settings.fit_intercept)
    direction = -towards / float(np.linalg.norm(towards))
    return _Batched(first, second, score, direction, text, True, _shown(plan, score, size, first, second, True))


def _shown(
    plan: Plan,
    score: BatchRatio | EpochRatio,
    size: float,
    first: Counted,
    second: Counted,
    one_sided: bool,
    runs: int = kept.COMPARED,
) -> float:
    """The reach by accounting: a batch shows whether it holds the canary, which is the pair of Poisson sampling.

    Every release counts with its mean signal, from a few runs; a random number of inner steps with its mean.
    """
    if plan.releases[-1].scale == 0:
        return 0.0
    path, adjacency = kept.few_runs(plan, first, second, runs), Adjacency.ZERO_OUT if one_sided else plan.adjacency
    if isinstance(score, BatchRatio):
        steps = path.reshape(len(path), -1, layout.width(plan))
        noise_at, batch = plan.settings.noise_law(plan), score.batch(size)
        views = zip(kept.before_steps(plan, steps[:, :-1]), (steps != 0).swapaxes(0, 1), strict=True)
        signals = [
            batch.signal([score.shown(kind, support) for kind in score.each(w)], noise_at(w)).mean()
            for w, support in views
        ]
        shown = [repeated(float(np.mean(signals)), size / plan.n, adjacency, len(signals))]
    else:
        seen, inner = epoch_signals(plan, score, path)
        shown = [
            repeated(float(np.mean(seen)), size / plan.n, adjacency, len(seen)),
            repeated(inner.mean, plan.settings.batch_size / plan.n, adjacency, round(inner.number)),
        ]
    found = [event for event in shown if event.count > 0]
    return kept.share(Composed(*found), plan) if found else 0.0


class Inner(NamedTuple):
    """The mean signal of an inner step, and how many of them an average run has."""

    mean: float
    number: float


def epoch_signals(plan: Plan, score: EpochRatio, path: Array) -> tuple[list[float], Inner]:
    """(difference / noise)^2 of every snapshot, and of the inner steps, in runs of a variance-reduced solver."""
    settings, noise_at = plan.settings, plan.settings.noise_law(plan)
    counts, _, iterates = layout.read_epochs(plan, path)
    outer, batch = score.batch(settings.shape(plan.n).snapshot), score.batch(settings.batch_size)
    snapshots, total = [], 0.0
    start: Array = np.zeros((len(path), layout.width(plan)))
    for epoch in range(iterates.shape[1]):
        before = score.each(start)
        seen = [score.shown(kind, np.ones_like(start)) for kind in before]
        snapshots.append(float(outer.signal(seen, noise_at(start)).mean()))
        w = start
        for t, after in enumerate(iterates[:, epoch].swapaxes(0, 1)):
            pairs = zip(score.each(w), before, strict=True)
            changes = [score.shown(now - then, after != 0) for now, then in pairs]
            noise = score.inner_noise(w, start)
            signal = np.where(noise > 0, batch.signal(changes, np.where(noise > 0, noise, 1.0)), 0.0)
            total += float((signal * (t < counts[:, epoch])).mean())
            w = after
        start = w
    number = float(counts.sum(axis=1).mean())
    return snapshots, Inner(total / number if number > 0 else 0.0, number)


def repeated(signal: float, rate: float, adjacency: Adjacency, count: int) -> Repeated:
    """The event of ``count`` releases of batches that hold the canary with probability ``rate``."""
    event = Subsampled(Gaussian(1 / math.sqrt(max(signal, 1e-12))), POISSON, min(rate, 1.0), adjacency)
    return Repeated(event, count if signal > 0 else 0)
