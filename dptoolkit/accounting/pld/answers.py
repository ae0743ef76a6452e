"""The two questions, epsilon at a delta and delta at an epsilon, in both directions of the neighbours."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from dptoolkit.accounting._numeric import sum_up
from dptoolkit.accounting.events import Event, RandomRounds, Subsampled, flatten
from dptoolkit.accounting.pld import adversary, composition, single
from dptoolkit.accounting.pld.blocks import COARSE, better, has_blocks, in_blocks
from dptoolkit.accounting.pld.curve import (
    AGREEMENT,
    Answer,
    Composition,
    Resolution,
    rough_delta,
    rough_epsilon,
    surely_keeps,
)
from dptoolkit.accounting.pld.grid import span_of
from dptoolkit.accounting.pld.smooth import first_epsilon
from dptoolkit.accounting.pld.trees import Node, attained, directions, dominating, steps_of, total_variation
from dptoolkit.accounting.structure import delta_left, delta_with_failures, is_gaussian, without_failures
from dptoolkit.errors import UnsupportedEvent


class Bracket(NamedTuple):
    """Bounds on epsilon: ``upper`` is guaranteed, and no analysis can prove less than ``lower``."""

    lower: float
    upper: float


def epsilon(event: Event, delta: float) -> float:
    """The sound upper bound on epsilon at ``delta``."""
    return epsilon_answer(event, delta).value


def delta(event: Event, epsilon: float) -> float:
    """The sound upper bound on delta at ``epsilon``; at ``epsilon(event, d)`` it is at most d."""
    return delta_answer(event, epsilon).value


def epsilon_answer(event: Event, delta: float, *, verified: bool = True) -> Answer:
    """``epsilon``, and whether the grid was fine enough; where delta is steep, verified against ``delta_answer``.

    Losses of Gaussians have smooth tails, where the curves of different grids agree, so these need no verification.
    But near a largest loss, and wherever one grid was not enough, delta falls by decades within one grid step, and
    ``delta_answer`` may end at a curve other than the one that gave epsilon.
    """
    target, factor = delta, 1.0
    while True:
        answer = _epsilon_answer(event, target)
        if not verified or math.isinf(answer.value) or not (answer.refined or answer.value > 0 and not _smooth(event)):
            return answer
        if _plainly_kept(event, answer.value, delta):
            return answer
        own = delta_answer(event, answer.value).value
        if own <= delta:
            return answer
        near = _first_kept(event, answer.value, delta)
        if near is not None:
            return answer._replace(value=near)
        target, factor = target * min(delta / own, 1 - 1e-15) ** factor, 2 * factor


def _first_kept(event: Event, epsilon: float, delta: float) -> float | None:
    """The first epsilon that keeps ``delta`` from ``epsilon`` upwards, within the error of a grid; None if none does.

    A smaller delta could be asked for instead. But on a plateau, where delta hardly depends on epsilon, the answer to a
    slightly smaller delta may lie far away.
    """
    low, high, step = epsilon, epsilon, math.ulp(epsilon)
    while delta_answer(event, high).value > delta:
        if step > _FARTHEST * epsilon:
            return None
        low, high, step = high, epsilon + step, 8 * step
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (low, middle) if delta_answer(event, middle).value <= delta else (middle, high)
    return high


def keeps(event: Event, epsilon: float, delta: float) -> bool:
    """Whether ``epsilon``, the answer of a search at ``delta``, can stand: its own delta is at most that."""
    if math.isinf(epsilon) or ((epsilon == 0 or _smooth(event)) and not _epsilon_answer(event, delta).refined):
        return True
    return _plainly_kept(event, epsilon, delta) or delta_answer(event, epsilon).value <= delta


def _plainly_kept(event: Event, epsilon: float, delta: float) -> bool:
    """Whether the curve that gave ``epsilon`` shows by itself that ``delta_answer`` there is at most ``delta``.

    Well inside its decade the delta of that curve is found on the same curve, whichever decade the search for it begins
    with, and no other curve can make it larger. That holds where delta stays in its decade within a few grid steps:
    where it is steeper, as near a largest loss, curves on other grids may differ by decades. False decides nothing.
    """
    if without_failures(event)[1] != 0:
        return False
    trees, (decade, place) = _trees(event), _place(delta)
    if len(trees) != 1 or single.single(trees[0]) is not None or abs(place) > _WELL_INSIDE:
        return False
    curve = _curve(trees[0], decade)
    around = [curve.delta(max(epsilon + steps * curve.step, 0.0)).value for steps in (-_STEPS_AROUND, 0, _STEPS_AROUND)]
    places = map(_place, around)
    inside = all(own == decade and abs(place) <= _WELL_INSIDE for own, place in places)
    return inside and around[1] <= delta and curve.resolves(epsilon)


def _smooth(event: Event) -> bool:
    """Whether all noise is Gaussian."""
    parts = [part for part, _ in flatten(event)]
    return all(
        is_gaussian(part) or (isinstance(part, (Subsampled, RandomRounds)) and _smooth(part.event)) for part in parts
    )


# For a coarse epsilon: how much its grid may add to it, relative to it, and the points of its first grid on each side
# of loss 0.
_COARSE_TOLERANCE, _COARSE_POINTS = 1e-3, 128
# About what an epsilon by fine blocks is of one by coarse blocks: 0.97 to 0.995 were seen.
_COARSE_BLOCKS = 0.988


class Effort(Enum):
    """How well a search looks at an event."""

    FIRST = "by moments"
    ROUGH = "by moments, or on a very coarse grid"
    COARSE = "on a coarse grid"
    FULL = "as for an answer"


def forward_epsilon(event: Event, delta: float, effort: Effort) -> float:
    """An estimate of epsilon, from that one direction of the neighbours which mostly has the larger epsilon.

    It is no bound. Searches find their way by it and verify the place where they end.
    """
    event, delta = _apart_from_failures(event, delta)
    if delta < 0:
        return math.inf
    tree = _trees(event)[0]
    if effort is Effort.FULL or not 0 < delta < total_variation(tree):
        return _epsilon_of_tree(tree, delta).value
    if effort in (Effort.FIRST, Effort.ROUGH):
        return first_epsilon(tree, delta) if effort is Effort.FIRST else rough_epsilon(tree, delta)
    blocks = in_blocks(tree, _place(delta)[0], COARSE)
    coarse = Composition(blocks or tree, delta, tolerance=_COARSE_TOLERANCE, points=_COARSE_POINTS)
    return coarse.epsilon(delta).value * (_COARSE_BLOCKS if blocks else 1.0)


def _apart_from_failures(event: Event, delta: float) -> tuple[Event, float]:
    """The event given that no part fails, and what the failures leave of ``delta``; negative if they leave nothing.

    Both together are the same question. But the grids are now made for the remaining delta, which may be so small that
    next to the failures' mass at infinity it would be lost to rounding.
    """
    rest, log_success = without_failures(event)
    remainder = delta_left(log_success, delta)
    return rest, remainder if remainder > 0 or log_success == 0 else -1.0


def _epsilon_answer(event: Event, delta: float) -> Answer:
    """epsilon without verification; the last answer is kept, because the question whether it can stand comes next."""
    question = event, delta
    if _RECENT.answered is None or _RECENT.answered[0] != question:
        _RECENT.answered = question, _both_directions(event, delta)
    return _RECENT.answered[1]


def _both_directions(event: Event, delta: float) -> Answer:
    event, delta = _apart_from_failures(event, delta)
    if delta < 0:
        return Answer(math.inf, True)
    answer = Answer(0.0, True)
    for tree in _trees(event):
        # Backwards the loss of a subsampled step is at most -log(1 - rate), so this direction can often be skipped.
        if answer.value == 0 or (
            _largest_loss(tree, delta) > answer.value and not _surely_keeps(tree, answer.value, delta, answer.step)
        ):
            answer = _worse(answer, _epsilon_of_tree(tree, delta))
    return answer


def delta_answer(event: Event, epsilon: float) -> Answer:
    """``delta``, and whether the grid was fine enough."""
    rest, log_success = without_failures(event)
    answer = _delta_answer(rest, epsilon)
    return answer._replace(value=delta_with_failures(log_success, answer.value))


def _delta_answer(event: Event, epsilon: float) -> Answer:
    answer = Answer(0.0, True)
    for tree in _trees(event):
        # A direction whose delta cannot exceed the first one's is skipped, because computing a tiny delta takes long.
        if answer.value == 0 or (
            _largest_loss(tree, answer.value) > epsilon and not _surely_keeps(tree, epsilon, answer.value, answer.step)
        ):
            answer = _worse(answer, _delta_of_tree(tree, epsilon, enough=answer.value))
    return answer


def _worse(first: Answer, second: Answer) -> Answer:
    sharp, refined = first.sharp and second.sharp, first.refined or second.refined
    return Answer(max(first.value, second.value), sharp, second.step, refined)


def _surely_keeps(tree: tuple[Node, ...], epsilon: float, delta: float, step: float) -> bool:
    return step > 0 and 0 < epsilon < math.inf and 0 < delta < 1 and surely_keeps(tree, epsilon, delta, step)


def divergences(event: Event) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """delta as a function of epsilon for each order of the dominating neighbours; the larger is ``delta``."""
    trees = _trees(event)
    forward, backward = trees[0], trees[-1]

    def of(tree: tuple[Node, ...]) -> Callable[[float], float]:
        return lambda epsilon: _delta_of_tree(tree, epsilon, enough=0.0).value

    return of(forward), of(backward)


def lower_epsilon(event: Event, delta: float) -> float:
    """A lower bound on epsilon at ``delta``: some neighbours attain it, so no analysis can prove less."""
    trees = directions(event, attained)
    nodes = trees[0]
    if len(nodes) == 1 and nodes[0].batch is not None and 0 < delta < total_variation(nodes):
        adaptive = adversary.lower_epsilon(nodes[0].batch, nodes[0].count, delta)
        if adaptive is not None:
            return adaptive
    return max(_lower_epsilon_of_tree(tree, delta) for tree in trees)


def _largest_loss(tree: tuple[Node, ...], delta: float) -> float:
    """A loss above which less than ``delta`` is left: the sum of the largest losses; infinite if there is none."""
    if any(n.pair is None for n in tree) or delta == 0:
        return math.inf
    tail = delta * 1e-6 / max(steps_of(tree), 1.0)
    pairs = [(n.count, n.pair) for n in tree if n.pair is not None]
    if math.fsum(count * (pair.infinite_mass + tail) for count, pair in pairs) > delta:
        return math.inf
    return sum_up((count, span_of(pair, tail).above) for count, pair in pairs)


def _lower_epsilon_of_tree(tree: tuple[Node, ...], delta: float) -> float:
    # A release without noise gives everything away. It is answered here because the other releases may be too small for
    # any grid that holds them all.
    if any(n.pair is not None and n.count > 0 and n.pair.infinite_mass == 1 for n in tree):
        return math.inf
    if total_variation(tree) <= delta or delta == 0:
        return 0.0
    return Composition(tree, delta, lower=True).lower_epsilon(delta)


# Both questions, epsilon at a delta and delta at an epsilon, are answered by the same curves, so that one answer is the
# inverse of the other. There is one curve for every decade of delta, on the grid that is best for the decade's middle.
_LAST_DECADE = 300
# Curves kept of one event.
_MOST_CURVES = 12
# Further than this from the middle of its decade, in decades, a delta is also looked up on the next decade's curve, so
# that the answer does not jump up from one decade to the next. The same holds where epsilon grows by no more than this
# factor up to the decade's end.
_NEAR_END, _LEVEL, _MOST_LEVEL = 0.48, 1 + 1e-3, 3
# The same for a delta of steps in blocks, whose curves of two decades may be further apart: 8 % was seen.
_NEAR_END_OF_BLOCKS = 0.44
# So near to the middle of its decade a delta surely is, whichever curve it is read from.
_WELL_INSIDE, _STEPS_AROUND = 0.45, 4
# Finer grids: the least largest loss, what it is above epsilon, the grid steps up to it, and by how much finer each
# grid is than the one before. Mass e^14 times as far from epsilon adds less than a millionth of itself to delta.
_LEAST_LOSS, _LOSS_ABOVE, _LEAST_CELLS, _FINER = 16.0, 14.0, 256, 4
# The most grid steps up to the largest loss, and the step below which even a bend between two points does not matter.
_MOST_CELLS, _TINY_STEP = 2**20, 2e-4
# The least delta that is also compared with delta at epsilon 0.
_LARGE_DELTA = 0.1
# How far above the first answer a verified one may be, relatively.
_FARTHEST = 1e-3


class _Recent(threading.local):
    """What one thread keeps of the last event it was asked about: its trees, and their curves.

    An epsilon is verified by computing delta at that epsilon, which mostly needs the same curve. Curves on large grids
    are not kept.
    """

    def __init__(self) -> None:
        self.event: Event | None = None
        self.answered: tuple[tuple[Event, float], Answer] | None = None
        self.trees: list[tuple[Node, ...]] = []
        self.curves: dict[tuple[int, int, Resolution | None], Composition] = {}
        self.nodes: dict[tuple[int, int], tuple[Node, ...]] = {}


_RECENT = _Recent()


def _trees(event: Event) -> list[tuple[Node, ...]]:
    """The trees of both directions."""
    if _RECENT.event != event:
        _RECENT.event, _RECENT.curves, _RECENT.nodes = None, {}, {}
        _RECENT.trees = directions(event, dominating)
        _RECENT.event = event
    return _RECENT.trees


def _nodes(tree: tuple[Node, ...], decade: int) -> tuple[Node, ...]:
    """The tree by which a decade is answered: with steps on batches in blocks, where that is better."""
    if not any(map(has_blocks, tree)):
        return tree
    key = id(tree), decade
    if key not in _RECENT.nodes:
        _RECENT.nodes[key] = better(tree, decade)
    return _RECENT.nodes[key]


def _curve(tree: tuple[Node, ...], decade: int, resolution: Resolution | None = None) -> Composition:
    """The curve of one decade of delta, on its own grid or on a finer one."""
    key, nodes = (id(tree), decade, resolution), _nodes(tree, decade)
    old = _RECENT.curves.get(key)
    if old is not None and old.nodes is nodes and old.reusable:
        return old
    curve = _RECENT.curves[key] = Composition(nodes, 10.0**-decade, resolution=resolution)
    if len(_RECENT.curves) > _MOST_CURVES:
        _RECENT.curves.pop(next(iter(_RECENT.curves)))
    return curve


def _finer(tree: tuple[Node, ...], decade: int, curve: Composition, epsilon: float) -> Composition | None:
    """A curve of the same decade on a finer grid around ``epsilon``; None if that grid would be too large.

    Losses far above epsilon count as infinite, which hardly changes delta and lets the grid end there.
    """
    largest_loss = _LEAST_LOSS
    while largest_loss < epsilon + _LOSS_ABOVE:
        largest_loss *= 2
    step = largest_loss / _LEAST_CELLS
    # An aligned step is a little smaller than the one it was made from.
    while step > 1.2 * curve.step / _FINER:
        step /= _FINER
    if min(largest_loss, curve.cells * curve.step) / step > min(_MOST_CELLS, composition.MAX_POINTS // 4):
        return None
    return _curve(tree, decade, Resolution(step, largest_loss))


def _epsilon_on(tree: tuple[Node, ...], decade: int, curve: Composition, delta: float) -> Answer:
    """epsilon by a decade's curve, on ever finer grids until two of them agree, if its own is not fine enough there."""
    answer = curve.epsilon(delta)
    if curve.resolves(answer.value):
        return answer
    while (finer := _finer(tree, decade, curve, answer.value)) is not None:
        curve, before = finer, answer.value
        value, sharp, step, _ = curve.epsilon(delta)
        answer = Answer(min(value, before), sharp, step, True)
        if before - answer.value <= AGREEMENT * answer.value and _settles(curve, answer.value):
            return answer
        if curve.coarsened:
            break
    return answer._replace(sharp=False, refined=True)


