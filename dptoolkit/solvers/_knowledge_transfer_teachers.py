"""Teachers of knowledge transfer: how far one record moves them, the certified fit, and one fit of the whole.

A teacher is fitted to private records; its answers to public queries are released with noise, and a student learns
from them.

A ridge teacher on a PUBLIC set of features minimises mean loss + (l2/2)|w|^2. With the sum J of n times that,
lambda = n l2, neighbours D and D' and their exact minimisers w and w', strong convexity gives

    lambda |w - w'| <= |grad J'(w) - grad J(w)| <= 2L (replace-one) or L (zero-out),

as J and J' differ in one record (on a ball the same holds by the variational inequalities of both minimisers). L
bounds one record's gradient at a minimiser, whose size is bounded: see ``Ridge.largest``. A computed teacher is within
tau/lambda of the exact one on every data set, by the certificate of ``minimise``, which includes rounding; the search
never gives up. So it moves by at most (2L + 2 tau)/lambda, and by the rounding of its entries to doubles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, progress
from dptoolkit._validate import SMALLEST
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, clip_entries, clip_rows
from dptoolkit.losses import Loss
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.mechanisms.stability import top_with_gap
from dptoolkit.optimise import minimise
from dptoolkit.optimise.geometry import Ball, l2_ball
from dptoolkit.solvers import _knowledge_transfer_features as public_features
from dptoolkit.solvers._knowledge_transfer_features import GivenFeatures
from dptoolkit.solvers.engine.bounds import GradientBounds, constant
from dptoolkit.solvers.engine.descent import ClippedRecords, IhtRun, Steps
from dptoolkit.solvers.engine.objective import SumScaling
from dptoolkit.solvers.frame.plan import Plan, Release
from dptoolkit.solvers.frame.run import Run, Trials, group_equal
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._knowledge_transfer import ResolvedTransfer


# The teachers by name; the last is the paper's own, for whose movement between neighbours no bound is known.
SUPPORT, RIDGE, DP_IGHT, TESTED, IGHT = "support", "ridge", "dp-ight", "propose-test-release", "ight"
TEACHERS = (SUPPORT, RIDGE, DP_IGHT, TESTED)
# Half a unit of double and of long double.
_UNIT, _FINE_UNIT = 2.0**-53, 2.0**-64
# tau as a share of one record's gradient: so small that charging for it costs nothing.
_TAU_SHARE, _LARGEST_TAU_SHARE = 1e-6, 1e-3


@dataclass(frozen=True)
class Ridge:
    """The public numbers of a ridge teacher: of ``width`` features, rows of norm at most ``row_norm``."""

    loss: Loss
    n: int
    width: int
    row_norm: float
    l2: float
    label_bound: float | None
    radius: float | None
    adjacency: Adjacency

    @property
    def largest(self) -> float:
        """An upper bound of |w| at the exact minimiser: from lambda |w| <= n sup|gradient|, J(w) <= J(0), or a ball."""
        limits = [math.inf if self.radius is None else self.radius]
        if not self.loss.is_bounded:
            assert self.label_bound is not None
            # With singular values t of X/sqrt(n), |w| <= max t/(t^2 + l2) |y|/sqrt(n); the maximum is at t = sqrt(l2).
            limits.append(self.label_bound / (2 * math.sqrt(self.l2)))
        else:
            limits.append(self.row_norm * self.loss.residual_bound / self.l2)
        if self.loss.task == losses.BINARY:
            limits.append(math.sqrt(2 * math.log(2) / self.l2))
        return min(limits) * (1 + 1e-12)

    @property
    def ball(self) -> Ball | None:
        """The ball in which the minimiser is searched: the caller's, or for the squared loss one that contains it."""
        return l2_ball(self.largest) if not self.loss.is_bounded or self.radius is not None else None

    @cached_property
    def bounds(self) -> GradientBounds:
        """One record at an exact minimiser."""
        return GradientBounds(self.loss, self.row_norm, label_bound=self.label_bound).within(self.largest)

    @property
    def sums(self) -> SumScaling:
        """The problem in the scaling of the sum."""
        return SumScaling(self.n, self.l2, self.bounds.gradient, self.bounds.smoothness)

    @property
    def residual_bound(self) -> float:
        """sup |f'| wherever the search may go: on the ball, or anywhere."""
        return self.loss.residual_bound if self.ball is None else self.bounds.gradient / self.row_norm

    @property
    def tau(self) -> float:
        """The certified tolerance, in the scaling of the sum.

        It is what doubles can reach, as long as its part of the sensitivity is negligible. With very many records it
        would not be, and then tau is what a search with more digits can reach.
        """
        gradient = self.sums.gradient
        with_doubles = min(4 * self._rounding(_UNIT), _LARGEST_TAU_SHARE * gradient)
        return max(_TAU_SHARE * gradient, with_doubles, 4 * self._rounding(_FINE_UNIT))

    def _rounding(self, unit: float) -> float:
        return minimise.rounding_error(
            n=self.n, nonzeros=self.width, row_norm=self.row_norm, residual_bound=self.residual_bound,
            smoothness=self.loss.smoothness, l2=self.sums.l2, theta_norm=self.largest, linear_norm=0.0, unit=unit,
        )  # fmt: skip

    @property
    def furthest(self) -> float:
        """An upper bound of |w| at the computed minimiser."""
        return self.largest + self.tau / self.sums.l2

    @property
    def movement(self) -> float:
        """How far the computed teacher moves in L2 between neighbours.

        A certified point has two doubles an entry, and a teacher keeps the first. So each of the two teachers is off by
        one more rounding of its entries.
        """
        rounding = 2 * _UNIT * self.furthest
        return (self.sums.movement(self.adjacency, self.tau) + rounding) * (1 + 8 * _UNIT)

    def answers_movement(self, norm: float, squares: float) -> float:
        """How far its answers to public features move in L2, given |X|_op and |X|_F^2.

        The last term is for rounding: an answer errs by gamma(width + 4) times the sizes of its row and of the teacher.
        """
        rounding = 2 * 2 * (self.width + 4) * _UNIT * math.sqrt(squares) * self.furthest
        return (norm * self.movement + rounding) * (1 + 1e-12)

    def problem(self, rows: Rows, y: Array) -> minimise.Problem:
        """The problem of the teacher on these records: clipped rows of the teacher's features."""
        bounded, labels, _ = self.bounds.clip(rows, y)
        return minimise.Problem(
            bounded.matrix, labels, self.loss, self.sums.l2, np.zeros(self.width), self.row_norm, self.residual_bound,
            self.ball,
        )  # fmt: skip

    def fit(self, rows: Rows, y: Array) -> Array:
        """The certified teacher, rounded to one double an entry.

        Privacy
        -------
        NOT private. Between neighbours it moves by at most ``movement``, which includes that rounding.
        """
        return minimise.minimise(self.problem(rows, y), self.tau).theta


