"""Guarantees for groups: exact where the event says so, from a chain of neighbours elsewhere, and never too small."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from scipy.integrate import simpson

from dptoolkit.accounting import (
    ApproxDp,
    BestOf,
    Composed,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PureDp,
    RandomizedResponse,
    Repeated,
    SampledGroup,
    Subsampled,
    TruncatedNegativeBinomial,
    TwoSidedGeometric,
    ZCdp,
    account,
    gaussian,
    pld,
    sampling,
)

DELTA = 1e-5
EVENTS = [
    Repeated(Gaussian(5.0), 10), Repeated(ExponentialMechanism(0.1), 20), PureDp(0.3), ZCdp(0.05), ApproxDp(0.5, 1e-7),
    Composed(Gaussian(4.0), TwoSidedGeometric(0.2, 3)), Repeated(Subsampled(Gaussian(2.0), "poisson", rate=0.1), 20),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_one_record_is_a_group_of_one(event):
    """To the last bit, and the event is the guarantee's own."""
    guarantee = account(event)
    group = guarantee.group(1)
    assert group.event == event
    assert group.epsilon(DELTA) == guarantee.epsilon(DELTA)
    assert group.delta(0.7) == guarantee.delta(0.7)


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
    """A group may be sampled in part. Without replacement, and under replace-one, there is the chain alone."""
    single = account(Repeated(Subsampled(Gaussian(2.0), "poisson", rate=0.1), 20))
    group = single.group(2)
    assert group.event == Repeated(SampledGroup(2.0, 0.1, 2), 20)
    assert 1.5 * single.epsilon(DELTA) < group.epsilon(DELTA) < group._chain_epsilon(DELTA)
    for scheme, adjacency in (("without-replacement", None), ("poisson", "replace-one")):
        assert account(Subsampled(Gaussian(2.0), scheme, 0.1, adjacency)).group(2).event is None
    assert account(Subsampled(Laplace(2.0), "poisson", 0.1)).group(2).event is None


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
        math.comb(size, k)
        * max(truth**k * (1 - truth) ** (size - k) - math.exp(epsilon) * truth ** (size - k) * (1 - truth) ** k, 0.0)
        for k in range(size + 1)
    )
    assert account(RandomizedResponse(response)).group(size).delta(epsilon) >= exact * (1 - 1e-9)


def test_refusals():
    with pytest.raises(ValueError, match="size of the group"):
        account(PureDp(0.3)).group(0)
    with pytest.raises(ValueError, match="size of the group: must be at most"):
        account(PureDp(0.3)).group(10**400)


# --- groups under Poisson sampling -------------------------------------------------------------------


