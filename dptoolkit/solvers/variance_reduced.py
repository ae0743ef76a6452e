"""Variance-reduced hard thresholding: scsg_ht, svrg_ht and their private forms (Liang et al. 2023, Algorithm 2).

    snapshot s, once an epoch:  m = mean gradient of B rows at s + noise
    N inner steps:              w <- H_k(w - step_size (mean over b rows of gradient(w) - gradient(s) + m + noise))

SVRG is B = n. N is geometric with mean B/b (option "I") or B//b (option "II"), drawn before the data are used. The
inner steps are lazy (kernels/stochastic.py): exact in law, sublinear in d; the snapshot gradient is dense, once an
epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit._validate import invalid, one_of, positive, whole
from dptoolkit.accounting import Composed, Geometric, Ledger, RandomRounds, Repeated, calibrate, published
from dptoolkit.accounting.events import WITHOUT_REPLACEMENT, Event
from dptoolkit.accounting.published import Published
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import check_labels, check_rows, with_intercept
from dptoolkit.kernels import reference
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
    share_at,
)
from dptoolkit.solvers.gradient_iht import ALLOWED_LOSSES, Bounds, default_step, gradient_bounds
from dptoolkit.solvers.sgd_thresholding import bounded_batches


def difference_bound(loss: Loss, bounds: Bounds) -> float:
    """The largest |gradient(w) - gradient(s)|_2 of one bounded record.

    In general two bounded gradients differ by 2 G. For the logistic loss the label gives both residuals the same sign,
    also after clipping, so that they differ by at most G. Where margins are clipped the label cancels.
    """
    if loss.name == "logistic":
        return bounds.gradient
    if bounds.label_bound is None:
        return 2 * bounds.gradient
    assert bounds.row_norm is not None
    return 2 * bounds.margin_bound * bounds.row_norm


def plan_dp_scsg_ht(
    *, n: int, d: int, loss: str, sparsity: int, epochs: int, snapshot_size: int, batch_size: int,
    step_size: float | None = None, epsilon: float, delta: float = 0.0, row_norm: float | None = None,
    grad_norm: float | None = None, label_bound: float | None = None, margin_bound: float | None = None,
    l2: float = 0.0, option: str = "I", sampling: str = WITHOUT_REPLACEMENT, adjacency: str | Adjacency | None = None,
    calibration: str = TIGHT, fit_intercept: bool = False, adaptive: bool | None = None,
) -> Plan:
    """The plan of ``dp_scsg_ht`` for n rows and d features; see there for the arguments."""
    n, d = check_size(n, d)
    table_loss = losses.get(loss, ALLOWED_LOSSES)
    check_sparsity(sparsity, d)
    shape = _shape(n, epochs, snapshot_size, batch_size, option)
    scheme, relation = check_sampling(sampling, adjacency)
    bounds = gradient_bounds(table_loss, row_norm, grad_norm, label_bound, margin_bound, fit_intercept)
    l2 = check_l2(l2)
    step_size = default_step(step_size, bounds, l2)
    check_calibration(calibration)
    epsilon, delta = check_budget(epsilon, delta, n)
    adaptive = _check_adaptive(adaptive, bounds, calibration)
    outer = usable("snapshot gradient", factor(relation) * bounds.gradient / shape.snapshot)
    inner = usable(shape.inner_query, factor(relation) * difference_bound(table_loss, bounds) / shape.batch)
    paper = _published(calibration, n, shape, bounds.gradient, epsilon, delta, scheme)
    if paper is not None:
        scales = paper.scales["snapshot"], paper.scales["inner"]
    else:
        z = 0.0 if math.isinf(epsilon) else calibrate(
            lambda m: shape.event(shape.ratio * m, m, n, scheme, relation), epsilon, delta
        )
        scales = shape.ratio * z * outer, z * inner
    snapshot_event, inner_event = shape.parts(scales[0] / outer, scales[1] / inner, n, scheme, relation)
    releases = (
        Release(shape.inner_query, "Gaussian", inner, scales[1], inner_event, shape.inner_count),
        Release("snapshot gradient", "Gaussian", outer, scales[0], snapshot_event, shape.epochs),
    )
    settings = {
        "loss": loss, "sparsity": sparsity, "epochs": shape.epochs, "snapshot_size": shape.snapshot,
        "batch_size": shape.batch, "option": option, "step_size": step_size, "row_norm": bounds.row_norm,
        "grad_norm": bounds.grad_norm, "label_bound": bounds.label_bound, "margin_bound": bounds.margin_bound, "l2": l2,
        "sampling": scheme, "fit_intercept": fit_intercept, "clip_norm": row_norm, "adaptive": adaptive,
        "slope": _slope(table_loss, bounds, scheme) if adaptive else math.inf,
        "grain": _grain(table_loss, bounds) if adaptive else 0.0,
    }  # fmt: skip
    return make_plan("dp_scsg_ht", n, d, relation, calibration, releases, settings, paper)


@dataclass(frozen=True)
class Shape:
    """Epochs, batch sizes and the law of the number of inner steps."""

    epochs: int
    snapshot: int
    batch: int
    option: str

    @property
    def ratio(self) -> float:
        """Snapshot noise multiplier over inner noise multiplier.

        In an epoch of N = B/b steps the snapshot's noise adds up N times, the inner noise sqrt(N) times. At a fixed
        cost, which is count * (rate / multiplier)^2 where it is small, the sum of the two variances is smallest for a
        ratio of sqrt(N). Public, and any ratio is sound.
        """
        return math.sqrt(self.snapshot / self.batch)

    @property
    def steps(self) -> int:
        """Inner steps of an epoch under option II."""
        return self.snapshot // self.batch

    @property
    def inner_query(self) -> str:
        """What the inner release of a plan is: option I's is a whole random loop."""
        return "variance-reduced gradient" if self.option == "II" else "loop of variance-reduced gradients"

    @property
    def inner_count(self) -> int:
        """How many of them a run releases."""
        return self.epochs * (self.steps if self.option == "II" else 1)

    def parts(self, snapshot: float, inner: float, n: int, scheme: str, relation: Adjacency) -> tuple[Event, Event]:
        """(snapshot event, inner event) for noise multipliers."""
        step = batch_event(inner, scheme, self.batch / n, relation)
        loop = RandomRounds(step, Geometric(self.snapshot / (self.snapshot + self.batch)))
        return batch_event(snapshot, scheme, self.snapshot / n, relation), loop if self.option == "I" else step

    def event(self, snapshot: float, inner: float, n: int, scheme: str, relation: Adjacency) -> Event:
        """The whole run."""
        first, second = self.parts(snapshot, inner, n, scheme, relation)
        return Composed(Repeated(first, self.epochs), Repeated(second, self.inner_count))

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """The number of inner steps of every epoch; needs no data."""
        if self.option == "II":
            return np.full(self.epochs, self.steps, dtype=np.int64)
        return rng.geometric(self.batch / (self.snapshot + self.batch), size=self.epochs).astype(np.int64) - 1