def best_l2(ridge: Ridge, mu: float, noisy_weights: float) -> float:
    """The l2 that balances shrinking against noise, by public numbers alone.

    Rows at their bound that point everywhere alike have the eigenvalue e = smoothness row_norm^2/width. Weights whose
    margins have the size of a label (of 2 for the logistic loss) are shrunk by l2/(e + l2); ``noisy_weights`` of them
    carry noise movement/mu each. The sum of squares is made smallest on a grid.
    """
    spread = ridge.row_norm / math.sqrt(ridge.width)
    eigenvalue = ridge.loss.smoothness * spread * spread
    unit = 2.0 if ridge.loss.task == losses.BINARY else ridge.label_bound or 1.0

    def error(l2: float) -> float:
        shrunk = unit / spread * l2 / (eigenvalue + l2)
        noise = replace(ridge, l2=l2).movement / mu
        return shrunk * shrunk + noisy_weights * noise * noise

    return min((float(eigenvalue * share) for share in np.logspace(-4, 1, 51)), key=error)


# --- the scores of a support ----------------------------------------------------------------------------------


def scores_range(
    loss: Loss, adjacency: Adjacency, n: int, row_norm: float, feature_bound: float | None, label_bound: float | None
) -> float:
    """How far the difference of two scores moves between neighbours; see ``scores``.

    With c = (1/n) sum_i r_i x_i, r_i the slope of record i's loss at w = 0, at most R, the scores are |c_j|. One record
    r x moves |c_i| up by at most R |x_i|/n and |c_j| down by at most R |x_j|/n, so their difference by
    R (|x_i| + |x_j|)/n: at most 2 R K/n if entries are at most K, at most sqrt(2) R B/n if rows have norm at most B.
    Twice that if one record leaves and another comes. Attained where c_i and c_j are large and of one sign, and x_i
    and x_j of opposite sign. The last term is for rounding: a sum of n products errs by gamma(n + 2) of its bound.
    """
    residual = loss.residual_limit(0.0, math.inf if label_bound is None else label_bound)
    entry = row_norm if feature_bound is None else feature_bound
    pair = math.sqrt(2) * entry * (1 + 2.0**-50) if feature_bound is None else 2 * entry
    rounding = 4 * 2 * (n + 4) * _UNIT * residual * entry
    return adjacency.contributions * residual * pair / n + rounding


