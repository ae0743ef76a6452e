"""The law of every noise, against its formula at alpha = 1e-6; each twin with 90% of the noise must be caught."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dptoolkit.accounting import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms import (
    DiscreteGaussianNoise,
    GaussianNoise,
    GeometricNoise,
    LaplaceNoise,
    as_generator,
    noise,
)
from tests.statistics import assert_chi2, assert_ks, rejected

DRAWS = 60_000
LAWS = {
    "gaussian": (GaussianNoise, stats.norm),
    "laplace": (LaplaceNoise, stats.laplace),
}


@pytest.mark.parametrize("scale", [0.3, 7.0])
@pytest.mark.parametrize("name", LAWS)
def test_law(name, scale):
    mechanism, law = LAWS[name]
    value = np.linspace(-5, 5, DRAWS)
    noise = mechanism(scale, 1.0).release(value, 1) - value
    assert_ks(noise, law(scale=scale).cdf)
    rejected(assert_ks, 0.9 * noise, law(scale=scale).cdf)
    # The scale must not be used as the location.
    rejected(assert_ks, noise / scale + scale, law(scale=scale).cdf)


@pytest.mark.parametrize("name", LAWS)
def test_coordinates_are_independent(name):
    mechanism, law = LAWS[name]
    noise = mechanism(2.0, 1.0).release(np.zeros((DRAWS, 2)), 2)
    assert noise.shape == (DRAWS, 2)
    # One draw used for a whole row would leave no difference within it.
    sign = noise[:, 0] * noise[:, 1] > 0
    assert abs(sign.mean() - 0.5) < 5 / math.sqrt(DRAWS)
    assert len(np.unique(noise)) == 2 * DRAWS


@pytest.mark.parametrize("name", LAWS)
def test_no_noise_and_no_side_effects(name):
    mechanism, _ = LAWS[name]
    value = np.arange(3.0)
    released = mechanism(0.0, 1.0).release(value, 0)
    assert np.array_equal(released, value) and released is not value
    mechanism(1.0, 1.0).release(value, 0)
    assert np.array_equal(value, [0, 1, 2])


def test_events_hold_noise_per_sensitivity():
    assert GaussianNoise(6.0, 2.0).event == Gaussian(3.0)
    assert LaplaceNoise(6.0, 2.0).event == Laplace(3.0)
    assert GeometricNoise(0.5, 4).event == TwoSidedGeometric(0.5, 4)
    assert GaussianNoise(0.0, 2.0).event == Gaussian(0.0)


@pytest.mark.parametrize("mechanism", [GaussianNoise, LaplaceNoise])
@pytest.mark.parametrize(("scale", "sensitivity"), [(-1.0, 1.0), (1.0, 0.0), (1.0, -1.0), (math.nan, 1.0), ("1", 1.0)])
def test_bad_scales(mechanism, scale, sensitivity):
    with pytest.raises(InvalidValue, match="must be"):
        mechanism(scale, sensitivity)


# --- tails of exponentials -----------------------------------------------------------------------------


class Script:
    """A generator whose numbers are given."""

    def __init__(self, exponentials, uniforms=()):
        self.exponentials, self.uniforms = list(exponentials), list(uniforms)

    def standard_exponential(self, shape=None):
        return self.exponentials.pop(0) if shape is None else np.array(self.exponentials.pop(0))

    def random(self):
        return self.uniforms.pop(0)


def test_exponentials_go_on_in_both_tails():
    """Beyond 16 a fresh one is added; below a millionth there are new bits, and none is 0, whose Gumbel is infinite."""
    found = noise.exponential(Script([[1.0, 40.0, 0.0, 1e-16], 20.0, 3.0], [0.0, 0.5, 0.25]), (4,))
    assert found[0] == 1.0 and found[1] == 35.0
    assert found[2] == pytest.approx(0.5 * 2.0**-40, rel=1e-5, abs=0)
    assert found[3] == pytest.approx(0.25 * 2.0**-20, rel=1e-5, abs=0)
    assert noise.exponential(np.random.default_rng(0), ()).shape == ()


def test_law_of_exponentials(monkeypatch):
    """With tails that begin early, so that most draws come by them."""
    monkeypatch.setattr(noise, "_SHORT", 0.3)
    monkeypatch.setattr(noise, "_LONG", 1.0)
    draws = noise.exponential(np.random.default_rng(1), (20_000,))
    assert_ks(draws, stats.expon.cdf)
    monkeypatch.setattr(noise, "_far", lambda rng, draw: 0.9 * draw)
    rejected(assert_ks, noise.exponential(np.random.default_rng(1), (20_000,)), stats.expon.cdf)


# --- two-sided geometric ------------------------------------------------------------------------------


def geometric_law(epsilon, sensitivity, reach):
    """P(-reach), ..., P(reach), the two ends with everything beyond."""
    q = math.exp(-epsilon / sensitivity)
    law = (1 - q) / (1 + q) * q ** np.abs(np.arange(-reach, reach + 1))
    law[[0, -1]] = q**reach / (1 + q)
    return law


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(1.0, 1), (0.5, 3), (3.0, 2)])
def test_geometric_law(epsilon, sensitivity):
    mechanism, rng = GeometricNoise(epsilon, sensitivity), np.random.default_rng(5)
    noise = np.array([mechanism.release(10, rng) - 10 for _ in range(40_000)])
    reach = math.ceil(8 * sensitivity / epsilon)
    counts = np.bincount(np.clip(noise, -reach, reach) + reach, minlength=2 * reach + 1)
    assert_chi2(counts, geometric_law(epsilon, sensitivity, reach))
    rejected(assert_chi2, counts, geometric_law(0.9 * epsilon, sensitivity, reach))
    rejected(assert_chi2, counts, geometric_law(epsilon, sensitivity + 1, reach))


def test_geometric_noise_hides_integers_only():
    mechanism = GeometricNoise(1.0, 1)
    assert isinstance(mechanism.release(3, 0), int)
    assert isinstance(mechanism.release(np.int64(3), 0), int)
    for value in (3.0, 3.5, "3", True):
        with pytest.raises(InvalidValue, match="value=.*round first"):
            mechanism.release(value, 0)
    for sensitivity in (0, 1.5, -1):
        with pytest.raises(InvalidValue, match="sensitivity"):
            GeometricNoise(1.0, sensitivity)


def test_geometric_noise_never_saturates():
    """Draws that do not fit in 64 bits come back as the largest integer: their difference would be no noise at all."""
    for epsilon in (1e-17, 1e-19, 1e-300):
        with pytest.raises(InvalidValue, match="epsilon=.*must be >="):
            GeometricNoise(epsilon, 1)
    mechanism, rng = GeometricNoise(2e-16, 1), np.random.default_rng(0)
    noise = [mechanism.release(0, rng) for _ in range(200)]
    assert len(set(noise)) == 200
    assert max(map(abs, noise)) < 2**61


# --- where randomness comes from ----------------------------------------------------------------------


def test_generators():
    rng = np.random.default_rng(3)
    assert as_generator(rng) is rng
    assert as_generator(3).random() == np.random.default_rng(3).random() == as_generator(np.int32(3)).random()
    assert as_generator(None).random() != as_generator(None).random()


@pytest.mark.parametrize("rng", [-1, 1.0, "seed", True, np.random.RandomState(0), np.random.PCG64(0), [1, 2]])
def test_bad_generators(rng):
    with pytest.raises(InvalidValue, match="rng=.*must be None, an integer >= 0 or a numpy.random.Generator"):
        as_generator(rng)


def test_drawing_advances_the_generator_and_no_other():
    np.random.seed(0)  # noqa: NPY002  the global generator must be left alone
    before = np.random.get_state()[2]  # noqa: NPY002
    rng = np.random.default_rng(1)
    mechanism = GaussianNoise(1.0, 1.0)
    first, second = mechanism.release(np.zeros(3), rng), mechanism.release(np.zeros(3), rng)
    assert not np.array_equal(first, second)
    assert np.random.get_state()[2] == before  # noqa: NPY002


# --- discrete Gaussian --------------------------------------------------------------------------------


def discrete_gaussian_law(scale, reach):
    law = np.exp(-0.5 * (np.arange(-reach, reach + 1) / scale) ** 2)
    return law / law.sum()


@pytest.mark.parametrize("scale", [0.4, 1.7, 6.0])
def test_discrete_gaussian_law(scale):
    mechanism, rng = DiscreteGaussianNoise(scale, 1), np.random.default_rng(7)
    draws = np.array([mechanism.release(10, rng) - 10 for _ in range(5000)])
    reach = math.ceil(9 * scale) + 1
    counts = np.bincount(draws + reach, minlength=2 * reach + 1)
    assert_chi2(counts, discrete_gaussian_law(scale, reach))
    rejected(assert_chi2, counts, discrete_gaussian_law(0.9 * scale, reach))
    # Discrete Laplace noise that is never rejected, and rounded Gaussian noise, are something else.
    rejected(assert_chi2, counts, geometric_law(1 / (math.floor(scale) + 1), 1, reach))


def test_discrete_gaussian_noise_hides_integers_only():
    mechanism = DiscreteGaussianNoise(2.0, 3)
    assert mechanism.event == DiscreteGaussian(2.0, 3)
    assert isinstance(mechanism.release(np.int64(3), 0), int) and mechanism.release(3, 5) == mechanism.release(3, 5)
    for value in (3.0, 3.5, "3", True):
        with pytest.raises(InvalidValue, match="value=.*round first"):
            mechanism.release(value, 0)
    for scale, sensitivity in ((0.0, 1), (-1.0, 1), (math.nan, 1), (math.inf, 1), (1.0, 0), (1.0, 1.5)):
        with pytest.raises(InvalidValue, match="must be"):
            DiscreteGaussianNoise(scale, sensitivity)


def test_discrete_gaussian_noise_at_the_ends():
    """Whole numbers of any size: a scale beyond 64 bits does not saturate, a tiny one gives no noise."""
    rng = np.random.default_rng(3)
    large = [DiscreteGaussianNoise(1e30, 1).release(0, rng) for _ in range(200)]
    assert len(set(large)) == 200 and 1e29 < max(map(abs, large)) < 1e31
    assert all(DiscreteGaussianNoise(1e-3, 1).release(7, rng) == 7 for _ in range(20))
