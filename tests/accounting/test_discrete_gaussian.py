"""The discrete Gaussian against sums in 60 digits, and against the Gaussian that it tends to."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from dptoolkit.accounting import (
    Composed,
    DiscreteGaussian,
    Gaussian,
    Ledger,
    Repeated,
    Subsampled,
    account,
    calibrate,
    google,
    pld,
    profiles,
    rdp,
)
from dptoolkit.accounting.events import from_dict
from dptoolkit.errors import InvalidValue, UnsupportedEvent

CASES = [(0.3, 1), (1.0, 1), (2.5, 1), (4.0, 3), (0.8, 2), (20.0, 7)]


def exact_delta(sigma, sensitivity, epsilon, count=1):
    """delta of ``count`` releases by enumeration: the sum of the outcomes tells all, and its law is a convolution."""
    with mp.workdps(60):
        s, d = mp.mpf(sigma), sensitivity
        reach = math.ceil(16 * sigma * math.sqrt(count)) + 3
        one = [mp.exp(-(k * k) / (2 * s * s)) for k in range(-reach, reach + 1)]
        total = mp.fsum(one)
        law = one
        for _ in range(count - 1):
            law = [
                mp.fsum(law[i - j] * one[j] for j in range(len(one)) if 0 <= i - j < len(law))
                for i in range(len(law) + len(one) - 1)
            ]
        factor, found = mp.exp(mp.mpf(epsilon)), mp.mpf(0)
        for i, weight in enumerate(law):
            ratio = mp.exp(-(d * (count * d - 2 * (i - count * reach))) / (2 * s * s))
            if factor * ratio < 1:
                found += weight * (1 - factor * ratio)
        return float(found / total**count)


@pytest.mark.parametrize(("sigma", "sensitivity"), CASES)
def test_the_profile_is_the_sum(sigma, sensitivity):
    pair = profiles.discrete_gaussian(sigma, sensitivity)
    mu = sensitivity / sigma
    for epsilon in (0.0, 0.1 * mu, mu, 3 * mu + mu * mu):
        exact = exact_delta(sigma, sensitivity, epsilon)
        assert pair.above(np.array([epsilon]))[0] == pytest.approx(exact, rel=1e-10, abs=1e-290)
    # A planted fault: the pair of a smaller shift says too little.
    smaller = profiles.discrete_gaussian(sigma, sensitivity - 1) if sensitivity > 1 else None
    if smaller is not None:
        assert smaller.above(np.array([mu]))[0] < 0.99 * exact_delta(sigma, sensitivity, mu)


@pytest.mark.parametrize(("sigma", "sensitivity"), CASES)
def test_the_loss_has_the_tails_and_the_mean_that_it_says(sigma, sensitivity):
    pair = profiles.discrete_gaussian(sigma, sensitivity)
    reach = math.ceil(12 * sigma) + sensitivity + 3
    k = np.arange(-reach, reach + 1)
    p, q = (np.exp(-0.5 * ((k - c) / sigma) ** 2) for c in (0, sensitivity))
    p, q = p / p.sum(), q / p.sum()
    losses = sensitivity * (sensitivity - 2 * k) / (2 * sigma**2)
    assert pair.mean == pytest.approx(p @ losses, rel=1e-9)
    # Between two losses, where rounding cannot decide.
    x = 0.25 * sensitivity / sigma**2
    found = pair.tails(np.array([x]))
    for got, law, side in zip(found, (p, q, p, q), (losses > x, losses > x, losses < x, losses < x), strict=True):
        assert got[0] == pytest.approx(law[side].sum(), rel=1e-9)


@pytest.mark.parametrize(("sigma", "sensitivity", "count"), [(1.0, 1, 1), (2.5, 2, 1), (0.7, 1, 3), (3.0, 2, 2)])
@pytest.mark.parametrize("method", [None, "pld", "rdp", "zcdp"])
def test_no_method_says_too_little(sigma, sensitivity, count, method):
    guarantee = account(Repeated(DiscreteGaussian(sigma, sensitivity), count), method)
    for delta in (1e-3, 1e-8):
        epsilon = guarantee.epsilon(delta)
        exact = exact_delta(sigma, sensitivity, epsilon, count)
        assert exact <= delta * (1 + 1e-9)
        assert guarantee.delta(epsilon) <= delta
        if method in (None, "pld"):
            assert exact_delta(sigma, sensitivity, epsilon * (1 - 5e-3), count) > delta
            lower = pld.lower_epsilon(guarantee.event, delta)
            assert exact_delta(sigma, sensitivity, lower, count) >= delta * (1 - 1e-9)


@pytest.mark.parametrize(("sigma", "sensitivity"), CASES)
def test_renyi_divergence_is_the_sum(sigma, sensitivity):
    orders = np.array([1.0 + 1e-6, 1.2, 1.5, 2.0, 3.3, 17.0])
    found = rdp.curve(DiscreteGaussian(sigma, sensitivity), orders)
    with mp.workdps(60):
        s, d = mp.mpf(sigma), sensitivity
        near = math.ceil(20 * sigma) + 3
        total = mp.fsum(mp.exp(-(k * k) / (2 * s * s)) for k in range(-near, near + 1))
        for order, value in zip(orders, found, strict=True):
            a = mp.mpf(float(order))
            reach = math.ceil(20 * sigma) + math.ceil(order) * sensitivity + 3
            moment = mp.fsum(mp.exp(-(a * k * k + (1 - a) * (k - d) ** 2) / (2 * s * s)) for k in range(-reach, reach))
            exact = float(mp.log(moment / total) / (a - 1))
            assert exact * (1 - 1e-12) <= value <= exact * (1 + 1e-8) + 1e-9
    assert np.all(found <= orders * account(DiscreteGaussian(sigma, sensitivity)).rho * (1 + 1e-15))


def test_many_outcomes_tend_to_the_gaussian():
    for sigma, sensitivity in ((60.0, 12), (500.0, 100), (1000.0, 1)):
        mu = sensitivity / sigma
        for delta in (1e-3, 1e-7):
            limit = account(Gaussian(1 / mu)).epsilon(delta)
            assert account(DiscreteGaussian(sigma, sensitivity)).epsilon(delta) == pytest.approx(limit, rel=5e-3)


def test_the_ends():
    assert account(DiscreteGaussian(0.0)).epsilon(0.1) == math.inf
    assert account(DiscreteGaussian(5e-324, 3)).epsilon(0.1) == math.inf
    assert account(DiscreteGaussian(math.inf)).epsilon(0.0) == 0.0
    # No float is left of rho, but something is released: at delta 0 nothing bounds it.
    assert account(DiscreteGaussian(1e300)).epsilon(0.0) == math.inf
    assert account(DiscreteGaussian(1.0)).epsilon(0.0) == math.inf
    many = DiscreteGaussian(1e6, 10**5)
    with pytest.raises(UnsupportedEvent, match="outcomes to sum.*rdp"):
        account(many, "pld").epsilon(1e-5)
    assert account(Gaussian(10.0)).epsilon(1e-5) < account(many).epsilon(1e-5) < 0.5
    for sigma, sensitivity in ((-1.0, 1), (math.nan, 1), (1.0, 0), (1.0, 1.5), ("1", 1)):
        with pytest.raises(InvalidValue, match="must be"):
            DiscreteGaussian(sigma, sensitivity)


def test_it_is_sampled_composed_saved_and_paid_for_as_others_are():
    event = DiscreteGaussian(3.0, 2)
    for scheme, adjacency in (("poisson", "zero-out"), ("poisson", "replace-one"), ("without-replacement", None)):
        bounds = account(Subsampled(event, scheme, 0.2, adjacency)).bounds(1e-5)
        assert 0 < bounds.lower <= bounds.upper < account(event).epsilon(1e-5)
    mixed = account(Composed(event, Gaussian(2.0))).epsilon(1e-5)
    assert mixed > max(account(event).epsilon(1e-5), account(Gaussian(2.0)).epsilon(1e-5))
    assert from_dict(Repeated(event, 3).to_dict()) == Repeated(event, 3)
    assert from_dict(DiscreteGaussian(math.inf).to_dict()) == DiscreteGaussian(math.inf)
    ledger = Ledger(5.0, 1e-5)
    ledger.spend(event)
    assert Ledger.from_json(ledger.to_json()).event == ledger.event
    text = str(account(event))
    assert "DiscreteGaussian  sigma 3  2 (integer)" in text and "the query is an integer" in text
    sigma = calibrate(lambda noise: DiscreteGaussian(noise, 2), 1.0, 1e-5)
    assert 0.999 < account(DiscreteGaussian(sigma, 2)).epsilon(1e-5) <= 1.0
    # dp_accounting has no event for it, so it is refused rather than sent as something else.
    pytest.importorskip("dp_accounting")
    with pytest.raises(UnsupportedEvent, match="bounds soundly"):
        google.to_google(event)


@pytest.mark.parametrize(("sigma", "sensitivity", "outcome"), [(0.33086913019588116, 3, -9), (0.2416, 1, -1)])
def test_no_loss_is_rounded_down(sigma, sensitivity, outcome):
    """Between a loss that was rounded down and the true one, delta lacked all of its mass: 1e-199 for 1e-60."""
    with mp.workdps(60):
        loss = mp.mpf(sensitivity) * (sensitivity - 2 * outcome) / (2 * mp.mpf(sigma) ** 2)
        weights = {k: mp.exp(-(mp.mpf(k) ** 2) / (2 * mp.mpf(sigma) ** 2)) for k in range(-60, 61)}
        near = float(loss)
        for epsilon in (math.nextafter(near, 0.0), near, *(near - k * math.ulp(near) for k in (2, 5, 9))):
            kept = [p - mp.exp(mp.mpf(epsilon)) * weights.get(k - sensitivity, 0) for k, p in weights.items()]
            truth = mp.fsum(max(part, 0) for part in kept) / mp.fsum(weights.values())
            assert pld.delta(DiscreteGaussian(sigma, sensitivity), epsilon) >= truth
