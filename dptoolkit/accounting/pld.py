"""Privacy-loss distributions composed by FFT, with a lower and an upper bound as the answer.

Upper bound. Each dominating pair is replaced by the pair whose divergence connects the dots of the original's on a
grid of losses (Doroshenko et al. 2022, arXiv:2207.04380): the chords of a convex curve lie above it, so the new pair
dominates, and its loss lives on the grid. Lower bound. The loss of a pair that some neighbours attain is rounded to
the grid with its mean kept, so that the sum of the rounding errors is a martingale, bounded by Hoeffding's inequality.

The sum of the losses is found by one FFT after exponential tilting: with tilt t the law of one loss becomes
p(l) exp(t l)/M(t), whose sum is centred where the answer lies, so delta = 1e-18 keeps as many digits as delta = 0.1.
Wrap-around adds mass only (harmless above), mass beyond the window is bounded by Chernoff, and round-off by a floor
added to every grid point. A random number N of rounds is the generating function of N applied to the transform.

Memory: at most 2^22 grid points, about 400 MB at the peak. A composition that would need more gets a coarser grid,
which is looser and still sound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit.accounting import profiles, sampling, selection
from dptoolkit.accounting._numeric import Array, expand, log_sum_exp, zoom_minimum
from dptoolkit.accounting.events import (
    POISSON,
    ApproxDp,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMax,
    PureDp,
    RandomizedResponse,
    RandomRounds,
    Subsampled,
    TwoSidedGeometric,
    flatten,
)
from dptoolkit.accounting.profiles import Pair
from dptoolkit.accounting.rounds import Runs
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent

MAX_POINTS = 2**22
# Grid step over the root mean square loss of a step: adds about 2e-4 to the variance, 1e-4 to epsilon.
_RESOLUTION = 0.03
# The lower bound's rounding error grows with the step, the upper bound's with its square.
_LOWER_REFINEMENT = 8
# log of the mass that may lie outside the window under the tilted law.
_LOG_OUTSIDE = 36.0
# Share of delta that the lower bound gives to Hoeffding's inequality.
_HOEFFDING_SHARE = 1e-3


class Bracket(NamedTuple):
    """No analysis can prove less than ``lower``; ``upper`` holds."""

    lower: float
    upper: float


def epsilon(event: Event, delta: float) -> float:
    """The sound upper bound on epsilon at ``delta``."""
    return max(_Composition(tree, delta).epsilon(delta) for tree in _directions(event, dominating))


def delta(event: Event, epsilon: float) -> float:
    """The sound upper bound on delta at ``epsilon``."""
    return max(_delta_of_tree(tree, epsilon) for tree in _directions(event, dominating))


def lower_epsilon(event: Event, delta: float) -> float:
    """A lower bound on epsilon at ``delta``: some neighbours attain it, so no analysis can prove less."""
    if delta == 0:
        return 0.0
    return max(_Composition(tree, delta, lower=True).epsilon(delta) for tree in _directions(event, attained))


def bracket(event: Event, delta: float) -> Bracket:
    """Lower and upper bound on epsilon at ``delta``."""
    return Bracket(lower_epsilon(event, delta), epsilon(event, delta))


def _delta_of_tree(tree: tuple[_Node, ...], epsilon: float) -> float:
    """delta at epsilon; the grid's cut-off depends on delta, so a first pass finds its size."""
    guess = 1e-10
    while True:
        value = _Composition(tree, guess).delta(epsilon)
        if value >= guess or guess < 1e-290:
            return min(value, 1.0)
        guess = max(value * 1e-3, 1e-300)


# --- events to pairs ------------------------------------------------------------------------------


def dominating(event: Event) -> Pair:
    """The pair that dominates one application of an elementary event (record in the first place)."""
    if isinstance(event, Subsampled):
        return _sampled(event, dominating, sound=True)
    if isinstance(event, ExponentialMechanism):
        return _finite(event.epsilon, profiles.bounded_range)
    if isinstance(event, NoisyMax):
        return _finite(event.epsilon, profiles.randomized_response)
    return _explicit(event)


