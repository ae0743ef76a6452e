"""Data decide nothing about a fit without noise: neither the width, nor what a label means, nor a message."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import datasets, losses, solvers
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms import GaussianNoise, GeometricNoise, LaplaceNoise, NoisyMaximum
from tests.solvers.frame.test_plans import CALLS, data

PLAIN = {
    "ight": {"loss": "logistic", "sparsity": 2, "steps": 3, "step_size": 0.1},
    "frank_wolfe": {"loss": "logistic", "l1_radius": 2.0, "steps": 3},
    "sgd_ht": {"loss": "logistic", "sparsity": 2, "steps": 3, "step_size": 0.1, "batch_size": 4},
    "scsg_ht": {"loss": "logistic", "sparsity": 2, "epochs": 2, "step_size": 0.1, "batch_size": 4, "snapshot_size": 8},
}
STOCHASTIC = {
    "dp_sgd_ht": {
        "loss": "logistic", "sparsity": 2, "steps": 3, "batch_size": 4, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-3,
    },
    "dp_scsg_ht": {
        "loss": "logistic", "sparsity": 2, "epochs": 2, "batch_size": 4, "snapshot_size": 8, "row_norm": 1.0,
        "epsilon": 1.0, "delta": 1e-3,
    },
    "dp_svrg_ht": {
        "loss": "logistic", "sparsity": 2, "epochs": 2, "batch_size": 4, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-3,
    },
}  # fmt: skip
SUMMED = {
    "dp_dual_averaging": {"loss": "logistic", "steps": 3, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-3},
    "dp_pipeline": {"epsilon": 1.0, "delta": 1e-3},
    "dp_admm": {"loss": "logistic", "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-3},
}
MINIMISED = {
    "objective_perturbation": {"loss": "logistic", "l2": 0.1, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-3},
    "two_stage": {
        "loss": "logistic", "l2": 0.1, "row_norm": 1.0, "sparsity": 2, "blocks": 4, "epsilon": 1.0, "delta": 1e-3,
    },
}  # fmt: skip
PRIVATE = CALLS | STOCHASTIC | SUMMED | MINIMISED
BINARY = [name for name in losses.SCALAR if losses.get(name).task == losses.BINARY]
EVERY = PRIVATE | PLAIN


def fit(name, X, y, **more):
    seed = {} if name in ("ight", "frank_wolfe") else {"rng": 0}
    return getattr(solvers, name)(X, y, **(seed | EVERY[name] | more))


def is_binary(name):
    return EVERY[name].get("loss", "logistic" if name in ("sparsifier", "dp_pipeline") else "squared") in BINARY


# --- width --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("name", PRIVATE)
def test_one_record_does_not_decide_the_width(name, layout):
    """Read from a sparse file, the neighbour without the last column is narrower: coef told them apart."""
    X, y = data()
    X[1:, -1] = 0.0
    neighbour = X.copy()
    neighbour[0, -1] = 0.0
    narrow = neighbour[:, :-1]
    one, two = fit(name, layout(X), y, n_features=8), fit(name, layout(narrow), y, n_features=8)
    assert one.coef.shape == two.coef.shape == (*one.coef.shape[:-1], 8)
    assert one.plan == two.plan and one.plan.d == 8
    assert np.array_equal(two.coef, fit(name, layout(neighbour), y, n_features=8).coef)
    with pytest.raises(InvalidValue, match="at most n_features=3 wide"):
        fit(name, layout(X), y, n_features=3)


# --- labels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", BINARY)
@pytest.mark.parametrize("name", [name for name in EVERY if is_binary(name)])
def test_a_label_convention(name, loss):
    X, y = data()
    signs = 2.0 * y - 1.0
    if name in MINIMISED and loss == "hinge":
        pytest.skip("not among the losses of minimise.py")
    # The pipeline has one loss, and so none to choose.
    chosen = {} if name == "dp_pipeline" else {"loss": loss}
    expected = fit(name, X, y, **chosen).coef
    assert np.array_equal(fit(name, X, signs, **chosen, label_values=(-1, 1)).coef, expected)
    assert np.array_equal(fit(name, X, y, **chosen, label_values=(0, 1)).coef, expected)
    # -1 is taken for a label nowhere but where the caller says so: neither all of them, nor one.
    one = y.copy()
    one[0] = -1.0
    for labels in (signs, one):
        with pytest.raises(InvalidValue, match="y='an array with other labels': must be 0 or 1"):
            fit(name, X, labels, **chosen)


@pytest.mark.parametrize("name", PRIVATE)
def test_every_solver_has_the_public_arguments(name):
    """All take them; labels of other tasks have no convention, so that one given is a mistake and is told."""
    assert {"n_features", "label_values"} <= set(inspect.signature(getattr(solvers, name)).parameters)
    X, y = data()
    if not is_binary(name):
        with pytest.raises(InvalidValue, match=r"^label_values=.*must be None"):
            fit(name, X, y, label_values=(0, 1))


# --- flags --------------------------------------------------------------------------------------------


FLAGS = [
    (name, option)
    for name in EVERY
    for option in ("fit_intercept", "adaptive", "diagnostics", "trace")
    if option in inspect.signature(getattr(solvers, name)).parameters
]


@pytest.mark.parametrize(("name", "option"), FLAGS)
def test_a_flag_is_true_or_false(name, option):
    """The text "no" counted as yes."""
    X, y = data()
    # A trace may also be a number of steps.
    values = ("no", "False", 0, np.array([True])) if option == "trace" else ("no", "False", 1, 0, np.array([True]))
    told = "trace=.*Or True for every iterate" if option == "trace" else f"{option}=.*must be True or False"
    for value in values:
        with pytest.raises(InvalidValue, match=told):
            fit(name, X, y, **{option: value})


# --- messages -----------------------------------------------------------------------------------------

# A value that occurs in no bound, size or name.
SECRET = 73519.25
MARKS = ("73519", "7.3519")


def messages():
    """Ways to break one record or one count; each with the secret in it."""
    X, y = data()
    spoiled = X.copy()
    spoiled[0, 0] = SECRET
    yield "labels", X, np.where(np.arange(len(y)) == 3, SECRET, y)
    yield "text label", X, [str(SECRET), *y[1:].tolist()]
    yield "text", [[str(SECRET), *row[1:]] for row in X.tolist()], y
    yield "ragged", [X.tolist()[0] + [SECRET], *X.tolist()[1:]], y
    yield "ragged labels", X, [[SECRET, 1.0], *y[1:].tolist()]
    yield "NaN beside it", np.where(np.arange(X.size).reshape(X.shape) == 1, np.nan, spoiled), y
    yield "infinite label", X, np.where(np.arange(len(y)) == 3, SECRET * 1e308, y)
    yield "complex", spoiled + 1j, y
    yield "sparse complex", sparse.csr_matrix(spoiled + 1j), y
    yield "dates", X, np.array(["2026-11-16"] * len(y), dtype="datetime64[D]")
    yield "object", np.where(spoiled == SECRET, {"secret": SECRET}, spoiled), y
    broken = sparse.csr_matrix(spoiled)
    broken.indices[0] = 73519
    yield "sparse indices", broken, y


@pytest.mark.parametrize(("kind", "X", "y"), list(messages()), ids=[case[0] for case in messages()])
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("ignore")
def test_no_message_shows_a_record(name, kind, X, y):
    try:
        fit(name, X, y)
    except InvalidValue as problem:
        # Also not in the error that was being handled: a traceback prints it.
        assert problem.__cause__ is None and (problem.__context__ is None or problem.__suppress_context__)
        assert not any(mark in str(problem) for mark in MARKS), str(problem)
    else:
        assert kind == "labels" and not is_binary(name) and "classes" not in EVERY[name]


@pytest.mark.parametrize("name", PRIVATE)
def test_counts_are_not_shown(name):
    X, y = data()
    plan = solvers.plan(name, n=20, d=6, **EVERY[name])
    for counts in ([73519, -1] * 10, [73519.5] * 20, [73519]):
        with pytest.raises(InvalidValue) as problem:
            solvers.bind(plan, X, y, counts)
        assert "73519" not in str(problem.value)


@pytest.mark.parametrize(
    "release",
    [lambda: GeometricNoise(1.0, 1).release(SECRET), lambda: GeometricNoise(1.0, 1).release(73519 << 60),
     lambda: NoisyMaximum(1.0, 1.0).select(np.array([SECRET, np.nan])),
     lambda: NoisyMaximum(1.0, 1.0).select(np.array([[SECRET]]))],
)  # fmt: skip
def test_no_mechanism_shows_its_query(release):
    with pytest.raises(InvalidValue) as problem:
        release()
    assert not any(mark in str(problem.value) for mark in (*MARKS, str(73519 << 60)))


@pytest.mark.parametrize(
    "release", [GaussianNoise(1.0, 1.0).release, LaplaceNoise(1.0, 1.0).release, NoisyMaximum(1.0, 1.0).select]
)
def test_a_query_of_text_is_not_shown(release):
    with pytest.raises(InvalidValue) as problem:
        release(["73519.25 units"])
    assert "73519" not in str(problem.value)


def test_the_sweep_sees_a_message_that_shows_a_record(monkeypatch):
    """A planted fault: the check of labels as it was, which named the first wrong one."""
    X, y = data()
    labels = np.where(np.arange(20) == 3, SECRET, y)

    def loud(y, n, loss, label_values=None):
        raise InvalidValue(f"y={max(y)!r}: must be 0/1 or -1/+1 for loss {loss.name!r}.")

    monkeypatch.setattr("dptoolkit.solvers.frame.settings.check_labels", loud)
    with pytest.raises(AssertionError, match="73519"):
        test_no_message_shows_a_record("dp_ight", "labels", X, labels)


def test_a_registered_set_has_known_labels(tmp_path):
    """Told from the file, one record more or less renamed the classes; a label from elsewhere is refused, not shown."""
    folder = tmp_path / "mushrooms"
    folder.mkdir()
    file = folder / "mushrooms"
    file.write_text("2 1:1\n2 2:1\n")
    assert datasets.load("mushrooms", data_home=tmp_path).y.tolist() == [1.0, 1.0]
    file.write_text("2 1:1\n1 2:1\n73519 1:1\n")
    with pytest.raises(InvalidValue) as problem:
        datasets.load("mushrooms", data_home=tmp_path)
    assert "must be one of 1, 2" in str(problem.value) and "73519" not in str(problem.value)


def test_losses_of_binary_tasks():
    """The tests above go through every loss that has two labels."""
    assert BINARY == ["logistic", "hinge"] == [name for name, loss in losses.LOSSES.items() if loss.task == "binary"]
