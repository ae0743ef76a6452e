"""Exact selections of vertices: integer scores of a public range, chosen by the exponential mechanism."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import frank_wolfe as kernel
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers.engine import secure_vertices
from tests.statistics import assert_chi2, rejected

pytestmark = pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
DITHERED, TEXTBOOK = {}, {"refresh": 1.0}
NO_WORK = np.zeros(4, np.int64)


def example(n=120, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = np.clip(rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6), -1, 1)
    return sparse.csr_matrix(X), (X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(n) > 0).astype(float)


def make(n=120, d=6, **settings):
    base = {"loss": "logistic", "l1_radius": 3.0, "steps": 4, "feature_bound": 1.0, "epsilon": 20.0, "delta": 1e-6}
    return solvers.plan("dp_frank_wolfe", n=n, d=d, randomness="secure", **(base | settings))


def path_of(X, y, **settings):
    return solvers.bind(make(*X.shape, **settings), X, y)._path


def fixed_theta(path, n, seed=5):
    theta = np.random.default_rng(seed).random(n).astype(np.float32)
    path.theta = lambda rng: theta
    return path


def exact_law(scores, unit):
    """Probabilities of all vertices, of +e_j first, from exact scores of +e_j."""
    with mpmath.workprec(200):
        weights = [mpmath.exp(mpmath.mpf(unit) * mpmath.mpf(int(s))) for s in [*scores, *(-s for s in scores)]]
        return np.array([float(w / mpmath.fsum(weights)) for w in weights])


def forced(path, vertices):
    """The dither after these features, chosen by hand with sign +1, with all rows on their levels."""
    d, m = path.d, len(path.y)
    dither, v, room = kernel.dither(m, d), np.zeros(d), kernel.whole_sampler(d)
    kernel.start(dither, path.theta(SecureStream.seeded(0)), path.count / 2, 0.0)
    scale, none = 1.0, np.zeros(0, np.uint64)
    norm = path.plan.settings.l1_radius if vertices else 0.0
    grid, unit = path.grid(norm), path.unit(norm)
    for t in range(len(vertices) + 1):
        for phase in (kernel.PUSH, kernel.KEPT):
            progress = np.zeros(kernel.STATE, np.int64)
            progress[kernel.PHASE] = phase
            if phase == kernel.KEPT and t == len(vertices):
                break
            progress[kernel.FEATURE] = j = vertices[t] if t < len(vertices) else 0
            if phase == kernel.KEPT and dither.totals[j] >= 0:
                progress[kernel.PHASE] = kernel.KEPT_AGAINST
            scale = kernel.whole_block(none, progress, grid, path.matrix, path.y, t + 1, 1, unit, scale, t == 0, v,
                                       dither, np.zeros(1, np.int64), room, NO_WORK.copy())  # fmt: skip
    return dither, room, v, scale


@pytest.mark.parametrize("settings", [DITHERED, TEXTBOOK], ids=["dithered", "textbook"])
def test_the_first_vertex_has_the_exact_law(settings):
    X, y = example()
    path = path_of(X, y, steps=1, epsilon=0.3, **settings)
    if settings:
        grids = path.grids(0.0)
        scores, unit = path.scores(np.zeros(120), grids), path.unit(0.0, grids)
    else:
        fixed_theta(path, 120)
        totals = forced_first(path)
        bits = secure_vertices.entry_bits(120, path.count)
        scores, unit = -(totals * 2**bits).astype(np.int64), path.unit(3.0) / 2**bits
        np.testing.assert_array_equal(scores, -totals * 2**bits)
    law, counts, stream = exact_law(scores, unit), np.zeros(12), SecureStream.seeded(1)
    for _ in range(8000):
        counts[path(stream, False, NO_WORK.copy()).history["vertices"][0]] += 1
    assert law.max() < 0.7 and (law > 0.01).sum() > 4
    assert_chi2(counts, law)
    rejected(assert_chi2, counts, exact_law(scores, 0.8 * unit))
    rejected(assert_chi2, np.roll(counts, 6), law)


def forced_first(path):
    """X^T (level - levels/2) of the first step."""
    norm = secure_vertices.reachable(0.0, path.plan.settings.l1_radius, *path.parts[0])
    changes = np.empty(len(path.y))
    kernel.start_levels(path.grid(norm), path.y, path.theta(None), changes)
    matrix = path.matrix
    rows = sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr.astype(np.int64)), (len(path.y), path.d))
    return np.asarray(rows.T.astype(float) @ changes)


def test_later_vertices_have_the_exact_law_too():
    """Weights that were kept and changed one by one: the second vertex, given each of the frequent first ones."""
    X, y = example(60, 3)
    path = fixed_theta(path_of(X, y, steps=2, refresh=0.0, epsilon=1.0), 60)
    assert path.parts == [(1, 2)]
    seconds, stream = np.zeros((6, 6)), SecureStream.seeded(2)
    for _ in range(15_000):
        first, second = path(stream, False, NO_WORK.copy()).history["vertices"]
        seconds[first, second] += 1
    checked = 0
    for first in range(6):
        if seconds[first].sum() < 1000:
            continue
        # The grid of the one block is that of |w|_1 = radius.
        totals = step_totals(path, first)
        law = exact_law(-(totals * 2**24).astype(np.int64), path.unit(3.0) / 2**24)
        assert_chi2(seconds[first], law)
        checked += 1
    assert checked >= 2
    rejected(assert_chi2, seconds[np.argmax(seconds.sum(axis=1))], seconds.sum(axis=0) / seconds.sum())


def step_totals(path, vertex):
    """Totals after one vertex, from the levels of all rows at their margins."""
    sign, j = (1.0, vertex) if vertex < path.d else (-1.0, vertex - path.d)
    matrix, theta = path.matrix, path.theta(None)
    rows = sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr.astype(np.int64)), (len(path.y), path.d))
    norm = secure_vertices.reachable(0.0, path.plan.settings.l1_radius, *path.parts[0])
    grid, column = path.grid(norm), rows[:, j].toarray().ravel()
    # w = 2/3 radius at the vertex after the first step; a row that does not contain it keeps its level.
    margins = path.reach * (2 / 3) * sign * column.astype(float)
    levels = [kernel.level_of(grid, m, label, th) for m, label, th in zip(margins, path.y, theta, strict=True)]
    return np.asarray(rows.T.astype(float) @ (np.array(levels) - path.count / 2))


def test_kept_weights_are_large_enough_and_totals_are_rebuilt_ones():
    X, y = example(400, 150, 3)
    path = path_of(X, y, steps=120, epsilon=60.0)
    path(SecureStream.seeded(3), False, NO_WORK.copy())
    dither, _, room = path._idle[-1]
    matrix = path.matrix
    rows = sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr.astype(np.int64)), X.shape)
    bits = secure_vertices.entry_bits(400, path.count)
    whole = (rows.T.astype(float) * 2**bits) @ (dither.state[:, 3].astype(float) - path.count / 2)
    np.testing.assert_array_equal(dither.totals * 2**bits, whole)
    assert (np.abs(dither.totals) <= room.covered).sum() >= 149, "all but one that was just rejected"
    unit, top = room.frame
    with mpmath.workprec(200):
        for kept, size in zip(room.weights, room.covered, strict=True):
            size = max(size, 0.0)
            true = 2**kernel.DIGITS * (mpmath.exp(-unit * (mpmath.mpf(top) - size))
                                       + mpmath.exp(-unit * (mpmath.mpf(top) + size)))  # fmt: skip
            assert true <= int(kept) <= true * (1 + mpmath.mpf(2) ** -35) + 1
    for g, together in enumerate(room.sums):
        assert together == sum(int(w) for w in room.weights[g << room.shift : (g + 1) << room.shift])


def test_the_kernel_decides_as_exact_arithmetic_does():
    """The compiled draw, and words that are decided exactly: same features, same signs, on the same words."""
    rng, unit, width = np.random.default_rng(4), 0.7, 0.25 / 0.7
    totals, room = rng.integers(-9, 9, 12).astype(float), kernel.whole_sampler(12)
    kernel.whole_rebuild(totals, unit, width, room)
    stream, kept = SecureStream.seeded(6), 0
    for _ in range(300):
        words, progress = stream.words(3), np.zeros(kernel.STATE, np.int64)
        kernel.whole_draw(words, progress, totals, unit, width, room, NO_WORK.copy())
        if progress[kernel.PLACE] == 1:
            continue  # beyond the sum of all weights
        j, top = int(progress[kernel.FEATURE]), Fraction(float(room.frame[1]))
        size, exact = Fraction(abs(float(totals[j]))), Fraction(unit)
        factor = Fraction(2**kernel.DIGITS, int(room.weights[j]))
        against = secure_vertices.decided(factor, exact * (top - size), exact * (top + size), words[1:], stream)
        phases = {None: kernel.DRAW, False: kernel.KEPT, True: kernel.KEPT_AGAINST}
        assert progress[kernel.PHASE] == phases[against]
        kept += against is not None
        kernel.whole_rebuild(totals, unit, width, room)
    assert kept > 50


def test_a_hard_try_is_decided_with_its_own_words():
    X, y = example(60, 3)
    path = fixed_theta(path_of(X, y, steps=3, epsilon=0.5), 60)
    stream = SecureStream.seeded(7)
    dither, room, v, _ = forced(path, [])
    kernel.whole_rebuild(dither.totals, path.unit(3.0), 0.1, room)
    steps = secure_vertices._Steps(path, stream, dither, v, room, NO_WORK.copy())
    # A word of 0 keeps any try, and one of 2^64 - 1 keeps none whose chance is below 1; likewise for the sign.
    for words, phase in (((0, 2**64 - 1), kernel.KEPT), ((0, 0), kernel.KEPT_AGAINST), ((2**64 - 1, 0), kernel.DRAW)):
        steps.words = np.array(words, np.uint64)
        steps.progress[:] = 0
        steps.progress[kernel.PHASE] = kernel.HARD
        steps._decide(path.unit(3.0))
        assert steps.progress[kernel.PHASE] == phase and steps.progress[kernel.PLACE] == 2
    assert steps.progress[kernel.FOUND] == 1 and room.covered[0] == -1


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("settings", [DITHERED, TEXTBOOK, {"loss": "squared", "label_bound": 2.0}], ids=str)
def test_scores_move_by_at_most_the_integer_range_which_is_reached(adjacency, settings):
    """unit times what any two vertices' scores move against each other is at most the plan's epsilon, exactly."""
    worst, rng = Fraction(0), np.random.default_rng(8)
    X, y = example(40, 4)
    dense, extreme = X.toarray(), 1.0 if settings.get("loss") != "squared" else 2.0
    for trial in range(30):
        one, two = dense.copy(), dense.copy()
        if trial % 2:
            one[3], two[3] = rng.standard_normal((2, 4)) * 10.0 ** rng.integers(-5, 5, 2)[:, None]
        else:
            one[3], two[3] = [1, 1, 1, 1], [1, -1, 1, -1]
        other_y = y.copy()
        y[3], other_y[3] = extreme, (0.0 if settings.get("loss") != "squared" else -extreme)
        if adjacency == "zero-out":
            two[3] = 0.0
        scores, unit, epsilon = [], None, None
        for rows, labels in ((one, y), (two, other_y)):
            path = path_of(sparse.csr_matrix(rows), labels, adjacency=adjacency, **settings)
            epsilon = path.noise.epsilon
            if isinstance(path, secure_vertices.SecureTextbookPath):
                grids = path.grids(0.0)
                scores.append([int(s) for s in path.scores(np.zeros(40), grids)])
                unit = path.unit(0.0, grids)
            else:
                totals = forced(fixed_theta(path, 40, trial), [])[0].totals
                scores.append([-Fraction(float(t)) for t in totals])
                unit = path.unit(3.0)
        moves = [a - b for a, b in zip(*scores, strict=True)]
        moves += [-m for m in moves]
        spent = Fraction(unit) * (max(moves) - min(moves))
        assert spent <= Fraction(epsilon)
        worst = max(worst, spent / Fraction(epsilon))
    assert worst > 0.9


@pytest.mark.parametrize("settings", [DITHERED, TEXTBOOK], ids=["dithered", "textbook"])
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "csr"])
def test_what_a_record_contributes_depends_on_no_other(settings, dense):
    X, y = example(80, 5)
    seen = []
    for value in (None, 0.0, 1e300, 5e-324, 0.3):
        rows = X.toarray()
        if value is not None:
            rows[7] = value
        path = path_of(rows if dense else sparse.csr_matrix(rows), y, **settings)
        if isinstance(path, secure_vertices.SecureTextbookPath):
            margins = np.asarray(path.rows.matrix @ np.linspace(-1, 1, 5)) * path.grids(0.0).row_unit
            whole = secure_vertices.residuals_on_grid(path.plan.settings.loss_row.residual(margins, y), path.grids(1.0))
            seen.append(np.delete(whole, 7))
        else:
            dither = forced(fixed_theta(path, 80), [0, 3, 0, 2, 1])[0]
            seen.append(np.delete(dither.state, 7, axis=0))
    for other in seen[1:]:
        np.testing.assert_array_equal(seen[0], other)


def test_the_plan_says_what_is_exact_and_nothing_is_charged():
    fast = solvers.plan("dp_frank_wolfe", n=120, d=6, loss="logistic", l1_radius=3.0, steps=4, feature_bound=1.0,
                        epsilon=20.0, delta=1e-6)  # fmt: skip
    plan = make()
    assert plan.event == fast.event and plan.releases == fast.releases
    assert "exact probabilities" in str(plan) and "time is not protected" in str(plan.guarantee)
    assert plan.with_noise(factor=0.5).secure.first.epsilon == 2 * plan.secure.first.epsilon
    for r in (1, 4, 2**20):
        unit = plan.secure.first.unit(r)
        assert Fraction(unit) * r <= Fraction(plan.secure.first.epsilon) < Fraction(math.nextafter(unit, math.inf)) * r


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning")
def test_ends():
    """Many records, one record, extreme bounds and budgets."""
    assert secure_vertices.secure_levels(make(2**29)) * 2**29 * 2**10 <= 2**52
    with pytest.raises(InvalidValue, match="2\\^29"):
        make(2**29 + 1)
    y = np.array([1.0])
    for settings in ({"epsilon": 1e-3}, {"epsilon": 1e3}, {"feature_bound": 1e100}, {"feature_bound": 1e-100}):
        for X in (np.array([[1e300, 5e-324]]), sparse.csr_matrix([[1e300, 5e-324]])):
            assert np.isfinite(solvers.bind(make(1, 2, **settings), X, y)(None).weights).all()


@pytest.mark.parametrize("settings", [{"law": "laplace"}, {"calibration": "published"}], ids=str)
def test_laplace_noise_is_refused(settings):
    with pytest.raises(InvalidValue, match="randomness='secure'.*law='gumbel'"):
        make(**settings)
    make(calibration="published", law="gumbel")


def test_fits_differ_and_are_close_to_fast_ones():
    X, y = example(3000, 20, 9)
    settings = {"loss": "logistic", "l1_radius": 3.0, "steps": 60, "feature_bound": 1.0, "epsilon": 8.0, "delta": 1e-6}
    fits = [solvers.dp_frank_wolfe(X, y, randomness="secure", **settings) for _ in range(3)]
    assert len({fit.coef.tobytes() for fit in fits}) == 3
    assert all(set(np.argsort(-np.abs(fit.coef))[:2]) == {0, 1} for fit in fits)
    both = solvers.fit_many(fits[0].plan, X, y, runs=2, trace=True)
    assert (both[0].coef != both[1].coef).any() and len(both[0].history["iterates"]) == 60


@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_an_audit_of_the_worst_pair(layout, monkeypatch):
    """Within its budget; with half the noise, caught."""
    streams = iter(range(10**9))

    @contextmanager
    def seeded(rng):
        yield SecureStream.seeded(next(streams))

    monkeypatch.setattr(secure_vertices, "secure_stream", seeded)
    plan = make(40, 3, epsilon=2.0, steps=2, delta=1e-4)
    pair = audit.pairs.dp_frank_wolfe(plan)
    if layout == "csr":
        first, second = ((sparse.csr_matrix(np.repeat(data.X, data.counts, axis=0)), np.repeat(data.y, data.counts))
                         for data in (pair.first, pair.second))  # fmt: skip
        pair = replace(pair, first=first, second=second)
    report = audit.audit(plan, pair, plan.guarantee, trials=3000, confidence=1 - 1e-6, rng=1)
    assert not report.violated, str(report)
    weak = audit.audit(plan.with_noise(factor=0.3), pair, plan.guarantee, trials=3000, confidence=1 - 1e-6, rng=1)
    assert weak.violated, str(weak)


# --- the sparsifier -------------------------------------------------------------------------------------------------


def sparsified(n=200, d=20, **settings):
    base = {"loss": "logistic", "l1_radius": 3.0, "steps": 8, "feature_bound": 1.0, "epsilon": 2.0, "delta": 1e-6,
            "count_steps": 20}  # fmt: skip
    return solvers.plan("sparsifier", n=n, d=d, randomness="secure", **(base | settings))


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
def test_the_count_of_a_sparsifier_has_its_exact_law(layout):
    X, y = example(200, 20)
    plan = sparsified(alpha=3, beta=12, count_share=0.5)
    assert len(plan.secure.parts) == 2 and "geometric" in str(plan)
    run, stream = solvers.bind(plan, layout(X.toarray()), y), SecureStream.seeded(12)
    trace = run(stream, True)
    assert len(trace.releases) == 9 and 3 <= trace.history["number"] <= 12
    span, counts = range(3, 13), np.zeros(10)
    for _ in range(4000):
        counts[run._number(np.zeros(20), stream)[1][0] - 3] += 1
    exact, rate = run_count(run), 1.0 / 9
    wide = np.exp(-rate * np.abs(np.arange(-400, 401) - exact))
    law = np.array([wide[np.clip(np.arange(-400, 401), 3, 12) == k].sum() for k in span])
    assert_chi2(counts, law)
    rejected(assert_chi2, counts, law[::-1])


def run_count(run):
    """The clipped number of non-zeros, from the run's own rule without noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dptoolkit.solvers._sparsifier.geometric_noise", lambda *_: 0)
        return run._number(np.zeros(20), None)[1][0]


def test_other_counts_of_a_sparsifier_have_no_noise():
    X, y = example(200, 20)
    result = solvers.sparsifier(X, y, loss="logistic", l1_radius=3.0, steps=8, feature_bound=1.0, epsilon=2.0,
                                delta=1e-6, count="fixed", number=4, randomness="secure", trace=True)  # fmt: skip
    assert len(result.plan.secure.parts) == 1 and np.count_nonzero(result.coef) <= 4
    with pytest.raises(InvalidValue, match="law='gumbel'"):
        sparsified(law="laplace")
