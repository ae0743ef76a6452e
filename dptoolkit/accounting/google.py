"""Events to and from Google's dp_accounting, around the places where it reports too little.

dp_accounting 0.6 under-reports in three cases, and each is mapped around here:

- its RDP accountant counts a repeated ExponentialMechanismDpEvent once: selections go over as zCDP events;
- its PLD accountant counts a repeated RandomizedResponseDpEvent once: such events are listed one by one;
- its RDP accountant ignores that replacing a record doubles the sensitivity: sampling under replace-one goes to PLD
  only, and randomised responses, which it takes under replace-one alone, go to it unmixed.

Noise multipliers there are per norm bound of a record, here per sensitivity: under replace-one theirs is twice ours.
dp_accounting is imported on use.
"""

from __future__ import annotations

import math
from typing import Any

from dptoolkit._validate import delta_value, missing, one_of
from dptoolkit.accounting.events import (
    POISSON,
    WITHOUT_REPLACEMENT,
    BestOf,
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMax,
    PureDp,
    RandomizedResponse,
    Repeated,
    Subsampled,
    TwoSidedGeometric,
    ZCdp,
    adjacency_of,
    as_event,
    flatten,
)
from dptoolkit.accounting.pld import as_single
from dptoolkit.accounting.rounds import Poisson, TruncatedNegativeBinomial
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent

ACCOUNTANTS = ("pld", "rdp")
# Events that must be listed one by one: more than this is a sign to account for them here.
_LONGEST_LIST = 10_000
_RESPONSES = (PureDp, NoisyMax, RandomizedResponse)


def to_google(event: Event, accountant: str = "pld") -> Any:
    """The DpEvent to give to dp_accounting's accountant of that kind, made with ``relation(event, accountant)``."""
    dp_event, replaced = _module(), _is_replaced(event, accountant)
    parts: list[Any] = []
    for part, count in flatten(event):
        parts += _repeated(dp_event, _one(dp_event, part, accountant, replaced), count, accountant)
    if not parts:
        return dp_event.NoOpDpEvent()
    return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)


def _is_replaced(event: Event, accountant: str) -> bool:
    """Whether their accountant must be told REPLACE_ONE: the sampling says so, or a randomised response needs it."""
    one_of("accountant", accountant, ACCOUNTANTS)
    adjacency = adjacency_of(as_event("event", event))
    leaves = _leaves(event)
    responses = [e for e in leaves if isinstance(e, _RESPONSES)]
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
    """The elementary events, those inside a BestOf included; a sampled one counts as one."""
    found: list[Event] = []
    for part, _ in flatten(event):
        found += _leaves(part.event) if isinstance(part, BestOf) else [part]
    return found


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


def _one(dp_event: Any, event: Event, accountant: str, replaced: bool) -> Any:
    """One application of an elementary event."""
    if isinstance(event, Gaussian):
        return _additive(dp_event, dp_event.GaussianDpEvent, (2 if replaced else 1) * event.noise_multiplier)
    if isinstance(event, Laplace) and not replaced:
        return _additive(dp_event, dp_event.LaplaceDpEvent, event.noise_multiplier)
    if isinstance(event, TwoSidedGeometric) and accountant == "pld" and not replaced and 0 < event.epsilon < math.inf:
        return dp_event.DiscreteLaplaceDpEvent(event.epsilon / event.sensitivity, event.sensitivity)
    if isinstance(event, ZCdp) and accountant == "rdp":
        return dp_event.ZCDpEvent(event.rho)
    if isinstance(event, ExponentialMechanism) and accountant == "rdp":
        return dp_event.ZCDpEvent(event.epsilon**2 / 8)
    if isinstance(event, _RESPONSES):
        return _response(dp_event, event)
    if isinstance(event, Subsampled) and event.scheme == POISSON:
        return _poisson(dp_event, event, accountant, replaced)
    if isinstance(event, BestOf) and accountant == "rdp" and event.runs.mean >= 1:
        shape = math.inf if isinstance(event.runs, Poisson) else event.runs.eta  # type: ignore[attr-defined]
        if shape >= 0:
            return dp_event.RepeatAndSelectDpEvent(to_google(event.event, "rdp"), event.runs.mean, shape)
    raise UnsupportedEvent(
        f"event={event!r}: must be one that dp_accounting's {accountant} accountant bounds soundly. Use account() here."
    )


def _additive(dp_event: Any, cls: Any, noise: float) -> Any:
    """Noise added to a sum; theirs has events of their own for none of it and for nothing but it."""
    if noise == 0:
        return dp_event.NonPrivateDpEvent()
    return dp_event.NoOpDpEvent() if math.isinf(noise) else cls(noise)


def _response(dp_event: Any, event: PureDp | NoisyMax | RandomizedResponse) -> Any:
    """Randomised response, which is also the worst pure mechanism of its epsilon."""
    categories = event.categories if isinstance(event, RandomizedResponse) else 2
    # Theirs answers at random with this probability, and truly otherwise.
    odds = math.exp(-event.epsilon)
    return dp_event.RandomizedResponseDpEvent(categories * odds / (1 + (categories - 1) * odds), categories)


