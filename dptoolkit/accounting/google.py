"""Conversion of events to and from Google's dp_accounting, avoiding the cases in which it reports too little.

dp_accounting reports too small an epsilon in three cases, each of which is avoided here:

- its RDP accountant counts a repeated ExponentialMechanismDpEvent once, which is newer than version 0.6: selections are
  sent as zCDP events;
- its PLD accountant counts a repeated RandomizedResponseDpEvent once: such events are listed one by one;
- its RDP accountant ignores that replacing a record doubles the sensitivity: sampling under replace-one is sent to
  the PLD accountant only. The RDP accountant accepts randomised responses under replace-one alone, so there they are
  never mixed with other mechanisms.

``Accountant`` is a dp_accounting.PrivacyAccountant that answers by the methods here, so that programs that take one,
such as jax_privacy and TensorFlow Privacy, need to change one line.

A noise multiplier of dp_accounting is noise / norm bound of a record, one of ours is noise / sensitivity: under
replace-one dp_accounting's is twice ours. The package is imported on first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dptoolkit._validate import delta_value, one_of
from dptoolkit.accounting._google_events import from_google, half, module, package
from dptoolkit.accounting.events import (
    POISSON,
    BestOf,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMax,
    PureDp,
    RandomizedResponse,
    Subsampled,
    TwoSidedGeometric,
    ZCdp,
    adjacency_of,
    as_event,
    flatten,
)
from dptoolkit.accounting.rounds import Poisson
from dptoolkit.accounting.structure import as_single, is_gaussian, total_rho
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent

if TYPE_CHECKING:
    from dptoolkit.accounting._google_accountant import Accountant as Accountant

__all__ = ["ACCOUNTANTS", "Accountant", "epsilon", "from_google", "relation", "to_google"]

ACCOUNTANTS = ("pld", "rdp")
# The most events that are listed one by one; for more, the error message recommends account() here.
_LONGEST_LIST = 10_000


class _Way(NamedTuple):
    """The target of a conversion: dp_accounting's module of events, its accountant, and whether under REPLACE_ONE."""

    dp_event: Any
    accountant: str
    replace_one: bool


def to_google(event: Event, accountant: str = "pld") -> Any:
    """The DpEvent for dp_accounting's ``accountant``, which must be built with ``relation(event, accountant)``."""
    dp_event, replace_one = module(), _is_replace_one(event, accountant)
    way, parts = _Way(dp_event, accountant, replace_one), list[Any]()
    for part, count in flatten(event):
        parts += _repeated(dp_event, _one(way, part), count, accountant)
    if not parts:
        return dp_event.NoOpDpEvent()
    return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)


def _is_replace_one(event: Event, accountant: str) -> bool:
    """Whether dp_accounting must be told REPLACE_ONE: the sampling fixes it, or a randomised response needs it."""
    one_of("accountant", accountant, ACCOUNTANTS)
    adjacency = adjacency_of(as_event("event", event))
    leaves = _leaves(event)
    responses = [e for e in leaves if _THERE.get(type(e)) is _response]
    if responses and (adjacency is Adjacency.ZERO_OUT or accountant == "rdp" and len(responses) < len(leaves)):
        what = "zero-out sampling" if adjacency is Adjacency.ZERO_OUT else "other mechanisms"
        raise UnsupportedEvent(
            f"event={event!r}: must not mix {what} with randomised responses there. Use account() here."
        )
    if accountant == "rdp" and adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedEvent(
            f"event={event!r}: must not be under replace-one for their RDP accountant, which ignores it. "
            "Use accountant='pld', or account() here."
        )
    return bool(responses) or adjacency is Adjacency.REPLACE_ONE


def _leaves(event: Event) -> list[Event]:
    """The elementary events, including those inside a BestOf; a sampled event counts as elementary."""
    leaves: list[Event] = []
    for part, _ in flatten(event):
        leaves += _leaves(part.event) if isinstance(part, BestOf) else [part]
    return leaves


def _repeated(dp_event: Any, one: Any, count: int, accountant: str) -> list[Any]:
    if count == 1:
        return [one]
    if accountant == "rdp" or not isinstance(one, dp_event.RandomizedResponseDpEvent):
        return [dp_event.SelfComposedDpEvent(one, count)]
    if count > _LONGEST_LIST:
        raise UnsupportedEvent(
            f"count={count}: must be <= {_LONGEST_LIST} for events that dp_accounting counts once. Use account() here."
        )
    return [one] * count