def attained(event: Event) -> Pair:
    """A pair that some neighbours attain for an elementary event."""
    if isinstance(event, Subsampled):
        return _sampled(event, attained, sound=False)
    if isinstance(event, ExponentialMechanism):
        return _finite(event.epsilon, lambda e: profiles.randomized_response(e / 2))
    if isinstance(event, NoisyMax):
        return _finite(selection.two_candidates(event.epsilon, event.noise), profiles.randomized_response)
    return _explicit(event)


def _explicit(event: Event) -> Pair:
    if isinstance(event, Gaussian):
        return _finite(_inverse(event.noise_multiplier), profiles.gaussian)
    if isinstance(event, Laplace):
        return _finite(_inverse(event.noise_multiplier), profiles.laplace)
    if isinstance(event, PureDp):
        return _finite(event.epsilon, profiles.randomized_response)
    if isinstance(event, ApproxDp):
        return _finite(event.epsilon, lambda e: profiles.randomized_response(e, infinite_mass=event.delta))
    if isinstance(event, RandomizedResponse):
        return _finite(event.epsilon, lambda e: profiles.randomized_response(e, event.categories))
    if isinstance(event, TwoSidedGeometric):
        return _finite(event.epsilon, lambda e: profiles.two_sided_geometric(e, event.sensitivity))
    raise UnsupportedEvent(
        f"event={event!r}: must have a known privacy-loss distribution for method 'pld'. Use method='rdp'."
    )


def _sampled(event: Subsampled, pair_of: Callable[[Event], Pair], *, sound: bool) -> Pair:
    base = as_single(event)
    replace = event.adjacency is Adjacency.REPLACE_ONE
    if isinstance(base, Gaussian) and event.scheme == POISSON and replace and 0 < event.rate < 1:
        mu = _inverse(base.noise_multiplier)
        return _finite(mu, lambda m: sampling.poisson_replace_one_gaussian(m, event.rate))
    if replace and sound:
        return sampling.replace_one(pair_of(base), event.rate)
    # Without replacement, all other records equal to the new one: only the old record's presence is seen.
    return sampling.poisson_zero_out(pair_of(base), event.rate)


def as_single(event: Subsampled) -> Event:
    """The elementary event inside a Subsampled; several Gaussians are one."""
    parts = flatten(event.event)
    gaussians = [(e, c) for e, c in parts if isinstance(e, Gaussian)]
    if not parts:
        return Gaussian(math.inf)
    if len(gaussians) == len(parts):
        return _merge(gaussians)
    if len(parts) == 1 and parts[0][1] == 1 and not isinstance(parts[0][0], (Subsampled, RandomRounds)):
        return parts[0][0]
    raise UnsupportedEvent(
        f"event={event!r}: must be a subsampled elementary event for this method. "
        "Account for several releases from one batch as one ApproxDp event."
    )


def _merge(gaussians: list[tuple[Gaussian, int]]) -> Gaussian:
    if any(e.noise_multiplier == 0 for e, _ in gaussians):
        return Gaussian(0.0)
    total = math.fsum(c / e.noise_multiplier**2 for e, c in gaussians)
    return Gaussian(math.inf if total == 0 else 1 / math.sqrt(total))


def _inverse(noise: float) -> float:
    return math.inf if noise == 0 else 1 / noise


def _finite(parameter: float, make: Callable[[float], Pair]) -> Pair:
    if math.isinf(parameter):
        return profiles.non_private()
    return make(parameter) if parameter > 0 else profiles.discrete(np.zeros(1), np.ones(1))


# --- the composition as a tree --------------------------------------------------------------------


