"""Every draw of every solver is watched: its law, its number, its scale against the plan, and where it goes.

The noise that a generator handed out is put back into a plain NumPy version of the algorithm; the solver's result must
come out. A scale used as a location, noise missing on some coordinates, or one draw too few, cannot pass.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import losses, solvers
from dptoolkit.accounting import zcdp
from dptoolkit.data import check_rows, clip_rows
from dptoolkit.kernels import frank_wolfe as kernel
from dptoolkit.kernels import reference
from dptoolkit.solvers.engine import vertex_paths
from dptoolkit.solvers.engine import vertices as l1_frank_wolfe
from dptoolkit.solvers.frame.plan import SYMMETRIC_MAXIMUM
from tests.solvers.capture import Spy, added_noise

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
CALIBRATIONS = ["tight", "published"]
LAYOUTS = {"dense": np.array, "csr": sparse.csr_matrix}


def small_problem(seed=0, n=12, d=7):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), (rng.random(n) < 0.5) * 1.0


# --- dp_ight ------------------------------------------------------------------------------------------

IGHT = {
    "logistic": {"loss": "logistic", "row_norm": 1.0},
    "logistic, fixed noise": {"loss": "logistic", "row_norm": 1.0, "adaptive": False},
    "huber": {"loss": "huber", "row_norm": 0.8},
    "hinge": {"loss": "hinge", "row_norm": 0.8},
    "squared": {"loss": "squared", "grad_norm": 1.5},
    "squared, labels and margins": {"loss": "squared", "row_norm": 0.8, "label_bound": 1.0, "margin_bound": 2.0},
}


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("mode", IGHT)
def test_ight_noise_on_empty_data_is_the_planned_noise(mode, intercept, calibration):
    """No record has a feature, so all that moves the weights is noise: w = -step_size sum_t scale_t z_t."""
    steps, d, step_size = 5, 6, 0.3
    spy = Spy(1)
    y = np.zeros(4) if losses.get(IGHT[mode]["loss"]).task != losses.BINARY else np.arange(4) % 2
    result = solvers.dp_ight(
        np.zeros((4, d)),
        y,
        sparsity=d,
        steps=steps,
        step_size=step_size,
        fit_intercept=intercept,
        calibration=calibration,
        rng=spy,
        **BUDGET,
        **IGHT[mode],
    )
    assert [name for name, _ in spy.draws] == ["standard_normal"] * steps
    assert all(z.shape == (d + intercept,) for z in spy.of("standard_normal"))
    scales = result.history["noise_scale"]
    assert len(scales) == steps
    total = sum(scale * z for scale, z in zip(scales, spy.of("standard_normal"), strict=True))
    np.testing.assert_allclose(result.coef, -step_size * total[:d], rtol=1e-12)
    check_ight_scales(result, mode, calibration)


def check_ight_scales(result, mode, calibration):
    """The plan's noise at every step, except where the sensitivity at the public iterate is known to be smaller."""
    plan, scales = result.plan, np.array(result.history["noise_scale"])
    release = plan.releases[0]
    assert (release.law, release.count) == ("Gaussian", plan.settings.steps)
    assert release.event.noise_multiplier == pytest.approx(release.scale / release.sensitivity)
    # At w = 0 a logistic residual is a half, and a squared one the label: 1 of 1 + 2.
    smaller = {"logistic": 1 / 2, "squared, labels and margins": 1 / 3}
    if mode in smaller and calibration == "tight":
        assert scales[0] == pytest.approx(plan.noise * smaller[mode]), "the sensitivity at w = 0"
        assert (scales <= plan.noise).all() and (scales[1:] > scales[0]).all()
    else:
        np.testing.assert_array_equal(scales, plan.noise)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("mode", IGHT)
