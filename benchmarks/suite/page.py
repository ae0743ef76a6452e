"""docs/performance.md and its plot, from the rows of one saved run and from nothing else."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.suite import peers
from benchmarks.suite.growth import AXES, exponent

Row = dict[str, Any]
ROOT = Path(__file__).parents[2]
SAVED = ROOT / "benchmarks" / "results" / "suite.json"
PAGE, PLOT = ROOT / "docs" / "performance.md", ROOT / "docs" / "performance.png"
_HEADS = {"n": "n", "d": "d", "nonzeros": "entries per row", "steps": "steps"}


# --- saved runs ---------------------------------------------------------------------------------------


def about(real: bool, quick: bool, seconds: float) -> Row:
    """Command, machine and versions of a run."""
    options = [*(["--data FOLDER"] if real else []), *(["--quick"] if quick else []), "--save"]
    packages = ("numpy", "scipy", "numba", "llvmlite")
    versions = {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}
    return {
        "command": " ".join(["python -m benchmarks", *options]), "machine": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": [round(one, 1) for one in os.getloadavg()] if hasattr(os, "getloadavg") else [],
        "versions": versions, "peers": peers.installed(), "minutes": round(seconds / 60, 1),
    }  # fmt: skip


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {platform.system()}"


def save(facts: Row, rows: Sequence[Row], path: Path = SAVED) -> None:
    """Keep a run: numbers with five digits, one row per line."""
    lines = ",\n".join(json.dumps(_rounded(row)) for row in rows)
    path.write_text(f'{{"about": {json.dumps(facts)},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return {key: _rounded(one) for key, one in value.items()} if isinstance(value, dict) else value


def _read(path: Path = SAVED) -> tuple[Row, list[Row]]:
    record = json.loads(path.read_text(encoding="utf-8"))
    return record["about"], record["rows"]


def write() -> None:
    """The page and its plot from the saved run."""
    facts, rows = _read()
    PAGE.write_text(render(facts, rows), encoding="utf-8")
    plot([row for row in rows if row["section"] == "growth"])


def rendered() -> str:
    """The page that the saved run gives."""
    return render(*_read())


# --- the page -----------------------------------------------------------------------------------------

_TOP = """# Performance

Run time and memory of private fits, compared with plain NumPy loops, other packages and theoretical minima. All
numbers are from one run of `{command}`, saved in `benchmarks/results/suite.json`. `python -m benchmarks --page` writes
this page from that file. {data}{extent}

Machine: {machine}, {cores} cores, load {load} at the end of {minutes} minutes. {versions}. Peers: {peers}.

How to read it:

- Times are processor times on one core. The methods are timed alternately, after one untimed run of each. A ratio
  compares the best time of each method; the range over the rounds is in brackets.
- *Whole* is a call of the solver as a user writes it, including validation, clipping, transposing, and the accounting
  of a new budget. *Iterations* is the same fit on prepared data. *Plain* is a good loop in NumPy and SciPy, with
  incremental margins if that helps. The times of plain loops do not include calibration, validation and transposing. Of
  long plain loops only some steps are timed. Plain minimisers stop at the gradient norm that our certificate proves.
- *Error* is the share of wrong labels on test rows. If it is close to the error of always predicting the more frequent
  label, the model is useless, so ignore its time.
- *Passes* over X and *draws* of 64-bit random numbers are counted, not timed, and tests check the counts
  (`tests/test_counted_work.py`). Products of dense arrays are not counted. *Floor* is an estimate of the least possible
  time: passes times a pass over the memory of X, plus draws times the time of a normal. If X fits into the cache, the
  time of a pass is mostly overhead of the call, and a fit can be below the floor. No kernel is compiled during a
  counted fit, unless noted.