@dataclass(frozen=True)
class _Node:
    """``count`` times a pair, or ``count`` times a random number of rounds of ``inner``."""

    count: int
    pair: Pair | None = None
    runs: Runs | None = None
    inner: tuple[_Node, ...] = ()

    def swapped(self) -> _Node:
        pair = None if self.pair is None else self.pair.swapped()
        return _Node(self.count, pair, self.runs, tuple(n.swapped() for n in self.inner))

    @property
    def symmetric(self) -> bool:
        return all(n.symmetric for n in self.inner) if self.pair is None else self.pair.symmetric


def _directions(event: Event, pair_of: Callable[[Event], Pair]) -> list[tuple[_Node, ...]]:
    """The trees for both orders of the neighbours; one if they are equal."""
    forward = _tree(event, pair_of)
    if all(n.symmetric for n in forward):
        return [forward]
    return [forward, tuple(n.swapped() for n in forward)]


def _tree(event: Event, pair_of: Callable[[Event], Pair]) -> tuple[_Node, ...]:
    gaussians: list[tuple[Gaussian, int]] = []
    nodes: list[_Node] = []
    for part, count in flatten(event):
        if isinstance(part, Gaussian):
            gaussians.append((part, count))
        elif isinstance(part, RandomRounds):
            nodes.append(_Node(count, runs=part.rounds, inner=_tree(part.event, pair_of)))
        else:
            nodes.append(_Node(count, pair_of(part)))
    if gaussians:
        nodes.append(_Node(1, pair_of(_merge(gaussians))))
    return tuple(nodes)


# --- one pair on the grid -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Leaf:
    """Mass ``p`` on the losses step * (first + i), the rest of the mass at infinity."""

    first: int
    p: Array
    infinite: float
    step: float
    coarse: tuple[Array, Array] = field(repr=False)

    @property
    def losses(self) -> Array:
        return self.step * (self.first + np.arange(len(self.p), dtype=float))

    def log_mgf(self, tilt: float) -> float:
        with np.errstate(divide="ignore"):
            return float(log_sum_exp(np.log(self.p) + tilt * self.losses))

    def rough_log_mgf(self, tilts: Array) -> Array:
        """log_mgf at many tilts from at most 256 bins: for choosing a tilt, never for a bound."""
        losses, log_p = self.coarse
        return log_sum_exp(log_p[None, :] + tilts[:, None] * losses[None, :], axis=1)

    def moments(self) -> tuple[float, float]:
        mean = float(self.p @ self.losses)
        return mean, float(self.p @ (self.losses - mean) ** 2)


