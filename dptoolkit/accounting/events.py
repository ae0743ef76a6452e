"""What was released: frozen records, with nothing about how to account for them.

Rules that keep old ledgers readable: an event is never removed, its fields never change meaning, and a new
field has a default that means what the event meant before. A new meaning is a new class.

Every ``noise_multiplier`` is noise scale divided by the SENSITIVITY under the adjacency that the release was
planned for, never by a clipping norm. Counts live in Repeated alone, and ``flatten`` is the one place where they
are applied.

Long because it holds every event and no formula: one record each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dptoolkit._validate import (
    delta_value,
    flag,
    invalid,
    nonnegative,
    one_of,
    probability,
    whole,
)
from dptoolkit.accounting import rounds
from dptoolkit.accounting.rounds import RunCountLaw
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import InvalidValue, UnsupportedEvent

_NOISE_REPAIR = "It is noise scale / sensitivity; 0 means no noise."
# Counts are whole numbers of any size, but the accountants compute with floats, which end at 1e308.
_LARGEST_COUNT = 1e100
POISSON = "poisson"
WITHOUT_REPLACEMENT = "without-replacement"
# Events are walked by recursion, whose depth must be bounded; no real release is nested this deep.
_DEEPEST = 100
# How far the sum of a mixture's probabilities may be from 1, by rounding.
_LARGEST_GAP = 1e-9


class Event:
    """Base of all events."""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``from_dict`` reads it back."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"type": type(self).__name__} | {k: _encode(v) for k, v in fields.items()}


@dataclass(frozen=True)
class Gaussian(Event):
    """q + N(0, s^2 I) for a query of L2 sensitivity D, with noise_multiplier = s / D.

    Noise multiplier 0 is a release without noise (epsilon is infinite), infinity is a release of nothing.

    Parameters
    ----------
    noise_multiplier : float
        Noise scale / L2 sensitivity; 0 means no noise.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _set(self, noise_multiplier=nonnegative("noise_multiplier", self.noise_multiplier, _NOISE_REPAIR))


@dataclass(frozen=True)
class Laplace(Event):
    """q + iid Laplace(b) for a query of L1 sensitivity D, with noise_multiplier = b / D: 1/noise_multiplier-DP.

    Parameters
    ----------
    noise_multiplier : float
        Noise scale / L1 sensitivity; 0 means no noise.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _set(self, noise_multiplier=nonnegative("noise_multiplier", self.noise_multiplier, _NOISE_REPAIR))


@dataclass(frozen=True)
class TwoSidedGeometric(Event):
    """An INTEGER query of integer sensitivity D plus X, P(X=k) = (1-q)/(1+q) q^|k|, q = exp(-epsilon/D).

    Parameters
    ----------
    epsilon : float
        The epsilon of one release.
    sensitivity : int, default 1
        The largest change of the query between neighbours.
    """

    epsilon: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        _set(self, epsilon=nonnegative("epsilon", self.epsilon))
        repair = "Integer noise hides an integer query only: round the query, or use Laplace."
        _set(self, sensitivity=whole("sensitivity", self.sensitivity, low=1, repair=repair))


@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """An INTEGER query of integer sensitivity D plus X, P(X=k) proportional to exp(-k^2 / (2 sigma^2)).

    Canonne, Kamath and Steinke 2020 (arXiv:2004.00010). For large sigma it is as good as Gaussian(sigma / D).

    Parameters
    ----------
    sigma : float
        The sigma of the formula, not per sensitivity: integer noise does not scale.
    sensitivity : int, default 1
        The largest change of the query between neighbours, D.
    """

    sigma: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        _set(self, sigma=nonnegative("sigma", self.sigma, "0 means no noise."))
        repair = "Integer noise hides an integer query only: round the query, or use Gaussian."
        _set(self, sensitivity=whole("sensitivity", self.sensitivity, low=1, repair=repair))


@dataclass(frozen=True)
class RandomizedResponse(Event):
    """One of ``categories`` answers: the true one with odds exp(epsilon) against each other one.

    Parameters
    ----------
    epsilon : float
        The log odds of the true answer against each other one.
    categories : int, default 2
        The number of possible answers.
    """

    epsilon: float
    categories: int = 2

    def __post_init__(self) -> None:
        _set(self, epsilon=nonnegative("epsilon", self.epsilon))
        _set(self, categories=whole("categories", self.categories, low=2))


@dataclass(frozen=True)
class ExponentialMechanism(Event):
    """Selection by the exponential mechanism, equivalently noisy-max with Gumbel noise of scale b.

    If from one data set to its neighbour no score difference moves by more than r (the RANGE of the change of
    the scores), epsilon = r / b. The mechanism is epsilon-bounded-range: epsilon-DP and epsilon^2/8-zCDP.

    Parameters
    ----------
    epsilon : float
        The range of the change of the scores divided by the scale of the Gumbel noise.
    """

    epsilon: float

    def __post_init__(self) -> None:
        _set(self, epsilon=nonnegative("epsilon", self.epsilon))


@dataclass(frozen=True)
class NoisyMax(Event):
    """Report-noisy-max with Laplace or exponential noise (permute-and-flip), epsilon = r / b as above.

    It is epsilon-DP but not bounded-range, so the zCDP parameter epsilon^2/8 would be too small and is never used.

    Parameters
    ----------
    epsilon : float
        The range of the change of the scores divided by the scale of the noise.
    noise : {"laplace", "exponential"}, default "laplace"
        The law of the noise.
    """

    epsilon: float
    noise: str = "laplace"

    def __post_init__(self) -> None:
        _set(self, epsilon=nonnegative("epsilon", self.epsilon))
        one_of("noise", self.noise, ("laplace", "exponential"), "For Gumbel noise use ExponentialMechanism.")


@dataclass(frozen=True)
class PureDp(Event):
    """Any epsilon-DP mechanism.

    Parameters
    ----------
    epsilon : float
        Its epsilon.
    """

    epsilon: float

    def __post_init__(self) -> None:
        _set(self, epsilon=nonnegative("epsilon", self.epsilon))


@dataclass(frozen=True)
class ApproxDp(Event):
    """Any (epsilon, delta)-DP mechanism.

    Parameters
    ----------
    epsilon : float
        Its epsilon.
    delta : float
        Its delta, in [0, 1).
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _set(self, epsilon=nonnegative("epsilon", self.epsilon), delta=delta_value(self.delta))


