"""The tables of Wang and Gu 2020 against themselves."""

from __future__ import annotations

from paper_checks.findings import Comparison, Finding, established, lowest, order_established
from paper_checks.tables import Table

_RIVALS = ("Frank-Wolfe", "Two stage", "DP-IGHT")


def ranking(table: Table) -> Finding:
    """Whether printed means and deviations establish that DPSL-KT is below DP-IGHT."""
    rows = established(table, "DPSL-KT", "DP-IGHT", table.facts["trials"])
    return order_established(rows, "Unpaired tests on printed numbers; a paired test is not reported.")


def close(table: Table, tolerance: float) -> Finding:
    """Ratios of DPSL-KT to the non-private baseline."""
    ratios = [own / base for own, base in zip(table.mean["DPSL-KT"], table.mean["IGHT"], strict=True)]
    rows = tuple(
        Comparison(f"{name}: ratio to IGHT", f"at most {tolerance:g}", ratio, ratio <= tolerance)
        for name, ratio in zip(table.columns, ratios, strict=True)
    )
    words = f"ratios to IGHT {', '.join(f'{ratio:.2f}' for ratio in ratios)}"
    return Finding("met" if all(row.agrees for row in rows) else "worse", words, rows)


def lowest_error(table: Table) -> Finding:
    """Whether DPSL-KT has the lowest printed error of the private methods at every epsilon."""
    return lowest(table, "DPSL-KT", _RIVALS)
