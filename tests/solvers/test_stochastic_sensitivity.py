"""One record moves the three queries of the stochastic solvers by at most what the plan says, and some by nearly that.

The queries are computed by the kernels from exactly what the solvers hand to them, on one batch for both neighbours.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import losses, solvers
from dptoolkit.audit import layout
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.kernels import stochastic as kernel
from dptoolkit.solvers import _scsg
from dptoolkit.solvers.engine import snapshots
from dptoolkit.solvers.engine.bounds import constant
from dptoolkit.solvers.engine.snapshots import ranked_means, snapshot_gradient
from tests.strategies import neighbours

ROUNDING = 1 + 1e-11
# Sensitivities do not depend on the budget, and an infinite one needs no calibration.
COMMON = {"sparsity": 1, "step_size": 0.5, "epsilon": math.inf}
MODES = {
    "logistic": {"loss": "logistic", "row_norm": 1.5},
    "logistic, clipped gradients": {"loss": "logistic", "row_norm": 1.5, "grad_norm": 0.4},
    "huber": {"loss": "huber", "row_norm": 0.7},
    "hinge": {"loss": "hinge", "row_norm": 1.3},
    "hinge, clipped gradients": {"loss": "hinge", "row_norm": 1.3, "grad_norm": 0.4},
    "squared, clipped gradients": {"loss": "squared", "grad_norm": 2.0},
    "squared, clipped rows and gradients": {"loss": "squared", "grad_norm": 2.0, "row_norm": 1.0},
    "squared, labels and margins": {"loss": "squared", "row_norm": 1.2, "label_bound": 2.0, "margin_bound": 1.5},
}
SAMPLINGS = [("without-replacement", "replace-one"), ("poisson", "zero-out"), ("poisson", "replace-one")]


def task(mode):
    return losses.get(MODES[mode]["loss"]).task


@contextmanager
def handed_over():
    """What the solvers give to the kernels and to the snapshot; nothing is computed."""
    seen = SimpleNamespace()

    def plain(rng, sizes, rows, batch, step_size, l2, scale, shares, places, *rest):
        seen.rows, seen.shares = rows, (shares, places)
        return rest[-1]

    def reduced(rng, sizes, rows, batch, step_size, l2, scale, slope, grain, *rest):
        seen.rows, seen.slope, seen.grain = rows, slope, grain
        return rest[-1]

    def snapshot(data, records, size, sampling, support, values, scale, rng, numbering):
        seen.data, seen.drawn, seen.numbering = data, (size, sampling), numbering
        return np.zeros(data.rows.shape[1])

    with (
        mock.patch.object(kernel, "sgd_steps", plain),
        mock.patch.object(kernel, "reduced_steps", reduced),
        mock.patch.object(_scsg, "snapshot_gradient", snapshot),
    ):
        yield seen


def prepared(X, y, mode, sampling, intercept):
    """(what dp_sgd_ht hands over, what dp_scsg_ht hands over, their plans), for batches of all rows."""
    n, (scheme, adjacency) = len(y), sampling
    arguments = COMMON | MODES[mode] | {"sampling": scheme, "adjacency": adjacency, "fit_intercept": intercept}
    with handed_over() as first:
        plain = solvers.dp_sgd_ht(X, y, steps=1, batch_size=n, rng=0, **arguments)
    with handed_over() as second:
        reduced = solvers.dp_scsg_ht(X, y, epochs=1, snapshot_size=n, batch_size=n, option="II", rng=0, **arguments)
    return first, second, plain.plan, reduced.plan


def place(w):
    """(support, values, filled) of a vector, with room for all of it."""
    support, values = np.zeros(len(w), np.int64), np.zeros(len(w))
    kept = np.flatnonzero(w)
    support[: len(kept)], values[: len(kept)] = kept, w[kept]
    return support, values, len(kept)


def vector(support, values, filled, width):
    w = np.zeros(width)
    w[support[:filled]] = values[:filled]
    return w


def batch_gradient(rows, batch, w):
    """The sum of the rows' gradients at w over ``batch``: a step of size 1 without noise that keeps everything."""
    support, values, filled = place(w)
    all_rows = np.array([len(rows.y)])
    silent = constant(0.0).arguments
    filled = kernel.sgd_steps(
        np.random.default_rng(0), all_rows, rows, batch, 1.0, 1.0, *silent, len(w), 0, len(w), support, values, filled
    )
    # The L2 term of weight 1 takes w away exactly.
    return -vector(support, values, filled, len(w))


