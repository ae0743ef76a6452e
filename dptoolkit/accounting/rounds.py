"""Random numbers of rounds: loops of geometric length, and the best of a random number of runs.

N is drawn independently of the data and may be published, so the loss of N rounds is a mixture over N of fixed
compositions: delta(epsilon) = E_N[delta_N(epsilon)], its Renyi divergence is the log generating function of N, and
its privacy-loss distribution has the characteristic function G(phi), G the generating function of N. No tail bound
on N is needed for any of the three; the tail bounds here are what the literature uses instead.

Long because it holds every distribution of the number of rounds, and the tail bounds of the literature.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, pdtrc

from dptoolkit._validate import invalid, positive, real, whole
from dptoolkit.accounting._numeric import crossing, log1mexp
from dptoolkit.errors import InvalidValue
from dptoolkit.types import Array

Complex = NDArray[np.complex128]

# Distances in log z over which the slope of a generating function is taken.
_SLOPES: NDArray[np.float64] = np.asarray(np.geomspace(1e-14, 10.0, 61), dtype=np.float64)


class RunCountLaw:
    """A distribution of the number of rounds."""

    @property
    def mean(self) -> float:
        """E[N]."""
        raise TypeError(f"{type(self).__name__} has no mean")  # pragma: no cover

    def tail(self, k: float) -> float:
        """P(N > k).

        Parameters
        ----------
        k : float
            Any number.
        """
        raise TypeError(f"{type(self).__name__} has no tail")  # pragma: no cover

    def log_pgf(self, log_z: Array) -> Array:
        """log E[exp(N log_z)], infinite where the expectation does not exist.

        Parameters
        ----------
        log_z : ndarray
            Logarithms of the arguments z of the generating function.
        """
        raise TypeError(f"{type(self).__name__} has no generating function")  # pragma: no cover

    def tilted(self, log_z: float, phi: Complex) -> Complex:
        """E[(z phi)^N] / E[z^N] for complex |phi| <= 1: the characteristic function after tilting by z.

        Parameters
        ----------
        log_z : float
            The logarithm of the tilt z.
        phi : ndarray
            Complex numbers of size at most 1.
        """
        raise TypeError(f"{type(self).__name__} has no generating function")  # pragma: no cover

    def tilted_mean(self, log_z: float) -> float:
        """A bound from above on E[N z^N] / E[z^N], the mean after tilting by z; infinite where there is none.

        It is the slope of ``log_pgf``, which is convex: every slope to the right is a bound, and the smallest is used.

        Parameters
        ----------
        log_z : float
            The logarithm of the tilt z.
        """
        start = float(self.log_pgf(np.asarray(log_z)))
        if not math.isfinite(start):
            return math.inf
        with np.errstate(invalid="ignore", over="ignore"):
            rise = self.log_pgf(np.asarray(log_z + _SLOPES)) - start
            slopes = (rise + 1e-15 * (1 + abs(start))) / _SLOPES
        return float(np.nanmin(np.where(np.isnan(slopes), np.inf, slopes)))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"type": type(self).__name__} | fields


@dataclass(frozen=True)
class Geometric(RunCountLaw):
    """P(N = k) = (1 - gamma) gamma^k for k = 0, 1, ...; E[N] = gamma / (1 - gamma).

    Parameters
    ----------
    gamma : float
        The probability of another round, in [0, 1).
    """

    gamma: float

    def __post_init__(self) -> None:
        _set(self, gamma=_gamma(self.gamma))

    @property
    def mean(self) -> float:
        return self.gamma / (1 - self.gamma)

    def tail(self, k: float) -> float:
        return geometric_tail(self.gamma, k)

    def log_pgf(self, log_z: Array) -> Array:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            growth = self.mean * np.expm1(np.asarray(log_z, dtype=float))
            return np.where(growth < 1, -np.log1p(-np.minimum(growth, 1.0)), np.inf)

    def tilted(self, log_z: float, phi: Complex) -> Complex:
        # rest = 1 - gamma z, computed without cancellation.
        rest = (1 - self.gamma) - self.gamma * math.expm1(log_z)
        return np.asarray(rest / (rest + self.gamma * math.exp(log_z) * (1 - phi)))


@dataclass(frozen=True)
class TruncatedGeometric(RunCountLaw):
    """min(N, limit) for N geometric: the loop is cut off after ``limit`` rounds.

    Parameters
    ----------
    gamma : float
        The probability of another round, in [0, 1).
    limit : int
        The largest number of rounds.
    """

    gamma: float
    limit: int

    def __post_init__(self) -> None:
        _set(self, gamma=_gamma(self.gamma), limit=whole("limit", self.limit, low=1))

    @property
    def mean(self) -> float:
        return self.gamma * -math.expm1(self.limit * math.log(self.gamma)) / (1 - self.gamma) if self.gamma else 0.0

    def tail(self, k: float) -> float:
        return 0.0 if k >= self.limit else geometric_tail(self.gamma, k)

    def log_pgf(self, log_z: Array) -> Array:
        t = np.asarray(log_z, dtype=float)
        if self.gamma == 0:
            return np.zeros_like(t)
        log_w = math.log(self.gamma) + t
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            # log of sum_{j<limit} w^j, w = gamma z; above w = 1 it is w^(limit-1) times the same sum in 1/w.
            size = np.abs(log_w)
            log_sum = np.where(size == 0, math.log(self.limit), np.log(np.expm1(-self.limit * size) / np.expm1(-size)))
            log_sum = log_sum + np.where(log_w > 0, (self.limit - 1) * log_w, 0.0)
            # E[z^N] - 1 = (z - 1) sum_j P(N > j) z^j, a sum of one sign: nothing cancels near z = 1.
            log_change = log_sum + math.log(self.gamma)
            up = np.logaddexp(0.0, np.where(t > 30, t, np.log(np.expm1(np.minimum(t, 30.0)))) + log_change)
            change = np.expm1(np.minimum(t, 0.0)) * np.exp(np.minimum(log_change, 700.0))
            down = np.log1p(np.maximum(change, -1.0))
            # Far below z = 1 the terms are summed directly, as they are all positive.
            far = np.log((1 - self.gamma) * np.exp(log_sum) + np.exp(np.minimum(self.limit * log_w, 0.0)))
            return np.where(np.isposinf(t), np.inf, np.where(t > 0, up, np.where(change > -0.5, down, far)))

    def tilted(self, log_z: float, phi: Complex) -> Complex:
        if self.gamma == 0:
            return np.ones_like(phi)
        log_norm = float(self.log_pgf(np.asarray(log_z)))
        with np.errstate(divide="ignore", invalid="ignore"):
            log_w = math.log(self.gamma) + log_z + np.log(phi)
            outward = log_w.real > 0
            # The sum over k < limit from the end where |w^k| is at most 1: no overflow, and expm1 is exact near w = 1.
            step = np.where(outward, -log_w, log_w)
            terms = np.where(log_w == 0, self.limit, np.expm1(self.limit * step) / np.expm1(step))
            lead = np.where(outward, np.exp((self.limit - 1) * log_w - log_norm), math.exp(-log_norm))
            total = (1 - self.gamma) * terms * lead + np.exp(self.limit * log_w - log_norm)
        return np.where(phi == 0, (1 - self.gamma) * math.exp(-log_norm), total)


@dataclass(frozen=True)
class Poisson(RunCountLaw):
    """N ~ Poisson(expected).

    Parameters
    ----------
    expected : float
        The mean number of rounds.
    """

    expected: float

    def __post_init__(self) -> None:
        _set(self, expected=positive("expected", self.expected))

    @property
    def mean(self) -> float:
        return self.expected

    def tail(self, k: float) -> float:
        return float(pdtrc(math.floor(k), self.expected)) if k >= 0 else 1.0

    def log_pgf(self, log_z: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(self.expected * np.expm1(np.asarray(log_z, dtype=float)))

    def tilted(self, log_z: float, phi: Complex) -> Complex:
        return np.asarray(np.exp(self.expected * math.exp(log_z) * (phi - 1)))


@dataclass(frozen=True)
class TruncatedNegativeBinomial(RunCountLaw):
    """P(N = k) proportional to (1-gamma)^k prod_{l<k} (l+eta)/(l+1) for k = 1, 2, ..., with eta > -1.

    eta = 1 is the geometric distribution on 1, 2, ...; eta = 0 the logarithmic one (Papernot and Steinke 2022,
    Definition 1). Small gamma means many runs.

    Parameters
    ----------
    eta : float
        The shape, > -1.
    gamma : float
        In (0, 1); the smaller, the more runs.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        _set(self, eta=real("eta", self.eta, low=-1.0, open_low=True, open_high=True))
        _set(self, gamma=real("gamma", self.gamma, low=0.0, high=1.0, open_low=True, open_high=True))

    @property
    def mean(self) -> float:
        if self.eta == 0:
            return (1 / self.gamma - 1) / math.log(1 / self.gamma)
        return self.eta * (1 - self.gamma) / (self.gamma * -math.expm1(self.eta * math.log(self.gamma)))

    def tail(self, k: float) -> float:
        total, mass = 0.0, self._first_mass()
        for run in range(1, max(math.floor(k), 0) + 1):
            total += mass
            mass *= (1 - self.gamma) * (run + self.eta) / (run + 1)
        return max(1.0 - total, 0.0)

    def _first_mass(self) -> float:
        if self.eta == 0:
            return (1 - self.gamma) / math.log(1 / self.gamma)
        return self.eta * (1 - self.gamma) / math.expm1(-self.eta * math.log(self.gamma))

    def log_pgf(self, log_z: Array) -> Array:
        t = np.asarray(log_z, dtype=float)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            # The rest 1 - (1-gamma) z is gamma times 1 - growth: E[z^N] - 1 comes without cancellation near z = 1.
            growth = (1 - self.gamma) / self.gamma * np.expm1(t)
            change = self._change(np.log1p(-np.minimum(growth, 1.0)), math.log(self.gamma))
            near = np.log1p(np.maximum(change, -1.0))
            rest = self.gamma - (1 - self.gamma) * np.expm1(t)
            log_rest = np.where(rest < 0.5, np.log(rest), np.log1p(-(1 - self.gamma) * np.exp(np.minimum(t, 0.0))))
            far = self._log_shape(log_rest) - self._log_shape(np.asarray(math.log(self.gamma)))
            return np.where(growth < 1, np.where(change > -0.5, near, far), np.inf)

    def tilted(self, log_z: float, phi: Complex) -> Complex:
        w = (1 - self.gamma) * math.exp(log_z)
        rest = self.gamma - (1 - self.gamma) * math.expm1(log_z)
        log_rest = math.log1p(-w) if w < 0.5 else math.log(rest)
        return np.asarray(1 + self._change(np.log1p(w / rest * (1 - phi)), log_rest))

    def _log_shape(self, log_rest: Array) -> Array:
        """log |rest^-eta - 1|, which is E[z^N] up to its norm for the rest 1 - (1-gamma) z."""
        if self.eta == 0:
            return np.log(-log_rest)
        x = -abs(self.eta) * log_rest
        return log1mexp(x) + (x if self.eta > 0 else 0.0)

    def _change(self, log_ratio: Any, log_rest: float) -> Any:
        """(E[(z phi)^N] - E[z^N]) / E[z^N], from log of the ratio of the two rests and log of the second."""
        if self.eta == 0:
            return log_ratio / log_rest
        return np.expm1(-self.eta * log_ratio) / -math.expm1(self.eta * log_rest)


