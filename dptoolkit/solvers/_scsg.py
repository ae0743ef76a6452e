"""Variance-reduced hard thresholding: scsg_ht, svrg_ht and their private forms (Liang et al. 2023, Algorithm 2).

    snapshot s, once an epoch:  m = mean gradient of B rows at s + noise
    N inner steps:              w <- H_k(w - step_size (mean over b rows of gradient(w) - gradient(s) + m + noise))

SVRG is B = n. N is geometric with mean B/b (option "I") or B//b (option "II"), drawn before the data are used. The
inner steps are lazy (kernels/stochastic.py): exact in law, sublinear in d. So is the snapshot gradient, where most
coordinates have no data (solvers/engine/snapshots.py).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, progress
from dptoolkit._validate import flag, invalid, one_of, positive, whole
from dptoolkit.accounting import Composed, Geometric, Repeated
from dptoolkit.accounting.events import POISSON, WITHOUT_REPLACEMENT, Event
from dptoolkit.data import Rows, check_labels, with_intercept
from dptoolkit.mechanisms.randomness import Generators, as_generator, exclusive
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers.engine.batches import (
    BatchData,
    BatchSettings,
    Iterate,
    ResolvedBatches,
    batch_sizes,
    check_batch,
    check_sparse_rows,
)
from dptoolkit.solvers.engine.bounds import NoiseLaw, constant
from dptoolkit.solvers.engine.secure import gradient_grids, residual_limit
from dptoolkit.solvers.engine.secure_reduced import SecureEpochs, charged_reduced, difference_limit, failures
from dptoolkit.solvers.engine.secure_steps import BATCH_REMARKS, rate_of, rows_for
from dptoolkit.solvers.engine.snapshots import (
    ONE_BUCKET,
    Numbering,
    few_entries,
    numbered,
    ranked_means,
    snapshot_gradient,
)
from dptoolkit.solvers.frame.fit import FitResult, plain_result, private_solver, without_privacy
from dptoolkit.solvers.frame.plan import GAUSSIAN, Plan, Release, smallest_noise
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another, trace_interval
from dptoolkit.solvers.frame.secure import SecurePlan, secure_stream
from dptoolkit.solvers.frame.settings import TIGHT, check_l2, check_sparsity, setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published


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
    def usual_steps(self) -> int:
        """A number of inner steps that few epochs exceed: all steps if their number is fixed, or thrice the mean."""
        return self.steps if self.option == "II" else math.ceil(3 * self.snapshot / self.batch)

    @property
    def inner_query(self) -> str:
        """The name of a plan's inner release: under option I it is a whole loop of random length."""
        return "variance-reduced gradient" if self.option == "II" else "loop of variance-reduced gradients"

    @property
    def inner_count(self) -> int:
        """How many inner releases a run makes; of the fixed steps of an epoch the first is at s, and shows nothing."""
        return self.epochs * (self.steps - 1 if self.option == "II" else 1)

    @property
    def round_count_law(self) -> Geometric | None:
        """The law of the number of inner steps of an epoch; None where it is fixed."""
        return Geometric(self.snapshot / (self.snapshot + self.batch)) if self.option == "I" else None

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """The number of inner steps of every epoch; needs no data."""
        if self.option == "II":
            return np.full(self.epochs, self.steps, dtype=np.int64)
        return rng.geometric(self.batch / (self.snapshot + self.batch), size=self.epochs).astype(np.int64) - 1


