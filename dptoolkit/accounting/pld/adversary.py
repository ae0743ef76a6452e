"""A lower bound for Gaussian steps on fresh batches without replacement: an explicit adversary, who adapts.

In every step the adversary of ``game`` shows one of three triangles, whichever is best given the outputs so far: A,
in which all other records equal the new one (c = 0); A with the two datasets exchanged; or E, the equilateral one. So
the value of this game is attained by queries and neighbours, and no analysis can prove less.

On a grid. The outcomes of a pair are merged until every merged loss is on the grid: merging is post-processing, which
only lowers a divergence. Let (P_j, Q_j) be the masses of the losses between j h and (j+1) h. Of these outcomes, a
share drawn by a coin is labelled j+1 and the rest j, with shares such that the label J has P = e^(J h) Q. From both
ends towards the largest mass the shares follow from each other, and what does not fit there is dropped from P. That
is sound: p W(a q/p) grows with p and falls with q for every W that is positive, decreasing and convex.

The masses have relative errors of less than 1e-12. Such an error of Q moves a loss by as much, which is taken off at
the end, and one of P is taken off delta.
"""

from __future__ import annotations

import math

import numpy as np

from dptoolkit.accounting import profiles, sampling
from dptoolkit.accounting.pld.curve import rough_view
from dptoolkit.accounting.pld.game import LARGEST_LOSS, LARGEST_MU, LEAST_MU, Laws, Steps, Window, values
from dptoolkit.accounting.pld.tail import discounted
from dptoolkit.accounting.pld.trees import Batch, Node
from dptoolkit.accounting.profiles import Tails
from dptoolkit.accounting.triangles import Triangle
from dptoolkit.types import Array

# Grid points per rate, the first of which that is not too slow is taken: by the largest grid of one step, a tenth of
# the largest array, and by the grid points of a recursion times its steps.
_POINTS, _MOST_POINTS, _WORK = (12, 8, 6, 3, 2), 20_000, 2e8
# The share of delta that may be cut off at the ends of one step and of the array.
_CUT_STEP, _CUT_ARRAY = 1e-4, 1e-2
# A bound on the errors of the masses, per step.
_ERROR = 1e-11


def lower_epsilon(batch: Batch, count: int, delta: float) -> float | None:
    """A lower bound on epsilon at ``delta`` of several steps; None for a single one, or where it takes too long."""
    if count < 2 or not LEAST_MU <= batch.mu <= LARGEST_MU:
        return None
    for points in _POINTS:
        steps = Steps(batch, points)
        reach = steps.reach(_CUT_STEP * delta / count)
        view = rough_view((Node(count, steps.joined),), _CUT_ARRAY * delta)
        window = Window(steps.h, reach, max(math.ceil(view.epsilon / steps.h), 1), 0.5 * view.tilt)
        if view.epsilon > LARGEST_LOSS:
            return None
        if max(reach, window.end / 10) <= _MOST_POINTS and count * (2 * reach + window.end) <= _WORK:
            return _epsilon_on(window, batch, count, delta)
    return None


def _epsilon_on(window: Window, batch: Batch, count: int, delta: float) -> float:
    for _, array in values(_laws(batch, window), window, count, lower=True):
        last = array
    above = np.flatnonzero(last > delta * (1 + 2 * count * _ERROR))
    return max(float(window.h * above[-1]) - count * _ERROR, 0.0) if len(above) else 0.0


def _laws(batch: Batch, window: Window) -> Laws:
    mu, rate = batch
    one = sampling.poisson_zero_out(profiles.gaussian(mu), rate)
    other = one.swapped()
    assert one.tails is not None and other.tails is not None
    grid = np.asarray(window.h * np.arange(-window.reach, window.reach + 1), dtype=np.float64)
    masses = np.array([merged(t, window.h) for t in (one.tails(grid), other.tails(grid), _equilateral(mu, rate, grid))])
    return Laws(masses, np.array([_curve(p, window) for p in masses]), 0.0)


