"""Prepared rows: in single precision within their bounds, saved to a folder, opened without trust."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import data, solvers
from dptoolkit.accounting import Ledger
from dptoolkit.data import store
from dptoolkit.errors import InvalidValue
from dptoolkit.solvers import _peeling
from dptoolkit.solvers.engine import gradients, vertex_paths
from tests.solvers.capture import step_by_step
from tests.solvers.test_public_facts import PRIVATE
from tests.strategies import matrices

BOUNDS = st.sampled_from((1e-100, 1e-3, 0.1, 0.5, 1.0, 1.0000000000000002, math.pi, 1e5))
SINGLE_MAX = float(np.finfo(np.float32).max)
# The solvers that read single precision as it is.
READ_SINGLE = {"dp_ight", "dp_dual_averaging", "peeling_iht", "dp_sgd_ht", "dp_frank_wolfe"}

pytestmark = pytest.mark.filterwarnings("ignore")


def problem(n=40, d=30, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.4) / d
    X[3] = 0.0
    return sparse.csr_matrix(X), (rng.random(n) < 0.5) * 1.0


def squared_norm(values):
    """Exact: every float is a fraction."""
    return sum((Fraction(float(v)) ** 2 for v in values), Fraction(0))


# --- single precision ---------------------------------------------------------------------------------


@given(st.floats(-SINGLE_MAX, SINGLE_MAX))
@example(0.1)
@example(-5e-324)
@example(float(np.nextafter(SINGLE_MAX, np.inf)))
def test_entries_are_rounded_towards_zero_and_by_no_more_than_one_place(value):
    single = data.stored(value, np.float32)
    assert single.dtype == np.float32 and abs(float(single)) <= abs(value)
    away = np.nextafter(single[()], np.float32(math.copysign(np.inf, value)))
    assert value == float(single) or abs(float(away)) > abs(value)


@given(matrices(), BOUNDS)
@example(np.array([[0.6, 0.8], [3.0, 4.0]]), 1.0)
@example(np.full((1, 7), 0.1), 0.1)
def test_clipped_rows_in_single_precision_obey_the_bound_exactly(X, bound):
    X = np.clip(X, -1e30, 1e30)
    rows = data.prepare(sparse.csr_matrix(X), dtype=np.float32)
    clipped = data.clip_rows(rows, bound)
    assert clipped.is_single
    limit = Fraction(bound) ** 2
    for old, new in zip(rows.matrix.toarray(), clipped.matrix.toarray(), strict=True):
        if np.array_equal(old, new):
            assert squared_norm(new) <= limit * (1 + Fraction(1, 10**14)), "left alone within rounding of its norm"
        else:
            assert squared_norm(old) > limit * (1 - Fraction(1, 10**14)), "a short row was changed"
            assert squared_norm(new) <= limit, "longer than its bound"


def test_rounding_to_the_nearest_would_break_the_bound():
    """The broken twin of the test above, and of the next."""
    row = np.full(50, 0.1)
    nearest = row.astype(np.float32)
    assert squared_norm(nearest) > squared_norm(row) >= squared_norm(data.stored(row, np.float32))
    assert float(np.clip(np.float32(1.0), np.float32(-0.1), np.float32(0.1))) > 0.1


@given(matrices(), BOUNDS)
def test_clipped_entries_in_single_precision_obey_the_bound_exactly(X, bound):
    rows = data.prepare(sparse.csr_matrix(np.clip(X, -1e30, 1e30)), dtype=np.float32)
    clipped = data.clip_entries(rows, bound)
    sizes = np.abs(clipped.matrix.toarray().astype(np.float64))
    assert clipped.is_single and sizes.max() <= bound
    kept = np.abs(rows.matrix.toarray().astype(np.float64)) <= bound
    np.testing.assert_array_equal(clipped.matrix.toarray()[kept], rows.matrix.toarray()[kept])


def test_an_entry_just_above_a_bound_that_is_no_single_is_clipped():
    rows = data.prepare(sparse.csr_matrix([[float(np.float32(0.1))]]), dtype=np.float32)
    assert rows.matrix.data[0] == np.float32(0.1) and float(rows.matrix.data[0]) > 0.1
    assert float(data.clip_entries(rows, 0.1).matrix.data[0]) < 0.1


def test_an_intercept_keeps_single_precision_and_its_bound():
    rows = data.with_intercept(data.prepare(sparse.csr_matrix([[0.5, 0.0]]), dtype=np.float32), 0.1)
    assert rows.is_single and 0.0999 < float(rows.matrix.toarray()[0, 2]) <= 0.1


def test_what_single_precision_cannot_hold():
    with pytest.raises(InvalidValue, match=r"3\.4e\+38"):
        data.prepare(sparse.csr_matrix([[1e39]]), dtype=np.float32)
    tiny = data.prepare(sparse.csr_matrix([[1e-60, 1.0]]), dtype=np.float32)
    assert tiny.matrix.nnz == 1, "an entry that became zero is no entry"
    with pytest.raises(InvalidValue, match="dense"):
        data.prepare(np.ones((2, 2)), dtype=np.float32)
    with pytest.raises(InvalidValue, match="dtype"):
        data.prepare(np.ones((2, 2)), dtype=np.int64)
    with pytest.raises(InvalidValue, match="single"):
        data.prepare(tiny, dtype=np.float64)
    assert data.prepare(tiny) is tiny and data.prepare(tiny, dtype=np.float32) is tiny


def test_entries_that_a_bound_brings_into_single_precision_are_not_refused():
    """Otherwise one record decides that there is no fit, though its size after clipping is like that of all others."""
    X = sparse.csr_matrix([[1e39, 0.0, 1e300], [0.1, 0.0, 0.0]])
    for bounds in ({"row_norm": 0.1}, {"feature_bound": 0.1}):
        rows = data.prepare(X, dtype=np.float32, **bounds)
        assert rows.is_single and 0.0999 < np.abs(rows.matrix.data.astype(np.float64)).max() <= 0.1
    assert squared_norm(data.prepare(X, dtype=np.float32, row_norm=0.1).matrix[0].data) <= Fraction(0.1) ** 2


def test_bounds_given_at_preparation_are_those_of_a_fit():
    X, _ = problem()
    rows = data.prepare(X * 100, row_norm=1.0, feature_bound=0.3)
    assert rows.row_norms().max() <= 1.0 and np.abs(rows.matrix.data).max() <= 0.3
    assert data.clip_rows(rows, 1.0) is rows and data.clip_entries(rows, 0.3) is rows
    with pytest.raises(InvalidValue, match="row_norm"):
        data.prepare(X, row_norm=-1.0)


FITS = {
    "dp_ight": {"loss": "logistic", "row_norm": 1.0, "sparsity": 5, "steps": 4},
    "dp_dual_averaging": {"loss": "logistic", "row_norm": 1.0, "steps": 4},
    "peeling_iht": {
        "sparsity": 5, "steps": 3, "step_size": 0.5, "radius": 1.0, "feature_bound": 1.0, "label_bound": 1.0,
    },
    "dp_sgd_ht": {"loss": "logistic", "row_norm": 1.0, "sparsity": 5, "steps": 4, "batch_size": 8},
    "dp_frank_wolfe": {"loss": "logistic", "feature_bound": 0.7, "l1_radius": 2.0, "steps": 20},
}  # fmt: skip


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", FITS)
def test_a_fit_in_single_precision_is_that_of_the_same_numbers_as_doubles(name, large, monkeypatch):
    """Every product is taken in double precision, so that nothing else is lost; no double copy of the rows is kept."""
    X, y = problem()
    single = data.prepare(X, dtype=np.float32)
    double = data.prepare(single.matrix.astype(np.float64))
    monkeypatch.setattr(gradients, "_WORTH_A_THREAD", 0 if large else 10**9)
    monkeypatch.setattr(_peeling, "_WORTH_COMPILING", 0 if large else 10**9)
    plan = solvers.plan(name, n=40, d=30, epsilon=5.0, delta=1e-6, **FITS[name])
    with step_by_step():
        ours, theirs = (solvers.fit_many(plan, rows, y, seeds=range(7)) for rows in (single, double))
        alone = getattr(solvers, name)(single, y, epsilon=5.0, delta=1e-6, rng=3, **FITS[name])
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.coef, other.coef)
    np.testing.assert_array_equal(alone.coef, ours[3].coef)
    assert single.transpose().dtype == np.float32


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_other_solvers_refuse_single_precision_before_anything_is_charged(name):
    X, y = problem(60, 8)
    single, ledger = data.prepare(X, dtype=np.float32), Ledger(epsilon=100.0, delta=1e-3)
    arguments = {**PRIVATE[name], "epsilon": 1.0, "delta": 1e-6}
    if name in READ_SINGLE:
        getattr(solvers, name)(single, y, rng=0, **arguments)
        return
    with pytest.raises(InvalidValue, match="single precision"):
        getattr(solvers, name)(single, y, ledger=ledger, **arguments)
    assert ledger.entries == () and ledger.reserved == ()


def test_settings_whose_products_are_made_by_scipy_refuse_single_precision():
    X, y = problem()
    single, budget = data.prepare(X, dtype=np.float32), {"epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(InvalidValue, match="single precision"):
        solvers.dp_dual_averaging(single, y, loss="softmax", classes=2, row_norm=1.0, **budget)
    with pytest.raises(InvalidValue, match="single precision"):
        solvers.dp_frank_wolfe(single, y, refresh=1, **FITS["dp_frank_wolfe"], **budget)


# --- folders ------------------------------------------------------------------------------------------

FORMS = {
    "csr": lambda X: data.prepare(X),
    "csr, single": lambda X: data.prepare(X, dtype=np.float32),
    "dense": lambda X: data.prepare(X.toarray()),
}


@pytest.fixture(params=FORMS)
def saved(request, tmp_path):
    X, y = problem()
    rows = FORMS[request.param](X)
    return rows, y, store.save(rows, tmp_path / "rows")


def same(one, other):
    a, b = (m.toarray() if sparse.issparse(m) else m for m in (one, other))
    np.testing.assert_array_equal(a, b)
    assert a.dtype == b.dtype


def memory_of(array):
    """What an array lies on in the end."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return type(array).__name__