def test_ight_is_the_specification_with_the_recorded_noise(mode, intercept, layout):
    """Noise on every coordinate, selected or not, before thresholding: only then does the path come out."""
    X, y = small_problem()
    spy, s, steps, step_size = Spy(2), 2, 6, 0.5
    result = solvers.dp_ight(
        LAYOUTS[layout](X),
        y,
        sparsity=s,
        steps=steps,
        step_size=step_size,
        fit_intercept=intercept,
        rng=spy,
        **BUDGET | {"epsilon": 20.0},
        **IGHT[mode],
    )
    rows = check_rows(X)
    if "row_norm" in IGHT[mode]:
        rows = clip_rows(rows, IGHT[mode]["row_norm"])
    A = np.hstack([rows.matrix, np.ones((len(y), 1))]) if intercept else rows.matrix
    bound, margin = IGHT[mode].get("label_bound"), IGHT[mode].get("margin_bound", np.inf)
    labels = y if bound is None else np.clip(y, -bound, bound)
    caps = IGHT[mode]["grad_norm"] / np.linalg.norm(A, axis=1) if "grad_norm" in IGHT[mode] else None
    w = np.zeros(A.shape[1])
    for scale, z in zip(result.history["noise_scale"], spy.of("standard_normal"), strict=True):
        noise = scale * z
        w = reference.threshold_step(
            A, labels, w, losses.get(IGHT[mode]["loss"]), step_size, noise, s, margin, caps, protected=int(intercept)
        )
    np.testing.assert_allclose(result.coef, w[: X.shape[1]], rtol=1e-9, atol=1e-12)
    if intercept:
        assert result.intercept == pytest.approx(w[-1], rel=1e-9)
    assert np.count_nonzero(result.coef) == s
    check_ight_scales(result, mode, "tight")


def test_ight_adaptive_scale_follows_the_iterate():
    """scale_t / sensitivity at w_t is the same number at every step: the event does not change."""
    X, y = small_problem()
    spy = Spy(3)
    result = solvers.dp_ight(
        np.zeros_like(X), y, loss="logistic", sparsity=7, steps=8, step_size=2.0, row_norm=1.0, rng=spy, **BUDGET
    )
    w, plan = np.zeros(7), result.plan
    for scale, z in zip(result.history["noise_scale"], spy.of("standard_normal"), strict=True):
        # Rounded up to the next sixteenth of a radius: never less noise than the iterate asks for.
        radius = float(np.linalg.norm(w))
        ceiling = np.ceil(16 * radius) / 16
        assert scale == pytest.approx(plan.noise * losses.logistic_diameter(ceiling) / 2, rel=1e-9)
        assert scale >= plan.noise * losses.logistic_diameter(radius) / 2 * (1 - 1e-12)
        w = w - 2.0 * scale * z


# --- Frank-Wolfe --------------------------------------------------------------------------------------

L1 = {
    "logistic": {"loss": "logistic", "l1_radius": 3.0, "feature_bound": 1.0},
    "huber": {"loss": "huber", "l1_radius": 2.0, "feature_bound": 1.0},
    "hinge": {"loss": "hinge", "l1_radius": 2.0, "feature_bound": 1.0},
    "squared": {"loss": "squared", "l1_radius": 2.0, "feature_bound": 1.0, "label_bound": 1.0},
}


