"""What audits find: for every private solver and configuration the reach, and the smallest lack of noise that is found.

    python -m benchmarks.audit_power                   # what is not saved, or was measured on another plan or pair
    python -m benchmarks.audit_power --only dp_ight    # of this solver, all rows anew
    python -m benchmarks.audit_power --page            # only write the page from what is saved

The results are saved to benchmarks/results/audit_power.json, and docs/audit-power.md is written from them. A factor is
found with so many trials if the sequential test at alpha 1e-6, from one seed, refutes the guarantee within them, for
the adversary of the largest reach. Factors are tried from ``FACTORS``, by bisection.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.configurations import CONFIGURATIONS, DELTA, configurations
from dptoolkit import audit
from dptoolkit.audit import presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.engine import identity
from dptoolkit.audit.pairs import Pair
from dptoolkit.errors import DpToolkitError
from dptoolkit.solvers.frame.plan import Plan

RESULTS = Path(__file__).parent / "results" / "audit_power.json"
PAGE = Path(__file__).parents[1] / "docs" / "audit-power.md"
FEW, MANY, ALPHA = 5_000, 50_000, 1e-6
# The number of configurations of each solver: its preset and five others.
ROWS_EACH = 6
# Pairs of a smaller reach than this are marked as loose.
TIGHT = 0.85
FACTORS = (1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
Result = dict[str, Any]


def smallest(is_found: Callable[[float], bool]) -> float | None:
    """The smallest of FACTORS that is found, if all larger ones are found too; None if not even the largest is."""
    low, high = -1, len(FACTORS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_found(FACTORS[middle]) else (middle, high)
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
        evidence = audit.evidence(faulty, self.pair, self._claim, trials=trials, alpha=ALPHA, adversary=self.adversary)
        return math.inf if evidence.stopped_at is None else evidence.stopped_at


def measured(row: Result, plan: Plan, pair: Pair, few_only: bool) -> Result:
    """The row with what audits find."""
    began, search = time.process_time(), Search(plan, pair)
    row = row | {"adversary": search.adversary, "reach": {who: round(share, 4) for who, share in pair.reach.items()}}
    if not few_only:
        row["many"] = search.smallest(MANY)
    row["few"] = search.smallest(FEW)
    return row | {"seconds": round(time.process_time() - began, 1)}


def fingerprint(plan: Plan, pair: Pair | None) -> str:
    """A name for what was measured: another plan or another pair has another one."""
    data = None if pair is None else (pair.first, pair.second, pair.description)
    return hashlib.sha256(repr(identity((plan, data))).encode()).hexdigest()[:16]


def updated(solver: str, name: str, plan: Plan, before: Result | None, few_only: bool) -> Result:
    """The row as it was before if it is of this plan and pair and has all columns; else measured."""
    row: Result = {"solver": solver, "configuration": name, "epsilon": plan.guarantee.epsilon(DELTA), "adversary": None}
    try:
        pair = presets.pair(plan)
    except DpToolkitError as problem:
        return row | {"why": str(problem), "of": fingerprint(plan, None)}
    row["of"] = fingerprint(plan, pair)
    if before is not None and before["of"] == row["of"] and (few_only or "many" in before):
        return before
    return measured(row, plan, pair, few_only)


def load() -> list[Result]:
    """The saved results."""
    rows: list[Result] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return rows


def save(rows: Sequence[Result]) -> None:
    """Write all rows, in the order of the configurations."""
    fresh = RESULTS.with_suffix(".new")
    fresh.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    os.replace(fresh, RESULTS)


def page(rows: Sequence[Result]) -> str:
    """The page of the documentation."""
    return "\n".join([_HEAD, *(_line(row) for row in rows), "", _summary(rows), ""])


def _line(row: Result) -> str:
    cells = [row["solver"], row["configuration"], f"{row['epsilon']:.3g}"]
    if row["adversary"] is None:
        return "| " + " | ".join([*cells, "no pair", "", "", ""]) + " |"
    share = row["reach"].get(row["adversary"])
    reach = "not known" if share is None else f"{share:.2f}{', loose' if share < TIGHT else ''}"
    many = _factor(row["many"]) if "many" in row else "not measured"
    return "| " + " | ".join([*cells, row["adversary"], reach, _factor(row["few"]), many]) + " |"


def _factor(value: float | None) -> str:
    return f"none of {FACTORS[-1]:g}" if value is None else f"{value:g}"


def _summary(rows: Sequence[Result]) -> str:
    parts = []
    for key, trials in (("few", FEW), ("many", MANY)):
        factors = [row[key] for row in rows if key in row]
        if not factors:
            parts.append(f"Nothing was measured with {trials:,} trials yet.")
            continue
        little, much = (sum(one is not None and one <= factor for one in factors) for factor in (1.5, 3.0))
        parts.append(
            f"{trials:,} trials were played for {len(factors)} of {len(rows)} configurations: they find noise "
            f"too small by 1.5 in {little} of them and noise too small by 3 in {much}."
        )
    every = ROWS_EACH * len(CONFIGURATIONS)
    if len(rows) < every:
        gap = f"{every - len(rows)} of {every} configurations are not measured yet"
        parts.insert(0, f"{gap}: the command above measures them.")
    lines = [f"- {row['solver']}, {row['configuration']}: {row['why']}" for row in rows if row["adversary"] is None]
    head = ["", "Configurations without a pair:", ""] if lines else []
    return "\n".join([*textwrap.wrap(" ".join(parts), 118), *head, *lines])


_HEAD = f"""\
# What audits find, by solver and configuration

