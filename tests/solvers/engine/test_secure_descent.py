"""Secure dp_ight and dp_dual_averaging: integer gradients record by record, in one call and step by step; softmax."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.data.grids import capped_residuals, exact_sum
from dptoolkit.kernels.threshold import grid_sums
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers.engine import descent
from tests.statistics import assert_ks, rejected

pytestmark = pytest.mark.filterwarnings("ignore:.*noise is too large")

N, D, CLASSES = 24, 5, 3
BUDGET = {"steps": 4, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
KINDS = {
    "ight": ("dp_ight", {"loss": "logistic", "sparsity": 3}),
    "ight grad_norm": ("dp_ight", {"loss": "squared", "sparsity": 3, "grad_norm": 0.3}),
    "averaging": ("dp_dual_averaging", {"loss": "logistic", "sparsity": 3}),
    "averaging squared": ("dp_dual_averaging", {"loss": "squared", "label_bound": 1.0, "margin_bound": 1.0}),
    "softmax": ("dp_dual_averaging", {"loss": "softmax", "classes": CLASSES, "fit_intercept": True}),
    "softmax grad_norm": ("dp_dual_averaging", {"loss": "softmax", "classes": CLASSES, "grad_norm": 0.4}),
}


def plan_of(kind, n=N, d=D, randomness="secure", **more):
    solver, own = KINDS[kind]
    return solvers.plan(solver, n=n, d=d, randomness=randomness, **(BUDGET | own | more))


def data(n=N, d=D, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.7)
    return X, rng.integers(0, 2, n)


def sums(kind, X, y, small=True):
    """The integer sums of a run on these data at some weights, by the code that a fit uses."""
    patch = pytest.MonkeyPatch()
    patch.setattr(descent, "SMALL", 10**9 if small else 0)
    run = solvers.bind(plan_of(kind, *X.shape), X, y)
    patch.undo()
    rng = np.random.default_rng(7)
    if "softmax" in kind:
        return run.sums(rng.standard_normal(run.shape)).ravel()
    w = rng.standard_normal(run.width) * 0.4
    _, cap = run._noise.at(float(run.noise_at(w)))
    if small:
        out = np.empty(run.width)
        grid_sums(run._small, w, np.arange(run.width), run.width, cap, out)
        return out.astype(np.int64)
    gradient = run._mean_gradient()
    residuals = gradient._doubles.residuals(gradient.margins(np.arange(run.width), w)) * len(y)
    return exact_sum(gradient._doubles.rows, capped_residuals(residuals, gradient.noise.grids, cap, gradient.lengths))


ENTRIES = st.sampled_from([0.0, -0.0, 0.3, -1.0, 5e-324, 1e-30, 1e300, -1e300, 0.57735])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("small", [True, False], ids=["one call", "step by step"])
@given(record=st.lists(ENTRIES, min_size=D, max_size=D), place=st.integers(0, N - 1), seed=st.integers(0, 99))
@settings(max_examples=6)
def test_a_record_contributes_the_same_integers_whatever_the_others_are(kind, layout, small, record, place, seed):
    """S of all records is the sum of what each gives alone at its place, to the last bit: none moves another's."""
    X, y = data(seed=seed)
    X[place] = record
    alone = np.zeros((3, *X.shape))
    others = X.copy()
    others[place] = 0.0
    alone[0, place], alone[1] = X[place], others
    whole = sums(kind, layout(X), y, small)
    parts = [sums(kind, layout(part), y, small) for part in alone[:2]]
    nothing = sums(kind, layout(alone[2]), y, small)
    # An intercept's entry is 1 in rows of zeros as well.
    np.testing.assert_array_equal(whole, parts[0] + parts[1] - nothing)


def test_a_path_that_depends_on_other_records_is_seen(monkeypatch):
    """Twin: residuals that move by an ulp with the number of entries of all records change everybody's integers."""
    kind, (X, y) = "ight", data()
    X[3] = 0.0
    others = X.copy()
    others[5] = 0.0
    single = np.zeros_like(X)
    single[5] = X[5]
    cap = capped_residuals

    def with_path(r, grids, limit, lengths, theta=None):
        return cap(r + (np.count_nonzero(X_now[0]) % 2) * grids.residual_unit, grids, limit, lengths, theta)

    X_now = [X]
    monkeypatch.setitem(sums.__globals__, "capped_residuals", with_path)
    seen = []
    for part in (X, others, single):
        X_now[0] = part
        seen.append(sums(kind, part, y, False))
    assert (seen[0] != seen[1] + seen[2]).any()


@pytest.mark.parametrize("kind", [k for k in KINDS if "softmax" not in k])
@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
def test_one_call_makes_the_steps_of_many(kind, layout, monkeypatch):
    """The same words give the same releases in both ways: exact sums do not depend on the order of their terms."""
    X, y = data(60, 7)
    X = layout(X)
    plan = plan_of(kind, 60, 7, steps=6)
    fast = solvers.bind(plan, X, y)(SecureStream.seeded(4), True)
    monkeypatch.setattr(descent, "SMALL", 0)
    slow = solvers.bind(plan, X, y)(SecureStream.seeded(4), True)
    assert fast.history == slow.history and len(fast.history["noise_scale"]) == 6
    # The first noise is drawn by the same words; later ones are drawn ahead where the noise is constant.
    part = plan.secure.first
    np.testing.assert_array_equal(part.integers(fast.releases[0]), part.integers(slow.releases[0]))
    if not plan.secure.first.law.is_constant:
        np.testing.assert_allclose(fast.weights, slow.weights, atol=1e-6 * np.abs(slow.weights).max())
    assert (np.count_nonzero(fast.iterates, axis=1) <= (plan.settings.sparsity or 7)).all()


