"""How to account for an event: ONE row for every elementary event; no other file asks which kind an event is.

A row is about ONE application. Counts are applied by ``events.flatten``, and the structure around elementary events
(sampling, rounds, best-of) belongs to ``structure`` and to the accountants. The formulas are in the files of their
subject; a row names those of its event. A column that is left out means that nothing is known: methods that need it
refuse the event, and no other answer changes. To add an event see docs/add-an-event.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dptoolkit.accounting import (
    mixtures,
    objective,
    profiles,
    renyi,
    sampling,
    selection,
    truncation,
    two_outcomes,
    zcdp,
)
from dptoolkit.accounting._numeric import inverse_up, part_down, sum_up
from dptoolkit.accounting.events import (
    ApproxDp,
    DiscreteGaussian,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NoisyMax,
    ObjectivePerturbation,
    PureDp,
    RandomizedResponse,
    SampledGroup,
    ShiftedZCdp,
    TruncatedPoisson,
    TwoSidedGeometric,
    ZCdp,
)
from dptoolkit.accounting.profiles import DominatingPair
from dptoolkit.accounting.report import number
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent
from dptoolkit.types import Array

# Mechanism, noise and sensitivity as text: the cells of an event in a table.
Words = tuple[str, str, str]


def _no_family(event: Event, factor: float) -> Event:
    raise UnsupportedEvent(f"event={event!r}: must be one whose noise can be scaled. Claim (epsilon, delta) instead.")


@dataclass(frozen=True)
class EventRules:
    """What the accountants use of one kind of elementary event.

    Attributes
    ----------
    words : callable
        Mechanism, noise and sensitivity, for tables.
    assumption : str, default ""
        What must be true of the mechanism, for the list of the guarantee.
    scaled : callable, optional
        The event of the same mechanism with its noise divided by a factor.
    dominating : callable or None, default None
        The pair that dominates it, with the record in the first place. None if no privacy-loss distribution is known.
    attained : callable or None, default None
        A pair that some neighbours attain. None if it is the dominating one.
    bits : callable or None, default None
        Bits of its outcome that some neighbours show with known probabilities, for a lower bound at a delta.
    renyi : callable or None, default None
        Its Renyi divergence at an array of orders > 1.
    rho : callable or None, default None
        Its zCDP parameter. None if it follows from the pure epsilon.
    pure : callable or None, default None
        Its epsilon at delta 0, for mechanisms that are pure by nature.
    failure : callable or None, default None
        The event that is left if it does not fail, and the probability that it fails. A failure reveals everything.
    mu : callable or None, default None
        Its mu, for a mechanism that is exactly Gaussian DP, so that several of them are one.
    bounded_range : callable or None, default None
        The length of the interval of its loss, for selections.
    generic : bool, default False
        Whether only its (epsilon, delta) is known, so that optimal composition is tight.
    at_centre : callable, optional
        The same mechanism for a record that is replaced by one that contributes nothing: half the sensitivity.
    group : callable or None, default None
        The event in which one record stands for k that change together. None if there is no such event.
    """

    words: Callable[[Any], Words]
    assumption: str = ""
    scaled: Callable[[Any, float], Event] = _no_family
    dominating: Callable[[Any], DominatingPair] | None = None
    attained: Callable[[Any], DominatingPair] | None = None
    bits: Callable[[Any, float], two_outcomes.Bits] | None = None
    renyi: Callable[[Any, Array], Array] | None = None
    rho: Callable[[Any], float] | None = None
    pure: Callable[[Any], float] | None = None
    failure: Callable[[Any], tuple[Event, float]] | None = None
    mu: Callable[[Any], float] | None = None
    bounded_range: Callable[[Any], float] | None = None
    generic: bool = False
    at_centre: Callable[[Any], Event] = lambda event: event
    group: Callable[[Any, int], Event] | None = None


# --- what several rows share ----------------------------------------------------------------------


def inverse(noise: float) -> float:
    """1 / noise, infinite for none."""
    return math.inf if noise == 0 else 1 / noise


def finite_pair(
    parameter: float, make: Callable[[float], DominatingPair], infinite_mass: float = 1.0
) -> DominatingPair:
    """The pair of a positive and finite parameter; at infinity everything is given away, at 0 nothing."""
    if math.isinf(parameter):
        return profiles.non_private(infinite_mass)
    return make(parameter) if parameter > 0 else profiles.identical()


def _approximate(event: ApproxDp) -> DominatingPair:
    """The worst (epsilon, delta)-DP pair: everything with probability delta, otherwise a randomised response."""
    if event.epsilon == 0:
        return profiles.non_private(event.delta)
    return finite_pair(event.epsilon, lambda x: profiles.randomized_response(x, infinite_mass=event.delta))


def _response(epsilon: float) -> DominatingPair:
    return finite_pair(epsilon, profiles.randomized_response)


def _gaussian_of(rho: float) -> DominatingPair:
    """Gaussian noise is rho-zCDP with rho = mu^2 / 2: one of the mechanisms that a zCDP event stands for.

    An infinite rho says that nothing is known of the mechanism, not that it gives everything away.
    """
    if math.isinf(rho):
        raise UnsupportedEvent(f"rho={rho!r}: must be finite for a pair that neighbours attain.")
    return finite_pair(math.sqrt(2 * rho) * (1 - 1e-15), profiles.gaussian)


def _less_noise(event: Any, factor: float) -> Event:
    return replace(event, noise_multiplier=event.noise_multiplier / factor if factor > 0 else math.inf)


def _more_epsilon(event: Any, factor: float) -> Event:
    return replace(event, epsilon=factor * event.epsilon)


def _times_epsilon(event: Any, size: int) -> Event:
    """A group's epsilon, never rounded down: an exact bound must stay one."""
    return replace(event, epsilon=sum_up([(size, event.epsilon)]))