def Logarithmic(gamma: float) -> TruncatedNegativeBinomial:
    """The logarithmic distribution on 1, 2, ...: TruncatedNegativeBinomial with eta = 0.

    Parameters
    ----------
    gamma : float
        In (0, 1); the smaller, the more runs.
    """
    return TruncatedNegativeBinomial(0.0, gamma)


_RUNS: dict[str, type[RunCountLaw]] = {
    cls.__name__: cls for cls in (Geometric, TruncatedGeometric, Poisson, TruncatedNegativeBinomial)
}


def from_dict(record: Mapping[str, Any]) -> RunCountLaw:
    """The distribution that ``to_dict`` described.

    Parameters
    ----------
    record : mapping of str to object
        What ``to_dict`` returned.
    """
    name = record.get("type")
    if name not in _RUNS:
        raise InvalidValue(f"type={name!r}: must be one of {', '.join(_RUNS)}.")
    return _RUNS[name](**{k: v for k, v in record.items() if k != "type"})


def geometric_tail(gamma: float, k: float) -> float:
    """P(N > k) = gamma^(floor(k) + 1) for N ~ Geometric(gamma), exactly.

    Parameters
    ----------
    gamma : float
        The probability of another round.
    k : float
        Any number.
    """
    return float(_gamma(gamma) ** (math.floor(k) + 1)) if k >= 0 else 1.0


