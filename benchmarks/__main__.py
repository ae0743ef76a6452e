"""The suite: times of solvers beside plain NumPy, peers and floors, with counted work, memory and growth.

    python -m benchmarks                           # about 15 minutes on 2 quiet cores; synthetic rows
    python -m benchmarks --data FOLDER --save      # the real sets; writes benchmarks/results/ and docs/performance.md
    python -m benchmarks --quick                   # about a minute: an eighth of the rows, few sections
    python -m benchmarks --page                    # docs/performance.md from the saved run alone

Every section runs in a process of its own on the cores that it is about. The single benchmarks (benchmarks.accounting,
.solvers, .stochastic, .audit, .frank_wolfe, ...) say more about one subject each and are run by name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Sections, their shapes, and the cores that they have.
SECTIONS: tuple[tuple[str, tuple[str | None, ...], int], ...] = (
    ("floors", ("rcv1_sub", "a9a", "mnist", "small", "wide", "long"), 1),
    ("fits", ("rcv1_sub", "a9a", "mnist", "small", "wide", "long"), 1),
    ("two cores", ("rcv1_sub", "mnist"), 2),
    ("many", (None,), 1),
    ("models", (None,), 1),
    ("accounting", (None,), 1),
    ("memory", (None,), 1),
    ("growth", (None,), 1),
)
QUICK_SHAPES = ("rcv1_sub", "small", None)


def run(
    section: str, shape: str | None, cores: int, home: str | None, quick: bool
) -> tuple[list[dict[str, Any]], bool]:
    """The rows of a section, from a new process, and whether it came to its end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        command = [sys.executable, "-m", "benchmarks.suite", section, *([shape] if shape else [])]
        command += ["--cores", str(cores), "--to", str(path), *(["--quick"] if quick else [])]
        command += ["--data", home] if home else []
        code = subprocess.run(command, check=False).returncode
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines], code == 0


def jobs(quick: bool, only: Sequence[str]) -> Iterator[tuple[str, str | None, int]]:
    """(section, shape, cores) of everything that is asked for."""
    for section, names, cores in SECTIONS:
        if not only or section in only:
            yield from ((section, name, cores) for name in names if not quick or name in QUICK_SHAPES)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", metavar="FOLDER", help="folder with the real sets; default: DPTOOLKIT_DATA")
    parser.add_argument("--quick", action="store_true", help="use an eighth of the rows and few rounds")
    parser.add_argument("--only", nargs="+", default=[], metavar="SECTION", choices=[name for name, *_ in SECTIONS])
    parser.add_argument("--save", action="store_true", help="save the results and write docs/performance.md from them")
    parser.add_argument("--page", action="store_true", help="only write docs/performance.md from the saved results")
    options = parser.parse_args(argv)
    if options.save and options.only:
        parser.error("--save keeps whole runs, so that the page is of one: leave out --only")
    from benchmarks.suite import page

    if options.page:
        page.write()
        return 0
    home, began = options.data or os.environ.get("DPTOOLKIT_DATA"), time.perf_counter()
    results: list[dict[str, Any]] = []
    failures = []
    for section, shape, cores in jobs(options.quick, options.only):
        print(f"{time.perf_counter() - began:6.0f} s  {section} {shape or ''}", file=sys.stderr, flush=True)
        rows, ended = run(section, shape, cores, home, options.quick)
        results += rows
        failures += [] if ended else [f"{section} {shape or ''}".strip()]
    about = page.about(home is not None, options.quick, time.perf_counter() - began) | {"failed": failures}
    if options.save:
        page.save(about, results)
        page.write()
    else:
        print(page.render(about, results))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
