"""How long imports take in fresh processes, and what dptoolkit.accounting adds to NumPy and scipy.special.

python -m benchmarks.imports
"""

from __future__ import annotations

from benchmarks.measure import in_fresh_process, seconds
from dptoolkit.accounting.report import table

FLOOR = "import numpy, scipy.special"
STATEMENTS = (
    "import dptoolkit", "import dptoolkit.cli", FLOOR, "import dptoolkit.accounting",
    "import numba", "import sklearn.base", "import dp_accounting",
)  # fmt: skip
REPEATS = 7
# What importing dptoolkit.accounting may take above the floor.
WANTED_SECONDS = 0.5


def import_time(statement: str) -> float:
    """Seconds of the fastest of several fresh interpreters, without their start."""
    code = f"import time\nstart = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    return min(float(in_fresh_process(code)[0]) for _ in range(REPEATS))


def main() -> None:
    """Print the table."""
    times = {statement: import_time(statement) for statement in STATEMENTS}
    rows = [[statement, seconds(value), f"{value / times[FLOOR]:.2f}"] for statement, value in times.items()]
    extra = times["import dptoolkit.accounting"] - times[FLOOR]
    print(f"\nImports, best of {REPEATS}\n\n" + table(["statement", "time", "over the floor"], rows))
    print(f"dptoolkit.accounting adds {seconds(extra)}, wanted below {seconds(WANTED_SECONDS)}: ", end="")
    print("yes" if extra < WANTED_SECONDS else "NO")


if __name__ == "__main__":
    main()
