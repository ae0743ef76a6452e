"""Stochastic gradient hard thresholding: sgd_ht and dp_sgd_ht (Liang et al. 2023, Algorithm 1).

    w <- H_k(w - step_size * (mean gradient of a fresh batch + N(0, scale^2 I)))

The step is lazy (kernels/stochastic.py): exact in law, and its cost does not grow with d.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, progress
from dptoolkit._validate import flag, one_of, positive, whole
from dptoolkit.accounting.events import POISSON, WITHOUT_REPLACEMENT
from dptoolkit.data import Rows, check_labels, with_intercept
from dptoolkit.mechanisms.randomness import Generators, as_generator, exclusive
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers.engine.batches import (
    SCHEMES,
    BatchData,
    BatchSettings,
    Iterate,
    ResolvedBatches,
    batch_sizes,
    check_batch,
    check_sampling,
    check_sparse_rows,
)
from dptoolkit.solvers.engine.bounds import NoiseLaw, constant
from dptoolkit.solvers.engine.initial import NOTHING, InitialModel, Start, check_start, start_of
from dptoolkit.solvers.engine.secure import SecureNoise, charged_release
from dptoolkit.solvers.engine.secure_steps import (
    BATCH_REMARKS,
    Scheme,
    Stepper,
    how_of,
    plain_law,
    rate_of,
    rows_for,
)
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.fit import FitResult, plain_result, private_solver, without_privacy
from dptoolkit.solvers.frame.outlook import Outlook
from dptoolkit.solvers.frame.plan import GAUSSIAN, Plan, Release, with_smallest_noise
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another, trace_interval
from dptoolkit.solvers.frame.secure import SecurePlan, secure_stream
from dptoolkit.solvers.frame.settings import check_l2, check_sparsity, setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published


@dataclass(frozen=True, kw_only=True)
class DpSgdHt(BatchSettings):
    """Private sparse regression by noisy mini-batch gradients and hard thresholding.

    Privacy
    -------
    Query: (1/b) sum over a secret batch of gradients of at most G. Sensitivity of the query on a given batch: 2 G/b
    (replace-one) or G/b (zero-out). Event: Repeated(Subsampled(Gaussian(scale/sensitivity), sampling, b/n), steps). For
    the logistic loss, and the squared loss with bounded labels and margins, the sensitivity at a public w is smaller
    (``adaptive``): the noise shrinks with it, the event stays.
    With published calibration (Theorem 4.1) the guarantee says what that noise gives where its conditions fail.
    Public: n, d, all arguments, the initial model among them, and all iterates. The batches are not.
    """

    solver: ClassVar[str] = "dp_sgd_ht"

    steps: int | None = setting(
        "Number of batches. If omitted, it follows from n, the bounds and the budget, and so do a step_size and, for "
        "binary losses, a grad_norm that are not given (docs/rules.md).",
        default=None,
    )
    batch_size: int | None = setting(  # type: ignore[assignment]
        "(Expected) number of rows of a batch; by default large enough that the noise is about as small as with all "
        "rows.",
        default=None,
    )
    # The shell has no option for it: a model is no word on a command line.
    initial: Any = field(
        default=None,
        metadata={"text": "Public model to start from: d weights, then that of an intercept, of which at most sparsity "
                  "are not 0. By default all weights are 0.", "shell": False},
    )  # fmt: skip

    def resolved(self, n: int, d: int) -> ResolvedSgd:
        """See ``Settings``."""
        adjacency = check_sampling(self.sampling, self.adjacency)
        own = replace(self, initial=self._initial(d))
        if self.steps is None:
            self._check_sparsity(d)
            self.bounds.check()
            check_l2(self.l2)
            own = replace(own, **rules.filled(self, self.steps, adjacency, n))
        steps = whole("steps", own.steps, low=1)
        if self.batch_size is None:
            size = rules.batch_size(n, steps, rules.budget_mu(self.epsilon, self.delta))
            own = replace(own, batch_size=size)
        return own.settled(ResolvedSgd, **own._batches_checked(n, d))

    def _initial(self, d: int) -> InitialModel | None:
        if self.initial is not None:
            self._check_sparsity(d)
        return InitialModel.of(self.initial, d + 1 if self.fit_intercept else d, d, self.sparsity)

    def to_dict(self) -> dict[str, Any]:
        """See ``Settings``. Without an initial model it is as before there was one, and so are fingerprints."""
        record = super().to_dict()
        if record["initial"] is None:
            del record["initial"]
        return record

    @property
    def reads_single(self) -> bool:
        """See ``Settings``."""
        return True


@dataclass(frozen=True, kw_only=True)
class ResolvedSgd(ResolvedBatches, DpSgdHt):
    """The settings of ``dp_sgd_ht`` in a plan."""

    steps: int
    batch_size: int

    @property
    def iterations(self) -> int:
        """See ``Resolved``."""
        return self.steps

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The gradient of a fresh batch, once a step."""
        sensitivity = self.bounds.sensitivity(self.adjacency, self.batch_size)
        silent = Release("batch gradient", GAUSSIAN, sensitivity, 0.0, self.steps, self.sampled(self.batch_size, n))
        if paper is not None:
            return (replace(silent, scale=paper.scales["gradient"]),)
        return (with_smallest_noise(silent, self.epsilon, self.delta),)

    def published(self, n: int, d: int) -> Published:
        """The noise of Theorem 4.1."""
        from dptoolkit import published

        self.refuse_other_sampling("Theorem 4.1")
        return published.sgd_ht_theorem_4_1(
            n, self.batch_size, self.steps, self.bounds.gradient, self.epsilon, self.delta
        )

    def outlook(self, plan: Plan) -> Outlook | None:
        """See ``Resolved``."""
        return self.descent_outlook(plan, self.steps)

    def noise_law(self, plan: Plan) -> NoiseLaw:
        """The noise of a step at its public iterate."""
        return self.batch_law(plan.noise)

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> SgdRun:
        """See ``Resolved``."""
        steps = Batches(
            self.steps, self.batch_size, self.step_size, self.sparsity, self.l2, self.sampling, self.fit_intercept
        )
        data, start = self.bounded_batches(rows, y, counts), start_of(self.initial)
        if plan.secure is not None:
            return SecureSgdRun(data, steps, plan.secure.first, rate_of(plan.releases[0]), self.bounds.gradient, start)
        return SgdRun(data, steps, self.noise_law(plan), start)

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``."""
        (release,) = plan.releases
        has_diameter = not self.noise_law(plan).is_constant and self.sampling == WITHOUT_REPLACEMENT
        charged, noise = charged_release(plan, self, release, self.noise_law(plan), self.batch_size, has_diameter)
        return replace(plan, releases=(charged,), secure=SecurePlan((noise,), BATCH_REMARKS))


dp_sgd_ht = private_solver(DpSgdHt)


@without_privacy(
    steps="Number of batches.",
    batch_size="Number of rows of a batch; for Poisson sampling the expected one, by which sums are divided.",
    sampling='"without-replacement", batches of fixed size, or "poisson", a coin for every row.',
)
def sgd_ht(
    X: Any,
    y: Any,
    *,
    loss: str,
    sparsity: int,
    steps: int,
    batch_size: int,
    step_size: float,
    l2: float = 0.0,
    sampling: str = WITHOUT_REPLACEMENT,
    fit_intercept: bool = False,
    rng: Any = None,
    trace: bool | int = False,
    label_values: tuple[float, float] | None = None,
) -> FitResult:
    """Stochastic gradient hard thresholding without privacy: ``dp_sgd_ht`` without clipping and without noise."""
    rows = check_sparse_rows(X)
    n, d = rows.shape
    terms = losses.get(loss, losses.SCALAR)
    labels = check_labels(y, n, terms, label_values)
    fit_intercept = flag("fit_intercept", fit_intercept)
    iteration = Batches(
        whole("steps", steps, low=1), check_batch("batch_size", batch_size, n), positive("step_size", step_size),
        check_sparsity(sparsity, d), check_l2(l2), one_of("sampling", sampling, SCHEMES), fit_intercept,
    )  # fmt: skip
    data = BatchData(with_intercept(rows, 1.0) if fit_intercept else rows, labels, terms, math.inf, None)
    w, history = SgdRun(data, iteration, constant(0.0)).fit(as_generator(rng), trace_interval(trace))
    return plain_result(w, history, fit_intercept)


@dataclass(frozen=True)
class Batches:
    """The settings of the iteration."""

    steps: int
    batch_size: float
    step_size: float
    sparsity: int
    l2: float
    sampling: str
    fit_intercept: bool


class SgdRun(Run):
    """Stochastic hard thresholding on bounded data; calls share nothing that they change.

    Privacy
    -------
    A call is ``steps`` lazy steps, each equal in law to one noisy mean gradient of a fresh batch.
    """

    def __init__(self, data: BatchData, iteration: Batches, noise_at: NoiseLaw, start: Start = NOTHING) -> None:
        self.data, self.iteration = data, iteration
        self.n, self.width = data.n, data.rows.shape[1]
        protected = 1 if iteration.fit_intercept else 0
        self.kept_count = iteration.sparsity + protected
        # Not every call makes an Iterate of it.
        self.start = check_start(start, self.width, self.kept_count)
        # The kernel's arguments after the records.
        self.arguments = (
            iteration.batch_size, iteration.step_size, iteration.l2, *noise_at.arguments, self.width - protected,
            protected, iteration.sparsity,
        )  # fmt: skip

    def sizes(self, rng: np.random.Generator, steps: int | None = None) -> NDArray[np.int64]:
        """The realised sizes of so many batches, by default of all."""
        count = self.iteration.steps if steps is None else steps
        return batch_sizes(rng, self.iteration.sampling, self.n, self.iteration.batch_size, count)

    def advance(self, rng: np.random.Generator, start: Start, steps: int) -> Start:
        """The weights after ``steps`` steps from ``start``, both as (support, values); they may be part of the plan's.

        Privacy
        -------
        ``steps`` of the plan's releases. ``start`` must be public, or follow from releases that are charged.
        """
        from dptoolkit.kernels.stochastic import sgd_steps

        iterate, sizes = Iterate(self.kept_count, start, self.width), self.sizes(rng, steps)
        arguments = rng, sizes, self.data.records(), *self.arguments, iterate.support, iterate.values, iterate.filled
        with exclusive(rng):
            iterate.filled = sgd_steps(*arguments)
        return iterate.snapshot()

    def at_once(self, trace: bool) -> bool:
        """See ``Run``; every lazy step depends on what its own fit drew before."""
        return False

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``."""
        return one_after_another(self, streams, trace)

    def one(self, rng: np.random.Generator, trace: bool) -> Trace:
        """See ``Run``; the lazy step never forms a whole noisy gradient, so a trace has only the iterates."""
        from dptoolkit.kernels.stochastic import sgd_steps

        iterate, history = Iterate(self.kept_count, self.start, self.width), {"thresholdings": self.iteration.steps}
        begun = iterate.support, iterate.values, iterate.filled
        arguments = rng, self.sizes(rng), self.data.records(), *self.arguments, *begun
        if not trace:
            with exclusive(rng):
                iterate.filled = sgd_steps(*arguments)
            return Trace(iterate.dense(self.width), history)
        iterates = np.empty((self.iteration.steps, self.width))
        with exclusive(rng):
            iterate.filled = sgd_steps(*arguments, iterates)
        return Trace(iterate.dense(self.width), history, None, iterates)

    def trials(
        self, other: SgdRun, rng: np.random.Generator, place: Any, first: int, bits: NDArray[Any], trace: bool
    ) -> Trials | None:
        """See ``Run``; None if the data are not alike."""
        from dptoolkit.kernels.stochastic import sgd_trials

        if not self.data.alike(other.data):
            return None
        steps, b = self.iteration.steps, self.iteration.batch_size
        rate = b / self.n if self.iteration.sampling == POISSON else 0.0
        weights = np.empty((len(bits), self.width))
        iterates = np.empty((len(bits), steps, self.width)) if trace else None
        arguments: tuple[Any, ...] = (
            rng, *place, first, np.ascontiguousarray(bits, np.int8), self.data.records(), other.data.records(), rate,
            np.full(steps, b, dtype=np.int64), *self.arguments, *self.start, weights, iterates,
        )  # fmt: skip
        with exclusive(rng):
            sgd_trials(*arguments)
        return Trials(weights, None, iterates)

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """See ``Run``; the iterates that are kept are taken between calls, and nothing of size steps x d is made."""
        from dptoolkit.kernels import stochastic as kernel

        records, sizes, steps = self.data.records(), self.sizes(rng), self.iteration.steps
        iterate, iterates = Iterate(self.kept_count, self.start, self.width), []
        size = every or progress.at_once(steps)
        starts = range(0, steps, size)
        for start in progress.counted(starts, (start + 1 for start in starts), steps):
            part = sizes[start : start + size]
            arguments = part, records, *self.arguments, iterate.support, iterate.values, iterate.filled
            with exclusive(rng):
                iterate.filled = kernel.sgd_steps(rng, *arguments)
            iterates.append((start + len(part), *iterate.snapshot()))
        history: dict[str, Any] = {"thresholdings": steps}
        return iterate.dense(self.width), history | {"iterates": iterates} if every else history

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records; NOT private."""
        return {"objective": self.data.objective(weights)}


class SecureSgdRun(SgdRun):
    """``SgdRun`` with secure noise: every fit draws its batches and its noise from a stream of its own.

    ``rate`` is the chance of a record for Poisson sampling, None for batches of fixed size; ``clip`` bounds a record's
    gradient, where it is clipped as a whole.

    Privacy
    -------
    The event of a fit is that of the secured plan. A step releases S + round(M Z), S the exact integer sum of a fresh
    batch's gradients; see engine/secure_steps.py. A numpy Generator is not used.
    """

    def __init__(
        self, data: BatchData, iteration: Batches, noise: SecureNoise, rate: float | None, clip: float,
        start: Start = NOTHING,
    ) -> None:  # fmt: skip
        super().__init__(data, iteration, noise.law, start)
        self.noise, self.scheme = noise, Scheme.of(self.n, iteration.batch_size, rate)
        self._rows, self._law = rows_for(data, noise.grids, iteration.fit_intercept, clip), plain_law(noise)

    def stepper(self, stream: SecureStream) -> Stepper:
        """The steps of one fit."""
        iteration = self.iteration
        how = how_of(
            self.scheme, iteration, self.noise.grids.row_unit, self.width, stream, iteration.batch_size, reduced=False
        )
        return Stepper(stream, how, self._law, self._rows, self.scheme, iteration.sparsity)

    def advance(self, rng: Any, start: Start, steps: int) -> Start:
        """See ``SgdRun``."""
        iterate = Iterate(self.kept_count, start, self.width)
        with secure_stream(rng) as stream:
            self.stepper(stream).advance(iterate, steps)
        return iterate.snapshot()

    def one(self, rng: Any, trace: bool) -> Trace:
        """See ``SgdRun``; a SecureStream, for tests and audits, is used as it is."""
        iterate, steps = Iterate(self.kept_count, self.start, self.width), self.iteration.steps
        iterates = np.empty((steps, self.width)) if trace else None
        with secure_stream(rng) as stream:
            self.stepper(stream).advance(iterate, steps, iterates=iterates)
        return Trace(iterate.dense(self.width), {"thresholdings": steps}, None, iterates)

    def trials(self, *_: Any) -> None:
        """None: an audit's own stream has no secure noise."""
        return None

    def fit(self, rng: Any, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """See ``SgdRun``."""
        iterate, iterates, steps = Iterate(self.kept_count, self.start, self.width), [], self.iteration.steps
        size = every or progress.at_once(steps)
        starts = range(0, steps, size)
        with secure_stream(rng) as stream:
            stepper = self.stepper(stream)
            for start in progress.counted(starts, (start + 1 for start in starts), steps):
                count = min(size, steps - start)
                stepper.advance(iterate, count)
                iterates.append((start + count, *iterate.snapshot()))
        history: dict[str, Any] = {"thresholdings": steps}
        return iterate.dense(self.width), history | {"iterates": iterates} if every else history
