"""Iterative gradient hard thresholding, plain (ight) and private by gradient noise (dp_ight).

    w <- H_s(w - step_size * (mean gradient + N(0, scale^2 I)))

Wang and Gu 2019 (DP-IGHT), also Algorithm 4 of Wang's lecture 16. The noisy gradients are what is released;
thresholding is post-processing, so the whole run is ``steps`` Gaussian releases and composes exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid, positive, whole
from dptoolkit.accounting import Gaussian, Ledger, published
from dptoolkit.accounting.published import Published
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_labels, check_rows, clip_rows, joint_norm, with_intercept
from dptoolkit.losses import Loss
from dptoolkit.mechanisms import as_generator
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
    check_sparsity,
    gaussian_multiplier,
    make_plan,
    public_bound,
    record,
    reserve,
    split_intercept,
    usable,
)
from dptoolkit.solvers.gradients import MeanGradient

ALLOWED_LOSSES = ("logistic", "squared", "huber")
_LONGEST_ROW = 1e150


@dataclass(frozen=True)
class Bounds:
    """How one record's gradient is bounded, by public numbers."""

    row_norm: float | None
    grad_norm: float | None
    label_bound: float | None
    margin_bound: float
    gradient: float
    smoothness: float | None


def gradient_bounds(
    loss: Loss, row_norm: Any, grad_norm: Any, label_bound: Any, margin_bound: Any, fit_intercept: bool
) -> Bounds:
    """The bound on |gradient|_2 of one record, and which clipping makes it true."""
    norm = None
    if row_norm is not None:
        norm = joint_norm(positive("row_norm", row_norm), fit_intercept)
    if grad_norm is not None:
        bound = positive("grad_norm", grad_norm)
        if loss.name != "squared":
            public_bound("row_norm", row_norm, "the largest L2 norm of a row")
            assert norm is not None
            bound = min(bound, loss.residual_bound * norm)
        return Bounds(norm, grad_norm, None, math.inf, bound, None if norm is None else loss.smoothness * norm * norm)
    if norm is None:
        public_bound("row_norm", None, "the largest L2 norm of a row")
    assert norm is not None
    smoothness = loss.smoothness * norm * norm
    if loss.name != "squared":
        return Bounds(norm, None, None, math.inf, loss.residual_bound * norm, smoothness)
    if label_bound is None or margin_bound is None:
        raise invalid(
            "grad_norm", None, "given for the squared loss, or both label_bound and margin_bound",
            "The squared loss has unbounded gradients: clip each record's gradient, or labels and predictions.",
        )
    label, margin = positive("label_bound", label_bound), positive("margin_bound", margin_bound)
    return Bounds(norm, None, label, margin, (label + margin) * norm, smoothness)


def default_step(step_size: float | None, bounds: Bounds) -> float:
    """The step asked for, or 1 / smoothness, which the public bounds determine."""
    if step_size is None:
        if not bounds.smoothness or not 0 < 1 / bounds.smoothness < math.inf:
            raise invalid("step_size", None, "given", "Without row_norm, or where it is extreme, no default is known.")
        return 1 / bounds.smoothness
    return positive("step_size", step_size)


def plan_dp_ight(
    *, n: int, d: int, loss: str, sparsity: int, steps: int, step_size: float | None = None, epsilon: float,
    delta: float = 0.0, row_norm: float | None = None, grad_norm: float | None = None, label_bound: float | None = None,
    margin_bound: float | None = None, adjacency: str | Adjacency = Adjacency.REPLACE_ONE, calibration: str = TIGHT,
    fit_intercept: bool = False, adaptive: bool = True,
) -> Plan:
    """The plan of ``dp_ight`` for n rows and d features; see there for the arguments."""
    n, d = check_size(n, d)
    table_loss = losses.get(loss, ALLOWED_LOSSES)
    check_sparsity(sparsity, d)
    steps = whole("steps", steps, low=1)
    relation = Adjacency.parse(adjacency)
    bounds = gradient_bounds(table_loss, row_norm, grad_norm, label_bound, margin_bound, fit_intercept)
    step_size = default_step(step_size, bounds)
    check_calibration(calibration)
    epsilon, delta = check_budget(epsilon, delta, n)
    sensitivity = usable("mean gradient", (2.0 if relation is Adjacency.REPLACE_ONE else 1.0) * bounds.gradient / n)
    paper = _published(calibration, table_loss, bounds, n, steps, epsilon, delta, relation)
    scale = paper.scales["gradient"] if paper else sensitivity * gaussian_multiplier(steps, epsilon, delta)
    release = Release("mean gradient", "Gaussian", sensitivity, scale, Gaussian(scale / sensitivity), steps)
    settings = {
        "loss": loss, "sparsity": sparsity, "steps": steps, "step_size": step_size, "row_norm": bounds.row_norm,
        "grad_norm": bounds.grad_norm, "label_bound": bounds.label_bound, "margin_bound": bounds.margin_bound,
        "fit_intercept": fit_intercept,
        "adaptive": adaptive and loss == "logistic" and grad_norm is None and calibration == TIGHT,
    }
    return make_plan("dp_ight", n, d, relation, calibration, (release,), settings, paper)


