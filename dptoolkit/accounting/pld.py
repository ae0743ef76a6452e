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

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit.accounting import gaussian as gaussian_profile
from dptoolkit.accounting import objective, profiles, sampling, selection
from dptoolkit.accounting._numeric import Array, log_sum_exp, zoom_minimum
from dptoolkit.accounting.events import (
    POISSON,
    ApproxDp,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMax,
    ObjectivePerturbation,
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
# What the grid may add to epsilon, relative to it (or to the spread of the loss, if that is more): it grows with the
# square of the step for the upper bound, with the step for the lower one.
_TOLERANCE = 1e-4
_LOWER_TOLERANCE = 1e-3
# -log of the mass that may lie outside the window under the tilted law; twice that for the lower bound, where such mass
# does not just add but must be given back.
_LOG_OUTSIDE = 18.0
# Terms this many logs below the scale of a sum are lost to underflow.
_LARGEST_LOG = 600.0
# Shares of the tilt at which the law of the sum is looked at, one after the other, while the answer lies lower.
_TILTS = (*(0.5**k for k in range(12)), 0.0)
# Releases beyond which round-off is all there is, and the round-off from which on another method may do better.
_MOST_STEPS = 1e13
_SHARP_ROUND_OFF = 1e-4
# Share of delta that the lower bound gives to Hoeffding's inequality.
_HOEFFDING_SHARE = 1e-3


class Bracket(NamedTuple):
    """No analysis can prove less than ``lower``; ``upper`` holds."""

    lower: float
    upper: float


class Answer(NamedTuple):
    """A sound upper bound, and whether the grid was fine enough for it to be as good as the pairs allow."""

    value: float
    sharp: bool


def epsilon(event: Event, delta: float) -> float:
    """The sound upper bound on epsilon at ``delta``."""
    return epsilon_answer(event, delta).value


def delta(event: Event, epsilon: float) -> float:
    """The sound upper bound on delta at ``epsilon``; at ``epsilon(event, d)`` it is at most d."""
    return delta_answer(event, epsilon).value


def epsilon_answer(event: Event, delta: float) -> Answer:
    """``epsilon``, and whether the grid was fine enough."""
    found = Answer(0.0, True)
    for tree in _directions(event, dominating):
        # Backwards the loss of a subsampled step is at most -log(1 - rate): often no need to look.
        if _largest_loss(tree, delta) > found.value:
            found = _worse(found, _epsilon_of_tree(tree, delta))
    return found


def delta_answer(event: Event, epsilon: float) -> Answer:
    """``delta``, and whether the grid was fine enough."""
    found = Answer(0.0, True)
    for tree in _directions(event, dominating):
        # What cannot exceed the direction already known need not be chased to its own tiny value.
        if found.value == 0 or _largest_loss(tree, found.value) > epsilon:
            found = _worse(found, _delta_of_tree(tree, epsilon, enough=found.value))
    return found


def _worse(first: Answer, second: Answer) -> Answer:
    return Answer(max(first.value, second.value), first.sharp and second.sharp)


def divergences(event: Event) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """delta as a function of epsilon for each order of the dominating neighbours; the larger is ``delta``."""
    trees = _directions(event, dominating)
    forward, backward = trees[0], trees[-1]

    def of(tree: tuple[_Node, ...]) -> Callable[[float], float]:
        return lambda epsilon: _delta_of_tree(tree, epsilon, enough=0.0).value

    return of(forward), of(backward)


def lower_epsilon(event: Event, delta: float) -> float:
    """A lower bound on epsilon at ``delta``: some neighbours attain it, so no analysis can prove less."""
    return max(_lower_epsilon_of_tree(tree, delta) for tree in _directions(event, attained))


def bracket(event: Event, delta: float) -> Bracket:
    """Lower and upper bound on epsilon at ``delta``."""
    return Bracket(lower_epsilon(event, delta), epsilon(event, delta))


def _largest_loss(tree: tuple[_Node, ...], delta: float) -> float:
    """A loss that the sum exceeds with less than delta, by adding the largest ones; infinite if there is none."""
    if any(n.pair is None for n in tree) or delta == 0:
        return math.inf
    tail = delta * 1e-6 / max(_steps(tree), 1.0)
    pairs = [(n.count, n.pair) for n in tree if n.pair is not None]
    if math.fsum(count * (pair.infinite_mass + tail) for count, pair in pairs) > delta:
        return math.inf
    return math.fsum(count * _span(pair, tail).above for count, pair in pairs)


def _total_variation(tree: tuple[_Node, ...]) -> float:
    """A bound on delta at epsilon 0: the expected number of releases, each times its total variation distance."""
    return math.fsum(
        n.count * (n.runs.mean * _total_variation(n.inner) if n.runs is not None else n.variation) for n in tree
    )


def _lower_epsilon_of_tree(tree: tuple[_Node, ...], delta: float) -> float:
    if _total_variation(tree) <= delta or delta == 0:
        return 0.0
    return _Composition(tree, delta, lower=True).lower_epsilon(delta)


# Both questions, epsilon at a delta and delta at an epsilon, are answered by the same curves, one for every decade of
# delta, each on the grid that is best for the middle of its decade: so the one answer is the inverse of the other.
_LAST_DECADE = 300
# Near the smaller end of a decade (in decades) the next curve is asked as well: no step up from one to the other.
_NEAR_END = 0.48


def _place(delta: float) -> tuple[int, float]:
    """The decade of a delta, and where in it the delta lies, from -1/2 (large) to 1/2."""
    exponent = -math.log10(delta) if delta > 0 else math.inf
    decade = min(max(round(min(exponent, 1e3)), 1), _LAST_DECADE)
    return decade, exponent - decade


def _epsilon_of_tree(tree: tuple[_Node, ...], delta: float) -> Answer:
    if _total_variation(tree) <= delta:
        return Answer(0.0, True)
    if delta == 0:
        return Answer(math.inf, True)
    decade, place = _place(delta)
    answer = _Composition(tree, 10.0**-decade).epsilon(delta)
    if place > _NEAR_END and decade < _LAST_DECADE:
        end = min(10.0 ** -(decade + 0.5), delta)
        other = _Composition(tree, 10.0 ** -(decade + 1)).epsilon(end)
        answer = Answer(min(answer.value, other.value), answer.sharp and other.sharp)
    return answer


def _delta_of_tree(tree: tuple[_Node, ...], epsilon: float, enough: float) -> Answer:
    """delta at epsilon from the curve of its own decade, to which the others lead; at most ``enough`` is enough."""
    if not tree or math.isinf(epsilon):
        return Answer(0.0, True)
    best, sharp = min(_total_variation(tree), 1.0), True
    decade, seen = _first_decade(tree, epsilon), set[int]()
    while decade not in seen and best > enough:
        seen.add(decade)
        composition = _Composition(tree, 10.0**-decade)
        answer = composition.delta(epsilon)
        best, sharp = min(best, answer.value), sharp and answer.sharp
        decade = _next_decade(decade, answer.value, composition.infinite)
    return Answer(best, sharp)


def _first_decade(tree: tuple[_Node, ...], epsilon: float) -> int:
    """Where to begin: the middle of the range, or the end if no loss reaches epsilon."""
    return _LAST_DECADE if _largest_loss(tree, 10.0**-_LAST_DECADE) <= epsilon else 10


def _next_decade(decade: int, value: float, infinite: float) -> int:
    """The decade to look at after one gave a value of which ``infinite`` is mass at infinity."""
    if infinite >= _largest_delta(decade):
        return _place(infinite)[0]
    found, place = _place(value)
    if found == decade:
        return min(found + 1, _LAST_DECADE) if place > _NEAR_END else found
    # What is cut off a grid is a millionth of its decade: a value made of that says only that delta is smaller.
    return min(max(2 * decade, found), _LAST_DECADE) if found > decade and infinite > 0.1 * value else found


def _largest_delta(decade: int) -> float:
    return min(10.0 ** (0.5 - decade), 1.0)


# --- events to pairs ------------------------------------------------------------------------------


def dominating(event: Event) -> Pair:
    """The pair that dominates one application of an elementary event (record in the first place)."""
    if isinstance(event, Subsampled):
        return _sampled(event, dominating, sound=True)
    if isinstance(event, ExponentialMechanism):
        return _finite(event.epsilon, profiles.bounded_range)
    if isinstance(event, NoisyMax):
        return _finite(event.epsilon, profiles.randomized_response)
    if isinstance(event, ObjectivePerturbation):
        return objective.pair(objective.of_event(event))
    return _explicit(event)


def attained(event: Event) -> Pair:
    """A pair that some neighbours attain for an elementary event."""
    if isinstance(event, Subsampled):
        return _sampled(event, attained, sound=False)
    if isinstance(event, ExponentialMechanism):
        return _finite(event.epsilon, lambda e: profiles.randomized_response(e / 2))
    if isinstance(event, NoisyMax):
        return _finite(selection.two_candidates(event.epsilon, event.noise), profiles.randomized_response)
    if isinstance(event, ObjectivePerturbation):
        return objective.floor_pair(objective.of_event(event))
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
    base, rate = as_single(event), event.rate
    if event.scheme == POISSON and event.adjacency is Adjacency.REPLACE_ONE and 0 < rate < 1:
        if isinstance(base, Gaussian):
            mu = _inverse(base.noise_multiplier)
            return _finite(mu, lambda m: sampling.poisson_replace_one_gaussian(m, rate), infinite_mass=rate)
        base = base if sound else _to_the_centre(base)
    if sound and event.adjacency is Adjacency.REPLACE_ONE:
        return sampling.replace_one(pair_of(base), rate)
    # Without replacement, all other records equal to the new one: only the old record's presence is seen.
    return sampling.poisson_zero_out(pair_of(base), rate)


def _to_the_centre(event: Event) -> Event:
    """A replacement by a record that contributes 0, the centre of the ball: half the sensitivity."""
    if isinstance(event, (Laplace, ObjectivePerturbation)):
        return dataclasses.replace(event, noise_multiplier=2 * event.noise_multiplier)
    if isinstance(event, TwoSidedGeometric):
        half = event.sensitivity // 2
        return TwoSidedGeometric(event.epsilon * half / event.sensitivity, max(half, 1))
    if isinstance(event, (ExponentialMechanism, NoisyMax)):
        return dataclasses.replace(event, epsilon=event.epsilon / 2)
    return event


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
    mu = gaussian_profile.compose([(_inverse(e.noise_multiplier), c) for e, c in gaussians])
    return Gaussian(_inverse(mu))


def _inverse(noise: float) -> float:
    return math.inf if noise == 0 else 1 / noise


def _finite(parameter: float, make: Callable[[float], Pair], infinite_mass: float = 1.0) -> Pair:
    if math.isinf(parameter):
        return profiles.non_private(infinite_mass)
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
    def variation(self) -> float:
        """The total variation distance of the pair."""
        assert self.pair is not None
        return float(self.pair.above(np.zeros(1))[0])

    @property
    def releases(self) -> bool:
        """Whether the outputs differ at all: a total variation of 0 is no release."""
        return bool(self.inner) if self.pair is None else self.variation > 0

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
    return tuple(n for n in nodes if n.releases)


# --- one pair on the grid -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Leaf:
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


def _make_leaf(first: int, p: Array, infinite: float, step: float) -> _Leaf:
    p = np.maximum(p, 0.0)
    losses = step * (first + np.arange(len(p), dtype=float))
    mean = float(p @ losses)
    edges = _bin_edges(first, len(p))
    mass, weighted = np.add.reduceat(p, edges), np.add.reduceat(p * losses, edges)
    with np.errstate(divide="ignore", invalid="ignore"):
        coarse = (np.where(mass > 0, weighted / mass, losses[edges]), np.log(mass))
        # The last term is for the mass that is missing here: mean^2 + variance is never below the second moment.
        variance = float(p @ (losses - mean) ** 2) + max(1 - float(p.sum()), 0.0) * mean**2
        return _Leaf(first, losses, np.log(p), infinite, mean, variance, coarse)


def _bin_edges(first: int, size: int) -> NDArray[np.intp]:
    """Bins that grow with the distance from loss 0, where most of the mass of a rare event is."""
    away = np.geomspace(1, size, 64).astype(int)
    edges = np.concatenate([-first - away, [-first], away - first])
    return np.unique(np.clip(edges, 0, size - 1))


# Losses at which the reach of a grid is sought; a pair that needs more than the last has infinite epsilon here.
_REACHES = np.geomspace(1e-12, 1e9, 500)


def _reach(values: Array, tail: float) -> float:
    """The first of the losses from which on a decreasing function is at most ``tail``."""
    beyond = np.flatnonzero(values <= tail)
    return float(_REACHES[beyond[0] if len(beyond) else -1])


@dataclass(frozen=True)
class _Span:
    """How far the grid of one pair must reach on both sides."""

    pair: Pair
    above: float
    below: float


def _span(pair: Pair, tail: float) -> _Span:
    """Beyond it lie at most ``tail`` of divergence above, and of divergence times exp(-loss), which is mass, below."""
    above, below = pair.above(_REACHES), pair.below(_REACHES)
    at_infinity = float(below[-1])
    return _Span(
        pair, _reach(above - pair.infinite_mass, tail), _reach(np.exp(-_REACHES) * (below - at_infinity), tail)
    )


def _connect_the_dots(span: _Span, step: float) -> _Leaf:
    """The smallest pair with losses on the grid whose divergence is at least the pair's at every grid point.

    With U_k = H(e^{kh}) the mass under P at loss kh is (U_{k+1}-U_k)/(e^h - 1) + (U_{k-1}-U_k)/(1 - e^-h); for negative
    losses the same holds for the reversed pair, times e^{kh}.
    """
    high, low = max(1, math.ceil(span.above / step)), max(1, math.ceil(span.below / step))
    up = span.pair.above(step * np.arange(high + 1, dtype=float))
    down = span.pair.below(step * np.arange(low + 1, dtype=float))
    # Beyond e^700 the first is as good as infinite; nothing is divided by more.
    wide, narrow = math.expm1(min(step, 700.0)), -math.expm1(-step)
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
    share = (mean - _mean_loss(span)) / (step * max(float(p.sum()), 1e-300))
    p = np.pad(p, 1)
    moved = np.roll(p, -1 if share > 0 else 1) * min(abs(share), 1.0)
    return _make_leaf(-low - 1, p * (1 - min(abs(share), 1.0)) + moved, span.pair.infinite_mass, step)


def _mean_loss(span: _Span) -> float:
    """E_P[L; L finite] = int_0^inf H_{e^x}(P||Q) - infinite mass + e^-x H_{e^x}(Q||P) dx, from below."""
    pair = span.pair
    if pair.mean is not None:
        return pair.mean

    def total(nodes: int) -> float:
        above = _integral(lambda x: pair.above(x) - pair.infinite_mass, span.above, nodes)
        return above + _integral(lambda x: np.exp(-x) * pair.below(x), span.below, nodes)

    # The difference of two rules is more than the error of the better one, also where the curve has a corner.
    fine = total(8)
    return fine - abs(fine - total(4))


def _integral(curve: Callable[[Array], Array], reach: float, nodes: int) -> float:
    """Gauss's rule on cells that grow with the loss: the curve may bend at 1e-9 and reach to 10."""
    edges = np.concatenate([[0.0], reach * np.geomspace(1e-15, 1.0, 700)])
    points, weights = np.polynomial.legendre.leggauss(nodes)
    widths = np.diff(edges)
    x = edges[:-1, None] + widths[:, None] * 0.5 * (points + 1)
    return float(np.sum(curve(x) * (0.5 * widths[:, None] * weights)))


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
        log_one = self._one(
            lambda g: g.log_finite(), lambda leaf: math.log1p(-leaf.infinite) if leaf.infinite < 1 else -math.inf
        )
        # Never more than certain, whatever a generating function rounds to.
        return self.count * min(log_one, 0.0)

    def steps(self, tilt: float) -> float:
        """A bound on the expected number of elementary releases after tilting."""
        if self.leaf is not None:
            return float(self.count)
        assert self.runs is not None
        log_z = math.fsum(g.log_mgf(tilt) for g in self.inner)
        return self.count * self.runs.tilted_mean(log_z) * math.fsum(g.steps(tilt) for g in self.inner)

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
    # Few frequencies survive many steps: the others are far below the round-off that is accounted for.
    alive = log_size > -200
    power = np.zeros_like(base)
    power[alive] = np.exp(log_size[alive] + 1j * (count * np.angle(base[alive])))
    return power


def _steps(nodes: tuple[_Node, ...]) -> float:
    """The expected number of elementary releases."""
    return math.fsum(n.count * (1.0 if n.runs is None else n.runs.mean * _steps(n.inner)) for n in nodes)


def _log_share(tilt: Array) -> Array:
    """log of the largest (1 - e^-u) e^(-tilt u): what delta is of exp(log_mgf - tilt epsilon), at most."""
    return -tilt * np.log1p(1 / tilt) - np.log1p(tilt)


class _View(NamedTuple):
    """Where the answer lies: the tilt for it, and the size that errors are measured against."""

    tilt: float
    size: float


class _Window(NamedTuple):
    """Losses that a grid must hold, and -log of a bound on the tilted mass above them."""

    low: float
    high: float
    log_outside: float


class _Sum:
    """The sum of all losses, with every loss on a grid of one step."""

    def __init__(self, nodes: tuple[_Node, ...], step: float, leaf_of: Callable[[Pair, float], _Leaf]) -> None:
        self.step = step
        self.steps = _steps(nodes)
        self.grids = tuple(_grid(n, step, leaf_of) for n in nodes)
        self.infinite = -math.expm1(math.fsum(g.log_finite() for g in self.grids))
        means, variances = zip(*(g.moments() for g in self.grids), strict=True)
        self.mean, self.spread = math.fsum(means), math.sqrt(math.fsum(variances)) or step

    def log_mgf(self, tilt: float) -> float:
        return math.fsum(g.log_mgf(tilt) for g in self.grids)

    def rough_log_mgf(self, tilts: Array) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(np.sum([g.rough_log_mgf(tilts) for g in self.grids], axis=0))

    def look_at(self, delta: float, reach: float) -> _View:
        """The tilt whose Chernoff bound on epsilon is smallest; any tilt is sound, a good one keeps the digits."""

        def value(log_tilts: Array) -> Array:
            tilts = np.exp(log_tilts)
            return (self.rough_log_mgf(tilts) + _log_share(tilts) - math.log(delta)) / tilts

        low, high = math.log(1e-3 / max(self.spread, reach)), math.log(300 / self.spread)
        best, exponent = zoom_minimum(value, low, high, points=33, zooms=3)
        return _View(self.permitted(math.exp(best)), max(exponent, self.spread))

    def permitted(self, tilt: float) -> float:
        """The tilt, or less where the moment generating function is infinite."""
        smallest = 1e-12 * tilt
        while not math.isfinite(self.log_mgf(tilt)):
            tilt *= 0.9
            if tilt <= smallest:
                raise _too_many(self.steps)
        return tilt

    def tail(self, tilt: float, *, lower: bool) -> _Tail | None:
        """The law of the sum near the point that the tilt looks at; None if the grid would be too large."""
        base = self.log_mgf(tilt)
        window = self._window(tilt, base, lower=lower)
        points = (window.high - window.low) / self.step + 2
        if not math.isfinite(points):
            raise _too_many(self.steps)
        # The lower bound is for comparison: it need not take seconds.
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
        return _Tail(
            self.step, first, mass, tilt, log_norm, floor, math.exp(-window.log_outside), self.infinite, lower
        )

    def round_off(self, tilt: float, size: int) -> float:
        """Each of the steps multiplies by a transform that carries a few units of round-off."""
        steps = max(self.steps, math.fsum(g.steps(tilt) for g in self.grids))
        return 2.0**-52 * 4 * math.log2(size) * (steps + 4)

    def _window(self, tilt: float, base: float, *, lower: bool) -> _Window:
        """Where the tilted law has its mass, by Chernoff.

        A unit of tilted mass at distance d above the answer weighs exp(-tilt d) of one at the answer, so mass below the
        window, which lands at its upper end, may be more than mass above it, which lands at the lower one.
        """
        centre, spread = self._tilted_moments(tilt)
        width = self.step + spread
        # Best for a normal law is about 6 to 8, for an exponential tail just below 1.
        factors = [8.0, 5.0, 2.5, 0.9]
        outside = 2 * _LOG_OUTSIDE if lower else _LOG_OUTSIDE
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


def _too_many(steps: float) -> UnsupportedEvent:
    return UnsupportedEvent(
        f"the event has about {steps:.2g} releases: must be fewer for method 'pld', whose round-off grows with them. "
        "Use method='rdp'."
    )


def _error(coarse: _Sum, fine: _Sum, tilt: float) -> float:
    """How much the fine grid adds to epsilon: the error is of second order in the step."""
    steep = max(tilt, 1 / fine.spread)
    t = steep if math.isfinite(fine.log_mgf(steep)) else tilt
    return (coarse.log_mgf(t) - fine.log_mgf(t)) / (3 * t)


def _grid(node: _Node, step: float, leaf_of: Callable[[Pair, float], _Leaf]) -> _Grid:
    leaf = None if node.pair is None else leaf_of(node.pair, step)
    return _Grid(node.count, leaf, node.runs, tuple(_grid(n, step, leaf_of) for n in node.inner))


class _Composition:
    """A tree on the coarsest grid that is good at one delta: one curve, read in both directions."""

    def __init__(self, nodes: tuple[_Node, ...], delta: float, *, lower: bool = False) -> None:
        steps = _steps(nodes)
        if steps > _MOST_STEPS:
            raise _too_many(steps)
        self._nodes, self._delta, self._lower, self._sharp = nodes, delta, lower, True
        self._hopeless = delta if lower else min(delta * math.sqrt(10), 1.0)
        tail = delta * 1e-6 / max(steps, 1.0)
        self._spans = {id(n.pair): _span(n.pair, tail) for n in _leaves(nodes) if n.pair is not None}
        self._reach = max(max(s.above, s.below) for s in self._spans.values())
        self._sum, self._view = self._fine_enough()
        if lower:
            step = min(self._sum.step, _LOWER_TOLERANCE * self._view.size / self._hoeffding(1.0, delta))
            self._sum = self._at(self._aligned(max(step, 8 * self._smallest_step)), _rounded)
        self.infinite = self._sum.infinite
        self._at_zero = self.infinite + self._at_most_at_zero()
        self._tails: list[_Tail] = []

    @property
    def _smallest_step(self) -> float:
        return self._reach * 8 / MAX_POINTS

    def _at(self, step: float, discretise: Callable[[_Span, float], _Leaf]) -> _Sum:
        return _Sum(self._nodes, step, lambda pair, h: discretise(self._spans[id(pair)], h))

    def _aligned(self, step: float) -> float:
        """At most ``step``, and such that the main atom lies on the grid."""
        atom = max(s.pair.atom for s in self._spans.values())
        return atom / math.ceil(atom / step) if atom > step else step

    def _fine_enough(self) -> tuple[_Sum, _View]:
        """The sum on a grid whose error, estimated from the grid with twice the step, is within the tolerance."""
        coarse = self._at(self._aligned(self._reach / 256), _connect_the_dots)
        if coarse.infinite >= self._hopeless:
            return coarse, coarse.look_at(self._delta, self._reach)
        while True:
            fine = self._at(coarse.step / 2, _connect_the_dots)
            view = fine.look_at(self._delta, self._reach)
            excess = _error(coarse, fine, view.tilt) / (_TOLERANCE * view.size)
            if excess <= 1 or fine.step <= self._smallest_step:
                self._sharp = excess <= 1
                return fine, view
            shrink = max(0.9 / math.sqrt(excess), 1 / 32) if math.isfinite(excess) else 0.25
            step = max(coarse.step * shrink, 2 * self._smallest_step)
            coarse = fine if shrink > 0.4 else self._at(self._aligned(step), _connect_the_dots)

    def _tail(self, index: int) -> _Tail:
        """The law of the sum seen with less and less tilt: each reaches further down than the one before."""
        while len(self._tails) <= index:
            tilt = self._view.tilt * _TILTS[len(self._tails)]
            tail = self._sum.tail(self._sum.permitted(tilt), lower=self._lower)
            while tail is None:
                self._sharp = False
                self._sum = self._at(self._sum.step * 1.5, _rounded if self._lower else _connect_the_dots)
                if self._sum.step > 1e3 * self._reach:
                    raise _too_many(self._sum.steps)
                tail = self._sum.tail(self._sum.permitted(tilt), lower=self._lower)
            self._sharp = self._sharp and self._sum.round_off(tilt, 2**16) < _SHARP_ROUND_OFF
            self._tails.append(tail)
        return self._tails[index]

    def delta(self, epsilon: float) -> Answer:
        """The bound on delta at epsilon."""
        if self.infinite >= self._hopeless:
            return Answer(1.0, True)
        value = self._value(epsilon)
        return Answer(value, self._sharp)

    def _value(self, epsilon: float) -> float:
        tail, missed = self._tail(0), 0.0
        for index in range(1, len(_TILTS)):
            if tail.first_loss <= epsilon:
                break
            tail = self._tail(index)
        else:
            # Without tilt the mass below the window is known to be small; it counts in full.
            missed = math.exp(-_LOG_OUTSIDE) if tail.first_loss > epsilon else 0.0
        return min(tail.infinite + tail.delta_at(epsilon) + missed, self._at_zero, 1.0)

    def epsilon(self, delta: float) -> Answer:
        """The smallest epsilon found where the bound on delta is at most ``delta``."""
        if self.infinite >= min(delta, self._hopeless):
            return Answer(math.inf, True)
        if self._at_zero <= delta:
            return Answer(0.0, self._sharp)
        # If the answer lies below the window, the window's first loss is a bound, and a smaller tilt centres it lower.
        best = math.inf
        for index in range(len(_TILTS)):
            tail = self._tail(index)
            slack = delta - tail.infinite
            found = tail.epsilon_at(slack) if slack > 0 else math.inf
            best = min(best, tail.first_loss if found is None else found)
            if found is not None:
                break
        return Answer(self._settled(max(best, 0.0), delta), self._sharp)

    def _settled(self, epsilon: float, delta: float) -> float:
        """The first of a few points from epsilon on where the curve itself is at most delta: rounding ends here."""
        step = math.ulp(epsilon)
        while math.isfinite(epsilon) and self._value(epsilon) > delta:
            if step > epsilon + 1e-6:
                return math.inf
            epsilon, step = epsilon + step, 2 * step
        return epsilon

    def lower_epsilon(self, delta: float) -> float:
        """The bound from below on epsilon at delta."""
        slack = delta * (1 + _HOEFFDING_SHARE) - self.infinite
        if slack <= 0:
            return math.inf
        if self._at_zero <= delta:
            return 0.0
        for index in range(len(_TILTS)):
            found = self._tail(index).epsilon_at(slack)
            if found is not None:
                return max(found - self._hoeffding(self._sum.step, delta), 0.0)
        return 0.0

    def _at_most_at_zero(self) -> float:
        """A bound on delta at epsilon 0 but for the infinite mass: 1 - e^-x <= |x|, whose mean the moments bound."""
        if any(n.runs is not None for n in self._nodes):
            return math.inf
        return math.hypot(self._sum.mean, self._sum.spread)

    def _hoeffding(self, step: float, delta: float) -> float:
        """How much less than its rounded version the true loss may be, but for probability share * delta."""
        log_inverse = math.log(2 / (_HOEFFDING_SHARE * delta))
        return 2 * step * math.sqrt(_most_steps(self._nodes, log_inverse) * log_inverse / 2)


class _Tail:
    """Tail sums of a tilted law: delta at any loss of the window, epsilon at any delta in it.

    Every sum is kept relative to its own grid point: with l_i the loss and m_j the tilted mass,
    delta(l_i) = exp(log_norm - tilt l_i) sum_{j>=i} m_j exp(-tilt (l_j - l_i)) (1 - exp(-(l_j - l_i))), so that nothing
    overflows however wide the window is.
    """

    def __init__(
        self, step: float, first: int, mass: Array, tilt: float, log_norm: float, floor: float, outside: float,
        infinite: float, lower: bool,
    ) -> None:
        mass = np.maximum(mass - floor, 0.0) if lower else np.maximum(mass, 0.0) + floor
        self._losses = step * (first + np.arange(len(mass)))
        self._step, self._first, self._tilt, self._log_norm, self._lower = step, first, tilt, log_norm, lower
        self.infinite = infinite
        self._q = _discounted(mass, (tilt + 1) * step)
        # The sum of delta(l_i) by parts, sum_{j>i} exp(-tilt (l_j - l_i)) (1 - e^-step) q_j, has no term that cancels:
        # where the mass is at the largest loss, the difference of the two sums would be all round-off.
        later = np.append(self._q[1:], 0.0)
        self._d = -math.expm1(-step) * math.exp(-tilt * step) * _discounted(later, tilt * step)
        if lower:
            # Mass that wrapped around may have landed anywhere: the lower bound gives it back.
            self._d -= 2 * outside
        else:
            self._d += outside * np.exp(-tilt * (self._losses[-1] - self._losses))

    @property
    def first_loss(self) -> float:
        return float(self._losses[0])

    def delta_at(self, epsilon: float) -> float:
        """delta at an epsilon that is not below the window."""
        i = math.floor(epsilon / self._step) + 1 - self._first
        if i >= len(self._d):
            i = len(self._d) - 1
            epsilon = self._losses[i]
        i = max(i, 0)
        if self._log_norm - self._tilt * self._losses[i] > _LARGEST_LOG:
            return 1.0
        # Between points i-1 and i delta is exp(log_scale_i) (d_i + (1 - exp(epsilon - l_i)) q_i).
        value = self._d[i] - math.expm1(epsilon - self._losses[i]) * self._q[i]
        if value <= 0:
            return 0.0
        return math.exp(min(self._log_norm - self._tilt * self._losses[i] + math.log(value), 0.0))

    def epsilon_at(self, delta: float) -> float | None:
        """The point where delta is reached; None if it lies below the window."""
        log_scale = self._log_norm - self._tilt * self._losses
        with np.errstate(divide="ignore"):
            log_delta = log_scale + np.log(np.maximum(self._d, 0.0))
        exceeds = log_delta > math.log(delta)
        if not self._lower:
            # So far below the answer the sums have lost terms to underflow.
            exceeds |= log_scale > math.log(delta) + _LARGEST_LOG
        above = np.flatnonzero(exceeds)
        if len(above) == 0:
            return None
        i = int(above[-1]) + 1
        if i == len(log_delta):
            return math.inf
        room = math.exp(min(math.log(delta) - log_scale[i], 700.0)) - self._d[i]
        if room >= self._q[i]:
            return float(self._losses[i - 1])
        inside = self._losses[i] + math.log1p(-max(room, 0.0) / self._q[i])
        return float(min(max(inside, self._losses[i - 1]), self._losses[i]))


def _discounted(mass: Array, decay: float) -> Array:
    """sum_{j >= i} mass_j exp(-decay (j - i)), by doubling."""
    total = mass.copy()
    reach = 1
    while reach < len(mass) and decay * reach < 745:
        total[:-reach] += math.exp(-decay * reach) * total[reach:]
        reach *= 2
    return total


def _leaves(nodes: tuple[_Node, ...]) -> list[_Node]:
    return [leaf for n in nodes for leaf in ([n] if n.pair is not None else _leaves(n.inner))]


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
