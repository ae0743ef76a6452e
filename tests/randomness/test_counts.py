"""Noise for counts has exactly the law that it claims."""

from __future__ import annotations

import numpy as np
import pytest

from dptoolkit.errors import InvalidValue
from dptoolkit.randomness import SecureStream, discrete_gaussian_noise, geometric_noise
from tests.statistics import assert_chi2, rejected

REACH = np.arange(-40, 41)


def seen(draw, trials=6000):
    return np.bincount(np.clip([draw() for _ in range(trials)], -40, 40) + 40, minlength=81)


@pytest.mark.parametrize("epsilon, sensitivity", [(0.7, 1), (1.0, 3), (2.5, 1)])
def test_two_sided_geometric(epsilon, sensitivity):
    stream = SecureStream.seeded(1)
    counts = seen(lambda: geometric_noise(stream, epsilon, sensitivity))
    assert_chi2(counts, np.exp(-np.abs(REACH) * epsilon / sensitivity))
    rejected(assert_chi2, counts, np.exp(-np.abs(REACH) * epsilon / sensitivity / 0.85))


def test_discrete_gaussian():
    stream = SecureStream.seeded(2)
    counts = seen(lambda: discrete_gaussian_noise(stream, 2.3))
    assert_chi2(counts, np.exp(-(REACH**2) / (2 * 2.3**2)))
    rejected(assert_chi2, counts, np.exp(-(REACH**2) / (2 * (0.9 * 2.3) ** 2)))


def test_small_budgets_are_no_trouble():
    """NumPy's geometric law ends at 64 bits; here numbers have as many as they need."""
    stream = SecureStream.seeded(3)
    assert max(abs(geometric_noise(stream, 1e-25, 1)) for _ in range(10)) > 2**64


def test_bad_input():
    stream = SecureStream.seeded(4)
    for call in (lambda: geometric_noise(stream, 0.0, 1), lambda: geometric_noise(stream, 1.0, 0),
                 lambda: discrete_gaussian_noise(stream, -1.0)):  # fmt: skip
        with pytest.raises(InvalidValue):
            call()
