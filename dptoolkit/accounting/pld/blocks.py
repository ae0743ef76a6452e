"""Blocks of Gaussian steps on fresh batches without replacement: a pair that dominates all adaptive choices of them.

The joined curve of ``sampling.replace_one`` dominates every step, but no triangle of ``accounting.triangles`` attains
it in both directions, so composing it is loose. Here the choice of a triangle, which may depend on all earlier
outputs, is followed by the recursion of ``game``: (K W)(a) is the largest E_P[W(a Q/P)] over triangles, W_0(a) = (1 -
a)+, and W_k = K W_(k-1) bounds k steps. It is exact: a query that shows only which of the two special records is in
the batch, at points chosen from the past, attains it.

On a grid. Every cell's curve is replaced by its chords between grid points exp(j h), a pair with losses j h, and
losses beyond the last one count as infinite. Chords lie above a convex curve, and W_(k-1) is convex, so the largest
expectation over the cells is at least W_k. Chords of values with round-off may have a few negative masses. The
expectation is linear in the masses, so setting those to 0, with the mass at loss 0 computed from all masses as they
were, only adds to it.

Blocks. Write (F o G)(a) = E_PF[G(a QF/PF)] for the curve of the product of two pairs. For the curve G of any pair K(W
o G) <= (K W) o G: the largest of a mean is at most the mean of the largest. By induction backwards in time, steps of
several kinds (z, q) and other releases, interleaved and chosen adaptively, are dominated by the product of W_k of
each kind with the pairs of the others. So equal steps may be cut into blocks, the blocks are composed like any pairs,
and the order of the releases, which ``flatten`` forgets, does not matter. One recursion must not mix kinds.

Random rounds. If N is independent of the data, the curve E[W_N] dominates N steps: reveal N first. It is the sum of
P(N > k) (W_(k+1) - W_k), and beyond the last k that is computed W counts as 1.

What this is not for: several releases from one batch, which may depend on each other (W is too small for those);
other noise; Poisson batches; the best of several runs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit.accounting import triangles
from dptoolkit.accounting.pld.composition import View
from dptoolkit.accounting.pld.curve import Composition, rough_view
from dptoolkit.accounting.pld.game import LARGEST_LOSS, LARGEST_MU, LEAST_MU, PAD, UNIT, Laws, Steps, Window, values
from dptoolkit.accounting.pld.trees import Batch, Node, steps_of
from dptoolkit.accounting.profiles import DominatingPair
from dptoolkit.accounting.rounds import Geometric, Poisson, RunCountLaw, TruncatedGeometric
from dptoolkit.types import Array


class Detail(NamedTuple):
    """How fine blocks are.

    ``cells`` of the family of triangles, grid ``points`` per rate, and ``work``, the grid points of a recursion times
    its steps that are worth the time: it limits the length of a block.
    """

    cells: int
    points: int
    work: float


FINE, COARSE = Detail(12, 6, 4e6), Detail(4, 5, 4e5)

# Nodes of the curves: every grid point up to this many rates, then a geometric sequence.
_DENSE, _RATIO = 3.0, 1.03
# The coarsest grid, the largest one of one step, and the largest array.
_FEWEST_POINTS, _MOST_POINTS, _MOST_LOSSES = 2, 8000, 40_000
# The fewest steps that are worth it, and how many times larger than that of a normal law epsilon may be.
_FEWEST, _LARGEST_TAIL = 4, 2.5
# The longest block, the shortest one that time is a reason for, and the delta for which the time is estimated.
_LONGEST, _SHORTEST, _TIMED_DELTA = 768, 64, 1e-6
_MOST_ROUNDS, _FEWEST_CELLS = 4096, 3
# Decades of delta that share a block, and the last one that has any.
_SHARED, _LAST_DECADE = 3, 12
# The share of delta that may be cut off.
_CUT = 1e-3


def in_blocks(nodes: tuple[Node, ...], decade: int, detail: Detail = FINE) -> tuple[Node, ...] | None:
    """The tree with steps on batches in blocks that are good for deltas of a decade; None where there are none."""
    if decade > _LAST_DECADE or not any(map(has_blocks, nodes)):
        return None
    delta = 10.0 ** -(_SHARED * math.ceil(decade / _SHARED) + 0.5) / len(nodes)
    parts = [_blocks_of(n, delta, detail) for n in nodes]
    if not any(parts):
        return None
    return tuple(m for n, part in zip(nodes, parts, strict=True) for m in (part or (n,)))


def better(nodes: tuple[Node, ...], decade: int) -> tuple[Node, ...]:
    """The tree, or the tree in blocks where that gives a smaller epsilon in the middle of a decade."""
    blocks, delta = in_blocks(nodes, decade), 10.0**-decade
    if blocks is None:
        return nodes
    joined, found = (Composition(tree, delta).epsilon(delta).value for tree in (nodes, blocks))
    return blocks if found <= joined else nodes


def has_blocks(node: Node) -> bool:
    """Whether there may be blocks of the node."""
    return _batch_of(node) is not None


def _batch_of(node: Node) -> Batch | None:
    """The batch of a node whose steps are all alike, also if their number is random."""
    if node.runs is not None:
        return node.inner[0].batch if len(node.inner) == 1 else None
    return node.batch


def _blocks_of(node: Node, delta: float, detail: Detail) -> tuple[Node, ...] | None:
    batch = _batch_of(node)
    if batch is None or not LEAST_MU <= batch.mu <= LARGEST_MU:
        return None
    if node.runs is not None:
        return _random_blocks(batch, detail, node.count, node.runs, node.inner[0].count, delta)
    return _fixed_blocks(batch, detail, node.count, delta)


@lru_cache(maxsize=32)
def _fixed_blocks(batch: Batch, detail: Detail, count: int, delta: float) -> tuple[Node, ...] | None:
    """Blocks of ``count`` steps in all, whose lengths differ by one at most."""
    grid = _grid(batch, detail, _CUT * delta / count)
    if grid is None or not _worth(batch, Node(count, grid.steps.joined), delta):
        return None
    steps, reach = grid
    blocks = math.ceil(count / _longest(steps, count, detail.work))
    short, longer = divmod(count, blocks)
    longest = short + (longer > 0)
    window = _window(steps, reach, rough_view((Node(longest, steps.joined),), _CUT * delta * longest / count))
    if window.end > _MOST_LOSSES:
        return None
    game = values(_cells(steps, window, detail.cells), window, longest, lower=False)
    pairs = {k: _pair(array, steps.h) for k, array in game if k in (short, longest)}
    nodes = (Node(longer, pairs[longest]), Node(blocks - longer, pairs[short]))
    return tuple(n for n in nodes if n.count)


class _Grid(NamedTuple):
    """A grid for steps, and the points of one step on each side of 0."""

    steps: Steps
    reach: int


def _grid(batch: Batch, detail: Detail, tail: float) -> _Grid | None:
    """The finest grid up to the detail's that is not too large with ``tail`` cut off; None if all are."""
    grids = (Steps(batch, points) for points in range(detail.points, _FEWEST_POINTS - 1, -1))
    return next((_Grid(s, reach) for s in grids if (reach := s.reach(tail)) <= _MOST_POINTS), None)


