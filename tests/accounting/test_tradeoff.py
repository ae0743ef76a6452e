"""The trade-off curve: what a guarantee leaves to somebody who guesses whether a record was used."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    ZCdp,
    account,
    tradeoff,
)
from dptoolkit.accounting.events import flatten
from dptoolkit.errors import InvalidValue

ALPHA = np.concatenate([[0.0, 1e-300, 1e-12], np.linspace(1e-3, 1 - 1e-3, 41), [1 - 1e-12, 1.0]])
POISSON = Subsampled(Gaussian(1.0), "poisson", 0.2)
EVENTS = [
    Composed(), Gaussian(1.0), Gaussian(0.0), Gaussian(math.inf), Repeated(Gaussian(3.0), 4), PureDp(0.0), PureDp(1.0),
    PureDp(math.inf), ApproxDp(1.0, 0.01), RandomizedResponse(0.7, 4), Repeated(Laplace(3.0), 4), ZCdp(0.3),
    Repeated(POISSON, 3), Subsampled(Gaussian(0.0), "poisson", 0.1), Repeated(ExponentialMechanism(0.5), 3),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_the_curve_is_one(event):
    """Convex, falling, at most 1 - alpha, its own mirror image, and above the line of every stated pair."""
    guarantee = account(event)
    beta = guarantee.tradeoff(ALPHA)
    assert np.all(np.diff(beta) <= 1e-15) and np.all(beta <= 1 - ALPHA) and np.all(beta >= 0)
    even = guarantee.tradeoff(np.linspace(0, 1, 41))
    assert np.all(np.diff(even, 2) >= -1e-14)
    inner = beta[(beta > 1e-6) & (beta < 1 - 1e-6)]
    again = guarantee.tradeoff(inner)
    assert again == pytest.approx(ALPHA[(beta > 1e-6) & (beta < 1 - 1e-6)], abs=1e-6)
    for delta in (1e-9, 1e-3, 0.05):
        epsilon = guarantee.epsilon(delta)
        if math.isfinite(epsilon):
            # Between two points of the profile the curve may be a little below the line.
            assert np.all(beta >= np.maximum(1 - delta - np.exp(epsilon) * ALPHA, 0) - 2e-3)
    assert np.all(beta >= tradeoff.below(tradeoff.profile(guarantee), ALPHA) - 2e-12)


@settings(max_examples=40, deadline=None)
@given(mu=st.floats(1e-3, 30.0), alpha=st.floats(1e-300, 1 - 1e-12))
def test_gaussian_noise_is_exact(mu, alpha):
    """Against 40 digits: never above the true rate, and as close as floats get."""
    with mpmath.workdps(40):
        exact = mpmath.ncdf(-mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(alpha) - 1) - mu) if alpha > 1e-3 else None
    lower, upper = account(Gaussian(1 / mu)).tradeoff_bounds(alpha)
    assert lower <= upper
    if exact is not None:
        assert lower <= exact and lower == pytest.approx(float(exact), rel=1e-9)


def test_the_profile_of_gaussian_noise_gives_nearly_its_curve():
    """The general way, by points (epsilon, delta), is below the closed form and close to it."""
    exact, general = account(Gaussian(1.0)).tradeoff(ALPHA), account(Gaussian(1.0), "pld").tradeoff(ALPHA)
    assert np.all(general <= exact * (1 + 3e-12)) and np.all(exact - general < 1e-3)


@pytest.mark.parametrize("categories", [2, 5])
def test_randomised_response_is_exact(categories):
    """The curve of finitely many outcomes by Neyman and Pearson: accept the outcomes of the largest ratio first."""
    odds = math.exp(-0.8)
    truth = 1 / (1 + (categories - 1) * odds)
    p = np.array([truth, *[truth * odds] * (categories - 1)])
    q = np.array([truth * odds, truth, *[truth * odds] * (categories - 2)])
    order = np.argsort(-p / q)
    false_alarm, missed = np.append(0, np.cumsum(q[order])), 1 - np.append(0, np.cumsum(p[order]))
    exact = np.interp(ALPHA, false_alarm, missed)
    guarantee = account(RandomizedResponse(0.8, categories))
    assert guarantee.tradeoff(ALPHA) == pytest.approx(exact, abs=1e-11)
    lower, upper = guarantee.tradeoff_bounds(ALPHA)
    assert np.all(lower <= exact + 1e-15) and np.all(upper >= exact - 1e-12)


def _worst_case(epsilon, delta, count, alpha):
    """The smallest missed-detection rate of ``count`` worst (epsilon, delta)-DP mechanisms, with 60 digits.

    By Neyman and Pearson: accept the outcomes of the largest ratio first. One response is a failure (only the one or
    only the other side has it), the truth or a lie.
    """
    with mpmath.workdps(60):
        odds, fails = mpmath.exp(-mpmath.mpf(epsilon)), 1 - (1 - mpmath.mpf(delta)) ** count
        truth, lie = 1 / (1 + odds), odds / (1 + odds)
        chances = [
            (1 - fails) * mpmath.binomial(count, j) * mpmath.mpf(truth) ** (count - j) * mpmath.mpf(lie) ** j
            for j in range(count + 1)
        ]
        missed, alarms = 1 - fails, mpmath.mpf(0)
        for j in range(count + 1):
            p, q = chances[j], chances[count - j]
            if alpha <= alarms + q:
                return max(missed - p * (alpha - alarms) / q, 0)
            missed, alarms = missed - p, alarms + q
        return mpmath.mpf(0)


@pytest.mark.parametrize(
    "generic",
    [(1.0, 1e-5, 1), (1.0, 0.0, 1), (0.3, 0.01, 7), (0.3, 0.0, 8), (0.1, 1e-3, 64), (5.0, 0.2, 3), (0.0, 0.1, 2),
     (20.0, 1e-9, 1), (1e-4, 0.0, 5), (700.0, 0.0, 4)],
)  # fmt: skip
def test_mechanisms_of_one_epsilon_and_delta_are_exact(generic):
    """Against 60 digits: the guaranteed rate is never above the true one, the attained one never below it."""
    epsilon, delta, count = generic
    event = Repeated(ApproxDp(epsilon, delta) if delta else PureDp(epsilon), count)
    lower, upper = account(event).tradeoff_bounds(ALPHA)
    for low, high, alpha in zip(lower, upper, ALPHA, strict=True):
        exact = _worst_case(epsilon, delta, count, mpmath.mpf(float(alpha)))
        assert mpmath.mpf(low) <= exact <= mpmath.mpf(high)
        assert high - low <= 1e-11
    bounds = account(event).bounds(max(delta, 0.001))
    assert bounds.lower == bounds.upper


@pytest.mark.parametrize(
    "event",
    [Composed(ApproxDp(0.5, 0.01), Laplace(1.0)), Composed(ApproxDp(0.5, 0.01), Gaussian(2.0)),
     Repeated(ApproxDp(0.1, 1e-4), 300), Composed(ApproxDp(1.0, 0.1), ApproxDp(0.5, 0.2))],
)  # fmt: skip
def test_failures_are_part_of_what_is_attained(event):
    """With other releases too the attained rate is near the guaranteed one, and below that of a blind guess."""
    lower, upper = account(event).tradeoff_bounds(ALPHA)
    assert np.all(lower <= upper) and np.all(upper - lower < 0.1)
    failure = 1 - math.prod((1 - e.delta) ** n for e, n in flatten(event) if isinstance(e, ApproxDp))
    assert upper[0] <= 1 - failure + 1e-12, "a test that waits for a failure never alarms falsely"


def test_the_attained_rate_of_composed_failures():
    """Two different (epsilon, delta): against all nine outcomes, enumerated."""
    laws = []
    for epsilon, delta in ((1.0, 0.1), (0.5, 0.2)):
        truth = (1 - delta) / (1 + math.exp(-epsilon))
        lie = 1 - delta - truth
        laws.append((np.array([delta, truth, lie, 0.0]), np.array([0.0, lie, truth, delta])))
    p, q = (np.outer(laws[0][side], laws[1][side]).ravel() for side in (0, 1))
    p, q = p[(p > 0) | (q > 0)], q[(p > 0) | (q > 0)]
    order = np.argsort(-p / np.maximum(q, 1e-300))
    exact = np.interp(ALPHA, np.append(0, np.cumsum(q[order])), 1 - np.append(0, np.cumsum(p[order])))
    start = 1 - float(p[q == 0].sum())
    exact[ALPHA == 0] = start
    lower, upper = account(Composed(ApproxDp(1.0, 0.1), ApproxDp(0.5, 0.2))).tradeoff_bounds(ALPHA)
    assert np.all(lower <= exact + 1e-12) and np.all(upper >= exact - 1e-12)


def _one_release(pair, points=4001):
    """The curve of an explicit pair, from its tails: exact at the points, one order of the neighbours."""
    losses = np.linspace(-12, 12, points)
    tails = pair.tails(losses)
    return tails.q_above[::-1], 1 - tails.p_above[::-1]


def test_a_curve_from_one_direction_alone_fails():
    """Sampling leaks more in one order of the neighbours. The other order's curve promises what a test refutes."""
    from dptoolkit.accounting import pld

    pair = pld.dominating(POISSON)
    forward, backward = _one_release(pair), _one_release(pair.swapped())
    lower = account(POISSON).tradeoff(ALPHA)
    attained = [np.interp(ALPHA, *curve) for curve in (forward, backward)]
    assert np.all(lower <= np.minimum(*attained) + 1e-5)
    # The broken twin: lines of the smaller delta only.
    one_way, other_way = pld.divergences(POISSON)
    epsilons = np.linspace(0, 1.6, 30)
    twin = np.array([min(one_way(float(e)), other_way(float(e))) for e in epsilons])
    broken = tradeoff.below(tradeoff.Profile(epsilons, twin), ALPHA)
    assert np.any(broken > np.minimum(*attained) + 1e-2)


