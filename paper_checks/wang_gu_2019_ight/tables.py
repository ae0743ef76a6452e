"""Table 3 of Wang and Gu 2019, test errors on RCV1, beside runs on a stand-in."""

from __future__ import annotations

from paper_checks import rcv1
from paper_checks.constants import published
from paper_checks.curves import STUDENT, order, with_charged
from paper_checks.findings import Finding
from paper_checks.seeds import Rng
from paper_checks.tables import Table

_DELTA = 0.01


def rcv1_errors(
    rng: Rng, table: Table, budgets: list[float], factor: float, repetitions: int, data_home: str | None = None
) -> Finding:
    """All cells, and the order of the methods by paired Student's tests over draws of the noise."""
    methods = [rcv1.hard_thresholding("DP-IGHT", _DELTA), rcv1.vertices(_DELTA), rcv1.two_stages(_DELTA)]
    data = rcv1.splits(data_home, halved=False)
    figure, baseline = rcv1.run(rng, methods, budgets, data, repetitions, redrawn=False)
    curves = {name: [name] for name in ("Frank-Wolfe", "Two stage", "DP-IGHT")}
    found = rcv1.cells(table, figure, baseline, curves, factor, _true_epsilon)
    ranking = order(figure, "DP-IGHT", {name: [name] for name in ("Frank-Wolfe", "Two stage")}, test=STUDENT)
    words, rows = f"{found.computed}; {ranking.computed}", (*found.rows, *ranking.rows)
    return with_charged(Finding(found.verdict, words, rows, charts=rcv1.pictures(table, figure, baseline)), figure)


def _true_epsilon(epsilon: float) -> float:
    return published.ight_corollary_5_8(20_242, 15, 1.0, epsilon, _DELTA).upper