@dataclass(frozen=True)
class ZCdp(Event):
    """Any rho-zCDP mechanism.

    Parameters
    ----------
    rho : float
        Its rho.
    """

    rho: float

    def __post_init__(self) -> None:
        _set(self, rho=nonnegative("rho", self.rho))


@dataclass(frozen=True)
class ShiftedZCdp(Event):
    """Any mechanism whose Renyi divergence of every order a is at most xi + rho a: (xi, rho)-zCDP.

    Parameters
    ----------
    rho : float
        The slope of the bound in the order.
    xi : float
        The constant of the bound.
    """

    rho: float
    xi: float

    def __post_init__(self) -> None:
        _set(self, rho=nonnegative("rho", self.rho), xi=nonnegative("xi", self.xi))


@dataclass(frozen=True)
class ObjectivePerturbation(Event):
    """The minimiser of a regularised convex loss plus <b, w>, b Gaussian; see ``accounting.objective``.

    All numbers are in the scaling of the sum of losses. The event is that of an exact minimiser; an inexact one is
    released with Gaussian noise, which is an event of its own.

    Parameters
    ----------
    noise_multiplier : float
        sigma / L for zero-out, sigma / 2L for replace-one, where L bounds one record's gradient.
    jacobian : float
        log(1 + beta/lambda), where beta bounds one record's curvature and lambda is that of the regulariser.
    signed : bool, default False
        Whether no record's loss has slopes of both signs.
    adjacency : Adjacency, default "replace-one"
        Which datasets are neighbours.
    """

    noise_multiplier: float
    jacobian: float
    signed: bool = False
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        _set(self, noise_multiplier=nonnegative("noise_multiplier", self.noise_multiplier, _NOISE_REPAIR))
        _set(self, jacobian=nonnegative("jacobian", self.jacobian, "It is log(1 + beta/lambda)."))
        _set(self, signed=flag("signed", self.signed), adjacency=Adjacency.parse(self.adjacency))


@dataclass(frozen=True)
class SampledGroup(Event):
    """Gaussian noise on a Poisson sample, seen by ``size`` records that change together; see ``sampling.group``.

    Every record enters independently with probability ``rate``, and one record moves the query by at most the
    sensitivity that noise_multiplier is relative to. Zero-out: either all records of the group may be sampled, or all
    are replaced by nothing. Group guarantees of sampled Gaussian noise consist of such events.

    Parameters
    ----------
    noise_multiplier : float
        Noise scale / L2 sensitivity for one record.
    rate : float
        The probability with which a record enters the sample.
    size : int
        The number of records of the group.
    """

    noise_multiplier: float
    rate: float
    size: int
    # Not a field: there is no other adjacency.
    adjacency = Adjacency.ZERO_OUT
    # Not a field: its numbers have another meaning on a sample.
    _counts_all_records = True

    def __post_init__(self) -> None:
        _set(self, noise_multiplier=nonnegative("noise_multiplier", self.noise_multiplier, _NOISE_REPAIR))
        _set(self, rate=probability("rate", self.rate, "It is batch size / n."))
        _set(self, size=whole("size", self.size, low=1))