def _published(
    calibration: str, loss: Loss, bounds: Bounds, n: int, steps: int, epsilon: float, delta: float, relation: Adjacency
) -> Published | None:
    """Corollary 5.8 for logistic loss, Remark 5.3 with the clipped gradient bound for the others."""
    if calibration != PUBLISHED:
        return None
    if math.isinf(epsilon):
        raise invalid("epsilon", epsilon, "finite with calibration='published'")
    if loss.name == "logistic":
        return published.ight_corollary_5_8(n, steps, bounds.gradient, epsilon, delta, relation)
    return published.ight_remark_5_3(n, steps, bounds.gradient, epsilon, delta, relation)


def dp_ight(
    X: Any, y: Any, *, loss: str, sparsity: int, steps: int, step_size: float | None = None, epsilon: float,
    delta: float = 0.0, row_norm: float | None = None, grad_norm: float | None = None, label_bound: float | None = None,
    margin_bound: float | None = None, adjacency: str | Adjacency = Adjacency.REPLACE_ONE, calibration: str = TIGHT,
    fit_intercept: bool = False, adaptive: bool = True, rng: Any = None, ledger: Ledger | None = None,
    diagnostics: bool = False,
) -> FitResult:
    """Private sparse linear or logistic regression by noisy gradients and hard thresholding.

    Parameters
    ----------
    X : (n, d) array or scipy.sparse matrix.  y : (n,) labels; 0/1 or -1/+1 for the logistic loss.
    loss : "logistic", "squared" or "huber" (residuals clipped at 1).
    sparsity : number of features kept; an intercept is kept besides.
    steps, step_size : iterations and step; the default step is 1 / (smoothness * row_norm^2).
    epsilon, delta : the budget; epsilon=math.inf is exactly ``ight``.
    row_norm : public L2 bound of a row; longer rows are scaled down.
    grad_norm : public L2 bound to which each record's gradient is clipped (squared loss, instead of the next two).
    label_bound, margin_bound : public bounds to which labels and predictions are clipped (squared loss, with row_norm).
    adjacency : "replace-one" or "zero-out".
    calibration : "tight", or "published" for the paper's own constant; the guarantee then states claim and truth.
    fit_intercept : adds a column of ones, bounded and charged like any other.
    adaptive : for logistic loss and tight calibration, scale the noise with the sensitivity at the current, public
    iterate.
    rng : None, a seed (reproducible, so not private) or a Generator.
    ledger : refuses before the data are used, is charged after.
    diagnostics : record the objective after every step; NOT private.

    Privacy
    -------
    Query: the mean of per-record gradients, each at most G in L2 by clipping. Sensitivity 2 G/n (replace-one) or G/n
    (zero-out). Event: Repeated(Gaussian(scale/sensitivity), steps). For logistic loss at a public iterate w the
    replace-one sensitivity is row_norm * diameter(row_norm |w|) / n, between half of that and all of it; the noise
    shrinks with it, so the event stays the same. Public: n, d, all arguments, all iterates.
    """
    rows = check_rows(X)
    n, d = rows.shape
    labels = check_labels(y, n, losses.get(loss, ALLOWED_LOSSES))
    plan = plan_dp_ight(
        n=n, d=d, loss=loss, sparsity=sparsity, steps=steps, step_size=step_size, epsilon=epsilon, delta=delta,
        row_norm=row_norm, grad_norm=grad_norm, label_bound=label_bound, margin_bound=margin_bound, adjacency=adjacency,
        calibration=calibration, fit_intercept=fit_intercept, adaptive=adaptive,
    )  # fmt: skip
    generator = as_generator(rng)
    reserve(ledger, plan)
    bounded, clipped, caps = bound_records(rows, labels, plan.settings, row_norm)
    gradient = MeanGradient(bounded, clipped, losses.get(loss), plan.settings["margin_bound"], caps)
    w, history = _iterate(gradient, plan.settings, plan, generator, diagnostics)
    record(ledger, plan)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, plan.guarantee, plan, history)