def _shape(n: int, epochs: Any, snapshot_size: Any, batch_size: Any, option: Any) -> Shape:
    epochs = whole("epochs", epochs, low=1)
    b, big = check_batch("batch_size", batch_size, n), check_batch("snapshot_size", snapshot_size, n)
    if big < b:
        raise invalid("snapshot_size", big, f">= batch_size={b}", "A snapshot is the larger batch.")
    return Shape(epochs, big, b, one_of("option", option, ("I", "II")))


def _check_adaptive(adaptive: bool | None, bounds: Bounds, calibration: str) -> bool:
    possible = bounds.smoothness is not None and calibration == TIGHT
    if adaptive and not possible:
        raise invalid("adaptive", True, "used with row_norm and tight calibration", "The smoothness must be public.")
    return possible if adaptive is None else adaptive


def _slope(loss: Loss, bounds: Bounds, scheme: str) -> float:
    """How the sensitivity at public w and s grows with |w - s|, over its bound.

    A residual grows with the margin, at most at the rate of the smoothness H, so gradient(w) - gradient(s) is A(w - s)
    with A between 0 and H: it lies in the ball around H(w - s)/2 that has 0 on its border. One record replaced by
    another in a batch of fixed size moves the sum by at most the diameter, H |w - s|. Poisson sampling leaves records
    out: there the ball around 0 counts, of radius H |w - s|.
    """
    assert bounds.smoothness is not None
    reach = 0.5 if scheme == WITHOUT_REPLACEMENT else 1.0
    return reach * bounds.smoothness / difference_bound(loss, bounds)


