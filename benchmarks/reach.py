"""What the worst pairs show of each guarantee: every private solver, at its preset and at five other configurations.

    python -m benchmarks.reach                      # all solvers
    python -m benchmarks.reach dp_ight peeling_iht  # these

``reach`` is the share of the guarantee's epsilon at delta 1e-5 that the exact attack on the pair has, by adversary. The
last columns are the best adversary's, of the guarantee and of the accountant's lower end, which no analysis can beat.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence

from benchmarks.configurations import CONFIGURATIONS, DELTA, configurations
from dptoolkit.audit import presets
from dptoolkit.audit.pairs import Pair
from dptoolkit.errors import DpToolkitError
from dptoolkit.solvers.frame.plan import Plan

TARGET = 0.85


def shares(plan: Plan, pair: Pair) -> tuple[float, float]:
    """The best adversary's share of the guarantee, and of the accountant's lower end."""
    best = max(pair.reach.values(), default=0.0)
    low, high = plan.guarantee.bounds(DELTA)
    return best, best * high / low if low > 0 else best


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; exit code 1 if a pair shows less than the target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reach", description=__doc__.splitlines()[0])
    parser.add_argument("solvers", nargs="*", metavar="solver", help="run only these solvers")
    options = parser.parse_args(argv)
    misses = 0
    for solver in options.solvers or CONFIGURATIONS:
        for name, plan in configurations(solver):
            misses += not _show(solver, name, plan)
    return int(misses > 0)


def _show(solver: str, name: str, plan: Plan) -> bool:
    start = time.process_time()
    try:
        pair = presets.pair(plan)
        of_guarantee, of_lower = shares(plan, pair)
    except DpToolkitError as error:
        print(f"{solver}, {name}: {error}", flush=True)
        return False
    reach = " ".join(f"{adversary} {share:.2f}" for adversary, share in pair.reach.items())
    mark = "" if max(of_guarantee, of_lower) >= TARGET else "  LOOSE"
    print(f"{solver}, {name}: best {of_guarantee:.3f} lower {of_lower:.3f}{mark} | {reach} | {pair.description} | "
          f"{time.process_time() - start:.1f} s", flush=True)  # fmt: skip
    return not mark


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
