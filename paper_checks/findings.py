"""What a check of a statement, a table or a figure finds, and the kinds of checks that most items share.

Each kind is one function: recompute printed numbers, hold an upper bound against true values, ask whether a condition
holds at the paper's sizes, compare printed orders of growth, compare the rows of a table, show all readings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paper_checks.charts import Chart
from paper_checks.family import RULE, Compared, decide, welch
from paper_checks.tables import Table

Number = float | int | str
# What the two values of a row are, unless the kind of check says otherwise.
MARKS = ("published", "true or measured")


@dataclass(frozen=True)
class Comparison:
    """One published value beside the computed one, and whether they agree."""

    label: str
    published: Number
    computed: Number
    agrees: bool


@dataclass(frozen=True)
class Finding:
    """The verdict on one item.

    Attributes
    ----------
    verdict : str
        A word of ``verdict.VERDICTS``.
    computed : str
        The true or measured value in one line.
    rows : tuple of Comparison
        The numbers that the verdict rests on.
    detail : str
        What a reader should know beside the numbers.
    marks : tuple of str
        What the two values of each row are, in tables and pictures.
    charts : tuple of Chart
        The curves of our runs that belong to the item.
    """

    verdict: str
    computed: str
    rows: tuple[Comparison, ...] = ()
    detail: str = ""
    marks: tuple[str, str] = MARKS
    charts: tuple[Chart, ...] = ()


def recomputed(
    values: Iterable[tuple[str, float, float]], tolerance: float, otherwise: str = "inconsistent", detail: str = ""
) -> Finding:
    """Printed numbers (label, printed, computed), each within an absolute ``tolerance``: met, or ``otherwise``."""
    rows = tuple(
        Comparison(label, printed, true, abs(printed - true) <= tolerance + 1e-12) for label, printed, true in values
    )
    agree = sum(row.agrees for row in rows)
    words = f"{agree} of {len(rows)} printed numbers agree within {tolerance:g}"
    return Finding("met" if agree == len(rows) else otherwise, words, rows, detail)


def upper_bound(values: Iterable[tuple[str, float, float]], detail: str = "", slack: float = 1e-9) -> Finding:
    """A printed upper bound (label, bound, true value): bound met if nowhere exceeded, else bound broken."""
    rows = tuple(Comparison(label, bound, true, true <= bound + slack * abs(bound)) for label, bound, true in values)
    ratios = [float(row.computed) / float(row.published) for row in rows]
    words = f"true value / bound: {short(min(ratios))} to {short(max(ratios))} at {len(rows)} points"
    if len(rows) == 1:
        words = f"{short(rows[0].computed)} against the printed {short(rows[0].published)}"
    verdict = "bound met" if all(row.agrees for row in rows) else "bound broken"
    return Finding(verdict, words, rows, detail, ("bound", "true value"))


def conditions(values: Iterable[tuple[str, Number, Number, bool]], computed: str, detail: str = "") -> Finding:
    """A theorem's condition at the paper's sizes (label, needed, there, holds): met, or condition not met."""
    rows = tuple(Comparison(*value) for value in values)
    verdict = "met" if all(row.agrees for row in rows) else "condition not met"
    return Finding(verdict, computed, rows, detail, ("needed", "there"))


def readings(values: Iterable[tuple[str, Number, Number, bool]], computed: str, none: str, detail: str = "") -> Finding:
    """One claim under several readings (label, published, computed, true): met, ``none`` of them, or depends."""
    rows = tuple(Comparison(*value) for value in values)
    hold = sum(row.agrees for row in rows)
    verdict = "met" if hold == len(rows) else none if hold == 0 else "depends on reading"
    return Finding(verdict, computed, rows, detail)


def beside_wording(
    values: Iterable[tuple[str, Number, Number, bool]], fact: str, computed: str, detail: str = ""
) -> Finding:
    """Computed readings beside one that is true by its words, which nothing computes: met, or depends on reading."""
    rows = (*(Comparison(*value) for value in values), Comparison(fact, "true by its words", "not computed", True))
    return Finding("met" if all(row.agrees for row in rows) else "depends on reading", computed, rows, detail)


# How symbols that TOML keys cannot hold are shown.
_SYMBOLS = {"n_eps": "(n epsilon)", "Kt": "K~", "s": "s*", "log_d": "(log d)"}

# An order of growth: the exponent of each symbol, as in {"n": -1, "s": 1.5}. Logarithms are symbols of their own.
Order = Mapping[str, float]


def quotient(first: Order, second: Order) -> dict[str, float]:
    """The order of growth of a ratio."""
    symbols = {**first, **second}
    powers = {symbol: first.get(symbol, 0) - second.get(symbol, 0) for symbol in symbols}
    return {symbol: power for symbol, power in powers.items() if power}


def product(*orders: Order) -> dict[str, float]:
    """The order of growth of a product."""
    total: dict[str, float] = {}
    for order in orders:
        total = quotient(total, {symbol: -power for symbol, power in order.items()})
    return total


def same_order(
    label: str, printed: Order, derived: Order, otherwise: str = "inconsistent", detail: str = ""
) -> Finding:
    """A printed order of growth beside the derived one: met, or ``otherwise``."""
    agrees = not quotient(printed, derived)
    row = Comparison(label, order_text(printed), order_text(derived), agrees)
    return Finding("met" if agrees else otherwise, f"derived: {order_text(derived)}", (row,), detail)


def order_text(order: Order) -> str:
    """The order of growth as a formula."""
    names = {symbol: _SYMBOLS.get(symbol, symbol) for symbol in sorted(order)}
    return " ".join(f"{name}^{order[key]:g}" if order[key] != 1 else name for key, name in names.items()) or "1"


def value_of(order: Order, **sizes: float) -> float:
    """The order of growth at given sizes, with constant 1."""
    return math.prod(sizes[symbol] ** power for symbol, power in order.items())


def lowest(table: Table, method: str, rivals: Iterable[str], detail: str = "") -> Finding:
    """Whether a method has the lowest printed mean in every column: order kept, or inconsistent with its own table.

    This is arithmetic on what is printed, and says nothing about chance: ``established`` does.
    """
    others = list(rivals)
    rows = []
    for number, name in enumerate(table.columns):
        cells = table.column(number)
        best = min(others, key=lambda rival: cells[rival])
        rows.append(
            Comparison(f"{name}: {method} against {best}", cells[method], cells[best], cells[method] < cells[best])
        )
    kept = sum(row.agrees for row in rows)
    words = f"lowest printed mean in {kept} of {len(rows)} columns"
    verdict = "order kept" if kept == len(rows) else "inconsistent"
    return Finding(verdict, words, tuple(rows), detail, ("its printed mean", "lowest of the others"))


def established(
    table: Table, method: str, rival: str, trials: int, deviations_are: str = "deviations"
) -> list[tuple[str, Compared]]:
    """For each column the label and the unpaired Welch test of whether ``method`` is lower than ``rival``.

    If ``deviations_are`` "standard errors", they are multiplied by the root of ``trials`` first.
    """
    scale = math.sqrt(trials) if deviations_are == "standard errors" else 1.0
    found = []
    for column, name in enumerate(table.columns):
        first, second = ((table.mean[row][column], scale * table.deviation[row][column]) for row in (method, rival))
        label = f"{name}, {deviations_are}: {method} {first[0]:g}, {rival} {second[0]:g}"
        found.append((label, welch(first, second, trials)))
    return found


def order_established(tests: Sequence[tuple[str, Compared]], detail: str = "", parts: int = 1) -> Finding:
    """Order kept if it is established that most columns have it, else tie: the printed numbers alone do not decide."""
    most = len(tests) // 2 + 1
    found = decide([test for _, test in tests], most, parts)
    rows = tuple(Comparison(label, "lower", f"{'established' if yes else 'not established'}, {test.effect}", yes)
                 for (label, test), yes in zip(tests, found.lower, strict=True))  # fmt: skip
    words = (f"printed means and deviations alone establish the order in {sum(found.lower)} of {len(rows)} columns, "
             f"and {'that' if found.kept else 'not that'} it holds in most ({RULE})")  # fmt: skip
    return Finding("order kept" if found.kept else "tie", words, rows, detail)


def short(value: Number) -> str:
    """A number in a few digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e6):
        return f"{int(value):,}"
    return f"{value:.4g}"
