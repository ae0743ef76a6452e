"""Losses of very different size, jumps of delta and methods that refuse: epsilon is neither too small nor wasted."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from dptoolkit.accounting import (
    METHODS,
    ApproxDp,
    BestOf,
    Composed,
    DiscreteGaussian,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMax,
    Poisson,
    PureDp,
    RandomizedResponse,
    Repeated,
    Subsampled,
    TwoSidedGeometric,
    ZCdp,
    account,
    calibrate,
    gaussian,
    pld,
    sampling,
)
from dptoolkit.accounting.events import adjacency_of
from dptoolkit.accounting.profiles import discrete
from dptoolkit.errors import DpToolkitError, InvalidValue, UnsupportedEvent
from tests.accounting.reference import exact_delta, exact_epsilon
from tests.accounting.test_fuzz import QUICK_POINTS, Draw, _with_points

# Relative error of the references, and what LIMITATIONS says that a grid adds.
REFERENCE_ERROR, GRID_ERROR = 1e-11, 1e-4
# A rare large loss beside a small one.
RARE = Composed(PureDp(0.0045), Subsampled(Gaussian(0.0885), "poisson", 3.5e-5))


def is_exact(event: Event, delta: float, error: float = GRID_ERROR) -> bool:
    """Whether epsilon is not below the exact one, and above it by at most ``error``, relatively."""
    reported = account(event).epsilon(delta)
    truth = exact_epsilon(event, delta, 2 * reported)
    return truth * (1 - REFERENCE_ERROR) <= reported <= truth * (1 + error)


# --- a method that refuses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "epsilon"),
    [
        (Repeated(TwoSidedGeometric(0.01, 3_000_000), 10_000), 5.2104),
        (Repeated(Laplace(1e7), 2 * 10**13), 2.1420),
        (Repeated(Subsampled(PureDp(1e-6), "poisson", 0.5), 10**14), 40.0),
    ],
    ids=str,
)
def test_a_refusal_does_not_end_the_search(event, epsilon):
    """Where "pld" refused, "basic" was the answer: 100, 2,000,000 and 5e7."""
    with pytest.raises(UnsupportedEvent):
        account(event, "pld").epsilon(1e-6)
    assert account(event).epsilon(1e-6) <= epsilon
    assert account(event).epsilon(1e-6) <= account(event, "rdp").epsilon(1e-6)
    assert account(event).delta(account(event).epsilon(1e-6)) <= 1e-6


@pytest.mark.parametrize(
    "event",
    [
        Repeated(Laplace(1e-200), 10**14),
        Repeated(RandomizedResponse(1e200), 10**14),
        Composed(NoisyMax(1e200), Repeated(PureDp(1.0), 10**14)),
        Repeated(TwoSidedGeometric(1e200, 3_000_000), 3),
    ],
    ids=str,
)
def test_renyi_divergences_of_huge_losses_do_not_overflow(event):
    """Now that they are asked for, they must have an answer."""
    assert 1e200 <= account(event).epsilon(1e-6) <= account(event).epsilon(0.0)
    assert account(event).delta(1.0) == 1.0


@pytest.mark.parametrize("method", [None, "rdp", "zcdp"])
def test_a_divergence_that_underflows_is_not_zero(method):
    """At delta 0 an answer of 0 would say that nothing is released."""
    event = Repeated(TwoSidedGeometric(1e-200, 3_000_000), 3)
    assert account(event, method).epsilon(0.0) >= 3e-200
    assert account(event, method).delta(1e-250) > 0


def test_calibration_where_a_method_refuses():
    noise = calibrate(lambda scale: Repeated(Laplace(scale), 2 * 10**13), 1.0, 1e-6)
    assert noise < 3e7 and account(Repeated(Laplace(noise), 2 * 10**13)).epsilon(1e-6) <= 1.0


def test_where_nothing_applies_the_advice_is_no_circle():
    """Each of the two methods advised the other one."""
    with pytest.raises(UnsupportedEvent) as caught:
        account(BestOf(ApproxDp(0.1, 1e-6), Poisson(2.0))).epsilon(1e-5)
    assert "no method applies" in str(caught.value) and "account()" not in str(caught.value)
    assert "'pld'" in str(caught.value) and "'rdp'" in str(caught.value)


@pytest.mark.parametrize("inner", [ZCdp(0.02), Laplace(3.0), DiscreteGaussian(5.0)], ids=str)
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_renyi_divergences_of_any_poisson_sample(inner, adjacency):
    """By joint convexity: less than without sampling, and no less than the Gaussian of the same rho can have."""
    event = Subsampled(inner, "poisson", 0.1, adjacency)
    assert account(event, "rdp").epsilon(1e-5) < account(inner, "rdp").epsilon(1e-5)
    if not isinstance(inner, ZCdp):
        assert account(event, "rdp").epsilon(1e-5) >= account(event, "pld").epsilon(1e-5)
    else:
        worst = Subsampled(Gaussian(5.0), "poisson", 0.1, adjacency)
        assert account(event).epsilon(1e-5) >= account(worst).epsilon(1e-5)


# --- rare large losses beside small ones ------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-5, 3.4e-5, 2.56e-4, 3.5e-4, 1e-3, 2.2e-3])
def test_a_rare_large_loss_beside_a_small_one(delta):
    """Its grid was made for the large loss: 0.0079 at 2.56e-4 and 0.067 at 3.5e-4, where 0.0040 and 0.0038 are true."""
    assert is_exact(RARE, delta)


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (Composed(PureDp(0.0036780385969760023), Subsampled(Gaussian(0.28946524), "poisson", 6.1575e-6)), 3.33e-6),
        pytest.param(
            Composed(PureDp(5.6238e-4), Subsampled(Gaussian(0.111148), "poisson", 7.73463e-4, "replace-one")),
            7.93e-4,
            marks=pytest.mark.slow,
        ),
        (Composed(RandomizedResponse(1.0, 3), Laplace(0.02)), 0.3),
    ],
    ids=str,
)
def test_other_rare_losses(event, delta):
    """The finest grid is not fine enough for the first of these, which has an error of 2e-4."""
    assert is_exact(event, delta, 3 * GRID_ERROR)


def test_delta_zero_is_found_beside_a_rare_loss():
    """epsilon(d) = 0 and delta(0) = d agree."""
    event = Composed(ApproxDp(0.0013076769587, 8.92e-9), Subsampled(Gaussian(0.14046988), "poisson", 0.00118496))
    at_zero = account(event).delta(0.0)
    assert exact_delta(event, 0.0) <= at_zero <= 1.01 * exact_delta(event, 0.0)
    assert account(event).epsilon(at_zero * 1.01) == 0.0 < account(event).epsilon(at_zero * 0.99)


def test_a_coarse_grid_is_noticed(monkeypatch):
    """The twin: without the look at how the curve bends, the first grid's answer stands."""
    event, delta = Composed(PureDp(0.0046), Subsampled(Gaussian(0.0886), "poisson", 3.5e-5)), 3.5e-4
    monkeypatch.setattr(pld.curve.Composition, "resolves", lambda *_: True)
    assert account(event).epsilon(delta) > 5 * exact_epsilon(event, delta, 1.0)


