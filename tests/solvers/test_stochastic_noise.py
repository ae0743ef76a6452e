"""The noise that the stochastic solvers really draw is the plan's: how much, how often, and independent of the data."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from scipy import stats

from dptoolkit import solvers
from dptoolkit.audit import streams
from dptoolkit.kernels import stochastic as kernel
from dptoolkit.solvers import _scsg
from dptoolkit.solvers._scsg import Shape
from dptoolkit.solvers.engine.batches import BatchData
from tests.solvers.capture import Spy
from tests.statistics import assert_binomial, assert_chi2, assert_ks, rejected

PLAIN = {
    "loss": "logistic", "row_norm": 1.0, "sparsity": 3, "step_size": 2.0, "epsilon": 2.0, "delta": 1e-4, "l2": 0.01,
}  # fmt: skip
REDUCED = PLAIN | {"epochs": 6, "snapshot_size": 12, "batch_size": 4}


def data(n=20, d=9, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.4)
    return X, (rng.random(n) < 0.5).astype(float)


# --- every draw, with the kernels as plain Python -----------------------------------------------------------


def test_every_draw_in_plain_python(root):
    """The kernels run uncompiled in a process of their own, where each call and each draw can be watched."""
    code = "from tests.solvers.test_stochastic_noise import watch; watch()"
    settings = {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(root), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["plain", "60", "reduced", "adaptive", "reduced", "constant"]


class Watch:
    """Every step's spread and |w - snapshot|, and the normals it added to the touched values."""

    def __init__(self, spy):
        self.spy, self.spreads, self.distances = spy, [], []
        self.real = kernel.offer_touched

    def __call__(self, rng, spread, batch, step_size, shrink, means, t, count, free, top):
        sums, drawn = t.values[:count].copy(), len(self.spy.of("standard_normal"))
        result = self.real(rng, spread, batch, step_size, shrink, means, t, count, free, top)
        normals = np.array(self.spy.of("standard_normal")[drawn:], dtype=float)
        assert len(normals) == (count if spread > 0 else 0), "one normal for every touched coordinate"
        if spread > 0:
            # Noise and gradient first, then what is public.
            mean = 0.0 if means is None else means[t.keys[:count]]
            wanted = shrink * t.before[:count] - step_size * (mean + (sums / batch + spread * normals))
            assert np.array_equal(t.values[:count], wanted)
        self.spreads.append(spread)
        self.distances.append(float(np.linalg.norm(t.before[:count] - t.old[:count])))
        return result


def watch():
    watch_plain()
    for adaptive in (True, False):
        watch_reduced(adaptive)


def watch_plain():
    X, y = data()
    spy = Spy(1)
    seen = Watch(spy)
    outside = []
    real = kernel.offer_iid
    record = lambda rng, spread, *rest: outside.append(spread) or real(rng, spread, *rest)  # noqa: E731
    with mock.patch.object(kernel, "offer_touched", seen), mock.patch.object(kernel, "offer_iid", record):
        result = solvers.dp_sgd_ht(X, y, steps=60, batch_size=5, trace=True, rng=spy, **PLAIN)
    plan = result.plan
    noise_at = plan.settings.noise_law(plan)
    norms = [0.0] + [float(np.linalg.norm(values)) for _, _, values in result.history["iterates"][:-1]]
    assert np.allclose(norms, seen.distances, rtol=1e-12, atol=0)
    wanted = [noise_at.scale * noise_at.share(norm) for norm in norms]
    assert noise_at.scale == plan.noise
    assert np.allclose(seen.spreads, wanted, rtol=1e-12)
    assert outside == seen.spreads, "coordinates outside have the same noise"
    assert len(seen.spreads) == plan.releases[0].count and len(set(wanted)) > 1
    print("plain", len(wanted))


