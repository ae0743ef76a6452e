"""Hard thresholding by noisy gradients, which several solvers share: settings, clipped records, the iteration."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, progress
from dptoolkit._validate import LARGEST, SMALLEST, flag, invalid, magnitude
from dptoolkit.data import Rows
from dptoolkit.losses import Loss
from dptoolkit.mechanisms.randomness import Generators, exclusive
from dptoolkit.solvers.engine.bounds import GradientBounds, NoiseLaw, constant, gradient_law
from dptoolkit.solvers.engine.gradients import MeanGradient, MeanGradients, Point
from dptoolkit.solvers.engine.initial import NOTHING, Start
from dptoolkit.solvers.frame import outlook
from dptoolkit.solvers.frame.outlook import Outlook
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another
from dptoolkit.solvers.frame.settings import TIGHT, Resolved, Settings, check_sparsity, setting
from dptoolkit.types import Array


@dataclass(frozen=True, kw_only=True)
class ThresholdingSettings(Settings):
    """Settings of gradient hard thresholding."""

    loss: str = setting(f"{losses.described(losses.SCALAR)}.")
    sparsity: int = setting("Number of features that are kept, not counting an intercept.")
    step_size: float | None = setting(
        "Length of a step; by default 1 / smoothness, where the smoothness includes l2.", default=None
    )
    row_norm: float | None = setting("Public L2 bound of a row; longer rows are scaled down.", default=None)
    grad_norm: float | None = setting(
        "Public L2 bound to which each record's gradient is clipped; the squared loss needs it, or both label_bound "
        "and margin_bound.",
        default=None,
    )
    label_bound: float | None = setting("Public bound to which labels are clipped (squared loss).", default=None)
    margin_bound: float | None = setting("Public bound to which predictions are clipped (squared loss).", default=None)
    fit_intercept: bool = setting(
        "Whether to add a column of ones; it is bounded and charged like any other.",
        default=False,
    )
    adaptive: bool | None = setting(
        "Whether the noise follows the sensitivity at the current, public iterate; by default wherever that is known.",
        default=None,
    )

    @property
    def loss_row(self) -> Loss:
        """The row of the loss table."""
        return losses.get(self.loss, losses.SCALAR)

    @property
    def bounds(self) -> GradientBounds:
        """The public bounds of one record's gradient."""
        return GradientBounds(
            self.loss_row, self.row_norm, self.grad_norm, self.label_bound, self.margin_bound, self.fit_intercept
        )

    @property
    def penalty(self) -> float:
        """The weight of an l2 term; 0 where a solver has none."""
        return 0.0

    def _checked(self, d: int) -> dict[str, Any]:
        """The values of the step and of adaptive noise, after the shared settings are checked."""
        self._check_sparsity(d)
        self.bounds.check()
        return {"step_size": self._step(), "adaptive": self._adapts()}

    def _check_sparsity(self, d: int) -> None:
        check_sparsity(self.sparsity, d)

    def _step(self) -> float:
        """The step asked for; by default 1 / (smoothness + l2), from the public bounds, as longer steps may diverge."""
        if self.step_size is not None:
            return magnitude("step_size", self.step_size)
        smoothness = self.bounds.smoothness
        if not SMALLEST <= smoothness + self.penalty <= LARGEST:
            raise invalid("step_size", None, "given", "Without row_norm, or if it is extreme, there is no default.")
        return 1 / (smoothness + self.penalty)

    @property
    def can_adapt(self) -> bool:
        """Whether the solver can scale some of its noise with the iterate."""
        return self.loss_row.diameter is not None and self.grad_norm is None and self.calibration == TIGHT

    def _adapts(self) -> bool:
        if self.adaptive is not None:
            flag("adaptive", self.adaptive)
        if self.adaptive and not self.can_adapt:
            repair = "It needs tight calibration and a loss whose gradients are known to be smaller near w = 0."
            raise invalid("adaptive", self.adaptive, f"None or False for these settings of {self.solver}", repair)
        return self.can_adapt if self.adaptive is None else bool(self.adaptive)