def reduced_gradient(rows, batch, w, s):
    """The sum over rows of gradient(w) - gradient(s), over ``batch``: an empty batch leads from s to w.

    With a snapshot gradient of -w, and an L2 term of weight 1 that takes the weights away, it comes out with w on top.
    """
    support, values, filled = place(s)
    filled = kernel.reduced_steps(
        np.random.default_rng(0), np.array([0, len(rows.y)]), rows, batch, 1.0, 1.0, 0.0, np.inf, 0.0, len(w), 0,
        len(w), ranked_means(-w, len(w), len(w), 0.0, None), support, values, filled,
    )  # fmt: skip
    return w - vector(support, values, filled, len(w))


def snapshot_query(seen, w):
    support = np.flatnonzero(w)
    rng = np.random.default_rng(0)
    return snapshot_gradient(seen.data, seen.data.records(), *seen.drawn, support, w[support], 0.0, rng, seen.numbering)


def without(X, index):
    keep = np.delete(np.arange(X.shape[0]), index)
    return X.tocsr()[keep] if sparse.issparse(X) else X[keep]


def queries(X, y, mode, sampling, intercept, w, s, batch):
    """The three queries on all rows, divided by ``batch``, and the hand-over and plans; zeros for no rows at all."""
    if len(y) == 0:
        return np.zeros(len(w)), np.zeros(len(w)), np.zeros(len(w)), None
    first, second, plain, reduced = prepared(X, y, mode, sampling, intercept)
    scale = len(y) / batch
    return (
        batch_gradient(first.rows, batch, w),
        reduced_gradient(second.rows, batch, w, s),
        scale * snapshot_query(second, s),
        (first, second, plain, reduced),
    )


def moves(pair, mode, sampling, intercept, w, s):
    """[(name, how far the query moved, allowed at w and s, allowed by the plan)]."""
    n = len(pair.y)
    if sampling[1] == "replace-one":
        other = pair.X2, pair.y2
    else:
        other = without(pair.X, pair.index), np.delete(pair.y, pair.index)
    *ours, (first, second, plain, reduced) = queries(pair.X, pair.y, mode, sampling, intercept, w, s, n)
    *theirs, _ = queries(*other, mode, sampling, intercept, w, s, n)
    plain_share = kernel.share_at(*first.shares, float(np.linalg.norm(w)))
    sizes = float(np.linalg.norm(w) + np.linalg.norm(s))
    reduced_share = kernel.reduced_share(second.slope, second.grain, float(np.linalg.norm(w - s)), sizes, 2 * len(w))
    snapshot_share = kernel.share_at(*first.shares, float(np.linalg.norm(s)))
    allowed = [
        ("batch gradient", plain.sensitivity, plain_share),
        ("variance-reduced gradient", reduced.sensitivity, reduced_share),
        ("snapshot gradient", reduced.releases[1].sensitivity, snapshot_share),
    ]
    return [
        (name, float(np.linalg.norm(a - b)), bound * share, bound)
        for (name, bound, share), a, b in zip(allowed, ours, theirs, strict=True)
    ]


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids="/".join)
@pytest.mark.parametrize("mode", MODES)
def test_never_more_than_allowed(mode, sampling, intercept):
    zero_out = sampling[1] == "zero-out"

    @given(
        pair=neighbours(task(mode), zero_out=zero_out),
        weights=st.lists(st.floats(-3, 3), min_size=10, max_size=10),
        size=st.sampled_from((0.0, 1e-3, 1.0, 100.0)),
    )
    def check(pair, weights, size):
        width = pair.X.shape[1] + intercept
        w, s = size * np.array(weights[:width]), size * np.array(weights[5 : 5 + width])
        for name, moved, allowed, _ in moves(pair, mode, sampling, intercept, w, s):
            assert moved <= allowed * ROUNDING + 1e-13 * (1 + size), name

    check()


