"""The Frank-Wolfe kernels against reference.py: the path given the vertices, and the law of the vertices on it."""

from __future__ import annotations

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse, stats

from dptoolkit import losses, solvers
from dptoolkit.data import check_rows
from dptoolkit.kernels import frank_wolfe as kernel
from dptoolkit.kernels import reference
from dptoolkit.solvers.engine import vertex_paths
from tests.statistics import assert_binomial, assert_chi2, assert_ks, rejected

DITHERED = ["logistic", "huber", "hinge"]
EVERY = [*DITHERED, "squared"]
LAWS = ["gumbel", "laplace"]


class Block:
    """One kernel call on a small CSR matrix: state before and after, in the kernel's own terms.

    Labels are at most 2, entries at most 1. The squared loss goes by rows of X^T X, or dithered as the others do.
    """

    def __init__(self, X, y, name, radius=2.0, count=4, theta=None, gram=True):
        self.rows = check_rows(sparse.csr_matrix(X))
        self.y, self.loss, self.radius = np.asarray(y, dtype=float), losses.get(name), radius
        self.sides = vertex_paths.both_sides(self.rows, 1.0)
        self.kept, self.count, self.gram = self.y[self.sides.filled], count, gram and name == "squared"
        self.theta = np.random.default_rng(7).random(len(self.y), dtype=np.float32) if theta is None else theta
        self.limit = self.loss.residual_limit(radius, 2.0)

    def run(self, rng, sharpness, count, first=1, noise="gumbel", work=None):
        """From weights 0 as if step ``first`` came next: (vertices, w); ``sharpness`` is per sum gradient."""
        d, work = self.rows.shape[1], np.zeros(4, np.int64) if work is None else work
        v, vertices, room = np.zeros(d), np.empty(count, dtype=np.int64), kernel.sampler(d)
        end = vertices, room, work
        if self.gram:
            p, square = np.asarray(self.rows.matrix.T @ self.y), (np.zeros((d, d)), np.zeros(d, dtype=np.bool_))
            public = noise == "laplace", self.sides.matrix, first, count, self.radius, sharpness, 1.0
            scale = kernel.gram_block(rng, *public, v, np.zeros(d), p, *square, np.zeros(d), *end)
        else:
            run = kernel.dithered_block if noise == "gumbel" else kernel.dithered_laplace_block
            dither = kernel.dither(len(self.kept), d)
            kernel.start(dither, self.theta[self.sides.filled], self.count / 2, 0.0)
            grid = kernel.Grid(self.loss.id, self.limit, self.count, self.radius)
            scale = run(rng, grid, self.sides.matrix, self.kept, first, count, sharpness, 1.0, True, v, dither, *end)
        return vertices, self.radius * scale * v

    def path(self, vertices, first=1):
        """(w, gradients of all steps) by the specification, from weights 0 as if step ``first`` came next."""
        if self.gram:
            return textbook(self, vertices, first)
        # Steps before the first are ones that never happened: the specification counts from 1, so they are cut off.
        padded = [None] * (first - 1) + list(vertices)
        return reference.dithered_path(
            self.rows.matrix,
            self.y,
            self.loss,
            self.radius,
            1.0,
            padded,
            [(first, len(vertices), self.limit)],
            self.theta,
            self.count,
        )

    def gradient(self, vertices, first=1):
        """The sum gradient in use after ``vertices``."""
        return self.path([*vertices, 0], first)[1][-1]


def textbook(block, vertices, first):
    """reference.textbook_path as if step ``first`` came first."""
    X, w, gradients = block.rows.matrix.toarray(), np.zeros(block.rows.shape[1]), []
    for t, vertex in enumerate(vertices, start=first):
        gradients.append(X.T @ block.loss.residual(X @ w, block.y))
        w = (1 - 2 / (t + 2)) * w
        w[vertex % len(w)] += 2 / (t + 2) * block.radius * (1.0 if vertex < len(w) else -1.0)
    return w, gradients


