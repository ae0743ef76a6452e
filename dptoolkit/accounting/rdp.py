"""Renyi differential privacy: the divergence of ONE application of an event at given orders, and its conversion.

Mironov 2017, arXiv:1702.07476. ``curve`` knows nothing of counts: the accountant multiplies once, after
``events.flatten``. Conversion to (epsilon, delta) is the tight one (see zcdp). Every order gives a sound bound, so a
coarse set of orders costs tightness only; ``epsilon`` and ``delta`` look for the best one by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dptoolkit._validate import delta_value, invalid, nonnegative, one_of, probability
from dptoolkit.accounting import gaussian as gaussian_profile
from dptoolkit.accounting import objective, rounds, sampling, selection, zcdp
from dptoolkit.accounting._numeric import Array
from dptoolkit.accounting.events import (
    POISSON,
    WITHOUT_REPLACEMENT,
    BestOf,
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
    ZCdp,
    flatten,
)
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent

Curve = Callable[[Array], Array]

# Dense near 1, integers where subsampling needs them, then far out for tiny epsilon.
DEFAULT_ORDERS = np.unique(np.concatenate([
    1 + np.geomspace(1e-6, 0.5, 12), np.arange(1.6, 3.01, 0.2),
    np.arange(3.0, 33.0), np.round(np.geomspace(36, 4096, 40)),
]))  # fmt: skip
_FAR_ORDERS = np.geomspace(5e3, 1e9, 60)


def gaussian(noise_multiplier: float, orders: Array) -> Array:
    """order / (2 noise_multiplier^2)."""
    return _orders(orders) * zcdp.gaussian(noise_multiplier)


def laplace(noise_multiplier: float, orders: Array) -> Array:
    """Laplace noise of scale noise_multiplier per L1 sensitivity, exactly (Mironov 2017, Table II)."""
    a, z = _orders(orders), nonnegative("noise_multiplier", noise_multiplier)
    if z == 0 or math.isinf(z):
        return np.full_like(a, math.inf if z == 0 else 0.0)
    e = 1 / z
    terms = np.stack([np.log(a / (2 * a - 1)) + (a - 1) * e, np.log((a - 1) / (2 * a - 1)) - a * e])
    return _at_most(np.logaddexp(terms[0], terms[1]) / (a - 1), e, a)


def two_sided_geometric(epsilon: float, sensitivity: int, orders: Array) -> Array:
    """Integer two-sided geometric noise: exact sum over the outcomes between the two centres."""
    a, e = _orders(orders), nonnegative("epsilon", epsilon)
    if e == 0 or math.isinf(e):
        return np.full_like(a, e)
    step = e / sensitivity
    log_p_zero = -math.log1p(math.exp(-step))
    ends = np.logaddexp(log_p_zero + (a - 1) * e, log_p_zero - a * e)
    if sensitivity == 1:
        return _at_most(ends / (a - 1), e, a)
    # Between the centres, k = 1 .. D-1: mass c q^k, loss e - 2 k step; a geometric series in k.
    log_c = math.log(math.tanh(step / 2))
    slope = -step * (1 + 2 * (a - 1))
    log_series = slope + np.log(np.expm1((sensitivity - 1) * slope) / np.expm1(slope))
    return _at_most(np.logaddexp(ends, log_c + (a - 1) * e + log_series) / (a - 1), e, a)


def randomized_response(epsilon: float, orders: Array, categories: int = 2) -> Array:
    """Randomised response among ``categories`` answers; two answers are the worst epsilon-DP mechanism."""
    a, e = _orders(orders), nonnegative("epsilon", epsilon)
    if e == 0 or math.isinf(e):
        return np.full_like(a, e)
    rest = categories - 2
    terms = [a * e, (1 - a) * e] + ([np.full_like(a, math.log(rest))] if rest else [])
    log_total = e + math.log1p((1 + rest) * math.exp(-e))
    total = terms[0]
    for term in terms[1:]:
        total = np.logaddexp(total, term)
    return _at_most((total - log_total) / (a - 1), e, a)


def exponential_mechanism(epsilon: float, orders: Array) -> Array:
    """The exponential mechanism (Gumbel noisy-max), as a bounded-range mechanism: at most order epsilon^2/8."""
    return selection.bounded_range_rdp(nonnegative("epsilon", epsilon), _orders(orders))


def subsampled_gaussian(
    noise_multiplier: float,
    rate: float,
    orders: Array,
    scheme: str = POISSON,
    adjacency: Adjacency | None = None,
) -> Array:
    """The subsampled Gaussian; ``scheme`` and ``adjacency`` as in Subsampled."""
    one_of("scheme", scheme, (POISSON, WITHOUT_REPLACEMENT))
    return curve(Subsampled(Gaussian(noise_multiplier), scheme, probability("rate", rate), adjacency), _orders(orders))


def curve(event: Event, orders: Array) -> Array:
    """The Renyi divergence of ONE application of an elementary event, at orders > 1."""
    rule = _RULES.get(type(event))
    if rule is None:
        raise UnsupportedEvent(
            f"event={event!r}: must have a Renyi divergence for method 'rdp'. "
            "An ApproxDp event has none (its delta is a loss without bound): use method='pld'."
        )
    return np.asarray(rule(event, orders))


def composed(event: Event, orders: Array) -> Array:
    """The Renyi divergence of a whole event: the only place where counts multiply curves."""
    total = np.zeros_like(orders)
    with np.errstate(over="ignore"):
        for part, count in flatten(event):
            total = total + count * curve(part, orders)
    return total


def to_epsilon(orders: Array, rdp: Array, delta: float) -> float:
    """The smallest epsilon that divergences ``rdp`` at ``orders`` prove at ``delta``."""
    return float(np.min(_epsilons(_orders(orders), np.asarray(rdp, dtype=float), delta_value(delta))))


def _epsilons(orders: Array, rdp: Array, delta: float) -> Array:
    """What each order proves alone."""
    # Divergence 0 at any order means equal distributions, which the conversion formula alone would miss.
    if delta == 0:
        return np.where(rdp == 0, 0.0, math.inf)
    return np.where(rdp == 0, 0.0, np.maximum(zcdp.epsilon_at(rdp, orders - 1, delta), 0.0))


def to_delta(orders: Array, rdp: Array, epsilon: float) -> float:
    """The smallest delta that divergences ``rdp`` at ``orders`` prove at ``epsilon``."""
    return float(np.min(_deltas(_orders(orders), np.asarray(rdp, dtype=float), nonnegative("epsilon", epsilon))))


def _deltas(orders: Array, rdp: Array, epsilon: float) -> Array:
    if math.isinf(epsilon):
        return np.zeros_like(rdp)
    with np.errstate(over="ignore"):
        return np.where(rdp == 0, 0.0, np.exp(np.minimum(zcdp.log_delta_at(rdp, orders - 1, epsilon), 0.0)))


def epsilon(event: Event, delta: float) -> float:
    """Epsilon of an event at ``delta``; the order is chosen automatically."""
    delta = delta_value(delta)
    return _best(event, lambda a, r: _epsilons(a, r, delta))


def delta(event: Event, epsilon: float) -> float:
    """Delta of an event at ``epsilon``; the order is chosen automatically."""
    epsilon = nonnegative("epsilon", epsilon)
    return _best(event, lambda a, r: _deltas(a, r, epsilon))


def _best(event: Event, convert: Callable[[Array, Array], Array]) -> float:
    orders = DEFAULT_ORDERS if _is_sampled(event) else np.concatenate([DEFAULT_ORDERS, _FAR_ORDERS])
    single = convert(orders, composed(event, orders))
    best = int(np.argmin(single))
    if single[best] == 0 or math.isinf(single[best]):
        return float(single[best])
    low, high = orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)]
    finer = 1 + np.geomspace(low - 1, high - 1, 33)
    return float(min(single[best], np.min(convert(finer, composed(event, finer)))))


def _is_sampled(event: Event) -> bool:
    def holds(part: Event) -> bool:
        if isinstance(part, Subsampled):
            return True
        return isinstance(part, (RandomRounds, BestOf)) and _is_sampled(part.event)

    return any(holds(part) for part, _ in flatten(event))


def _orders(orders: Any) -> Array:
    a = np.atleast_1d(np.asarray(orders, dtype=float))
    if not np.all(a > 1):
        raise invalid("orders", np.asarray(orders).tolist(), "> 1", "Order 1 is the KL divergence: use 1 + 1e-6.")
    return a


def _at_most(value: Array, epsilon: float, orders: Array) -> Array:
    """Bounds that hold for every epsilon-DP mechanism: they also absorb round-off where terms cancel."""
    floor = np.maximum(value + 4e-16 / (orders - 1), 0.0)
    return np.minimum(np.minimum(floor, epsilon), orders * epsilon**2 / 2)


def _pure_epsilon(event: Event) -> float:
    """epsilon at delta 0 of an elementary event, infinite if there is none."""
    if isinstance(event, (PureDp, NoisyMax, ExponentialMechanism, RandomizedResponse, TwoSidedGeometric)):
        return event.epsilon
    if isinstance(event, Laplace) and event.noise_multiplier > 0:
        return 1 / event.noise_multiplier
    return math.inf


def _subsampled(event: Subsampled, orders: Array) -> Array:
    if event.rate == 1:
        return composed(event.event, orders)
    parts = flatten(event.event)
    gaussians = [(e, c) for e, c in parts if isinstance(e, Gaussian)]
    if len(gaussians) == len(parts):
        return _subsampled_gaussian(event, _gaussian_rho(gaussians), orders)
    if event.scheme == WITHOUT_REPLACEMENT:
        pure = math.fsum(c * _pure_epsilon(e) for e, c in parts)
        return sampling.without_replacement_rdp(lambda a: composed(event.event, a), pure, event.rate, orders)
    raise UnsupportedEvent(
        f"event={event!r}: must be a Gaussian inside for method 'rdp' with Poisson sampling. Use method='pld'."
    )


def _gaussian_rho(gaussians: list[tuple[Gaussian, int]]) -> float:
    """rho of Gaussians given with their counts."""
    return math.fsum(c * zcdp.gaussian(e.noise_multiplier) for e, c in gaussians)


def _subsampled_gaussian(event: Subsampled, rho: float, orders: Array) -> Array:
    if rho == 0 or event.rate == 0 or math.isinf(rho):
        return np.full_like(orders, 0.0 if event.rate == 0 else rho)
    z = math.sqrt(0.5 / rho)
    if event.scheme == WITHOUT_REPLACEMENT:
        return sampling.without_replacement_gaussian_rdp(z, event.rate, orders)
    if event.adjacency is Adjacency.REPLACE_ONE:
        return sampling.poisson_replace_one_gaussian_rdp(z, event.rate, orders)
    return sampling.poisson_gaussian_rdp(z, event.rate, orders)


def _best_of(event: BestOf, orders: Array) -> Array:
    run = composed(event.event, orders)
    if isinstance(event.runs, rounds.TruncatedNegativeBinomial):
        return rounds.best_of_rdp(run, orders, event.runs, DEFAULT_ORDERS, composed(event.event, DEFAULT_ORDERS))
    assert isinstance(event.runs, rounds.Poisson)
    return rounds.best_of_poisson_rdp(run, orders, event.runs, lambda e: _run_delta(event.event, e))


def _run_delta(event: Event, epsilon: float) -> float:
    parts = flatten(event)
    gaussians = [(e, c) for e, c in parts if isinstance(e, Gaussian)]
    if len(gaussians) == len(parts):
        return gaussian_profile.delta(math.sqrt(2 * _gaussian_rho(gaussians)), epsilon)
    return to_delta(DEFAULT_ORDERS, composed(event, DEFAULT_ORDERS), epsilon)


_RULES: dict[type[Event], Callable[[Any, Array], Array]] = {
    Gaussian: lambda e, a: gaussian(e.noise_multiplier, a),
    Laplace: lambda e, a: laplace(e.noise_multiplier, a),
    TwoSidedGeometric: lambda e, a: two_sided_geometric(e.epsilon, e.sensitivity, a),
    RandomizedResponse: lambda e, a: randomized_response(e.epsilon, a, e.categories),
    ExponentialMechanism: lambda e, a: exponential_mechanism(e.epsilon, a),
    NoisyMax: lambda e, a: randomized_response(e.epsilon, a),
    PureDp: lambda e, a: randomized_response(e.epsilon, a),
    ZCdp: lambda e, a: e.rho * a,
    ObjectivePerturbation: lambda e, a: objective.renyi(objective.of_event(e), a),
    Subsampled: _subsampled,
    RandomRounds: lambda e, a: rounds.rdp(composed(e.event, a), a, e.rounds),
    BestOf: _best_of,
}
