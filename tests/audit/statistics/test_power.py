"""The power that ``assert_private`` promises is that of the test which is run.

Planted faults are played from fixed seeds, so the outcome is fixed too. Over the choice of seeds a test of n audits at
power 0.999 would miss one with probability at most n / 1000; none was missed in thousands.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from dptoolkit import audit
from dptoolkit.accounting import Composed, Gaussian, Laplace, Subsampled, account, gaussian
from dptoolkit.audit import ApproxClaim, GaussianClaim, ProfileClaim, PureClaim, RenyiClaim, ZcdpClaim
from dptoolkit.audit.attacks import threshold
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.statistics import fault_models, power
from dptoolkit.audit.statistics.betting import FIRST, LESSONS, MEMORY, Wealth
from dptoolkit.errors import InvalidValue, PrivacyViolation

MU = gaussian.mu(1.0, 1e-5)


def half(total, rng):
    """Half of the noise that (1, 1e-5) takes: its true epsilon is 2.15."""
    return total + 0.5 * rng.standard_normal() / MU


def found_after(claim, fault, trials, seed, alpha=1e-6):
    """The schedule of an audit on scores of a fault, or None if so many trials do not refute the claim."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, trials).astype(np.int8)
    scores, wealth, done = fault.draw(bits, rng), Wealth(claim, alpha), FIRST
    while done < trials and wealth.crossed_at is None:
        wealth.learn(scores[: min(done, LESSONS)], bits[: min(done, LESSONS)])
        rule = threshold(scores[: min(done, MEMORY)], bits[: min(done, MEMORY)])
        block = slice(done, min(2 * done, trials))
        wealth.bet(scores[block], bits[block], rule.guess(scores[block]) == bits[block])
        done = block.stop
    return wealth.crossed_at


CURVE = RenyiClaim([2.0, 4.0, 8.0], [MU * MU, 2 * MU * MU, 4 * MU * MU])
CLAIMS = {
    "Gaussian": GaussianClaim(MU), "Gaussian at 8": GaussianClaim(gaussian.mu(8.0, 1e-5)),
    "zCDP": ZcdpClaim(MU * MU / 2), "Renyi": CURVE, "pure": PureClaim(1.0), "pure at 5": PureClaim(5.0),
    "Gaussians": Composed(*[Gaussian(4.0)] * 4), "Laplaces": Composed(*[Laplace(4.0)] * 4),
    "sampled": Subsampled(Gaussian(0.5), "poisson", 0.3),
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_planted_faults_are_found_in_the_trials_that_are_promised(claim):
    goal, trials = as_claim(claim), audit.trials_for(claim)
    for fault in power.faults(goal, 2.0):
        assert all(found_after(goal, fault, trials, seed) is not None for seed in range(20))


@pytest.mark.slow
@pytest.mark.parametrize("claim", [*CLAIMS.values(), ApproxClaim(1.0, 1e-5), ApproxClaim(3.0, 1e-5),
                                   ProfileClaim(lambda e: float(gaussian.delta(MU, e)))], ids=str)  # fmt: skip
def test_the_promised_power_over_many_audits(claim):
    # At power 0.99, 300 audits miss more than 14 with probability below 1e-6.
    goal, trials = as_claim(claim), audit.trials_for(claim, power=0.99)
    for fault in power.faults(goal, 2.0):
        assert sum(found_after(goal, fault, trials, seed) is None for seed in range(300)) <= 14


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("claim", "trials"), [(GaussianClaim(MU), 2500), (PureClaim(1.0), 450), (ZcdpClaim(MU * MU / 2), 4500)], ids=str
)
def test_the_power_of_few_trials_is_not_overstated(claim, trials):
    # 200 audits of true power p find fewer than the stated share less 0.17 with probability below 1e-6.
    fault = power.faults(claim, 2.0)[0]
    seen = np.mean([found_after(claim, fault, trials, seed) is not None for seed in range(200)])
    assert seen >= power.SequentialTest(claim, fault, 1e-6).power(trials) - 0.17