def scripted_noise(spy, law, size):
    """Standard noise, one vector a selection, rebuilt from the exponentials that were drawn."""
    draws = spy.of("standard_exponential")
    assert all(e.shape[-1:] == (size,) for e in draws) and len(draws) == len(spy.draws)
    if law == "gumbel":
        return list(np.concatenate([-np.log(e).reshape(-1, size) for e in draws]))
    pairs = zip(draws[::2], draws[1::2], strict=True)
    return list(np.concatenate([(a - b).reshape(-1, size) for a, b in pairs]))


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("noise", ["gumbel", "laplace"])
@pytest.mark.parametrize("mode", L1)
def test_dense_frank_wolfe_is_the_specification_with_the_recorded_noise(mode, noise, calibration):
    X, y = small_problem(1)
    steps, d, radius = 9, X.shape[1], L1[mode]["l1_radius"]
    spy, loss = Spy(4), losses.get(L1[mode]["loss"])
    arguments = BUDGET | L1[mode] | {"steps": steps, "law": noise, "calibration": calibration}
    with added_noise() as added:
        result = solvers.dp_frank_wolfe(X, y, rng=spy, **arguments)
    plan, scales = result.plan, result.history["noise_scale"]
    assert (plan.releases[0].law, plan.releases[0].count) == (l1_frank_wolfe.LAWS[noise], steps)
    drawn = scripted_noise(spy, noise, 2 * d)
    assert len(drawn) == len(scales) == steps
    np.testing.assert_allclose(added, np.array(scales)[:, None] * np.array(drawn), rtol=1e-9, atol=1e-12)
    A, w = np.clip(X, -1, 1), np.zeros(d)
    for t in range(1, steps + 1):
        gradient = A.T @ loss.residual(A @ w, y) / len(y)
        scores = -radius * np.concatenate([gradient, -gradient]) + scales[t - 1] * drawn[t - 1]
        vertex = int(np.argmax(scores))
        assert vertex == result.history["vertices"][t - 1]
        assert scales[t - 1] == pytest.approx(expected_scale(plan, loss, np.abs(w).sum()), rel=1e-12)
        w = (1 - 2 / (t + 2)) * w
        w[vertex % d] += 2 / (t + 2) * (radius if vertex < d else -radius)
    np.testing.assert_allclose(result.coef, w, rtol=1e-12)


def expected_scale(plan, loss, norm):
    """By hand: plan.noise per plan.sensitivity, times 4 (or 2) radius * largest gradient entry at |w|_1 = norm, / n."""
    if plan.calibration == "published":
        return plan.noise
    margin = plan.settings.feature_bound * norm
    limit = {"logistic": 1 / (1 + math.exp(-margin)), "huber": 1.0, "hinge": 1.0}.get(loss.name, margin + 1.0)
    moves = 4 if plan.adjacency.value == "replace-one" else 2
    change = moves * plan.settings.l1_radius * plan.settings.feature_bound * limit / plan.n
    return plan.noise / plan.sensitivity * change


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("refresh", [0.25, 1.0])
@pytest.mark.parametrize("mode", L1)
def test_sparse_frank_wolfe_scales_cover_every_iterate(mode, refresh, adjacency):
    """The kernel draws by itself (its law is tested with it); its scales are for the worst iterate of each block."""
    X, y = small_problem(2)
    steps, loss, radius = 40, losses.get(L1[mode]["loss"]), L1[mode]["l1_radius"]
    result = solvers.dp_frank_wolfe(
        sparse.csr_matrix(X), y, steps=steps, refresh=refresh, adjacency=adjacency, rng=5, **BUDGET, **L1[mode]
    )
    scales, vertices = result.history["noise_scale"], result.history["vertices"]
    assert len(scales) == len(vertices) == result.plan.releases[0].count == steps
    w, norms = np.zeros(7), []
    for t, vertex in enumerate(vertices, start=1):
        norms.append(np.abs(w).sum())
        w = (1 - 2 / (t + 2)) * w
        w[vertex % 7] += 2 / (t + 2) * (radius if vertex < 7 else -radius)
    for first, count in vertex_paths.blocks(steps, refresh):
        block = slice(first - 1, first - 1 + count)
        assert len(set(scales[block])) == 1
        assert scales[first - 1] >= expected_scale(result.plan, loss, max(norms[block])) * (1 - 1e-12)
        assert scales[first - 1] <= result.plan.noise * (1 + 1e-12)
    if refresh == 1.0:
        expected = [expected_scale(result.plan, loss, norm) for norm in norms]
        np.testing.assert_allclose(scales, expected, rtol=1e-12)


