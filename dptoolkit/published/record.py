"""What a paper prints about one noise constant, and what can be computed about it.

A ``Published`` holds the printed noise scales, the printed guarantee and its side conditions as evaluated
numbers, together with up to three events, each a function of a factor that multiplies every printed scale:

releases   an event that dominates what the algorithm releases: its account is an upper bound for the truth
attains    the event that an explicit pair of neighbours reaches: its account is a lower bound for the truth
repaired   the release to make instead with the same scales, where the printed one has no tight account

A claim is true where the upper bound meets it, false where the lower bound exceeds it, open in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dptoolkit._validate import delta_value, invalid, nonnegative
from dptoolkit.accounting import pld
from dptoolkit.accounting._numeric import crossing
from dptoolkit.accounting.events import Event, Gaussian, RandomizedResponse, Repeated, flatten
from dptoolkit.accounting.guarantee import account
from dptoolkit.adjacency import Adjacency
from dptoolkit.published.ties import PartialResponse, partial_epsilon

EventAt = Callable[[float], Event]

# Noise within this relative distance of the smallest sufficient noise is not called wasteful.
WASTE = 0.05
# The search for a factor, in logarithms: its stride, how far it goes, and how exact it is.
_STRIDE, _FURTHEST, _PRECISION = 0.7, 14.0, 1e-4


@dataclass(frozen=True)
class Condition:
    """An inequality that a paper asks for, or should ask for, with both sides evaluated."""

    text: str
    left: float
    right: float
    holds: bool

    def __str__(self) -> str:
        return f"{'yes' if self.holds else 'NO '} {self.text}   ({self.left:.6g} against {self.right:.6g})"


def at_most(text: str, left: float, right: float) -> Condition:
    """left <= right."""
    return Condition(text, left, right, left <= right)


def at_least(text: str, left: float, right: float) -> Condition:
    """left >= right."""
    return Condition(text, left, right, left >= right)


def below(text: str, left: float, right: float) -> Condition:
    """left < right."""
    return Condition(text, left, right, left < right)


@dataclass(frozen=True)
class Budget:
    """A claimed guarantee: (epsilon, delta), or rho-zCDP where ``rho`` is given."""

    epsilon: float = math.inf
    delta: float = 0.0
    rho: float | None = None

    def __post_init__(self) -> None:
        nonnegative("epsilon", self.epsilon)
        delta_value(self.delta)
        if self.rho is not None:
            nonnegative("rho", self.rho)

    @property
    def limit(self) -> float:
        """The claimed number: rho if the claim states it, else epsilon at the claimed delta."""
        return self.epsilon if self.rho is None else self.rho

    def most(self, event: Event) -> float:
        """An upper bound on the same quantity (rho or epsilon) for ``event``."""
        return guaranteed_epsilon(event, self.delta) if self.rho is None else account(event).rho

    def least(self, event: Event) -> float:
        """A lower bound on the same quantity (rho or epsilon) for an event that a pair of neighbours reaches."""
        return attained_epsilon(event, self.delta) if self.rho is None else account(event).rho

    def __str__(self) -> str:
        return f"rho={self.rho:g}" if self.rho is not None else f"({self.epsilon:g}, {self.delta:g})"


@dataclass(frozen=True)
class Published:
    """One printed noise constant at one choice of public parameters.

    Attributes
    ----------
    name : str
        What it is.
    source : str
        Where it is printed.
    scales : mapping of str to float
        The printed noise, in absolute scales by name.
    claim : Budget
        The printed guarantee.
    adjacency : Adjacency
        The adjacency for which the events are stated.
    releases : callable
        An event that dominates what the algorithm releases, with ``factor`` times the printed noise.
    attains : callable or None, default None
        The event that an explicit pair of neighbours reaches, as a function of the factor.
    repaired : callable or None, default None
        The release to make instead with the same scales, as a function of the factor.
    conditions : tuple of Condition, default ()
        The side conditions that the paper states.
    missing : tuple of Condition, default ()
        The side conditions that the paper would need and does not state.
    vacuous : str, default ""
        Why the claim fixes no noise; empty if it fixes some.
    """

    name: str
    source: str
    scales: Mapping[str, float]
    claim: Budget
    adjacency: Adjacency
    releases: EventAt
    attains: EventAt | None = None
    repaired: EventAt | None = None
    conditions: tuple[Condition, ...] = ()
    missing: tuple[Condition, ...] = ()
    vacuous: str = ""

    @property
    def event(self) -> Event:
        """The event to charge for the printed noise."""
        return self.releases(1.0)

    @property
    def conditions_hold(self) -> bool:
        """Whether every condition that the paper states holds."""
        return all(condition.holds for condition in self.conditions)

    def true_epsilon(self, delta: float | None = None) -> float:
        """The epsilon that the printed noise guarantees at ``delta`` (the claimed one by default)."""
        return guaranteed_epsilon(self.event, self._delta(delta))

    def attained_epsilon(self, delta: float | None = None) -> float:
        """An epsilon that some neighbours reach at ``delta``; 0 where no pair is known."""
        return attained_epsilon(self.attains(1.0), self._delta(delta)) if self.attains else 0.0

    def true_delta(self) -> float:
        """The delta that the printed noise guarantees at the claimed epsilon."""
        return account(self.event).delta(self.claim.epsilon)

    def _delta(self, delta: float | None) -> float:
        return self.claim.delta if delta is None else delta

    @cached_property
    def upper(self) -> float:
        """The rho or epsilon that the printed noise guarantees, whichever the claim states."""
        return self.claim.most(self.event)

    @cached_property
    def lower(self) -> float:
        """The rho or epsilon that some neighbours reach, whichever the claim states; 0 where no pair is known."""
        return self.claim.least(self.attains(1.0)) if self.attains else 0.0

    @property
    def status(self) -> str:
        """'holds', 'false', or 'open' where neither bound decides."""
        if self.upper <= self.claim.limit * (1 + 1e-9):
            return "holds"
        return "false" if self.lower > self.claim.limit else "open"

    @cached_property
    def ratio(self) -> float:
        """Printed noise / smallest noise that the tight accounting accepts for the repaired release."""
        factor = _smallest_factor(self.repaired or self.releases, self.claim.most, self.claim.limit)
        return 1 / factor if factor else math.inf

    @cached_property
    def shortfall(self) -> float:
        """How many times more noise is needed at least: with less, known neighbours break the claim."""
        if self.attains is None or self.lower <= self.claim.limit:
            return 1.0
        return _smallest_factor(self.attains, self.claim.least, self.claim.limit)

    @property
    def corrected(self) -> dict[str, float]:
        """The smallest scales at which the repaired release meets the claim."""
        return {name: scale / self.ratio if self.ratio else math.inf for name, scale in self.scales.items()}

    def __str__(self) -> str:
        rows = [
            f"{self.name} [{self.source}], {self.adjacency}",
            "  noise      " + _listed(self.scales),
            f"  claimed    {self.claim}",
            f"  truth      at most {self.upper:.4g}, at least {self.lower:.4g}: {self.status}",
            "  corrected  " + _listed(self.corrected),
        ]
        rows += [f"  condition  {condition}" for condition in self.conditions]
        rows += [f"  unstated   {condition}" for condition in self.missing]
        return "\n".join(rows)


def guaranteed_epsilon(event: Event, delta: float) -> float:
    """An upper bound on epsilon at ``delta``; at delta 0 the largest losses just add."""
    return account(event, "basic" if delta == 0 else None).epsilon(delta)


def attained_epsilon(event: Event, delta: float) -> float:
    """A lower bound on epsilon at ``delta`` of an event that a pair of neighbours reaches.

    It is exact where the account is exact: at delta 0, where only the largest loss counts; for Gaussians; and for
    repeated randomised responses, also those that sometimes give no answer, since optimal composition is attained by
    randomised responses.
    """
    parts = {type(part) for part, _ in flatten(event)}
    if parts == {PartialResponse}:
        ((part, count),) = flatten(event)
        assert isinstance(part, PartialResponse)
        return partial_epsilon(part, count, delta)
    if delta == 0 or parts == {Gaussian}:
        return guaranteed_epsilon(event, delta)
    if parts == {RandomizedResponse}:
        return account(event, "optimal").epsilon(delta)
    return pld.lower_epsilon(event, delta)


def log_inverse(delta: Any) -> float:
    """log(1/delta) for a delta in (0, 1)."""
    value = delta_value(delta)
    if value == 0:
        raise invalid("delta", delta, "> 0", "The printed noise is infinite at 0.")
    return math.log(1 / value)


def sensitivity(bound: float, adjacency: Adjacency) -> float:
    """How far a sum of vectors of norm <= bound moves: twice that if a record is replaced."""
    return adjacency.contributions * bound


def gaussians(noise_multiplier: float, count: int, factor: float) -> Event:
    """``count`` Gaussian releases with ``factor`` times the noise."""
    return Repeated(Gaussian(noise_multiplier * factor), count)


def _smallest_factor(event_at: EventAt, cost: Callable[[Event], float], limit: float) -> float:
    """The smallest factor on the noise at which ``cost`` falls to ``limit``; infinite if none does."""

    def excess(log_factor: float) -> float:
        value = cost(event_at(math.exp(log_factor)))
        return math.log(value / limit) if value > 0 and limit > 0 else value - limit

    start = excess(0.0)
    if math.isinf(start) and math.isinf(excess(_FURTHEST)):
        return math.inf
    low = high = 0.0
    if start > 0:
        while excess(high := low + _STRIDE) > 0:
            if (low := high) > _FURTHEST:
                return math.inf
    else:
        while excess(low := high - _STRIDE) <= 0:
            if (high := low) < -_FURTHEST:
                return 0.0
    return math.exp(crossing(excess, low, high, relative=0.0, absolute=_PRECISION)[1])


def _listed(scales: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {scale:.4g}" for name, scale in scales.items())
