"""Private selection: the exponential mechanism as a bounded-range mechanism, and noisy-max, which is not one.

A mechanism is epsilon-bounded-range if its privacy loss lies in an interval of length epsilon. The exponential
mechanism (Gumbel noise) is; it is then epsilon-DP and epsilon^2/8-zCDP (Cesar and Rogers 2021, arXiv:2004.07223).
The range of the loss reaches 1.17 epsilon with Laplace noise and three or more candidates, and 2 epsilon with
exponential noise (permute-and-flip): both are epsilon-DP, and are charged as any epsilon-DP mechanism.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys

import numpy as np

from dptoolkit._validate import nonnegative
from dptoolkit.accounting import zcdp
from dptoolkit.accounting._numeric import log1mexp, sum_up
from dptoolkit.types import Array


def bounded_range_rho(epsilon: float) -> float:
    """zCDP of an epsilon-bounded-range mechanism: epsilon^2 / 8."""
    epsilon = nonnegative("epsilon", epsilon)
    # Not epsilon ** 2, which raises an error where the product is infinite. Underflow gives the smallest float, as 0
    # would mean equal distributions.
    return max(epsilon * epsilon / 8, math.ulp(0.0)) if epsilon > 0 else 0.0


def two_candidates(epsilon: float, noise: str) -> float:
    """Noisy-max between two candidates whose gap goes from +r/2 to -r/2 is randomised response with this epsilon.

    ``epsilon`` is r/b. A lower bound on what noisy-max leaks, attained by that pair.
    """
    x = epsilon / 2
    log_lose = -x - math.log(2) if noise == "exponential" else -x + math.log((2 + x) / 4)
    return -log_lose + math.log1p(-math.exp(log_lose))


def bounded_range_rdp(epsilon: float, orders: Array) -> Array:
    """The largest Renyi divergence of an epsilon-bounded-range mechanism, exactly.

    The worst loss lies on the ends t and t - epsilon of its range. With m = order - 1, E_P[exp(m L)] is
    e^(mt) (A - B e^t) / (1 - e^-epsilon), A = 1 - e^(-(m+1) epsilon), B = e^-epsilon - e^(-(m+1) epsilon), which is
    largest at e^t = m A / ((m+1) B).
    """
    orders = np.atleast_1d(np.asarray(orders, dtype=float))
    if epsilon == 0 or epsilon > 1e100:
        return np.full_like(orders, epsilon)
    m = orders - 1
    log_a = log1mexp((m + 1) * epsilon)
    log_b = log1mexp(m * epsilon) - epsilon
    with np.errstate(divide="ignore"):
        t = np.log(m) - np.log1p(m) + log_a - log_b
    log_moment = m * t + log_a - np.log1p(m) - float(log1mexp(epsilon))
    # The terms cancel for small epsilon: the margin covers the round-off of each, also that of t, which counts m times.
    sizes = (m + 1) * (4 + np.abs(np.log(m)) + np.log1p(m) + np.abs(log_a) + np.abs(log_b) + epsilon)
    exact = (log_moment + 2.0**-50 * (sizes + abs(float(log1mexp(epsilon))))) / m
    return np.minimum(np.minimum(exact, orders * bounded_range_rho(epsilon)), epsilon)


# Cells of the recursion's grid per range: the range is inflated by one cell, so 1/64 = 1.6 % in epsilon.
_CELLS = 64
# Cells of the grids that a search begins with, and what they lack of epsilon: 0.0003 to 0.0012 and 0.0001 to 0.0002 in
# 40 random events of 20 to 400 steps.
ROUGH_CELLS = {16: 7.5e-4, 32: 1.5e-4}
_PRIVATE_SIDE = 1 - 2e-9


def recursion_cost(epsilon0: float, count: int, delta: float) -> float:
    """Number of elementary operations of ``adaptive``; infinite where there is no grid."""
    if count == 1:
        return 1.0
    if not _has_grid(epsilon0, count):
        return math.inf
    return count * (_CELLS + 2.0) * _recursion_points(epsilon0, count, delta, _CELLS)


def delta_cost(epsilon0: float, count: int, epsilon: float) -> float:
    """Number of elementary operations of ``adaptive_delta``; infinite where there is no grid."""
    if count == 1:
        return 1.0
    if not _has_grid(epsilon0, count):
        return math.inf
    return recursion_cost(epsilon0, count, _least_delta(epsilon0, count, epsilon))


def _has_grid(epsilon0: float, count: int) -> bool:
    """Whether the numbers of the recursion neither over- nor underflow."""
    return epsilon0 > 1e-300 and epsilon0 * count < 1e150


def _least_delta(epsilon0: float, count: int, epsilon: float) -> float:
    """A delta far below the one at epsilon; the grid must reach to where delta is that small."""
    return 1e-3 * zcdp.to_delta(count * bounded_range_rho(epsilon0), epsilon)


def _single_epsilon(epsilon0: float, delta: float) -> float:
    """Epsilon of one epsilon0-bounded-range mechanism at ``delta`` > 0, exact and rounded up.

    With the losses t and t - epsilon0, t <= epsilon0, delta at x >= 0 is P(t) (1 - e^(x-t)) with P(t) = (1 -
    e^(t-epsilon0)) / (1 - e^-epsilon0). It is largest at t = (x + epsilon0) / 2, where it is
    (1 - e^((x-epsilon0)/2))^2 / (1 - e^-epsilon0).
    """
    root = math.sqrt(delta * _PRIVATE_SIDE * -math.expm1(-epsilon0))
    x = epsilon0 + 2 * math.log1p(-root) if root < 1 else 0.0
    return min(max(x + 4 * math.ulp(epsilon0), 0.0), epsilon0) if x > 0 else 0.0


def _single_delta(epsilon0: float, epsilon: float) -> float:
    """Delta of one epsilon0-bounded-range mechanism at ``epsilon`` < epsilon0: the inverse of ``_single_epsilon``."""
    delta = math.expm1(0.5 * (epsilon - epsilon0)) ** 2 / -math.expm1(-epsilon0) * (1 + 1e-14)
    # Not 0 where it underflows: below the largest loss delta is positive.
    return min(max(delta, math.ulp(0.0)), 1.0)


def adaptive(epsilon0: float, count: int, delta: float) -> float:
    """Epsilon of ``count`` adaptively chosen epsilon0-bounded-range mechanisms, by the optimal recursion.

    V_k(x), the largest delta at x after k mechanisms, is the maximum over t of P_t(t) V_{k-1}(x - t)
    + P_t(t - epsilon0) V_{k-1}(x - t + epsilon0) (Dong, Durfee and Rogers 2020, arXiv:1909.13830). On a grid of step h
    a loss in [t - epsilon0, t] with t between two grid points is dominated by the two-point loss on the grid with range
    epsilon0 + h, so the recursion on the grid with that range is an upper bound without interpolation error. Negative x
    follows by symmetry, and V is decreasing, so the last point stands for all beyond it. Between two grid points the
    true V, as a function of e^x, is convex and lies below the chord.
    """
    if count == 0 or epsilon0 == 0:
        return 0.0
    if math.isinf(epsilon0):
        return math.inf
    if delta == 0:
        # The recursion's values underflow to 0 long before the largest loss.
        return sum_up([(count, epsilon0)])
    if count == 1:
        return _single_epsilon(epsilon0, delta)
    x, value = _recursion(epsilon0, count, _recursion_points(epsilon0, count, delta, _CELLS), _CELLS)
    # A little less, so that rounding errors, here or in a recursion with more points, cannot matter.
    inside = np.flatnonzero(value <= delta * _PRIVATE_SIDE)
    if len(inside) == 0:
        return sum_up([(count, epsilon0)])
    i = int(inside[0])
    if i == 0:
        return 0.0
    rest = (delta * _PRIVATE_SIDE - value[i]) / (value[i - 1] - value[i])
    return float(max(x[i] + math.log1p(rest * math.expm1(x[i - 1] - x[i])), x[i - 1]))


def rough_adaptive(epsilon0: float, count: int, delta: float, cells: int) -> float:
    """About ``adaptive``, from a grid with fewer cells, one of ``ROUGH_CELLS``: for searches, never a bound.

    The range is the one that ``adaptive`` has with the cell that it adds. What is left is the error of losses that must
    be grid points: about the same share of epsilon for all events of many steps.
    """
    if count <= 1 or not 0 < epsilon0 < math.inf or delta == 0:
        return adaptive(epsilon0, count, delta)
    epsilon0 *= (1 + 1 / _CELLS) / (1 + 1 / cells)
    x, value = _recursion(epsilon0, count, _recursion_points(epsilon0, count, delta, cells), cells)
    return _smoothly_read(x, value, delta) * (1 + ROUGH_CELLS[cells])


def _smoothly_read(x: Array, value: Array, delta: float) -> float:
    """About where the values are ``delta``: by the cubic through four points of the log, else by a line."""
    with np.errstate(divide="ignore"):
        logs = -np.log(value)
    target = -math.log(delta)
    first = int(np.searchsorted(logs, target)) - 2
    near, places = logs[max(first, 0) : first + 4].tolist(), x[max(first, 0) : first + 4].tolist()
    if len(near) < 4 or not all(a < b < math.inf for a, b in itertools.pairwise(near)):
        return float(np.interp(target, logs, x))
    # Neville's scheme.
    for width in range(1, 4):
        for i in range(4 - width):
            left, right = near[i], near[i + width]
            places[i] += (target - left) / (right - left) * (places[i + 1] - places[i])
    return float(places[0])


def keeps(epsilon0: float, count: int, epsilon: float, delta: float) -> bool:
    """Whether ``adaptive_delta`` at ``epsilon``, the answer of ``adaptive`` at ``delta``, is at most ``delta``.

    The values of a recursion get smaller with more points. So the recursion that ``adaptive`` has computed, which has
    fewer, mostly decides this without another one.
    """
    if count <= 1 or not 0 < epsilon0 < math.inf or delta == 0:
        return adaptive_delta(epsilon0, count, epsilon) <= delta
    own = _recursion_points(epsilon0, count, delta, _CELLS)
    if own <= _recursion_points(epsilon0, count, _least_delta(epsilon0, count, epsilon), _CELLS):
        x, value = _recursion(epsilon0, count, own, _CELLS)
        # Smaller by more than the rounding errors of the other recursion.
        if _between(x, value, epsilon) <= delta * (1 - 0.5 * (1 - _PRIVATE_SIDE)):
            return True
    return adaptive_delta(epsilon0, count, epsilon) <= delta


def adaptive_delta(epsilon0: float, count: int, epsilon: float) -> float:
    """Delta of ``adaptive`` at ``epsilon``."""
    if count == 0 or epsilon >= sum_up([(count, epsilon0)]):
        return 0.0
    if math.isinf(epsilon0):
        return 1.0
    if count == 1:
        return _single_delta(epsilon0, epsilon)
    points = _recursion_points(epsilon0, count, _least_delta(epsilon0, count, epsilon), _CELLS)
    x, value = _recursion(epsilon0, count, points, _CELLS)
    # Not 0 where it underflows: below the largest loss delta is positive.
    return max(_between(x, value, epsilon), math.ulp(0.0))


def _between(x: Array, value: Array, epsilon: float) -> float:
    """The recursion's bound on delta at ``epsilon``: on the chord between two points."""
    i = int(np.searchsorted(x, epsilon, side="right")) - 1
    if i + 1 == len(x):
        return float(value[i])
    share = math.exp(epsilon - x[i + 1]) * (math.expm1(x[i] - epsilon) / math.expm1(x[i] - x[i + 1]))
    return float(value[i] + share * (value[i + 1] - value[i])) * (1 + 1e-15)


