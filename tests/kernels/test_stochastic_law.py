"""The lazy steps draw from the law of the dense ones: noise on all d coordinates, then the k largest.

Two samples are compared, the kernels' and that of a dense NumPy reference with draws of its own. Every comparison as a
whole has error rate ALPHA (Bonferroni over its parts), and a defective sampler in its place must be rejected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numba import njit
from scipy import sparse, stats

from dptoolkit import losses
from dptoolkit.kernels import stochastic as kernel
from dptoolkit.solvers.engine.snapshots import buckets, ranked_means
from tests.statistics import ALPHA, rejected

LOSSES = {loss.id: loss for loss in losses.LOSSES.values()}
ALWAYS = np.ones(1), 0.0
DRAWS = 6000


@dataclass(frozen=True)
class Case:
    """A small problem for either kernel; ``offsets`` makes it a variance-reduced one."""

    X: Any
    y: Any
    sparsity: int
    sizes: tuple[int, ...]
    batch: float
    scale: float = 0.3
    step_size: float = 0.7
    l2: float = 0.0
    loss: int = kernel.LOGISTIC
    margin_bound: float = math.inf
    caps: Any = None
    protected: int = 0
    start: dict[int, float] = field(default_factory=dict)
    shares: tuple[Any, float] = ALWAYS
    offsets: Any = None
    slope: float = math.inf

    @property
    def width(self) -> int:
        return self.X.shape[1]

    @property
    def means(self) -> Any:
        """The snapshot gradient that moves the weights by ``offsets``."""
        return -self.offsets / self.step_size

    @property
    def record_caps(self) -> Any:
        return np.full(len(self.y), np.inf) if self.caps is None else self.caps

    def records(self) -> kernel.Records:
        M = sparse.csr_matrix(self.X)
        n = len(self.y)
        arrays = M.data, M.indices.view(np.uint32), M.indptr.astype(np.int64)
        return kernel.Records(self.loss, *arrays, self.y, self.margin_bound, self.record_caps, np.arange(n))


def lazy(case: Case, draws: int, seed: int) -> np.ndarray:
    """Iterates after all steps, one row a draw, from the kernel."""
    rng, out = np.random.default_rng(seed), np.zeros((draws, case.width))
    sizes, records = np.array(case.sizes), case.records()
    free, k = case.width - case.protected, case.sparsity
    shared = records, case.batch, case.step_size, case.l2, case.scale
    means = None if case.offsets is None else ranked_means(case.means, free, free, 0.0, None)
    for i in range(draws):
        support, weights = np.zeros(k + case.protected, np.int64), np.zeros(k + case.protected)
        support[: len(case.start)], weights[: len(case.start)] = list(case.start), list(case.start.values())
        ends = support, weights, len(case.start)
        if means is None:
            filled = kernel.sgd_steps(rng, sizes, *shared, *case.shares, free, case.protected, k, *ends)
        else:
            filled = kernel.reduced_steps(rng, sizes, *shared, case.slope, 0.0, free, case.protected, k, means, *ends)
        assert filled == k + case.protected and len(set(support)) == filled
        out[i, support] = weights
    return out


def dense(case: Case, draws: int, seed: int) -> np.ndarray:
    """The same from the definition: all draws at once, all coordinates, fresh batches."""
    rng = np.random.default_rng(seed)
    n, d = case.X.shape
    start = np.zeros(d)
    start[list(case.start)] = list(case.start.values())
    w = np.tile(start, (draws, 1))

    def gradient(at: Any, rows: Any) -> Any:
        r = LOSSES[case.loss].clipped_residual(at @ case.X.T, case.y, case.margin_bound, case.record_caps)
        return (rows * r) @ case.X / case.batch

    for size in case.sizes:
        rows = rng.random((draws, n)).argsort(axis=1) < size
        step = gradient(w, rows) + case.l2 * w
        table, places = case.shares
        share = table[np.minimum(np.ceil(np.linalg.norm(w, axis=1) * places).astype(int), len(table) - 1)]
        if case.offsets is not None:
            step = step - gradient(np.tile(start, (draws, 1)), rows) - case.offsets / case.step_size
            if math.isfinite(case.slope):
                share = np.minimum(1.0, case.slope * np.linalg.norm(w - start, axis=1))
        noise = case.scale * share[:, None] * rng.standard_normal((draws, d))
        w = top(w - case.step_size * (step + noise), case.sparsity, case.protected)
    return w


def top(w: np.ndarray, sparsity: int, protected: int) -> np.ndarray:
    """The rows of w thresholded."""
    free = w.shape[1] - protected
    keep = np.argsort(-np.abs(w[:, :free]), axis=1)[:, :sparsity]
    out = np.zeros_like(w)
    np.put_along_axis(out, keep, np.take_along_axis(w, keep, axis=1), axis=1)
    out[:, free:] = w[:, free:]
    return out


# --- comparing two samples ---------------------------------------------------------------------------


def same_counts(a: Any, b: Any) -> float:
    """p-value of the chi-square test that two samples of labels have one law; rare labels are pooled."""
    values, where = np.unique(np.concatenate([a, b]), return_inverse=True)
    table = np.array([np.bincount(part, minlength=len(values)) for part in (where[: len(a)], where[len(a) :])])
    rare = table.sum(axis=0) < 20
    pooled = table[:, rare].sum(axis=1, keepdims=True)
    # Too few rare ones to be a cell of their own are left out.
    table = np.hstack([table[:, ~rare], pooled]) if pooled.sum() >= 20 else table[:, ~rare]
    return 1.0 if table.shape[1] < 2 else float(stats.chi2_contingency(table).pvalue)


def same_values(a: Any, b: Any) -> float:
    """p-value of the two-sample Kolmogorov-Smirnov test; 1 where there is next to nothing to compare."""
    return 1.0 if min(len(a), len(b)) < 20 else float(stats.ks_2samp(a, b).pvalue)


def smallest(w: np.ndarray) -> np.ndarray:
    """The smallest |entry| that was kept, a row each."""
    return np.where(w == 0, np.inf, np.abs(w)).min(axis=1, keepdims=True)


def assert_same_law(a: np.ndarray, b: np.ndarray, alpha: float = ALPHA) -> None:
    """Supports, sums, sums of squares, smallest and largest entries, and every coordinate's values where it is kept."""
    powers = 2.0 ** np.arange(a.shape[1])
    found = {"support": same_counts((a != 0) @ powers, (b != 0) @ powers)}
    summaries = {
        "sum": lambda w: w.sum(axis=1),
        "squares": lambda w: (w * w).sum(axis=1),
        "largest": lambda w: np.abs(w).max(axis=1),
        "smallest": lambda w: smallest(w)[:, 0],
    }
    for name, summary in summaries.items():
        found[name] = same_values(summary(a), summary(b))
    for j in range(a.shape[1]):
        found[f"coordinate {j}"] = same_values(a[a[:, j] != 0, j], b[b[:, j] != 0, j])
    worst = min(found, key=lambda name: found[name])
    assert found[worst] >= alpha / len(found), f"{worst}: p-value {found[worst]:.3g} < {alpha:g}/{len(found)}"


