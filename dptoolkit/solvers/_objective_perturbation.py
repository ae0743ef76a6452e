"""Objective perturbation: the minimiser of a regularised convex loss to which a random linear term was added.

Algorithm 7 of Wang's lecture 16, after Chaudhuri, Monteleoni and Sarwate 2011 and Kifer, Smith and Thakurta 2012. Their
proofs are for exact minimisers, which no computer has. Here the minimiser is found to a certified tolerance tau,
always, and released with a little Gaussian noise that hides what is missing: a second event, paid from the same budget.
What the first event costs is computed from the exact reduction in ``accounting.objective``.

Callers speak of the MEAN loss; theory and minimiser of the SUM. ``SumScaling`` is where the two meet.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit._validate import invalid, magnitude, one_of, whole
from dptoolkit.accounting import Composed, Gaussian, calibrate, objective
from dptoolkit.accounting.events import Event
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows
from dptoolkit.mechanisms.objective import Squeeze
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.optimise import minimise, newton
from dptoolkit.optimise.geometry import Ball, group_l1_ball, l1_ball, l2_ball
from dptoolkit.solvers.engine.bounds import GradientBounds
from dptoolkit.solvers.engine.objective import ROUNDING, SumScaling, bounded_records
from dptoolkit.solvers.engine.secure_points import PointNoise, TermNoise, charged_point, term_noise
from dptoolkit.solvers.frame import outlook, rules
from dptoolkit.solvers.frame.fit import private_solver
from dptoolkit.solvers.frame.outlook import Outlook
from dptoolkit.solvers.frame.plan import GAMMA_TERM, GAUSSIAN, GAUSSIAN_TERM, LAWS, TOLERANCE, Plan, Release
from dptoolkit.solvers.frame.run import Run, Trials, written_out
from dptoolkit.solvers.frame.secure import SecurePlan, not_secure, secure_stream
from dptoolkit.solvers.frame.settings import Resolved, Settings, public_bound, setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published


LINEAR_LAWS = {"gaussian": GAUSSIAN_TERM, "gamma": GAMMA_TERM}
CONSTRAINTS = ("l2", "l1", "group-l1")
# The shift of the output noise as a share of one record's gradient over the noise, L/sigma; a tenth costs half a per
# cent of sigma. With gamma noise, which is pure, the Gaussian output noise alone uses delta, so its share must be
# smaller.
_OFFSET_SHARES = {GAUSSIAN_TERM: 0.1, GAMMA_TERM: 0.01}


@dataclass(frozen=True, kw_only=True)
class PerturbedObjective(Settings):
    """Private minimiser of mean loss + (l2/2)|w|^2 + <b, w>, with b random, over all w or over a ball.

    Privacy
    -------
    Two releases. The exact minimiser: one record's gradient is at most L, so the linear term must hide 2L/n
    (replace-one) or L/n (zero-out). Event: ObjectivePerturbation(noise/that, log(1 + curvature/(n l2)), signed,
    adjacency), or PureDp for gamma noise. What is missing to the exact minimiser: at most tau/(n l2) on every data set,
    by a certificate that includes rounding errors. Event: Gaussian. The search never gives up, so acceptance tells
    nothing; how long it takes depends on the data. Under zero-out a row of zeros is no record: it has no intercept
    either. Public: n, d, all arguments.
    """

    solver: ClassVar[str] = "objective_perturbation"

    loss: str = setting('"logistic", "huber", "hinge" (its corner rounded), or "squared" with a constraint.')
    l2: float | None = setting(
        "Weight of |w|^2/2 beside the MEAN loss; the intercept is regularised too. By default it follows from n, the "
        "bounds and the budget (docs/rules.md).",
        default=None,
    )
    row_norm: float | None = setting("Public L2 bound of a row; longer rows are scaled down.", default=None)
    constraint: str | None = setting(
        'Ball to which the weights are constrained, including the intercept: "l2", "l1" or "group-l1"; None for no '
        "constraint.",
        default=None,
    )
    radius: float | None = setting("Radius of the ball.", default=None)
    group_size: int | None = setting('Number of consecutive weights in a group, for "group-l1".', default=None)
    label_bound: float | None = setting("Public bound at which labels are clipped, for the squared loss.", default=None)
    fit_intercept: bool = setting("Whether to fit an intercept, as the weight of a column of ones.", default=False)
    law: str = setting(
        'Law of b: "gaussian", or "gamma" for a density proportional to exp(-|b|/noise). The output noise needs '
        "delta > 0 for both.",
        default="gaussian",
    )

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

    def resolved(self, n: int, d: int) -> ResolvedPerturbed:
        """See ``Settings``."""
        return self.settled(ResolvedPerturbed, **self._perturbed_checked(n))

    def _perturbed_checked(self, n: int) -> dict[str, Any]:
        """The values of the settings, checked, with their defaults filled in."""
        one_of("law", self.law, tuple(LINEAR_LAWS))
        if self.constraint is not None:
            one_of("constraint", self.constraint, CONSTRAINTS, "Or None.")
        bounded = self.loss_row.is_bounded
        if self.constraint is None:
            self._refuse("radius", "with a constraint")
        if self.constraint != "group-l1":
            self._refuse("group_size", "with constraint='group-l1'")
        if bounded:
            self._refuse("label_bound", "for the squared loss; the others have bounded slopes")
        elif self.constraint is None:
            raise invalid("constraint", None, "a ball for the squared loss", "Its gradient is bounded only on a ball.")
        values: dict[str, Any] = {
            "row_norm": public_bound("row_norm", self.row_norm, "the L2 norm of a row"),
            "radius": None if self.constraint is None else public_bound("radius", self.radius, "the size of the ball"),
            "group_size": None
            if self.group_size is None and self.constraint != "group-l1"
            else whole("group_size", self.group_size, low=1),
            "label_bound": public_bound("label_bound", self.label_bound, "the largest |label|")
            if not bounded
            else None,
        }
        if self.l2 is not None:
            return values | {"l2": magnitude("l2", self.l2)}
        bounds, adjacency = replace(self, **values).bounds, Adjacency.parse(self.adjacency)
        l2 = rules.penalty(bounds, adjacency, n, *self.linear_budget)
        return values | {"l2": magnitude("l2", l2, "Give l2: where row_norm is extreme, no rule is known.")}

    @property
    def linear_budget(self) -> tuple[float, float]:
        """The part of (epsilon, delta) that the linear term has."""
        return self.epsilon, self.delta

    def _refuse(self, name: str, use: str) -> None:
        if getattr(self, name) is not None:
            raise invalid(name, getattr(self, name), "None here", f"It works {use}: leave it out.")


@dataclass(frozen=True, kw_only=True)
class ResolvedPerturbed(Resolved, PerturbedObjective):
    """The settings of ``objective_perturbation`` in a plan; without a constraint there is no radius."""

    l2: float
    row_norm: float

    @property
    def has_intercept(self) -> bool:
        """See ``Resolved``."""
        return self.fit_intercept

    @property
    def label_limit(self) -> float | None:
        """See ``Resolved``."""
        return self.label_bound

    @property
    def ball(self) -> Ball | None:
        """The constraint set; None for all weights."""
        if self.constraint is None or self.radius is None:
            return None
        if self.group_size is not None:
            return group_l1_ball(self.radius, self.group_size)
        return {"l2": l2_ball, "l1": l1_ball}[self.constraint](self.radius)

    def sums(self, n: int) -> SumScaling:
        """The problem in the scaling of the sum."""
        return SumScaling(n, self.l2, self.bounds.gradient, self.bounds.smoothness)

    # --- the releases ---------------------------------------------------------------------------------

    def squeeze(self, n: int) -> Squeeze:
        """How much one record changes volume under the map from noise to minimiser."""
        return Squeeze(self.sums(n).jacobian, self.loss_row.signed, self.adjacency)

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The linear term, and the output noise that hides the inexact solve."""
        sums, law = self.sums(n), LINEAR_LAWS[self.law]
        if paper is not None:
            noise = paper.scales["linear term"]
        elif math.isinf(self.epsilon):
            noise = 0.0
        else:
            sums.check_affordable(self.epsilon)
            multiplier = _multiplier(law, self.squeeze(n), self.epsilon, self.delta)
            noise = sums.sensitivity(self.adjacency) * multiplier * ROUNDING
        return self.linear_releases(n, d, noise)

    def linear_releases(self, n: int, d: int, noise: float) -> tuple[Release, ...]:
        """The two releases with a linear term of scale ``noise`` in the scaling of the sum; 0 for none."""
        sums, law = self.sums(n), LINEAR_LAWS[self.law]
        sensitivity = sums.sensitivity(self.adjacency)
        width = self.width(d)
        # Without noise the solve is as precise as with that of one record's size.
        effective = noise or sums.gradient
        spread = effective * math.sqrt(width + 1) if law == GAMMA_TERM else effective
        tolerance = minimise.reachable_tolerance(
            n=n, d=width, row_norm=self.bounds.joint_norm, residual_bound=sums.gradient / self.bounds.joint_norm,
            smoothness=self.loss_row.smoothness, l2=sums.l2, noise=spread,
            offset=_OFFSET_SHARES[law] * sums.gradient / effective, radius=self.radius,
        )  # fmt: skip
        distance = 2 * tolerance.tau / sums.l2
        return (
            Release("linear term", law, sums.down(sensitivity), sums.down(noise), 1, squeeze=self.squeeze(n)),
            Release("inexact minimiser", GAUSSIAN, distance, tolerance.scale * ROUNDING if noise else 0.0, 1),
        )

    def published(self, n: int, d: int) -> Published:
        """Theorem 16.8 of the lecture, for an exact minimiser."""
        from dptoolkit import published

        sums = self.sums(n)
        if self.law == "gamma":
            return published.objective_perturbation_pure(
                sums.gradient, self.epsilon, sums.curvature, sums.l2, self.adjacency
            )
        return published.objective_perturbation(
            sums.gradient, self.epsilon, self.delta, sums.curvature, sums.l2, self.adjacency
        )

    def outlook(self, plan: Plan) -> Outlook | None:
        """See ``Resolved``; where the loss is flat, the minimiser is the mean gradient over l2, and so is the noise."""
        if self.law != "gaussian":
            return None
        return outlook.descent(
            time=1 / self.l2,
            weight_noise=plan.noise / self.l2,
            gradient=self.bounds.gradient,
            row_norm=self.bounds.joint_norm,
            classes=2 if self.loss_row.task == losses.BINARY else None,
            remedy="A larger l2 helps: leave it out for the rule's.",
        )

    # --- secure noise ---------------------------------------------------------------------------------

    def searched(self, d: int) -> int:
        """The number of weights that are searched for, with the intercept's."""
        return self.width(d)

    def first_released(self, plan: Plan) -> int:
        """See ``Resolved``; the noisy minimiser."""
        return 1

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``; a rounded linear term, and a rounded point with integer noise.

        Privacy
        -------
        Instead of the ideal term b = s Z the search gets the nearest multiples of a unit g_b, which are within
        g_b sqrt(d)/2 of b. By strong convexity their minimisers are within g_b sqrt(d)/(2 n l2). So the certified point
        is within (tau + g_b sqrt(d)/2)/(n l2) of the exact minimiser for the IDEAL term, which is what the first event
        is about. The second event hides the difference: its sensitivity grows by g_b sqrt(d)/(n l2), and by what
        rounding the point adds. The event is that of the plan.
        """
        linear, output = plan.releases[:2]
        if linear.law != GAUSSIAN_TERM:
            raise not_secure("for the gamma linear term", "Use law='gaussian'.")
        term, width = term_noise(linear, plan.n), self.searched(plan.d)
        apart = term.unit * math.sqrt(width) / self.sums(plan.n).l2
        charged, point = charged_point(output, width, apart)
        return replace(plan, releases=(linear, charged, *plan.releases[2:]), secure=SecurePlan((term, point)))

    # --- the run --------------------------------------------------------------------------------------

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> Run:
        """See ``Resolved``."""
        return self.perturbed_run(plan, *written_out(rows, y, counts))

    def perturbed_run(self, plan: Plan, rows: Rows, y: Array) -> PerturbedRun:
        """The run on these records, clipped, with their intercept."""
        kind = PerturbedRun if plan.secure is None else SecurePerturbedRun
        return kind(plan, *bounded_records(self.bounds, self.adjacency, rows, y))


objective_perturbation = private_solver(PerturbedObjective)


def events(law: str, squeeze: Squeeze, multiplier: float) -> Event:
    """The linear term and the output noise, with noise ``multiplier`` per sensitivity of the linear term."""
    term = LAWS[law](multiplier, 1.0, squeeze).event
    return Composed(term, Gaussian(multiplier * squeeze.adjacency.contributions / _OFFSET_SHARES[law]))


@functools.lru_cache(maxsize=256)
def _multiplier(law: str, squeeze: Squeeze, epsilon: float, delta: float) -> float:
    """The smallest noise per sensitivity that keeps the budget, both events together, or a little more."""
    guess = first_guess(law, squeeze, epsilon, delta)
    # A closed form is within 1e-4, so that one step from it is mostly the last one.
    return calibrate(
        lambda z: events(law, squeeze, z), epsilon, delta, guess=guess, near=law == GAUSSIAN_TERM,
        relative_tolerance=TOLERANCE,
    )  # fmt: skip


def first_guess(law: str, squeeze: Squeeze, epsilon: float, delta: float) -> float:
    """The noise per sensitivity by closed form: where the search by privacy-loss distributions starts."""
    if law == GAMMA_TERM:
        return 1 / (epsilon - squeeze.jacobian)
    numbers = {"gradient_bound": 1.0, "curvature": math.expm1(squeeze.jacobian), "l2": 1.0}
    noise = objective.noise(
        epsilon, delta, adjacency=squeeze.adjacency, signed=squeeze.signed, offset_share=_OFFSET_SHARES[law],
        relative_tolerance=1e-5, **numbers,
    )  # fmt: skip
    return noise / squeeze.adjacency.contributions


class PerturbedRun(Run):
    """Objective perturbation with bounded data in place.

    Privacy
    -------
    A call draws a fresh linear term and releases the minimiser with its output noise: the plan's two releases. Neither
    the linear term nor the minimiser without noise leaves the run, nor does anything about the search.
    """

    def __init__(self, plan: Plan[ResolvedPerturbed], matrix: Any, y: Array) -> None:
        settings = plan.settings
        self.plan, self.settings, self.matrix, self.y = plan, settings, matrix, y
        self.sums, self.ball = settings.sums(plan.n), settings.ball
        self.linear, self.output = plan.releases[:2]
        self.size = 2 * matrix.shape[0] * matrix.shape[1] + 16 * matrix.shape[1] ** 2

    @property
    def tau(self) -> float:
        """The tolerance that the output release was planned for, in the scaling of the sum."""
        return self.output.sensitivity * self.sums.l2 / 2

    def problem(self, mean_term: Array) -> minimise.Problem:
        """The problem to minimise for this linear term, which is given in the scaling of the mean."""
        joint = self.settings.bounds.joint_norm
        return minimise.Problem(
            self.matrix, self.y, self.settings.loss_row, self.sums.l2, self.sums.up(mean_term), joint,
            self.sums.gradient / joint, self.ball,
        )  # fmt: skip

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; there is one release, the noisy minimiser before projection, and one iterate, after it."""
        width, none = self.matrix.shape[1], np.zeros((len(streams), self.matrix.shape[1]))
        terms = self.linear.mechanism.draw_rows(width, streams) if self.linear.scale > 0 else none
        theta, remainder = newton.minimise_rows(self.problem(np.zeros(width)), self.sums.up(terms), self.tau)
        # The point has two doubles an entry; the smaller ones go into the noise before anything is rounded.
        return self._released(theta + self.output.mechanism.release(remainder, streams), trace)

    def _released(self, releases: Array, trace: bool) -> Trials:
        """The fits of these noisy minimisers: what follows is post-processing."""
        weights = releases if self.ball is None else np.array([self.ball.project(row) for row in releases])
        kept = (releases[:, None], weights[:, None]) if trace else (None, None)
        return Trials(weights, *kept, history=self._history)

    def _history(self, i: int) -> dict[str, Any]:
        return {"noise_scale": self.linear.scale, "output_scale": self.output.scale}

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective without the linear term; NOT private."""
        penalty = self.settings.l2 / 2 * float(weights @ weights)
        return {"objective": self.settings.loss_row.objective(np.asarray(self.matrix @ weights), self.y) + penalty}


class SecurePerturbedRun(PerturbedRun):
    """``PerturbedRun`` with a rounded linear term, points on a grid and integer noise, from a cryptographic stream.

    Privacy
    -------
    See ``ResolvedPerturbed.secured``: the plan's two releases, exactly.
    """

    def __init__(self, plan: Plan[ResolvedPerturbed], matrix: Any, y: Array) -> None:
        super().__init__(plan, matrix, y)
        assert plan.secure is not None
        term, point = plan.secure.parts[:2]
        assert isinstance(term, TermNoise) and isinstance(point, PointNoise)
        self.term, self.point = term, point

    @property
    def tau(self) -> float:
        """The tolerance of the search, in the scaling of the sum: the planned one, before rounding was charged."""
        return float(self.point.planned * self.sums.l2 / 2)

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``PerturbedRun``; each fit has a stream of its own."""
        terms, noises = zip(*(streams.of(i, self._draws) for i in range(len(streams))), strict=True)
        theta, remainder = newton.minimise_rows(self.problem(np.zeros(self.matrix.shape[1])), np.array(terms), self.tau)
        points = [self.point.release(*each) for each in zip(theta, remainder, noises, strict=True)]
        return self._released(np.array(points), trace)

    def _draws(self, rng: Any) -> tuple[Array, NDArray[np.int64]]:
        """The linear term in the scaling of the sum, and the noise of the point in grid units."""
        width = self.matrix.shape[1]
        with secure_stream(rng) as stream:
            return self.term.draw(width, stream), self.point.noise(width, stream)
