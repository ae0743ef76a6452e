"""How epsilon grows with the number of releases, by every way to account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dptoolkit import plots
from dptoolkit.accounting import Event, ExponentialMechanism, Gaussian, Repeated, Subsampled, account
from dptoolkit.accounting.report import at_most
from dptoolkit.demo.section import Picture, Section, Table

DELTA = 1e-5
COUNTS = (*(m * 10**k for k in range(4) for m in (1, 2, 5)), 10_000)
TABLE_COUNTS = (1, 10, 100, 1_000, 10_000)
# The recursion for selections takes under a second up to here, half a minute at 10,000.
RECURSION_LIMIT = 1_000
NOISE, RATE = 1.5, 0.01

Curves = Mapping[str, Sequence[float]]  # by the name of the line, one number for each count


@dataclass(frozen=True)
class Scenario:
    """A step that is repeated T times, and the lines to draw: name -> (step to charge, method)."""

    title: str
    detail: str
    lines: Mapping[str, tuple[Event, str]]

    def curves(self) -> Curves:
        """Epsilon after each of COUNTS, for each line."""
        return {name: _curve(*line) for name, line in self.lines.items()}


def _curve(step: Event, method: str) -> list[float]:
    counts = [c for c in COUNTS if method != "bounded-range" or c <= RECURSION_LIMIT]
    return [account(Repeated(step, count), method).epsilon(DELTA) for count in counts]


_LOOKS = {
    "PLD": 0, "RDP": 1, "zCDP": 2, "zCDP, unsampled": 2, "optimal": 3, "advanced": 4, "basic": 5,
    "optimal selection": 6,
}  # fmt: skip


def _theorems(step: Event) -> dict[str, tuple[Event, str]]:
    return {name: (step, name) for name in ("basic", "advanced", "optimal")}


def _full_batch() -> Scenario:
    step = Gaussian(50.0)
    moments = {name: (step, name.lower()) for name in ("zCDP", "RDP", "PLD")}
    return Scenario("Gaussian steps, full batch", "noise multiplier 50", _theorems(step) | moments)


def _sampled(scheme: str, title: str) -> Scenario:
    step = Subsampled(Gaussian(NOISE), scheme, RATE)
    # No zCDP bound knows of sampling: charging the unsampled step is what it offers.
    moments = {"zCDP, unsampled": (step.event, "zcdp"), "RDP": (step, "rdp"), "PLD": (step, "pld")}
    return Scenario(title, f"rate {RATE:g}, noise multiplier {NOISE:g}", _theorems(step) | moments)


def _selections() -> Scenario:
    step = ExponentialMechanism(0.1)
    moments = {name: (step, name.lower()) for name in ("zCDP", "RDP", "PLD")}
    best = {"optimal selection": (step, "bounded-range")}
    return Scenario("Selections", "exponential mechanism, epsilon 0.1 each", _theorems(step) | moments | best)


def composition() -> Section:
    """Epsilon after T releases by basic, advanced and optimal composition, zCDP, RDP and PLD."""
    scenarios = (
        _full_batch(),
        _sampled("poisson", "Gaussian steps, Poisson batches"),
        _sampled("without-replacement", "Gaussian steps, batches without replacement"),
        _selections(),
    )
    results = [(scenario, scenario.curves()) for scenario in scenarios]
    return Section(
        "Epsilon after T releases",
        f"Every number is an epsilon that holds at delta {DELTA:g} for the same T releases: the lowest is the tightest "
        "proof. Basic, advanced and optimal composition know only the (epsilon, delta) of each step; zCDP, RDP and PLD "
        "know more about it. zCDP knows nothing of sampling, so it charges the unsampled step. Optimal selection is "
        f"the recursion for bounded-range mechanisms, computed up to T = {RECURSION_LIMIT:,}.",
        [_composition_table(scenario, curves) for scenario, curves in results],
        [Picture("composition", "Epsilon against the number of releases T", _composition_figure(results))],
    )


def _composition_table(scenario: Scenario, curves: Curves) -> Table:
    rows = [[f"{count:,}", *(_cell(curve, count) for curve in curves.values())] for count in TABLE_COUNTS]
    return Table(f"{scenario.title} ({scenario.detail}): epsilon at delta {DELTA:g}", ["T", *curves], rows)


def _cell(curve: Sequence[float], count: int) -> str:
    at = COUNTS.index(count)
    return at_most(curve[at]) if at < len(curve) else "-"


def _composition_figure(results: Sequence[tuple[Scenario, Curves]]) -> Any:
    figure, axes = plots.grid(2, 2, f"Epsilon after T releases, at delta {DELTA:g}: lower is a tighter proof")
    for ax, (scenario, curves) in zip(axes, results, strict=True):
        plots.describe(ax, scenario.title, scenario.detail, "T", "epsilon")
        plots.lines(ax, COUNTS, curves, _LOOKS)
    return figure
