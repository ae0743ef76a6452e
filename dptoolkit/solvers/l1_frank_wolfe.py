"""Frank-Wolfe over the L1 ball, plain (frank_wolfe) and private by noisy vertex selection (dp_frank_wolfe).

    s_t = argmin over the 2d vertices s of <s, gradient> + noise,    w <- (1 - mu_t) w + mu_t s_t,    mu_t = 2/(t+2)

Talwar, Thakurta and Zhang 2015; Private LASSO of Khanna, Lu and Raff 2023. Each step releases one vertex, so the whole
run is ``steps`` selections. It starts at zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import expit

from dptoolkit import losses
from dptoolkit._validate import invalid, one_of, positive, real, whole
from dptoolkit.accounting import ExponentialMechanism, Ledger, NoisyMax, Repeated, published
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.published import Published
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_labels, check_rows, clip_entries, kernel_arrays, with_intercept
from dptoolkit.losses import Loss
from dptoolkit.mechanisms import NoisyMaximum, as_generator
from dptoolkit.solvers.base import (
    PUBLISHED,
    TIGHT,
    Array,
    FitResult,
    Plan,
    Release,
    check_budget,
    check_calibration,
    check_size,
    make_plan,
    public_bound,
    record,
    reserve,
    smallest_noise,
    split_intercept,
    usable,
)

_ALLOWED = ("logistic", "squared", "huber")


def residual_limit(loss: Loss, l1_norm: float, feature_bound: float, label_bound: float | None) -> float:
    """The largest |residual| of a record with |x|_inf <= feature_bound at weights with |w|_1 <= l1_norm.

    Logistic: |sigmoid(m) - y| <= sigmoid(|m|) with |m| <= feature_bound * l1_norm.
    """
    margin = feature_bound * l1_norm
    if loss.name == "logistic":
        return float(expit(margin))
    if loss.name == "squared":
        assert label_bound is not None
        return margin + label_bound
    return loss.residual_bound if label_bound is None else min(loss.residual_bound, margin + label_bound)


def lipschitz_constant(loss: Loss, radius: float, bound: float, label: float | None, calibration: str) -> float:
    """The largest |entry| of a record's gradient in the ball; the paper takes 1 for the logistic residual."""
    if calibration == PUBLISHED and loss.name == "logistic":
        return bound
    return bound * residual_limit(loss, radius, bound, label)


def plan_dp_frank_wolfe(
    *, n: int, d: int, loss: str, l1_radius: float, steps: int, epsilon: float, delta: float = 0.0,
    feature_bound: float | None = None, label_bound: float | None = None, noise: str | None = None,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE, calibration: str = TIGHT, fit_intercept: bool = False,
    refresh: float = 0.25,
) -> Plan:
    """The plan of ``dp_frank_wolfe`` for n rows and d features; see there for the arguments."""
    n, d = check_size(n, d)
    table_loss = losses.get(loss, _ALLOWED)
    radius, steps = positive("l1_radius", l1_radius), whole("steps", steps, low=1)
    bound = public_bound("feature_bound", feature_bound, "the largest |entry| of X")
    label = None if label_bound is None else positive("label_bound", label_bound)
    if table_loss.name == "squared":
        label = public_bound("label_bound", label_bound, "the largest |label|")
    check_calibration(calibration)
    noise = resolve_noise(noise, calibration)
    real("refresh", refresh, low=0.0, high=1.0, repair="1 recomputes every row at every step, 0 never.")
    relation = Adjacency.parse(adjacency)
    epsilon, delta = check_budget(epsilon, delta, n)
    lipschitz = lipschitz_constant(table_loss, radius, bound, label, calibration)
    factor = 4.0 if relation is Adjacency.REPLACE_ONE else 2.0
    score_range = usable("vertex of the L1 ball", factor * radius * lipschitz / n)
    paper = _published(calibration, n, steps, radius, lipschitz, epsilon, delta, relation)
    scale = paper.scales["score"] if paper else score_range * smallest_noise(
        lambda multiplier: Repeated(selection_event(multiplier, noise), steps), epsilon, delta
    )
    event = selection_event(scale / score_range, noise)
    release = Release("vertex of the L1 ball", noise, score_range, scale, event, steps)
    settings = {
        "loss": loss, "l1_radius": radius, "steps": steps, "feature_bound": bound, "label_bound": label, "noise": noise,
        "fit_intercept": fit_intercept, "refresh": refresh, "lipschitz": lipschitz, "adaptive": calibration == TIGHT,
    }  # fmt: skip
    return make_plan("dp_frank_wolfe", n, d, relation, calibration, (release,), settings, paper)