# Cells per range of the recursion from below, the first of which is taken that is not too slow, and its operations.
_LOWER_CELLS, _LOWER_COST = (512, 256, 128, 64, 32, 16, 8), 3e7


def lower_adaptive(epsilon0: float, count: int, delta: float) -> float | None:
    """A lower bound on epsilon of ``count`` exponential mechanisms, attained adaptively by two candidates.

    Let the score of one of two candidates move by the whole range. Then its log-odds move by exactly epsilon0, so the
    loss is t or t - epsilon0, and the scores may be chosen so that t is any number between 0 and epsilon0. An adversary
    chooses t in every step, knowing the outputs so far: the same recursion as in ``adaptive``, with range exactly
    epsilon0. With t on the grid every loss is on the grid, so that its values are those of a strategy and nothing is
    interpolated. None where it would take too long.
    """
    if count == 0 or not 0 < epsilon0 < math.inf or delta == 0 or not _has_grid(epsilon0, count):
        return None
    for cells in _LOWER_CELLS:
        points = _recursion_points(epsilon0, count, delta, cells)
        if count * cells * points <= _LOWER_COST:
            x, value = _lower_recursion(epsilon0, count, points, cells)
            above = np.flatnonzero(value > delta * (2 - _PRIVATE_SIDE))
            # The losses of many steps are sums of multiples of a rounded step.
            return float(x[above[-1]]) * (1 - 1e-12) if len(above) else 0.0
    return None


