"""The verdicts as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dptoolkit.accounting.report import at_least
from paper_checks.audits import Audited
from paper_checks.run import Row

_HEAD = ("claim", "at", "claimed", "truth", "audited", "verdict", "noise", "corrected noise", "as expected")


def table(rows: Sequence[Row]) -> str:
    """A table a paper, one row a point, and a line of totals."""
    parts = []
    for paper in dict.fromkeys(row.paper for row in rows):
        own = [row for row in rows if row.paper == paper]
        parts.append(f"{paper}\n{_grid([_HEAD, *map(_cells, own)])}")
    changed = sum(not row.as_expected for row in rows)
    end = "all as expected" if not changed else f"{changed} CHANGED"
    claims = len({(row.paper, row.claim.id) for row in rows})
    seconds = sum(row.seconds for row in rows)
    return "\n\n".join([*parts, f"{claims} claims at {len(rows)} points in {seconds:.1f} s: {end}"])


def as_json(rows: Sequence[Row]) -> str:
    """The same, with every number; numbers that JSON lacks are strings."""
    return json.dumps([_record(row) for row in rows], indent=2)


def _record(row: Row) -> dict[str, Any]:
    verdict = row.verdict
    return {
        "paper": row.paper, "claim": row.claim.id, "where": row.claim.where, "states": row.claim.states,
        "at": dict(row.point.at), "claimed": verdict.claimed, "lower": _number(verdict.lower),
        "upper": _number(verdict.upper), **_audit_record(row.audited), "verdict": verdict.kind,
        "factor": _number(verdict.factor),
        "corrected": {name: _number(scale) for name, scale in verdict.corrected.items()},
        "detail": verdict.detail, "as_expected": row.as_expected, "changes": row.changes,
    }  # fmt: skip


def _audit_record(found: Audited | None) -> dict[str, Any]:
    if found is None:
        return {"audited": None, "audited_against": None}
    return {"audited": _number(found.lower), "audited_against": _number(found.claimed)}


def _cells(row: Row) -> tuple[str, ...]:
    verdict = row.verdict
    return (
        row.claim.id, " ".join(f"{k}={_short(v)}" for k, v in row.point.at.items()), verdict.claimed,
        _truth(verdict.lower, verdict.upper), _audited(row.audited), verdict.kind, _noise(verdict.kind, verdict.factor),
        _scales(verdict.corrected), "yes" if row.as_expected else "NO: " + "; ".join(row.changes),
    )  # fmt: skip


def _truth(lower: float, upper: float) -> str:
    if math.isnan(upper):
        return "-"
    if math.isnan(lower):
        return f"<= {upper:.4g}"
    if lower == upper or math.isclose(lower, upper, rel_tol=1e-3):
        return f"{upper:.4g}"
    return f"{lower:.4g}..{upper:.4g}"


def _audited(found: Audited | None) -> str:
    """What an audit shows at least, and beside it the claim that it refutes."""
    if found is None:
        return "-"
    return at_least(found.lower) + (f" > {found.claimed:.4g}" if found.lower > found.claimed else "")


def _noise(kind: str, factor: float) -> str:
    if math.isnan(factor):
        return "-"
    if factor == 0:
        return "none is enough"
    if factor >= 1:
        return f"{factor:.4g}x needed"
    return f"short {1 / factor:.4g}x"


def _scales(scales: Mapping[str, float]) -> str:
    finite = {name: scale for name, scale in scales.items() if math.isfinite(scale)}
    return ", ".join(f"{name} {scale:.3g}" for name, scale in finite.items()) or "-"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _grid(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )
