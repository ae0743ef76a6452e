"""What solvers that choose vertices of an L1 ball by noisy scores share: settings, noise, runs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import magnitude, one_of, real, whole
from dptoolkit.data import Rows
from dptoolkit.losses import Loss
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers.engine.bounds import EntryBounds, score_range
from dptoolkit.solvers.engine.gradients import in_threads, worth_a_thread
from dptoolkit.solvers.engine.secure_vertices import secure_vertex_path, selection_noise
from dptoolkit.solvers.engine.vertex_paths import (
    WORK,
    DensePath,
    DitheredPath,
    DitherStart,
    Path,
    WorkCounters,
    add_feature,
    dithered_starts,
    vertex_path,
)
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.outlook import SPREAD, Outlook, Selections
from dptoolkit.solvers.frame.plan import GUMBEL_MAXIMUM, LAPLACE_MAXIMUM, Plan
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another
from dptoolkit.solvers.frame.secure import SecurePlan
from dptoolkit.solvers.frame.settings import PUBLISHED, TIGHT, Resolved, Settings, public_bound, setting
from dptoolkit.types import Array

LAWS = {"gumbel": GUMBEL_MAXIMUM, "laplace": LAPLACE_MAXIMUM}
# How radius and steps are described in settings that have a rule for them.
RULED_RADIUS = (
    "Radius of the L1 ball to which the weights are constrained, including the intercept; by default it follows from "
    "n, d, the bounds and the budget (docs/rules.md)."
)
RULED_STEPS = "Number of selections; by default it follows from n, d and the budget."
# Up to this many entries the exact iteration makes a whole pass at every step.
_SMALL = 2**12


@dataclass(frozen=True, kw_only=True)
class SelectionSettings(Settings):
    """Settings of solvers that choose vertices of an L1 ball by noisy scores."""

    l1_radius: float = setting("Radius of the L1 ball to which the weights are constrained, including the intercept.")
    steps: int = setting("Number of selections.")
    feature_bound: float | None = setting("Public bound of |X_ij|; larger entries are clipped.", default=None)
    law: str | None = setting(
        'Law of the noise on the scores: "gumbel" (the exponential mechanism) or "laplace"; by default that of the '
        "calibration.",
        default=None,
    )
    fit_intercept: bool = setting(
        "Whether to add a column that is constant at a tenth of feature_bound; it is bounded and charged like any "
        "other.",
        default=False,
    )

    def _selection_checked(self) -> dict[str, Any]:
        """The values of the shared settings, checked, with their defaults filled in."""
        default = "laplace" if self.calibration == PUBLISHED else "gumbel"
        return {
            "l1_radius": magnitude("l1_radius", self.l1_radius),
            "steps": whole("steps", self.steps, low=1),
            "feature_bound": public_bound("feature_bound", self.feature_bound, "the largest |entry| of X"),
            "law": default if self.law is None else one_of("law", self.law, tuple(LAWS)),
        }

    def _ruled(
        self, steps: int | None, radius: float | None, n: int, entries: int, label_bound: float | None = None
    ) -> dict[str, Any]:
        """Steps and radius, the rule's where they were left out; 2 * ``entries`` vertices compete."""
        if radius is None or steps is None:
            feature = public_bound("feature_bound", self.feature_bound, "the largest |entry| of X")
            mu = rules.budget_mu(self.epsilon, self.delta)
            count, reach = rules.vertices(n, entries, feature, label_bound, mu)
            steps, radius = count if steps is None else steps, reach if radius is None else radius
        return {"steps": steps, "l1_radius": radius}


@dataclass(frozen=True, kw_only=True)
class ResolvedSelection(Resolved, SelectionSettings):
    """Settings of solvers that choose vertices in a plan."""

    l1_radius: float
    steps: int
    feature_bound: float
    law: str

    @property
    @abstractmethod
    def bounds(self) -> EntryBounds:
        """The public bounds of one record's gradient."""

    @property
    def selection_law(self) -> str:
        """The law of one selection, as a plan names it."""
        return LAWS[self.law]

    @property
    def has_intercept(self) -> bool:
        """See ``Resolved``."""
        return self.fit_intercept

    @property
    def iterations(self) -> int:
        """See ``Resolved``."""
        return self.steps

    def model(self, weights: Array) -> tuple[Array, float | Array]:
        """See ``Resolved``; the intercept's column is not 1 but what the bounds say."""
        return (weights[:-1], float(weights[-1] * self.bounds.level)) if self.fit_intercept else (weights, 0.0)