This page shows, for every private solver, how much of its guarantee an attack on its worst pair reaches, and how much
noise must be missing before an audit detects it. [audit](audit.md) explains how audits work.
`python -m benchmarks.audit_power` writes this page from benchmarks/results/audit_power.json. Rows whose plan and pair
did not change are kept; `--only SOLVER` measures the rows of one solver again. Rows of `dp_sgd_ht`, `dp_svrg_ht` and
`dp_scsg_ht` on batches without replacement were measured with the noise of an earlier, looser bound, which was 4 to 8 %
larger. With the noise of today their pairs show a little more.

*Reach* is the epsilon of an exact attack on the pair, as a share of the guarantee at delta {DELTA:g}, for the adversary
with the largest reach. A reach below {TIGHT:g} is marked: no better pair is known. The last two columns are the
smallest factors of missing noise that are detected: the noise is divided by the factor, and the sequential test at
alpha {ALPHA:g} refutes the guarantee with {FEW:,} or {MANY:,} trials, from one seed. The factors tried are
{", ".join(f"{factor:g}" for factor in FACTORS)}.

| solver | configuration | epsilon | adversary | reach | found with {FEW:,} | found with {MANY:,} |
|---|---|---|---|---|---|---|"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is not saved, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit_power", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        action="append",
        choices=list(CONFIGURATIONS),
        metavar="SOLVER",
        help="measure only the rows of this solver; may be repeated",
    )
    parser.add_argument("--few", action="store_true", help=f"use only {FEW:,} trials")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args(argv)
    every = {solver: list(configurations(solver)) for solver in CONFIGURATIONS}
    order = [(solver, name) for solver, several in every.items() for name, _ in several]
    # Rows of configurations that are no longer in the table are left out.
    rows = {key: row for row in load() if (key := (row["solver"], row["configuration"])) in order}
    # All presets first, so that a table that was stopped early has every solver.
    turns = [(solver, *several[turn]) for turn in range(ROWS_EACH) for solver, several in every.items()]
    for solver, name, plan in [] if options.page else turns:
        if options.only and solver not in options.only:
            continue
        before = None if options.only else rows.get((solver, name))
        row = rows[solver, name] = updated(solver, name, plan, before, options.few)
        if row is not before:
            print(_line(row), f"{row.get('seconds', 0)} s", flush=True)
            save([rows[key] for key in order if key in rows])
    PAGE.write_text(page(load()))
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
