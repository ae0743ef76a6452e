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

import bisect
import functools
import itertools
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
from dptoolkit.accounting._numeric import crossing, expand, log1mexp
from dptoolkit.adjacency import Adjacency
from dptoolkit.types import Array

Curve = Callable[[Array], Array]

_HALF_ROOT_PI = math.sqrt(math.pi / 2)
_ROOT_2 = math.sqrt(2.0)
_LOG_2 = math.log(2.0)
# Larger numbers count as infinite, so that the squares of all others are finite.
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
    out = above(eps) if above is below else np.maximum(above(eps), below(eps))
    return float(out) if out.ndim == 0 else out


def orders(release: Perturbation) -> tuple[Curve, Curve]:
    """(H of present against absent, H of absent against present) as functions of epsilon >= 0.

    Equal for replace-one.
    """
    if release.adjacency is Adjacency.REPLACE_ONE:
        curve = _after_jacobian(release, _signed_replacement if release.signed else _replacement)
        return curve, curve
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
    none = 0.0 - np.expm1(np.minimum(e, 0.0))
    if shift == 0:
        return np.asarray(none)
    values = np.asarray(gaussian.curve(shift, e))
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
    # The value at the start comes from the same call, as most calls are for few points.
    first, *rest = np.split(curve(np.append(start, np.maximum(e, start))), [1])
    with np.errstate(invalid="ignore"):
        chord = 1 - np.exp(np.minimum(e - start, 0.0)) * (1 - np.minimum(first, 1.0))
        return np.where(e >= start, rest[0].reshape(np.shape(e)), chord.reshape(np.shape(e)))


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
    relative_tolerance: float = 1e-12,
) -> float:
    """The smallest standard deviation of a coordinate of b that is (epsilon, delta)-DP, from the private side.

    All in the scaling of the sum. ``offset_share`` is what the output noise of an inexact solve adds: its shift as a
    share of gradient_bound/sigma (a tenth costs about half a per cent of sigma). An epsilon below the Jacobian's log(1
    + curvature/l2) is refused, as no amount of noise reaches it.
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
    low = max(high / 4, _SMALLEST_NOISE) if high > 1e-3 else _SMALLEST_NOISE
    return crossing(excess, low, high, relative=relative_tolerance)[1] * moved


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
            "epsilon",
            eps,
            f"> log(1 + curvature/l2) = {c:.6g}, which no noise can reduce",
            f"Use a larger epsilon, or l2 above {least:.6g} in the scaling of the sum (that divided by n for a mean).",
        )
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
def pair(release: Perturbation) -> profiles.DominatingPair:
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
        # Nothing but the fact that H falls is known here: it is at most the total variation. Nobody reads this part of
        # the curve.
        return profiles.DominatingPair(
            lambda x: np.full_like(x, variation), below, infinite_mass=variation, symmetric=False
        )
    forwards, backwards = _bridges(above, below, exact)
    return profiles.DominatingPair(_bridged(above, forwards), _bridged(below, backwards), symmetric=symmetric)


def floor_pair(release: Perturbation) -> profiles.DominatingPair:
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


def _bridge(x: float, y: float, height: float, other: float) -> _Bridge:
    """The chord from x to y, whose ends have these heights in the order in which their epsilon is positive.

    A height is turned into the value of the other order only where that loses no digits: back from there, its rounding
    error would be multiplied by exp(epsilon).
    """
    ends = ((x, height), (y, other))
    return _Bridge(x, y, *(value if at >= 0 else -math.expm1(at) + math.exp(at) * value for at, value in ends))


def _bridges(above: Curve, below: Curve, release: Perturbation) -> tuple[list[_Bridge], list[_Bridge]]:
    """The chords of the lower convex hull that lie visibly below the curve, with ends refined on finer grids.

    They are given for both orders of the neighbours: lines stay lines.
    """
    first = x = _first_grid(release)
    chords = _hull(above, below, x)
    for zooms_left in range(_ZOOMS, 0, -1):
        near = [np.linspace(x[max(i - 1, 0)], x[min(i + 1, len(x) - 1)], 25) for ends in chords for i in ends]
        if zooms_left > 1 and chords:
            # In between, only the points around the ends can move them.
            middles = [0.5 * (x[i] + x[j]) for i, j in chords]
            around = [x[max(i - 2, 0) : i + 3] for ends in chords for i in ends]
            x = np.unique(np.concatenate([*around, *near]))
            chords = _edges_over(middles, above, below, x)
        else:
            x = np.unique(np.concatenate([first, *near]))
            chords = _hull(above, below, x)
    points = list(zip(x.tolist(), _heights_of(above, below, x).tolist(), strict=True))
    ends = [(*points[i], *points[j]) for i, j in chords]
    forwards = [_bridge(x_i, x_j, h_i, h_j) for x_i, h_i, x_j, h_j in ends]
    return forwards, [_bridge(-x_j, -x_i, h_j, h_i) for x_i, h_i, x_j, h_j in reversed(ends)]


# Each is 12 times finer. The hull is sound without any; more than these change delta by less than 1e-8 of it.
_ZOOMS = 3


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


def _heights_of(above: Curve, below: Curve, x: Array) -> Array:
    """H of each point in the order of the neighbours in which its epsilon |x| is positive; the smaller one at 0."""
    if above is below:
        return above(np.abs(x))
    up, down = above(np.maximum(x, 0.0)), below(np.maximum(-x, 0.0))
    return np.where(x == 0, np.minimum(up, down), np.where(x > 0, up, down))


def _hull(above: Curve, below: Curve, x: Array) -> list[tuple[int, int]]:
    """The index pairs of the hull's edges that pass visibly below points of the curve."""
    points = _Points(above, below, x)
    return [(i, j) for i, j in points.edges() if j > i + 1 and points.visible(i, j)]


