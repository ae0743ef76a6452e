"""Sums of largest losses end above the truth, and epsilon and delta are inverse to each other: the private side."""

from __future__ import annotations

import importlib
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from dptoolkit.accounting import (
    METHODS,
    ApproxDp,
    BestOf,
    Composed,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PureDp,
    RandomizedResponse,
    Repeated,
    Subsampled,
    TruncatedNegativeBinomial,
    TwoSidedGeometric,
    ZCdp,
    account,
    calibrate,
    composition,
    gaussian,
    methods,
    pld,
    profiles,
    sampling,
    selection,
    structure,
)
from dptoolkit.accounting._numeric import inverse_up, sum_up
from dptoolkit.errors import UnsupportedEvent
from tests.accounting.reference import exact_delta
from tests.accounting.test_fuzz import faults, forget

# The package also exports functions of these names.
calibrate_module = importlib.import_module("dptoolkit.accounting.calibrate")


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
        assert Fraction(structure.total_pure(event)) >= exact


def test_siblings_of_the_sum_round_up_too():
    rng = np.random.default_rng(3)
    for _ in range(100):
        e, n, d = float(10.0 ** rng.uniform(-4, 2)), int(rng.integers(2, 1000)), float(10.0 ** rng.uniform(-9, -4))
        total = Fraction(e) * n
        assert Fraction(composition.basic(e, n)[0]) >= total
        assert Fraction(composition.basic(e, n, d)[1]) >= Fraction(d) * n
        assert Fraction(composition.optimal(e, n, 0.0)) >= total
        assert Fraction(structure.spent_delta(Repeated(ApproxDp(1.0, d), n))) >= Fraction(d) * n
        assert Fraction(selection.adaptive(e, 1, 0.0)) >= Fraction(e)
        best = BestOf(PureDp(e), TruncatedNegativeBinomial(0.3, 0.1))
        assert Fraction(structure.pure_epsilon(best)) >= (2 + Fraction(0.3)) * Fraction(e)
        assert Fraction(structure.pure_epsilon(Laplace(e))) * Fraction(e) >= 1


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


# --- epsilon and delta are inverse -------------------------------------------------------------------


def _wiggling(event: object, delta0: float) -> tuple[float, float]:
    """One application whose epsilon rises and falls with delta, as one does whose grid changes with delta."""
    log_delta = math.log(max(delta0, 1e-320))
    return 0.5 - 0.01 * log_delta + 0.05 * math.sin(40 * log_delta), delta0


@pytest.mark.parametrize("method", ["advanced", "optimal", "basic"])
def test_composition_theorems_are_verified_where_one_step_is_not_monotone(method, monkeypatch):
    monkeypatch.setattr(methods, "_step_bounds", _wiggling)
    event, rng = Repeated(Subsampled(Gaussian(1.0), "poisson", 0.1), 3), np.random.default_rng(5)
    deltas = [float(d) for d in 10.0 ** rng.uniform(-17, -1, 10)]
    used = METHODS[method]
    assert all(used.delta(event, used.epsilon(event, d)) <= d for d in deltas)
    assert any(used.delta(event, used.searched(event, d)) > d for d in deltas)


def test_delta_asks_every_method_that_epsilon_may_have_used(monkeypatch):
    """A grid that is not fine enough for epsilon and says it was for delta: Renyi gave the one, and gives the other."""
    monkeypatch.setattr(pld, "epsilon_answer", lambda *a, **k: pld.Answer(50.0, False))
    monkeypatch.setattr(pld, "delta_answer", lambda *a, **k: pld.Answer(1e-3, True))
    forget()
    event = Composed(Gaussian(9.0), Laplace(30.0))
    epsilon = account(event).epsilon(1e-9)
    assert account(event).method_at(1e-9) in ("rdp", "zcdp")
    assert account(event).delta(epsilon) <= 1e-9
    forget()


def test_an_epsilon_whose_method_is_too_slow_for_delta_is_verified(monkeypatch):
    event = Repeated(ExponentialMechanism(0.05), 20)
    assert account(event).method_at(1e-6) == "bounded-range"
    monkeypatch.setattr(selection, "delta_cost", lambda *a: math.inf)
    forget()
    assert account(event).delta(account(event).epsilon(1e-6)) <= 1e-6
    forget()


