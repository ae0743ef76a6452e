"""What a guarantee says about guessing: the trade-off curve, the advantage and the success of a guess.

Somebody who sees the output wants to know whether a record was used. A test at false-alarm rate alpha misses the record
with probability beta. H_a is the hockey-stick divergence, and (epsilon, delta)-DP says that it is at most delta at
a = e^epsilon, in both orders of the neighbours. So every test has

    beta >= 1 - delta - e^epsilon alpha     and     beta >= e^-epsilon (1 - delta - alpha)

(Wasserman and Zhou 2010; Dong, Roth and Su 2019, arXiv:1905.02383, Proposition 2.5). The second bound is the first one
for the neighbours in the other order, so it needs the larger delta of both. The largest of these bounds over all
(epsilon, delta) that a guarantee states is its trade-off curve. Every pair is sound by itself, so a finite number of
them costs tightness only. The curve is a largest of straight lines: convex, falling, and its own mirror image.

Where everything is Gaussian, the curve is Phi(Phi^-1(1 - alpha) - mu) exactly (Dong, Roth and Su, Definition 2.6).

Where all that is known is that one (epsilon, delta) holds k times, the worst case is attained: a failure, with
probability 1 - (1 - delta)^k, and otherwise k randomised responses (Kairouz, Oh and Viswanath 2015), whose losses are
(k - 2j) epsilon. As a function of a the divergence of this pair is a chain of straight lines that bends at the losses
only. 1 - H_a - a alpha is then largest at one of them, so that the lines there are the curve exactly.

From above: for one pair of neighbours (P, Q) the smallest beta is the supremum over ALL a of these bounds with the
pair's own divergences. Those of an attained pair are known from below at some points. A divergence falls in a, so that
between two points the delta of the next point and the a of the last one bound the supremum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from scipy.special import ndtr, ndtri

from dptoolkit._validate import invalid, probability
from dptoolkit.accounting import pld
from dptoolkit.accounting._numeric import sum_up
from dptoolkit.accounting.events import Event, flatten
from dptoolkit.accounting.methods import is_exact
from dptoolkit.accounting.structure import (
    all_gaussian,
    delta_with_failures,
    pure_epsilon,
    split_failure,
    total_mu,
    without_failures,
)
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent
from dptoolkit.types import Array


class Stated(Protocol):
    """A guarantee: what this file needs of it."""

    @property
    def event(self) -> Event | None: ...
    @property
    def forced_method(self) -> str | None: ...
    def epsilon(self, delta: float) -> float: ...
    def delta(self, epsilon: float) -> float: ...
    def __hash__(self) -> int: ...


class TradeoffBounds(NamedTuple):
    """Bounds on the smallest missed-detection rate: ``lower`` is guaranteed, and some test attains ``upper``."""

    lower: Any
    upper: Any


class Profile(NamedTuple):
    """Points (epsilon, delta), each of which holds by itself."""

    epsilon: Array
    delta: Array


# Points of a profile: from epsilon 0 to where delta has fallen by this factor evenly in epsilon, then where the curve
# may be far below its chords, until they are this close relative to delta at 0, and at these deltas.
_BULK_POINTS, _BULK_END = 9, 1e-2
_MORE_POINTS, _CLOSE = 32, 1e-5
_LARGEST_EPSILON = 700.0
_TAIL = (*(10.0**-k for k in range(3, 16)), 1e-18)
# The most mechanisms of one (epsilon, delta) whose curve is computed line by line, and the relative error of a sum of
# their probabilities.
_MOST_GENERIC, _SUM_ERROR = 256, 1e-12
# Relative error of the normal distribution at a point near 40, where a tail probability is 1e-300.
_NORMAL_ERROR = 1e-12


@overload
def tradeoff(guarantee: Stated, alpha: float) -> float: ...
@overload
def tradeoff(guarantee: Stated, alpha: Array | Sequence[float]) -> Array: ...
def tradeoff(guarantee: Stated, alpha: Any) -> Any:
    """The missed-detection rate that no test at false-alarm rate ``alpha`` can go below."""
    alphas = rates("alpha", alpha)
    mu = _exact_mu(guarantee)
    values = below(profile(guarantee), alphas) if mu is None else _gaussian(mu, alphas, 1 - _NORMAL_ERROR)
    return shaped(values, alpha)


def bounds(guarantee: Stated, alpha: Any) -> TradeoffBounds:
    """``tradeoff``, and a missed-detection rate that some test attains; 1 - alpha where no attained pair is known.

    1 - alpha is what a test attains that never looks at the output.
    """
    alphas, lower = rates("alpha", alpha), tradeoff(guarantee, alpha)
    mu = _exact_mu(guarantee)
    if mu is not None:
        upper = np.minimum(_gaussian(mu, alphas, 1 + _NORMAL_ERROR), 1 - alphas)
    elif (generic := _generic(guarantee)) is not None:
        upper = np.minimum(_lines_up(generic.from_below(), alphas), 1 - alphas)
    else:
        upper = 1 - alphas if guarantee.event is None else np.minimum(_above(guarantee.event, alphas), 1 - alphas)
    return TradeoffBounds(lower, shaped(np.maximum(upper, lower), alpha))


def below(points: Profile, alpha: Array) -> Array:
    """The largest of the lines of a profile, rounded down."""
    epsilon, delta = points.epsilon[:, None], points.delta[:, None]
    with np.errstate(divide="ignore", over="ignore"):
        steep = np.exp(epsilon + np.log(alpha))
    rounding = 4e-16 + 4e-16 * (1 + epsilon) * steep
    first = (1 - delta - steep) - rounding
    second = np.exp(-epsilon) * (1 - 1e-15 * (1 + epsilon)) * ((1 - delta - alpha) - 4e-16)
    return np.asarray(np.clip(np.maximum(first, second).max(axis=0), 0.0, np.maximum(1 - alpha, 0.0)))


def _lines_up(points: Profile, alpha: Array) -> Array:
    """The largest of the lines of a profile, rounded up."""
    epsilon, delta = points.epsilon[:, None], points.delta[:, None]
    with np.errstate(divide="ignore", over="ignore"):
        first = 1 - delta - np.exp(epsilon + np.log(alpha)) + 4e-16 * (2 + epsilon)
    second = np.exp(-epsilon) * (1 + 1e-15 * (1 + epsilon)) * (1 - delta - alpha + 4e-16)
    return np.asarray(np.clip(np.maximum(first, second).max(axis=0), 0.0, 1.0))


class _Generic(NamedTuple):
    """``times`` mechanisms of which each is (epsilon, delta)-DP, and nothing else is known."""

    epsilon: float
    delta: float
    times: int

    @property
    def losses(self) -> Array:
        """Where the divergence bends, from 0 upwards, and 0; rounded up, so that none is left out at the largest."""
        if math.isinf(self.epsilon):
            return np.zeros(1)
        return np.unique([0.0, *(sum_up([(k, self.epsilon)]) for k in range(self.times, 0, -2))])

    def from_below(self) -> Profile:
        """The divergence at the losses, rounded down: sums of positive terms, in which nothing cancels."""
        if math.isinf(self.epsilon):
            return Profile(np.zeros(1), np.ones(1))
        truth, log_success = 1 / (1 + math.exp(-self.epsilon)), self.times * math.log1p(-self.delta)
        lies = np.arange(self.times + 1)
        masses = np.array([math.comb(self.times, int(j)) * truth**self.times for j in lies]) * np.exp(
            -self.epsilon * lies
        )
        gaps = self.epsilon * (self.times - 2 * lies) - self.losses[:, None]
        rest = (masses * -np.expm1(-np.maximum(gaps, 0.0))).sum(axis=1) * (1 - _SUM_ERROR)
        return Profile(self.losses, -np.expm1(log_success + np.log1p(-rest)) * (1 - _SUM_ERROR))


def _generic(guarantee: Stated) -> _Generic | None:
    """What is known of the event, if it is one (epsilon, delta), a few times; None for other events."""
    event = guarantee.event
    if event is None or guarantee.forced_method not in (None, "optimal") or not is_exact(event) or all_gaussian(event):
        return None
    ((part, count),) = flatten(event)
    rest, failure = split_failure(part)
    pure = pure_epsilon(rest)
    return None if pure is None or failure == 1 or count > _MOST_GENERIC else _Generic(pure, failure, count)


@lru_cache(maxsize=64)
def profile(guarantee: Stated) -> Profile:
    """Points of the privacy profile at which its trade-off curve is well described."""
    generic = _generic(guarantee)
    if generic is not None:
        return Profile(generic.losses, np.array([guarantee.delta(x) for x in generic.losses.tolist()]))
    start = guarantee.delta(0.0)
    points = [(0.0, start)]
    if start > 0:
        floor, end = 0.0, guarantee.epsilon(_BULK_END * start)
        if math.isinf(end):
            # A failure gives everything away, so that delta does not fall below its probability.
            floor = guarantee.delta(_LARGEST_EPSILON)
            end = guarantee.epsilon(floor + _BULK_END * (start - floor)) if floor < 1 else math.inf
        if 1e-9 < end < math.inf:
            points += [(x, guarantee.delta(x)) for x in np.linspace(0.0, end, _BULK_POINTS)[1:].tolist()]
            points = _refined(points, guarantee)
        tail = [d for d in _TAIL if floor < d < _BULK_END * start]
        points += [(x, d) for d in (*tail, floor) if d < 1 and math.isfinite(x := guarantee.epsilon(d))]
    return Profile(*(np.array(column) for column in zip(*points, strict=True)))


def _refined(points: list[tuple[float, float]], guarantee: Stated) -> list[tuple[float, float]]:
    """The points and more of them, where they matter the most.

    A divergence is convex in a = e^epsilon. So between two points it lies below their chord and above the lines through
    the points next to them; where those lines cross, chord and curve may differ the most. At a corner of the curve they
    cross in the corner.
    """
    for _ in range(_MORE_POINTS):
        epsilon, delta = np.array(points).T
        if epsilon[-1] > _LARGEST_EPSILON:
            break
        a = np.exp(epsilon)
        slopes = np.diff(delta) / np.diff(a)
        # The slope is at least -1 at the first point, and at most 0 at the last one.
        before, after = np.append(-1.0, slopes[:-1]), np.append(slopes[1:], 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = (delta[1:] - after * a[1:] - delta[:-1] + before * a[:-1]) / (before - after)
        width = np.diff(a)
        inside = (crossing > a[:-1] + 1e-6 * width) & (crossing < a[1:] - 1e-6 * width)
        gap = np.where(inside, (slopes - before) * (crossing - a[:-1]), 0.0)
        worst = int(np.argmax(gap))
        if gap[worst] <= _CLOSE * delta[0]:
            break
        new = float(np.log(crossing[worst]))
        points = sorted([*points, (new, guarantee.delta(new))])
    return points


def _exact_mu(guarantee: Stated) -> float | None:
    event = guarantee.event
    if event is None or guarantee.forced_method not in (None, "gaussian") or not all_gaussian(event):
        return None
    return total_mu(event)


def _gaussian(mu: float, alpha: Array, rounding: float) -> Array:
    """Phi(Phi^-1(1 - alpha) - mu). Both ends are set by hand: infinity minus infinity is no number."""
    if mu == 0:
        return 1 - alpha
    with np.errstate(invalid="ignore"):
        inside = ndtr(-ndtri(alpha) - mu) * rounding
    return np.where(alpha == 0, float(not math.isinf(mu)), np.where(alpha == 1, 0.0, np.clip(inside, 0.0, 1 - alpha)))


def _above(event: Event, alpha: Array) -> Array:
    """The smallest beta of a pair that neighbours attain, rounded up; 1 where no such pair is known."""
    try:
        orders = _attained_profiles(event)
    except UnsupportedEvent:
        return np.ones_like(alpha)
    first, last = orders[0], orders[-1]
    return np.minimum(_supremum(first, last, alpha), _supremum(last, first, alpha))


def _supremum(forward: Profile, backward: Profile, alpha: Array) -> Array:
    """sup over all a of the lines of one ordered pair, given divergences from below in both of its orders."""
    value = np.zeros_like(alpha)
    for points, mirrored in ((forward, False), (backward, True)):
        # Beyond the last point nothing is known but that a divergence is not negative.
        starts, deltas = np.append(0.0, points.epsilon), np.append(points.delta, 0.0)
        inside = np.isfinite(starts)
        starts, deltas = starts[inside][:, None], deltas[inside][:, None]
        with np.errstate(divide="ignore", over="ignore"):
            lines = np.exp(-starts) * (1 - deltas - alpha) if mirrored else 1 - deltas - np.exp(starts + np.log(alpha))
        value = np.maximum(value, lines.max(axis=0) + 1e-14)
    return np.minimum(value, 1.0)


@lru_cache(maxsize=64)
def _attained_profiles(event: Event) -> tuple[Profile, ...]:
    """Points of the divergences of an attained pair from below, for each order of the neighbours.

    A failure shows something that is impossible on the other side. So with probability s of none at all the divergence
    is 1 - s (1 - that of the rest) at every a, also beyond all losses of the rest.
    """
    rest, log_success = without_failures(event)
    profiles = [np.array([*points, (math.inf, 0.0)]) for points in pld.lower_profiles(rest)]
    with_failures = np.vectorize(lambda delta: delta_with_failures(log_success, delta), otypes=[float])
    return tuple(Profile(points[:, 0], with_failures(points[:, 1])) for points in profiles)


# --- guesses ---------------------------------------------------------------------------------------


def advantage(guarantee: Stated) -> float:
    """The most by which a test's detection rate exceeds its false-alarm rate: the divergence at epsilon 0."""
    return _divergence(guarantee, 0.0)


