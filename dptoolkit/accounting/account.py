"""From what was released to what it guarantees: the tightest sound bound known here, and which method gave it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dptoolkit._validate import delta_value, invalid, nonnegative, one_of
from dptoolkit.accounting import composition, gaussian, pld, rdp, sampling, selection, zcdp
from dptoolkit.accounting.events import (
    ApproxDp,
    BestOf,
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMax,
    PureDp,
    RandomizedResponse,
    RandomRounds,
    Repeated,
    Subsampled,
    TwoSidedGeometric,
    ZCdp,
    adjacency_of,
    as_event,
    flatten,
    inner,
)
from dptoolkit.accounting.rounds import TruncatedNegativeBinomial
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent

REFERENCE_DELTA = 1e-5
TABLE_DELTAS = (1e-3, 1e-5, 1e-7, 1e-9)
# The recursion for selections is the tightest and the slowest: beyond this cost account() leaves it to method=.
_RECURSION_COST = 5e7


@dataclass(frozen=True)
class Method:
    """One way to account: epsilon at a delta, and delta at an epsilon."""

    epsilon: Callable[[Event, float], float]
    delta: Callable[[Event, float], float]


# --- the events that a method needs in another form ------------------------------------------------


def total_mu(event: Event) -> float:
    """mu of an event made of Gaussians alone."""
    mus: list[tuple[float, float]] = []
    for part, count in flatten(event):
        if not isinstance(part, Gaussian):
            raise UnsupportedEvent(f"event={part!r}: must be Gaussian for method 'gaussian'. Use method='pld'.")
        mus.append((math.inf if part.noise_multiplier == 0 else 1 / part.noise_multiplier, count))
    return gaussian.compose(mus)


def total_rho(event: Event) -> float:
    """rho of an event whose parts all have one; UnsupportedEvent otherwise."""
    return math.fsum(count * _rho(part) for part, count in flatten(event))


def _rho(event: Event) -> float:
    if isinstance(event, Gaussian):
        return zcdp.gaussian(event.noise_multiplier)
    if isinstance(event, ZCdp):
        return event.rho
    if isinstance(event, ExponentialMechanism):
        return selection.bounded_range_rho(event.epsilon)
    pure = pure_epsilon(event)
    if pure is not None:
        return zcdp.pure(pure)
    raise UnsupportedEvent(f"event={event!r}: must have a zCDP bound for method 'zcdp'. Use method='rdp' or 'pld'.")


def pure_epsilon(event: Event) -> float | None:
    """epsilon at delta 0 of an elementary event, None if it is not pure by nature."""
    if isinstance(event, (PureDp, NoisyMax, ExponentialMechanism, RandomizedResponse, TwoSidedGeometric)):
        return event.epsilon
    if isinstance(event, Laplace):
        return math.inf if event.noise_multiplier == 0 else 1 / event.noise_multiplier
    if isinstance(event, BestOf) and isinstance(event.runs, TruncatedNegativeBinomial):
        # Papernot and Steinke 2022, Theorem 2, at orders that grow without bound.
        run = _total_pure(event.event)
        return None if run is None else (2 + event.runs.eta) * run
    if isinstance(event, Subsampled):
        whole = _total_pure(event.event)
        return None if whole is None else sampling.amplified(whole, event.rate)
    return None


def _total_pure(event: Event) -> float | None:
    """The sum of the pure epsilons, None if a part has none."""
    found = [(pure_epsilon(part), count) for part, count in flatten(event)]
    return None if any(e is None for e, _ in found) else math.fsum(count * e for e, count in found if e is not None)


def _single(event: Event, method: str) -> tuple[Event, int]:
    parts = flatten(event)
    if not parts:
        return PureDp(0.0), 0
    if len(parts) > 1:
        raise UnsupportedEvent(
            f"the event has {len(parts)} different parts: must be one event, repeated, for method {method!r}. "
            "Use method='pld' or 'rdp'."
        )
    return parts[0]


def _step_bounds(event: Event, delta0: float) -> tuple[float, float]:
    """(epsilon, delta) of one application, for the composition theorems; delta at most ``delta0``."""
    pure = pure_epsilon(event)
    if pure is not None:
        return pure, 0.0
    if isinstance(event, ApproxDp):
        return event.epsilon, event.delta
    return account(event).epsilon(delta0), delta0


def _basic(event: Event, delta: float) -> float:
    parts = flatten(event)
    total = sum(count for part, count in parts if not _has_bounds(part))
    spent = _spent_delta(event)
    if spent > delta:
        return math.inf
    share = (delta - spent) / total if total else 0.0
    if total and share == 0:
        return math.inf
    return math.fsum(composition.basic(_step_bounds(part, share)[0], count)[0] for part, count in parts)


def _basic_delta(event: Event, epsilon: float) -> float:
    if not all(_has_bounds(part) for part, _ in flatten(event)):
        return _delta_by_search(_basic, event, epsilon)
    spent = _spent_delta(event)
    return spent if spent < 1 and _basic(event, spent) <= epsilon else 1.0


def _spent_delta(event: Event) -> float:
    return math.fsum(count * part.delta for part, count in flatten(event) if isinstance(part, ApproxDp))


def _on_lattice(epsilon_at: Callable[[Event, float], float], event: Event, delta: float) -> float:
    """epsilon at the delta of the lattice below, unless the parts have bounds of their own: see _delta_by_search."""
    if all(_has_bounds(part) for part, _ in flatten(event)):
        return epsilon_at(event, delta)
    return epsilon_at(event, _lattice_delta(_lattice_index(delta)))


def _advanced(event: Event, delta: float) -> float:
    part, count = _single(event, "advanced")
    epsilon0, delta0 = _step_bounds(part, delta / (2 * max(count, 1)))
    return composition.advanced(epsilon0, count, delta, delta0)


def _optimal(event: Event, delta: float) -> float:
    part, _ = _single(event, "optimal")
    if _has_bounds(part):
        return _on_the_private_side(_optimal_at, _optimal_delta, event, delta)
    return _on_lattice(_optimal_at, event, delta)


def _optimal_at(event: Event, delta: float) -> float:
    part, count = _single(event, "optimal")
    epsilon0, delta0 = _step_bounds(part, delta / (2 * max(count, 1)))
    return composition.optimal(epsilon0, count, delta, delta0)


def _has_bounds(event: Event) -> bool:
    """Whether one (epsilon, delta) is all that is known of an elementary event, or all there is."""
    return pure_epsilon(event) is not None or isinstance(event, ApproxDp)


def _selections(event: Event) -> tuple[float, int]:
    part, count = _single(event, "bounded-range")
    if count and not isinstance(part, ExponentialMechanism):
        raise UnsupportedEvent(f"event={part!r}: must be ExponentialMechanism for method 'bounded-range'.")
    return (part.epsilon if isinstance(part, ExponentialMechanism) else 0.0), count


def _optimal_delta(event: Event, epsilon: float) -> float:
    part, count = _single(event, "optimal")
    if not _has_bounds(part):
        return _delta_by_search(_optimal_at, event, epsilon)
    epsilon0, delta0 = _step_bounds(part, 0.0)
    return composition.optimal_delta(epsilon0, count, epsilon, delta0)


def _verified(method: Method) -> Method:
    """The method with an epsilon at which its own delta is at most the one asked for, to the last bit.

    Both are sound whatever the other says; but they look for their best order or grid separately, and a guarantee whose
    delta is not the one it was asked for is none. Where they differ the same question is asked for a smaller delta.
    """
    return Method(lambda event, d: _on_the_private_side(method.epsilon, method.delta, event, d), method.delta)


def _on_the_private_side(
    epsilon_at: Callable[[Event, float], float], delta_at: Callable[[Event, float], float], event: Event, delta: float
) -> float:
    target, factor = delta, 1.0
    while True:
        epsilon = epsilon_at(event, target)
        if math.isinf(epsilon):
            return epsilon
        found = delta_at(event, epsilon)
        if found <= delta:
            return epsilon
        if target == 0:
            return math.inf
        # The excess, then twice, four times as much: it ends within a few rounds, at delta 0 at the latest.
        target *= min(delta / found, 1 - 1e-15) ** factor
        factor *= 2


def _without_failures(event: Event) -> tuple[Event, float]:
    """The event with ApproxDp parts as pure ones, and log of the probability that none of them fails.

    At worst an (epsilon, delta)-DP mechanism gives everything away with probability delta and is epsilon-DP otherwise
    (Kairouz, Oh and Viswanath 2015), so failures are set apart and what is left has a Renyi divergence.
    """
    parts, log_kept = [], 0.0
    for part, count in flatten(event):
        if isinstance(part, ApproxDp):
            log_kept += count * math.log1p(-part.delta)
            part = PureDp(part.epsilon)
        parts.append(Repeated(part, count))
    return Composed(*parts), log_kept


def _allowing_failures(method: Method) -> Method:
    """The method for events with ApproxDp parts too: the total delta is 1 - (kept) (1 - delta of the rest)."""

    def epsilon(event: Event, delta: float) -> float:
        rest, log_kept = _without_failures(event)
        if log_kept == 0:
            return method.epsilon(event, delta)
        # Less by what rounding may have added.
        left = -math.expm1(math.log1p(-delta) - log_kept) - 4e-16 * delta
        return method.epsilon(rest, left) if left > 0 else math.inf

    def delta(event: Event, epsilon: float) -> float:
        rest, log_kept = _without_failures(event)
        if log_kept == 0:
            return method.delta(event, epsilon)
        found = method.delta(rest, epsilon)
        return -math.expm1(log_kept + math.log1p(-found)) if found < 1 else 1.0

    return Method(epsilon, delta)


METHODS: dict[str, Method] = {
    # Each epsilon is the inverse of its delta: by one curve for both, by verification, or on a lattice of deltas.
    "gaussian": Method(lambda e, d: gaussian.epsilon(total_mu(e), d), lambda e, x: gaussian.delta(total_mu(e), x)),
    "pld": Method(pld.epsilon, pld.delta),
    "rdp": _verified(_allowing_failures(Method(rdp.epsilon, rdp.delta))),
    "zcdp": _verified(_allowing_failures(
        Method(lambda e, d: zcdp.to_epsilon(total_rho(e), d), lambda e, x: zcdp.to_delta(total_rho(e), x))
    )),
    "bounded-range": _verified(
        Method(
            lambda e, d: selection.adaptive(*_selections(e), d),
            lambda e, x: selection.adaptive_delta(*_selections(e), x),
        )
    ),
    "optimal": Method(_optimal, _optimal_delta),
    "advanced": Method(
        lambda e, d: _advanced(e, _lattice_delta(_lattice_index(d))), lambda e, x: _delta_by_search(_advanced, e, x)
    ),
    "basic": Method(lambda e, d: _on_lattice(_basic, e, d), _basic_delta),
}


# A lattice of deltas: the floats whose last 32 bits are 0, 2^20 in every factor of two.
_LATTICE_BITS = 32


def _lattice_index(delta: float) -> int:
    """The number of the largest delta of the lattice that is not above ``delta``."""
    return int(np.float64(delta).view(np.int64)) >> _LATTICE_BITS


def _lattice_delta(index: int) -> float:
    return float(np.int64(index << _LATTICE_BITS).view(np.float64))


def _delta_by_search(epsilon_at: Callable[[Event, float], float], event: Event, epsilon: float) -> float:
    """The smallest delta of the lattice whose epsilon(delta) is at most ``epsilon``."""
    if epsilon_at(event, 0.0) <= epsilon:
        return 0.0
    low, high = _lattice_index(1e-300), _lattice_index(1.0)
    if epsilon_at(event, _lattice_delta(low)) <= epsilon:
        return _lattice_delta(low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon_at(event, _lattice_delta(middle)) > epsilon else (low, middle)
    return _lattice_delta(high)


# --- choosing ------------------------------------------------------------------------------------


def _exact_method(event: Event) -> str | None:
    """The method that is exact for the event's shape, if there is one."""
    parts = flatten(event)
    if all(isinstance(part, Gaussian) for part, _ in parts):
        return "gaussian"
    if len(parts) == 1 and isinstance(parts[0][0], (PureDp, ApproxDp, NoisyMax)):
        return "optimal"
    return None


