"""Claimed, computed and audited: DP-IGHT with noise that is computed, and with the noise that its paper prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dptoolkit import plots
from dptoolkit.accounting.report import at_least, at_most, number
from dptoolkit.demo.section import Picture, Section, Table
from dptoolkit.solvers.base import Plan

if TYPE_CHECKING:
    from dptoolkit.audit import AuditReport

EPSILON, DELTA = 4.0, 1e-5
# A number of trials, not of seconds, so that the results are the same every time.
TRIALS = 60_000
CONFIDENCE = 0.9999


@dataclass(frozen=True)
class Audited:
    """A plan that is said to be (EPSILON, DELTA)-DP, and what an audit of it found."""

    name: str
    plan: Plan
    report: AuditReport

    def row(self) -> list[str]:
        """Cells of the table."""
        right = self.report.guesses.correct / self.report.guesses.made
        epsilon = at_most(self.plan.guarantee.epsilon(DELTA))
        return [self.name, number(EPSILON), epsilon, at_least(self.report.epsilon_lower), f"{100 * right:.1f} %",
                self.report.verdict]  # fmt: skip


def _fit_and_audit(name: str, published: bool) -> Audited:
    # Imported here: audits load solvers and optimisers, which the rest of the command does without.
    from dptoolkit.audit import audit, presets

    plan = presets.plan("dp_ight", EPSILON, DELTA, published=published)
    report = audit(
        plan, presets.pair(plan), presets.claim(plan), trials=TRIALS, confidence=CONFIDENCE, delta=DELTA, rng=0
    )
    return Audited(name, plan, report)


def audited() -> Section:
    """DP-IGHT at a claimed epsilon of 4: with tight noise, and with the paper's."""
    audits = (_fit_and_audit("tight", False), _fit_and_audit("published", True))
    header = ["noise", "claimed", "computed, at most", "audited, at least", "right guesses", "the audit says"]
    caption = f"DP-IGHT, epsilon at delta {DELTA:g}: claimed, computed and audited"
    return Section(
        "Claimed, computed, audited",
        f"An audit trains the same model {TRIALS:,} times, each time on one of two data sets that differ in one "
        "record, and guesses from the weights which one it was. The more guesses are right, the less privacy there can "
        f"be: that gives a lower bound on epsilon, here with confidence {CONFIDENCE:g}, from runs of the program "
        f"itself. Both models claim epsilon {EPSILON:g}. With tight noise the audit comes close to the claim from "
        "below. The noise that the paper prints is too small: the audit finds more than is claimed, and stays below "
        "what is computed. In the picture a curve below the dashed line means better guesses than the claim allows.",
        [Table(caption, header, [a.row() for a in audits])],
        [Picture("audits", "Errors of the best guesses against the least that the claim allows", _figure(audits))],
    )


def _figure(audits: tuple[Audited, ...]) -> Any:
    figure, axes = plots.grid(1, len(audits), f"How well two data sets are told apart, claimed epsilon {EPSILON:g}")
    for ax, a in zip(axes, audits, strict=True):
        detail = f"audited epsilon at least {at_least(a.report.epsilon_lower)}: {a.report.verdict}"
        plots.describe(ax, f"{a.name.capitalize()} noise", detail, "false positives", "false negatives")
        plots.trade_off_curve(ax, a.report)
    # The lines are named in legends: no room is needed beside the axes.
    figure.subplots_adjust(right=0.98, wspace=0.22)
    return figure