@pytest.mark.parametrize("event", [Repeated(POISSON, 3), Repeated(Laplace(3.0), 4), PureDp(1.0)], ids=str)
def test_what_a_test_attains_is_above_what_is_guaranteed(event):
    lower, upper = account(event).tradeoff_bounds(ALPHA)
    assert np.all(lower <= upper)
    middle = (ALPHA > 0.01) & (ALPHA < 0.9)
    assert np.all(upper[middle] < 1 - ALPHA[middle]), "the attained pair is not used"


def test_ends():
    for event in EVENTS:
        guarantee = account(event)
        assert guarantee.tradeoff(1) == 0 and 0 <= guarantee.tradeoff(0) <= 1
    assert account(Composed()).tradeoff(0.3) == pytest.approx(0.7, abs=1e-15)
    assert account(Gaussian(0.0)).tradeoff(0) == 0 and account(PureDp(math.inf)).tradeoff(1e-300) == 0
    assert account(Gaussian(1e-3)).tradeoff(0) == 1
    assert account(ApproxDp(1.0, 0.01)).tradeoff(0) == pytest.approx(0.99)
    assert account(Gaussian(1.0)).tradeoff([[0.1, 0.2]]).shape == (1, 2)
    assert isinstance(account(Gaussian(1.0)).tradeoff(0.1), float)