def _is_exact(event: Event) -> bool:
    """Whether some neighbours reach what account() says: Gaussians, and any mechanisms of one (epsilon, delta)."""
    return _exact_method(event) is not None and not any(isinstance(part, NoisyMax) for part, _ in flatten(event))


def _candidates(event: Event, affordable: Callable[[float, int], bool]) -> list[list[str]]:
    """Methods in groups: the first group with a finite and sharp answer decides; the smallest answer seen wins."""
    exact = _exact_method(event)
    if exact is not None:
        return [[exact]]
    parts = flatten(event)
    # The largest losses just add: the whole answer at delta 0, and the best one at tiny deltas.
    first = ["pld"] if _total_pure(event) is None else ["pld", "basic"]
    if not _has_selection(event) and not _contains(event, BestOf):
        # The pairs are those of the mechanisms themselves, so a Renyi divergence can only lose, unless the grid was too
        # coarse: where events of very different size share one, or where there are too many.
        return [first, ["rdp", "zcdp"]]
    part, count = parts[0]
    if len(parts) == 1 and isinstance(part, ExponentialMechanism) and affordable(part.epsilon, count):
        first.append("bounded-range")
    return [[*first, "rdp", "zcdp"]]


def _has_selection(event: Event) -> bool:
    """Whether an exponential mechanism is inside, whose worst pair differs from one composition to the next."""
    return _contains(event, ExponentialMechanism)