def _delta_on(tree: tuple[Node, ...], decade: int, curve: Composition, epsilon: float) -> Answer:
    """delta on ever finer grids than a decade's curve has, until two of them agree."""
    answer = curve.delta(epsilon)
    while (finer := _finer(tree, decade, curve, epsilon)) is not None:
        before, curve = curve, finer
        value, sharp, step, _ = curve.delta(epsilon)
        answer = Answer(min(value, answer.value), sharp, step, True)
        close = before.delta(epsilon * (1 + AGREEMENT)).value <= answer.value * (1 + AGREEMENT)
        if close and _settles(curve, epsilon):
            return answer
        if curve.coarsened:
            break
    return answer._replace(sharp=False, refined=True)


def _settles(curve: Composition, epsilon: float) -> bool:
    return curve.step <= _TINY_STEP * epsilon or curve.resolves(epsilon)


def _place(delta: float) -> tuple[int, float]:
    """The decade of a delta, and where in it the delta lies, from -1/2 (large) to 1/2."""
    exponent = -math.log10(delta) if delta > 0 else math.inf
    decade = min(max(round(min(exponent, 1e3)), 1), _LAST_DECADE)
    return decade, exponent - decade


def _epsilon_of_tree(tree: tuple[Node, ...], delta: float) -> Answer:
    pair = single.single(tree)
    if pair is not None and delta > 0:
        return Answer(single.epsilon(pair, delta), True)
    if total_variation(tree) <= delta:
        return Answer(0.0, True)
    if delta == 0:
        return Answer(math.inf, True)
    answer = _epsilon_from(tree, delta, *_place(delta), _MOST_LEVEL)
    # The law of large losses beside many of 0 may end above 0, where the same curves, read at 0, are below delta.
    if answer.value > 0 and delta >= _LARGE_DELTA and _delta_of_tree(tree, 0.0, enough=delta).value <= delta:
        return answer._replace(value=0.0)
    return answer


