"""Lower ends of brackets: what known neighbours attain for selections, noisy-max, the best of runs and zCDP."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from dptoolkit.accounting import (
    BestOf,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    Logarithmic,
    NoisyMax,
    Poisson,
    PureDp,
    Repeated,
    TruncatedNegativeBinomial,
    ZCdp,
    account,
    profiles,
    selection,
    two_outcomes,
)
from dptoolkit.accounting.pld import single


@pytest.mark.parametrize(("epsilon", "count", "share"), [
    (0.1, 1, 0.99), (1.0, 1, 0.99), (1.0, 5, 0.99), (0.1, 100, 0.98), (2.0, 20, 0.98), (5.0, 3, 0.99),
])  # fmt: skip
def test_two_candidates_nearly_attain_what_selections_are_charged(epsilon, count, share):
    for delta in (1e-4, 1e-7):
        lower, upper = account(Repeated(ExponentialMechanism(epsilon), count)).bounds(delta)
        assert share * upper < lower <= upper


@settings(max_examples=25, deadline=None)
@given(epsilon=st.floats(1e-3, 8.0), delta=st.floats(1e-10, 0.2))
def test_one_selection_is_exact_on_the_grid(epsilon, delta):
    """One selection: the divergence has a formula, which the recursion's values never exceed."""
    exact = single.epsilon(profiles.bounded_range(epsilon), delta)
    lower = selection.lower_adaptive(epsilon, 1, delta)
    assert lower is not None and exact - 2 * epsilon / 512 <= lower <= exact * (1 + 1e-9)


def test_the_range_of_the_upper_recursion_would_be_false_as_a_lower_end():
    """The broken twin: a range of one more cell claims more than any neighbours attain."""
    epsilon, delta = 1.0, 0.05
    exact = single.epsilon(profiles.bounded_range(epsilon), delta)
    x, value = selection._recursion(epsilon, 1, 70, 16)
    assert x[np.flatnonzero(value > delta)[-1]] > exact >= selection.lower_adaptive(epsilon, 1, delta)


def test_the_strategy_of_two_steps_is_one():
    """Two adaptive selections, by hand: the first choice of t, then the best answer to either outcome."""
    epsilon, cells = 1.0, 8
    x, value = selection._lower_recursion(epsilon, 2, 40, cells)
    _, once = selection._lower_recursion(epsilon, 1, 40, cells)
    t = np.arange(cells + 1) * epsilon / cells
    high = np.expm1(t - epsilon) / math.expm1(-epsilon)

    def after(loss: float) -> float:
        place = round(abs(loss) / (epsilon / cells))
        rest = float(once[place]) if place < len(once) else 0.0
        return rest if loss >= 0 else -math.expm1(loss) + math.exp(loss) * rest

    for i in (0, 3, 8, 13):
        by_hand = max(h * after(x[i] - s) + (1 - h) * after(x[i] - s + epsilon) for h, s in zip(high, t, strict=True))
        assert value[i] == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("noise", ["laplace", "exponential"])
@pytest.mark.parametrize(("epsilon", "count"), [(0.1, 1), (1.0, 10), (4.0, 3), (1.0, 500)])
def test_noisy_max_is_between_its_ends(noise, epsilon, count):
    lower, upper = account(Repeated(NoisyMax(epsilon, noise), count)).bounds(1e-5)
    symmetric = account(Repeated(PureDp(selection.two_candidates(epsilon, noise)), count)).epsilon(1e-5)
    assert 0.99 * symmetric <= lower <= upper
    if noise == "exponential" and count <= 10:
        assert lower > 0.98 * upper


def test_gaps_follow_the_law_of_two_noises():
    """The difference of two noises, drawn: within 5 standard errors, which fails by chance with probability 6e-7."""
    rng = np.random.default_rng(1)
    for noise, draw in (("exponential", rng.standard_exponential), ("laplace", rng.laplace)):
        wins = np.mean(0.7 + draw(size=400_000) > draw(size=400_000))
        exact = float(two_outcomes._gap_law(np.array([0.7]), noise)[0])
        assert abs(wins - exact) < 5 * math.sqrt(exact * (1 - exact) / 400_000)