def _contains(event: Event, kind: type[Event]) -> bool:
    parts = [part for part, _ in flatten(event)]
    nested = [part for part in map(inner, parts) if part is not None]
    return any(isinstance(part, kind) for part in parts) or any(_contains(part, kind) for part in nested)


@lru_cache(maxsize=4096)
def _best_epsilon(event: Event, delta: float) -> tuple[float, str]:
    def affordable(epsilon0: float, count: int) -> bool:
        return delta > 0 and selection.recursion_cost(epsilon0, count, delta) <= _RECURSION_COST

    def evaluate(name: str) -> pld.Answer:
        if name == "pld":
            return pld.epsilon_answer(event, delta)
        return pld.Answer(METHODS[name].epsilon(event, delta), True)

    return _best(_candidates(event, affordable), evaluate, math.inf)


@lru_cache(maxsize=4096)
def _best_delta(event: Event, epsilon: float) -> tuple[float, str]:
    def affordable(epsilon0: float, count: int) -> bool:
        return selection.delta_cost(epsilon0, count, epsilon) <= _RECURSION_COST

    def evaluate(name: str) -> pld.Answer:
        if name == "pld":
            return pld.delta_answer(event, epsilon)
        return pld.Answer(METHODS[name].delta(event, epsilon), True)

    return _best(_candidates(event, affordable), evaluate, 1.0)


