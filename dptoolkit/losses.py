"""The closed table of losses: ONE row each, with all that solvers, audits and tests need to know.

A loss is a function of a row's margin m = <x, w> (K margins for softmax) and its label; the data term of every
objective is the MEAN over rows. The gradient of one row is residual(m, y) * x, so a bound on the residual and a bound
on x bound what one record can do:

    |gradient|_2   <= residual_bound * row_norm          (hard thresholding)
    |gradient|_inf <= residual_bound * feature_bound     (Frank-Wolfe)

A new loss is a row here and a branch in every compiled copy of ``residual`` (docs/add-a-loss.md); the tests compare
each copy with the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from scipy.special import expit

from dptoolkit._validate import invalid
from dptoolkit.types import Array

# Residuals of the Huber loss are clipped here; labels can be rescaled to suit.
HUBER_THRESHOLD = 1.0
# The smoothed hinge is quadratic on margins (times the label's sign) from 1 - HINGE_WIDTH to 1.
HINGE_WIDTH = 0.5
REGRESSION, BINARY, MULTICLASS = "regression", "binary", "multiclass"


@dataclass(frozen=True)
class Loss:
    """One row of the table.

    Attributes
    ----------
    name : str
        The name in arguments and reports.
    id : int
        The number of the loss in kernels.
    task : {"regression", "binary", "multiclass"}
        Real labels, labels 0 and 1, or one-hot labels.
    residual : callable
        (margins, labels) -> d loss / d margin.
    objective : callable
        (margins, labels) -> the mean loss.
    residual_limit : callable
        (margin, label) -> the largest |residual| where |margin| and |label| are at most these public numbers.
    smoothness : float
        The supremum of the second derivative in the margin.
    signed : bool, default False
        Whether a record's residual has the same sign at all margins, so that two of its residuals differ by at most the
        residual bound.
    linear : bool, default False
        Whether the residual is linear in the margin.
    diameter : callable or None, default None
        (radius, margin, label) -> an upper bound on the diameter of {residual(<w, x>, y) x : |x|_2 <= 1} at |w|_2 =
        radius, where margins are clipped and labels bounded at these public numbers. None unless it is known to be less
        than twice the largest residual.
    capped_smoothness : callable or None, default None
        cap -> the supremum of the derivative of a residual that is clipped to +-cap. None where it is ``smoothness``
        for every cap.
    curvature : callable or None, default None
        (margins, labels, cautious) -> the second derivative at each margin. A cautious one is that of the flattest
        parabola that lies above the loss and touches it there. ``minimise`` needs it together with ``exact_residual``;
        None for a loss that ``minimise`` does not take.
    exact_residual : callable or None, default None
        (margin, label) -> the residual of one row in decimal arithmetic, to the precision of the decimal context.
    note : str, default ""
        A remark that generated docstrings add to the name.
    """

    name: str
    id: int
    task: str
    residual: Callable[[Array, Array], Array]
    objective: Callable[[Array, Array], float]
    residual_limit: Callable[[float, float], float]
    smoothness: float
    signed: bool = False
    linear: bool = False
    diameter: Callable[[float, float, float], float] | None = None
    capped_smoothness: Callable[[float], float] | None = None
    curvature: Callable[[Array, Array, bool], Array] | None = None
    exact_residual: Callable[[Decimal, Decimal], Decimal] | None = None
    note: str = ""

    @property
    def residual_bound(self) -> float:
        """The supremum of |residual|: infinite for the squared loss, whose margins and labels must be bounded."""
        return self.residual_limit(math.inf, math.inf)

    @property
    def is_bounded(self) -> bool:
        """Whether residuals have a bound without bounds of margins and labels."""
        return math.isfinite(self.residual_bound)

    @property
    def saturates(self) -> bool:
        """Whether a label that is far enough away holds a record's residual at its bound, of either sign."""
        return self.task == REGRESSION and self.is_bounded

    def residual_norm(self, margin: float, label: float) -> float:
        """The largest L2 norm of one record's residuals, where |margin| and |label| are at most these numbers.

        Softmax has K of them, p - e_y: their squares add up to (1 - p_y)^2 + sum of the other p_k^2 <= 2 (1 - p_y)^2.
        """
        limit = self.residual_limit(margin, label)
        return math.sqrt(2) * limit if self.task == MULTICLASS else limit

    def clipped_residual(self, margin: Array, y: Array, margin_bound: float, caps: Array | None) -> Array:
        """The residual after clipping margins to +-margin_bound and each residual to +-caps[i].

        A margin that overflows in both directions is NaN, and its record's residual counts as 0, so that one record
        cannot spoil the whole gradient.
        """
        r = self.residual(np.clip(margin, -margin_bound, margin_bound), y)
        r = np.where(np.isnan(r), 0.0, r)
        return r if caps is None else np.clip(r, -caps, caps)


