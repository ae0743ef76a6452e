"""ADMM with a sparse penalty, plain (admm) and private by output noise (dp_admm), after Wang and Zhang 2020.

    w <- argmin of mean loss(w) + (rho/2)|w - z + u|^2, plus N(0, scale^2 I)
    z <- prox of the penalty at w + u            u <- u + w - z

Only the first line looks at the data. What it minimises is rho-strongly convex, so that one record of gradient at most
L moves the minimiser by at most 2L/(n rho): output perturbation. No computer has the minimiser itself; it is found to
a certified distance of tau/(n rho), which the sensitivity includes. z and u are functions of what was released, also
where the penalty is not convex. Theory and minimiser speak of the SUM of losses: ``SumScaling`` is where the two meet.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dptoolkit import losses, progress
from dptoolkit._validate import flag, invalid, magnitude, nonnegative, one_of, whole
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_labels, check_rows, with_intercept
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.optimise import minimise, newton
from dptoolkit.optimise.geometry import Ball, l2_ball
from dptoolkit.solvers.engine.bounds import GradientBounds
from dptoolkit.solvers.engine.objective import ROUNDING, SumScaling, bounded_records
from dptoolkit.solvers.engine.secure_points import charged_point
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.fit import FitResult, plain_result, private_solver, without_privacy
from dptoolkit.solvers.frame.plan import GAUSSIAN, Plan, Release, gaussian_multiplier
from dptoolkit.solvers.frame.run import Run, Trace, Trials, trace_interval, written_out
from dptoolkit.solvers.frame.secure import SecurePlan, secure_stream
from dptoolkit.solvers.frame.settings import Resolved, Settings, public_bound, setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published

# tau as a share of one record's gradient. With it the noise is a thousandth larger than it would be for the exact
# minimiser (two thousandths for zero-out).
_MISSING = 1e-3


# --- the penalties --------------------------------------------------------------------------------


def soft_threshold(v: Array, weight: float) -> Array:
    """The z that minimises |z - v|^2/2 + weight |z|_1."""
    return np.asarray(np.sign(v) * np.maximum(np.abs(v) - weight, 0.0))


def half_threshold(v: Array, weight: float) -> Array:
    """The z that minimises |z - v|^2/2 + weight * sum of |z_j|^(1/2): Xu, Chang, Xu and Zhang 2012, in closed form.

    Entries up to (3/2) weight^(2/3) become zero, others at least two thirds of what they were.
    """
    size = np.abs(v)
    is_large = size > 1.5 * weight ** (2 / 3)
    ratio = weight ** (2 / 3) / np.where(is_large, size, 1.0)
    angle = np.arccos(np.minimum(0.25 * (3 * ratio) ** 1.5, 1.0))
    return np.asarray(np.where(is_large, v * (2 / 3) * (1 + np.cos(2 * (math.pi - angle) / 3)), 0.0))


# For every penalty its prox, and the weight (over rho) for which the prox sets everything up to a threshold to zero.
PENALTIES: dict[str, tuple[Callable[[Array, float], Array], Callable[[float], float]]] = {
    "l1": (soft_threshold, lambda threshold: threshold),
    "l1/2": (half_threshold, lambda threshold: (threshold / 1.5) ** 1.5),
}


@dataclass(frozen=True)
class Splitting:
    """The public part of ADMM, applied to the minimisers. The penalty is for the first ``free`` weights."""

    rho: float
    steps: int
    penalty: str
    weight: float
    free: int

    def run(self, update: Callable[[Array], Array], shape: Any) -> tuple[list[Array], list[Array]]:
        """(what each update gave, z after it), from z = u = 0 of this shape; ``update`` gets the centre z - u."""
        z: Array = np.zeros(shape)
        u, updates, path = z, list[Array](), list[Array]()
        for _ in progress.steps(self.steps, "update"):
            w = update(z - u)
            z, u = self.following(w, u)
            updates.append(w)
            path.append(z)
        return updates, path

    def following(self, w: Array, u: Array) -> tuple[Array, Array]:
        """The next z and u: functions of public vectors."""
        v = w + u
        z = v.copy()
        z[..., : self.free] = PENALTIES[self.penalty][0](v[..., : self.free], self.weight / self.rho)
        return z, v - z


# --- the private solver ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DpAdmm(Settings):
    """Private sparse regression or classification: noisy minimisers, and a penalty that makes zeros of the noise.

    Privacy
    -------
    Query: the minimiser of mean loss + (rho/2)|w - c|^2 at a public c, found to within tau/(n rho) on every data set by
    a certificate that includes rounding errors. One record's gradient is at most L, so sensitivity
    (2 L + 2 tau)/(n rho) (replace-one) or (L + 2 tau)/(n rho) (zero-out). Event: Repeated(Gaussian(scale/sensitivity),
    steps). Penalty and dual steps see released vectors alone. The search never gives up, so acceptance tells nothing;
    how long it takes depends on the data. Under zero-out a row of zeros is no record: it has no intercept either.
    Public: n, d, all arguments, all iterates.
    """

    solver: ClassVar[str] = "dp_admm"

    loss: str = setting('"logistic", "huber", "hinge" (its corner rounded), or "squared" with a radius.')
    penalty: str = setting(
        'Penalty on the weights: "l1/2", the sum of square roots, or "l1", which biases large weights more.',
        default="l1/2",
    )
    weight: float | None = setting(
        "Weight of the penalty beside the MEAN loss; by default large enough that noise alone seldom gives a "
        "non-zero weight. An intercept is not penalised.",
        default=None,
    )
    rho: float | None = setting(
        "Weight of |w - z + u|^2/2 beside the MEAN loss; by default from n, the bounds, the budget and the steps.",
        default=None,
    )
    steps: int | None = setting(f"Number of updates; by default {rules.UPDATES}.", default=None)
    row_norm: float | None = setting("Public L2 bound of a row; longer rows are scaled down.", default=None)
    radius: float | None = setting(
        "Radius of an L2 ball to which the minimisers are constrained, including the intercept; the squared loss "
        "needs it.",
        default=None,
    )
    label_bound: float | None = setting("Public bound at which labels are clipped, for the squared loss.", default=None)
    fit_intercept: bool = setting("Whether to fit an intercept, as the weight of a column of ones.", default=False)

    @property
    def loss_row(self) -> losses.Loss:
        """The row of the loss table."""
        return losses.get(self.loss, losses.CURVED)

    @property
    def bounds(self) -> GradientBounds:
        """The public bounds of one record, on the ball if there is one."""
        free = GradientBounds(
            self.loss_row, self.row_norm, label_bound=self.label_bound, fit_intercept=self.fit_intercept
        )
        return free if self.radius is None else free.within(self.radius)

    def resolved(self, n: int, d: int) -> ResolvedAdmm:
        """See ``Settings``."""
        one_of("penalty", self.penalty, tuple(PENALTIES))
        is_squared = not self.loss_row.is_bounded
        if is_squared and self.radius is None:
            raise invalid("radius", None, "given for the squared loss", "Its gradient is bounded only on a ball.")
        if not is_squared and self.label_bound is not None:
            raise invalid(
                "label_bound",
                self.label_bound,
                "None here",
                "It is only for the squared loss: leave it out.",
            )
        bounded = replace(
            self,
            row_norm=public_bound("row_norm", self.row_norm, "the L2 norm of a row"),
            radius=None if self.radius is None else magnitude("radius", self.radius),
            label_bound=public_bound("label_bound", self.label_bound, "the largest |label|") if is_squared else None,
        )
        steps = rules.UPDATES if self.steps is None else whole("steps", self.steps, low=1)
        # The weight of the penalty is the one number that follows from the noise, which does not depend on it.
        settings = bounded.settled(ResolvedAdmm, steps=steps, rho=bounded._rho(n, steps), weight=self.weight or 0.0)
        return replace(settings, weight=self._weight(settings, n, d))

    def _rho(self, n: int, steps: int) -> float:
        """The rho asked for, or the one for which all updates together are the rule's time of descent."""
        if self.rho is not None:
            return magnitude("rho", self.rho)
        if math.isinf(self.epsilon):
            raise invalid(
                "rho",
                None,
                "given where epsilon is infinite",
                "The rule chooses it by the noise, and there is none.",
            )
        mu = rules.budget_mu(self.epsilon, self.delta)
        rho = steps / rules.total_time(self.bounds, Adjacency.parse(self.adjacency), n, mu)
        return magnitude("rho", rho, "Give rho: where row_norm or the budget is extreme, no rule is known.")

    def _weight(self, settings: ResolvedAdmm, n: int, d: int) -> float:
        """The weight asked for, or the one whose prox makes zeros of what noise alone seldom exceeds."""
        if self.weight is not None:
            return nonnegative("weight", self.weight)
        if math.isinf(self.epsilon):
            raise invalid(
                "weight",
                None,
                "given where epsilon is infinite",
                "The rule chooses it by the noise, and there is none.",
            )
        threshold = rules.THRESHOLD * settings.releases(n, d, None)[0].scale
        return settings.rho * PENALTIES[self.penalty][1](threshold)


