"""Secure dp_pipeline: whole numbers in every stage, within the planned sensitivity, and nothing for the attack."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.data import Rows, check_rows, unit_rows
from dptoolkit.data.grids import Grids, rows_on_grid
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers import _pipeline_secure as stages
from dptoolkit.solvers._pipeline_stages import any_slope_ends, plane_eigenvalue, scale_table, slopes_of
from tests.statistics import assert_ks, rejected

pytestmark = pytest.mark.filterwarnings("ignore:.*noise is too large")

KINDS = {
    "classes": {}, "csr": {}, "zero-out": {"adjacency": "zero-out"},
    "softmax": {"loss": "softmax", "classes": 3}, "table": {"bounds": (-4.0, 4.0)},
    "numbers": {"loss": "squared", "row_norm": 3.0, "label_bound": 2.0},
}  # fmt: skip


def data(n=200, d=12, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.8)
    return X, (np.arange(n) % 2).astype(float)


def plan_of(kind, n=200, d=12, randomness="secure", epsilon=2.0, **more):
    own = KINDS[kind] | more
    return solvers.plan("dp_pipeline", n=n, d=d, epsilon=epsilon, delta=1e-6, randomness=randomness, **own)


@pytest.mark.parametrize("kind", KINDS)
def test_the_event_is_that_of_the_plan(kind):
    fast, charged = plan_of(kind, randomness="fast"), plan_of(kind)
    assert charged.guarantee.epsilon(1e-6) == pytest.approx(fast.guarantee.epsilon(1e-6), rel=1e-9)
    assert len(charged.secure.parts) == len(charged.releases)
    for one, two, part in zip(fast.releases, charged.releases, charged.secure.parts, strict=True):
        assert 1 < two.sensitivity / one.sensitivity < 1.001 and two.scale > one.scale and part.growth > 1
        assert two.query == one.query and part.to_dict()["noise_units"] > 0
    assert "ChaCha20" in charged.to_json() and "time is not protected" in str(charged.guarantee)


@pytest.mark.parametrize("kind", KINDS)
def test_releases_are_on_their_grids_and_the_attack_finds_nothing(kind):
    X, y = data()
    other = X.copy()
    other[0] = 3 * np.roll(X[0], 1) + 0.2
    make = sparse.csr_matrix if kind == "csr" else np.array
    pair = (make(X), y), (make(other), y)
    safe = audit.floating_point_attack(plan_of(kind, epsilon=0.1), pair, trials=25, rng=1)
    assert safe.certain == 0 and safe.both == 25
    fast = audit.floating_point_attack(plan_of(kind, randomness="fast", epsilon=0.1), pair, trials=25, rng=1)
    assert fast.wrong == 0 and (fast.certain > 0.5 or kind == "table")
    trace = solvers.bind(plan_of(kind), *pair[0])(SecureStream.seeded(1), True)
    assert "mean row" in plan_of("table").secure.parts[-1].what or kind != "table"
    assert np.isfinite(trace.weights).all()


ENTRIES = st.sampled_from([0.0, -0.0, 0.3, -1.0, 5e-324, 1e-30, 1e300, -1e300, 0.57735])


def contributions(X, y):
    """What each stage adds up for these rows: integers of every stage, at public numbers of their own."""
    rows = unit_rows(check_rows(X))
    n, d = rows.shape
    values = rows.matrix.data if rows.is_sparse else rows.matrix
    absolute = rows.with_values(np.abs(values))
    grid = rows_on_grid(absolute, Grids.of_rows(n, 1.0, 3.0)).matrix
    direction = np.full(d - 1, 1 / math.sqrt(d - 1))
    margins = np.asarray(rows.matrix @ np.linspace(-2, 2, d))
    slopes = np.clip(np.rint(slopes_of((2 * y - 1) * margins, np.asarray(0.7)) * 2**17), -(2**19), 2**19)
    pairs = stages.pair_products(rows, direction, np.ones(n))[:3]
    return np.concatenate([np.asarray(grid.sum(axis=0)).ravel(), [slopes.sum()], pairs])


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@given(record=st.lists(ENTRIES, min_size=5, max_size=5), place=st.integers(0, 19), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_a_record_contributes_the_same_integers_whatever_the_others_are(layout, record, place, seed):
    X, y = data(20, 5, seed)
    X[place] = record
    others, alone = X.copy(), np.zeros_like(X)
    others[place], alone[place] = 0.0, X[place]
    # A slope of a row of zeros is 0.
    whole, one, two = (contributions(layout(part), y) for part in (X, others, alone))
    np.testing.assert_array_equal(whole, one + two)


def test_the_eigenvalue_is_exact_and_moves_by_at_most_one():
    rng = np.random.default_rng(0)
    X = unit_rows(check_rows(rng.standard_normal((300, 6)))).matrix
    direction = np.full(5, 1 / math.sqrt(5))
    worst = 0
    for other in (np.zeros(6), np.eye(6)[5], np.append(direction, 0.0), *rng.standard_normal((20, 6))):
        changed = X.copy()
        changed[0] = unit_rows(check_rows(other[None])).matrix[0]
        seen = []
        for part in (X, changed):
            first, mixed, second, bits = stages.pair_products(Rows(part, False), direction, np.ones(300))
            whole = stages.larger_eigenvalue(first, mixed, second, bits, 30)
            exact = plane_eigenvalue(Rows(part, False), direction, np.ones(300))
            assert whole / 2**30 == pytest.approx(float(exact), rel=1e-4)
            a, b, c = (Fraction(v, 4**bits) for v in (first, mixed, second))
            root = 2 * Fraction(whole, 2**30) - a - c
            assert root <= 0 or root**2 <= (a - c) ** 2 + 4 * b**2
            more = root + Fraction(2, 2**30)
            assert more >= 0 and more**2 > (a - c) ** 2 + 4 * b**2
            seen.append(whole)
        worst = max(worst, abs(seen[0] - seen[1]))
    # One unit more than what one record adds is charged.
    assert worst <= 2**30 + 1
    for size in (1, 2**26):
        assert stages.larger_eigenvalue(0, 0, size * 4**12, 12, 30) == size * 2**30
    # It is reached: where all records agree but one.
    same = np.tile(np.append(np.zeros(5), 1.0), (40, 1))
    gone = same.copy()
    gone[0] = 0.0
    values = [
        stages.larger_eigenvalue(*stages.pair_products(Rows(part, False), direction, np.ones(40)), 30)
        for part in (same, gone)
    ]
    assert values[0] - values[1] == 2**30


@pytest.mark.parametrize("classes", [None, 3])
def test_slopes_stay_within_their_public_ends(classes):
    """Whole numbers of one record span at most the range that is charged at every scale, and reach 0.9 of it."""
    plan = plan_of("softmax" if classes else "classes", n=1)
    scales, ranges = scale_table(plan.adjacency, classes)
    part = next(p for r, p in zip(plan.releases, plan.secure.parts, strict=True) if r.query == "slope in the scale")
    own = stages.SecureStages(plan)
    quiet = Silent()
    for scale, width in list(zip(scales, ranges, strict=True))[2::16]:
        ends = any_slope_ends(float(scale), classes)
        low, high = (
            float(own.slope("slope in the scale", np.array([v]), ends, 0.0, np.ones(1), quiet)) for v in (-1e9, 1e9)
        )
        assert Fraction(high) - Fraction(low) <= Fraction(float(width))
        assert high - low > 0.9 * width
        assert float(own.slope("slope in the scale", np.array([np.nan]), ends, 0.0, np.ones(1), quiet)) == 0.0
    assert part.unit <= 2.0**-10


class Silent:
    """No noise is asked for where its scale is 0."""


def test_noise_of_every_stage_has_its_law():
    """Noise spy: what is released less what is added up, over the planned noise."""
    X, y = data(300, 400)
    plan = plan_of("classes", 300, 400)
    run = solvers.bind(plan, X, y)
    stream, z = SecureStream.seeded(1), []
    means = np.abs(unit_rows(check_rows(X)).matrix).mean(axis=0)
    for _ in range(60):
        z.append((run._noisy_means(stream, ()) - means) / plan.releases[1].scale)
    z = np.concatenate(z)
    assert_ks(z, "norm")
    rejected(assert_ks, 0.9 * z, "norm")
    own = stages.SecureStages(plan)
    rows = Rows(unit_rows(check_rows(X)).matrix, False)
    direction = np.full(399, 1 / math.sqrt(399))
    exact = float(plane_eigenvalue(rows, direction, run.share))
    values = [own.eigenvalue("largest eigenvalue", rows, direction, np.ones(300), stream) for _ in range(200)]
    assert_ks((np.array(values) - exact) / plan.releases[2].scale, "norm")


@pytest.mark.parametrize("kind", ["classes", "softmax", "numbers", "table"])
def test_utility_is_that_of_fast_noise(kind):
    """Mean objectives of both kinds within six standard errors of their difference (alpha 1e-6)."""
    X, y = data(1500, 10)
    y = X[:, 0] if kind == "numbers" else (X[:, 0] > 0).astype(float)
    means, errors = [], []
    for randomness in ("secure", "fast"):
        run = solvers.bind(plan_of(kind, 1500, 10, randomness), X, y)
        fits = [run(np.random.default_rng(k)) for k in range(8)]
        values = [run.diagnose(fit.weights, fit.history)["objective"] for fit in fits]
        means.append(np.mean(values))
        errors.append(np.var(values, ddof=1) / 8)
    assert abs(means[0] - means[1]) < 6 * math.sqrt(sum(errors))
