"""Properties of a whole event, computed from the rows of its parts.

``events.flatten`` has already taken Repeated and Composed apart, so an event is a sum over elementary events with
counts. The structure that remains around an elementary event is sampling, random rounds and the best of several runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dptoolkit.accounting import gaussian, sampling, zcdp
from dptoolkit.accounting._numeric import sum_up
from dptoolkit.accounting.events import (
    WITHOUT_REPLACEMENT,
    BestOf,
    Composed,
    Event,
    Gaussian,
    RandomRounds,
    Repeated,
    Subsampled,
    ZCdp,
    flatten,
    inner,
)
from dptoolkit.accounting.report import number
from dptoolkit.accounting.rounds import TruncatedNegativeBinomial
from dptoolkit.accounting.rules import Words, inverse, rules_of
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import ANY_METHOD, UnsupportedEvent

Parts = tuple[tuple[Event, int], ...]


# --- Gaussians: several compose to one ------------------------------------------------------------


def mu(event: Event) -> float:
    """mu of an elementary event that is Gaussian DP exactly."""
    of = rules_of(event).mu
    if of is None:
        raise UnsupportedEvent(f"event={event!r}: must be Gaussian for method 'gaussian'.", ANY_METHOD)
    return of(event)


def is_gaussian(event: Event) -> bool:
    """Whether an elementary event is Gaussian DP exactly."""
    return rules_of(event).mu is not None


def all_gaussian(event: Event) -> bool:
    """Whether every part is Gaussian DP exactly, so that the whole is."""
    return all(is_gaussian(part) for part, _ in flatten(event))


def total_mu(event: Event) -> float:
    """mu of an event made of Gaussians alone."""
    return gaussian.compose([(mu(part), count) for part, count in flatten(event)])


def merged(gaussians: Parts) -> Gaussian:
    """The one Gaussian to which several, with their counts, compose."""
    return Gaussian(inverse(gaussian.compose([(mu(part), count) for part, count in gaussians])))


def as_single(event: Subsampled) -> Event:
    """The elementary event inside a Subsampled; several Gaussians are composed to one."""
    parts = flatten(event.event)
    if not parts:
        return Gaussian(math.inf)
    if all_gaussian(event.event):
        return merged(parts)
    if len(parts) == 1 and parts[0][1] == 1 and not isinstance(parts[0][0], (Subsampled, RandomRounds)):
        return parts[0][0]
    raise UnsupportedEvent(
        f"event={event!r}: must be a subsampled elementary event for this method.",
        "Account for several releases from one batch as one ApproxDp event.",
    )


# --- one number for a part, added up --------------------------------------------------------------


def total_rho(event: Event) -> float:
    """rho of an event whose parts all have one; UnsupportedEvent otherwise."""
    return math.fsum(count * _rho(part) for part, count in flatten(event))


def _rho(event: Event) -> float:
    own, pure = rules_of(event).rho, pure_epsilon(event)
    if own is not None:
        return own(event)
    if pure is not None:
        return zcdp.pure(pure)
    raise UnsupportedEvent(f"event={event!r}: must have a zCDP bound for method 'zcdp'.", ANY_METHOD)


def pure_epsilon(event: Event) -> float | None:
    """epsilon at delta 0 of one part, None if it is not pure by nature."""
    own = rules_of(event).pure
    if own is not None:
        return own(event)
    if isinstance(event, BestOf) and isinstance(event.runs, TruncatedNegativeBinomial):
        # Papernot and Steinke 2022, Theorem 2, in the limit of large orders.
        run = total_pure(event.event)
        return None if run is None else sum_up([(2, run), (event.runs.eta, run)])
    if isinstance(event, Subsampled):
        total = total_pure(event.event)
        return None if total is None else sampling.amplified(total, event.rate)
    return None


def total_pure(event: Event) -> float | None:
    """The sum of the pure epsilons, None if a part has none."""
    epsilons = [(pure_epsilon(part), count) for part, count in flatten(event)]
    return None if any(e is None for e, _ in epsilons) else sum_up((count, e) for e, count in epsilons if e is not None)


# --- failures -------------------------------------------------------------------------------------


def split_failure(event: Event) -> tuple[Event, float]:
    """(the event given that it does not fail, the probability that it fails) of an elementary event."""
    own = rules_of(event).failure
    return (event, 0.0) if own is None else own(event)


def fails(event: Event) -> bool:
    """Whether an elementary event may fail, which gives everything away."""
    return rules_of(event).failure is not None


def has_bounds(event: Event) -> bool:
    """Whether a part has an (epsilon, delta) by itself: it is pure, or it may fail with a known probability."""
    return pure_epsilon(event) is not None or fails(event)


def without_failures(event: Event) -> tuple[Event, float]:
    """The event given that no part fails, and log of the probability that none does.

    At worst an (epsilon, delta)-DP mechanism gives everything away with probability delta and is epsilon-DP otherwise
    (Kairouz, Oh and Viswanath 2015). With failures accounted for separately, the rest has a Renyi divergence.
    """
    parts, log_success = [], 0.0
    for part, count in flatten(event):
        rest, probability = split_failure(part)
        log_success += count * math.log1p(-probability)
        parts.append(Repeated(rest, count))
    return (Composed(*parts), log_success) if log_success < 0 else (event, 0.0)


def delta_left(log_success: float, delta: float) -> float:
    """What failures leave of ``delta`` for the rest: delta is 1 - P(no failure) (1 - that)."""
    # Rounded down, since rounding may have made it too large.
    return delta if log_success == 0 else -math.expm1(math.log1p(-delta) - log_success) - 4e-16 * delta


def delta_with_failures(log_success: float, rest_delta: float) -> float:
    """1 - P(no failure) (1 - delta of the rest)."""
    if log_success == 0 or rest_delta == 1:
        return rest_delta
    return -math.expm1(log_success + math.log1p(-rest_delta))


def spent_delta(event: Event) -> float:
    """The sum of the probabilities of failure."""
    return sum_up((count, split_failure(part)[1]) for part, count in flatten(event))


# --- what is inside -------------------------------------------------------------------------------


def _anywhere(event: Event) -> list[Event]:
    """All parts, and all parts nested inside them."""
    parts = [part for part, _ in flatten(event)]
    return parts + [deep for part in parts if (nested := inner(part)) is not None for deep in _anywhere(nested)]


def has_selection(event: Event) -> bool:
    """Whether a bounded-range mechanism is inside; its worst pair depends on what it is composed with."""
    return any(rules_of(part).bounded_range is not None for part in _anywhere(event))


def has_best_of(event: Event) -> bool:
    """Whether a BestOf is inside."""
    return any(isinstance(part, BestOf) for part in _anywhere(event))


def is_sampled(event: Event) -> bool:
    """Whether some part, or one inside of it, is run on a random batch."""
    return any(isinstance(part, Subsampled) for part in _anywhere(event))


# --- the same release with other noise -------------------------------------------------------------


def scaled(event: Event, factor: float) -> Event:
    """The event with the noise of every part divided by ``factor``."""
    if isinstance(event, Composed):
        return Composed(*(scaled(part, factor) for part in event.events))
    nested: Any = event
    if isinstance(event, Repeated) or inner(event) is not None:
        return replace(nested, event=scaled(nested.event, factor))
    return rules_of(event).scaled(event, factor)


# --- words ----------------------------------------------------------------------------------------


def words(event: Event) -> Words:
    """(mechanism, noise, sensitivity) of a part as text; these are parameters, not bounds, so rounded to nearest."""
    nested = inner(event)
    if nested is None:
        return rules_of(event).words(event)
    parts = [(words(part), count) for part, count in flatten(nested)]
    names = [f"{count:,} x {w[0]}" if count > 1 else w[0] for w, count in parts]
    noise, sensitivity = ("; ".join(w[i] for w, _ in parts) or "-" for i in (1, 2))
    return f"{_around(event)} of {' + '.join(names) or 'nothing'}", noise, sensitivity


# How many different parts of an event are named in one line.
_NAMED = 2


def brief(event: Event) -> str:
    """An event in one line: its first parts with their counts and noise."""
    parts = [(words(part), count) for part, count in flatten(event)]
    named = [
        ("" if count == 1 else f"{count:,} x ") + name + ("" if noise == "-" else f" ({noise})")
        for (name, noise, _), count in parts
    ]
    more = f" + {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return (" + ".join(named[:_NAMED]) or "nothing") + more


def _around(event: Event) -> str:
    if isinstance(event, Subsampled):
        return f"{event.scheme} rate {number(event.rate)}"
    if isinstance(event, RandomRounds):
        return f"random rounds {event.rounds}"
    assert isinstance(event, BestOf)
    return f"best of {event.runs}"


def assumptions(event: Event) -> list[str]:
    """What must be true of the mechanisms for the guarantee to hold."""
    texts: list[str] = []
    for part, _ in flatten(event):
        texts += _structural_assumptions(part)
        own, nested = rules_of(part).assumption, inner(part)
        texts += [own] if own else []
        texts += [] if nested is None else assumptions(nested)
    return texts


def _structural_assumptions(part: Event) -> list[str]:
    if isinstance(part, RandomRounds):
        return ["the number of rounds is drawn independently of the data"]
    if isinstance(part, BestOf):
        return [
            "the number of runs is drawn independently of the data and not published; only the best run is released"
        ]
    if not isinstance(part, Subsampled):
        return []
    fixed = part.scheme == WITHOUT_REPLACEMENT
    batch = (
        "a fresh uniform batch of fixed size"
        if fixed
        else "a fresh batch, each record independently; sums divided by the expected batch size"
    )
    texts = [f"sampling: {batch}, kept secret; adjacency {part.adjacency}"]
    if not fixed and part.adjacency is Adjacency.REPLACE_ONE:
        texts.append(
            "a record's contribution lies in a ball around 0 whose diameter is the sensitivity, "
            "so that leaving it out costs no more than replacing it"
        )
    return texts


# --- One event that stands for several ------------------------------------------------------------


def common_bound(events: Sequence[Event]) -> Event | None:
    """An event that is at least as bad as each of the events; None if no such bound is known.

    It is the weakest Gaussian if all events are Gaussian, and otherwise the weakest zCDP bound.
    """
    if all(all_gaussian(event) for event in events):
        return Gaussian(inverse(max(total_mu(event) for event in events)))
    try:
        return ZCdp(max(total_rho(event) for event in events))
    except UnsupportedEvent:
        return None
