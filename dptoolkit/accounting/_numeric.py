"""Small numerical tools shared by the accounting modules; no privacy in here."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Array = NDArray[np.float64]


def crossing(
    excess: Callable[[float], float],
    low: float,
    high: float,
    *,
    relative: float = 1e-12,
    absolute: float = 0.0,
    steps: int = 200,
) -> tuple[float, float]:
    """A bracket (a, b) of the point where a decreasing function falls to <= 0.

    ``excess(low) > 0 >= excess(high)`` must hold; so does it for the returned pair, whose width is at
    most ``relative * |b| + absolute``. Secant steps (Illinois) with a bisection whenever they stall.
    """
    f_low, f_high = excess(low), excess(high)
    last = 0
    for step in range(steps):
        width = high - low
        if width <= relative * abs(high) + absolute:
            break
        middle = 0.5 * (low + high)
        if step % 3 != 2 and math.isfinite(f_low) and math.isfinite(f_high) and f_low > f_high:
            middle = low + width * f_low / (f_low - f_high)
            # Aim a little past the root, so that both ends of the bracket move.
            nudge = 0.25 * (relative * abs(high) + absolute)
            middle = min(max(middle + (nudge if last > 0 else -nudge), low + nudge), high - nudge)
        if not low < middle < high:
            break
        value = excess(middle)
        if value > 0:
            low, f_low = middle, value
            f_high = f_high * 0.5 if last > 0 else f_high
            last = 1
        else:
            high, f_high = middle, value
            f_low = f_low * 0.5 if last < 0 else f_low
            last = -1
    return low, high


def expand(
    excess: Callable[[float], float], start: float, factor: float, limit: float
) -> float | None:
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
    """(argument, value) of the smallest value seen on grids that zoom in on the best point.

    For bounds that hold at every argument: a missed minimum costs tightness, never soundness.
    """
    best, value = low, math.inf
    for _ in range(zooms):
        grid = np.linspace(low, high, points)
        found = values(grid)
        index = int(np.nanargmin(np.where(np.isnan(found), np.inf, found)))
        if found[index] < value:
            best, value = float(grid[index]), float(found[index])
        low, high = float(grid[max(index - 1, 0)]), float(grid[min(index + 1, points - 1)])
    return best, value


def log_binomial(n: float, k: Array) -> Array:
    """log C(n, k) for an array of k."""
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def log_sum_exp(terms: Array, axis: int | None = None) -> Array:
    """log sum exp along an axis, without overflow; minus infinity for an empty or all -inf sum."""
    top = np.max(terms, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.sum(np.exp(terms - top), axis=axis, keepdims=True)) + top
    return np.asarray(np.squeeze(total, axis=axis) if axis is not None else total.reshape(()))


def log1mexp(x: Array | float) -> Array:
    """log(1 - exp(-x)) for x > 0, accurate at both ends."""
    x = np.asarray(x, dtype=float)
    with np.errstate(divide="ignore"):
        return np.where(x < math.log(2), np.log(-np.expm1(-x)), np.log1p(-np.exp(-x)))
