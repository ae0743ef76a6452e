"""Formulas against slow, independent computations: mpmath quadrature, explicit sums, brute-force maxima."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.special import ndtr

from dptoolkit.accounting import (
    Composed,
    DiscreteGaussian,
    Gaussian,
    Geometric,
    Laplace,
    Poisson,
    RandomizedResponse,
    RandomRounds,
    Repeated,
    Subsampled,
    TruncatedGeometric,
    TruncatedNegativeBinomial,
    TwoSidedGeometric,
    account,
    composition,
    gaussian,
    pld,
    profiles,
    rdp,
    rounds,
    sampling,
    selection,
    zcdp,
)

mp.mp.dps = 40
ORDERS = np.array([1.3, 2.0, 5.0, 17.5, 64.0])


def mp_gaussian_delta(mu: float, epsilon: float) -> mp.mpf:
    m, e = mp.mpf(mu), mp.mpf(epsilon)
    return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


@given(st.floats(1e-3, 30.0), st.floats(0.0, 60.0))
def test_gaussian_delta_to_ten_digits_far_into_the_tail(mu, epsilon):
    exact = mp_gaussian_delta(mu, epsilon)
    if exact > 1e-280:
        assert float(gaussian.delta(mu, epsilon) / exact) == pytest.approx(1.0, rel=1e-9)


@given(st.floats(1e-4, 1e3), st.sampled_from([1e-2, 1e-5, 1e-9, 1e-18]))
def test_gaussian_mu_and_epsilon_end_on_the_private_side(epsilon, delta):
    mu = gaussian.mu(epsilon, delta)
    assert gaussian.delta(mu, epsilon) <= delta
    assert gaussian.delta(mu * (1 + 1e-6), epsilon) > delta
    assert gaussian.epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)


# mu* and rho* of the classical budgets, four digits, as known from the analytic Gaussian and the tight conversion.
@pytest.mark.parametrize(
    ("epsilon", "rho", "mu"),
    [(0.1, 0.00043, 0.0325), (0.5, 0.00851, 0.1422), (1, 0.03056, 0.2681), (2, 0.10826, 0.5016), (4, 0.37314, 0.9249),
     (8, 1.2297, 1.666)],
)  # fmt: skip
def test_known_budgets_at_delta_1e_5(epsilon, rho, mu):
    assert zcdp.from_epsilon(epsilon, 1e-5) == pytest.approx(rho, abs=6e-5)
    assert gaussian.mu(epsilon, 1e-5) == pytest.approx(mu, abs=6e-5)


def test_the_conversion_of_rho_is_the_best_over_all_orders():
    for rho, epsilon in ((0.05, 1.0), (1.0, 6.0), (1e-4, 0.1)):
        a = 1 + np.geomspace(1e-3, 1e5, 400_000)
        brute = np.min((a - 1) * (a * rho - epsilon) + a * np.log1p(-1 / a) - np.log(a - 1))
        assert math.log(zcdp.to_delta(rho, epsilon)) == pytest.approx(brute, abs=1e-6)


def renyi(log_p, log_q, order: float, low: float, high: float) -> float:
    """By the trapezoid rule in extended precision, on far more points than the code under test uses."""
    step = (np.longdouble(high) - np.longdouble(low)) / 200_000
    x = low + step * np.arange(200_001, dtype=np.longdouble)
    exponent = order * log_p(x) + (1 - order) * log_q(x)
    top = exponent.max()
    return float((np.log(np.sum(np.exp(exponent - top)) * step) + top) / (order - 1))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("z", "rate"), [(1.0, 0.1), (2.5, 0.01), (0.7, 0.5)])
def test_renyi_divergence_of_poisson_batches_by_quadrature(z, rate, order):
    def log_mixture(mean: float):
        def value(x: np.ndarray) -> np.ndarray:
            parts = [np.log(np.longdouble(w)) - ((x - m) / z) ** 2 / 2 for w, m in ((1 - rate, 0.0), (rate, mean))]
            return np.logaddexp(*parts) - np.log(z * np.sqrt(2 * np.longdouble(math.pi)))

        return value

    low, high = -14 * z - 1, order + 14 * z + 1
    one_sided = renyi(log_mixture(1.0), log_mixture(0.0), order, low, high)
    both = renyi(log_mixture(0.5), log_mixture(-0.5), order, low, high)
    assert rdp.subsampled_gaussian(z, rate, order)[0] == pytest.approx(one_sided, rel=1e-7)
    assert rdp.subsampled_gaussian(z, rate, order, "poisson", "replace-one")[0] == pytest.approx(both, rel=1e-7)


@pytest.mark.parametrize("order", ORDERS)
def test_renyi_divergence_of_pure_mechanisms_by_explicit_sums(order):
    epsilon, sensitivity = 0.8, 5
    # The loss is epsilon left of 0, -epsilon right of 1, and falls linearly between.
    middle = mp.quad(lambda x: mp.exp(-epsilon * x + (order - 1) * epsilon * (1 - 2 * x)), [0, 1]) * epsilon / 2
    ends = (math.exp((order - 1) * epsilon) + math.exp(-order * epsilon)) / 2
    laplace = float(mp.log(ends + middle) / (order - 1))
    assert rdp.laplace(1 / epsilon, order)[0] == pytest.approx(laplace, rel=1e-6)
    q = math.exp(-epsilon / sensitivity)
    k = np.arange(-2000, 2001)
    log_terms = math.log(q) * (order * np.abs(k) + (1 - order) * np.abs(k - sensitivity))
    geometric = math.log(np.sum(np.exp(log_terms)) * (1 - q) / (1 + q)) / (order - 1)
    assert rdp.two_sided_geometric(epsilon, sensitivity, order)[0] == pytest.approx(geometric, rel=1e-9)
    truth, lie = math.exp(epsilon) / (math.exp(epsilon) + 3), 1 / (math.exp(epsilon) + 3)
    response = math.log(truth**order * lie ** (1 - order) + lie**order * truth ** (1 - order) + 2 * lie) / (order - 1)
    assert rdp.randomized_response(epsilon, order, categories=4)[0] == pytest.approx(response, rel=1e-9)


def two_point(epsilon: float, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P-mass at loss t and at loss t - epsilon."""
    high = np.expm1(t - epsilon) / math.expm1(-epsilon)
    return high, 1 - high