def watch_reduced(adaptive):
    X, y = data()
    spy, outside, snapshots = Spy(2), [], []
    seen = Watch(spy)
    real, real_snapshot = kernel.offer_means, _scsg.snapshot_gradient

    def snapshot(data, records, size, sampling, support, values, scale, rng, numbering):
        exact = real_snapshot(data, records, size, sampling, support, values, 0.0, Spy(0), numbering)
        before = len(spy.of("standard_normal"))
        noisy = real_snapshot(data, records, size, sampling, support, values, scale, rng, numbering)
        (normals,) = spy.of("standard_normal")[before:]
        assert len(normals) == X.shape[1]
        # The batch of the second call is another one, so only the size of the difference can be compared.
        assert np.linalg.norm(noisy - scale * normals - exact) <= 2.0
        snapshots.append((scale, values.copy()))
        return noisy

    def offer(rng, level, spread, *rest):
        outside.append(spread)
        return real(rng, level, spread, *rest)

    with (
        mock.patch.object(kernel, "offer_touched", seen),
        mock.patch.object(kernel, "offer_means", offer),
        mock.patch.object(_scsg, "snapshot_gradient", snapshot),
    ):
        result = solvers.dp_scsg_ht(X, y, adaptive=adaptive, trace=True, rng=spy, **REDUCED)
    inner, outer = result.plan.releases
    noise_at = result.plan.settings.noise_law(result.plan)
    assert noise_at.scale == outer.scale
    assert [scale for scale, _ in snapshots] == [noise_at(values) for _, values in snapshots]
    assert len(snapshots) == outer.count
    assert len(seen.spreads) == result.history["inner_steps"].sum() == result.history["thresholdings"]
    full = inner.scale
    if not adaptive:
        assert set(seen.spreads) == {full}
    else:
        wanted = np.minimum(1.0, result.plan.settings.slope * np.array(seen.distances))
        assert np.allclose(seen.spreads, full * wanted, rtol=1e-9, atol=0)
        # Never less: rounding of |w - s|, and of what it bounds, is on the private side.
        assert (np.array(seen.spreads) >= full * wanted * (1 - 1e-15)).all()
        # At the snapshot, and there alone, nothing is disclosed and no noise is needed.
        first = np.cumsum([0, *result.history["inner_steps"]])[:-1][result.history["inner_steps"] > 0]
        assert np.flatnonzero(np.array(seen.spreads) == 0).tolist() == first.tolist()
        assert len(set(wanted)) > 5
    assert outside == seen.spreads, "coordinates outside have the same noise"
    print("reduced", "adaptive" if adaptive else "constant")


# --- the whole solver, by its output -----------------------------------------------------------------------


def pure_noise(solver, runs, **arguments):
    """Coefficients and fits, from data without any signal and a sparsity that keeps everything."""
    X, y = np.zeros((8, 40)), np.array([0.0, 1.0] * 4)
    fits = solvers.fit_many(solvers.plan(solver, n=8, d=40, sparsity=40, **arguments), X, y, seeds=range(runs))
    return np.array([fit.coef for fit in fits]), fits


@pytest.mark.parametrize("sampling", ["without-replacement", "poisson"])
def test_output_noise_of_sgd(sampling):
    """From X = 0 the output is the sum of the steps' noise: adaptive at 0 for one step, constant for three."""
    common = {"loss": "logistic", "row_norm": 1.0, "epsilon": 3.0, "delta": 1e-3, "step_size": 0.5, "batch_size": 2}
    for steps, adaptive, share in ((1, True, 0.5), (3, False, 1.0)):
        coef, fits = pure_noise("dp_sgd_ht", 400, steps=steps, sampling=sampling, adaptive=adaptive, **common)
        z = coef.ravel() / (0.5 * fits[0].plan.noise * share * math.sqrt(steps))
        assert_ks(z, stats.norm.cdf)
        rejected(assert_ks, 0.9 * z, stats.norm.cdf)


@pytest.mark.parametrize("option", ["I", "II"])
def test_output_noise_of_scsg(option):
    """A snapshot's noise acts in each of its N steps, the inner noise once: variance N^2 s1^2 + N s2^2 an epoch."""
    coef, fits = pure_noise(
        "dp_scsg_ht", 400, loss="logistic", row_norm=1.0, epsilon=3.0, delta=1e-3, step_size=0.5, epochs=3,
        snapshot_size=6, batch_size=2, option=option, adaptive=False,
    )  # fmt: skip
    inner, outer = (release.scale for release in fits[0].plan.releases)
    counts = np.array([fit.history["inner_steps"] for fit in fits])
    moved = counts.sum(axis=1) > 0
    spread = 0.5 * np.sqrt((counts**2).sum(axis=1) * outer**2 + counts.sum(axis=1) * inner**2)
    z = (coef[moved] / spread[moved, None]).ravel()
    assert_ks(z, stats.norm.cdf)
    rejected(assert_ks, 0.9 * z, stats.norm.cdf)
    assert not coef[~moved].any()


