"""The closed table of losses, with the constants that privacy needs.

A loss is a function of a row's margin m = <x, w> (K margins for softmax) and its label; the data term of every
objective is the MEAN over rows. The gradient of one row is residual(m, y) * x, so a bound on the residual and a bound
on x bound what one record can do:

    |gradient|_2   <= residual_bound * row_norm          (hard thresholding)
    |gradient|_inf <= residual_bound * feature_bound     (Frank-Wolfe)

A new loss needs an id here, a branch in ``residual`` (and in kernels/frank_wolfe.py), its constants, and their proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dptoolkit._validate import invalid

Array = NDArray[np.float64]

SQUARED, LOGISTIC, HUBER, SOFTMAX = 0, 1, 2, 3
# Residuals of the Huber loss are clipped here; labels can be rescaled to suit.
HUBER_THRESHOLD = 1.0


@dataclass(frozen=True)
class Loss:
    """One row of the table.

    residual_bound: sup |d loss / d margin|, infinite for the squared loss, whose margins and labels must be bounded.
    smoothness: sup of the second derivative in the margin.
    """

    name: str
    id: int
    task: str
    residual_bound: float
    smoothness: float


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("squared", SQUARED, "regression", math.inf, 1.0),
        Loss("logistic", LOGISTIC, "binary", 1.0, 0.25),
        Loss("huber", HUBER, "regression", HUBER_THRESHOLD, 1.0),
        Loss("softmax", SOFTMAX, "multiclass", 1.0, 0.5),
    )
}


def get(name: str, allowed: tuple[str, ...] = tuple(LOSSES)) -> Loss:
    """The loss of that name."""
    if name not in allowed:
        raise invalid("loss", name, "one of " + ", ".join(repr(a) for a in allowed))
    return LOSSES[name]


def residual(loss: Loss, margin: Array, y: Array) -> Array:
    """d loss / d margin; for softmax ``margin`` and ``y`` (one-hot) have shape (n, K)."""
    if loss.id == LOGISTIC:
        return np.asarray(expit(margin) - y)
    if loss.id == SOFTMAX:
        return softmax(margin) - y
    difference = margin - y
    return np.clip(difference, -HUBER_THRESHOLD, HUBER_THRESHOLD) if loss.id == HUBER else difference


def value(loss: Loss, margin: Array, y: Array) -> float:
    """The mean loss."""
    if loss.id == LOGISTIC:
        return float(np.mean(np.logaddexp(0.0, margin) - y * margin))
    if loss.id == SOFTMAX:
        top = margin.max(axis=1, keepdims=True)
        log_total = np.log(np.exp(margin - top).sum(axis=1)) + top[:, 0]
        return float(np.mean(log_total - (margin * y).sum(axis=1)))
    r = np.abs(margin - y)
    if loss.id == HUBER:
        return float(np.mean(np.where(r <= HUBER_THRESHOLD, r * r / 2, HUBER_THRESHOLD * (r - HUBER_THRESHOLD / 2))))
    return float(np.mean(r * r) / 2)


def softmax(margin: Array) -> Array:
    """Row-wise softmax."""
    shifted = np.exp(margin - margin.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def logistic_diameter(radius: float) -> float:
    """An upper bound on the diameter of {sigmoid(<w, x>) x : |x|_2 <= 1} when |w|_2 = radius.

    It bounds how far one replaced record moves a sum of logistic gradients at a PUBLIC w, per unit of row norm: 1 at
    w = 0, 2 far away (the set is the same for both labels, up to sign). At most 0.08% above the diameter; equal to it,
    2 max over c of sigmoid(radius c) sqrt(1 - c^2), from radius 2.1 on.

    Proof. Let a line L(t) = A + B t lie above sigmoid(radius t) on [-1, 1]. Write t = <x, w>/|w| and h(u) = sup over x
    of sigmoid(radius t) <x, u>, the support function. As h >= 0 (x = 0), only x with <x, u> >= 0 decide it, and for
    those L is no less: the set lies in the convex hull of {L(t) x}. There, unit x suffice: for u not along w,
    moving x across w raises <x, u> and leaves t. For unit x, x' put s = (x + x')/2, e = (x - x')/2, which are
    orthogonal, |s|^2 + |e|^2 = 1. Along w they have parts s1, e1 with (s1/|s|)^2 + (e1/|e|)^2 <= 1, so
        |L x - L' x'|^2 / 4 = |(A + B s1) e + B e1 s|^2 = (A + B s1)^2 |e|^2 + B^2 e1^2 |s|^2
                           <= |e|^2 (A^2 + 2 A B s1 + B^2 |s|^2) <= (1 - |s|^2) (A + B |s|)^2,
    and the diameter is at most 2 max over c in [0, 1] of (A + B c) sqrt(1 - c^2).
    """
    # Also for a radius that is not a number: the largest noise is then the safe one.
    if not radius <= _FAR:
        return 2.0
    level, slope = _line_above_sigmoid(radius)
    root = math.sqrt(level * level + 8 * slope * slope)
    # (sqrt(A^2 + 8 B^2) - A) / 4B, without the division by B = 0.
    c = 2 * slope / (root + level)
    bound = 2 * (level + slope * c) * math.sqrt(1 - c * c)
    # Ten roundings or so; 1 is the distance between the gradients at x = w/|w| and x = -w/|w|.
    return max(1.0, min(bound * (1 + 1e-14), 2 * _sigmoid(radius)))


# Beyond this the diameter is within one part in a million of 2.
_FAR = 1e4


def _line_above_sigmoid(radius: float) -> tuple[float, float]:
    """(A, B) with A + B t >= sigmoid(radius t) on [-1, 1]: the tangent at a point z >= 0 of radius t.

    The tangent is above sigmoid for positive arguments, where sigmoid is concave. For negative ones sigmoid is convex
    and the difference concave, so it is enough that the tangent is above sigmoid at -radius. The z of the best bound
    maximises sigmoid(z) sqrt(radius^2 - z^2); if its tangent is too low at -radius, a larger z must do.
    """
    lowest = _sigmoid(-radius)
    # For any radius up to _FAR both conditions hold at 40. Any z that passes is valid: 26 halvings are for tightness.
    low, high = 0.0, min(radius, 40.0)
    for _ in range(26):
        z = (low + high) / 2
        s, rest = _sigmoid(z), _sigmoid(-z)
        if z >= (radius * radius - z * z) * rest and s - s * rest * (radius + z) >= lowest:
            high = z
        else:
            low = z
    s, rest = _sigmoid(high), _sigmoid(-high)
    return s - s * rest * high, s * rest * radius


def _sigmoid(z: float) -> float:
    """One number: ten times faster than scipy's."""
    e = math.exp(-abs(z))
    return 1 / (1 + e) if z >= 0 else e / (1 + e)
