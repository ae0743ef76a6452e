"""Objective perturbation: the privacy of the minimiser of a regularised convex loss plus a random linear term.

The release is the minimiser, over a closed convex set, of sum_i f_i(<x_i, w>) + (l2/2)|w|^2 + <b, w>, where b is
N(0, sigma^2 I) (Kifer, Smith and Thakurta 2012; Redberg, Koskela and Wang 2023, arXiv:2401.00583). All numbers here are
in the scaling of the SUM; a mean objective of n records has l2 and sigma divided by n. One record has gradients of norm
at most L and curvature at most beta, and two numbers decide:

    shift     L/sigma for zero-out, 2L/sigma for replace-one: how far one record moves the noise;
    jacobian  c = log(1 + beta/l2): how much it squeezes volume.

Why. With theta0(b) the minimiser without the record, the minimiser with it is theta0(Psi^-1(b)), where Psi(b) = b - g x
and g = f'(<x, theta0(b)>). So both are the same public function of a vector that is N or Psi^-1 # N. Psi moves along x
only, and there it is T(s) with 1 <= T' <= exp(c) and |T(s) - s| <= shift (in units of sigma), as theta0 is the inverse
of an l2-strongly monotone operator. The set need not be smooth, nor theta0 injective. With dG the Gaussian curve,

    present against absent:  dG(eps - c; shift)      the loss is at most c plus a Gaussian one of shift L/sigma
    absent against present:  2 dG(eps; shift), or dG if f' has one sign ("signed": logistic with a given label)
    replace-one:             min(R1, R2), or R3 if signed, at e = eps - c: the corners of the set of g x - g' x'
      R1  2 dG(e; shift)                             from e = shift sqrt(1 + shift^2/4) on
      R2  E (1 - exp(e - shift |Z| - shift^2/2))+    Z a standard Gaussian in the plane
      R3  dG(e; shift) + 2 dG(e; shift/2)            from e = 0 on

Below its range a curve is continued by the chord to H_0 = 1, which lies above every convex curve.

An inexact minimiser within r of the true one is released with noise of scale s2; that is one more Gaussian release of
shift ``offset`` = 2 r/s2, with closed forms of its own. Approximations end on the private side.

Long because delta, Renyi divergence and the dominating pair are three forms of one theorem.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from scipy.special import erf, erfcx, log_ndtr

from dptoolkit._validate import delta_value, invalid, nonnegative, positive, real
from dptoolkit.accounting import gaussian, profiles
from dptoolkit.accounting._numeric import Array, crossing, expand, log1mexp
from dptoolkit.adjacency import Adjacency

Curve = Callable[[Array], Array]

_HALF_ROOT_PI = math.sqrt(math.pi / 2)
_ROOT_2 = math.sqrt(2.0)
_LOG_2 = math.log(2.0)
# Anything above is as good as infinite, and squares below do not overflow.
_HUGE = 1e100


@dataclass(frozen=True)
class Perturbation:
    """What the privacy of one release depends on.

    shift: L/sigma (zero-out) or 2L/sigma (replace-one): the inverse of the noise per sensitivity.
    jacobian: log(1 + beta/l2), see ``jacobian``.
    signed: whether the derivative of each record's loss never changes sign (logistic; neither Huber nor squared).
    offset: the shift of the output noise that hides an inexact solve, 2 tau/(l2 s2); 0 for an exact minimiser.
    """

    shift: float
    jacobian: float
    adjacency: Adjacency
    signed: bool = False
    offset: float = 0.0

    def __post_init__(self) -> None:
        for name in ("shift", "jacobian", "offset"):
            value = nonnegative(name, getattr(self, name))
            object.__setattr__(self, name, value if value < _HUGE else math.inf)
        object.__setattr__(self, "adjacency", Adjacency.parse(self.adjacency))

    @property
    def total(self) -> float:
        """The shift of the noise and of the output noise together."""
        return math.hypot(self.shift, self.offset)


def jacobian(curvature: float, l2: float) -> float:
    """log(1 + curvature/l2), rounded up: the largest log-determinant of one record's curvature on top of l2 I."""
    ratio = nonnegative("curvature", curvature) / positive("l2", l2)
    return math.log1p(ratio) * (1 + 4 * 2.0**-52)


def sensitivity(gradient_bound: float, adjacency: Adjacency | str) -> float:
    """How far one record moves the noise: L if it is zeroed out, 2L if it is replaced."""
    return Adjacency.parse(adjacency).contributions * nonnegative("gradient_bound", gradient_bound)