# --- cases ----------------------------------------------------------------------------------------------


def rows(n: int, d: int, seed: int, density: float = 0.5) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < density)
    return X, (rng.random(n) < 0.5).astype(float)


X5, Y5 = rows(6, 5, 1)
X6, Y6 = rows(7, 6, 2)
FULL, YF = rows(4, 5, 3, density=1.1)
NOTHING = np.zeros((3, 6))
OUTLIER = np.array([0.02, 0.0, 40.0, -0.01, 0.03, -0.02])
SPREAD_OUT = np.array([0.5, -0.4, 0.1, 0.0, -0.2, 0.3])
GROWING = np.array([0.5, 0.7, 0.8, 0.9, 1.0]), 1.5

PLAIN = {
    "one step from 0": Case(X5, Y5, 2, (3,), 3),
    "three steps": Case(X5, Y5, 2, (3, 3, 3), 3),
    "L2 term, protected intercept, squared loss, clipped": Case(
        X6, 2 * Y6 - 1, 2, (4, 4), 4, l2=0.3, loss=kernel.SQUARED, margin_bound=0.8, caps=np.full(7, 0.6), protected=1,
        start={0: 0.5, 5: -0.4},
    ),
    "two protected, Huber": Case(X6, 3 * Y6 - 1, 1, (2, 2), 2, loss=kernel.HUBER, protected=2, start={4: 0.3, 5: 0.1}),
    "k = d - 1": Case(X5, Y5, 4, (3, 3), 3),
    "k = d": Case(X5, Y5, 5, (3, 3), 3),
    "the batch touches everything": Case(FULL, YF, 2, (4, 4), 4),
    "the batch touches nothing": Case(NOTHING, np.ones(3), 3, (2, 2), 2, start={1: 0.2}),
    "sizes as Poisson sampling gives them": Case(X5, Y5, 2, (0, 5, 1), 2),
    "noise that grows with |w|": Case(X5, Y5, 2, (3, 3, 3), 3, shares=GROWING, start={0: 0.3, 3: -0.1}),
}  # fmt: skip
REDUCED = {
    "one step from the snapshot": Case(X6, Y6, 2, (3,), 3, offsets=SPREAD_OUT),
    "three steps": Case(X6, Y6, 2, (3, 3, 3), 3, offsets=SPREAD_OUT, start={1: 0.4, 4: -0.6}),
    "L2 term, protected intercept, squared loss, clipped": Case(
        X6, 2 * Y6 - 1, 2, (4, 4), 4, l2=0.3, loss=kernel.SQUARED, margin_bound=0.8, caps=np.full(7, 0.6), protected=1,
        start={0: 0.5, 5: -0.4}, offsets=SPREAD_OUT,
    ),
    "adaptive noise": Case(X6, Y6, 2, (3, 3, 3), 3, offsets=SPREAD_OUT, slope=0.6, start={1: 0.4, 4: -0.6}),
    "adaptive noise, next to none": Case(X6, Y6, 2, (3, 3), 3, offsets=SPREAD_OUT, slope=1e-3),
    "k = d - 1": Case(X6, Y6, 5, (3, 3), 3, offsets=SPREAD_OUT),
    "k = d": Case(X6, Y6, 6, (3, 3), 3, offsets=SPREAD_OUT),
    "the batch touches everything": Case(FULL, YF, 2, (4, 4), 4, offsets=SPREAD_OUT[:5]),
    "the batch touches nothing": Case(NOTHING, np.ones(3), 3, (2, 2), 2, offsets=SPREAD_OUT),
    "an offset far from all others": Case(NOTHING, np.ones(3), 3, (2,), 2, offsets=OUTLIER),
    "no offsets to speak of": Case(X6, Y6, 2, (3, 3), 3, offsets=np.zeros(6)),
    "sizes as Poisson sampling gives them": Case(X6, Y6, 2, (0, 5, 1), 2, offsets=SPREAD_OUT),
}  # fmt: skip
CASES = [*(("plain, " + k, c) for k, c in PLAIN.items()), *(("reduced, " + k, c) for k, c in REDUCED.items())]