def resolve_noise(noise: str | None, calibration: str) -> str:
    """Gumbel noise unless said otherwise; the papers' constants are for Laplace noise."""
    if noise is None:
        return "laplace" if calibration == PUBLISHED else "gumbel"
    return one_of("noise", noise, ("gumbel", "laplace"))


def selection_event(multiplier: float, noise: str) -> Event:
    """One selection whose noise scale is ``multiplier`` times the range of its scores."""
    epsilon = 1 / multiplier if multiplier > 0 else math.inf
    return ExponentialMechanism(epsilon) if noise == "gumbel" else NoisyMax(epsilon, noise)


def _published(
    calibration: str, n: int, steps: int, radius: float, lipschitz: float, epsilon: float, delta: float,
    relation: Adjacency,
) -> Published | None:
    if calibration != PUBLISHED:
        return None
    if math.isinf(epsilon):
        raise invalid("epsilon", epsilon, "finite with calibration='published'")
    return published.lasso_frank_wolfe(n, steps, radius, lipschitz, epsilon, delta, relation, rounds=steps)


def dp_frank_wolfe(
    X: Any, y: Any, *, loss: str, l1_radius: float, steps: int, epsilon: float, delta: float = 0.0,
    feature_bound: float | None = None, label_bound: float | None = None, noise: str | None = None,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE, calibration: str = TIGHT, fit_intercept: bool = False,
    refresh: float = 0.25, rng: Any = None, ledger: Ledger | None = None, diagnostics: bool = False,
) -> FitResult:
    """Private L1-constrained regression by Frank-Wolfe with noisy vertex selection.

    Parameters
    ----------
    X : (n, d) array or scipy.sparse matrix.  y : (n,) labels; 0/1 or -1/+1 for the logistic loss.
    loss : "logistic", "squared" or "huber".
    l1_radius : radius of the ball that holds the weights, the intercept's included.
    steps : number of selections.
    epsilon, delta : the budget; epsilon=math.inf is exactly ``frank_wolfe`` on clipped data.
    feature_bound : public bound of |X_ij|; larger entries are clipped.  label_bound : public bound of |y| (squared
    loss).
    noise : "gumbel" (the exponential mechanism) or "laplace"; by default the one that the calibration is made for.
    adjacency, calibration, rng, ledger : as in ``dp_ight``.
    fit_intercept : adds a column constant at feature_bound, bounded and charged like any other.
    refresh : on sparse data, rows that do not contain the chosen feature keep their residual until the weights have
        shrunk by this factor: 1 recomputes all rows at every step (the textbook iteration). Exact for squared loss.
    diagnostics : record the final objective and duality gap; NOT private.

    Privacy
    -------
    Query: the score <s, mean gradient> of every vertex. One record's gradient has entries at most L = feature_bound *
    residual bound, so each score moves by at most 2 l1_radius L/n (replace-one; half of it for zero-out), up at s where
    it moves down at -s: the RANGE of the change is twice that. Event: Repeated(ExponentialMechanism(range/scale),
    steps), or NoisyMax for Laplace noise. A row with a stale residual still contributes at most L, and whether it is
    stale depends on its own record and on public vertices only. With tight calibration L is taken at the largest |w|_1
    reachable until the next refresh (public), so the noise shrinks with it and the event stays. Public: n, d, all
    arguments, all vertices.
    """
    rows = check_rows(X)
    n, d = rows.shape
    table_loss = losses.get(loss, _ALLOWED)
    labels = check_labels(y, n, table_loss)
    plan = plan_dp_frank_wolfe(
        n=n, d=d, loss=loss, l1_radius=l1_radius, steps=steps, epsilon=epsilon, delta=delta,
        feature_bound=feature_bound, label_bound=label_bound, noise=noise, adjacency=adjacency,
        calibration=calibration, fit_intercept=fit_intercept,
        refresh=refresh,
    )  # fmt: skip
    generator = as_generator(rng)
    reserve(ledger, plan)
    bounded, clipped = bound_records(rows, labels, plan.settings)
    w, history = run(bounded, clipped, table_loss, plan, generator)
    if diagnostics:
        history["not_private"] = _diagnose(bounded, clipped, table_loss, plan.settings["l1_radius"], w)
    record(ledger, plan)
    coef, intercept = split_intercept(w, fit_intercept, plan.settings["feature_bound"])
    return FitResult(coef, intercept, plan.guarantee, plan, history)