# --- delta at epsilon -----------------------------------------------------------------------------


def delta(release: Perturbation, epsilon: float | Array) -> float | Array:
    """delta at ``epsilon`` >= 0 (a number or an array): the larger of the two orders."""
    eps = np.asarray(epsilon, dtype=float)
    if not (eps >= 0).all():
        raise invalid("epsilon", epsilon, ">= 0")
    above, below = orders(release)
    out = np.maximum(above(eps), below(eps))
    return float(out) if out.ndim == 0 else out


def orders(release: Perturbation) -> tuple[Curve, Curve]:
    """(H of present against absent, H of absent against present) as functions of epsilon >= 0.

    Equal for replace-one.
    """
    if release.adjacency is Adjacency.REPLACE_ONE:
        curve = _signed_replacement if release.signed else _replacement
        return _after_jacobian(release, curve), _after_jacobian(release, curve)
    return _after_jacobian(release, lambda r, e: _gaussian(e, r.total)), lambda x: _capped(_removal(release, x), x)


def _after_jacobian(release: Perturbation, curve: Callable[[Perturbation, Array], Array]) -> Curve:
    """The curve at epsilon - c; nothing is known for an infinite c."""

    def shifted(x: Array) -> Array:
        if math.isinf(release.jacobian):
            return np.ones_like(x)
        return _capped(curve(release, x - release.jacobian), x)

    return shifted


def _capped(values: Array, x: Array) -> Array:
    return np.where(np.isposinf(x), 0.0, np.clip(values, 0.0, 1.0))


def _gaussian(e: Array, shift: float) -> Array:
    """The Gaussian curve at any real e; a shift so small that e/shift overflows is as good as none."""
    none = -np.expm1(np.minimum(e, 0.0))
    if shift == 0:
        return np.asarray(none)
    values = np.asarray(gaussian.delta(shift, e))
    return np.where(np.isnan(values), none, values)


def _removal(release: Perturbation, x: Array) -> Array:
    """Absent against present, zero-out: no Jacobian, but two tails unless the loss is signed."""
    one_tail = _gaussian(x, release.total)
    if release.signed:
        return one_tail + (_gaussian(x, release.offset) if release.offset else 0.0)
    if release.offset:
        return 2 * one_tail
    return _two_tails(x, release.shift, one_tail)


def _two_tails(x: Array, shift: float, one_tail: Array) -> Array:
    """E (1 - exp(x - shift |Z| - shift^2/2))+: 2 dG beyond shift^2/2; below that 1 - 2 exp(x) Phi(-shift)."""
    with np.errstate(over="ignore", invalid="ignore"):
        half = shift * shift / 2
        log_tail = math.log1p(-float(erf(shift / _ROOT_2))) if shift < 1 else _LOG_2 + float(log_ndtr(-shift))
        return np.where(x >= half, 2 * one_tail, -np.expm1(np.minimum(x + log_tail, 0.0)))


def _replacement(release: Perturbation, e: Array) -> Array:
    """The smaller of R1 and R2; with an inexact solve only R1 has a closed form."""
    start = release.total * math.hypot(1.0, release.total / 2)
    tails = _from(start, e, lambda at: 2 * _gaussian(at, release.total) + 2 * _small(at, release.offset))
    return tails if release.offset else np.minimum(tails, _rayleigh(e, release.shift))


def _signed_replacement(release: Perturbation, e: Array) -> Array:
    """R3; with an inexact solve each corner moves out by the offset, and the corner 0 becomes one of that length."""
    near = math.hypot(release.shift / 2, release.offset)

    def corners(at: Array) -> Array:
        return _gaussian(at, release.total) + 2 * _gaussian(at, near) + _small(at, release.offset)

    return _from(0.0, e, corners)


def _small(e: Array, offset: float) -> Array:
    return _gaussian(e, offset) if offset else np.zeros_like(e)


def _from(start: float, e: Array, curve: Curve) -> Array:
    """A curve that is valid from ``start`` on, continued below by the chord to 1 at alpha = 0."""
    if math.isinf(start):
        return np.ones_like(e)
    first = min(float(curve(np.asarray(start))), 1.0)
    with np.errstate(invalid="ignore"):
        chord = 1 - np.exp(np.minimum(e - start, 0.0)) * (1 - first)
        return np.where(e >= start, curve(np.maximum(e, start)), chord)