def _poisson(dp_event: Any, event: Subsampled, accountant: str, replaced: bool) -> Any:
    base = as_single(event)
    if not (isinstance(base, Gaussian) or isinstance(base, Laplace) and accountant == "pld" and not replaced):
        raise UnsupportedEvent(f"event={event!r}: must be Gaussian inside for dp_accounting. Use account() here.")
    inner = _one(dp_event, base, accountant, replaced)
    if isinstance(inner, dp_event.NoOpDpEvent):
        return inner
    return dp_event.PoissonSampledDpEvent(event.rate, inner)


def relation(event: Event, accountant: str = "pld") -> Any:
    """The NeighboringRelation that ``to_google(event, accountant)`` is written for."""
    neighbours = _package().NeighboringRelation
    # An unsampled event is already stated per sensitivity: add/remove leaves it as it is.
    return neighbours.REPLACE_ONE if _is_replaced(event, accountant) else neighbours.ADD_OR_REMOVE_ONE


def epsilon(event: Event, delta: float, accountant: str = "pld", **options: Any) -> float:
    """Epsilon by dp_accounting; ``options`` go to its accountant (for example value_discretization_interval)."""
    delta = delta_value(delta)
    record = to_google(event, accountant)
    if accountant == "pld":
        from dp_accounting.pld import PLDAccountant as Accountant
    else:
        from dp_accounting.rdp import RdpAccountant as Accountant
    made = Accountant(neighboring_relation=relation(event, accountant), **options)
    if not made.supports(record):
        raise UnsupportedEvent(f"event={event!r}: must be supported by this version of dp_accounting.")
    return float(made.compose(record).get_epsilon(delta))


def from_google(record: Any, neighboring_relation: Any = None) -> Event:
    """The event of a DpEvent that was accounted for under ``neighboring_relation`` (default: add or remove one)."""
    package, dp_event = _package(), _module()
    neighbours = package.NeighboringRelation
    replaced = neighboring_relation == neighbours.REPLACE_ONE
    return _event(dp_event, record, replaced)


def _event(dp_event: Any, record: Any, replaced: bool) -> Event:
    # Replacing a record moves a sum by twice the norm bound, so our multiplier is half of theirs.
    half = 0.5 if replaced else 1.0
    if isinstance(record, dp_event.NoOpDpEvent):
        return Composed()
    if isinstance(record, dp_event.NonPrivateDpEvent):
        return Gaussian(0.0)
    if isinstance(record, dp_event.GaussianDpEvent):
        return Gaussian(half * record.noise_multiplier)
    if isinstance(record, dp_event.LaplaceDpEvent):
        return Laplace(half * record.noise_multiplier)
    if isinstance(record, dp_event.DiscreteLaplaceDpEvent) and not replaced:
        return TwoSidedGeometric(record.noise_parameter * record.sensitivity, record.sensitivity)
    if isinstance(record, dp_event.RandomizedResponseDpEvent):
        p, k = record.noise_parameter, record.num_buckets
        if k == 1:
            return Composed()
        return RandomizedResponse(math.log((1 - p + p / k) / (p / k)) if p > 0 else math.inf, k)
    if isinstance(record, dp_event.ZCDpEvent) and record.xi == 0:
        return ZCdp(record.rho)
    if hasattr(dp_event, "ExponentialMechanismDpEvent") and isinstance(record, dp_event.ExponentialMechanismDpEvent):
        return ExponentialMechanism(record.epsilon)
    return _nested(dp_event, record, replaced)


def _nested(dp_event: Any, record: Any, replaced: bool) -> Event:
    if isinstance(record, dp_event.SelfComposedDpEvent):
        return Repeated(_event(dp_event, record.event, replaced), record.count)
    if isinstance(record, dp_event.ComposedDpEvent):
        return Composed(*(_event(dp_event, part, replaced) for part in record.events))
    adjacency = Adjacency.REPLACE_ONE if replaced else Adjacency.ZERO_OUT
    if isinstance(record, dp_event.PoissonSampledDpEvent):
        return Subsampled(_event(dp_event, record.event, replaced), POISSON, record.sampling_probability, adjacency)
    if isinstance(record, dp_event.SampledWithoutReplacementDpEvent):
        rate = record.sample_size / record.source_dataset_size
        return Subsampled(_event(dp_event, record.event, replaced), WITHOUT_REPLACEMENT, rate, adjacency)
    if isinstance(record, dp_event.RepeatAndSelectDpEvent):
        return BestOf(_event(dp_event, record.event, replaced), _runs(record.mean, record.shape))
    raise UnsupportedEvent(
        f"event={record!r}: must have a counterpart here under this neighbouring relation. "
        "Describe the release with dptoolkit.accounting events instead."
    )


def _runs(mean: float, shape: float) -> Poisson | TruncatedNegativeBinomial:
    """The law of the number of runs with that mean; gamma by bisection, as the mean falls in it."""
    if math.isinf(shape):
        return Poisson(mean)
    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if TruncatedNegativeBinomial(shape, middle).mean > mean else (low, middle)
    return TruncatedNegativeBinomial(shape, 0.5 * (low + high))


def _package() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise missing("dp-accounting", "test", "to exchange events with it") from None
    return dp_accounting


def _module() -> Any:
    _package()
    from dp_accounting import dp_event

    return dp_event
