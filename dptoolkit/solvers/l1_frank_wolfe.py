"""Frank-Wolfe over the L1 ball, plain (frank_wolfe) and private by noisy vertex selection (dp_frank_wolfe).

    s_t = argmin over the 2d vertices s of <s, gradient> + noise,    w <- (1 - mu_t) w + mu_t s_t,    mu_t = 2/(t+2)

Talwar, Thakurta and Zhang 2015; Private LASSO of Khanna, Lu and Raff 2023. Each step releases one vertex, so the whole
run is ``steps`` selections. It starts at zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from dptoolkit import losses
from dptoolkit._validate import invalid, one_of, positive, real, whole
from dptoolkit.accounting import ExponentialMechanism, Ledger, NoisyMax, Repeated
from dptoolkit.accounting.events import Event
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_labels, check_rows, clip_entries, kernel_arrays, with_intercept
from dptoolkit.losses import Loss
from dptoolkit.mechanisms import as_generator
from dptoolkit.mechanisms.noise import laplace
from dptoolkit.mechanisms.selection import gumbel
from dptoolkit.solvers.base import (
    PUBLISHED,
    TIGHT,
    Array,
    FitResult,
    Plan,
    Release,
    Run,
    Trace,
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
from dptoolkit.solvers.records import planned_records, without_empty_rows

if TYPE_CHECKING:
    from dptoolkit.accounting.published import Published

_ALLOWED = ("logistic", "squared", "huber")
_DRAWS = {"gumbel": gumbel, "laplace": laplace}
# Noise of dense steps is drawn for several selections at a time, this many numbers at most.
_LARGEST_DRAW = 2**16


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
    # Imported here: only this calibration needs it.
    from dptoolkit.accounting import published

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
    labels = check_labels(y, n, losses.get(loss, _ALLOWED))
    plan = plan_dp_frank_wolfe(
        n=n, d=d, loss=loss, l1_radius=l1_radius, steps=steps, epsilon=epsilon, delta=delta,
        feature_bound=feature_bound, label_bound=label_bound, noise=noise, adjacency=adjacency,
        calibration=calibration, fit_intercept=fit_intercept,
        refresh=refresh,
    )  # fmt: skip
    generator = as_generator(rng)
    reserve(ledger, plan)
    w, history, _, _ = prepare_dp_frank_wolfe(plan, rows, labels)(generator, False)
    if diagnostics:
        bounded, clipped = bound_records(rows, labels, plan.settings)
        history["not_private"] = _diagnose(bounded, clipped, losses.get(loss), plan.settings["l1_radius"], w)
    record(ledger, plan)
    coef, intercept = split_intercept(w, fit_intercept, plan.settings["feature_bound"])
    return FitResult(coef, intercept, plan.guarantee, plan, history)


def prepare_dp_frank_wolfe(plan: Plan, X: Any, y: Any, counts: Any = None) -> Run:
    """``dp_frank_wolfe`` with its plan and data in place; the releases of a run are the chosen vertices.

    Privacy
    -------
    Nothing is released before a run; each run is ``plan.event``. ``counts`` says how often each row occurs.
    """
    loss = losses.get(plan.settings["loss"], _ALLOWED)
    rows, y = planned_records(plan, X, y, counts)
    return private_path(plan, *bound_records(rows, check_labels(y, plan.n, loss), plan.settings), loss)


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


def private_path(plan: Plan, rows: Rows, y: Array, loss: Loss) -> Run:
    """The private iteration on bounded records; exact and without noise where the plan has none.

    All that does not depend on the draws is computed here, once: audits run the same data a hundred thousand times.
    """
    if plan.noise == 0:
        return _exact_run(plan, rows, y, loss)
    rows, y = without_empty_rows(rows, y)
    return (_sparse_run if rows.is_sparse else _dense_run)(plan, rows, y, loss)


def _exact_run(plan: Plan, rows: Rows, y: Array, loss: Loss) -> Run:
    radius, steps = plan.settings["l1_radius"], plan.settings["steps"]

    def run(rng: np.random.Generator, trace: bool = False) -> Trace:
        w, vertices = frank_wolfe_path(rows, y, loss, radius, steps)
        return Trace(w, {"noise_scale": [], "vertices": vertices}, vertices.astype(float) if trace else None)

    return run


def noise_at(plan: Plan, loss: Loss) -> Callable[[float], float]:
    """The noise for selections at public weights with |w|_1 <= l1_norm: plan.noise, or less where the range is less."""
    if not plan.settings["adaptive"]:
        return lambda l1_norm: plan.noise
    s = plan.settings
    radius, bound, label, lipschitz = s["l1_radius"], s["feature_bound"], s["label_bound"], s["lipschitz"]
    noise = plan.noise

    def scale(l1_norm: float) -> float:
        residual = residual_limit(loss, min(l1_norm, radius), bound, label)
        return noise * min(bound * residual / lipschitz, 1.0)

    return scale


def _reachable(norm: float, radius: float, first: int, count: int) -> float:
    """The largest |w|_1 during ``count`` selections from step ``first``, given |w|_1 before them.

    What is missing to the radius shrinks by 1 - mu_t = t/(t+2) a step.
    """
    last = first + count - 1
    return max(norm, radius - (radius - norm) * (first * (first + 1) / (last * (last + 1))))


def _sparse_run(plan: Plan, rows: Rows, y: Array, loss: Loss) -> Run:
    from dptoolkit.kernels import frank_wolfe as kernel

    d, settings, scale_at = rows.shape[1], plan.settings, noise_at(plan, loss)
    transposed = rows.transpose()
    arrays = (*kernel_arrays(rows.matrix), *kernel_arrays(transposed))
    laplace, exact = settings["noise"] == "laplace", loss.name == "squared"
    squared = kernel.squared_laplace_block if laplace else kernel.squared_block
    lazy = kernel.lazy_laplace_block if laplace else kernel.lazy_block
    radius, per_scale = settings["l1_radius"], settings["l1_radius"] / plan.n
    parts = blocks(settings["steps"], settings["refresh"])
    start = np.zeros(0) if exact else losses.residual(loss, np.zeros(len(y)), y)
    target = np.asarray(transposed @ y) if exact else np.zeros(0)
    start_gradient = np.zeros(d) if exact else np.asarray(transposed @ start)

    def run(rng: np.random.Generator, trace: bool = False) -> Trace:
        # The room is stamped with step numbers, so every run needs its own.
        v, scale, room = np.zeros(d), 1.0, kernel.sampler(d)
        # Squared loss: q = X^T X v; others: u are the margins, r the residuals.
        q, u, r, gradient = np.zeros(d if exact else 0), np.zeros(len(y)), start.copy(), start_gradient.copy()
        scales, vertices = [], np.empty(settings["steps"], dtype=np.int64)
        for first, count in parts:
            norm = scale * float(np.abs(v).sum())
            noise_scale = scale_at(_reachable(norm, radius, first, count))
            chosen = vertices[first - 1 : first - 1 + count]
            public = first, count, radius, per_scale / noise_scale, scale
            if exact:
                scale = squared(rng, *arrays, *public, v, q, target, gradient, chosen, room)
            else:
                if first > 1:
                    r = losses.residual(loss, scale * u, y)
                    gradient = np.asarray(transposed @ r)
                scale = lazy(rng, loss.id, *arrays, y, *public, v, u, r, gradient, chosen, room)
            scales += [noise_scale] * count
        history = {"noise_scale": scales, "vertices": vertices}
        return Trace(scale * v, history, vertices.astype(float) if trace else None)

    return run


def _dense_run(plan: Plan, rows: Rows, y: Array, loss: Loss) -> Run:
    from dptoolkit.kernels import dense_frank_wolfe as kernel

    d, settings, matrix = rows.shape[1], plan.settings, rows.matrix
    steps, radius, draw = settings["steps"], settings["l1_radius"], _DRAWS[settings["noise"]]
    label = math.inf if settings["label_bound"] is None else settings["label_bound"]
    bounds = (settings["adaptive"], settings["feature_bound"], label, settings["lipschitz"])
    at_once = max(1, _LARGEST_DRAW // (2 * d))
    parts = [(first, min(at_once, steps - first)) for first in range(0, steps, at_once)]

    def run(rng: np.random.Generator, trace: bool = False) -> Trace:
        w, u, work = np.zeros(d), np.zeros(len(y)), np.empty(d)
        scales, chosen = np.empty(steps), np.empty(steps, dtype=np.int64)
        iterates = np.empty((steps if trace else 0, d))
        for first, count in parts:
            part = slice(first, first + count)
            noise = draw(rng, 1.0, (count, 2 * d))
            kernel.steps(
                matrix, y, loss.id, noise, first + 1, radius, plan.n, plan.noise, *bounds, w, u, work, scales[part],
                chosen[part], iterates[part],
            )  # fmt: skip
        history = {"noise_scale": scales.tolist(), "vertices": chosen}
        return Trace(w, history, chosen.astype(float), iterates) if trace else Trace(w, history)

    return run


def frank_wolfe_path(rows: Rows, y: Array, loss: Loss, radius: float, steps: int) -> tuple[Array, Any]:
    """Weights and vertices of the exact iteration, without noise.

    The margins follow the iterate, and ``_Steepest`` finds each vertex without a pass over all data at every step.
    """
    n, d = rows.shape
    steepest, margins = _Steepest(rows), np.zeros(n)
    w, chosen = np.zeros(d), np.empty(steps, dtype=np.int64)
    for t in range(1, steps + 1):
        j, slope = steepest(losses.residual(loss, margins, y))
        chosen[t - 1] = j if slope <= 0 else d + j
        w = _move(w, int(chosen[t - 1]), radius, t)
        mu = 2 / (t + 2)
        margins *= 1 - mu
        steepest.add_feature(margins, j, mu * radius if slope <= 0 else -mu * radius)
    return w, chosen


class _Steepest:
    """The feature with the largest |gradient| at given residuals, and its gradient; of equal ones the first.

    Residuals move little from one step to the next, and |x_j . (r - r0)| <= |x_j| |r - r0|: with all gradients at an
    earlier r0 at hand, only the few features that may have become the largest are computed anew. When these are more
    than a few, all are computed, and r becomes the new r0. The answer is that of computing all of them every time.
    """

    def __init__(self, rows: Rows) -> None:
        self.n, self.is_sparse, self.transposed = rows.shape[0], rows.is_sparse, rows.transpose()
        self.lengths = Rows(self.transposed, rows.is_sparse).row_norms() / self.n
        # How much a feature costs: its stored entries. This many are not more than a tenth of a whole pass.
        d = rows.shape[1]
        self.costs = np.diff(self.transposed.indptr) if rows.is_sparse else np.full(d, self.n)
        self.affordable = self.costs.sum() // 10
        self.anchor: Array | None = None
        self.gradient = self.size = np.zeros(d)

    def __call__(self, r: Array) -> tuple[int, float]:
        if self.anchor is not None:
            near = self._near(r, self.anchor)
            if self.costs[near].sum() <= self.affordable:
                gradient = np.asarray(self.transposed[near] @ r) / self.n
                best = int(np.argmax(np.abs(gradient)))
                return int(near[best]), float(gradient[best])
        self.anchor, self.gradient = r, np.asarray(self.transposed @ r) / self.n
        self.size = np.abs(self.gradient)
        j = int(np.argmax(self.size))
        return j, float(self.gradient[j])

    def _near(self, r: Array, anchor: Array) -> Any:
        """The features, in order, whose |gradient| can be the largest at r; a bit more than the bound, for rounding."""
        change = np.abs(r - anchor)
        largest = float(change.max())
        with np.errstate(over="ignore", invalid="ignore"):
            # Relative to the largest, so that no square underflows; without BLAS, whose threads wait for each other.
            distance = largest * math.sqrt(float(np.square(change / largest).sum())) if largest > 0 else 0.0
            moved = self.lengths * (1.000001 * distance)
            slack = 1e-9 * self.size.max()
            # What is not a number stays in.
            return np.flatnonzero(~(self.size + moved + slack < (self.size - moved).max()))

    def add_feature(self, margins: Array, j: int, weight: float) -> None:
        """margins += weight x_j."""
        if self.is_sparse:
            column = slice(self.transposed.indptr[j], self.transposed.indptr[j + 1])
            margins[self.transposed.indices[column]] += weight * self.transposed.data[column]
        else:
            margins += weight * self.transposed[j]


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
