"""dp_sgd_ht from a public model: it starts there, its plan knows it, and audits start there too."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dptoolkit import solvers
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.errors import InvalidValue

CALL = {"loss": "squared", "sparsity": 2, "steps": 3, "batch_size": 4, "step_size": 0.5, "grad_norm": 1.0,
        "epsilon": 2.0, "delta": 1e-4}  # fmt: skip
START = [0.0, 3.0, 0.0, -1.0, 0.0]


def data(n=12, d=5):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, d)), rng.standard_normal(n)


@pytest.mark.parametrize("trace", [False, True])
def test_a_fit_starts_at_its_initial_model(trace):
    arguments = CALL | {"step_size": 1e-100, "initial": START}
    result = solvers.dp_sgd_ht(*data(), **arguments, rng=0, trace=trace)
    np.testing.assert_allclose(result.coef, START, atol=1e-90)
    joined = solvers.dp_sgd_ht(*data(), **arguments | {"initial": [*START, 7.0], "fit_intercept": True}, rng=0)
    np.testing.assert_allclose([*joined.coef, joined.intercept], [*START, 7.0], atol=1e-90)


def test_one_step_from_it_is_the_gradient_there():
    X, y = data()
    result = solvers.dp_sgd_ht(
        X, y, **CALL | {"steps": 1, "batch_size": 12, "epsilon": np.inf, "sparsity": 5, "initial": START}, rng=0
    )
    gradients = (X @ START - y)[:, None] * X
    gradients *= np.minimum(1, 1 / np.linalg.norm(gradients, axis=1))[:, None]
    np.testing.assert_allclose(result.coef, START - 0.5 * gradients.mean(axis=0), rtol=1e-10)


def test_the_plan_has_it_and_other_models_draw_other_noise():
    plain, begun = (solvers.plan("dp_sgd_ht", n=12, d=5, **CALL | more) for more in ({}, {"initial": START}))
    assert begun.event == plain.event and begun.noise == plain.noise, "a public model costs nothing"
    assert begun.fingerprint != plain.fingerprint
    assert "initial" not in plain.settings.to_dict(), "plans without one are as they always were"
    record = json.loads(begun.to_json())
    again = solvers.plan("dp_sgd_ht", n=record["n"], d=record["d"], **record["settings"])
    assert again == begun and again.fingerprint == begun.fingerprint
    assert "initial=a model with 2 weights" in str(begun)


@pytest.mark.parametrize(("initial", "message"), [
    ([1.0, 2.0], "initial='list': must be None or 5 finite weights"), ([1.0] * 6, "finite weights"),
    ([1, 1, 1, 0, 0], "at most sparsity=2"), ([np.nan, 0, 0, 0, 0], "finite weights"), ("zero", "initial='str'"),
    ([[0, 1.0], [7, 1.0]], "finite weights"), ([[-1, 1.0]], "finite weights"), ([[0.5, 1.0]], "finite weights"),
])  # fmt: skip
def test_other_models_are_refused(initial, message):
    with pytest.raises(InvalidValue, match=message):
        solvers.plan("dp_sgd_ht", n=12, d=5, **CALL | {"initial": initial})


def test_trials_of_an_audit_start_there_as_single_fits_do():
    plan = solvers.plan("dp_sgd_ht", n=12, d=5, **CALL | {"initial": START, "sampling": "poisson"})
    X, y = data()
    pair = Pair(*(Counted(X, y * sign, np.ones(12, dtype=np.int64)) for sign in (1, -1)))
    bits, source = np.array([0, 1, 1, 0], dtype=np.int8), Streams(0, "test")
    for adversary in ("final", "iterates"):
        target = PlanTarget(plan, pair, adversary)
        together = target.run(bits, 5, source)
        one, two = (target._prepared(side) for side in pair)
        np.testing.assert_array_equal(together, target._one_by_one(one, two, source.generator(5), 5, bits))