def _rayleigh(e: Array, shift: float) -> Array:
    """The bound R2 of the replace-one profile.

    It is E (1 - exp(e - shift |Z| - shift^2/2))+ for Z in the plane, written with Mills' ratio so that nothing
    overflows.
    """
    if shift == 0 or math.isinf(shift):
        return _gaussian(e, shift)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        x = np.maximum(e / shift - shift / 2, 0.0)
        tail = shift * np.exp(-0.5 * x * x) * _mills(x + shift)
        below = np.minimum(e - shift * shift / 2, 0.0)
        near = -np.expm1(below) + np.exp(below) * min(shift * float(_mills(np.asarray(shift))), 1.0)
        return np.where(np.isnan(tail), 0.0, np.where(e >= shift * shift / 2, tail, near))


def _mills(x: Array) -> Array:
    return np.asarray(_HALF_ROOT_PI * erfcx(x / _ROOT_2))


# --- inverses -------------------------------------------------------------------------------------


def epsilon(release: Perturbation, delta: float) -> float:
    """The smallest epsilon >= 0 with at most ``delta``, from the private side; infinite if there is none."""
    target = delta_value(delta)
    if math.isinf(release.jacobian) or math.isinf(release.total):
        return math.inf
    if target == 0:
        return 0.0 if release.total == 0 and release.jacobian == 0 else math.inf

    def excess(e: float) -> float:
        return _log_excess(release, e, target)

    if excess(0.0) <= 0:
        return 0.0
    top = expand(excess, release.jacobian + release.total + release.total**2, 2.0, math.inf)
    assert top is not None
    return crossing(excess, 0.0, top, relative=1e-13)[1]


# Noise per sensitivity below this is not looked for.
_SMALLEST_NOISE = 1e-8


def noise(
    epsilon: float,
    delta: float,
    *,
    gradient_bound: float,
    curvature: float,
    l2: float,
    adjacency: Adjacency | str,
    signed: bool = False,
    offset_share: float = 0.0,
) -> float:
    """The smallest standard deviation of a coordinate of b that is (epsilon, delta)-DP, from the private side.

    All in the scaling of the sum. ``offset_share`` is what the output noise of an inexact solve adds: its shift as a
    share of gradient_bound/sigma (a tenth costs about half a per cent of sigma). Less than the Jacobian's
    log(1 + curvature/l2) no noise can buy, so a smaller epsilon is refused.
    """
    eps = positive("epsilon", epsilon)
    target = real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True,
                  repair="A pure guarantee needs gamma noise: see pure_scale.")  # fmt: skip
    bound, share = nonnegative("gradient_bound", gradient_bound), nonnegative("offset_share", offset_share)
    c = _affordable(eps, curvature, l2)
    moved = sensitivity(bound, adjacency)
    if math.isinf(moved) or math.isinf(share):
        raise invalid("gradient_bound or offset_share", math.inf, "finite")
    if moved == 0:
        return 0.0
    base = Perturbation(1.0, c, Adjacency.parse(adjacency), signed, share * (bound / moved))

    def excess(multiplier: float) -> float:
        scaled = replace(base, shift=1 / multiplier, offset=base.offset / multiplier)
        return _log_excess(scaled, eps, target)

    if excess(_SMALLEST_NOISE) <= 0:
        return _SMALLEST_NOISE * moved
    high = expand(excess, 1e-3, 4.0, 1e300)
    assert high is not None
    return crossing(excess, _SMALLEST_NOISE, high, relative=1e-12)[1] * moved


def pure_epsilon(gradient_bound: float, scale: float, curvature: float, l2: float, adjacency: Adjacency | str) -> float:
    """The epsilon of an EXACT minimiser with noise of density proportional to exp(-|b|/scale).

    Both orders and every closed convex set: shift/scale + log(1 + curvature/l2), which is attained.
    """
    moved = sensitivity(gradient_bound, adjacency)
    return moved / positive("scale", scale) * (1 + 2.0**-51) + jacobian(curvature, l2)


def pure_scale(
    epsilon: float, *, gradient_bound: float, curvature: float, l2: float, adjacency: Adjacency | str
) -> float:
    """The smallest scale of the gamma law (|b| ~ Gamma(d, scale), direction uniform) that is epsilon-DP, rounded up."""
    eps = positive("epsilon", epsilon)
    c = _affordable(eps, curvature, l2)
    moved = sensitivity(gradient_bound, adjacency)
    scale = moved / (eps - c) * (1 + 2.0**-50)
    while moved and pure_epsilon(gradient_bound, scale, curvature, l2, adjacency) > eps:
        scale *= 1 + 2.0**-48
    return scale