@dataclass(frozen=True, kw_only=True)
class ResolvedThresholding(Resolved, ThresholdingSettings):
    """Settings of gradient hard thresholding in a plan."""

    step_size: float
    adaptive: bool

    @property
    def has_intercept(self) -> bool:
        """See ``Resolved``."""
        return self.fit_intercept

    @property
    def label_limit(self) -> float | None:
        """See ``Resolved``."""
        return self.label_bound

    def descent_outlook(self, plan: Plan, steps: int) -> Outlook | None:
        """The outlook of this many steps; it is for the noise of a weight that is kept in all of them."""
        norm = self.bounds.joint_norm
        if math.isinf(norm):
            return None
        classes = None if self.loss_row.task == losses.REGRESSION else self.class_count or 2
        return outlook.descent(
            time=steps * self.step_size, weight_noise=self.step_size * math.sqrt(steps) * plan.noise,
            gradient=self.bounds.gradient, row_norm=norm, classes=classes, label_bound=self.bounds.label_bound,
            remedy="Fewer or shorter steps help: leave steps and step_size out for the rule's.",
        )  # fmt: skip

    def gradient_law(self, scale: float, around_zero: bool) -> NoiseLaw:
        """The noise of a mean gradient at public weights; see bounds.gradient_law for ``around_zero``."""
        applies = self.loss_row.diameter is not None and self.grad_norm is None
        if not (self.adaptive and applies):
            return constant(scale)
        label = self.bounds.label_bound
        limits = self.bounds.largest_margin, math.inf if label is None else label
        return gradient_law(scale, self.loss_row, self.bounds.joint_norm, around_zero, *limits)


# Up to this many entries of X, zeros included, one compiled call for the whole fit is faster than one for every step.
SMALL = 50_000


@dataclass(frozen=True)
class Steps:
    """What the iteration does, and how often.

    ``sparsity`` None keeps all features. ``accumulate``: a step starts from the sum of all steps, not from what the
    last threshold left of it.
    """

    steps: int
    step_size: float
    sparsity: int | None
    fit_intercept: bool
    accumulate: bool = False


@dataclass(frozen=True)
class ClippedRecords:
    """Records whose gradients obey a public bound; ``counts`` says how often each occurs, None for once.

    Rows may be a stack of matrices, one for each of many fits; labels, loss and counts are those of all.
    """

    rows: Rows
    y: Array
    loss: Loss
    margin_bound: float = math.inf
    caps: Array | None = None
    counts: NDArray[np.int64] | None = None

    def expanded(self) -> ClippedRecords:
        """The same records, each written as often as it occurs."""
        if self.counts is None:
            return self
        which = np.repeat(np.arange(len(self.counts)), self.counts)
        caps = None if self.caps is None else self.caps[which]
        return replace(self, rows=self.rows.take(which), y=self.y[which], caps=caps, counts=None)

    def nonzero(self) -> NDArray[np.bool_]:
        """Which rows have an entry that is not zero, in some fit, and occur."""
        matrix, n = self.rows.matrix, self.rows.shape[0]
        filled: NDArray[np.bool_]
        filled = np.diff(matrix.indptr) > 0 if self.rows.is_sparse else matrix.any(axis=-1).reshape(-1, n).any(axis=0)
        return filled if self.counts is None else filled & (self.counts > 0)

    def compiled(self) -> Any:
        """The records as kernels/threshold.py takes them; rows that are zero or of count 0 are left out."""
        from dptoolkit.kernels.threshold import Records

        X = self.rows.matrix.toarray().astype(np.float64, copy=False) if self.rows.is_sparse else self.rows.matrix
        counts = np.ones(len(self.y)) if self.counts is None else self.counts
        caps = np.broadcast_to(np.inf if self.caps is None else self.caps, X.shape[:-1])
        nonzero = self.nonzero()
        weights = counts[nonzero] / counts.sum()
        rows, labels = np.ascontiguousarray(X[..., nonzero, :]), self.y[nonzero]
        bounds = np.ascontiguousarray(caps[..., nonzero])
        return Records(self.loss.id, rows, labels, weights, float(self.margin_bound), bounds)


