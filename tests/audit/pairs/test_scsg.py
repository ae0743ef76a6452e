"""Pairs whose inner steps show the record: tilted rows and turning gradients of variance-reduced solvers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dptoolkit import audit, solvers
from dptoolkit.accounting import Composed, account
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import pairs
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.pair import check_neighbours
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.audit.theory.batched import epoch_signals, repeated
from dptoolkit.audit.theory.kept import few_runs
from dptoolkit.errors import PrivacyViolation
from tests.statistics import ALPHA

BUDGET = {"epsilon": 4.0, "delta": 1e-5}
PLANS = {
    "tilted": ("dp_svrg_ht", {"n": 200, "d": 3, "sparsity": 2, "epochs": 1, "batch_size": 40, "option": "II",
                              "loss": "logistic", "row_norm": 1.0, "step_size": 0.5}),
    "tilted, intercept": ("dp_svrg_ht", {"n": 200, "d": 3, "sparsity": 2, "epochs": 1, "batch_size": 40, "option": "II",
                                         "loss": "logistic", "row_norm": 2.0, "step_size": 0.5, "fit_intercept": True}),
    "turning": ("dp_scsg_ht", {"n": 600, "d": 4, "sparsity": 2, "epochs": 1, "snapshot_size": 600, "batch_size": 120,
                               "option": "II", "loss": "squared", "grad_norm": 1.5, "step_size": 0.5,
                               "sampling": "poisson", "adjacency": "zero-out"}),
}  # fmt: skip


def make(name):
    solver, arguments = PLANS[name]
    plan = solvers.plan(solver, **arguments | BUDGET)
    return plan, getattr(pairs, solver)(plan)


def correct_guesses(plan, pair, trials):
    source = Streams(3, "test")
    bits = source.bits(0, trials)
    score = pair.scores["iterates"](PlanTarget(plan, pair, "iterates").run(bits, 0, source))
    assert np.isfinite(score).all()
    return int(((score > 0) == (bits == 1)).sum())


@pytest.mark.parametrize("name", PLANS)
def test_the_pair_shows_what_its_reach_says_and_no_more_than_the_guarantee(name):
    """All three pairs are one-sided: a batch without the record is one of the second dataset.

    Guesses by the likelihood ratio are right with probability (1 + TV)/2. The TV of the pair's own event, whose epsilon
    gives the reach, is within 25 % of what is measured; the guarantee's is never exceeded (1e-6).
    """
    plan, pair = make(name)
    check_neighbours(pair)
    for data in pair:
        assert (data.n, data.X.shape[1]) == (plan.n, plan.d)
        if plan.settings.row_norm is not None:
            assert np.linalg.norm(data.X, axis=1).max() <= plan.settings.row_norm * (1 + 1e-12)
    assert pair.description.startswith(name.split(",")[0])
    score = pair.scores["iterates"]
    snapshots, inner = epoch_signals(plan, score, few_runs(plan, pair.first, pair.second))
    size, batch = plan.settings.shape(plan.n).snapshot, plan.settings.batch_size
    shown = [
        repeated(float(np.mean(snapshots)), size / plan.n, Adjacency.ZERO_OUT, len(snapshots)),
        repeated(inner.mean, batch / plan.n, Adjacency.ZERO_OUT, round(inner.number)),
    ]
    assert account(Composed(*shown)).epsilon(1e-5) / plan.guarantee.epsilon(1e-5) == pytest.approx(
        pair.reach["iterates"], rel=0.05
    )
    variation, trials = account(Composed(*shown)).delta(0.0), 3000
    correct = correct_guesses(plan, pair, trials)
    assert stats.binomtest(correct, trials, (1 + plan.guarantee.delta(0.0)) / 2, "greater").pvalue >= ALPHA
    assert abs(2 * correct / trials - 1 - variation) <= 0.25 * variation + 5 / math.sqrt(trials)
    # The snapshot alone has much less epsilon.
    assert account(shown[0]).epsilon(1e-5) < 0.8 * account(Composed(*shown)).epsilon(1e-5)


@pytest.mark.parametrize("name", PLANS)
def test_a_third_of_the_noise_is_found(name):
    """By a sequential test with a false-alarm rate of 1e-6."""
    plan, pair = make(name)
    less = plan.with_noise(factor=1 / 3)
    with pytest.raises(PrivacyViolation):
        audit.assert_private(
            less, pair, as_claim(plan.guarantee), trials=3000, power=None, alpha=ALPHA, adversary="iterates"
        )