@pytest.mark.parametrize("epsilon", [0.05, 0.7, 3.0])
def test_bounded_range_curves_are_the_largest_over_all_two_point_losses(epsilon):
    t = np.linspace(0, epsilon, 20_001)
    high, low = two_point(epsilon, t)
    for order in ORDERS:
        m = order - 1
        brute = np.max(np.log(high * np.exp(m * t) + low * np.exp(m * (t - epsilon)))) / m
        assert rdp.exponential_mechanism(epsilon, order)[0] == pytest.approx(brute, rel=1e-6)
        assert brute <= order * epsilon**2 / 8 * (1 + 1e-9)
    for x in (0.0, 0.3 * epsilon, 0.9 * epsilon):
        brute = np.max(high * np.maximum(-np.expm1(x - t), 0))
        assert float(profiles.bounded_range(epsilon).above(np.asarray(x))) == pytest.approx(brute, rel=1e-6)


def test_the_recursion_for_selections_lies_between_what_is_reached_and_the_other_bounds():
    """Two selections by brute force over both ranges, the second chosen after the first outcome."""
    epsilon0, delta = 0.5, 1e-3
    t = np.linspace(0, epsilon0, 101)
    high, low = two_point(epsilon0, t)

    def one(x: np.ndarray) -> np.ndarray:
        return np.max(
            high * np.maximum(-np.expm1(x[:, None] - t), 0) + low * np.maximum(-np.expm1(x[:, None] - t + epsilon0), 0),
            axis=1,
        )

    def two(x: float) -> float:
        return float(np.max(high * one(x - t) + low * one(x - t + epsilon0)))

    found = selection.adaptive(epsilon0, 2, delta)
    assert two(found) <= delta
    assert two(found - 0.04 * epsilon0) > delta


def test_optimal_composition_is_the_binomial_sum():
    epsilon0, count, epsilon = 0.3, 12, 1.0
    truth = math.exp(epsilon0) / (1 + math.exp(epsilon0))
    total = sum(
        math.comb(count, k)
        * truth ** (count - k)
        * (1 - truth) ** k
        * max(0.0, 1 - math.exp(epsilon - (count - 2 * k) * epsilon0))
        for k in range(count + 1)
    )
    assert composition.optimal_delta(epsilon0, count, epsilon) == pytest.approx(total, rel=1e-9)
    assert composition.optimal(epsilon0, count, total) == pytest.approx(epsilon, rel=1e-6)


LAWS = {
    "geometric": (Geometric(0.7), lambda k: 0.3 * 0.7**k),
    "truncated": (TruncatedGeometric(0.7, 5), lambda k: 0.3 * 0.7**k if k < 5 else (0.7**5 if k == 5 else 0.0)),
    "poisson": (Poisson(2.5), lambda k: math.exp(-2.5 + k * math.log(2.5) - math.lgamma(k + 1))),
    "logarithmic": (TruncatedNegativeBinomial(0.0, 0.4), lambda k: 0.6**k / (k * math.log(1 / 0.4)) if k else 0.0),
}


