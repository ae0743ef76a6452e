"""A quick estimate of epsilon for searches: the loss by its moment generating function, its tail by an expansion.

No grid of losses is involved, and no bound: a search that is led by it verifies the place where it ends.

Of one pair, E_P[exp(t L)] = E_Q[(P/Q)^(1+t)] follows from the divergences: u^(1+t) has the second derivative t (1+t)
u^(t-1), so with a = exp(x) for a >= 1 and exp(-x) for a < 1

    E_P[exp(t L)] = 1 + t (1+t) int_0^inf e^(tx) H_{exp(x)}(P||Q) + e^(-(1+t)x) H_{exp(x)}(Q||P) dx.

Divergences are smooth in log x, so Gauss's rule on cells that double needs few points, and the same ones for all t.

Of the sum, delta = exp(K(t) - t epsilon) E[exp(-t u) (1 - exp(-u)); u > 0], K the log of the generating function and
u = loss - epsilon under the law tilted by t. With t near the best tilt that law is nearly normal around epsilon, and
Edgeworth's expansion to the fourth cumulant replaces it.
"""

from __future__ import annotations

import math

import numpy as np

from dptoolkit.accounting._numeric import zoom_minimum
from dptoolkit.accounting.pld.grid import REACHES
from dptoolkit.accounting.pld.trees import Node, leaves, steps_of
from dptoolkit.accounting.profiles import Curve, DominatingPair
from dptoolkit.types import Array

# Cells of the integral over losses, each twice as long as the one before, and the points in each.
_CELLS, _PER_CELL = 24, 8
_NODES, _NODE_WEIGHTS = (np.asarray(part) for part in np.polynomial.legendre.leggauss(_PER_CELL))
_ENDS = np.concatenate([[0.0], 2.0 ** np.arange(1 - _CELLS, 1)])
_PLACES = (_ENDS[:-1, None] + np.diff(_ENDS)[:, None] * 0.5 * (_NODES + 1)).ravel()
_LENGTHS = (np.diff(_ENDS)[:, None] * 0.5 * _NODE_WEIGHTS).ravel()
# Every so many reaches are tried.
_STRIDE = 10
# Logs of tilts around that of a normal law: what is searched, by so many points so many times.
_BELOW, _ABOVE, _TILTS, _ZOOMS = -3.0, 1.5, 17, 2
# How far apart tilts are that show derivatives, relative to the spread, and steps towards epsilon.
_DIFFERENCES, _STEPS = 0.25, 6
# The largest skewness and excess kurtosis of a nearly normal law.
_MOST_SKEWED, _MOST_KURTOSIS = 0.4, 0.5
_ROOT_TWO_PI = math.sqrt(2 * math.pi)
# The places of the last integral, on [0, 1].
_PARTS = np.array([0.0, 0.05, 0.18, 0.45, 1.0])
_U = (_PARTS[:-1, None] + np.diff(_PARTS)[:, None] * 0.5 * (_NODES + 1)).ravel()
_DU = (np.diff(_PARTS)[:, None] * 0.5 * _NODE_WEIGHTS).ravel()


class _Pair:
    """The moment generating function of one pair's loss, where it is finite."""

    def __init__(self, pair: DominatingPair, tail: float) -> None:
        end = _end(lambda x: pair.above(x) - pair.infinite_mass, tail)
        self._x = end * _PLACES
        self._above = (pair.above(self._x) - pair.infinite_mass) * (end * _LENGTHS)
        other = self._above if pair.below is pair.above else pair.below(self._x) * (end * _LENGTHS)
        self._below = other * np.exp(-self._x)

    def log_mgf(self, tilts: Array) -> Array:
        powers = np.exp(tilts[:, None] * self._x)
        integral = (powers * self._above + self._below / powers).sum(axis=1)
        return np.asarray(np.log1p(tilts * (1 + tilts) * integral))

    @property
    def mean(self) -> float:
        return float((self._above + self._below).sum())


def _end(curve: Curve, tail: float) -> float:
    """A loss beyond which little is left of the curve."""
    small = np.flatnonzero(curve(REACHES[::_STRIDE]) <= tail)
    return float(REACHES[_STRIDE * small[0]] if len(small) else REACHES[-1])


