"""Plans: made without data, from the solver's own arguments, fixed, printable, and the same as the one that is run."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import solvers
from dptoolkit.errors import InvalidValue

# What a fit needs and a plan must not have, and the other way round.
DATA_ONLY, PLAN_ONLY = {"X", "y", "rng", "ledger", "diagnostics", "trace", "trace_every"}, {"n", "d"}
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
CALLS = {
    "dp_ight": BUDGET | {"loss": "logistic", "sparsity": 2, "steps": 3, "row_norm": 1.0},
    "dp_frank_wolfe": BUDGET | {"loss": "logistic", "l1_radius": 2.0, "steps": 3, "feature_bound": 1.0},
    "dp_multinomial_frank_wolfe": BUDGET | {"classes": 2, "l1_radius": 2.0, "steps": 3, "feature_bound": 1.0},
    "peeling_iht": BUDGET | {
        "sparsity": 2, "steps": 3, "step_size": 0.5, "radius": 1.0, "feature_bound": 1.0, "label_bound": 1.0,
    },
    "sparsifier": {
        "epsilon": 1.5, "count_share": 1 / 3, "delta": 1e-6, "l1_radius": 2.0, "steps": 3, "feature_bound": 1.0,
        "alpha": 1, "beta": 4, "count_steps": 5,
    },
}  # fmt: skip
VARIANTS = [
    {}, {"adjacency": "zero-out"}, {"calibration": "published"}, {"calibration": "published", "adjacency": "zero-out"},
]  # fmt: skip


def data(n=20, d=6):
    return np.random.default_rng(0).standard_normal((n, d)), np.arange(n) % 2


@pytest.mark.parametrize("name", solvers.PRIVATE)
def test_a_plan_takes_the_arguments_of_its_solver(name):
    """The same names, with the same defaults: a plan made without data cannot drift away from the fit."""
    pair = getattr(solvers, name), getattr(solvers._module(name), f"plan_{name}")
    fit, plan = (inspect.signature(f).parameters for f in pair)
    assert set(fit) - DATA_ONLY == set(plan) - PLAN_ONLY
    for argument in set(plan) - PLAN_ONLY:
        assert fit[argument].default == plan[argument].default, argument
        assert fit[argument].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD), argument
    if inspect.Parameter.VAR_KEYWORD not in {p.kind for p in fit.values()}:
        assert fit["rng"].default is None and fit["ledger"].default is None


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_the_plan_is_the_plan_of_the_result(name, variant, layout):
    X, y = data()
    result = getattr(solvers, name)(layout(X), y, **CALLS[name] | variant)
    made = solvers.plan(name, n=20, d=6, **CALLS[name] | variant)
    assert made == result.plan
    assert str(made) == str(result.plan)
    assert result.guarantee == made.guarantee
    assert result.guarantee.epsilon(1e-6) == made.guarantee.epsilon(1e-6)


@pytest.mark.parametrize("name", CALLS)
def test_plans_differ_when_arguments_do(name):
    made = solvers.plan(name, n=20, d=6, **CALLS[name])
    assert made != solvers.plan(name, n=21, d=6, **CALLS[name])
    assert made != solvers.plan(name, n=20, d=6, **CALLS[name] | {"steps": 4})


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_plans_cannot_be_changed(name, variant):
    made = solvers.plan(name, n=20, d=6, **CALLS[name] | variant)
    for field in dataclasses.fields(made):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, None)
    with pytest.raises(TypeError):
        made.settings.steps = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.releases[0].scale = 0.0
    assert isinstance(made.releases, tuple)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_plans_travel(name, variant):
    made = solvers.plan(name, n=20, d=6, **CALLS[name] | variant)
    for copied in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert copied == made and str(copied) == str(made)
        with pytest.raises(TypeError):
            copied.settings.steps = 1


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_plans_print(name, variant):
    made = solvers.plan(name, n=20, d=6, **CALLS[name] | variant)
    text = str(made)
    for piece in (name, "n=20", "d=6", str(made.adjacency), made.calibration, "sensitivity", "scale"):
        assert piece in text
    for release in made.releases:
        assert release.query in text
    if made.published is not None:
        assert made.published.source in text


def test_no_data_are_needed_for_a_large_plan():
    made = solvers.plan("dp_frank_wolfe", n=10**9, d=10**9, **CALLS["dp_frank_wolfe"] | {"delta": 1e-12})
    assert made.n == made.d == 10**9


def test_unknown_solver_and_unknown_arguments():
    with pytest.raises(InvalidValue, match="name='lasso': must be one of 'dp_ight'"):
        solvers.plan("lasso", n=1, d=1)
    with pytest.raises(TypeError, match="lambda_"):
        solvers.plan("dp_ight", n=20, d=6, lambda_=1, **CALLS["dp_ight"])
    with pytest.raises(TypeError):
        solvers.plan("dp_ight", n=20, d=6)


def test_results_cannot_be_changed():
    X, y = data()
    result = solvers.dp_ight(X, y, rng=0, **CALLS["dp_ight"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.guarantee = None
