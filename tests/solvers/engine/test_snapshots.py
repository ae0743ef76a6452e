"""Hidden coordinates: noise that is drawn when a step looks at it has the law of noise that is drawn for all.

Every comparison as a whole has error rate ALPHA, and a defective sampler in its place must be rejected.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from scipy import sparse, stats

from dptoolkit import data, solvers
from dptoolkit.kernels import stochastic as kernel
from dptoolkit.solvers.engine import snapshots
from dptoolkit.solvers.engine.batches import Iterate
from dptoolkit.solvers.engine.snapshots import Numbering, layers, numbered, ranked_means
from dptoolkit.solvers.frame import fit
from tests.kernels.test_stochastic_law import (
    Case,
    assert_same_law,
    dense,
    rows,
    same_counts,
    same_values,
)
from tests.statistics import ALPHA, rejected

# --- an epoch in few dimensions: every support and every value ----------------------------------------------

FEATURES, FREE, KEPT, NOISE, RUNS = 3, 8, 3, 0.5, 2500
X3, Y3 = rows(6, FEATURES, 1)
WIDE_ROWS = np.hstack([X3, np.zeros((6, FREE - FEATURES))])
EXACT = np.array([0.4, -0.2, 0.0])


def case(**changes: Any) -> Case:
    return Case(WIDE_ROWS, Y3, KEPT, (3, 3, 3), 3, start={1: 0.4, 5: -0.6}, **changes)


def hidden_draws(epoch: Case, seed: int, noise: float = NOISE, forget: bool = False) -> np.ndarray:
    """Iterates after an epoch that starts with a hidden part; with ``forget`` every step draws it again."""
    rng, out = np.random.default_rng(seed), np.zeros((RUNS, FREE))
    records, k = epoch.records(), epoch.sparsity
    shared = records, epoch.batch, epoch.step_size, epoch.l2, epoch.scale, epoch.slope, 0.0, FREE, 0, k
    for i in range(RUNS):
        # Coordinate 5, which has no data, is in the snapshot and therefore has number 3.
        numbering, iterate = Numbering(FREE, np.arange(FEATURES), np.array([5])), Iterate(k)
        iterate.support[:2], iterate.values[:2], iterate.filled = [1, 3], [0.4, -0.6], 2
        gradient = np.append(EXACT, 0.0) + noise * rng.standard_normal(FEATURES + 1)
        parts = [[size] for size in epoch.sizes] if forget else [epoch.sizes]
        for sizes in parts:
            means = ranked_means(np.resize(gradient, numbering.known), numbering.known, FREE, noise, rng)
            ends = iterate.support, iterate.values, iterate.filled
            iterate.filled = kernel.reduced_steps(rng, np.array(sizes), *shared, means, *ends)
            numbering.settle(iterate, rng)
        out[i] = numbering.named(iterate).dense(FREE)
    return out


def all_drawn(epoch: Case, seed: int) -> np.ndarray:
    """The same from the definition."""
    exact = np.append(EXACT, np.zeros(FREE - FEATURES))
    noisy = exact + NOISE * np.random.default_rng(seed + 100).standard_normal((RUNS, FREE))
    return dense(Case(**vars(epoch) | {"offsets": -epoch.step_size * noisy}), RUNS, seed)


EPOCHS = {
    "three steps": case(),
    "adaptive noise, of which the first step has none": case(slope=0.6),
    "much noise": case(scale=1.0),
    "little noise": case(scale=0.02),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_hidden_is_drawn(name):
    """Layers of one or two coordinates, so that most are hidden."""
    with mock.patch.object(snapshots, "_FIRST_LAYER", 1):
        assert_same_law(hidden_draws(EPOCHS[name], 2), all_drawn(EPOCHS[name], 1))


@pytest.mark.parametrize("defect", [{"noise": 0.8 * NOISE}, {"forget": True}], ids=str)
def test_a_defect_is_seen(defect):
    with mock.patch.object(snapshots, "_FIRST_LAYER", 1):
        rejected(assert_same_law, hidden_draws(EPOCHS["three steps"], 3, **defect), all_drawn(EPOCHS["three steps"], 1))


def test_hidden_coordinates_without_a_place_in_the_top_are_completed():
    """All of them have means in the end, each in its own layer, and each number once."""
    rng = np.random.default_rng(4)
    with mock.patch.object(snapshots, "_FIRST_LAYER", 2):
        means = ranked_means(np.array([0.1, -0.3, 0.2]), 3, 60, 0.7, rng)
    hidden = means.hidden
    assert hidden.unused[0] < 60
    for b in range(len(hidden.known)):
        while hidden.known[b] < means.starts[b + 1] - means.starts[b]:
            kernel.draw_mean(rng, means, hidden, b)
    assert hidden.unused[0] == 60 and sorted(means.ranked) == list(range(60))
    for b in range(4, len(hidden.known)):
        sizes = np.abs(means.values[means.ranked[means.starts[b] : means.starts[b + 1]]])
        assert (sizes <= means.heights[b]).all() and (sizes >= means.heights[b + 1] * (1 - 1e-9)).all()


def test_law_of_the_means():
    """Drawn to the last, they are independent normals: a Kolmogorov-Smirnov test, which 5 percent less noise fails."""
    rng, found = np.random.default_rng(5), []
    for _ in range(80):
        means = ranked_means(np.zeros(33), 33, 1033, 0.7, rng)
        for b in range(len(means.hidden.known)):
            while means.hidden.known[b] < means.starts[b + 1] - means.starts[b]:
                kernel.draw_mean(rng, means, means.hidden, b)
        found.append(means.values[33:] / 0.7)
    drawn = np.concatenate(found)
    assert stats.kstest(drawn, stats.norm.cdf).pvalue > ALPHA
    assert stats.kstest(0.95 * drawn, stats.norm.cdf).pvalue < ALPHA
    assert stats.kstest((np.array(found) ** 2).sum(axis=1), stats.chi2(1000).cdf).pvalue > ALPHA


def test_the_largest_means_have_all_their_bits():
    """A uniform number of 53 bits leaves gaps where it is small, and these depend on how many features the data have.

    From a mean alone its uniform number U can be computed. U 2^53 is no nearer to whole numbers than chance: the mean
    of 60 distances is below 0.15 with a chance of less than 1e-6, and is 0.03 for a U that is a multiple of 2^-53.
    """
    rng, hidden, apart = np.random.default_rng(5), 5000, []
    while len(apart) < 60:
        means = ranked_means(np.zeros(33), 33, 33 + hidden, 0.7, rng)
        sizes = np.abs(means.values[33 : means.hidden.unused[0]]) / 0.7
        words = 2.0**53 * 2 * stats.norm.sf(sizes) / layers(hidden)[1]
        apart.extend(abs(word - round(word)) for word in words.tolist() if word < 0.002 * 2**53)
    assert np.mean(apart) > 0.15


def test_layers():
    for count in (1, 31, 32, 33, 5000, 20_000_000):
        chances = layers(count)
        assert chances[0] == 0 and chances[-1] == 1 and (np.diff(chances) > 0).all() and len(chances) < 70


# --- names -----------------------------------------------------------------------------------------------


def test_names_are_uniform_among_those_without_data():
    """Two new ones of the coordinates 1, 4, 6 and 7: 2 and 5 have data, 0 and 3 are taken. All 12 pairs."""
    rng, found = np.random.default_rng(6), []
    for _ in range(4000):
        numbering, iterate = Numbering(8, np.array([2, 5]), np.array([3, 0])), Iterate(5)
        iterate.support[:4], iterate.values[:4], iterate.filled = [1, 6, 2, 4], [0.1, 0.2, 0.3, 0.4], 4
        numbering.settle(iterate, rng)
        support = numbering.named(iterate).support[:4]
        assert support[0] == 5 and support[2] == 3 and numbering.known == 5
        assert sorted(iterate.support[:4]) == [1, 2, 3, 4]
        found.append(10 * support[1] + support[3])
    values, counts = np.unique(found, return_counts=True)
    assert values.tolist() == [10 * a + b for a in (1, 4, 6, 7) for b in (1, 4, 6, 7) if a != b]
    assert stats.chisquare(counts).pvalue > ALPHA


def test_numbers_keep_the_order_of_features():
    X = sparse.csr_matrix(([1.0, 2.0, 3.0], ([0, 0, 1], [9, 7000, 9000])), shape=(2, 9001))
    batches = snapshots.BatchData(data.check_rows(X), np.zeros(2), solvers_loss(), np.inf, None)
    renumbered, numbering = numbered(batches, 9000, 10)
    assert numbering.features.tolist() == [9, 7000] and numbering.known == 2
    # The last column is protected, and keeps its number.
    assert renumbered.rows.matrix.indices.tolist() == [0, 1, 9000]
    assert renumbered.rows.matrix.data.tolist() == [1.0, 2.0, 3.0] and batches.rows.matrix.indices[0] == 9
    for narrow in (X[:, :4000], sparse.csr_matrix((2, 9001)), sparse.csr_matrix(np.ones((1, 9001)))):
        same = snapshots.BatchData(data.check_rows(narrow), np.zeros(narrow.shape[0]), solvers_loss(), np.inf, None)
        kept, all_known = numbered(same, narrow.shape[1], 10)
        assert kept is same and all_known.known == narrow.shape[1]


def solvers_loss():
    from dptoolkit import losses

    return losses.get("logistic")


# --- whole fits ------------------------------------------------------------------------------------------

D, N, K, FITS = 9000, 60, 12, 400


def test_whole_fits_have_one_law():
    """Fits that hide coordinates against fits that draw them all; 20 percent less noise is seen."""
    rng = np.random.default_rng(7)
    X = sparse.random(N, D, 2e-3, format="csr", random_state=8)
    y = (rng.random(N) < 0.5).astype(float)
    plan = solvers.plan(
        "dp_scsg_ht", n=N, d=D, loss="logistic", row_norm=1.0, sparsity=K, epochs=3, snapshot_size=30, batch_size=10,
        step_size=1.0, option="II", epsilon=2.0, delta=1e-6, fit_intercept=True,
    )  # fmt: skip
    run = fit.bind(plan, X, y)
    features = np.unique(X.indices)
    assert numbered(run.data, D, K)[1].known == len(features)
    lazy = [run.fit(np.random.default_rng(i))[0] for i in range(FITS)]
    less = fit.bind(plan.with_noise(factor=0.8), X, y)
    with mock.patch.object(snapshots, "_FEW_HIDDEN", D + 1):
        assert numbered(run.data, D, K)[1].known == D
        every = fit.bind(plan, X, y)
        truth = [every.fit(np.random.default_rng(FITS + i))[0] for i in range(FITS)]
    assert_one_law(lazy, truth, features)
    rejected(assert_one_law, [less.fit(np.random.default_rng(i))[0] for i in range(FITS)], truth, features)


def assert_one_law(a: Any, b: Any, features: Any) -> None:
    """The k-th largest, sums, sums of squares, how many have data, and the places of those that have none."""
    summaries = {
        "k-th": lambda w: np.sort(np.abs(w[:D]))[-K],
        "sum": lambda w: w.sum(),
        "squares": lambda w: (w * w).sum(),
        "intercept": lambda w: w[-1],
    }
    found = {name: same_values([summary(w) for w in a], [summary(w) for w in b]) for name, summary in summaries.items()}
    empty = np.ones(D, dtype=bool)
    empty[features] = False
    found["without data"] = same_counts(*[[((w[:D] != 0) & empty).sum() for w in sample] for sample in (a, b)])
    places = [np.concatenate([np.flatnonzero((w[:D] != 0) & empty) for w in sample]) for sample in (a, b)]
    found["places"] = same_counts(*[place // (D // 30) for place in places])
    worst = min(found, key=lambda name: found[name])
    assert found[worst] >= ALPHA / len(found), f"{worst}: p-value {found[worst]:.3g}"