def _grain(loss: Loss, bounds: Bounds) -> float:
    """What rounding can add to the difference of a record's two gradients, over its bound.

    A residual of at most 1 is rounded to a few parts in 1e16; clipped gradients may be far smaller than that. Residuals
    without a bound are rounded in proportion to where they are clipped, or, like margins, with the weights.
    """
    assert bounds.row_norm is not None
    largest = loss.residual_bound * bounds.row_norm if math.isfinite(loss.residual_bound) else 0.0
    return 2e-15 * (1.0 + largest / difference_bound(loss, bounds))


def _published(
    calibration: str, n: int, shape: Shape, grad_norm: float, epsilon: float, delta: float, scheme: str
) -> Published | None:
    if calibration != PUBLISHED:
        return None
    if math.isinf(epsilon):
        raise invalid("epsilon", epsilon, "finite with calibration='published'")
    if scheme != WITHOUT_REPLACEMENT:
        only = "'without-replacement' with calibration='published'"
        raise invalid("sampling", scheme, only, "Theorem 5.1 is for it.")
    return published.scsg_ht_theorem_5_1(
        n, shape.batch, shape.snapshot, shape.epochs, grad_norm, epsilon, delta, shape.option
    )


def dp_scsg_ht(
    X: Any, y: Any, *, loss: str, sparsity: int, epochs: int, snapshot_size: int, batch_size: int,
    step_size: float | None = None, epsilon: float, delta: float = 0.0, row_norm: float | None = None,
    grad_norm: float | None = None, label_bound: float | None = None, margin_bound: float | None = None,
    l2: float = 0.0, option: str = "I", sampling: str = WITHOUT_REPLACEMENT, adjacency: str | Adjacency | None = None,
    calibration: str = TIGHT, fit_intercept: bool = False, adaptive: bool | None = None, rng: Any = None,
    ledger: Ledger | None = None, trace: bool = False,
) -> FitResult:
    """Private sparse regression by variance-reduced noisy gradients and hard thresholding.

    Parameters (others as in ``dp_sgd_ht``)
    ----------
    epochs, snapshot_size, batch_size : snapshots, rows B of a snapshot, rows b of an inner step; B >= b.
    option : "I", a geometric number of inner steps with mean B/b; "II", exactly B // b.
    adaptive : scale the noise with the sensitivity at the public iterate; an inner step's vanishes at the snapshot.
        Needs row_norm; by default used where possible.
    trace : keep the iterate after every epoch in history["iterates"] as (inner steps so far, support, values).

    Privacy
    -------
    Queries: the snapshot gradient, sensitivity 2 G/B on a given batch (replace-one; half for zero-out); and the mean
    over a batch of gradient(w) - gradient(s), each at most 2 G (see ``difference_bound``), or G for the logistic loss,
    whose residuals keep their sign: 4 G/b, or 2 G/b. At public w and s it is also at most smoothness |w - s|/b in
    batches of fixed size (for Poisson sampling with replace-one twice that), and for the logistic loss the snapshot's
    is smaller at a public s, as in ``dp_sgd_ht``: ``adaptive`` lowers the noise with them, the events stay. Event: per
    epoch one subsampled Gaussian for the snapshot, charged once, and RandomRounds(subsampled Gaussian,
    Geometric(B/(B+b))) or B//b of them. The number of inner steps does not depend on the data. Public: n, d, all
    arguments, all iterates, the numbers of steps.
    """
    rows = check_sparse_rows(X)
    n, d = rows.shape
    labels = check_labels(y, n, losses.get(loss, ALLOWED_LOSSES))
    plan = plan_dp_scsg_ht(
        n=n, d=d, loss=loss, sparsity=sparsity, epochs=epochs, snapshot_size=snapshot_size, batch_size=batch_size,
        step_size=step_size, epsilon=epsilon, delta=delta, row_norm=row_norm, grad_norm=grad_norm,
        label_bound=label_bound, margin_bound=margin_bound, l2=l2, option=option, sampling=sampling,
        adjacency=adjacency, calibration=calibration, fit_intercept=fit_intercept, adaptive=adaptive,
    )  # fmt: skip
    generator = as_generator(rng)
    reserve(ledger, plan)
    w, history = _planned(plan, bounded_batches(plan, rows, labels)).epochs(generator, trace)
    record(ledger, plan)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, plan.guarantee, plan, history)


def prepare_dp_scsg_ht(plan: Plan, X: Any, y: Any, counts: Any = None) -> ScsgRun:
    """``dp_scsg_ht`` on these data with all done that needs no randomness; its calls are what ``dp_scsg_ht`` runs.

    Privacy
    -------
    Every call spends the plan's event; nothing is charged to a ledger here.
    """
    return _planned(plan, bounded_batches(plan, *check_batches(plan, X, y, counts)))


