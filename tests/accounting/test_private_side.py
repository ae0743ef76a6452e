"""Sums of largest losses end above the truth, and epsilon and delta are inverse to each other: the private side."""

from __future__ import annotations

import importlib
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from dptoolkit.accounting import (
    ApproxDp,
    BestOf,
    Composed,
    ExponentialMechanism,
    Laplace,
    PureDp,
    RandomizedResponse,
    Repeated,
    Subsampled,
    TruncatedNegativeBinomial,
    TwoSidedGeometric,
    account,
    composition,
    pld,
    sampling,
    selection,
)
from dptoolkit.accounting._numeric import inverse_up, sum_up
from tests.accounting.reference import exact_delta
from tests.accounting.test_fuzz import faults

account_module = importlib.import_module("dptoolkit.accounting.account")


# --- rounding up -------------------------------------------------------------------------------------


def test_a_sum_of_products_is_the_next_float_at_or_above_the_exact_one():
    rng = np.random.default_rng(0)
    for _ in range(300):
        terms = [(int(rng.integers(0, 10**6)), float(10.0 ** rng.uniform(-9, 3))) for _ in range(3)]
        exact = sum(Fraction(n) * Fraction(x) for n, x in terms)
        found = Fraction(sum_up(terms))
        assert exact <= found <= exact * (1 + Fraction(1, 2**51))


@pytest.mark.parametrize(
    ("terms", "value"),
    [([], 0.0), ([(0, math.inf)], 0.0), ([(3, 0.5), (2, 0.25)], 2.0), ([(1, math.inf), (2, 1.0)], math.inf),
     ([(10**100, 1e300)], math.inf), ([(1, 5e-324)], 5e-324), ([(0.5, 5e-324)], 5e-324)],
)  # fmt: skip
def test_exact_sums_stay_and_the_ends_are_kept(terms, value):
    assert sum_up(terms) == value


def test_an_inverse_is_never_below_the_exact_one():
    rng = np.random.default_rng(1)
    for noise in [*(10.0 ** rng.uniform(-5, 5, 300)), 0.25, 1e300, 1e-300, 5e-324]:
        assert inverse_up(noise) == math.inf or Fraction(inverse_up(noise)) * Fraction(noise) >= 1
    assert inverse_up(0.25) == 4.0
    assert (inverse_up(0.0), inverse_up(math.inf)) == (math.inf, 0.0)


def _random_pure(rng: np.random.Generator) -> tuple[Composed, Fraction]:
    parts = [(float(10.0 ** rng.uniform(-4, 2)), int(rng.integers(1, 50))) for _ in range(3)]
    event = Composed(*(Repeated(RandomizedResponse(e, 3), n) for e, n in parts))
    return event, sum(Fraction(e) * n for e, n in parts)


def test_largest_losses_add_up_to_no_less_than_they_are():
    """Rounded to the nearest float, about half of these sums were below the exact one."""
    rng = np.random.default_rng(2)
    for _ in range(100):
        event, exact = _random_pure(rng)
        assert Fraction(account(event, "basic").epsilon(0.0)) >= exact
        assert Fraction(account_module._total_pure(event)) >= exact


def test_siblings_of_the_sum_round_up_too():
    rng = np.random.default_rng(3)
    for _ in range(100):
        e, n, d = float(10.0 ** rng.uniform(-4, 2)), int(rng.integers(2, 1000)), float(10.0 ** rng.uniform(-9, -4))
        total = Fraction(e) * n
        assert Fraction(composition.basic(e, n)[0]) >= total
        assert Fraction(composition.basic(e, n, d)[1]) >= Fraction(d) * n
        assert Fraction(composition.optimal(e, n, 0.0)) >= total
        assert Fraction(account_module._spent_delta(Repeated(ApproxDp(1.0, d), n))) >= Fraction(d) * n
        assert Fraction(selection.adaptive(e, 1, 0.0)) >= Fraction(e)
        best = BestOf(PureDp(e), TruncatedNegativeBinomial(0.3, 0.1))
        assert Fraction(account_module.pure_epsilon(best)) >= (2 + Fraction(0.3)) * Fraction(e)
        assert Fraction(account_module.pure_epsilon(Laplace(e))) * Fraction(e) >= 1


@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.3, 0.999998, 1 - 1e-15])
def test_amplification_rounds_up(rate):
    rng = np.random.default_rng(4)
    for epsilon in 10.0 ** rng.uniform(-6, 2.8, 200):
        with mp.workdps(60):
            exact = mp.log1p(mp.mpf(rate) * mp.expm1(mp.mpf(float(epsilon))))
            found = sampling.amplified(float(epsilon), rate)
            assert exact <= found <= exact * (1 + mp.mpf(2) ** -48)


@pytest.mark.parametrize("method", [None, "basic", "pld"])
@pytest.mark.parametrize(
    "event",
    [
        Composed(Subsampled(TwoSidedGeometric(0.0179, 3), "poisson", 0.1499),
                 Repeated(RandomizedResponse(30.185, 19), 4)),
        Composed(RandomizedResponse(30.1, 3), RandomizedResponse(0.7, 3), RandomizedResponse(17.3)),
        Subsampled(RandomizedResponse(30.3), "poisson", 1e-11), Subsampled(RandomizedResponse(7.7), "poisson", 1e-3),
        Composed(RandomizedResponse(0.011, 4), Repeated(TwoSidedGeometric(0.013, 3), 3)), Laplace(0.0133),
        Repeated(RandomizedResponse(0.3), 7), Repeated(ExponentialMechanism(0.7), 3),
    ],
    ids=str,
)  # fmt: skip
def test_a_largest_loss_is_not_rounded_down_at_tiny_deltas(event, method):
    """One unit in the last place of an epsilon of 100 is a delta of 1e-14."""
    for delta in (2.5e-18, 1e-17, 1e-16, 1e-15):
        assert not faults(event, method, delta, 1.0)
        if isinstance(event, Repeated):
            assert not faults(event, "optimal", delta, 1.0)


def test_a_curve_read_where_the_largest_loss_was_rounded_to():
    """Just below the largest loss the exact delta is the distance times the mass: the grid must not read 0 there."""
    for epsilon in (0.0111, 0.3, 2.7, 30.1):
        event = Composed(RandomizedResponse(epsilon), RandomizedResponse(epsilon / 3, 3))
        largest = account(event, "basic").epsilon(0.0)
        for ulps in (1, 2, 4, 16):
            below = largest - ulps * math.ulp(largest)
            assert pld.delta(event, below) >= exact_delta(event, below) * (1 - 1e-9)