# --- calibration -------------------------------------------------------------------------------------


def test_calibration_verifies_its_last_answer_alone(monkeypatch):
    asked = []
    honest = pld.answers._plainly_kept
    monkeypatch.setattr(pld.answers, "_plainly_kept", lambda *a: asked.append(a) or honest(*a))
    forget()
    noise = calibrate(lambda z: Repeated(Laplace(z), 20), 1.0, 1e-6)
    assert len(asked) == 1
    assert account(Repeated(Laplace(noise), 20)).epsilon(1e-6) <= 1.0


def test_one_curve_verifies_an_epsilon_only_where_delta_is_not_steep():
    """Next to a largest loss another curve may say a delta that is decades larger."""
    smooth, steep = Repeated(Laplace(20.0), 20), Composed(PureDp(11.4438), PureDp(0.0261))
    for event, delta, plain in ((smooth, 1e-6, True), (steep, 1e-5, False)):
        forget()
        epsilon = pld.answers._epsilon_answer(event, delta).value
        assert pld.answers._plainly_kept(event, epsilon * (1 + 1e-9), delta) is plain
    assert pld.delta(smooth, pld.epsilon(smooth, 1e-6)) <= 1e-6


@pytest.mark.parametrize("share", [0.5, 0.999, 1 - 1e-9])
def test_calibration_ends_where_the_verified_epsilon_keeps_the_budget(share, monkeypatch):
    """A search that is told too little ends below; its end is moved up until the epsilon that users see is kept."""
    honest = calibrate_module.unverified_epsilon
    monkeypatch.setattr(calibrate_module, "unverified_epsilon", lambda *a: share * honest(*a))
    noise = calibrate(lambda z: Repeated(Laplace(z), 5), 1.0, 1e-6)
    assert account(Repeated(Laplace(noise), 5)).epsilon(1e-6) <= 1.0
    monkeypatch.undo()
    assert noise <= calibrate(lambda z: Repeated(Laplace(z), 5), 1.0, 1e-6) * 2.1


# --- a sampled pair, backwards -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "rate"), [(60.0, 1 - 1e-6), (25.0, 1 - 1e-6), (12.0, 0.999998), (30.0, 0.5), (40.0, 0.01), (3.0, 0.45),
                          (5.0, 1e-9), (0.01, 0.9)],
)  # fmt: skip
def test_a_sampled_pair_backwards_keeps_its_digits_next_to_the_largest_loss(epsilon, rate):
    """1 - (1 - e^-x)/rate cancelled there: delta read as 0 where it was 2e-12, and 3 % too small at 2e-9."""
    pair = sampling.poisson_zero_out(profiles.randomized_response(epsilon), rate)
    with mp.workdps(60):
        q, odds = mp.mpf(rate), mp.exp(-mp.mpf(epsilon))
        truth, lie = 1 / (1 + odds), odds / (1 + odds)
        mixed = ((1 - q) * lie + q * truth, (1 - q) * truth + q * lie)
        largest = float(mp.log(truth / mixed[1]))
        for ulps in (0, 1, 4, 16, 1e3, 1e6, 1e9, 1e12):
            x = max(largest - ulps * math.ulp(largest), 0.0)
            grown = mp.exp(mp.mpf(x))
            exact = float(max(lie - grown * mixed[0], 0) + max(truth - grown * mixed[1], 0))
            found = float(pair.below(np.array([x]))[0])
            assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-5) + 1e-13 * rate


def test_one_sampled_step_is_within_the_tolerance_of_the_exact_one_and_above():
    """The step behind the composition theorems in docs/accounting.md."""
    step = Subsampled(Gaussian(1.5), "poisson", 0.01)
    epsilon = account(step).epsilon(5e-9)
    assert exact_delta(step, epsilon) <= 5e-9 <= exact_delta(step, epsilon * (1 - 1e-4))


# --- what underflows, and what is nearly used up -----------------------------------------------------