def ight(
    X: Any, y: Any, *, loss: str, sparsity: int, steps: int, step_size: float, fit_intercept: bool = False,
    diagnostics: bool = False,
) -> FitResult:
    """Iterative gradient hard thresholding without privacy: no clipping, no noise. Arguments as in ``dp_ight``."""
    rows = check_rows(X)
    n, d = rows.shape
    table_loss = losses.get(loss, ALLOWED_LOSSES)
    labels = check_labels(y, n, table_loss)
    settings = {
        "sparsity": check_sparsity(sparsity, d), "steps": whole("steps", steps, low=1),
        "step_size": positive("step_size", step_size), "fit_intercept": fit_intercept,
    }  # fmt: skip
    data = with_intercept(rows, 1.0) if fit_intercept else rows
    w, history = _iterate(MeanGradient(data, labels, table_loss), settings, None, None, diagnostics)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, None, None, history)


def bound_records(
    rows: Rows, labels: Array, settings: Any, row_norm: float | None
) -> tuple[Rows, Array, Array | None]:
    """Rows, labels and residual caps such that every record's gradient obeys the plan's bound.

    Privacy
    -------
    Each record is changed on its own, by public numbers: afterwards |gradient_i| <= plan bound for every iterate.
    """
    # Even where no bound is asked for, rows are kept short enough that margins and caps are accurate floats.
    rows = clip_rows(rows, _LONGEST_ROW if row_norm is None else row_norm)
    if settings["fit_intercept"]:
        rows = with_intercept(rows, 1.0)
    if settings["label_bound"] is not None:
        labels = np.clip(labels, -settings["label_bound"], settings["label_bound"])
    if settings["grad_norm"] is None:
        return rows, labels, None
    norms = rows.row_norms()
    with np.errstate(divide="ignore", over="ignore"):
        return rows, labels, settings["grad_norm"] / norms


def _iterate(
    gradient: MeanGradient, settings: Any, plan: Plan | None, rng: np.random.Generator | None, diagnostics: bool
) -> tuple[Array, dict[str, Any]]:
    """The iteration on weights kept as (support, values)."""
    from dptoolkit.kernels.threshold import largest

    width = gradient.rows.shape[1]
    free = width - (1 if settings["fit_intercept"] else 0)
    kept = np.arange(free, width)
    support, values = np.zeros(0, dtype=np.intp), np.zeros(0)
    scales, objectives = [], []
    for _ in range(settings["steps"]):
        scale = 0.0 if plan is None else _noise_scale(plan, values)
        step = gradient.noisy(support, values, scale, rng)
        step *= -settings["step_size"]
        step[support] += values
        support = np.concatenate([largest(step[:free], settings["sparsity"]), kept])
        values = step[support]
        scales.append(scale)
        if diagnostics:
            objectives.append(gradient.objective(support, values))
    history: dict[str, Any] = {"noise_scale": scales}
    if diagnostics:
        history["not_private"] = {"objective": objectives}
    w = np.zeros(width)
    w[support] = values
    return w, history


def _noise_scale(plan: Plan, values: Array) -> float:
    """The noise at public weights with these non-zeros: plan.noise, or less where the sensitivity there is less."""
    if not plan.settings["adaptive"]:
        return plan.noise
    return plan.noise * sensitivity_at(plan, values) / plan.sensitivity


def sensitivity_at(plan: Plan, w: Array) -> float:
    """The sensitivity of the mean logistic gradient at a public w, at most ``plan.sensitivity``."""
    row_norm = plan.settings["row_norm"]
    radius = row_norm * float(np.linalg.norm(w))
    if plan.adjacency is Adjacency.REPLACE_ONE:
        return float(row_norm * losses.logistic_diameter(radius) / plan.n)
    return row_norm / (1 + math.exp(-radius)) / plan.n
