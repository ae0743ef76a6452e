"""Plans: made without data, from the solver's own arguments, fixed, printable, and the same as the one that is run."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import json
import math
import pickle
import re
from functools import partial

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import solvers
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import InvalidValue
from dptoolkit.solvers.frame.fit import private_solver
from dptoolkit.solvers.frame.settings import Resolved, setting

# What every solver takes besides the fields of its settings.
DATA, FRAME = ["X", "y"], ["label_values", "n_features", "rng", "randomness", "ledger", "trace", "diagnostics"]
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
BATCHES = BUDGET | {"loss": "hinge", "sparsity": 2, "row_norm": 1.0, "batch_size": 5}
EVERY = CALLS | {
    "dp_sgd_ht": BATCHES | {"steps": 3},
    "dp_scsg_ht": BATCHES | {"epochs": 2, "snapshot_size": 10},
    "dp_svrg_ht": BATCHES | {"epochs": 2, "option": "II"},
    "dp_dual_averaging": BUDGET | {"loss": "logistic", "row_norm": 1.0, "steps": 3},
    "dp_pipeline": BUDGET,
    "dp_admm": BUDGET | {"loss": "hinge", "row_norm": 1.0, "rho": 1.0, "weight": 0.125, "steps": 3},
}
VARIANTS = [
    {}, {"adjacency": "zero-out"}, {"calibration": "published"}, {"calibration": "published", "adjacency": "zero-out"},
]  # fmt: skip


def data(n=20, d=6):
    return np.random.default_rng(0).standard_normal((n, d)), np.arange(n) % 2


def test_every_private_solver_is_tried():
    # Those that solve for a minimum have no iterates to trace, and test files of their own.
    assert set(EVERY) | {"knowledge_transfer", "objective_perturbation", "two_stage"} == set(solvers.PRIVATE)


# --- the public function is made from the settings ---------------------------------------------------------


@pytest.mark.parametrize("name", solvers.PRIVATE)
def test_the_signature_is_the_fields_of_the_settings(name):
    """Data first, then every field as a keyword with its own default, required ones first, then the frame."""
    function, kind = getattr(solvers, name), solvers.settings_class(name)
    parameters = list(inspect.signature(function).parameters.values())
    fields = {f.name: f for f in dataclasses.fields(kind)}
    names = [p.name for p in parameters]
    assert names[:2] == DATA and names[-len(FRAME) :] == FRAME
    assert sorted(names[2 : -len(FRAME)]) == sorted(fields)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters[2:])
    for p in parameters[2 : -len(FRAME)]:
        wanted = fields[p.name].default
        assert p.default is (inspect.Parameter.empty if wanted is dataclasses.MISSING else wanted), p.name
        assert p.annotation == fields[p.name].type
    required = [p.default is inspect.Parameter.empty for p in parameters]
    assert required == sorted(required, reverse=True), "required arguments come first"
    assert {p.name: p.default for p in parameters[-len(FRAME) :]} == {
        "label_values": None, "n_features": None, "rng": None, "randomness": None, "ledger": None, "trace": False,
        "diagnostics": False,
    }  # fmt: skip
    assert (function.__name__, function.__module__) == (name, kind.__module__)


@pytest.mark.parametrize("name", solvers.PRIVATE)
def test_the_docstring_has_every_parameter_and_says_what_is_private(name):
    """Numpydoc: one parameter a line, "name : type", with its text indented below; then Returns and Privacy."""
    function = getattr(solvers, name)
    text = inspect.getdoc(function)
    sections = re.split(r"^(\w+)\n-+$", text, flags=re.MULTILINE)
    titles, bodies = sections[1::2], sections[2::2]
    assert titles == ["Parameters", "Returns", "Privacy"]
    assert len(sections[0].strip().splitlines()[0]) > 20, "a summary comes first"
    lines = bodies[0].strip().splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [head.split(" : ")[0] for head in heads] == list(inspect.signature(function).parameters)
    assert all(re.fullmatch(r"\w+ : \S.*", head) for head in heads)
    for above, line in itertools.pairwise(lines):
        assert not (above in heads and line in heads), f"{above!r} has no text"
    assert all(line.startswith("    ") and line.strip() for line in lines if line not in heads)
    assert max(len(line) for line in text.splitlines()) <= 120
    privacy = bodies[2].lower()
    assert "public: n, d, " in " ".join(privacy.split()) and "event: " in privacy


def test_the_docstring_follows_the_fields():
    """A field that is added to a solver's settings is in its signature and docstring, without being written again."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Bolder(solvers.settings_class("dp_ight")):
        """One more.

        Privacy
        -------
        As before.
        """

        boldness: float = setting("How bold the steps are.", default=0.5)

    function = private_solver(Bolder)
    assert inspect.signature(function).parameters["boldness"].default == 0.5
    assert "boldness : float, default 0.5\n    How bold the steps are." in function.__doc__


@pytest.mark.parametrize("name", EVERY)
def test_a_plan_holds_resolved_settings(name):
    """Its fields are those that the caller may choose, in their order; none is None that is declared without None."""
    made = solvers.plan(name, n=20, d=6, **EVERY[name])
    asked, fields = dataclasses.fields(solvers.settings_class(name)), dataclasses.fields(made.settings)
    assert isinstance(made.settings, Resolved) and [f.name for f in fields] == [f.name for f in asked]
    optional = {f.name for f in fields if "None" in str(f.type) or f.type == "Any"}
    assert all(getattr(made.settings, f.name) is not None for f in fields if f.name not in optional)
    assert "adjacency" not in optional and isinstance(made.settings.adjacency, Adjacency)
    again = made.settings.plan(20, 6)
    assert again == made and type(again.settings) is type(made.settings)


