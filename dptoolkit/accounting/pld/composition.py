"""The sum of all losses of a tree: every pair on one grid, tilted, and composed by one FFT."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit.accounting._numeric import zoom_minimum
from dptoolkit.accounting.pld.grid import Leaf
from dptoolkit.accounting.pld.tail import Tail
from dptoolkit.accounting.pld.trees import Node, steps_of
from dptoolkit.accounting.profiles import DominatingPair
from dptoolkit.accounting.rounds import RunCountLaw
from dptoolkit.errors import ANY_METHOD, UnsupportedEvent
from dptoolkit.types import Array

# The largest grid; it takes about 400 MB.
MAX_POINTS = 2**22
# -log of the mass that may lie outside the window under the tilted law. The lower bound uses twice this number, because
# there such mass must be subtracted.
LOG_OUTSIDE = 18.0
# -log of the mass outside the window relative to delta, where the tilted law is read far from its mean.
_LOG_OUTSIDE_DELTA = 14.0
# The shares of the tilt of Chernoff's bound that are compared; the one with the smallest window is taken. Below them is
# the log of the round-off, relative to delta, that a smaller tilt may cost.
_SHARES = (1.0, 0.75, 0.6, 0.4, 0.25, 0.15, 0.08)
_RATES = np.array([8.0, 5.0, 2.5, 0.9, 0.3])
_RATE_SPLITS = [1, 1 + len(_RATES), 1 + 2 * len(_RATES)]
_LOG_TOLERABLE = math.log(2e-6)

_Complex = NDArray[np.complex128]


@dataclass(frozen=True)
class _Grid:
    """The tree with every pair on a grid."""

    count: int
    leaf: Leaf | None
    runs: RunCountLaw | None
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
            one: _Complex = np.fft.rfft(_wrapped(weights, leaf.first % size, size))
        else:
            assert self.runs is not None
            log_z = math.fsum(g.log_mgf(tilt) for g in self.inner)
            product = np.ones(size // 2 + 1, dtype=complex)
            for g in self.inner:
                product *= g.transform(tilt, size)
            one = self.runs.tilted(log_z, product)
        return one if self.count == 1 else _power(one, self.count)


def _wrapped(weights: Array, first: int, size: int) -> Array:
    """The weights on a circle of ``size`` points, from point ``first`` on."""
    if len(weights) > size:
        return np.asarray(np.bincount((first + np.arange(len(weights))) % size, weights, size), dtype=float)
    circle, before_end = np.zeros(size), min(size - first, len(weights))
    circle[first : first + before_end] = weights[:before_end]
    circle[: len(weights) - before_end] = weights[before_end:]
    return circle


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
    """The tilt with the smallest Chernoff bound on epsilon, that bound, and the number that errors are relative to."""

    tilt: float
    epsilon: float
    size: float


class Focus(NamedTuple):
    """A tilt, the epsilon at which the tilted law is read, and -log of the tilted mass that may be lost there."""

    tilt: float
    epsilon: float
    log_outside: float


class _Window(NamedTuple):
    """Losses that a grid must hold, and the rate at which Chernoff's bound on the tilted mass above them is best."""

    low: float
    high: float
    rate: float