@dataclass(frozen=True)
class MixtureOfGaussians(Event):
    """N(0, scale^2) without the record, N(c, scale^2) with it, where c is drawn from ``sensitivities``.

    The number ``sensitivities[i] >= 0`` is drawn with ``probabilities[i]``, afresh and in secret. Choquette-Choo et al.
    2024 (arXiv:2310.15526): one record in several batches that share noise leads to such pairs. Zero-out.

    Parameters
    ----------
    scale : float
        Standard deviation of the noise.
    sensitivities : tuple of float
        The possible shifts, >= 0.
    probabilities : tuple of float
        The probability of each shift.
    """

    scale: float
    sensitivities: tuple[float, ...]
    probabilities: tuple[float, ...]
    # Not a field: there is no other adjacency.
    adjacency = Adjacency.ZERO_OUT

    def __post_init__(self) -> None:
        _set(self, scale=nonnegative("scale", self.scale, "0 means no noise."))
        shifts = tuple(_finite("sensitivities", c) for c in self.sensitivities)
        chances = tuple(probability("probabilities", p) for p in self.probabilities)
        if len(shifts) != len(chances) or not shifts:
            raise invalid("probabilities", list(chances), f"as many as sensitivities ({len(shifts)}), at least one")
        if abs(math.fsum(chances) - 1) > _LARGEST_GAP:
            raise invalid("probabilities", list(chances), f"a distribution; the sum is {math.fsum(chances)!r}, not 1")
        _set(self, sensitivities=shifts, probabilities=chances)


@dataclass(frozen=True)
class TruncatedPoisson(Event):
    """Gaussian noise on a Poisson sample of which a uniform choice keeps at most ``batch_size`` records.

    Every one of ``records`` records is sampled with probability ``rate``; if more than ``batch_size`` are, a uniform
    choice of them is the batch. Ganesh et al. 2025 (arXiv:2508.15089). The noise multiplier is relative to the
    sensitivity of the sum without sampling, under the same adjacency. Zero-out: the record is absent, so that the
    data sets have ``records`` and one fewer or more, or it contributes nothing and still takes its place in the batch.

    Parameters
    ----------
    noise_multiplier : float
        Noise scale / L2 sensitivity of the sum without sampling.
    rate : float
        The probability with which a record is sampled.
    records : int
        The number of records.
    batch_size : int
        The largest number of records in a batch.
    adjacency : Adjacency, default "zero-out"
        Which datasets are neighbours.
    """

    noise_multiplier: float
    rate: float
    records: int
    batch_size: int
    adjacency: Adjacency = Adjacency.ZERO_OUT
    # Not a field: its numbers have another meaning on a sample.
    _counts_all_records = True

    def __post_init__(self) -> None:
        _set(self, noise_multiplier=nonnegative("noise_multiplier", self.noise_multiplier, _NOISE_REPAIR))
        _set(self, rate=probability("rate", self.rate, "It is the expected sample size / n."))
        _set(self, records=whole("records", self.records), batch_size=whole("batch_size", self.batch_size, low=1))
        _set(self, adjacency=Adjacency.parse(self.adjacency))


@dataclass(frozen=True)
class Subsampled(Event):
    """``event`` run on a random sample of the records, drawn afresh and kept secret.

    scheme "poisson": every record enters independently with probability ``rate``; adjacency zero-out unless
    replace-one is asked for. scheme "without-replacement": a uniform batch of exactly rate * n records; adjacency
    replace-one, always (zero-out is not defined when the batch size is fixed).

    The inner noise multiplier is relative to the sensitivity of the query without sampling, under the same adjacency.
    Under Poisson sampling with replace-one, each record's contribution must lie in a ball around 0 whose diameter is
    that sensitivity (a clipped sum), since a record that is left out contributes 0.

    ``TruncatedPoisson`` and ``SampledGroup`` inside are refused. Sampling first leaves fewer records to be cut down, so
    that each of them is kept more often, and it samples the records of a group one by one, not together.

    Parameters
    ----------
    event : Event
        What is released from the sample.
    scheme : {"poisson", "without-replacement"}
        How the sample is drawn.
    rate : float
        Batch size / n.
    adjacency : Adjacency, str or None, default None
        None means zero-out for "poisson", and replace-one for "without-replacement".
    """

    event: Event
    scheme: str
    rate: float
    adjacency: Adjacency | None = None

    def __post_init__(self) -> None:
        _check_samples_once(as_event("event", self.event))
        one_of("scheme", self.scheme, (POISSON, WITHOUT_REPLACEMENT))
        _set(self, rate=probability("rate", self.rate, "It is batch size / n."))
        fixed = self.scheme == WITHOUT_REPLACEMENT
        default = Adjacency.REPLACE_ONE if fixed else Adjacency.ZERO_OUT
        adjacency = default if self.adjacency is None else Adjacency.parse(self.adjacency)
        if fixed and adjacency is not Adjacency.REPLACE_ONE:
            raise invalid(
                "adjacency",
                str(adjacency),
                "'replace-one' for scheme 'without-replacement'",
                "Zero-out is not defined for batches of fixed size: use scheme='poisson'.",
            )
        _set(self, adjacency=adjacency)


