"""Renyi differential privacy: the divergence of ONE application of an event at given orders, and its conversion.

Mironov 2017, arXiv:1702.07476. ``curve`` knows nothing of counts: the accountant multiplies once, after
``events.flatten``. Conversion to (epsilon, delta) is the tight one (see zcdp). Every order gives a sound bound, so a
coarse set of orders costs tightness only; ``epsilon`` and ``delta`` look for the best one by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dptoolkit._validate import delta_value, nonnegative, one_of, probability
from dptoolkit.accounting import gaussian as gaussian_profile
from dptoolkit.accounting import rounds, sampling, zcdp
from dptoolkit.accounting.events import (
    POISSON,
    WITHOUT_REPLACEMENT,
    BestOf,
    Event,
    Gaussian,
    RandomRounds,
    Subsampled,
    flatten,
)
from dptoolkit.accounting.renyi import (
    discrete_gaussian,
    exponential_mechanism,
    gaussian,
    laplace,
    order_array,
    randomized_response,
    two_sided_geometric,
)
from dptoolkit.accounting.rules import rules_of
from dptoolkit.accounting.structure import all_gaussian, is_sampled, total_rho
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import ANY_METHOD, UnsupportedEvent
from dptoolkit.types import Array

__all__ = [
    "DEFAULT_ORDERS", "composed", "curve", "delta", "discrete_gaussian", "epsilon", "exponential_mechanism", "gaussian",
    "laplace", "randomized_response", "subsampled_gaussian", "to_delta", "to_epsilon", "two_sided_geometric",
]  # fmt: skip

# Dense near 1, integers where subsampling needs them, then large orders, which are the best for tiny epsilon.
DEFAULT_ORDERS = np.unique(np.concatenate([
    1 + np.geomspace(1e-6, 0.5, 12), np.arange(1.6, 3.01, 0.2),
    np.arange(3.0, 33.0), np.round(np.geomspace(36, 4096, 40)),
]))  # fmt: skip
_FAR_ORDERS = np.geomspace(5e3, 1e9, 60)


def subsampled_gaussian(
    noise_multiplier: float,
    rate: float,
    orders: Array,
    scheme: str = POISSON,
    adjacency: Adjacency | None = None,
) -> Array:
    """The subsampled Gaussian; ``scheme`` and ``adjacency`` as in Subsampled."""
    one_of("scheme", scheme, (POISSON, WITHOUT_REPLACEMENT))
    event = Subsampled(Gaussian(noise_multiplier), scheme, probability("rate", rate), adjacency)
    return curve(event, order_array(orders))


def curve(event: Event, orders: Array) -> Array:
    """The Renyi divergence of ONE application of an elementary event, at orders > 1."""
    rule = _STRUCTURE.get(type(event)) or rules_of(event).renyi
    if rule is None:
        raise UnsupportedEvent(
            f"event={event!r}: must have a Renyi divergence for method 'rdp'. An ApproxDp event has none, because its "
            "delta is a loss without bound.",
            ANY_METHOD,
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
    return float(np.min(_epsilons(order_array(orders), np.asarray(rdp, dtype=float), delta_value(delta))))


def _epsilons(orders: Array, rdp: Array, delta: float) -> Array:
    """The epsilon that each order proves by itself."""
    # Divergence 0 at any order means equal distributions, which the conversion formula alone would miss.
    if delta == 0:
        return np.where(rdp == 0, 0.0, math.inf)
    return np.where(rdp == 0, 0.0, np.maximum(zcdp.epsilon_at(rdp, orders - 1, delta), 0.0))


def to_delta(orders: Array, rdp: Array, epsilon: float) -> float:
    """The smallest delta that divergences ``rdp`` at ``orders`` prove at ``epsilon``."""
    return float(np.min(_deltas(order_array(orders), np.asarray(rdp, dtype=float), nonnegative("epsilon", epsilon))))


def _deltas(orders: Array, rdp: Array, epsilon: float) -> Array:
    if math.isinf(epsilon):
        return np.zeros_like(rdp)
    with np.errstate(over="ignore"):
        deltas = np.exp(np.minimum(zcdp.log_delta_at(rdp, orders - 1, epsilon), 0.0))
    # Not 0 where it underflows: no divergence above 0 proves that.
    return np.where(rdp == 0, 0.0, np.maximum(deltas, math.ulp(0.0)))


def epsilon(event: Event, delta: float) -> float:
    """Epsilon of an event at ``delta``; the order is chosen automatically."""
    delta = delta_value(delta)
    return _best(event, lambda a, r: _epsilons(a, r, delta))


def delta(event: Event, epsilon: float) -> float:
    """Delta of an event at ``epsilon``; the order is chosen automatically."""
    epsilon = nonnegative("epsilon", epsilon)
    return _best(event, lambda a, r: _deltas(a, r, epsilon))


def _best(event: Event, convert: Callable[[Array, Array], Array]) -> float:
    orders = DEFAULT_ORDERS if is_sampled(event) else np.concatenate([DEFAULT_ORDERS, _FAR_ORDERS])
    single = convert(orders, composed(event, orders))
    best = int(np.argmin(single))
    if single[best] == 0 or math.isinf(single[best]):
        return float(single[best])
    low, high = orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)]
    finer = 1 + np.geomspace(low - 1, high - 1, 33)
    return float(min(single[best], np.min(convert(finer, composed(event, finer)))))


def _pure_epsilon(event: Event) -> float:
    """epsilon at delta 0 of an elementary event, infinite if there is none."""
    pure = rules_of(event).pure
    return math.inf if pure is None else pure(event)


def _subsampled(event: Subsampled, orders: Array) -> Array:
    if event.rate == 1:
        return composed(event.event, orders)
    if all_gaussian(event.event):
        return _subsampled_gaussian(event, total_rho(event.event), orders)
    if event.scheme == WITHOUT_REPLACEMENT:
        pure = math.fsum(c * _pure_epsilon(e) for e, c in flatten(event.event))
        return sampling.without_replacement_rdp(lambda a: _by_chords(event.event, a), pure, event.rate, orders)
    return sampling.convex_rdp(composed(event.event, orders), event.rate, orders)


# The orders between which chords are taken, and the most orders at which a divergence by quadrature is computed.
_CHORD_ORDERS = np.unique(np.concatenate([np.arange(2.0, 65.0), np.round(np.geomspace(64, 4096, 140))]))
_MOST_ORDERS = 256


def _by_chords(event: Event, orders: Array) -> Array:
    """``composed``; at thousands of orders, where each takes a quadrature, a bound from those at fewer orders.

    (order - 1) times the divergence is a log moment, which is convex in the order; so is the larger one of both
    directions. So it is at most the chord between two orders.
    """
    if len(orders) <= _MOST_ORDERS or not is_sampled(event) or orders[0] < _CHORD_ORDERS[0]:
        return composed(event, orders)
    moments = _moments(event)
    if orders[-1] > _CHORD_ORDERS[-1] or not np.all(np.isfinite(moments)):
        return composed(event, orders)
    return np.asarray(np.interp(orders, _CHORD_ORDERS, moments) / (orders - 1) * (1 + 4e-15))


@lru_cache(maxsize=64)
def _moments(event: Event) -> Array:
    return (_CHORD_ORDERS - 1) * composed(event, _CHORD_ORDERS)


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
    if all_gaussian(event):
        return gaussian_profile.delta(math.sqrt(2 * total_rho(event)), epsilon)
    return to_delta(DEFAULT_ORDERS, composed(event, DEFAULT_ORDERS), epsilon)


_STRUCTURE: dict[type[Event], Callable[[Any, Array], Array]] = {
    Subsampled: _subsampled,
    RandomRounds: lambda e, a: rounds.rdp(composed(e.event, a), a, e.rounds),
    BestOf: _best_of,
}