def problem(seed, n=8, d=6, name="logistic", **more):
    """Entries that single precision holds exactly, so that both specifications speak of the same numbers."""
    rng = np.random.default_rng(seed)
    X = sparse.random(n, d, 0.5, random_state=rng, format="csr", data_rvs=lambda k: rng.uniform(-1, 1, k))
    X.data = X.data.astype(np.float32).astype(float)
    y = (rng.random(n) < 0.5) * 1.0 if losses.get(name).task == losses.BINARY else rng.uniform(-2, 2, n)
    return Block(X, y, name, radius=3.0, **more)


# --- the rows, both ways ------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 9), st.sampled_from((1.0, 0.3, 1e-140, 1e140)))
def test_both_sides_are_the_matrix_and_its_transpose(seed, n, d, bound):
    rng = np.random.default_rng(seed)
    X = sparse.random(n, d, 0.4, random_state=rng, format="csr", data_rvs=lambda k: rng.uniform(-1, 1, k) * bound)
    X.data[rng.random(X.nnz) < 0.3] = bound
    matrix, filled = vertex_paths.both_sides(check_rows(X), bound)
    expected = (X.toarray() / bound).astype(np.float32)
    assert np.array_equal(filled, expected.any(axis=1))
    size = int(filled.sum()), d
    rows = sparse.csr_matrix((matrix.data, matrix.indices.astype(int), matrix.indptr.astype(int)), shape=size)
    transposed = matrix.t_data, matrix.t_indices.astype(int), matrix.t_indptr.astype(int)
    columns = sparse.csr_matrix(transposed, shape=size[::-1])
    assert np.array_equal(rows.toarray(), expected[filled])
    assert np.array_equal(columns.toarray(), expected[filled].T) and columns.has_canonical_format
    assert np.abs(matrix.data).max(initial=0.0) <= 1.0


# --- levels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@given(st.floats(-40, 40), st.floats(-2, 2), st.floats(0, 1, exclude_max=True), st.sampled_from((2, 4, 64)))
def test_levels_and_thresholds_are_those_of_the_residual(name, margin, label, theta, count):
    """A level is the residual rounded by theta; it stays between the two thresholds and changes beyond them."""
    loss = losses.get(name)
    y = float(label > 0) if loss.task == losses.BINARY else label
    limit = loss.residual_limit(40.0, 2.0)
    grid = kernel.Grid(loss.id, limit, count, 40.0)
    level = kernel.level_of(grid, margin, y, theta)
    assert level in range(count + 1)
    specified = reference.dithered_levels(loss, np.array([margin]), np.array([y]), np.array([theta]), limit, count)
    assert abs(level - specified[0]) <= (1 if near_a_threshold(loss, margin, y, theta, limit, count) else 0)
    height = 2 * limit / count
    assert abs(level * height - limit) <= limit
    exact = float(loss.residual(np.array([margin]), np.array([y]))[0])
    assert abs(level * height - limit - exact) <= height * (1 + 1e-9)
    if near_a_threshold(loss, margin, y, theta, limit, count):
        return
    if level > 0:
        assert kernel.margin_at(loss.id, (level - theta) * height - limit, y) <= margin + 1e-6 * abs(margin)
    if level < count:
        assert kernel.margin_at(loss.id, (level + 1 - theta) * height - limit, y) >= margin - 1e-6 * abs(margin)


@pytest.mark.parametrize("name", EVERY)
@given(st.floats(-60, 60), st.floats(-2, 2), st.sampled_from((0.0, 2.0**-24, 0.5, 1 - 2.0**-24)))
def test_no_margin_takes_a_residual_beyond_the_limit(name, margin, label, theta):
    """Also one beyond what the weights allow, which sums in single precision may be by a little."""
    loss = losses.get(name)
    y = float(label > 0) if loss.task == losses.BINARY else label
    limit = loss.residual_limit(0.5, 2.0)
    level = kernel.level_of(kernel.Grid(loss.id, limit, 4, 0.5), margin, y, theta)
    assert level in range(5) and abs(level * limit / 2 - limit) <= limit


