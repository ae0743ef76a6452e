"""Public bounds on one record's gradient, and the sensitivity of a query between neighbours that follows from them.

Records are clipped to the bounds here, next to the sensitivity, so that the bounds hold for everything a solver uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import LARGEST, invalid, magnitude
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, clip_entries, clip_rows, joint_norm, with_intercept
from dptoolkit.losses import Loss
from dptoolkit.solvers.frame.settings import public_bound
from dptoolkit.types import Array

# For solvers that select features: the entry of an intercept's column in units of the feature bound. It is about as
# small as the entries of rows of norm 1.
INTERCEPT_LEVEL = 0.1


@dataclass(frozen=True)
class GradientBounds:
    """The L2 bound of one record's gradient, and the clipping that makes it true.

    ``row_norm`` bounds rows without their intercept, ``grad_norm`` a record's gradient, ``label_bound`` and
    ``margin_bound`` labels and predictions.
    """

    loss: Loss
    row_norm: float | None = None
    grad_norm: float | None = None
    label_bound: float | None = None
    margin_bound: float | None = None
    fit_intercept: bool = False

    def check(self) -> None:
        """Refuse bounds that leave a gradient unbounded, and bounds that would be ignored."""
        self._refuse_unused()
        for name in ("row_norm", "grad_norm", "label_bound", "margin_bound"):
            if getattr(self, name) is not None:
                magnitude(name, getattr(self, name))
        if self.row_norm is None and (self.grad_norm is None or self._is_lipschitz):
            public_bound("row_norm", None, "the largest L2 norm of a row")
        if self._needs_clipping and (self.label_bound is None or self.margin_bound is None):
            raise invalid(
                "grad_norm",
                None,
                "given for the squared loss, or both label_bound and margin_bound",
                "The squared loss has unbounded gradients: clip each record's gradient, or labels and predictions.",
            )

    @property
    def _is_lipschitz(self) -> bool:
        return self.loss.residual_bound < math.inf

    @property
    def _needs_clipping(self) -> bool:
        """Whether labels and predictions must be clipped, as nothing else bounds the residual."""
        return not self._is_lipschitz and self.grad_norm is None

    def _refuse_unused(self) -> None:
        """A bound that changes nothing would leave the caller believing that labels or predictions are clipped."""
        if self._needs_clipping:
            return
        why = f"for the {self.loss.name} loss" if self._is_lipschitz else "with grad_norm, which bounds gradients alone"
        for name in ("label_bound", "margin_bound"):
            if getattr(self, name) is not None:
                repair = "It is only for the squared loss without grad_norm: leave it out."
                raise invalid(name, getattr(self, name), f"None {why}", repair)

    @property
    def joint_norm(self) -> float:
        """The L2 bound of a row with its intercept; infinite where there is none."""
        return math.inf if self.row_norm is None else joint_norm(self.row_norm, self.fit_intercept)

    @property
    def largest_margin(self) -> float:
        """The bound at which margins are clipped; infinite if they are not."""
        return math.inf if self.margin_bound is None else self.margin_bound

    def within(self, radius: float) -> GradientBounds:
        """The bounds where |w|_2 <= ``radius``, as in an L2 or L1 ball of that radius: a margin is at most |x| |w|."""
        return replace(self, margin_bound=self.joint_norm * radius)

    @property
    def gradient(self) -> float:
        """The largest |gradient|_2 of one bounded record, at any weights."""
        label = math.inf if self.label_bound is None else self.label_bound
        residual = self.loss.residual_norm(self.largest_margin, label)
        natural = math.inf if self.row_norm is None else residual * self.joint_norm
        return natural if self.grad_norm is None else min(self.grad_norm, natural)

    @property
    def difference(self) -> float:
        """The largest |gradient(w) - gradient(s)|_2 of one bounded record.

        In general two gradients of size at most G differ by at most 2 G. Where the label gives both residuals the same
        sign, which clipping does not change, they differ by at most G. Where margins are clipped the label cancels.
        """
        if self.loss.signed:
            return self.gradient
        if self.label_bound is None:
            return 2 * self.gradient
        return 2 * self.largest_margin * self.joint_norm

    @property
    def smoothness(self) -> float:
        """A bound on the second derivative of one record's loss; infinite where rows are not bounded."""
        return math.inf if self.row_norm is None else self.loss.smoothness * self.joint_norm * self.joint_norm

    def sensitivity(self, adjacency: Adjacency, size: int) -> float:
        """How far the mean of ``size`` gradients moves in L2 between neighbours."""
        return adjacency.contributions * self.gradient / size

    def difference_sensitivity(self, adjacency: Adjacency, size: int) -> float:
        """How far the mean of ``size`` gradient differences moves in L2 between neighbours."""
        return adjacency.contributions * self.difference / size

    def clip(self, rows: Rows, labels: Array) -> tuple[Rows, Array, Array | None]:
        """(rows, labels, caps of the residuals) such that every record's gradient obeys the bound.

        Privacy
        -------
        Each record is changed on its own, by public numbers: afterwards |gradient_i| <= ``gradient`` at any weights.
        """
        # Even where no bound is asked for, rows are kept short enough that margins and caps are accurate floats.
        norm, grad_norm = LARGEST if self.row_norm is None else self.row_norm, self.grad_norm
        rows = _bounded(rows, clip_rows, norm, 1.0 if self.fit_intercept else None)
        if self.label_bound is not None:
            labels = np.clip(labels, -self.label_bound, self.label_bound)
        if grad_norm is None:
            return rows, labels, None
        return rows, labels, rows.cached(("caps", grad_norm), lambda: rows.caps(grad_norm))


