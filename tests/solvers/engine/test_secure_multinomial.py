"""Softmax regression in integers: ranges of scores, residuals that add up to 0, the exact law of selections."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import solvers
from dptoolkit.errors import InvalidValue
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers.engine import secure_multinomial
from dptoolkit.solvers.frame.plan import GUMBEL_MAXIMUM, SYMMETRIC_MAXIMUM
from tests.statistics import assert_chi2, rejected

pytestmark = pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
LAYOUTS = pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
VERTEX, COLUMNS = {"steps": 2}, {"selection": "columns", "steps": 5, "classes": 6, "l1_radius": 0.05}


def example(n=60, d=4, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d)) * (rng.random((n, d)) < 0.8)
    return X, rng.integers(0, classes, n)


def make(n=60, d=4, **settings):
    base = {"classes": 3, "l1_radius": 3.0, "feature_bound": 1.0, "epsilon": 2.0, "delta": 1e-6, "steps": 2}
    return solvers.plan("dp_multinomial_frank_wolfe", n=n, d=d, **(base | {"randomness": "secure"} | settings))


def test_both_kinds_of_selections_are_examined():
    assert make(**VERTEX).releases[0].law == GUMBEL_MAXIMUM
    assert make(**COLUMNS).releases[0].law == SYMMETRIC_MAXIMUM


@pytest.mark.parametrize("settings", [VERTEX, COLUMNS, COLUMNS | {"adjacency": "zero-out"}], ids=str)
@LAYOUTS
def test_scores_move_by_at_most_the_integer_range_which_is_reached(settings, layout):
    plan, rng = make(**settings), np.random.default_rng(1)
    classes, worst = plan.settings.classes, Fraction(0)
    X, y = example(classes=classes)
    for trial in range(30):
        W = rng.uniform(-1, 1, (classes, 4)) * plan.settings.l1_radius / 20 * (trial % 3)
        one, two, other_y = X.copy(), X.copy(), y.copy()
        one[3], two[3] = rng.standard_normal((2, 4)) * 10.0 ** rng.integers(-4, 4, 2)[:, None]
        if trial % 2:
            one[3], two[3] = 1.0, 1.0 if trial % 4 == 1 else -1.0
        y[3], other_y[3] = rng.choice(classes, 2, replace=False)
        if trial % 4 == 3:
            other_y[3] = y[3]
        if plan.adjacency.contributions == 1:
            two[3] = 0.0
        found = []
        for rows, labels in ((one, y), (two, other_y)):
            run = solvers.bind(plan, layout(rows), labels)
            margins = np.asarray(run.rows.matrix @ (W.T * run.unit))
            found.append(run.scores(margins, run.limit(W)))
        moves = [[int(a) - int(b) for a, b in zip(*pair, strict=True)] for pair in zip(*found, strict=True)]
        limit = run.limit(W)
        allowed = secure_multinomial.integer_range(plan, secure_multinomial.grids_at(plan, limit), limit)
        for column in zip(*moves, strict=True):
            two_largest = sorted((abs(m) for m in column), reverse=True)[:2]
            reached = sum(two_largest) if secure_multinomial.is_symmetric(plan) else 2 * two_largest[0]
            assert reached <= allowed
            worst = max(worst, Fraction(reached, allowed))
            if secure_multinomial.is_symmetric(plan):
                assert sum(column) == 0
        assert Fraction(run.exponent(limit)) * allowed <= Fraction(plan.secure.first.epsilon)
    assert worst > 0.9


def test_rounded_residuals_add_up_to_zero_or_are_zero():
    plan, rng = make(**COLUMNS), np.random.default_rng(2)
    grids = secure_multinomial.grids_at(plan, 0.6)
    p = rng.dirichlet(np.ones(6) * 0.3, 500)
    r = p - np.eye(6)[rng.integers(0, 6, 500)]
    r[0], r[1, 2] = np.nan, np.inf
    cap = secure_multinomial.pair_cap(grids, 0.6, 6)
    whole = secure_multinomial.zero_sum_residuals(r, grids, cap)
    assert (whole.sum(axis=1) == 0).all() and np.isfinite(whole).all() and not whole[:2].any()
    pairs = np.sort(np.abs(whole), axis=1)[:, -2:].sum(axis=1)
    assert (pairs <= cap).all()
    within = np.sort(np.abs(r[2:]), axis=1)[:, -2:].sum(axis=1) <= 1.2
    # Rows within the limit stay within K/2 units of what they were; rounding each on its own would not add up to 0.
    assert within.any() and not within.all()
    assert (np.abs(whole[2:][within] - r[2:][within] / grids.residual_unit) <= 3).all()
    assert (np.rint(r[2:] / grids.residual_unit).sum(axis=1) != 0).any()


@pytest.mark.parametrize("settings", [VERTEX | {"epsilon": 0.2}, COLUMNS | {"epsilon": 1.0}], ids=["vertex", "columns"])
def test_selections_have_their_exact_law(settings):
    plan = make(**settings | {"steps": 1})
    X, y = example(classes=plan.settings.classes)
    run, stream = solvers.bind(plan, X, y), SecureStream.seeded(3)
    classes = plan.settings.classes
    limit = run.limit(np.zeros((classes, 4)))
    scores, unit = run.scores(np.zeros((60, classes)), limit), run.exponent(limit)
    scores = scores.ravel() if settings["steps"] == 2 else scores[:, 0]
    counts = np.zeros(2 * len(scores))
    for _ in range(1500):
        counts[int(run(stream, True).releases.ravel()[0])] += 1

    def law(unit):
        weights = np.exp(unit * np.concatenate([scores, -scores]).astype(float))
        return weights / weights.sum()

    assert law(unit).max() < 0.7
    assert_chi2(counts, law(unit))
    rejected(assert_chi2, counts, law(-unit))


@LAYOUTS
def test_what_a_record_contributes_depends_on_no_other(layout):
    X, y = example(70)
    W, seen = np.random.default_rng(4).standard_normal((3, 4)), []
    for value in (None, 0.0, 1e300, 5e-324):
        rows = X.copy()
        if value is not None:
            rows[7] = value
        run = solvers.bind(make(70), layout(rows), y)
        margins = np.asarray(run.rows.matrix @ (W.T * run.unit))
        seen.append(np.delete(run.settings.loss_row.residual(margins, run.y), 7, axis=0))
    for other in seen[1:]:
        np.testing.assert_array_equal(seen[0], other)


@LAYOUTS
def test_fits_differ_and_learn(layout):
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (4000, 6))
    y = np.argmax(X[:, :3], axis=1)
    settings = {"classes": 3, "l1_radius": 6.0, "steps": 20, "feature_bound": 1.0, "epsilon": 8.0, "delta": 1e-6}
    for more in ({}, {"selection": "columns", "l1_radius": 1.0, "steps": 4}, {"fit_intercept": True}):
        one, two = (
            solvers.dp_multinomial_frank_wolfe(layout(X), y, randomness="secure", trace=True, diagnostics=True,
                                               **settings | more) for _ in range(2)
        )  # fmt: skip
        assert (np.argmax(X @ one.coef.T + one.intercept, axis=1) == y).mean() > 0.8
        assert one.coef.shape == two.coef.shape
    # Two runs agree about once in six times; forty runs with one result have a chance below 1e-12.
    noisy = solvers.fit_many(make(4000, 6, epsilon=0.1), X, y, runs=40)
    assert len({fit.coef.tobytes() for fit in noisy}) > 1
    assert one.plan.event == make(4000, 6, **settings | more, randomness=None).event


def test_refusals_and_the_charge():
    with pytest.raises(InvalidValue, match="randomness='secure'.*law='gumbel'"):
        make(law="laplace")
    plan, fast = make(**COLUMNS), make(**COLUMNS, randomness=None)
    growth = plan.secure.first.growth
    assert 1 < growth < 1.001 and plan.sensitivity == fast.sensitivity * growth
    assert plan.guarantee.epsilon(1e-6) == pytest.approx(fast.guarantee.epsilon(1e-6), rel=1e-9)
    with pytest.raises(InvalidValue, match="2\\^29"):
        make(2**29 + 1, delta=1e-12)
