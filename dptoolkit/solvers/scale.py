"""The last stage of dp_pipeline: the scale of a classifier's weights, from noisy slopes of the loss in that scale.

Margins are clipped to [-B, B], so that one record moves a slope by a bounded amount whatever the weights are.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, lambertw

from dptoolkit.adjacency import Adjacency
from dptoolkit.losses import softmax
from dptoolkit.solvers import rules
from dptoolkit.solvers.preparation import weighted_mean

Array = NDArray[np.float64]
# A factor on computed bounds, so that rounding cannot make one too small.
_UP = 1 + 1e-12


def slope_range(adjacency: Adjacency, scale: float) -> float:
    """How far one record moves the sum of -t sigmoid(-c t), t being its signed margin in [-B, B] and c ``scale``.

    The slope lies between -(the maximum of t sigmoid(-c t)) and B sigmoid(c B).
    """
    bound = rules.LARGEST_MARGIN
    # t sigmoid(-c t) is largest where c t = 1.278..., with 0.27846.../c; bounded from above.
    best = 0.2784646 / scale if scale * bound >= 1.2785 else bound * float(expit(-scale * bound)) * _UP
    worst = bound * float(expit(scale * bound)) * _UP
    return best + worst if adjacency is Adjacency.REPLACE_ONE else max(best, worst)


def any_slope_range(adjacency: Adjacency, scale: float, classes: int | None) -> float:
    """``slope_range``, or ``class_slope_range`` where there are classes."""
    return slope_range(adjacency, scale) if classes is None else class_slope_range(adjacency, scale, classes)


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
    t = np.clip(margins, -rules.LARGEST_MARGIN, rules.LARGEST_MARGIN)
    return weighted_mean(-t * expit(-np.asarray(scale)[..., None] * t), share)


def class_slope_range(adjacency: Adjacency, scale: float, classes: int) -> float:
    """How far one record moves the sum of <p - e_y, m>, p = softmax(c m), with K margins m in [-B, B] and c ``scale``.

    The most is 2B (1 - p_y) where m_y = -B and the others are B: the mean of the m_k - m_y <= 2B weighted with p_k, and
    1 - p_y is largest there. The least is -W((K-1)/e)/c with Lambert's W: with u_k = m_y - m_k the negative slope is
    f = sum u_k exp(-c u_k) / (1 + sum exp(-c u_k)), stationary only where every u_k = 1/c + f, and there
    (K-1) exp(-1 - c f) = c f. Classes whose u_k is infinite count as absent, and fewer classes have a smaller W.
    """
    bound = rules.LARGEST_MARGIN
    best = float(lambertw((classes - 1) / math.e).real) / scale * _UP
    worst = 2 * bound * float(expit(2 * scale * bound + math.log(classes - 1))) * _UP
    return best + worst if adjacency is Adjacency.REPLACE_ONE else max(best, worst)


def class_slope(margins: Array, labels: Array, scale: Any, share: Array) -> Array:
    """The derivative of the mean softmax loss of ``scale`` times margins, which are clipped to [-B, B]; see ``slope``.

    Privacy
    -------
    NOT private. One record moves the sum over records by at most ``class_slope_range``.
    """
    m = np.clip(margins, -rules.LARGEST_MARGIN, rules.LARGEST_MARGIN)
    probabilities = softmax(np.asarray(scale)[..., None, None] * m)
    return weighted_mean(np.einsum("...k,...k->...", probabilities - labels, m), share)
