"""Stochastic gradient hard thresholding: sgd_ht and dp_sgd_ht (Liang et al. 2023, Algorithm 1).

    w <- H_k(w - step_size * (mean gradient of a fresh batch + N(0, scale^2 I)))

The step is lazy (kernels/stochastic.py): exact in law, and its cost does not grow with d.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit._validate import invalid, positive, whole
from dptoolkit.accounting import Ledger, Repeated, calibrate, published
from dptoolkit.accounting.events import POISSON, WITHOUT_REPLACEMENT
from dptoolkit.accounting.published import Published
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_labels, with_intercept
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
    check_l2,
    check_size,
    check_sparsity,
    make_plan,
    record,
    reserve,
    split_intercept,
    usable,
)
from dptoolkit.solvers.batches import (
    FULL_NOISE,
    BatchData,
    Iterate,
    batch_event,
    batch_sizes,
    check_batch,
    check_batches,
    check_sampling,
    check_sparse_rows,
    factor,
    noise_shares,
)
from dptoolkit.solvers.gradient_iht import ALLOWED_LOSSES, bound_records, default_step, gradient_bounds


def plan_dp_sgd_ht(
    *, n: int, d: int, loss: str, sparsity: int, steps: int, batch_size: int, step_size: float | None = None,
    epsilon: float, delta: float = 0.0, row_norm: float | None = None, grad_norm: float | None = None,
    label_bound: float | None = None, margin_bound: float | None = None, l2: float = 0.0,
    sampling: str = WITHOUT_REPLACEMENT, adjacency: str | Adjacency | None = None, calibration: str = TIGHT,
    fit_intercept: bool = False, adaptive: bool = True,
) -> Plan:
    """The plan of ``dp_sgd_ht`` for n rows and d features; see there for the arguments."""
    n, d = check_size(n, d)
    table_loss = losses.get(loss, ALLOWED_LOSSES)
    check_sparsity(sparsity, d)
    steps, b = whole("steps", steps, low=1), check_batch("batch_size", batch_size, n)
    scheme, relation = check_sampling(sampling, adjacency)
    bounds = gradient_bounds(table_loss, row_norm, grad_norm, label_bound, margin_bound, fit_intercept)
    l2 = check_l2(l2)
    step_size = default_step(step_size, bounds, l2)
    check_calibration(calibration)
    epsilon, delta = check_budget(epsilon, delta, n)
    rate, sensitivity = b / n, usable("batch gradient", factor(relation) * bounds.gradient / b)
    paper = _published(calibration, n, b, steps, bounds.gradient, epsilon, delta, scheme)
    if paper is not None:
        scale = paper.scales["gradient"]
    elif math.isinf(epsilon):
        scale = 0.0
    else:
        scale = sensitivity * calibrate(
            lambda z: Repeated(batch_event(z, scheme, rate, relation), steps), epsilon, delta
        )
    event = batch_event(scale / sensitivity, scheme, rate, relation)
    release = Release("batch gradient", "Gaussian", sensitivity, scale, event, steps)
    settings = {
        "loss": loss, "sparsity": sparsity, "steps": steps, "batch_size": b, "step_size": step_size,
        "row_norm": bounds.row_norm, "grad_norm": bounds.grad_norm, "label_bound": bounds.label_bound,
        "margin_bound": bounds.margin_bound, "l2": l2, "sampling": scheme, "fit_intercept": fit_intercept,
        "clip_norm": row_norm,
        "adaptive": adaptive and loss == "logistic" and grad_norm is None and calibration == TIGHT,
    }  # fmt: skip
    return make_plan("dp_sgd_ht", n, d, relation, calibration, (release,), settings, paper)


def _published(
    calibration: str, n: int, b: int, steps: int, grad_norm: float, epsilon: float, delta: float, scheme: str
) -> Published | None:
    if calibration != PUBLISHED:
        return None
    if math.isinf(epsilon):
        raise invalid("epsilon", epsilon, "finite with calibration='published'")
    if scheme != WITHOUT_REPLACEMENT:
        only = "'without-replacement' with calibration='published'"
        raise invalid("sampling", scheme, only, "Theorem 4.1 is for it.")
    return published.sgd_ht_theorem_4_1(n, b, steps, grad_norm, epsilon, delta)


def dp_sgd_ht(
    X: Any, y: Any, *, loss: str, sparsity: int, steps: int, batch_size: int, step_size: float | None = None,
    epsilon: float, delta: float = 0.0, row_norm: float | None = None, grad_norm: float | None = None,
    label_bound: float | None = None, margin_bound: float | None = None, l2: float = 0.0,
    sampling: str = WITHOUT_REPLACEMENT, adjacency: str | Adjacency | None = None, calibration: str = TIGHT,
    fit_intercept: bool = False, adaptive: bool = True, rng: Any = None, ledger: Ledger | None = None,
    trace_every: int | None = None,
) -> FitResult:
    """Private sparse regression by noisy mini-batch gradients and hard thresholding.

    Parameters (others as in ``dp_ight``)
    ----------
    steps, batch_size : number of batches, and their (expected) size.
    step_size : the default is 1 / (smoothness * row_norm^2 + l2).
    l2 : weight of a term l2/2 |w|^2; its gradient is public and stays outside the clipping.
    sampling : "without-replacement", batches of fixed size, under replace-one; or "poisson", a coin for every row,
        under zero-out (default) or replace-one. Sums are divided by ``batch_size``, never by the realised size.
    calibration : "published" is Theorem 4.1; the guarantee says what that noise gives where its conditions fail.
    trace_every : keep every so many-th iterate in history["iterates"] as (step, support, values); iterates are released
        anyway, so this costs no privacy.

    Privacy
    -------
    Query: (1/b) sum over a secret batch of gradients of at most G. Sensitivity of the query on a given batch: 2 G/b
    (replace-one) or G/b (zero-out). Event: Repeated(Subsampled(Gaussian(scale/sensitivity), sampling, b/n), steps). For
    logistic loss the sensitivity at a public w is smaller (``adaptive``): the noise shrinks with it, the event stays.
    Public: n, d, all arguments, all iterates. The batches are not.
    """
    rows = check_sparse_rows(X)
    n, d = rows.shape
    labels = check_labels(y, n, losses.get(loss, ALLOWED_LOSSES))
    plan = plan_dp_sgd_ht(
        n=n, d=d, loss=loss, sparsity=sparsity, steps=steps, batch_size=batch_size, step_size=step_size,
        epsilon=epsilon, delta=delta, row_norm=row_norm, grad_norm=grad_norm, label_bound=label_bound,
        margin_bound=margin_bound, l2=l2,
        sampling=sampling, adjacency=adjacency, calibration=calibration, fit_intercept=fit_intercept, adaptive=adaptive,
    )  # fmt: skip
    every = _trace_interval(trace_every, plan.settings["steps"])
    generator = as_generator(rng)
    reserve(ledger, plan)
    run = SgdRun(bounded_batches(plan, rows, labels), plan.settings, plan.noise, noise_shares(plan.settings))
    w, history = run.every(generator, every)
    record(ledger, plan)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, plan.guarantee, plan, history)


def prepare_dp_sgd_ht(plan: Plan, X: Any, y: Any, counts: Any = None) -> SgdRun:
    """``dp_sgd_ht`` on these data with everything done that needs no randomness; its calls are what ``dp_sgd_ht`` runs.

    Privacy
    -------
    Every call spends the plan's event; nothing is charged to a ledger here.
    """
    data = bounded_batches(plan, *check_batches(plan, X, y, counts))
    return SgdRun(data, plan.settings, plan.noise, noise_shares(plan.settings))


def sgd_ht(
    X: Any, y: Any, *, loss: str, sparsity: int, steps: int, batch_size: int, step_size: float, l2: float = 0.0,
    sampling: str = WITHOUT_REPLACEMENT, fit_intercept: bool = False, rng: Any = None, trace_every: int | None = None,
) -> FitResult:
    """Stochastic gradient hard thresholding without privacy: no clipping, no noise. Arguments as in ``dp_sgd_ht``."""
    rows = check_sparse_rows(X)
    n, d = rows.shape
    table_loss = losses.get(loss, ALLOWED_LOSSES)
    labels = check_labels(y, n, table_loss)
    scheme, _ = check_sampling(sampling, None)
    settings: dict[str, Any] = {
        "sparsity": check_sparsity(sparsity, d), "steps": whole("steps", steps, low=1), "sampling": scheme,
        "batch_size": check_batch("batch_size", batch_size, n), "step_size": positive("step_size", step_size),
        "l2": check_l2(l2), "fit_intercept": fit_intercept,
    }  # fmt: skip
    every = _trace_interval(trace_every, settings["steps"])
    data = BatchData(with_intercept(rows, 1.0) if fit_intercept else rows, labels, table_loss, math.inf, None)
    w, history = SgdRun(data, settings, 0.0, FULL_NOISE).every(as_generator(rng), every)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, None, None, history)


def _trace_interval(trace_every: int | None, steps: int) -> int:
    return steps if trace_every is None else min(whole("trace_every", trace_every, low=1), steps)


def bounded_batches(plan: Plan, rows: Rows, labels: Array) -> BatchData:
    """The plan's records, each bounded on its own by public numbers."""
    bounded, clipped, caps = bound_records(rows, labels, plan.settings)
    return BatchData(bounded, clipped, losses.get(plan.settings["loss"]), plan.settings["margin_bound"], caps)


