"""The tables of Wang and Gu 2019 against themselves."""

from __future__ import annotations

import math

from paper_checks.findings import Comparison, Finding, established, lowest, order_established, readings
from paper_checks.tables import Table

_RIVALS = ("Frank-Wolfe", "Two stage")


def ranking_under_both_captions(table: Table, rival: str = "Two stage") -> Finding:
    """Whether the order is established if the brackets are deviations, and if they are standard errors."""
    parts = {
        reading: order_established(established(table, "DP-IGHT", rival, table.facts["trials"], reading), parts=2)
        for reading in ("deviations", "standard errors")
    }
    found = readings(
        [(f"brackets are {name}", "much better", part.computed, part.verdict == "order kept")
         for name, part in parts.items()],
        "; ".join(f"{name}: {part.computed}" for name, part in parts.items()),
        "tie", "Unpaired tests on printed numbers; a paired test is not reported.",
    )  # fmt: skip
    rows = (row for part in parts.values() for row in part.rows)
    return Finding(found.verdict, found.computed, (*found.rows, *rows), found.detail)


def ranking(table: Table) -> Finding:
    """Whether printed means and deviations establish the order."""
    rows = established(table, "DP-IGHT", "Two stage", table.facts["trials"])
    return order_established(rows, "Unpaired tests on printed numbers; a paired test is not reported.")


def binomial_deviations(table: Table, test_rows: int, tolerance: float) -> Finding:
    """Printed deviations of an error rate against the binomial deviation of the test set."""
    rows = []
    for method, deviations in table.deviation.items():
        for name, mean, deviation in zip(table.columns, table.mean[method], deviations, strict=True):
            binomial = math.sqrt(mean * (1 - mean) / test_rows)
            fits = 1 / tolerance <= deviation / binomial <= tolerance
            rows.append(Comparison(f"{method}, {name}", deviation, binomial, fits))
    ratios = [float(row.published) / float(row.computed) for row in rows]
    words = f"printed / binomial deviation: {min(ratios):.2f} to {max(ratios):.2f}"
    return Finding("met" if all(row.agrees for row in rows) else "inconsistent", words, tuple(rows))


def close_and_lowest(table: Table, close: float) -> Finding:
    """Whether DP-IGHT is within a factor of the non-private baseline, and below both rivals."""
    order = lowest(table, "DP-IGHT", _RIVALS)
    ratios = [own / base for own, base in zip(table.mean["DP-IGHT"], table.mean["IGHT"], strict=True)]
    rows = [
        Comparison(f"{name}: ratio to IGHT", f"at most {close:g}", ratio, ratio <= close)
        for name, ratio in zip(table.columns, ratios, strict=True)
    ]
    verdict = "inconsistent" if order.verdict != "order kept" else "met" if all(row.agrees for row in rows) else "worse"
    words = f"ratios to IGHT {', '.join(f'{ratio:.2f}' for ratio in ratios)}; {order.computed}"
    return Finding(verdict, words, (*rows, *order.rows))


def lowest_error(table: Table) -> Finding:
    """Whether DP-IGHT has the lowest printed error of the private methods at every epsilon."""
    return lowest(table, "DP-IGHT", _RIVALS)