class Sum:
    """The sum of all losses, with every loss on a grid of one step."""

    def __init__(self, nodes: tuple[Node, ...], step: float, leaf_of: Callable[[DominatingPair, float], Leaf]) -> None:
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
        return self._view(delta, *self._log_tilts(reach), zooms=2)

    def look_near(self, delta: float, view: View) -> View:
        """``look_at`` where another grid's view is known, whose tilt is nearly the best one here too."""
        centre = math.log(view.tilt)
        return self._view(delta, centre - 0.7, centre + 0.7, zooms=1)

    def _view(self, delta: float, low: float, high: float, zooms: int) -> View:
        def value(log_tilts: Array) -> Array:
            tilts = np.exp(log_tilts)
            return (self.rough_log_mgf(tilts) + _log_share(tilts) - math.log(delta)) / tilts

        best, exponent = zoom_minimum(value, low, high, points=33, zooms=zooms)
        return View(self.permitted(math.exp(best)), exponent, max(exponent, self.spread))

    def look_from(self, epsilon: float, reach: float) -> tuple[float, float]:
        """The tilt whose Chernoff bound on delta at ``epsilon`` is smallest, and roughly the log of that bound."""

        def value(log_tilts: Array) -> Array:
            tilts = np.exp(log_tilts)
            return self.rough_log_mgf(tilts) - epsilon * tilts

        best, log_delta = zoom_minimum(value, *self._log_tilts(reach), points=33, zooms=3)
        return self.permitted(math.exp(best)), log_delta

    def chernoff_delta(self, tilt: float, epsilon: float) -> float:
        """Chernoff's bound on delta at ``epsilon``, without the infinite mass."""
        log_share = float(_log_share(np.asarray(tilt)))
        exponent = self.log_mgf(tilt) + self.round_off(tilt, 2) + log_share - tilt * epsilon
        return math.exp(min(exponent + 1e-12 * abs(exponent), 0.0))

    def _log_tilts(self, reach: float) -> tuple[float, float]:
        """The logs of the least and the largest tilt to try."""
        return math.log(1e-3 / max(self.spread, reach)), math.log(300 / self.spread)

    def focus(self, view: View, delta: float) -> Focus:
        """The tilt with the smallest window among those that lose no digits.

        The tilt of the best Chernoff bound puts the mean of the tilted law at the answer. Where few large losses are
        behind delta, such a law has two modes far apart, and a wide window. A smaller tilt has a narrow one, but less
        of its mass is at the answer, by the factor exp(-loss), and both the round-off and the mass outside the window
        must be smaller by as much.
        """
        # A view may come from a finer grid, whose moment generating function is finite further up.
        largest = self.permitted(view.tilt)
        best, fewest = Focus(largest, view.epsilon, LOG_OUTSIDE), math.inf
        for share in _SHARES:
            tilt = share * largest
            loss = max(float(self.rough_log_mgf(np.array([tilt]))[0]) - tilt * view.epsilon - math.log(delta), 0.0)
            if share < 1 and math.log(self.round_off(tilt, 2**16)) + loss > _LOG_TOLERABLE:
                break
            focus = Focus(tilt, view.epsilon, _LOG_OUTSIDE_DELTA + loss)
            low, high, _ = self._window(focus)
            # A smaller tilt is taken only where its window is clearly smaller.
            if 1.2 * (high - low) > fewest:
                break
            best, fewest = focus, high - low
        return best

    def centred(self, tilt: float) -> Focus:
        """The tilted law, read at its mean."""
        return Focus(tilt, self._tilted_moments(tilt)[0], LOG_OUTSIDE)

    def permitted(self, tilt: float) -> float:
        """``tilt``, or a smaller one if the moment generating function, exact or rough, is infinite there."""
        smallest = 1e-12 * tilt
        while not (math.isfinite(self.log_mgf(tilt)) and np.isfinite(self.rough_log_mgf(np.array([tilt])))[0]):
            tilt *= 0.9
            if tilt <= smallest:
                raise too_many(self.steps)
        return tilt

    def tail(self, focus: Focus, *, lower: bool) -> Tail | None:
        """The law of the sum near the epsilon in focus; None if the grid would be too large."""
        tilt = focus.tilt
        base = self.log_mgf(tilt)
        window = self._whole_window(tilt, base) if lower else self._window(focus)
        points = (window.high - window.low) / self.step + 2
        if not math.isfinite(points):
            raise too_many(self.steps)
        # The lower bound is for comparison only, and is not worth the seconds that a full-size grid takes.
        if points > (MAX_POINTS // 16 if lower else MAX_POINTS):
            return None
        size, first = _fft_size(math.ceil(points)), math.floor(window.low / self.step)
        transform = self.grids[0].transform(tilt, size)
        for g in self.grids[1:]:
            transform = transform * g.transform(tilt, size)
        mass = np.roll(np.fft.irfft(transform, size), -(first % size))
        noise = self.round_off(tilt, size)
        floor = noise * float(np.mean(np.abs(transform)))
        log_norm = base - noise if lower else base + noise
        return Tail(
            self.step, first, mass, tilt, log_norm, floor, self._above(tilt, base, window), self.infinite, lower
        )

    def round_off(self, tilt: float, size: int) -> float:
        """A bound on the relative error: each step multiplies by a transform with a few units of round-off."""
        steps = max(self.steps, math.fsum(g.steps(tilt) for g in self.grids))
        return 2.0**-52 * 4 * math.log2(size) * (steps + 4)

    def _window(self, focus: Focus) -> _Window:
        """The losses that a grid must hold so that little is added to delta at the epsilon in focus.

        A unit of tilted mass at a loss l counts exp(-tilt (l - epsilon)) times as much as one at epsilon. So the mass
        above the window, a bound on which is added to delta as if it were at the window's end, may be large where that
        end is far up. It wraps around to the window's lower end, where it should land below epsilon; mass below the
        window wraps around to the upper end. What wraps adds to delta and never takes away, so the window's ends, which
        come from a rough law, decide how tight the bound is and not whether it holds.
        """
        tilt, epsilon, outside = focus
        _, spread = self._tilted_moments(tilt)
        # Chernoff's bound is best at a factor of about 6 to 8 for a normal law, just below 1 for an exponential tail,
        # and in between where the largest loss is near.
        rates = _RATES / (self.step + spread)
        while True:
            tilts = np.concatenate([[tilt], tilt + rates, tilt - rates, -rates])
            base, up, down, swapped = np.split(self.rough_log_mgf(tilts), _RATE_SPLITS)
            if math.isfinite(np.min(up)):
                break
            rates = rates / 4
        reach = tilt * epsilon + outside
        highs = (up - base + reach) / (tilt + rates)
        high = max(float(np.min(highs)), epsilon + 2 * self.step)
        wrap = float(np.min((up - base + outside) / rates))
        low = float(np.max((base - down - outside) / rates))
        low = max(low, float(np.max((tilt * high - reach + base - swapped) / (tilt + rates))))
        low = min(low, high + epsilon - wrap, epsilon - 2 * self.step)
        return _Window(low, high, float(rates[np.argmin(highs)]))

    def _whole_window(self, tilt: float, base: float) -> _Window:
        """The losses outside which the tilted law has almost no mass on either side: what lower bounds need."""
        _, spread = self._tilted_moments(tilt)
        rates, outside = [f / (self.step + spread) for f in (8.0, 5.0, 2.5, 0.9)], 2 * LOG_OUTSIDE
        ends = [self._end(tilt, base, t, outside) for t in rates]
        while math.isinf(min(ends)):
            rates.append(rates[-1] / 4)
            ends.append(self._end(tilt, base, rates[-1], outside))
        high, rate = min(zip(ends, rates, strict=True))
        return _Window(max(-self._end(tilt, base, -t, outside) for t in rates), high, rate)

    def _above(self, tilt: float, base: float, window: _Window) -> float:
        """A bound on the tilted mass above the window."""
        return math.exp(min(self.log_mgf(tilt + window.rate) - base - window.rate * window.high, 0.0))

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
        f"the event has about {steps:.2g} releases: must be fewer for method 'pld', whose round-off grows with them.",
        ANY_METHOD,
    )


def grid_error(coarse: Sum, fine: Sum, tilt: float) -> float:
    """How much the fine grid adds to epsilon, from the difference of two grids: the error is of second order."""
    steep = max(tilt, 1 / fine.spread)
    t = steep if math.isfinite(fine.log_mgf(steep)) else tilt
    return (coarse.log_mgf(t) - fine.log_mgf(t)) / (((coarse.step / fine.step) ** 2 - 1) * t)


def _grid(node: Node, step: float, leaf_of: Callable[[DominatingPair, float], Leaf]) -> _Grid:
    leaf = None if node.pair is None else leaf_of(node.pair, step)
    return _Grid(node.count, leaf, node.runs, tuple(_grid(n, step, leaf_of) for n in node.inner))


def _fft_size(points: int) -> int:
    """The next 2^k or 3 * 2^k, at least 64."""
    size = 64
    while size < points:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size
