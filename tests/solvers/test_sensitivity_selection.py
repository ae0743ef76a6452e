"""What one record does to the scores of every selection, and to peeled values: at most the plan's bound, or nearly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import losses, solvers
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import check_rows
from dptoolkit.kernels import frank_wolfe as kernel
from dptoolkit.kernels import reference
from dptoolkit.solvers.engine import vertex_paths
from dptoolkit.solvers.engine import vertices as l1_frank_wolfe
from dptoolkit.solvers.frame.fit import fit_stream, noise_source
from dptoolkit.solvers.frame.plan import SYMMETRIC_MAXIMUM
from tests.solvers.capture import both, peeled_vectors, selection_scores
from tests.strategies import FORMS, Pair, in_form, neighbours

ROUNDING = 1 + 1e-9
RELATIONS = [a.value for a in Adjacency]
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
L1 = {
    "logistic": {"loss": "logistic", "l1_radius": 3.0, "feature_bound": 1.5},
    "huber": {"loss": "huber", "l1_radius": 2.0, "feature_bound": 0.5},
    "hinge": {"loss": "hinge", "l1_radius": 3.0, "feature_bound": 1.5},
    "huber, bounded labels": {"loss": "huber", "l1_radius": 0.5, "feature_bound": 0.5, "label_bound": 0.4},
    "squared": {"loss": "squared", "l1_radius": 2.0, "feature_bound": 0.8, "label_bound": 3.0},
}


def task(mode):
    return losses.get(L1[mode]["loss"]).task


def spread(change):
    """The range of a change of scores."""
    return float(np.max(change) - np.min(change))


def allowed(plan, scale):
    """The range that noise of this scale pays for."""
    return scale / plan.noise * plan.sensitivity * ROUNDING


# --- Frank-Wolfe, dense rows: the scores that the solver really compares ------------------------------


def dense_moves(pair, mode, adjacency, vertices, **more):
    """(plan, [(noise scale, range of the change)]) at every step of a scripted run on dense data."""
    arguments = BUDGET | L1[mode] | {"adjacency": adjacency} | more

    def run(X, y):
        return solvers.dp_frank_wolfe(X, y, steps=len(vertices), rng=0, **arguments)

    n = len(pair.y)
    if adjacency == "zero-out" and more.get("fit_intercept"):
        # A zero row still has an intercept: leave the record out and keep n.
        kept = np.delete(pair.X, pair.index, axis=0), np.delete(pair.y, pair.index)
        fits, factor = (lambda: run(pair.X, pair.y), lambda: run(*kept)), (n - 1) / n
    else:
        fits, factor = (lambda: run(pair.X, pair.y), lambda: run(pair.X2, pair.y2)), 1.0
    ours, theirs = both(lambda: selection_scores(vertices), *fits)
    plan = solvers.plan("dp_frank_wolfe", n=n, d=pair.X.shape[1], steps=len(vertices), **arguments)
    return plan, [(scale, spread(a - factor * b)) for (a, scale), (b, _) in zip(ours, theirs, strict=True)]


def densely(pair):
    def dense(X):
        return X if isinstance(X, np.ndarray) else np.asarray(X.toarray())

    return Pair(dense(pair.X), pair.y, dense(pair.X2), pair.y2, pair.index, "dense")


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("mode", L1)
def test_frank_wolfe_scores_on_dense_rows(mode, adjacency, intercept):
    # Without an intercept a zero row is a record that contributes nothing; with one, two rows are needed to drop one.
    zero = adjacency == "zero-out" and not intercept
    pairs = neighbours(task(mode), zero_out=zero, least_rows=2)

    @given(pairs, st.lists(st.integers(0, 9), min_size=1, max_size=5))
    def check(pair, vertices):
        plan, seen = dense_moves(densely(pair), mode, adjacency, vertices, fit_intercept=intercept)
        for scale, change in seen:
            assert scale <= plan.noise * ROUNDING
            assert change <= allowed(plan, scale)

    check()


def extreme_pair(mode, adjacency, n=3):
    """Records that differ in feature 1 alone, at weights far along feature 0: residuals are as large as they get."""
    bound = L1[mode]["feature_bound"]
    X = np.zeros((n, 2))
    X[0] = bound, bound
    X2 = np.zeros_like(X)
    if adjacency == "replace-one":
        X2[0] = bound, -bound
    y = np.zeros(n)
    y[0] = 0.0 if task(mode) == "binary" else -1e3
    return Pair(X, y, X2, y.copy(), 0, "dense")


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("mode", L1)
def test_frank_wolfe_scores_attained_on_dense_rows(mode, adjacency):
    # Vertex 0 is +e_0 at every step: |w|_1 goes to the radius.
    plan, seen = dense_moves(extreme_pair(mode, adjacency), mode, adjacency, [0] * 12)
    for scale, change in seen:
        # At every public iterate the smaller bound is reached too.
        assert 0.98 * allowed(plan, scale) <= change <= allowed(plan, scale)
    assert 0.95 * plan.sensitivity <= seen[-1][1] <= plan.sensitivity * ROUNDING
    if mode == "logistic":
        assert seen[0][0] < 0.51 * plan.noise, "half the range at w = 0 when the radius saturates the sigmoid"


# --- Frank-Wolfe, CSR rows: along the transcript of a real run, replayed with the same theta ----------


def public_theta(plan, seed):
    """The numbers that a fit of this plan draws for the places of the rows, before anything else."""
    return fit_stream(plan, noise_source(seed, None)).random(plan.n, dtype=np.float32)


def public_blocks(plan, vertices):
    """(first step, number of steps, limit of residuals) of every block, from public numbers alone."""
    settings, found = plan.settings, []
    law, radius = settings.noise_law(plan), settings.l1_radius
    for first, count in vertex_paths.blocks(settings.steps, settings.refresh):
        w = np.zeros(settings.width(plan.d))
        for t in range(1, first):
            w = l1_frank_wolfe._move(w, int(vertices[t - 1]), radius, t)
        norm = vertex_paths.reachable(float(np.abs(w).sum()), radius, first, count)
        found.append((first, count, law.residual_limit(norm)))
    return found


def gradients_in_use(plan, vertices, seed, X, y):
    """The sum gradient with which every step compares vertices, by the specification."""
    settings = plan.settings
    rows, labels = settings.bounds.clip(check_rows(sparse.csr_matrix(X)), y)
    few = settings.loss_row.linear and plan.d <= vertex_paths.LARGEST_GRAM
    if settings.refresh == 1 or few:
        return reference.textbook_path(rows.matrix, labels, settings.loss_row, settings.l1_radius, vertices)[1]
    theta, count = public_theta(plan, seed), vertex_paths.level_count(plan)
    return reference.dithered_path(
        rows.matrix,
        labels,
        settings.loss_row,
        settings.l1_radius,
        settings.feature_bound,
        vertices,
        public_blocks(plan, vertices),
        theta,
        count,
    )[1]


def sparse_moves(pair, mode, adjacency, steps, seed, **more):
    """(plan, [(noise scale, range of the change)]) along the vertices that a real CSR fit chose."""
    arguments = BUDGET | L1[mode] | {"adjacency": adjacency} | more
    result = solvers.dp_frank_wolfe(sparse.csr_matrix(pair.X), pair.y, steps=steps, rng=seed, **arguments)
    plan, vertices, scales = result.plan, result.history["vertices"], result.history["noise_scale"]
    ours, theirs = (gradients_in_use(plan, vertices, seed, X, y) for X, y in ((pair.X, pair.y), (pair.X2, pair.y2)))
    share = plan.settings.l1_radius / plan.n
    changes = [spread(share * np.concatenate([a - b, b - a])) for a, b in zip(ours, theirs, strict=True)]
    return plan, list(zip(scales, changes, strict=True))


def watched_steps(monkeypatch):
    """The gradients with which the steps of the two dithered kernels, run as Python, draw their vertices."""
    seen, heights = [], []

    def watched_block(block):
        def watched(rng, grid, *arguments):
            heights.append(2 * grid.limit / grid.levels)
            return block(rng, grid, *arguments)

        return watched

    def watched_choice(choose):
        def watched(rng, totals, *arguments):
            seen.append(heights[-1] * totals)
            return choose(rng, totals, *arguments)

        return watched

    for name in ("dithered_block", "dithered_laplace_block"):
        monkeypatch.setattr(kernel, name, watched_block(getattr(kernel, name).py_func))
    for name in ("accepted_feature", "laplace_vertex"):
        monkeypatch.setattr(kernel, name, watched_choice(getattr(kernel, name)))
    return seen


@pytest.mark.parametrize("law", ["gumbel", "laplace"])
@pytest.mark.parametrize("mode", L1)
def test_the_replay_is_what_the_kernel_compares(mode, law, monkeypatch):
    """The specification, with theta and levels worked out here, has the gradients of a real fit, step by step."""
    rng, steps = np.random.default_rng(1), 60
    X = sparse.random(25, 6, 0.5, random_state=rng, format="csr", data_rvs=lambda k: rng.uniform(-1, 1, k))
    X.data = np.float32(X.data).astype(float) * L1[mode]["feature_bound"]
    X = X.multiply((np.arange(25) % 7 > 0)[:, None]).tocsr()
    y = (rng.random(25) < 0.5) * 1.0
    seen = watched_steps(monkeypatch)
    monkeypatch.setattr(vertex_paths, "LARGEST_GRAM", 0)
    arguments = BUDGET | L1[mode] | {"law": law, "epsilon": 50.0}
    result = solvers.dp_frank_wolfe(X, y, steps=steps, rng=3, **arguments)
    plan, vertices = result.plan, result.history["vertices"]
    expected = gradients_in_use(plan, vertices, 3, X, y)
    assert len(seen) == steps
    np.testing.assert_allclose(np.array(seen) * plan.settings.feature_bound, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("refresh", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("mode", L1)
def test_frank_wolfe_scores_on_sparse_rows(mode, adjacency, refresh):
    @given(neighbours(task(mode), zero_out=adjacency == "zero-out"), st.integers(0, 2**32))
    def check(pair, seed):
        plan, seen = sparse_moves(pair, mode, adjacency, steps=7, seed=seed, refresh=refresh)
        for scale, change in seen:
            assert scale <= plan.noise * ROUNDING
            assert change <= allowed(plan, scale)

    check()


@pytest.mark.parametrize("adjacency", RELATIONS)
def test_scores_of_the_squared_loss_with_many_features(adjacency, monkeypatch):
    """Dithered too: at most the range, and all of it."""
    monkeypatch.setattr(vertex_paths, "LARGEST_GRAM", 0)
    test_frank_wolfe_scores_on_sparse_rows("squared", adjacency, 0.25)
    test_frank_wolfe_scores_attained_on_sparse_rows("squared", adjacency)


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("mode", L1)
def test_frank_wolfe_scores_attained_on_sparse_rows(mode, adjacency):
    # n large and all other records agree on feature 0: the run goes along +e_0 although it is noisy.
    n = 4000
    few = extreme_pair(mode, adjacency)
    X, X2, y = np.zeros((n, 2)), np.zeros((n, 2)), np.full(n, 1.0 if task(mode) == "binary" else 1e3)
    X[:, 0] = X2[:, 0] = L1[mode]["feature_bound"]
    X[0], X2[0], y[0] = few.X[0], few.X2[0], few.y[0]
    plan, seen = sparse_moves(Pair(X, y, X2, y.copy(), 0, "csr"), mode, adjacency, steps=12, seed=0, epsilon=300.0)
    assert max(change for _, change in seen) >= 0.95 * plan.sensitivity
    assert all(change <= allowed(plan, scale) for scale, change in seen)


def test_frank_wolfe_beyond_65536_features():
    d = 70_000
    X = sparse.lil_matrix((2, d))
    X[0, d - 1], X[1, 3] = 1.0, 1.0
    X2 = X.copy()
    X2[0, d - 1] = -1.0
    arguments = BUDGET | {"loss": "logistic", "l1_radius": 2.0, "feature_bound": 1.0, "steps": 3, "rng": 0}
    result = solvers.dp_frank_wolfe(X.tocsr(), [0, 1], refresh=1.0, **arguments)
    rows, rows2 = check_rows(X), check_rows(X2)
    loss, y = losses.get("logistic"), np.array([0.0, 1.0])
    paths = [reference.textbook_path(r.matrix, y, loss, 2.0, result.history["vertices"])[1] for r in (rows, rows2)]
    for t, (one, two) in enumerate(zip(*paths, strict=True), start=1):
        change = 2.0 * np.concatenate([one - two, two - one]) / 2
        assert change[d - 1] != 0
        assert 0.9 * allowed(result.plan, result.history["noise_scale"][0]) <= spread(change)
        assert spread(change) <= allowed(result.plan, result.history["noise_scale"][t - 1])


def test_noise_covers_every_iterate_of_a_block():
    """The block's noise is for the largest |w|_1 that it can reach, whichever vertices are chosen."""
    for refresh in (0.0, 0.1, 0.25, 0.5, 1.0):
        for first, count in vertex_paths.blocks(60, refresh):
            norm = 0.3
            worst = norm
            for t in range(first, first + count - 1):
                norm = (1 - 2 / (t + 2)) * norm + 2 / (t + 2) * 1.7
                worst = max(worst, norm)
            assert vertex_paths.reachable(0.3, 1.7, first, count) == pytest.approx(worst, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
@pytest.mark.parametrize("refresh", [0.0, 0.25, 0.5, 1.0])
def test_blocks_cover_all_steps_once(steps, refresh):
    found = vertex_paths.blocks(steps, refresh)
    assert [t for first, count in found for t in range(first, first + count)] == list(range(1, steps + 1))
    if refresh == 1.0:
        assert len(found) == steps


# --- multinomial --------------------------------------------------------------------------------------

SOFTMAX = {"classes": 3, "l1_radius": 20.0, "feature_bound": 1.5}


def softmax_moves(pair, adjacency, chosen, steps, **more):
    arguments = BUDGET | SOFTMAX | {"adjacency": adjacency, "steps": steps} | more

    def run(X, y):
        return solvers.dp_multinomial_frank_wolfe(X, y, rng=0, **arguments)

    watch, n = lambda: selection_scores(chosen), len(pair.y)
    other, factor = (pair.X2, pair.y2), 1.0
    if adjacency == "zero-out" and more.get("fit_intercept"):
        # A zero row still has an intercept: leave the record out and keep n.
        other, factor = (np.delete(pair.X, pair.index, axis=0), np.delete(pair.y, pair.index)), (n - 1) / n
    ours, theirs = both(watch, lambda: run(pair.X, pair.y), lambda: run(*other))
    plan = solvers.plan("dp_multinomial_frank_wolfe", n=n, d=pair.X.shape[1], **arguments)
    assert len(ours) == plan.releases[0].count, "every selection is charged"
    if factor == 1.0:
        assert [scale for _, scale in ours] == [scale for _, scale in theirs], "noise follows public weights alone"
    moved = two_largest if plan.releases[0].law == SYMMETRIC_MAXIMUM else spread
    return plan, [(moved(a - factor * b), scale) for (a, scale), (b, _) in zip(ours, theirs, strict=True)]


def two_largest(change):
    """The two largest |changes| together, of scores that are followed by their negatives; the changes add up to 0."""
    half = len(change) // 2
    np.testing.assert_allclose(change[half:], -change[:half], atol=1e-12)
    assert abs(change[:half].sum()) <= 1e-9 * (1 + np.abs(change).max())
    return float(np.sort(np.abs(change[:half]))[-2:].sum())


@pytest.mark.parametrize("selection", ["vertex", "columns"])
@pytest.mark.parametrize("adjacency", RELATIONS)
def test_multinomial_scores(adjacency, selection):
    zero = adjacency == "zero-out"

    @given(neighbours("3 classes", zero_out=zero), st.lists(st.integers(0, 99), min_size=12, max_size=12))
    def check(pair, chosen):
        plan, seen = softmax_moves(pair, adjacency, chosen, steps=3, selection=selection)
        for change, scale in seen:
            assert change <= allowed(plan, scale) * ROUNDING
            assert scale <= plan.noise

    check()


@pytest.mark.parametrize("radius", [20.0, 0.1])
@pytest.mark.parametrize("selection", ["vertex", "columns"])
@pytest.mark.parametrize("adjacency", RELATIONS)
def test_multinomial_scores_with_an_intercept(adjacency, selection, radius):
    """The intercept's column competes, and is charged, as every other; by columns it is one more selection a step."""
    rng, n, d, shares = np.random.default_rng(0), 4, 2, []
    for index in range(6):
        X, y = 2 * rng.standard_normal((n, d)), rng.integers(0, 3, n) * 1.0
        X2, y2 = X.copy(), y.copy()
        X2[0], y2[0] = (-X[0], (y[0] + 1) % 3) if adjacency == "replace-one" else (0.0, y[0])
        chosen = [int(choice) for choice in rng.integers(0, 3, 3 * (d + 1))]
        pair = Pair(X, y, X2, y2, 0, "dense")
        plan, seen = softmax_moves(
            pair, adjacency, chosen, steps=3, selection=selection, l1_radius=radius, fit_intercept=True
        )
        assert plan.releases[0].count == (3 if selection == "vertex" else 3 * (d + 1)), index
        shares += [change / allowed(plan, scale) for change, scale in seen]
    assert 0.2 < max(shares) <= 1, "and noise for a fifth of it would be seen"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("selection", ["vertex", "columns"])
@pytest.mark.parametrize("adjacency", RELATIONS)
def test_multinomial_scores_attained(adjacency, selection, form):
    # Entry (class 0, feature 0) grows until the softmax says class 0 for certain; the true class is another.
    X, X2 = np.zeros((2, 2)), np.zeros((2, 2))
    X[0] = 1.5, 1.5
    if adjacency == "replace-one":
        X2[0] = 1.5, -1.5
    y = np.array([1.0, 2.0])
    pair = Pair(in_form(X, form), y, in_form(X2, form), y, 0, form)
    # By columns, feature 1 must choose as well: class 2, up and down in turn, so that it stays small.
    chosen = [0] * 4 if selection == "vertex" else [0, 2, 0, 5] * 2
    plan, seen = softmax_moves(pair, adjacency, chosen, steps=4, selection=selection)
    largest = max(change for change, _ in seen)
    assert 0.99 * plan.sensitivity <= largest <= plan.sensitivity * ROUNDING


@pytest.mark.parametrize("radius", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("adjacency", RELATIONS)
def test_multinomial_noise_is_for_what_is_attained_at_every_iterate(adjacency, classes, radius):
    """All weight is on one entry of class 0, and the record of that class has it against itself: 1 - p is largest."""
    X, X2 = np.zeros((2, 3)), np.zeros((2, 3))
    X[0] = -1.5, 1.5, 1.5
    if adjacency == "replace-one":
        X2[0] = -1.5, -1.5, -1.5
    y = np.array([0.0, 1.0])
    size = max(radius, 1e-9) / (2 / 3)
    plan, seen = softmax_moves(
        Pair(X, y, X2, y, 0, "dense"), adjacency, [0, 0], steps=2, classes=classes, l1_radius=size
    )
    # The first selection is at zero weights, the second after the entry has 2/3 of the radius.
    change, scale = seen[0 if radius == 0 else 1]
    assert 0.999 * allowed(plan, scale) <= change <= allowed(plan, scale) * ROUNDING
    if radius == 0:
        assert scale == pytest.approx(plan.noise, rel=1e-6)


@pytest.mark.parametrize("adjacency", RELATIONS)
def test_columns_move_by_their_two_largest_together(adjacency):
    """In a small ball, where a plan of three classes is charged for these."""

    @given(neighbours("3 classes", zero_out=adjacency == "zero-out"), st.lists(st.integers(0, 99), min_size=24))
    def check(pair, chosen):
        plan, seen = softmax_moves(pair, adjacency, chosen, steps=6, selection="columns", l1_radius=0.1)
        assert plan.releases[0].law == SYMMETRIC_MAXIMUM
        for change, scale in seen:
            assert change <= allowed(plan, scale)
            assert scale <= plan.noise * ROUNDING

    check()


@pytest.mark.parametrize("weight", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("classes", [3, 4, 10])
@pytest.mark.parametrize("adjacency", RELATIONS)
def test_the_two_largest_are_attained_at_given_weights(adjacency, classes, weight):
    """All weight is on class 1 and feature 0, which both records have. They are of class 0, opposite in feature 1."""
    n, bound = 5, 1.5
    arguments = BUDGET | {"steps": 20, "classes": classes, "feature_bound": bound, "selection": "columns"}
    plan = solvers.plan("dp_multinomial_frank_wolfe", n=n, d=2, l1_radius=0.5, adjacency=adjacency, **arguments)
    assert plan.releases[0].law == SYMMETRIC_MAXIMUM
    W = np.zeros((classes, 2))
    W[1, 0] = weight
    residual = losses.softmax(W @ [bound, bound]) - np.eye(classes)[0]
    other = -bound * residual if adjacency == "replace-one" else 0 * residual
    change = plan.settings.l1_radius * (bound * residual - other) / n
    scale = float(plan.settings.noise_law(plan)(W[None])[0])
    assert two_largest(symmetric(change)) == pytest.approx(allowed(plan, scale), rel=1e-8)


@pytest.mark.parametrize("selection", ["vertex", "columns"])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_noise_follows_all_weights_of_a_class_together(classes, selection):
    """The weights of one class lie on two features, both of which the record has: its margin is that of their sum.

    A share of the noise from the largest weight alone would be for half of that margin.
    """
    n, bound, radius = 5, 1.5, 0.5
    arguments = BUDGET | {"steps": 20, "classes": classes, "feature_bound": bound, "selection": selection}
    plan = solvers.plan("dp_multinomial_frank_wolfe", n=n, d=2, l1_radius=radius, **arguments)
    pairs = plan.releases[0].law == SYMMETRIC_MAXIMUM
    # The worst class of the record: its own margin is the lowest, or for the two largest moves, another's the highest.
    own, sign = (1, 1.0) if pairs else (0, -1.0)
    W = np.zeros((classes, 2))
    W[own] = 0.25, 0.25
    residual = losses.softmax(W @ [sign * bound, sign * bound]) - np.eye(classes)[0]
    change = radius * 2 * bound * residual / n
    scale = float(plan.settings.noise_law(plan)(W[None])[0])
    moved = two_largest(symmetric(change)) if pairs else spread(symmetric(change))
    assert moved == pytest.approx(allowed(plan, scale), rel=1e-8)
    alone = float(plan.settings.noise_law(plan)(np.abs(W).max(axis=1)[None, :, None] * [[[1.0, 0.0]]])[0])
    assert moved > 1.01 * allowed(plan, alone), "the twin"


def symmetric(values):
    return np.concatenate([values, -values])


# --- peeling ------------------------------------------------------------------------------------------

PEEL = {"sparsity": 2, "step_size": 0.7, "radius": 1.3, "feature_bound": 1.5, "label_bound": 2.0}


def peel_moves(pair, adjacency, iterates, **more):
    arguments = BUDGET | PEEL | {"adjacency": adjacency, "steps": len(iterates)} | more

    def run(X, y):
        return solvers.peeling_iht(X, y, rng=0, **arguments)

    watch = lambda: peeled_vectors(iterates)  # noqa: E731
    ours, theirs = both(watch, lambda: run(pair.X, pair.y), lambda: run(pair.X2, pair.y2))
    return solvers.plan("peeling_iht", n=len(pair.y), d=pair.X.shape[1], **arguments), ours, theirs


@pytest.mark.every(3)
@pytest.mark.parametrize("data", ["full", "split"])
@pytest.mark.parametrize("adjacency", RELATIONS)
def test_peeling_support_and_values(adjacency, data):
    @given(neighbours("regression", zero_out=adjacency == "zero-out", least_rows=4), st.integers(0, 2**32))
    def check(pair, seed):
        d = pair.X.shape[1]
        rng = np.random.default_rng(seed)
        s = min(d, 2)
        iterates = []
        for _ in range(3):
            w = np.zeros(d)
            w[rng.choice(d, s, replace=False)] = 9 * rng.standard_normal(s)
            iterates.append(w)
        plan, ours, theirs = peel_moves(pair, adjacency, iterates, sparsity=s, data=data)
        support, values = plan.releases
        moved = 0
        for (v, share), (v2, share2) in zip(ours, theirs, strict=True):
            assert share == share2 <= 1, "noise follows public weights alone"
            assert spread(np.abs(v) - np.abs(v2)) <= share * support.sensitivity * ROUNDING
            # Any s entries may be the released ones: take those that move most.
            most = np.sort(np.abs(v - v2))[-s:]
            assert np.linalg.norm(most) <= share * values.sensitivity * ROUNDING
            moved += bool((v != v2).any())
        if data == "split":
            assert moved <= 1, "a record lies in one block"

    check()


@pytest.mark.parametrize("part", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("data", ["full", "split"])
@pytest.mark.parametrize("adjacency", RELATIONS)
def test_peeling_attained(adjacency, data, part):
    """Weights as spread out as an s-sparse vector in the ball allows, or a part of them; the record pulls half of the
    other entries up and half down, the other records keep all of them positive."""
    bound, n, d = PEEL["feature_bound"], 12, 6
    w = np.zeros(d)
    w[:2] = part * PEEL["radius"] / math.sqrt(2)
    signs = np.array([1, 1, 1, 1, -1, -1])
    X = np.full((n, d), -bound)
    X[:, :2] = bound
    y = np.full(n, -9.0)
    X2 = X.copy()
    row = 0 if data == "full" else 6
    X[row] = bound * signs
    X2[row] = bound * np.where(np.arange(d) < 2, 1, -signs) if adjacency == "replace-one" else 0.0
    plan, ours, theirs = peel_moves(Pair(X, y, X2, y.copy(), row, "dense"), adjacency, [w, w], data=data)
    support, values = plan.releases
    (v, share), (v2, _) = ours[1], theirs[1]
    assert (v[2:] > 0).all() and (v2[2:] > 0).all()
    assert spread(np.abs(v) - np.abs(v2)) == pytest.approx(share * support.sensitivity, rel=1e-9)
    assert np.linalg.norm((v - v2)[2:4]) == pytest.approx(share * values.sensitivity, rel=1e-9)
    assert share == 1 if part == 1 else share < 1


# --- the sparsifier's count ---------------------------------------------------------------------------


def count_arguments(**more):
    return {
        "l1_radius": 1.0,
        "steps": 1,
        "epsilon": 1.5,
        "count_share": 1 / 3,
        "delta": 1e-6,
        "loss": "squared",
        "feature_bound": 1.0,
        "label_bound": 1.0,
        "count_steps": 40,
    } | more


class Silent(np.random.Generator):
    """Geometric draws are all 1, so that the two-sided noise is 0."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def geometric(self, p, size=None):
        return 1


def exact_count(X, y, **more):
    return solvers.sparsifier(X, y, rng=Silent(), **count_arguments(**more)).history["number"]


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("adjacency", RELATIONS)
def test_count_moves_by_the_whole_span(adjacency, form):
    """One loud record keeps the exact path on one vertex; without it the path visits all the others."""
    n = d = 9
    X, y = np.eye(n), np.full(n, 0.1)
    y[0] = 1.0
    y[1:] -= np.arange(1, n) * 1e-3
    X2, y2 = X.copy(), y.copy()
    X2[0] = 0.0
    bounds = {"alpha": 1.5, "beta": 7.9, "adjacency": adjacency, "l1_radius": 0.4}
    plan = solvers.plan("sparsifier", n=n, d=d, **count_arguments(**bounds))
    counting = plan.releases[1]
    few, many = (exact_count(in_form(A, form), b, **bounds) for A, b in ((X, y), (X2, y2)))
    assert (few, many) == (2, 7)
    assert many - few == counting.sensitivity == counting.event.sensitivity


@given(neighbours("regression"), st.floats(0, 3), st.floats(0, 3), st.floats(0.1, 5))
def test_count_is_an_integer_inside_its_bounds(pair, low, more, rho):
    d = pair.X.shape[1]
    bounds = {"alpha": min(low, d - 1.0), "beta": min(low, d - 1.0) + 1.0 + more, "rho": rho}
    if math.ceil(bounds["alpha"]) >= min(math.floor(bounds["beta"]), d):
        return
    plan = solvers.plan("sparsifier", n=len(pair.y), d=d, **count_arguments(**bounds))
    span = plan.releases[1].sensitivity
    bounds |= {"rho": 1.0}
    counts = [exact_count(X, y, **bounds) for X, y in ((pair.X, pair.y), (pair.X2, pair.y2))]
    assert abs(counts[0] - counts[1]) <= span
    for count in counts:
        assert isinstance(count, int)
        assert math.ceil(bounds["alpha"]) <= count <= min(math.floor(bounds["beta"]), d)