@dataclass(frozen=True, kw_only=True)
class ResolvedAdmm(Resolved, DpAdmm):
    """The settings of ``dp_admm`` in a plan; without a radius the minimisers are searched everywhere."""

    weight: float
    rho: float
    steps: int
    row_norm: float

    @property
    def has_intercept(self) -> bool:
        """See ``Resolved``."""
        return self.fit_intercept

    @property
    def iterations(self) -> int:
        """See ``Resolved``."""
        return self.steps

    @property
    def label_limit(self) -> float | None:
        """See ``Resolved``."""
        return self.label_bound

    @property
    def ball(self) -> Ball | None:
        """The ball in which the minimisers are searched, None for all weights."""
        return None if self.radius is None else l2_ball(self.radius)

    def sums(self, n: int) -> SumScaling:
        """The problem of one update in the scaling of the sum."""
        return SumScaling(n, self.rho, self.bounds.gradient, self.bounds.smoothness)

    def tolerance(self, n: int, d: int, multiplier: float) -> float:
        """tau of every update: a small share of one record's gradient, but not what takes decimals to reach."""
        sums, joint = self.sums(n), self.bounds.joint_norm
        width = self.width(d)
        # About how far the centre moves in one update at most: by the pull of all losses, and by noise.
        movement = sums.gradient * (n + 3 * multiplier * (math.sqrt(width) + 8)) / sums.l2
        reachable = 4 * minimise.rounding_error(
            n=n, nonzeros=width, row_norm=joint, residual_bound=sums.gradient / joint,
            smoothness=self.loss_row.smoothness,
            l2=sums.l2, theta_norm=self.steps * movement, linear_norm=sums.l2 * self.steps * movement,
            unit=minimise.FINE_UNIT,
        )  # fmt: skip
        return max(_MISSING * sums.gradient, reachable)

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The minimiser, once an update."""
        sums = self.sums(n)
        multiplier = gaussian_multiplier(self.steps, self.epsilon, self.delta)
        tau = self.tolerance(n, d, multiplier)
        movement = sums.movement(self.adjacency, tau) * ROUNDING
        return (Release("minimiser", GAUSSIAN, movement, movement * multiplier, self.steps),)

    def splitting(self, d: int) -> Splitting:
        """The iteration."""
        return Splitting(self.rho, self.steps, self.penalty, self.weight, d)

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``; minimisers are rounded to a grid, which is charged, and get integer noise.

        Privacy
        -------
        A certified minimiser is within tau/(n rho) of the exact one, which the sensitivity includes already; rounding
        adds g_o sqrt(d), see ``charged_point``. The event is that of the plan.
        """
        charged, point = charged_point(plan.releases[0], self.width(plan.d))
        return replace(plan, releases=(charged,), secure=SecurePlan((point,)))

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> AdmmRun:
        """See ``Resolved``."""
        kind = AdmmRun if plan.secure is None else SecureAdmmRun
        return kind(plan, *bounded_records(self.bounds, self.adjacency, *written_out(rows, y, counts)))