def _affordable(eps: float, curvature: float, l2: float) -> float:
    c = jacobian(curvature, l2)
    if eps <= c:
        least = curvature / math.expm1(eps) if eps < 700 else 0.0
        raise invalid(
            "epsilon", eps, f"> log(1 + curvature/l2) = {c:.6g}, which no noise can reduce",
            f"Use a larger epsilon, or l2 above {least:.6g} in the scaling of the sum (that divided by n for a mean).",
        )  # fmt: skip
    return c


def _log_excess(release: Perturbation, eps: float, target: float) -> float:
    value = float(delta(release, eps))
    return math.log(value / target) if value > 0 else -math.inf


# --- Renyi divergence -----------------------------------------------------------------------------

# Cells of the angle between the two diagonals of the rhombus; the bound over a cell is at most about 1/CELLS too large.
_CELLS = 1024


def renyi(release: Perturbation, orders: Array) -> Array:
    """The Renyi divergence at orders > 1: the larger of the two orders of the neighbours."""
    a = np.asarray(orders, dtype=float)
    if not (a > 1).all():
        raise invalid("orders", orders, "> 1")
    if math.isinf(release.total) or math.isinf(release.jacobian):
        return np.full_like(a, math.inf)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _exact_renyi(release, a) + a * release.offset**2 / 2


def _exact_renyi(release: Perturbation, a: Array) -> Array:
    m, shift, c = a - 1, release.shift, release.jacobian
    if release.adjacency is Adjacency.ZERO_OUT:
        present = c + a * shift**2 / 2
        if release.signed:
            return np.maximum(present, np.logaddexp(0.0, _log_corner(a, shift)) / m)
        return np.maximum(present, a * shift**2 / 2 + _log_twice_ndtr(m * shift) / m)
    if release.signed:
        return c + np.logaddexp(0.0, np.logaddexp(_log_corner(a, shift), _LOG_2 + _log_corner(a, shift / 2))) / m
    return c + np.minimum(_log_rhombus(a, shift), _log_rayleigh(m, shift)) / m


def _log_twice_ndtr(t: Array) -> Array:
    """log(2 Phi(t)) for t >= 0, to full relative precision."""
    return np.log1p(erf(t / _ROOT_2))


def _log_corner(a: Array, v: float) -> Array:
    """log psi(v), psi(v) = E (exp((a-1) l) - 1)+ for the Gaussian loss l of shift v; a sum of two positive terms."""
    if v == 0:
        return np.full_like(a, -math.inf)
    m = a - 1
    power = a * m * v**2 / 2
    growth = power + log1mexp(power) + log_ndtr(v / 2 + m * v)
    return np.logaddexp(growth, _log_ndtr_rise(v / 2, m * v))


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def _log_ndtr_rise(start: float, step: Array) -> Array:
    """log(Phi(start + step) - Phi(start)) for start >= 0.

    Gauss's rule for short steps, where the difference would cancel.
    """
    at = start + step[..., None] * (_NODES + 1) / 2
    short = np.log(step / 2) + np.log(np.exp(-0.5 * (at * at - start * start)) @ _WEIGHTS) - 0.5 * start * start
    low, high = log_ndtr(-start), log_ndtr(-(start + step))
    return np.where(step * max(start, 1.0) < 1, short - 0.5 * math.log(2 * math.pi), low + log1mexp(low - high))


def _log_rhombus(a: Array, shift: float) -> Array:
    """log of a bound on the supremum over the angle of G(shift cos) + G(shift sin) - 1, by cells.

    Each term is taken at that end of the cell where it is larger.
    """
    angles = np.linspace(0.0, math.pi / 4, _CELLS + 1)
    longer, shorter = np.cos(angles[:-1]), np.sin(angles[1:]) * (1 + 2.0**-50)
    longer[0] = 1.0
    out = np.empty_like(a).reshape(-1)
    for i, order in enumerate(a.reshape(-1)):
        long, short = _log_two_sided(order, shift * longer), _log_two_sided(order, shift * shorter)
        out[i] = np.max(long + np.log1p(-np.expm1(-short) * np.exp(short - long)))
    return out.reshape(a.shape)


def _log_two_sided(order: float, v: Array) -> Array:
    """log G(v), G(v) = 2 exp(a(a-1) v^2/2) Phi((a-1) v)."""
    m = order - 1
    return order * m * v**2 / 2 + _log_twice_ndtr(m * v)