@dataclass(frozen=True, kw_only=True)
class ReducedSettings(BatchSettings):
    """Settings of variance-reduced hard thresholding."""

    epochs: int = setting("Number of snapshots.")
    option: str = setting(
        'Number of inner steps of an epoch: "I", geometric with mean B/b; "II", exactly B // b.', default="I"
    )

    @property
    def _snapshot_rows(self) -> int | None:
        """How many rows a snapshot has; None for all."""
        return None

    def shape(self, n: int) -> Shape:
        """Epochs and batch sizes for n rows."""
        big = n if self._snapshot_rows is None else self._snapshot_rows
        return make_shape(n, self.epochs, big, self.batch_size, self.option)

    @property
    def can_adapt(self) -> bool:
        """An inner step's noise can follow the iterate wherever the smoothness is public."""
        return math.isfinite(self.bounds.smoothness) and self.calibration == TIGHT

    def _reduced_checked(self, n: int, d: int) -> dict[str, Any]:
        """The values of what was left out, after the settings are checked."""
        self.shape(n)
        return self._batches_checked(n, d)


@dataclass(frozen=True, kw_only=True)
class ResolvedReduced(ResolvedBatches, ReducedSettings):
    """Settings of variance-reduced hard thresholding in a plan."""

    has_epochs: ClassVar[bool] = True

    batch_size: int

    @property
    def iterations(self) -> int:
        """See ``Resolved``."""
        return self.epochs

    @property
    def slope(self) -> float:
        """The inner sensitivity at public w and s is this times |w - s| times its bound; infinite if not used.

        A residual grows with the margin, at most at the rate of the smoothness H, so gradient(w) - gradient(s) is
        A(w - s) with A between 0 and H: it lies in the ball around H(w - s)/2 that has 0 on its border. One record
        replaced by another in a batch of fixed size moves the sum by at most the diameter, H |w - s|. Under Poisson
        sampling a record may be left out, so the ball around 0 of radius H |w - s| counts.
        """
        if not self.adaptive:
            return math.inf
        reach = 0.5 if self.sampling == WITHOUT_REPLACEMENT else 1.0
        return reach * self.bounds.smoothness / self.bounds.difference

    @property
    def grain(self) -> float:
        """How much rounding adds to the difference of a record's two gradients, as a share of its bound; 0 if not used.

        A residual of at most 1 is rounded to a few parts in 1e16, and clipped gradients may be far smaller than that.
        The rounding of residuals without a bound is proportional to the level at which they are clipped or, like that
        of margins, to the weights.
        """
        if not self.adaptive:
            return 0.0
        norm, residual = self.bounds.joint_norm, self.loss_row.residual_bound
        largest = residual * norm if math.isfinite(residual) else 0.0
        return 2e-15 * (1.0 + largest / self.bounds.difference)

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The inner steps, or loops of them, and the snapshots."""
        shape = self.shape(n)
        inner = Release(
            shape.inner_query, GAUSSIAN, self.bounds.difference_sensitivity(self.adjacency, shape.batch), 0.0,
            shape.inner_count, self.sampled(shape.batch, n), shape.round_count_law,
        )  # fmt: skip
        outer = Release(
            "snapshot gradient", GAUSSIAN, self.bounds.sensitivity(self.adjacency, shape.snapshot), 0.0, shape.epochs,
            self.sampled(shape.snapshot, n),
        )  # fmt: skip
        if paper is not None:
            return replace(inner, scale=paper.scales["inner"]), replace(outer, scale=paper.scales["snapshot"])
        steps, snapshots = replace(inner, sensitivity=1.0), replace(outer, sensitivity=1.0)

        def event(m: float) -> Event:
            first, second = replace(snapshots, scale=shape.ratio * m), replace(steps, scale=m)
            return Composed(Repeated(first.event, first.count), Repeated(second.event, second.count))

        z = smallest_noise(event, self.epsilon, self.delta)
        return replace(inner, scale=z * inner.sensitivity), replace(outer, scale=shape.ratio * z * outer.sensitivity)

    def published(self, n: int, d: int) -> Published:
        """The noise of Theorem 5.1."""
        from dptoolkit import published

        self.refuse_other_sampling("Theorem 5.1")
        shape = self.shape(n)
        return published.scsg_ht_theorem_5_1(
            n, shape.batch, shape.snapshot, shape.epochs, self.bounds.gradient, self.epsilon, self.delta, shape.option
        )

    def noise_law(self, plan: Plan) -> NoiseLaw:
        """The noise of a snapshot gradient at its public weights."""
        return self.batch_law(plan.releases[1].scale)

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> ScsgRun:
        """See ``Resolved``."""
        iteration = Epochs(
            self.shape(plan.n), self.step_size, self.sparsity, self.l2, self.sampling, self.fit_intercept, self.slope,
            self.grain,
        )  # fmt: skip
        data = self.bounded_batches(rows, y, counts)
        if plan.secure is None:
            return ScsgRun(data, iteration, self.noise_law(plan), plan.noise)
        return SecureScsgRun(data, iteration, plan, self.bounds.gradient)

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``."""
        inner, outer = plan.releases
        shape, law, fixed = self.shape(plan.n), self.noise_law(plan), self.sampling == WITHOUT_REPLACEMENT
        # Noise that does not follow the weights is for the largest differences: a ball bounds them.
        reach = 0.5 if fixed and self.adaptive else 1.0
        # One grid of rows for all queries, from the largest noise before rounding is charged.
        noise = max(inner.scale * shape.batch, outer.scale * shape.snapshot)
        grids = gradient_grids(plan, self, max(difference_limit(self), residual_limit(self)), noise)
        steps, snapshots, *parts = charged_reduced(
            plan, self, inner, outer, law, reach, fixed and not law.is_constant, grids
        )
        return replace(plan, releases=(steps, snapshots), secure=SecurePlan(tuple(parts), BATCH_REMARKS))


