"""Audits of one client: its message and its trace stay within the guarantee, and faults are found.

The false-alarm probability of every verdict is 1e-6 over the seed, which is fixed.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from dptoolkit import audit, federated
from dptoolkit.audit import layout
from dptoolkit.audit.broken.federated import federated_faults
from dptoolkit.audit.theory import kept
from dptoolkit.errors import InvalidValue

ALPHA = 1e-6
SHARED = {"sparsity": 2, "rounds": 5, "local_steps": 4, "step_size": 0.02, "grad_norm": 1.0, "epsilon": 12.0,
          "delta": 1e-5}  # fmt: skip
POISSON, FIXED = {"rate": 0.2}, {"rate": 0.2, "sampling": "without-replacement"}
CASES = {
    "Poisson": ("dp_fed_sgd_ht", {"loss": "squared", **POISSON}),
    "fixed batches": ("dp_fed_sgd_ht", {"loss": "squared", **FIXED}),
    "full gradients": ("dp_fed_gd_ht", {"loss": "squared"}),
    "logistic, Poisson": ("dp_fed_sgd_ht", {"loss": "logistic", **POISSON}),
    "logistic, fixed batches": ("dp_fed_sgd_ht", {"loss": "logistic", **FIXED}),
    "logistic, full gradients": ("dp_fed_gd_ht", {"loss": "logistic"}),
    "hinge, Poisson": ("dp_fed_sgd_ht", {"loss": "hinge", **POISSON}),
    "huber, fixed batches": ("dp_fed_sgd_ht", {"loss": "huber", **FIXED}),
    "softmax, Poisson": ("dp_fed_sgd_ht", {"loss": "softmax", "classes": 3, **POISSON}),
    "softmax, fixed batches": ("dp_fed_sgd_ht", {"loss": "softmax", "classes": 3, **FIXED}),
    "softmax, full gradients": ("dp_fed_gd_ht", {"loss": "softmax", "classes": 3}),
}
QUICK = ["Poisson", "fixed batches", "full gradients"]


def some(names, quick):
    """All names, of which only the quick ones are run in the ordinary suite."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@functools.lru_cache
def attacked(case):
    name, more = CASES[case]
    plan = federated.plan(name, sizes=[100, 300], d=4, **SHARED, **more).attacked()
    return plan, getattr(audit.pairs, name)(plan)


@pytest.mark.parametrize("case", CASES)
def test_the_pair_shows_nearly_all_of_the_guarantee(case):
    """In the trace of local steps, by accounting for what the two datasets differ in along a few runs."""
    _, pair = attacked(case)
    assert 0.97 <= pair.reach["iterates"] <= 1.001


@pytest.mark.parametrize("adversary", ["iterates", "final"])
@pytest.mark.parametrize("case", some(CASES, QUICK))
def test_message_and_trace_stay_within_the_guarantee(case, adversary):
    plan, pair = attacked(case)
    found = audit.evidence(plan, pair, trials=2000, alpha=ALPHA, adversary=adversary)
    assert not found.refuted


@pytest.mark.parametrize("case", some(CASES, QUICK))
def test_half_the_noise_is_found_in_the_trace(case):
    plan, pair = attacked(case)
    weak = plan.with_noise(factor=0.5)
    found = audit.evidence(weak, pair, plan.guarantee, trials=4000, alpha=ALPHA, adversary="iterates")
    assert found.refuted


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_trace_shows_much_of_the_guarantee(case):
    plan, pair = attacked(case)
    report = audit.audit(plan, pair, trials=20_000, adversary="iterates")
    assert not report.violated and report.epsilon_lower > 0.6 * report.epsilon_claimed


def test_the_hostile_servers_weight_is_kept_in_every_step():
    for case in ("Poisson", "fixed batches", "softmax, Poisson"):
        plan, pair = attacked(case)
        path = kept.few_runs(plan, pair.first, pair.second, 64).reshape(64, 4, -1)
        assert (path[:, :, 0] != 0).all() and layout.start(plan)[0] > 0


def test_a_federation_stands_for_one_message_of_its_worst_client():
    plan = federated.plan("dp_fed_gd_ht", sizes=[100, 50], d=4, loss="squared", **SHARED)
    weak = federated.FederatedPlan((plan.clients[0], plan.clients[1].with_noise(factor=0.5)), plan.weights, 2)
    one = weak.attacked()
    assert one.n == 50 and one.releases[0].count == 4 and one.noise == weak.noise[1]
    assert weak.attacked(0, rounds=5).releases[0].count == 20
    assert weak.attacked(0, rounds=5).event == plan.clients[0].event
    report = audit.audit(weak, audit.pairs.dp_fed_gd_ht(weak), trials=600)
    assert report.epsilon_claimed == pytest.approx(one.guarantee.epsilon(1e-5)) and not report.violated
    for wrong in ({"client": 2}, {"rounds": 6}, {"rounds": 0}):
        with pytest.raises(InvalidValue):
            weak.attacked(**wrong)
    with pytest.raises(InvalidValue, match="plan.solver"):
        audit.pairs.dp_fed_sgd_ht(plan)


@functools.lru_cache
def faults():
    return {fault.name.partition(": ")[2]: fault for fault in federated_faults()}


LISTED = ["half the noise", "no 2 of replace-one", "one noise for all steps", "one batch for all steps",
          "noise after the threshold", "one key for two clients"]  # fmt: skip
# The others take longer; half the noise is also found above.
FAST = ["one key for two clients", "noise after the threshold"]


def test_every_fault_of_the_specification_is_there():
    assert list(faults()) == LISTED


@pytest.mark.parametrize("name", some(LISTED, FAST))
def test_a_fault_is_found(name):
    fault = faults()[name]
    assert fault.examine(fault.mechanism, alpha=ALPHA).caught


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTED)
def test_its_correct_twin_passes(name):
    fault = faults()[name]
    assert not fault.examine(fault.correct, alpha=ALPHA).caught


def test_the_reference_steps_are_those_of_the_client():
    """The twin of the faults makes the client's own steps: without noise and with all records, the same numbers."""
    fault = faults()["one noise for all steps"]
    plan = fault.correct.plan.with_noise(factor=1e-12)
    X, y = fault.pair.second
    run = plan.settings.bind(plan, plan.settings.validated_rows(X), y)
    ours = run(np.random.default_rng(0), trace=True).iterates.ravel()
    theirs = type(fault.correct)(plan)((X, y), np.random.default_rng(0))
    np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-9)