def _log_rayleigh(m: Array, shift: float) -> Array:
    t = m * shift
    log_growth = np.log(math.sqrt(2 * math.pi) * t) + t * t / 2 + log_ndtr(t)
    return m * shift**2 / 2 + np.logaddexp(0.0, log_growth)


# --- the dominating pair --------------------------------------------------------------------------

# exp of more is not a double; the curves are left as they are beyond.
_WINDOW = 690.0


class _Bridge(NamedTuple):
    """A chord of the curve H_alpha between alpha = exp(left) and exp(right), where it replaces the curve."""

    left: float
    right: float
    at_left: float
    at_right: float


@functools.lru_cache(maxsize=128)
def pair(release: Perturbation) -> profiles.Pair:
    """The pair that dominates the release, for the accountant by privacy-loss distributions.

    The curves of the two orders, put side by side as one curve of alpha (H_alpha = 1 - alpha + alpha H'_{1/alpha} with
    H' of the swapped pair), are not convex where they meet, nor is the smaller of two. The true curve is convex and
    lies below, so it lies below every chord between two points: the lower convex hull of any set of points is sound.
    Outside the chords that change something the closed forms stay, so that small values keep their digits. The offset
    is not in here: compose with a Gaussian of that shift.
    """
    exact = replace(release, offset=0.0)
    above, below = orders(exact)
    symmetric = release.adjacency is Adjacency.REPLACE_ONE
    if math.isinf(release.shift) or (symmetric and release.jacobian > _WINDOW):
        return profiles.non_private()
    variation = float(np.minimum(above(np.zeros(1)), below(np.zeros(1)))[0])
    if release.jacobian > _WINDOW:
        # A curve that nobody reads: what is left is that H falls, so that it is at most the total variation.
        return profiles.Pair(lambda x: np.full_like(x, variation), below, infinite_mass=variation, symmetric=False)
    bridges = _bridges(above, below, exact)
    backwards = [_reversed(b) for b in reversed(bridges)]
    return profiles.Pair(_bridged(above, bridges), _bridged(below, backwards), symmetric=symmetric)


def floor_pair(release: Perturbation) -> profiles.Pair:
    """A pair that some neighbours attain: linear losses, which have no curvature, make the release a Gaussian one."""
    return profiles.gaussian(release.shift)


def _bridged(curve: Curve, bridges: list[_Bridge]) -> Curve:
    """The curve for x >= 0 with its chords put in; each is a mean of its ends with positive weights."""
    reach = [b for b in bridges if b.right >= 0]
    if not reach:
        return curve
    left, right, at_left, at_right = (np.array(column) for column in zip(*reach, strict=True))

    def values(x: Array) -> Array:
        i = np.minimum(np.searchsorted(right, x), len(right) - 1)
        with np.errstate(over="ignore", invalid="ignore"):
            width = np.expm1(right[i] - left[i])
            share = np.expm1(np.clip(x - left[i], 0.0, right[i] - left[i])) / width
            rest = np.expm1(np.minimum(x - right[i], 0.0)) / np.expm1(left[i] - right[i])
            chord = at_left[i] * np.clip(rest, 0.0, 1.0) + at_right[i] * share
        return np.where((x >= left[i]) & (x <= right[i]), np.minimum(chord, 1.0), curve(x))

    return values


def _reversed(bridge: _Bridge) -> _Bridge:
    """The same chord seen in the other order of the neighbours: lines stay lines."""
    left, right, at_left, at_right = bridge
    return _Bridge(-right, -left, _swapped_value(right, at_right), _swapped_value(left, at_left))


def _swapped_value(x: float, value: float) -> float:
    """H_{exp(-x)} of the swapped pair from H_{exp(x)}."""
    return -math.expm1(-x) + math.exp(-x) * value if x >= 0 else math.expm1(-x) * (value - 1) + value


def _bridges(above: Curve, below: Curve, release: Perturbation) -> list[_Bridge]:
    """The chords of the lower convex hull that lie visibly below the curve, with ends refined on finer grids."""
    first = x = _first_grid(release)
    chords = _hull(above, below, x)
    for _ in range(_ZOOMS):
        near = [np.linspace(x[max(i - 1, 0)], x[min(i + 1, len(x) - 1)], 25) for ends in chords for i in ends]
        x = np.unique(np.concatenate([first, *near]))
        chords = _hull(above, below, x)
    up, down = above(np.maximum(x, 0.0)), below(np.maximum(-x, 0.0))

    def at(i: int) -> float:
        return float(up[i]) if x[i] > 0 else _swapped_value(-float(x[i]), float(down[i]))

    out = []
    for i, j in chords:
        ends = [(min(float(up[k]), float(down[k])) if x[k] == 0 else at(k)) for k in (i, j)]
        out.append(_Bridge(float(x[i]), float(x[j]), *ends))
    return out


