"""``calibrate``: the smallest noise that keeps a budget, found by a search in log noise."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

from dptoolkit._validate import delta_value, invalid, nonnegative, positive
from dptoolkit.accounting._numeric import crossing
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.guarantee import account
from dptoolkit.accounting.methods import METHODS, best_epsilon, likely_method, path_of, unverified_epsilon
from dptoolkit.errors import DpToolkitError, InvalidValue

# The range of the search; noise outside it is of no use in any plan.
SMALLEST, _LARGEST = 1e-12, 1e12
# Rough searches, which only prepare the exact one, end where the next step would be shorter than these, in log noise.
# The other number is the least first step of a search.
_ROUGH_WIDTHS, _LEAST_STEP = (0.03, 0.01), 3e-5
# Searches by secants: the most looks, the longest step, how far apart two points are that show a slope, and the longest
# step that ends a search.
_MOST_SECANTS, _LONGEST_STEP, _APART, _FAR = 6, 1.5, 5e-4, 0.1


def calibrate(
    make_event: Callable[[float], Event],
    epsilon: float,
    delta: float,
    *,
    method: str | None = None,
    relative_tolerance: float = 1e-5,
    guess: float | None = None,
    near: bool = False,
) -> float:
    """The smallest noise for which ``make_event(noise)`` is (epsilon, delta)-DP, from the private side.

    Parameters
    ----------
    make_event : callable
        Makes the event from the noise; more noise must mean less privacy loss. For a selection pass its scale, for
        example ``lambda scale: Repeated(ExponentialMechanism(1 / scale), 1000)``.
    epsilon : float
        The epsilon of the budget. If it is infinite, or if sampling alone meets the budget, no noise is needed: 0 is
        returned, or the smallest noise tried if ``make_event`` has no form without noise.
    delta : float
        The delta of the budget.
    method : str or None, default None
        As in ``account``.
    relative_tolerance : float, default 1e-5
        The result is at most this far above the smallest noise, or 50 times as far where epsilon jumps.
    guess : float or None, default None
        Where the search starts, anywhere within a factor 1e12; a good guess saves the rough part of the search.
    near : bool, default False
        Whether the guess is within a thousandth or so, which saves what is left of the rough part. If it is not, the
        search takes longer.

    Returns
    -------
    float
        The noise.

    Privacy
    -------
    Touches no data. The returned noise itself has been accounted for: its epsilon is at most the one asked for.
    """
    if not callable(make_event):
        raise invalid(
            "make_event",
            make_event,
            "a function from noise to an event",
            "For example calibrate(lambda noise: Gaussian(noise), epsilon=1.0, delta=1e-5).",
        )
    epsilon, delta = nonnegative("epsilon", epsilon), delta_value(delta)
    positive("relative_tolerance", relative_tolerance)
    if math.isinf(epsilon):
        return 0.0

    def by(epsilon_at: Callable[[Event, float], float]) -> Callable[[float], float]:
        """The log of epsilon against the budget, at a log noise."""

        @functools.cache
        def excess(log_noise: float) -> float:
            return _log_ratio(epsilon_at(account(make_event(math.exp(log_noise)), method).event, delta), epsilon)

        return excess

    def search(excess: Callable[[float], float], start: float, slope: float = 1.0) -> float:
        low, high = _enclose(excess, start, slope, epsilon, delta)
        if math.isinf(low):
            return low
        return crossing(excess, low, high, absolute=relative_tolerance, relative=0.0, smooth=True)[1]

    def follow(path: tuple[Callable[[Event, float], float], ...], start: float) -> float:
        """The log noise at the end of a method's path: rough searches first, each from the end of the one before."""
        *rough, last = map(by, path)
        slope = 1.0
        for excess, width in zip(rough, _ROUGH_WIDTHS[2 - len(rough) :], strict=True):
            start, slope = _rough_end(excess, start, slope, width, epsilon, delta)
        if rough or near:
            # Above the place that was found, so that the first exact look is mostly the last one.
            start += 0.5 * relative_tolerance
        end = _by_secants(last, start, slope, relative_tolerance)
        return search(last, start, slope) if end is None else end

    def quick_search(start: float) -> tuple[float, bool]:
        """(log noise, whether it is final), by following one method at a time.

        The first is the method that is likely to be the best one. Where another method turns out to be better at the
        end of its path, that one is followed next, until a method is the best one at its own end.
        """
        event = account(make_event(math.exp(start))).event
        name = likely_method(event, delta)
        path = path_of(name, event)[-1 if near else 0 :]
        for _ in METHODS:
            end = follow(path, start)
            if math.isinf(end):
                break
            start, previous = end, name
            lowest, name = best_epsilon(account(make_event(math.exp(end))).event, delta, False)
            if name == previous:
                return end, lowest <= epsilon
            path = path_of(name, account(make_event(math.exp(end))).event)[-2:]
        return start, False

    log_noise, is_final = 0.0 if guess is None else math.log(positive("guess", guess)), False
    if method is None:
        with contextlib.suppress(DpToolkitError):
            log_noise, is_final = quick_search(log_noise)
    if not is_final:
        log_noise = search(by(lambda event, d: unverified_epsilon(event, d, method)), log_noise)
    if math.isinf(log_noise):
        return _without_noise(make_event, epsilon, delta, method)
    verified = by(lambda event, d: account(event, method).epsilon(d))
    return math.exp(_settled(verified, log_noise, relative_tolerance, epsilon, delta))


