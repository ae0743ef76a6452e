"""What Khanna, Lu and Raff 2023 conclude from Tables 1 and 2, as hypotheses on the runs of runs.py.

Trials are paired by their split. Tests are Wilcoxon's signed-rank tests, as in the paper, here under the rule of
``family``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from paper_checks.family import RULE, decide, wilcoxon
from paper_checks.findings import Comparison, Finding, readings
from paper_checks.khanna_2023_lasso.cells import Cells, noise_detail
from paper_checks.khanna_2023_lasso.problems import STAND_INS
from paper_checks.khanna_2023_lasso.runs import BORROWED, DENSE, OWN, PUBLISHED, SPARSIFIER, TIGHT, all_runs
from paper_checks.shared import Shared
from paper_checks.tables import Table

_METRICS = {"accuracy": 1, "AUC": 2}
# Which of a data set's readings is taken: those with one reading have it in both.
_SCALINGS = {"values of the files": 0, "scaled values": -1}
# A comparison with itself, which must establish nothing, is for a planted fault.
_RIVALS = {"own": OWN, "borrowed": BORROWED, "itself": SPARSIFIER}


class Test(NamedTuple):
    """One paired comparison: Private LASSO minus Sparsifier in percent, and 1 if it is established as lower, or -1."""

    column: str
    reading: str
    noise: str
    rival: str
    metric: str
    effect: str
    sign: int


def significant(shared: Shared, table: Table, readings_of: list[str]) -> Finding:
    """Whether Sparsifier is significantly better in most cells and Private LASSO in none."""
    return judge_significance(all_runs(shared), table, [_RIVALS[name] for name in readings_of])


def more_iterations(shared: Shared, table: Table, rival: str) -> Finding:
    """Whether 1000 iterations and a cut beat fewer iterations, each with the noise for its own number."""
    return judge_iterations(all_runs(shared), table, _RIVALS[rival])


def density(shared: Shared, claim: str) -> Finding:
    """Whether Private LASSO has more nonzeros than without privacy, and Sparsifier fewer than Private LASSO."""
    return judge_density(all_runs(shared), claim)


def tests(found: Cells, rivals: Iterable[str]) -> list[Test]:
    """All paired tests on data sets that are judged."""
    places, compared = [], []
    for (column, reading), runs in found.items():
        for noise in (PUBLISHED, TIGHT):
            if column in STAND_INS or (noise, SPARSIFIER) not in runs.scores:
                continue
            for rival in rivals:
                for metric, number in _METRICS.items():
                    places.append((column, reading, noise, rival, metric))
                    scores = (np.asarray(runs.scores[noise, name][number]) for name in (rival, SPARSIFIER))
                    compared.append(wilcoxon(*scores))
    decision = decide(compared)
    signs = (int(lower) - int(higher) for lower, higher in zip(decision.lower, decision.higher, strict=True))
    return [Test(*place, test.effect, sign) for place, test, sign in zip(places, compared, signs, strict=True)]


def judge_significance(found: Cells, table: Table, rivals: list[str]) -> Finding:
    """The claim under each reading of Private LASSO's noise and of the scaling, with both kinds of noise."""
    done = tests(found, rivals)
    readings_of = {column: [reading for name, reading in found if name == column] for column, _ in found}
    rows: list[tuple[str, Any, Any, bool]] = []
    for noise, rival, (scaling, place) in product((PUBLISHED, TIGHT), rivals, _SCALINGS.items()):
        signs = [test.sign for test in done if (test.noise, test.rival) == (noise, rival)
                 and test.reading == readings_of[test.column][place]]  # fmt: skip
        better, worse = signs.count(1), signs.count(-1)
        if signs:
            shown = f"better in {better}, worse in {worse} of {len(signs)}"
            holds = 2 * better > len(signs) and not worse
            rows.append((f"{noise}, {rival}, {scaling}", "better in most, worse in none", shown, holds))
    words = "; ".join(f"{row[0]}: {row[2]}" for row in rows)
    verdict = readings(rows, words, "not reached here")
    return Finding(verdict.verdict, words, (*verdict.rows, *_cells(done, table)), noise_detail())


def judge_iterations(found: Cells, table: Table, rival: str) -> Finding:
    """Kept or reversed if one direction is established somewhere for every data set and the other nowhere."""
    done = tests(found, (rival,))
    kept: list[str] = []
    reversed_: list[str] = []
    mixed: list[str] = []
    for column in dict.fromkeys(test.column for test in done):
        signs = {test.sign for test in done if test.column == column}
        ahead, behind = 1 in signs, -1 in signs
        (kept if ahead and not behind else reversed_ if behind and not ahead else mixed).append(column)
    lists = {"ahead": kept, "behind": reversed_, "neither or both": mixed}
    words = "; ".join(f"{name}: {', '.join(columns) or 'none'}" for name, columns in lists.items())
    if not reversed_ and not mixed:
        verdict = "order kept"
    elif not kept and not mixed:
        verdict = "order reversed"
    else:
        verdict = "depends on reading" if any(test.sign for test in done) else "tie"
    return Finding(verdict, f"Sparsifier {words} (Wilcoxon, {RULE})", _cells(done, table), noise_detail())


def _cells(done: Iterable[Test], table: Table) -> tuple[Comparison, ...]:
    """Every difference beside that of the printed means."""
    rows, words = [], {1: "established", -1: "opposite established", 0: "not established"}
    for test in done:
        number = table.columns.index(test.column)
        printed = table.mean[f"Private LASSO {test.metric}"][number] - table.mean[f"Sparsifier {test.metric}"][number]
        label = f"{test.column}, {test.reading}, {test.noise}: {test.metric}, {test.rival} minus Sparsifier"
        rows.append(Comparison(label, f"{printed:+.2f}", f"{test.effect}, {words[test.sign]}", test.sign > 0))
    return tuple(rows)


def judge_density(found: Cells, claim: str) -> Finding:
    """Mean nonzeros without privacy, of Private LASSO and of Sparsifier: "denser, then sparser", or the opposite."""
    side = 1 if claim == "denser, then sparser" else -1
    rows: list[tuple[str, Any, Any, bool]] = []
    for (column, reading), runs in found.items():
        if column in STAND_INS:
            continue
        for noise in (PUBLISHED, TIGHT):
            if (noise, DENSE) not in runs.scores:
                continue
            dense, sparse, few = (float(runs.scores[noise, name].nonzeros.mean()) for name in (DENSE, SPARSIFIER, OWN))
            plain = float(runs.plain.mean())
            label = f"{column}, {reading}, {noise}: no privacy, Private LASSO, Sparsifier (fewer iterations)"
            shown = f"{plain:.1f}, {dense:.1f}, {sparse:.1f} ({few:.1f})"
            rows.append((label, claim, shown, side * (dense - plain) > 0 and side * (sparse - dense) < 0))
    hold = sum(row[3] for row in rows)
    words = f"{claim}: private with all iterations, then after the cut, in {hold} of {len(rows)} cases"
    return readings(rows, words, "not reached here", "Few enough iterations are as sparse as the cut.")