@pytest.mark.every(2)
@pytest.mark.parametrize("case", [c for _, c in CASES], ids=[k for k, _ in CASES])
def test_lazy_is_dense(case):
    assert_same_law(lazy(case, DRAWS, 1), dense(case, DRAWS, 2))


DEFECTS = {
    "90% of the noise": lambda case, w: lazy(replace(case, scale=0.9 * case.scale), DRAWS, 3),
    "signs lean to one side": lambda case, w: np.where(np.arange(len(w))[:, None] % 10 == 0, np.abs(w), w),
    "one coordinate never enters": lambda case, w: np.where(np.arange(case.width) == 3, 0.0, w),
    "the last to enter is too small": lambda case, w: np.where(np.abs(w) == smallest(w), 0.8 * w, w),
}


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("case", [PLAIN["three steps"], REDUCED["three steps"]], ids=["plain", "reduced"])
def test_a_defect_is_seen(case, defect):
    rejected(assert_same_law, DEFECTS[defect](case, lazy(case, DRAWS, 1)), dense(case, DRAWS, 2))


# --- any level is correct --------------------------------------------------------------------------------

STEP = 0.3


def outside(
    level: float, offsets: Any, spread: float, limit: int, touched: dict[int, float], draws: int, seed: int
) -> np.ndarray:
    """The largest of the touched values and the noisy offsets, with the kernel's search at a level of our choice."""
    rng, out = np.random.default_rng(seed), np.zeros((draws, len(offsets)))
    keys, values = np.array([*touched], dtype=np.int64), np.array([*touched.values()], dtype=float)
    means = ranked_means(-offsets / STEP, len(offsets), len(offsets), 0.0, None)
    room = kernel.make_entries(64), kernel.Top(np.empty(limit, np.int64), np.empty(limit))
    assert draw_outside(rng, level / STEP, spread / STEP, STEP, means, limit, keys, values, *room, out)
    return out