def _best(groups: list[list[str]], evaluate: Callable[[str], pld.Answer], useless: float) -> tuple[float, str]:
    results: list[tuple[float, str]] = []
    refused: list[str] = []
    for group in groups:
        sharp = True
        for name in group:
            try:
                answer = evaluate(name)
            except UnsupportedEvent as problem:
                refused.append(str(problem))
                continue
            results.append((answer.value, name))
            sharp = sharp and answer.sharp
        if results and sharp and min(results)[0] < useless:
            break
    if not results:
        raise UnsupportedEvent(refused[0])
    return min(results)


def account(event: Event, method: str | None = None, *, adjacency: Adjacency | str | None = None) -> Guarantee:
    """The guarantee of what ``event`` says was released.

    Parameters
    ----------
    event : what was released.
    method : None for the tightest sound bound, or one of "gaussian", "pld", "rdp", "zcdp", "bounded-range", "optimal",
        "advanced", "basic" to force one, for comparison.
    adjacency : the neighbouring relation that the noise multipliers are stated for. Sampling and objective perturbation
        fix it; a contradiction raises.

    Privacy
    -------
    Touches no data. The bound holds under adaptive composition, for the adjacency of the event.
    """
    as_event("event", event)
    if method is not None:
        one_of("method", method, tuple(METHODS))
    fixed = adjacency_of(event)
    stated = None if adjacency is None else Adjacency.parse(adjacency)
    if fixed is not None and stated is not None and fixed is not stated:
        raise invalid(
            "adjacency", str(stated), f"'{fixed}', which the event fixes",
            "Give its Subsampled or ObjectivePerturbation the adjacency you mean.",
        )
    return Guarantee(event, method, stated or fixed)