@pytest.mark.parametrize("epsilon", [30.0, 50.0, 1e4, 1e9])
@pytest.mark.parametrize(
    "event",
    [Gaussian(1.0), Gaussian(30.0), Subsampled(Gaussian(1.0), "poisson", 0.1), Composed(Gaussian(2.0), Laplace(1.0)),
     ZCdp(0.5), Composed(Gaussian(1.0), ExponentialMechanism(1.0))],
    ids=str,
)  # fmt: skip
def test_no_delta_of_gaussian_noise_is_zero(event, epsilon):
    """It underflowed to 0, which says that no output ever gives anything away."""
    for method in (None, *METHODS):
        try:
            assert account(event, method).delta(epsilon) > 0
        except UnsupportedEvent:
            continue
    assert gaussian.delta(1.0, epsilon) > 0
    assert np.all(gaussian.delta(1e-3, np.array([1.0, epsilon])) > 0)


def test_what_is_exactly_zero_stays_so():
    assert gaussian.delta(0.0, 1.0) == gaussian.delta(1.0, math.inf) == account(Laplace(1.0)).delta(2.0) == 0


@pytest.mark.parametrize("share", [1e-3, 1e-7, 1e-9, 1e-11])
def test_a_failure_that_nearly_uses_up_delta_leaves_the_rest_its_grid(share):
    """Beside a large mass at infinity the grid of the whole cut off more than was left: 200 times the noise."""
    delta, failure = 1e-5, 1e-5 * (1 - share)
    noise = calibrate(lambda z: Composed(ApproxDp(0.5, failure), Gaussian(z)), 1.0, delta)
    alone = calibrate(lambda z: Composed(PureDp(0.5), Gaussian(z)), 1.0, (delta - failure) / (1 - failure))
    assert alone * (1 - 1e-4) <= noise <= alone * (1 + 1e-3)
    guarantee = account(Composed(ApproxDp(0.5, failure), Gaussian(noise)))
    assert guarantee.delta(guarantee.epsilon(delta)) <= delta


@pytest.mark.parametrize("method", [None, "pld", "rdp", "basic"])
def test_failures_that_use_up_delta_leave_nothing(method):
    for event in (ApproxDp(0.0, 1e-5), Composed(ApproxDp(0.0, 1e-5), PureDp(1.0))):
        assert account(event, method).epsilon(1e-6) == math.inf
    assert account(Composed(ApproxDp(0.5, 1e-5), Gaussian(1.0)), method).epsilon(1e-5) == math.inf


@pytest.mark.parametrize(
    ("event", "method", "epsilon"),
    [(Repeated(ExponentialMechanism(1.0), 300), "bounded-range", 299.0),
     (Repeated(PureDp(1.0), 5000), "optimal", 4999.0), (Repeated(PureDp(1.0), 5000), None, 4999.0),
     (Repeated(PureDp(1.0), 5000), "pld", 4999.0), (Repeated(Laplace(1.0), 5000), None, 4999.0)],
    ids=str,
)  # fmt: skip
def test_no_delta_below_the_largest_loss_is_zero(event, method, epsilon):
    """It underflowed to 0, which says that the largest loss is smaller than it is."""
    assert account(event, method).delta(epsilon) > 0
    assert account(event, method).delta(epsilon + 1) < 1e-15


def test_delta_zero_pays_for_the_largest_losses_of_selections():
    """430.27 where the recursion's values underflow: the largest loss is 500."""
    assert account(Repeated(ExponentialMechanism(1.0), 500), "bounded-range").epsilon(0.0) == 500