def _equilateral(mu: float, rate: float, grid: Array) -> Tails:
    """The tails of E on a symmetric grid; below 0 they are those of the reversed pair, which is the same."""
    event = Triangle(mu, mu, rate).forward(grid[len(grid) // 2 :])
    p, q = ((1 - rate) * event.common + rate * mass for mass in (event.own, event.other))
    p_above, q_above = np.concatenate([1 - q[:0:-1], p]), np.concatenate([1 - p[:0:-1], q])
    return Tails(p_above, q_above, np.concatenate([q[:0:-1], 1 - p]), np.concatenate([p[:0:-1], 1 - q]))


def merged(tails: Tails, h: float) -> Array:
    """P's masses at the points of a symmetric grid of step h, after merging; ``tails`` are those at the points."""
    p, q = _between(tails.p_above, tails.p_below), _between(tails.q_above, tails.q_below)
    ratio = np.exp(h * (np.arange(len(p) + 1) - len(p) // 2))
    # How much P a cell has more than its lower point needs, and how much less than its upper point needs.
    spare, lack = np.maximum(p - ratio[:-1] * q, 0.0), np.maximum(ratio[1:] * q - p, 0.0)
    centre = min(max(int(np.argmax(p)), 1), len(p) - 2)
    up, down = _shares(spare.tolist(), lack.tolist(), centre)
    p_label, q_label = np.zeros(len(ratio)), np.zeros(len(ratio))
    for label, cell, last in ((p_label, p, tails.p_above[-1]), (q_label, q, tails.q_above[-1])):
        label[:-1] += down * cell
        label[1:] += up * cell
        label[-1] += last
    return np.minimum(p_label, ratio * q_label)


def _between(above: Array, below: Array) -> Array:
    """The masses between the points: from the tail that is the smaller one there."""
    half = len(above) // 2
    return np.maximum(np.concatenate([np.diff(below[: half + 1]), -np.diff(above[half:])]), 0.0)


def _shares(spare: list[float], lack: list[float], centre: int) -> tuple[Array, Array]:
    """The shares of each cell that go to its upper and to its lower point; what is in neither is dropped."""
    cells = len(spare)
    up, down = np.zeros(cells), np.zeros(cells)
    down[-1] = 1.0
    for i in range(cells - 1, centre, -1):
        # What cell i has to spare at point i is used up by a part of the cell below.
        up[i - 1] = min(down[i] * spare[i] / lack[i - 1], 1.0) if lack[i - 1] > 0 else 0.0
        down[i - 1] = 1.0 - up[i - 1]
    centre_down = down[centre]
    up[:centre], down[: centre + 1] = 0.0, 0.0
    up[0] = 1.0
    for i in range(1, centre):
        # What a part of cell i - 1 lacks at point i is made up by a part of cell i.
        needed = up[i - 1] * lack[i - 1]
        if needed > spare[i]:
            up[i - 1] = spare[i] / lack[i - 1]
        down[i] = min(needed / spare[i], 1.0) if spare[i] > 0 else 0.0
        up[i] = 1.0 - down[i]
    down[centre] = centre_down
    if (missing := up[centre - 1] * lack[centre - 1] - down[centre] * spare[centre]) > 0:
        # Then a part of the cell below the centre goes down instead, where it has something to spare.
        moved = min(missing / lack[centre - 1], up[centre - 1])
        up[centre - 1] -= moved
        down[centre - 1] += moved
    return up, down


def _curve(masses: Array, window: Window) -> Array:
    """sum_j P_j (1 - e^(s - j h))+ at the window's losses, as a sum of positive terms."""
    mass = masses[window.reach :]
    suffix = discounted(mass, window.h)
    total = np.zeros(max(window.end + 1, len(mass)))
    total[: len(mass) - 1] = -math.expm1(-window.h) * np.cumsum(suffix[:0:-1])[::-1]
    return np.asarray(total[: window.end + 1])
