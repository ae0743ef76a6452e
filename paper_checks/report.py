"""The verdicts as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dptoolkit.accounting.report import at_least
from paper_checks.audits import Audited
from paper_checks.claims import Claim, Paper
from paper_checks.run import Row

_HEAD = ("at", "claimed", "truth", "audited", "verdict", "noise", "corrected noise")
_WIDTH = 120


def table(rows: Sequence[Row]) -> str:
    """For every claim what it states, one row a point and why; a line of totals at the end."""
    parts = []
    for paper in dict.fromkeys(row.paper for row in rows):
        own = [row for row in rows if row.paper == paper]
        by_id = {row.claim.id: row.claim for row in own}
        texts = (_claim(claim, [row for row in own if row.claim.id == name]) for name, claim in by_id.items())
        parts.append("\n\n".join([paper, *texts]))
    changes = sum(not row.as_expected for row in rows)
    end = "all as expected" if not changes else f"{changes} CHANGED"
    claims = len({(row.paper, row.claim.id) for row in rows})
    seconds = sum(row.seconds for row in rows)
    return "\n\n".join([*parts, f"{claims} claims at {len(rows)} points in {seconds:.1f} s: {end}"])


def _claim(claim: Claim, rows: Sequence[Row]) -> str:
    """One claim: its statement, a row a point, why the verdicts are as they are, and what has changed."""
    details = dict.fromkeys(row.verdict.detail for row in rows if row.verdict.detail)
    changes = (f"{_at(row)}: {'; '.join(row.changes)}" for row in rows if not row.as_expected)
    lines = [_statement(claim), _grid([_HEAD, *map(_cells, rows)])]
    lines += [_wrapped("why: ", text) for text in (claim.note, *details) if text]
    lines += [_wrapped("NO: ", text) for text in changes]
    return "\n".join(lines)


def listing(papers: Sequence[Paper]) -> str:
    """A list of all claims, and where they stand."""
    return "\n\n".join("\n".join([paper.name, *map(_statement, paper.claims)]) for paper in papers)


def list_json(papers: Sequence[Paper]) -> str:
    """The same for programs."""
    rows = (
        {"paper": paper.name, "claim": claim.id, "where": claim.where, "states": claim.states, "note": claim.note}
        for paper in papers
        for claim in paper.claims
    )
    return json.dumps(list(rows), indent=2)


def _statement(claim: Claim) -> str:
    return _wrapped(f"{claim.id}: ", f"{claim.where} states: {claim.states}")


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(head + text, _WIDTH, subsequent_indent="    ", break_long_words=False)


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


def _audit_record(audit: Audited | None) -> dict[str, Any]:
    if audit is None:
        return {"audited": None, "audited_against": None}
    return {"audited": _number(audit.lower), "audited_against": _number(audit.claimed)}


def _cells(row: Row) -> tuple[str, ...]:
    verdict = row.verdict
    return (
        _at(row), verdict.claimed, _truth(verdict.lower, verdict.upper), _audited(row.audited), verdict.kind,
        _noise(verdict.kind, verdict.factor), _scales(verdict.corrected),
    )  # fmt: skip


def _at(row: Row) -> str:
    return " ".join(f"{k}={_short(v)}" for k, v in row.point.at.items()) or "-"


def _truth(lower: float, upper: float) -> str:
    if math.isnan(upper):
        return "-"
    if math.isnan(lower):
        return f"<= {upper:.4g}"
    if lower == upper or math.isclose(lower, upper, rel_tol=1e-3):
        return f"{upper:.4g}"
    return f"{lower:.4g}..{upper:.4g}"


def _audited(audit: Audited | None) -> str:
    """The lower bound that an audit shows, and beside it the claim that it refutes."""
    if audit is None:
        return "-"
    return at_least(audit.lower) + (f" > {audit.claimed:.4g}" if audit.lower > audit.claimed else "")


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
    """Columns side by side, indented; the first and the last one are wrapped so that rows fit."""
    middle = [max(len(row[i]) for row in rows) for i in range(1, len(rows[0]) - 1)]
    last = min(max(len(row[-1]) for row in rows), 28)
    first = min(max(len(row[0]) for row in rows), _WIDTH - 2 - sum(middle) - last - 2 * (len(middle) + 1))
    widths = [first, *middle, last]
    return "\n".join(_lines(row, widths) for row in rows)


def _lines(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    lines = zip(*(cell + [""] * (height - len(cell)) for cell in cells), strict=True)
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
