"""Cold plans: CPU time of a plan for a budget that was never asked for before, for every private solver.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.plans                  # measures and prints the table
    OPENBLAS_NUM_THREADS=1 python -m benchmarks.plans --save LABEL     # also saves the times under this label
    python -m benchmarks.plans --compare BEFORE AFTER                  # the table of two saved labels, before -> after

All solvers are planned in one process whose imports are done, with the arguments of the suite on two of its shapes and
three epsilons. Each time is the least of several budgets whose epsilons differ a little, also from those of all other
questions, so that no answer is remembered; times are process time, because wall-clock times follow the load of the
machine. The noise of the budget itself is saved too, so that two versions of the code can be compared: a quick plan
must not be a loose one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.suite.cases import arguments
from dptoolkit import solvers

SAVED = Path(__file__).parent / "results" / "plans.json"
SHAPES = {"small": (2_000, 50), "text": (20_242, 47_236)}
EPSILONS = (0.5, 2.0, 8.0)
RUNS = 5
# The two saved runs that the page compares.
LABELS = ("before", "after")
# Numbers of budgets: no two plans are asked for the same one.
_BUDGETS = itertools.count(1)
# Further paths of solvers that sample: other events, and searches of their own.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "dp_sgd_ht": {"Poisson": {"sampling": "poisson"}},
    "dp_svrg_ht": {"Poisson": {"sampling": "poisson"}},
    "dp_scsg_ht": {"Poisson": {"sampling": "poisson"}, "option I": {"option": "I"}},
}


class Question(NamedTuple):
    """One plan: a solver, its arguments, and the shape of the data."""

    solver: str
    note: str
    shape: str
    epsilon: float

    @property
    def name(self) -> str:
        return f"{self.solver}{', ' if self.note else ''}{self.note}"

    @property
    def key(self) -> str:
        return f"{self.name} | {self.shape} | {self.epsilon:g}"

    def plan(self, factor: float) -> solvers.Plan:
        """The plan with ``factor`` times epsilon."""
        n, d = SHAPES[self.shape]
        own = arguments(self.solver, (n, d), self.epsilon * factor)
        return solvers.plan(self.solver, n=n, d=d, **own | VARIANTS.get(self.solver, {}).get(self.note, {}))


class Measured(NamedTuple):
    """The least seconds of CPU of a cold plan, and the first noise of the plan."""

    seconds: float
    noise: float


def questions() -> Iterator[Question]:
    """All solvers on all shapes at all epsilons."""
    for name in solvers.PRIVATE:
        for note in ("", *VARIANTS.get(name, {})):
            yield from (Question(name, note, shape, epsilon) for shape in SHAPES for epsilon in EPSILONS)


def measured(question: Question) -> Measured:
    """The least time of several budgets near the question's own, and the noise of its own."""
    times = []
    for _ in range(RUNS):
        factor = 1.01 + 1e-4 * next(_BUDGETS)
        start = time.process_time()
        question.plan(factor)
        times.append(time.process_time() - start)
    return Measured(min(times), question.plan(1.0).releases[0].scale)


def measure() -> dict[str, Measured]:
    """All questions, after one plan of every solver that loads its modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for question in questions():
            if question.shape == "small" and question.epsilon == EPSILONS[0]:
                question.plan(1.5)
        return {question.key: measured(question) for question in questions()}


def saved() -> dict[str, dict[str, Measured]]:
    """label -> question -> what was measured."""
    raw = json.loads(SAVED.read_text(encoding="utf-8")) if SAVED.exists() else {}
    return {label: {key: Measured(*one) for key, one in rows.items()} for label, rows in raw.items()}


def save(label: str, rows: dict[str, Measured]) -> None:
    """Keep the rows under a label, beside those of other labels."""
    SAVED.write_text(json.dumps(saved() | {label: rows}, indent=1) + "\n", encoding="utf-8")


def table(before: dict[str, Measured], after: dict[str, Measured]) -> str:
    """One line per solver and shape: milliseconds before -> after, and the largest change of the noise."""
    head = ["solver", "shape", *(f"epsilon {epsilon:g}, ms" for epsilon in EPSILONS), "noise after / before"]
    lines = ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head))]
    names = dict.fromkeys((question.name, question.shape) for question in questions())
    for name, shape in names:
        keys = [f"{name} | {shape} | {epsilon:g}" for epsilon in EPSILONS]
        cells = [f"{1e3 * before[key].seconds:.3g} -> {1e3 * after[key].seconds:.3g}" for key in keys]
        ratios = [after[key].noise / before[key].noise for key in keys]
        spread = f"{min(ratios):.5f} to {max(ratios):.5f}"
        lines.append("| " + " | ".join([name, shape, *cells, spread]) + " |")
    return "\n".join(lines)


_SECTION = """## Cold plans

CPU time of `solvers.plan` for a budget that was never asked for before, in one process whose imports are done, with the
arguments of the [suite](performance.md) on 2,000 x 50 (small) and 20,242 x 47,236 (text) records at delta 1e-6. Each
time is the least of a few budgets; *before* is the version that this search replaced, on the same machine, which was
busy both times.
`python -m benchmarks.plans --save after` measures it, `python -m benchmarks.accounting_grid --page` writes this page.

A search takes a few rough looks by moments, Edgeworth's expansion or coarse grids, then one or two exact ones, of which
the last is the verification. Noise is at most {tolerance:g} above the smallest one, relatively. What is
still above 10 ms, and why:

- Batches without replacement (measured before the last change of their first rough look, which made `dp_sgd_ht` on
  text faster again): an exact look follows an adversary through up to 768 steps with 24 transforms each. Two
  of them are needed, because no quicker estimate is good to a thousandth.
- `dp_svrg_ht` on text is the slowest of them at epsilon 0.5, where its 630 steps are one block and three exact looks
  are needed, and at epsilon 8, where they are four blocks. (At epsilon 2 single large losses decide, and there are no
  blocks.) Shorter blocks let the adversary choose as if each block were played alone, which costs noise at this rate of
  0.003. The length is limited by `work` in `pld/blocks.py`. With half of it these two plans took 2.2 and 1.8 s in place
  of 3.9 and 2.7 s on a busy machine, and needed 0.30 % and 0.09 % more noise; with a quarter 1.0 and 1.5 s, and 0.67 %
  and 0.14 % more. That is far more than a search adds, so blocks stay long.
- Selections (`sparsifier`): an exact look is the recursion for adaptive selections, whose time grows with the square of
  their number. It is compiled, and one look of 200 selections takes 7 ms.
- `two_stage` and `knowledge_transfer` search twice, once for the selections' share of the budget, once for the rest.
- Poisson batches: an exact look takes 3 to 6 ms, and one to three are needed. At small rates (text) the law of the loss
  is too skewed for an expansion, and nothing was gained there.
- `objective_perturbation`: the convex hull of its curve and the first guess by closed form take about 3 ms each.

"""


def section() -> str:
    """The part of the page on calibration about plans, from the saved times."""
    from dptoolkit.solvers.frame.plan import TOLERANCE

    return _SECTION.format(tolerance=TOLERANCE) + table(*(saved()[label] for label in LABELS)) + "\n"


def main() -> None:
    """Measure, save or compare, by the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--save", metavar="LABEL")
    parser.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"))
    options = parser.parse_args()
    if options.compare:
        print(table(*(saved()[label] for label in options.compare)))
        return
    rows = measure()
    if options.save:
        save(options.save, rows)
    for key, one in rows.items():
        print(f"{key:50s} {1e3 * one.seconds:8.1f} ms   noise {one.noise:.6g}")


if __name__ == "__main__":
    main()