# --- the number of inner steps and the batches ---------------------------------------------------------------


def test_inner_steps_follow_the_geometric_law():
    counts = Shape(40_000, 30, 10, "I").draw(np.random.default_rng(4))
    gamma = 30 / 40
    law = np.append((1 - gamma) * gamma ** np.arange(30), gamma**30)
    assert_chi2(np.bincount(np.minimum(counts, 30), minlength=31), law)
    wrong = Shape(40_000, 30, 11, "I").draw(np.random.default_rng(4))
    rejected(assert_chi2, np.bincount(np.minimum(wrong, 30), minlength=31), law)
    assert (Shape(5, 35, 10, "II").draw(np.random.default_rng(4)) == 3).all()


def test_inner_steps_do_not_depend_on_the_data():
    X, y = data()
    other = solvers.dp_scsg_ht(10 * X[::-1], 1 - y, rng=5, **REDUCED).history["inner_steps"]
    assert np.array_equal(solvers.dp_scsg_ht(X, y, rng=5, **REDUCED).history["inner_steps"], other)
    assert len(set(other)) > 1


def test_inner_steps_are_drawn_before_the_data_are_used():
    X, y = data()
    log = []
    draw, records, snapshot = Shape.draw, BatchData.records, _scsg.snapshot_gradient

    def noted(name, real):
        return lambda *arguments: log.append(name) or real(*arguments)

    with (
        mock.patch.object(Shape, "draw", noted("counts", draw)),
        mock.patch.object(BatchData, "records", noted("data", records)),
        mock.patch.object(_scsg, "snapshot_gradient", noted("data", snapshot)),
    ):
        solvers.dp_scsg_ht(X, y, rng=5, **REDUCED)
    assert log[0] == "counts" and log.count("counts") == 1 and "data" in log


def records_of(n):
    """n empty rows: batches of them are only drawn."""
    order = np.arange(n, dtype=np.int64)
    nothing = np.empty(0), np.empty(0, np.uint32), np.zeros(n + 1, np.int64)
    return kernel.Records(1, *nothing, np.zeros(n), np.inf, np.full(n, np.inf), order)


def test_batches_are_uniform_and_independent():
    """All pairs of consecutive batches of 2 out of 5, 100 cells; a batch that avoids the last one is seen."""
    rng, rows = np.random.default_rng(6), records_of(5)
    t, drawn = kernel.make_entries(64), []
    for _ in range(20_000):
        kernel.next_batch(rng, rows, None, 2, 4, t)
        drawn.append(sum(1 << int(i) for i in rows.order[:2]))
    names = {mask: i for i, mask in enumerate(sorted(set(drawn)))}
    assert len(names) == 10
    codes = np.array([names[mask] for mask in drawn])
    pairs = 10 * codes[:-1:2] + codes[1::2]
    assert_chi2(np.bincount(pairs, minlength=100), np.full(100, 0.01))
    sticky = np.where(np.arange(len(pairs)) % 20 == 0, 10 * codes[:-1:2] + codes[:-1:2], pairs)
    rejected(assert_chi2, np.bincount(sticky, minlength=100), np.full(100, 0.01))