def get(name: str, allowed: tuple[str, ...] | None = None) -> Loss:
    """The loss of that name, one of the ``allowed``."""
    names = tuple(LOSSES) if allowed is None else allowed
    if name not in names:
        raise invalid("loss", name, "one of " + ", ".join(repr(a) for a in names))
    return LOSSES[name]


def described(names: tuple[str, ...]) -> str:
    """The names as a docstring lists them."""
    words = [f'"{name}"' + (f" ({LOSSES[name].note})" if LOSSES[name].note else "") for name in names]
    return f"{', '.join(words[:-1])} or {words[-1]}"


# --- the functions of the rows -----------------------------------------------------------------------------


def _squared_residual(margin: Array, y: Array) -> Array:
    return np.asarray(margin - y)


def _squared_objective(margin: Array, y: Array) -> float:
    r = np.abs(margin - y)
    return float(np.mean(r * r) / 2)


def _squared_limit(margin: float, label: float) -> float:
    return margin + label


def _squared_curvature(margin: Array, y: Array, cautious: bool) -> Array:
    return np.ones_like(y)


def _squared_exact(margin: Decimal, y: Decimal) -> Decimal:
    return margin - y


def _logistic_residual(margin: Array, y: Array) -> Array:
    return np.asarray(expit(margin) - y)


def _logistic_objective(margin: Array, y: Array) -> float:
    return float(np.mean(np.logaddexp(0.0, margin) - y * margin))


def _logistic_limit(margin: float, label: float) -> float:
    """|sigmoid(m) - y| <= sigmoid(|m|) for y in {0, 1}."""
    return float(expit(margin))


def _logistic_capped(cap: float) -> float:
    """s (1 - s), where s <= cap is the largest residual that is not clipped."""
    return cap * (1 - cap) if cap < 0.5 else 0.25


def _logistic_curvature(margin: Array, y: Array, cautious: bool) -> Array:
    if cautious:
        half = np.maximum(np.abs(margin) / 2, 1e-6)
        return np.asarray(np.tanh(half) / half / 4)
    p = expit(margin)
    return np.asarray(p * (1 - p))


def _logistic_exact(margin: Decimal, y: Decimal) -> Decimal:
    small = (-abs(margin)).exp()
    return (1 / (1 + small) if margin >= 0 else small / (1 + small)) - y


def _huber_residual(margin: Array, y: Array) -> Array:
    return np.clip(margin - y, -HUBER_THRESHOLD, HUBER_THRESHOLD)


def _huber_objective(margin: Array, y: Array) -> float:
    r = np.abs(margin - y)
    return float(np.mean(np.where(r <= HUBER_THRESHOLD, r * r / 2, HUBER_THRESHOLD * (r - HUBER_THRESHOLD / 2))))


def _huber_limit(margin: float, label: float) -> float:
    return min(HUBER_THRESHOLD, margin + label)


def _huber_curvature(margin: Array, y: Array, cautious: bool) -> Array:
    size = np.maximum(np.abs(margin - y), 1e-300) / HUBER_THRESHOLD
    return np.minimum(1 / size, 1.0) if cautious else (size < 1).astype(float)


def _huber_exact(margin: Decimal, y: Decimal) -> Decimal:
    threshold = Decimal(HUBER_THRESHOLD)
    return max(min(margin - y, threshold), -threshold)


def _hinge_residual(margin: Array, y: Array) -> Array:
    """-s clip((1 - s m) / width, 0, 1) for the label's sign s: the slope of a hinge whose corner is rounded."""
    sign = 2.0 * y - 1.0
    return np.asarray(-sign * np.clip((1.0 - sign * margin) / HINGE_WIDTH, 0.0, 1.0))


def _hinge_objective(margin: Array, y: Array) -> float:
    short = np.maximum(1.0 - (2.0 * y - 1.0) * margin, 0.0)
    corner = short * short / (2 * HINGE_WIDTH)
    return float(np.mean(np.where(short <= HINGE_WIDTH, corner, short - HINGE_WIDTH / 2)))