def bayes_success(guarantee: Stated, prior: float = 0.5) -> float:
    """The largest probability of a right guess whether the record was used, if beforehand it is ``prior``.

    The best guess is right with probability max(prior, 1 - prior) plus the smaller one times the divergence at their
    ratio.
    """
    prior = probability("prior", prior)
    rare, common = min(prior, 1 - prior), max(prior, 1 - prior)
    if rare == 0:
        return 1.0
    # The ratio is rounded down: a smaller epsilon has a larger delta.
    divergence = _divergence(guarantee, max(math.log(common) - math.log(rare) - 1e-14, 0.0))
    return min((common + rare * divergence) * (1 + 1e-15), 1.0) if divergence > 0 else common


# Points at which a guarantee is asked for its divergence at one of them, and how far above it they may lie.
_LOOKS, _FARTHEST = 8, 30.0


def _divergence(guarantee: Stated, epsilon: float) -> float:
    """delta at ``epsilon``, or less where the delta of a larger epsilon says so.

    By the lines of (e, d), e >= epsilon, the divergence at epsilon is at most 1 - (1 + e^epsilon) (1 - d) / (1 + e^e).
    That is of use where delta is not computed from a pair, such as for ZCdp.
    """
    best = guarantee.delta(epsilon)
    if best == 0 or _exact_mu(guarantee) is not None:
        return best
    if best == 1 and guarantee.delta(epsilon + _FARTHEST) == 1:
        # A divergence falls in epsilon, so that it is 1 at all of the points.
        return 1.0
    reach = min(math.log1p(math.exp(-epsilon)) - math.log1p(-best), _FARTHEST) if best < 1 else _FARTHEST
    for larger in np.linspace(epsilon, epsilon + reach, _LOOKS + 1)[1:]:
        ratio = math.exp(epsilon - larger) * (1 + math.exp(-epsilon)) / (1 + math.exp(-larger))
        best = min(best, 1 - ratio * (1 - guarantee.delta(float(larger))) * (1 - 1e-14))
    return max(best, 0.0)


