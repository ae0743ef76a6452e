"""Numbers and tables as text. Bounds are rounded in their safe direction, so that a printed bound is still a bound."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence


class Printed:
    """Something that a notebook shows as its text, with the text's own spacing."""

    def _repr_html_(self) -> str:
        return as_html(str(self))


def as_html(text: str) -> str:
    """Text for a notebook. It is escaped: labels and names of columns come from users and files."""
    return f"<pre>{html.escape(text)}</pre>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain text columns, the first one left-aligned and a rule under the header."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def number(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def at_most(value: float) -> str:
    """Four significant digits, rounded up: a printed bound is still a bound."""
    text = f"{value:.4g}"
    if not math.isfinite(value) or float(text) >= value:
        return text
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{float(text) + unit:.4g}"


def delta_text(delta: float) -> str:
    """A delta in few digits if that number is not below it, else in all digits: a printed guarantee must be true."""
    text = f"{delta:g}"
    return text if float(text) >= delta else repr(float(delta))


def at_least(value: float) -> str:
    """Four significant digits, rounded down: for lower bounds."""
    text = f"{value:.4g}"
    if not math.isfinite(value) or float(text) <= value:
        return text
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{float(text) - unit:.4g}"
