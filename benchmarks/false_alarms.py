"""How often audits of correct solvers find a violation: at most as often as they say.

    python -m benchmarks.false_alarms                  # 2,040 correct runs; those that are saved are not run again
    python -m benchmarks.false_alarms dp_ight --again  # these anew
    python -m benchmarks.false_alarms --show           # only the summary of what is saved

A run is a solver's preset with its own noise, on its worst pair, for the adversary of the largest reach, with a seed of
its own. Its trials are judged twice: by the p-value of the fixed mode, and by the sequential test, at each of
``LEVELS``. One false alarm in 1e6 cannot be seen in 2,000 runs, so 0.05 and 0.01 are there too. A count is compatible
with its level if that many or more have a probability of at least 1e-3 when every run errs with exactly that level.
The results are saved to benchmarks/results/false_alarms.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from dptoolkit import audit
from dptoolkit.accounting.report import table
from dptoolkit.audit import presets
from dptoolkit.audit.claims import Claim, as_claim
from dptoolkit.audit.pairs import Pair
from dptoolkit.solvers.frame.plan import Plan

RESULTS = Path(__file__).parent / "results" / "false_alarms.json"
LEVELS, RARE = (0.05, 0.01, 1e-6), 1e-3
# The number of trials of a run: large enough that the fixed mode may choose, after 500 trials, to count confident
# guesses only.
TRIALS, EPSILON, DELTA = 1200, 2.0, 1e-5
# The number of runs of each solver. It is small where a trial or a bound takes long: the test that is judged is the
# same for all solvers.
RUNS: Mapping[str, int] = dict.fromkeys(presets.PRESETS, 200) | {
    "dp_sgd_ht": 100, "dp_svrg_ht": 50, "sparsifier": 50, "dp_scsg_ht": 20, "dp_pipeline": 20,
    "objective_perturbation": 100, "two_stage": 100, "dp_admm": 400,
}  # fmt: skip
Result = dict[str, Any]


def judged(plan: Plan, pair: Pair, claim: Claim, seed: int) -> tuple[float, list[bool]]:
    """The p-value of the fixed mode, and whether the sequential test at each level finds a violation."""
    with tempfile.TemporaryDirectory() as folder:
        # The first test leaves its trials in the file, and the others read them.
        how: dict[str, Any] = {"trials": TRIALS, "adversary": _adversary(pair), "rng": seed, "n_jobs": 1,
                               "resume": Path(folder) / "trials"}  # fmt: skip
        fixed = audit.evidence(plan, pair, claim, mode="fixed", alpha=LEVELS[0], **how)
        verdicts: list[bool] = []
        for level in LEVELS:
            # The wealth is the same at every level, so a run that does not refute at one level does not refute at a
            # smaller one.
            verdicts.append(all(verdicts) and audit.evidence(plan, pair, claim, alpha=level, **how).refuted)
    return fixed.p_value, verdicts


def _adversary(pair: Pair) -> str:
    """The one of the largest reach; the final model where it has as much, as it takes less time."""
    most = max(pair.reach.values(), default=math.inf)
    return "final" if pair.reach.get("final", 0.0) >= 0.99 * most else audit.strongest(pair)


def measured(solver: str, before: Result | None) -> Result:
    """The false alarms of all runs of a solver: those before, and the seeds after them."""
    plan = presets.plan(solver, EPSILON, DELTA)
    pair, claim = presets.pair(plan), as_claim(plan.guarantee)
    none = [0] * len(LEVELS)
    fixed, sequential = (none, none) if before is None else (before["fixed"], before["sequential"])
    # Every solver has seeds of its own, because solvers that draw in the same way would give the same runs.
    first = 1_000_000 * list(RUNS).index(solver)
    for number in range(0 if before is None else before["runs"], RUNS[solver]):
        p_value, verdicts = judged(plan, pair, claim, first + number)
        fixed = [count + (p_value <= level) for count, level in zip(fixed, LEVELS, strict=True)]
        sequential = [count + one for count, one in zip(sequential, verdicts, strict=True)]
    return {"solver": solver, "runs": RUNS[solver], "trials": TRIALS, "fixed": fixed, "sequential": sequential}


def most(runs: int, level: float) -> int:
    """The largest count that is compatible: more have a probability below RARE."""
    return int(stats.binom.isf(RARE, runs, level))


def summary(results: Sequence[Result]) -> tuple[str, bool]:
    """A table over all solvers, and whether every count is compatible with its level."""
    runs = sum(one["runs"] for one in results)
    rows, fine = [], True
    for mode in ("fixed", "sequential"):
        for i, level in enumerate(LEVELS):
            count, bound = sum(one[mode][i] for one in results), most(runs, level)
            fine = fine and count <= bound
            rows.append([mode, f"{level:g}", f"{count} of {runs:,}", f"{level * runs:.3g}", str(bound)])
    return table(["mode", "level", "false alarms", "expected at most", "compatible up to"], rows), fine


def load() -> list[Result]:
    """The saved results."""
    results: list[Result] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return results


def save(one: Result) -> None:
    """Write a solver's result in the place of an older one."""
    results = {result["solver"]: result for result in [*load(), one]}
    fresh = RESULTS.with_suffix(".new")
    fresh.write_text("[\n" + ",\n".join(json.dumps(results[name]) for name in RUNS if name in results) + "\n]\n")
    os.replace(fresh, RESULTS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is not saved, and print the summary; exit code 1 if a count is too large."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.false_alarms", description=__doc__.splitlines()[0])
    parser.add_argument("solvers", nargs="*", metavar="solver", help="run only these solvers")
    parser.add_argument("--again", action="store_true", help="also repeat runs that are saved")
    parser.add_argument("--show", action="store_true", help="only show the saved runs")
    options = parser.parse_args(argv)
    results = {} if options.again else {one["solver"]: one for one in load()}
    for solver in () if options.show else options.solvers or RUNS:
        if solver not in results or results[solver]["runs"] < RUNS[solver]:
            one = measured(solver, results.get(solver))
            print(one, flush=True)
            save(one)
    text, fine = summary(load())
    print(text)
    return int(not fine)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
