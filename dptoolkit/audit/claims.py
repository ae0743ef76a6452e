"""What is claimed of a mechanism: a whole privacy profile, delta as a function of epsilon, never a bare number.

Every claim belongs to a family: ``weakened(factor)`` is the same claim for noise divided by ``factor``. An audit's
lower bound on epsilon comes from the largest member of the claim's OWN family that the trials refute, so that nothing
is ever inferred about a Laplace mechanism from a Gaussian formula.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from dptoolkit._validate import delta_value, invalid, nonnegative, positive
from dptoolkit.accounting import gaussian, rdp, zcdp
from dptoolkit.accounting.events import Event, flatten
from dptoolkit.accounting.events import from_dict as event_from_dict
from dptoolkit.accounting.group import GroupGuarantee
from dptoolkit.accounting.guarantee import Guarantee, account
from dptoolkit.accounting.structure import all_gaussian, scaled, total_mu

# The delta at which epsilons are reported if the claim has none of its own.
REFERENCE_DELTA = 1e-5
# A family of claims is searched up to noise that is this many times smaller.
_LARGEST_FACTOR = 1e3


class Claim(ABC):
    """A bound on delta at every epsilon >= 0, in both directions of the pair."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """The claimed delta at ``epsilon``.

        Parameters
        ----------
        epsilon : float
            Any value >= 0.
        """

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """The claimed epsilon at ``delta``.

        Parameters
        ----------
        delta : float
            Any value in [0, 1).
        """

    @abstractmethod
    def weakened(self, factor: float) -> Claim:
        """The claim of the same mechanism with noise divided by ``factor``.

        Parameters
        ----------
        factor : float
            How many times less noise; 1 gives the claim itself.
        """

    @property
    def reference_delta(self) -> float:
        """The delta at which epsilons are reported unless another is asked for."""
        return REFERENCE_DELTA

    @property
    def at_one_point(self) -> bool:
        """Whether the claim fixes its profile at one epsilon only, which makes a test much weaker."""
        return False

    @property
    def is_gaussian(self) -> bool:
        """Whether its family is that of Gaussian mechanisms, for which the count of all guesses is the best test."""
        return False

    @property
    def any_mechanism(self) -> bool:
        """Whether its family is that of all mechanisms with some epsilon, so that the odds of guesses bound epsilon."""
        return False

    def factor_at(self, delta: float, epsilon: float = 0.0) -> float:
        """The factor at which the family has ``delta`` at ``epsilon``, from below; at 0, delta is total variation.

        Parameters
        ----------
        delta : float
            The delta to reach.
        epsilon : float, default 0.0
            The epsilon at which it is reached.
        """
        if delta <= 0:
            return 0.0
        low, high = 0.0, 1.0
        while self.weakened(high).delta(epsilon) < delta:
            low, high = high, 2 * high
            if high > _LARGEST_FACTOR:
                return high
        while high - low > 1e-3 * high:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.weakened(middle).delta(epsilon) < delta else (low, middle)
        return low


@dataclass(frozen=True)
class PureClaim(Claim):
    """epsilon-DP; its profile is that of randomised response, the worst such mechanism.

    Parameters
    ----------
    epsilon_claimed : float
        The claimed epsilon, > 0.
    """

    epsilon_claimed: float

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon_claimed)

    def delta(self, epsilon: float) -> float:
        return _response_delta(self.epsilon_claimed, 0.0, epsilon)

    def epsilon(self, delta: float) -> float:
        return _response_epsilon(self.epsilon_claimed, 0.0, delta)

    def weakened(self, factor: float) -> PureClaim:
        return PureClaim(factor * self.epsilon_claimed) if factor > 0 else PureClaim(1e-300)

    @property
    def reference_delta(self) -> float:
        return 0.0

    @property
    def any_mechanism(self) -> bool:
        return True

    def factor_at(self, delta: float, epsilon: float = 0.0) -> float:
        if epsilon > 0:
            return super().factor_at(delta, epsilon)
        return 2 * math.atanh(min(max(delta, 0.0), 1 - 1e-15)) / self.epsilon_claimed

    def __str__(self) -> str:
        return f"{self.epsilon_claimed:.4g}-DP"


@dataclass(frozen=True)
class ApproxClaim(Claim):
    """(epsilon, delta)-DP: one point of the profile; the other points are what it implies.

    Parameters
    ----------
    epsilon_claimed : float
        The claimed epsilon, >= 0.
    delta_claimed : float
        The claimed delta, in [0, 1).
    """

    epsilon_claimed: float
    delta_claimed: float

    def __post_init__(self) -> None:
        nonnegative("epsilon", self.epsilon_claimed)
        delta_value(self.delta_claimed)

    def delta(self, epsilon: float) -> float:
        return _response_delta(self.epsilon_claimed, self.delta_claimed, epsilon)

    def epsilon(self, delta: float) -> float:
        return _response_epsilon(self.epsilon_claimed, self.delta_claimed, delta)

    def weakened(self, factor: float) -> ApproxClaim:
        return replace(self, epsilon_claimed=factor * self.epsilon_claimed)

    @property
    def reference_delta(self) -> float:
        return self.delta_claimed

    @property
    def at_one_point(self) -> bool:
        return True

    @property
    def any_mechanism(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"({self.epsilon_claimed:.4g}, {self.delta_claimed:.4g})-DP"


@dataclass(frozen=True)
class GaussianClaim(Claim):
    """mu-Gaussian DP: telling two neighbours apart is at least as hard as telling N(0, 1) from N(mu, 1).

    Parameters
    ----------
    mu : float
        The claimed mu, >= 0.
    """

    mu: float

    def __post_init__(self) -> None:
        nonnegative("mu", self.mu)

    def delta(self, epsilon: float) -> float:
        return float(gaussian.delta(self.mu, epsilon))

    def epsilon(self, delta: float) -> float:
        return gaussian.epsilon(self.mu, delta)

    @property
    def is_gaussian(self) -> bool:
        return True

    def weakened(self, factor: float) -> GaussianClaim:
        return GaussianClaim(factor * self.mu)

    def factor_at(self, delta: float, epsilon: float = 0.0) -> float:
        if epsilon > 0 or self.mu == 0:
            return super().factor_at(delta, epsilon)
        return 2 * float(ndtri((1 + min(max(delta, 0.0), 1 - 1e-15)) / 2)) / self.mu

    def __str__(self) -> str:
        return f"{self.mu:.4g}-GDP"


@dataclass(frozen=True)
class ZcdpClaim(Claim):
    """rho-zCDP.

    Parameters
    ----------
    rho : float
        The claimed rho, >= 0.
    """

    rho: float

    def __post_init__(self) -> None:
        nonnegative("rho", self.rho)

    def delta(self, epsilon: float) -> float:
        delta = zcdp.to_delta(self.rho, epsilon)
        # Total variation, delta at epsilon 0, is also bounded through the Kullback-Leibler divergence.
        return min(delta, _variation(self.rho))

    def epsilon(self, delta: float) -> float:
        return 0.0 if delta >= _variation(self.rho) else zcdp.to_epsilon(self.rho, delta)

    def weakened(self, factor: float) -> ZcdpClaim:
        return ZcdpClaim(factor * factor * self.rho)

    def __str__(self) -> str:
        return f"{self.rho:.4g}-zCDP"


@dataclass(frozen=True)
class RenyiClaim(Claim):
    """A Renyi curve: ``values[i]`` at ``orders[i]`` > 1. Its family scales the curve as Gaussian noise would.

    Parameters
    ----------
    orders : array-like of shape (k,)
        Renyi orders, all > 1.
    values : array-like of shape (k,)
        The claimed bound on the Renyi divergence at each order, >= 0.
    """

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def __init__(self, orders: ArrayLike, values: ArrayLike) -> None:
        alpha, bound = np.asarray(orders, dtype=float), np.asarray(values, dtype=float)
        if alpha.ndim != 1 or alpha.shape != bound.shape or len(alpha) == 0:
            raise invalid("values", f"shape {bound.shape}", f"one number for each of the {alpha.shape} orders")
        if not (alpha > 1).all() or not (bound >= 0).all():
            raise invalid("orders, values", (alpha.min(), bound.min()), "> 1 and >= 0")
        object.__setattr__(self, "orders", tuple(alpha.tolist()))
        object.__setattr__(self, "values", tuple(bound.tolist()))

    def delta(self, epsilon: float) -> float:
        return rdp.to_delta(np.array(self.orders), np.array(self.values), epsilon)

    def epsilon(self, delta: float) -> float:
        return rdp.to_epsilon(np.array(self.orders), np.array(self.values), delta)

    def weakened(self, factor: float) -> RenyiClaim:
        return RenyiClaim(self.orders, np.array(self.values) * factor * factor)

    def __str__(self) -> str:
        return f"a Renyi curve at {len(self.orders)} orders"


@dataclass(frozen=True)
class ProfileClaim(Claim):
    """Any profile delta(epsilon), non-increasing. Its family moves epsilon: weakened(f).delta(e) = delta(e / f).

    The factor multiplies epsilon at every delta and is not about noise. So an audit judges the profile as a whole, and
    its lower bound on epsilon is one that holds for any mechanism, which is weaker.

    Parameters
    ----------
    function : callable
        delta as a non-increasing function of epsilon.
    name : str, default "a privacy profile"
        The name of the claim in reports.
    """

    function: Callable[[float], float]
    name: str = "a privacy profile"

    def delta(self, epsilon: float) -> float:
        return min(max(float(self.function(epsilon)), 0.0), 1.0)

    def epsilon(self, delta: float) -> float:
        return _smallest_epsilon(self.delta, delta)

    def weakened(self, factor: float) -> ProfileClaim:
        return ProfileClaim(lambda epsilon: self.function(epsilon / factor), self.name)

    @property
    def any_mechanism(self) -> bool:
        return True

    def factor_at(self, delta: float, epsilon: float = 0.0) -> float:
        # All members have the same total variation, which refutes the whole family or none of it.
        if epsilon == 0:
            return 1.0 if delta > self.delta(0.0) else 0.0
        return super().factor_at(delta, epsilon)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ReleaseClaim(Claim):
    """The whole profile that the accountant computes for an event; its family divides the noise of every part.

    Parameters
    ----------
    guarantee : Guarantee
        The guarantee whose whole profile is claimed.
    """

    guarantee: Guarantee

    def delta(self, epsilon: float) -> float:
        return self.guarantee.delta(epsilon)

    def epsilon(self, delta: float) -> float:
        return self.guarantee.epsilon(delta)

    def weakened(self, factor: float) -> ReleaseClaim:
        if factor == 1:
            return self
        return ReleaseClaim(replace(self.guarantee, event=scaled(self.guarantee.event, factor), claimed=None))

    def factor_at(self, delta: float, epsilon: float = 0.0) -> float:
        mu = self.gaussian_mu
        return super().factor_at(delta, epsilon) if mu is None else GaussianClaim(mu).factor_at(delta, epsilon)

    @property
    def is_gaussian(self) -> bool:
        return self.gaussian_mu is not None

    @property
    def gaussian_mu(self) -> float | None:
        """mu of an event made of Gaussians alone, None for another."""
        mu = total_mu(self.guarantee.event) if all_gaussian(self.guarantee.event) else math.inf
        return mu if math.isfinite(mu) else None

    def __str__(self) -> str:
        return f"the guarantee of {_short(self.guarantee.event)}"


def pld_claim(event: Event) -> ReleaseClaim:
    """The privacy-loss distribution of an event, as the accountant composes it.

    Parameters
    ----------
    event : Event
        What is released.
    """
    return ReleaseClaim(account(event, method="pld"))


_TYPED = "Use PureClaim, ApproxClaim, GaussianClaim, ZcdpClaim, RenyiClaim or a Guarantee."


def as_claim(claim: Any) -> Claim:
    """A claim from a typed claim, a Guarantee, an event, or (epsilon, delta).

    Parameters
    ----------
    claim : Claim, Guarantee, Event or tuple of float
        A typed claim, a guarantee, an event, or ``(epsilon, delta)``.
    """
    if isinstance(claim, Claim):
        return claim
    if isinstance(claim, Guarantee):
        return ReleaseClaim(claim)
    if isinstance(claim, GroupGuarantee):
        return _group_claim(claim)
    if isinstance(claim, Event):
        return ReleaseClaim(account(claim))
    if isinstance(claim, tuple) and len(claim) == 2:
        epsilon, delta = claim
        delta = delta_value(delta)
        return PureClaim(epsilon) if delta == 0 else ApproxClaim(epsilon, delta)
    raise invalid("claim", claim, "a typed claim, a Guarantee, an event or (epsilon, delta)", _TYPED)


def _group_claim(guarantee: GroupGuarantee) -> Claim:
    """The claim for a group: of the event with less noise, or the profile that a chain of neighbours has."""
    event = guarantee.event
    if event is None:
        return ProfileClaim(guarantee.delta, str(guarantee))
    return ReleaseClaim(account(event, method=guarantee.guarantee.forced_method))


def to_dict(claim: Claim) -> dict[str, Any] | None:
    """JSON-ready; None for a ProfileClaim, which is a function.

    Parameters
    ----------
    claim : Claim
        Any claim.
    """
    if isinstance(claim, ReleaseClaim):
        guarantee = claim.guarantee
        return {"type": "ReleaseClaim", "event": guarantee.event.to_dict(), "method": guarantee.forced_method}
    if isinstance(claim, ProfileClaim):
        return None
    return {"type": type(claim).__name__, **vars(claim)}


def from_dict(record: dict[str, Any]) -> Claim:
    """The inverse of ``to_dict``.

    Parameters
    ----------
    record : dict
        What ``to_dict`` returned.
    """
    values = dict(record)
    kind = values.pop("type")
    if kind == "ReleaseClaim":
        return ReleaseClaim(account(event_from_dict(values["event"]), method=values["method"]))
    classes = (PureClaim, ApproxClaim, GaussianClaim, ZcdpClaim, RenyiClaim)
    kinds: dict[str, Callable[..., Claim]] = {c.__name__: c for c in classes}
    if kind not in kinds:
        raise invalid("type of the claim", kind, "one of " + ", ".join(sorted(kinds)))
    return kinds[kind](**values)


def _short(event: Event) -> str:
    parts = flatten(event)
    if not parts:
        return "nothing"
    return " + ".join(f"{count:,} x {type(part).__name__}" for part, count in parts)


def _response_delta(epsilon0: float, delta0: float, epsilon: float) -> float:
    """The largest delta at ``epsilon`` of any (epsilon0, delta0)-DP mechanism."""
    if epsilon >= epsilon0:
        return delta0
    return delta0 - (1 - delta0) * math.expm1(epsilon - epsilon0) / (1 + math.exp(-epsilon0))


def _response_epsilon(epsilon0: float, delta0: float, delta: float) -> float:
    """The epsilon at ``delta`` that (epsilon0, delta0)-DP implies."""
    if delta < delta0:
        return math.inf
    share = (delta - delta0) * (1 + math.exp(-epsilon0)) / (1 - delta0)
    return max(0.0, epsilon0 + math.log1p(-share)) if share < 1 else 0.0


def _variation(rho: float) -> float:
    """Total variation from a KL divergence of rho: the better of Pinsker's and Bretagnolle-Huber's bounds."""
    return min(math.sqrt(rho / 2), math.sqrt(-math.expm1(-rho)))


def _smallest_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    if delta_at(0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_at(high) > delta:
        high *= 2
        if high > 1e6:
            return math.inf
    low = 0.0
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high