def _epsilon_from(tree: tuple[Node, ...], delta: float, decade: int, place: float, levels: int) -> Answer:
    """epsilon from the curve of delta's decade, and no more than the next decade's curve says at the decade's end."""
    curve = _curve(tree, decade)
    answer = _epsilon_on(tree, decade, curve, delta)
    if decade == _LAST_DECADE or levels == 0 or not 0 < answer.value < math.inf:
        return answer
    end = min(10.0 ** -(decade + 0.5), delta)
    if place > _NEAR_END or curve.epsilon(end).value <= _LEVEL * answer.value:
        other = _epsilon_from(tree, end, decade + 1, -0.5, levels - 1)
        value, refined = min(answer.value, other.value), answer.refined or other.refined
        answer = Answer(value, answer.sharp and other.sharp, answer.step, refined)
    return answer


def _delta_of_tree(tree: tuple[Node, ...], epsilon: float, enough: float) -> Answer:
    """delta at epsilon from the curve of delta's own decade, which is found by following the curves of others.

    The search stops early once the value is at most ``enough``.
    """
    if not tree or math.isinf(epsilon):
        return Answer(0.0, True)
    pair = single.single(tree)
    if pair is not None:
        return Answer(single.delta(pair, epsilon), True)
    best = min(total_variation(tree), 1.0)
    try:
        return _delta_from(tree, epsilon, best, enough)
    except UnsupportedEvent:
        if best >= 1:
            raise
        # No grid can hold the event. What bounds delta at epsilon 0, and so says where epsilon is 0, still holds.
        return Answer(best, False)


