"""Peeling in integers: the range of the scores, the law of selections and values, nothing left to attack."""

from __future__ import annotations

import itertools
import math
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.data.grids import Grids
from dptoolkit.errors import InvalidValue
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers.engine import secure_peeling
from tests.statistics import assert_binomial, assert_chi2, assert_ks, rejected

pytestmark = pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
LAYOUTS = pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])


def example(n=60, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d)) * (rng.random((n, d)) < 0.7)
    return X, X[:, 0] - X[:, 1] + 0.1 * rng.standard_normal(n)


def make(n=60, d=5, **settings):
    base = {"sparsity": 2, "steps": 3, "step_size": 0.5, "radius": 2.0, "feature_bound": 1.0, "label_bound": 1.5,
            "epsilon": 1.0, "delta": 1e-6, "randomness": "secure"}  # fmt: skip
    return solvers.plan("peeling_iht", n=n, d=d, **(base | settings))


def at(run, w, t=0):
    """(integer scores before their absolute values, D) at weights w."""
    support = np.flatnonzero(w)
    grids = secure_peeling.grids_at(run.plan, float(np.abs(w).sum()))
    scores = run.centre(support, w[support], grids) - run.sums(t, support, w[support], grids)
    return scores, secure_peeling.entry_change(run.plan, grids), grids


@pytest.mark.parametrize("settings", [{}, {"adjacency": "zero-out"}, {"data": "split"}], ids=str)
@LAYOUTS
def test_scores_and_values_move_by_at_most_integers_that_are_reached(settings, layout):
    plan, rng = make(**settings), np.random.default_rng(1)
    X, y = example()
    worst = 0.0
    for trial in range(40):
        one, two, other_y = X.copy(), X.copy(), y.copy()
        one[3], two[3] = rng.standard_normal((2, 5)) * 10.0 ** rng.integers(-4, 4, 2)[:, None]
        y[3], other_y[3] = rng.standard_normal(2) * 10
        w = np.zeros(5)
        w[[0, 2]] = rng.uniform(-1, 1, 2) * (trial % 3)
        if trial % 2:
            one[3] = np.where(rng.random(5) < 0.5, 1.0, -1.0)
            y[3] = -1.5 if one[3] @ w > 0 else 1.5
            two[3], other_y[3] = (one[3], -y[3]) if w.any() else (-one[3], y[3])
        if settings.get("adjacency") == "zero-out":
            two[3], other_y[3] = 0.0, 0.0
        first, change, _ = at(solvers.bind(plan, layout(one), y), w)
        second, _, _ = at(solvers.bind(plan, layout(two), other_y), w)
        moved = [abs(int(a) - int(b)) for a, b in zip(first, second, strict=True)]
        assert max(moved) <= change
        up = [abs(int(a)) - abs(int(b)) for a, b in zip(first, second, strict=True)]
        assert max(up) - min(up) <= 2 * change
        worst = max(worst, max(moved) / change)
    assert worst > 0.9
    choice, values = plan.secure.parts
    assert Fraction(choice.unit(2 * change)) * 2 * change <= Fraction(choice.epsilon)
    ratio = Fraction(plan.releases[1].scale) / Fraction(plan.releases[1].sensitivity)
    assert values.multiplier(change) ** 2 >= ratio**2 * plan.settings.sparsity * change**2
    assert values.multiplier(change) ** 2 <= ratio**2 * plan.settings.sparsity * change**2 * (1 + Fraction(1, 10**6))


@LAYOUTS
def test_supports_and_values_have_their_exact_law(layout):
    """Noise spy: the pair of features by two exponential mechanisms one after the other, values by round(M Z)."""
    X, y = example()
    run = solvers.bind(make(steps=1, epsilon=4.0), layout(X), y)
    scores, change, grids = at(run, np.zeros(5))
    unit, M = run.choice.unit(2 * change), run.values.multiplier(change)
    pairs = {pair: k for k, pair in enumerate(itertools.combinations(range(5), 2))}
    counts, z, stream = np.zeros(len(pairs)), [], SecureStream.seeded(2)
    for _ in range(3000):
        support, values = run.peel(0, np.zeros(0, np.intp), np.zeros(0), 0.0, stream)
        counts[pairs[tuple(support.tolist())]] += 1
        whole = np.rint(values / run.real(np.ones(1, np.int64), grids)).astype(np.int64)
        z.append((whole - scores[support]) / M)

    def law(unit):
        weights = np.exp(unit * (np.abs(scores) - np.abs(scores).max()).astype(float))
        p = weights / weights.sum()
        return np.array([p[a] * p[b] / (1 - p[a]) + p[b] * p[a] / (1 - p[b]) for a, b in pairs])

    assert law(unit).max() < 0.6
    assert_chi2(counts, law(unit))
    rejected(assert_chi2, counts, law(1.3 * unit))
    z = np.concatenate(z)
    assert_ks(z, "norm")
    # A tenth less noise is seen by the share of large values, not by the distance of distributions.
    assert_binomial((np.abs(z) > 1).sum(), z.size, math.erfc(0.5**0.5))
    rejected(assert_binomial, (np.abs(0.9 * z) > 1).sum(), z.size, math.erfc(0.5**0.5))