@dataclass(frozen=True)
class Repeated(Event):
    """``event`` carried out ``count`` times on the same data, each run allowed to depend on earlier outputs.

    Parameters
    ----------
    event : Event
        One release.
    count : int
        How often.
    """

    event: Event
    count: int

    def __post_init__(self) -> None:
        as_event("event", self.event)
        _set(self, count=whole("count", self.count))


@dataclass(frozen=True)
class Composed(Event):
    """Several events on the same data, in any order, adaptively.

    Parameters
    ----------
    *events : Event
        The events, or one iterable of them.
    """

    events: tuple[Event, ...]

    def __init__(self, *events: Event | Iterable[Event]) -> None:
        parts = events
        if len(events) == 1 and not isinstance(events[0], Event):
            if not isinstance(events[0], Iterable):
                raise _not_an_event("events", events[0])
            parts = tuple(events[0])
        _set(self, events=tuple(as_event("events", e) for e in parts))


@dataclass(frozen=True)
class RandomRounds(Event):
    """``event`` carried out N times, N drawn from ``rounds`` independently of the data; N may be published.

    Parameters
    ----------
    event : Event
        One round.
    rounds : RunCountLaw
        The distribution of N.
    """

    event: Event
    rounds: RunCountLaw

    def __post_init__(self) -> None:
        as_event("event", self.event)
        _check_runs("rounds", self.rounds, for_selection=False)


@dataclass(frozen=True)
class BestOf(Event):
    """The best of N runs of ``event``, N drawn from ``runs``; only the winner is released, N stays secret.

    Papernot and Steinke 2022 (arXiv:2110.03620): this is what private hyper-parameter tuning costs.

    Parameters
    ----------
    event : Event
        One run.
    runs : RunCountLaw
        The distribution of N.
    """

    event: Event
    runs: RunCountLaw

    def __post_init__(self) -> None:
        as_event("event", self.event)
        _check_runs("runs", self.runs, for_selection=True)


# The events that from_dict can read back: those of this file and no others.
EVENTS: dict[str, type[Event]] = {cls.__name__: cls for cls in Event.__subclasses__()}


def as_event(name: str, value: Any) -> Event:
    """``value`` if it is an event, else a clear error.

    Parameters
    ----------
    name : str
        What the error calls the value.
    value : object
        What should be an event.
    """
    if not isinstance(value, Event):
        raise _not_an_event(name, value)
    return value


def _not_an_event(name: str, value: Any) -> UnsupportedEvent:
    return UnsupportedEvent(
        f"{name}={value!r}: must be an event. Build one from dptoolkit.accounting, for example Gaussian(2.0)."
    )


def flatten(event: Event) -> tuple[tuple[Event, int], ...]:
    """``event`` as (elementary event, count) pairs, equal ones merged, in order of first appearance.

    This is the one place where counts are applied: no accountant handles Repeated or Composed by itself.

    Parameters
    ----------
    event : Event
        Any event.
    """
    counts: dict[Event, int] = {}
    _collect(as_event("event", event), 1, counts)
    largest = max(counts.values(), default=0)
    if largest > _LARGEST_COUNT:
        magnitude = math.floor(largest.bit_length() * math.log10(2))
        raise InvalidValue(
            f"count=about 10^{magnitude}: must be at most {_LARGEST_COUNT:.0e} in all. Check the number of steps."
        )
    return tuple(counts.items())


