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
        """The differences from the expectation, in words; empty if there are none."""
        verdict, expected, tolerance = self.verdict, self.point, self.claim.tolerance
        changes = []
        if verdict.kind != expected.verdict:
            changes.append(f"verdict {verdict.kind}, expected {expected.verdict}")
        if expected.factor is not None and not _close(verdict.factor, expected.factor, tolerance):
            changes.append(f"factor {verdict.factor:.6g}, expected {expected.factor:g}")
        if expected.truth is not None and not _close(verdict.truth, expected.truth, tolerance):
            changes.append(f"truth {verdict.truth:.6g}, expected {expected.truth:g}")
        return changes + self._audit_changes()

    def _audit_changes(self) -> list[str]:
        audit, expected = self.audited, self.point.audited
        if audit is None or expected is None:
            return []
        changes = []
        # Accounting and audit contradict each other: one of them is wrong.
        if audit.in_currency and not audit.lower <= self.verdict.upper:
            changes.append(f"audited {audit.lower:.6g}, above the truth {self.verdict.upper:.6g}")
        if not audit.lower <= audit.reach:
            changes.append(f"audited {audit.lower:.6g}, above the {audit.reach:.6g} that its pair reaches")
        if audit.lower < expected:
            changes.append(f"audited {audit.lower:.6g}, expected at least {expected:g}")
        if self.point.refuted and not audit.lower > audit.claimed:
            changes.append(f"audited {audit.lower:.6g}, expected more than the claimed {audit.claimed:g}")
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


def _close(value: float, expected: float, tolerance: float) -> bool:
    if math.isnan(expected) or math.isinf(expected):
        return value == expected or (math.isnan(value) and math.isnan(expected))
    return abs(value - expected) <= tolerance * abs(expected)