class Scales(Draw):
    """Small losses beside rare large ones, and jumps."""

    def scales(self) -> Event:
        rate = self.log_uniform(1e-6, 1e-2)
        large = PureDp(self.log_uniform(1.0, 60.0)) if self.chance(0.3) else Gaussian(self.log_uniform(0.05, 3.0))
        parts = [PureDp(self.log_uniform(1e-3, 1.0)) if self.chance(0.5) else self.discrete()]
        parts.append(
            Subsampled(large, "poisson", rate) if self.chance(0.7) else DiscreteGaussian(self.log_uniform(0.1, 3.0))
        )
        return Composed(*parts)

    def deltas(self) -> list[float]:
        first = self.log_uniform(1e-12, 0.05)
        near = first * (1 + self.log_uniform(1e-6, 0.1))
        return sorted({first, near, self.log_uniform(1e-6, 1e-2), self.log_uniform(1e-15, 0.3)})


def rises(event: Event, deltas: list[float]) -> list[str]:
    """Where epsilon is larger at a larger delta."""
    epsilons = [account(event).epsilon(delta) for delta in deltas]
    return [
        f"{event!r}: {before!r} at {low!r}, {after!r} at {high!r}"
        for low, high, before, after in zip(deltas, deltas[1:], epsilons, epsilons[1:], strict=False)
        if after > before
    ]


def check_monotone(seed: int, count: int, draw_event: str) -> None:
    draw, found = Scales(seed), []
    while count:
        event, deltas = getattr(draw, draw_event)(), draw.deltas()
        try:
            adjacency_of(event)
            found += rises(event, deltas)
        except UnsupportedEvent:
            continue
        count -= 1
    assert not found, "\n".join(found)


@pytest.fixture
def coarse(monkeypatch):
    yield from _with_points(monkeypatch, QUICK_POINTS)


def test_epsilon_never_rises_with_delta(coarse):
    """Coarse grids are faster and disagree more."""
    check_monotone(3, 12, "scales")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("draw_event", ["scales", "event"])
def test_epsilon_never_rises_with_delta_for_ten_thousand_events(seed, draw_event):
    check_monotone(1000 + seed, 100, draw_event)