def mixture(shifts: list[float], weights: list[float], epsilon: float) -> tuple[float, float]:
    """Both divergences of sum_i weights_i N(shifts_i) against N(0), by Simpson's rule."""
    x = np.linspace(-14 - max(map(abs, shifts)), 14 + max(map(abs, shifts)), 8_001)
    density = [np.exp(-0.5 * (x - s) ** 2) / math.sqrt(2 * math.pi) for s in (0.0, *shifts)]
    p, q = sum(w * d for w, d in zip(weights, density[1:], strict=True)), density[0]
    grown = math.exp(epsilon)
    return tuple(float(simpson(np.maximum(a - grown * b, 0.0), x=x)) for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize(("mu", "rate", "size"), [(0.7, 0.1, 3), (0.2, 0.4, 5), (2.0, 0.01, 2), (1e-2, 0.3, 4)])
def test_the_pair_of_a_sampled_group_is_its_mixture(mu, rate, size):
    pair = sampling.group(mu, rate, size)
    weights = [math.comb(size, j) * rate**j * (1 - rate) ** (size - j) for j in range(size + 1)]
    largest = math.log1p(rate * math.expm1(size * mu * (3 + size * mu)))
    for share in (0.0, 0.05, 0.3, 0.8):
        forward, backward = mixture([j * mu for j in range(size + 1)], weights, share * largest)
        assert float(pair.above(np.array([share * largest]))[0]) == pytest.approx(forward, rel=1e-5, abs=1e-9)
        assert float(pair.below(np.array([share * largest]))[0]) == pytest.approx(backward, rel=1e-5, abs=1e-9)


def test_no_group_of_that_size_is_beyond_the_pair():
    """Every subset of the group may move the query anywhere within its size: 40 random moves, both orders."""
    rng = np.random.default_rng(7)
    for _ in range(40):
        mu, rate, size = float(rng.uniform(0.1, 1.5)), float(rng.uniform(0.01, 0.9)), int(rng.integers(2, 5))
        shifts, weights = [], []
        for subset in range(2**size):
            count = subset.bit_count()
            shifts.append(float(rng.choice([-1, 1, rng.uniform(-1, 1)])) * count * mu)
            weights.append(rate**count * (1 - rate) ** (size - count))
        epsilon = float(rng.choice([0.0, rng.uniform(0, 3)]))
        pair = sampling.group(mu, rate, size)
        forward, backward = mixture(shifts, weights, epsilon)
        assert forward <= float(pair.above(np.array([epsilon]))[0]) + 1e-6
        assert backward <= float(pair.below(np.array([epsilon]))[0]) + 1e-6


def test_a_pair_with_too_few_sampled_would_be_noticed():
    """The twin of the test above: the pair of one record fewer is exceeded."""
    weights = [0.9**3, 3 * 0.1 * 0.9**2, 3 * 0.1**2 * 0.9, 0.1**3]
    forward, _ = mixture([0.0, 0.7, 1.4, 2.1], weights, 0.3)
    assert forward > 1.2 * float(sampling.group(0.7, 0.1, 2).above(np.array([0.3]))[0])


def test_a_group_of_sampled_records_costs_less_than_the_chain():
    """Five records of 1,000 steps: 18.91 by the chain. The pair is attained, as the lower end of the bracket shows."""
    group = account(Repeated(Subsampled(Gaussian(1.0), "poisson", 0.01), 1000)).group(5)
    assert group._chain_epsilon(DELTA) == pytest.approx(18.91, abs=5e-3)
    low, high = account(group.event).bounds(DELTA)
    assert 0.98 * high < low <= high == group.epsilon(DELTA) == pytest.approx(11.638, abs=2e-3)
    assert account(group.event).delta(high) <= DELTA


@pytest.mark.parametrize("size", [2, 7, 600, 10**9])
def test_large_groups_are_bounded_or_given_up(size):
    group = account(Subsampled(Gaussian(5.0), "poisson", 0.01)).group(size)
    single = account(Gaussian(5.0 / size)).epsilon(DELTA)
    assert group.guarantee.epsilon(DELTA) < group.epsilon(DELTA) <= max(single * (1 + 1e-6), 1.0)


def test_renyi_of_a_sampled_group_is_above_its_pair():
    event = SampledGroup(3.0, 0.05, 4)
    assert account(event, "rdp").epsilon(DELTA) > account(event, "pld").epsilon(DELTA)
    assert account(Repeated(event, 50), "rdp").epsilon(DELTA) > account(Repeated(event, 50), "pld").epsilon(DELTA)


def test_a_chain_takes_few_questions(monkeypatch):
    """Two hundred deltas, each half the one before, took 14 s to say that there is no answer."""
    asked = []
    honest = type(account(PureDp(1.0))).epsilon
    monkeypatch.setattr("dptoolkit.accounting.Guarantee.epsilon", lambda g, d: asked.append(d) or honest(g, d))
    run = Repeated(Subsampled(Gaussian(1.0), "poisson", 0.01), 100)
    group = account(BestOf(run, TruncatedNegativeBinomial(1.0, 0.1))).group(20)
    assert group.epsilon(DELTA) == math.inf
    assert len(asked) < 60


def test_the_chain_finds_the_smallest_step():
    """Against a search over all steps, for a curve that has a jump and one that has not."""
    for event, size in ((ApproxDp(0.5, 1e-9), 3), (Subsampled(Laplace(0.5), "poisson", 0.2), 4)):
        group = account(event).group(size)
        found = group._chain_epsilon(DELTA) / size
        steps = np.linspace(0.0, found * (1 - 1e-4), 50)
        assert group._sum(found) <= DELTA and all(group._sum(float(step)) > DELTA for step in steps)


# --- the pair of a group, in digits ------------------------------------------------------------------


def exact_pair(mu: float, rate: float, size: int, epsilon: float) -> tuple[float, float]:
    """Both divergences of the pair in 150 digits; the point of the loss by bisection."""
    with mp.workdps(150):
        q, shift, a = mp.mpf(rate), mp.mpf(mu), mp.exp(mp.mpf(epsilon))
        w = [mp.binomial(size, j) * q**j * (1 - q) ** (size - j) for j in range(size + 1)]

        def point(ratio: mp.mpf) -> mp.mpf:
            low, high = mp.mpf(-1e4) * (1 + 1 / shift), mp.mpf(1e4) * (1 + 1 / shift)
            for _ in range(500):
                t = (low + high) / 2
                loss = mp.fsum(w[j] * mp.exp(j * shift * t - (j * shift) ** 2 / 2) for j in range(size + 1))
                low, high = (low, t) if loss > ratio else (t, high)
            return high

        def above(t: mp.mpf) -> mp.mpf:
            return mp.fsum(w[j] * mp.ncdf(j * shift - t) for j in range(size + 1))

        def below(t: mp.mpf) -> mp.mpf:
            return mp.fsum(w[j] * mp.ncdf(t - j * shift) for j in range(size + 1))

        t, back = point(a), point(1 / a)
        return float(above(t) - a * mp.ncdf(-t)), float(mp.ncdf(back) - a * below(back)) if a * w[0] < 1 else 0.0


@pytest.mark.parametrize(
    ("mu", "rate", "size", "epsilon"),
    [
        # The round-off of 1 - (1-q)^k - (1 - e^-epsilon), which cancels.
        (0.2752304, 0.9020664754621817, 4, 9.247927997164327), (6.0, 1 - 1e-7, 6, 50.0),
        # Numbers that are hardly ever sampled weigh no more than they do.
        (0.1, 1e-80, 3, 0.0), (5.0, 1e-70, 4, 1e-70), (1.0, 0.02, 5, 0.3),
    ],
)  # fmt: skip
def test_the_pair_of_a_sampled_group_is_never_below_its_digits(mu, rate, size, epsilon):
    pair, exact = sampling.group(mu, rate, size), exact_pair(mu, rate, size, epsilon)
    for curve, truth in zip((pair.above, pair.below), exact, strict=True):
        assert truth <= float(curve(np.array([epsilon]))[0]) * (1 + 1e-11) <= truth * (1 + 1e-6)


@pytest.mark.parametrize(
    ("event", "epsilon"),
    [
        (SampledGroup(1.0, 0.0, 3), 0.0), (SampledGroup(0.0, 0.0, 3), 0.0), (SampledGroup(1e-200, 0.5, 3), math.inf),
        (SampledGroup(1.0, 1e-20, 3), 0.0), (SampledGroup(10.0, 0.5, 2000), 22_000.0),
    ],
    ids=str,
)  # fmt: skip
def test_extreme_groups_are_answered_without_a_warning(event, epsilon):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for releases in (event, Repeated(event, 2)):
            answer = account(releases).epsilon(DELTA)
            assert answer == epsilon if epsilon in (0, math.inf) else epsilon / 4 < answer < 3 * epsilon
            account(releases, "rdp").epsilon(DELTA)
            pld.delta(releases, 1.0)
    if event.rate == 0:
        # Nothing is released, so its adjacency does not matter.
        assert account(Composed(event, Gaussian(1.0)), adjacency="replace-one").epsilon(DELTA) > 0


def test_backward_losses_of_a_group_beyond_700():
    """e^709 is the largest float: the divergence 1 - e^(x - 5000) times a share was taken for 0 from 745 on."""
    pair = sampling.group(5.0, 1 - math.exp(-1.0), 1000)
    assert float(pair.below(np.array([800.0]))[0]) == pytest.approx(1.0, abs=1e-9)
