"""The minimiser of a regularised convex loss plus a linear term, with a certificate of how near it is.

    J(w) = sum_i f(<x_i, w>, y_i) + (l2/2)|w|^2 + <linear, w>   over all w or over a ball,

in the scaling of the SUM. J is l2-strongly convex, so a subgradient of norm tau at a point (of J plus the indicator of
the ball) shows that the point is within tau/l2 of the minimiser. That is what the privacy of an inexact objective
perturbation rests on: the distance must hold on EVERY data set, so the certificate includes a bound on its own rounding
errors, and the search never gives up: sweeps in the dual on many sparse rows (dual.py), Newton steps, then gradient
steps that must contract, then the same with more precision (long double, then decimals with more and more digits). A
refusal would truncate the noise: values that one data set accepts and its neighbour does not are impossible under the
neighbour.

On a ball: for any v and eta > 0, with p the projection of v, (v - p)/eta is normal to the ball at p, so that
grad J(p) + (v - p)/eta is a subgradient there.

Privacy: nothing in here is private. The linear term is the noise, the result is a secret until noise of scale
s2 is added to it (``reachable_tolerance`` plans both), and the number of steps depends on the data.

Long because the certificate, the arithmetic of each precision and the search must agree to the last rounding.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid, nonnegative, positive, whole
from dptoolkit.data import kernel_arrays
from dptoolkit.losses import Loss
from dptoolkit.optimise import dual
from dptoolkit.optimise.geometry import Ball
from dptoolkit.types import Array


@dataclass(frozen=True)
class Problem:
    """What is minimised; all bounds are public and hold for every data set.

    matrix: (n, d), dense or CSR, rows of L2 norm at most ``row_norm`` (the intercept column counts).
    residual_bound: sup |f'| on the ball; with row_norm it gives the gradient bound L of one record.
    """

    matrix: Any
    y: Array
    loss: Loss
    l2: float
    linear: Array
    row_norm: float
    residual_bound: float
    ball: Ball | None = None

    def __post_init__(self) -> None:
        for name in ("l2", "row_norm", "residual_bound"):
            positive(name, getattr(self, name))
        losses.get(self.loss.name, losses.CURVED)
        if not self.loss.is_bounded and self.ball is None:
            raise invalid(
                "ball",
                None,
                f"a ball for loss {self.loss.name!r}",
                "Its gradient is bounded only on a ball.",
            )
        if self.linear.shape != (self.d,) or not np.isfinite(self.linear).all():
            raise invalid("linear", f"an array of shape {self.linear.shape}", f"finite, of shape ({self.d},)")
        if self.y.shape != (self.n,):
            raise invalid("y.shape", self.y.shape, f"({self.n},)")

    @property
    def n(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def d(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def curvature(self) -> float:
        """n beta: an upper bound on the curvature of the sum of losses."""
        return self.n * self.loss.smoothness * self.row_norm**2

    @property
    def nonzeros(self) -> int:
        """The largest number of stored entries of a row."""
        if hasattr(self.matrix, "indptr"):
            return int(np.diff(self.matrix.indptr).max(initial=0))
        return self.d


class Solution(NamedTuple):
    """A point theta + remainder (two doubles an entry) within ``bound``/l2 of the minimiser, and its witness.

    normal: the sum of its two rows is a vector normal to the ball near the point, which nearly cancels the gradient; 0
    without a ball. bound: what the certificate proves, at most tau. precision: "double", "extended" or "decimal".
    """

    theta: Array
    remainder: Array
    normal: Array
    bound: float
    precision: str
    gradients: int


# --- the certificate ------------------------------------------------------------------------------


def _gamma(count: float, unit: float) -> float:
    """count u / (1 - count u): the relative error of that many roundings."""
    return count * unit / (1 - count * unit) if count * unit < 0.5 else math.inf


def stretch(d: int, unit: float) -> float:
    """A computed norm of d entries times this is at least the norm itself."""
    return 1 + _gamma(d + 3, unit)


def rounding_error(
    *, n: int, nonzeros: int, row_norm: float, residual_bound: float, smoothness: float, l2: float, theta_norm: Any,
    linear_norm: Any, unit: float,
) -> Any:  # fmt: skip
    """A bound on the L2 rounding error of grad J, computed from scratch with unit round-off ``unit`` in any order.

    Margins err by gamma(nonzeros + 1) |x||w|, which the residual's slope carries over; the residual itself by 4 units;
    the sum over rows by gamma(n + 2). For arrays of norms it is an array.
    """
    margins = smoothness * row_norm * theta_norm * _gamma(nonzeros + 1, unit)
    residuals = residual_bound * (_gamma(n + 2, unit) + 4 * unit)
    return n * row_norm * (margins + residuals) + _gamma(3, unit) * (l2 * theta_norm + linear_norm)


class _Certificate(NamedTuple):
    """``norm`` is that of the subgradient, ``bound`` has the rounding errors in it.

    ``gradient`` is grad J at the point.
    """

    bound: float
    point: Any
    normal: Any
    norm: float
    gradient: Any


def _certificate(problem: Problem, level: Any, theta: Any, gradient: Any) -> _Certificate:
    """The certificate, at this precision, of a point near ``theta``; without a ball, of theta itself."""
    unit = level.unit
    stretched = stretch(problem.d, unit)
    if problem.ball is None:
        error = _error_at(problem, level, theta)
        norm = level.norm(gradient)
        bound = stretched * norm + error + _beyond_a_pair(problem, level, theta)
        return _Certificate(bound, theta, None, norm, gradient)
    eta = 1 / (problem.l2 + problem.curvature)
    v = theta - level.number(eta) * gradient
    point, off = level.project(problem.ball, v)
    normal = (v - point) / level.number(eta)
    there = level.gradient(point)
    norm = level.norm(there + normal)
    # ``off`` counts three times: it moves the normal (1/eta) and the gradient (l2 + curvature), and is the distance of
    # the computed point from the certified one (l2).
    error = (
        _error_at(problem, level, point)
        + _gamma(4, unit) * level.norm(normal) * stretched
        + off * (1 / eta + 2 * problem.l2 + problem.curvature)
    )
    bound = stretched * norm + error + _beyond_a_pair(problem, level, point)
    return _Certificate(bound, point, normal, norm, there)


def _error_at(problem: Problem, level: Any, theta: Any) -> float:
    return float(rounding_error(
        n=problem.n, nonzeros=level.nonzeros, row_norm=problem.row_norm, residual_bound=problem.residual_bound,
        smoothness=problem.loss.smoothness, l2=problem.l2, theta_norm=level.norm(theta) * (1 + 1e-9),
        linear_norm=level.linear_norm, unit=level.unit,
    ))  # fmt: skip


def _beyond_a_pair(problem: Problem, level: Any, theta: Any) -> float:
    """l2 times the distance that the point moves when it is kept as two doubles an entry."""
    return 0.0 if level.name != "decimal" else problem.l2 * 2.0**-100 * (level.norm(theta) + 1e-290)


# --- precisions -----------------------------------------------------------------------------------


class _Level:
    """Arithmetic of one precision: NumPy's doubles or long doubles."""

    def __init__(self, problem: Problem, dtype: Any, name: str) -> None:
        self.name, self.dtype, self.unit = name, dtype, float(np.finfo(dtype).eps) / 2
        self._problem = problem
        self._matrix = problem.matrix if dtype == np.float64 else problem.matrix.astype(dtype)
        self._transposed = self._matrix.T
        self._y, self._linear = problem.y.astype(dtype), problem.linear.astype(dtype)
        self.linear_norm = float(np.linalg.norm(problem.linear)) * (1 + 1e-9)
        self.nonzeros = problem.nonzeros
        self.gradients = 0
        self._last: tuple[Any, Any] = (None, None)

    def margins_at(self, theta: Any) -> Any:
        """The margins at the point of the last gradient; None at others."""
        return self._last[1] if self._last[0] is theta else None

    def cast(self, vector: Any) -> Any:
        return np.asarray(vector).astype(self.dtype)

    def number(self, value: float) -> Any:
        return self.dtype(value)

    def gradient(self, theta: Any) -> Any:
        """grad J from scratch."""
        self._last = theta, self._matrix @ theta
        return self.gradient_at(theta, self._last[1])

    def gradient_at(self, theta: Any, margins: Any) -> Any:
        self.gradients += 1
        residual = self._problem.loss.residual(margins, self._y)
        return self._transposed @ residual + (self.number(self._problem.l2) * theta + self._linear)

    def norm(self, vector: Any) -> float:
        with np.errstate(over="ignore"):
            return float(np.sqrt(vector @ vector))

    def project(self, ball: Ball, v: Any) -> tuple[Any, float]:
        return ball.projection(v)

    def pair(self, vector: Any) -> tuple[Array, Array]:
        """The vector as two doubles an entry."""
        first = vector.astype(np.float64)
        return first, (vector - first.astype(self.dtype)).astype(np.float64)


