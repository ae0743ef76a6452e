"""Records: what a run found, as dictionaries that JSON can hold. Every report is made from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from paper_checks import charts
from paper_checks.audits import Audited
from paper_checks.claims import Paper
from paper_checks.findings import Finding
from paper_checks.items import Item

if TYPE_CHECKING:
    from paper_checks.run import Row

Record = dict[str, Any]


def of_point(paper: Paper, row: Row) -> Record:
    """The record of a privacy claim at one point."""
    verdict, claim = row.verdict, row.claim
    return {
        "kind": "claim", "paper": paper.name, "title": paper.title, "claim": claim.id, "item": claim.item,
        "where": claim.where, "states": claim.states, "note": claim.note, "why": claim.why,
        "tolerance": claim.tolerance, "tier": row.point.tier, "finding": claim.finding, "rank": claim.rank,
        "at": dict(row.point.at), "claimed": verdict.claimed, "lower": number(verdict.lower),
        "upper": number(verdict.upper), **_audit(row.audited), "verdict": verdict.kind,
        "expected": row.point.verdict, "factor": number(verdict.factor),
        "corrected": {name: number(scale) for name, scale in verdict.corrected.items()},
        "detail": verdict.detail, "as_expected": row.as_expected, "changes": row.changes,
    }  # fmt: skip


def of_item(paper: Paper, item: Item, found: Finding) -> Record:
    """The record of a statement, table, figure or ranking."""
    # Data that are not here are no change of a verdict.
    absent = found.verdict == "no data" and bool(item.data)
    changes = [] if absent or found.verdict == item.verdict else [f"verdict {found.verdict}, expected {item.verdict}"]
    rows = [
        {"label": row.label, "published": number(row.published), "computed": number(row.computed),
         "agrees": bool(row.agrees)}
        for row in found.rows
    ]  # fmt: skip
    return {
        "kind": "item", "paper": paper.name, "title": paper.title, "claim": item.id, "item": item.id,
        "where": item.where, "states": item.states, "note": item.note, "why": item.why, "tolerance": item.tolerance,
        "tier": item.tier, "finding": item.finding, "rank": item.rank, "published": item.published,
        "computes": item.computes, "computed": found.computed, "rows": rows, "marks": list(found.marks),
        "charts": [charts.record(chart) for chart in found.charts], "verdict": found.verdict,
        "expected": item.verdict, "detail": found.detail, "as_expected": not changes, "changes": changes,
    }  # fmt: skip


def _audit(audit: Audited | None) -> Record:
    if audit is None:
        return {"audited": None, "audited_against": None}
    return {"audited": number(audit.lower), "audited_against": number(audit.claimed)}


def number(value: Any) -> Any:
    """A number for JSON: what it lacks (infinities, NaN) becomes a string."""
    if isinstance(value, str):
        return value
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, int) or math.isfinite(value) else str(value)