def _delta_from(tree: tuple[Node, ...], epsilon: float, best: float, enough: float) -> Answer:
    """delta from the curves, and no more than ``best``."""
    sharp, step = True, 0.0
    near_end = _NEAR_END_OF_BLOCKS if any(map(has_blocks, tree)) else _NEAR_END
    decade, visits, largest = _first_decade(tree, epsilon), dict[int, Composition](), _LAST_DECADE + 1
    while decade not in visits and best > enough:
        curve = visits[decade] = _curve(tree, decade)
        answer = curve.delta(epsilon)
        best, sharp, step = min(best, answer.value), sharp and answer.sharp, answer.step
        next_decade = _next_decade(decade, answer.value, curve.infinite, near_end)
        # Where a curve pointed back to larger deltas, curves of even smaller deltas need not be looked at.
        largest = min(largest, decade) if next_decade < decade else largest
        decade = next_decade if next_decade < largest or next_decade in visits else (decade + largest) // 2
    finer = set[int]()
    while decade not in finer and best > enough:
        finer.add(decade)
        curve = visits.get(decade) or _curve(tree, decade)
        if curve.resolves(epsilon):
            break
        answer = _delta_on(tree, decade, curve, epsilon)
        best, sharp, step = min(best, answer.value), answer.sharp, answer.step
        decade = _place(best)[0]
    return Answer(best, sharp, step, len(finer) > 1)


def _first_decade(tree: tuple[Node, ...], epsilon: float) -> int:
    """The decade to begin with: that of a rough estimate, or the last one if no loss reaches epsilon."""
    if _largest_loss(tree, 10.0**-_LAST_DECADE) <= epsilon:
        return _LAST_DECADE
    return _place(rough_delta(tree, epsilon))[0]


def _next_decade(decade: int, value: float, infinite: float, near_end: float) -> int:
    """The decade to try next, after ``decade`` gave a value of which the part ``infinite`` is mass at infinity."""
    if infinite >= _largest_delta(decade):
        return _place(infinite)[0]
    other, place = _place(value)
    if other == decade:
        return min(other + 1, _LAST_DECADE) if place > near_end else other
    # A grid cuts off up to a millionth of its decade's delta. A value that consists mostly of this cut-off mass says
    # only that the true delta is smaller.
    return min(max(2 * decade, other), _LAST_DECADE) if other > decade and infinite > 0.1 * value else other


def _largest_delta(decade: int) -> float:
    return min(10.0 ** (0.5 - decade), 1.0)