class Claimed(NamedTuple):
    """What somebody else claims for a release, and whether the conditions of that claim hold here."""

    epsilon: float
    delta: float
    source: str
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Guarantee:
    """What a release guarantees, computed from the event on demand. ``print`` shows it as a table."""

    event: Event
    forced_method: str | None = None
    adjacency: Adjacency | None = None
    notes: tuple[str, ...] = field(default=())
    claimed: Claimed | None = None

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon known to hold at ``delta``."""
        delta = delta_value(delta)
        if self.forced_method is None:
            return _best_epsilon(self.event, delta)[0]
        return METHODS[self.forced_method].epsilon(self.event, delta)

    def delta(self, epsilon: float) -> float:
        """The smallest delta known to hold at ``epsilon``."""
        epsilon = nonnegative("epsilon", epsilon)
        if self.forced_method is None:
            return _best_delta(self.event, epsilon)[0]
        return METHODS[self.forced_method].delta(self.event, epsilon)

    def bounds(self, delta: float) -> pld.Bracket:
        """(lower, upper) on epsilon: no analysis can prove less than lower, upper holds.

        The lower end is reached by an explicit pair of neighbours; it is 0 where no such pair is known (ZCdp, BestOf).
        """
        upper = self.epsilon(delta)
        if self.forced_method is None and _is_exact(self.event):
            return pld.Bracket(upper, upper)
        try:
            lower = pld.lower_epsilon(self.event, delta_value(delta))
        except UnsupportedEvent:
            lower = 0.0
        if lower > upper * (1 + 1e-9):
            raise ArithmeticError(
                f"lower bound {lower} exceeds upper bound {upper} at delta={delta:g} for {self.event!r}: "
                "one of them is wrong. Please report this."
            )
        return pld.Bracket(min(lower, upper), upper)

    @property
    def rho(self) -> float:
        """The zCDP parameter, infinite where none is known."""
        try:
            return total_rho(self.event)
        except UnsupportedEvent:
            return math.inf

    @property
    def method(self) -> str:
        """The method behind the answer at delta = 1e-5."""
        return self.method_at(REFERENCE_DELTA)

    def method_at(self, delta: float) -> str:
        """The method behind ``epsilon(delta)``."""
        return self.forced_method or _best_epsilon(self.event, delta_value(delta))[1]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true of the mechanism for the guarantee to hold."""
        return tuple(dict.fromkeys(self.notes + tuple(_assumptions(self.event))))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the event, the adjacency, epsilon at a few deltas, the assumptions."""
        return {
            "event": self.event.to_dict(),
            "adjacency": None if self.adjacency is None else self.adjacency.value,
            "method": self.method,
            "epsilon": {f"{d:g}": _json_number(self.epsilon(d)) for d in TABLE_DELTAS},
            "rho": _json_number(self.rho),
            "assumptions": list(self.assumptions),
            "claimed": self._claim_record(),
        }

    def _claim_record(self) -> dict[str, Any] | None:
        if self.claimed is None:
            return None
        record = self.claimed._asdict()
        return record | {"epsilon": _json_number(self.claimed.epsilon), "conditions": list(self.claimed.conditions)}

    def __str__(self) -> str:
        from dptoolkit.accounting.report import guarantee_table

        return guarantee_table(self)


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


_ASSUMPTIONS: dict[type[Event], str] = {
    Gaussian: "L2 sensitivity bounded as stated; noise is real-valued (floating point is idealised)",
    Laplace: "L1 sensitivity bounded as stated; noise is real-valued (floating point is idealised)",
    TwoSidedGeometric: "the query is an integer with the stated integer sensitivity",
    ExponentialMechanism: "score differences move by at most the stated range; Gumbel noise or exact sampling",
    NoisyMax: "score differences move by at most the stated range",
    RandomRounds: "the number of rounds is drawn independently of the data",
    BestOf: "the number of runs is drawn independently of the data and not published; only the best run is released",
}


def _assumptions(event: Event) -> list[str]:
    found: list[str] = []
    for part, _ in flatten(event):
        if isinstance(part, Subsampled):
            batch = (
                "a fresh uniform batch of fixed size" if part.scheme == "without-replacement"
                else "a fresh batch, each record independently; sums divided by the expected batch size"
            )
            found.append(f"sampling: {batch}, kept secret; adjacency {part.adjacency}")
            if part.scheme == "poisson" and part.adjacency is Adjacency.REPLACE_ONE:
                found.append("a record's contribution lies in a ball around 0 whose diameter is the sensitivity, "
                             "so that leaving it out costs no more than replacing it")
        if type(part) in _ASSUMPTIONS:
            found.append(_ASSUMPTIONS[type(part)])
        nested = getattr(part, "event", None)
        if nested is not None:
            found.extend(_assumptions(nested))
    return found