def near_a_threshold(loss, margin, y, theta, limit, count):
    share = (float(loss.residual(np.array([margin]), np.array([y]))[0]) / limit + 1) / 2 * count + theta
    return abs(share - round(share)) < 1e-9


@pytest.mark.parametrize("name", EVERY)
def test_the_mean_over_theta_is_the_residual(name):
    loss, rng = losses.get(name), np.random.default_rng(5)
    theta = (np.arange(4000) + 0.5) / 4000
    for margin in rng.uniform(-4, 4, 20):
        y = float(margin < rng.uniform(-2, 2))
        limit, count = loss.residual_limit(5.0, 2.0), 4
        grid = kernel.Grid(loss.id, limit, count, 5.0)
        mean = np.mean([kernel.level_of(grid, margin, y, t) for t in theta]) * 2 * limit / count - limit
        assert mean == pytest.approx(float(loss.residual(np.array([margin]), np.array([y]))[0]), abs=2e-3 * limit)


@pytest.mark.parametrize("unknown", [-1, 3, 5, 99])
def test_an_unknown_loss_has_no_level(unknown):
    grid = kernel.Grid(unknown, 1.0, 4, 1.0)
    assert np.isnan(kernel.level_of(grid, 0.3, 1.0, 0.2))
    assert np.isnan(kernel.margin_at(unknown, 0.3, 1.0))


# --- the path, given the vertices ---------------------------------------------------------------------


