"""Computing the verdicts and comparing them with the expected ones."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from paper_checks.audits import Audited
from paper_checks.claims import TIERS, BadClaims, Claim, Paper, Point
from paper_checks.verdict import Verdict

__all__ = ["TIERS", "Row", "run"]


@dataclass(frozen=True)
class Row:
    """One claim at one point: what was expected and what was found."""

    paper: str
    claim: Claim
    point: Point
    verdict: Verdict
    seconds: float
    audited: Audited | None = None

    @property
    def changes(self) -> list[str]:
        """What differs from the expectation, in words; empty if nothing does."""
        found, expected, tolerance = self.verdict, self.point, self.claim.tolerance
        changes = []
        if found.kind != expected.verdict:
            changes.append(f"verdict {found.kind}, expected {expected.verdict}")
        if expected.factor is not None and not _close(found.factor, expected.factor, tolerance):
            changes.append(f"factor {found.factor:.6g}, expected {expected.factor:g}")
        if expected.truth is not None and not _close(found.truth, expected.truth, tolerance):
            changes.append(f"truth {found.truth:.6g}, expected {expected.truth:g}")
        return changes + self._audit_changes()

    def _audit_changes(self) -> list[str]:
        found, expected = self.audited, self.point.audited
        if found is None or expected is None:
            return []
        changes = []
        # Accounting and audit contradict each other: one of them is wrong.
        if found.in_currency and not found.lower <= self.verdict.upper:
            changes.append(f"audited {found.lower:.6g}, above the truth {self.verdict.upper:.6g}")
        if not found.lower <= found.reach:
            changes.append(f"audited {found.lower:.6g}, above the {found.reach:.6g} that its pair reaches")
        if found.lower < expected:
            changes.append(f"audited {found.lower:.6g}, expected at least {expected:g}")
        if self.point.refuted and not found.lower > found.claimed:
            changes.append(f"audited {found.lower:.6g}, expected more than the claimed {found.claimed:g}")
        return changes

    @property
    def as_expected(self) -> bool:
        """Whether verdict, factor, truth and audit are the expected ones."""
        return not self.changes


def run(papers: Iterable[Paper], tier: str) -> Iterator[Row]:
    """Every point of the tier, in order, each as soon as it is computed."""
    tiers = TIERS[: TIERS.index(tier) + 1]
    return (
        _row(paper.name, claim, point)
        for paper in papers
        for claim in paper.claims
        for point in claim.points
        if point.tier in tiers
    )


def _row(paper: str, claim: Claim, point: Point) -> Row:
    start = time.perf_counter()
    at = {**claim.common, **point.at}
    try:
        verdict = claim.check(**at)
        audited = _audit(claim, point, at)
    except (TypeError, ValueError) as problem:
        raise BadClaims(f"{paper}: claim {claim.id!r} at {dict(point.at)}: {problem}") from problem
    return Row(paper, claim, point, verdict, time.perf_counter() - start, audited)


def _audit(claim: Claim, point: Point, at: dict[str, Any]) -> Audited | None:
    if point.audited is None or claim.audit is None:
        return None
    return claim.audit(trials=point.trials or claim.trials, **at)


def _close(found: float, expected: float, tolerance: float) -> bool:
    if math.isnan(expected) or math.isinf(expected):
        return found == expected or (math.isnan(found) and math.isnan(expected))
    return abs(found - expected) <= tolerance * abs(expected)