@njit
def draw_outside(rng, level, spread, step, means, limit, keys, values, t, top_of, out):
    """A draw for every row of ``out``; False if one of them left a place empty."""
    free, full = len(means.values), True
    for i in range(len(out)):
        t.marks[0] += len(t.keys)
        size = 0
        for number in range(len(keys)):
            kernel.touch(t, number, keys[number])
            size = kernel.offer(top_of, size, keys[number], values[number])
        size = kernel.offer_means(rng, level, spread, step, means, None, t, top_of, size)
        if kernel.falls_short(top_of, size, step * level):
            size = kernel.complete_below(rng, level, spread, step, free, means, None, t, len(keys), top_of, size)
        full = full and size == limit
        for a in range(size):
            out[i, top_of.keys[a]] = top_of.values[a]
    return full


@pytest.mark.parametrize("touched", [{}, {1: 0.01, 2: -0.02, 3: 0.005}, {0: 1.5, 4: -1.2, 5: 1.1}], ids=len)
@pytest.mark.parametrize("level", [0.0, 0.2, 0.9, 2.5, 50.0])
def test_any_level_gives_the_same_law(level, touched):
    """At 0 all are found, at 50 none is and all are completed; three touched ones fill the top before the search."""
    offsets, spread, limit = SPREAD_OUT, 0.4, 3
    lazy_draws = outside(level, offsets, spread, limit, touched, DRAWS, 4)
    w = offsets + spread * np.random.default_rng(5).standard_normal((DRAWS, len(offsets)))
    for key, value in touched.items():
        w[:, key] = value
    assert_same_law(lazy_draws, top(w, limit, 0))


def test_small_uniform_numbers_have_more_bits_than_a_generator_gives():
    """Multiples of 2^-53 are 1 in 32 of them. From a weight that came of such a number by a quantile, its last bits
    tell the number of coordinates that the noise was the largest of, and so how many the batch touched.
    """
    rng = np.random.default_rng(1)
    drawn = [kernel.lengthened(rng, rng.random()) for _ in range(20_000)]
    words = [u * 2.0**53 for u in drawn if u < 2.0**-5]
    assert 450 < len(words) < 800, "uniform all the same"
    assert np.mean([word == round(word) for word in words]) < 0.1


def test_the_level_is_met_about_as_often_as_wanted():
    """Not needed for correctness: too few above the level would cost O(d), too many the search of all of them."""
    rng = np.random.default_rng(6)
    for offsets in (rng.standard_normal(20_000), np.append(rng.standard_normal(20_000), 1e9), np.zeros(5_000)):
        _, starts, heights = buckets(offsets)
        for spread in (0.01, 0.3, 3.0):
            level = kernel.choose_level(150.0, spread, starts, heights)
            chances = stats.norm.sf((level - offsets) / spread) + stats.norm.sf((level + offsets) / spread)
            assert 110 < chances.sum() < 220, (len(offsets), spread)


# --- large d, by summaries -------------------------------------------------------------------------------

WIDE, WIDE_K, WIDE_DRAWS = 100_000, 40, 600


def wide_case(reduced: bool) -> Case:
    rng = np.random.default_rng(7)
    X = sparse.random(30, WIDE, 2e-4, format="csr", random_state=8, data_rvs=rng.standard_normal)
    y = (rng.random(30) < 0.5).astype(float)
    start = {int(j): 0.4 * float(rng.standard_normal()) for j in rng.choice(WIDE, 30, replace=False)}
    case = Case(X, y, WIDE_K, (30,), 30, scale=0.1, step_size=1.0, start=start)
    return replace(case, offsets=0.08 * rng.standard_normal(WIDE)) if reduced else case