@pytest.mark.parametrize("name", EVERY)
def test_a_plan_is_written_and_made_again(name):
    """to_dict is JSON, and ``solvers.plan`` makes the same plan of it, also where a number is infinite."""
    for more in ({}, {"adjacency": "replace-one"}, {"epsilon": math.inf}):
        if more.get("epsilon") == math.inf and name == "sparsifier":
            more = more | {"count": "fixed", "number": 2}
        made = solvers.plan(name, n=20, d=6, **EVERY[name] | more)
        read = json.loads(made.to_json(), parse_constant=rejected_constant)
        again = solvers.plan(read["solver"], n=read["n"], d=read["d"], **read["settings"])
        assert again == made and again.fingerprint == made.fingerprint and again.to_dict() == made.to_dict()
        assert read == json.loads(json.dumps(made.to_dict()))


def rejected_constant(text):
    raise AssertionError(f"{text} is not JSON")


@pytest.mark.parametrize("name", EVERY)
def test_numbers_of_numpy_make_the_same_plan(name):
    """In single precision a sensitivity would be rounded, also downwards; and NumPy's integers are no JSON."""
    kinds = {int: np.int64, float: np.float32, bool: np.bool_}
    exact = EVERY[name] | {"epsilon": 1.5, "delta": 2.0**-20}
    exact |= {"count_share": 0.25} if name == "sparsifier" else {}
    made = solvers.plan(name, n=30, d=7, **exact)
    same = solvers.plan(
        name, n=np.int64(30), d=np.int64(7), **{key: kinds.get(type(v), type(v))(v) for key, v in exact.items()}
    )
    assert same == made and same.fingerprint == made.fingerprint and same.to_json() == made.to_json()
    assert [(r.sensitivity, r.scale) for r in same.releases] == [(r.sensitivity, r.scale) for r in made.releases]


@pytest.mark.parametrize("name", EVERY)
def test_other_noise_is_another_event_and_another_guarantee(name):
    made = solvers.plan(name, n=20, d=6, **EVERY[name])
    epsilon = made.guarantee.epsilon(1e-6)
    half = made.with_noise(factor=0.5)
    assert [r.scale for r in half.releases] == [0.5 * r.scale for r in made.releases]
    assert half.guarantee.epsilon(1e-6) > 1.5 * epsilon and half.fingerprint != made.fingerprint
    assert made.with_noise(factor=2.0).guarantee.epsilon(1e-6) < epsilon
    same = made.with_noise(*(r.scale for r in made.releases))
    assert same == made and same.guarantee == made.guarantee
    silent = made.with_noise(*(0.0 for _ in made.releases))
    assert silent.guarantee.epsilon(1e-6) == math.inf
    for release, changed in zip(made.releases, half.releases, strict=True):
        assert changed.event != release.event and changed.mechanism != release.mechanism
    with pytest.raises(InvalidValue, match=f"{len(made.releases)} numbers, one for each release of {name}"):
        made.with_noise(*([1.0] * (len(made.releases) + 1)))
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidValue):
            made.with_noise(factor=bad)


@pytest.mark.parametrize("name", CALLS)
def test_a_papers_claim_is_for_its_own_noise(name):
    made = solvers.plan(name, n=20, d=6, **CALLS[name] | {"calibration": "published"})
    assert made.guarantee.claimed is not None
    assert made.with_noise(factor=0.5).guarantee.claimed is None


@pytest.mark.parametrize("name", EVERY)
def test_settings_cannot_be_changed(name):
    settings = solvers.plan(name, n=20, d=6, **EVERY[name]).settings
    for field in dataclasses.fields(settings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, field.name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.something = 1


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_the_plan_is_the_plan_of_the_result(name, variant, layout):
    X, y = data()
    result = getattr(solvers, name)(layout(X), y, randomness="fast", **CALLS[name] | variant)
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
    with pytest.raises(dataclasses.FrozenInstanceError):
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
        with pytest.raises(dataclasses.FrozenInstanceError):
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
    near = r"dp_ight\(\) got an unexpected argument 'row_nrom'. Did you mean 'row_norm'\?"
    far = r"dp_ight\(\) got an unexpected argument 'lambda_'. It takes .*sparsity.*row_norm"
    plan, fit = partial(solvers.plan, "dp_ight", n=20, d=6), partial(solvers.dp_ight, *data())
    for call in (plan, fit):
        with pytest.raises(TypeError, match=near):
            call(row_nrom=1.0, **CALLS["dp_ight"])
        with pytest.raises(TypeError, match=far):
            call(lambda_=1, **CALLS["dp_ight"])
        with pytest.raises(TypeError, match=r"dp_ight\(\) also needs epsilon, loss, sparsity\."):
            call()


def test_the_frames_arguments_are_no_part_of_a_plan():
    """But for the kind of noise, which decides what rounding adds to the sensitivity."""
    for name in set(FRAME) - {"randomness"}:
        with pytest.raises(TypeError, match=f"unexpected argument '{name}'"):
            solvers.plan("dp_ight", n=20, d=6, **CALLS["dp_ight"], **{name: None})


def test_results_cannot_be_changed():
    X, y = data()
    result = solvers.dp_ight(X, y, rng=0, **CALLS["dp_ight"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.guarantee = None
