"""Objective perturbation: the curves against exact one-dimensional densities, slow formulas, and planted faults."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from scipy.special import expit, ndtr

from dptoolkit.accounting import Composed, Gaussian, ObjectivePerturbation, account, gaussian, objective, profiles
from dptoolkit.accounting.objective import Perturbation
from dptoolkit.errors import InvalidValue

ZERO, REPLACE = "zero-out", "replace-one"
KINDS = [(ZERO, False), (ZERO, True), (REPLACE, False), (REPLACE, True)]
EPSILONS = np.array([0.0, 0.05, 0.2, 0.5, 1.0, 1.5, 2.5, 4.0])


# --- exact laws of the minimiser in one dimension -------------------------------------------------


def slopes(records, theta):
    """(first, second) derivative of the sum of losses at theta; a record is (kind, x, y)."""
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    for kind, x, y in records:
        if kind == "logistic":
            p = expit(x * theta)
            first, second = first + (p - y) * x, second + p * (1 - p) * x * x
        else:
            r = x * theta - y
            first, second = first + np.clip(r, -1, 1) * x, second + (np.abs(r) < 1) * x * x
    return first, second


class Law:
    """The law of the minimiser on [low, high]: a density on a grid of cells, and atoms at finite ends."""

    def __init__(self, records, l2, sigma, theta, low=-math.inf, high=math.inf):
        first, second = slopes(records, theta)
        self.weights = np.gradient(theta)
        self.log = -0.5 * ((first + l2 * theta) / sigma) ** 2 + np.log((second + l2) / (sigma * math.sqrt(2 * math.pi)))
        self.density = np.exp(self.log)
        self.atoms = np.zeros(2)
        for i, (end, sign) in enumerate([(low, -1.0), (high, 1.0)]):
            if math.isfinite(end):
                at, _ = slopes(records, np.array([end]))
                self.atoms[i] = ndtr(-sign * (at[0] + l2 * end) / sigma)

    def hockey_stick(self, other, epsilon):
        inside = np.maximum(self.density - math.exp(epsilon) * other.density, 0) @ self.weights
        return inside + np.maximum(self.atoms - math.exp(epsilon) * other.atoms, 0).sum()

    def renyi(self, other, order):
        terms = np.exp(order * self.log + (1 - order) * other.log)
        with np.errstate(divide="ignore", invalid="ignore"):
            atoms = np.where(self.atoms > 0, self.atoms**order * other.atoms ** (1 - order), 0.0)
        return math.log(terms @ self.weights + atoms.sum()) / (order - 1)


def grid_for(records, l2, sigma, low, high):
    reach = (len(records) + 30 * sigma) / l2
    return np.linspace(max(low, -reach), min(high, reach), 12_001)


def random_case(rng, signed):
    kind = "logistic" if signed else "huber"

    def record():
        y = float(rng.integers(0, 2)) if signed else rng.normal() * rng.choice([0.0, 1.0, 3.0])
        return (kind, rng.choice([-1.0, 1.0, rng.uniform(-1, 1)]), y)

    others = [record() for _ in range(rng.integers(0, 4))]
    l2, sigma = math.exp(rng.uniform(-1.5, 2)), math.exp(rng.uniform(-0.7, 1.5))
    ends = (-math.inf, math.inf) if rng.random() < 0.5 else tuple(np.sort(rng.normal(size=2) * 2 * sigma / l2))
    return others, record(), record(), l2, sigma, ends


def laws(rng, adjacency, signed):
    """(first law, second law, the release that covers them) of a random case."""
    others, one, two, l2, sigma, (low, high) = random_case(rng, signed)
    theta = grid_for([*others, one, two], l2, sigma, low, high)
    first = Law([*others, one], l2, sigma, theta, low, high)
    second = Law(others if adjacency == ZERO else [*others, two], l2, sigma, theta, low, high)
    c = objective.jacobian(0.25 if signed else 1.0, l2)
    return first, second, Perturbation(objective.sensitivity(1.0, adjacency) / sigma, c, adjacency, signed)


# The largest error of the sums, at the corners of a Huber loss.
QUADRATURE = 3e-4


def excess(release, first, second, epsilons=EPSILONS):
    """The largest exact value minus the bound, over both orders."""
    above, below = objective.orders(release)
    found = [
        max(first.hockey_stick(second, e) - above(np.asarray(e)), second.hockey_stick(first, e) - below(np.asarray(e)))
        for e in epsilons
    ]
    return float(max(found))


@pytest.mark.parametrize(("adjacency", "signed"), KINDS)
def test_exact_densities_stay_below_the_curves_in_both_orders(adjacency, signed):
    rng = np.random.default_rng(1)
    for _ in range(40):
        first, second, release = laws(rng, adjacency, signed)
        assert excess(release, first, second) <= QUADRATURE


@pytest.mark.parametrize(("adjacency", "signed"), KINDS)
def test_exact_renyi_divergences_stay_below_the_curve(adjacency, signed):
    rng = np.random.default_rng(2)
    for _ in range(40):
        first, second, release = laws(rng, adjacency, signed)
        for order in (1.5, 2.0, 4.0):
            bound = float(objective.renyi(release, np.array([order]))[0])
            assert max(first.renyi(second, order), second.renyi(first, order)) <= bound + QUADRATURE


@pytest.mark.parametrize(("adjacency", "signed"), KINDS)
def test_exact_densities_stay_below_the_dominating_pair(adjacency, signed):
    rng = np.random.default_rng(3)
    for _ in range(12):
        first, second, release = laws(rng, adjacency, signed)
        pair = objective.pair(release)
        for e in EPSILONS:
            x = np.array([e])
            assert first.hockey_stick(second, e) <= pair.above(x)[0] + QUADRATURE
            assert second.hockey_stick(first, e) <= pair.below(x)[0] + QUADRATURE


def huber_pair(kappa, shift):
    """One Huber record with label 0 on top of nothing: T is linear up to shift/kappa and parallel beyond."""
    l2, sigma = 1 / kappa, 1 / shift
    theta = np.linspace(-14 * sigma / l2, 14 * sigma / l2, 400_001)
    return Law([("huber", 1.0, 0.0)], l2, sigma, theta), Law([], l2, sigma, theta)


@pytest.mark.parametrize(("kappa", "shift"), [(1.0, 0.5), (0.25, 0.3), (4.0, 1.0)])
def test_absent_against_present_is_attained_by_a_huber_record(kappa, shift):
    present, absent = huber_pair(kappa, shift)
    _, below = objective.orders(Perturbation(shift, math.log1p(kappa), ZERO))
    for stretch in (1.0, 1.5, 2.0):
        e = shift**2 * (0.5 + 1 / kappa) * stretch
        assert absent.hockey_stick(present, e) == pytest.approx(float(below(np.asarray(e))), rel=1e-5)


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_absent_against_present_renyi_is_nearly_attained(order):
    present, absent = huber_pair(200.0, 0.5)
    bound = float(objective.renyi(Perturbation(0.5, 0.0, ZERO), np.array([order]))[0])
    assert 0.97 * bound <= absent.renyi(present, order) <= bound + QUADRATURE


def test_linear_losses_attain_the_floor_pair():
    """Records far on the flat side of the Huber loss: the release is a Gaussian one."""
    theta = np.linspace(-40, 40, 40_001)
    one, two = Law([("huber", 1.0, 500.0)], 1.0, 2.0, theta), Law([("huber", 1.0, -500.0)], 1.0, 2.0, theta)
    floor = objective.floor_pair(Perturbation(1.0, math.log(2), REPLACE))
    assert one.hockey_stick(two, 0.7) == pytest.approx(float(floor.above(np.array([0.7]))[0]), rel=1e-5)


# --- planted faults: each of these must be refuted by an exact density ----------------------------


def test_leaving_out_the_jacobian_is_refuted():
    present, absent = huber_pair(4.0, 0.05)
    sound = Perturbation(0.05, math.log1p(4.0), ZERO)
    assert excess(sound, present, absent) <= QUADRATURE
    assert excess(replace(sound, jacobian=0.0), present, absent) > 10 * QUADRATURE


def test_a_shift_of_one_gradient_for_a_replacement_is_refuted():
    theta = np.linspace(-40, 40, 40_001)
    one, two = Law([("huber", 1.0, 500.0)], 50.0, 1.0, theta / 10), Law([("huber", 1.0, -500.0)], 50.0, 1.0, theta / 10)
    sound = Perturbation(objective.sensitivity(1.0, REPLACE), objective.jacobian(1.0, 50.0), REPLACE)
    assert excess(sound, one, two) <= QUADRATURE
    assert excess(replace(sound, shift=1.0), one, two) > 100 * QUADRATURE


def test_calling_a_huber_loss_signed_is_refuted():
    present, absent = huber_pair(1.0, 0.5)
    sound = Perturbation(0.5, math.log(2), ZERO)
    above_start = np.array([0.4, 0.6])
    assert excess(sound, present, absent, above_start) <= QUADRATURE
    assert excess(replace(sound, signed=True), present, absent, above_start) > 10 * QUADRATURE


def inexact_hockey_sticks(kappa, shift, offset, output_share, epsilons):
    """(present/absent, absent/present) when the solver errs by +-r everywhere, with the sign that tells the data."""
    l2, sigma = 1 / kappa, 1 / shift
    theta = np.linspace(-9 * sigma / l2, 9 * sigma / l2, 1501)
    one, two = Law([("huber", 1.0, 0.0)], l2, sigma, theta), Law([], l2, sigma, theta)
    s2 = 0.2 * sigma / l2
    r = offset * s2 / 2
    kernel = [
        np.exp(-0.5 * ((theta[:, None] - theta - sign * r) / (output_share * s2)) ** 2)
        / (output_share * s2 * math.sqrt(2 * math.pi))
        for sign in (1, -1)
    ]
    one.density, two.density = kernel[0] @ (one.density * one.weights), kernel[1] @ (two.density * two.weights)
    return [(one.hockey_stick(two, e), two.hockey_stick(one, e)) for e in epsilons]


@pytest.mark.parametrize(("kappa", "shift", "offset"), [(1.0, 0.5, 0.1), (0.3, 1.0, 0.5), (2.0, 0.2, 1.0)])
def test_inexact_solves_stay_below_their_curves(kappa, shift, offset):
    release = Perturbation(shift, math.log1p(kappa), ZERO, offset=offset)
    above, below = objective.orders(release)
    for e, (forward, backward) in zip(
        EPSILONS, inexact_hockey_sticks(kappa, shift, offset, 1.0, EPSILONS), strict=True
    ):
        assert forward <= above(np.asarray(e)) + 1e-4
        assert backward <= below(np.asarray(e)) + 1e-4


def test_an_inexact_solve_without_its_output_noise_is_refuted():
    """A tenth of the output noise stands for none: the offset then tells the data."""
    release = Perturbation(0.2, math.log(2), ZERO, offset=1.0)
    forward, backward = inexact_hockey_sticks(1.0, 0.2, 10.0, 1.0, [1.0])[0]
    assert max(forward, backward) > objective.delta(release, 1.0) + 0.1


# --- numbers --------------------------------------------------------------------------------------

# epsilon, delta, l2, then sigma for L = 1, beta = 1/4: zero-out signed, general, replace-one signed, general, floors.
SIGMAS = [
    (0.5, 1e-5, 1.0, 12.10, 12.10, 24.20, 25.39, 7.03),
    (0.5, 1e-5, 50.0, 7.10, 7.35, 14.19, 14.84, 7.03),
    (1.0, 1e-5, 0.25, 11.01, 11.01, 22.02, 23.08, 3.73),
    (1.0, 1e-5, 1.0, 4.70, 4.70, 9.39, 9.80, 3.73),
    (1.0, 1e-5, 5.0, 3.91, 3.91, 7.81, 8.13, 3.73),
    (1.0, 1e-8, 5.0, 5.35, 5.35, 10.70, 10.95, 5.10),
    (4.0, 1e-5, 5.0, 1.09, 1.12, 2.19, 2.26, 1.08),
]


def sigma(epsilon, delta, l2, adjacency, signed, **more):
    return objective.noise(
        epsilon, delta, gradient_bound=1.0, curvature=0.25, l2=l2, adjacency=adjacency, signed=signed, **more
    )


@pytest.mark.parametrize("row", SIGMAS)
def test_sigma_table(row):
    epsilon, delta, l2, *expected, floor = row
    kinds = [(ZERO, True), (ZERO, False), (REPLACE, True), (REPLACE, False)]
    found = [sigma(epsilon, delta, l2, *kind) for kind in kinds]
    assert found == pytest.approx(expected, abs=0.006)
    assert 1 / gaussian.mu(epsilon, delta) == pytest.approx(floor, abs=0.006)
    assert found[0] >= 1 / gaussian.mu(epsilon, delta)


@pytest.mark.parametrize(("adjacency", "signed"), KINDS)
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-18, 1e-300])
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_noise_ends_on_the_private_side_and_is_tight(adjacency, signed, epsilon, delta, share):
    l2 = 0.25 / math.expm1(min(epsilon / 2, 1.0))
    found = sigma(epsilon, delta, l2, adjacency, signed, offset_share=share)
    moved = objective.sensitivity(1.0, adjacency)

    def at(scale):
        c = objective.jacobian(0.25, l2)
        return objective.delta(Perturbation(moved / scale, c, adjacency, signed, share / scale), epsilon)

    assert at(found) <= delta * (1 + 1e-9)
    assert at(found * (1 - 1e-6)) > delta
    c = objective.jacobian(0.25, l2)
    back = objective.epsilon(Perturbation(moved / found, c, adjacency, signed, share / found), delta)
    assert back == pytest.approx(epsilon, rel=1e-6)


def test_sigma_falls_to_the_gaussian_one_as_l2_grows():
    floor = 1 / gaussian.mu(1.0, 1e-5)
    assert sigma(1.0, 1e-5, 1e9, ZERO, True) == pytest.approx(floor, rel=1e-6)
    assert sigma(1.0, 1e-5, 1e9, REPLACE, True) == pytest.approx(2 * floor, rel=1e-3)
    assert sigma(1.0, 1e-5, 1e9, ZERO, False) == pytest.approx(1 / gaussian.mu(1.0, 0.5e-5), rel=1e-6)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_an_inexact_solve_costs_little(share):
    exact = sigma(1.0, 1e-5, 1.0, ZERO, True)
    inexact = sigma(1.0, 1e-5, 1.0, ZERO, True, offset_share=share)
    assert exact < inexact <= exact * math.hypot(1.0, share) * (1 + 1e-9)


def test_budgets_that_no_noise_can_buy_are_refused_with_the_l2_that_would_do():
    with pytest.raises(InvalidValue, match=r"epsilon=0.2: must be > log\(1 \+ curvature/l2\).*l2 above 1.1291"):
        sigma(0.2, 1e-5, 1.0, ZERO, True)
    assert sigma(0.2, 1e-5, 1.1292, ZERO, True) > 0
    with pytest.raises(InvalidValue, match="gamma noise"):
        sigma(1.0, 0.0, 1.0, ZERO, True)
    with pytest.raises(InvalidValue, match="l2=0"):
        sigma(1.0, 1e-5, 0.0, ZERO, True)
    with pytest.raises(InvalidValue, match="adjacency"):
        sigma(1.0, 1e-5, 1.0, "swap", True)
    with pytest.raises(InvalidValue, match="epsilon=nan"):
        sigma(math.nan, 1e-5, 1.0, ZERO, True)


def mp_gaussian(e, m):
    return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


def mp_rayleigh(e, m):
    if e >= m * m / 2:
        return m * mp.sqrt(2 * mp.pi) * mp.exp(e) * mp.ncdf(-e / m - m / 2)
    return 1 - mp.exp(e - m * m / 2) + m * mp.sqrt(2 * mp.pi) * mp.exp(e) * mp.ncdf(-m)


@pytest.mark.parametrize("shift", [1e-12, 1e-6, 0.01, 0.3, 2.0, 40.0, 1e4])
@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5, 1.0, 3.0, 12.0, 30.0])
def test_closed_forms_keep_their_digits(shift, spread):
    """Against 60 digits, at e = spread * shift from the start, and with e below shift^2/2."""
    with mp.workdps(60):
        for e in (spread * shift, spread * shift + shift**2 / 2, spread * shift**2 / 32):
            x, m, at = np.asarray(e), mp.mpf(shift), mp.mpf(e)
            two = 2 * mp_gaussian(at, m) if at >= m * m / 2 else 1 - 2 * mp.exp(at) * mp.ncdf(-m)
            _, below = objective.orders(Perturbation(shift, 0.0, ZERO))
            rayleigh = objective._rayleigh(x, shift)
            for found, exact in ((below(x), two), (rayleigh, mp_rayleigh(at, m))):
                if exact > 1e-290:
                    assert float(found / exact) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize(("adjacency", "signed"), KINDS)
@pytest.mark.parametrize("offset", [0.0, 0.1])
@pytest.mark.parametrize("shift", [0.0, 1e-160, 1.0, 1e8, math.inf])
@pytest.mark.parametrize("jacobian", [0.0, 0.5, 800.0, math.inf])
def test_the_ends_of_every_range(adjacency, signed, offset, shift, jacobian):
    release = Perturbation(shift, jacobian, adjacency, signed, offset)
    eps = np.array([0.0, 5e-324, 1e-9, 1.0, 1e3, 1e9, 1e300])
    values = objective.delta(release, eps)
    assert np.isfinite(values).all() and (values >= 0).all() and (values <= 1).all()
    assert (np.diff(values) <= 1e-12).all()
    renyi = objective.renyi(release, np.array([1 + 1e-9, 2.0, 1e6]))
    assert not np.isnan(renyi).any() and (renyi >= 0).all()
    assert objective.epsilon(release, 1e-5) >= 0
    if math.isinf(shift):
        assert (values == 1).all() and np.isinf(renyi).all()
    pair = objective.pair(release)
    for curve in (pair.above, pair.below):
        at = curve(np.append(eps, [1e-12, 600.0, 800.0]))
        assert np.isfinite(at).all() and (at >= 0).all() and (at <= 1).all()


def test_delta_takes_numbers_and_arrays_and_refuses_the_rest():
    release = Perturbation(0.5, 0.1, ZERO)
    assert isinstance(objective.delta(release, 1.0), float)
    assert objective.delta(release, math.inf) == 0.0
    assert objective.delta(release, np.array([[1.0, 2.0]])).shape == (1, 2)
    for bad in (-1.0, math.nan, np.array([1.0, math.nan])):
        with pytest.raises(InvalidValue, match="epsilon"):
            objective.delta(release, bad)
    with pytest.raises(InvalidValue, match="shift"):
        Perturbation(math.nan, 0.1, ZERO)
    with pytest.raises(InvalidValue, match="orders"):
        objective.renyi(release, np.array([1.0]))


@pytest.mark.parametrize("shift", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("c", [0.0, 0.3, 2.0])
def test_curves_fall_with_epsilon_and_grow_with_everything_else(shift, c):
    eps = np.linspace(0, 6, 200)
    for adjacency, signed in KINDS:
        release = Perturbation(shift, c, adjacency, signed)
        values = objective.delta(release, eps)
        assert (np.diff(values) <= 0).all()
        for more in (replace(release, shift=1.1 * shift), replace(release, jacobian=c + 0.1)):
            assert (objective.delta(more, eps) >= values - 1e-15).all()
        assert (objective.delta(replace(release, offset=shift / 10), eps) >= values - 1e-15).all()
        if adjacency == ZERO and signed:
            assert (objective.delta(replace(release, signed=False), eps) >= values).all()


# --- pure -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", [ZERO, REPLACE])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 1e3])
def test_pure_scale_ends_on_the_private_side(adjacency, epsilon):
    l2 = 0.25 / math.expm1(min(epsilon / 2, 1.0))
    s = objective.pure_scale(epsilon, gradient_bound=1.0, curvature=0.25, l2=l2, adjacency=adjacency)
    at = [objective.pure_epsilon(1.0, scale, 0.25, l2, adjacency) for scale in (s, s * (1 - 1e-9))]
    assert at[0] <= epsilon < at[1]
    with pytest.raises(InvalidValue, match="l2 above"):
        objective.pure_scale(1e-9, gradient_bound=1.0, curvature=0.25, l2=l2, adjacency=adjacency)


def test_the_pure_bound_is_nearly_attained():
    """A Huber record with label 3 has slope near -1 and curvature 1 just beyond theta = 2."""
    scale, l2 = 2.0, 1.0
    theta = np.linspace(-20, 20, 400_001)

    def density(records):
        first, second = slopes(records, theta)
        return np.exp(-np.abs(first + l2 * theta) / scale) * (second + l2)

    ratio = np.log(density([("huber", 1.0, 3.0)]) / density([]))
    bound = objective.pure_epsilon(1.0, scale, 1.0, l2, ZERO)
    assert bound == pytest.approx(0.5 + math.log(2))
    assert 0.999 * bound <= ratio.max() <= bound
    assert -ratio.min() <= 1.0 / scale + 1e-12


# --- Renyi against slow computations --------------------------------------------------------------


@pytest.mark.parametrize("shift", [1e-6, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("order", [1.001, 2.0, 30.0])
def test_renyi_formulas_to_many_digits(shift, order):
    with mp.workdps(40):
        a, v = mp.mpf(order), mp.mpf(shift)
        m = a - 1

        def psi(w):
            return mp.exp(a * m * w * w / 2) * mp.ncdf(w / 2 + m * w) - mp.ncdf(w / 2)

        at = np.array([order])
        general = a * v * v / 2 + mp.log(2 * mp.ncdf(m * v)) / m
        assert float(objective.renyi(Perturbation(shift, 0.0, ZERO), at)[0] / general) == pytest.approx(1, rel=1e-10)
        signed = max(a * v * v / 2, mp.log(1 + psi(v)) / m)
        found = objective.renyi(Perturbation(shift, 0.0, ZERO, True), at)[0]
        assert float(found / signed) == pytest.approx(1, rel=1e-10)
        replaced = mp.log(1 + psi(v) + 2 * psi(v / 2)) / m
        found = objective.renyi(Perturbation(shift, 0.0, REPLACE, True), at)[0]
        assert float(found / replaced) == pytest.approx(1, rel=1e-10)


@pytest.mark.parametrize("shift", [1e-4, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("order", [1.01, 2.0, 30.0])
def test_the_cell_bound_is_above_the_supremum_over_the_angle_and_close(shift, order):
    angles = np.linspace(0, math.pi / 2, 20_001)

    def log_g(v):
        return order * (order - 1) * v**2 / 2 + np.log(2 * ndtr((order - 1) * v))

    first, second = log_g(shift * np.cos(angles)), log_g(shift * np.sin(angles))
    top = np.maximum(first, second)
    largest = np.max(top + np.log(np.exp(first - top) + np.exp(second - top) - np.exp(-top)))
    bound = float(objective._log_rhombus(np.array([order]), shift)[0])
    assert largest <= bound * (1 + 1e-9) + 1e-14
    assert bound <= largest * 1.002 + 1e-14


def test_the_supremum_over_the_angle_is_not_at_zero():
    """The trap: taking the angle 0 would be a third too little here."""
    at_zero = math.log(2 * math.exp(0.01) * ndtr(0.1))
    assert float(objective._log_rhombus(np.array([2.0]), 0.1)[0]) > 1.3 * at_zero


# --- the dominating pair --------------------------------------------------------------------------

PAIRS = [
    Perturbation(0.2, 0.2, ZERO), Perturbation(1.0, 0.1, ZERO, True), Perturbation(0.05, 2.0, ZERO),
    Perturbation(0.3, 0.2, REPLACE), Perturbation(0.3, 0.2, REPLACE, True), Perturbation(3.0, 0.2, REPLACE),
    Perturbation(1e-6, 0.5, ZERO), Perturbation(1e-6, 0.5, REPLACE, True),
]  # fmt: skip


def whole_curve(pair, x):
    """H_alpha at alpha = exp(x), any sign."""
    return np.where(x >= 0, pair.above(np.maximum(x, 0)), 1 - np.exp(x) + np.exp(x) * pair.below(np.maximum(-x, 0)))


@pytest.mark.parametrize("release", PAIRS)
def test_the_pair_is_convex_and_equals_the_closed_forms_away_from_one(release):
    pair = objective.pair(release)
    above, below = objective.orders(release)
    x = np.linspace(-4, 4, 4001)
    x = np.unique(np.round(np.append(x, release.jacobian + release.shift * np.linspace(-9, 9, 901)), 9))
    alpha, h = np.exp(x), whole_curve(pair, x)
    slope = np.diff(h) / np.diff(alpha)
    assert (np.diff(slope) >= -1e-9 - 1e-13 / np.minimum(np.diff(alpha)[1:], np.diff(alpha)[:-1])).all()
    far = np.array([release.jacobian + release.shift * 7 + release.shift**2])
    assert pair.above(far) == above(far)
    assert pair.below(far) == below(far)
    for curve, raw in ((pair.above, above), (pair.below, below)):
        positive = x[x >= 0]
        assert (curve(positive) <= raw(positive) * (1 + 1e-12)).all()
    assert pair.above(np.zeros(1)) == pytest.approx(pair.below(np.zeros(1)), rel=1e-12)


@pytest.mark.parametrize(("adjacency", "signed"), KINDS)
@pytest.mark.parametrize(("shift", "jacobian"), [(2.0, 1e-3), (0.23, 0.0123), (0.05, 0.7), (20.0, 3.0)])
def test_finer_grids_of_the_hull_would_change_nothing_that_matters(adjacency, signed, shift, jacobian, monkeypatch):
    release, x = objective.Perturbation(shift, jacobian, adjacency, signed), np.geomspace(1e-6, 30.0, 400)
    found = []
    for zooms in (objective._ZOOMS, 6):
        monkeypatch.setattr(objective, "_ZOOMS", zooms)
        pair = objective.pair.__wrapped__(release)
        found.append(np.concatenate([pair.above(x), pair.below(x)]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8, atol=1e-300)


@pytest.mark.parametrize(("adjacency", "signed"), KINDS)
def test_what_is_plainly_visible_in_floats_is_so_exactly(adjacency, signed, monkeypatch):
    """The short cut gives the chords that exact integers alone give."""
    release = objective.Perturbation(0.23, 0.0123, adjacency, signed)
    chords = objective._bridges(*objective.orders(release), release)
    monkeypatch.setattr(objective, "_PLAINLY", math.inf)
    assert chords and objective._bridges(*objective.orders(release), release) == chords


@pytest.mark.parametrize("release", PAIRS[:3])
def test_without_the_hull_the_curve_is_not_convex(release):
    """The twin: closed forms side by side, as they are, have a kink the wrong way (negative mass at loss 0)."""
    above, below = objective.orders(release)
    x = np.linspace(-4, 4, 4001)
    h = whole_curve(profiles.DominatingPair(above, below), x)
    slope = np.diff(h) / np.diff(np.exp(x))
    assert np.diff(slope).min() < -1e-3


@pytest.mark.parametrize("release", PAIRS)
def test_the_accountant_reads_the_pair(release):
    """One release by privacy-loss distributions is as good as the closed form, and two are more than one."""
    event = ObjectivePerturbation(1 / release.shift, release.jacobian, release.signed, release.adjacency)

    def epsilon(*events):
        return account(Composed(*events), "pld").epsilon(1e-8)

    closed = objective.epsilon(release, 1e-8)
    once, twice = epsilon(event), epsilon(event, event)
    # Where the Jacobian is all, the hull is better than the closed form: delta is at most the total variation.
    assert gaussian.epsilon(release.shift, 1e-8) <= once <= closed * 1.001
    if release.shift > 0.04:
        assert once == pytest.approx(closed, rel=2e-3)
    assert once < twice <= 2.01 * once
    offset = release.shift / 10
    composed = epsilon(event, Gaussian(1 / offset))
    assert once < composed * (1 + 1e-6)
    assert composed <= objective.epsilon(replace(release, offset=offset), 1e-8) * 1.002
    assert composed >= gaussian.epsilon(math.hypot(release.shift, offset), 1e-8) * (1 - 1e-6)


@pytest.mark.parametrize("shift", [3.0, 7.13, 8.35, 8.65, 20.0, 36.0])
@pytest.mark.parametrize("jacobian", [0.0, 0.5, 37.0])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_both_orders_keep_their_digits_at_large_losses(adjacency, jacobian, shift):
    """Where exp(epsilon) is more than the inverse of a rounding error, no order falls below what neighbours attain."""
    release = Perturbation(shift, jacobian, adjacency)
    pair, floor, x = objective.pair(release), objective.floor_pair(release), np.linspace(0.0, 100.0, 4001)
    for values, least in ((pair.above(x), floor.above(x)), (pair.below(x), floor.below(x))):
        assert (values >= least * (1 - 1e-9)).all()
        assert (np.diff(values) <= 1e-12).all()


def test_large_losses_of_unsigned_zero_out():
    """An exact density of the Huber loss has delta 0.909059041 there, and no grid adds to the bound."""
    event = ObjectivePerturbation(1 / 8.65, math.log1p(1e5), False, "zero-out")
    assert 0.90905904 <= account(event).delta(37.41) <= 0.90905916