@dataclass(frozen=True, kw_only=True)
class DpScsgHt(ReducedSettings):
    """Private sparse regression by variance-reduced noisy gradients and hard thresholding.

    Privacy
    -------
    Queries: the snapshot gradient, sensitivity 2 G/B on a given batch (replace-one; half for zero-out); and the mean
    over a batch of gradient(w) - gradient(s), each at most 2 G, or G for losses whose residuals keep their sign
    (``GradientBounds.difference``): 4 G/b, or 2 G/b. At public w and s it is also at most smoothness |w - s|/b in
    batches of fixed size (for Poisson sampling with replace-one twice that), and for the logistic loss the snapshot's
    is smaller at a public s, as in ``dp_sgd_ht``: ``adaptive`` lowers the noise with them, the events stay. Event: per
    epoch one subsampled Gaussian for the snapshot, charged once, and RandomRounds(subsampled Gaussian,
    Geometric(B/(B+b))) or B//b - 1 of them. The first inner step of an epoch is at w = s, where both gradients of a
    record are of the same margin, bit for bit: their difference is 0 for every record, and what the step releases is a
    function of the snapshot's release and of fresh noise. So it is not charged, where the number of steps is fixed. The
    number of inner steps does not depend on the data. Public: n, d, all arguments, all iterates, the numbers of steps.
    """

    solver: ClassVar[str] = "dp_scsg_ht"

    snapshot_size: int = setting("Number B of rows of a snapshot, at least batch_size.")

    @property
    def _snapshot_rows(self) -> int:
        return self.snapshot_size

    def resolved(self, n: int, d: int) -> ResolvedScsg:
        """See ``Settings``."""
        return self.settled(ResolvedScsg, **self._reduced_checked(n, d))


@dataclass(frozen=True, kw_only=True)
class ResolvedScsg(ResolvedReduced, DpScsgHt):
    """The settings of ``dp_scsg_ht`` in a plan."""


@dataclass(frozen=True, kw_only=True)
class DpSvrgHt(ReducedSettings):
    """``dp_scsg_ht`` with snapshots of all rows.

    Privacy
    -------
    Queries and sensitivities as in ``dp_scsg_ht`` with B = n. Event: as there, a snapshot of all rows being a Gaussian
    release without subsampling. Public: n, d, all arguments, all iterates, the numbers of steps.
    """

    solver: ClassVar[str] = "dp_svrg_ht"

    def resolved(self, n: int, d: int) -> ResolvedSvrg:
        """See ``Settings``."""
        return self.settled(ResolvedSvrg, **self._reduced_checked(n, d))


