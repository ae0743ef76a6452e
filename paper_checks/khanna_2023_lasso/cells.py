"""Tables 1 and 2 of Khanna, Lu and Raff 2023: every printed cell beside ours, under each reading."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import stats

from paper_checks.constants import published
from paper_checks.family import differ
from paper_checks.findings import Comparison, Finding
from paper_checks.khanna_2023_lasso.problems import STAND_INS
from paper_checks.khanna_2023_lasso.runs import DENSE, PUBLISHED, SPARSIFIER, Runs, Scores, all_runs
from paper_checks.shared import Shared
from paper_checks.tables import Table

Cells = dict[tuple[str, str], Runs]
_PRINTED_TRIALS = 50


def plain_counts(shared: Shared, table: Table, tolerance: float) -> Finding:
    """Nonzeros without privacy against Table 1."""
    return compare_plain(all_runs(shared), table, tolerance)


def private_counts(shared: Shared, table: Table, tolerance: float) -> Finding:
    """Nonzeros of Private LASSO and Sparsifier with published noise against Table 1."""
    return compare_private(all_runs(shared), table, tolerance)


def accuracies(shared: Shared, table: Table, tolerance: float) -> Finding:
    """Nonzeros, accuracies and AUCs against Table 2."""
    return compare_scores(all_runs(shared), table, tolerance)


def compare_plain(found: Cells, table: Table, tolerance: float) -> Finding:
    """Each mean count within a share of the printed one, or within 3."""
    rows, places = [], []
    for (column, reading), runs in found.items():
        printed = table.mean["non-private"][table.columns.index(column)]
        mean = float(runs.plain.mean())
        near = abs(mean - printed) <= max(3.0, tolerance * printed)
        places.append((column, reading, near))
        span = f"{runs.plain.min()} to {runs.plain.max()}"
        rows.append(Comparison(f"{column}, {reading}: nonzeros, {span} in splits", printed, mean, near))
    return _by_reading(places, rows)


def compare_private(found: Cells, table: Table, tolerance: float) -> Finding:
    """Welch tests of each mean count against the printed one, which has no deviation: ours stands in for it."""
    rows, places, tests = [], [], []
    for (column, reading), runs in found.items():
        for method, name in (("Private LASSO", DENSE), ("Sparsifier", SPARSIFIER)):
            printed = table.mean[method][table.columns.index(column)]
            counts = runs.scores[PUBLISHED, name].nonzeros
            mean, near = float(counts.mean()), 0.005 + tolerance * printed
            tests.append(_differs(counts, printed) if abs(counts.mean() - printed) > near else 1.0)
            places.append((column, f"{reading}, {method}"))
            label = f"{column}, {reading}: {method}, deviation {counts.std(ddof=1):.2f}"
            rows.append((label, printed, mean))
    judged = [place[0] not in STAND_INS for place in places]
    rejected = iter(differ([p for p, use in zip(tests, judged, strict=True) if use]))
    # Stand-ins are shown, not judged.
    verdicts = [next(rejected) if use else p < 0.01 for p, use in zip(tests, judged, strict=True)]
    return _by_reading(
        [(*place, not bad) for place, bad in zip(places, verdicts, strict=True)],
        [Comparison(*row, not bad) for row, bad in zip(rows, verdicts, strict=True)],
    )


def _differs(counts: np.ndarray[Any, Any], printed: float) -> float:
    deviation = float(counts.std(ddof=1))
    if deviation == 0:
        return 0.0
    size = deviation * math.sqrt(1 / len(counts) + 1 / _PRINTED_TRIALS)
    return float(2 * stats.t.sf(abs(counts.mean() - printed) / size, len(counts) - 1))


def compare_scores(found: Cells, table: Table, tolerance: float) -> Finding:
    """Accuracy and AUC within ``tolerance`` and three standard errors of ours; nonzeros are shown."""
    rows, places = [], []
    for (column, reading), runs in found.items():
        number = table.columns.index(column)
        for (noise, name), scores in runs.scores.items():
            if name == DENSE:
                continue
            method = "Sparsifier" if name == SPARSIFIER else "Private LASSO"
            printed = [table.mean[f"{method} {what}"][number] for what in ("nonzeros", "accuracy", "AUC")]
            near = all(
                _near(values, target, tolerance) for values, target in zip(scores[1:3], printed[1:], strict=True)
            )
            if noise == PUBLISHED:
                places.append((column, f"{reading}, {name}", near))
            label = f"{column}, {reading}: {name}, {noise}, T = {scores.iterations}: nonzeros / accuracy / AUC"
            rows.append(Comparison(label, "{:g} / {:.2f} / {:.2f}".format(*printed), _shown(scores), near))
    return _by_reading(places, rows, noise_detail())


def _near(values: np.ndarray[Any, Any], target: float, tolerance: float) -> bool:
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return abs(float(values.mean()) - target) <= tolerance + 3 * error


def _shown(scores: Scores) -> str:
    parts = [f"{v.mean():.1f} ± {v.std(ddof=1) / math.sqrt(len(v)):.1f}" for v in scores[:3]]
    return " / ".join(parts)


def noise_detail() -> str:
    """The epsilon that the published noise really has, at the sizes of the generator."""
    record = published.lasso_frank_wolfe(8000, 1000, 10.0, 1.0, 1.0, 1 / 8000)
    return (f"At n = 8,000 and T = 1000 the printed noise for epsilon 1 has a true epsilon between {record.lower:.2f} "
            f"and {record.upper:.2f}; tight noise is Gumbel noise at the claimed epsilon.")  # fmt: skip


def _by_reading(places: Iterable[tuple[str, str, bool]], rows: list[Comparison], detail: str = "") -> Finding:
    """Met if all readings of every judged column agree, not reached if none does, else it depends on reading."""
    judged = [place for place in places if place[0] not in STAND_INS]
    agree = [near for _, _, near in judged]
    columns = list(dict.fromkeys(column for column, _, _ in judged))
    some = [column for column in columns if any(near for name, _, near in judged if name == column)]
    none = ", ".join(column for column in columns if column not in some) or "none"
    words = f"{sum(agree)} of {len(agree)} entries agree over all readings; columns where no reading agrees: {none}"
    verdict = "met" if all(agree) else "depends on reading" if any(agree) else "not reached here"
    return Finding(verdict, words, tuple(rows), detail)
