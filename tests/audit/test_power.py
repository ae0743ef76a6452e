"""The power that ``assert_private`` promises is that of the test which is run.

Planted faults are drawn from a fixed seed; the chance of a false failure is stated where there is one.
"""

from __future__ import annotations

import pytest

from dptoolkit import audit
from dptoolkit.accounting import gaussian
from dptoolkit.errors import InvalidValue, PrivacyViolation

MU = gaussian.mu(1.0, 1e-5)


def half(total, rng):
    """Half of the noise that (1, 1e-5) takes: its true epsilon is 2.15."""
    return total + 0.5 * rng.standard_normal() / MU


@pytest.mark.slow
def test_a_bare_claim_is_refuted_on_every_seed():
    for seed in range(20):
        with pytest.raises(PrivacyViolation):
            audit.assert_private(half, (1.0, 0.0), (1.0, 1e-5), rng=seed)


def test_few_trials_of_a_bare_claim_are_refused():
    with pytest.raises(InvalidValue):
        audit.assert_private(half, (1.0, 0.0), (1.0, 1e-5), trials=986)