_QUESTION = {
    Adjacency.REPLACE_ONE: "whether your record or another one in its place was used",
    Adjacency.ZERO_OUT: "whether your record was used or left out",
    None: "which of two neighbouring data sets was used",
}
# A rounded rate must not reach "always" while the rate is below it.
_CROWDS = (100, 1_000, 100_000, 10_000_000)


def sentence(guarantee: Stated, adjacency: Adjacency | None) -> str:
    """The guarantee in one sentence without formulas: how often a guess can be right, rounded up."""
    success = bayes_success(guarantee)
    question = _QUESTION[adjacency]
    crowd = next((n for n in _CROWDS if math.ceil(success * n) < n), None)
    if crowd is None:
        return f"Whoever guesses {question} may always be right: the guarantee excludes nothing."
    right = max(math.ceil(success * crowd), crowd // 2)
    return (
        f"Whoever guesses {question}, with all other records known and both answers equally likely beforehand, "
        f"is right at most {right:,} times in {crowd:,}; a coin is right {crowd // 2:,} times."
    )


# --- arguments -------------------------------------------------------------------------------------


def rates(name: str, value: Any) -> Array:
    """Rates between 0 and 1 as a flat array."""
    try:
        found = np.atleast_1d(np.asarray(value, dtype=float)).ravel()
    except (TypeError, ValueError):
        raise invalid(name, value, "a number between 0 and 1, or an array of them") from None
    bad = ~((found >= 0) & (found <= 1))
    if np.any(bad):
        raise invalid(name, float(found[bad][0]), "between 0 and 1", "It is a false-alarm rate.")
    return found


def shaped(values: Array, like: Any) -> Any:
    """A flat array in the shape of ``like``: a float for a number."""
    shape = np.shape(like)
    return float(values[0]) if shape == () else values.reshape(shape)
