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
    w = 0, 2 far away (the set is the same for both labels, up to sign). In a plane that contains w, along direction f
    the gradients have length at most M(f) = max over rho <= 1 of rho sigmoid(rho radius cos f), and the distance to any
    point is convex along the ray, so the diameter is the largest |M(f) u(f) - M(g) u'(g)| with opposite parts across w.
    The grid misses at most curvature * (half a step)^2, which is added; 2 sigmoid(radius) caps it.
    """
    angles = np.linspace(0.0, np.pi, 65)
    cosine, sine = np.cos(angles), np.sin(angles)
    length = _ray_length(radius * cosine)
    along, across = length * cosine, length * sine
    distances = (along[:, None] - along[None, :]) ** 2 + (across[:, None] + across[None, :]) ** 2
    best = math.sqrt(float(distances.max()))
    # |g'| <= 1 + radius/4 and |g''| <= 1 + 3 radius/4 + radius^2/8 along the curve g(f) = M(f) u(f).
    first, second = 1 + radius / 4, 1 + 0.75 * radius + radius * radius / 8
    half_step = math.pi / 128
    margin = (second + 2 * first * first / max(best, 1.0)) * half_step**2
    return min(best + margin, 2 * float(expit(radius)))


# argmax of a sigmoid(-a): beyond it a shorter x makes a longer gradient.
_LONGEST = 1.2784645427610738


def _ray_length(slope: Array) -> Array:
    """max over rho in [0, 1] of rho sigmoid(rho slope)."""
    inside = np.minimum(-slope, _LONGEST)
    with np.errstate(divide="ignore", invalid="ignore"):
        shorter = inside * expit(-inside) / -slope
    return np.where(slope < -_LONGEST, shorter, expit(slope))