def frank_wolfe(
    X: Any, y: Any, *, loss: str, l1_radius: float, steps: int, fit_intercept: bool = False, diagnostics: bool = False
) -> FitResult:
    """Frank-Wolfe without privacy: exact gradients, exact vertices, no clipping. Arguments as in ``dp_frank_wolfe``."""
    rows = check_rows(X)
    n, _ = rows.shape
    table_loss = losses.get(loss, _ALLOWED)
    labels = check_labels(y, n, table_loss)
    radius, steps = positive("l1_radius", l1_radius), whole("steps", steps, low=1)
    data = with_intercept(rows, 1.0) if fit_intercept else rows
    w, vertices = frank_wolfe_path(data, labels, table_loss, radius, steps)
    history: dict[str, Any] = {"vertices": vertices}
    if diagnostics:
        history["not_private"] = _diagnose(data, labels, table_loss, radius, w)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, None, None, history)


def bound_records(rows: Rows, labels: Array, settings: Any) -> tuple[Rows, Array]:
    """Rows and labels clipped to the plan's public bounds, with the intercept column if asked for.

    Privacy
    -------
    Each record is changed on its own, by public numbers: afterwards its gradient's entries obey the plan's bound.
    """
    rows = clip_entries(rows, settings["feature_bound"])
    if settings["fit_intercept"]:
        rows = with_intercept(rows, settings["feature_bound"])
    if settings["label_bound"] is not None:
        labels = np.clip(labels, -settings["label_bound"], settings["label_bound"])
    return rows, labels


def blocks(steps: int, refresh: float) -> list[tuple[int, int]]:
    """(first step, number of steps) between refreshes: a block ends when the weights have shrunk by ``refresh``.

    From step a to step b the weights shrink by a(a+1)/(b(b+1)): the number of blocks is logarithmic in the steps.
    """
    found, first = [], 1
    while first <= steps:
        end = first + 1
        while end <= steps and first * (first + 1) > refresh * end * (end + 1):
            end += 1
        found.append((first, end - first))
        first = end
    return found


def run(rows: Rows, y: Array, loss: Loss, plan: Plan, rng: np.random.Generator) -> tuple[Array, dict[str, Any]]:
    """The private iteration on bounded records; exact and without noise where the plan has none."""
    settings = plan.settings
    if plan.noise == 0:
        w, vertices = frank_wolfe_path(rows, y, loss, settings["l1_radius"], settings["steps"])
        return w, {"noise_scale": [], "vertices": vertices}
    if rows.is_sparse:
        return _sparse_path(rows, y, loss, plan, rng)
    return _dense_path(rows, y, loss, plan, rng)


def score_scale(plan: Plan, loss: Loss, l1_norm: float) -> float:
    """The noise for selections at public weights with |w|_1 <= l1_norm: plan.noise, or less where the range is less."""
    if not plan.settings["adaptive"]:
        return plan.noise
    return plan.noise * score_range_at(plan, loss, l1_norm) / plan.sensitivity


def score_range_at(plan: Plan, loss: Loss, l1_norm: float) -> float:
    """The range of the scores' change at weights with |w|_1 <= l1_norm, at most ``plan.sensitivity``."""
    s = plan.settings
    residual = residual_limit(loss, min(l1_norm, s["l1_radius"]), s["feature_bound"], s["label_bound"])
    return float(plan.sensitivity * min(s["feature_bound"] * residual / s["lipschitz"], 1.0))


def _reachable(norm: float, radius: float, first: int, count: int) -> float:
    """The largest |w|_1 during ``count`` selections from step ``first``, given |w|_1 before them."""
    largest = norm
    for t in range(first, first + count - 1):
        mu = 2 / (t + 2)
        norm = (1 - mu) * norm + mu * radius
        largest = max(largest, norm)
    return largest