@pytest.mark.parametrize("noise", LAWS)
@pytest.mark.parametrize("gram", [True, False])
@pytest.mark.parametrize("name", EVERY)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 30), st.sampled_from((1e-3, 1.0, 50.0)))
def test_weights_of_one_block(name, gram, noise, seed, n, count, sharpness):
    block = problem(seed, n=n, d=1 + seed % 9, name=name, gram=gram)
    vertices, w = block.run(np.random.default_rng(seed), sharpness, count, noise=noise)
    np.testing.assert_allclose(w, block.path(vertices)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("refresh", [0.0, 0.25, 0.7, 1.0])
@pytest.mark.parametrize("name", EVERY)
def test_path_of_a_whole_fit(name, refresh):
    block = problem(3, n=30, d=12, name=name)
    result = solvers.dp_frank_wolfe(
        block.rows.matrix,
        block.y,
        loss=name,
        l1_radius=3.0,
        steps=200,
        epsilon=50.0,
        delta=1e-6,
        feature_bound=1.0,
        label_bound=2.0,
        refresh=refresh,
        rng=5,
    )
    w, _ = reference.textbook_path(block.rows.matrix, block.y, block.loss, 3.0, result.history["vertices"])
    np.testing.assert_allclose(result.coef, w, rtol=1e-9, atol=1e-9)
    assert np.abs(result.coef).sum() <= 3.0 * (1 + 1e-12)
    assert len(np.unique(result.history["vertices"])) > 3


# --- the draw -----------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(1, 200), st.sampled_from((1e-3, 1.0, 30.0, 1e4)))
def test_draws_are_inverse_cdfs(seed, d, sharpness):
    """At a given u the feature is the quantile of its law, or the draw is repeated."""
    rng = np.random.default_rng(seed)
    gradient = rng.standard_normal(d)
    room = kernel.sampler(d, shift=int(rng.integers(0, 9)))
    kernel.rebuild(gradient, sharpness, 0.0, room)
    weights, total = room.weights, kernel.settle(room)
    law = reference.vertex_weights(gradient, sharpness)
    features = law[:d] + law[d:]
    np.testing.assert_allclose(weights / weights.sum(), features, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(total, weights.sum(), rtol=1e-12)
    edges = np.concatenate([[0.0], np.cumsum(features)])
    for u in rng.random(20):
        j = kernel.draw_feature(u * total, room)
        if j >= 0:
            assert edges[j] - 1e-12 <= u <= edges[j + 1] + 1e-8


def test_draw_beyond_65536_features():
    d = 70_000
    X = sparse.csr_matrix((np.ones(40), np.full(40, d - 1), np.arange(41)), shape=(40, d))
    block = Block(X, np.ones(40), "huber")
    vertices, w = block.run(np.random.default_rng(0), 1.0, 1)
    assert vertices.tolist() == [d - 1], "e^40 against 7e4 others"
    assert np.flatnonzero(w).tolist() == [d - 1]
    room = kernel.sampler(d)
    kernel.rebuild(np.zeros(d), 1.0, 0.0, room)
    for u in (0.0, 0.25, 65_540.5 / d, 1 - 1e-8):
        assert kernel.draw_feature(u * kernel.settle(room), room) == int(u * d)


def specified_vertices(block, sharpness, count, rng, first=1):
    """What the kernel's own draw finds in weights that were built anew, if accepted: a feature, then a sign.

    A weight is kept, for the exponent ``kept``, until its feature's exponent is larger or the feature is rejected.
    """
    d, unit = block.rows.shape[1], sharpness * 2 * block.limit / block.count
    cover = min(max(kernel._COVER, unit), kernel._LARGEST_COVER)
    found, kept, largest = [], np.full(d, -np.inf), -np.inf
    for _ in range(count):
        exponents = sharpness * block.gradient(found, first)
        sizes = np.abs(exponents)
        kept = np.where(sizes > kept - (1 - kernel._COVERED) * cover, sizes + cover, kept)
        for tries in itertools.count():
            # As the kernel does: all anew if weights have outgrown the offset, have collapsed, or are useless.
            if kept.max() - largest > kernel._LARGEST_EXPONENT or tries == kernel._PATIENCE:
                kept, largest = sizes + cover, (sizes + cover).max()
            if np.exp(kept - largest).sum() < kernel._SMALLEST_TOTAL:
                kept, largest = sizes + cover, (sizes + cover).max()
            room = kernel.sampler(d)
            kernel.rebuild(kept, 1.0, 0.0, room)
            j = kernel.draw(rng, kernel.settle(room), room)
            chance = np.exp(sizes[j] - kept[j]) * (1 + np.exp(-2 * sizes[j])) / (1 + np.exp(-2 * kept[j]))
            if kernel.coin(rng, chance):
                break
            kept[j] = sizes[j] + cover
        found.append(j if kernel.draw_sign(rng, exponents[j]) > 0 else d + j)
    return np.array(found)


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 8.0, 100.0, 3000.0])
@pytest.mark.parametrize("name", EVERY)
def test_dithered_blocks_draw_what_the_specification_draws(name, sharpness):
    """Draw by draw, with rows crossing thresholds, also where weights rise by e^500 or fall until little is left."""
    crossed = 0
    for seed in range(6):
        block = problem(seed, n=40, d=9, name=name, gram=False, count=8)
        block.radius = 20.0
        block.limit, work = block.loss.residual_limit(20.0, 2.0), np.zeros(4, np.int64)
        vertices, _ = block.run(np.random.default_rng(seed), sharpness, 40, work=work)
        specified = specified_vertices(block, sharpness, 40, np.random.default_rng(seed))
        # Near ties a rounding error may decide otherwise, after which the paths part: none of these seeds has one.
        assert np.array_equal(vertices, specified)
        crossed += work[1]
    assert crossed > 300


