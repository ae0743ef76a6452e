"""Poisson samples that a uniform choice cuts down to a largest batch (Ganesh et al. 2025, arXiv:2508.15089)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import betainc

from dptoolkit.accounting.profiles import DominatingPair
from dptoolkit.accounting.profiles import gaussian as gaussian_pair
from dptoolkit.accounting.sampling import (
    convex_rdp,
    poisson_gaussian_rdp,
    poisson_replace_one_gaussian,
    poisson_replace_one_gaussian_rdp,
    poisson_zero_out,
    replace_one,
)
from dptoolkit.types import Array


class Truncation(NamedTuple):
    """Of a Poisson sample from N records that is cut down to a largest size: what one record sees of it.

    ``probability``: of the other records enough are sampled to fill the batch. ``rate``: given that, the probability
    that the record is in the batch all the same.
    """

    probability: float
    rate: float


def truncation(rate: float, records: int, batch_size: int) -> Truncation:
    """Truncation with one record and ``records`` - 1 others, both numbers rounded up.

    K of the others are sampled. For K >= B the record is sampled and kept with probability q B / (K + 1). By symmetry
    q E[B / (K + 1); K >= B] is B/N times the probability that more than B of all N records are sampled.
    """
    others = records - 1
    if others < batch_size or rate == 0:
        return Truncation(0.0, rate)
    if rate == 1:
        return Truncation(1.0, batch_size / records)
    full = float(betainc(batch_size, others - batch_size + 1, rate))
    if full < 1e-290:
        return Truncation(1e-290, rate)
    kept = float(betainc(batch_size + 1, records - batch_size, rate)) * batch_size / records
    return Truncation(min(full * (1 + 1e-10), 1.0), min(kept / full * (1 + 1e-10), rate))


def truncated_poisson(
    mu: float, rate: float, records: int, batch_size: int, *, replace_one_record: bool
) -> DominatingPair:
    """Gaussian noise on a Poisson sample that a random choice cuts down to ``batch_size`` records.

    mu is the sensitivity per unit of noise, under the same adjacency. Proof. Given the number K of the other records
    that are sampled, which has the same law on both sides: for K < B this is Poisson sampling. For K >= B let T be
    the batch without the record, a uniform set of B others whatever K is, and y a uniform one of T. If the record is
    kept, the batch is T - y + x, else T. So the outputs are (1-p) N(T) + p N(T - y + x) on the one side, and N(T), or
    (1-p) N(T) + p N(T - y), or (1-p) N(T) + p N(T - y + x') on the other: absent, contributing nothing, or replaced.
    No two of these centres are further apart than two norm bounds, so that advanced joint convexity gives p H_a of
    two such Gaussians in all three cases, as for batches without replacement; p is averaged over K because T and y do
    not depend on it. A mixture over K < B and K >= B is dominated by the same mixture of the two divergences.

    Under zero-out the neighbour may have one record fewer or more than ``records``: the larger of both curves counts.
    """

    def at(n: int) -> DominatingPair:
        cut = truncation(rate, n, batch_size)
        common = (
            poisson_replace_one_gaussian(mu, rate)
            if replace_one_record and rate < 1
            else (poisson_zero_out(gaussian_pair(mu), rate))
        )
        if cut.probability == 0:
            return common
        far = replace_one(gaussian_pair(mu if replace_one_record else 2 * mu), cut.rate)
        return _mixed(common, far, cut.probability)

    return at(max(records, 1)) if replace_one_record else _larger(at(max(records, 1)), at(records + 1))


def kept_rate(rate: float, records: int, batch_size: int) -> float:
    """The probability that a record is in the truncated batch, rounded down."""
    if records <= batch_size:
        return rate
    cut = truncation(rate, records, batch_size)
    return max(rate * (1 - cut.probability) + cut.probability * cut.rate * (1 - 2e-10), 0.0) * (1 - 1e-9)


def truncated_poisson_rdp(
    noise_multiplier: float, rate: float, records: int, batch_size: int, orders: Array, *, replace_one_record: bool
) -> Array:
    """Renyi divergence of a bound on ``truncated_poisson``: moments of its two parts, mixed by joint convexity."""
    a = np.atleast_1d(np.asarray(orders, dtype=float))
    far_noise = noise_multiplier if replace_one_record else noise_multiplier / 2
    near = poisson_replace_one_gaussian_rdp if replace_one_record else poisson_gaussian_rdp

    def at(n: int) -> Array:
        cut = truncation(rate, n, batch_size)
        common = near(noise_multiplier, rate, a) if rate < 1 else 0.5 * a / noise_multiplier**2
        if cut.probability == 0:
            return common
        far = convex_rdp(0.5 * a / far_noise**2, cut.rate, a)
        with np.errstate(divide="ignore"):
            log_far, log_near = math.log(cut.probability), np.log1p(-cut.probability)
            moments = np.logaddexp(log_far + (a - 1) * far, log_near + (a - 1) * common)
        return np.asarray(np.maximum(moments, 0.0) / (a - 1) * (1 + 1e-14))

    return at(max(records, 1)) if replace_one_record else np.maximum(at(max(records, 1)), at(records + 1))


def _mixed(first: DominatingPair, second: DominatingPair, share: float) -> DominatingPair:
    """The pair that is the second one with probability ``share``, which the output shows; rounded up."""
    rest = (1 - share) * (1 + 1e-10)
    return DominatingPair(
        lambda x: rest * first.above(x) + share * second.above(x),
        lambda x: rest * first.below(x) + share * second.below(x),
        infinite_mass=rest * first.infinite_mass + share * second.infinite_mass,
        symmetric=first.symmetric and second.symmetric,
    )


def _larger(first: DominatingPair, second: DominatingPair) -> DominatingPair:
    """The pair of the larger divergence, point by point: a largest of convex curves is convex."""
    return DominatingPair(
        lambda x: np.maximum(first.above(x), second.above(x)),
        lambda x: np.maximum(first.below(x), second.below(x)),
        infinite_mass=max(first.infinite_mass, second.infinite_mass),
        symmetric=first.symmetric and second.symmetric,
    )