def _half_epsilon(event: Any) -> Event:
    return replace(event, epsilon=event.epsilon / 2)


def _half_integer(event: TwoSidedGeometric) -> Event:
    half = event.sensitivity // 2
    return TwoSidedGeometric(event.epsilon * half / event.sensitivity, max(half, 1))


def _half_discrete(event: DiscreteGaussian) -> Event:
    half = event.sensitivity // 2
    return DiscreteGaussian(event.sigma, half) if half else DiscreteGaussian(math.inf)


def _words(event: Any, noise: str, sensitivity: str = "-") -> Words:
    return type(event).__name__, noise, sensitivity


def _epsilon_words(event: Any, sensitivity: str = "-") -> Words:
    return _words(event, f"epsilon {number(event.epsilon)}", sensitivity)


def _perturbation(event: ObjectivePerturbation) -> objective.Perturbation:
    return objective.Perturbation(inverse(event.noise_multiplier), event.jacobian, event.adjacency, event.signed)


def _perturbation_words(event: ObjectivePerturbation) -> Words:
    noise = f"multiplier {number(event.noise_multiplier)}, Jacobian {number(event.jacobian)}"
    return f"ObjectivePerturbation ({'signed' if event.signed else 'general'})", noise, "1 (L2)"


def _less_perturbed(event: ObjectivePerturbation, factor: float) -> Event:
    """The event with its noise divided by ``factor``.

    Noise does not change the term of the Jacobian. For factors below 1 it is reduced all the same, so that an audit's
    family of claims tends to a release of nothing as the factor goes to 0.
    """
    release = replace(event, jacobian=event.jacobian * min(factor, 1.0))
    return _less_noise(release, factor)


def _shifts(event: MixtureOfGaussians) -> tuple[Array, Array]:
    """The shifts per unit of noise and their probabilities, which add up to 1."""
    chances = np.array(event.probabilities)
    with np.errstate(over="ignore"):
        return np.array(event.sensitivities) / event.scale, chances / math.fsum(chances)