def negative_binomial_tail(gamma: float, count: int, k: float) -> float:
    """P(N_1 + ... + N_count > k) for independent Geometric(gamma) variables, exactly.

    Parameters
    ----------
    gamma : float
        The probability of another round.
    count : int
        The number of variables.
    k : float
        Any number.
    """
    gamma, count = _gamma(gamma), whole("count", count)
    if count == 0:
        return 0.0 if k >= 0 else 1.0
    return float(betainc(math.floor(k) + 1, count, gamma)) if k >= 0 else 1.0


def chernoff_tail(factor: float) -> float:
    """The published bound P(N > factor * E[N]) <= exp(-(factor - 1 - log factor)), for factor >= 1.

    Parameters
    ----------
    factor : float
        The multiple of the mean, >= 1.
    """
    factor = real("factor", factor, low=1.0)
    return math.exp(-(factor - 1 - math.log(factor)))


def published_factor(count: int, delta: float) -> float:
    """The published C: the smallest with chernoff_tail(C) <= 1 - (1 - delta/2)^(1/count).

    Parameters
    ----------
    count : int
        The number of epochs.
    delta : float
        Of which half is spent on the tails of all epochs.
    """
    per_epoch = _per_epoch(count, delta)
    high = 2 + 2 * math.log(1 / per_epoch)
    return crossing(lambda c: chernoff_tail(c) - per_epoch, 1.0, high)[1]


