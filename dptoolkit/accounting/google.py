"""Conversion of events to and from Google's dp_accounting, avoiding the cases in which it reports too little.

dp_accounting 0.6 reports too small an epsilon in three cases, each of which is avoided here:

- its RDP accountant counts a repeated ExponentialMechanismDpEvent once: selections are sent as zCDP events;
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
import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dptoolkit._validate import delta_value, invalid, missing, one_of, probability, whole
from dptoolkit.accounting._numeric import sum_up
from dptoolkit.accounting.events import (
    POISSON,
    WITHOUT_REPLACEMENT,
    ApproxDp,
    BestOf,
    Composed,
    DiscreteGaussian,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NoisyMax,
    PureDp,
    RandomizedResponse,
    Repeated,
    ShiftedZCdp,
    Subsampled,
    TruncatedPoisson,
    TwoSidedGeometric,
    ZCdp,
    adjacency_of,
    as_event,
    flatten,
)
from dptoolkit.accounting.rounds import Poisson, TruncatedNegativeBinomial
from dptoolkit.accounting.structure import as_single, is_gaussian, total_rho
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent

if TYPE_CHECKING:
    from dptoolkit.accounting._google_accountant import Accountant as Accountant

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
    dp_event, replace_one = _module(), _is_replace_one(event, accountant)
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
    Gaussian: lambda way, e: _additive(
        way, way.dp_event.GaussianDpEvent, e.noise_multiplier / _half(way.replace_one)),
    Laplace: _laplace,
    TwoSidedGeometric: _discrete_laplace,
    ZCdp: _zcdp,
    ExponentialMechanism: _zcdp,
    RandomizedResponse: _response,
    PureDp: _response,
    NoisyMax: _response,
    Subsampled: _poisson,
    BestOf: _best_of,
}  # fmt: skip


def relation(event: Event, accountant: str = "pld") -> Any:
    """The NeighboringRelation that ``to_google(event, accountant)`` is written for."""
    neighbours = _package().NeighboringRelation
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


class _Relation(NamedTuple):
    """The neighbouring relation of a conversion: our adjacency, and what dp_accounting calls it."""

    adjacency: Adjacency
    name: str

    @property
    def half(self) -> float:
        """Our multiplier over dp_accounting's."""
        return _half(self.adjacency is Adjacency.REPLACE_ONE)

    @property
    def contributions(self) -> int:
        """How many norm bounds apart the sums of neighbours may be."""
        return self.adjacency.contributions


def from_google(record: Any, neighboring_relation: Any = None) -> Event:
    """The event of a DpEvent that was accounted for under ``neighboring_relation`` (default: add or remove one)."""
    neighbours = _package().NeighboringRelation
    given = neighbours.ADD_OR_REMOVE_ONE if neighboring_relation is None else neighboring_relation
    if not isinstance(given, neighbours):
        raise invalid("neighboring_relation", given, "one of dp_accounting.NeighboringRelation")
    adjacency = Adjacency.REPLACE_ONE if given is neighbours.REPLACE_ONE else Adjacency.ZERO_OUT
    return _event(_module(), record, _Relation(adjacency, given.name))


def _event(dp_event: Any, record: Any, relation: _Relation) -> Event:
    kinds = [getattr(dp_event, name, None) for name in _HERE]
    for kind, rule in zip(kinds, _HERE.values(), strict=True):
        if kind is not None and isinstance(record, kind):
            return rule(lambda inner: _event(dp_event, inner, relation), record, relation)
    raise UnsupportedEvent(
        f"event={record!r}: must have a counterpart here. "
        "Describe the release with dptoolkit.accounting events instead."
    )


def _refused(record: Any, relation: _Relation, why: str) -> UnsupportedEvent:
    return UnsupportedEvent(f"event={record!r}: must be under another relation than {relation.name}. {why}")


def _half(replace_one: bool) -> float:
    """Our multiplier over dp_accounting's: 1/2 under replace-one, where a sum moves by twice the norm bound."""
    return 0.5 if replace_one else 1.0


def _from_discrete_laplace(inner: _Inner, record: Any, relation: _Relation) -> Event:
    # dp_accounting takes a noise parameter of 0, which is no distribution, for a release without noise.
    sensitivity = relation.contributions * _integer_sensitivity(record.sensitivity)
    if record.noise_parameter == 0 or sensitivity == 0:
        return Gaussian(0.0) if sensitivity else Composed()
    return TwoSidedGeometric(sum_up([(sensitivity, record.noise_parameter)]), sensitivity)