def test_what_is_opened_is_what_was_saved_on_the_memory_of_the_files(saved):
    rows, y, folder = saved
    again = store.load(folder)
    assert again.is_sparse == rows.is_sparse and again.shape == rows.shape
    same(again.matrix, rows.matrix)
    same(again.transpose(), rows.transpose())
    for matrix in (again.matrix, again.transpose()):
        for array in (matrix.data, matrix.indices, matrix.indptr) if again.is_sparse else (matrix,):
            assert memory_of(array) == "mmap"
    plan = solvers.plan("dp_ight", n=40, d=30, epsilon=5.0, delta=1e-6, **FITS["dp_ight"])
    with step_by_step():
        runs = [solvers.bind(plan, one, y) for one in (rows, again)]
        np.testing.assert_array_equal(*(run(np.random.default_rng(0)).weights for run in runs))
    assert runs[1]._data.rows is again, "short rows are used as they are"


def test_files_cannot_be_written_through_the_rows(saved):
    _, _, folder = saved
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert all(not path.stat().st_mode & stat.S_IWUSR for path in folder.glob("*.npy"))
    rows = store.load(folder)
    (rows.matrix.data if rows.is_sparse else rows.matrix)[0] = 7.0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_another_process_makes_the_same_fit(saved, root):
    rows, y, folder = saved
    program = (
        "import sys, json, numpy as np; from dptoolkit import solvers; from dptoolkit.data import store\n"
        "rows, given = store.load(sys.argv[1]), json.loads(sys.argv[2])\n"
        "y = np.array(json.loads(sys.argv[3]))\n"
        "print(solvers.dp_ight(rows, y, epsilon=5.0, delta=1e-6, rng=1, **given).coef.tobytes().hex())"
    )
    arguments = [str(folder), json.dumps(FITS["dp_ight"]), json.dumps(y.tolist())]
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program, *arguments], cwd=root, capture_output=True,
                          text=True, check=True)  # fmt: skip
    single = solvers.dp_ight(rows, y, epsilon=5.0, delta=1e-6, rng=1, **FITS["dp_ight"])
    assert done.stdout.strip() == single.coef.tobytes().hex()