@dataclass(frozen=True)
class EntryBounds:
    """The largest |entry| of one record's gradient, and the clipping that makes it true.

    ``feature_bound`` bounds |X_ij|, ``label_bound`` labels; an intercept is a column constant at ``level``.
    """

    loss: Loss
    feature_bound: float
    label_bound: float | None = None
    fit_intercept: bool = False

    @property
    def level(self) -> float:
        """The entry of the intercept's column: small, as at the feature bound the intercept would be selected first."""
        return INTERCEPT_LEVEL * self.feature_bound

    def entry(self, l1_norm: float) -> float:
        """The largest |entry| of a record's gradient at weights with |w|_1 <= ``l1_norm``."""
        return self.feature_bound * self.residual_limit(l1_norm)

    def residual_limit(self, l1_norm: float) -> float:
        """The largest |residual| of a record at weights with |w|_1 <= ``l1_norm``."""
        label = math.inf if self.label_bound is None else self.label_bound
        return self.loss.residual_limit(self.feature_bound * l1_norm, label)

    def clip(self, rows: Rows, labels: Array) -> tuple[Rows, Array]:
        """Rows and labels clipped to the bounds, with the intercept column if asked for.

        Privacy
        -------
        Each record is changed on its own, by public numbers: afterwards its gradient's entries obey ``entry``.
        """
        rows = _bounded(rows, clip_entries, self.feature_bound, self.level if self.fit_intercept else None)
        if self.label_bound is not None:
            labels = np.clip(labels, -self.label_bound, self.label_bound)
        return rows, labels


def _bounded(rows: Rows, clip: Callable[[Rows, float], Rows], bound: float, level: float | None) -> Rows:
    """The rows clipped to ``bound``, with an intercept column at ``level`` if it is given; made once for all fits."""

    def make() -> Rows | None:
        clipped = clip(rows, bound)
        if level is not None:
            return with_intercept(clipped, level)
        # None stands for the rows themselves: if they held a reference to themselves, they would stay in memory until
        # Python's garbage collector looks for cycles.
        return None if clipped is rows else clipped

    bounded: Rows | None = rows.cached((clip.__name__, bound, level), make)
    return rows if bounded is None else bounded


def score_range(adjacency: Adjacency, radius: float, entry: float, size: int) -> float:
    """The range of the change of the scores <s, mean gradient> of the vertices s = +-radius e_j.

    A score moves by at most contributions * radius * entry / size, and the score of -s moves the other way: the range
    is twice that.
    """
    return 2 * adjacency.contributions * radius * entry / size