def _planned(plan: Plan, data: BatchData) -> ScsgRun:
    return ScsgRun(data, plan.settings, (plan.releases[1].scale, plan.noise), noise_shares(plan.settings))


def plan_dp_svrg_ht(*, n: int, **arguments: Any) -> Plan:
    """The plan of ``dp_svrg_ht``: that of ``dp_scsg_ht`` with snapshots of all n rows."""
    return plan_dp_scsg_ht(n=n, snapshot_size=n, **arguments)


def dp_svrg_ht(X: Any, y: Any, **arguments: Any) -> FitResult:
    """``dp_scsg_ht`` with snapshots of all rows: snapshot_size = n. All other arguments are the same.

    Privacy
    -------
    As in ``dp_scsg_ht``; a snapshot of all rows is a Gaussian release without subsampling.
    """
    return dp_scsg_ht(X, y, snapshot_size=check_rows(X).shape[0], **arguments)


def scsg_ht(
    X: Any, y: Any, *, loss: str, sparsity: int, epochs: int, snapshot_size: int, batch_size: int, step_size: float,
    l2: float = 0.0, option: str = "I", fit_intercept: bool = False, rng: Any = None, trace: bool = False,
) -> FitResult:
    """Variance-reduced hard thresholding without privacy: no clipping, no noise. Arguments as in ``dp_scsg_ht``."""
    rows = check_sparse_rows(X)
    n, d = rows.shape
    table_loss = losses.get(loss, ALLOWED_LOSSES)
    labels = check_labels(y, n, table_loss)
    shape = _shape(n, epochs, snapshot_size, batch_size, option)
    settings = {
        "sparsity": check_sparsity(sparsity, d), "epochs": shape.epochs, "snapshot_size": shape.snapshot,
        "batch_size": shape.batch, "option": option, "step_size": positive("step_size", step_size),
        "l2": check_l2(l2), "sampling": WITHOUT_REPLACEMENT, "fit_intercept": fit_intercept, "slope": math.inf,
        "grain": 0.0,
    }  # fmt: skip
    data = BatchData(with_intercept(rows, 1.0) if fit_intercept else rows, labels, table_loss, math.inf, None)
    w, history = ScsgRun(data, settings, (0.0, 0.0), FULL_NOISE).epochs(as_generator(rng), trace)
    coef, intercept = split_intercept(w, fit_intercept)
    return FitResult(coef, intercept, None, None, history)


def svrg_ht(X: Any, y: Any, **arguments: Any) -> FitResult:
    """``scsg_ht`` with snapshots of all rows."""
    return scsg_ht(X, y, snapshot_size=check_rows(X).shape[0], **arguments)


