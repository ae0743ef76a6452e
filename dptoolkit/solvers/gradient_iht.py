"""Iterative gradient hard thresholding, plain (ight) and private by gradient noise (dp_ight).

    w <- H_s(w - step_size * (mean gradient + N(0, scale^2 I)))

Wang and Gu 2019 (DP-IGHT), also Algorithm 4 of Wang's lecture 16. The noisy gradients are what is released;
thresholding is post-processing, so the whole run is ``steps`` Gaussian releases and composes exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit._validate import LARGEST, SMALLEST, invalid, magnitude, positive, whole
from dptoolkit.accounting import Gaussian, Ledger
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
    Trace,
    Trials,
    check_budget,
    check_calibration,
    check_counts,
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
from dptoolkit.solvers.batches import FULL_NOISE, noise_shares, share_at
from dptoolkit.solvers.gradients import MeanGradient

if TYPE_CHECKING:
    from dptoolkit.accounting.published import Published

ALLOWED_LOSSES = ("logistic", "squared", "huber")
# Up to this many entries, written out, one compiled call for the whole fit is faster than a call for every step.
SMALL = 50_000


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
    _refuse_unused(loss, grad_norm, label_bound=label_bound, margin_bound=margin_bound)
    norm = None
    if row_norm is not None:
        norm = joint_norm(magnitude("row_norm", row_norm), fit_intercept)
    if grad_norm is not None:
        bound = magnitude("grad_norm", grad_norm)
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
    label, margin = magnitude("label_bound", label_bound), magnitude("margin_bound", margin_bound)
    return Bounds(norm, None, label, margin, (label + margin) * norm, smoothness)


def _refuse_unused(loss: Loss, grad_norm: Any, **bounds: Any) -> None:
    """A bound that changes nothing would leave the caller believing that labels or predictions are clipped."""
    if loss.name == "squared" and grad_norm is None:
        return
    why = "with grad_norm, which bounds gradients alone" if loss.name == "squared" else f"for the {loss.name} loss"
    for name, value in bounds.items():
        if value is not None:
            raise invalid(name, value, f"None {why}", "It works for the squared loss without grad_norm: leave it out.")


def default_step(step_size: float | None, bounds: Bounds, l2: float = 0.0) -> float:
    """The step asked for, or 1 / (smoothness + l2), which the public bounds determine: longer ones may diverge."""
    if step_size is not None:
        return magnitude("step_size", step_size)
    if bounds.smoothness is None or not SMALLEST <= bounds.smoothness + l2 <= LARGEST:
        raise invalid("step_size", None, "given", "Without row_norm, or where it is extreme, no default is known.")
    return 1 / (bounds.smoothness + l2)


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
        "fit_intercept": fit_intercept, "clip_norm": row_norm,
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
    # Imported here: only this calibration needs it.
    from dptoolkit.accounting import published

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
    epsilon, delta : the budget; epsilon=math.inf is ``ight`` on records that are bounded all the same, as below.
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
    w, history, *_ = _bounded_run(plan, rows, labels, None)(generator, diagnostics=diagnostics)
    record(ledger, plan)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, plan.guarantee, plan, history)


def prepare_dp_ight(plan: Plan, X: Any, y: Any, counts: Any = None) -> IhtRun:
    """``dp_ight`` on these data with everything done that needs no randomness; its calls are what ``dp_ight`` runs.

    ``counts`` says how often each row occurs: the n rows of the plan may be given as their few different ones.

    Privacy
    -------
    Every call spends the plan's event; nothing is charged to a ledger here.
    """
    rows = check_rows(X)
    labels = check_labels(y, rows.shape[0], losses.get(plan.settings["loss"]))
    return _bounded_run(plan, rows, labels, check_counts(plan, rows.shape, counts))


def _bounded_run(plan: Plan, rows: Rows, labels: Array, counts: Any) -> IhtRun:
    settings = plan.settings
    bounded, clipped, caps = bound_records(rows, labels, settings)
    shares = noise_shares(settings, plan.adjacency)
    data = Bounded(bounded, clipped, losses.get(settings["loss"]), settings["margin_bound"], caps, counts)
    return IhtRun(data, settings, plan.noise, shares)


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
    run = IhtRun(Bounded(data, labels, table_loss), settings, 0.0, FULL_NOISE)
    w, history, *_ = run(np.random.default_rng(0), diagnostics=diagnostics)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, None, None, history)


def bound_records(rows: Rows, labels: Array, settings: Any) -> tuple[Rows, Array, Array | None]:
    """Rows, labels and residual caps such that every record's gradient obeys the plan's bound.

    Privacy
    -------
    Each record is changed on its own, by public numbers: afterwards |gradient_i| <= plan bound for every iterate.
    """
    # Even where no bound is asked for, rows are kept short enough that margins and caps are accurate floats.
    limit = settings["clip_norm"]
    rows = clip_rows(rows, LARGEST if limit is None else limit)
    if settings["fit_intercept"]:
        rows = with_intercept(rows, 1.0)
    if settings["label_bound"] is not None:
        labels = np.clip(labels, -settings["label_bound"], settings["label_bound"])
    if settings["grad_norm"] is None:
        return rows, labels, None
    return rows, labels, rows.caps(settings["grad_norm"])


@dataclass(frozen=True)
class Bounded:
    """Records whose gradients obey a public bound; ``counts`` says how often each occurs, None for once."""

    rows: Rows
    y: Array
    loss: Loss
    margin_bound: float = math.inf
    caps: Array | None = None
    counts: NDArray[np.int64] | None = None

    def expanded(self) -> Bounded:
        """The same records, each written as often as it occurs."""
        if self.counts is None:
            return self
        which = np.repeat(np.arange(len(self.counts)), self.counts)
        caps = None if self.caps is None else self.caps[which]
        return replace(self, rows=Rows(self.rows.matrix[which], self.rows.is_sparse), y=self.y[which], caps=caps,
                       counts=None)  # fmt: skip

    def compiled(self) -> Any:
        """The records as kernels/iht.py takes them; rows that are zero, or occur never, have no gradient."""
        from dptoolkit.kernels.iht import Records

        X = self.rows.matrix.toarray() if self.rows.is_sparse else self.rows.matrix
        counts = np.ones(len(X)) if self.counts is None else self.counts
        caps = np.full(len(X), np.inf) if self.caps is None else self.caps
        used = X.any(axis=1) & (counts > 0)
        weights = counts[used] / counts.sum()
        return Records(
            self.loss.id, np.ascontiguousarray(X[used]), self.y[used], weights, float(self.margin_bound), caps[used]
        )


class IhtRun:
    """Hard thresholding with bounded data in place. Small data are fitted by one compiled call, others step by step.

    Privacy
    -------
    A call releases the mean gradient ``steps`` times, each with N(0, (noise * share)^2) on every coordinate; the share
    is for the sensitivity at the public iterate.
    """

    def __init__(self, data: Bounded, settings: Mapping[str, Any], noise: float, shares: tuple[Array, float]) -> None:
        self.settings, self.noise, self.shares = settings, noise, shares
        self.width = data.rows.shape[1]
        self.free = self.width - (1 if settings["fit_intercept"] else 0)
        self.small = data.compiled() if data.rows.shape[0] * self.width <= SMALL else None
        self._data = data
        self._gradient = None if self.small is not None else self._mean_gradient()

    def __call__(self, rng: np.random.Generator, trace: bool = False, diagnostics: bool = False) -> Trace:
        """One fit; ``diagnostics`` adds the objective after every step, which is NOT private."""
        # A subclass may draw in its own way, which compiled code would not see.
        if self.small is not None and type(rng) is np.random.Generator:
            return self._compiled(rng, trace, diagnostics)
        return self._step_by_step(rng, trace, diagnostics)

    def _mean_gradient(self) -> MeanGradient:
        data = self._data.expanded()
        return MeanGradient(data.rows, data.y, data.loss, data.margin_bound, data.caps)

    def schedule(self) -> Any:
        """The steps as kernels/iht.py takes them."""
        from dptoolkit.kernels.iht import Schedule

        s = self.settings
        return Schedule(s["steps"], s["step_size"], self.noise, *self.shares, self.free, min(s["sparsity"], self.free))

    def _compiled(self, rng: np.random.Generator, trace: bool, diagnostics: bool) -> Trace:
        from dptoolkit.kernels.iht import iht_fit

        steps, width = self.settings["steps"], self.width
        w, support, step, scales = np.empty(width), np.empty(width, np.int64), np.empty(width), np.empty(steps)
        releases = np.empty((steps if trace else 0, width))
        iterates = np.empty((steps if trace or diagnostics else 0, width))
        iht_fit(rng, self.small, self.schedule(), w, support, step, scales, releases, iterates)
        history: dict[str, Any] = {"noise_scale": scales.tolist()}
        if diagnostics:
            gradient, everywhere = self._mean_gradient(), np.arange(width)
            history["not_private"] = {"objective": [gradient.objective(everywhere, v) for v in iterates]}
        return Trace(w, history, releases, iterates) if trace else Trace(w, history)

    def trials(
        self, other: IhtRun, rng: np.random.Generator, place: Any, first: int, bits: NDArray[Any], trace: bool
    ) -> Trials | None:
        """Trials first, first + 1, ... on these data (bit 1) or the other's, each from its own place of the stream.

        ``place`` is the memory of ``rng`` (audit.streams.place). None if the data are not small.
        """
        if self.small is None or other.small is None:
            return None
        from dptoolkit.kernels.iht import iht_trials

        weights = np.empty((len(bits), self.width))
        size = (len(bits), self.settings["steps"], self.width) if trace else (0, 0, 0)
        releases, iterates = np.empty(size), np.empty(size)
        iht_trials(
            rng, *place, first, np.ascontiguousarray(bits, np.int8), self.small, other.small, self.schedule(), weights,
            releases, iterates,
        )  # fmt: skip
        return Trials(weights, releases, iterates) if trace else Trials(weights)

    def _step_by_step(self, rng: np.random.Generator, trace: bool, diagnostics: bool) -> Trace:
        """The iteration on weights kept as (support, values)."""
        from dptoolkit.kernels.threshold import largest

        gradient = self._gradient or self._mean_gradient()
        settings, kept = self.settings, np.arange(self.free, self.width)
        support, values = np.zeros(0, dtype=np.intp), np.zeros(0)
        scales, objectives, releases, iterates, border = [], [], [], [], math.inf
        for _ in range(settings["steps"]):
            scale = self.noise * share_at(self.shares, float(np.linalg.norm(values)))
            step = gradient.noisy(support, values, scale, rng)
            if trace:
                releases.append(step.copy())
            step *= -settings["step_size"]
            step[support] += values
            # Little less than the last border is reached by few, and nearly always by enough.
            top = largest(step[: self.free], settings["sparsity"], guess=0.9 * border)
            support = np.concatenate([top, kept])
            values, border = step[support], float(np.abs(step[top]).min())
            scales.append(scale)
            if trace:
                iterates.append(_dense(self.width, support, values))
            if diagnostics:
                objectives.append(gradient.objective(support, values))
        history: dict[str, Any] = {"noise_scale": scales}
        if diagnostics:
            history["not_private"] = {"objective": objectives}
        w = _dense(self.width, support, values)
        return Trace(w, history, np.array(releases), np.array(iterates)) if trace else Trace(w, history)


def _dense(width: int, support: Any, values: Array) -> Array:
    w = np.zeros(width)
    w[support] = values
    return w


def sensitivity_at(plan: Plan, w: Array) -> float:
    """The sensitivity of the mean gradient that the noise is for at a public w, at most ``plan.sensitivity``."""
    return plan.sensitivity * share_at(noise_shares(plan.settings, plan.adjacency), float(np.linalg.norm(w)))
