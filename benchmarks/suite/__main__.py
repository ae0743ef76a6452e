"""One section of the suite in this process, on so many cores: python -m benchmarks.suite SECTION [SHAPE] --to FILE.

It is what ``python -m benchmarks`` calls; the cores are chosen before NumPy and Numba are imported.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any


def pin(cores: int) -> None:
    """This process and its children on the first ``cores`` processors that it may use."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(cores)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def rows(section: str, shape: str | None, home: str | None, quick: bool) -> Iterator[dict[str, Any]]:
    """The rows of a section."""
    from benchmarks.suite import fits, growth, many, memory, peers

    if shape is not None:
        sections = {"fits": fits.measure, "floors": fits.floors, "two cores": fits.two_cores}
        return sections[section](shape, home, quick)
    if section in ("growth", "accounting"):
        return growth.measure(quick) if section == "growth" else peers.accounting(quick)
    return {"memory": memory.measure, "models": peers.models, "many": many.measure}[section](home, quick)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite")
    parser.add_argument("section")
    parser.add_argument("shape", nargs="?")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--data", metavar="FOLDER")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--to", metavar="FILE", required=True)
    options = parser.parse_args()
    pin(options.cores)
    warnings.simplefilter("ignore")
    with open(options.to, "a", encoding="utf-8") as out:
        for row in rows(options.section, options.shape, options.data, options.quick):
            out.write(json.dumps({"section": options.section, "cores": options.cores} | row) + "\n")
            out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