def _sparse_path(
    rows: Rows, y: Array, loss: Loss, plan: Plan, rng: np.random.Generator
) -> tuple[Array, dict[str, Any]]:
    from dptoolkit.kernels import frank_wolfe as kernel

    n, d = rows.shape
    settings = plan.settings
    transposed = rows.transpose()
    arrays, room = (*kernel_arrays(rows.matrix), *kernel_arrays(transposed)), kernel.sampler(d)
    laplace, exact = settings["noise"] == "laplace", loss.name == "squared"
    squared = kernel.squared_laplace_block if laplace else kernel.squared_block
    lazy = kernel.lazy_laplace_block if laplace else kernel.lazy_block
    radius = settings["l1_radius"]
    v, u, scale = np.zeros(d), np.zeros(n), 1.0
    q, p, gradient = np.zeros(d), np.asarray(transposed @ y) if exact else np.zeros(0), np.zeros(d)
    scales, chosen = [], []
    for first, count in blocks(settings["steps"], settings["refresh"]):
        norm = scale * float(np.abs(v).sum())
        noise_scale = score_scale(plan, loss, _reachable(norm, radius, first, count))
        vertices = np.empty(count, dtype=np.int64)
        public = first, count, radius, radius / (n * noise_scale), scale
        if exact:
            scale = squared(rng, *arrays, *public, v, q, p, gradient, vertices, room)
        else:
            r = losses.residual(loss, scale * u, y)
            gradient = np.asarray(transposed @ r)
            scale = lazy(rng, loss.id, *arrays, y, *public, v, u, r, gradient, vertices, room)
        scales += [noise_scale] * count
        chosen.append(vertices)
    return scale * v, {"noise_scale": scales, "vertices": np.concatenate(chosen)}


def _dense_path(
    rows: Rows, y: Array, loss: Loss, plan: Plan, rng: np.random.Generator
) -> tuple[Array, dict[str, Any]]:
    n, d = rows.shape
    radius = plan.settings["l1_radius"]
    w, scales, chosen = np.zeros(d), [], np.empty(plan.settings["steps"], dtype=np.int64)
    for t in range(1, len(chosen) + 1):
        gradient = rows.matrix.T @ losses.residual(loss, rows.matrix @ w, y) / n
        scales.append(score_scale(plan, loss, float(np.abs(w).sum())))
        mechanism = NoisyMaximum(scales[-1], plan.sensitivity, plan.settings["noise"])
        chosen[t - 1] = mechanism.select(-radius * np.concatenate([gradient, -gradient]), rng)
        w = _move(w, int(chosen[t - 1]), radius, t)
    return w, {"noise_scale": scales, "vertices": chosen}


def frank_wolfe_path(rows: Rows, y: Array, loss: Loss, radius: float, steps: int) -> tuple[Array, Any]:
    """Weights and vertices of the exact iteration, without noise."""
    n, d = rows.shape
    transposed = rows.transpose()
    w, chosen = np.zeros(d), np.empty(steps, dtype=np.int64)
    for t in range(1, steps + 1):
        gradient = np.asarray(transposed @ losses.residual(loss, np.asarray(rows.matrix @ w), y)) / n
        j = int(np.argmax(np.abs(gradient)))
        chosen[t - 1] = j if gradient[j] <= 0 else d + j
        w = _move(w, int(chosen[t - 1]), radius, t)
    return w, chosen


def _move(w: Array, vertex: int, radius: float, t: int) -> Array:
    mu = 2 / (t + 2)
    w = (1 - mu) * w
    w[vertex % len(w)] += mu * (radius if vertex < len(w) else -radius)
    return w


def _diagnose(rows: Rows, y: Array, loss: Loss, radius: float, w: Array) -> dict[str, float]:
    """Objective and Frank-Wolfe duality gap <gradient, w> + radius |gradient|_inf >= objective - optimum."""
    margins = np.asarray(rows.matrix @ w)
    gradient = np.asarray(rows.matrix.T @ losses.residual(loss, margins, y)) / rows.shape[0]
    gap = float(gradient @ w + radius * np.abs(gradient).max())
    return {"objective": losses.value(loss, margins, y), "duality_gap": gap}
