"""One pair on a grid of losses: rounded up for upper bounds, rounded without changing the mean for lower ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dptoolkit.accounting._numeric import log_sum_exp
from dptoolkit.accounting.profiles import Curve, DominatingPair
from dptoolkit.types import Array


@dataclass(frozen=True)
class Leaf:
    """Mass exp(log_p) on the losses step * (first + i), the rest of the mass at infinity."""

    first: int
    losses: Array
    log_p: Array
    infinite: float
    mean: float
    variance: float
    coarse: tuple[Array, Array] = field(repr=False)

    def log_mgf(self, tilt: float) -> float:
        return float(log_sum_exp(self.log_p + tilt * self.losses))

    def rough_log_mgf(self, tilts: Array) -> Array:
        """log_mgf at many tilts from few bins: for choosing a tilt, never for a bound."""
        losses, log_p = self.coarse
        return log_sum_exp(log_p[None, :] + tilts[:, None] * losses[None, :], axis=1)


def _make_leaf(first: int, p: Array, infinite: float, step: float) -> Leaf:
    p = np.maximum(p, 0.0)
    losses = step * (first + np.arange(len(p), dtype=float))
    # Sums rather than products p @ losses, which BLAS gives to threads that wait longer than they work.
    moments = p * losses
    mean = float(moments.sum())
    edges = _bin_edges(first, len(p))
    mass, sums = np.add.reduceat(p, edges), np.add.reduceat(moments, edges)
    with np.errstate(divide="ignore", invalid="ignore"):
        coarse = (np.where(mass > 0, sums / mass, losses[edges]), np.log(mass))
        # The last term makes up for mass that p lacks, so that mean^2 + variance is never below the second moment.
        variance = float((p * (losses - mean) ** 2).sum()) + max(1 - float(p.sum()), 0.0) * mean**2
        return Leaf(first, losses, np.log(p), infinite, mean, variance, coarse)


# Distances from loss 0, in points, that grow by a constant factor, up to the largest grid.
_AWAY = np.unique(np.geomspace(1, 2**23, 128).astype(np.intp))


@functools.lru_cache(maxsize=64)
def _bin_edges(first: int, size: int) -> NDArray[np.intp]:
    """Bins that grow with the distance from loss 0, where most of the mass of a rare event is, up to a largest width.

    Above 0 large tilts count the mass at the ends of the bins.
    """
    # The ends of the bins are flagged rather than sorted.
    is_end = np.zeros(size, dtype=bool)
    is_end[-first] = True
    for end in (_AWAY[: _AWAY.searchsorted(-first, side="right")] * -1, _AWAY[: _AWAY.searchsorted(size + first)]):
        is_end[end - first] = True
    is_end[-first :: max((size + first) // 64, 1)] = True
    is_end[[0, -1]] = True
    return np.flatnonzero(is_end)


# Points of a curve that are computed at once: what a curve makes on its way is then small, and stays in the cache.
_BLOCK = 4096


def _in_blocks(curve: Curve, step: float, places: Array) -> Array:
    values = np.empty(len(places))
    for start in range(0, len(places), _BLOCK):
        values[start : start + _BLOCK] = curve(step * places[start : start + _BLOCK])
    return values


# Losses among which the reach of a grid is chosen; a pair that needs more than the last has infinite epsilon here.
REACHES = np.asarray(np.geomspace(1e-12, 1e9, 500), dtype=np.float64)
# A search for the end of a curve refines the grid so often, with so many points each time.
_ZOOMS, _ZOOM_POINTS = 6, 33


# Every so many reaches are tried first, and then those between two of them.
_STRIDE = 25


def _reach(curve: Curve, tail: float) -> float:
    """The first of the losses at which a decreasing function is at most ``tail``, found among every 25th of them."""
    beyond = np.flatnonzero(curve(REACHES[_STRIDE - 1 :: _STRIDE]) <= tail)
    if len(beyond) == 0:
        return float(REACHES[-1])
    near = REACHES[_STRIDE * beyond[0] : _STRIDE * (beyond[0] + 1)]
    return float(near[np.flatnonzero(curve(near) <= tail)[0]])


@dataclass(frozen=True)
class Span:
    """How far the grid of one pair must reach on both sides."""

    pair: DominatingPair
    above: float
    below: float
    # What the last grid was made of: its step, and the pair's two curves on it.
    _last: dict[str, tuple[float, Array]] = field(default_factory=dict, repr=False, compare=False)

    def up(self, step: float) -> Array:
        """The divergence at 0, step, 2 step, ... up to the end of the grid."""
        return self._curve("up", self.pair.above, step, max(1, math.ceil(self.above / step)))

    def down(self, step: float) -> Array:
        """The divergence of the reversed pair, in the same way."""
        cells = max(1, math.ceil(self.below / step))
        step_of_curve, curve = self._last.get("up", (math.nan, np.empty(0)))
        if self.pair.below is self.pair.above and step_of_curve == step and len(curve) > cells:
            return curve[: cells + 1]
        return self._curve("down", self.pair.below, step, cells)

    def _curve(self, name: str, curve: Curve, step: float, cells: int) -> Array:
        last_step, last = self._last.get(name, (math.nan, np.empty(0)))
        if last_step == 2 * step and len(last) > cells // 2:
            # Every other point is one of the last grid's, to the last bit.
            values = np.empty(cells + 1)
            values[::2] = last[: cells // 2 + 1]
            values[1::2] = _in_blocks(curve, step, np.arange(1, cells + 1, 2, dtype=float))
        else:
            values = _in_blocks(curve, step, np.arange(cells + 1, dtype=float))
        self._last[name] = step, values
        return values


def span_of(pair: DominatingPair, tail: float) -> Span:
    """The reach outside which little is left on either side.

    That is at most ``tail`` of divergence above, and below at most ``tail`` of divergence times exp(-loss), which is
    mass.
    """
    return Span(pair, *_ends(pair, tail))


@functools.lru_cache(maxsize=64)
def _ends(pair: DominatingPair, tail: float) -> tuple[float, float]:
    """The reach above and below."""
    at_infinity = float(pair.below(REACHES[-1:])[0])
    end = _largest_loss(pair, _reach(lambda x: pair.above(x) - pair.infinite_mass, tail), tail)
    return end, _reach(lambda x: np.asarray(np.exp(-x) * (pair.below(x) - at_infinity)), tail)


def _largest_loss(pair: DominatingPair, end: float, tail: float) -> float:
    """The end of the grid above 0, moved down to the largest loss where the pair has one.

    A grid that ends there is exact there. If the largest loss is between two points of a grid, the next finer grid has
    the same error, which then goes unnoticed.
    """
    if float(pair.above(np.array([end]))[0]) > pair.infinite_mass:
        return end
    low = end * REACHES[0] / REACHES[1]
    for _ in range(_ZOOMS):
        points = np.linspace(low, end, _ZOOM_POINTS)
        beyond = np.flatnonzero(pair.above(points) - pair.infinite_mass <= tail)
        first = int(beyond[0]) if len(beyond) else len(points) - 1
        low, end = float(points[max(first - 1, 0)]), float(points[first])
    return end


def connect_the_dots(span: Span, step: float) -> Leaf:
    """The smallest pair with losses on the grid whose divergence is at least the pair's at every grid point.

    With U_k = H(e^{kh}) the mass under P at loss kh is (U_{k+1}-U_k)/(e^h - 1) + (U_{k-1}-U_k)/(1 - e^-h); for negative
    losses the same holds for the reversed pair, times e^{kh}.
    """
    up, down = span.up(step), span.down(step)
    high, low = len(up) - 1, len(down) - 1
    # Cut off at e^700, which as a divisor is as good as infinite, to avoid an overflow.
    wide, narrow = math.expm1(min(step, 700.0)), -math.expm1(-step)
    rises, falls = np.append(up[1:] - up[:-1], 0.0), np.append(down[1:] - down[:-1], 0.0)
    p = np.empty(low + 1 + high)
    p[low + 1 :] = rises[1:] / wide - rises[:-1] / narrow
    p[:low] = ((falls[1:] / wide - falls[:-1] / narrow) * np.exp(-step * np.arange(1, low + 1)))[::-1]
    p[low] = 1.0 + rises[0] / wide - (down[0] - math.exp(-step) * down[1]) / narrow
    return _make_leaf(-low, p, float(up[-1]), step)


def rounded(span: Span, step: float) -> Leaf:
    """The loss rounded to the nearest grid point; then a share of all mass is moved one step to restore the mean.

    Mass outside the grid is moved down: above the grid to its last point, below it to minus infinity (left out).
    """
    tails = span.pair.tails
    assert tails is not None
    high, low = math.ceil(span.above / step) + 1, math.ceil(span.below / step) + 1
    t = tails(step * (np.arange(-low, high + 2, dtype=float) - 0.5))
    from_above, from_below = -np.diff(t.p_above), np.diff(t.p_below)
    p = np.where(t.p_above[:-1] < 0.5, from_above, from_below)
    p[-1] += max(float(t.p_above[-1]) - span.pair.infinite_mass, 0.0)
    p = np.maximum(p, 0.0)
    mean = float(p @ (step * np.arange(-low, high + 1)))
    share = (mean - _mean_loss(span)) / (step * max(float(p.sum()), 1e-300))
    p = np.pad(p, 1)
    neighbour_mass = np.roll(p, -1 if share > 0 else 1) * min(abs(share), 1.0)
    return _make_leaf(-low - 1, p * (1 - min(abs(share), 1.0)) + neighbour_mass, span.pair.infinite_mass, step)


def _mean_loss(span: Span) -> float:
    """E_P[L; L finite] = int_0^inf H_{e^x}(P||Q) - infinite mass + e^-x H_{e^x}(Q||P) dx, from below."""
    pair = span.pair
    if pair.mean is not None:
        return pair.mean

    def total(nodes: int) -> float:
        above = _integral(lambda x: pair.above(x) - pair.infinite_mass, span.above, nodes)
        return above + _integral(lambda x: np.exp(-x) * pair.below(x), span.below, nodes)

    # The difference of two rules is larger than the error of the better one, even where the curve has a corner.
    fine = total(8)
    return fine - abs(fine - total(4))


def _integral(curve: Callable[[Array], Array], reach: float, nodes: int) -> float:
    """Gauss's rule on cells that grow with the loss: the curve may bend at 1e-9 and reach to 10."""
    edges = np.concatenate([[0.0], reach * np.geomspace(1e-15, 1.0, 700)])
    points, weights = np.polynomial.legendre.leggauss(nodes)
    widths = np.diff(edges)
    x = edges[:-1, None] + widths[:, None] * 0.5 * (points + 1)
    return float(np.sum(curve(x) * (0.5 * widths[:, None] * weights)))