def _integer_sensitivity(sensitivity: float) -> int:
    """An integer query moves by an integer, so that the fraction of a bound does not count."""
    if not 0 <= sensitivity < math.inf:
        raise invalid("sensitivity", sensitivity, "a finite number >= 0")
    return math.floor(sensitivity)


def _from_discrete_gaussian(inner: _Inner, record: Any, relation: _Relation) -> Event:
    """In one dimension the exact pair. In several, or in a number that is not known, what holds for any: zCDP."""
    if record.sigma == 0:
        return Gaussian(0.0)
    if record.dimension == 1:
        sensitivity = relation.contributions * _integer_sensitivity(record.sensitivity)
        return DiscreteGaussian(record.sigma, sensitivity) if sensitivity else Composed()
    return ZCdp(0.5 * (relation.contributions * record.sensitivity / record.sigma) ** 2 * (1 + 1e-15))


def _from_response(inner: _Inner, record: Any, relation: _Relation) -> Event:
    p, k = record.noise_parameter, whole("num_buckets", record.num_buckets, low=1)
    probability("noise_parameter", p)
    if relation.name == "ADD_OR_REMOVE_ONE":
        raise _refused(record, relation, "One response per record shows how many records there are.")
    if k == 1:
        return Composed()
    if p == 0:
        return RandomizedResponse(math.inf, k)
    if relation.name == "REPLACE_SPECIAL":
        # The special record's response is uniform, so that the loss is at most this. Its law is taken for the worst.
        return PureDp(max(math.log(k * (1 - p) + p), -math.log(p), 0.0) * (1 + 1e-15))
    return RandomizedResponse(math.log((1 - p + p / k) / (p / k)), k)


def _from_batch(inner: _Inner, record: Any, relation: _Relation) -> Event:
    size, total = whole("sample_size", record.sample_size), whole("source_dataset_size", record.source_dataset_size)
    if size == 0:
        return Composed()
    if relation.adjacency is not Adjacency.REPLACE_ONE:
        raise _refused(record, relation, "The rate of a batch of fixed size depends on the number of records.")
    if size > total:
        raise invalid("sample_size", size, f"at most source_dataset_size ({total})")
    return Subsampled(inner(record.event), WITHOUT_REPLACEMENT, size / total, relation.adjacency)


def _from_truncated(inner: _Inner, record: Any, relation: _Relation) -> Event:
    if whole("truncated_batch_size", record.truncated_batch_size) == 0:
        return Composed()
    return TruncatedPoisson(
        relation.half * record.noise_multiplier, record.sampling_probability, record.dataset_size,
        record.truncated_batch_size, relation.adjacency)


def _from_mixture(inner: _Inner, record: Any, relation: _Relation) -> Event:
    if relation.adjacency is Adjacency.REPLACE_ONE:
        raise _refused(record, relation, "The pair is one of a record against none.")
    event = MixtureOfGaussians(
        record.standard_deviation, tuple(map(float, record.sensitivities)), tuple(map(float, record.sampling_probs)))
    return event if max(event.sensitivities) > 0 else Composed()


def _from_tree(inner: _Inner, record: Any, relation: _Relation) -> Event:
    """Binary trees of Gaussian sums: a record is in one leaf of one tree, so in at most ``depth`` sums.

    A tree of n leaves sums over 1, 2, 4, ... of them as far as these are complete, so a leaf is in at most as many sums
    as n has binary digits. Together they are one Gaussian release of sensitivity sqrt(depth) (Kairouz et al. 2021,
    arXiv:2103.00039, Appendix D; it is exact, where a Renyi divergence is a bound).
    """
    if relation.name == "ADD_OR_REMOVE_ONE":
        raise _refused(record, relation, "A record that is added or removed moves all later ones to other leaves.")
    counts = [record.step_counts] if isinstance(record.step_counts, numbers.Integral) else list(record.step_counts)
    depth = max((whole("step_counts", n).bit_length() for n in counts), default=0)
    return Repeated(Gaussian(relation.half * record.noise_multiplier), depth)


def _from_epsilon_delta(inner: _Inner, record: Any, relation: _Relation) -> Event:
    if record.delta == 1:
        return Gaussian(0.0)
    return ApproxDp(record.epsilon, record.delta) if record.delta > 0 else PureDp(record.epsilon)