# --- noise at public weights ----------------------------------------------------------------------------------
#
# At some weights one record can move a query by less than its bound. There the noise shrinks in the same proportion, so
# that the event of the release, which depends only on the ratio of the two, stays as planned.

# Radii at which shares are tabulated: this many a unit, up to the last; beyond it the share is 1.
_GRID, _FURTHEST = 16, 40
# The radius is enlarged by this part before the lookup, so that a rounding error of |w| cannot select a smaller entry.
_ROUNDING = 1e-10


@dataclass(frozen=True)
class NoiseLaw:
    """Gaussian noise of standard deviation ``scale`` times a share that depends on |w|_2.

    The share at |w| is shares[ceil(places |w|)]; beyond the table, and where |w| is NaN, it is the last share, which is
    1. Kernels receive ``arguments`` and look it up in the same way.
    """

    scale: float
    shares: Array
    places: float

    @property
    def is_constant(self) -> bool:
        """Whether the noise is the same at all weights."""
        return len(self.shares) == 1

    @property
    def arguments(self) -> tuple[float, Array, float]:
        """(scale, shares, places), as kernels take them."""
        return self.scale, self.shares, self.places

    def __call__(self, w: Any) -> Any:
        """The standard deviation at public weights, or at many of them, one per row."""
        scales = self.scale * self.share(_norms(w))
        return float(scales) if np.ndim(scales) == 0 else scales

    def share(self, norm: Any) -> Any:
        """The share at |w|_2 = ``norm``."""
        last = len(self.shares) - 1
        # NaN fails either comparison and gets the last share.
        if np.ndim(norm) == 0:
            reach = float(norm) * self.places
            return self.shares[math.ceil(reach) if reach < last else last]
        with np.errstate(over="ignore"):
            place = np.ceil(np.asarray(norm) * self.places)
        return self.shares[np.where(place < last, place, last).astype(np.intp)]


def _norms(w: Any) -> Any:
    """|w|_2 of every row, also where its squares underflow: a margin bound may be as small as these weights."""
    w = np.asarray(w)
    norms = np.linalg.norm(w, axis=-1)
    if not (norms < 1e-140).any():
        return norms
    largest = np.abs(w).max(axis=-1, initial=0.0)
    units = np.where(largest > 0, largest, 1.0)
    with np.errstate(invalid="ignore"):
        return np.where(norms < 1e-140, units * np.linalg.norm(w / units[..., None], axis=-1), norms)


def constant(scale: float) -> NoiseLaw:
    """The same noise at all weights."""
    return NoiseLaw(scale, np.ones(1), 0.0)


def gradient_law(
    scale: float,
    loss: losses.Loss,
    row_norm: float,
    around_zero: bool,
    margin: float = math.inf,
    label: float = math.inf,
) -> NoiseLaw:
    """The noise of a mean gradient of records with |x|_2 <= row_norm, at public weights.

    ``around_zero`` says that a record may be left out, by Poisson sampling or by zeroing it, so that the ball around 0
    counts; otherwise one record is replaced by another and the diameter counts. ``margin`` and ``label`` are the public
    bounds of both; where margins are clipped, that bound is the unit of the table.
    """
    unit = margin if margin < math.inf else 1.0
    shares = _shares(loss.name, around_zero, margin / unit, label / unit)
    return NoiseLaw(scale, shares, _GRID * (row_norm / unit) * (1 + _ROUNDING))


@lru_cache
def _shares(name: str, around_zero: bool, margin: float, label: float) -> Array:
    """The sensitivity at each radius row_norm |w| of a grid, as a share of the largest at any w; the last one is 1."""
    loss = losses.get(name)
    largest = loss.residual_limit(margin, label)
    radii = [i / _GRID for i in range(_GRID * _FURTHEST + 1)]
    if around_zero or loss.diameter is None:
        reach = [loss.residual_limit(min(r, margin), label) / largest for r in radii]
    else:
        reach = [loss.diameter(r, margin, label) / (2 * largest) for r in radii]
    return np.append(np.maximum.accumulate(reach), 1.0)