_ZOOMS = 5


def _first_grid(release: Perturbation) -> Array:
    """Points around every place where the curve may bend: 0, the Jacobian, and where R1 begins, on both sides."""
    scale = max(min(release.shift, 1.0), 1e-290)
    steps = np.geomspace(scale * 1e-2, 2 * _WINDOW, 30 + 3 * round(math.log10(1 / scale)))
    steps = np.concatenate([-steps[::-1], [0.0], steps])
    start = release.shift * math.hypot(1.0, release.shift / 2)
    corners = [0.0, release.jacobian, release.jacobian + start, release.jacobian + release.shift**2 / 2]
    if release.adjacency is Adjacency.ZERO_OUT:
        corners.append(release.shift**2 / 2)
    points = np.concatenate([sign * (at + steps) for at in corners for sign in (1.0, -1.0)])
    return np.unique(np.clip(points, -_WINDOW, _WINDOW))


def _hull(above: Curve, below: Curve, x: Array) -> list[tuple[int, int]]:
    """The index pairs of the hull's edges that pass visibly below points of the curve.

    In exact integers: the curve's interesting part may be 1e-20 high and stand at alpha = 1 + 1e-10 or at exp(600).
    """
    alpha, value = _exact_points(above, below, x)
    corners: list[int] = []
    for k in range(len(x)):
        while len(corners) >= 2 and _turns_down(alpha, value, corners[-2], corners[-1], k):
            corners.pop()
        corners.append(k)
    return [(i, j) for i, j in zip(corners, corners[1:], strict=False) if _visible(alpha, value, i, j)]


def _turns_down(alpha: list[int], value: list[int], i: int, j: int, k: int) -> bool:
    """Whether point j lies on or above the chord from i to k."""
    return (value[j] - value[i]) * (alpha[k] - alpha[i]) >= (value[k] - value[i]) * (alpha[j] - alpha[i])


# A chord that is less than this share below the curve is rounding; so is a curve below 1e-300.
_VISIBLE = 10**12


def _visible(alpha: list[int], value: list[int], i: int, j: int) -> bool:
    """Whether the chord lies clearly below the curve somewhere between.

    Compared with what the curve is above its floor max(0, 1 - alpha).
    """
    width, rise = alpha[j] - alpha[i], value[j] - value[i]
    for k in range(i + 1, j):
        gap = (value[k] - value[i]) * width - rise * (alpha[k] - alpha[i])
        height = value[k] - max(_ONE - alpha[k], 0)
        if height > min(_ONE, alpha[k]) // 10**300 and gap * _VISIBLE > height * width:
            return True
    return False


# exp(-690) has 995 bits before its first digit.
_SCALE_BITS = 1300
_ONE = 1 << _SCALE_BITS
_EXACT = Context(prec=45)


def _exact_points(above: Curve, below: Curve, x: Array) -> tuple[list[int], list[int]]:
    """(alpha, H_alpha) as integers times 2^-_SCALE_BITS: no rounding but that of the curves themselves."""
    up, down = above(np.maximum(x, 0.0)).tolist(), below(np.maximum(-x, 0.0)).tolist()
    alpha = [_exact_exp(point) for point in x.tolist()]
    value = []
    for point, a, forward, backward in zip(x.tolist(), alpha, up, down, strict=True):
        if point < 0:
            value.append(_ONE - a + _times(a, backward))
        else:
            value.append(_times(_ONE, forward if point > 0 else min(forward, backward)))
    return alpha, value


def _times(a: int, factor: float) -> int:
    numerator, denominator = factor.as_integer_ratio()
    return a * numerator // denominator


@functools.lru_cache(maxsize=4096)
def _exact_exp(x: float) -> int:
    """exp(x) to 45 digits, and exp(x) - 1 to 30, times 2^_SCALE_BITS."""
    if abs(x) > 1e-10:
        exact = Fraction(_EXACT.exp(Decimal(x)))
    else:
        exact = Fraction(x)
        exact = 1 + exact * (1 + exact / 2 * (1 + exact / 3))
    return (exact.numerator << _SCALE_BITS) // exact.denominator