@dataclass(frozen=True, kw_only=True)
class ResolvedSvrg(ResolvedReduced, DpSvrgHt):
    """The settings of ``dp_svrg_ht`` in a plan."""


dp_scsg_ht = private_solver(DpScsgHt)
dp_svrg_ht = private_solver(DpSvrgHt)


def make_shape(n: int, epochs: Any, snapshot_size: Any, batch_size: Any, option: Any) -> Shape:
    """A checked Shape."""
    epochs = whole("epochs", epochs, low=1)
    b, big = check_batch("batch_size", batch_size, n), check_batch("snapshot_size", snapshot_size, n)
    if big < b:
        raise invalid("snapshot_size", big, f">= batch_size={b}", "A snapshot is not smaller than a batch.")
    return Shape(epochs, big, b, one_of("option", option, ("I", "II")))


@dataclass(frozen=True)
class Epochs:
    """The settings of the iteration."""

    shape: Shape
    step_size: float
    sparsity: int
    l2: float
    sampling: str
    fit_intercept: bool
    slope: float = math.inf
    grain: float = 0.0


_EPOCH_TEXTS = {
    "epochs": "Number of snapshots.",
    "snapshot_size": "Number of rows of a snapshot; None takes all rows.",
    "batch_size": "Number of rows of an inner step's batch.",
    "option": '"I" draws the number of inner steps of an epoch, geometric with mean snapshot_size/batch_size; "II" '
    "makes snapshot_size//batch_size of them.",
}


@without_privacy(**_EPOCH_TEXTS)
def scsg_ht(
    X: Any,
    y: Any,
    *,
    loss: str,
    sparsity: int,
    epochs: int,
    snapshot_size: int | None,
    batch_size: int,
    step_size: float,
    l2: float = 0.0,
    option: str = "I",
    fit_intercept: bool = False,
    rng: Any = None,
    trace: bool | int = False,
    label_values: tuple[float, float] | None = None,
) -> FitResult:
    """Variance-reduced hard thresholding without privacy: ``dp_scsg_ht`` without clipping and without noise."""
    rows = check_sparse_rows(X)
    n, d = rows.shape
    terms = losses.get(loss, losses.SCALAR)
    labels = check_labels(y, n, terms, label_values)
    fit_intercept = flag("fit_intercept", fit_intercept)
    shape = make_shape(n, epochs, n if snapshot_size is None else snapshot_size, batch_size, option)
    iteration = Epochs(
        shape, positive("step_size", step_size), check_sparsity(sparsity, d), check_l2(l2),
        WITHOUT_REPLACEMENT, fit_intercept,
    )  # fmt: skip
    data = BatchData(with_intercept(rows, 1.0) if fit_intercept else rows, labels, terms, math.inf, None)
    w, history = ScsgRun(data, iteration, constant(0.0), 0.0).fit(as_generator(rng), trace_interval(trace))
    return plain_result(w, history, fit_intercept)


def svrg_ht(X: Any, y: Any, **arguments: Any) -> FitResult:
    """``scsg_ht`` with snapshots of all rows."""
    return scsg_ht(X, y, snapshot_size=None, **arguments)


_parameters = inspect.signature(scsg_ht).parameters
svrg_ht.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [parameter for name, parameter in _parameters.items() if name != "snapshot_size"], return_annotation="FitResult"
)
without_privacy(**_EPOCH_TEXTS)(svrg_ht)