@functools.lru_cache(maxsize=4)
def _lower_recursion(epsilon0: float, count: int, points: int, cells: int) -> tuple[Array, Array]:
    """(x, V_count(x)) of an adversary who stays on the grid; beyond the last point the value counts as 0."""
    step = epsilon0 / cells
    at_high = np.expm1(step * np.arange(cells + 1) - epsilon0) / math.expm1(-epsilon0)
    return _followed(at_high, step, count, points, beyond=0.0)


@functools.lru_cache(maxsize=4)
def _recursion(epsilon0: float, count: int, points: int, per_range: int) -> tuple[Array, Array]:
    """(x, V_count(x)) on the grid with so many cells per range."""
    step, cells = epsilon0 / per_range, per_range + 1
    losses = step * np.arange(cells + 1)
    at_high = np.expm1(losses - cells * step) / math.expm1(-cells * step)
    return _followed(at_high, step, count, points, beyond=None)


# Operations of a recursion that are worth loading Numba for.
_LOADED = 2e7


def _followed(at_high: Array, step: float, count: int, points: int, *, beyond: float | None) -> tuple[Array, Array]:
    """(x, V_count(x)) at 0, step, 2 step, ...; ``at_high[i]`` is the mass at loss i step of candidate i.

    It is compiled where Numba is loaded, as in every program that fits, and where it would take long; both ways give
    the same bits.
    """
    cells, x = len(at_high) - 1, step * np.arange(points, dtype=float)
    if "numba" in sys.modules or count * len(at_high) * points > _LOADED:
        from dptoolkit.accounting._recursion import adaptive_values

        value = adaptive_values(at_high, _fallen(x, cells), count, points, -1.0 if beyond is None else beyond)
    else:
        value = np.zeros_like(x)
        for number in range(count):
            # V_k is 0 from k ranges on, so the first steps need few points.
            n = min(points, (number + 1) * cells + 1)
            value[:n] = _recursion_step(value[:n], x, at_high, cells, beyond)
    x.flags.writeable = value.flags.writeable = False
    return x, value