class SgdRun:
    """Stochastic hard thresholding with bounded data in place; calls share nothing that they change.

    Privacy
    -------
    A call is ``steps`` lazy steps, each equal in law to one noisy mean gradient of a fresh batch.
    """

    def __init__(self, data: BatchData, settings: Mapping[str, Any], scale: float, shares: tuple[Array, float]) -> None:
        self.data, self.settings = data, settings
        self.n, self.width = data.rows.shape
        protected = 1 if settings["fit_intercept"] else 0
        self.places = settings["sparsity"] + protected
        # What the kernel takes after the records.
        self.arguments = (
            settings["batch_size"], settings["step_size"], settings["l2"], scale, *shares, self.width - protected,
            protected, settings["sparsity"],
        )  # fmt: skip

    def sizes(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """The realised sizes of all batches."""
        s = self.settings
        return batch_sizes(rng, s["sampling"], self.n, s["batch_size"], s["steps"])

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit; the lazy step never forms a whole noisy gradient, so a trace has the iterates alone."""
        from dptoolkit.kernels.stochastic import sgd_steps

        iterate, history = Iterate(self.places), {"thresholdings": self.settings["steps"]}
        given = rng, self.sizes(rng), self.data.records(), *self.arguments, iterate.support, iterate.values, 0
        if not trace:
            iterate.filled = sgd_steps(*given)
            return Trace(iterate.dense(self.width), history)
        iterates = np.empty((self.settings["steps"], self.width))
        iterate.filled = sgd_steps(*given, iterates)
        return Trace(iterate.dense(self.width), history, None, iterates)

    def trials(
        self, other: SgdRun, rng: np.random.Generator, place: Any, first: int, bits: NDArray[Any], trace: bool
    ) -> Trials:
        """Trials first, first + 1, ... on these data (bit 1) or the other's, each from its own place of the stream.

        ``place`` is the memory of ``rng`` (audit.streams.place).
        """
        from dptoolkit.kernels.stochastic import sgd_trials

        steps, b = self.settings["steps"], self.settings["batch_size"]
        rate = b / self.n if self.settings["sampling"] == POISSON else 0.0
        weights = np.empty((len(bits), self.width))
        given = (
            rng, *place, first, np.ascontiguousarray(bits, np.int8), self.data.records(), other.data.records(), rate,
            np.full(steps, b, dtype=np.int64), *self.arguments, weights,
        )  # fmt: skip
        if not trace:
            sgd_trials(*given)
            return Trials(weights)
        iterates = np.empty((len(bits), steps, self.width))
        sgd_trials(*given, iterates)
        return Trials(weights, None, iterates)

    def every(self, rng: np.random.Generator, every: int) -> tuple[Array, dict[str, Any]]:
        """(weights, history with every so many-th iterate as (step, support, values))."""
        from dptoolkit.kernels import stochastic as kernel

        records, sizes, steps = self.data.records(), self.sizes(rng), self.settings["steps"]
        iterate, trace = Iterate(self.places), []
        for done in range(0, steps, every):
            part = sizes[done : done + every]
            iterate.filled = kernel.sgd_steps(
                rng, part, records, *self.arguments, iterate.support, iterate.values, iterate.filled
            )
            trace.append((done + len(part), *iterate.snapshot()))
        return iterate.dense(self.width), {"thresholdings": steps, "iterates": trace}