def rewrite(folder, name, change):
    """Change an array of the folder and its digest with it: what a person could do, not what an accident does."""
    path, manifest = folder / name, folder / "prepared.json"
    array = change(np.load(path))
    path.chmod(0o644)
    np.save(path, array)
    facts = json.loads(manifest.read_text())
    facts["digests"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(facts))


def changed(place, value):
    def change(array):
        array.flat[place] = value
        return array

    return change


TAMPERED = {
    "not finite": ("rows.data.npy", changed(5, np.nan), "NaN or infinity"),
    "infinite": ("columns.data.npy", changed(5, np.inf), "NaN or infinity"),
    "index too large": ("rows.indices.npy", changed(5, 10**6), "out of range"),
    "index below zero": ("columns.indices.npy", changed(5, -1), "out of range"),
    "ends in disorder": ("rows.indptr.npy", changed(1, 10**6), "out of range"),
    "indices in disorder": ("rows.indices.npy", lambda a: np.concatenate([a[1::-1], a[2:]]), "not in order"),
    "another value": ("columns.data.npy", changed(5, 0.25), "second orientation"),
    "another place": ("columns.indices.npy", lambda a: np.where(a == a.max(), 3, a), "orientation|not in order"),
    "whole numbers": ("rows.data.npy", lambda a: a.astype(np.int64), "no array of float64"),
    "too few": ("rows.data.npy", lambda a: a[:-1], "out of range"),
    "two axes": ("rows.data.npy", lambda a: a[:, None], "no array of float64"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_folder_is_not_trusted(case, tmp_path):
    name, change, words = TAMPERED[case]
    folder = store.save(FORMS["csr"](problem()[0]), tmp_path / "rows")
    store.load(folder)
    rewrite(folder, name, change)
    with pytest.raises(InvalidValue, match=words):
        store.load(folder)


@pytest.mark.parametrize("name", ["rows.matrix.npy", "columns.matrix.npy"])
def test_a_folder_of_dense_rows_is_not_trusted_either(name, tmp_path):
    folder = store.save(FORMS["dense"](problem()[0]), tmp_path / "rows")
    rewrite(folder, name, changed(5, 0.25))
    with pytest.raises(InvalidValue, match="second orientation"):
        store.load(folder)
    rewrite(folder, name, lambda array: array[:-1])
    with pytest.raises(InvalidValue, match="shape"):
        store.load(folder)


def test_longer_rows_than_were_saved_are_clipped_by_the_fit(tmp_path):
    X, y = problem()
    folder = store.save(data.prepare(X, row_norm=1.0), tmp_path / "rows")
    for name in ("rows.data.npy", "columns.data.npy"):
        rewrite(folder, name, lambda array: 1000 * array)
    rows = store.load(folder)
    assert rows.row_norms().max() > 1.0
    plan = solvers.plan("dp_ight", n=40, d=30, epsilon=5.0, delta=1e-6, **FITS["dp_ight"])
    assert solvers.bind(plan, rows, y)._data.rows.row_norms().max() <= 1.0


def test_damage_is_noticed(saved):
    _, _, folder = saved
    path = next(folder.glob("rows.*.npy"))
    whole = path.read_bytes()
    path.chmod(0o644)
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(InvalidValue, match="another"):
            store.load(folder)
    path.unlink()
    with pytest.raises(InvalidValue, match="or none"):
        store.load(folder)
    for text, words in (("{", "facts"), ('{"format": "x"}', "saved as"), ("[]", "facts")):
        (folder / "prepared.json").write_text(text)
        with pytest.raises(InvalidValue, match=words):
            store.load(folder)
    with pytest.raises(InvalidValue, match="prepared.save"):
        store.load(folder / "nowhere")


@pytest.mark.parametrize("shape", ["[Infinity, 30]", "[40.5, 30]", '["40", "30"]', "[1e3, 30]", f"[{10**30}, 30]"])
def test_a_shape_that_no_matrix_has_is_refused(shape, tmp_path):
    folder = store.save(FORMS["csr"](problem()[0]), tmp_path / "rows")
    manifest = folder / "prepared.json"
    facts = json.loads(manifest.read_text()) | {"shape": None}
    manifest.write_text(json.dumps(facts).replace("null", shape))
    with pytest.raises(InvalidValue, match="prepared.save"):
        store.load(folder)
    manifest.write_text("[" * 100_000)
    with pytest.raises(InvalidValue, match="facts"):
        store.load(folder)


@pytest.mark.parametrize("form", ["csr", "dense"])
def test_numbers_in_the_order_of_another_machine_are_refused(form, tmp_path):
    """Kernels read them as they lie in memory."""
    folder = store.save(FORMS[form](problem()[0]), tmp_path / "rows")
    for side in ("rows", "columns"):
        name = f"{side}.{'data' if form == 'csr' else 'matrix'}.npy"
        rewrite(folder, name, lambda array: array.astype(array.dtype.newbyteorder()))
    with pytest.raises(InvalidValue, match="no array of float64"):
        store.load(folder)


def test_nothing_is_overwritten_and_a_failure_leaves_nothing(tmp_path):
    rows = FORMS["csr"](problem()[0])
    store.save(rows, tmp_path / "deep" / "rows")
    with pytest.raises(InvalidValue, match="exist"):
        store.save(rows, tmp_path / "deep" / "rows")
    with pytest.raises(InvalidValue, match="prepare"):
        store.save(problem()[0], tmp_path / "other")
    with mock.patch.object(store, "_digest", side_effect=OSError("full")), pytest.raises(OSError, match="full"):
        store.save(rows, tmp_path / "other")
    assert os.listdir(tmp_path) == ["deep"]


def test_a_folder_that_another_process_made_in_the_meantime_is_refused(tmp_path, monkeypatch):
    rename = Path.rename

    def late(draft, target):
        target.mkdir()
        (target / "other").touch()
        return rename(draft, target)

    monkeypatch.setattr(Path, "rename", late)
    with pytest.raises(InvalidValue, match="does not exist yet"):
        store.save(data.prepare(sparse.eye_array(3, format="csr")), tmp_path / "rows")
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


@pytest.mark.parametrize("bound", [1e-140, 1e-50, 1e-46, 1e-45, 1e-38, 1.0, 3e38, 1e39, 1e140])
def test_single_precision_does_not_spoil_features_over_their_bound(bound):
    """At bounds that single precision takes for 0 or infinity as well; a NaN would be drawn whatever the noise."""
    X = sparse.csr_matrix(np.array([[0.5, 3e38], [2.0, -1.0], [0.0, 0.25]]))
    whole = {}
    for kind in (np.float64, np.float32):
        matrix = vertex_paths.both_sides(data.clip_entries(data.prepare(X, dtype=kind), bound), bound).matrix
        assert np.isfinite(matrix.data).all() and np.abs(matrix.data).max(initial=0.0) <= 1.0
        whole[kind] = sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=(len(matrix.indptr) - 1, 2))
    if bound >= 1e-38:
        np.testing.assert_allclose(whole[np.float32].toarray(), whole[np.float64].toarray(), rtol=1e-6, atol=1e-6)