@pytest.mark.every(3)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_at_the_snapshot_no_record_moves_an_inner_step(mode, intercept):
    """Bit for bit: the first inner step of an epoch is not charged."""
    far = []

    @given(
        pair=neighbours(task(mode)),
        weights=st.lists(st.floats(-3, 3), min_size=10, max_size=10),
        size=st.sampled_from((0.0, 1e-3, 1.0, 1e6, 1e300)),
    )
    def check(pair, weights, size):
        _, second, *_ = prepared(pair.X, pair.y, mode, SAMPLINGS[0], intercept)
        s = size * np.array(weights[: pair.X.shape[1] + intercept])
        assert not reduced_gradient(second.rows, 1.0, s, s).any()
        far.append(bool(reduced_gradient(second.rows, 1.0, s + 1.0, s).any()))

    check()
    assert any(far), "elsewhere a step does show records"


# --- the first inner step of an epoch, in every path of a fit ------------------------------------------------


def uneven(seed, n, d, density=0.6):
    """Rows whose entries differ by many orders of magnitude, so that sums of them are rounded."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-6, 1, (n, d)) * (rng.random((n, d)) < density)
    return X, (rng.random(n) < 0.5).astype(float)


def reduced_plan(n, d, mode, *, batch=6, epsilon=math.inf, **more):
    budget = {"epsilon": epsilon} | ({} if math.isinf(epsilon) else {"delta": 1e-5})
    arguments = {"sparsity": 3, "step_size": 60.0, "epochs": 3, "option": "II", "l2": 1e-3, "batch_size": batch}
    return solvers.plan("dp_svrg_ht", n=n, d=d, **arguments | budget | MODES[mode] | more)


def after_the_first_step(plan, s, m):
    """What a step from the snapshot s gives that sees no record: its gradient is the released m, to the last bit."""
    how = plan.settings
    values = (1.0 - how.step_size * how.l2) * s - how.step_size * m
    out, free = np.zeros(len(s)), plan.d
    kept = np.append(np.argsort(-np.abs(values[:free]), kind="stable")[: how.sparsity], np.arange(free, len(s)))
    out[kept] = values[kept]
    return out


def check_first_steps(plan, snapshots, iterates):
    """``iterates`` (epochs, steps, width): the first of every epoch is public, and the second is not."""
    s, later = np.zeros(snapshots.shape[1]), []
    for m, inner in zip(snapshots, iterates, strict=True):
        np.testing.assert_array_equal(inner[0], after_the_first_step(plan, s, m))
        later.append(np.array_equal(inner[1], after_the_first_step(plan, inner[0], m)))
        s = inner[-1]
    assert not all(later), "twin: a later step does show records"


# With a finite budget the noise of the first step is 0 only where it follows the iterate.
BUDGETS = [(mode, math.inf) for mode in MODES] + [("logistic", 2.0), ("huber", 2.0)]


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids="/".join)
@pytest.mark.parametrize(("mode", "epsilon"), BUDGETS, ids=str)
def test_the_first_inner_step_is_a_function_of_the_release_before_it(mode, epsilon, sampling):
    """Bit for bit, in whole fits: few and many coordinates, dense and sparse rows, counted records, an intercept."""
    scheme, adjacency = sampling
    for seed, (d, form, intercept, counted) in enumerate([
        (5, np.asarray, False, False), (40, sparse.csr_matrix, True, False), (40, np.asarray, False, True),
        (5, sparse.csr_matrix, True, True),
    ]):  # fmt: skip
        X, y = uneven(seed, 20, d)
        counts = np.random.default_rng(seed).multinomial(20, np.full(20, 1 / 20)) if counted else None
        plan = reduced_plan(20, d, mode, epsilon=epsilon, sampling=scheme, adjacency=adjacency, fit_intercept=intercept)
        trace = solvers.bind(plan, form(X), y, counts)(np.random.default_rng(seed), True)
        width = trace.weights.shape[0]
        check_first_steps(plan, trace.history["snapshots"], trace.iterates.reshape(3, 3, width))


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(("mode", "epsilon"), BUDGETS, ids=str)
def test_so_it_is_in_trials_of_one_compiled_call(mode, epsilon, counted):
    X, y = uneven(7, 20, 5)
    plan = reduced_plan(20, 5, mode, epsilon=epsilon)
    one, two = ((X, y), (-X, y)) if not counted else (Counted(a, y, np.ones(20, np.int64)) for a in (X, -X))
    target = PlanTarget(plan, Pair(one, two), "iterates")
    assert hasattr(target._prepared(one), "trials")
    found = layout.read_epochs(plan, target.run(np.array([1, 0, 1], np.int8), 0, Streams(1, "first steps")))
    for gradients, iterates in zip(found.snapshots, found.iterates, strict=True):
        check_first_steps(plan, gradients, iterates)


@pytest.mark.parametrize("batch", [11, 6])
@pytest.mark.parametrize("mode", ["logistic", "squared, clipped gradients"])
def test_so_it_is_where_coordinates_without_data_are_hidden(mode, batch, monkeypatch):
    """A fit without a trace on a wide matrix. Batches of more than half make one inner step an epoch, others more."""
    monkeypatch.setattr(snapshots, "_FEW_HIDDEN", 16)
    X, y = uneven(3, 20, 600, density=0.02)
    plan, seen, real = reduced_plan(20, 600, mode, batch=batch, epsilon=math.inf), [], kernel.reduced_steps

    def watched(*arguments):
        *_, means, support, weights, filled = arguments
        s = dict(zip(support[:filled].tolist(), weights[:filled].tolist(), strict=True))
        after = real(*arguments)
        how = plan.settings
        values = {
            j: (1.0 - how.step_size * how.l2) * s.get(j, 0.0) - how.step_size * means.values[j]
            for j in support[:after].tolist()
        }
        seen.append([values[j] == w for j, w in zip(support[:after].tolist(), weights[:after].tolist(), strict=True)])
        assert means.hidden is not None
        return after

    monkeypatch.setattr(kernel, "reduced_steps", watched)
    solvers.bind(plan, sparse.csr_matrix(X), y).fit(np.random.default_rng(0))
    assert len(seen) == 3 and all(len(epoch) == 3 for epoch in seen)
    assert all(map(all, seen)) is (batch == 11)


@pytest.mark.parametrize("solver", ["dp_scsg_ht", "dp_svrg_ht"])
def test_every_inner_step_but_the_first_of_an_epoch_is_charged(solver):
    """Where their number is fixed; a geometric number is charged as it is."""
    more = {"snapshot_size": 100} if solver == "dp_scsg_ht" else {}
    arguments = {"n": 100, "d": 5, "epochs": 3, "batch_size": 30, "epsilon": 2.0, "delta": 1e-5} | more
    arguments |= MODES["logistic"]
    fixed = solvers.plan(solver, option="II", sparsity=1, step_size=0.5, **arguments)
    assert [release.count for release in fixed.releases] == [3 * (100 // 30 - 1), 3]
    random = solvers.plan(solver, option="I", sparsity=1, step_size=0.5, **arguments)
    assert [release.count for release in random.releases] == [3, 3] and random.releases[0].round_count_law is not None
    # Batches of more than half: one inner step, and only the snapshots are charged.
    alone = solvers.plan(solver, option="II", sparsity=1, step_size=0.5, **arguments | {"batch_size": 60})
    assert alone.releases[0].count == 0
    assert alone.guarantee.epsilon(1e-5) == pytest.approx(2.0, rel=1e-4)


def one_pair(x, y, x2, y2):
    """Neighbours with one record each."""
    X, X2 = np.atleast_2d(np.array(x, dtype=float)), np.atleast_2d(np.array(x2, dtype=float))
    return SimpleNamespace(X=X, y=np.array([y], dtype=float), X2=X2, y2=np.array([y2], dtype=float), index=0)


def attained(pair, mode, w, s, sampling=SAMPLINGS[0]):
    """{query: (share of what is allowed at w and s, share of what the plan allows)}."""
    found = moves(pair, mode, sampling, False, np.array(w), np.array(s))
    return {name: (moved / allowed if allowed else 0.0, moved / bound) for name, moved, allowed, bound in found}


# A record almost across the first axis, where the iterates lie, and far out on it: every margin is beyond every bound.
TILT = 0.05
FAR = np.array([300.0 / TILT, 0.0])


def across(mode, side):
    norm = MODES[mode].get("row_norm", 1.0)
    return [norm * TILT, side * norm * np.sqrt(1 - TILT**2)]


@pytest.mark.parametrize("mode", MODES)
def test_nearly_attained_far_out(mode):
    """Two records with the same margin and almost opposite rows; their residuals are as large as the bounds allow."""
    label = 0.0 if task(mode) == "binary" else -1e6
    found = attained(one_pair(across(mode, 1), label, across(mode, -1), label), mode, FAR, FAR)
    assert found["batch gradient"][1] >= 0.9
    assert found["snapshot gradient"][1] >= 0.9


@pytest.mark.parametrize("mode", MODES)
def test_the_difference_is_nearly_attained_far_out(mode):
    """The residual of the two records goes from one end of its range to the other between s and w."""
    found = attained(one_pair(across(mode, 1), 0.0, across(mode, -1), 0.0), mode, FAR, -FAR)
    assert found["variance-reduced gradient"][1] >= 0.9


@pytest.mark.parametrize("mode", MODES)
def test_nearly_attained_by_leaving_out(mode):
    """Zero-out: half the replace-one bound, and a record on its own reaches it."""
    row = [MODES[mode].get("row_norm", 1.0), 0.0]
    nothing = [0.0, 0.0], 0.0
    label = 0.0 if task(mode) == "binary" else -1e6
    assert attained(one_pair(row, label, *nothing), mode, FAR, FAR, SAMPLINGS[1])["batch gradient"][1] >= 0.9
    found = attained(one_pair(row, 0.0, *nothing), mode, FAR, -FAR, SAMPLINGS[1])
    assert found["variance-reduced gradient"][1] >= 0.9


# Modes with a place where nothing clips the residual.
CLIPPED = ("logistic, clipped gradients", "hinge, clipped gradients")
CURVED = [m for m in MODES if "row_norm" in MODES[m] and m not in CLIPPED]


@pytest.mark.parametrize("distance", [1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("mode", CURVED)
def test_the_adaptive_bound_is_nearly_attained(mode, distance):
    """Near the snapshot: a record along w - s, with a residual that nothing clips, against one across it."""
    norm, half = MODES[mode]["row_norm"], np.array([distance / 2, 0.0])
    # The hinge is curved from margin -1 to -1/2 alone, for the label 0; the others around 0.
    centre = np.array([-0.75 / norm if MODES[mode]["loss"] == "hinge" else 0.0, 0.0])
    pair = one_pair([norm, 0.0], 0.0, [0.0, norm], 0.0)
    found = attained(pair, mode, centre + half, centre - half)["variance-reduced gradient"]
    assert found[0] >= 0.98
    assert found[1] <= distance * max(1.0, norm) * (1 + 1e-6)


@pytest.mark.parametrize("radius", [0.0, 0.5, 1.0, 3.0, 8.0])
def test_the_logistic_share_is_nearly_attained(radius):
    """The noise of a logistic batch gradient shrinks with |w| no further than the worst of many records allow."""
    norm = MODES["logistic"]["row_norm"]
    angles, lengths = np.meshgrid(np.linspace(-np.pi, np.pi, 121), norm * np.array([1.0, 0.7, 0.4]))
    X = np.stack([lengths * np.cos(angles), lengths * np.sin(angles)], axis=-1).reshape(-1, 2)
    w = np.array([radius / norm, 0.0])
    gradients = X / (1 + np.exp(-X @ w))[:, None]
    gaps = np.linalg.norm(gradients[:, None] - gradients[None, :], axis=2)
    i, j = np.unravel_index(gaps.argmax(), gaps.shape)
    assert attained(one_pair(X[i], 0.0, X[j], 0.0), "logistic", w, w)["batch gradient"][0] >= 0.9


def test_the_published_split_is_charged_with_our_sensitivities():
    """What the printed noise gives is computed from what one record can really move."""
    plan = solvers.plan(
        "dp_scsg_ht", n=2000, d=50, loss="squared", grad_norm=1.0, sparsity=5, epochs=2, snapshot_size=400,
        batch_size=100, step_size=0.5, epsilon=2.0, delta=1e-6, calibration="published",
    )  # fmt: skip
    inner, outer = plan.releases
    assert (inner.sensitivity, outer.sensitivity) == (4 / 100, 2 / 400)
    assert inner.scale == plan.published.scales["inner"] and outer.scale == plan.published.scales["snapshot"]
