"""Frank-Wolfe over the L1 ball, plain (frank_wolfe) and private by noisy vertex selection (dp_frank_wolfe).

    s_t = argmin over the 2d vertices s of <s, gradient> + noise,    w <- (1 - mu_t) w + mu_t s_t,    mu_t = 2/(t+2)

Talwar, Thakurta and Zhang 2015; Private LASSO of Khanna, Lu and Raff 2023. Each step releases one vertex, so the whole
run is ``steps`` selections. It starts at zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dptoolkit import losses
from dptoolkit._validate import flag, invalid, magnitude, positive, whole
from dptoolkit.data import Rows, check_labels, check_rows, with_intercept
from dptoolkit.data.blocks import CheckedBlocks
from dptoolkit.solvers.engine.blocked_vertices import BlockedVertexRun
from dptoolkit.solvers.engine.vertices import (
    RULED_RADIUS,
    RULED_STEPS,
    BallSettings,
    ResolvedBall,
    VertexRun,
    frank_wolfe_path,
    objective_and_gap,
    vertex_iterates,
)
from dptoolkit.solvers.frame.fit import FitResult, plain_result, private_solver, without_privacy
from dptoolkit.solvers.frame.plan import Plan, Release, with_smallest_noise
from dptoolkit.solvers.frame.run import trace_interval, written_out
from dptoolkit.solvers.frame.settings import setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published


@dataclass(frozen=True, kw_only=True)
class DpFrankWolfe(BallSettings):
    """Private L1-constrained regression by Frank-Wolfe with noisy vertex selection.

    With epsilon=math.inf it is ``frank_wolfe`` on clipped data, with an intercept's column at feature_bound/10, not 1.

    Privacy
    -------
    Query: the score <s, mean gradient> of every vertex. One record's gradient has entries at most L = feature_bound *
    residual bound, so each score moves by at most 2 l1_radius L/n (replace-one; half of it for zero-out), up at s where
    it moves down at -s: the RANGE of the change is twice that. Event: Repeated(ExponentialMechanism(range/scale),
    steps), or NoisyMax for Laplace noise. With tight calibration L is taken at the largest |w|_1 reachable until the
    next refresh (public), so the noise shrinks with it and the event stays. Public: n, d, all arguments, all vertices.

    On sparse data with ``refresh`` below 1 the query is that of a stated surrogate: each row's residual is rounded, up
    or down, to one of a few levels between -L and L, by a number theta_i in [0, 1) that is drawn for its place in X
    before any record is looked at, and it may be stale. What a row contributes depends on its own record, on theta_i
    and on public vertices only and is at most L, so range and event are those above for every theta. Levels are spaced
    by public numbers. The mean over theta is the residual itself.
    """

    solver: ClassVar[str] = "dp_frank_wolfe"
    takes_blocks: ClassVar[bool] = True

    l1_radius: float | None = setting(RULED_RADIUS, default=None)  # type: ignore[assignment]
    steps: int | None = setting(RULED_STEPS, default=None)  # type: ignore[assignment]

    def resolved(self, n: int, d: int) -> ResolvedFrankWolfe:
        """See ``Settings``."""
        label = None
        if self.loss_row.task == losses.REGRESSION:
            label = losses.HUBER_THRESHOLD if self.label_bound is None else magnitude("label_bound", self.label_bound)
        own = replace(self, **self._ruled(self.steps, self.l1_radius, n, d, label))
        return own.settled(ResolvedFrankWolfe, **own._checked())

    @property
    def reads_single(self) -> bool:
        """See ``Settings``; the textbook iteration makes its products with SciPy."""
        return self.refresh != 1


@dataclass(frozen=True, kw_only=True)
class ResolvedFrankWolfe(ResolvedBall, DpFrankWolfe):
    """The settings of ``dp_frank_wolfe`` in a plan."""

    l1_radius: float
    steps: int

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The chosen vertex, once a step."""
        silent = Release("vertex of the L1 ball", self.selection_law, self.score_range(n), 0.0, self.steps)
        if paper is not None:
            return (replace(silent, scale=paper.scales["score"]),)
        return (with_smallest_noise(silent, self.epsilon, self.delta),)

    def published(self, n: int, d: int) -> Published:
        """The noise of Private LASSO."""
        from dptoolkit import published

        budget = self.epsilon, self.delta, self.adjacency
        return published.lasso_frank_wolfe(n, self.steps, self.l1_radius, self.lipschitz, *budget, rounds=self.steps)

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> VertexRun:
        """See ``Resolved``."""
        return VertexRun(plan, *self.bounds.clip(*written_out(rows, y, counts)))

    def bind_blocks(self, plan: Plan, blocks: CheckedBlocks) -> VertexRun:
        """See ``Resolved``."""
        if self.refresh != 1:
            repair = "Blocks know the textbook iteration only, with exact residuals at every step."
            raise invalid("refresh", self.refresh, "1 where X is in blocks", repair)
        if plan.noise == 0:
            raise invalid("epsilon", self.epsilon, "finite where X is in blocks", "Use frank_wolfe on one matrix.")
        return BlockedVertexRun(plan, blocks)


dp_frank_wolfe = private_solver(DpFrankWolfe)


@without_privacy(
    l1_radius="Radius of the L1 ball that the weights, with an intercept's, lie in.",
    steps="Number of vertices that are chosen, and so the most features that are used.",
    diagnostics='Add the objective and the duality gap to history["not_private"].',
)
def frank_wolfe(
    X: Any,
    y: Any,
    *,
    loss: str,
    l1_radius: float,
    steps: int,
    fit_intercept: bool = False,
    diagnostics: bool = False,
    trace: bool | int = False,
    label_values: tuple[float, float] | None = None,
) -> FitResult:
    """Frank-Wolfe over the L1 ball without privacy: exact gradients, exact vertices, no clipping."""
    rows = check_rows(X)
    n, _ = rows.shape
    table_loss = losses.get(loss, losses.SCALAR)
    labels = check_labels(y, n, table_loss, label_values)
    fit_intercept, diagnostics = flag("fit_intercept", fit_intercept), flag("diagnostics", diagnostics)
    radius, steps, every = positive("l1_radius", l1_radius), whole("steps", steps, low=1), trace_interval(trace)
    data = with_intercept(rows, 1.0) if fit_intercept else rows
    w, vertices = frank_wolfe_path(data, labels, table_loss, radius, steps)
    history: dict[str, Any] = {"vertices": vertices}
    if every:
        history["iterates"] = vertex_iterates(vertices, len(w), radius, every)
    if diagnostics:
        history["not_private"] = objective_and_gap(data, labels, table_loss, radius, w)
    return plain_result(w, history, fit_intercept)