def _rough_end(
    excess: Callable[[float], float], start: float, slope: float, width: float, *budget: Any
) -> tuple[float, float]:
    """About where a rough excess is 0, and about how fast it falls there.

    Secants find it, each from the point before. Where they do not, because the excess jumps or is infinite, a bracket
    does.
    """
    point, value = start, excess(start)
    for look in range(_MOST_SECANTS):
        if not math.isfinite(value):
            break
        other = point + min(max(value / slope, -_LONGEST_STEP), _LONGEST_STEP)
        # A first slope is only a guess.
        if abs(other - point) <= (width if look else _APART):
            return other, slope
        before, value = value, excess(other)
        if math.isfinite(value):
            slope = max((before - value) / (other - point), 0.1)
        point = other
    low, high = _enclose(excess, start, 1.0, *budget)
    if math.isinf(low):
        return high, 1.0
    low, high = crossing(excess, low, high, absolute=width, relative=0.0)
    fall = excess(low) - excess(high)
    if not math.isfinite(fall):
        return high, 1.0
    return low + (high - low) * excess(low) / fall, fall / (high - low)


def _by_secants(excess: Callable[[float], float], start: float, slope: float, width: float) -> float | None:
    """The end of a search from a good start, where every look is slow: a point whose excess is 0 or just below it.

    None where a few secants do not end there: where epsilon jumps, or the start was not that good.
    """
    point, value, step = start, excess(start), 0.0
    for _ in range(_MOST_SECANTS):
        if -slope * width <= value <= 0:
            # A long step may have crossed a jump, behind which less noise is enough.
            return point if abs(step) <= _FAR else None
        if not math.isfinite(value) or abs(value) > _LONGEST_STEP:
            return None
        other = point + value / slope + 0.5 * width
        before, value = value, excess(other)
        # Points that are close together say little about the slope, because each has the error of its own grid.
        if abs(other - point) > _APART:
            slope = min(max((before - value) / (other - point), 0.5 * slope), 2 * slope)
        step, point = other - point, other
    return None


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


def _enclose(excess: Callable[[float], float], start: float, slope: float, *budget: Any) -> tuple[float, float]:
    """A bracket in log noise: (too little, enough).

    Epsilon falls about like noise to the power of minus ``slope``, which gives the first step; the last two points give
    the next ones, which may grow until the other side is reached. The first number is minus infinity where even the
    least noise is enough.
    """
    first = excess(start)
    up = first > 0
    point, value, step, least = start, first, math.log(2), _LEAST_STEP
    while True:
        guess = 1.05 * abs(value) / slope if math.isfinite(value) else step
        other = point + (1 if up else -1) * min(max(guess, least), step)
        if up and point >= math.log(_LARGEST):
            raise _unreachable(True, budget)
        if not up and point <= math.log(SMALLEST):
            return -math.inf, point
        # The ends themselves are tried before either is believed to be out of reach.
        other = min(other, math.log(_LARGEST)) if up else max(other, math.log(SMALLEST))
        before, value = value, excess(other)
        if (value > 0) != up:
            return (point, other) if up else (other, point)
        if math.isfinite(before - value):
            slope = max((before - value) / (other - point), 0.1)
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
            "make_event loses less with more noise, for example lambda scale: ExponentialMechanism(1 / scale). Some "
            "bounds stay above 0 however much noise there is, such as that for the best of several runs at a tiny "
            "delta: then a larger epsilon or delta is needed."
        )
    return InvalidValue(
        f"(epsilon, delta)={budget}: is kept even with noise {SMALLEST:g}. Check that make_event uses its "
        "argument and loses less with more noise."
    )