def _one(way: _Way, event: Event) -> Any:
    """The DpEvent of one application of an elementary event."""
    rule = _THERE.get(type(event))
    record = None if rule is None else rule(way, event)
    if record is None:
        raise UnsupportedEvent(
            f"event={event!r}: must be one that dp_accounting's {way.accountant} accountant bounds soundly. "
            "Use account() here."
        )
    return record


def _additive(way: _Way, cls: Any, noise: float) -> Any:
    """Noise added to a sum. dp_accounting has separate events for noise 0 and for infinite noise."""
    if noise == 0:
        return way.dp_event.NonPrivateDpEvent()
    return way.dp_event.NoOpDpEvent() if math.isinf(noise) else cls(noise)


def _laplace(way: _Way, event: Laplace) -> Any:
    return None if way.replace_one else _additive(way, way.dp_event.LaplaceDpEvent, event.noise_multiplier)


def _discrete_laplace(way: _Way, event: TwoSidedGeometric) -> Any:
    if way.accountant == "pld" and not way.replace_one and 0 < event.epsilon < math.inf:
        return way.dp_event.DiscreteLaplaceDpEvent(event.epsilon / event.sensitivity, event.sensitivity)
    return None


def _zcdp(way: _Way, event: Event) -> Any:
    return way.dp_event.ZCDpEvent(total_rho(event)) if way.accountant == "rdp" else None


def _response(way: _Way, event: PureDp | NoisyMax | RandomizedResponse) -> Any:
    """Randomised response, which is also the worst pure mechanism of its epsilon."""
    categories = getattr(event, "categories", 2)
    # dp_accounting's parameter is the probability of a uniformly random answer; otherwise the answer is true.
    odds = math.exp(-event.epsilon)
    return way.dp_event.RandomizedResponseDpEvent(categories * odds / (1 + (categories - 1) * odds), categories)


def _poisson(way: _Way, event: Subsampled) -> Any:
    if event.scheme != POISSON:
        return None
    base = as_single(event)
    if not (is_gaussian(base) or type(base) is Laplace and way.accountant == "pld" and not way.replace_one):
        raise UnsupportedEvent(f"event={event!r}: must be Gaussian inside for dp_accounting. Use account() here.")
    inner = _one(way, base)
    if isinstance(inner, way.dp_event.NoOpDpEvent):
        return inner
    return way.dp_event.PoissonSampledDpEvent(event.rate, inner)


def _best_of(way: _Way, event: BestOf) -> Any:
    if way.accountant != "rdp" or event.runs.mean < 1:
        return None
    shape = math.inf if isinstance(event.runs, Poisson) else event.runs.eta  # type: ignore[attr-defined]
    if shape < 0:
        return None
    return way.dp_event.RepeatAndSelectDpEvent(to_google(event.event, "rdp"), event.runs.mean, shape)


# For each of our events the rule that gives dp_accounting's; None where that accountant has no sound bound for it.
_THERE: dict[type[Event], Callable[[_Way, Any], Any]] = {
    Gaussian: lambda way, e: _additive(way, way.dp_event.GaussianDpEvent, e.noise_multiplier / half(way.replace_one)),
    Laplace: _laplace,
    TwoSidedGeometric: _discrete_laplace,
    ZCdp: _zcdp,
    ExponentialMechanism: _zcdp,
    RandomizedResponse: _response,
    PureDp: _response,
    NoisyMax: _response,
    Subsampled: _poisson,
    BestOf: _best_of,
}


def relation(event: Event, accountant: str = "pld") -> Any:
    """The NeighboringRelation that ``to_google(event, accountant)`` is written for."""
    neighbours = package().NeighboringRelation
    # Without sampling our multipliers are already noise / sensitivity, which add/remove does not change.
    return neighbours.REPLACE_ONE if _is_replace_one(event, accountant) else neighbours.ADD_OR_REMOVE_ONE


def epsilon(event: Event, delta: float, accountant: str = "pld", **options: Any) -> float:
    """Epsilon by dp_accounting; ``options`` go to its accountant (for example value_discretization_interval)."""
    delta = delta_value(delta)
    record = to_google(event, accountant)
    if accountant == "pld":
        from dp_accounting.pld import PLDAccountant as Accountant
    else:
        from dp_accounting.rdp import RdpAccountant as Accountant
    instance = Accountant(neighboring_relation=relation(event, accountant), **options)
    if not instance.supports(record):
        raise UnsupportedEvent(f"event={event!r}: must be supported by this version of dp_accounting.")
    return float(instance.compose(record).get_epsilon(delta))


def __getattr__(name: str) -> Any:
    """``Accountant`` on first use, because its base class is dp_accounting's."""
    if name != "Accountant":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package()
    from dptoolkit.accounting._google_accountant import Accountant

    return Accountant