def wide_lazy(case: Case, draws: int, seed: int, free: int = WIDE) -> list[tuple[Any, Any]]:
    rng, sizes, out = np.random.default_rng(seed), np.array(case.sizes), []
    shared = case.records(), case.batch, case.step_size, case.l2, case.scale
    means = None if case.offsets is None else ranked_means(case.means, free, free, 0.0, None)
    for _ in range(draws):
        support, weights = np.zeros(WIDE_K, np.int64), np.zeros(WIDE_K)
        support[: len(case.start)], weights[: len(case.start)] = list(case.start), list(case.start.values())
        ends = support, weights, len(case.start)
        if means is None:
            kernel.sgd_steps(rng, sizes, *shared, *case.shares, free, 0, WIDE_K, *ends)
        else:
            kernel.reduced_steps(rng, sizes, *shared, case.slope, 0.0, free, 0, WIDE_K, means, *ends)
        out.append((support, weights))
    return out


def wide_dense(case: Case, draws: int, seed: int) -> list[tuple[Any, Any]]:
    rng, out = np.random.default_rng(seed), []
    w = np.zeros(WIDE)
    w[list(case.start)] = list(case.start.values())
    r = LOSSES[case.loss].clipped_residual(case.X @ w, case.y, case.margin_bound, None)
    # One step of the whole data: at the snapshot the variance-reduced gradient is 0.
    mean = w - case.step_size * (case.X.T @ r) / case.batch if case.offsets is None else w + case.offsets
    for _ in range(draws):
        v = mean + case.step_size * case.scale * rng.standard_normal(WIDE)
        support = np.argpartition(-np.abs(v), WIDE_K)[:WIDE_K]
        out.append((support, v[support]))
    return out


def assert_same_wide_law(case: Case, a: Any, b: Any, alpha: float = ALPHA) -> None:
    """k-th largest, sum, sum of squares; of the coordinates from outside their number, places, ranks and signs."""
    touched = np.isin(np.arange(WIDE), [*case.start, *case.X.indices])
    offsets = np.ones(WIDE) if case.offsets is None else case.offsets
    rank = np.argsort(np.argsort(-np.abs(offsets), kind="stable"))
    found = {}
    for name, summary in {
        "k-th": lambda s, w: np.abs(w).min(),
        "sum": lambda s, w: w.sum(),
        "squares": lambda s, w: (w * w).sum(),
    }.items():
        found[name] = same_values([summary(*draw) for draw in a], [summary(*draw) for draw in b])
    found["new"] = same_counts(*[[(~touched[s]).sum() for s, _ in sample] for sample in (a, b)])
    new = [np.hstack([np.array((s, w))[:, ~touched[s]] for s, w in sample]) for sample in (a, b)]
    places = [place.astype(int) for place, _ in new]
    found["places"] = same_counts(*[place // (WIDE // 25) for place in places])
    found["ranks"] = same_counts(*[np.log2(1 + rank[place]).astype(int) for place in places])
    found["signs"] = same_counts(*[value * offsets[place] > 0 for place, (_, value) in zip(places, new, strict=True)])
    worst = min(found, key=lambda name: found[name])
    assert found[worst] >= alpha / len(found), f"{worst}: p-value {found[worst]:.3g} < {alpha:g}/{len(found)}"


@pytest.mark.every(2)
@pytest.mark.parametrize("reduced", [False, True], ids=["plain", "reduced"])
def test_lazy_is_dense_in_many_dimensions(reduced):
    case = wide_case(reduced)
    truth = wide_dense(case, WIDE_DRAWS, 9)
    assert_same_wide_law(case, wide_lazy(case, WIDE_DRAWS, 10), truth)
    rejected(assert_same_wide_law, case, wide_lazy(replace(case, scale=0.98 * case.scale), WIDE_DRAWS, 11), truth)
    rejected(assert_same_wide_law, case, wide_lazy(case, WIDE_DRAWS, 12, free=int(0.95 * WIDE)), truth)