def test_kernel_gets_the_scale_of_the_plan(monkeypatch):
    """sharpness = radius / (n * scale): what the kernel divides by is the scale that history states."""
    seen = []

    def watch(name, place, back):
        real = getattr(kernel, name)

        def wrapped(*arguments):
            seen.extend([arguments[place]] * arguments[place - back])
            return real(*arguments)

        monkeypatch.setattr(kernel, name, wrapped)

    # Places of ``sharpness``; ``count`` comes so many before it.
    watch("dithered_block", 6, 1)
    watch("gram_block", 6, 2)
    X, y = small_problem(3)
    for mode in L1:
        seen.clear()
        result = solvers.dp_frank_wolfe(sparse.csr_matrix(X), y, steps=20, rng=0, **BUDGET, **L1[mode])
        reach = L1[mode]["l1_radius"] * L1[mode]["feature_bound"]
        expected = reach / (12 * np.array(result.history["noise_scale"]))
        np.testing.assert_allclose(seen, expected, rtol=1e-12)


@pytest.mark.parametrize("mode", L1)
def test_numbers_for_the_rows_are_drawn_before_and_whatever_they_hold(mode, monkeypatch):
    """One number a row of X, empty rows included, from the fit's own stream; then the kernel draws."""
    seen = []
    monkeypatch.setattr(vertex_paths, "LARGEST_GRAM", 0)
    monkeypatch.setattr(kernel, "dithered_block", lambda rng, *rest: (seen.append(rest[9].theta.copy()), 1.0)[1])
    X, y = small_problem(3)
    X[[2, 5]] = 0.0
    for data in (X, -X, X * 0.3):
        spy = Spy(4)
        solvers.dp_frank_wolfe(sparse.csr_matrix(data), y, steps=1, rng=spy, **BUDGET, **L1[mode])
        assert [name for name, _ in spy.draws] == ["random"] and spy.draws[0][1].shape == (12,)
        assert np.array_equal(seen[-1], np.delete(spy.draws[0][1], [2, 5]))
    assert all(np.array_equal(theta, seen[0]) for theta in seen)


# --- multinomial --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("selection", "radius"), [("vertex", 2.0), ("columns", 2.0), ("columns", 0.2)])
@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_multinomial_is_the_specification_with_the_recorded_noise(calibration, selection, radius, layout):
    X, _ = small_problem(4, d=4)
    y, K, d, steps = np.arange(12) % 3, 3, 4, 5
    spy, loss = Spy(6), losses.get("softmax")
    with added_noise() as added:
        result = solvers.dp_multinomial_frank_wolfe(
            LAYOUTS[layout](X),
            y,
            classes=K,
            l1_radius=radius,
            steps=steps,
            feature_bound=1.0,
            selection=selection,
            calibration=calibration,
            rng=spy,
            **BUDGET,
        )
    plan = result.plan
    law = "gumbel" if calibration == "tight" else "laplace"
    drawn = scripted_noise(spy, law, 2 * K * d if selection == "vertex" else 2 * K)
    assert len(drawn) == plan.releases[0].count == steps * (1 if selection == "vertex" else d)
    A, W, i, scales = np.clip(X, -1, 1), np.zeros((K, d)), 0, []
    for t in range(1, steps + 1):
        scales.append(float(plan.settings.noise_law(plan)(W[None])[0]))
        gradient = (A.T @ loss.residual(A @ W.T, np.eye(K)[y])).T / 12
        step = np.zeros((K, d))
        groups = [np.arange(K * d)] if selection == "vertex" else [np.arange(K) * d + j for j in range(d)]
        for group in groups:
            g = gradient.ravel()[group]
            np.testing.assert_allclose(added[i], scales[-1] * drawn[i], rtol=1e-9, atol=1e-12)
            best = int(np.argmax(-radius * np.concatenate([g, -g]) + scales[-1] * drawn[i]))
            step.flat[group[best % len(group)]] = radius if best < len(group) else -radius
            i += 1
        W = (1 - 2 / (t + 2)) * W + 2 / (t + 2) * step
    np.testing.assert_allclose(result.coef, W, rtol=1e-12)
    np.testing.assert_allclose(result.history["noise_scale"], scales, rtol=1e-12)
    # A residual is at most 2/3 at zero weights, and half of two 1/2; the plan's noise is for all weights of the ball.
    pairs = plan.releases[0].law == SYMMETRIC_MAXIMUM
    assert pairs == (radius < 1 and calibration == "tight")
    limit, at_zero = (losses.softmax_pair_limit, 1 / 2) if pairs else (losses.softmax_limit, 2 / 3)
    largest = limit(np.array([radius * (1 if selection == "vertex" else d), 0, 0]))
    assert scales[0] == pytest.approx(plan.noise * (at_zero / largest if calibration == "tight" else 1.0))
    if pairs:
        # One record's scores move by 2 radius/n times the two residuals together; rho is that of the budget.
        rho = plan.releases[0].count * (2 * radius / 12 / scales[0]) ** 2 / 8
        assert zcdp.to_epsilon(rho, BUDGET["delta"]) == pytest.approx(BUDGET["epsilon"], rel=1e-3)


