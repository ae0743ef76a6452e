"""The tables and the picture of docs/frontier.md, from the saved results of benchmarks/league.py and its relatives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import frontier, large_tables, league
from benchmarks.lib.contenders import OPEN, PRIVATE
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
REASONS: dict[str, str] = {}
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
        "## Other numbers of rows at epsilon 1", _methods(50_000, 1.0), _methods(1_000, 1.0),
        *(part for epsilon in league.BUDGETS[1:] for part in _budget(epsilon)),
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
    lines = [
        [_named(name), f"{n:,}", f"{epsilon:g}", cell(ours), cell(peer), "yes" if is_fine else "**no**"]
        for name, n, epsilon, ours, peer, is_fine in judgement()
    ]
    heads = ["table", "rows", "epsilon", "dptoolkit", PEER, "at least as good, within a standard error"]
    reasons = "\n".join(f"- **{name}**: {REASONS[name]}" for name in NAMES if name in failures() and name in REASONS)
    return markdown(heads, lines) + "\n\n" + (reasons or "There is no cell in which it is worse.")


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


def not_run() -> dict[str, list[str]]:
    """The cells of ``league.cells`` without a result, by method: tables that have none, at each epsilon and size."""
    out: dict[str, list[str]] = {}
    sizes = {one["table"]: one["n"] for one in league.read() if one["rows"] is None}
    for name, rows, epsilon, method in league.cells():
        too_few = rows is not None and sizes.get(name, np.inf) <= rows
        if not too_few and found(name, rows, epsilon, method) is None:
            size = "all rows" if rows is None else f"{rows:,} rows"
            words = size if epsilon is None else f"{size} at epsilon {epsilon:g}"
            out.setdefault(method, []).append(f"{name} ({words})")
    return out


def _not_run() -> str:
    lines = [f"- **{method}**: {', '.join(cells)}." for method, cells in not_run().items()]
    return "\n".join(lines) or "All cells were run."


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
    for k, method in enumerate(METHODS):
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