@LAYOUTS
def test_what_a_record_contributes_depends_on_no_other(layout):
    X, y = example(70, 5)
    w, seen = np.array([0.3, 0.0, -0.7, 0.0, 0.0]), []
    for value in (None, 0.0, 1e300, 5e-324, 0.3):
        rows = X.copy()
        if value is not None:
            rows[7] = value
        run = solvers.bind(make(70), layout(rows), y)
        grids = secure_peeling.grids_at(run.plan, 1.0)
        kept, _ = run.parts[0]
        margins = secure_peeling._margins(kept, np.flatnonzero(w), w[w != 0] * grids.row_unit)
        seen.append(np.delete(secure_peeling.residuals_on_grid(margins - y, grids), 7))
    for other in seen[1:]:
        np.testing.assert_array_equal(seen[0], other)


def test_the_attack_finds_nothing_but_breaks_the_fast_path():
    """All features are kept, so that the first vector is values alone."""
    d = 30
    X, y = example(200, d)
    other = X.copy()
    other[0] = -X[0]
    pair, report = ((X, y), (other, y)), {}
    for kind in ("secure", "fast"):
        plan = make(200, d, sparsity=d, steps=1, randomness=kind)
        runs = {id(X_): solvers.bind(plan, X_, y_) for X_, y_ in pair}
        if kind == "fast":
            quiet = {k: run.__class__(plan.with_noise(factor=0.0), *run.all) for k, run in runs.items()}
            share = float(plan.settings.noise_shares(200, np.zeros((1, 0)))[0])
            known = {"scale": share, "exact": lambda data, quiet=quiet: quiet[id(data[0])](None, True).releases[0]}

            def release(data, rng, runs=runs):
                return runs[id(data[0])](rng, True).releases[0]
        else:
            known = {"scale": 1.0, "grid": 1.0,
                     "exact": lambda data, runs=runs: at(runs[id(data[0])], np.zeros(d))[0].astype(float)}  # fmt: skip

            def release(data, rng, runs=runs):
                run = runs[id(data[0])]
                values = run(SecureStream.seeded(int(rng.integers(2**62))), True).releases[0]
                grids = secure_peeling.grids_at(run.plan, 0.0)
                whole = np.rint(values / run.real(np.ones(1, np.int64), grids)).astype(np.int64)
                np.testing.assert_array_equal(run.real(whole, grids), values)
                return whole.astype(float)

        report[kind] = audit.floating_point_attack(release, pair, trials=60, rng=3, **known)
    assert report["secure"].certain == 0 and report["secure"].both == 60
    assert report["fast"].certain > 0.5 and report["fast"].wrong == 0


def test_an_audit_of_the_worst_pair(monkeypatch):
    numbers = iter(range(10**9))

    @contextmanager
    def stream(rng):
        yield SecureStream.seeded(next(numbers))

    monkeypatch.setattr(secure_peeling, "secure_stream", stream)
    plan = make(40, 3, epsilon=2.0, steps=2, delta=1e-4, sparsity=1)
    pair = audit.pairs.peeling_iht(plan)
    report = audit.audit(plan, pair, plan.guarantee, trials=1500, confidence=1 - 1e-6, rng=1)
    assert not report.violated, str(report)
    weak = audit.audit(plan.with_noise(factor=0.25), pair, plan.guarantee, trials=1500, confidence=1 - 1e-6, rng=1)
    assert weak.violated, str(weak)


def test_fits_differ_learn_and_are_refused_where_grids_do_not_suffice():
    X, y = example(5000, 8)
    settings = {"sparsity": 2, "steps": 4, "step_size": 0.9, "radius": 2.0, "feature_bound": 1.0, "label_bound": 1.5,
                "epsilon": 4.0, "delta": 1e-6, "randomness": "secure"}  # fmt: skip
    one, two = (solvers.peeling_iht(X, y, trace=True, diagnostics=True, **settings) for _ in range(2))
    assert (one.coef != two.coef).any() and set(np.flatnonzero(one.coef)) == {0, 1}
    assert len(one.history["iterates"]) == 4
    plan = make()
    assert plan.event == make(randomness=None).event and "noise of a sum" in str(plan)
    with pytest.raises(InvalidValue, match="step_size.*2\\^60"):
        make(step_size=1e-12)
    with pytest.raises(InvalidValue, match="randomness='secure'.*Laplace"):
        make(calibration="published", label_bound=1.0)
    make(epsilon=1e-3)
    make(epsilon=1e3)


def test_all_steps_have_the_bits_of_the_largest_limit():
    """Entries are on one grid in all steps, so a step that chose its bits anew would have noise for other entries."""
    rng, differ = np.random.default_rng(8), 0
    for _ in range(100):
        bound, largest = rng.uniform(0.1, 20, 2)
        limit, ratio = largest * rng.uniform(0.05, 1), 2.0 ** rng.integers(-3, 12)
        first, later = (secure_peeling._grids(100, bound, largest, own, ratio) for own in (largest, limit))
        assert (later.row_bits, later.residual_bits) == (first.row_bits, first.residual_bits)
        assert later.row_unit == first.row_unit and later.limit == limit
        # The twin: next to a power of two, rounded products decide.
        anew = Grids.choose(100, bound, limit, ratio * bound * limit)
        differ += anew.row_bits != first.row_bits or anew.residual_bits != first.residual_bits
    assert differ > 10
