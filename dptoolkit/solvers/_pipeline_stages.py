"""How dp_pipeline prepares rows: which features are kept, with which weights, at which length.

A classifier looks at directions: rows are scaled to norm 1, features weighted, and rows scaled again. For numbers the
length of a row counts: rows are clipped to a public bound and divided by it, and features kept as they are.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, lambertw

from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, clip_rows, product, unit_rows, with_intercept
from dptoolkit.losses import softmax
from dptoolkit.solvers.frame import rules
from dptoolkit.types import Array

# The places of the releases in the plan; numbers have no scale.
DESCENT, MEANS, EIGENVALUE, SCALE = range(4)
COLUMN_MEANS, LARGEST_EIGENVALUE, SLOPE = "column means", "largest eigenvalue", "slope in the scale"
# What a large table releases in the eigenvalue's place.
MOMENTS = "second moments"


def means_sensitivity(adjacency: Adjacency, n: int) -> float:
    """How far one record moves the column means of |x| in L2: the distance of two non-negative unit vectors, over n."""
    return math.sqrt(adjacency.contributions) / n


def column_means(rows: Rows, share: Array) -> Array:
    """sum_i share_i |x_i|: the weighted mean of the absolute entries of each column.

    Privacy
    -------
    NOT private. One record of norm at most 1 moves it in L2 by at most ``means_sensitivity``.
    """
    if not rows.is_sparse:
        return np.asarray(share @ np.abs(rows.matrix))
    matrix = rows.matrix
    sizes = np.abs(matrix.data) * np.repeat(share, np.diff(matrix.indptr))
    return np.asarray(np.bincount(matrix.indices, sizes, minlength=matrix.shape[1]), dtype=np.float64)


def weighted_mean(values: Array, share: Array) -> Array:
    """sum_i share_i values_i over the last axis; each of many sums has the number that it has alone.

    Privacy
    -------
    NOT private. One record moves it by at most its share times how far its value can move.
    """
    return np.asarray((values[..., None, :] @ share)[..., 0])


# Python's function, for arrays: NumPy's own rounds differently.
_hypot = np.vectorize(math.hypot, otypes=[float])


def plane_eigenvalue(rows: Rows, direction: Array, share: Array) -> Array:
    """The largest eigenvalue of the mean of s s^T for s = (<|x|, direction>, intercept's entry): two by two, exact.

    ``rows`` end with the intercept column, ``direction`` is a public unit vector over the others. It is no more than
    the largest eigenvalue of the mean of |x| |x|^T, and near it where the direction is that of the mean row. For a
    stack of matrices, with a direction each, there is one eigenvalue of each.

    Privacy
    -------
    |s| <= |x| <= 1, and the largest eigenvalue of a mean of s s^T moves by at most 1/n when one s is replaced or left
    out. Nothing is iterated, so no tolerance has to be charged.
    """
    return eigenvalue_of(*plane_moments(rows, direction, share))


def plane_moments(rows: Rows, direction: Array, share: Array) -> Array:
    """The three entries of the mean of s s^T: those of the diagonal are the first and the last.

    Privacy
    -------
    NOT private: see ``plane_eigenvalue``.
    """
    all_columns = np.concatenate([direction, np.zeros((*direction.shape[:-1], 1))], axis=-1)
    along = product(abs(rows.matrix), all_columns[..., None])[..., 0]
    last = rows.matrix[:, [-1]].toarray().ravel() if rows.is_sparse else rows.matrix[..., -1]
    return np.stack([weighted_mean(entry, share) for entry in (along * along, along * last, last * last)])


def eigenvalue_of(first: Array, mixed: Array, second: Array) -> Array:
    """The largest eigenvalue of a symmetric matrix, two by two, or of many."""
    return np.asarray((first + second) / 2 + _hypot((first - second) / 2, mixed))


@dataclass(frozen=True)
class Units:
    """The numbers that rows and labels are divided by: public bounds for regression, None for classes.

    Without bounds rows are scaled to norm 1.
    """

    row_norm: float | None = None
    label_bound: float | None = None

    def rows(self, rows: Rows) -> Rows:
        """Rows of norm at most 1: scaled to it, or clipped to ``row_norm`` and divided by it."""
        if self.row_norm is None:
            return unit_rows(rows)
        bounded = clip_rows(rows, self.row_norm)
        values = bounded.matrix.data if bounded.is_sparse else bounded.matrix
        # A part in 1e13 less, so that rounding cannot leave a row above 1.
        return bounded.with_values(values / self.row_norm * (1 - 1e-13))

    def labels(self, y: Array) -> Array:
        """Labels in [-1, 1] for regression, unchanged for classes."""
        return y if self.label_bound is None else np.clip(y, -self.label_bound, self.label_bound) / self.label_bound


def stands_out(means: Array, noise: float) -> NDArray[np.bool_]:
    """Which features are kept: those whose noisy mean is well above the noise."""
    return np.asarray(means > rules.CUT * noise)


@dataclass(frozen=True)
class Preparation:
    """How a row is prepared, which follows from what was released about the columns.

    ``means`` are the noisy means of |x_j|, ``weights`` those of the features, 0 for those that are not kept, ``level``
    is the intercept's entry. Both may have an axis in front: many preparations that keep the same features, each of
    which makes its own matrix of the same rows.
    """

    means: Array
    weights: Array
    level: float
    units: Units = Units()

    @classmethod
    def of(cls, means: Array, noise: float, units: Units | None = None) -> Preparation:
        """Features whose noisy mean stands out; for a classifier, weighted."""
        units = Units() if units is None else units
        prominent = stands_out(means, noise)
        weights = prominent.astype(float)
        if units.row_norm is not None:
            return cls(means, weights, rules.NUMBER_LEVEL, units)
        weights[prominent] = means[prominent] ** -rules.TEMPERING
        return cls(means, weights, rules.LEVEL, units)

    @property
    def kept(self) -> NDArray[np.intp]:
        """The features that are kept."""
        return np.flatnonzero(self.weights.reshape(-1, self.weights.shape[-1])[0])

    @property
    def direction(self) -> Array:
        """The average direction of prepared rows: a unit vector over the kept features."""
        power = 1.0 if self.units.row_norm is not None else rules.MEAN_POWER
        size = np.take(self.means, self.kept, axis=-1) ** power
        norm = np.sqrt(size[..., None, :] @ size[..., None])[..., 0]
        return np.asarray(np.divide(size, norm, out=size.copy(), where=norm > 0))

    @property
    def length(self) -> float:
        """The largest norm of a prepared row without its intercept."""
        return math.sqrt(1 - self.level * self.level)

    def in_units(self, rows: Rows) -> Rows:
        """New rows as the fit made them before this preparation: of norm at most 1."""
        return self.units.rows(rows)

    def features(self, rows: Rows) -> Rows:
        """Kept features of rows in their units, weighted; each row scaled to ``length``, or for regression by it."""
        kept = self.kept
        if rows.is_sparse:
            matrix = rows.matrix[:, kept]
            matrix.sort_indices()
            matrix.data = matrix.data * self.weights[kept][matrix.indices]
        else:
            # In memory feature by feature, as NumPy lays out a choice of columns, and one preparation after the other:
            # the order of sums depends on it, and is to be that of one preparation alone.
            matrix = (rows.matrix.T[kept] * np.take(self.weights, kept, axis=-1)[..., None]).swapaxes(-1, -2)
        if self.units.row_norm is not None:
            return Rows(matrix * self.length, rows.is_sparse)
        return unit_rows(Rows(matrix, rows.is_sparse), self.length)

    def __call__(self, rows: Rows) -> Rows:
        """Prepared rows: of norm at most 1, the intercept last."""
        return with_intercept(self.features(rows), self.level)

    def model(self, weights: Array) -> Array:
        """Weights of prepared rows, over kept features and the intercept, as (..., d + 1) weights that are stored.

        The intercept becomes the number that is added to every margin. For numbers, weights become those of rows and
        labels in the caller's units.
        """
        d = self.means.shape[-1]
        out = np.zeros((*weights.shape[:-1], d + 1))
        out[..., np.append(self.kept, d)] = weights
        out[..., -1] *= self.level
        if self.units.row_norm is not None and self.units.label_bound is not None:
            out[..., :-1] *= self.length / self.units.row_norm
            out *= self.units.label_bound
        return out

    def margins(self, rows: Rows, coef: Array, intercept: float | Array) -> Array:
        """The margins of rows in their units under a stored model; predictions of numbers stay within the bound."""
        if self.units.row_norm is None:
            return np.asarray(self.features(rows).matrix @ coef[..., self.kept].T + intercept)
        predictions = np.asarray(rows.matrix @ (self.units.row_norm * coef) + intercept)
        bound = self.units.label_bound
        return predictions if bound is None else np.clip(predictions, -bound, bound)


# --- the last stage: the scale of a classifier's weights ------------------------------------------------------
#
# Margins are clipped to [-B, B], so that one record moves a slope by a bounded amount whatever the weights are.

# A factor on computed bounds, so that rounding cannot make one too small.
_UP = 1 + 1e-12


def slope_range(adjacency: Adjacency, scale: float) -> float:
    """How far one record moves the sum of -t sigmoid(-c t), t being its signed margin in [-B, B] and c ``scale``.

    The slope lies between -(the maximum of t sigmoid(-c t)) and B sigmoid(c B).
    """
    best, worst = slope_ends(scale)
    return best + worst if adjacency is Adjacency.REPLACE_ONE else max(best, worst)


def slope_ends(scale: float) -> tuple[float, float]:
    """(a, b) such that the slope of one record lies between -a and b."""
    bound = rules.LARGEST_MARGIN
    # t sigmoid(-c t) is largest where c t = 1.278..., with 0.27846.../c; bounded from above.
    best = 0.2784646 / scale if scale * bound >= 1.2785 else bound * float(expit(-scale * bound)) * _UP
    return best, bound * float(expit(scale * bound)) * _UP


def any_slope_range(adjacency: Adjacency, scale: float, classes: int | None) -> float:
    """``slope_range``, or ``class_slope_range`` where there are classes."""
    return slope_range(adjacency, scale) if classes is None else class_slope_range(adjacency, scale, classes)


def any_slope_ends(scale: float, classes: int | None) -> tuple[float, float]:
    """``slope_ends``, or ``class_slope_ends`` where there are classes."""
    return slope_ends(scale) if classes is None else class_slope_ends(scale, classes)


# The interval of logarithms has twice this many parts, whose borders are numbered from 0 on. The search starts in the
# middle; every halving moves it half as far as the one before, the last by one.
MIDDLE = 2**rules.HALVINGS


@functools.lru_cache
def scale_table(adjacency: Adjacency, classes: int | None) -> tuple[Array, Array]:
    """(scales, ``any_slope_range`` there) at all borders of the search. Nobody may change them."""
    logs = (rules.LARGEST_LOG_SCALE * (place / MIDDLE - 1) for place in range(2 * MIDDLE))
    scales = [math.exp(log) for log in logs]
    return np.array(scales), np.array([any_slope_range(adjacency, scale, classes) for scale in scales])


def largest_slope(adjacency: Adjacency, classes: int | None = None) -> float:
    """``any_slope_range`` at the worst of all scales that may be tried: the middles of 1, 2, 4, ... equal parts."""
    return float(scale_table(adjacency, classes)[1][2::2].max())


def slope(margins: Array, scale: Any, share: Array) -> Array:
    """The derivative of the mean logistic loss of ``scale`` times signed margins, which are clipped to [-B, B].

    With an axis in front of the records', one of each of many fits, at its own scale.

    Privacy
    -------
    NOT private. One record moves the sum over records by at most ``slope_range``.
    """
    return weighted_mean(slopes_of(margins, scale), share)


def slopes_of(margins: Array, scale: Any) -> Array:
    """The slope of every record; see ``slope``."""
    t = np.clip(margins, -rules.LARGEST_MARGIN, rules.LARGEST_MARGIN)
    return np.asarray(-t * expit(-np.asarray(scale)[..., None] * t))


def class_slope_range(adjacency: Adjacency, scale: float, classes: int) -> float:
    """How far one record moves the sum of <p - e_y, m>, p = softmax(c m), with K margins m in [-B, B] and c ``scale``.

    The most is 2B (1 - p_y) where m_y = -B and the others are B: the mean of the m_k - m_y <= 2B weighted with p_k, and
    1 - p_y is largest there. The least is -W((K-1)/e)/c with Lambert's W: with u_k = m_y - m_k the negative slope is
    f = sum u_k exp(-c u_k) / (1 + sum exp(-c u_k)), stationary only where every u_k = 1/c + f, and there
    (K-1) exp(-1 - c f) = c f. Classes whose u_k is infinite count as absent, and fewer classes have a smaller W.
    """
    best, worst = class_slope_ends(scale, classes)
    return best + worst if adjacency is Adjacency.REPLACE_ONE else max(best, worst)


def class_slope_ends(scale: float, classes: int) -> tuple[float, float]:
    """(a, b) such that the slope of one record lies between -a and b; see ``class_slope_range``."""
    bound = rules.LARGEST_MARGIN
    best = float(lambertw((classes - 1) / math.e).real) / scale * _UP
    return best, 2 * bound * float(expit(2 * scale * bound + math.log(classes - 1))) * _UP


def class_slope(margins: Array, labels: Array, scale: Any, share: Array) -> Array:
    """The derivative of the mean softmax loss of ``scale`` times margins, which are clipped to [-B, B]; see ``slope``.

    Privacy
    -------
    NOT private. One record moves the sum over records by at most ``class_slope_range``.
    """
    return weighted_mean(class_slopes_of(margins, labels, scale), share)


def class_slopes_of(margins: Array, labels: Array, scale: Any) -> Array:
    """The slope of every record; see ``class_slope``."""
    m = np.clip(margins, -rules.LARGEST_MARGIN, rules.LARGEST_MARGIN)
    probabilities = softmax(np.asarray(scale)[..., None, None] * m)
    return np.asarray(np.einsum("...k,...k->...", probabilities - labels, m))


def mean_slope(margins: Array, y: Array, scale: Any, share: Array, classes: int | None) -> Array:
    """``slope`` of two classes, or ``class_slope``, by what ``product`` gives as margins.

    Privacy
    -------
    NOT private: see there.
    """
    if classes is None:
        return slope((2 * y - 1) * margins[..., 0], scale, share)
    return class_slope(margins, y, scale, share)
