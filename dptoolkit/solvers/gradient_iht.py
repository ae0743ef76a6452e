"""Iterative gradient hard thresholding, plain (ight) and private by gradient noise (dp_ight).

    w <- H_s(w - step_size * (mean gradient + N(0, scale^2 I)))

Wang and Gu 2019 (DP-IGHT), also Algorithm 4 of Wang's lecture 16. The noisy gradients are what is released;
thresholding is post-processing, so the whole run is ``steps`` Gaussian releases and composes exactly.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, progress
from dptoolkit._validate import flag, positive, whole
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_labels, check_rows, with_intercept
from dptoolkit.losses import Loss
from dptoolkit.mechanisms.rng import Generators, exclusive
from dptoolkit.solvers import rules
from dptoolkit.solvers.base import Array, FitResult, Trace, Trials, gaussian_multiplier, private_solver, trace_interval
from dptoolkit.solvers.gradients import MeanGradient, MeanGradients, Point
from dptoolkit.solvers.noise import NoiseLaw, constant
from dptoolkit.solvers.plain import plain_result, without_privacy
from dptoolkit.solvers.plan import GAUSSIAN, Plan, Release
from dptoolkit.solvers.settings import check_sparsity, setting
from dptoolkit.solvers.thresholding import ThresholdingSettings

if TYPE_CHECKING:
    from dptoolkit.accounting.published import Published

# Up to this many entries of X, zeros included, one compiled call for the whole fit is faster than one for every step.
SMALL = 50_000


@dataclass(frozen=True, kw_only=True)
class DpIght(ThresholdingSettings):
    """Private sparse linear or logistic regression by noisy gradients and hard thresholding.

    Privacy
    -------
    Query: the mean of per-record gradients, each at most G in L2 by clipping. Sensitivity 2 G/n (replace-one) or G/n
    (zero-out). Event: Repeated(Gaussian(scale/sensitivity), steps). For the logistic loss, and for the squared loss
    with bounded labels and margins, less is enough at a public iterate w near 0: the sensitivity there is row_norm/n
    times the loss's diameter at row_norm |w| (replace-one), or times the largest |residual| at margins of that size
    (zero-out). The noise shrinks with it (``adaptive``), so the event stays the same. Public: n, d, all arguments, all
    iterates.
    """

    solver: ClassVar[str] = "dp_ight"

    steps: int | None = setting(
        "Number of iterations; by default it, an absent step_size and, for binary losses, an absent grad_norm follow "
        "from n, the bounds and the budget (docs/rules.md).",
        default=None,
    )

    def checked(self, n: int, d: int) -> DpIght:
        """See ``Settings``."""
        self._check_sparsity(d)
        self.bounds.check()
        if self.steps is None:
            return rules.filled(self, n)._checked(d)
        whole("steps", self.steps, low=1)
        return self._checked(d)

    @property
    def reads_single(self) -> bool:
        """See ``Settings``."""
        return True

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The mean gradient, once a step."""
        assert self.steps is not None
        sensitivity = self.bounds.sensitivity(self.relation, n)
        tight = sensitivity * gaussian_multiplier(self.steps, self.epsilon, self.delta)
        scale = tight if paper is None else paper.scales["gradient"]
        return (Release("mean gradient", GAUSSIAN, sensitivity, scale, self.steps),)

    def published(self, n: int, d: int) -> Published:
        """Corollary 5.8 where it applies, else Remark 5.3 with the clipped gradient bound."""
        from dptoolkit.accounting import published

        claim = _CLAIMS.get(self.loss, "ight_remark_5_3")
        assert self.steps is not None
        model = n, self.steps, self.bounds.gradient, self.epsilon, self.delta, self.relation
        return getattr(published, claim)(*model)

    def noise_law(self, plan: Plan) -> NoiseLaw:
        """The noise of a step at its public iterate."""
        return self.gradient_law(plan.noise, plan.adjacency is Adjacency.ZERO_OUT)

    def prepare(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> IhtRun:
        """See ``Settings``."""
        bounded, labels, caps = self.bounds.clip(rows, y)
        data = Bounded(bounded, labels, self.terms, self.bounds.largest_margin, caps, counts)
        return IhtRun(data, self.iteration, self.noise_law(plan))

    @property
    def iteration(self) -> Steps:
        """The steps that are made with the noisy gradients; ``self`` is checked."""
        assert self.steps is not None and self.step_size is not None
        return Steps(self.steps, self.step_size, self.sparsity, self.fit_intercept)


# Losses for which the paper states its noise in a corollary of its own.
_CLAIMS = {"logistic": "ight_corollary_5_8"}

dp_ight = private_solver(DpIght)


@without_privacy(diagnostics='Add the objective at the result and at every iterate to history["not_private"].')
def ight(
    X: Any, y: Any, *, loss: str, sparsity: int, steps: int, step_size: float, fit_intercept: bool = False,
    diagnostics: bool = False, trace: bool | int = False, label_values: tuple[float, float] | None = None,
) -> FitResult:
    """Iterative gradient hard thresholding without privacy: ``dp_ight`` without clipping and without noise."""
    rows = check_rows(X)
    n, d = rows.shape
    table_loss = losses.get(loss, losses.SCALAR)
    labels = check_labels(y, n, table_loss, label_values)
    flag("diagnostics", diagnostics)
    how = Steps(
        whole("steps", steps, low=1), positive("step_size", step_size), check_sparsity(sparsity, d),
        flag("fit_intercept", fit_intercept),
    )
    data = with_intercept(rows, 1.0) if fit_intercept else rows
    run = IhtRun(Bounded(data, labels, table_loss), how, constant(0.0))
    w, history = run.fit(np.random.default_rng(0), trace_interval(trace) or int(diagnostics))
    if diagnostics:
        history["not_private"] = run.diagnose(w, history)
    return plain_result(w, history, fit_intercept)


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
class Bounded:
    """Records whose gradients obey a public bound; ``counts`` says how often each occurs, None for once.

    Rows may be a stack of matrices, one for each of many fits; labels, loss and counts are those of all.
    """

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


class IhtRun:
    """Hard thresholding on bounded data. Small data are fitted by one compiled call, others step by step.

    Privacy
    -------
    A call releases the mean gradient ``steps`` times, each with Gaussian noise of scale ``law.at(w)`` on every
    coordinate, w being the public iterate.
    """

    def __init__(self, data: Bounded, steps: Steps, law: NoiseLaw) -> None:
        self.steps, self.law = steps, law
        self.width = data.rows.shape[1]
        self.free = self.width - (1 if steps.fit_intercept else 0)
        self.places = self.free if steps.sparsity is None else min(steps.sparsity, self.free)
        self.small = data.compiled() if data.rows.shape[0] * self.width <= SMALL else None
        self._data = data
        # A MeanGradient writes to its own buffers. A call takes one from this list, so that no two threads share one.
        self._idle = [] if self.small is not None else [self._mean_gradient()]

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit, with all noisy gradients and iterates if asked for."""
        # A subclass of Generator may draw in its own way, which compiled code would ignore.
        if self.small is not None and type(rng) is np.random.Generator:
            return self._compiled(rng, trace)
        return self._step_by_step(rng, trace)

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history)."""
        return self(rng, trace=every > 0).fit(every)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records at the result, and at the iterates that were kept; NOT private."""
        gradient = self._mean_gradient()
        objectives = [gradient.objective(support, values) for _, support, values in history.get("iterates", [])]
        return {"objective": gradient.objective(np.arange(self.width), weights), "objectives": objectives}

    def _mean_gradient(self) -> MeanGradient:
        data = self._data.expanded()
        return MeanGradient(data.rows, data.y, data.loss, data.margin_bound, data.caps)

    def schedule(self) -> Any:
        """The steps as kernels/threshold.py takes them."""
        from dptoolkit.kernels.threshold import Schedule

        s = self.steps
        return Schedule(s.steps, s.step_size, *self.law.arguments, self.free, self.places, s.accumulate)

    def _compiled(self, rng: np.random.Generator, trace: bool) -> Trace:
        from dptoolkit.kernels.threshold import iht_fit

        steps, width = self.steps.steps, self.width
        w, support, step, scales = np.empty(width), np.empty(width, np.int64), np.empty(width), np.empty(steps)
        releases, iterates = np.empty((2, steps if trace else 0, width))
        schedule, none_drawn = self.schedule(), np.empty((0, 0))
        with exclusive(rng):
            iht_fit(rng, none_drawn, self.small, schedule, w, support, step, scales, releases, iterates)
        history: dict[str, Any] = {"noise_scale": scales.tolist()}
        return Trace(w, history, releases, iterates) if trace else Trace(w, history)

    def trials(
        self, other: IhtRun, rng: np.random.Generator, place: Any, first: int, bits: NDArray[Any], trace: bool
    ) -> Trials | None:
        """Trials first, first + 1, ... on these data (bit 1) or the other's, each from its own place of the stream.

        ``place`` is the memory of ``rng`` (audit.streams.place). Returns None if the data are not small.
        """
        if self.small is None or other.small is None:
            return None
        from dptoolkit.kernels.threshold import iht_trials

        weights = np.empty((len(bits), self.width))
        size = (len(bits), self.steps.steps, self.width) if trace else (0, 0, 0)
        releases, iterates = np.empty(size), np.empty(size)
        arguments = np.ascontiguousarray(bits, np.int8), self.small, other.small, self.schedule()
        with exclusive(rng):
            iht_trials(rng, *place, first, *arguments, weights, releases, iterates)
        return Trials(weights, releases, iterates) if trace else Trials(weights)

    def fits(self, rng: Generators, trace: bool = False) -> Trials:
        """See ``ManyRuns``; each fit is on its own matrix of small rows."""
        from dptoolkit.kernels.threshold import iht_fits

        assert self.small is not None
        runs, size = len(rng), (len(rng), self.steps.steps, self.width)
        normals = rng.standard_normal(size) if self.law.scale > 0 else np.empty((runs, 0, 0))
        weights, kept = np.empty((runs, self.width)), np.empty((2, *(size if trace else (0, 0, 0))))
        # All normals are drawn, so this Generator is not asked for any.
        resting = np.random.default_rng(0)
        iht_fits(resting, normals, self.small, self.schedule(), weights, *kept)
        return Trials(weights, *kept) if trace else Trials(weights)

    def relabelled(self, labels: Array) -> Array:
        """The weights without noise for each row of ``labels``, which take the place of the records'."""
        if self.small is None or len(labels) == 1:
            runs = (IhtRun(replace(self._data, y=y), self.steps, constant(0.0)) for y in labels)
            return np.array([run.fit(np.random.default_rng(0))[0] for run in runs])
        from dptoolkit.kernels.threshold import iht_relabelled

        weights, schedule = np.empty((len(labels), self.width)), self.schedule()
        nonzero = self._data.nonzero()
        iht_relabelled(np.random.default_rng(0), self.small, np.ascontiguousarray(labels[:, nonzero]),
                       schedule._replace(scale=0.0), weights)  # fmt: skip
        return weights

    def _step_by_step(self, rng: np.random.Generator, trace: bool) -> Trace:
        """The iteration on weights kept as (support, values)."""
        try:
            gradient = self._idle.pop()
        except IndexError:
            gradient = self._mean_gradient()
        path = self._path(trace)
        point = next(path)
        try:
            for _ in progress.steps(self.steps.steps):
                point = path.send(gradient.noisy(*point, rng))
        except StopIteration as end:
            trace_of_run: Trace = end.value
        self._idle.append(gradient)
        return trace_of_run

    @property
    def shared(self) -> Rows | None:
        """The rows whose passes this run can share with others; None for small data, which one compiled call reads."""
        return None if self.small is not None or self._data.counts is not None else self._data.rows

    def fit_block(
        self, runs: Sequence[IhtRun], rngs: Sequence[np.random.Generator], every: int = 0
    ) -> list[tuple[Array, dict[str, Any]]]:
        """What ``fit`` of each of ``runs`` returns, each with its own stream; all read the same ``shared`` rows.

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

    def _path(self, trace: bool) -> Generator[Point, Array, Trace]:
        """The iteration as a generator: yields a Point, is sent the noisy mean gradient there, and may overwrite it."""
        from dptoolkit.kernels.sums import add_scaled
        from dptoolkit.kernels.threshold import largest

        how, always = self.steps, np.arange(self.free, self.width)
        values: Array
        support, values = np.zeros(0, dtype=np.intp), np.zeros(0)
        total = np.zeros(self.width if how.accumulate else 0)
        scales, releases, iterates, border = [], [], [], math.inf
        for _ in range(how.steps):
            scale = self.law.at(values)
            step = yield Point(support, values, scale)
            if trace:
                releases.append(step.copy())
            if how.accumulate:
                add_scaled(total, step, -how.step_size)
                step = total
            else:
                step *= -how.step_size
                step[support] += values
            # The smallest kept value changes little from step to step: looking only at values above nine tenths of the
            # last one usually leaves a few more candidates than are needed.
            top = largest(step[: self.free], self.places, guess=0.9 * border)
            support = np.concatenate([top, always])
            values, border = step[support], float(np.abs(step[top]).min()) if self.places < self.free else math.inf
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