class IhtRun(Run):
    """Hard thresholding on bounded data. Small data are fitted by one compiled call, others step by step.

    Privacy
    -------
    A call releases the mean gradient ``steps`` times, each with Gaussian noise of scale ``noise_at(w)`` on every
    coordinate, w being the public iterate.
    """

    def __init__(self, data: ClippedRecords, iteration: Steps, noise_at: NoiseLaw, start: Start = NOTHING) -> None:
        self._lay_out(data.rows.shape[1], iteration, noise_at, start)
        # The compiled call starts at zero.
        is_small = data.rows.shape[0] * self.width <= SMALL and len(start[0]) == 0
        self._data = data
        self.compiled_records = self._compiled_form() if is_small else None
        # A MeanGradient writes to its own buffers. A call takes one from this list, so that no two threads share one.
        self._idle = [] if is_small else [self._mean_gradient()]

    def _lay_out(self, width: int, iteration: Steps, noise_at: NoiseLaw, start: Start) -> None:
        """What the iteration needs to know besides the records."""
        self.iteration, self.noise_at, self.start, self.width = iteration, noise_at, start, width
        self.free = self.width - (1 if iteration.fit_intercept else 0)
        self.kept_count = self.free if iteration.sparsity is None else min(iteration.sparsity, self.free)

    def one(self, rng: np.random.Generator, trace: bool) -> Trace:
        """See ``Run``; the compiled call draws its noise step by step, so that nothing of size steps x d is drawn."""
        # A subclass of Generator may draw in its own way, which compiled code would ignore.
        if self.compiled_records is not None and type(rng) is np.random.Generator:
            return self._compiled(rng, trace)
        return self._step_by_step(rng, trace)

    def advance(self, rng: np.random.Generator, start: Start, steps: int) -> Start:
        """The weights after ``steps`` steps from ``start``, both as (support, values); steps do not accumulate.

        Privacy
        -------
        ``steps`` of the plan's releases. ``start`` must be public, or follow from releases that are charged.
        """
        end = self._step_by_step(rng, False, start, steps).weights
        support = np.flatnonzero(end)
        return support, end[support]

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records at the result, and at the iterates that were kept; NOT private."""
        gradient = self._mean_gradient()
        objectives = [gradient.objective(support, values) for _, support, values in history.get("iterates", [])]
        return {"objective": gradient.objective(np.arange(self.width), weights), "objectives": objectives}

    def _compiled_form(self) -> Any:
        """The records as the compiled call takes them."""
        return self._data.compiled()

    def _mean_gradient(self) -> MeanGradient:
        data = self._data.expanded()
        return MeanGradient(data.rows, data.y, data.loss, data.margin_bound, data.caps)

    def schedule(self) -> Any:
        """The steps as kernels/threshold.py takes them."""
        from dptoolkit.kernels.threshold import Schedule

        s = self.iteration
        return Schedule(s.steps, s.step_size, *self.noise_at.arguments, self.free, self.kept_count, s.accumulate)

    def _compiled(self, rng: np.random.Generator, trace: bool) -> Trace:
        from dptoolkit.kernels.threshold import iht_fit

        steps, width = self.iteration.steps, self.width
        w, support, step, scales = np.empty(width), np.empty(width, np.int64), np.empty(width), np.empty(steps)
        releases, iterates = np.empty((2, steps if trace else 0, width))
        schedule, none_drawn = self.schedule(), np.empty((0, 0))
        with exclusive(rng):
            iht_fit(rng, none_drawn, self.compiled_records, schedule, w, support, step, scales, releases, iterates)
        history: dict[str, Any] = {"noise_scale": scales.tolist()}
        return Trace(w, history, releases, iterates) if trace else Trace(w, history)

    def trials(
        self, other: IhtRun, rng: np.random.Generator, place: Any, first: int, bits: NDArray[Any], trace: bool
    ) -> Trials | None:
        """See ``Run``; None if the data are not small."""
        if self.compiled_records is None or other.compiled_records is None:
            return None
        from dptoolkit.kernels.threshold import iht_trials

        weights = np.empty((len(bits), self.width))
        size = (len(bits), self.iteration.steps, self.width) if trace else (0, 0, 0)
        releases, iterates = np.empty(size), np.empty(size)
        arguments = np.ascontiguousarray(bits, np.int8), self.compiled_records, other.compiled_records, self.schedule()
        with exclusive(rng):
            iht_trials(rng, *place, first, *arguments, weights, releases, iterates)
        return Trials(weights, releases, iterates) if trace else Trials(weights)

    def at_once(self, trace: bool) -> bool:
        """See ``Run``; where every fit has a matrix of its own."""
        return self._is_stack

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; where rows are a stack of small matrices, fit i is on matrix i."""
        if not self._is_stack:
            return one_after_another(self, streams, trace)
        from dptoolkit.kernels.threshold import iht_fits

        runs, size = len(streams), (len(streams), self.iteration.steps, self.width)
        normals = streams.standard_normal(size) if self.noise_at.scale > 0 else np.empty((runs, 0, 0))
        weights, (releases, iterates) = np.empty((runs, self.width)), np.empty((2, *(size if trace else (0, 0, 0))))
        # All normals are drawn, so this Generator is not asked for any.
        resting = np.random.default_rng(0)
        iht_fits(resting, normals, self.compiled_records, self.schedule(), weights, releases, iterates)
        kept = (releases, iterates) if trace else (None, None)
        return Trials(weights, *kept, history=self._stack_history)

    def _stack_history(self, i: int) -> dict[str, Any]:
        """The facts of a fit of a stack: its noise, which the kernel does not return, where it is that of the plan."""
        return {"noise_scale": [self.noise_at.scale] * self.iteration.steps} if self.noise_at.is_constant else {}

    @property
    def _is_stack(self) -> bool:
        return not self._data.rows.is_sparse and self._data.rows.matrix.ndim == 3

    def relabelled(self, labels: Array) -> Array:
        """The weights without noise for each row of ``labels``, which take the place of the records'."""
        if self.compiled_records is None or len(labels) == 1:
            runs = (IhtRun(replace(self._data, y=y), self.iteration, constant(0.0)) for y in labels)
            return np.array([run.fit(np.random.default_rng(0))[0] for run in runs])
        from dptoolkit.kernels.threshold import iht_relabelled

        weights, schedule = np.empty((len(labels), self.width)), self.schedule()
        nonzero = self._data.nonzero()
        iht_relabelled(np.random.default_rng(0), self.compiled_records, np.ascontiguousarray(labels[:, nonzero]),
                       schedule._replace(scale=0.0), weights)  # fmt: skip
        return weights

    def _step_by_step(
        self, rng: np.random.Generator, trace: bool, start: Start | None = None, steps: int | None = None
    ) -> Trace:
        """The iteration on weights kept as (support, values), from ``start`` if it is not the run's own."""
        try:
            gradient = self._idle.pop()
        except IndexError:
            gradient = self._mean_gradient()
        count = self.iteration.steps if steps is None else steps
        path = self._path(trace, start, count)
        point = next(path)
        try:
            for _ in progress.steps(count):
                point = path.send(gradient.noisy(*point, rng))
        except StopIteration as end:
            trace_of_run: Trace = end.value
        self._idle.append(gradient)
        return trace_of_run

    @property
    def shared(self) -> Rows | None:
        """The rows whose passes this run can share with others; None for small data, which one compiled call reads."""
        return None if self.compiled_records is not None or self._data.counts is not None else self._data.rows

    def fit_block(
        self, runs: Sequence[IhtRun], rngs: Sequence[np.random.Generator], every: int = 0
    ) -> list[tuple[Array, dict[str, Any]]]:
        """See ``Run``; all read the same ``shared`` rows.

        Privacy
        -------
        What ``fit`` of each releases, and nothing else: no run's weights or noise enter another's.
        """
        paths = [run._path(every > 0) for run in runs]
        points = {k: next(path) for k, path in enumerate(paths)}
        # Runs of one plan share what they need of the data.
        terms = {id(run): run._mean_gradient() for run in runs}
        block = MeanGradients(self._data.rows, [terms[id(run)] for run in runs])
        traces: dict[int, Trace] = {}
        while points:
            active = list(points)
            noisy = block.noisy(active, [points[k] for k in active], [rngs[k] for k in active])
            for k, step in zip(active, noisy, strict=True):
                try:
                    points[k] = paths[k].send(step)
                except StopIteration as end:
                    traces[k] = end.value
                    del points[k]
        return [traces[k].fit(every) for k in range(len(runs))]

    def _path(
        self, trace: bool, start: Start | None = None, count: int | None = None
    ) -> Generator[Point, Array, Trace]:
        """The iteration as a generator: yields a Point, is sent the noisy mean gradient there, and may overwrite it."""
        from dptoolkit.kernels.sums import add_scaled
        from dptoolkit.kernels.threshold import largest

        iteration, always = self.iteration, np.arange(self.free, self.width)
        support, values = self.start if start is None else start
        total = np.zeros(self.width if iteration.accumulate else 0)
        scales, releases, iterates, border = [], [], [], math.inf
        for _ in range(iteration.steps if count is None else count):
            scale = self.noise_at(values)
            step = yield Point(support, values, scale)
            if trace:
                releases.append(step.copy())
            if iteration.accumulate:
                add_scaled(total, step, -iteration.step_size)
                step = total
            else:
                step *= -iteration.step_size
                step[support] += values
            # The smallest kept value changes little from step to step: looking only at values above nine tenths of the
            # last one usually leaves a few more candidates than are needed.
            top = largest(step[: self.free], self.kept_count, guess=0.9 * border)
            support = np.concatenate([top, always])
            values, border = step[support], float(np.abs(step[top]).min()) if self.kept_count < self.free else math.inf
            scales.append(scale)
            if trace:
                iterates.append(_dense(self.width, support, values))
        history: dict[str, Any] = {"noise_scale": scales}
        w = _dense(self.width, support, values)
        return Trace(w, history, np.array(releases), np.array(iterates)) if trace else Trace(w, history)


def _dense(width: int, support: Any, values: Array) -> Array:
    w = np.zeros(width)
    w[support] = values
    return w
