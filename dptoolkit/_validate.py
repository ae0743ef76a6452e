"""One wording for every complaint about a value: "name=value: must be (bound). (repair)."."""

from __future__ import annotations

import contextlib
import math
import numbers
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from dptoolkit.errors import InvalidValue, MissingDependency


def invalid(name: str, value: Any, bound: str, repair: str = "") -> InvalidValue:
    """The error for ``value``; the caller raises it."""
    tail = f" {repair}" if repair else ""
    return InvalidValue(f"{name}={value!r}: must be {bound}.{tail}")


def missing(package: str, extra: str, purpose: str) -> MissingDependency:
    """The error for a package that is not installed; the caller raises it. ``extra`` is "" for the plain install."""
    target = f"'dptoolkit[{extra}]'" if extra else "dptoolkit"
    return MissingDependency(
        f"{package} is not installed: it is needed {purpose}. Install it with: pip install {target}"
    )


_unheard: ContextVar[tuple[type[Warning], ...]] = ContextVar("_unheard", default=())


@contextlib.contextmanager
def unheard(*categories: type[Warning]) -> Iterator[None]:
    """Within the block, ``warn`` is silent about these categories in this thread, by default about all.

    Python's own filters belong to all threads: fits in two of them could leave a filter behind that hides every
    warning of the program from then on.
    """
    token = _unheard.set((*_unheard.get(), *(categories or (Warning,))))
    try:
        yield
    finally:
        _unheard.reset(token)


def warn(message: str, category: type[Warning]) -> None:
    """Warn of the line of the caller's own program that led here, not of a line of ours or of scikit-learn's."""
    if issubclass(category, _unheard.get()):
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _package(frame) in ("dptoolkit", "sklearn", "joblib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def real(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
    repair: str = "",
) -> float:
    """``value`` as a float inside the interval; infinite only where the bound is infinite and closed."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise invalid(name, value, f"a real number {_interval(low, high, open_low, open_high)}".rstrip(), repair)
    number = float(value)
    below = number <= low if open_low else number < low
    above = number >= high if open_high else number > high
    if math.isnan(number) or below or above:
        raise invalid(name, value, _interval(low, high, open_low, open_high) or "a number", repair)
    return number


def positive(name: str, value: Any, repair: str = "") -> float:
    """A finite number > 0."""
    return real(name, value, low=0.0, high=math.inf, open_low=True, open_high=True, repair=repair)


# The range of public bounds, sensitivities and steps. Doubles range from about 1e-308 to 1e308: a product of two such
# numbers, which is the most that solvers compute before noise is added, neither over- nor underflows.
SMALLEST, LARGEST = 1e-140, 1e140


def magnitude(name: str, value: Any, repair: str = "") -> float:
    """A number from SMALLEST to LARGEST: a public bound, a sensitivity or a step, whose products are exact enough."""
    return real(name, value, low=SMALLEST, high=LARGEST, repair=repair or "Rescale the data or the labels.")


def noise_scale(name: str, value: Any) -> float:
    """The scale of noise: 0 for none, or far enough from the smallest doubles that its draws are not rounded away."""
    number = nonnegative(name, value)
    if 0 < number < SMALLEST * 1e-20:
        raise invalid(name, value, f"0 or >= {SMALLEST * 1e-20:g}", "Rescale the query.")
    return number


def nonnegative(name: str, value: Any, repair: str = "") -> float:
    """A number >= 0; infinity is allowed."""
    return real(name, value, low=0.0, repair=repair)


def probability(name: str, value: Any, repair: str = "") -> float:
    """A number in [0, 1]."""
    return real(name, value, low=0.0, high=1.0, repair=repair)


def delta_value(value: Any, name: str = "delta") -> float:
    """A delta in [0, 1): at 1 the guarantee says nothing."""
    return real(
        name,
        value,
        low=0.0,
        high=1.0,
        open_high=True,
        repair="Choose it well below 1/n, for example 1e-6.",
    )


def whole(name: str, value: Any, *, low: int = 0, repair: str = "") -> int:
    """An integer >= low; floats with an integral value are refused, as they hide rounding."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise invalid(name, value, f"an integer >= {low}", repair)
    if int(value) < low:
        raise invalid(name, value, f">= {low}", repair)
    return int(value)


def one_of(name: str, value: Any, choices: tuple[str, ...], repair: str = "") -> str:
    """One of a few strings."""
    if value not in choices:
        raise invalid(name, value, "one of " + ", ".join(repr(c) for c in choices), repair)
    return str(value)


def flag(name: str, value: Any, repair: str = "") -> bool:
    """True or False: a text or a number is refused, as "no" and "False" would count as true."""
    # NumPy's own are told by name: the command line must not load NumPy to check a flag.
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
        raise invalid(name, value, "True or False", repair)
    return bool(value)


def _interval(low: float, high: float, open_low: bool, open_high: bool) -> str:
    lower = "" if low == -math.inf else f"{'>' if open_low else '>='} {low:g}"
    if high == math.inf:
        upper = "finite" if open_high else ""
    else:
        upper = f"{'<' if open_high else '<='} {high:g}"
    return " and ".join(part for part in (lower, upper) if part)