# --- peeling ------------------------------------------------------------------------------------------

PEEL = {"sparsity": 3, "step_size": 0.5, "radius": 1.0, "feature_bound": 1.0, "label_bound": 1.0}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("data", ["full", "split"])
@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_peeling_is_the_specification_with_the_recorded_noise(calibration, data, layout):
    X, y = small_problem(5)
    steps, s, d = 3, 3, 7
    spy = Spy(7)
    with added_noise() as added:
        result = solvers.peeling_iht(
            LAYOUTS[layout](X), y, steps=steps, data=data, calibration=calibration, rng=spy, **BUDGET, **PEEL
        )
    choice, values = result.plan.releases
    exponentials = spy.of("standard_exponential")
    scales = result.history["selection_scale"]
    if calibration == "tight":
        expected = [-scale * np.log(e) for scale, e in zip(scales, exponentials, strict=True)]
        np.testing.assert_allclose(added, expected, rtol=1e-9, atol=1e-12)
    else:
        assert len(added) == s * steps, "fresh noise for every selection"
    A, w, draws = np.clip(X, -1, 1), np.zeros(d), iter(spy.draws)
    for t in range(steps):
        # Noise for margins of at most |w|_1 and labels of at most 1, instead of sqrt(s) and 1.
        share = (1 + np.abs(w).sum()) / (1 + math.sqrt(s)) if calibration == "tight" else 1.0
        assert scales[t] == pytest.approx(share * choice.scale)
        assert result.history["value_scale"][t] == pytest.approx(share * values.scale)
        part = slice(4 * t, 4 * (t + 1)) if data == "split" else slice(None)
        B, b = A[part], y[part]
        v = w - 0.5 * B.T @ (B @ w - b) / len(b)
        chosen, noise = (one_shot if calibration == "tight" else one_by_one)(np.abs(v), s, scales[t], draws)
        w = np.zeros(d)
        w[chosen] = v[chosen] + result.history["value_scale"][t] * noise
        w *= min(1.0, 1.0 / np.linalg.norm(w))
    assert next(draws, None) is None, "more was drawn than is charged"
    np.testing.assert_allclose(result.coef, w, rtol=1e-9)
    rounds = 1 if data == "split" else steps
    assert choice.count == s * rounds
    assert values.count == (rounds if calibration == "tight" else s * rounds)


def one_shot(scores, s, scale, draws):
    """One Gumbel vector on all scores, then one Gaussian vector on the chosen values."""
    name, e = next(draws)
    assert name == "standard_exponential" and e.shape == scores.shape
    chosen = np.argsort(-(scores - scale * np.log(e)), kind="stable")[:s]
    name, z = next(draws)
    assert name == "standard_normal" and z.shape == (s,)
    return chosen, z


