"""The mark of rows that no guarantee covers: what keeps it, what refuses it, and which fits it voids."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import data, marks, models, solvers, tuning
from dptoolkit.accounting import Ledger
from dptoolkit.data import store
from dptoolkit.errors import InvalidValue

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
N, D = 40, 3
X = np.random.default_rng(0).standard_normal((N, D))
Y = (X[:, 0] > 0).astype(float)
DENSE, CSR = marks.marked(X), marks.marked(sparse.csr_matrix(X))
OPTIONS = {"loss": "logistic", "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-5}


def first_part(rows):
    from sklearn.model_selection import train_test_split

    return train_test_split(rows, random_state=0)[0]


EITHER = {
    "slice": lambda rows: rows[:20], "mask": lambda rows: rows[Y > 0], "numbers": lambda rows: rows[[0, 3]],
    "columns": lambda rows: rows[:, :2], "copy": lambda rows: rows.copy(), "cast": lambda rows: rows.astype(np.float32),
    "deep copy": copy.deepcopy, "pickle": lambda rows: pickle.loads(pickle.dumps(rows)),
    "multiple": lambda rows: 2 * rows, "product": lambda rows: rows @ np.eye(D), "absolute": abs,
    "transpose": lambda rows: rows.T, "split": first_part,
    "prepared": data.prepare, "prepared by bound": lambda rows: data.prepare(rows, row_norm=0.1),
    "wider": lambda rows: data.prepare(rows, D + 1), "taken": lambda rows: data.prepare(rows).take([1, 2]),
    "some features": lambda rows: data.prepare(rows).columns(np.array([0])),
}  # fmt: skip
ONLY_DENSE = {
    "vstack": lambda rows: np.vstack([X, rows]), "hstack": lambda rows: np.hstack([X, rows]),
    "concatenate": lambda rows: np.concatenate([rows, rows]), "array_split": lambda rows: np.array_split(rows, 3)[1],
    "asarray": np.asarray, "list of rows": list, "where": lambda rows: np.where(rows > 0, rows, 0.0),
    "clip": lambda rows: np.clip(rows, -1, 1), "take": lambda rows: np.take(rows, [0, 1], axis=0),
    "a column as labels": lambda rows: rows[:, 0],
    # NumPy makes these as views of plain arrays, which numpy.asarray would take in their place.
    "asarray of a split": lambda rows: np.asarray(rows[[0, 3]]),
    "asarray of a mask": lambda rows: np.asarray(rows[Y > 0]),
    "asarray of a multiple": lambda rows: np.asarray(2 * rows),
    "asarray of a product": lambda rows: np.asarray(rows @ np.eye(D)),
    "asarray of what was taken": lambda rows: np.asarray(np.take(rows, [0, 1], axis=0)),
    "asarray of a stack": lambda rows: np.asarray(np.vstack([X, rows])),
}  # fmt: skip
ONLY_SPARSE = {
    "toarray": lambda rows: rows.toarray(), "todense": lambda rows: rows.todense(), "tocsc": lambda rows: rows.tocsc(),
    "one row": lambda rows: rows[3], "data": lambda rows: rows.data,
    "built again": lambda rows: sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=rows.shape),
    "single": lambda rows: data.prepare(rows, dtype=np.float32), "power": lambda rows: rows.power(2),
    "product": lambda rows: rows.multiply(rows),
}  # fmt: skip
KEPT = [
    *((f"dense {key}", DENSE, way) for key, way in (EITHER | ONLY_DENSE).items()),
    *((f"sparse {key}", CSR, way) for key, way in (EITHER | ONLY_SPARSE).items()),
]


@pytest.mark.parametrize(("rows", "way"), [case[1:] for case in KEPT], ids=[case[0] for case in KEPT])
def test_the_mark_survives(rows, way):
    if way is first_part:
        pytest.importorskip("sklearn")
    assert marks.is_marked(rows)
    assert marks.is_marked(way(rows))


@pytest.mark.parametrize("way", [way for way in EITHER.values() if way is not first_part])
@pytest.mark.parametrize("rows", [X, sparse.csr_matrix(X), sparse.csr_array(X)], ids=["dense", "csr", "csr_array"])
def test_other_rows_have_no_mark(rows, way):
    """The twin: a mark on everything would pass the tests above."""
    assert not marks.is_marked(way(rows))


REFUSED = {
    "vstack": lambda rows: sparse.vstack([rows, rows]),
    "hstack": lambda rows: sparse.hstack([sparse.csr_matrix(X), rows]), "csr_matrix": sparse.csr_matrix,
    "csc_array": sparse.csc_array, "asarray": np.asarray, "array": np.array,
    "vstack of NumPy": lambda rows: np.vstack([rows, rows]), "left product": lambda rows: np.ones((2, N)) @ rows,
    "blocks": lambda rows: sparse.block_diag([rows, rows]),
}  # fmt: skip


@pytest.mark.parametrize("way", REFUSED.values(), ids=REFUSED)
def test_what_would_lose_the_mark_of_sparse_rows_is_refused(way):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        way(CSR)


def test_the_refusal_says_what_to_do():
    with pytest.raises(TypeError, match=r"without_mark\(\) is the plain matrix"):
        np.asarray(CSR)
    assert sparse.issparse(CSR.without_mark()) and not marks.is_marked(CSR.without_mark())
    assert "no guarantee" in repr(CSR) and len(CSR) == N


def is_void(guarantee):
    return math.isinf(guarantee.epsilon(1e-5)) and any(note.startswith("VOID") for note in guarantee.notes)


def tuned(rows, y, **more):
    return tuning.tune("dp_ight", [{"steps": 2}, {"steps": 3}], rows, y, sparsity=2, step_size=0.5, **OPTIONS, **more)


def many(rows, y, **more):
    plan = solvers.plan("dp_ight", n=N, d=D, sparsity=2, steps=2, step_size=0.5, **OPTIONS)
    return solvers.fit_many(plan, rows, y, runs=2, **more)[1]


def modelled(solver):
    def call(rows, y, **more):
        own = {} if solver == "dp_pipeline" else {"row_norm": 1.0}
        return models.fit(rows, y, task="classification", classes=sorted(set(np.asarray(y).tolist())), solver=solver,
                          epsilon=1.0, **own, **more)  # fmt: skip

    return call


def chosen(rows, y, **more):
    from dptoolkit.tuning import models as choosing

    how = {"epsilon": 1.0, "delta": 1e-5, "validation": 0.2, "score_bound": None}
    found = choosing.choose(rows, y, [{"steps": 2}, {"steps": 3}], task="classification", solver="dp_ight",
                            classes=[0, 1], row_norm=1.0, step_size=0.5, terms=how, **more)  # fmt: skip
    return found.model


FITS = {
    "dp_ight": lambda rows, y, **more: solvers.dp_ight(rows, y, sparsity=2, steps=2, step_size=0.5, **OPTIONS, **more),
    "dp_frank_wolfe": lambda rows, y, **more: solvers.dp_frank_wolfe(
        rows, y, loss="logistic", epsilon=1.0, delta=1e-5, feature_bound=1.0, **more
    ),
    "objective_perturbation": lambda rows, y, **more: solvers.objective_perturbation(rows, y, **OPTIONS, **more),
    "dp_sgd_ht": lambda rows, y, **more: solvers.dp_sgd_ht(rows, y, sparsity=2, **OPTIONS, **more),
    "fit_many": many, "tune": tuned, "models.fit": modelled("dp_pipeline"), "models.fit rest": modelled("dp_ight"),
    "models.choose": chosen,
}  # fmt: skip


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
def test_no_fit_to_marked_rows_has_a_guarantee(fit, form):
    rows = marks.marked(form(X))
    assert is_void(fit(rows, Y).guarantee)
    assert is_void(fit(data.prepare(rows), Y).guarantee)
    ledger = Ledger(100.0, 1e-3)
    with pytest.raises(InvalidValue, match="No budget covers"):
        fit(rows, Y, ledger=ledger)
    assert ledger.entries == ()
    plain = fit(form(X), Y, ledger=ledger).guarantee
    assert plain.epsilon(1e-5) <= 1.0 and not is_void(plain) and len(ledger.entries) == 1


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_no_fit_to_marked_labels_has_a_guarantee(fit):
    assert is_void(fit(X, marks.marked(Y)).guarantee)


@pytest.mark.parametrize("solver", ["dp_pipeline", "dp_ight"])
def test_several_classes_and_marked_labels_are_void_too(solver):
    three = np.arange(N) % 3
    assert is_void(modelled(solver)(DENSE, three).guarantee)
    assert is_void(modelled(solver)(X, marks.marked(three)).guarantee)
    assert not is_void(modelled(solver)(X, three).guarantee)


def test_a_folder_does_not_take_marked_rows(tmp_path):
    with pytest.raises(InvalidValue, match="would not keep the mark"):
        store.save(data.prepare(CSR), tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


def test_plain_solvers_and_models_read_marked_rows():
    model = modelled("dp_pipeline")(X, Y)
    assert (model.predict(CSR) == model.predict(X)).all() and (model.predict(DENSE) == model.predict(X)).all()
    plain = {"loss": "logistic", "sparsity": 2, "steps": 3, "step_size": 0.5}
    assert np.allclose(solvers.ight(CSR, Y, **plain).coef, solvers.ight(X, Y, **plain).coef)
