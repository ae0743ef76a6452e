"""Privacy amplification by subsampling: what a secret random batch adds to a mechanism's privacy.

Poisson sampling under zero-out: with the record the output is (1-q) Q + q P, without it Q, so
H_{a'}(mixture||Q) = q H_a(P||Q) with a' = 1 + q(a-1), exactly (Balle, Barthe and Gaboardi 2018, arXiv:1807.01647).

Sampling without replacement under replace-one: H_{a'} <= q H_a with the same a', for every ordered pair of neighbours
and a' >= 1, by advanced joint convexity; for a' < 1 the curve follows from H_a(P||Q) = 1 - a + a H_{1/a}(Q||P). The
joined curve is convex: at a' = 1 its left slope is q TV - 1 + Q(L > 0), its right slope -Q(L > 0), and for a symmetric
pair 1 - 2 Q(L > 0) = TV + P(L = 0) >= q TV. So it is a dominating pair, and it composes.

Poisson sampling under replace-one, Gaussian noise: with contributions v, v' in the ball of radius r, the pair
((1-q) N(0) + q N(v), (1-q) N(0) + q N(v')) is dominated by v = r e, v' = -r e. Proof: for a >= 1 the best event A is
{a' exp<x, v'-v> + c exp(-<x, v>) < const}, an up-set of the cone K = {u: <u, v-v'> >= 0, <u, v> >= 0}. So H_a grows
when v moves along K or v' along -K (the event may stay fixed). Move v along a fixed w orthogonal to it with
<w, v'> <= 0 (there is room: add a dimension): w stays in K all along, until |v| = r. Then move v' straight to -v: with
u the opposite of that direction, <u, v> >= 0, and <u, v-v'> >= 0 because |v'| <= r = |v|. For a < 1 exchange the roles.

Poisson sampling under zero-out, Gaussian noise, k records that change together: the pair of ``group``. Given the
other records of the batch, which have the same law on both sides, and all earlier outputs, the query is moved by u_S
when the records S of the group are sampled, |u_S| <= j mu in units of the noise, j = |S|. So the outputs are
P = sum_S w_S N(u_S), w_S = q^j (1-q)^(k-j), against Q = N(0). Let a test accept with probability a under Q. By Neyman
and Pearson it accepts under N(u_S) with probability at most Phi(Phi^-1(a) + |u_S|) <= Phi(Phi^-1(a) + j mu), hence
under P with probability at most sum_j C(k,j) q^j (1-q)^(k-j) Phi(Phi^-1(a) + j mu). In one dimension with u_S = j mu
ONE half-line attains all these bounds at once, so this pair has the largest H_a(P||Q) for every a > 0, and, because
H_a(Q||P) = 1 - a + a H_{1/a}(P||Q), also in the other order. The mixture over the other records is covered by joint
convexity. Fewer than k records are sampled less often, and Phi grows in j. Dominating pairs compose adaptively, so T
steps are T such pairs. For a sum the pair is attained by k equal records. Ganesh 2024,
arXiv:2401.10294, has the same pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import betainc, log_ndtr, ndtr

from dptoolkit.accounting._numeric import log1mexp, log_binomial, log_sum_exp
from dptoolkit.accounting.profiles import Curve, DominatingPair, Tails, non_private
from dptoolkit.accounting.profiles import gaussian as gaussian_pair
from dptoolkit.types import Array


def amplified(epsilon: float, rate: float) -> float:
    """log(1 + rate (e^epsilon - 1)): epsilon of an epsilon-DP mechanism run on a random batch, by any scheme here."""
    if rate in (0, 1) or math.isinf(epsilon):
        return epsilon if rate > 0 else 0.0
    if epsilon < 700:
        value = math.log1p(rate * math.expm1(epsilon))
    else:
        value = float(np.logaddexp(0.0, epsilon * (1 + 1e-15) + math.log(rate)))
    # The result is rounded up, but never above epsilon: running on a sample loses no more than running on all records.
    return min(value * (1 + 1e-15), epsilon)


def _inner_loss_below(x: Array, rate: float) -> Array:
    """``_inner_loss`` minus its round-off, so that a decreasing divergence read there is never too small."""
    return np.asarray(_inner_loss(x, rate) * (1 - 1e-15))


def poisson_zero_out(pair: DominatingPair, rate: float) -> DominatingPair:
    """((1-rate) Q + rate P, Q): Poisson sampling, with the record against without it."""
    if rate >= 1:
        return pair

    def above(x: Array) -> Array:
        return rate * pair.above(_inner_loss_below(x, rate))

    def below(x: Array) -> Array:
        y, rest = _inner_loss_backwards(x, rate)
        inside = rest > 0
        return np.where(inside, np.exp(np.where(inside, x, 0.0)) * rest * pair.below(np.where(inside, y, 0.0)), 0.0)

    inner_tails = pair.tails

    def tails(x: Array) -> Tails:
        assert inner_tails is not None
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            odds = np.expm1(np.minimum(x, 1.0)) / rate
            y = np.where(odds > -1, np.log1p(np.maximum(odds, -1.0)), -np.inf)
            y = np.where(x > 1, _inner_loss(np.maximum(x, 0.0), rate), y)
        t = inner_tails(y)
        return Tails(
            (1 - rate) * t.q_above + rate * t.p_above,
            t.q_above,
            (1 - rate) * t.q_below + rate * t.p_below,
            t.q_below,
        )

    return DominatingPair(
        above,
        below,
        None if inner_tails is None else tails,
        infinite_mass=rate * pair.infinite_mass,
        symmetric=False,
    )


def replace_one(pair: DominatingPair, rate: float) -> DominatingPair:
    """The symmetric pair that dominates a batch without replacement (or Poisson) under replace-one."""
    if rate >= 1:
        return pair

    def curve(x: Array) -> Array:
        y = _inner_loss_below(x, rate)
        return rate * (pair.above(y) if pair.above is pair.below else np.maximum(pair.above(y), pair.below(y)))

    return DominatingPair(curve, curve, infinite_mass=rate * pair.infinite_mass)


def poisson_replace_one_gaussian(mu: float, rate: float) -> DominatingPair:
    """((1-q) N(0) + q N(mu/2), (1-q) N(0) + q N(-mu/2)), unit variance: exact for Poisson, replace-one, Gaussian."""
    r = mu / 2
    log_k = math.log(rate) - r * r / 2

    def threshold(x: Array) -> Array:
        """The point where the loss is x >= 0: k u^2 - (1-q)(e^x - 1) u - e^x k = 0 for u = exp(r * point)."""
        log_half = math.log(0.5) + math.log1p(-rate) + _log_expm1(x) - log_k
        return np.logaddexp(log_half, 0.5 * np.logaddexp(2 * log_half, x)) / r

    def tails(x: Array) -> Tails:
        t = np.where(x >= 0, 1.0, -1.0) * threshold(np.abs(x))
        zero, plus, minus = ndtr(-t), ndtr(r - t), ndtr(-r - t)
        zero_c, plus_c, minus_c = ndtr(t), ndtr(t - r), ndtr(t + r)
        return Tails(
            (1 - rate) * zero + rate * plus,
            (1 - rate) * zero + rate * minus,
            (1 - rate) * zero_c + rate * plus_c,
            (1 - rate) * zero_c + rate * minus_c,
        )

    def curve(x: Array) -> Array:
        t = threshold(x)
        # The common part enters as (1-q)(e^x - 1): nothing of size 1 cancels when q is tiny.
        common = (1 - rate) * np.exp(_log_expm1(x) + log_ndtr(-t))
        alone, log_other = ndtr(r - t), log_ndtr(-r - t)
        # The difference cancels where mu is tiny. What is added is above its round-off.
        round_off = 1e-15 * (2 - np.maximum(log_other, -800.0)) * rate * alone
        return np.maximum(rate * (alone - np.exp(x + log_other)) - common, 0.0) + round_off

    return DominatingPair(curve, curve, tails)


def any_sampled(rate: float, size: int) -> float:
    """The probability that a Poisson sample has at least one of ``size`` records."""
    return 1.0 if rate >= 1 else -math.expm1(size * math.log1p(-rate))


# Parts of a group's mixture: the most of them, and the share of their mass that may be moved to the last one.
_MOST_PARTS, _MOVED_MASS = 400, 1e-60
# Newton's steps for the point of a loss; they converge within ten.
_MOST_STEPS = 100


def _group_weights(rate: float, size: int) -> tuple[Array, Array, Array]:
    """j = 1, 2, ..., log P(j of ``size`` records are sampled) from above, and from below.

    Hardly ever sampled numbers j are counted as ``size``, which is the worst one: Phi(Phi^-1(a) + j mu) grows in j.
    From below these count as nothing.
    """
    some = any_sampled(rate, size)
    j = np.arange(1, min(size, _MOST_PARTS) + 1, dtype=float)
    # P(more than j are sampled), by the incomplete beta function.
    beyond = np.where(j < size, betainc(j + 1, np.maximum(size - j, 1.0), rate), 0.0)
    if beyond[-1] > _MOVED_MASS * some:
        # Too many parts: all that are sampled count as all.
        return np.array([float(size)]), np.array([math.log(some)]), np.array([-math.inf])
    last = int(np.argmax(beyond <= _MOVED_MASS * some))
    j, moved = j[: last + 1], max(float(beyond[last]) * (1 + 1e-6), math.ulp(0.0))
    choices = np.array([math.log(math.comb(size, int(k))) for k in j])
    terms = np.stack([choices, j * math.log(rate), (size - j) * math.log1p(-rate)])
    log_w, error = terms.sum(axis=0), 1e-15 * (1 + np.abs(terms).sum(axis=0))
    high, low = log_w + error, log_w - error
    if j[-1] < size:
        j, high, low = np.append(j, size), np.append(high, math.log(moved)), np.append(low, -math.inf)
    return j, high, low


def _of_any_shape(curve: Curve) -> Curve:
    return lambda x: curve(x.ravel()).reshape(x.shape)


def group(mu: float, rate: float, size: int) -> DominatingPair:
    """(sum_j w_j N(j mu), N(0)), w binomial: Poisson sampling of ``size`` records that are all there or all absent."""
    if rate >= 1 or size == 1:
        return poisson_zero_out(gaussian_pair(size * mu), rate)
    if math.isinf(size * mu * size * mu):
        return non_private(any_sampled(rate, size))
    j, log_w, log_low = _group_weights(rate, size)
    return shifted(j * mu, log_w, log_low, any_sampled(rate, size), size * math.log1p(-rate))


def shifted(shifts: Array, log_w: Array, log_low: Array, some: float, log_w0: float) -> DominatingPair:
    """(w_0 N(0) + sum_j w_j N(shift_j), N(0)): weights from above and from below, their sum, and log w_0.

    With A(t) = sum_j w_j exp(shift_j t - shift_j^2/2) the loss at t is log(w_0 + A(t)), and log A is convex with slopes
    of at least the smallest shift, so that Newton's steps from the right end at the point of any loss.
    """

    def point(log_a: Array) -> Array:
        """t with log A(t) = log_a."""
        t = np.min((log_a[:, None] - log_w) / shifts + shifts / 2, axis=1)
        for _ in range(_MOST_STEPS):
            logs = log_w + shifts * t[:, None] - 0.5 * shifts**2
            top = np.max(logs, axis=1)
            parts = np.exp(logs - top[:, None])
            total = parts.sum(axis=1)
            change = (top + np.log(total) - log_a) * total / (parts * shifts).sum(axis=1)
            t = t - change
            if np.all(np.abs(change) <= 1e-9 * (1 + np.abs(t))):
                break
        return np.asarray(t)

    def sampled(t: Array) -> Array:
        """P(some are sampled, and the output is above t), rounded up."""
        return np.asarray((np.exp(log_w) * ndtr(shifts - t[:, None])).sum(axis=1))

    def sampled_below(t: Array, x: Array) -> Array:
        """e^x P(some are sampled, and the output is below t), rounded down; e^x alone may overflow."""
        return np.asarray(np.exp(x[:, None] + log_low + log_ndtr(t[:, None] - shifts)).sum(axis=1))

    def log_rest(x: Array) -> Array:
        """log(e^x - w_0), where e^x - 1 and 1 - w_0 are added: nothing of size 1 cancels when the rate is tiny."""
        with np.errstate(divide="ignore"):
            near = np.log(np.maximum(np.expm1(np.minimum(x, 1.0)) + some, 0.0))
        return np.where(x < 1, near, x + np.log1p((some - 1) * np.exp(-np.maximum(x, 1.0))))

    @_of_any_shape
    def above(x: Array) -> Array:
        log_a = log_rest(x)
        t = point(log_a)
        alone, log_none = sampled(t), log_ndtr(-t)
        # What is added is above the round-off of the difference.
        round_off = 1e-15 * (2 + np.abs(log_a) - np.maximum(log_none, -800.0)) * alone
        return np.maximum(alone - np.exp(log_a + log_none), 0.0) + round_off

    @_of_any_shape
    def below(x: Array) -> Array:
        # 1 - w_0 e^x with its round-off: e^x times the e^-x - w_0 that is below.
        gap = np.minimum(x + log_w0, 0.0)
        rest = np.minimum(-np.expm1(gap) * (1 + 1e-15) - 1e-15 * log_w0 * np.exp(gap), 1.0)
        values = np.zeros_like(x)
        inside = x + log_w0 * (1 + 1e-15) < 0
        if np.any(inside):
            x, rest = x[inside], rest[inside]
            t = point(np.log(rest) - x)
            log_none = log_ndtr(t)
            none = rest * np.exp(log_none)
            round_off = 1e-15 * (4 + x - np.maximum(log_none, -800.0)) * none
            values[inside] = np.maximum(none - sampled_below(t, x), 0.0) + round_off
        return values

    def tails(x: Array) -> Tails:
        log_a = log_rest(x)
        t = np.full_like(x, -np.inf)
        t[np.isfinite(log_a)] = point(log_a[np.isfinite(log_a)])
        above_t, below_t = ndtr(-t), ndtr(t)
        none, zero = 1 - some, np.zeros_like(t)
        return Tails(none * above_t + sampled(t), above_t, none * below_t + sampled_below(t, zero), below_t)

    return DominatingPair(above, below, tails, symmetric=False)


def group_rdp(noise_multiplier: float, rate: float, size: int, orders: Array) -> Array:
    """Renyi divergence of a bound on ``group``; see ``shifted_rdp``."""
    a = np.atleast_1d(np.asarray(orders, dtype=float))
    if math.isinf(noise_multiplier) or rate == 0:
        return np.zeros_like(a)
    if noise_multiplier == 0:
        return np.full_like(a, math.inf)
    with np.errstate(over="ignore"):
        if rate == 1:
            return 0.5 * a * (size / noise_multiplier) * (size / noise_multiplier)
        j, log_w, _ = _group_weights(rate, size)
        return shifted_rdp(j / noise_multiplier, log_w, a)


def shifted_rdp(shifts: Array, log_w: Array, a: Array) -> Array:
    """log sum_j w_j exp(a (a - 1) shift_j^2 / 2) / (a - 1), for both orders of the pair.

    The moment is jointly convex, so it is at most that of its parts.
    """
    with np.errstate(over="ignore"):
        excess = log_w + _log_expm1(a[:, None] * (a[:, None] - 1) * 0.5 * np.square(shifts))
        return np.maximum(np.logaddexp(0.0, log_sum_exp(excess, axis=1)), np.finfo(float).tiny) / (a - 1)


def _log_expm1(x: Array) -> Array:
    """log(e^x - 1) for x >= 0."""
    return np.asarray(x + log1mexp(x))


def _inner_loss(x: Array, rate: float) -> Array:
    """log(1 + (e^x - 1)/rate) for x >= 0, without overflow and without cancellation."""
    # For rates next to 0 the form that is not taken may be infinite.
    with np.errstate(over="ignore", divide="ignore"):
        near = np.log1p(np.expm1(np.minimum(x, 1.0)) / rate)
        far = x - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-x))
    return np.where((x < 1) & np.isfinite(near), near, far)


def _outer_loss(y: Array, rate: float) -> Array:
    """log(1 - rate + rate e^y), the inverse of ``_inner_loss``, for any y."""
    near = np.log1p(rate * np.expm1(np.minimum(y, 1.0)))
    return np.where(y < 1, near, np.logaddexp(math.log1p(-rate), math.log(rate) + y))


def _inner_loss_backwards(x: Array, rate: float) -> tuple[Array, Array]:
    """y = -log(1 - (1 - e^-x)/rate) for x >= 0 and rate e^-y, which is not positive from -log(1-rate) on.

    Both are rounded to where a divergence is larger: y down, and the rest e^-x - (1 - rate), which cancels, up.
    """
    rest = np.where(x < 0.5, np.expm1(-x) + rate, np.exp(-x) - (1 - rate))
    rest = rest + 1e-15 * np.minimum(np.exp(-x), rate)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        near = -np.log1p(np.maximum(np.expm1(-x) / rate, -1.0))
        return np.where(rest > 0.5 * rate, near, -np.log(rest / rate)) * (1 - 1e-15), rest


# --- Renyi divergences ------------------------------------------------------------------------------
#
# Each is log(1 + M)/(order - 1) with M the integral of a positive integrand: for a rate of 1e-9 the moment is
# 1 + 1e-18, and a moment computed as such would be lost to rounding, with a divergence of 0 as the answer.

# Instead of sums and quadratures longer than this, a looser bound is used; such orders are far from the best one.
_LONGEST_SUM = 4096
_MOST_POINTS = 50_000


def poisson_gaussian_rdp(noise_multiplier: float, rate: float, orders: Array) -> Array:
    """Renyi divergence of the Poisson-subsampled Gaussian under zero-out, at any orders > 1, for 0 < rate < 1.

    Mironov, Talwar and Zhang 2019, arXiv:1908.10530: the direction with the record in the first place is the larger.
    Integer orders by the binomial sum, the others by quadrature of the same integral, or by the chord between integers
    ((order - 1) times the divergence is convex) where the quadrature would be long.
    """
    return _each(orders, lambda a: _poisson_log_moment(noise_multiplier, rate, a))


def _each(orders: Array, log_moment: Callable[[float], float]) -> Array:
    """Divergences from log moments; never 0, since 0 would mean that the two distributions are equal."""
    a = np.atleast_1d(np.asarray(orders, dtype=float))
    return np.maximum([log_moment(float(order)) for order in a], np.finfo(float).tiny) / (a - 1)


def _poisson_log_moment(z: float, rate: float, order: float) -> float:
    below = math.floor(order)
    if order == below:
        return _binomial_log_moment(z, rate, order) if order <= _LONGEST_SUM else _convex_bound(z, rate, order)
    x = _points(z, -14 * z, order + 14 * z)
    if x is None:
        low, high = (_poisson_log_moment(z, rate, float(a)) if a > 1 else 0.0 for a in (below, below + 1))
        return (below + 1 - order) * low + (order - below) * high
    log_density = -0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2 * math.pi))
    return _log_moment(x, log_density + _log_excess(_outer_loss((x - 0.5) / z**2, rate), order))


def _binomial_log_moment(z: float, rate: float, order: float) -> float:
    k = np.arange(2, order + 1, dtype=float)
    log_weight = log_binomial(order, k) + k * math.log(rate) + (order - k) * math.log1p(-rate)
    return float(np.logaddexp(0.0, log_sum_exp(log_weight + _log_expm1(k * (k - 1) / 2 * (1 / z) ** 2))))


def poisson_replace_one_gaussian_rdp(noise_multiplier: float, rate: float, orders: Array) -> Array:
    """Renyi divergence of the exact pair of ``poisson_replace_one_gaussian``, for 0 < rate < 1."""
    z = noise_multiplier

    def log_moment(order: float) -> float:
        x = _points(z, -14 * z - 1, order + 14 * z)
        if x is None:
            return _convex_bound(z, rate, order)
        up, down = ((sign * x / 2 - 0.125) / z**2 for sign in (1, -1))
        log_q = _outer_loss(down, rate)
        log_density = log_q - 0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2 * math.pi))
        return _log_moment(x, log_density + _log_excess(_outer_loss(up, rate) - log_q, order))

    return _each(orders, log_moment)


def without_replacement_gaussian_rdp(noise_multiplier: float, rate: float, orders: Array) -> Array:
    """Renyi divergence of the pair that dominates the Gaussian on a batch without replacement, for 0 < rate < 1.

    At a loss l > 0 the pair has the Q-mass of the pair without sampling, at -l the mirror image, and the rest at 0. So
    the moment of order a is 1 + E_Q[(e^{al} - 1)(1 - e^{-(a-1)l}); l > 0] with e^l = 1 - rate + rate e^{inner loss}.
    This is far below the general bound.
    """
    z = noise_multiplier

    def log_moment(order: float) -> float:
        x = _points(z, 0.5, order + 14 * z, refinement=4)
        if x is None:
            return _convex_bound(z, rate, order)
        loss = _outer_loss((x - 0.5) / z**2, rate)
        log_density = -0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2 * math.pi))
        return _log_moment(x, log_density + _log_expm1(order * loss) + log1mexp((order - 1) * loss))

    return _each(orders, log_moment)


def _points(z: float, low: float, high: float, refinement: float = 1.0) -> Array | None:
    """Points of the trapezoid rule for mixtures of Gaussians with scale z and unit shifts; None if too many.

    The integrands are analytic in a strip of half-width about pi z^2, where the rule converges like
    exp(-2 pi * strip / step): the step leaves far less than 1e-12. Where the integrand starts at a finite end, with a
    double zero, the error is of fourth order and a refinement of 4 leaves less than 1e-8.
    """
    step = min(0.2 * z, 0.4 * z * z) / refinement
    if high - low >= _MOST_POINTS * step:
        return None
    return np.asarray(low + step * np.arange(math.ceil((high - low) / step)), dtype=np.float64)


def _log_moment(x: Array, log_values: Array) -> float:
    return float(np.logaddexp(0.0, log_sum_exp(log_values) + math.log(x[1] - x[0])))


def _log_excess(loss: Array, order: float) -> Array:
    """log(r^a - 1 - a (r - 1)) for r = e^loss: what is left of r^a when E[r] = 1 is taken out."""
    power = order * loss
    series, term = np.zeros_like(loss), np.ones_like(loss)
    for k in range(1, 9):
        term = term * loss / k
        series = series + (order**k - order) * term
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        middle = np.log(np.expm1(power) - order * np.expm1(loss))
        large = power + np.log1p((order - 1) * np.exp(-power) - order * np.exp(-(order - 1) * loss))
        return np.where(np.abs(power) < 0.05, np.log(series), np.where(power > 50, large, middle))


def _convex_bound(z: float, rate: float, order: float) -> float:
    """The moment is jointly convex, so it is at most 1 - rate + rate times the moment without sampling."""
    return float(_outer_loss(np.asarray(order * (order - 1) / 2 * (1 / z) ** 2), rate))


def convex_rdp(rdp: Array, rate: float, orders: Array) -> Array:
    """Renyi divergence of any mechanism on a random batch, from its own ``rdp`` at the same orders, for 0 < rate < 1.

    The moment E_Q[(P/Q)^order] is jointly convex in (P, Q). With probability 1 - rate the record is not in the batch,
    and the outputs of the neighbours have the same law, whose moment is 1. Otherwise they are neighbours of the
    mechanism. This holds for both schemes, both adjacencies and both orders of the neighbours. It is a loose bound.
    """
    with np.errstate(over="ignore"):
        return _unless_nothing(_outer_loss((orders - 1) * rdp, rate) / (orders - 1), rdp)


def _unless_nothing(rdp: Array, inner_rdp: Array) -> Array:
    """``rdp``, which is 0 only where the mechanism without sampling releases nothing, and not where it underflows."""
    return np.where(inner_rdp == 0, 0.0, np.maximum(rdp, np.finfo(float).tiny))


def without_replacement_rdp(inner_rdp: Curve, pure_epsilon: float, rate: float, orders: Array) -> Array:
    """Renyi divergence of any mechanism on a batch without replacement, under replace-one, for 0 < rate < 1.

    Wang, Balle and Kasiviswanathan 2019, arXiv:1808.00087, Theorem 9, for integer orders; between integers
    (order - 1) times the divergence is convex, so the chord is a bound. ``inner_rdp`` gives the mechanism's own
    divergence at an array of orders, ``pure_epsilon`` its epsilon at delta 0 (infinite for Gaussian noise). Never more
    than joint convexity gives.
    """
    orders = np.atleast_1d(np.asarray(orders, dtype=float))
    floors, ceilings = np.floor(orders), np.ceil(orders)
    needs = np.unique(np.concatenate([floors, ceilings]))
    log_terms = _without_replacement_terms(inner_rdp, pure_epsilon, rate, int(min(max(needs[-1], 2), _LONGEST_SUM)))
    log_moments = {float(a): _without_replacement_order(log_terms, a) for a in needs}
    low, high = (np.array([log_moments[float(a)] for a in ends]) for ends in (floors, ceilings))
    share = orders - floors
    with np.errstate(invalid="ignore"):
        between = np.where(share > 0, (1 - share) * low + share * high, low)
        alone = inner_rdp(orders)
        convex = _outer_loss((orders - 1) * alone, rate)
    return _unless_nothing(np.fmin(between, convex) / (orders - 1), alone)


def _without_replacement_terms(inner_rdp: Curve, pure: float, rate: float, longest: int) -> Array:
    """log of the factor of C(a, j) in the theorem's sum, for j = 2, ..., longest."""
    j = np.arange(2, longest + 1, dtype=float)
    divergence = inner_rdp(j)
    log_odds = float(_log_expm1(np.asarray(pure)))
    terms = j * math.log(rate) + (j - 1) * divergence + np.minimum(math.log(2), j * log_odds)
    terms[0] = min(2 * math.log(rate) + math.log(4) + float(_log_expm1(divergence[0])), terms[0])
    return np.asarray(terms)


def _without_replacement_order(log_terms: Array, order: float) -> float:
    if order == 1:
        return 0.0
    if order > len(log_terms) + 1:
        return math.inf
    j = np.arange(2, order + 1, dtype=float)
    return float(np.logaddexp(0.0, log_sum_exp(log_binomial(order, j) + log_terms[: len(j)])))