@dataclass(frozen=True, kw_only=True)
class BallSettings(SelectionSettings):
    """Settings of private Frank-Wolfe for losses of one margin."""

    loss: str = setting(f"{losses.described(losses.SCALAR)}.")
    label_bound: float | None = setting("Public bound of |y|; needed for the squared loss.", default=None)
    refresh: float = setting(
        "Factor by which the weights may shrink before all residuals are updated, on sparse data, where residuals "
        "are dithered. 1 is the textbook iteration, with exact residuals at every step. For the squared loss with "
        "few features the iteration is always exact.",
        default=0.25,
    )

    @property
    def loss_row(self) -> Loss:
        """The row of the loss table."""
        return losses.get(self.loss, losses.SCALAR)

    def _checked(self) -> dict[str, Any]:
        """The values of the settings, checked, with their defaults filled in."""
        label = None if self.label_bound is None else magnitude("label_bound", self.label_bound)
        if self.loss_row.residual_bound == math.inf:
            label = public_bound("label_bound", self.label_bound, "the largest |label|")
        real("refresh", self.refresh, low=0.0, high=1.0, repair="1 recomputes every row at every step, 0 never.")
        return self._selection_checked() | {"label_bound": label}


@dataclass(frozen=True, kw_only=True)
class ResolvedBall(ResolvedSelection, BallSettings):
    """Settings of private Frank-Wolfe for losses of one margin in a plan."""

    @property
    def label_limit(self) -> float | None:
        """See ``Resolved``."""
        return self.label_bound

    @property
    def bounds(self) -> EntryBounds:
        """The public bounds of one record's gradient."""
        return EntryBounds(self.loss_row, self.feature_bound, self.label_bound, self.fit_intercept)

    @property
    def lipschitz(self) -> float:
        """The largest |entry| of a record's gradient in the ball; with published noise, as in the paper, anywhere."""
        if self.calibration == PUBLISHED and self.loss_row.residual_bound < math.inf:
            return self.feature_bound * self.loss_row.residual_bound
        return self.bounds.entry(self.l1_radius)

    def score_range(self, n: int) -> float:
        """The range of the change of the vertices' scores."""
        return score_range(self.adjacency, self.l1_radius, self.lipschitz, n)

    def noise_law(self, plan: Plan) -> VertexNoise:
        """The noise of a selection at public weights."""
        return VertexNoise(plan.noise, self.bounds, self.l1_radius, self.lipschitz, self.calibration == TIGHT)

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``; selections are exact, and nothing is charged for rounding."""
        return replace(plan, secure=SecurePlan((selection_noise(plan, plan.releases[0]),)))

    def outlook(self, plan: Plan) -> Outlook | None:
        """See ``Resolved``; of the first selection, at weights of zero."""
        largest = self.l1_radius * self.bounds.entry(0.0)
        spread = SPREAD if self.loss_row.task == losses.REGRESSION else 1.0
        return Selections(self.noise_law(plan).at_norm(0.0) / largest, 2 * self.width(plan.d), spread)


@dataclass(frozen=True)
class VertexNoise:
    """The noise of a selection at public weights: ``scale``, or less where one record can move the scores by less."""

    scale: float
    bounds: EntryBounds
    radius: float
    lipschitz: float
    adaptive: bool

    def __call__(self, w: Any) -> Any:
        """The noise scale at public weights, or at many of them, one per row."""
        norms = np.abs(w).sum(axis=-1)
        if np.ndim(norms) == 0:
            return self.at_norm(float(norms))
        # Many runs have few norms, as steps without cancellation give the same one.
        values, places = np.unique(norms, return_inverse=True)
        return np.array([self.at_norm(value) for value in values.tolist()])[places]

    def residual_limit(self, l1_norm: float) -> float:
        """The largest |residual| at weights with |w|_1 <= ``l1_norm``."""
        return self.bounds.residual_limit(min(l1_norm, self.radius))

    def at_norm(self, l1_norm: float) -> float:
        """The noise scale at weights with |w|_1 <= ``l1_norm``."""
        if not self.adaptive:
            return self.scale
        return self.scale * min(self.bounds.entry(min(l1_norm, self.radius)) / self.lipschitz, 1.0)


class VertexRun(Run):
    """Private Frank-Wolfe on bounded data; the exact iteration where the plan has no noise.

    Everything that does not depend on the draws is computed once, because an audit runs the same data a hundred
    thousand times.

    Privacy
    -------
    A call releases one vertex per step, by noisy scores whose noise is the plan's law at the public weights.
    """

    def __init__(self, plan: Plan[ResolvedBall], rows: Rows, y: Array) -> None:
        self.plan, self.settings, self.loss = plan, plan.settings, plan.settings.loss_row
        self.rows, self.y, self.width = rows, y, rows.shape[1]
        self._path: Path = self._exact if plan.noise == 0 else self._noisy_path(rows, y)
        if isinstance(self._path, DensePath):
            self.size = self._path.size

    def _noisy_path(self, rows: Rows, y: Array) -> Path:
        return (vertex_path if self.plan.secure is None else secure_vertex_path)(self.plan, rows, y)

    @property
    def threads(self) -> bool:
        """Whether ``fit_many`` makes its fits in threads: on large sparse data they are mostly compiled calls."""
        if self.plan.secure is not None:
            return False
        return self.plan.noise > 0 and self.settings.refresh != 1 and worth_a_thread(self.rows)

    def one(self, rng: np.random.Generator, trace: bool) -> Trace:
        """See ``Run``; on sparse rows a fit is a path of its own. The releases are the chosen vertices."""
        return self.counted(rng, trace, np.zeros(len(WORK), np.int64))

    def counted(self, rng: np.random.Generator, trace: bool, work: WorkCounters) -> Trace:
        """One fit, which adds to ``work`` what was done (WORK), which is NOT private."""
        return self._path(rng, trace, work)

    def at_once(self, trace: bool) -> bool:
        """See ``Run``."""
        return isinstance(self._path, DensePath)

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``."""
        if isinstance(self._path, DensePath):
            return self._path.fits(streams, trace)
        return one_after_another(self, streams, trace)

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """See ``Run``; iterates are made of the vertices, so that a trace keeps nothing of size steps x d."""
        return self._fitted(self(rng), every)

    @property
    def shared(self) -> Any:
        """See ``Run``; the rows both ways, where fits begin with a pass over them that they can share."""
        if not self.threads:
            return None
        return self._path.matrix if isinstance(self._path, DitheredPath) else self.rows

    def fit_block(
        self, runs: Sequence[VertexRun], rngs: Sequence[np.random.Generator], every: int = 0
    ) -> list[tuple[Array, dict[str, Any]]]:
        """See ``Run``; in threads, after a pass for all of them.

        Privacy
        -------
        What ``fit`` of each releases, and nothing else: no run's numbers enter another's.
        """
        paths = [run._path for run in runs if isinstance(run._path, DitheredPath)]
        if len(paths) < len(runs):
            return in_threads([partial(run.fit, rng, every) for run, rng in zip(runs, rngs, strict=True)])
        starts = dithered_starts(paths, rngs)
        return in_threads(
            [partial(run._finish, rng, start, every) for run, rng, start in zip(runs, rngs, starts, strict=True)]
        )

    def _finish(self, rng: np.random.Generator, start: DitherStart, every: int) -> tuple[Array, dict[str, Any]]:
        assert isinstance(self._path, DitheredPath)
        return self._fitted(self._path.finish(rng, start, False, np.zeros(len(WORK), np.int64)), every)

    def _fitted(self, trace: Trace, every: int) -> tuple[Array, dict[str, Any]]:
        w, history, *_ = trace
        if every:
            history["iterates"] = vertex_iterates(history["vertices"], self.width, self.settings.l1_radius, every)
        return w, history

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """Objective and duality gap of the bounded records; NOT private."""
        return objective_and_gap(self.rows, self.y, self.loss, self.settings.l1_radius, weights)

    def _exact(self, rng: np.random.Generator, trace: bool, work: WorkCounters) -> Trace:
        radius, steps = self.settings.l1_radius, self.settings.steps
        w, vertices = frank_wolfe_path(self.rows, self.y, self.loss, radius, steps)
        return Trace(w, {"noise_scale": [], "vertices": vertices}, vertices.astype(float) if trace else None)


