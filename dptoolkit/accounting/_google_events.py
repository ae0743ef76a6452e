"""From dp_accounting's events to ours, under one of its neighbouring relations; ``google`` has the other way."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

from dptoolkit._validate import invalid, missing, probability, whole
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
)
from dptoolkit.accounting.rounds import Poisson, TruncatedNegativeBinomial
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent


class _Relation(NamedTuple):
    """The neighbouring relation of a conversion: our adjacency, and what dp_accounting calls it."""

    adjacency: Adjacency
    name: str

    @property
    def half(self) -> float:
        """Our multiplier over dp_accounting's."""
        return half(self.adjacency is Adjacency.REPLACE_ONE)

    @property
    def contributions(self) -> int:
        """How many norm bounds apart the sums of neighbours may be."""
        return self.adjacency.contributions


def from_google(record: Any, neighboring_relation: Any = None) -> Event:
    """The event of a DpEvent that was accounted for under ``neighboring_relation`` (default: add or remove one)."""
    neighbours = package().NeighboringRelation
    given = neighbours.ADD_OR_REMOVE_ONE if neighboring_relation is None else neighboring_relation
    if not isinstance(given, neighbours):
        raise invalid("neighboring_relation", given, "one of dp_accounting.NeighboringRelation")
    adjacency = Adjacency.REPLACE_ONE if given is neighbours.REPLACE_ONE else Adjacency.ZERO_OUT
    return _event(module(), record, _Relation(adjacency, given.name))


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


def half(replace_one: bool) -> float:
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


def _from_poisson(inner: _Inner, record: Any, relation: _Relation) -> Event:
    """A record that is not sampled is neither of the neighbours' records, unless one of them is to have none."""
    _refuse_fixed_places(record)
    kinds = _kinds_inside(record)
    if "SampledWithoutReplacementDpEvent" in kinds:
        raise _refused_inside(record, "A batch of fixed size has no rate if the number of records is random.")
    if relation.name != "ADD_OR_REMOVE_ONE" and (unknown := kinds & _ONLY_REPLACED):
        raise _refused(
            record,
            relation,
            f"What {', '.join(sorted(unknown))} says of a replaced record does not cover a record that is not sampled.",
        )
    return Subsampled(inner(record.event), POISSON, record.sampling_probability, relation.adjacency)


def _refuse_fixed_places(record: Any) -> None:
    if "SingleEpochTreeAggregationDpEvent" in _kinds_inside(record):
        raise _refused_inside(record, "A sampled record moves all later ones to other leaves of a tree.")


def _refused_inside(record: Any, why: str) -> UnsupportedEvent:
    return UnsupportedEvent(f"event={record!r}: must be sampled in another way. {why}")


# Events of which only the loss between two records is known. Others add noise to a sum, where no record counts as 0.
_ONLY_REPLACED = frozenset({
    "RandomizedResponseDpEvent", "EpsilonDeltaDpEvent", "ZCDpEvent", "ExponentialMechanismDpEvent",
    "PermuteAndFlipDpEvent",
})  # fmt: skip


def _inside(record: Any) -> list[Any]:
    """All events inside of ``record``."""
    found, to_visit = [], [record]
    while to_visit:
        part = to_visit.pop()
        nested = getattr(part, "event", None)
        parts = [*(getattr(part, "events", None) or ()), *([] if nested is None else [nested])]
        found += parts
        to_visit += parts
    return found


def _kinds_inside(record: Any) -> set[str]:
    return {type(part).__name__ for part in _inside(record)}


def _from_batch(inner: _Inner, record: Any, relation: _Relation) -> Event:
    size, total = whole("sample_size", record.sample_size), whole("source_dataset_size", record.source_dataset_size)
    if size == 0:
        return Composed()
    if relation.adjacency is not Adjacency.REPLACE_ONE:
        raise _refused(record, relation, "The rate of a batch of fixed size depends on the number of records.")
    if size > total:
        raise invalid("sample_size", size, f"at most source_dataset_size ({total})")
    _refuse_fixed_places(record)
    for part in _inside(record):
        if getattr(part, "source_dataset_size", size) != size:
            raise _refused_inside(record, f"A batch from this batch must be one from {size} records.")
    return Subsampled(inner(record.event), WITHOUT_REPLACEMENT, size / total, relation.adjacency)


def _from_truncated(inner: _Inner, record: Any, relation: _Relation) -> Event:
    if whole("truncated_batch_size", record.truncated_batch_size) == 0:
        return Composed()
    return TruncatedPoisson(
        relation.half * record.noise_multiplier,
        record.sampling_probability,
        record.dataset_size,
        record.truncated_batch_size,
        relation.adjacency,
    )


def _from_mixture(inner: _Inner, record: Any, relation: _Relation) -> Event:
    if relation.adjacency is Adjacency.REPLACE_ONE:
        raise _refused(record, relation, "The pair is one of a record against none.")
    event = MixtureOfGaussians(
        record.standard_deviation, tuple(map(float, record.sensitivities)), tuple(map(float, record.sampling_probs))
    )
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
    return BestOf(run, runs(record.mean, record.shape))


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
    "PoissonSampledDpEvent": _from_poisson,
    "SampledWithoutReplacementDpEvent": _from_batch,
    "SampledWithReplacementDpEvent": _no_replacement_known,
    "RepeatAndSelectDpEvent": _from_repetitions,
}


def runs(mean: float, shape: float) -> Poisson | TruncatedNegativeBinomial:
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
    found = TruncatedNegativeBinomial(shape, _gamma(many))
    if not 1 <= mean <= found.mean:
        largest = TruncatedNegativeBinomial(shape, _gamma(_LEAST_LOGIT)).mean
        raise invalid(
            "mean",
            mean,
            f"between 1 and {largest:.3g} for shape {shape!r}",
            "Describe the release with dptoolkit.accounting events instead.",
        )
    return found


# Logits of the least and the largest gamma: their exponentials are floats, and differ from 0 and from 1.
_LEAST_LOGIT, _MOST_LOGIT = -690.0, 27.0


def _gamma(logit: float) -> float:
    return math.exp(logit) / (1 + math.exp(logit))


def package() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise missing("dp-accounting", "", "to exchange events with it") from None
    return dp_accounting


def module() -> Any:
    package()
    from dp_accounting import dp_event

    return dp_event