class ScsgRun:
    """Variance-reduced hard thresholding with bounded data in place; calls share nothing that they change.

    Privacy
    -------
    A call releases one noisy snapshot gradient an epoch, and in every inner step, lazily and equal in law, one noisy
    mean of gradient differences.
    """

    def __init__(
        self, data: BatchData, settings: Mapping[str, Any], scales: tuple[float, float], shares: tuple[Array, float]
    ) -> None:
        self.data, self.settings, self.shares = data, settings, shares
        self.snapshot_scale = scales[0]
        self.n, self.width = data.rows.shape
        self.shape = Shape(
            settings["epochs"], settings["snapshot_size"], settings["batch_size"], settings["option"]
        )
        protected = 1 if settings["fit_intercept"] else 0
        self.places, self.free = settings["sparsity"] + protected, self.width - protected
        # What the kernel takes after the records.
        self.arguments = (
            settings["batch_size"], settings["step_size"], settings["l2"], scales[1], settings["slope"],
            settings["grain"], self.free, protected, settings["sparsity"],
        )  # fmt: skip

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit. A trace has all inner iterates, and in its history "snapshots" every noisy snapshot gradient."""
        if not trace:
            return Trace(*self.epochs(rng, False))
        kept: list[Array] = []
        w, history = self.epochs(rng, False, kept)
        history["snapshots"] = np.array(kept[::2])
        return Trace(w, history, None, np.concatenate(kept[1::2]))

    def epochs(
        self, rng: np.random.Generator, trace: bool, kept: list[Array] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """(weights, history); ``kept`` gets, epoch by epoch, the noisy snapshot gradient and all inner iterates."""
        counts, records, iterate = self.shape.draw(rng), self.data.records(), Iterate(self.places)
        iterates, done = [], 0
        for count in counts.tolist():
            self._epoch(rng, records, iterate, count, kept)
            done += count
            if trace:
                iterates.append((done, *iterate.snapshot()))
        return iterate.dense(self.width), {"inner_steps": counts, "thresholdings": done, "iterates": iterates}

    def _epoch(
        self, rng: np.random.Generator, records: Any, iterate: Iterate, count: int, kept: list[Array] | None
    ) -> None:
        from dptoolkit.kernels import stochastic as kernel

        settings = self.settings
        support, values = iterate.snapshot()
        scale = self.snapshot_scale * share_at(self.shares, float(np.linalg.norm(values)))
        gradient = snapshot_gradient(self.data, settings, support, values, scale, rng)
        sizes = batch_sizes(rng, settings["sampling"], self.n, settings["batch_size"], count)
        given = (
            rng, sizes, records, *self.arguments, gradient, *buckets(gradient[: self.free]), iterate.support,
            iterate.values, iterate.filled,
        )  # fmt: skip
        if kept is None:
            iterate.filled = kernel.reduced_steps(*given)
        else:
            inner = np.empty((count, self.width))
            iterate.filled = kernel.reduced_steps(*given, inner)
            kept += [gradient, inner]


def snapshot_gradient(
    data: BatchData, settings: Any, support: NDArray[np.int64], values: Array, scale: float, rng: np.random.Generator
) -> Array:
    """The mean gradient of a fresh batch at the snapshot, divided by the EXPECTED batch size, plus noise.

    Privacy
    -------
    One call is the plan's snapshot release.
    """
    (n, d), big = data.rows.shape, settings["snapshot_size"]
    size = int(batch_sizes(rng, settings["sampling"], n, big, 1)[0])
    chosen = np.sort(rng.choice(n, size=size, replace=False)) if size < n else np.arange(n)
    w = np.zeros(d)
    w[support] = values
    gradient = _batch_sum(data, chosen, w) / big
    if scale > 0:
        gradient += scale * rng.standard_normal(d)
    return gradient


def _batch_sum(data: BatchData, chosen: NDArray[np.int64], w: Array) -> Array:
    """The sum of the chosen rows' gradients at w."""
    matrix, y, caps = data.rows.matrix, data.y, data.caps
    if matrix.nnz <= _FEW_ENTRIES:
        from dptoolkit.kernels.stochastic import add_rows

        total = np.zeros(len(w))
        add_rows(data.records(), chosen, w, total)
        return total
    if len(chosen) < len(y):
        matrix, y = matrix[chosen], y[chosen]
        caps = None if caps is None else caps[chosen]
    r = reference.clipped_residual(data.loss, np.asarray(matrix @ w), y, data.margin_bound, caps)
    return np.asarray(matrix.T @ r)


# Up to this many stored entries one compiled pass over the chosen rows is faster than copying them for scipy.
_FEW_ENTRIES = 200_000
# Means whose exponent and first six bits of the fraction agree share a cell; the last one takes all that are smaller.
_LOW_BITS = 46
_CELLS = 4096


def buckets(means: Array) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """(coordinates bucket by bucket, the buckets' borders, largest |mean| of each and, last, the smallest of all).

    A bucket holds a fifth of what is in it and above it, at least 32: the few large means, which decide, lie in small
    ones. Means are told apart by their leading bits: O(d), where sorting them would cost more than the inner steps.
    """
    size = np.abs(means)
    if len(size) <= 32:
        return np.arange(len(size)), np.array([0, len(size)]), np.array([size.max(), size.min()])
    bits = size.view(np.int64)
    cells = np.minimum((bits.max() - bits) >> _LOW_BITS, _CELLS - 1)
    above = np.concatenate([[0], np.cumsum(np.bincount(cells, minlength=_CELLS))])
    ends = [0]
    while above[ends[-1]] < len(means):
        done = int(above[ends[-1]])
        ends.append(int(np.searchsorted(above, min(len(means), done + max(32, done // 4)))))
    # Numbers of one byte are sorted by counting.
    bucket = np.repeat(np.arange(len(ends), dtype=np.uint8), np.diff([*ends, _CELLS]))
    ranked = np.argsort(bucket[cells], kind="stable")
    starts = above[ends].astype(np.int64)
    return ranked, starts, np.append(np.maximum.reduceat(size[ranked], starts[:-1]), size.min())