def vertex_iterates(vertices: Any, width: int, radius: float, every: int) -> list[tuple[int, Any, Array]]:
    """(step, support, values) of every ``every``-th iterate and of the last, from the vertices alone."""
    w: Array = np.zeros(width)
    iterates, steps = [], len(vertices)
    for t, vertex in enumerate(vertices.tolist(), start=1):
        w = _move(w, vertex, radius, t)
        if t % every == 0 or t == steps:
            support = np.flatnonzero(w)
            iterates.append((t, support, w[support]))
    return iterates


def frank_wolfe_path(rows: Rows, y: Array, loss: Loss, radius: float, steps: int) -> tuple[Array, Any]:
    """Weights and vertices of the exact iteration, without noise.

    The margins follow the iterate, and ``_Steepest`` finds each vertex without a pass over all data at every step.

    Privacy
    -------
    NOT private: one record can change every vertex.
    """
    n, d = rows.shape
    steepest, margins = _Steepest(rows), np.zeros(n)
    w: Array = np.zeros(d)
    vertices = np.empty(steps, dtype=np.int64)
    for t in range(1, steps + 1):
        j, slope = steepest(loss.residual(margins, y))
        vertices[t - 1] = j if slope <= 0 else d + j
        w = _move(w, int(vertices[t - 1]), radius, t)
        mu = 2 / (t + 2)
        margins *= 1 - mu
        add_feature(margins, steepest.transposed, j, mu * radius if slope <= 0 else -mu * radius)
    return w, vertices