@pytest.mark.parametrize("name", ["logistic"])
def test_dithered_blocks_on_many_features_draw_what_the_specification_draws(name):
    """With more features than entries a step touches, so that only the touched ones get new weights."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = sparse.random(60, 700, 0.01, random_state=rng, format="csr")
        block, work = Block(X, (rng.random(60) < 0.5) * 1.0, name, radius=40.0), np.zeros(4, np.int64)
        vertices, _ = block.run(np.random.default_rng(seed), 6.0, 60, work=work)
        assert np.array_equal(vertices, specified_vertices(block, 6.0, 60, np.random.default_rng(seed)))
        assert work[3] < 700 + 60 * 5, "most steps weigh hardly any feature"


@pytest.mark.parametrize("gram", [True, False])
@pytest.mark.parametrize("name", EVERY)
def test_laplace_noise_on_every_vertex(name, gram):
    """2d fresh Laplace draws a step, none missing, none shared: recomputed from the same stream."""
    block, sharpness = problem(1, n=20, d=7, name=name, gram=gram), 0.3
    vertices, _ = block.run(np.random.default_rng(2), sharpness, 25, noise="laplace")
    rng, found = np.random.default_rng(2), []
    for _ in range(25):
        gradient = block.gradient(found)
        draws = rng.standard_exponential((7, 4))
        noise = np.concatenate([draws[:, 0] - draws[:, 1], draws[:, 2] - draws[:, 3]])
        found.append(int(np.argmin(sharpness * np.concatenate([gradient, -gradient]) + noise)))
    assert vertices.tolist() == found


# --- small probabilities -----------------------------------------------------------------------------


class Script:
    """A generator whose uniform numbers are given, and then all the same."""

    def __init__(self, *numbers, then=0.0):
        self.numbers, self.then = list(numbers), then

    def random(self):
        return self.numbers.pop(0) if self.numbers else self.then

    standard_exponential = random


def in_python(name, *arguments, **others):
    """A helper of the kernels, which is Python when called from Python, with others in the place of those it calls."""
    with mock.patch.multiple(kernel, **{"coin": kernel.coin, **others}):
        return getattr(kernel, name)(*arguments)


def weighted(*weights):
    room = kernel.sampler(len(weights))
    room.weights[:] = weights
    np.add.at(room.sums, np.arange(len(weights)) >> room.shift, weights)
    room.peaks[:] = room.sums
    return room


def old_sign(rng, exponent):
    """The broken twin: 53 bits against odds of e^60."""
    return -1.0 if rng.random() * (1.0 + np.exp(-2.0 * exponent)) < 1.0 else 1.0


def turns(sign, exponent):
    assert {sign(Script(then=0.0), exponent), sign(Script(then=1 - 2.0**-53), exponent)} == {1.0, -1.0}


@pytest.mark.parametrize("exponent", [0.0, 1.0, 18.0, 30.0, 100.0, 350.0])
def test_either_sign_can_be_drawn(exponent):
    """The less likely one at e^-2 to e^-700, if the bits say so."""
    turns(lambda rng, e: in_python("draw_sign", rng, e), exponent)
    turns(lambda rng, e: in_python("draw_sign", rng, -e), exponent)
    if exponent >= 30:
        rejected(turns, old_sign, exponent)


@pytest.mark.parametrize("exponent", [0.0, 0.4, -1.5, 3.0])
def test_law_of_the_sign(exponent):
    rng = np.random.default_rng(8)
    up = sum(kernel.draw_sign(rng, exponent) > 0 for _ in range(20_000))
    assert_binomial(up, 20_000, 1 / (1 + np.exp(2 * exponent)))


def test_law_of_rare_features():
    """Each light feature with its probability over _RARE, and none with the rest."""
    light, rng = np.array([2e-5, 1e-5, 4e-6]), np.random.default_rng(9)
    room = weighted(light[0], 1.0, light[1], light[2])
    total = kernel.settle(room)
    draws = [kernel.rare_feature(rng, kernel._RARE / 4 * total, room) for _ in range(50_000)]
    counts = np.bincount(np.array(draws) + 1, minlength=5)[[0, 1, 3, 4]]
    chances = light / total / kernel._RARE
    assert_chi2(counts, np.append(1 - chances.sum(), chances))
    rejected(assert_chi2, counts, np.append(1 - 0.8 * chances.sum(), 0.8 * chances))


@pytest.mark.parametrize("size", [1e-10, 1e-100, 1e-290])
def test_features_of_any_probability_keep_their_proportions(size):
    """Given that a rare feature comes at all, whatever its size: 1 to 3 to 6, beside one a million times smaller."""
    room, rng = weighted(3 * size, 1.0, size, 6 * size, size * 1e-6), np.random.default_rng(10)
    plain = kernel.coin

    def coin(generator, chance):
        # The last one is tossed for all of them together.
        together = 10.000001 * size / kernel._RARE
        return abs(chance / together - 1) < 1e-9 or plain(generator, chance)

    draws = [in_python("rare_feature", rng, kernel._RARE / 5, room, coin=coin) for _ in range(3000)]
    counts = np.bincount(draws, minlength=5)
    assert counts[1] == 0 and counts[4] <= 3
    assert_chi2(counts[[0, 2, 3]], np.array([0.3, 0.1, 0.6]))
    rejected(assert_chi2, counts[[0, 2, 3]], np.array([0.25, 0.15, 0.6]))


def test_law_of_the_whole_draw():
    """Heavy features by the walk, light ones now and then; the slack and light ones met by the walk are drawn again."""
    weights, rng = np.array([1e-5, 3.0, 1e-9, 1.0, 4.0, 0.05, 1e-4]), np.random.default_rng(11)
    room = weighted(*weights)
    total = kernel.settle(room)
    counts = np.bincount([kernel.draw(rng, total, room) for _ in range(60_000)], minlength=7)
    assert_chi2(counts, weights)
    rejected(assert_chi2, counts, weights * [1, 1.1, 1, 1, 1, 1, 1])
    # A walk that ends on a light feature does not return it: it has come with its probability already.
    assert in_python("draw", Script(kernel._RARE, 0.5), total, room) != 0
    # The walk alone cannot reach the third one, 1e-10 of all, whose place is less than the slack; the draw does.
    assert in_python("draw", Script(then=0.0), total, room) in (0, 2)


def covering(exponents, extra):
    """Room whose weights are too large by e^extra, one for each feature, and cover what they are for."""
    d, room = len(exponents), kernel.sampler(len(exponents))
    offset = kernel.rebuild(np.abs(exponents) + extra, 1.0, 0.0, room)
    assert (room.covered == np.abs(exponents) + extra).all() and len(room.weights) == d
    return room, offset


def accepted(rng, exponents, extra, accept=kernel.coin):
    """The features of 20,000 selections, each by weights that are too large anew."""
    counts = np.zeros(len(exponents))
    for _ in range(20_000):
        room, offset = covering(exponents, extra)
        arguments = rng, exponents, 1.0, 0.25, offset, 0, room, np.zeros(4, np.int64)
        counts[in_python("accepted_feature", *arguments, coin=accept)[0]] += 1
    return counts


def test_law_of_accepted_features():
    """Weights that are too large by factors that differ do not show: what is drawn is accepted by the exact weight."""
    exponents, extra = np.array([0.0, 1.0, -2.0, 0.5, 1.5]), np.array([0.0, 2.0, 0.1, 1.0, 0.0])
    law = np.cosh(exponents)
    rng = np.random.default_rng(13)
    counts = accepted(rng, exponents, extra)
    assert_chi2(counts, law)
    rejected(assert_chi2, counts, np.cosh(exponents + 0.1 * extra))
    # The broken twin takes what it draws.
    counts = accepted(rng, exponents, extra, accept=lambda generator, chance: True)
    rejected(assert_chi2, counts, law)


def test_a_rejected_feature_gets_another_weight():
    """So a weight that is too large by e^30 is rejected once, not e^30 times; and if all are, all are built anew."""
    exponents, work = np.array([0.3, 2.0, -0.7, 1.0]), np.zeros(4, np.int64)
    room, offset = covering(exponents, np.array([0.0, 30.0, 0.0, 0.0]))
    for seed in range(20):
        _, offset = kernel.accepted_feature(np.random.default_rng(seed), exponents, 1.0, 0.25, offset, 0, room, work)
    np.testing.assert_allclose(room.covered[1], 2.0 + kernel._COVERED * 0.25)
    assert 1 <= work[3] < 20, "without a new weight it would be rejected until all are built anew"
    d = 100
    room, offset = covering(np.full(d, 0.1), np.full(d, 25.0))
    work[:] = 0
    kernel.accepted_feature(np.random.default_rng(0), np.full(d, 0.1), 1.0, 0.25, offset, 0, room, work)
    assert kernel._PATIENCE + d - 1 <= work[3] <= kernel._PATIENCE + d + 10
    assert room.covered.max() < 0.4


def test_exponentials_do_not_end():
    """Beyond 16 a fresh one is added, so that 53 bits are no end; the law stays."""
    assert kernel.exponential(Script(17.0, 40.0, 3.0)) == 35.0
    rng = np.random.default_rng(12)
    assert_ks([kernel.exponential(rng) for _ in range(20_000)], stats.expon.cdf)


# --- the law ------------------------------------------------------------------------------------------

TRIALS = 20_000


def two_steps(block, sharpness, first, seed):
    """Counts of (first vertex, second vertex) over many runs from the same state."""
    size = 2 * block.rows.shape[1]
    rng, counts = np.random.default_rng(seed), np.zeros((size, size))
    for _ in range(TRIALS):
        one, two = block.run(rng, sharpness, 2, first)[0]
        counts[one, two] += 1
    return counts


def two_step_law(block, sharpness, first, second=None):
    """The law of the same pair by the specification; ``second`` may give the second step another sharpness."""
    start = reference.vertex_weights(block.gradient([]), sharpness)
    rows = [reference.vertex_weights(block.gradient([i], first), second or sharpness) for i in range(len(start))]
    return start[:, None] * np.array(rows)


@pytest.mark.every(3)
@pytest.mark.parametrize("first", [1, 40])
@pytest.mark.parametrize("name", EVERY)
def test_law_of_two_selections(name, first):
    X = np.array([[1.0, 0.0, -0.5], [0.3, 1.0, 0.0], [0.0, 0.5, 1.0], [1.0, 1.0, 0.0]])
    # A long step would take the hinge to where it is flat, and nothing but chance would choose there.
    block = Block(X, np.array([1.0, 0.0, 1.0, 1.0]), name, radius=0.9 if name == "hinge" else 4.0, count=64)
    # Logistic gradients are half as large at 0.
    sharpness = {"logistic": 2.0, "hinge": 1.2}.get(name, 0.8)
    counts = two_steps(block, sharpness, first, 11)
    assert_chi2(counts, two_step_law(block, sharpness, first))
    rejected(assert_chi2, counts, two_step_law(block, 0.9 * sharpness, first))
    # The second step alone: 10% less noise is seen there too.
    rejected(assert_chi2, counts, two_step_law(block, sharpness, first, second=sharpness / 0.9))


@example(500_000, 47, 100.0)
@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from((5.0, 36.0, 100.0, 400.0)))
def test_sums_of_weights_that_rise_and_fall(seed, d, height):
    """Weights that fall by e^36 and more: a sum that only follows the differences keeps the rounding errors of what it
    has lost, and then the last feature would always win."""
    rng = np.random.default_rng(seed)
    room, gradient = kernel.sampler(d), rng.choice([0.0, 1.0], d) * height
    offset = kernel.rebuild(gradient, 1.0, 0.0, room)
    for _ in range(15):
        changed = np.flatnonzero(rng.random(d) < 0.4)
        gradient[changed] = rng.choice([0.0, 1e-3, 1.0], len(changed)) * height * rng.random(len(changed))
        room.listed[: len(changed)], room.covered[changed] = changed, -1.0
        assert kernel.reweight(gradient, 1.0, 0.0, offset, len(changed), room)
        total = kernel.settle(room)
        sums = np.add.reduceat(room.weights, np.arange(0, d, 2**room.shift))
        np.testing.assert_allclose(room.sums, sums, rtol=1e-10)
        assert total == pytest.approx(sums.sum(), rel=1e-10)
        # The quantile 1 - 1e-8 is the last feature only if its weight says so; the draw is repeated in a group's slack.
        target = (1 - 1e-8) * total
        j = kernel.draw_feature(target, room)
        in_the_slack = (np.abs(np.cumsum(sums) - target) <= 2 * kernel._SLACK * sums).any()
        assert in_the_slack if j < 0 else room.weights[j + 1 :].sum() <= 1.1e-8 * total


def collapsing(name, first):
    """One feature explains everything; after its step all gradients are (nearly) zero and all vertices alike."""
    n, d = 60, 6
    X = np.zeros((n, d))
    X[:, 0] = 1
    for j in range(1, d):
        X[8 * j : 8 * (j + 1), j] = 1
    radius = {"logistic": 30.0, "huber": 1.0, "squared": 1.0, "hinge": 1.0}[name] * (first + 2) / 2
    return Block(X, np.ones(n), name, radius=radius)


@pytest.mark.parametrize("sharpness", [2.0, 20.0])
@pytest.mark.parametrize("name", EVERY)
def test_law_after_weights_have_collapsed(name, sharpness):
    """The chosen weight falls by e^60 or more within a block: what is left must still have the right law."""
    first = 1000
    block = collapsing(name, first)
    rng = np.random.default_rng(4)
    runs = np.array([block.run(rng, sharpness, 2, first)[0] for _ in range(4000)])
    assert (runs[:, 0] == 0).all()
    law = reference.vertex_weights(block.gradient([0], first), sharpness)
    assert law.min() > 0.05
    assert_chi2(np.bincount(runs[:, 1], minlength=12), law)


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("noise", ["gumbel", "laplace"])
@pytest.mark.parametrize("name", EVERY)
def test_dense_and_sparse_fits_have_the_law_of_the_plan(name, noise, form):
    """One step of the real solver with the noise of the plan. One vertex is ahead of 59 others, by 4 noise scales: it
    wins about every other time, and 10% less noise shows."""
    n, d = 8, 30
    X, y = np.zeros((n, d)), np.ones(n)
    X[:, 0] = 1.0
    plan = solvers.plan(
        "dp_frank_wolfe",
        n=n,
        d=d,
        loss=name,
        l1_radius=2.0,
        steps=1,
        epsilon=2.0,
        delta=1e-9,
        feature_bound=1.0,
        label_bound=1.0,
        law=noise,
    )
    run = solvers.bind(plan, sparse.csr_matrix(X) if form == "csr" else X, y)
    rng, counts = np.random.default_rng(6), np.zeros(2 * d)
    for _ in range(1500):
        history = run(rng, False).history
        counts[history["vertices"][0]] += 1
    gradient = X.T @ losses.get(name).residual(np.zeros(n), y) / n
    scores, scale = -2.0 * np.concatenate([gradient, -gradient]), history["noise_scale"][0]
    assert scores[0] / scale == pytest.approx(4.0, rel=1e-3)
    law = winners(scores, scale, noise)
    assert_chi2(counts, law)
    assert_binomial(counts[0], 1500, law[0])
    rejected(assert_binomial, counts[0], 1500, winners(scores, 0.9 * scale, noise)[0])


def winners(scores, scale, noise):
    if noise == "gumbel":
        weights = np.exp((scores - scores.max()) / scale)
        return weights / weights.sum()
    grid = np.linspace(-30, 40, 14_001)
    shifted = grid[None] - scores[:, None] / scale
    below = np.where(shifted < 0, np.exp(np.minimum(shifted, 0)) / 2, 1 - np.exp(-np.maximum(shifted, 0)) / 2)
    density = np.exp(-np.abs(shifted)) / 2
    law = (density * below.prod(axis=0) / below).sum(axis=1)
    return law / law.sum()


@pytest.mark.parametrize("name", EVERY)
def test_wide_indices(name):
    """64-bit column indices are another compiled version with the same result."""
    block = problem(2, n=10, d=5, name=name)
    plain = block.run(np.random.default_rng(1), 1.0, 15)
    matrix = block.sides.matrix
    block.sides = block.sides._replace(matrix=matrix._replace(indices=matrix.indices.astype(np.uint64)))
    wide = block.run(np.random.default_rng(1), 1.0, 15)
    for a, b in zip(plain, wide, strict=True):
        assert np.array_equal(a, b)