def _worth(batch: Batch, node: Node, delta: float) -> bool:
    """Whether blocks gain anything: not for a few steps, nor where single large losses are behind delta.

    Neither are there blocks where epsilon is so large that its exponential overflows.

    Such losses show when epsilon is far above that of a normal law with the variance of the loss. In 600 random
    settings blocks gained less than 1 % where the factor was above ``_LARGEST_TAIL``.
    """
    mu, rate = batch
    count = steps_of((node,))
    variance = count * math.log1p(rate * rate * math.expm1(min(mu * mu, 50.0)))
    normal = 0.5 * variance + math.sqrt(2 * variance * math.log(1 / delta))
    return count >= _FEWEST and rough_view((node,), delta).epsilon <= min(_LARGEST_TAIL * normal, LARGEST_LOSS)


def _longest(steps: Steps, count: int, work: float) -> int:
    """The steps of the longest block that is worth the time. It does not depend on delta, so that curves agree."""
    count = min(count, _LONGEST)
    view = rough_view((Node(count, steps.joined),), _CUT * _TIMED_DELTA)
    size = 2 * steps.reach(_CUT * _TIMED_DELTA / count) + view.epsilon / steps.h
    return int(min(max(work / size, _SHORTEST), _LONGEST))


@lru_cache(maxsize=32)
def _random_blocks(
    batch: Batch, detail: Detail, blocks: int, runs: RunCountLaw, count: int, delta: float
) -> tuple[Node, ...] | None:
    """Blocks of N rounds of ``count`` steps each. For rounds whose P(N > k) has no cancellation."""
    if not isinstance(runs, (Geometric, TruncatedGeometric, Poisson)):
        return None
    cut = _CUT * delta / blocks
    rounds = _last_round(runs, cut, _MOST_ROUNDS // count)
    grid = None if rounds is None else _grid(batch, detail, cut / (rounds * count))
    if rounds is None or grid is None:
        return None
    steps, reach = grid
    node = Node(blocks, runs=runs, inner=(Node(count, steps.joined),))
    if not _worth(batch, node, delta):
        return None
    window = _window(steps, reach, rough_view((replace(node, count=1),), cut))
    # Rounds cannot be cut into shorter blocks, but fewer cells are quicker too.
    cells = int(detail.cells * min(detail.work / (rounds * count * (2 * reach + window.end)), 1.0))
    if cells < _FEWEST_CELLS or window.end > _MOST_LOSSES:
        return None
    total = before = np.zeros(1)
    for k, array in values(_cells(steps, window, cells), window, rounds * count, lower=False):
        if k % count == 0:
            total, before = total + runs.tail(k // count - 1) * (array - before), array
    return (Node(blocks, _pair(total * (1 + PAD) + runs.tail(rounds), steps.h)),)


def _last_round(runs: RunCountLaw, tail: float, most: int) -> int | None:
    """The first k with P(N > k) at most ``tail``; None if it is above ``most``."""
    return next((k for k in range(1, most + 1) if runs.tail(k) <= tail), None)


def _window(steps: Steps, reach: int, view: View) -> Window:
    """An array up to the loss in view, with half of the best tilt there: a larger one would favour what is cut off."""
    return Window(steps.h, reach, max(math.ceil(view.epsilon / steps.h), 1), 0.5 * view.tilt)


def _cells(steps: Steps, window: Window, cells: int) -> Laws:
    """The cells and their mirror images, on the grid."""
    h, (mu, rate) = steps.h, steps.batch
    nodes = _nodes(math.ceil(_DENSE * rate / h) + 12, window.reach)
    pairs = triangles.cell_curves(mu, rate, cells, np.asarray(h * nodes, dtype=np.float64))
    pairs += [(down, up) for up, down in pairs]
    points, places = np.exp(h * nodes), np.exp(window.losses)
    return Laws(
        np.array([_masses(up, down, nodes, h) for up, down in pairs]),
        np.array([np.interp(places, points, up) for up, _ in pairs]),
        max(float(up[-1]) for up, _ in pairs),
    )


def _nodes(dense: int, reach: int) -> NDArray[np.intp]:
    """The grid points at which curves are computed: the first ones, then a geometric sequence, then the last one."""
    nodes = list(range(min(dense, reach) + 1))
    while nodes[-1] < reach:
        nodes.append(min(max(nodes[-1] + 1, int(_RATIO * nodes[-1])), reach))
    return np.array(nodes)


def _masses(up: Array, down: Array, nodes: NDArray[np.intp], h: float) -> Array:
    """P's masses at -reach, ..., reach of the pair whose curve connects the dots at the nodes, rounded up.

    At loss j h > 0 the mass is exp(j h) times the change of the chords' slope, at -j h the same of the reversed pair
    times exp(-j h).
    """
    losses, reach = h * nodes, int(nodes[-1])
    widths = np.exp(losses[:-1]) * np.expm1(np.diff(losses))
    scale = np.exp(losses[1:])
    # A slope has a relative error of a few units, and of as many more as the loss has in its exponential.
    errors = 2 * UNIT * (8 + losses[1:])

    def changes(curve: Array) -> tuple[Array, Array]:
        slopes = np.append(np.diff(curve) / widths, 0.0)
        return np.diff(slopes), errors * (np.abs(slopes[1:]) + np.abs(slopes[:-1]))

    (above, more_above), (below, more_below) = changes(up), changes(down)
    masses = np.zeros(2 * reach + 1)
    masses[reach + nodes[1:]] = scale * (np.maximum(above, 0.0) + more_above)
    masses[reach - nodes[1:]] = np.maximum(below, 0.0) + more_below
    rest = 1.0 - math.fsum(scale * above) - math.fsum(below) - float(up[-1])
    masses[reach] = max(rest, 0.0) + 16 * UNIT
    return masses


def _pair(values: Array, h: float) -> DominatingPair:
    """The symmetric pair with these divergences at 0, h, 2h, ..., chords between and the last one beyond."""
    values = np.minimum(np.minimum.accumulate(values), 1.0)
    last = h * (len(values) - 1)
    points = np.exp(h * np.arange(len(values)))

    def curve(x: Array) -> Array:
        return np.asarray(np.interp(np.exp(np.minimum(x, last)), points, values) * (1 + PAD))

    return DominatingPair(curve, curve, infinite_mass=float(curve(np.array([last]))[0]))