def exact_factor(gamma: float, count: int, delta: float) -> float:
    """The smallest C = k / E[N] with P(N > k) <= 1 - (1 - delta/2)^(1/count), by the exact geometric tail.

    Parameters
    ----------
    gamma : float
        The probability of another round.
    count : int
        The number of epochs.
    delta : float
        Of which half is spent on the tails of all epochs.
    """
    gamma = _inside(gamma)
    k = max(math.ceil(math.log(_per_epoch(count, delta)) / math.log(gamma) - 1e-12) - 1, 0)
    return k / Geometric(gamma).mean


def total_factor(gamma: float, count: int, delta: float) -> float:
    """The smallest C = k / (count E[N]) with P(N_1 + ... + N_count > k) <= delta/2, by the exact total.

    Parameters
    ----------
    gamma : float
        The probability of another round.
    count : int
        The number of epochs.
    delta : float
        Of which half is spent on the tail of the total.
    """
    gamma, target = _inside(gamma), 0.5 * _positive_delta(delta)
    count = whole("count", count, low=1)
    low, high = -1, 1
    while negative_binomial_tail(gamma, count, high) > target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if negative_binomial_tail(gamma, count, middle) > target else (low, middle)
    return high / (count * Geometric(gamma).mean)


def rdp(step_rdp: Array, orders: Array, runs: RunCountLaw) -> Array:
    """Renyi divergence of N rounds that each have divergence ``step_rdp`` at ``orders``.

    (1/(a-1)) log E[exp(N (a-1) step_rdp(a))]: infinite where the generating function does not exist, which for
    Geometric(gamma) is gamma exp((a-1) step_rdp) >= 1.

    Parameters
    ----------
    step_rdp : ndarray
        The Renyi divergence of one round at each order.
    orders : ndarray
        Renyi orders, all > 1.
    runs : RunCountLaw
        The distribution of the number of rounds.
    """
    orders = np.asarray(orders, dtype=float)
    if np.any(orders <= 1):
        raise invalid("orders", orders.tolist(), "> 1")
    with np.errstate(invalid="ignore"):
        return np.asarray(runs.log_pgf((orders - 1) * np.asarray(step_rdp, dtype=float)) / (orders - 1))