def one_by_one(scores, s, scale, draws):
    """Fresh Laplace noise on what is left, s times, then Laplace noise on the values."""
    left, chosen = list(range(len(scores))), []
    for _ in range(s):
        a, b = next(draws), next(draws)
        assert a[0] == b[0] == "standard_exponential" and a[1].shape == (len(left),)
        chosen.append(left.pop(int(np.argmax(scores[left] + scale * (a[1] - b[1])))))
    a, b = next(draws), next(draws)
    assert a[1].shape == b[1].shape == (s,)
    return np.array(chosen), a[1] - b[1]


# --- sparsifier ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(4.2, 11.7), (1.1, 4.9)], ids=["count inside", "count above"])
@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparsifier_count_is_the_clipped_count_plus_the_recorded_noise(layout, calibration, bounds):
    X, y = small_problem(6, n=30, d=20)
    arguments = {
        "l1_radius": 4.0, "steps": 6, "epsilon": 1.75, "count_share": 0.4, "delta": 1e-6, "feature_bound": 1.0,
        "alpha": bounds[0], "beta": bounds[1], "rho": 1.3, "count_steps": 60,
    }  # fmt: skip
    low, high = math.ceil(bounds[0]), math.floor(bounds[1])
    path, _ = l1_frank_wolfe.frank_wolfe_path(check_rows(np.clip(X, -1, 1)), y, losses.get("logistic"), 4.0, 60)
    exact = np.count_nonzero(path)
    assert (exact > high) == (high == 4), "one case each"
    moved = 0
    for seed in range(8):
        spy = Spy(seed)
        with added_noise() as added:
            result = solvers.sparsifier(LAYOUTS[layout](X), y, calibration=calibration, rng=spy, **arguments)
        check_count_draws(spy, 1 - math.exp(-0.7 / (high - low)))
        up, down = (int(v) for v in spy.of("geometric"))
        count = min(max(exact, low), high) + up - down
        moved += min(max(count, low), high) != min(max(exact, low), high)
        kept = min(round(1.3 * min(max(count, low), high)), 20)
        assert result.history["number"] == kept
        assert np.count_nonzero(result.coef) <= kept
        if layout == "dense":
            check_added_noise(spy, added, result)
    assert moved, "the noise must have mattered in some run"
    release = result.plan.releases[1]
    assert (release.scale, release.sensitivity) == (pytest.approx((high - low) / 0.7), high - low)
    assert release.event.epsilon == pytest.approx(0.7) and release.count == 1


def check_count_draws(spy, success):
    """Two geometric draws, last, with this success probability."""
    names = [name for name, _ in spy.draws]
    assert names.count("geometric") == 2 and names[-2:] == ["geometric"] * 2
    assert [a[0] for n, a in zip(names, spy.arguments, strict=True) if n == "geometric"] == pytest.approx([success] * 2)


def check_added_noise(spy, added, result):
    """The selections' noise is the recorded one at the scales of the history."""
    drawn = spy.of("standard_exponential")
    noise = -np.log(drawn[0]) if result.plan.settings.law == "gumbel" else drawn[0] - drawn[1]
    scales = np.array(result.history["noise_scale"])[:, None]
    np.testing.assert_allclose(added, scales * noise, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", ["fixed", "threshold"])
def test_sparsifier_without_a_private_count_draws_none(count):
    X, y = small_problem(7)
    spy = Spy(0)
    arguments = {"fixed": {"number": 2}, "threshold": {"threshold": 0.3}}[count]
    result = solvers.sparsifier(
        X, y, l1_radius=2.0, steps=5, epsilon=1.0, delta=1e-6, feature_bound=1.0, count=count, rng=spy, **arguments
    )
    assert [(name, values.shape) for name, values in spy.draws] == [("standard_exponential", (5, 2 * X.shape[1]))]
    assert len(result.plan.releases) == 1
    if count == "fixed":
        assert np.count_nonzero(result.coef) <= 2
    else:
        kept = np.abs(result.coef[result.coef != 0])
        assert (kept >= 0.3).all() and len(kept) == result.history["number"]
