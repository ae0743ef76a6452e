"""dp_pipeline: from raw rows to a private model in one plan, which prepares, descends and scales; nothing to tune.

    1 rows are scaled to norm 1; the mean of |x_j| of every column is released with noise
    2 columns whose mean stands out are kept and weighted with mean^-1/4; rows are scaled again, and get an intercept
    3 the largest eigenvalue of the mean of x x^T, seen along the mean direction, is released with noise
    4 dual averaging for the time that the noise of a margin allows, in as many steps as the eigenvalue asks for
    5 the scale of the weights is found by a few halvings, each by the noisy slope of the loss

For regression, rows are clipped to a public norm instead, features are not weighted, and there is no last stage. All
releases are Gaussian and compose exactly. The preparation is in the result, and ``margins`` prepares new rows in the
same way. The constants are in rules.py, the reasons in docs/rules.md.

Long because the settings, the plan and the run of all stages are read together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import LARGEST, invalid, real
from dptoolkit.data import Rows, product
from dptoolkit.data.blocks import CheckedBlocks
from dptoolkit.data.column_bounds import ColumnBounds
from dptoolkit.losses import Loss
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers._pipeline_blocks import BlockedStages
from dptoolkit.solvers._pipeline_moments import MomentsStages
from dptoolkit.solvers._pipeline_secure import SecureStages, StageNames, secured
from dptoolkit.solvers._pipeline_stages import (
    COLUMN_MEANS,
    DESCENT,
    EIGENVALUE,
    LARGEST_EIGENVALUE,
    MEANS,
    MIDDLE,
    MOMENTS,
    SCALE,
    SLOPE,
    Preparation,
    Units,
    any_slope_ends,
    class_slopes_of,
    column_means,
    largest_slope,
    mean_slope,
    means_sensitivity,
    plane_eigenvalue,
    scale_table,
    slopes_of,
    stands_out,
)
from dptoolkit.solvers._pipeline_tables import HISTOGRAMS, MEAN_ROW, TableRun, TableStages, stage_scale, table_stages
from dptoolkit.solvers.engine.bounds import GradientBounds, constant
from dptoolkit.solvers.engine.descent import SMALL, ClippedRecords, IhtRun, Steps
from dptoolkit.solvers.engine.preconditioned import moments_sensitivity
from dptoolkit.solvers.engine.softmax import SoftmaxRun
from dptoolkit.solvers.frame import outlook, rules
from dptoolkit.solvers.frame.fit import private_solver
from dptoolkit.solvers.frame.outlook import Outlook
from dptoolkit.solvers.frame.plan import GAUSSIAN, Plan, Release
from dptoolkit.solvers.frame.run import Run, Trace, Trials, group_fits, one_after_another
from dptoolkit.solvers.frame.secure import secure_stream
from dptoolkit.solvers.frame.settings import (
    PUBLISHED,
    TIGHT,
    Resolved,
    Settings,
    check_classes_setting,
    check_sparsity,
    class_labels,
    public_bound,
    setting,
)
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published

LOSSES = ("logistic", "softmax", "squared")


@dataclass(frozen=True, kw_only=True)
class DpPipeline(Settings):
    """Private sparse regression and classification without tuning: preparation, descent and scale in one plan.

    For classification rows are scaled to norm 1, so no bound is needed. Predict with ``solvers.margins(result, X)``,
    which prepares new rows as the fit did: ``X @ coef`` alone does not. For regression (``loss="squared"``) rows and
    labels have public bounds, and residuals are clipped, which makes it a Huber loss. The columns of a table, in any
    units, are prepared by their public ``bounds``.

    Privacy
    -------
    Every record is scaled on its own to |x|_2 = 1; for regression to |x|_2 <= 1 and |y| <= 1. Releases, with their
    sensitivities under replace-one (zero-out): the column means of |x_j|, sqrt(2)/n (1/n), as two non-negative vectors
    of norm at most 1 are at most sqrt(2) apart; the largest eigenvalue of the mean of s s^T, where s has two entries
    and norm at most 1, 1/n (1/n); the mean gradient, each clipped to G, over all classes together, 2 G/n (G/n); for
    classes, the slope of the mean loss in the scale c with margins in [-B, B]: for two of them from
    -max_t t sigmoid(-c t) to B sigmoid(c B) for one record (the larger of the two), for more see
    solvers/_pipeline_stages.py. With ``bounds`` also, before these: the counts of the bins of k numeric columns,
    sqrt(2k) (sqrt(k)), as a record lies in one bin of each column whatever the bins are; the mean of rows of norm at
    most 1, 2/n (1/n), or sqrt(2)/n where all of them are non-negative. Which of these two are made is decided on n, d,
    the budget and the bounds. No bound is learnt.
    Stages depend on earlier releases only, which are public. The descent's number of steps T follows from the released
    eigenvalue: whatever it is, T steps with noise sqrt(T) scale give away what one release with noise ``scale`` does,
    so that the plan holds one. Event: Composed of Gaussians. Public: n, d, classes, all arguments, all releases.
    """

    solver: ClassVar[str] = "dp_pipeline"
    takes_blocks: ClassVar[bool] = True

    loss: str = setting(
        '"logistic" for two classes, "softmax" for labels 0, ..., classes-1, "squared" for regression.',
        default="logistic",
    )
    classes: int | None = setting("Public number of classes, for softmax; ``coef`` is (classes, d).", default=None)
    row_norm: float | None = setting(
        "Public L2 bound of a row, for regression; longer rows are scaled down. With ``bounds`` it is that of a row "
        "whose columns lie in [-1, 1], and may be left out.",
        default=None,
    )
    label_bound: float | None = setting("Public bound of |y|, for regression; larger labels are clipped.", default=None)
    sparsity: int | None = setting(
        "Number of features that are kept in the end; None keeps all features that exceed the noise.", default=None
    )
    grad_norm: float | None = setting(
        "Bound of each record's gradient, for rows of norm 1 (and labels of 1). A smaller bound adds bias and needs "
        "less noise.",
        default=None,
    )
    margin_noise: float | None = setting(
        "Accepted standard deviation of the noise of a margin; for regression, divided by label_bound.", default=None
    )
    bounds: ColumnBounds | tuple | None = setting(
        "Public bounds of the columns of a table, in their units: (lower, upper), each one number or one per column. "
        "With them columns in any units are prepared by private ranks and centring. Bounds up to a hundred times too "
        "wide cost little; beyond that the error rises. None uses rows as they are.",
        default=None,
    )
    numeric: tuple[int, ...] | None = setting(
        "The columns, by place, that become ranks; None for all whose bounds are not exactly 0 and 1. With () no "
        "column does, which is better for the pixels of an image.",
        default=None,
    )

    @property
    def loss_row(self) -> Loss:
        """The row of the loss table."""
        return losses.get(self.loss, LOSSES)

    @property
    def units(self) -> Units:
        """The numbers that rows and labels are divided by."""
        return Units(self.row_norm, self.label_bound)

    @property
    def class_count(self) -> int | None:
        """See ``Settings``."""
        return self.classes

    @property
    def reads_single(self) -> bool:
        """See ``Settings``; a table is read in blocks, as doubles."""
        return self.bounds is not None

    @property
    def reads_in_place(self) -> bool:
        """See ``Settings``; a table's prepared rows are an array of the fit's own."""
        return self.bounds is not None

    def resolved(self, n: int, d: int) -> ResolvedPipeline:
        """See ``Settings``."""
        if self.calibration != TIGHT:
            raise invalid("calibration", PUBLISHED, f"'tight' for {self.solver}", "No published constant is known.")
        if self.sparsity is not None:
            check_sparsity(self.sparsity, d)
        check_classes_setting(self.loss_row, self.classes)
        self._check_units()
        usual, largest, noise = rules.pipeline_bounds(self.loss_row, self.classes or 2, self.bounds is not None)
        cap = real("grad_norm", usual if self.grad_norm is None else self.grad_norm, low=1e-6, high=largest,
                   repair="Rows have norm 1, and no residual is larger.")  # fmt: skip
        noise = real("margin_noise", noise if self.margin_noise is None else self.margin_noise, low=1e-6, high=1e6)
        own = self._checked_bounds(d)
        return self.settled(ResolvedPipeline, grad_norm=cap, margin_noise=noise, **own)

    def _checked_bounds(self, d: int) -> dict[str, Any]:
        """The bounds of the columns, checked; nothing without them."""
        if self.bounds is None:
            if self.numeric is not None:
                raise invalid("numeric", self.numeric, "left out without bounds", "Ranks need bounds of the columns.")
            return {}
        bounds = ColumnBounds.of(self.bounds, d, self.numeric)
        own: dict[str, Any] = {"bounds": bounds, "numeric": None if self.numeric is None else bounds.numeric}
        if self.loss_row.task == losses.REGRESSION and self.row_norm is None:
            own["row_norm"] = rules.table_norm(d)
        return own

    def _check_units(self) -> None:
        """Numbers need both bounds; a classifier has no use for them."""
        meanings = {"row_norm": "the largest L2 norm of a row", "label_bound": "the largest |label|"}
        for name, meaning in meanings.items():
            if name == "row_norm" and self.row_norm is None and self.bounds is not None:
                continue
            if self.loss_row.task == losses.REGRESSION:
                public_bound(name, getattr(self, name), meaning)
            elif getattr(self, name) is not None:
                repair = "Rows are scaled to norm 1 and labels are classes: leave it out."
                raise invalid(name, getattr(self, name), f"None for loss {self.loss!r}", repair)

    def to_dict(self) -> dict[str, Any]:
        """See ``Settings``; without bounds, what concerns tables is left out, so that it changes no other plan."""
        own = super().to_dict()
        for name in ("bounds", "numeric"):
            if own[name] is None:
                del own[name]
        if isinstance(self.bounds, ColumnBounds):
            own["bounds"] = self.bounds.to_list()
        return own

    def labels(self, y: Any, n: int, label_values: Any = None) -> Array:
        """See ``Settings``; one-hot for softmax."""
        if self.loss_row.task == losses.MULTICLASS:
            return class_labels(y, n, self.classes, label_values)
        return super().labels(y, n, label_values)


@dataclass(frozen=True, kw_only=True)
class ResolvedPipeline(Resolved, DpPipeline):
    """The settings of ``dp_pipeline`` in a plan."""

    grad_norm: float
    margin_noise: float
    bounds: ColumnBounds | None = setting("See ``DpPipeline``.", default=None)

    @property
    def has_intercept(self) -> bool:
        """See ``Resolved``; there is always one."""
        return True

    @property
    def label_limit(self) -> float | None:
        """See ``Resolved``."""
        return self.label_bound

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The descent, the column means, the eigenvalue and, for classes, the slopes; then those of a table."""
        mu, table = rules.budget_mu(self.epsilon, self.delta), self.table_stages(n, d)

        def gaussian(query: str, sensitivity: float, share: float, count: int = 1) -> Release:
            return Release(query, GAUSSIAN, sensitivity, stage_scale(sensitivity, mu, share * table.rest, count), count)

        numbers = self.loss_row.task == losses.REGRESSION
        descent = rules.DESCENT_SHARE + (rules.SCALE_SHARE if numbers else 0.0)
        stages: tuple[Release, ...] = (
            gaussian("mean gradient, all steps together", self.gradient_sensitivity(n), descent),
            gaussian(COLUMN_MEANS, means_sensitivity(self.adjacency, n), rules.MEANS_SHARE),
            gaussian(LARGEST_EIGENVALUE, 1 / n, rules.EIGENVALUE_SHARE),
        )
        moments = gaussian(MOMENTS, moments_sensitivity(self.adjacency, n), rules.EIGENVALUE_SHARE)
        if self._is_worth_moments(d, stages[DESCENT].scale, moments.scale):
            stages = (*stages[:EIGENVALUE], moments)
        if numbers:
            return (*stages, *table.releases)
        slopes = largest_slope(self.adjacency, self.classes) / n
        scale = gaussian(SLOPE, slopes, rules.SCALE_SHARE, rules.HALVINGS)
        return (*stages, scale, *table.releases)

    def table_stages(self, n: int, d: int) -> TableStages:
        """What is released for the preparation of a table; nothing without bounds."""
        if self.bounds is None:
            return TableStages()
        return table_stages(self.bounds, n, d, rules.budget_mu(self.epsilon, self.delta), self.adjacency)

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        """See ``Resolved``; the stages of a table that are left out, and how the descent is done."""
        if self.bounds is None:
            return ()
        return (*self.table_stages(plan.n, plan.d).remarks, self._route(plan))

    def _route(self, plan: Plan) -> str:
        """Which descent a table gets, and why, in words."""
        curvature = rules.residual_curvature(self.loss_row, self.grad_norm)
        most = rules.SLACK * curvature * self._time(plan.releases[DESCENT].scale)
        if has_moments(plan):
            return (
                f"descent along released second moments, {self.moments_schedule(plan)[0]} passes: with n = {plan.n:,} "
                f"records of {plan.d} columns at this budget, plain descent may need {most:,.0f} passes"
            )
        if self.sparsity is not None:
            return "plain descent: sparsity keeps some features only, which second moments of all features do not help"
        return (
            f"plain descent, at most {min(math.ceil(most), rules.MOST):,} passes: n = {plan.n:,} records of {plan.d} "
            "columns at this budget are too few for their second moments to be worth their noise"
        )

    def _time(self, noise: float) -> float:
        """The total time of the descent with this noise of all steps together."""
        # Rows have norm at most 1: the noise of a margin is at most that of a weight, time * scale.
        return min(self.margin_noise / noise, LARGEST) if noise > 0 else LARGEST

    def _is_worth_moments(self, d: int, noise: float, moments_noise: float) -> bool:
        """Whether a table's second moments are released; see ``rules.is_preconditioned``."""
        if self.bounds is None or self.sparsity is not None:
            return False
        curvature = rules.residual_curvature(self.loss_row, self.grad_norm)
        return rules.is_preconditioned(self._time(noise), curvature, d + 1, moments_noise)

    def moments_schedule(self, plan: Plan) -> tuple[int, float]:
        """(steps, ridge) of the descent along second moments."""
        time = self._time(plan.releases[DESCENT].scale)
        curvature = rules.residual_curvature(self.loss_row, self.grad_norm)
        steps = rules.preconditioned_steps(time, curvature, plan.d + 1, plan.releases[EIGENVALUE].scale)
        return steps, steps / (rules.SLACK * time)

    def residual_caps(self, rows: Rows) -> Array:
        """What residuals of prepared rows are clipped to, so that each record's gradient is at most ``grad_norm``."""
        if self.loss_row.task == losses.REGRESSION:
            # Rows may be shorter than 1.
            return rows.caps(self.grad_norm)
        return np.full(rows.shape[0], self.grad_norm)

    def gradient_sensitivity(self, n: int) -> float:
        """How far one record moves the mean gradient."""
        return GradientBounds(self.loss_row, row_norm=1.0, grad_norm=self.grad_norm).sensitivity(self.adjacency, n)

    def schedule(self, plan: Plan, eigenvalue: float) -> tuple[int, float]:
        """(steps, step size) of the descent for a released bound on the eigenvalue."""
        curvature = rules.residual_curvature(self.loss_row, self.grad_norm) * eigenvalue
        return rules.schedule(self._time(plan.releases[DESCENT].scale), curvature)

    def is_sure_of_steps(self, plan: Plan) -> bool:
        """See ``Resolved``; where even the largest eigenvalue asks for the fewest steps."""
        return has_moments(plan) or self.schedule(plan, 1.0)[0] == rules.FEWEST

    def outlook(self, plan: Plan) -> Outlook | None:
        """See ``Resolved``; for rows whose eigenvalue is the largest, so that the steps are the most."""
        steps, step = self.schedule(plan, 1.0)
        time = self._time(plan.releases[DESCENT].scale) if has_moments(plan) else steps * step
        unit = 1.0 if self.label_bound is None else self.label_bound
        return outlook.descent(
            time=time, weight_noise=time * plan.releases[DESCENT].scale * unit,
            gradient=self.grad_norm * unit, row_norm=1.0, label_bound=self.label_bound,
            classes=None if self.loss_row.task == losses.REGRESSION else self.classes or 2,
            remedy="A smaller margin_noise helps: leave it out for the rule's.",
        )  # fmt: skip

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``; the descent's grids hold the noise of the most steps."""
        steps = self.moments_schedule(plan)[0] if has_moments(plan) else self.schedule(plan, 1.0)[0]
        names = StageNames((COLUMN_MEANS, MEAN_ROW), HISTOGRAMS, LARGEST_EIGENVALUE, SLOPE, MOMENTS)
        return secured(plan, steps, names)

    def first_released(self, plan: Plan) -> int:
        """See ``Resolved``; a table's preparation comes first, then the column means."""
        queries = [release.query for release in plan.releases]
        return next(queries.index(query) for query in (HISTOGRAMS, MEAN_ROW, COLUMN_MEANS) if query in queries)

    def model(self, weights: Array) -> tuple[Array, float | Array]:
        """See ``Resolved``."""
        intercept = weights[..., -1]
        return weights[..., :-1], float(intercept) if intercept.ndim == 0 else intercept

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> PipelineRun | TableRun:
        """See ``Resolved``."""
        if self.bounds is not None:
            return TableRun(plan, rows, self.units.labels(y), counts, _inner_run(plan))
        return PipelineRun(plan, self.units.rows(rows), self.units.labels(y), counts)

    def bind_blocks(self, plan: Plan, blocks: CheckedBlocks) -> Run:
        """See ``Resolved``."""
        if self.bounds is not None:
            raise invalid("bounds", "given", "left out where X is in blocks", "Ranks of columns are not asked for yet.")
        return BlockedPipelineRun(plan, blocks)