dp_admm = private_solver(DpAdmm)


@without_privacy(
    loss=f"{losses.described(losses.CURVED)}.",
    weight="Weight of the penalty beside the mean loss.",
    rho="Weight of |w - z + u|^2/2 in an update: a larger one makes smaller steps.",
    steps="Number of updates.",
    penalty='"l1/2", the sum of the square roots of |z_j|, or "l1", the sum of |z_j|; an intercept has none.',
)
def admm(
    X: Any, y: Any, *, loss: str, weight: float, rho: float, steps: int, penalty: str = "l1/2",
    fit_intercept: bool = False, trace: bool | int = False, label_values: tuple[float, float] | None = None,
) -> FitResult:  # fmt: skip
    """ADMM without privacy: ``dp_admm`` without clipping, without noise, and without a ball for the squared loss."""
    rows = check_rows(X)
    terms = losses.get(loss, losses.CURVED)
    labels = check_labels(y, rows.shape[0], terms, label_values)
    splitting = Splitting(
        magnitude("rho", rho), whole("steps", steps, low=1), one_of("penalty", penalty, tuple(PENALTIES)),
        nonnegative("weight", weight), rows.shape[1],
    )  # fmt: skip
    data = with_intercept(rows, 1.0) if flag("fit_intercept", fit_intercept) else rows
    every = trace_interval(trace)

    def update(centre: Array) -> Array:
        return _precise_minimiser(data, labels, terms, splitting.rho, centre)

    _, path = splitting.run(update, data.shape[1])
    w, history = Trace(path[-1], {}, None, np.array(path)).fit(every)
    return plain_result(w, history, fit_intercept)