def test_poisson_sampling_is_a_coin_for_every_row():
    """A binomial size and then a uniform batch: each row enters with the rate, two rows independently."""
    seen = []
    n, b, steps = 6, 2, 12_000

    def look(rng, sizes, rows, *rest):
        t = kernel.make_entries(64)
        for size in sizes:
            kernel.next_batch(rng, rows, None, size, 4, t)
            chosen = np.zeros(n, bool)
            chosen[rows.order[:size]] = True
            seen.append(chosen)
        return rest[-1]

    arguments = PLAIN | {"sparsity": 1, "epsilon": math.inf, "sampling": "poisson"}
    with mock.patch.object(kernel, "sgd_steps", look):
        solvers.dp_sgd_ht(np.ones((n, 1)), np.ones(n), steps=steps, batch_size=b, rng=7, **arguments)
    table = np.array(seen)
    for i in range(n):
        assert_binomial(int(table[:, i].sum()), steps, b / n, 1e-6 / 12)
        assert_binomial(int((table[:, i] & table[:, i - 1]).sum()), steps, (b / n) ** 2, 1e-6 / 12)
    fixed = np.array([np.random.default_rng(i).permutation(n) < b for i in range(steps // 4)])
    rejected(assert_binomial, int((fixed[:, 0] & fixed[:, 1]).sum()), len(fixed), (b / n) ** 2)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 4096, 4999, 5000, 2**26 - 1, 2**26])
def test_halves_of_a_word_are_spread_evenly(n):
    """Of the 2^26 halves equally many become each integer: counted for all of them, or for a thousand of many."""
    total, accepted = 2**26, 0
    for k in {*range(min(n, 5000)), *range(max(0, n - 1000), n)}:
        # The halves of an integer follow each other, and only the first of them can be one too many.
        first, end = -(-k * total // n), -(-(k + 1) * total // n)
        found = kernel.spread_evenly(first, n)
        assert found in (k, -1) and end - first - (found < 0) == total // n
        assert all(kernel.spread_evenly(half, n) == k for half in (first + 1, end - 1) if first < half < end)
        accepted += end - first - (found < 0)
    assert n > 5000 or accepted == total - total % n


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5])
def test_records_of_a_snapshot_are_uniform(size):
    """All batches of so many out of 5, for each of two in turn, whether they or the others are brought to the front."""
    rng, order, drawn = np.random.default_rng(10 + size), np.arange(5), []
    for _ in range(20_000):
        begin = kernel.draw_records(rng, order, size)
        drawn.append(sum(1 << int(i) for i in order[begin : begin + size]))
        assert sorted(order) == [0, 1, 2, 3, 4] and len(order[begin : begin + size]) == size
    names = {mask: i for i, mask in enumerate(sorted(set(drawn)))}
    cells = math.comb(5, size)
    assert len(names) == cells
    if cells > 1:
        codes = np.array([names[mask] for mask in drawn])
        pairs = cells * codes[:-1:2] + codes[1::2]
        assert_chi2(np.bincount(pairs, minlength=cells**2), np.full(cells**2, 1 / cells**2))


def test_records_of_one_row_are_counted():
    """A batch of 4 of 3 rows: each with the number of its records, once; then nothing is left of it."""
    order, tally = np.array([1, 2, 0, 2, 2, 1]), np.zeros((2, 3), np.int64)
    assert kernel.gather(order, 1, 4, tally) == 2
    assert [kernel.gathered(order, 1, tally, a) for a in range(2)] == [(2, 3.0), (0, 1.0)]
    assert not tally[0].any() and order.tolist() == [1, 2, 0, 2, 2, 1]
    assert kernel.gather(order, 1, 4, None) == 4 and kernel.gathered(order, 1, None, 1) == (0, 1.0)


@pytest.mark.parametrize("name, more", [("dp_sgd_ht", {"steps": 3}), ("dp_svrg_ht", {"epochs": 1, "option": "II"})])
def test_counted_and_single_records_are_not_compiled_together(name, more):
    """A kernel is compiled for the one or the other, so that trials on such a pair are made one by one."""
    X, y = np.eye(4), np.array([0, 1, 0, 1])
    arguments = PLAIN | {"sparsity": 1, "batch_size": 2, "epsilon": 1.0} | more
    plan = solvers.plan(name, n=4, d=4, **arguments)
    single, counted = solvers.bind(plan, X, y), solvers.bind(plan, X, y, np.ones(4, np.int64))
    rng = np.random.Generator(np.random.Philox(0))
    assert single.data.alike(single.data) and counted.data.alike(counted.data)
    assert single.trials(counted, rng, streams.place(rng), 0, np.array([0, 1]), False) is None


def test_uniform_integers():
    rng = np.random.default_rng(8)
    for n in (1, 2, 7):
        draws = np.bincount([kernel.uniform_below(rng, n) for _ in range(20_000)], minlength=n)
        assert len(draws) == n
        if n > 1:
            assert_chi2(draws, np.full(n, 1 / n))
    # The largest n that could be asked for: nothing is cut off at the end of the range.
    assert 0 <= kernel.uniform_below(rng, 2**53 - 1) < 2**53 - 1
