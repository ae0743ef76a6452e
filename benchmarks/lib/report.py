"""The tables and the picture of docs/frontier.md, from the saved results of benchmarks/league.py and its relatives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import frontier, large_tables, league
from benchmarks.lib import number_report
from benchmarks.lib.contenders import OPEN, PRIVATE, ZERO_OUT, takes
from benchmarks.lib.intervals import interval, standard_error
from benchmarks.lib.tables import CHOSEN_ON, JUDGED_ON, WORDS
from dptoolkit import plots

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PLOT = DOCS / "frontier.md", DOCS / "frontier.png"
BEGIN, END = "<!-- begin of the tables -->\n", "<!-- end of the tables -->\n"
NAMES = (*JUDGED_ON, *CHOSEN_ON)
METHODS = (*PRIVATE, *OPEN)
PEER = "diffprivlib"
# From so many rows on, dptoolkit should be at least as good as diffprivlib.
MANY = 5_000
# Sets of text, of which the page shows the rule's errors.
TEXT = ("rcv1_sub", "farm-ads")
# Why dptoolkit is worse than diffprivlib where it is; a test asks for a reason for each.
REASONS: dict[str, str] = {
    "missing cells": (
        "with 50,000 rows at epsilon 4 there is little noise, and what is left is the price of ranks: the columns are "
        "normal, their units say more than their order, and logistic regression on exact ranks has 0.2685 there."
    ),
}
Result = dict[str, Any]


def found(name: str, rows: int | None, epsilon: float | None, method: str) -> Result | None:
    """A saved result; where a table has no more than ``rows`` training rows, that of all rows."""
    results = {tuple(one[key] for key in league.KEY): one for one in league.read()}
    own = results.get((name, rows, epsilon, method))
    every = results.get((name, None, epsilon, method))
    return every if own is None and every is not None and rows is not None and every["n"] <= rows else own


def mean(one: Result) -> float:
    """The mean error over the seeds."""
    return float(np.mean(one["errors"]))


def spread(one: Result) -> float:
    """The standard error; 0 for one seed."""
    return standard_error(one["errors"])


def cell(one: Result | None) -> str:
    """Mean error and its standard error, the latter only of several seeds."""
    return "" if one is None else interval(one["errors"])


# --- the tables ----------------------------------------------------------------------------------------------


def tables() -> str:
    """All tables of the page as Markdown."""
    parts = [
        "## All training rows at epsilon 1", _methods(None, 1.0),
        "## 5,000 training rows at epsilon 1", _methods(5_000, 1.0),
        "## dptoolkit beside diffprivlib, every cell with 5,000 rows or more", _judgement(),
        "## Cells in which another private method is at least level", _rivals(),
        "## Other numbers of rows at epsilon 1", _methods(50_000, 1.0), _methods(1_000, 1.0),
        *(part for epsilon in league.BUDGETS[1:] for part in _budget(epsilon)),
        number_report.section(),
        "## Processor seconds of a fit at epsilon 1, all training rows", _seconds(),
        "## Time and memory on large tables", large(),
        "## Text, without bounds of columns", _text(),
        "## Cells that were not run", _not_run(),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _methods(rows: int | None, epsilon: float) -> str:
    lines, shown = [], []
    for name in NAMES:
        own = [found(name, rows, epsilon if method in PRIVATE else None, method) for method in METHODS]
        first = next((one for one in own if one is not None and rows in (None, one["n"])), None)
        if first is not None:
            lines.append([_named(name), f"{first['n']:,} x {first['d']}", f"{first['plain']:.4f}"])
            shown.append(own)
    used = [k for k in range(len(METHODS)) if any(own[k] is not None for own in shown)]
    for line, own in zip(lines, shown, strict=True):
        line.extend(cell(own[k]) for k in used)
    if not lines:
        return ""
    heads = [METHODS[k] + ("" if METHODS[k] in PRIVATE else ", not private") for k in used]
    return markdown(["table", "rows x columns", "most frequent", *heads], lines)


def _budget(epsilon: float) -> tuple[str, ...]:
    pieces = []
    for rows, words in ((5_000, "5,000 training rows"), (None, "all training rows")):
        lines = [
            [_named(name), *(cell(found(name, rows, epsilon, method)) for method in PRIVATE)]
            for name in NAMES
            if any(found(name, rows, epsilon, method) is not None for method in PRIVATE)
        ]
        if lines:
            used = [0, *(k for k in range(1, len(lines[0])) if any(line[k] for line in lines))]
            heads = ["table", *PRIVATE]
            pieces += [
                f"## Epsilon {epsilon:g}, {words}",
                markdown([heads[k] for k in used], [[line[k] for k in used] for line in lines]),
            ]
    return tuple(pieces)


def judgement() -> list[tuple[str, int, float, Result, Result, bool]]:
    """(table, rows, epsilon, ours, the peer's, whether ours is at least as good within a standard error)."""
    out = []
    for one in league.read():
        if one["method"] != "dptoolkit" or one["n"] < MANY:
            continue
        peer = found(one["table"], one["rows"], one["epsilon"], PEER)
        if peer is not None:
            error = float(np.hypot(spread(one), spread(peer)))
            is_fine = mean(one) <= mean(peer) + error
            out.append((one["table"], one["n"], one["epsilon"], one, peer, is_fine))
    return sorted(out, key=lambda entry: (NAMES.index(entry[0]), entry[1], entry[2]))


def failures() -> set[str]:
    """The tables on which dptoolkit is worse than diffprivlib in some cell."""
    return {entry[0] for entry in judgement() if not entry[-1]}


def _judgement() -> str:
    cells: dict[tuple[str, int], dict[float, str]] = {}
    for name, n, epsilon, ours, peer, is_fine in judgement():
        words = f"{mean(ours):.4f} / {mean(peer):.4f}"
        cells.setdefault((name, n), {})[epsilon] = words if is_fine else f"**{words}**"
    budgets = sorted(league.BUDGETS)
    lines = [[_named(name), f"{n:,}", *(own.get(epsilon, "") for epsilon in budgets)]
             for (name, n), own in cells.items()]  # fmt: skip
    reasons = "\n".join(f"- **{name}**: {REASONS[name]}" for name in NAMES if name in failures() and name in REASONS)
    return "\n\n".join([
        f"Mean errors, dptoolkit / {PEER}; bold where dptoolkit is worse by more than a standard error.",
        markdown(["table", "rows", *(f"epsilon {epsilon:g}" for epsilon in budgets)], lines),
        reasons or f"There is no cell in which it is worse, of {len(judgement())}.",
    ])  # fmt: skip


def rivals() -> list[tuple[str, Result, Result, bool]]:
    """(method, its result, ours, whether it is better by more than a standard error) of all other private methods.

    Cells in which ours is better by more than a standard error are left out.
    """
    out = []
    for one in league.read():
        if one["method"] in PRIVATE and one["method"] not in ("dptoolkit", ZERO_OUT):
            own = found(one["table"], one["rows"], one["epsilon"], "dptoolkit")
            error = float("inf") if own is None else float(np.hypot(spread(one), spread(own)))
            if own is not None and mean(one) <= mean(own) + error:
                out.append((one["method"], one, own, mean(one) + error < mean(own)))
    return sorted(out, key=lambda entry: (METHODS.index(entry[0]), NAMES.index(entry[1]["table"]), entry[1]["n"]))


def _rivals() -> str:
    lines = []
    for method, one, own, is_better in rivals():
        near = cell(found(one["table"], one["rows"], one["epsilon"], ZERO_OUT)) if method != PEER else ""
        about = [method, _named(one["table"]), f"{one['n']:,}", f"{one['epsilon']:g}"]
        lines.append([*about, cell(own), cell(one), "better" if is_better else "level", near])
    heads = ["method", "table", "rows", "epsilon", "dptoolkit", "the method", "the method is", ZERO_OUT]
    return markdown(heads, lines)


def _seconds() -> str:
    lines = []
    for name in NAMES:
        own = [found(name, None, 1.0 if method in PRIVATE else None, method) for method in METHODS]
        if own[0] is not None:
            lines.append(
                [_named(name), f"{own[0]['n']:,}", *("" if one is None else f"{one['seconds']:.2f}" for one in own)]
            )
    return markdown(["table", "rows", *METHODS], lines)


def large() -> str:
    """Time and memory beside scikit-learn and diffprivlib; times are compared within one run of the benchmark only."""
    results = json.loads(large_tables.RESULTS.read_text())
    base = {_task(one): one["seconds"] for one in results if "not private" in one["method"]}
    lines = [
        [one["set"].replace("_", "-"), f"{one['n']:,} x {one['d']}", str(one["classes"]),
         one["method"] + ("" if _task(one) in base else " (another run)"), f"{one['error']:.4f}",
         f"{one['seconds']:.1f}", f"{one['seconds'] / base[_task(one)]:.2f}" if _task(one) in base else "",
         f"{one['megabytes']:,}", f"{one['megabytes of X']:,}"]
        for one in results
    ]  # fmt: skip
    heads = ["table", "rows x columns", "classes", "method", "error", "CPU s", "over scikit-learn", "MB in the fit"]
    return markdown([*heads, "MB of X"], lines)


def _task(one: Result) -> tuple[Any, ...]:
    return one["set"], one["n"], one["d"], one["classes"], one.get("run")


def _text() -> str:
    results = [one for one in frontier.read("whole") if one["set"] in TEXT]
    lines = [
        [one["set"], f"{one['n']:,} x {one['d']:,}", f"({one['epsilon']:g}, {one['delta']:g})", cell(one)]
        for one in results
    ]
    return markdown(["data", "rows x features", "budget", "dptoolkit"], lines)


def not_run() -> dict[tuple[str, int | None, float | None], tuple[int, int]]:
    """(cells without a result, all cells) for each (method, rows, epsilon) that lacks some.

    Cells that a method does not take, and those of more rows than a table has, are not counted.
    """
    every = {one["table"]: one for one in league.read() if one["rows"] is None}
    counts: dict[tuple[str, int | None, float | None], list[int]] = {}
    for name, rows, epsilon, method in league.cells():
        one = every[name]
        if (rows is not None and one["n"] <= rows) or not takes(method, rows or one["n"], one["d"], one["classes"]):
            continue
        count = counts.setdefault((method, rows, epsilon), [0, 0])
        count[0] += found(name, rows, epsilon, method) is None
        count[1] += 1
    return {key: (missing, total) for key, (missing, total) in counts.items() if missing}


def _not_run() -> str:
    missing = not_run()
    lines = []
    for method in METHODS:
        for rows in (1_000, 5_000, 50_000, None):
            budgets = sorted(league.BUDGETS) if method in PRIVATE else [None]
            own = [missing.get((method, rows, epsilon)) for epsilon in budgets]
            if any(own):
                counts = ["" if one is None else f"{one[0]} of {one[1]}" for one in own]
                size = "all" if rows is None else f"{rows:,}"
                lines.append([method, size, *(counts if method in PRIVATE else ["", "", "", "", *counts])])
                lines[-1] += [""] * (7 - len(lines[-1]))
    if not lines:
        return "All cells were run."
    heads = ["method", "rows", *(f"epsilon {epsilon:g}" for epsilon in sorted(league.BUDGETS)), "without privacy"]
    return "How many tables lack a result, of those that a method takes:\n\n" + markdown(heads, lines)


def _named(name: str) -> str:
    return f"{name} (chosen on)" if name in CHOSEN_ON else name


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def about() -> str:
    """What the tables are."""
    return markdown(["table", "what it is"], [[_named(name), WORDS[name]] for name in NAMES])


# --- the page ------------------------------------------------------------------------------------------------


def on_page() -> str:
    """The tables as they are on the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def whole() -> str:
    """What stands between the marks of the page."""
    return "## The tables\n\n" + about() + "\n\n" + tables()


def write() -> None:
    """Put the tables into the page and draw the picture."""
    text = PAGE.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(before + BEGIN + whole() + END + after)
    _plot()


def _plot() -> None:
    """Errors over that of the most frequent label, one line per table, one mark per method."""
    names = [name for name in NAMES if found(name, None, 1.0, "dptoolkit") is not None]
    matplotlib = plots.require()
    figure = matplotlib.figure.Figure(figsize=(9, 0.34 * len(names) + 2), dpi=120)
    axes = figure.subplots()
    for k, method in enumerate(method for method in METHODS if method != ZERO_OUT):
        points = []
        for i, name in enumerate(reversed(names)):
            one = found(name, None, 1.0 if method in PRIVATE else None, method)
            if one is not None:
                points.append((min(mean(one) / one["plain"], 1.2), i))
        if points:
            style = {"color": "#999999", "markerfacecolor": "none"} if method in OPEN else {}
            axes.plot(*zip(*points, strict=True), "os^DPX"[k], markersize=7, label=method, alpha=0.85, **style)
    rows = {name: found(name, None, 1.0, "dptoolkit") for name in names}
    axes.set_yticks(range(len(names)), [f"{name}, {rows[name]['n']:,}" for name in reversed(names)])  # type: ignore[index]
    axes.axvline(1.0, color="#7F7F7F", linewidth=1)
    axes.set_xlim(0, 1.22)
    axes.set_xlabel("test error over that of the most frequent label; larger ones at the edge")
    axes.set_title(
        "Tables with public bounds at (1, 1e-5), all training rows; grey: not private", loc="left", fontsize=11
    )
    axes.grid(axis="y", color="#E6E6E6")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=6)
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Software": None})