class _Total:
    """The sum of all losses of a tree."""

    def __init__(self, nodes: tuple[Node, ...], delta: float) -> None:
        tail = 1e-4 * delta / max(steps_of(nodes), 1.0)
        self._nodes = nodes
        self._pairs = {id(n): _Pair(n.pair, tail) for n in leaves(nodes) if n.pair is not None}
        self.mean = self._mean(nodes)

    def log_mgf(self, tilts: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return self._log_mgf(self._nodes, tilts)

    def _log_mgf(self, nodes: tuple[Node, ...], tilts: Array) -> Array:
        total = np.zeros(len(tilts))
        for n in nodes:
            inner = self._pairs[id(n)].log_mgf(tilts) if n.runs is None else self._log_mgf(n.inner, tilts)
            total += n.count * (inner if n.runs is None else np.asarray(n.runs.log_pgf(inner)))
        return total

    def _mean(self, nodes: tuple[Node, ...]) -> float:
        return math.fsum(
            n.count * (self._pairs[id(n)].mean if n.runs is None else n.runs.mean * self._mean(n.inner)) for n in nodes
        )

    def best_tilt(self, delta: float) -> tuple[float, float]:
        """The tilt whose Chernoff bound on epsilon is smallest, and that bound."""
        normal = math.sqrt(math.log(1 / delta) / self.mean)

        def bound(log_tilts: Array) -> Array:
            tilts = np.exp(log_tilts)
            return (self.log_mgf(tilts) - tilts * np.log1p(1 / tilts) - np.log1p(tilts) - math.log(delta)) / tilts

        log_tilt, least = zoom_minimum(
            bound, math.log(normal) + _BELOW, math.log(normal) + _ABOVE, points=_TILTS, zooms=_ZOOMS
        )
        return math.exp(log_tilt), least

    def cumulants(self, tilt: float) -> tuple[float, float, float, float, float] | None:
        """K, and the mean, standard deviation, skewness and excess kurtosis of the tilted law, by differences of K."""
        first = self.log_mgf(tilt * np.array([0.98, 1.0, 1.02])).tolist()
        if not all(map(math.isfinite, first)):
            return None
        rough_spread = math.sqrt(max(first[0] - 2 * first[1] + first[2], 1e-12)) / (0.02 * tilt)
        t = min(_DIFFERENCES / rough_spread, 0.3 * tilt)
        k = self.log_mgf(tilt + t * np.arange(-3.0, 4.0)).tolist()
        if not all(map(math.isfinite, k)):
            return None
        odd, even = [k[4] - k[2], k[5] - k[1], k[6] - k[0]], [k[4] + k[2], k[5] + k[1], k[6] + k[0]]
        variance = (270 * even[0] - 27 * even[1] + 2 * even[2] - 490 * k[3]) / (180 * t**2)
        if variance <= 0:
            return None
        mean = (45 * odd[0] - 9 * odd[1] + odd[2]) / (60 * t)
        third = (-13 * odd[0] + 8 * odd[1] - odd[2]) / (8 * t**3)
        fourth = (-39 * even[0] + 12 * even[1] - even[2] + 56 * k[3]) / (6 * t**4)
        return k[3], mean, math.sqrt(variance), third / variance**1.5, fourth / variance**2


def first_epsilon(nodes: tuple[Node, ...], delta: float) -> float:
    """Epsilon within a few hundredths, mostly: by the expansion, or else Chernoff's bound."""
    total = _Total(nodes, delta)
    if not 0 < total.mean < math.inf:
        return math.inf
    tilt, bound = total.best_tilt(delta)
    smooth = _expanded(total, tilt, delta)
    return bound if smooth is None else smooth


def smooth_epsilon(nodes: tuple[Node, ...], delta: float) -> float | None:
    """About epsilon at ``delta``; None where the tilted law is too far from a normal one."""
    total = _Total(nodes, delta)
    return _expanded(total, total.best_tilt(delta)[0], delta) if 0 < total.mean < math.inf else None


def _expanded(total: _Total, tilt: float, delta: float) -> float | None:
    """epsilon by Edgeworth's expansion of the tilted law."""
    cumulants = total.cumulants(tilt)
    if cumulants is None or not (abs(cumulants[3]) <= _MOST_SKEWED and abs(cumulants[4]) <= _MOST_KURTOSIS):
        return None
    k, mean, spread, third, fourth = cumulants
    epsilon = mean
    for _ in range(_STEPS):
        # The integrand falls with the normal law and with exp(-tilt u).
        end = min(9 * spread + max(mean - epsilon, 0.0), 36 / tilt)
        u = end * _U
        z = (u + (epsilon - mean)) / spread
        z2 = z * z
        expansion = 1 + third / 6 * z * (z2 - 3) + fourth / 24 * ((z2 - 6) * z2 + 3)
        expansion += third * third / 72 * (((z2 - 15) * z2 + 45) * z2 - 15)
        integral = end * float((np.exp(-tilt * u - 0.5 * z2) * -np.expm1(-u) * expansion * _DU).sum())
        if not 0 < integral < math.inf:
            return None
        move = (k - tilt * epsilon + math.log(integral / (spread * _ROOT_TWO_PI)) - math.log(delta)) / tilt
        epsilon += move / (1 + 1 / (tilt * spread))
        if abs(move) < 1e-7 * spread:
            break
    return epsilon if epsilon > 0 else None