class _Steepest:
    """The feature with the largest |gradient| at given residuals, and its gradient; of equal ones the first.

    Residuals change little from one step to the next, and |x_j . (r - r0)| <= |x_j| |r - r0|. So, from all gradients at
    an earlier r0, only the few features that may have become the largest are computed again. When these are more than a
    few, all are computed, and r becomes the new r0. The answer is the same as that of computing all every time.
    """

    def __init__(self, rows: Rows) -> None:
        self.n, self.transposed = rows.shape[0], rows.transpose()
        self.lengths = Rows(self.transposed, rows.is_sparse).row_norms() / self.n
        # The cost of a feature is its number of stored entries; up to a tenth of a whole pass is affordable.
        d = rows.shape[1]
        self.costs = np.diff(self.transposed.indptr) if rows.is_sparse else np.full(d, self.n)
        # With few entries a whole pass takes less time than the search for the features that need not be computed.
        entries = int(self.costs.sum())
        self.affordable = entries // 10 if entries > _SMALL else -1
        self.anchor: Array | None = None
        self.gradient: Array = np.zeros(d)
        self.size: Array = self.gradient

    def __call__(self, r: Array) -> tuple[int, float]:
        if self.anchor is not None and self.affordable >= 0:
            near = self._near(r, self.anchor)
            if self.costs[near].sum() <= self.affordable:
                gradient = np.asarray(self.transposed[near] @ r) / self.n
                best = int(np.argmax(np.abs(gradient)))
                return int(near[best]), float(gradient[best])
        self.anchor, self.gradient = r, np.asarray(self.transposed @ r) / self.n
        self.size = np.abs(self.gradient)
        j = int(np.argmax(self.size))
        return j, float(self.gradient[j])

    def _near(self, r: Array, anchor: Array) -> Any:
        """The features, in order, whose |gradient| can be the largest at r, with a margin for rounding."""
        change = np.abs(r - anchor)
        largest = float(change.max())
        with np.errstate(over="ignore", invalid="ignore"):
            # Relative to the largest, so that no square underflows. Not by BLAS, whose threads wait for each other.
            distance = largest * math.sqrt(float(np.square(change / largest).sum())) if largest > 0 else 0.0
            most_change = self.lengths * (1.000001 * distance)
            slack = 1e-9 * self.size.max()
            # Written with ~ so that features whose numbers are NaN stay in.
            return np.flatnonzero(~(self.size + most_change + slack < (self.size - most_change).max()))


def _move(w: Array, vertex: int, radius: float, t: int) -> Array:
    mu = 2 / (t + 2)
    w = (1 - mu) * w
    w[vertex % len(w)] += mu * (radius if vertex < len(w) else -radius)
    return w


def objective_and_gap(rows: Rows, y: Array, loss: Loss, radius: float, w: Array) -> dict[str, float]:
    """Objective and Frank-Wolfe duality gap <gradient, w> + radius |gradient|_inf >= objective - optimum."""
    margins = np.asarray(rows.matrix @ w)
    gradient = np.asarray(rows.matrix.T @ loss.residual(margins, y)) / rows.shape[0]
    gap = float(gradient @ w + radius * np.abs(gradient).max())
    return {"objective": loss.objective(margins, y), "duality_gap": gap}
