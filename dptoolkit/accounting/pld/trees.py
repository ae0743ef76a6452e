"""From events to pairs: which pair of distributions stands for a part, and the tree of a whole composition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dptoolkit.accounting import profiles, sampling
from dptoolkit.accounting._numeric import zoom_minimum
from dptoolkit.accounting.events import (
    POISSON,
    WITHOUT_REPLACEMENT,
    Event,
    Gaussian,
    RandomRounds,
    Subsampled,
    flatten,
)
from dptoolkit.accounting.profiles import DominatingPair
from dptoolkit.accounting.rounds import RunCountLaw
from dptoolkit.accounting.rules import finite_pair, rules_of
from dptoolkit.accounting.structure import as_single, is_gaussian, merged, mu
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import ANY_METHOD, UnsupportedEvent
from dptoolkit.types import Array


def dominating(event: Event) -> DominatingPair:
    """The pair that dominates one application of a part (record in the first place)."""
    if isinstance(event, Subsampled):
        return _sampled(event, dominating, sound=True)
    own = rules_of(event).dominating
    if own is None:
        raise UnsupportedEvent(
            f"event={event!r}: must have a known privacy-loss distribution for method 'pld'.", ANY_METHOD
        )
    return own(event)


def attained(event: Event) -> DominatingPair:
    """A pair that some neighbours attain for one application of a part."""
    if isinstance(event, Subsampled):
        return _sampled(event, attained, sound=False)
    own = rules_of(event).attained
    return dominating(event) if own is None else own(event)


def _sampled(event: Subsampled, pair_of: Callable[[Event], DominatingPair], *, sound: bool) -> DominatingPair:
    base, rate = as_single(event), event.rate
    if event.scheme == POISSON and event.adjacency is Adjacency.REPLACE_ONE and 0 < rate < 1:
        if is_gaussian(base):
            exact = lambda m: sampling.poisson_replace_one_gaussian(m, rate)  # noqa: E731
            return finite_pair(mu(base), exact, infinite_mass=rate)
        # For a lower bound: the record is replaced by one that contributes nothing, the centre of the ball.
        base = base if sound else rules_of(base).at_centre(base)
    pair = pair_of(base)
    if pair.identical or rate == 0:
        return profiles.identical()
    if sound and event.adjacency is Adjacency.REPLACE_ONE:
        return sampling.replace_one(pair, rate)
    # Without replacement, with all other records equal to the new one, the output shows only whether the old record is
    # in the batch: the pair of Poisson sampling under zero-out.
    return sampling.poisson_zero_out(pair, rate)


# --- the composition as a tree --------------------------------------------------------------------


class Batch(NamedTuple):
    """One Gaussian release of sensitivity ``mu``, per unit of noise, from a fresh batch of ``rate`` times n records.

    The batch is drawn without replacement, and neighbours differ in one record.
    """

    mu: float
    rate: float


@dataclass(frozen=True)
class Node:
    """``count`` times a pair, or ``count`` times a random number of rounds of ``inner``.

    ``batch`` says that the pair stands for such a release, of which several have a better pair (``blocks``).
    """

    count: int
    pair: DominatingPair | None = None
    runs: RunCountLaw | None = None
    inner: tuple[Node, ...] = ()
    batch: Batch | None = None

    def swapped(self) -> Node:
        pair = None if self.pair is None else self.pair.swapped()
        return Node(self.count, pair, self.runs, tuple(n.swapped() for n in self.inner), self.batch)

    @property
    def variation(self) -> float:
        """The total variation distance of the pair."""
        assert self.pair is not None
        return float(self.pair.above(np.zeros(1))[0])

    @property
    def releases(self) -> bool:
        """Whether the outputs differ at all.

        A total variation that underflows, or that consists of round-off, is refused: however small it is, many of them
        may add up to something that counts.
        """
        if self.pair is None:
            return bool(self.inner)
        if self.pair.identical or self.variation > 0:
            return not self.pair.identical
        raise UnsupportedEvent(
            "the event's losses are too small for double precision: must be larger for method 'pld'.", ANY_METHOD
        )

    @property
    def symmetric(self) -> bool:
        return all(n.symmetric for n in self.inner) if self.pair is None else self.pair.symmetric


def directions(event: Event, pair_of: Callable[[Event], DominatingPair]) -> list[tuple[Node, ...]]:
    """The trees for both orders of the neighbours; one if they are equal."""
    forward = _tree(event, pair_of)
    if all(n.symmetric for n in forward):
        return [forward]
    return [forward, tuple(n.swapped() for n in forward)]


def _tree(event: Event, pair_of: Callable[[Event], DominatingPair]) -> tuple[Node, ...]:
    gaussians: list[tuple[Event, int]] = []
    nodes: list[Node] = []
    for part, count in flatten(event):
        if is_gaussian(part):
            gaussians.append((part, count))
        elif isinstance(part, RandomRounds):
            nodes.append(Node(count, runs=part.rounds, inner=_tree(part.event, pair_of)))
        else:
            nodes.append(Node(count, pair_of(part), batch=_batch(part)))
    if gaussians:
        nodes.append(Node(1, pair_of(merged(tuple(gaussians)))))
    return tuple(n for n in nodes if n.releases)


def _batch(part: Event) -> Batch | None:
    """The batch of a part that is one Gaussian release per batch, without replacement.

    Several releases from one batch may depend on each other, so they are no such part, even if they compose to one
    Gaussian: what is inside is looked at before ``as_single`` merges it.
    """
    if not isinstance(part, Subsampled) or part.scheme != WITHOUT_REPLACEMENT or not 0 < part.rate < 1:
        return None
    releases = flatten(part.event)
    if len(releases) != 1 or releases[0][1] != 1 or type(releases[0][0]) is not Gaussian:
        return None
    return Batch(mu(releases[0][0]), part.rate)


def has_batches(event: Event) -> bool:
    """Whether the event has such releases, also in random rounds, so that every new event takes long."""
    return any(
        has_batches(part.event) if isinstance(part, RandomRounds) else _batch(part) is not None
        for part, _ in flatten(event)
    )


def steps_of(nodes: tuple[Node, ...]) -> float:
    """The expected number of elementary releases."""
    return math.fsum(n.count * (1.0 if n.runs is None else n.runs.mean * steps_of(n.inner)) for n in nodes)


def leaves(nodes: tuple[Node, ...]) -> list[Node]:
    """The nodes that have a pair of their own, also those inside others."""
    return [leaf for n in nodes for leaf in ([n] if n.pair is not None else leaves(n.inner))]


def most_steps(nodes: tuple[Node, ...], log_inverse: float) -> float:
    """A number of releases exceeded with probability at most exp(-log_inverse), by Chernoff on the rounds."""

    def log_growth(parts: tuple[Node, ...], t: Array) -> Array:
        total = np.zeros_like(t)
        for n in parts:
            total = total + n.count * (t if n.runs is None else n.runs.log_pgf(log_growth(n.inner, t)))
        return total

    if all(n.runs is None for n in nodes):
        return steps_of(nodes)
    return zoom_minimum(lambda s: (log_growth(nodes, np.exp(s)) + log_inverse) / np.exp(s), -20.0, 5.0, points=129)[1]


# From this sum of total variations on, and with this relative error, the chance that some release differs is computed.
_MANY, _CHANCE_ERROR = 1e-2, 1e-10


def total_variation(tree: tuple[Node, ...]) -> float:
    """A bound on delta at epsilon 0, from the total variation distances of the releases.

    By the coupling lemma the two outputs of a release, given equal earlier ones, can be drawn such that they differ
    with probability at most its distance t. So all outputs are equal with probability at least the product of (1 - t),
    also if the number of releases is random, and delta at epsilon 0, which is the distance of the whole, is at most 1
    minus that. The sum of all t bounds this in turn. Where the sum is small the product is lost to rounding.
    """
    total = _sum_of_variations(tree)
    if total < _MANY:
        return total
    return min(total, -math.expm1(_log_equal(tree)) * (1 + _CHANCE_ERROR))


def _sum_of_variations(tree: tuple[Node, ...]) -> float:
    return math.fsum(
        n.count * (n.runs.mean * _sum_of_variations(n.inner) if n.runs is not None else n.variation) for n in tree
    )


def _log_equal(tree: tuple[Node, ...]) -> float:
    """log of the product of 1 - t over all releases, averaged over random numbers of them."""
    logs = list[float]()
    for n in tree:
        one = math.log1p(-min(n.variation, 1.0)) if n.runs is None and n.variation < 1 else -math.inf
        if n.runs is not None:
            one = float(n.runs.log_pgf(np.array([_log_equal(n.inner)]))[0])
        logs.append(n.count * one)
    return min(math.fsum(logs), 0.0) if all(map(math.isfinite, logs)) else -math.inf