"""


def render(facts: Row, rows: Sequence[Row]) -> str:
    """The whole page."""
    part = {name: [row for row in rows if row["section"] == name] for name in {row["section"] for row in rows}}
    real, quick = "FOLDER" in facts["command"], "--quick" in facts["command"]
    top = _TOP.format(
        command=facts["command"], machine=facts["machine"], cores=facts["cores"],
        load=" ".join(map(str, facts["load"])), minutes=facts["minutes"],
        data="Data with the name of a real set are real; the others are synthetic." if real
        else "All rows are synthetic; a name that ends in -like has the shape of that set.",
        extent=" This was a quick run, with an eighth of the rows and one round of each method." if quick else "",
        versions=", ".join(f"{name} {version}" for name, version in facts["versions"].items()).capitalize(),
        peers=", ".join(f"{name} {version}" for name, version in facts["peers"].items()),
    )  # fmt: skip
    writers = (
        ("fits", lambda own: _slower(own)), ("fits", lambda own: _fits(own, part.get("floors", []))),
        ("floors", _floors), ("two cores", _two_cores), ("many", _many), ("models", _models),
        ("accounting", _accounting), ("memory", _memory), ("growth", _growth),
    )  # fmt: skip
    if facts["failed"]:
        top += f"\nThese fits did not finish: {', '.join(facts['failed'])}.\n"
    return "\n".join([top, *(writer(part[name]) for name, writer in writers if name in part)])


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines)) + "\n"


def _ms(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(row: Row, ours: str, theirs: str = "plain") -> float:
    """The best of theirs over the best of ours."""
    return float(min(row[theirs]) / min(row[ours]))


def _ratio(row: Row, ours: str, theirs: str = "plain") -> str:
    each = [b / a for a, b in zip(row[ours], row[theirs], strict=True)]
    return f"{ratio(row, ours, theirs):.3g} ({min(each):.3g}-{max(each):.3g})"


def slower(rows: Sequence[Row], ours: str) -> list[Row]:
    """The fits that take longer than the plain loop."""
    return [row for row in rows if ratio(row, ours) < 1]


def _added(seconds: float) -> str:
    """What a whole call adds; less than nothing is the spread of two measurements."""
    return _ms(seconds) if seconds >= 0 else "within the spread"


def _slower(rows: list[Row]) -> str:
    lines = [
        [row["shape"], row["solver"], f"{row['epsilon']:g}", *(f"{ratio(row, ours):.3g}" for ours in
         ("iterations", "whole")), _added(min(row["whole"]) - min(row["iterations"]))]
        for row in rows if row in slower(rows, "iterations") or row in slower(rows, "whole")
    ]  # fmt: skip
    text = (
        "## Slower than plain NumPy\n\n"
        f"Of {len(rows)} fits, {len(slower(rows, 'iterations'))} have slower iterations than the plain loop, and "
        f"{len(slower(rows, 'whole'))} whole calls take longer than the plain loop, whose time does not include "
        "planning and validation. All of them are listed here. The ratio is plain time over our time; the last column "
        "is the time that a whole call adds.\n"
    )
    head = ["data", "solver", "epsilon", "iterations", "whole", "besides the iterations, ms"]
    return text + ("\n" + _table(head, lines) if lines else "\nThere are none.\n")


def _fits(rows: list[Row], floors: list[Row]) -> str:
    parts = ["## Fits\n"]
    for shape in dict.fromkeys(row["shape"] for row in rows):
        own = [row for row in rows if row["shape"] == shape]
        floor = next((one for one in floors if one["shape"] == shape), None)
        first = own[0]
        parts.append(
            f"### {shape}\n\n{first['n']:,} rows, {first['d']:,} features, {first['entries']:,} entries. Always "
            f"predicting the more frequent label has an error of {first['majority']:.3f}.\n"
        )
        parts.append(_table(
            ["solver", "epsilon", "error", "passes", "draws", "whole, ms", "iterations, ms", "plain, ms",
             "plain / whole", "plain / iterations", "iterations / floor"],
            [_fit_line(row, floor) for row in own],
        ))  # fmt: skip
        compiled = [row["solver"] for row in own if row["compilations"]]
        if compiled:
            parts.append(f"Kernels were compiled during: {', '.join(compiled)}.\n")
    return "\n".join(parts)


def _fit_line(row: Row, floor: Row | None) -> list[str]:
    least = 0.0 if floor is None else row["passes"] * floor["memory"] + row["draws"] * floor["normals"] / floor["d"]
    over = f"{min(row['iterations']) / least:.3g}" if least > 0 and row["passes"] > 0 else "-"
    return [
        row["solver"], f"{row['epsilon']:g}", f"{row['error']:.3f}", f"{row['passes']:.3g}" if row["passes"] else "-",
        f"{row['draws']:,}", *(_ms(min(row[name])) for name in ("whole", "iterations", "plain")),
        _ratio(row, "whole"), _ratio(row, "iterations"), over,
    ]  # fmt: skip


def _floors(rows: list[Row]) -> str:
    names = ("memory", "product", "normals", "gumbels", "reads")
    lines = [[row["shape"], f"{row['size'] / 1e6:,.1f}", *(f"{1e3 * row[name]:.3g}" for name in names)] for row in rows]
    head = ["data", "X, MB", "memory of X, ms", "X^T r, ms", "d normals, ms", "2d Gumbels, ms", "100,000 random reads"]
    return "## Theoretical minima\n\nTimes of the operations that every method needs.\n\n" + _table(head, lines)


def _two_cores(rows: list[Row]) -> str:
    lines = [
        [row["shape"], row["solver"], _ms(min(row["ours"])), _ms(min(row["two threads"])),
         _ratio(row, "ours", "two threads")] for row in rows
    ]  # fmt: skip
    text = "## Two cores\n\nWall-clock time of 50 iterations; the plain loop divides its products and its "
    text += "normals between two threads.\n\n"
    return text + _table(["data", "solver", "ours, ms", "plain on two threads, ms", "plain / ours"], lines)


def _many(rows: list[Row]) -> str:
    lines = [
        [row["case"], f"{row['passes_alone']:,.0f}", f"{row['passes_together']:,.0f}", _ms(min(row["alone"])),
         _ms(min(row["together"])), _ratio(row, "together", "alone"), *_without_normals(row)] for row in rows
    ]  # fmt: skip
    text = (
        f"## Many fits at once\n\n`solvers.fit_many` for {rows[0]['runs']} seeds on {rows[0]['shape']}, compared with "
        "as many whole calls one by one. Every fit of a thresholding solver draws its own d normals per step, which "
        "cannot be shared; the last column is the ratio without the time of the normals. Frank-Wolfe reads a small "
        "part of X per step, and shares the prepared data and its first pass.\n\n"
    )
    head = ["fits", "passes alone", "passes together", "alone, ms", "together, ms", "throughput", "normals, ms",
            "without the normals"]  # fmt: skip
    return text + _table(head, lines)


def _without_normals(row: Row) -> list[str]:
    """The time of the normals, and the ratio of what is left."""
    normals = row["normals"]
    if normals is None:
        return ["-", "-"]
    return [_ms(normals), f"{(min(row['alone']) - normals) / (min(row['together']) - normals):.3g}"]


def _models(rows: list[Row]) -> str:
    lines = [
        [row["shape"], row["model"], _ms(min(row["cpu"])), f"{row['error']:.3f}", f"{row['majority']:.3f}",
         f"{row['features']:,}"] for row in rows
    ]  # fmt: skip
    text = "## Models of other packages\n\nWhole calls on the same rows; our noise was already calibrated. "
    text += "diffprivlib accepts dense rows only.\n\n"
    return text + _table(["data", "model", "time, ms", "error", "frequent label", "features"], lines)


def _accounting(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        own = next(one for one in rows if one["package"] == "dptoolkit" and one["rate"] == row["rate"])
        lines.append([f"{row['rate']:g}", f"{row['steps']:,}", row["package"], f"{row['noise']:.5f}",
                      _ms(min(row["cpu"])), f"{min(row['cpu']) / min(own['cpu']):.3g}"])  # fmt: skip
    text = "## Calibration\n\nThe noise multiplier of Poisson-sampled Gaussian steps for (1, 1e-5).\n\n"
    return text + _table(["rate", "steps", "package", "noise multiplier", "time, ms", "over ours"], lines)


def _memory(rows: list[Row]) -> str:
    lines = [
        [row["solver"], f"{row['extra'] / 1e6:,.1f}", f"{row['extra'] / row['size']:.3g}"]
        if "extra" in row
        else [row["solver"], "failed", row["failed"]]
        for row in rows
    ]
    text = (
        f"## Peak memory\n\nPeak memory of a fit on {rows[0]['shape']} in addition to X itself, which takes "
        f"{rows[0]['size'] / 1e6:,.1f} MB, in a process that has made a small fit before.\n\n"
    )
    return text + _table(["solver", "MB", "over the size of X"], lines)


def _growth(rows: list[Row]) -> str:
    lines = []
    for name in dict.fromkeys(row["solver"] for row in rows):
        cells = [name]
        for axis in AXES:
            own = [row for row in rows if (row["solver"], row["axis"]) == (name, axis)]
            sizes = [row["size"] for row in own]
            exponents = (exponent(sizes, [row[what] for row in own]) for what in ("cpu", "entries", "draws"))
            cells.append(" / ".join(f"{round(value, 2) + 0.0:.2f}" for value in exponents) if own else "-")
        lines.append(cells)
    first = {axis: min(row["size"] for row in rows if row["axis"] == axis) for axis in AXES}
    last = {axis: max(row["size"] for row in rows if row["axis"] == axis) for axis in AXES}
    ranges = ", ".join(f"{_HEADS[axis]} from {first[axis]:,} to {last[axis]:,}" for axis in AXES)
    text = (
        f"## Growth\n\nExponents of processor time / entries of X read / random numbers drawn: {ranges}. One of "
        "them varies at a time, the others have their first value, and epsilon is 100. Frank-Wolfe makes ten times as "
        "many steps, dp_sgd_ht five times as many.\n\n"
    )
    picture = "\n![Time of the iterations over n, d, entries per row and steps](performance.png)\n"
    return text + _table(["solver", *(_HEADS[axis] for axis in AXES)], lines) + picture


def plot(rows: Sequence[Row]) -> None:
    """Time over size, one panel per axis."""
    from dptoolkit import plots

    names = list(dict.fromkeys(row["solver"] for row in rows))
    figure, panels = plots.grid(2, 2, "Growth of the iterations")
    # The longest name of a solver needs more room than the margins of other figures have.
    figure.subplots_adjust(right=0.83, wspace=0.7)
    for axes, axis in zip(panels, AXES, strict=True):
        own = [row for row in rows if row["axis"] == axis]
        sizes = sorted({row["size"] for row in own})
        series = {
            name: [row["cpu"] for row in sorted(own, key=lambda row: row["size"]) if row["solver"] == name]
            for name in names
        }
        plots.describe(axes, f"In {_HEADS[axis]}", "processor time of a fit", _HEADS[axis], "seconds")
        curves = {name: values for name, values in series.items() if values}
        plots.lines(axes, sizes, curves, {name: k for k, name in enumerate(names)})
    plots.save(figure, PLOT)