def _hinge_limit(margin: float, label: float) -> float:
    return min(1.0, (1.0 + margin) / HINGE_WIDTH)


def _hinge_curvature(margin: Array, y: Array, cautious: bool) -> Array:
    short = 1.0 - (2.0 * y - 1.0) * margin
    beyond = np.maximum(np.maximum(-short, short - HINGE_WIDTH), 0.0)
    return np.asarray(1 / (HINGE_WIDTH + 2 * beyond) if cautious else (beyond == 0) / HINGE_WIDTH)


def _hinge_exact(margin: Decimal, y: Decimal) -> Decimal:
    sign = 2 * y - 1
    return -sign * max(min((1 - sign * margin) / Decimal(HINGE_WIDTH), Decimal(1)), Decimal(0))


def _softmax_residual(margin: Array, y: Array) -> Array:
    return softmax(margin) - y


def _softmax_objective(margin: Array, y: Array) -> float:
    top = margin.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(margin - top).sum(axis=1)) + top[:, 0]
    return float(np.mean(log_total - (margin * y).sum(axis=1)))


def _softmax_limit(margin: float, label: float) -> float:
    """An entry of the residual is |p_k - y_k| <= 1."""
    return 1.0


def _softmax_capped(cap: float) -> float:
    """The largest derivative of residuals whose norm is clipped to ``cap``.

    By Gershgorin the Hessian is at most 2 max p_k (1 - p_k), and 1 - p_y is at most the norm of the residuals.
    """
    return 2 * cap * (1 - cap) if cap < 0.5 else 0.5


def softmax_limit(margins: Array) -> Array:
    """The largest |p_k - y_k| of a record whose margin of class k is at most margins[..., k] in size.

    It is 1 - p_y, as the other p_k add up to that. Where y's margin is -a_y and the others' are a_k, that is
    sigmoid(a_y + log of the sum of the other e^a_k), and larger nowhere. With u = e^a_y and the sum T of all e^a_k the
    argument is log u (T - u); for two classes with u1 >= u2 it differs by (T - u1 - u2)(u1 - u2) >= 0, so that the
    class of the largest margin decides.
    """
    sizes = np.sort(np.abs(margins), axis=-1)
    largest, others = sizes[..., -1], sizes[..., :-1]
    top = others[..., -1]
    return np.asarray(expit(largest + top + np.log(np.exp(others - top[..., None]).sum(axis=-1))))


def softmax_pair_limit(margins: Array) -> Array:
    """Half of the largest |p_k - y_k| + |p_l - y_l|, two classes k and l, of a record as in ``softmax_limit``.

    If y = k the sum is 1 - p_k + p_l; if y is neither it is p_k + p_l <= 1 - p_y, which is less. p_l - p_k grows with
    l's margin and falls with the others', while it is positive, so l has a_l and all others have -a_i. Then it is
    p_l (1 - e^(-a_k - a_l)) with 1/p_l = 1 + the sum of e^(-a_i - a_l) over the others. That is largest for the two
    largest margins, l's first: with u = e^-a_l and the sum T of all e^-a_i the sum over the others is u (T - u), which
    for u1 <= u2 differs by (u2 - u1)(T - u1 - u2) >= 0.
    """
    ordered = np.sort(np.abs(margins), axis=-1)
    largest, others = ordered[..., -1], ordered[..., :-1]
    likely = 1 / (1 + np.exp(-others - largest[..., None]).sum(axis=-1))
    return np.asarray(0.5 - 0.5 * likely * np.expm1(-largest - others[..., -1]))