def _collect(event: Event, count: int, counts: dict[Event, int]) -> None:
    if count == 0:
        return
    if isinstance(event, Repeated):
        _collect(event.event, count * event.count, counts)
    elif isinstance(event, Composed):
        for part in event.events:
            _collect(part, count, counts)
    elif getattr(event, "rate", 1.0) == 0:
        # Nothing is ever sampled.
        return
    else:
        counts[event] = counts.get(event, 0) + count


def inner(event: Event) -> Event | None:
    """The event inside a Subsampled, RandomRounds or BestOf, else None.

    Parameters
    ----------
    event : Event
        Any event.
    """
    return event.event if isinstance(event, (Subsampled, RandomRounds, BestOf)) else None


def adjacency_of(event: Event) -> Adjacency | None:
    """The adjacency that something inside ``event`` fixes, None if nothing does; an error if two disagree.

    Parameters
    ----------
    event : Event
        Any event.
    """
    relations: set[Adjacency] = set()
    _adjacencies(event, relations, _DEEPEST)
    if len(relations) > 1:
        raise UnsupportedEvent(
            "the event mixes replace-one and zero-out releases: one guarantee has one adjacency. "
            "Give every Subsampled and ObjectivePerturbation the same adjacency."
        )
    return relations.pop() if relations else None


def _adjacencies(event: Event, relations: set[Adjacency], levels: int) -> None:
    if levels == 0:
        raise _too_deep()
    if getattr(event, "rate", 1.0) == 0 or isinstance(event, Repeated) and event.count == 0:
        # Nothing is released, so the adjacency of what is inside does not matter.
        return
    fixed = getattr(event, "adjacency", None)
    if fixed is not None:
        relations.add(fixed)
    parts = event.events if isinstance(event, Composed) else (getattr(event, "event", None),)
    for part in parts:
        if part is not None:
            _adjacencies(part, relations, levels - 1)


def _too_deep() -> UnsupportedEvent:
    return UnsupportedEvent(
        f"the event is nested more than {_DEEPEST} deep: must be less. Composed(*events) takes them all side by side."
    )


def from_dict(record: Mapping[str, Any]) -> Event:
    """The event that ``to_dict`` described.

    Parameters
    ----------
    record : mapping of str to object
        What ``to_dict`` returned.
    """
    name = record.get("type") if isinstance(record, Mapping) else None
    if name not in EVENTS:
        raise UnsupportedEvent(
            f"type={name!r}: must be one of {', '.join(EVENTS)}. The record was not written by to_dict()."
        )
    cls = EVENTS[name]
    try:
        fields = {key: _decode(value) for key, value in record.items() if key != "type"}
    except RecursionError:
        raise _too_deep() from None
    try:
        return cls(*fields.pop("events"), **fields) if cls is Composed else cls(**fields)
    except (TypeError, KeyError) as problem:
        raise InvalidValue(f"record={dict(record)!r}: must hold the fields of {name}. {problem}") from None


def _encode(value: Any) -> Any:
    if isinstance(value, (Event, RunCountLaw)):
        return value.to_dict()
    if isinstance(value, Adjacency):
        return value.value
    if isinstance(value, tuple):
        return [_encode(v) for v in value]
    # JSON has no infinity.
    return "inf" if value == math.inf else value


def _decode(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_dict(value) if value.get("type") in EVENTS else rounds.from_dict(value)
    if isinstance(value, list):
        return [_decode(v) for v in value]
    return math.inf if value == "inf" else value


def _check_samples_once(event: Event) -> None:
    """Refuses what has another meaning on a sample than on all records."""
    to_visit = [event]
    while to_visit:
        part = to_visit.pop()
        if getattr(part, "_counts_all_records", False):
            raise UnsupportedEvent(
                f"event={part!r}: must not be inside of Subsampled, because its numbers are those of all records.",
                "Multiply its own rate by that of the other sampling, if both are Poisson sampling.",
            )
        nested = getattr(part, "event", None)
        to_visit += [*getattr(part, "events", ()), *([] if nested is None else [nested])]


def _check_runs(name: str, value: Any, *, for_selection: bool) -> None:
    if not isinstance(value, RunCountLaw):
        raise invalid(name, value, "a distribution of rounds", "For example Geometric(0.9).")
    if for_selection and not isinstance(value, (rounds.TruncatedNegativeBinomial, rounds.Poisson)):
        raise invalid(
            name,
            value,
            "TruncatedNegativeBinomial or Poisson",
            "There is no proved bound for other distributions.",
        )


def _finite(name: str, value: Any) -> float:
    """A number >= 0 that is not infinite."""
    number = nonnegative(name, value)
    if math.isinf(number):
        raise invalid(name, value, "finite", "For a release of everything use scale=0.")
    return number


def _set(event: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(event, name, value)