@settings(max_examples=30, deadline=None)
@given(p=st.floats(0.01, 0.99), q=st.floats(0.01, 0.99), count=st.integers(1, 30), delta=st.floats(1e-9, 0.3))
def test_bits_against_sums(p, q, count, delta):
    """The divergence of two binomial laws at the bound is at least delta, and just above the bound it is less."""
    bits = two_outcomes.Bits(*(np.array([v]) for v in (p, q, 1 - p, 1 - q)))
    lower = two_outcomes.lower_epsilon(bits, count, delta)
    k = np.arange(count + 1)
    laws = binom.pmf(k, count, p), binom.pmf(k, count, q)

    def divergence(x: float) -> float:
        return max(float(np.maximum(a - math.exp(x) * b, 0).sum()) for a, b in (laws, laws[::-1]))

    if lower > 0:
        assert divergence(lower) >= delta
    assert divergence(lower + 1e-5 * (1 + lower)) <= delta * (1 + 1e-6) + 1e-12


RUNS = [Poisson(4.0), TruncatedNegativeBinomial(1.0, 0.1), Logarithmic(0.2)]


@pytest.mark.parametrize("runs", RUNS, ids=str)
@pytest.mark.parametrize("run", [Gaussian(5.0), Laplace(5.0), PureDp(0.3)], ids=str)
def test_the_best_of_runs_has_a_lower_end(run, runs):
    for count in (1, 3):
        lower, upper = account(Repeated(BestOf(run, runs), count)).bounds(1e-4)
        assert 0.2 * upper < lower <= upper


def test_the_best_of_many_runs_shows_more_than_one():
    """More runs show more: what the selection adds is seen, and is not only that of one run."""
    lower = account(BestOf(PureDp(0.3), Logarithmic(0.05))).bounds(1e-5).lower
    assert lower > 1.3 * 0.3


def test_zcdp_covers_gaussian_noise():
    lower, upper = account(Repeated(ZCdp(0.01), 30)).bounds(1e-5)
    exact = account(Gaussian(1 / math.sqrt(2 * 0.3))).epsilon(1e-5)
    assert 0.9 * upper < lower <= exact * (1 + 1e-9) <= upper * (1 + 1e-9)
    # Nothing is known of a mechanism whose rho is infinite: a claim about it is not refuted.
    assert account(ZCdp(math.inf)).bounds(1e-5) == (0.0, math.inf)


@pytest.mark.parametrize(
    "event", [ExponentialMechanism(1.0), NoisyMax(1.0), BestOf(Gaussian(5.0), Poisson(4.0)), ZCdp(0.1)], ids=str
)
def test_ends_of_delta_and_of_noise(event):
    from dptoolkit.accounting.structure import scaled

    for delta in (0.0, 1e-300, 1e-15, 0.5, 1 - 1e-12):
        lower, upper = account(event).bounds(delta)
        assert 0 <= lower <= upper
    for factor in (0.0, 1e-200, 1e-9, 1e9):
        lower, upper = account(scaled(event, factor)).bounds(1e-5)
        assert 0 <= lower <= upper
    lower, upper = account(Repeated(event, 10**6)).bounds(1e-5)
    assert 0 <= lower <= upper


@pytest.mark.parametrize("epsilon0", [1e-6, 0.1, 1.0, 20.0, 900.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.3])
def test_one_selection_costs_exactly_what_its_worst_loss_shows(epsilon0, delta):
    """The largest delta over all two-point losses, in 40 digits: at epsilon it is at most delta, and hardly less."""
    epsilon = account(ExponentialMechanism(epsilon0), "bounded-range").epsilon(delta)

    def shown(x):
        return mp.expm1((x - mp.mpf(epsilon0)) / 2) ** 2 / -mp.expm1(-mp.mpf(epsilon0))

    with mp.workdps(40):
        allowed = shown(mp.mpf(epsilon)) * (1 + mp.mpf(10) ** -30) + mp.mpf(10) ** -35
        for t in (mp.mpf(k) / 50 * epsilon0 for k in range(51)):
            mass = mp.expm1(t - epsilon0) / mp.expm1(-mp.mpf(epsilon0))
            assert mass * (1 - mp.exp(mp.mpf(epsilon) - t)) <= allowed
        assert shown(mp.mpf(epsilon)) <= delta or epsilon == epsilon0
        assert epsilon == 0 or shown(mp.mpf(epsilon) * (1 - mp.mpf(10) ** -6)) > delta * (1 - 1e-4)
