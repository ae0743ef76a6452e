"""Exact privacy profiles of small events, by enumeration and by sums in 60 digits: nothing of dptoolkit's arithmetic.

Every reference is the profile of a pair that some neighbours attain, so an accountant that says less is wrong. Merging
outcomes of (nearly) equal loss is post-processing: it can only lower the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import mpmath as mp
import numpy as np
from scipy.special import erfcx, ndtr

from dptoolkit.accounting import (
    ApproxDp,
    BestOf,
    Composed,
    DiscreteGaussian,
    Event,
    ExponentialMechanism,
    Gaussian,
    Geometric,
    Laplace,
    NoisyMax,
    Poisson,
    PureDp,
    RandomizedResponse,
    RandomRounds,
    Repeated,
    Subsampled,
    TruncatedGeometric,
    TruncatedNegativeBinomial,
    TwoSidedGeometric,
    ZCdp,
)
from dptoolkit.adjacency import Adjacency

DIGITS = 60
# A law: what outcomes of one loss weigh under the one and under the other data set.
Law = dict[float, tuple[mp.mpf, mp.mpf]]
MOST_ROUNDS = 3000


class TooLarge(Exception):
    """No exact answer of this size here."""


def exact_delta(event: Event, epsilon: float) -> float:
    """delta at epsilon of a pair that neighbours attain, in the worse of its two directions."""
    with mp.workdps(DIGITS):
        curve = _gaussian_curve(event) or _beside_discrete(event)
        if curve is not None:
            return float(max(curve(epsilon)))
        return max(_hockey_stick(law, epsilon) for law in (law_of(event), _swapped(law_of(event))))


def _hockey_stick(law: Law, epsilon: float) -> float:
    factor = mp.exp(mp.mpf(epsilon))
    return float(mp.fsum(p - factor * q for p, q in law.values() if p > factor * q))


# --- discrete mechanisms ----------------------------------------------------------------------------


def law_of(event: Event) -> Law:
    """The law of an event with finitely many outcomes."""
    with mp.workdps(DIGITS):
        return dict(_law(event))


@lru_cache(maxsize=512)
def _law(event: Event) -> Law:
    if isinstance(event, Composed):
        total = _merged([(mp.mpf(1), mp.mpf(1))])
        for part in event.events:
            total = _product(total, _law(part))
        return total
    if isinstance(event, Repeated):
        return _power(_law(event.event), event.count)
    if isinstance(event, Subsampled):
        if _centred(event) and not isinstance(event.event, (PureDp, ApproxDp, RandomizedResponse)):
            raise TooLarge("a record that is left out is neither of the two")
        rate = mp.mpf(event.rate)
        return _merged([((1 - rate) * q + rate * p, q) for p, q in _law(event.event).values()])
    if isinstance(event, RandomRounds):
        return _random(event)
    if isinstance(event, BestOf):
        return _best_of(event)
    return _merged(_outcomes(event))


def _outcomes(event: Event) -> list[tuple[mp.mpf, mp.mpf]]:
    if isinstance(event, (PureDp, RandomizedResponse, ApproxDp, NoisyMax, ExponentialMechanism)):
        # Noisy-max between two candidates is at least randomised response with half the range.
        half = isinstance(event, (NoisyMax, ExponentialMechanism))
        e = mp.mpf(event.epsilon) / (2 if half else 1)
        lost = mp.mpf(event.delta) if isinstance(event, ApproxDp) else mp.mpf(0)
        others = event.categories - 1 if isinstance(event, RandomizedResponse) else 1
        truth = (1 - lost) / (1 + others * mp.exp(-e))
        lie = truth * mp.exp(-e)
        ends = [(lost, mp.mpf(0)), (mp.mpf(0), lost)] if lost else []
        return [(truth, lie), (lie, truth), *[(lie, lie)] * (others - 1), *ends]
    if isinstance(event, TwoSidedGeometric):
        q, top = mp.exp(-mp.mpf(event.epsilon) / event.sensitivity), event.sensitivity
        inner = [(q**k, q ** (top - k)) for k in range(1, top)]
        centre = (1 - q) / (1 + q)
        ends = [(1 / (1 + q), q**top / (1 + q)), (q**top / (1 + q), 1 / (1 + q))]
        return [(centre * p, centre * r) for p, r in inner] + ends
    if isinstance(event, DiscreteGaussian):
        # Beyond 20 standard deviations there is less than 1e-80.
        reach, top = math.ceil(20 * event.sigma) + 1, event.sensitivity
        variance = mp.mpf(event.sigma) ** 2
        weight = {k: mp.exp(-(mp.mpf(k) ** 2) / (2 * variance)) for k in range(-reach - top, reach + top + 1)}
        total = mp.fsum(weight.values())
        return [(weight[k] / total, weight[k - top] / total) for k in range(-reach, reach + top + 1)]
    raise TooLarge(f"{type(event).__name__} is not discrete")


def _centred(event: Subsampled) -> bool:
    """Whether a record that is left out of the batch lies between the two that are exchanged."""
    return event.scheme == "poisson" and event.adjacency is Adjacency.REPLACE_ONE


def _best_of(event: BestOf) -> Law:
    """Scores that grow with the loss: the best of N is below a score if all are, E[(probability below)^N]."""
    none = generating_function(event.runs, mp.mpf(0))
    found, below, chance = [(none, none)], (mp.mpf(0), mp.mpf(0)), (none, none)
    for _, (p, q) in sorted(_law(event.event).items()):
        below = (min(below[0] + p, mp.mpf(1)), min(below[1] + q, mp.mpf(1)))
        here = (generating_function(event.runs, below[0]), generating_function(event.runs, below[1]))
        found.append((here[0] - chance[0], here[1] - chance[1]))
        chance = here
    return _merged(found)


def generating_function(runs: object, z: mp.mpf) -> mp.mpf:
    """E[z^N]."""
    if isinstance(runs, Poisson):
        return mp.exp(mp.mpf(runs.expected) * (z - 1))
    assert isinstance(runs, TruncatedNegativeBinomial)
    e, g = mp.mpf(runs.eta), mp.mpf(runs.gamma)
    rest = 1 - (1 - g) * z
    return mp.log(rest) / mp.log(g) if e == 0 else (rest**-e - 1) / (g**-e - 1)


def _random(event: RandomRounds) -> Law:
    masses = rounds_masses(event.rounds, 12)
    one, current = _law(event.event), _merged([(mp.mpf(1), mp.mpf(1))])
    found: list[tuple[mp.mpf, mp.mpf]] = []
    for mass in masses:
        found += [(mass * p, mass * q) for p, q in current.values()]
        current = _product(current, one)
    # Outcomes with more rounds than these are left out, which is post-processing too: they join one blank outcome.
    rest = 1 - mp.fsum(masses)
    return _merged([*found, (rest, rest)])


def _power(law: Law, count: int) -> Law:
    total = _merged([(mp.mpf(1), mp.mpf(1))])
    for _ in range(count):
        total = _product(total, law)
    return total


def _product(first: Law, second: Law) -> Law:
    if len(first) * len(second) > 4000:
        raise TooLarge("too many outcomes")
    return _merged([(p * r, q * s) for p, q in first.values() for r, s in second.values()])


def _merged(outcomes: list[tuple[mp.mpf, mp.mpf]]) -> Law:
    law: Law = {}
    for p, q in outcomes:
        if p == 0 and q == 0:
            continue
        key = math.inf if q == 0 else -math.inf if p == 0 else round(float(mp.log(p / q)), 9)
        before = law.get(key, (mp.mpf(0), mp.mpf(0)))
        law[key] = (before[0] + p, before[1] + q)
    return law


def _swapped(law: Law) -> Law:
    return {-key: (q, p) for key, (p, q) in law.items()}


# --- numbers of rounds ------------------------------------------------------------------------------


def rounds_masses(runs: object, most: int) -> list[mp.mpf]:
    """P(N = 0), ..., P(N = most), or as many as there are."""
    if isinstance(runs, Geometric):
        g = mp.mpf(runs.gamma)
        return [(1 - g) * g**k for k in range(most + 1)]
    if isinstance(runs, TruncatedGeometric):
        g = mp.mpf(runs.gamma)
        return [(1 - g) * g**k if k < runs.limit else g**k for k in range(min(runs.limit, most) + 1)]
    if isinstance(runs, Poisson):
        m = mp.mpf(runs.expected)
        return [mp.exp(-m) * m**k / mp.factorial(k) for k in range(most + 1)]
    assert isinstance(runs, TruncatedNegativeBinomial)
    e, g = mp.mpf(runs.eta), mp.mpf(runs.gamma)
    mass = (1 - g) / mp.log(1 / g) if e == 0 else e * (1 - g) / (g**-e - 1)
    found = [mp.mpf(0)]
    for k in range(1, most + 1):
        found.append(mass)
        mass *= (1 - g) * (k + e) / (k + 1)
    return found


# --- Gaussians --------------------------------------------------------------------------------------

Curve = Callable[[float], tuple[float, ...]]


def _gaussian_curve(event: Event) -> Curve | None:
    """Both directions of delta(epsilon) where the event is one Gaussian, sampled once, or a random number of them."""
    count = 1
    if isinstance(event, Repeated):
        event, count = event.event, event.count
    if isinstance(event, Laplace) and count == 1:
        return lambda x: (-math.expm1(min((x - 1 / event.noise_multiplier) / 2, 0.0)),)
    if isinstance(event, ZCdp):
        return lambda x: (gaussian_delta(math.sqrt(2 * event.rho * count), x),)
    if isinstance(event, Gaussian):
        return lambda x: (gaussian_delta(math.sqrt(count) / event.noise_multiplier, x),)
    if isinstance(event, Subsampled) and isinstance(event.event, Gaussian) and count == 1:
        if _centred(event):
            return lambda x: (_two_mixtures(1 / event.event.noise_multiplier, event.rate, x),)
        return lambda x: _mixture(1 / event.event.noise_multiplier, event.rate, x)
    if isinstance(event, RandomRounds) and isinstance(event.event, Gaussian):
        masses = _total_rounds(event.rounds, count)
        mus = np.sqrt(np.arange(len(masses))) / event.event.noise_multiplier
        return lambda x: (float(masses[1:] @ gaussian_deltas(mus[1:], x)),)
    return None


def _beside_discrete(event: Event) -> Curve | None:
    """Both directions for one part with a curve beside parts with finitely many outcomes: the mean over those."""
    if not isinstance(event, Composed):
        return None
    curves = [(part, curve) for part in event.events if (curve := _gaussian_curve(part)) is not None]
    if len(curves) != 1:
        return None
    law = law_of(Composed(*(part for part in event.events if part is not curves[0][0])))

    def at(loss: mp.mpf, direction: int) -> mp.mpf:
        """The curve at any loss: H_a(P||Q) = 1 - a + a H_{1/a}(Q||P)."""
        if loss >= 0:
            return mp.mpf(curves[0][1](loss)[direction])
        other = curves[0][1](-loss)[-1 - direction]
        return 1 - mp.exp(loss) + mp.exp(loss) * other

    def of(epsilon: float) -> tuple[float, ...]:
        found = []
        for direction in range(len(curves[0][1](1.0))):
            outcomes = [(p, q) if direction == 0 else (q, p) for p, q in law.values()]
            lost = mp.fsum(p for p, q in outcomes if q == 0)
            kept = mp.fsum(p * at(mp.mpf(epsilon) - mp.log(p / q), direction) for p, q in outcomes if p > 0 and q > 0)
            found.append(float(lost + kept))
        return tuple(found)

    return of


def exact_epsilon(event: Event, delta: float, high: float) -> float:
    """The epsilon at which the exact delta is ``delta``, below ``high``, to 1e-12."""
    low = 0.0
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if exact_delta(event, middle) <= delta else (middle, high)
    return high


def _total_rounds(runs: object, count: int) -> np.ndarray:
    """The masses of N_1 + ... + N_count, those of large numbers left out."""
    one = np.array([float(m) for m in rounds_masses(runs, MOST_ROUNDS)])
    total = np.ones(1)
    while count:
        if count % 2:
            total = np.convolve(total, one)[: MOST_ROUNDS + 1]
        one, count = np.convolve(one, one)[: MOST_ROUNDS + 1], count // 2
    return total


def gaussian_deltas(mus: np.ndarray, epsilon: float) -> np.ndarray:
    """Balle and Wang's formula, tails by the scaled complementary error function."""
    # Beyond 1e3 the density is 0 in doubles; the square of a much larger one would overflow.
    x = np.minimum(epsilon / mus - mus / 2, 1e3)
    density = np.exp(-x * x / 2)
    far = density * (erfcx(np.maximum(x, 0.0) / math.sqrt(2)) - erfcx(np.maximum(x + mus, 0.0) / math.sqrt(2))) / 2
    near = ndtr(-x) - density * erfcx((x + mus) / math.sqrt(2)) / 2
    return np.maximum(np.where(x > 0, far, near), 0.0)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The same in 60 digits."""
    with mp.workdps(DIGITS):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        return float(mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m))


def _mixture(mu: float, rate: float, epsilon: float) -> tuple[float, float]:
    """(1-q) N(0) + q N(mu) against N(0), and backwards, by the point where the loss is epsilon."""
    with mp.workdps(DIGITS):
        m, q, e = mp.mpf(mu), mp.mpf(rate), mp.mpf(epsilon)

        def point(loss: mp.mpf) -> mp.mpf | None:
            inner = (mp.exp(loss) - (1 - q)) / q
            return None if inner <= 0 else mp.log(inner) / m + m / 2

        t = point(e)
        forward = (1 - q) * mp.ncdf(-t) + q * mp.ncdf(m - t) - mp.exp(e) * mp.ncdf(-t)
        s = point(-e)
        backward = mp.mpf(0) if s is None else mp.ncdf(s) - mp.exp(e) * ((1 - q) * mp.ncdf(s) + q * mp.ncdf(s - m))
        return float(forward), float(backward)


def _two_mixtures(mu: float, rate: float, epsilon: float) -> float:
    """(1-q) N(0) + q N(mu/2) against (1-q) N(0) + q N(-mu/2), by the point where the loss is epsilon."""
    with mp.workdps(DIGITS):
        r, q, e = mp.mpf(mu) / 2, mp.mpf(rate), mp.mpf(epsilon)
        grown, k = mp.exp(e), q * mp.exp(-r * r / 2)
        # k u^2 - (1-q)(e^x - 1) u - e^x k = 0 for u = exp(r t).
        half = (1 - q) * (grown - 1) / 2
        t = mp.log((half + mp.sqrt(half * half + grown * k * k)) / k) / r
        alone, common = mp.ncdf(r - t) - grown * mp.ncdf(-r - t), (1 - q) * (grown - 1) * mp.ncdf(-t)
        return float(q * alone - common)