def _moved(event: MixtureOfGaussians) -> float:
    """The probability that the record moves the output at all."""
    return math.fsum(p for c, p in zip(event.sensitivities, event.probabilities, strict=True) if c > 0)


def _mixture(event: MixtureOfGaussians) -> DominatingPair:
    moved = min(_moved(event), 1.0)
    return finite_pair(
        inverse(event.scale) if moved > 0 else 0.0,
        lambda _: mixtures.gaussian_mixture(*_shifts(event)),
        infinite_mass=moved,
    )


def _mixture_renyi(event: MixtureOfGaussians, orders: Array) -> Array:
    if _moved(event) == 0 or math.isinf(event.scale):
        return np.zeros_like(orders)
    return mixtures.mixture_rdp(*_shifts(event), orders) if event.scale > 0 else np.full_like(orders, math.inf)


def _replaces(event: TruncatedPoisson) -> bool:
    return event.adjacency is Adjacency.REPLACE_ONE


def _truncated(event: TruncatedPoisson) -> DominatingPair:
    """Without noise the record gives itself away whenever it is in the batch, which is at most when it is sampled."""
    return finite_pair(
        inverse(event.noise_multiplier),
        lambda mu: truncation.truncated_poisson(
            mu, event.rate, event.records, event.batch_size, replace_one_record=_replaces(event)
        ),
        infinite_mass=event.rate,
    )


def _kept(event: TruncatedPoisson) -> DominatingPair:
    """All other records contribute nothing, so that the output shows only whether the record is in the batch."""
    rate = truncation.kept_rate(event.rate, event.records, event.batch_size)

    def pair(mu: float) -> DominatingPair:
        if 0 < rate < 1 and _replaces(event):
            return sampling.poisson_replace_one_gaussian(mu, rate)
        return sampling.poisson_zero_out(profiles.gaussian(mu), rate) if rate > 0 else profiles.identical()

    return finite_pair(inverse(event.noise_multiplier), pair, infinite_mass=rate)


def _truncated_renyi(event: TruncatedPoisson, orders: Array) -> Array:
    z = event.noise_multiplier
    if event.rate == 0 or math.isinf(z):
        return np.zeros_like(orders)
    if z == 0:
        return np.full_like(orders, math.inf)
    return truncation.truncated_poisson_rdp(
        z, event.rate, event.records, event.batch_size, orders, replace_one_record=_replaces(event)
    )


_REAL_NOISE = "bounded as stated; noise is real-valued (floating point is idealised)"
_INTEGER = "the query is an integer with the stated integer sensitivity"
_RANGE = "score differences move by at most the stated range"


# --- the table ------------------------------------------------------------------------------------

