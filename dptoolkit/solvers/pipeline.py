"""The whole way to a private classifier in one plan (dp_pipeline): prepare, descend, scale; nothing to tune.

    1 rows are scaled to norm 1; the mean of |x_j| of every column is released with noise
    2 columns whose mean stands out are kept and weighted with mean^-1/4; rows are scaled again, and get an intercept
    3 the largest eigenvalue of the mean of x x^T, seen along the mean direction, is released with noise
    4 dual averaging for the time that the noise of a margin allows, in as many steps as the eigenvalue asks for
    5 the scale of the weights is found by a few halvings, each by the noisy slope of the loss

All releases are Gaussian and compose exactly. What was prepared is in the result, and ``margins`` prepares new rows in
the same way. The constants are in rules.py, the reasons in docs/rules.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dptoolkit import losses
from dptoolkit._validate import LARGEST, invalid, real
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_rows, unit_rows, with_intercept
from dptoolkit.losses import Loss
from dptoolkit.solvers import outlook, rules
from dptoolkit.solvers.base import Array, FitResult, Trace, private_solver
from dptoolkit.solvers.gradient_iht import Bounded, IhtRun, Steps, sparse_iterates
from dptoolkit.solvers.noise import constant
from dptoolkit.solvers.outlook import Outlook
from dptoolkit.solvers.plan import GAUSSIAN, Plan, Release
from dptoolkit.solvers.settings import PUBLISHED, TIGHT, Settings, check_sparsity, setting

if TYPE_CHECKING:
    from dptoolkit.accounting.published import Published

# The places of the releases in the plan.
DESCENT, MEANS, EIGENVALUE, SCALE = range(4)


@dataclass(frozen=True, kw_only=True)
class DpPipeline(Settings):
    """Private sparse logistic regression without tuning: preparation, descent and scale in one plan.

    Rows are scaled to norm 1, so no bound is needed. Predict with ``solvers.margins(result, X)``, which prepares new
    rows as the fit did: ``X @ coef`` alone does not.

    Privacy
    -------
    Every record is scaled on its own to |x|_2 = 1. Releases, with their sensitivities under replace-one (zero-out):
    the column means of |x_j|, sqrt(2)/n (1/n), as two non-negative vectors of norm 1 are at most sqrt(2) apart; the
    largest eigenvalue of the mean of s s^T, where s has two entries and norm at most 1, 1/n (1/n); the mean gradient,
    each clipped to G, 2 G/n (G/n); the slope of the mean loss in the scale c with margins in [-B, B], from
    -max_t t sigmoid(-c t) to B sigmoid(c B) for one record (the larger of the two). Stages depend on earlier releases
    only, which are public. The descent's number of steps T follows from the released eigenvalue: whatever it is, T
    steps with noise sqrt(T) scale give away what one release with noise ``scale`` does, so that the plan holds one.
    Event: Composed of Gaussians. Public: n, d, all arguments, all releases.
    """

    solver: ClassVar[str] = "dp_pipeline"

    sparsity: int | None = setting("Number of features that are kept in the end; None keeps all that stand out.",
                                   default=None)  # fmt: skip
    grad_norm: float | None = setting("Bound of each record's gradient; less is biased and blurred less.", default=None)
    margin_noise: float | None = setting("Standard deviation that the noise of a margin may have.", default=None)

    @property
    def terms(self) -> Loss:
        """The row of the loss table."""
        return losses.get("logistic")

    def checked(self, n: int, d: int) -> DpPipeline:
        """See ``Settings``."""
        if self.calibration != TIGHT:
            raise invalid("calibration", PUBLISHED, f"'tight' for {self.solver}", "No published constant is known.")
        if self.sparsity is not None:
            check_sparsity(self.sparsity, d)
        cap = rules.RESIDUAL if self.grad_norm is None else self.grad_norm
        noise = rules.MARGIN_NOISE if self.margin_noise is None else self.margin_noise
        cap = real("grad_norm", cap, low=1e-6, high=1.0, repair="Rows have norm 1 and residuals are at most 1.")
        return replace(self, grad_norm=cap, margin_noise=real("margin_noise", noise, low=1e-6, high=1e6))

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The descent, the column means, the eigenvalue and the slopes."""
        mu = rules.budget_mu(self.epsilon, self.delta)
        relation = self.relation

        def gaussian(query: str, sensitivity: float, share: float, count: int = 1) -> Release:
            # One part in 1e12 more, so that rounding cannot put the sum of the stages above the budget.
            scale = sensitivity / mu * math.sqrt(count / share) * (1 + 1e-12)
            return Release(query, GAUSSIAN, sensitivity, scale, count)

        return (
            gaussian("mean gradient, all steps together", self.gradient_sensitivity(n), rules.DESCENT_SHARE),
            gaussian("column means", means_sensitivity(relation, n), rules.MEANS_SHARE),
            gaussian("largest eigenvalue", 1 / n, rules.EIGENVALUE_SHARE),
            gaussian("slope in the scale", largest_slope(relation) / n, rules.SCALE_SHARE, rules.HALVINGS),
        )

    def gradient_sensitivity(self, n: int) -> float:
        """How far one record moves the mean gradient."""
        assert self.grad_norm is not None
        return self.relation.contributions * self.grad_norm / n

    def schedule(self, plan: Plan, eigenvalue: float) -> tuple[int, float]:
        """(steps, step size) of the descent for a released bound on the eigenvalue."""
        assert self.grad_norm is not None and self.margin_noise is not None
        noise = plan.releases[DESCENT].scale
        # Rows have norm at most 1: the noise of a margin is at most that of a weight, time * scale.
        time = min(self.margin_noise / noise, LARGEST) if noise > 0 else LARGEST
        curvature = rules.residual_curvature(self.terms, self.grad_norm) * eigenvalue
        return rules.schedule(time, curvature)

    def outlook(self, plan: Plan) -> Outlook | None:
        """See ``Settings``; for rows whose eigenvalue is the largest, so that the steps are the most."""
        assert self.grad_norm is not None
        steps, step = self.schedule(plan, 1.0)
        return outlook.descent(
            time=steps * step, weight_noise=steps * step * plan.releases[DESCENT].scale, gradient=self.grad_norm,
            row_norm=1.0, unit=outlook.USEFUL_MARGIN, binary=True,
        )  # fmt: skip

    def width(self, d: int) -> int:
        """See ``Settings``; the intercept is always there."""
        return d + 1

    def model(self, weights: Array) -> tuple[Array, float | Array]:
        """See ``Settings``."""
        return weights[:-1], float(weights[-1])

    def prepare(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> PipelineRun:
        """See ``Settings``."""
        return PipelineRun(plan, unit_rows(rows), y, counts)


dp_pipeline = private_solver(DpPipeline)


# --- queries and how far one record moves them -----------------------------------------------------------


def means_sensitivity(adjacency: Adjacency, n: int) -> float:
    """How far one record moves the column means of |x| in L2: the distance of two non-negative unit vectors, over n."""
    return math.sqrt(adjacency.contributions) / n


def column_means(rows: Rows, share: Array) -> Array:
    """sum_i share_i |x_i|: the weighted mean of the absolute entries of each column."""
    if not rows.is_sparse:
        return np.asarray(share @ np.abs(rows.matrix))
    matrix = rows.matrix
    sizes = np.abs(matrix.data) * np.repeat(share, np.diff(matrix.indptr))
    return np.asarray(np.bincount(matrix.indices, sizes, minlength=matrix.shape[1]), dtype=np.float64)


def plane_eigenvalue(rows: Rows, direction: Array, share: Array) -> float:
    """The largest eigenvalue of the mean of s s^T for s = (<|x|, direction>, intercept's entry): two by two, exact.

    ``rows`` end with the intercept column, ``direction`` is a public unit vector over the others. It is no more than
    the largest eigenvalue of the mean of |x| |x|^T, and near it where the direction is that of the mean row.

    Privacy
    -------
    |s| <= |x| <= 1, and the largest eigenvalue of a mean of s s^T moves by at most 1/n when one s is replaced or left
    out. Nothing is iterated, so no tolerance has to be charged.
    """
    along = abs(rows.matrix) @ np.append(direction, 0.0)
    level = rows.matrix[:, [-1]]
    last = np.asarray(level.toarray() if rows.is_sparse else level).ravel()
    first, mixed, second = (float(share @ entry) for entry in (along * along, along * last, last * last))
    return (first + second) / 2 + math.hypot((first - second) / 2, mixed)


def slope_range(adjacency: Adjacency, scale: float) -> float:
    """How far one record moves the sum of -t sigmoid(-c t), t being its signed margin in [-B, B] and c ``scale``.

    The slope lies between -(the maximum of t sigmoid(-c t)) and B sigmoid(c B).
    """
    bound = rules.LARGEST_MARGIN
    # t sigmoid(-c t) is largest where c t = 1.278..., with 0.27846.../c; bounded from above.
    best = 0.2784646 / scale if scale * bound >= 1.2785 else bound * float(expit(-scale * bound)) * (1 + 1e-12)
    worst = bound * float(expit(scale * bound)) * (1 + 1e-12)
    return best + worst if adjacency is Adjacency.REPLACE_ONE else max(best, worst)


def largest_slope(adjacency: Adjacency) -> float:
    """``slope_range`` at the worst of all scales that may be tried: the middles of 1, 2, 4, ... equal parts."""
    parts = 2**rules.HALVINGS
    logs = (rules.LARGEST_LOG_SCALE * (2 * i / parts - 1) for i in range(1, parts))
    return max(slope_range(adjacency, math.exp(log)) for log in logs)


def slope(margins: Array, scale: float, share: Array) -> float:
    """The derivative of the mean logistic loss of ``scale`` times signed margins, which are clipped to [-B, B]."""
    t = np.clip(margins, -rules.LARGEST_MARGIN, rules.LARGEST_MARGIN)
    return float(share @ (-t * expit(-scale * t)))


# --- preparation ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preparation:
    """What was released about the columns, and so how a row is prepared.

    ``means`` are the noisy means of |x_j|, ``weights`` those of the features, 0 for those that are not kept, ``level``
    is the intercept's entry.
    """

    means: Array
    weights: Array
    level: float

    @classmethod
    def of(cls, means: Array, noise: float) -> Preparation:
        """Features whose noisy mean stands out, weighted."""
        columns = means > rules.CUT * noise
        weights = np.zeros(len(means))
        weights[columns] = means[columns] ** -rules.TEMPERING
        return cls(means, weights, rules.LEVEL)

    @property
    def columns(self) -> NDArray[np.intp]:
        """The features that are kept."""
        return np.flatnonzero(self.weights)

    @property
    def direction(self) -> Array:
        """Where prepared rows point on average: a unit vector over the kept features."""
        size = self.means[self.columns] ** rules.MEAN_POWER
        norm = float(np.linalg.norm(size))
        return size / norm if norm > 0 else size

    @property
    def length(self) -> float:
        """The norm of a prepared row without its intercept."""
        return math.sqrt(1 - self.level * self.level)

    def features(self, rows: Rows) -> Rows:
        """Kept features, weighted, each row scaled to ``length``."""
        columns = self.columns
        matrix = rows.matrix[:, columns]
        if rows.is_sparse:
            matrix.sort_indices()
            matrix.data = matrix.data * self.weights[columns][matrix.indices]
        else:
            matrix = matrix * self.weights[columns]
        return unit_rows(Rows(matrix, rows.is_sparse), self.length)

    def __call__(self, rows: Rows) -> Rows:
        """Prepared rows: of norm at most 1, the intercept last."""
        return with_intercept(self.features(rows), self.level)


def margins(result: FitResult, X: Any, n_features: int | None = None) -> Array:
    """The margins of new rows under a fitted model, positive for label 1; rows are prepared as the fit's were.

    Privacy
    -------
    A model is public: what is computed from it and from other rows gives nothing away about the rows of the fit.
    """
    rows = check_rows(X, n_features)
    if rows.shape[1] != result.coef.shape[0]:
        raise invalid("X.shape", rows.shape, f"(rows, {result.coef.shape[0]})", "n_features adds columns of zeros.")
    prepared = result.history.get("preparation")
    if prepared is None:
        return np.asarray(rows.matrix @ result.coef + result.intercept)
    columns = prepared.columns
    features = prepared.features(Rows(unit_rows(rows).matrix, rows.is_sparse))
    return np.asarray(features.matrix @ result.coef[columns] + result.intercept)


# --- the run ----------------------------------------------------------------------------------------------


class PipelineRun:
    """The stages on rows of norm 1, in order; each call is a fit.

    Privacy
    -------
    A call releases what the plan of ``dp_pipeline`` lists, each with the planned noise.
    """

    def __init__(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> None:
        self.plan, self.rows, self.y, self.counts = plan, rows, y, counts
        times = np.ones(rows.shape[0]) if counts is None else np.asarray(counts, dtype=float)
        self.share = times / plan.n

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit; its releases are the column means, the eigenvalue, the gradients and the slopes, one a row."""
        plan, settings = self.plan, self.plan.settings
        noise = [release.scale for release in plan.releases]
        means = column_means(self.rows, self.share) + noise[MEANS] * rng.standard_normal(plan.d)
        prepared = Preparation.of(means, noise[MEANS])
        rows = prepared(self.rows)
        seen = plane_eigenvalue(rows, prepared.direction, self.share) + noise[EIGENVALUE] * rng.standard_normal()
        bound = min(max(seen + 2 * noise[EIGENVALUE], prepared.level**2), 1.0)
        steps, step = settings.schedule(plan, bound)
        caps = np.full(rows.shape[0], settings.grad_norm)
        data = Bounded(rows, self.y, settings.terms, math.inf, caps, self.counts)
        how = Steps(steps, step, settings.sparsity, True, accumulate=True)
        descent = IhtRun(data, how, constant(noise[DESCENT] * math.sqrt(steps)))(rng, trace)
        slopes, scale = self._scaled(rows, descent.weights, rng)
        history = descent.history | {
            "preparation": prepared, "eigenvalue": seen, "steps": steps, "step_size": step, "slopes": slopes,
            "scale": scale,
        }  # fmt: skip
        weights = _unfold(plan.d, prepared, descent.weights[None, :])[0] * scale
        # The intercept's weight becomes the number that is added to every margin.
        weights[-1] *= prepared.level
        if not trace:
            return Trace(weights, history)
        assert descent.releases is not None and descent.iterates is not None
        releases = [np.append(means, 0.0), _row(plan.d, seen), *_unfold(plan.d, prepared, descent.releases),
                    *(_row(plan.d, found) for found in slopes)]  # fmt: skip
        return Trace(weights, history, np.array(releases), _unfold(plan.d, prepared, descent.iterates))

    def _scaled(self, rows: Rows, w: Array, rng: np.random.Generator) -> tuple[list[float], float]:
        """(noisy slopes, scale): each slope says in which half of the interval of logarithms the scale lies."""
        release = self.plan.releases[SCALE]
        signed = (2 * self.y - 1) * np.asarray(rows.matrix @ w)
        low, high, slopes = -rules.LARGEST_LOG_SCALE, rules.LARGEST_LOG_SCALE, []
        for _ in range(rules.HALVINGS):
            scale = math.exp((low + high) / 2)
            # The noise shrinks with the sensitivity at the trial scale, which is public: the event stays.
            share = slope_range(self.plan.adjacency, scale) / self.plan.n / release.sensitivity
            slopes.append(slope(signed, scale, self.share) + share * release.scale * rng.standard_normal())
            low, high = (low, (low + high) / 2) if slopes[-1] > 0 else ((low + high) / 2, high)
        return slopes, math.exp((low + high) / 2)

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history)."""
        run = self(rng, trace=every > 0)
        if every == 0:
            return run.weights, run.history
        assert run.iterates is not None
        return run.weights, run.history | {"iterates": sparse_iterates(run.iterates, every)}

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The mean loss of the fit's own records; NOT private."""
        prepared = history["preparation"]
        values = np.append(weights[:-1][prepared.columns], weights[-1] / prepared.level)
        margin = np.asarray(prepared(self.rows).matrix @ values)
        which = np.arange(len(margin)) if self.counts is None else np.repeat(np.arange(len(margin)), self.counts)
        return {"objective": self.plan.settings.terms.objective(margin[which], self.y[which])}


def _unfold(d: int, prepared: Preparation, values: Array) -> Array:
    """Vectors over the kept features and the intercept as vectors over all features and the intercept."""
    out = np.zeros((len(values), d + 1))
    out[:, np.append(prepared.columns, d)] = values
    return out


def _row(d: int, value: float) -> Array:
    out = np.zeros(d + 1)
    out[0] = value
    return out
