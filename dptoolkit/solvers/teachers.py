"""Teachers of knowledge transfer: how far one record moves them, and the certified fit.

A ridge teacher on a PUBLIC set of features minimises mean loss + (l2/2)|w|^2. With the sum J of n times that,
lambda = n l2, neighbours D and D' and their exact minimisers w and w', strong convexity gives

    lambda |w - w'| <= |grad J'(w) - grad J(w)| <= 2L (replace-one) or L (zero-out),

as J and J' differ in one record (on a ball the same holds by the variational inequalities of both minimisers). L
bounds one record's gradient at a minimiser, whose size is bounded: see ``Ridge.largest``. A computed teacher is within
tau/lambda of the exact one on every data set, by the certificate of ``minimise``, which includes rounding; the search
never gives up. So it moves by at most (2L + 2 tau)/lambda, and by the rounding of its entries to doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dptoolkit import losses, minimise
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Array, Rows
from dptoolkit.geometry import Ball, l2_ball
from dptoolkit.losses import Loss
from dptoolkit.solvers.bounds import GradientBounds
from dptoolkit.solvers.perturbed_objective import SumScaling

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
        smoothness = self.bounds.smoothness
        assert smoothness is not None
        return SumScaling(self.n, self.l2, self.bounds.gradient, smoothness)

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
    loss: Loss, adjacency: Adjacency, n: int, row_norm: float | None, feature_bound: float | None,
    label_bound: float | None,
) -> float:  # fmt: skip
    """How far the difference of two scores moves between neighbours; see ``scores``.

    With c = (1/n) sum_i r_i x_i, r_i the slope of record i's loss at w = 0, at most R, the scores are |c_j|. One record
    r x moves |c_i| up by at most R |x_i|/n and |c_j| down by at most R |x_j|/n, so their difference by
    R (|x_i| + |x_j|)/n: at most 2 R K/n if entries are at most K, at most sqrt(2) R B/n if rows have norm at most B.
    Twice that if one record leaves and another comes. Attained where c_i and c_j are large and of one sign, and x_i
    and x_j of opposite sign. The last term is for rounding: a sum of n products errs by gamma(n + 2) of its bound.
    """
    residual = loss.residual_limit(0.0, math.inf if label_bound is None else label_bound)
    entry = row_norm if feature_bound is None else feature_bound
    assert entry is not None
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