def _precise_minimiser(data: Rows, y: Array, terms: losses.Loss, rho: float, centre: Array) -> Array:
    """The minimiser of mean loss + (rho/2)|w - centre|^2, to nine digits."""
    n, norm = len(y), float(data.row_norms().max(initial=0.0))
    pull = float(np.linalg.norm(data.matrix.T @ terms.residual(data.matrix @ centre, y))) / n
    if pull == 0:
        return centre
    # By strong convexity the minimiser is no further than pull/rho from the centre: a ball that cuts nothing off.
    reach = float(np.linalg.norm(centre)) + 1.001 * pull / rho
    slope = terms.residual_limit(norm * reach, float(np.abs(y).max()))
    ball = l2_ball(reach) if math.isinf(terms.residual_bound) else None
    sums = SumScaling(n, rho, slope * norm, terms.smoothness * norm * norm)
    task = minimise.Problem(data.matrix, y, terms, sums.l2, -sums.l2 * centre, norm, slope, ball)
    return minimise.minimise(task, 1e-9 * sums.l2 * reach).theta


class AdmmRun(Run):
    """Private ADMM with bounded data in place.

    Privacy
    -------
    A call releases ``steps`` noisy minimisers, the plan's one release as often as it counts. No minimiser without noise
    leaves the run, nor does anything about the search.
    """

    def __init__(self, plan: Plan[ResolvedAdmm], matrix: Any, y: Array) -> None:
        settings = plan.settings
        self.plan, self.settings, self.matrix, self.y = plan, settings, matrix, y
        self.sums, self.splitting = settings.sums(plan.n), settings.splitting(plan.d)
        self.size = 2 * matrix.shape[0] * matrix.shape[1] + (16 + 2 * self.splitting.steps) * matrix.shape[1] ** 2

    @property
    def tau(self) -> float:
        """The tolerance that the release was planned for, in the scaling of the sum; never more than that."""
        return self.sums.tolerance(self.plan.adjacency, self.plan.sensitivity)

    def problem(self, centre: Array) -> minimise.Problem:
        """The problem that an update at this centre minimises, up to a constant."""
        joint = self.settings.bounds.joint_norm
        return minimise.Problem(
            self.matrix, self.y, self.settings.loss_row, self.sums.l2, -self.sums.l2 * centre, joint,
            self.sums.gradient / joint, self.settings.ball,
        )  # fmt: skip

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; the releases are the noisy minimisers, the iterates the sparse vectors after them."""
        width = self.matrix.shape[1]
        problem, tau = self.problem(np.zeros(width)), self.tau

        def update(centres: Array) -> Array:
            theta, remainder = newton.minimise_rows(problem, -self.sums.l2 * centres, tau)
            return self._noisy(theta, remainder, streams)

        releases, path = self.splitting.run(update, (len(streams), width))
        kept = (np.stack(releases, axis=1), np.stack(path, axis=1)) if trace else (None, None)
        return Trials(path[-1], *kept, history=self._history)

    def _noisy(self, theta: Array, remainder: Array, streams: Generators) -> Array:
        """Points of two doubles an entry, one per row, with noise."""
        # The smaller ones go into the noise before anything is rounded.
        return np.asarray(theta + self.plan.releases[0].mechanism.release(remainder, streams))

    def _history(self, i: int) -> dict[str, Any]:
        return {"noise_scale": [self.plan.noise] * self.splitting.steps}

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The mean loss of the bounded records that have features, without the penalty; NOT private."""
        return {"objective": self.settings.loss_row.objective(np.asarray(self.matrix @ weights), self.y)}


class SecureAdmmRun(AdmmRun):
    """``AdmmRun`` with minimisers on a grid and integer noise; all updates of a fit draw from one stream.

    Privacy
    -------
    See ``ResolvedAdmm.secured``.
    """

    def __init__(self, plan: Plan[ResolvedAdmm], matrix: Any, y: Array) -> None:
        super().__init__(plan, matrix, y)
        assert plan.secure is not None
        self.point = plan.secure.first

    @property
    def tau(self) -> float:
        """The tolerance of the search: that of the sensitivity before rounding was charged."""
        return self.sums.tolerance(self.plan.adjacency, self.point.planned)

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``AdmmRun``."""
        with ExitStack() as stack:
            opened = [streams.of(i, lambda rng: stack.enter_context(secure_stream(rng))) for i in range(len(streams))]
            return super().fits(Generators(*opened), trace)

    def _noisy(self, theta: Array, remainder: Array, streams: Generators) -> Array:
        noises = [streams.of(i, functools.partial(self.point.noise, theta.shape[1])) for i in range(len(theta))]
        return np.array([self.point.release(*each) for each in zip(theta, remainder, noises, strict=True)])