dp_pipeline = private_solver(DpPipeline)


def has_moments(plan: Plan) -> bool:
    """Whether a plan releases second moments, along which it descends, in place of their largest eigenvalue."""
    return plan.releases[EIGENVALUE].query == MOMENTS


def _inner_run(plan: Plan[ResolvedPipeline]) -> Callable[..., PipelineRun]:
    """(plan, the map of a table, rows, labels, counts) -> the run of the stages that follow the map."""
    if has_moments(plan):
        return MomentsRun
    return lambda plan, table, rows, y, counts: PipelineRun(plan, table(rows), y, counts)


# --- the run ----------------------------------------------------------------------------------------------


class _Start(NamedTuple):
    """What comes before the descent; with an axis in front, of many fits that keep the same features."""

    preparation: Preparation
    rows: Rows
    eigenvalue: Array
    schedules: list[tuple[int, float]]

    def of(self, fits: Sequence[int]) -> _Start:
        """Some of many."""
        means, weights = self.preparation.means[fits], self.preparation.weights[fits]
        preparation = replace(self.preparation, means=means, weights=weights)
        return _Start(preparation, self.rows.take(fits), self.eigenvalue[fits], [self.schedules[k] for k in fits])

    def facts(self, fit: Any) -> dict[str, Any]:
        """Public facts of one fit, () where there is no axis in front."""
        means, weights = self.preparation.means[fit], self.preparation.weights[fit]
        steps, step = self.schedules[fit or 0]
        return {
            "preparation": replace(self.preparation, means=means, weights=weights),
            "eigenvalue": float(self.eigenvalue[fit]),
            "steps": steps,
            "step_size": step,
        }


