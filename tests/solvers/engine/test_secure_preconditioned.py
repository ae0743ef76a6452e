"""Secure descent along second moments: integers within the planned sensitivity, noise of the packed vector."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from dptoolkit import solvers
from dptoolkit.data import Rows, check_rows, unit_rows
from dptoolkit.data.grids import Grids, rows_on_grid
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers.engine import secure_preconditioned as own
from dptoolkit.solvers.engine.preconditioned import BoundedRecords, residual_sums, second_moments
from tests.statistics import assert_ks, rejected


def rows_of(n=60, d=4, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, d))
    return Rows(unit_rows(check_rows(X)).matrix.astype(np.float32) * np.float32(1 - 2.0**-22), False)


def test_moments_are_those_of_the_fast_path_and_keep_their_sensitivity():
    rows = rows_of()
    unit = 4.0 ** -own.moment_bits(60)
    packed = own.moment_sums(rows, np.ones(60), 60) * unit / 60
    upper = np.triu_indices(4)
    factor = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    np.testing.assert_allclose(packed * factor, second_moments(rows, np.full(60, 1 / 60)), atol=1e-6)
    # Exact, in Python's integers: squares off the diagonal count twice. Orthogonal records reach sqrt(2).
    worst = 0.0
    for one, two in ((np.eye(4)[0], np.eye(4)[1]), (rows.matrix[0], -rows.matrix[1]), (np.eye(4)[3], np.zeros(4))):
        pair = [own.moment_sums(Rows(np.asarray(x, float)[None], False), np.ones(1), 60) for x in (one, two)]
        square = sum((1 if j == k else 2) * (int(a) - int(b)) ** 2 for j, k, a, b in zip(*upper, *pair, strict=True))
        assert square <= 2 * 16 ** (2 * own.moment_bits(60))
        worst = max(worst, math.sqrt(square) / 4 ** own.moment_bits(60))
    assert worst == pytest.approx(math.sqrt(2), rel=1e-6)


def test_the_noise_of_moments_has_the_law_of_the_packed_vector():
    sums, units = np.zeros(3 * 2 // 2 + 0, np.int64), 1001
    draws = np.array([own.noisy_moments(sums, 2, units, SecureStream.seeded(1, k)) for k in range(4000)]) / units
    assert_ks(draws[:, [0, 2]].ravel(), "norm")
    assert_ks(draws[:, 1], "norm")
    rejected(assert_ks, draws[:, 1] / math.sqrt(2), "norm")
    m = math.isqrt(units * units // 2)
    assert 2 * m * m < units * units <= 2 * (m + 1) ** 2


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
def test_gradients_keep_their_bound(loss):
    """Every record's integers alone: at most grad_norm in whole numbers, and their sum is that of all records."""
    bounds = {"bounds": (-1.0, 1.0)} | ({"label_bound": 1.0} if loss == "squared" else {})
    more = {"classes": 3} if loss == "softmax" else {}
    plan = solvers.plan("dp_pipeline", n=60, d=3, loss=loss, epsilon=8.0, delta=1e-6, randomness="secure",
                        **bounds, **more)  # fmt: skip
    rows = rows_of()
    if loss == "squared":
        rows = Rows(rows.matrix * np.linspace(1e-6, 1, 60, dtype=np.float32)[:, None], False)
    y = np.eye(3)[np.arange(60) % 3] if loss == "softmax" else (np.arange(60) % 2).astype(float)
    noise, row = plan.secure.first, plan.settings.loss_row
    records = BoundedRecords(rows, y, row, np.full(60, math.inf), np.full(60, 1 / 60))
    run = own.SecurePreconditionedRun(records, np.eye(4), 3, noise, np.ones(60), loss != "squared")
    allowed = (plan.settings.grad_norm / float(noise.grids.unit)) ** 2
    w = 3 * np.random.default_rng(1).standard_normal(records.shape)
    total, worst = 0, 0.0
    for i in range(60):
        alone = np.zeros(60)
        alone[i] = 1.0
        run._counts = alone
        part = run.sums(w)
        square = sum(int(v) ** 2 for v in part.ravel())
        assert square <= allowed * (1 + 1e-12)
        total, worst = total + part, max(worst, square / allowed)
    run._counts = np.ones(60)
    np.testing.assert_array_equal(run.sums(w), total)
    assert worst > 0.8
    # A count stands for repeated records; the records' own rows are as they were.
    run._counts = np.full(60, 3.0)
    np.testing.assert_array_equal(run.sums(w), 3 * total)
    if loss != "squared":
        np.testing.assert_array_equal(rows.matrix, rows_of().matrix)


def test_a_margin_is_the_same_wherever_its_record_stands():
    """Its last bit can move a rounded residual, and so the sum by more than the record itself may."""
    n, d = 331, 54
    rows, order = rows_of(n, d), np.random.default_rng(3).permutation(n)
    w, found = np.random.default_rng(4).standard_normal(d), []
    for which in (np.arange(n), order):
        margins = np.empty(n)

        def residuals(own_margins, some, out=margins):
            out[some] = own_margins
            return np.zeros(len(own_margins))

        residual_sums(Rows(np.ascontiguousarray(rows.matrix[which]), False), w, residuals)
        found.append(margins)
    np.testing.assert_array_equal(found[0][order], found[1])


def test_rows_on_the_grid_take_no_memory_beyond_a_block_and_are_whole():
    """Written over the rows: the same numbers as in doubles, in single precision, also where columns were left out."""
    wide = rows_of(400).matrix
    grids = Grids.choose(400, 1.0, 0.25, 100.0)
    whole = rows_on_grid(Rows(wide.astype(np.float64), False), grids, True).matrix
    room = np.zeros((400, 6), np.float32)
    room[:, :4] = wide
    copy = own.rounded_rows(Rows(room[:, :4], False), grids)
    assert not np.shares_memory(copy.matrix, room) and np.array_equal(room[:, :4], wide)
    over = own.rounded_rows(Rows(room[:, :4], False), grids, over=True)
    assert np.shares_memory(over.matrix, room) and over.matrix.dtype == copy.matrix.dtype == np.float32
    for made in (copy, over):
        np.testing.assert_array_equal(made.matrix.astype(np.float64) / grids.row_unit, whole)
    assert (np.square(whole).sum(axis=1) <= grids.row_cap).all()


@pytest.mark.parametrize("kind", ["secure", "fast"])
def test_a_secure_fit_needs_no_more_memory_than_a_fast_one(kind):
    """Beside X its prepared rows in single precision and what blocks need; X itself is not copied."""
    n, d = 120_000, 40
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, (n, d))
    y = (X[:, 0] > X[:, 1]).astype(float)
    own_noise = {"randomness": "secure"} if kind == "secure" else {"rng": 1}
    tracemalloc.start()
    try:
        fit = solvers.dp_pipeline(X, y, epsilon=2.0, delta=1e-6, bounds=(0.0, 5.0), **own_noise)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "second moments" in [release.query for release in fit.plan.releases]
    # Prepared rows are in single precision, with a column for the intercept.
    assert peak < X.nbytes * 0.5 * (d + 1) / d + 2**23 + 9 * y.nbytes