def _from_repetitions(inner: _Inner, record: Any, relation: _Relation) -> Event:
    run = inner(record.event)
    return BestOf(run, _runs(record.mean, record.shape))


def _no_replacement_known(inner: _Inner, record: Any, relation: _Relation) -> Event:
    raise UnsupportedEvent(
        f"event={record!r}: must be sampled without replacement or by Poisson sampling. With replacement a record may "
        "be in a batch several times, for which no bound is proved here."
    )


_Inner = Callable[[Any], Event]
# For each event of dp_accounting the rule that gives ours, by class name, as not every version has every class. A rule
# raises UnsupportedEvent where we have no such event under this neighbouring relation.
_HERE: dict[str, Callable[[_Inner, Any, _Relation], Event]] = {
    "NoOpDpEvent": lambda inner, r, relation: Composed(),
    "NonPrivateDpEvent": lambda inner, r, relation: Gaussian(0.0),
    "GaussianDpEvent": lambda inner, r, relation: Gaussian(relation.half * r.noise_multiplier),
    "LaplaceDpEvent": lambda inner, r, relation: Laplace(relation.half * r.noise_multiplier),
    "DiscreteLaplaceDpEvent": _from_discrete_laplace,
    "DiscreteGaussianDpEvent": _from_discrete_gaussian,
    "RandomizedResponseDpEvent": _from_response,
    "EpsilonDeltaDpEvent": _from_epsilon_delta,
    "ZCDpEvent": lambda inner, r, relation: ZCdp(r.rho) if r.xi == 0 else ShiftedZCdp(r.rho, r.xi),
    "ExponentialMechanismDpEvent": lambda inner, r, relation: ExponentialMechanism(r.epsilon),
    "PermuteAndFlipDpEvent": lambda inner, r, relation: NoisyMax(r.epsilon, "exponential"),
    "MixtureOfGaussiansDpEvent": _from_mixture,
    "TruncatedSubsampledGaussianDpEvent": _from_truncated,
    "SingleEpochTreeAggregationDpEvent": _from_tree,
    "SelfComposedDpEvent": lambda inner, r, relation: Repeated(inner(r.event), r.count),
    "ComposedDpEvent": lambda inner, r, relation: Composed(*map(inner, r.events)),
    "PoissonSampledDpEvent": lambda inner, r, relation: Subsampled(
        inner(r.event), POISSON, r.sampling_probability, relation.adjacency),
    "SampledWithoutReplacementDpEvent": _from_batch,
    "SampledWithReplacementDpEvent": _no_replacement_known,
    "RepeatAndSelectDpEvent": _from_repetitions,
}  # fmt: skip


def _runs(mean: float, shape: float) -> Poisson | TruncatedNegativeBinomial:
    """The distribution of the number of runs with that mean, or the next one above it that floats have.

    The mean decreases in gamma, which is found by bisection on its logit. More runs give away more, so a mean that no
    gamma reaches is refused.
    """
    if math.isinf(shape):
        return Poisson(mean)
    few, many = _MOST_LOGIT, _LEAST_LOGIT
    for _ in range(200):
        middle = 0.5 * (few + many)
        few, many = (few, middle) if TruncatedNegativeBinomial(shape, _gamma(middle)).mean >= mean else (middle, many)
    runs = TruncatedNegativeBinomial(shape, _gamma(many))
    if not 1 <= mean <= runs.mean:
        largest = TruncatedNegativeBinomial(shape, _gamma(_LEAST_LOGIT)).mean
        raise invalid(
            "mean", mean, f"between 1 and {largest:.3g} for shape {shape!r}",
            "Describe the release with dptoolkit.accounting events instead.",
        )
    return runs


# Logits of the least and the largest gamma: their exponentials are floats, and differ from 0 and from 1.
_LEAST_LOGIT, _MOST_LOGIT = -690.0, 27.0


def _gamma(logit: float) -> float:
    return math.exp(logit) / (1 + math.exp(logit))


def _package() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise missing("dp-accounting", "", "to exchange events with it") from None
    return dp_accounting


def _module() -> Any:
    _package()
    from dp_accounting import dp_event

    return dp_event


def __getattr__(name: str) -> Any:
    """``Accountant`` on first use, because its base class is dp_accounting's."""
    if name != "Accountant":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _package()
    from dptoolkit.accounting._google_accountant import Accountant

    return Accountant