@pytest.mark.parametrize("name", LAWS)
def test_generating_functions_tails_and_means_are_those_of_the_series(name):
    law, mass = LAWS[name]
    masses = np.array([mass(k) for k in range(400)])
    assert masses.sum() == pytest.approx(1.0)
    assert law.mean == pytest.approx(float(masses @ np.arange(400)))
    assert law.tail(3) == pytest.approx(masses[4:].sum())
    for log_z in (-0.5, 0.0, 0.2):
        powers = np.exp(log_z * np.arange(400))
        assert float(law.log_pgf(np.asarray(log_z))) == pytest.approx(math.log(masses @ powers), abs=1e-9)
        phi = np.exp(1j * np.array([0.3, 2.0])) * 0.9
        series = (masses * powers) @ phi[None, :] ** np.arange(400)[:, None] / (masses @ powers)
        assert law.tilted(log_z, phi) == pytest.approx(series)


def test_random_rounds_are_the_mixture_of_their_rounds():
    """delta(epsilon) = E_N[delta_N(epsilon)], with the exact Gaussian delta_N."""
    z, gamma, epsilon = 6.0, 0.8, 1.2
    mixture = sum(0.2 * gamma**k * gaussian.delta(math.sqrt(k) / z, epsilon) for k in range(1, 400))
    event = RandomRounds(Gaussian(z), Geometric(gamma))
    assert pld.delta(event, epsilon) == pytest.approx(mixture, rel=5e-3)
    assert pld.delta(event, epsilon) >= mixture * (1 - 1e-9)


@pytest.mark.parametrize(
    ("count", "published", "exact", "total"),
    [(10, 18.42, (15.8, 15.2, 14.6), (3.24, 3.15, 3.07)), (100, 20.85, (18.4, 17.6, 17.0), (1.55, 1.53, 1.51))],
)
def test_known_factors_for_geometric_loops(count, published, exact, total):
    """How many times the mean number of rounds must be charged at delta 1e-5, for B/b = 5, 10, 50."""
    assert rounds.published_factor(count, 1e-5) == pytest.approx(published, abs=0.01)
    for ratio, one, both in zip((5, 10, 50), exact, total, strict=True):
        gamma = ratio / (ratio + 1)
        assert rounds.exact_factor(gamma, count, 1e-5) == pytest.approx(one, abs=0.06)
        assert rounds.total_factor(gamma, count, 1e-5) == pytest.approx(both, abs=0.01)
        assert rounds.geometric_tail(gamma, 7) == pytest.approx(gamma**8)


def divergence(weights: np.ndarray, log_ratio: np.ndarray, a: float) -> float:
    return float(np.sum(weights * np.maximum(1 - a * np.exp(-log_ratio), 0.0)))


@given(
    st.floats(0, math.pi), st.floats(0, 1), st.floats(0, 1), st.floats(0.05, 0.9), st.floats(0.4, 3.0),
    st.floats(0.05, 20.0),
)  # fmt: skip
def test_no_two_contributions_in_the_ball_beat_opposite_ones(angle, first, second, rate, mu, a):
    """The pair claimed to dominate Poisson batches under replace-one, against any v, v' in the ball of a plane."""
    r = mu / 2
    grid = np.linspace(-8, 8, 161)
    x, y = np.meshgrid(grid, grid)
    cell = (grid[1] - grid[0]) ** 2

    def mixture(v: tuple[float, float]) -> np.ndarray:
        moved = np.exp(-((x - v[0]) ** 2 + (y - v[1]) ** 2) / 2)
        return ((1 - rate) * np.exp(-(x**2 + y**2) / 2) + rate * moved) / (2 * math.pi)

    p = mixture((first * r, 0.0))
    q = mixture((second * r * math.cos(angle), second * r * math.sin(angle)))
    reached = float(np.sum(np.maximum(p - a * q, 0.0)) * cell)
    pair = sampling.poisson_replace_one_gaussian(mu, rate)
    x0 = np.asarray(abs(math.log(a)))
    value = float(pair.above(x0))
    claimed = value if a >= 1 else 1 - a + a * value
    assert reached <= claimed + 2e-4