def scores(rows: Rows, y: Array, loss: Loss) -> Array:
    """|mean gradient at w = 0| of clipped records: how much each feature explains alone.

    Privacy
    -------
    NOT private; ``scores_range`` bounds how far one record moves them against each other.
    """
    slopes = loss.residual(np.zeros(len(y)), y)
    return np.abs(np.asarray(rows.matrix.T @ slopes)) / len(y)


# --- one fit --------------------------------------------------------------------------------------------------


class Teacher(NamedTuple):
    """A teacher's weights on ``columns``, None for all features."""

    columns: NDArray[np.intp] | None
    weights: Array


class TransferRun(Run):
    """Teacher, answers and student with the data in place; exact scores and teachers are computed once.

    Privacy
    -------
    A call makes the plan's releases: the support, then the noisy answers of the teacher on it. The student sees no
    more than those. Exact scores and teachers never leave the run.
    """

    def __init__(self, plan: Plan[ResolvedTransfer], rows: Rows, y: Array) -> None:
        settings = plan.settings
        self.plan, self.settings = plan, settings
        self.rows = rows if settings.feature_bound is None else clip_entries(rows, settings.feature_bound)
        bound = settings.label_bound
        self.y = y if bound is None else np.clip(y, -bound, bound)
        # Exact teachers by their features: a run that is called often fits each once.
        self._teachers: dict[bytes, Array] = {}
        self._known: dict[bytes, Teacher] = {}
        self.size = 2 * (settings.m) + 8 * plan.d
        if settings.teacher in (SUPPORT, TESTED):
            self.scores = self._scores()
        if settings.teacher == DP_IGHT:
            inner = settings.private_teacher()
            self._private = inner.bind(Plan(inner, plan.n, plan.d, plan.releases, secure=plan.secure), rows, y)

    def _scores(self) -> NDArray[Any]:
        """Of all features, doubles or integers of a grid; NOT private."""
        return scores(self._scored(), self.y, self.settings.loss_row)

    def _scored(self) -> Rows:
        settings = self.settings
        return self.rows if settings.feature_bound is not None else clip_rows(self.rows, settings.row_norm)

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; those of one teacher are made together.

        The one row of releases holds a test's noisy gap, the support and the noisy answers; 0 for what is absent.
        """
        settings, runs = self.settings, len(streams)
        histories: list[dict[str, Any]] = [{} for _ in range(runs)]
        teachers = self._teach(streams, histories)
        weights, answers = np.zeros((runs, self.plan.d)), np.zeros((runs, settings.m))
        for members in group_equal([id(one) for one in teachers]):
            teacher = teachers[members[0]]
            if teacher is None:
                continue
            matrix = settings.matrix(self.plan.d, teacher.columns)
            answers[members] = self._answers(matrix, teacher, streams, members, histories)
            places = np.arange(self.plan.d) if teacher.columns is None else teacher.columns
            weights[np.ix_(np.array(members), places)] = self._student(matrix, answers[members])
        if not trace:
            return Trials(weights, history=histories.__getitem__)
        supports = [history.get("support", np.zeros(settings.sparsity)) for history in histories]
        gaps = [[history.get("noisy_gap", 0.0)] for history in histories]
        columns = np.reshape(gaps, (runs, 1)), np.reshape(supports, (runs, settings.sparsity)), answers
        release = np.concatenate(columns, axis=1)
        return Trials(weights, release[:, None], weights[:, None], history=histories.__getitem__)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The mean loss of the fit's own records; NOT private."""
        return {"objective": self.settings.loss_row.objective(np.asarray(self.rows.matrix @ weights), self.y)}

    # --- teachers ----------------------------------------------------------------------------------------------

    def _teach(self, rng: Generators, histories: list[dict[str, Any]]) -> list[Teacher | None]:
        """The teacher of every fit; None where a test forbids to teach. Equal teachers are one object."""
        name, runs = self.settings.teacher, len(rng)
        if name == RIDGE:
            return [self._teacher(None, self.ridge(None))] * runs
        if name == IGHT:
            if not self._teachers:
                self._teachers[b""] = self.ight()
            return [self._teacher(None, self._teachers[b""])] * runs
        if name == DP_IGHT:
            return [self._private_teacher(rng.of(i, self._private.fit), history) for i, history in enumerate(histories)]
        supports = self._supports(rng, histories)
        for history, columns in zip(histories, supports, strict=True):
            if columns is not None:
                history["support"] = columns
        return [None if columns is None else self._teacher(columns, self.ridge(columns)) for columns in supports]

    def _teacher(self, columns: NDArray[np.intp] | None, weights: Array) -> Teacher:
        return self._known.setdefault(b"" if columns is None else columns.tobytes(), Teacher(columns, weights))

    def _private_teacher(self, release: tuple[Array, dict[str, Any]], history: dict[str, Any]) -> Teacher:
        weights, inner = release
        history["noise_scale"] = inner["noise_scale"]
        columns = np.sort(np.argsort(weights == 0, kind="stable")[: self.settings.sparsity])
        history["support"] = columns
        return Teacher(columns, weights[columns])

    def _supports(self, rng: Generators, histories: list[dict[str, Any]]) -> Sequence[NDArray[np.intp] | None]:
        """The largest scores: after Gumbel noise, or exactly where the test allows it."""
        choice, s, runs = self.plan.releases[1], self.settings.sparsity, len(rng)
        if self.settings.teacher == SUPPORT:
            for history in histories:
                history["selection_scale"] = choice.scale
            scores_ = np.broadcast_to(self.scores, (runs, len(self.scores)))
            return list(np.sort(choice.mechanism.top_rows(scores_, s, rng), axis=1))
        columns, gap = top_with_gap(self.scores, s)
        supports: list[NDArray[np.intp] | None] = []
        for i, history in enumerate(histories):
            history["stable"], history["noisy_gap"] = rng.of(i, functools.partial(choice.mechanism.test, gap))
            supports.append(columns if history["stable"] else None)
        return supports

    def ridge(self, columns: NDArray[np.intp] | None) -> Array:
        """The certified ridge on these features; NOT private."""
        key = b"" if columns is None else columns.tobytes()
        if key not in self._teachers:
            part = self.rows if columns is None else self.rows.columns(columns)
            self._teachers[key] = self.settings.ridge(self.plan.n, self.plan.d).fit(part, self.y)
        return self._teachers[key]

    def ight(self) -> Array:
        """The paper's teacher: hard thresholding with an l2 term, without noise; NOT private."""
        settings = self.settings
        assert settings.steps is not None and settings.step_size is not None, "this teacher iterates"
        matrix = clip_rows(self.rows, settings.row_norm).matrix
        w: Array = np.zeros(self.plan.d)
        for _ in progress.steps(settings.steps):
            slopes = settings.loss_row.residual(np.asarray(matrix @ w), self.y)
            v = w - settings.step_size * (np.asarray(matrix.T @ slopes) / self.plan.n + settings.penalty * w)
            top = np.argsort(-np.abs(v), kind="stable")[: settings.sparsity]
            w = np.zeros_like(v)
            w[top] = v[top]
        return w

    # --- answers and student ------------------------------------------------------------------------------------

    def _answers(
        self, matrix: Any, teacher: Teacher, rng: Generators, members: list[int], histories: list[dict[str, Any]]
    ) -> Array:
        """The teacher's answers to the public features, with noise unless the teacher is private itself."""
        exact = np.asarray(matrix @ teacher.weights)
        if self.settings.teacher == DP_IGHT:
            return exact
        release = self._at(teacher.columns)
        for i in members:
            histories[i]["noise_scale"] = release.scale
        values = np.broadcast_to(exact, (len(members), len(exact)))
        return np.asarray(rng.among(members, functools.partial(release.mechanism.release, values)))

    def _at(self, columns: NDArray[np.intp] | None) -> Release:
        """The release of the answers; a part of a given matrix has a smaller norm, and needs less noise."""
        release = self.plan.releases[0]
        if columns is None or not isinstance(self.settings.features, GivenFeatures):
            return release
        movement = self.settings.answers_movement(self.plan.n, self.plan.d, columns)
        # Columns of zeros, or nearly so, keep a noise that can be drawn: nothing may fail once the support is released.
        share = min(max(movement, 2 * SMALLEST) / release.sensitivity, 1.0)
        return replace(release, sensitivity=share * release.sensitivity, scale=share * release.scale)

    def _student(self, matrix: Any, answers: Array) -> Array:
        """Hard thresholding on public features and each row of noisy answers: post-processing."""
        settings = self.settings
        norm = settings.norm(self.plan.d)
        if isinstance(settings.features, GivenFeatures) and settings.on_support:
            norm = max(public_features.operator_norm(matrix), SMALLEST)
        rows = Rows(matrix, hasattr(matrix, "indptr"))
        steps = Steps(settings.student_steps, answers.shape[1] / norm**2, settings.sparsity, False)
        return IhtRun(ClippedRecords(rows, answers[0], losses.get("squared")), steps, constant(0.0)).relabelled(answers)