class _End(NamedTuple):
    """What comes of the descent and after it; ``descent`` is its Trace, or its Trials."""

    weights: Array
    descent: Any
    slopes: Array
    scale: Array

    def facts(self, fit: Any) -> dict[str, Any]:
        """Public facts of one fit, () where there is no axis in front."""
        return {"slopes": self.slopes[fit].tolist(), "scale": float(self.scale[fit])}


class PipelineRun(Run):
    """The stages on rows of norm at most 1, in order; each call is a fit.

    Every stage is written for arrays with no axis in front, a user's fit, or with one, many fits.

    Privacy
    -------
    A call releases what the plan of ``dp_pipeline`` lists, each with the planned noise.
    """

    def __init__(self, plan: Plan[ResolvedPipeline], rows: Rows, y: Array, counts: Any = None) -> None:
        self.plan, self.rows, self.y, self.counts = plan, rows, y, counts
        times = np.ones(rows.shape[0]) if counts is None else np.asarray(counts, dtype=float)
        self.share, self._times = times / plan.n, times
        self.secure = None if plan.secure is None else SecureStages(plan)
        self.means = column_means(rows, self.share) if self.secure is None else np.zeros(0)
        self.noise = [release.scale for release in plan.releases]
        self._entries = rows.shape[0] * (plan.d + 1)
        width, most = (plan.settings.classes or 1) * (plan.d + 1), plan.settings.schedule(plan, 1.0)[0]
        self.size = 8 * (self._entries + most * width)

    def one(self, rng: np.random.Generator, trace: bool) -> Trace:
        """See ``Run``; without an axis in front, so that rows may be sparse or large."""
        if self.secure is None:
            return self._one(rng, trace)
        with secure_stream(rng) as stream:
            return self._one(stream, trace)

    def _one(self, rng: Any, trace: bool) -> Trace:
        start = self._start(self._noisy_means(rng, ()), rng)
        end = self._end(start, rng, trace)
        history = end.descent.history | start.facts(()) | end.facts(())
        return Trace(end.weights, history, *(self._kept(start, end) if trace else ()))

    def at_once(self, trace: bool) -> bool:
        """See ``Run``; not on sparse or large rows, nor where traces differ in length."""
        differ = trace and not self.plan.settings.is_sure_of_steps(self.plan)
        return not (self.rows.is_sparse or self._entries > SMALL or differ or self.secure is not None)

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; the releases are the column means, the eigenvalue, the gradients and the slopes, one per row.

        Fits that keep the same features are prepared together, and go on together if they take the same steps.
        """
        if not self.at_once(trace):
            return one_after_another(self, streams, trace)
        means = self._noisy_means(streams, (len(streams),))

        def same_features(fits: list[int], rng: Generators) -> Trials:
            start = self._start(means[fits], rng)

            def same_steps(fits: list[int], rng: Generators) -> Trials:
                own = start.of(fits)
                end = self._end(own, rng, trace)

                def history(i: int) -> dict[str, Any]:
                    facts: dict[str, Any] = end.descent.history(i) | own.facts(i) | end.facts(i)
                    return facts

                return Trials(end.weights, *(self._kept(own, end) if trace else (None, None)), history=history)

            return group_fits(start.schedules, rng, same_steps)

        return group_fits([row.tobytes() for row in stands_out(means, self.noise[MEANS])], streams, same_features)

    def _noisy_means(self, rng: Any, many: tuple[int, ...]) -> Array:
        if self.secure is not None:
            values = self.rows.matrix.data if self.rows.is_sparse else self.rows.matrix
            return self.secure.row_sum(COLUMN_MEANS, [(self.rows.with_values(np.abs(values)), self._times)], rng)
        return np.asarray(self._exact_means() + self.noise[MEANS] * rng.standard_normal((*many, self.plan.d)))

    def _start(self, means: Array, rng: Any) -> _Start:
        """Prepared rows, the noisy eigenvalue and (steps, step size) of the descent, from noisy column means."""
        settings, noise, eigenvalue = self.plan.settings, self.noise[EIGENVALUE], np.zeros(())
        preparation = Preparation.of(means, self.noise[MEANS], settings.units)
        rows = self._rows_by(preparation)
        if self.secure is None:
            exact = self._eigenvalue(rows, preparation)
            eigenvalue = exact + noise * rng.standard_normal(exact.shape)
        else:
            direction = preparation.direction
            eigenvalue = np.asarray(self.secure.eigenvalue(LARGEST_EIGENVALUE, rows, direction, self._times, rng))
        bounds = np.clip(eigenvalue + 2 * noise, preparation.level**2, 1.0)
        schedules = [settings.schedule(self.plan, bound) for bound in bounds.ravel().tolist()]
        return _Start(preparation, rows, np.asarray(eigenvalue), schedules)

    def _exact_means(self) -> Array:
        return self.means

    def _rows_by(self, preparation: Preparation) -> Any:
        """The rows of all later stages."""
        return preparation(self.rows)

    def _eigenvalue(self, rows: Any, preparation: Preparation) -> Array:
        return plane_eigenvalue(rows, preparation.direction, self.share)

    def _margins(self, rows: Any, w: Array) -> Any:
        """The margins of prepared rows; with an axis for the classes, of one where there are two."""
        return product(rows.matrix, w[..., None] if self.plan.settings.classes is None else w.swapaxes(-1, -2))

    def _end(self, start: _Start, rng: Any, trace: bool) -> _End:
        """The descent, in which all fits share one schedule, and the scale."""
        run = self._descent(start.rows, *start.schedules[0])
        descent: Any = run.fits(rng, trace) if isinstance(rng, Generators) else run(rng, trace)
        slopes, scale = self._scaled(start.rows, descent.weights, rng)
        weights = start.preparation.model(descent.weights)
        return _End(weights * scale.reshape(*scale.shape, *[1] * (weights.ndim - scale.ndim)), descent, slopes, scale)

    def step_noise(self, steps: int) -> float:
        """The noise of each of so many steps of the descent."""
        return self.noise[DESCENT] * math.sqrt(steps)

    def _descent(self, rows: Rows, steps: int, step: float) -> IhtRun | SoftmaxRun:
        """The descent on prepared rows, of which each record's gradient is at most ``grad_norm``."""
        settings, noise = self.plan.settings, self.step_noise(steps)
        iteration = Steps(steps, step, settings.sparsity, True, accumulate=True)
        if self.secure is not None:
            return self.secure.descent(rows, self.y, iteration, self.counts)
        caps = settings.residual_caps(rows)
        if settings.loss_row.task == losses.MULTICLASS:
            return SoftmaxRun(rows, self.y, caps, iteration, noise, self.counts)
        return IhtRun(
            ClippedRecords(rows, self.y, settings.loss_row, math.inf, caps, self.counts), iteration, constant(noise)
        )

    def _scaled(self, rows: Rows, w: Array, rng: Any) -> tuple[Array, Array]:
        """(noisy slopes, scale): each slope says in which half of the interval of logarithms the scale lies."""
        settings, classes = self.plan.settings, self.plan.settings.classes
        many = w.shape[: -1 if classes is None else -2]
        if settings.loss_row.task == losses.REGRESSION:
            return np.zeros((*many, 0)), np.ones(many)
        release, slopes = self.plan.releases[SCALE], []
        margins = self._margins(rows, w)
        scales, ranges = scale_table(self.plan.adjacency, classes)
        place, move = np.full(many, MIDDLE), MIDDLE
        for _ in range(rules.HALVINGS):
            # The noise shrinks with the sensitivity at the trial scale, which is public: the event stays.
            share = ranges[place] / self.plan.n / release.sensitivity
            slopes.append(self._noisy_slope(margins, scales[place], share * release.scale, many, rng))
            move //= 2
            place = place + np.where(slopes[-1] > 0, -move, move)
        return np.stack(slopes, axis=-1), np.asarray(scales[place])

    def _noisy_slope(self, margins: Any, scale: Array, noise: Array, many: tuple[int, ...], rng: Any) -> Array:
        if self.secure is None:
            return np.asarray(self._slope(margins, scale) + noise * rng.standard_normal(many))
        classes = self.plan.settings.classes
        if classes is None:
            values = slopes_of((2 * self.y - 1) * margins[..., 0], scale)
        else:
            values = class_slopes_of(margins, self.y, scale)
        ends = any_slope_ends(float(scale), classes)
        return self.secure.slope(SLOPE, values, ends, float(noise), self._times, rng)

    def _slope(self, margins: Any, scale: Array) -> Array:
        return mean_slope(margins, self.y, scale, self.share, self.plan.settings.classes)

    def _kept(self, start: _Start, end: _End) -> tuple[Array, Array]:
        """(releases, iterates) of a trace."""
        preparation, width = start.preparation, (self.plan.settings.classes or 1) * (self.plan.d + 1)
        releases = [
            _rows(preparation.means[..., None, :], width),
            _rows(start.eigenvalue[..., None, None], width),
            self._unfold(preparation, end.descent.releases),
            _rows(end.slopes[..., None], width),
        ]
        return np.concatenate(releases, axis=-2), self._unfold(preparation, end.descent.iterates)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The mean loss of the fit's own records, numbers in units of their bound; NOT private."""
        settings = self.plan.settings
        margins = history["preparation"].margins(self.rows, *settings.model(weights)) / (settings.label_bound or 1.0)
        which = np.arange(len(margins)) if self.counts is None else np.repeat(np.arange(len(margins)), self.counts)
        return {"objective": settings.loss_row.objective(margins[which], self.y[which])}

    def _unfold(self, preparation: Preparation, vectors: Array) -> Array:
        """Vectors over the kept features and the intercept, of each class, as vectors over all features and it."""
        classes, many = self.plan.settings.classes or 1, vectors.shape[:-1]
        out = np.zeros((*many, classes, self.plan.d + 1))
        out[..., np.append(preparation.kept, self.plan.d)] = vectors.reshape(*many, classes, -1)
        return out.reshape(*many, -1)


class MomentsRun(MomentsStages, PipelineRun):  # type: ignore[override]
    """The stages of a large table after its ranks and its centre, on rows in single precision; each call is a fit.

    Privacy
    -------
    A call releases what the plan of ``dp_pipeline`` lists, each with the planned noise; the second moments in place of
    the eigenvalue.
    """


class BlockedPipelineRun(BlockedStages, PipelineRun):
    """``PipelineRun`` on blocks, one fit at a time.

    Privacy
    -------
    The releases are those of ``PipelineRun``.
    """


def _rows(values: Array, width: int) -> Array:
    """These numbers at the beginning of rows of zeros."""
    out = np.zeros((*values.shape[:-1], width))
    out[..., : values.shape[-1]] = values
    return out