RULES: dict[type[Event], EventRules] = {
    Gaussian: EventRules(
        words=lambda e: _words(e, f"multiplier {number(e.noise_multiplier)}", "1 (L2)"),
        assumption=f"L2 sensitivity {_REAL_NOISE}",
        scaled=_less_noise,
        dominating=lambda e: finite_pair(inverse(e.noise_multiplier), profiles.gaussian),
        renyi=lambda e, orders: renyi.gaussian(e.noise_multiplier, orders),
        rho=lambda e: zcdp.gaussian(e.noise_multiplier),
        mu=lambda e: inverse(e.noise_multiplier),
        group=lambda e, size: replace(e, noise_multiplier=part_down(e.noise_multiplier, size)),
    ),
    Laplace: EventRules(
        words=lambda e: _words(e, f"multiplier {number(e.noise_multiplier)}", "1 (L1)"),
        assumption=f"L1 sensitivity {_REAL_NOISE}",
        scaled=_less_noise,
        dominating=lambda e: finite_pair(inverse_up(e.noise_multiplier), profiles.laplace),
        renyi=lambda e, orders: renyi.laplace(e.noise_multiplier, orders),
        pure=lambda e: inverse_up(e.noise_multiplier),
        at_centre=lambda e: Laplace(2 * e.noise_multiplier),
        group=lambda e, size: replace(e, noise_multiplier=part_down(e.noise_multiplier, size)),
    ),
    TwoSidedGeometric: EventRules(
        words=lambda e: _epsilon_words(e, f"{e.sensitivity} (integer)"),
        assumption=_INTEGER,
        scaled=_more_epsilon,
        dominating=lambda e: finite_pair(e.epsilon, lambda x: profiles.two_sided_geometric(x, e.sensitivity)),
        renyi=lambda e, orders: renyi.two_sided_geometric(e.epsilon, e.sensitivity, orders),
        pure=lambda e: e.epsilon,
        at_centre=_half_integer,
        group=lambda e, size: _times_epsilon(replace(e, sensitivity=size * e.sensitivity), size),
    ),
    DiscreteGaussian: EventRules(
        words=lambda e: _words(e, f"sigma {number(e.sigma)}", f"{e.sensitivity} (integer)"),
        assumption=_INTEGER,
        scaled=lambda e, factor: replace(e, sigma=e.sigma / factor if factor > 0 else math.inf),
        dominating=lambda e: finite_pair(
            inverse(e.sigma), lambda _: profiles.discrete_gaussian(e.sigma, e.sensitivity)),
        renyi=lambda e, orders: renyi.discrete_gaussian(e.sigma, e.sensitivity, orders),
        rho=lambda e: zcdp.discrete_gaussian(e.sigma, e.sensitivity),
        at_centre=_half_discrete,
        group=lambda e, size: replace(e, sensitivity=size * e.sensitivity),
    ),
    RandomizedResponse: EventRules(
        words=_epsilon_words,
        scaled=_more_epsilon,
        dominating=lambda e: finite_pair(e.epsilon, lambda x: profiles.randomized_response(x, e.categories)),
        renyi=lambda e, orders: renyi.randomized_response(e.epsilon, orders, e.categories),
        pure=lambda e: e.epsilon,
    ),
    ExponentialMechanism: EventRules(
        words=_epsilon_words,
        assumption=f"{_RANGE}; Gumbel noise or exact sampling",
        scaled=_more_epsilon,
        dominating=lambda e: finite_pair(e.epsilon, profiles.bounded_range),
        attained=lambda e: finite_pair(e.epsilon, lambda x: profiles.randomized_response(x / 2)),
        renyi=lambda e, orders: renyi.exponential_mechanism(e.epsilon, orders),
        rho=lambda e: selection.bounded_range_rho(e.epsilon),
        pure=lambda e: e.epsilon,
        bounded_range=lambda e: e.epsilon,
        at_centre=_half_epsilon,
        group=_times_epsilon,
    ),
    NoisyMax: EventRules(
        words=lambda e: (f"NoisyMax ({e.noise})", f"epsilon {number(e.epsilon)}", "range 1"),
        assumption=_RANGE,
        scaled=_more_epsilon,
        dominating=lambda e: _response(e.epsilon),
        attained=lambda e: _response(selection.two_candidates(e.epsilon, e.noise)),
        bits=lambda e, delta: two_outcomes.noisy_max(e.epsilon, e.noise, delta),
        renyi=lambda e, orders: renyi.randomized_response(e.epsilon, orders),
        pure=lambda e: e.epsilon,
        generic=True,
        at_centre=_half_epsilon,
        group=_times_epsilon,
    ),
    PureDp: EventRules(
        words=_epsilon_words,
        scaled=_more_epsilon,
        dominating=lambda e: _response(e.epsilon),
        renyi=lambda e, orders: renyi.randomized_response(e.epsilon, orders),
        pure=lambda e: e.epsilon,
        generic=True,
        group=_times_epsilon,
    ),
    ApproxDp: EventRules(
        words=lambda e: _words(e, f"epsilon {number(e.epsilon)}, delta {number(e.delta)}"),
        scaled=_more_epsilon,
        dominating=_approximate,
        failure=lambda e: (PureDp(e.epsilon), e.delta),
        generic=True,
    ),
    ObjectivePerturbation: EventRules(
        words=_perturbation_words,
        assumption=f"gradients and curvature of one record {_REAL_NOISE}",
        scaled=_less_perturbed,
        dominating=lambda e: objective.pair(_perturbation(e)),
        attained=lambda e: objective.floor_pair(_perturbation(e)),
        renyi=lambda e, orders: objective.renyi(_perturbation(e), orders),
        at_centre=lambda e: replace(e, noise_multiplier=2 * e.noise_multiplier),
    ),
    SampledGroup: EventRules(
        words=lambda e: _words(
            e, f"multiplier {number(e.noise_multiplier)}, rate {number(e.rate)}, {e.size:,} records", "1 (L2)"),
        assumption=(
            "sampling: a fresh batch, each record independently, kept secret; adjacency zero-out: the records of the "
            f"group may all be sampled, or all contribute nothing; L2 sensitivity {_REAL_NOISE}"),
        scaled=_less_noise,
        dominating=lambda e: finite_pair(
            inverse(e.noise_multiplier), lambda mu: sampling.group(mu, e.rate, e.size),
            infinite_mass=sampling.any_sampled(e.rate, e.size)),
        renyi=lambda e, orders: sampling.group_rdp(e.noise_multiplier, e.rate, e.size, orders),
        group=lambda e, size: replace(e, size=size * e.size),
    ),
    MixtureOfGaussians: EventRules(
        words=lambda e: _words(
            e, f"scale {number(e.scale)}, {len(e.sensitivities)} shifts", f"up to {number(max(e.sensitivities))}"),
        assumption=(
            "adjacency zero-out: without the record the output is not shifted; with it the shift is drawn as stated, "
            "independently of the data, and kept secret; noise is real-valued (floating point is idealised)"),
        scaled=lambda e, factor: replace(e, scale=e.scale / factor if factor > 0 else math.inf),
        dominating=_mixture,
        renyi=_mixture_renyi,
    ),
    TruncatedPoisson: EventRules(
        words=lambda e: _words(
            e, f"multiplier {number(e.noise_multiplier)}, rate {number(e.rate)}, at most {e.batch_size:,} of "
            f"{e.records:,} records", "1 (L2)"),
        assumption=(
            "sampling: a fresh Poisson sample, cut down to the batch size by a uniform choice, kept secret; the number "
            f"of records is public; L2 sensitivity {_REAL_NOISE}"),
        scaled=_less_noise,
        dominating=_truncated,
        attained=_kept,
        renyi=_truncated_renyi,
    ),
    ShiftedZCdp: EventRules(
        words=lambda e: _words(e, f"rho {number(e.rho)}, xi {number(e.xi)}"),
        scaled=lambda e, factor: replace(e, rho=factor * factor * e.rho, xi=factor * factor * e.xi),
        attained=lambda e: _gaussian_of(e.rho),
        renyi=lambda e, orders: e.xi + e.rho * orders,
    ),
    ZCdp: EventRules(
        words=lambda e: _words(e, f"rho {number(e.rho)}"),
        scaled=lambda e, factor: replace(e, rho=factor * factor * e.rho),
        attained=lambda e: _gaussian_of(e.rho),
        renyi=lambda e, orders: e.rho * orders,
        rho=lambda e: e.rho,
        group=lambda e, size: replace(e, rho=sum_up([(size * size, e.rho)])),
    ),
}  # fmt: skip

# The row of an event without one: nothing is known but its name, so no accountant takes it.
_UNKNOWN = EventRules(words=lambda e: _words(e, "-"))


def rules_of(event: Event) -> EventRules:
    """The row of an elementary event; a subclass has that of its parent."""
    return next((RULES[kind] for kind in type(event).__mro__ if kind in RULES), _UNKNOWN)