def _edges_over(middles: list[float], above: Curve, below: Curve, x: Array) -> list[tuple[int, int]]:
    """The hull's edges above or below these places."""
    edges = _Points(above, below, x).edges()
    starts = [float(x[i]) for i, _ in edges]
    return [edges[max(bisect.bisect_right(starts, middle) - 1, 0)] for middle in middles]


# Two products of rounded numbers that differ by more than this share of their sum differ in the same way exactly.
_CLEARLY = 1e-13
# A point that is this share above a chord is visibly so (see _VISIBLE) by any of the heights that are compared.
_PLAINLY = 1e-6


class _Points:
    """Points of the curve (alpha, H_alpha), compared in floats where these are clear, and else in exact integers.

    The curve's interesting part may be 1e-20 high and stand at alpha = 1 + 1e-10 or at exp(600).
    """

    def __init__(self, above: Curve, below: Curve, x: Array) -> None:
        self._x = x.tolist()
        self._side = _heights_of(above, below, x).tolist()
        self._known: dict[int, tuple[int, int]] = {}

    def edges(self) -> list[tuple[int, int]]:
        """The lower convex hull."""
        corners: list[int] = []
        for k in range(len(self._x)):
            while len(corners) >= 2 and self.turns_down(corners[-2], corners[-1], k):
                corners.pop()
            corners.append(k)
        return list(itertools.pairwise(corners))

    def turns_down(self, i: int, j: int, k: int) -> bool:
        """Whether point j lies on or above the chord from i to k."""
        low, middle, high = self._heights(i, j, k)
        if low == middle == high == 0:
            return True
        share = self._share(i, j, k, low, middle, high)
        if abs(share) > _CLEARLY:
            return share > 0
        (alpha, value), (alpha_j, value_j), (alpha_k, value_k) = (self._exact(m) for m in (i, j, k))
        return (value_j - value) * (alpha_k - alpha) >= (value_k - value) * (alpha_j - alpha)

    def _share(self, i: int, j: int, k: int, low: float, middle: float, high: float) -> float:
        """How far point j lies above the chord from i to k, as a share of what is compared, in floats.

        0 where these say nothing.
        """
        x = self._x[i]
        width = self._x[k] - x
        if not width < 600 or min(low or 1.0, middle or 1.0, high or 1.0) <= 1e-290:
            return 0.0
        near, far = math.expm1(self._x[j] - x), math.expm1(width)
        total = (middle + low) * far + (high + low) * near
        # Where products underflow, digits are lost.
        return ((middle - low) * far - (high - low) * near) / total if total > 1e-290 else 0.0

    def _heights(self, i: int, j: int, k: int) -> tuple[float, float, float]:
        """How high three points are. Left of alpha = 1 above the line 1 - alpha: what is straight stays so."""
        if self._x[k] >= 0:
            return self._value(i), self._value(j), self._value(k)
        x, side = self._x, self._side
        later, last = min(x[j] - x[i], 700.0), min(x[k] - x[i], 700.0)
        return side[i], math.exp(later) * side[j], math.exp(last) * side[k]

    def _value(self, i: int) -> float:
        x, side = self._x[i], self._side[i]
        return -math.expm1(x) + math.exp(x) * side if x < 0 else side

    def _exact(self, i: int) -> tuple[int, int]:
        """(alpha, H_alpha) as integers times 2^-_SCALE_BITS: no rounding but that of the curves themselves."""
        if i not in self._known:
            alpha, side = _exact_exp(self._x[i]), self._side[i]
            value = _ONE - alpha + _times(alpha, side) if self._x[i] < 0 else _times(_ONE, side)
            self._known[i] = alpha, value
        return self._known[i]

    def visible(self, i: int, j: int) -> bool:
        """Whether the chord lies clearly below the curve somewhere between.

        Compared with what the curve is above its floor max(0, 1 - alpha).
        """
        between = [k for k in range(i + 1, j) if self._side[k] > 0]
        if not between:
            return False
        middle = between[len(between) // 2]
        if self._share(i, middle, j, *self._heights(i, middle, j)) > _PLAINLY:
            return True
        (start, low), (end, high) = self._exact(i), self._exact(j)
        width, rise = end - start, high - low
        for alpha, value in map(self._exact, between):
            gap = (value - low) * width - rise * (alpha - start)
            height = value - max(_ONE - alpha, 0)
            if height > min(_ONE, alpha) // 10**300 and gap * _VISIBLE > height * width:
                return True
        return False


# A chord that is less than this share below the curve is rounding; so is a curve below 1e-300.
_VISIBLE = 10**12

# exp(-690) has 995 bits before its first digit.
_SCALE_BITS = 1300
_ONE = 1 << _SCALE_BITS
_EXACT = Context(prec=45)


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