def _make_leaf(first: int, p: Array, infinite: float, step: float) -> _Leaf:
    p = np.maximum(p, 0.0)
    bins = max(1, -(-len(p) // 256))
    edges = np.arange(0, len(p), bins)
    mass = np.add.reduceat(p, edges)
    weighted = np.add.reduceat(p * (first + np.arange(len(p))), edges)
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = step * np.where(mass > 0, weighted / mass, first + edges)
        coarse = (losses, np.log(mass))
    return _Leaf(first, p, infinite, step, coarse)


def _reach(curve: Callable[[Array], Array], floor: float, tail: float) -> float:
    """A loss beyond which the divergence is at most floor + tail."""

    def excess(x: float) -> float:
        return float(curve(np.asarray(x))) - floor - tail

    if excess(0.0) <= 0:
        return 0.0
    high = expand(excess, 1e-6, 2.0, 1e9)
    assert high is not None
    low = high / 2 if high > 1e-6 else 0.0
    for _ in range(6):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


@dataclass(frozen=True)
class _Span:
    """How far the grid of one pair must reach on both sides."""

    pair: Pair
    above: float
    below: float


def _span(pair: Pair, tail: float) -> _Span:
    at_infinity = float(pair.below(np.asarray(1e9)))
    return _Span(pair, _reach(pair.above, pair.infinite_mass, tail), _reach(pair.below, at_infinity, tail))


def _connect_the_dots(span: _Span, step: float) -> _Leaf:
    """The smallest pair with losses on the grid whose divergence is at least the pair's at every grid point.

    With U_k = H(e^{kh}) the mass under P at loss kh is (U_{k+1}-U_k)/(e^h - 1) + (U_{k-1}-U_k)/(1 - e^-h); for negative
    losses the same holds for the reversed pair, times e^{kh}.
    """
    high, low = max(1, math.ceil(span.above / step)), max(1, math.ceil(span.below / step))
    up = span.pair.above(step * np.arange(high + 1, dtype=float))
    down = span.pair.below(step * np.arange(low + 1, dtype=float))
    wide, narrow = math.expm1(step), -math.expm1(-step)
    rises, falls = np.diff(up, append=up[-1]), np.diff(down, append=down[-1])
    p = np.empty(low + 1 + high)
    p[low + 1 :] = rises[1:] / wide - rises[:-1] / narrow
    p[:low] = ((falls[1:] / wide - falls[:-1] / narrow) * np.exp(-step * np.arange(1, low + 1)))[::-1]
    p[low] = 1.0 + rises[0] / wide - (down[0] - math.exp(-step) * down[1]) / narrow
    return _make_leaf(-low, p, float(up[-1]), step)


def _rounded(span: _Span, step: float) -> _Leaf:
    """The loss rounded to the nearest grid point with its mean kept by moving a share of all mass one step.

    Mass beyond the grid is moved down: to its end above, to minus infinity (left out) below.
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
    share = (mean - _mean_loss(span, step)) / (step * max(float(p.sum()), 1e-300))
    p = np.pad(p, 1)
    moved = np.roll(p, -1 if share > 0 else 1) * min(abs(share), 1.0)
    return _make_leaf(-low - 1, p * (1 - min(abs(share), 1.0)) + moved, span.pair.infinite_mass, step)


def _mean_loss(span: _Span, step: float) -> float:
    """E_P[L; L finite] = int_0^inf H_{e^x}(P||Q) - infinite mass + e^-x H_{e^x}(Q||P) dx, by Gauss on grid cells."""
    nodes, weights = np.polynomial.legendre.leggauss(3)

    def integral(curve: Callable[[Array], Array], reach: float) -> float:
        cells = max(1, min(math.ceil(reach / step), 20_000))
        width = math.ceil(reach / step) * step / cells if reach > 0 else 0.0
        x = (np.arange(cells)[:, None] + 0.5 * (nodes + 1)) * width
        return float(np.sum(curve(x) * weights) * width / 2)

    pair = span.pair
    finite = integral(lambda x: pair.above(x) - pair.infinite_mass, span.above)
    return finite + integral(lambda x: np.exp(-x) * pair.below(x), span.below)


# --- the composition ------------------------------------------------------------------------------

_Complex = NDArray[np.complex128]


@dataclass(frozen=True)
class _Grid:
    """The tree with every pair on a grid."""

    count: int
    leaf: _Leaf | None
    runs: Runs | None
    inner: tuple[_Grid, ...]

    def log_mgf(self, tilt: float) -> float:
        return self.count * self._one(lambda g: g.log_mgf(tilt), lambda leaf: leaf.log_mgf(tilt))

    def log_finite(self) -> float:
        """log of the probability that the loss is finite."""
        return self.count * self._one(
            lambda g: g.log_finite(), lambda leaf: math.log1p(-leaf.infinite) if leaf.infinite < 1 else -math.inf
        )

    def _one(self, of_grid: Callable[[_Grid], float], of_leaf: Callable[[_Leaf], float]) -> float:
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

    def transform(self, tilt: float, size: int) -> _Complex:
        """The characteristic function of the tilted, normalised loss."""
        if self.leaf is not None:
            leaf = self.leaf
            with np.errstate(divide="ignore"):
                weights = np.exp(np.log(leaf.p) + tilt * leaf.losses - leaf.log_mgf(tilt))
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
    with np.errstate(divide="ignore", under="ignore"):
        size = np.exp(count * np.log(np.abs(base)))
    return np.asarray(size * np.exp(1j * (count * np.angle(base))))


def _steps(nodes: tuple[_Node, ...]) -> float:
    """The expected number of elementary releases."""
    return math.fsum(
        n.count * (1.0 if n.runs is None else n.runs.mean * _steps(n.inner)) for n in nodes
    )


class _Composition:
    """A tree on a grid fit for answers at about one delta."""

    def __init__(self, nodes: tuple[_Node, ...], delta: float, *, lower: bool = False) -> None:
        self.lower = lower
        self.steps = _steps(nodes)
        self._discretise = _rounded if lower else _connect_the_dots
        tail = max(delta, 1e-300) * 1e-6 / max(self.steps, 1.0)
        self._spans = {id(n.pair): _span(n.pair, tail) for n in _leaves(nodes) if n.pair is not None}
        self._nodes = nodes
        self.step = self._choose_step()
        self._build()

    def _build(self) -> None:
        self.grids = tuple(self._grid(n, self.step) for n in self._nodes)
        self.infinite = -math.expm1(math.fsum(g.log_finite() for g in self.grids))

    def _grid(self, node: _Node, step: float) -> _Grid:
        leaf = None if node.pair is None else self._discretise(self._spans[id(node.pair)], step)
        return _Grid(node.count, leaf, node.runs, tuple(self._grid(n, step) for n in node.inner))

    def _choose_step(self) -> float:
        """The largest step that adds little to the variance of the sum, on which the main atom lies."""
        reach = max((max(s.above, s.below) for s in self._spans.values()), default=0.0)
        if reach == 0 or self.steps == 0:
            return 1.0
        weights = _weights(self._nodes)
        step = reach / 256
        while True:
            variance = math.fsum(
                count * _connect_the_dots(self._spans[key], step).moments()[1] for key, count in weights.items()
            )
            wanted = _RESOLUTION * math.sqrt(variance / self.steps)
            if step <= 1.2 * wanted or step < reach * 4 / MAX_POINTS:
                break
            step = max(wanted, step / 8)
        if self.lower:
            step = max(step / _LOWER_REFINEMENT, reach * 4 / MAX_POINTS)
        atoms = [s.pair.atom for s in self._spans.values() if s.pair.atom > 0]
        return max(atoms) / math.ceil(max(atoms) / step) if atoms else step

    # -- answers

    def delta(self, epsilon: float) -> float:
        """The bound on delta at epsilon."""
        if self.infinite >= 1:
            return 1.0
        tilt = self._tilt(lambda k, t: k - t * epsilon)
        tail = self._tail(tilt)
        return min(max(self.infinite + tail.delta_at(epsilon), 0.0), 1.0)

    def epsilon(self, delta: float) -> float:
        """The bound on epsilon at delta."""
        if not self.grids or self.steps == 0:
            return 0.0
        slack = delta - self.infinite
        shift = 0.0
        if self.lower:
            slack, shift = delta * (1 + _HOEFFDING_SHARE) - self.infinite, self._hoeffding(delta)
        if slack <= 0:
            return math.inf
        tilt = self._tilt(lambda k, t: (k - math.log(slack)) / t)
        for _ in range(12):
            found = self._tail(tilt).epsilon_at(slack)
            if found is not None:
                return max(found - shift, 0.0)
            tilt *= 0.5  # the answer lies below the window: centre it lower
        return 0.0 if self.lower else max(self._tail(0.0).first_loss, 0.0)

    def _hoeffding(self, delta: float) -> float:
        """How much less than its rounded version the true loss may be, but for probability share * delta."""
        log_inverse = math.log(2 / (_HOEFFDING_SHARE * delta))
        most = _most_steps(self._nodes, log_inverse)
        return 2 * self.step * math.sqrt(most * log_inverse / 2)

    def _tilt(self, objective: Callable[[Array, Array], Array]) -> float:
        """The tilt that minimises a Chernoff exponent; any tilt is sound, a good one keeps the digits."""
        scale = max(math.sqrt(max(self._variance(), 0.0)), self.step)

        def value(log_tilts: Array) -> Array:
            tilts = np.exp(log_tilts)
            with np.errstate(invalid="ignore", over="ignore"):
                rough = np.sum([g.rough_log_mgf(tilts) for g in self.grids], axis=0)
                return np.asarray(objective(rough, tilts))

        best, _ = zoom_minimum(value, math.log(1e-3 / scale), math.log(300 / scale), points=41, zooms=3)
        tilt = math.exp(best)
        while math.isinf(self._log_mgf(tilt)):
            tilt *= 0.9
        return tilt

    def _variance(self) -> float:
        """A rough variance of the sum, by differences of the log moment generating function."""
        spread = max(max(s.above, s.below) for s in self._spans.values())
        t = 1e-2 / max(spread * math.sqrt(max(self.steps, 1.0)), self.step)
        k = np.sum([g.rough_log_mgf(np.array([-t, 0.0, t])) for g in self.grids], axis=0)
        return float(k[0] - 2 * k[1] + k[2]) / (t * t) if np.all(np.isfinite(k)) else spread**2

    def _log_mgf(self, tilt: float) -> float:
        return math.fsum(g.log_mgf(tilt) for g in self.grids)

    def _tail(self, tilt: float) -> _Tail:
        """The law of the sum near the point that the tilt looks at."""
        while True:
            base = self._log_mgf(tilt)
            low, high = self._window(tilt, base)
            size = _fft_size(math.ceil((high - low) / self.step) + 2)
            if size <= MAX_POINTS:
                break
            self.step *= 1.01 * size / MAX_POINTS
            self._build()
        first = math.floor(low / self.step)
        transform = np.ones(size // 2 + 1, dtype=complex)
        for g in self.grids:
            transform *= g.transform(tilt, size)
        mass = np.roll(np.fft.irfft(transform, size), -(first % size))
        # Each of the steps multiplies by a transform that carries a few units of round-off.
        noise = 2.0**-52 * 4 * math.log2(size) * (self.steps + 4)
        floor = noise * float(np.mean(np.abs(transform)))
        return _Tail(self.step, first, mass, tilt, base, floor, math.exp(-_LOG_OUTSIDE), self.lower)

    def _window(self, tilt: float, base: float) -> tuple[float, float]:
        """Losses outside of which the tilted law has mass at most exp(-_LOG_OUTSIDE) on each side."""
        width = self.step + math.sqrt(max(self._tilted_variance(tilt), 0.0))
        high, low = math.inf, -math.inf
        for factor in (0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 8.5, 12.0, 20.0):
            t = factor / width
            high = min(high, (self._log_mgf(tilt + t) - base + _LOG_OUTSIDE) / t)
            low = max(low, -(self._log_mgf(tilt - t) - base + _LOG_OUTSIDE) / t)
        return low, high

    def _tilted_variance(self, tilt: float) -> float:
        t = 0.05 * tilt + 1e-3 / math.sqrt(max(self._variance(), self.step**2))
        for _ in range(60):
            k = np.sum([g.rough_log_mgf(np.array([tilt - t, tilt, tilt + t])) for g in self.grids], axis=0)
            if np.all(np.isfinite(k)):
                return float(k[0] - 2 * k[1] + k[2]) / (t * t)
            t /= 2
        return self._variance()


class _Tail:
    """Tail sums of a tilted law: delta at any loss of the window, epsilon at any delta in it."""

    def __init__(
        self, step: float, first: int, mass: Array, tilt: float, log_norm: float, floor: float,
        outside: float, lower: bool,
    ) -> None:
        self._index = first + np.arange(len(mass))
        self._step = step
        centre = step * (first + len(mass) // 2)
        self._centre = centre
        x = step * self._index - centre
        mass = np.maximum(mass - floor, 0.0) if lower else np.maximum(mass, 0.0) + floor
        with np.errstate(over="ignore"):
            p = mass * np.exp(-tilt * x)
            q = p * np.exp(-x)
        end = outside * math.exp(-tilt * float(x[-1]))
        self._p = np.append(np.cumsum(p[::-1])[::-1], 0.0) + (0.0 if lower else end)
        self._q = np.append(np.cumsum(q[::-1])[::-1], 0.0)
        # Mass that wrapped around may have landed anywhere: the lower bound gives it back.
        self._back = 2 * outside * np.exp(-tilt * x) if lower else np.zeros_like(x)
        self._log_scale = log_norm - tilt * centre

    @property
    def first_loss(self) -> float:
        return float(self._step * self._index[0])

    def delta_at(self, epsilon: float) -> float:
        i = math.floor(epsilon / self._step) + 1 - int(self._index[0])
        i = min(max(i, 0), len(self._index))
        shifted = epsilon - self._centre
        value = self._p[i] - math.exp(min(shifted, 700.0)) * self._q[i] - self._back[min(i, len(self._back) - 1)]
        return float(value * math.exp(min(self._log_scale, 700.0))) if value > 0 else 0.0

    def epsilon_at(self, delta: float) -> float | None:
        """The point where delta is reached; None if it lies below the window."""
        target = math.exp(min(math.log(delta) - self._log_scale, 700.0))
        x = self._step * self._index - self._centre
        with np.errstate(over="ignore", invalid="ignore"):
            at_points = self._p[1:] - np.exp(x) * self._q[1:] - self._back
        small = np.flatnonzero(~(at_points > target))
        if len(small) == 0:
            return math.inf
        i = int(small[0])
        if i == 0:
            return None
        # Between points i-1 and i: p - e^eps q falls from above the target to at most it.
        room = self._p[i] - self._back[i - 1] - target
        if room <= 0 or self._q[i] <= 0:
            return float(x[i] + self._centre) if not room <= 0 else float(x[i - 1] + self._centre)
        inside = math.log(room / self._q[i])
        return float(min(max(inside, x[i - 1]), x[i]) + self._centre)


def _leaves(nodes: tuple[_Node, ...]) -> list[_Node]:
    return [leaf for n in nodes for leaf in ([n] if n.pair is not None else _leaves(n.inner))]


def _weights(nodes: tuple[_Node, ...], factor: float = 1.0) -> dict[int, float]:
    """Expected number of applications of each pair, by identity."""
    found: dict[int, float] = {}
    for n in nodes:
        if n.pair is not None:
            found[id(n.pair)] = found.get(id(n.pair), 0.0) + factor * n.count
        else:
            assert n.runs is not None
            for key, value in _weights(n.inner, factor * n.count * n.runs.mean).items():
                found[key] = found.get(key, 0.0) + value
    return found


def _most_steps(nodes: tuple[_Node, ...], log_inverse: float) -> float:
    """A number of releases exceeded with probability at most exp(-log_inverse), by Chernoff on the rounds."""

    def log_growth(parts: tuple[_Node, ...], t: Array) -> Array:
        total = np.zeros_like(t)
        for n in parts:
            total = total + n.count * (t if n.runs is None else n.runs.log_pgf(log_growth(n.inner, t)))
        return total

    if all(n.runs is None for n in nodes):
        return _steps(nodes)
    return zoom_minimum(lambda s: (log_growth(nodes, np.exp(s)) + log_inverse) / np.exp(s), -20.0, 5.0, points=129)[1]


def _fft_size(points: int) -> int:
    """The next 2^k or 3 * 2^k, at least 64."""
    size = 64
    while size < points:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size
