"""From a budget to the smallest noise that keeps it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

from dptoolkit._validate import delta_value, nonnegative, positive
from dptoolkit.accounting._numeric import crossing
from dptoolkit.accounting.account import account
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.methods import best_epsilon, searched_epsilon
from dptoolkit.errors import DpToolkitError, InvalidValue

SMALLEST, _LARGEST = 1e-12, 1e12
# By how much, in units of the tolerance, epsilon may stay below the budget before another method must be better.
_MOST_EXCESS = 4.0


def calibrate(
    make_event: Callable[[float], Event],
    epsilon: float,
    delta: float,
    *,
    method: str | None = None,
    relative_tolerance: float = 1e-5,
    guess: float = 1.0,
) -> float:
    """The smallest noise for which ``make_event(noise)`` is (epsilon, delta)-DP, from the private side.

    Parameters
    ----------
    make_event : noise -> event; more noise must mean less privacy loss. For a selection pass its scale, for example
        ``lambda scale: Repeated(ExponentialMechanism(1 / scale), 1000)``.
    epsilon : of the budget. If it is infinite, or if sampling alone keeps the budget, no noise is needed: 0 is
        returned, or the least noise tried where ``make_event`` has no form without noise.
    delta : of the budget.
    method : as in ``account``.
    relative_tolerance : the result is at most this far above the smallest noise, or 50 times as far where epsilon
        jumps.
    guess : a first guess, anywhere within a factor 1e12.

    Privacy
    -------
    Touches no data. The returned noise itself has been accounted for: its epsilon is at most the one asked for.
    """
    epsilon, delta = nonnegative("epsilon", epsilon), delta_value(delta)
    positive("relative_tolerance", relative_tolerance)
    if math.isinf(epsilon):
        return 0.0

    def excess(log_noise: float, by: str | None = method) -> float:
        event = account(make_event(math.exp(log_noise)), by).event
        return _log_ratio(searched_epsilon(event, delta, by), epsilon)

    def verified(log_noise: float) -> float:
        return _log_ratio(account(make_event(math.exp(log_noise)), method).epsilon(delta), epsilon)

    def search(start: float, by: str | None) -> float:
        low, high = _enclose(lambda x: excess(x, by), start, epsilon, delta)
        if math.isinf(low):
            return low
        return crossing(lambda x: excess(x, by), low, high, absolute=relative_tolerance, relative=0.0, smooth=True)[1]

    start = math.log(positive("guess", guess))
    log_noise = -math.inf
    if method is None:
        # The method that is best at the start is mostly best at the end too, and the others then need no search.
        winner = best_epsilon(account(make_event(guess)).event, delta, False)[1]
        with contextlib.suppress(DpToolkitError):
            log_noise = search(start, None if winner == "pld" else winner)
    if math.isinf(log_noise) or excess(log_noise) < -_MOST_EXCESS * relative_tolerance:
        log_noise = search(start if math.isinf(log_noise) else log_noise, method)
    if math.isinf(log_noise):
        return _without_noise(make_event, epsilon, delta, method)
    return math.exp(_settled(verified, log_noise, relative_tolerance, epsilon, delta))


def _settled(excess: Callable[[float], float], log_noise: float, step: float, *budget: Any) -> float:
    """The first log noise, from ``log_noise`` upwards, whose verified epsilon keeps the budget; mostly the first."""
    while (value := excess(log_noise)) > 0:
        log_noise += max(value, step) if math.isfinite(value) else step
        step *= 2
        if log_noise >= math.log(_LARGEST):
            raise _unreachable(True, budget)
    return log_noise


def _log_ratio(value: float, target: float) -> float:
    if value <= target:
        return math.log(value / target) if value > 0 and target > 0 else -1.0
    return math.log(value / target) if target > 0 and math.isfinite(value) else math.inf


def _enclose(excess: Callable[[float], float], start: float, *budget: Any) -> tuple[float, float]:
    """A bracket in log noise: (too little, enough).

    Epsilon falls about like 1/noise, which gives the first step; further steps grow until the other side is reached.
    The first number is minus infinity where even the least noise is enough.
    """
    first = excess(start)
    up = first > 0
    point, value, step, least = start, first, math.log(2), 1e-3
    while True:
        guess = 1.02 * abs(value) if math.isfinite(value) else step
        other = point + (1 if up else -1) * min(max(guess, least), step)
        if up and point >= math.log(_LARGEST):
            raise _unreachable(True, budget)
        if not up and point <= math.log(SMALLEST):
            return -math.inf, point
        # The ends themselves are tried before either is believed to be out of reach.
        other = min(other, math.log(_LARGEST)) if up else max(other, math.log(SMALLEST))
        value = excess(other)
        if (value > 0) != up:
            return (point, other) if up else (other, point)
        point, step, least = other, 2 * step, 2 * least


def _without_noise(make_event: Callable[[float], Event], epsilon: float, delta: float, method: str | None) -> float:
    """0 if the budget is kept without noise, else SMALLEST, which keeps it."""
    least, one = make_event(SMALLEST), make_event(1.0)
    if least == one or account(least, method).epsilon(delta) < account(one, method).epsilon(delta):
        raise _unreachable(False, (epsilon, delta))
    try:
        return 0.0 if account(make_event(0.0), method).epsilon(delta) <= epsilon else SMALLEST
    except (ArithmeticError, DpToolkitError):
        return SMALLEST


def _unreachable(up: bool, budget: tuple[Any, ...]) -> InvalidValue:
    if up:
        return InvalidValue(
            f"(epsilon, delta)={budget}: must be reachable with noise below {_LARGEST:g}. Check that "
            "make_event loses less with more noise, for example lambda scale: ExponentialMechanism(1 / scale)."
        )
    return InvalidValue(
        f"(epsilon, delta)={budget}: is kept even with noise {SMALLEST:g}. Check that make_event uses its "
        "argument and loses less with more noise."
    )