@pytest.mark.parametrize("alpha", [math.nan, -1e-9, 1 + 1e-9, math.inf, "x", None, [0.1, math.nan]])
def test_rates_that_are_none_are_refused(alpha):
    with pytest.raises(InvalidValue, match="alpha"):
        account(Gaussian(1.0)).tradeoff(alpha)


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_guesses(event):
    """The success of a guess is the trade-off curve's: max over alpha of prior (1 - beta) + (1 - prior)(1 - alpha)."""
    guarantee = account(event)
    alpha = np.linspace(0, 1, 2001)
    beta = guarantee.tradeoff(alpha)
    for prior in (0.0, 1e-300, 0.1, 0.5, 0.8, 1.0):
        by_curve = float(np.max(prior * (1 - beta) + (1 - prior) * (1 - alpha)))
        success = guarantee.bayes_success(prior)
        assert max(prior, 1 - prior) <= success <= by_curve + 2e-3
        assert success >= by_curve - 2e-2
    assert guarantee.advantage <= guarantee.delta(0.0)
    assert guarantee.bayes_success() == pytest.approx((1 + guarantee.advantage) / 2)
    for prior in (math.nan, -0.1, 1.1):
        with pytest.raises(InvalidValue, match="prior"):
            guarantee.bayes_success(prior)


def test_the_sentence_rounds_up_and_names_the_neighbours():
    assert "is right at most 70 times in 100" in account(Gaussian(1.0), adjacency="replace-one").sentence
    assert "or another one in its place" in account(Gaussian(1.0), adjacency="replace-one").sentence
    assert "used or left out" in account(POISSON).sentence
    assert "at most 50 times in 100" in account(Composed()).sentence
    assert "at most 51 times in 100" in account(Gaussian(1e6)).sentence
    assert "99,998 times in 100,000" in account(Gaussian(0.123)).sentence
    assert "may always be right" in account(Gaussian(0.0)).sentence
