"""``google.Accountant``: a dp_accounting.PrivacyAccountant whose answers are those of ``account``."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation, dp_event, privacy_accountant
from scipy.special import ndtri

from dptoolkit._validate import invalid, probability, real, whole
from dptoolkit.accounting import pld, rdp, tradeoff
from dptoolkit.accounting._google_events import from_google
from dptoolkit.accounting.events import Composed, Event, Repeated, flatten
from dptoolkit.accounting.guarantee import Guarantee, account
from dptoolkit.accounting.structure import all_gaussian, total_mu, without_failures
from dptoolkit.errors import DpToolkitError, UnsupportedEvent
from dptoolkit.types import Array

_Details = privacy_accountant.PrivacyAccountant.CompositionErrorDetails
# An epsilon that no loss exceeds that is not infinite, for the delta that is left at infinity.
_BEYOND = 1e300
# The false-positive rates at which dp_accounting compares with Gaussian noise.
_RATES = (1e-12, 0.5, 500)


class Accountant(privacy_accountant.PrivacyAccountant):
    """Composes dp_accounting's events and answers with the tightest sound bound known here.

    It takes the place of PLDAccountant and RdpAccountant, and accepts what either of them accepts.

    Parameters
    ----------
    neighboring_relation : dp_accounting.NeighboringRelation, default ADD_OR_REMOVE_ONE
        The relation that holds for all events. Noise multipliers are noise / norm bound of one record, as always in
        dp_accounting; under REPLACE_ONE the sum moves by two norm bounds, which is accounted for.

    Privacy
    -------
    Touches no data. What cannot be bounded soundly is refused by ``supports`` and ``compose``, with the reason.
    """

    def __init__(self, neighboring_relation: Any = NeighboringRelation.ADD_OR_REMOVE_ONE) -> None:
        super().__init__(neighboring_relation)
        self._counts: dict[Event, int] = {}

    @property
    def guarantee(self) -> Guarantee:
        """What has been composed so far, as a guarantee: its table, its trade-off curve, its event."""
        event = Composed(*(Repeated(part, count) for part, count in self._counts.items()))
        return account(event)

    def compose(self, event: Any, count: int = 1) -> Accountant:
        """Adds ``count`` applications of ``event``; an error adds nothing."""
        if not isinstance(event, dp_event.DpEvent):
            raise TypeError(f"event={event!r}: must be a dp_accounting.DpEvent.")
        super().compose(event, whole("count", count, low=1))
        return self

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        problem = _inside(event, self.neighboring_relation)
        if problem is not None:
            return problem
        parts = flatten(from_google(event, self.neighboring_relation))
        if not do_compose:
            return self._together(event, [part for part, _ in parts])
        for part, times in parts:
            self._counts[part] = self._counts.get(part, 0) + count * times
        return None

    def _together(self, event: Any, parts: list[Event]) -> Any:
        """None if one method takes all parts, those composed before and the new ones."""
        ways = [_ways(part) for part in {*self._counts, *parts}]
        if not ways or frozenset.intersection(*ways):
            return None
        return _Details(event, "no method takes this event together with those composed before")

    def get_epsilon(self, target_delta: float) -> float:
        """The smallest epsilon known to hold at ``target_delta``; infinite after a release that is not private."""
        delta = probability("target_delta", target_delta)
        if delta < 1:
            return self.guarantee.epsilon(delta)
        # At delta 1 everything holds. dp_accounting reports a release without noise all the same.
        return math.inf if self._non_private() else 0.0

    def get_delta(self, target_epsilon: float) -> float:
        """The smallest delta known to hold at ``target_epsilon``, which may be negative or infinite."""
        epsilon = real("target_epsilon", target_epsilon)
        with np.errstate(over="ignore"):
            delta = self.guarantee.delta(min(abs(epsilon), _BEYOND))
        if math.isinf(epsilon) and epsilon > 0:
            # What is left is the probability of an infinite loss. Gaussian noise has none, but never reaches 0.
            return 0.0 if delta <= math.ulp(0.0) else delta
        # H_a(P||Q) = 1 - a + a H_(1/a)(Q||P), and delta is the larger one of both orders.
        return delta if epsilon >= 0 else min(-math.expm1(epsilon) + math.exp(epsilon) * delta, 1.0)

    def get_true_positive_rates(self, false_positive_rates: Any, deltas: Any = None) -> Any:
        """The largest true-positive rate of any test at each false-positive rate.

        With ``deltas`` only the epsilons at these deltas are used; each of them gives a bound by itself.
        """
        rates = tradeoff.rates("false_positive_rates", false_positive_rates)
        if deltas is None:
            return tradeoff.shaped(1 - self.guarantee.tradeoff(rates), false_positive_rates)
        points = [(self.get_epsilon(float(d)), float(d)) for d in np.atleast_1d(deltas)]
        finite = [(e, d) for e, d in points if math.isfinite(e)]
        # A profile without points says nothing: the rate may be 1.
        profile = tradeoff.Profile(*np.array(finite).T) if finite else tradeoff.Profile(np.zeros(1), np.ones(1))
        return tradeoff.shaped(1 - tradeoff.below(profile, rates), false_positive_rates)

    def get_gdp_parameter_estimate(self, false_positive_rates: Any = None, deltas: Any = None) -> float:
        """An estimate of the smallest mu for which all this is mu-GDP; exact where every part is Gaussian.

        As in dp_accounting: the largest mu that the true-positive rates at these false-positive rates ask for, which
        may be below the true one between them; infinite if everything is given away more often than the least of them.
        Rates above 1/2 add nothing, because the curve is its own mirror image. Rate 0 has no finite quantile.
        """
        rates = _lower_half(false_positive_rates)
        event = self.guarantee.event
        if deltas is None and all_gaussian(event):
            return total_mu(event)
        if self.get_delta(math.inf) > rates.min():
            return math.inf
        return float(np.max(_quantiles(self.get_true_positive_rates(rates, deltas)) - _quantiles(rates)))

    def _non_private(self) -> bool:
        """Whether something was released as it is."""
        return self.get_delta(math.inf) == 1


def _lower_half(false_positive_rates: Any) -> Array:
    """The rates above 0 and up to 1/2; the default ones for None, an error if there is none."""
    if false_positive_rates is None:
        return np.geomspace(*_RATES)
    rates = tradeoff.rates("false_positive_rates", false_positive_rates)
    useful = rates[(rates > 0) & (rates <= 0.5)]
    if useful.size == 0:
        raise invalid("false_positive_rates", false_positive_rates, "above 0 and up to 0.5 for at least one rate")
    return useful


def _quantiles(rates: Array) -> Array:
    return np.asarray(ndtri(rates))


def _inside(event: Any, relation: Any) -> Any:
    """Where and why ``event`` cannot be converted, None if it can; compositions are looked into."""
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return _inside(event.event, relation)
    if isinstance(event, dp_event.ComposedDpEvent):
        return next((found for part in event.events if (found := _inside(part, relation)) is not None), None)
    try:
        parts = flatten(from_google(event, relation))
        for part, _ in parts:
            _ways(part)
    except (DpToolkitError, TypeError) as problem:
        return _Details(event, str(problem))
    return None


@lru_cache(maxsize=4096)
def _ways(part: Event) -> frozenset[str]:
    """The methods, of the two that compose everything, that take a part; UnsupportedEvent if neither does."""
    rest, _ = without_failures(part)
    ways, refused = set[str](), list[UnsupportedEvent]()
    for name, attempt in (("pld", lambda: pld.divergences(rest)), ("rdp", lambda: rdp.composed(rest, np.array([2.0])))):
        try:
            attempt()
            ways.add(name)
        except UnsupportedEvent as problem:
            refused.append(problem)
    if not ways:
        raise refused[-1]
    return frozenset(ways)