def test_half_the_noise_is_caught_on_every_seed():
    for seed in range(20):
        with pytest.raises(PrivacyViolation):
            audit.assert_private(half, (1.0, 0.0), GaussianClaim(MU), rng=seed)


def test_a_bare_claim_is_refuted():
    assert audit.trials_for((1.0, 1e-5)) > 200_000
    with pytest.raises(PrivacyViolation):
        audit.assert_private(half, (1.0, 0.0), (1.0, 1e-5), n_jobs=1)


@pytest.mark.slow
def test_a_bare_claim_is_refuted_on_every_seed():
    for seed in range(20):
        with pytest.raises(PrivacyViolation):
            audit.assert_private(half, (1.0, 0.0), (1.0, 1e-5), rng=seed)


def test_few_trials_of_a_bare_claim_are_refused():
    with pytest.raises(InvalidValue, match=r"trials=986: must be >= \d{6}, .*audit\.GaussianClaim\(0\.268.*power=None"):
        audit.assert_private(half, (1.0, 0.0), (1.0, 1e-5), trials=986)
    kept = audit.assert_private(half, (1.0, 0.0), (1.0, 1e-5), trials=986, power=None)
    assert "no power is promised" in kept.notes[-1]
    with pytest.raises(InvalidValue, match="power=None"):
        audit.assert_private(half, (1.0, 0.0), (1.0, 1e-5), power=None)


def test_claims_that_cannot_be_tested_are_refused_in_words():
    with pytest.raises(InvalidValue, match="one point of a privacy profile"):
        audit.assert_private(half, (1.0, 0.0), (8.0, 1e-9))
    with pytest.raises(InvalidValue, match="1,000,000 trials can test.*trials="):
        audit.assert_private(half, (1.0, 0.0), GaussianClaim(0.01))
    for bad in ({"power": 1.0}, {"power": 0.0}, {"alpha": 0.0}, {"power_against": 1.0}, {"power_against": math.nan}):
        with pytest.raises(InvalidValue, match=next(iter(bad))):
            audit.trials_for(GaussianClaim(1.0), **bad)


def test_more_power_takes_more_trials():
    counts = [audit.trials_for(GaussianClaim(MU), power=p) for p in (0.5, 0.9, 0.999)]
    assert counts == sorted(counts) and counts[0] < counts[2] / 2
    assert audit.trials_for(GaussianClaim(MU), alpha=1e-12) > counts[2]


# --- the laws of faults -----------------------------------------------------------------------------------

EDGES = np.linspace(-3, 5, 33)


@pytest.mark.parametrize(
    "law", [fault_models.GaussianWorlds(0.7), fault_models.LaplaceWorlds(2.0), fault_models.response(1.0),
            fault_models.from_profile(GaussianClaim(1.0).delta, GaussianClaim(1.0).delta, 4.0)],
    ids=["Gaussian", "Laplace", "response", "profile"],
)  # fmt: skip
def test_draws_have_the_stated_law(law):
    # 34 comparisons at 5.5 standard errors: below 2e-6.
    rng, n = np.random.default_rng(1), 200_000
    for bit in (0, 1):
        scores = law.draw(np.full(n, bit, np.int8), rng)
        below = law.below(EDGES)[bit]
        seen = (scores[:, None] < EDGES).mean(axis=0)
        assert (np.abs(seen - below) <= 5.5 * np.sqrt(below * (1 - below) / n) + 1e-12).all()


@pytest.mark.parametrize("event", [Gaussian(1.0), Laplace(1.0), Subsampled(Gaussian(0.5), "poisson", 0.3)], ids=str)
def test_a_profile_becomes_two_laws_that_have_it(event):
    from dptoolkit.accounting import pld

    curves = pld.divergences(event)
    made = fault_models.from_profile(*curves, 2.0)
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        for curve, (one, two) in zip(curves, ((made.first, made.second), (made.second, made.first)), strict=True):
            assert np.maximum(one - math.exp(epsilon) * two, 0).sum() == pytest.approx(curve(epsilon), abs=2e-6)
        assert max(c(epsilon) for c in curves) == pytest.approx(account(event, method="pld").delta(epsilon), rel=1e-9)
