"""One record moves the mean gradient of dp_ight by at most the plan's sensitivity, and some record by nearly that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import losses, solvers
from dptoolkit.adjacency import Adjacency
from dptoolkit.losses import logistic_diameter
from tests.solvers.capture import both, mean_gradients
from tests.strategies import FORMS, Pair, in_form, messy_csr, neighbours

ROUNDING = 1 + 1e-12
BUDGET = {"epsilon": 1.0, "delta": 1e-6, "step_size": 0.5}
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
RELATIONS = [a.value for a in Adjacency]


def task(mode):
    return losses.get(MODES[mode]["loss"]).task


def fit(X, y, mode, adjacency="replace-one", intercept=False, steps=2, **more):
    arguments = BUDGET | MODES[mode] | {"adjacency": adjacency, "fit_intercept": intercept} | more
    return solvers.dp_ight(X, y, sparsity=X.shape[1], steps=steps, rng=0, **arguments)


def plan(n, d, mode, adjacency="replace-one", intercept=False, steps=2, **more):
    arguments = BUDGET | MODES[mode] | {"adjacency": adjacency, "fit_intercept": intercept} | more
    return solvers.plan("dp_ight", n=n, d=d, sparsity=d, steps=steps, **arguments)


def sensitivity_at(made, w):
    """What the noise at public weights is for."""
    return made.sensitivity * made.settings.noise_law(made)(w) / made.noise


def drop(X, index):
    """X without a row, in its own format."""
    keep = np.delete(np.arange(X.shape[0]), index)
    return X.tocsr()[keep] if sparse.issparse(X) else X[keep]


def moves(pair, mode, adjacency, intercept, iterates, **more):
    """(noise scale, |change of the mean gradient|_2) at 0 and at every iterate."""

    def watch():
        return mean_gradients(iterates, BUDGET["step_size"])

    steps = len(iterates) + 1
    n = len(pair.y)
    full = lambda: fit(pair.X, pair.y, mode, adjacency, intercept, steps, **more)  # noqa: E731
    if adjacency == "replace-one":
        second = lambda: fit(pair.X2, pair.y2, mode, adjacency, intercept, steps, **more)  # noqa: E731
        ours, theirs = both(watch, full, second)
        factor = 1.0
    elif n == 1:
        (ours,) = both(watch, full)
        theirs, factor = [(w, 0 * g, s) for w, g, s in ours], 1.0
    else:
        # Zero-out: the record is gone and n stays, so the mean over the others counts (n-1)/n.
        kept = drop(pair.X, pair.index), np.delete(pair.y, pair.index)
        ours, theirs = both(watch, full, lambda: fit(*kept, mode, adjacency, intercept, steps, **more))
        factor = (n - 1) / n
    for (w, _, _), (w2, _, _) in zip(ours, theirs, strict=True):
        assert np.array_equal(w, w2), "the script must show both data sets the same iterates"
    return [(s, np.linalg.norm(g - factor * g2)) for (_, g, s), (_, g2, _) in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_never_more_than_planned(mode, adjacency, intercept):
    @given(neighbours(task(mode)), st.floats(-60, 60), st.integers(0, 2**32))
    # Seed 0 gives w of both signs: this record's margin is inf - inf.
    @example(Pair(np.full((1, 2), 1e308), np.zeros(1), np.zeros((1, 2)), np.zeros(1), 0, "dense"), 50.0, 0)
    @example(Pair(messy_csr(np.eye(1)), np.ones(1), messy_csr(-np.eye(1)), np.zeros(1), 0, "messy csr"), 1e4, 1)
    def check(pair, size, seed):
        n, d = pair.X.shape
        width = d + intercept
        w = size * np.random.default_rng(seed).standard_normal(width)
        made = plan(n, d, mode, adjacency, intercept)
        for scale, change in moves(pair, mode, adjacency, intercept, [w]):
            assert change <= made.sensitivity * ROUNDING
            # What is spent is scale / sensitivity: a smaller scale needs a smaller change.
            assert change <= scale / made.noise * made.sensitivity * ROUNDING
            assert scale <= made.noise

    check()


def saturating_pair(mode, intercept, n=3):
    """Two records, nearly equal, whose residuals are as far apart as clipping allows, at w = (1e6, 0, ...)."""
    bound = MODES[mode].get("row_norm", 1.0)
    tilt = 1e-3
    X = np.zeros((n, 2))
    X2 = X.copy()
    X[0], X2[0] = bound * np.array([tilt, 1.0]), bound * np.array([-tilt, 1.0])
    y, y2 = np.zeros(n), np.zeros(n)
    if task(mode) == "binary":
        y2[0] = 1.0
    else:
        y[0], y2[0] = -1e6, 1e6
    w = np.zeros(2 + intercept)
    w[0] = 1e6
    return Pair(X, y, X2, y2, 0, "dense"), w


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_attained(mode, adjacency, intercept, form):
    pair, w = saturating_pair(mode, intercept)
    pair = Pair(in_form(pair.X, form), pair.y, in_form(pair.X2, form), pair.y2, 0, form)
    made = plan(3, 2, mode, adjacency, intercept)
    change = moves(pair, mode, adjacency, intercept, [w])[-1][1]
    assert 0.99 * made.sensitivity <= change <= made.sensitivity * ROUNDING


def farthest_logistic_records(radius):
    """Two rows of norm <= 1, label 0, whose gradients at w = (radius, 0) are farthest apart: a search on a grid."""
    angle, size = np.meshgrid(np.linspace(0, np.pi, 181), np.linspace(0.05, 1, 39), indexing="ij")
    x = np.stack([(size * np.cos(angle)).ravel(), (size * np.sin(angle)).ravel()])
    g = x / (1 + np.exp(-radius * x[0]))
    # The longest gradient along each ray is enough; opposite sides of w.
    longest = np.argmax(np.linalg.norm(g, axis=0).reshape(angle.shape), axis=1)
    rays = np.arange(len(angle)) * angle.shape[1] + longest
    distance = (g[0][rays][:, None] - g[0][rays][None]) ** 2 + (g[1][rays][:, None] + g[1][rays][None]) ** 2
    a, b = np.unravel_index(np.argmax(distance), distance.shape)
    return x[:, rays[a]], x[:, rays[b]] * [1, -1]


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("radius", [0.0, 0.3, 1.0, 2.0, 5.0, 12.0, 39.9])
def test_adaptive_sensitivity_is_attained_at_any_iterate(radius, form):
    bound = MODES["logistic"]["row_norm"]
    w = np.array([radius / bound, 0.0])
    one, two = farthest_logistic_records(radius)
    X, X2 = np.zeros((4, 2)), np.zeros((4, 2))
    X[0], X2[0] = bound * one, bound * two
    pair = Pair(in_form(X, form), np.zeros(4), in_form(X2, form), np.zeros(4), 0, form)
    scale, change = moves(pair, "logistic", "replace-one", False, [w])[-1]
    made = plan(4, 2, "logistic")
    promised = sensitivity_at(made, w)
    # From a table whose radii are a sixteenth apart, rounded up.
    exact = bound * logistic_diameter(radius) / 4
    assert exact * (1 - 1e-12) <= promised <= exact * 1.01
    assert scale / made.noise == pytest.approx(promised / made.sensitivity, rel=1e-12)
    # The adaptive bound is honest from both sides.
    assert 0.95 * promised <= change <= promised * ROUNDING


@pytest.mark.parametrize("radius", [0.0, 0.49, 3.0, 30.0])
def test_adaptive_zero_out_is_attained(radius):
    bound = MODES["logistic"]["row_norm"]
    w = np.array([radius / bound, 0.0])
    X = np.array([[bound, 0.0], [0.0, 0.1]])
    pair = Pair(X, np.zeros(2), X, np.zeros(2), 0, "dense")
    scale, change = moves(pair, "logistic", "zero-out", False, [w])[-1]
    made = plan(2, 2, "logistic", "zero-out")
    assert sensitivity_at(made, w) * 0.98 <= change <= sensitivity_at(made, w) * ROUNDING
    assert scale / made.noise == pytest.approx(sensitivity_at(made, w) / made.sensitivity, rel=1e-12)


def farthest_squared_records(radius, margin, label):
    """Opposite rows of norm 1 with one label, at the best angle to w."""
    cosines = np.linspace(0, 1, 4001)
    moved = (label + np.minimum(radius * cosines, margin)) * np.sqrt(1 - cosines**2)
    c = cosines[np.argmax(moved)]
    return np.array([c, np.sqrt(1 - c * c)]), np.array([c, -np.sqrt(1 - c * c)])


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("radius", [0.0, 0.2, 1.0, 1.5, 2.0, 4.0, 12.0, 1e3])
def test_bounded_labels_and_margins_are_attained_at_any_iterate(radius, form):
    mode = "squared, labels and margins"
    bound, label, margin = (MODES[mode][name] for name in ("row_norm", "label_bound", "margin_bound"))
    w = np.array([radius / bound, 0.0])
    one, two = farthest_squared_records(radius, margin, label)
    X, X2 = np.zeros((4, 2)), np.zeros((4, 2))
    X[0], X2[0] = bound * one, bound * two
    y = np.array([-label, 0.0, 0.0, 0.0])
    pair = Pair(in_form(X, form), y, in_form(X2, form), y, 0, form)
    scale, change = moves(pair, mode, "replace-one", False, [w])[-1]
    made = plan(4, 2, mode)
    promised = sensitivity_at(made, w)
    assert scale / made.noise == pytest.approx(promised / made.sensitivity, rel=1e-12)
    assert 0.95 * promised <= change <= promised * ROUNDING
    assert promised == made.sensitivity if radius > 40 * margin else promised < made.sensitivity


def test_adaptive_switch():
    pair, w = saturating_pair("logistic", False)
    made = plan(3, 2, "logistic")
    still = [s for s, _ in moves(pair, "logistic", "replace-one", False, [w], adaptive=False)]
    moving = [s for s, _ in moves(pair, "logistic", "replace-one", False, [w])]
    assert still == [made.noise, made.noise]
    assert moving[0] == pytest.approx(made.noise / 2)
    assert 0.98 * made.noise <= moving[1] <= made.noise
    # A plan whose bound is a clipped gradient, or a paper's noise, has no smaller sensitivity near 0.
    for more in ({"grad_norm": 0.4}, {"calibration": "published"}):
        fixed = plan(3, 2, "logistic", **more)
        scales = [s for s, _ in moves(pair, "logistic", "replace-one", False, [w], **more)]
        assert scales == [fixed.noise] * 2


@pytest.mark.parametrize("mode", MODES)
def test_more_than_65536_features(mode):
    d = 70_000
    X = sparse.lil_matrix((3, d))
    X[0, 5], X[0, d - 1], X[1, 65_536] = 2.0, 3.0, 1.0
    X2 = X.copy()
    X2[0, 5], X2[0, d - 1] = 2.0, -3.0
    w = np.zeros(d)
    w[5] = 1e5
    y = np.zeros(3) if task(mode) == "binary" else np.full(3, -9.0)
    pair = Pair(X.tocsr(), y, X2.tocsr(), y, 0, "csr")
    # 13.0 is the squared length of the replaced row: its last entry, beyond 16 bits, flips.
    made = plan(3, d, mode)
    change = moves(pair, mode, "replace-one", False, [w])[-1][1]
    assert 0.8 * made.sensitivity <= change <= made.sensitivity * ROUNDING


def test_two_threads_change_nothing(monkeypatch):
    from dptoolkit.solvers.engine import gradients

    X = sparse.random(60, 300, 0.2, format="csr", random_state=1)
    y = np.arange(60) % 2

    def fit():
        arguments = {"sparsity": 9, "steps": 4, "epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0}
        return solvers.dp_ight(X, y, loss="logistic", rng=3, **arguments).coef

    small = fit()
    monkeypatch.setattr(gradients, "_WORTH_A_THREAD", 0)
    monkeypatch.setattr(gradients.os, "cpu_count", lambda: 1)
    one = fit()
    monkeypatch.setattr(gradients.os, "cpu_count", lambda: 2)
    for _ in range(20):
        assert np.array_equal(fit(), one), "bit for bit, whichever thread takes which part"
    # Small data are summed in another order.
    np.testing.assert_allclose(small, one, rtol=1e-12)