def test_without_replacement_dominates_the_explicit_pair_and_stays_near_it():
    for z, rate, steps in ((1.0, 0.02, 100), (2.0, 0.2, 20)):
        batch = Repeated(Subsampled(Gaussian(z), "without-replacement", rate), steps)
        reached = Repeated(Subsampled(Gaussian(z), "poisson", rate), steps)
        upper, lower = account(batch).epsilon(1e-5), account(reached).bounds(1e-5).lower
        assert lower < upper < 1.6 * lower


def test_a_laplace_release_has_its_known_profile():
    for x in (0.0, 0.2, 0.45):
        assert pld.delta(Laplace(2.0), x) == pytest.approx(-math.expm1((x - 0.5) / 2), rel=1e-3)
    assert float(ndtr(0.0)) == 0.5  # the tails used by the explicit pairs are SciPy's


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_large_deltas_of_a_composition_are_exact_too(epsilon):
    """Where one release always outweighs the other, delta at 0 is that of the first; no curve says 1."""
    response, other = 4.5, 4.0
    made = account(Composed(RandomizedResponse(response), Laplace(1 / other)))
    p = 1 / (1 + math.exp(-response))
    # The loss is +-response plus that of the Laplace pair: at most ``other``, so the response decides its sign.
    loss = np.linspace(-other, other, 400_001)
    density = np.exp((loss - other) / 2) / 4
    ends = {other: 0.5, -other: 0.5 * math.exp(-other)}

    def excess(shift):
        inside = trapezoid(density * np.maximum(-np.expm1(epsilon - shift - loss), 0), loss)
        return inside + sum(w * max(-math.expm1(epsilon - shift - x), 0) for x, w in ends.items())

    exact = p * excess(response) + (1 - p) * excess(-response)
    assert exact <= made.delta(epsilon) <= exact * (1 + 1e-6)
    assert made.epsilon(made.delta(0.2)) == pytest.approx(0.2, abs=1e-3)


@pytest.mark.parametrize("sensitivity", [487_963, 2_000_000])
def test_wide_integer_noise_keeps_its_digits(sensitivity):
    """Powers q^k lost a digit for every decade of k: delta(0) came out 1e-11 too small."""
    epsilon = 0.0024291590659120095
    with mp.workdps(50):
        q = mp.exp(-mp.mpf(epsilon) / sensitivity)
        # The best event at epsilon 0: the outcomes below the middle.
        below = (sensitivity + 1) // 2 - 1
        truth = 1 - q ** (below + 1) / (1 + q) - q ** (sensitivity - below) / (1 + q)
    assert float(truth) <= pld.delta(TwoSidedGeometric(epsilon, sensitivity), 0.0) <= float(truth) * (1 + 1e-10)


@pytest.mark.parametrize("rate", [1e-12, 0.03, 0.7])
@pytest.mark.parametrize("epsilon", [1e-3, 2.0])
def test_convex_renyi_of_a_sample_is_the_mixture_of_moments(rate, epsilon):
    """log(1 - q + q e^((a-1) R)) / (a-1) in 40 digits, and above the divergence of a sampled response, both orders."""
    found = rdp.curve(Subsampled(RandomizedResponse(epsilon), "poisson", rate), ORDERS)
    inner = rdp.curve(RandomizedResponse(epsilon), ORDERS)
    for order, value, own in zip(ORDERS.tolist(), found.tolist(), inner.tolist(), strict=True):
        q, a = mp.mpf(rate), mp.mpf(order)
        bound = mp.log(1 - q + q * mp.exp((a - 1) * mp.mpf(own))) / (a - 1)
        assert value == pytest.approx(float(bound), rel=1e-12)
        truth = 1 / (1 + mp.exp(-mp.mpf(epsilon)))
        p, none = ((1 - q) * (1 - truth) + q * truth, (1 - q) * truth + q * (1 - truth)), (1 - truth, truth)
        for first, second in ((p, none), (none, p)):
            moment = mp.fsum(y * (x / y) ** a for x, y in zip(first, second, strict=True))
            assert mp.log(moment) / (a - 1) <= value * (1 + mp.mpf(1e-12))


def test_where_epsilon_is_0_delta_of_0_agrees_even_if_no_grid_holds_the_event():
    """epsilon came from the total variation, and delta(0) = 0.577 from another method, as the grid was refused."""
    release = Subsampled(DiscreteGaussian(0.66, 5), "poisson", 4.8e-6)
    guarantee = account(RandomRounds(RandomRounds(release, Poisson(1.31)), Poisson(1.95)))
    assert guarantee.epsilon(7e-4) == 0
    assert guarantee.delta(0.5) <= guarantee.delta(0.0) <= 4.8e-6 * 1.31 * 1.95