# --- jumps of delta ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (Composed(DiscreteGaussian(0.6736124327755232, 1), PureDp(0.03)), 1.2168510375448206e-12),
        (DiscreteGaussian(0.11309361630768047, 2), 3.9e-17),
        (Composed(DiscreteGaussian(0.122933191903387, 2), PureDp(0.00435)), 1.2e-5),
        (Composed(DiscreteGaussian(0.10926465887, 2), ApproxDp(0.22822308, 9.92e-13)), 1.8e-5),
    ],
    ids=str,
)
def test_verification_stays_on_its_side_of_a_plateau(event, delta):
    """11.80 for 9.95, 199.3 for 156.37: a slightly smaller delta was asked for, whose epsilon is far away."""
    assert is_exact(event, delta)
    assert account(event).delta(account(event).epsilon(delta)) <= delta


# --- one release ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (Subsampled(Gaussian(0.6656), "poisson", 5.336e-4), 1.85e-4),
        (Subsampled(Gaussian(0.6656), "poisson", 5.336e-4, "replace-one"), 1e-5),
        (Subsampled(Gaussian(3.0), "poisson", 0.1), 1e-3), (Laplace(0.7), 1e-9), (RandomizedResponse(3.0, 7), 0.2),
        (TwoSidedGeometric(2.0, 5), 1e-17), (Subsampled(PureDp(4.0), "poisson", 0.01), 1e-3),
    ],
    ids=str,
)  # fmt: skip
def test_one_release_is_exact(event, delta):
    """The first one said .001317 for .000756: delta is the divergence of the pair, and no grid is needed."""
    assert is_exact(event, delta, 1e-9)


def test_one_release_makes_no_grid(monkeypatch):
    monkeypatch.setattr(pld.answers, "Composition", lambda *_, **__: pytest.fail("a grid was made"))
    event = Subsampled(Gaussian(0.77), "poisson", 0.013)
    assert account(event).delta(account(event).epsilon(1e-6)) <= 1e-6


@pytest.mark.parametrize("mu", [1e-5, 1e-3, 0.7, 6.0])
@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.9])
def test_divergences_keep_their_digits_where_they_cancel(mu, rate):
    """Never below the sums in 60 digits, and above them by 1e-6 at most."""
    pair = sampling.poisson_replace_one_gaussian(mu, rate)
    event = Subsampled(Gaussian(1 / mu), "poisson", rate, "replace-one")
    for sigmas in (0.0, 1.0, 5.0):
        epsilon = math.log1p(rate * math.expm1(sigmas * mu))
        truth = exact_delta(event, epsilon)
        assert truth * (1 - 1e-12) <= float(pair.above(np.array([epsilon]))[0]) <= truth * (1 + 1e-6)


def test_a_discrete_divergence_does_not_cancel():
    """Near the largest loss the difference of two sums was all round-off."""
    losses = np.array([-40.0, -39.999999, 0.0, 39.999999, 40.0])
    p = np.array([0.1 * math.exp(-40.0), 1e-18 * math.exp(-39.999999), 0.9, 1e-18, 0.1])
    value = float(discrete(losses, p).above(np.array([39.9999995]))[0])
    assert value == pytest.approx(-0.1 * math.expm1(-5e-7), rel=1e-6)


# --- the ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["poisson", "without-replacement"])
@pytest.mark.parametrize("rate", [5e-324, 1e-310, 1e-200])
def test_no_warning_at_tiny_rates(scheme, rate):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for inner in (Gaussian(1.0), Laplace(1.0)):
            guarantee = account(Subsampled(inner, scheme, rate))
            assert 0 <= guarantee.epsilon(1e-5) < 0.01 and 0 < guarantee.delta(0.0) < 1e-3


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(math.inf), Composed(), Laplace(math.inf), PureDp(0.0), ZCdp(0.0), ApproxDp(0.0, 0.0),
        ExponentialMechanism(0.0), RandomizedResponse(0.0), DiscreteGaussian(math.inf),
        Subsampled(Gaussian(1.0), "poisson", 0.0),
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_zero_and_not_minus_zero(event):
    for method in (None, *METHODS):
        try:
            answers = account(event, method).delta(0.0), account(event, method).epsilon(1e-5)
        except DpToolkitError:
            continue
        assert all(math.copysign(1.0, answer) == 1 for answer in answers), method
    assert math.copysign(1.0, float(gaussian.delta(0.0, 0.0))) == 1


def test_calibration_says_what_to_pass():
    with pytest.raises(InvalidValue, match=r"make_event.*function.*lambda noise: Gaussian\(noise\)"):
        calibrate(Gaussian(2.0), 1.0, 1e-5)