def softmax(margin: Array) -> Array:
    """Softmax over the last axis."""
    weights = np.exp(margin - margin.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


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
    # Written so that NaN is treated as a large radius, for which the largest noise, the safe choice, is used.
    if not radius <= _FAR:
        return 2.0
    bound = _below_a_line(*_line_above_sigmoid(radius))
    # 1 is the distance between the gradients at x = w/|w| and x = -w/|w|.
    return max(1.0, min(bound, 2 * _sigmoid(radius)))


def _below_a_line(level: float, slope: float) -> float:
    """2 max over c in [0, 1] of (level + slope c) sqrt(1 - c^2), rounded up."""
    # (sqrt(A^2 + 8 B^2) - A) / 4B, without the division by B = 0.
    c = 2 * slope / (math.hypot(level, math.sqrt(8) * slope) + level)
    # The factor is for about ten roundings.
    return 2 * (level + slope * c) * math.sqrt(1 - c * c) * (1 + 1e-14)


def _logistic_set(radius: float, margin: float, label: float) -> float:
    return logistic_diameter(radius)


# Slopes that are tried where margins are clipped.
_SLOPES = 64


def squared_diameter(radius: float, margin: float, label: float) -> float:
    """An upper bound on the diameter of {(clip(<w, x>) - y) x : |x|_2 <= 1, |y| <= label} when |w|_2 = radius.

    Margins are clipped at +-``margin``. It is 2 label at w = 0, where only the label speaks, and 2 (margin + label) far
    away. Equal to the diameter where nothing is clipped, radius <= margin.

    Proof. With r = clip(<w, x>) - y the vector r x is |r| x or |r| (-x), and |r| <= label + clip(<w, z>) for z = x or
    z = -x. So the set lies in the hull of 0 and {h(t) z : h(t) >= 0}, h(t) = label + clip(radius t), t = <z, w>/|w|. A
    line A + B t with A, B >= 0 that lies above h on [-1, 1] bounds the diameter by 2 max over c of (A + B c) sqrt(1 -
    c^2): see ``logistic_diameter``, whose proof uses no more of h. Without clipping h is such a line. Else h is convex
    up to t = margin/radius and constant from there on, so the line must be above h there and at -1: for slopes B up to
    2 margin/(1 + margin/radius) the line through the former point is above the latter.
    """
    largest = 2 * (margin + label)
    # Written so that NaN is treated as a large radius.
    if not radius <= _FAR * margin:
        return largest
    if radius <= margin:
        return min(_below_a_line(label, radius), largest)
    corner = margin / radius
    slopes = [2 * margin / (1 + corner) * i / _SLOPES for i in range(_SLOPES + 1)]
    return min(largest, *(_below_a_line(margin + label - slope * corner, slope) for slope in slopes))


# Beyond this the diameter is within one part in a million of 2.
_FAR = 1e4


def _line_above_sigmoid(radius: float) -> tuple[float, float]:
    """(A, B) with A + B t >= sigmoid(radius t) on [-1, 1]: the tangent at a point z >= 0 of radius t.

    The tangent is above sigmoid for positive arguments, where sigmoid is concave. For negative ones sigmoid is convex
    and the difference concave, so it is enough that the tangent is above sigmoid at -radius. The z of the best bound
    maximises sigmoid(z) sqrt(radius^2 - z^2); if its tangent is too low at -radius, a larger z must do.
    """
    lowest = _sigmoid(-radius)
    # At z = 40 both conditions hold for every radius up to _FAR. Every z that passes is valid, so the 26 halvings only
    # make the bound tighter.
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
    """The sigmoid of one number: ten times faster than scipy's."""
    e = math.exp(-abs(z))
    return 1 / (1 + e) if z >= 0 else e / (1 + e)


# --- the table -----------------------------------------------------------------------------------------------

LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("squared", 0, REGRESSION, _squared_residual, _squared_objective, _squared_limit, 1.0, linear=True,
             diameter=squared_diameter, curvature=_squared_curvature, exact_residual=_squared_exact),
        Loss("logistic", 1, BINARY, _logistic_residual, _logistic_objective, _logistic_limit, 0.25, signed=True,
             diameter=_logistic_set, capped_smoothness=_logistic_capped, curvature=_logistic_curvature,
             exact_residual=_logistic_exact),
        Loss("huber", 2, REGRESSION, _huber_residual, _huber_objective, _huber_limit, 1.0,
             curvature=_huber_curvature, exact_residual=_huber_exact, note="residuals clipped at 1"),
        Loss("softmax", 3, MULTICLASS, _softmax_residual, _softmax_objective, _softmax_limit, 0.5,
             capped_smoothness=_softmax_capped),
        Loss("hinge", 4, BINARY, _hinge_residual, _hinge_objective, _hinge_limit, 1 / HINGE_WIDTH, signed=True,
             curvature=_hinge_curvature, exact_residual=_hinge_exact, note="its corner rounded"),
    )
}  # fmt: skip
# Losses of one margin a row, which all solvers but the multinomial one take.
SCALAR = tuple(name for name, loss in LOSSES.items() if loss.task != MULTICLASS)
# Losses that ``minimise`` takes.
CURVED = tuple(name for name in SCALAR if LOSSES[name].curvature is not None)