def test_gaussian_noise_of_any_size_is_not_perfect():
    """The square of mu underflowed to 0, and with it epsilon at delta 0."""
    event = Composed(Gaussian(1e200), Repeated(Gaussian(1e250), 100))
    assert account(event).epsilon(0.0) == math.inf
    assert account(event).delta(0.0) == pytest.approx(1e-200 / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("other", [PureDp(1.0), Laplace(1.0), Subsampled(PureDp(1.0), "poisson", 0.5)], ids=str)
def test_failures_that_use_up_delta_leave_the_largest_losses(other):
    """Epsilon was infinite: on a grid nothing was left for what is not exactly 0."""
    event = Composed(ApproxDp(1.0, 1e-5), other)
    assert account(event).epsilon(1e-5) == account(event, "basic").epsilon(1e-5) <= 2
    assert account(event).epsilon(1.00000000000001e-5) <= 2
    assert account(event).delta(2.0) == 1e-5


def test_calibration_finds_the_noise_beside_a_failure_that_uses_up_delta():
    """Said to be out of reach: the rest has a delta of 1e-83, which no grid resolves at the largest loss."""
    delta = 6.866e-78

    def event(noise):
        return Composed(Repeated(PureDp(1 / noise), 2), ApproxDp(0.5, delta * (1 - 1e-6)))

    assert calibrate(event, 0.75, delta) == pytest.approx(8.0, rel=1e-4)


@pytest.mark.parametrize("failure", [0.0, 1.3e-5])
def test_a_delta_of_nearly_one_needs_no_law(failure, monkeypatch):
    """Laws at ever smaller tilts, on millions of points, took 7 s to say 1."""
    releases = Repeated(ApproxDp(0.085, failure) if failure else PureDp(0.085), 382_450)
    event = Composed(releases, Subsampled(Gaussian(100.0), "poisson", 0.5))
    monkeypatch.setattr(pld.composition.Sum, "tail", lambda *_, **__: pytest.fail("a law was computed"))
    assert account(event, "pld").delta(0.34) == 1


def test_deltas_just_below_one_are_found():
    event = Repeated(Laplace(1.0), 300)
    assert account(event).delta(20.0) == pytest.approx(1, abs=1e-6)
    assert 1e-4 < 1 - account(event).delta(60.0) < 1e-3


@pytest.mark.parametrize("epsilon", [1e-12, 3e-11, 1e-9, 1e-7, 1e-5, 1e-3, 0.1, 3.0])
def test_the_divergence_of_a_selection_is_never_below_that_of_one(epsilon):
    """At 3e-11 it was round-off, often 0: a billion of these had epsilon 0 at delta 1e-12, where 1e-6 is attained."""
    orders = np.geomspace(1.001, 1e6, 60)
    with mp.workdps(60):
        for order, found in zip(orders, selection.bounded_range_rdp(epsilon, orders), strict=True):
            # Randomised response with half of the range.
            half, a = mp.mpf(epsilon) / 2, mp.mpf(float(order))
            moment = (mp.exp(half * (a - 1)) * mp.exp(half) + mp.exp(-half * (a - 1))) / (1 + mp.exp(half))
            assert found >= float(mp.log(moment) / (a - 1)) * (1 - 1e-15)
    event = Repeated(ExponentialMechanism(3.2589e-11), 10**9)
    assert account(event).epsilon(1e-12) >= account(Repeated(Gaussian(2 / 3.2589e-11), 10**9)).epsilon(1e-12) * 0.99


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("tiny", [1e-14, 1e-15, 1e-16, 3e-17, 1e-20, 1e-100])
def test_selections_of_tiny_range_cost_their_share(tiny, count):
    """To first order epsilon and delta are proportional to the range, so that a larger one says what is right."""
    share, usual = 1e-3, 1e-7
    wanted = account(Repeated(ExponentialMechanism(usual), count)).epsilon(share * usual) / usual
    for method in (None, "bounded-range"):
        found = account(Repeated(ExponentialMechanism(tiny), count), method=method).epsilon(share * tiny) / tiny
        # The mechanism of the usual range is itself overstated by its grid.
        assert 0.97 * wanted <= found
    assert found <= 1.05 * wanted


@pytest.mark.parametrize("event", [Gaussian(3.0), Gaussian(1.0), ZCdp(0.05), Laplace(2.0)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 5, 10, 100])
def test_optimal_composition_is_never_worse_than_basic(event, count):
    guarantee = Repeated(event, count)
    optimal, basic = (account(guarantee, method=method).epsilon(1e-5) for method in ("optimal", "basic"))
    assert optimal <= basic * (1 + 1e-9)
