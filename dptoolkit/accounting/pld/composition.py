"""The sum of all losses of a tree: every pair on one grid, tilted, and composed by one FFT."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit.accounting._numeric import Array, zoom_minimum
from dptoolkit.accounting.pld.grid import Leaf
from dptoolkit.accounting.pld.tail import Tail
from dptoolkit.accounting.pld.trees import Node, steps_of
from dptoolkit.accounting.profiles import Pair
from dptoolkit.accounting.rounds import Runs
from dptoolkit.errors import UnsupportedEvent

MAX_POINTS = 2**22
# -log of the mass that may lie outside the window under the tilted law. The lower bound uses twice this number, because
# there such mass must be subtracted.
LOG_OUTSIDE = 18.0

_Complex = NDArray[np.complex128]


@dataclass(frozen=True)
class _Grid:
    """The tree with every pair on a grid."""

    count: int
    leaf: Leaf | None
    runs: Runs | None
    inner: tuple[_Grid, ...]

    def log_mgf(self, tilt: float) -> float:
        return self.count * self._one(lambda g: g.log_mgf(tilt), lambda leaf: leaf.log_mgf(tilt))

    def log_finite(self) -> float:
        """log of the probability that the loss is finite."""
        log_one = self._one(
            lambda g: g.log_finite(), lambda leaf: math.log1p(-leaf.infinite) if leaf.infinite < 1 else -math.inf
        )
        # A probability is at most 1, even where a generating function rounds to more.
        return self.count * min(log_one, 0.0)

    def steps(self, tilt: float) -> float:
        """A bound on the expected number of elementary releases after tilting."""
        if self.leaf is not None:
            return float(self.count)
        assert self.runs is not None
        log_z = math.fsum(g.log_mgf(tilt) for g in self.inner)
        return self.count * self.runs.tilted_mean(log_z) * math.fsum(g.steps(tilt) for g in self.inner)

    def _one(self, of_grid: Callable[[_Grid], float], of_leaf: Callable[[Leaf], float]) -> float:
        if self.leaf is not None:
            return of_leaf(self.leaf)
        assert self.runs is not None
        return float(self.runs.log_pgf(np.asarray(math.fsum(of_grid(g) for g in self.inner))))

    def rough_log_mgf(self, tilts: Array) -> Array:
        if self.leaf is not None:
            return self.count * self.leaf.rough_log_mgf(tilts)
        assert self.runs is not None
        total = np.sum([g.rough_log_mgf(tilts) for g in self.inner], axis=0)
        return self.count * np.asarray(self.runs.log_pgf(total))

    def moments(self) -> tuple[float, float]:
        """Rough mean and variance of the loss; the variance of a number of rounds is taken as a geometric one's."""
        if self.leaf is not None:
            mean, variance = self.leaf.mean, self.leaf.variance
        else:
            assert self.runs is not None
            rounds = self.runs.mean
            means, variances = zip(*(g.moments() for g in self.inner), strict=True)
            mean = rounds * sum(means)
            variance = rounds * sum(variances) + rounds * (1 + rounds) * sum(means) ** 2
        return self.count * mean, self.count * variance

    def transform(self, tilt: float, size: int) -> _Complex:
        """The characteristic function of the tilted, normalised loss."""
        if self.leaf is not None:
            leaf = self.leaf
            weights = np.exp(leaf.log_p + tilt * leaf.losses - leaf.log_mgf(tilt))
            places = (leaf.first + np.arange(len(weights))) % size
            one: _Complex = np.fft.rfft(np.bincount(places, weights, minlength=size))
        else:
            assert self.runs is not None
            log_z = math.fsum(g.log_mgf(tilt) for g in self.inner)
            product = np.ones(size // 2 + 1, dtype=complex)
            for g in self.inner:
                product *= g.transform(tilt, size)
            one = self.runs.tilted(log_z, product)
        return one if self.count == 1 else _power(one, self.count)


def _power(base: _Complex, count: int) -> _Complex:
    with np.errstate(divide="ignore"):
        log_size = count * np.log(np.abs(base))
    # After many steps few frequencies are left; all others are far below the round-off that is accounted for.
    alive = log_size > -200
    power = np.zeros_like(base)
    power[alive] = np.exp(log_size[alive] + 1j * (count * np.angle(base[alive])))
    return power


def _log_share(tilt: Array) -> Array:
    """log of the largest (1 - e^-u) e^(-tilt u): delta is at most this share of exp(log_mgf - tilt epsilon)."""
    return -tilt * np.log1p(1 / tilt) - np.log1p(tilt)


class View(NamedTuple):
    """The tilt that centres the law of the sum at the answer, and the size that errors are measured against."""

    tilt: float
    size: float


class _Window(NamedTuple):
    """Losses that a grid must hold, and -log of a bound on the tilted mass above them."""

    low: float
    high: float
    log_outside: float


class Sum:
    """The sum of all losses, with every loss on a grid of one step."""

    def __init__(self, nodes: tuple[Node, ...], step: float, leaf_of: Callable[[Pair, float], Leaf]) -> None:
        self.step = step
        self.steps = steps_of(nodes)
        self.grids = tuple(_grid(n, step, leaf_of) for n in nodes)
        self.infinite = -math.expm1(math.fsum(g.log_finite() for g in self.grids))
        means, variances = zip(*(g.moments() for g in self.grids), strict=True)
        self.mean, self.spread = math.fsum(means), math.sqrt(math.fsum(variances)) or step

    def log_mgf(self, tilt: float) -> float:
        return math.fsum(g.log_mgf(tilt) for g in self.grids)

    def rough_log_mgf(self, tilts: Array) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(np.sum([g.rough_log_mgf(tilts) for g in self.grids], axis=0))

    def look_at(self, delta: float, reach: float) -> View:
        """The tilt whose Chernoff bound on epsilon is smallest. Any tilt is sound; a good one loses no digits."""

        def value(log_tilts: Array) -> Array:
            tilts = np.exp(log_tilts)
            return (self.rough_log_mgf(tilts) + _log_share(tilts) - math.log(delta)) / tilts

        low, high = math.log(1e-3 / max(self.spread, reach)), math.log(300 / self.spread)
        best, exponent = zoom_minimum(value, low, high, points=33, zooms=3)
        return View(self.permitted(math.exp(best)), max(exponent, self.spread))

    def permitted(self, tilt: float) -> float:
        """``tilt``, or a smaller one if the moment generating function is infinite there."""
        smallest = 1e-12 * tilt
        while not math.isfinite(self.log_mgf(tilt)):
            tilt *= 0.9
            if tilt <= smallest:
                raise too_many(self.steps)
        return tilt

    def tail(self, tilt: float, *, lower: bool) -> Tail | None:
        """The law of the sum near the point that the tilt looks at; None if the grid would be too large."""
        base = self.log_mgf(tilt)
        window = self._window(tilt, base, lower=lower)
        points = (window.high - window.low) / self.step + 2
        if not math.isfinite(points):
            raise too_many(self.steps)
        # The lower bound is for comparison only, and is not worth the seconds that a full-size grid takes.
        if points > (MAX_POINTS // 16 if lower else MAX_POINTS):
            return None
        size, first = _fft_size(math.ceil(points)), math.floor(window.low / self.step)
        transform = np.ones(size // 2 + 1, dtype=complex)
        for g in self.grids:
            transform *= g.transform(tilt, size)
        mass = np.roll(np.fft.irfft(transform, size), -(first % size))
        noise = self.round_off(tilt, size)
        floor = noise * float(np.mean(np.abs(transform)))
        log_norm = base - noise if lower else base + noise
        return Tail(
            self.step, first, mass, tilt, log_norm, floor, math.exp(-window.log_outside), self.infinite, lower
        )

    def round_off(self, tilt: float, size: int) -> float:
        """A bound on the relative error: each step multiplies by a transform with a few units of round-off."""
        steps = max(self.steps, math.fsum(g.steps(tilt) for g in self.grids))
        return 2.0**-52 * 4 * math.log2(size) * (steps + 4)

    def _window(self, tilt: float, base: float, *, lower: bool) -> _Window:
        """The losses that hold nearly all mass of the tilted law, by Chernoff's bound.

        Mass outside the window wraps around to its other end. A unit of tilted mass at distance d above the answer
        counts exp(-tilt d) times as much as one at the answer. So the mass below the window, which lands at its upper
        end, may be larger than the mass above it, which lands at its lower end.
        """
        centre, spread = self._tilted_moments(tilt)
        width = self.step + spread
        # The best factor is about 6 to 8 for a normal law and just below 1 for an exponential tail.
        factors = [8.0, 5.0, 2.5, 0.9]
        outside = 2 * LOG_OUTSIDE if lower else LOG_OUTSIDE
        high = min(self._end(tilt, base, f / width, outside) for f in factors)
        while math.isinf(high):
            factors.append(factors[-1] / 4)
            high = self._end(tilt, base, factors[-1] / width, outside)
        below = outside if lower else max(outside - tilt * (high - centre), 0.5 * outside)
        low = max(-self._end(tilt, base, -f / width, below) for f in factors)
        return _Window(low, high, outside)

    def _end(self, tilt: float, base: float, t: float, log_outside: float) -> float:
        """A point beyond which, in the direction of t, the tilted law has mass at most exp(-log_outside)."""
        return (self.log_mgf(tilt + t) - base + log_outside) / abs(t)

    def _tilted_moments(self, tilt: float) -> tuple[float, float]:
        """Rough mean and standard deviation of the tilted law."""
        t = 0.05 * tilt + 1e-3 / self.spread
        for _ in range(60):
            k = self.rough_log_mgf(np.array([tilt - t, tilt, tilt + t]))
            if np.all(np.isfinite(k)):
                break
            t /= 2
        else:
            return self.mean, self.spread
        return float(k[2] - k[0]) / (2 * t), math.sqrt(max(float(k[0] - 2 * k[1] + k[2]), 0.0)) / t


def too_many(steps: float) -> UnsupportedEvent:
    """The error for more releases than a distribution on a grid can follow; the caller raises it."""
    return UnsupportedEvent(
        f"the event has about {steps:.2g} releases: must be fewer for method 'pld', whose round-off grows with them. "
        "Use method='rdp'."
    )


def grid_error(coarse: Sum, fine: Sum, tilt: float) -> float:
    """How much the fine grid adds to epsilon, from the difference of two grids: the error is of second order."""
    steep = max(tilt, 1 / fine.spread)
    t = steep if math.isfinite(fine.log_mgf(steep)) else tilt
    return (coarse.log_mgf(t) - fine.log_mgf(t)) / (3 * t)


def _grid(node: Node, step: float, leaf_of: Callable[[Pair, float], Leaf]) -> _Grid:
    leaf = None if node.pair is None else leaf_of(node.pair, step)
    return _Grid(node.count, leaf, node.runs, tuple(_grid(n, step, leaf_of) for n in node.inner))


def _fft_size(points: int) -> int:
    """The next 2^k or 3 * 2^k, at least 64."""
    size = 64
    while size < points:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size
