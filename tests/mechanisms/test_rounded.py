"""Rounded noise: the event is that of the noise that is drawn, and the bits of a release tell nothing more."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dptoolkit import audit
from dptoolkit.accounting import Gaussian, Laplace
from dptoolkit.data import check_rows, clip_rows
from dptoolkit.data.grids import Grids, exact_sum, residuals_on_grid, rows_on_grid
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms import RoundedGaussianNoise, RoundedLaplaceNoise
from dptoolkit.randomness import SecureStream
from tests.statistics import assert_binomial, assert_chi2, assert_ks, rejected

KINDS = [(RoundedGaussianNoise, Gaussian, stats.norm), (RoundedLaplaceNoise, Laplace, stats.laplace)]


@pytest.mark.parametrize("kind, event, law", KINDS)
def test_event_and_noise_belong_together(kind, event, law):
    mechanism = kind(3 * 2**20, 2.0**20)
    assert mechanism.event == event(3.0)
    value = np.arange(40_000).reshape(200, 200) * 1000
    noise = mechanism.release(value, SecureStream.seeded(1)) - value
    assert noise.shape == value.shape and noise.dtype == np.int64
    assert_ks(noise / mechanism.sensitivity, law(scale=3.0).cdf)
    rejected(assert_ks, 0.9 * noise / mechanism.sensitivity, law(scale=3.0).cdf)


def test_without_a_stream_every_release_has_a_key_of_its_own():
    mechanism = RoundedGaussianNoise(2**40, 1.0)
    assert len({int(mechanism.release(np.array([5]))[0]) for _ in range(20)}) == 20


def test_bad_input():
    with pytest.raises(InvalidValue, match="multiplier"):
        RoundedGaussianNoise(2**53, 1.0)
    with pytest.raises(InvalidValue, match="sensitivity"):
        RoundedLaplaceNoise(3, 0.0)
    mechanism = RoundedGaussianNoise(3, 1.0)
    for bad in ([1.5], np.ones(3), [2**61], ["a"]):
        with pytest.raises(InvalidValue, match="value"):
            mechanism.release(bad)


# --- the attack, before and after -------------------------------------------------------------------------


class Gradient:
    """A noisy sum gradient on grids, of residuals of at most 1/2: what a secure first step releases."""

    def __init__(self, epsilon, n=200, d=20, coarser=0):
        rng = np.random.default_rng(7)
        X = clip_rows(check_rows(rng.standard_normal((n, d))), 1.0).matrix
        other, self.residuals = X.copy(), rng.uniform(-0.5, 0.5, n)
        other[0], self.residuals[0] = -X[0], 0.4999
        self.pair, sensitivity = (X, other), 1.0
        multiplier = {1.0: 4.22, 0.1: 36.3}[epsilon]
        self.grids = Grids.choose(n, 1.0, 1.0, multiplier * sensitivity)
        self.coarser, self.stream = 2**coarser, SecureStream.seeded(int(100 * epsilon))
        in_units = sensitivity / float(self.grids.unit)
        self.noise = RoundedGaussianNoise(int(np.ceil(multiplier * in_units / self.coarser)), in_units / self.coarser)

    def exact(self, X):
        rows = rows_on_grid(check_rows(X), self.grids)
        return exact_sum(rows, residuals_on_grid(self.residuals, self.grids))

    def __call__(self, X, rng=None):
        sums = self.exact(X)
        if self.coarser == 1:
            return self.noise.release(sums, self.stream)
        return sums + self.coarser * self.noise.release(np.zeros_like(sums), self.stream)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_floating_point_attack_finds_nothing(epsilon):
    release = Gradient(epsilon)
    unit = float(release.grids.unit)
    known = {"exact": release.exact, "scale": float(release.noise.multiplier), "trials": 600, "rng": 1}
    # Who knows that releases are multiples of the grid learns that every one is possible on both sides.
    report = audit.floating_point_attack(release, release.pair, grid=1.0, **known)
    assert report.certain == 0 and report.both == 600
    # Who believes in doubles is certain now and then, as often wrongly as rightly.
    scaled = {"exact": lambda X: release.exact(X) * unit, "scale": release.noise.multiplier * unit}
    report = audit.floating_point_attack(lambda X, rng: release(X) * unit, release.pair, **(known | scaled))
    assert_binomial(report.right, max(report.right + report.wrong, 1), 0.5)


def test_noise_on_a_coarser_grid_is_found():
    """The twin: the noise is a multiple of 2^10 grid units, and the low ten bits of the sum are in the clear."""
    release = Gradient(1.0, coarser=10)
    report = audit.floating_point_attack(
        release, release.pair, exact=release.exact, scale=1.0, grid=1024.0, trials=50, rng=2
    )
    assert report.right == 50


def test_low_bits_are_uniform_on_both_sides():
    release = Gradient(1.0)
    for X in release.pair:
        draws = release.noise.release(np.tile(release.exact(X), 10_000), release.stream)
        for shift in (0, 8):
            assert_chi2(np.bincount((draws >> shift) & 255, minlength=256), np.ones(256))
    # The twin: a coarser grid shows the secret's own bits.
    coarse = Gradient(1.0, coarser=10)
    draws = np.concatenate([coarse(coarse.pair[0]) for _ in range(200)])
    rejected(assert_chi2, np.bincount(draws & 255, minlength=256), np.ones(256))


def test_neighbours_are_as_far_apart_as_the_sensitivity_allows():
    release = Gradient(1.0)
    one, two = (release.exact(X) for X in release.pair)
    square = sum((int(a) - int(b)) ** 2 for a, b in zip(one, two, strict=True))
    assert 0.99 * release.noise.sensitivity**2 < square <= release.noise.sensitivity**2