class _Digits:
    """Arithmetic with any number of decimal digits: slow, and always precise enough in the end."""

    name = "decimal"

    def __init__(self, problem: Problem, digits: int) -> None:
        # Two digits are for the functions of decimal, correctly rounded here, and for sums in any order.
        self.unit = max(10.0 ** (2 - digits), 1e-300)
        self.context = decimal.Context(prec=digits, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])
        self._problem = problem
        self._rows = [_decimal_row(problem.matrix, i) for i in range(problem.n)]
        # A double becomes a Decimal exactly, whatever the precision of the context.
        self._y = [Decimal(v) for v in problem.y.tolist()]
        self._linear = np.array([Decimal(v) for v in problem.linear.tolist()])
        self.linear_norm = float(np.linalg.norm(problem.linear)) * (1 + 1e-9)
        self.nonzeros = problem.nonzeros
        self.gradients = 0

    def margins_at(self, theta: Any) -> Any:
        """Not kept: decimals are seldom needed."""
        return None

    def cast(self, vector: Any) -> Any:
        """Doubles and long doubles (as two doubles an entry), rounded to the digits of the current context."""
        first = np.asarray(vector).astype(np.float64)
        rest = (np.asarray(vector) - first).astype(np.float64)
        return np.array([Decimal(a) + Decimal(b) for a, b in zip(first.tolist(), rest.tolist(), strict=True)])

    def number(self, value: float) -> Any:
        return Decimal(value)

    def gradient(self, theta: Any) -> Any:
        self.gradients += 1
        out = self.number(self._problem.l2) * theta + self._linear
        exact_residual = self._problem.loss.exact_residual
        assert exact_residual is not None
        for (indices, values), y in zip(self._rows, self._y, strict=True):
            margin = sum((a * theta[j] for j, a in zip(indices, values, strict=True)), Decimal(0))
            residual = exact_residual(margin, y)
            for j, a in zip(indices, values, strict=True):
                out[j] += residual * a
        return out

    def norm(self, vector: Any) -> float:
        return float(sum((a * a for a in vector), Decimal(0)).sqrt()) * (1 + 2.0**-50)

    def project(self, ball: Ball, v: Any) -> tuple[Any, float]:
        d, size = len(v), ball.block or len(v)
        norms = [sum((a * a for a in v[i : i + size]), Decimal(0)).sqrt() for i in range(0, d, size)]
        if sum(norms) <= Decimal(ball.radius):
            return v.copy(), 0.0
        ordered, total, level = sorted(norms, reverse=True), Decimal(0), Decimal(0)
        for count, norm in enumerate(ordered, start=1):
            total += norm
            if norm * count > total - Decimal(ball.radius):
                level = (total - Decimal(ball.radius)) / count
        factors = [(norm - level) / norm if norm > level else Decimal(0) for norm in norms]
        point = np.array([a * factors[i // size] for i, a in enumerate(v)])
        return point, 20 * (d + 10) * self.unit * (ball.radius + float(sum(norms)))

    def pair(self, vector: Any) -> tuple[Array, Array]:
        first = np.array([float(a) for a in vector])
        return first, np.array([float(a - Decimal(b)) for a, b in zip(vector, first.tolist(), strict=True)])


def _decimal_row(matrix: Any, i: int) -> tuple[list[int], list[Decimal]]:
    if hasattr(matrix, "indptr"):
        part = slice(matrix.indptr[i], matrix.indptr[i + 1])
        return matrix.indices[part].tolist(), [Decimal(a) for a in matrix.data[part].tolist()]
    return list(range(matrix.shape[1])), [Decimal(a) for a in matrix[i].tolist()]


def verified_bound(problem: Problem, solution: Solution, digits: int = 50) -> float:
    """l2 times a bound on the distance of the solution from the minimiser, recomputed from scratch in decimals.

    Independent of how the solution was found and of its own claim: only the point and the normal are read. Accept if
    the result is at most tau.
    """
    level = _Digits(problem, digits)
    with decimal.localcontext(level.context):
        theta = level.cast(solution.theta) + level.cast(solution.remainder)
        if problem.ball is None:
            return level.norm(level.gradient(theta)) * (1 + 1e-12) + _error_at(problem, level, theta)
        eta = Decimal(1 / (problem.l2 + problem.curvature))
        v = theta + eta * (level.cast(solution.normal[0]) + level.cast(solution.normal[1]))
        point, off = level.project(problem.ball, v)
        subgradient = level.gradient(point) + (v - point) / eta
        off += level.norm(theta - point)
        error = _error_at(problem, level, point)
        return level.norm(subgradient) * (1 + 1e-12) + error + problem.l2 * off


# --- the search -----------------------------------------------------------------------------------


def minimise(problem: Problem, tau: float) -> Solution:
    """The certified minimiser: its distance from the true one is at most tau/l2. Always arrives.

    Every precision starts from the last one's best point. Within one: Newton steps while they help, then gradient
    steps while they contract as theory says; where they do not, rounding is at work and the next precision is due.
    """
    tau = positive("tau", tau)
    # From the noise and public bounds alone: a refusal here tells nothing of the data, and no planned tau comes near.
    least = _PAIR * (problem.n * problem.residual_bound * problem.row_norm + float(np.linalg.norm(problem.linear)))
    if tau < least:
        raise invalid("tau", tau, f">= {least:.3g}, which two doubles an entry can hold", "See reachable_tolerance.")
    curvature = _Curvature(problem)
    theta: Any = None
    gradients = 0
    for level in _levels(problem):
        with decimal.localcontext(getattr(level, "context", None)):
            start = _first(problem, level, tau) if theta is None else _at(problem, level, level.cast(theta))
            certificate = _search(problem, level, start, tau, curvature)
            gradients += level.gradients
            first, rest = level.pair(certificate.point)
            if certificate.bound <= tau:
                outward = certificate.normal
                normal = np.zeros((2, problem.d)) if outward is None else np.stack(level.pair(outward))
                return Solution(first, rest, normal, certificate.bound, level.name, gradients)
            theta = first if level.name == "double" else first.astype(np.longdouble) + rest.astype(np.longdouble)
    raise AssertionError("there is always one more digit")  # pragma: no cover


def _first(problem: Problem, level: Any, tau: float) -> _Certificate:
    """Where sweeps arrive. Elsewhere 0 or the minimum without data, whichever has the shorter gradient.

    In many dimensions the linear term is mostly noise, and the minimum without data is most of the way; on a ball it
    is that, projected.
    """
    alone = -problem.linear / problem.l2
    if problem.ball is not None:
        return _at(problem, level, np.asarray(problem.ball.project(alone)))
    swept = _swept(problem, level, tau) if _is_for_sweeps(problem) else None
    if swept is not None:
        return swept
    return min((_at(problem, level, theta) for theta in (np.zeros(problem.d), alone)), key=lambda c: c.norm)


def _at(problem: Problem, level: Any, theta: Any) -> _Certificate:
    return _certificate(problem, level, theta, level.gradient(theta))


def _is_for_sweeps(problem: Problem) -> bool:
    """Whether one row bends the objective less than the regulariser does, and there are many sparse rows."""
    return _is_large(problem) and problem.loss.smoothness * problem.row_norm**2 <= problem.l2


def _swept(problem: Problem, level: Any, tau: float) -> _Certificate | None:
    """The best point of sweeps in the dual (dual.py), while they help; None if there is no finite one."""
    sweeps = dual.Sweeps(problem.matrix, problem.y, problem.loss, problem.l2, problem.linear)
    best, least, failed = None, math.inf, 0
    # The norm of the gradient after a sweep over the length of its path, until one is known.
    ratio = _SWEPT
    while failed < _FEW and (best is None or _worth_it(best, tau)):
        moved = sweeps.sweep()
        failed = 0 if moved < 0.7 * least else failed + 1
        least = min(least, moved)
        if ratio * moved <= tau or failed == _FEW:
            now = _at(problem, level, sweeps.w)
            if not math.isfinite(now.bound):
                return best
            best = now if best is None else min(best, now, key=lambda c: c.bound)
            ratio = now.norm / max(moved, 1e-300)
        sweeps.mix()
    return best


def _levels(problem: Problem) -> Any:
    yield _Level(problem, np.float64, "double")
    if np.finfo(np.longdouble).eps < 2.0**-60:
        yield _Level(problem, np.longdouble, "extended")
    digits = 40
    while True:
        yield _Digits(problem, digits)
        digits *= 2


def _is_large(problem: Problem) -> bool:
    """Whether there are so many sparse rows that compiled passes are worth it."""
    return getattr(problem.matrix, "format", "dense") == "csr" and problem.matrix.nnz >= _WORTH_COMPILING


class _Curvature:
    """Products with the Hessian, in doubles, and an estimate of its largest eigenvalue; only the search uses them."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._matrix, self._transposed = problem, problem.matrix, problem.matrix.T
        self._weights: Array = np.ones(problem.n)
        self._arrays = kernel_arrays(problem.matrix) if _is_large(problem) else None

    def move_to(self, theta: Array, *, margins: Any = None, cautious: bool = False) -> None:
        """Take the curvature at theta, or a cautious one; ``margins`` are those there, where they are known.

        The cautious one is that of the flattest parabolas that lie above the losses and touch them there: those see
        what the second derivative does not where a loss is nearly straight.
        """
        loss, y = self._problem.loss, self._problem.y
        there = self._matrix @ theta if margins is None else np.asarray(margins, dtype=np.float64)
        assert loss.curvature is not None
        self._weights = np.asarray(loss.curvature(there, y, cautious), dtype=np.float64)

    def times(self, v: Array) -> Array:
        if self._arrays is None:
            return np.asarray(self._transposed @ (self._weights * (self._matrix @ v)) + self._problem.l2 * v)
        from dptoolkit.kernels.curvature import curvature_product

        product = np.empty(self._problem.d)
        curvature_product(*self._arrays, self._weights, v, product)
        product += self._problem.l2 * v
        return product

    def largest(self) -> float:
        """About the largest curvature that the loss allows, by power iteration."""
        v = np.random.default_rng(0).standard_normal(self._problem.d)
        size = 0.0
        # A size that overflows gives way to the public bound; a warning of NumPy would tell that rows are long.
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(15):
                v = v / max(float(np.linalg.norm(v)), 1e-300)
                v = self._transposed @ (self._matrix @ v)
                size = float(np.linalg.norm(v))
        # The bound first: min(bound, NaN) is the bound.
        return min(self._problem.curvature, 1.2 * self._problem.loss.smoothness * size) + self._problem.l2

    def solve(self, target: Array, relative: float, apply: Callable[[Array], Array] | None = None) -> Array:
        """Conjugate gradients for H x = target, to a relative residual."""
        times = apply or self.times
        # In units of the target, since products of three small numbers underflow; a power of two changes no digit.
        size = math.ldexp(1.0, math.frexp(float(np.max(np.abs(target), initial=0.0)))[1] - 1)
        x, r = np.zeros_like(target), target / size
        p, rr = r.copy(), float(r @ r)
        goal = rr * relative * relative
        for _ in range(_MOST_PRODUCTS):
            if rr <= goal:
                break
            q = times(p)
            curve = float(p @ q)
            if not curve > 0:
                break
            x += rr / curve * p
            r -= rr / curve * q
            rr, before = float(r @ r), rr
            p = r + rr / before * p
        return x * size


# The largest number of steps of one conjugate-gradient solve.
_MOST_PRODUCTS = 500
# From this many stored entries on, a compiled product in one pass is quicker than SciPy's in two.
_WORTH_COMPILING = 20_000
# 32 times the relative error of a number that is kept as a pair of doubles.
_PAIR = 2.0**-95
# Sweeps in a row that may fail to shorten the path before Newton steps take over.
_FEW = 4
# About the norm of the gradient after a sweep, over the length of the sweep's path: 0.3 to 1 for texts.
_SWEPT = 0.5
# The relative residual of the first Newton systems.
_FORCING = 0.25
# Steps in a row that may fail to shorten the gradient before a method gives up. Far from the minimum Newton steps may
# advance for long without shortening it; where rounding is the reason, _worth_it ends the search at once.
_PATIENCE = 60


def _search(problem: Problem, level: Any, start: _Certificate, tau: float, curvature: _Curvature) -> _Certificate:
    steps = _newton if problem.ball is None else _face_newton
    best = steps(problem, level, start, tau, curvature)
    return _gradient_steps(problem, level, best, tau) if _worth_it(best, tau) else best


def _worth_it(certificate: _Certificate, tau: float) -> bool:
    """Whether more steps at this precision can help: not where the bound is rounding error already."""
    return certificate.bound > tau and certificate.norm > 0.1 * (certificate.bound - certificate.norm)


def _newton(problem: Problem, level: Any, start: _Certificate, tau: float, curvature: _Curvature) -> _Certificate:
    """Newton steps with a line search on the slope, which needs no values of J and so keeps all digits."""
    best = now = start
    first, failed = max(start.norm, 1e-300), 0
    while _worth_it(best, tau) and failed < _PATIENCE:
        point = level.pair(now.point)[0]
        curvature.move_to(point, margins=level.margins_at(now.point), cautious=failed % 2 == 1)
        # Towards the end quadratically, but never much beyond what is asked for.
        relative = max(min(_FORCING, math.sqrt(now.norm / first)), 0.2 * tau / now.norm)
        direction = curvature.solve(-level.pair(now.gradient)[0], relative)
        theta, gradient = _along(level, now.point, level.cast(direction), now.gradient)
        now = _certificate(problem, level, theta, gradient)
        failed = 0 if now.norm < 0.7 * best.norm else failed + 1
        best = min(best, now, key=lambda c: c.bound)
    return best


def _along(level: Any, theta: Any, direction: Any, gradient: Any) -> tuple[Any, Any]:
    """(point, gradient) where the slope along the direction is at most half of what it was, by secants.

    J is convex, so the slope rises from negative to positive once.
    """
    start = float(gradient @ direction)
    low, high, step = (0.0, start), None, 1.0
    for _ in range(30):
        point = theta + level.number(step) * direction
        there = level.gradient(point)
        slope = float(there @ direction)
        if abs(slope) <= 0.5 * abs(start):
            break
        if slope < 0:
            low = (step, slope)
        else:
            high = (step, slope)
        if high is None:
            step *= 3
        else:
            secant = low[0] - low[1] * (high[0] - low[0]) / (high[1] - low[1])
            step = min(max(secant, 0.9 * low[0] + 0.1 * high[0]), 0.1 * low[0] + 0.9 * high[0])
    return point, there


def _gradient_steps(problem: Problem, level: Any, start: _Certificate, tau: float) -> _Certificate:
    """(Projected) gradient steps that theory bounds: each moves at most n beta/(2 l2 + n beta) of the one before."""
    eta = level.number(2 / (2 * problem.l2 + problem.curvature))
    promised = problem.curvature / (2 * problem.l2 + problem.curvature)
    # To halve a step is enough. Where theory promises far more than that, rounding does not let it be seen.
    rate = max(promised * (1 + (1 - promised) / 2), 0.5)
    theta, best, before = start.point, start, math.inf
    while _worth_it(best, tau):
        gradient = level.gradient(theta)
        moved = theta - eta * gradient
        if problem.ball is not None:
            moved, _ = level.project(problem.ball, moved)
        length = level.norm(moved - theta)
        if length > rate * before or length == 0:
            break
        theta, before = moved, length
        # The certificate cannot hold before the steps are this short.
        if length <= 4 * tau * float(eta):
            certificate = _certificate(problem, level, theta, level.gradient(theta))
            best = min(best, certificate, key=lambda c: c.bound)
    return best


# --- on a ball ------------------------------------------------------------------------------------


def _face_newton(problem: Problem, level: Any, start: _Certificate, tau: float, curvature: _Curvature) -> _Certificate:
    """Accelerated projected gradients find the face of the ball, Newton steps along it find the point."""
    best, failed = start, 0
    eta = 1 / curvature.largest()
    # A later precision starts on the right face.
    find_face = level.name == "double"
    while _worth_it(best, tau) and failed < _PATIENCE:
        before = best.norm
        if find_face:
            theta = _accelerated(problem, level, best.point, eta)
            best = min(best, _certificate(problem, level, theta, level.gradient(theta)), key=lambda c: c.bound)
        helped = True
        while helped and _worth_it(best, tau):
            theta = _face_step(problem, level, best, curvature, cautious=failed % 2 == 1)
            certificate = _certificate(problem, level, theta, level.gradient(theta))
            helped = certificate.norm < 0.5 * best.norm
            best = min(best, certificate, key=lambda c: c.bound)
        find_face = True
        failed = 0 if best.norm < 0.7 * before else failed + 1
    return best


def _accelerated(problem: Problem, level: Any, theta: Any, eta: float) -> Any:
    """Forty steps of Nesterov's method, restarted whenever it goes uphill."""
    assert problem.ball is not None
    ahead, weight = theta, 1.0
    for _ in range(40):
        moved, _ = level.project(problem.ball, ahead - level.number(eta) * level.gradient(ahead))
        if float((ahead - moved) @ (moved - theta)) > 0:
            weight = 1.0
        following = (1 + math.sqrt(1 + 4 * weight * weight)) / 2
        ahead = moved + level.number((weight - 1) / following) * (moved - theta)
        theta, weight = moved, following
    return theta


def _face_step(problem: Problem, level: Any, at: _Certificate, curvature: _Curvature, *, cautious: bool) -> Any:
    """A Newton step in the smooth part of the boundary through the point.

    Blocks that are 0 stay 0, the sum of the norms stays the radius, and the boundary's own curvature counts with its
    multiplier.
    """
    assert problem.ball is not None
    point, normal = level.pair(at.point)[0], level.pair(at.normal)[0]
    gradient = level.pair(at.gradient)[0]
    curvature.move_to(point, cautious=cautious)
    ball = problem.ball
    if not normal.any():
        # Inside the ball the line search of the unconstrained problem serves as well.
        direction = level.cast(curvature.solve(-gradient, 1e-3))
        return level.project(ball, _along(level, at.point, direction, at.gradient)[0])[0]
    norms = ball.block_norms(point)
    spread = ball._spread(norms, problem.d)
    active = spread > 0
    outward = np.divide(point, spread, out=np.zeros_like(point), where=active)
    count = max(int((norms > 0).sum()), 1)
    multiplier = max(float(normal @ outward) / count, 0.0)
    bend = np.divide(multiplier, spread, out=np.zeros_like(point), where=active)
    starts = np.arange(0, problem.d, ball.block or problem.d)

    def radial(v: Array) -> Array:
        return np.asarray(np.add.reduceat(outward * v, starts))

    def tangent(v: Array) -> Array:
        v = np.where(active, v, 0.0)
        return v - outward * (float(outward @ v) / count)

    def times(v: Array) -> Array:
        return tangent(curvature.times(v) + bend * (v - outward * ball._spread(radial(v), problem.d)))

    direction = curvature.solve(tangent(-gradient), 1e-3, times)
    # As far as the first block that vanishes: beyond it the boundary is another one.
    growth = radial(direction)
    shrinks = (growth < 0) & (norms > 0)
    direction *= min(1.0, float(np.min(norms[shrinks] / -growth[shrinks], initial=math.inf)))
    return level.project(ball, at.point + level.cast(direction))[0]


# --- a tolerance that can be reached --------------------------------------------------------------


class Tolerance(NamedTuple):
    """tau for ``minimise`` and the scale of the output noise that hides it: offset shift = 2 tau/(l2 scale)."""

    tau: float
    scale: float


# Half a unit of long double. A constant, so that the plan is the same on machines that have none: those take decimals.
FINE_UNIT = 2.0**-64
# The output noise as a share of what the linear term does in the stiffest direction there can be.
_SHARE = 0.05


def reachable_tolerance(
    *, n: int, d: int, row_norm: float, residual_bound: float, smoothness: float, l2: float, noise: float,
    offset: float, nonzeros: int | None = None, radius: float | None = None,
) -> Tolerance:  # fmt: skip
    """tau and the output noise for an offset shift of ``offset``, from public numbers alone.

    The output noise is 5% of noise/(l2 + n beta), which nobody sees behind the noise that the linear term causes,
    unless the tau that belongs to it is below four times the rounding error of a gradient in long double; then tau is
    that, and the output noise grows with it. ``minimise`` reaches any tau; this choice makes it quick. ``noise`` is
    the standard deviation of the linear term in the scaling of the sum, ``nonzeros`` a public bound on the entries
    of a row, ``radius`` that of the ball.
    """
    n, d = whole("n", n, low=1), whole("d", d, low=1)
    l2, noise, offset = positive("l2", l2), positive("noise", noise), positive("offset", offset)
    curvature = n * nonnegative("smoothness", smoothness) * positive("row_norm", row_norm) ** 2
    linear_norm = noise * (math.sqrt(d) + 8)
    theta_norm = (n * positive("residual_bound", residual_bound) * row_norm + linear_norm) / l2
    if radius is not None:
        theta_norm = min(theta_norm, positive("radius", radius))
    error = rounding_error(
        n=n, nonzeros=min(d if nonzeros is None else nonzeros, d), row_norm=row_norm, residual_bound=residual_bound,
        smoothness=smoothness, l2=l2, theta_norm=theta_norm, linear_norm=linear_norm, unit=FINE_UNIT,
    )  # fmt: skip
    if radius is not None:
        pull = linear_norm + n * residual_bound * row_norm
        error += (d + 20) * FINE_UNIT * (2 * theta_norm * (l2 + curvature) + pull)
    usual = offset * l2 * _SHARE * noise / (l2 + curvature) / 2
    tau = max(usual, 4 * error)
    return Tolerance(tau, 2 * tau / (l2 * offset))