class ScsgRun(Run):
    """Variance-reduced hard thresholding on bounded data; calls share nothing that they change.

    Privacy
    -------
    A call releases one noisy snapshot gradient an epoch, and in every inner step, lazily and equal in law, one noisy
    mean of gradient differences.
    """

    def __init__(self, data: BatchData, iteration: Epochs, snapshots: NoiseLaw, inner_scale: float) -> None:
        self.data, self.iteration, self.snapshots, self.shape = data, iteration, snapshots, iteration.shape
        self.n, self.width = data.n, data.rows.shape[1]
        protected = 1 if iteration.fit_intercept else 0
        self.kept_count, self.free = iteration.sparsity + protected, self.width - protected
        # The kernel's arguments after the records.
        self.arguments = (
            iteration.shape.batch, iteration.step_size, iteration.l2, inner_scale, iteration.slope, iteration.grain,
            self.free, protected, iteration.sparsity,
        )  # fmt: skip

    @cached_property
    def _numbered(self) -> tuple[BatchData, NDArray[np.int64] | None]:
        """The records by numbers of their features, and the features; nothing of it changes."""
        data, numbering = numbered(self.data, self.free, self.kept_count)
        return data, numbering.features

    def at_once(self, trace: bool) -> bool:
        """See ``Run``; every lazy step depends on what its own fit drew before."""
        return False

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``."""
        return one_after_another(self, streams, trace)

    def one(self, rng: np.random.Generator, trace: bool) -> Trace:
        """See ``Run``; a trace has all inner iterates, and in its history "snapshots" every noisy snapshot gradient."""
        if not trace:
            return Trace(*self.fit(rng))
        epochs: list[tuple[Array, Array]] = []
        w, history = self._fitted(rng, 0, lambda gradient, iterates: epochs.append((gradient, iterates)))
        gradients, inner = zip(*epochs, strict=True)
        return Trace(w, history | {"snapshots": np.array(gradients)}, None, np.concatenate(inner))

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """See ``Run``; a step of the trace is an epoch."""
        return self._fitted(rng, every, None)

    def _fitted(
        self, rng: np.random.Generator, every: int, watch: Callable[[Array, Array], Any] | None
    ) -> tuple[Array, dict[str, Any]]:
        """(weights, history); ``watch`` is called in every epoch with the noisy snapshot gradient and all iterates."""
        counts = self.shape.draw(rng)
        # ``watch`` is shown all coordinates, so none may be hidden.
        data, features = (self.data, None) if watch else self._numbered
        numbering = Numbering(self.free, features)
        records, iterate = data.records(), Iterate(self.kept_count)
        iterates, total = [], 0
        for epoch, count in zip(progress.steps(len(counts), "epoch"), counts.tolist(), strict=True):
            self._epoch(rng, data, records, numbering, iterate, count, watch)
            total += count
            if every and ((epoch + 1) % every == 0 or epoch + 1 == len(counts)):
                iterates.append((total, *numbering.named(iterate).snapshot()))
        history: dict[str, Any] = {"inner_steps": counts, "thresholdings": total}
        return numbering.named(iterate).dense(self.width), history | {"iterates": iterates} if every else history

    def trials(
        self, other: ScsgRun, rng: np.random.Generator, place: Any, first: int, bits: NDArray[Any], trace: bool
    ) -> Trials | None:
        """See ``Run``; None if the data are not small or not alike."""
        from dptoolkit.kernels import stochastic as kernel

        shape, poisson = self.shape, self.iteration.sampling == POISSON
        small = few_entries(self.data) and few_entries(other.data) and self.free <= ONE_BUCKET
        if not small or not self.data.alike(other.data):
            return None
        epochs = kernel.Epochs(
            shape.steps, 0.0 if shape.option == "II" else shape.batch / (shape.snapshot + shape.batch), shape.snapshot,
            shape.snapshot / self.n if poisson else 0.0, shape.batch / self.n if poisson else 0.0,
            *self.snapshots.arguments,
        )  # fmt: skip
        counts = np.empty((len(bits), shape.epochs), np.int64)
        weights, snapshots = np.empty((len(bits), self.width)), np.empty((*counts.shape, self.width))
        iterates = np.empty((*counts.shape, shape.usual_steps if trace else 0, self.width))
        records = self.data.records(), other.data.records()
        arguments: tuple[Any, ...] = (
            rng, *place, first, np.ascontiguousarray(bits, np.int8), *records, epochs, *self.arguments, weights, counts,
            snapshots, iterates,
        )  # fmt: skip
        with exclusive(rng):
            kernel.reduced_trials(*arguments)
        return Trials(weights, snapshots, iterates, counts) if trace else Trials(weights)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records; NOT private."""
        return {"objective": self.data.objective(weights)}

    def _epoch(
        self,
        rng: np.random.Generator,
        data: BatchData,
        records: Any,
        numbering: Numbering,
        iterate: Iterate,
        count: int,
        watch: Callable[[Array, Array], Any] | None,
    ) -> None:
        from dptoolkit.kernels import stochastic as kernel

        iteration = self.iteration
        support, values = iterate.snapshot()
        scale = self.snapshots(values)
        gradient = snapshot_gradient(
            data, records, iteration.shape.snapshot, iteration.sampling, support, values, scale, rng, numbering
        )
        sizes = batch_sizes(rng, iteration.sampling, self.n, iteration.shape.batch, count)
        means = ranked_means(gradient, numbering.known, self.free, scale, rng)
        arguments = (rng, sizes, records, *self.arguments, means, iterate.support, iterate.values, iterate.filled)
        if watch is None:
            with exclusive(rng):
                iterate.filled = kernel.reduced_steps(*arguments)
            numbering.settle(iterate, rng)
        else:
            inner = np.empty((count, self.width))
            with exclusive(rng):
                iterate.filled = kernel.reduced_steps(*arguments, inner)
            watch(gradient, inner)