def _fallen(x: Array, cells: int) -> Array:
    """exp(-loss) - 1 at the first ``cells`` losses above 0: computed directly, to keep the digits of a tiny range."""
    return np.asarray(np.expm1(-(x[1] - x[0]) * np.arange(1, cells + 1)))


def _recursion_points(epsilon0: float, count: int, delta: float, per_range: int) -> int:
    """Grid points up to where delta is certainly far below the target."""
    rho = count * bounded_range_rho(epsilon0)
    reach = count * epsilon0
    if delta > 0:
        reach = min(rho + 2 * math.sqrt(rho * (math.log(1 / delta) + 10)), reach)
    return math.ceil(reach / epsilon0 * per_range) + 2


def _recursion_step(value: Array, x: Array, at_high: Array, cells: int, beyond: float | None) -> Array:
    """One step of a recursion; beyond its last point the value stays what it is there, or is ``beyond``."""
    n = len(value)
    # Indices -cells .. n+cells: reflected below zero, constant beyond the end.
    reach = np.minimum(np.arange(1, cells + 1), n - 1)
    fallen = _fallen(x, cells)
    below = (-fallen + (1 + fallen) * value[reach])[::-1]
    wide = np.concatenate([below, value, np.full(cells, value[-1] if beyond is None else beyond)])
    # mass V(x - t) + (1 - mass) V(x - t + range) is V(x - t + range) + mass times the fall in between.
    fall = wide[:-cells] - wide[cells:]
    best, candidate = np.zeros(n), np.empty(n)
    for i, mass in enumerate(at_high):
        low, high = cells - i, 2 * cells - i
        np.multiply(fall[low : low + n], mass, out=candidate)
        candidate += wide[high : high + n]
        np.maximum(best, candidate, out=best)
    return best
