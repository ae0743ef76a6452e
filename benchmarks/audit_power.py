"""What audits find: for every private solver and configuration the reach, and the smallest lack of noise that is found.

    python -m benchmarks.audit_power                   # all solvers: those that are saved already are not run again
    python -m benchmarks.audit_power dp_ight --again   # these anew
    python -m benchmarks.audit_power --page            # only write the page from what is saved

The results are saved to benchmarks/results/audit_power.json, and docs/audit-power.md is written from them. A factor is
found with so many trials if the sequential test at alpha 1e-6, from one seed, refutes the guarantee within them, for
the adversary of the largest reach. Factors are tried from ``FACTORS``, by bisection.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.configurations import CONFIGURATIONS, DELTA, configurations
from dptoolkit import audit
from dptoolkit.audit import presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.pairs import Pair
from dptoolkit.errors import DpToolkitError
from dptoolkit.solvers.plan import Plan

RESULTS = Path(__file__).parent / "results" / "audit_power.json"
PAGE = Path(__file__).parents[1] / "docs" / "audit-power.md"
FEW, MANY, ALPHA = 5_000, 50_000, 1e-6
FACTORS = (1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
Result = dict[str, Any]


def smallest(found: Callable[[float], bool]) -> float | None:
    """The smallest of FACTORS that is found, if all larger ones are found too; None if not even the largest is."""
    low, high = -1, len(FACTORS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found(FACTORS[middle]) else (middle, high)
    return FACTORS[high] if high < len(FACTORS) else None


class Search:
    """Audits of one configuration with too little noise."""

    def __init__(self, plan: Plan, pair: Pair) -> None:
        self.plan, self.pair = plan, pair
        self.adversary = audit.strongest(pair)
        self._claim = as_claim(plan.guarantee)
        self._stops: dict[float, float] = {}

    def smallest(self, trials: int) -> float | None:
        """The smallest factor that is found with so many trials; ask for many trials before few."""
        return smallest(lambda factor: self._stopped(factor, trials) <= trials)

    def _stopped(self, factor: float, trials: int) -> float:
        """After how many trials the audit has its evidence; infinite if it has none."""
        if factor not in self._stops:
            self._stops[factor] = self._one(factor, trials)
        return self._stops[factor]

    def _one(self, factor: float, trials: int) -> float:
        faulty = self.plan.with_noise(factor=1 / factor)
        report = audit.audit(faulty, self.pair, self._claim, trials=trials, alpha=ALPHA, mode="sequential",
                             adversary=self.adversary)  # fmt: skip
        return report.stopped_at if report.stopped_at is not None else math.inf


def measured(solver: str, name: str, plan: Plan, few_only: bool) -> Result:
    """One row of the table."""
    began = time.process_time()
    row: Result = {"solver": solver, "configuration": name, "epsilon": plan.guarantee.epsilon(DELTA)}
    try:
        pair = presets.pair(plan)
    except DpToolkitError as problem:
        return row | {"adversary": None, "why": str(problem)}
    search = Search(plan, pair)
    row |= {"adversary": search.adversary, "reach": {who: round(share, 4) for who, share in pair.reach.items()}}
    if not few_only:
        row["many"] = search.smallest(MANY)
    row["few"] = search.smallest(FEW)
    return row | {"seconds": round(time.process_time() - began, 1)}


def load() -> list[Result]:
    """What is saved."""
    rows: list[Result] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return rows


def save(row: Result) -> None:
    """Write a row in the place of an older one of its solver and configuration; solvers keep the table's order."""
    order = list(CONFIGURATIONS)
    others = [r for r in load() if (r["solver"], r["configuration"]) != (row["solver"], row["configuration"])]
    kept = sorted([*others, row], key=lambda r: (order.index(r["solver"]), r["configuration"][:6] != "preset"))
    fresh = RESULTS.with_suffix(".new")
    fresh.write_text("[\n" + ",\n".join(json.dumps(r) for r in kept) + "\n]\n")
    os.replace(fresh, RESULTS)


def page(rows: Sequence[Result]) -> str:
    """The page of the documentation."""
    return "\n".join([_HEAD, *(_line(row) for row in rows), "", _summary(rows), ""])


def _line(row: Result) -> str:
    cells = [row["solver"], row["configuration"], f"{row['epsilon']:.3g}"]
    if row["adversary"] is None:
        return "| " + " | ".join([*cells, "no pair", "", "", ""]) + " |"
    share = row["reach"].get(row["adversary"])
    reach = "not known" if share is None else f"{share:.2f}"
    many = _factor(row["many"]) if "many" in row else "not measured"
    return "| " + " | ".join([*cells, row["adversary"], reach, _factor(row["few"]), many]) + " |"


def _factor(value: float | None) -> str:
    return f"none of {FACTORS[-1]:g}" if value is None else f"{value:g}"


def _summary(rows: Sequence[Result]) -> str:
    known = [row["many"] for row in rows if "many" in row]
    counts = [sum(found is not None and found <= factor for found in known) for factor in (1.5, 3.0)]
    return (
        f"{MANY:,} trials were played for {len(known)} of {len(rows)} configurations: they find noise too small by "
        f"1.5 in {counts[0]} of them and noise too small by 3 in {counts[1]}."
    )


_HEAD = f"""\
# What audits find, by solver and configuration

This page is written by `python -m benchmarks.audit_power` from benchmarks/results/audit_power.json.

*Reach* is the share of the guarantee that an exact attack on the pair has, for the adversary of the largest reach. The
last two columns are the smallest factors of missing noise that are found: the noise is divided by the factor, and the
sequential test at alpha {ALPHA:g} refutes the guarantee with {FEW:,} or {MANY:,} trials, from one seed. Factors are
{", ".join(f"{factor:g}" for factor in FACTORS)}; the reach is at delta {DELTA:g}. How audits work is said in
[audit](audit.md).

| solver | configuration | epsilon | adversary | reach | found with {FEW:,} | found with {MANY:,} |
|---|---|---|---|---|---|---|"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is not saved, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit_power", description=__doc__.splitlines()[0])
    parser.add_argument("solvers", nargs="*", metavar="solver", help="of these only")
    parser.add_argument("--again", action="store_true", help="measure what is saved too")
    parser.add_argument("--few", action="store_true", help=f"with {FEW:,} trials only")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    options = parser.parse_args(argv)
    done = [] if options.again else [row for row in load() if options.few or "few" not in row or "many" in row]
    saved = {(row["solver"], row["configuration"]) for row in done}
    asked = [] if options.page else options.solvers or list(CONFIGURATIONS)
    # All presets first, so that a table that was stopped early has every solver.
    for several in zip(*([(solver, *one) for one in configurations(solver)] for solver in asked), strict=True):
        for solver, name, plan in several:
            if (solver, name) not in saved:
                row = measured(solver, name, plan, options.few)
                print(_line(row), f"{row.get('seconds', 0)} s", flush=True)
                save(row)
    PAGE.write_text(page(load()))
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
