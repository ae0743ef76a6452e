"""Guarantees for groups: exact where the event says so, from a chain of neighbours elsewhere, and never too small."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dptoolkit.accounting import (
    ApproxDp,
    Composed,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PureDp,
    RandomizedResponse,
    Repeated,
    Subsampled,
    TwoSidedGeometric,
    ZCdp,
    account,
    gaussian,
)

DELTA = 1e-5
EVENTS = [
    Repeated(Gaussian(5.0), 10), Repeated(ExponentialMechanism(0.1), 20), PureDp(0.3), ZCdp(0.05), ApproxDp(0.5, 1e-7),
    Composed(Gaussian(4.0), TwoSidedGeometric(0.2, 3)), Repeated(Subsampled(Gaussian(2.0), "poisson", rate=0.1), 20),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_one_record_is_a_group_of_one(event):
    guarantee = account(event)
    group = guarantee.group(1)
    assert group.epsilon(DELTA) == pytest.approx(guarantee.epsilon(DELTA), rel=1e-5)
    assert group.delta(0.7) == pytest.approx(guarantee.delta(0.7), rel=1e-6)


def test_gaussian_groups_are_exact():
    """k records of a Gaussian mechanism have k times its mu."""
    guarantee = account(Repeated(Gaussian(5.0), 4))
    for size in (2, 7):
        assert guarantee.group(size).epsilon(DELTA) == pytest.approx(gaussian.epsilon(size * 0.4, DELTA), rel=1e-9)


def test_pure_and_zcdp_groups():
    assert account(PureDp(0.3)).group(4).epsilon(0.0) == pytest.approx(1.2)
    assert account(ZCdp(0.01)).group(3).epsilon(DELTA) == pytest.approx(account(ZCdp(0.09)).epsilon(DELTA))


def test_a_chain_of_neighbours():
    """(epsilon, delta) for one record is (k epsilon, delta (1 + e^epsilon + ...)) for k."""
    group = account(ApproxDp(0.5, 1e-7)).group(3)
    assert group.event is None
    whole = 1e-7 * (1 + math.exp(0.5) + math.exp(1.0))
    assert group.delta(1.5) == pytest.approx(whole, rel=1e-9)
    assert group.delta(1.5 - 1e-4) > 10 * whole
    assert group.epsilon(whole * (1 + 1e-9)) == pytest.approx(1.5, rel=1e-5)


def test_subsampling_is_not_noise():
    """A group may be sampled in part, so its bound is that of the chain, and no less than for a rate of 1."""
    single = account(Repeated(Subsampled(Gaussian(2.0), "poisson", rate=0.1), 20))
    group = single.group(2)
    assert group.event is None
    assert 2 * single.epsilon(DELTA) < group.epsilon(DELTA)


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_epsilon_and_delta_are_inverse_from_above(event):
    group = account(event).group(3)
    epsilon = group.epsilon(DELTA)
    assert group.delta(epsilon) <= DELTA * (1 + 1e-6)
    assert epsilon >= account(event).epsilon(DELTA)
    assert group.delta(0.0) <= 1.0


@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 0.3, 1.5, 40.0])
def test_a_group_of_one_is_never_better_than_the_guarantee(epsilon):
    """Where there is no event of a group, the bound of the chain ends above, also where it is rounded."""
    guarantee = account(ApproxDp(0.5, 1e-300))
    assert guarantee.group(1).delta(epsilon) >= guarantee.delta(epsilon)


def test_the_ends():
    approximate, pure = account(ApproxDp(0.5, 1e-300)), account(PureDp(0.5))
    assert approximate.group(3).epsilon(0.0) == math.inf and pure.group(3).epsilon(0.0) == pytest.approx(1.5)
    assert approximate.group(10**6).delta(1.0) == 1.0
    assert approximate.group(3).delta(1.5) >= 1e-300 * (1 + math.exp(0.5) + math.exp(1.0))
    assert pure.group(10**100).epsilon(0.0) > 1e99


@pytest.mark.parametrize("size", [100, 1000])
def test_a_delta_that_underflows_does_not_count_as_none(size):
    """One record's delta at epsilon/k is no float, but e^epsilon times as much is: the sum of the chain is not 0."""
    for event in (Gaussian(1.0), Subsampled(Gaussian(1.0), "poisson", rate=1.0)):
        group = account(event).group(size)
        epsilon = size * size / 2.0
        assert group.delta(epsilon) >= gaussian.delta(float(size), epsilon) * (1 - 1e-9)


@pytest.mark.parametrize("parameter", [0.1, 0.3, 0.7, 1.1])
def test_the_epsilon_of_a_group_is_never_rounded_down(parameter):
    """Against fractions: k epsilon to the last bit, and delta is not 0 below it."""
    pure, laplace = account(PureDp(parameter)), account(Laplace(parameter))
    for size in (3, 7, 41, 195, 2**53 + 1):
        exact = size * Fraction(parameter)
        assert Fraction(pure.group(size).epsilon(0.0)) >= exact
        assert Fraction(laplace.group(size).epsilon(0.0)) >= size / Fraction(parameter)
        below = math.nextafter(float(exact), 0.0)
        assert pure.group(size).delta(below) > 0
        assert account(RandomizedResponse(parameter)).group(size).delta(below) > 0


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.7, 1.1])
def test_groups_against_all_outcomes(size, epsilon):
    """Two geometric counts that a group of k moves by k each, and k answers of randomised response, one by one."""
    geometric, response = 0.4, 0.3
    q = math.exp(-geometric)
    moved = [(q ** abs(x), q ** abs(x - size)) for x in range(-150, 151)]
    exact = sum(max(a * b - math.exp(epsilon) * c * d, 0.0) for a, c in moved for b, d in moved)
    exact *= ((1 - q) / (1 + q)) ** 2
    assert account(Repeated(TwoSidedGeometric(geometric), 2)).group(size).delta(epsilon) >= exact * (1 - 1e-9)
    truth = 1 / (1 + math.exp(-response))
    exact = sum(
        math.comb(size, k) * max(
            truth**k * (1 - truth) ** (size - k) - math.exp(epsilon) * truth ** (size - k) * (1 - truth) ** k, 0.0)
        for k in range(size + 1)
    )
    assert account(RandomizedResponse(response)).group(size).delta(epsilon) >= exact * (1 - 1e-9)


def test_refusals():
    with pytest.raises(ValueError, match="size of the group"):
        account(PureDp(0.3)).group(0)
    with pytest.raises(ValueError, match="size of the group: must be at most"):
        account(PureDp(0.3)).group(10**400)
