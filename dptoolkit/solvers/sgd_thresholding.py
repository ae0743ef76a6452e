"""Stochastic gradient hard thresholding: sgd_ht and dp_sgd_ht (Liang et al. 2023, Algorithm 1).

    w <- H_k(w - step_size * (mean gradient of a fresh batch + N(0, scale^2 I)))

The step is lazy (kernels/stochastic.py): exact in law, and its cost does not grow with d.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid, nonnegative, positive, whole
from dptoolkit.accounting import Ledger, Repeated, calibrate, published
from dptoolkit.accounting.events import WITHOUT_REPLACEMENT
from dptoolkit.accounting.published import Published
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import check_labels, with_intercept
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
    make_plan,
    record,
    reserve,
    split_intercept,
)
from dptoolkit.solvers.batches import (
    FULL_NOISE,
    BatchData,
    Iterate,
    batch_event,
    batch_sizes,
    check_batch,
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
    l2 = nonnegative("l2", l2)
    step_size = default_step(step_size, bounds)
    check_calibration(calibration)
    epsilon, delta = check_budget(epsilon, delta, n)
    rate, sensitivity = b / n, factor(relation) * bounds.gradient / b
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
    bounded, clipped, caps = bound_records(rows, labels, plan.settings, row_norm)
    data = BatchData(bounded, clipped, losses.get(loss), plan.settings["margin_bound"], caps)
    w, history = _run(data, plan.settings, plan.noise, noise_shares(plan.settings), generator, every)
    record(ledger, plan)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, plan.guarantee, plan, history)


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
        "l2": nonnegative("l2", l2), "fit_intercept": fit_intercept,
    }  # fmt: skip
    every = _trace_interval(trace_every, settings["steps"])
    data = BatchData(with_intercept(rows, 1.0) if fit_intercept else rows, labels, table_loss, math.inf, None)
    w, history = _run(data, settings, 0.0, FULL_NOISE, as_generator(rng), every)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, None, None, history)


def _trace_interval(trace_every: int | None, steps: int) -> int:
    return steps if trace_every is None else min(whole("trace_every", trace_every, low=1), steps)


def _run(
    data: BatchData, settings: Any, scale: float, shares: tuple[Array, float], rng: np.random.Generator, every: int
) -> tuple[Array, dict[str, Any]]:
    from dptoolkit.kernels import stochastic as kernel

    n, width = data.rows.shape
    protected = 1 if settings["fit_intercept"] else 0
    records, b = data.records(), settings["batch_size"]
    sizes = batch_sizes(rng, settings["sampling"], n, b, settings["steps"])
    iterate = Iterate(settings["sparsity"] + protected)
    trace, done = [], 0
    while done < settings["steps"]:
        part = sizes[done : done + every]
        iterate.filled = kernel.sgd_steps(
            rng, part, records, b, settings["step_size"], settings["l2"], scale, *shares, width - protected, protected,
            settings["sparsity"], iterate.support, iterate.values, iterate.filled,
        )  # fmt: skip
        done += len(part)
        trace.append((done, *iterate.snapshot()))
    return iterate.dense(width), {"thresholdings": settings["steps"], "iterates": trace}
