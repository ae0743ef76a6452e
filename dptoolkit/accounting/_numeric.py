"""Small numerical tools shared by the accounting modules; no privacy in here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
from scipy.special import gammaln

from dptoolkit.types import Array


def sum_up(terms: Iterable[tuple[float, float]]) -> float:
    """The sum of factor * value over (factor, value) pairs: the next float at or above the exact sum.

    It is for sums of largest privacy losses, which must never be too small. A sum of 100 that is half a unit in the
    last place too small would leave a delta of 1e-14 unaccounted for.
    """
    products = [(factor, value) for factor, value in terms if factor != 0 and value != 0]
    if any(math.isinf(factor) or math.isinf(value) for factor, value in products):
        return math.inf
    return _float_up(sum((Fraction(factor) * Fraction(value) for factor, value in products), Fraction(0)))


def inverse_up(value: float) -> float:
    """1 / value for a value >= 0, the next float at or above the exact quotient; infinite at 0."""
    if value == 0 or math.isinf(value):
        return math.inf if value == 0 else 0.0
    return _float_up(1 / Fraction(value))


def part_down(value: float, count: int) -> float:
    """value / count, or the next floats below it: ``count`` such parts are never more than ``value``."""
    if value == 0 or math.isinf(value):
        return value
    part = value / count
    while count * Fraction(part) > Fraction(value):
        part = math.nextafter(part, 0.0)
    return part


def _float_up(exact: Fraction) -> float:
    try:
        nearest = float(exact)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def crossing(
    excess: Callable[[float], float],
    low: float,
    high: float,
    *,
    relative: float = 1e-12,
    absolute: float = 0.0,
    steps: int = 200,
    smooth: bool = False,
) -> tuple[float, float]:
    """A bracket (a, b) of the point where a decreasing function falls to <= 0.

    ``excess(low) > 0 >= excess(high)`` must hold; so does it for the returned pair, whose width is at most
    ``relative * |b| + absolute``. Secant steps through the last two points, bisection whenever they stall.

    With ``smooth`` the search ends one step earlier: at the first b that is at most half of that width above the root
    of the line through the last two points. Then a may be further away, by up to 50 widths. A jump, or a place where
    the function levels off, is not noticed by such a line.
    """
    f_low, f_high = excess(low), excess(high)
    before, last = (low, f_low), (high, f_high)
    slow, half = 0, 0.5 * (high - low)
    for _ in range(steps):
        width = relative * abs(high) + absolute
        if high - low <= width:
            break
        point = _secant(before, last)
        if slow >= 4 or not low < point < high:
            slow, point = 0, 0.5 * (low + high)
        # Aim a little past the root, so that in the end both sides of the bracket move; a search that may end earlier
        # aims at its end.
        past = 0.3 * width if smooth or last[1] > 0 else -0.3 * width
        point = min(max(point + past, low + 0.1 * width), high - 0.1 * width)
        if not low < point < high:
            break
        before, last = last, (point, excess(point))
        low, high = (point, high) if last[1] > 0 else (low, point)
        near = smooth and last[1] <= 0 and point - low <= 50 * width
        if near and 0 <= point - _secant(before, last) <= 0.5 * width:
            break
        slow, half = (slow + 1, half) if high - low > half else (0, 0.5 * (high - low))
    return low, high


def _secant(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Where the line through two points is 0; NaN if a value is not finite or the line is level."""
    (x0, f0), (x1, f1) = first, second
    if not (math.isfinite(f0) and math.isfinite(f1)) or f0 == f1:
        return math.nan
    return x1 - f1 * (x1 - x0) / (f1 - f0)


def expand(excess: Callable[[float], float], start: float, factor: float, limit: float) -> float | None:
    """The first of start, start*factor, ... (up to ``limit``) where excess is <= 0, or None."""
    point = start
    while excess(point) > 0:
        point *= factor
        if point > limit:
            return None
    return point


def zoom_minimum(
    values: Callable[[Array], Array], low: float, high: float, *, points: int = 65, zooms: int = 5
) -> tuple[float, float]:
    """(argument, value) of the smallest value on grids that zoom in on the best point.

    For bounds that hold at every argument, so that missing the minimum costs tightness and never soundness.
    """
    best, value = low, math.inf
    for _ in range(zooms):
        grid = np.linspace(low, high, points, dtype=float)
        heights = values(grid)
        index = int(np.nanargmin(np.where(np.isnan(heights), np.inf, heights)))
        if heights[index] < value:
            best, value = float(grid[index]), float(heights[index])
        low, high = float(grid[max(index - 1, 0)]), float(grid[min(index + 1, points - 1)])
    return best, value


def log_binomial(n: float, k: Array) -> Array:
    """log C(n, k) for an array of k."""
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def log_sum_exp(terms: Array, axis: int | None = None) -> Array:
    """log sum exp along an axis, without overflow; minus infinity for an empty or all -inf sum."""
    # The reductions of ufuncs, because this is called often, with few terms.
    top = np.maximum.reduce(terms, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.add.reduce(np.exp(terms - top), axis=axis, keepdims=True)) + top
    return np.asarray(np.squeeze(total, axis=axis) if axis is not None else total.reshape(()))


def log1mexp(x: Array | float) -> Array:
    """log(1 - exp(-x)) for x > 0, accurate at both ends."""
    x = np.asarray(x, dtype=float)
    with np.errstate(divide="ignore"):
        return np.where(x < math.log(2), np.log(-np.expm1(-x)), np.log1p(-np.exp(-x)))