def best_of_rdp(
    run_rdp: Array,
    orders: Array,
    runs: TruncatedNegativeBinomial,
    other_orders: Array | None = None,
    other_rdp: Array | None = None,
) -> Array:
    """Renyi divergence of releasing the best of N runs, N truncated negative binomial.

    Papernot and Steinke 2022, Theorem 2: rdp(a) + (1+eta)(1 - 1/b) rdp(b) + (1+eta) log(1/gamma)/b
    + log E[N]/(a-1), for the best order b >= 1 among ``other_orders``.

    Parameters
    ----------
    run_rdp : ndarray
        The Renyi divergence of one run at each order.
    orders : ndarray
        Renyi orders, all > 1.
    runs : TruncatedNegativeBinomial
        The distribution of the number of runs.
    other_orders : ndarray or None, default None
        The orders b of the theorem; None uses ``orders``.
    other_rdp : ndarray or None, default None
        The Renyi divergence of one run at ``other_orders``; None uses ``run_rdp``.
    """
    b = orders if other_orders is None else other_orders
    at_b = run_rdp if other_rdp is None else other_rdp
    extra = (1 + runs.eta) * ((1 - 1 / b) * at_b + math.log(1 / runs.gamma) / b)
    with np.errstate(invalid="ignore"):
        return np.asarray(run_rdp + np.nanmin(extra) + math.log(runs.mean) / (orders - 1))


def best_of_poisson_rdp(run_rdp: Array, orders: Array, runs: Poisson, run_delta: Any) -> Array:
    """Renyi divergence of releasing the best of N runs, N ~ Poisson; ``run_delta(epsilon)`` is one run's delta.

    Papernot and Steinke 2022, Theorem 6: where one run is (e, d)-DP with exp(e) <= 1 + 1/(a-1), the moment of order a
    of the runs is at most mean exp((a-1)(rdp(a) + mean d)). Here the chance exp(-mean) of no run, where nothing is
    released, is added to it: without it the bound is false for mean < 1.

    Parameters
    ----------
    run_rdp : ndarray
        The Renyi divergence of one run at each order.
    orders : ndarray
        Renyi orders, all > 1.
    runs : Poisson
        The distribution of the number of runs.
    run_delta : callable
        The delta of one run as a function of epsilon.
    """
    epsilons = np.log1p(1 / (orders - 1))
    deltas = np.asarray([run_delta(float(e)) for e in epsilons])
    log_moment = (orders - 1) * (run_rdp + runs.mean * deltas) + math.log(runs.mean)
    return np.asarray(np.logaddexp(-runs.mean, log_moment) / (orders - 1))


def _per_epoch(count: int, delta: float) -> float:
    count = whole("count", count, low=1)
    return -math.expm1(math.log1p(-0.5 * _positive_delta(delta)) / count)


def _positive_delta(value: float) -> float:
    repair = "A tail bound needs delta > 0."
    return real("delta", value, low=0.0, high=1.0, open_low=True, open_high=True, repair=repair)


def _gamma(value: float) -> float:
    return real("gamma", value, low=0.0, high=1.0, open_high=True, repair="For Option I it is B / (B + b).")


def _inside(value: float) -> float:
    return real("gamma", value, low=0.0, high=1.0, open_low=True, open_high=True, repair="At 0 there are no rounds.")


def _set(runs: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(runs, name, value)