@pytest.mark.parametrize("kind", ["softmax", "softmax grad_norm"])
def test_softmax_gradients_are_those_of_the_fast_path(kind):
    X, y = data(200, 8)
    y = np.arange(200) % CLASSES
    run = solvers.bind(plan_of(kind, 200, 8), X, y)
    fast = solvers.bind(plan_of(kind, 200, 8, "fast"), X, y)
    w = np.random.default_rng(1).standard_normal(run.shape)
    exact = fast.mean_gradient(w[None])[0]
    grids = run._secure.grids
    np.testing.assert_allclose(run.sums(w) * float(grids.unit) / 200, exact, atol=2 * grids.residual_unit)


@pytest.mark.parametrize("kind", ["softmax", "softmax grad_norm"])
def test_softmax_integers_keep_the_sensitivity_and_reach_it(kind):
    """In Python's integers: |q|^2 |x|^2 of every record, and the change when one replaces another."""
    charged = plan_of(kind, 40, 4)
    X = np.zeros((40, 4))
    X[:, 0], X[::3, 1], X[5] = 1.0, 1e200, 0.0
    X[7:11] = [[1, 1, 1, 1], [-1, 1, 1, 1], [1e-300, 0, 0, 0], [0.3, 0.2, 0, 0]]
    y = np.arange(40) % CLASSES
    run = solvers.bind(charged, X, y)
    unit = charged.secure.first.grids.unit / 40
    allowed, worst = (Fraction(charged.sensitivity) / unit) ** 2, Fraction(0)
    rows = run.rows.matrix
    for size in (0.0, 1.0, 1e3):
        w = np.random.default_rng(2).standard_normal(run.shape) * size
        vectors = [
            np.outer(q.astype(object), x.astype(object)).ravel() for q, x in zip(run.residuals(w), rows, strict=True)
        ]
        exact = [[int(v) for v in vector] for vector in vectors]
        for one in range(0, 40, 3):
            for two in range(40):
                square = sum((a - b) ** 2 for a, b in zip(exact[one], exact[two], strict=True))
                assert square <= allowed
                worst = max(worst, square / allowed)
    assert worst > 0.6
    # Twin: vectors at the limit, rounded to the nearest without the check in integers, are often longer than allowed.
    grids = run._secure.grids
    cap = math.floor((Fraction(grids.limit) / Fraction(grids.residual_unit)) ** 2)
    r = np.random.default_rng(3).standard_normal((100, CLASSES))
    r *= grids.limit / np.linalg.norm(r, axis=1)[:, None] * (1 - 1e-13)
    assert ((np.rint(r / grids.residual_unit) ** 2).sum(axis=1) > cap).mean() > 0.2


def test_softmax_noise_has_its_law():
    X, y = data(300, 400)
    run = solvers.bind(plan_of("softmax", 300, 400, steps=30), X, y)
    trace = run(SecureStream.seeded(3), True)
    w, z = np.zeros(run.shape), []
    for t in range(30):
        whole = run._secure.integers(trace.releases[t]).reshape(run.shape)
        z.append((whole - run.sums(w)).ravel() / run._units)
        w = trace.iterates[t].reshape(run.shape)
    assert_ks(np.concatenate(z), "norm")
    rejected(assert_ks, 0.9 * np.concatenate(z), "norm")


@pytest.mark.parametrize("kind", ["averaging", "softmax", "softmax grad_norm"])
def test_the_attack_finds_nothing(kind):
    X, y = data(150, 20)
    other = X.copy()
    other[0] = -X[0]
    pair = (X, y), (other, y)
    safe = audit.floating_point_attack(plan_of(kind, 150, 20, steps=1), pair, trials=40, rng=1)
    assert safe.certain == 0 and safe.both == 40
    fast = audit.floating_point_attack(plan_of(kind, 150, 20, "fast", steps=1), pair, trials=40, rng=1)
    assert fast.certain > 0.7 and fast.wrong == 0


@pytest.mark.parametrize("kind", ["averaging", "softmax"])
def test_utility_is_that_of_fast_noise(kind):
    """Mean objective of fits of both kinds within six standard errors of their difference (alpha 1e-6)."""
    X, y = data(2000, 10)
    y = (X[:, 0] > 0).astype(int)
    plans = [plan_of(kind, 2000, 10, randomness, steps=10, epsilon=2.0) for randomness in ("secure", "fast")]
    means, errors = [], []
    for plan in plans:
        run = solvers.bind(plan, X, y)
        values = [run.diagnose(run(np.random.default_rng(k)).weights, {})["objective"] for k in range(30)]
        means.append(np.mean(values))
        errors.append(np.var(values) / 30)
    assert abs(means[0] - means[1]) < 6 * math.sqrt(sum(errors)) and means[0] < (0.69 if kind == "averaging" else 1.0)


def test_counts_stand_for_repeated_records():
    X, y = data()
    counts = np.arange(N) % 3
    which = np.repeat(np.arange(N), counts)
    for kind in ("ight", "averaging", "softmax"):
        plan = plan_of(kind, len(which))
        one = solvers.bind(plan, X, y, counts)(SecureStream.seeded(1), True)
        two = solvers.bind(plan, X[which], y[which])(SecureStream.seeded(1), True)
        np.testing.assert_array_equal(one.releases, two.releases)