class SecureScsgRun(ScsgRun):
    """``ScsgRun`` with secure noise: batches, numbers of steps and noise of a fit come from a stream of its own.

    ``clip`` bounds a record's gradient, where it is clipped as a whole.

    Privacy
    -------
    The event of a fit is that of the secured plan; see engine/secure_reduced.py. A numpy Generator is not used.
    """

    def __init__(self, data: BatchData, iteration: Epochs, plan: Plan, clip: float) -> None:
        assert plan.secure is not None
        difference, noise = plan.secure.parts
        super().__init__(data, iteration, noise.law, difference.scale)  # type: ignore[attr-defined]
        self._parts, self._rates = (difference, noise), (rate_of(plan.releases[1]), rate_of(plan.releases[0]))
        self._law: Any = plan.releases[0].round_count_law
        self._rows = rows_for(data, noise.grids, iteration.fit_intercept, clip)  # type: ignore[attr-defined]

    def trials(self, *_: Any) -> None:
        """None: an audit's own stream has no secure noise."""
        return None

    def _counts(self, stream: SecureStream) -> NDArray[np.int64]:
        """The number of inner steps of every epoch, with the chance that the plan's event states."""
        if self._law is None:
            return np.full(self.shape.epochs, self.shape.steps, np.int64)
        return np.array([failures(stream, Fraction(self._law.gamma)) for _ in range(self.shape.epochs)])

    def _fitted(
        self, rng: Any, every: int, watch: Callable[[Array, Array], Any] | None
    ) -> tuple[Array, dict[str, Any]]:
        """See ``ScsgRun``; a SecureStream, for tests and audits, is used as it is."""
        iterate, iterates, total = Iterate(self.kept_count), list[Any](), 0
        with secure_stream(rng) as stream:
            counts = self._counts(stream)
            epochs = SecureEpochs(stream, self.data, self._rows, self.iteration, self._parts, self._rates)
            for epoch, count in zip(progress.steps(len(counts), "epoch"), counts.tolist(), strict=True):
                inner = None if watch is None else np.empty((count, self.width))
                gradient = epochs.epoch(iterate, count, inner)
                if watch is not None and inner is not None:
                    watch(gradient, inner)
                total += count
                if every and ((epoch + 1) % every == 0 or epoch + 1 == len(counts)):
                    iterates.append((total, *iterate.snapshot()))
        history: dict[str, Any] = {"inner_steps": counts, "thresholdings": total}
        return iterate.dense(self.width), history | {"iterates": iterates} if every else history
