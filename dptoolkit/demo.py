"""A report to look at: each section is one function in SECTIONS that returns its words, tables and pictures."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptoolkit import __version__, plots
from dptoolkit.accounting import Event, ExponentialMechanism, Gaussian, Repeated, Subsampled, account
from dptoolkit.accounting.report import number, table

DELTA = 1e-5


@dataclass(frozen=True)
class Table:
    """Cells are text."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure that is saved as <name>.png."""

    name: str
    caption: str
    figure: Any


@dataclass(frozen=True)
class Section:
    """One subject of the report."""

    title: str
    words: str
    tables: Sequence[Table]
    pictures: Sequence[Picture]


# --- how epsilon grows with the number of releases --------------------------------------------------

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
    """What basic, advanced and optimal composition, zCDP, RDP and PLD give for T releases."""
    scenarios = (
        _full_batch(),
        _sampled("poisson", "Gaussian steps, Poisson batches"),
        _sampled("without-replacement", "Gaussian steps, batches without replacement"),
        _selections(),
    )
    found = [(scenario, scenario.curves()) for scenario in scenarios]
    return Section(
        "Epsilon after T releases",
        f"Every number is an epsilon that holds at delta {DELTA:g} for the same T releases: the lowest is the tightest "
        "proof. Basic, advanced and optimal composition know only the (epsilon, delta) of each step; zCDP, RDP and PLD "
        "know more about it. zCDP knows nothing of sampling, so it charges the unsampled step. Optimal selection is "
        f"the recursion for bounded-range mechanisms, computed up to T = {RECURSION_LIMIT:,}.",
        [_composition_table(scenario, curves) for scenario, curves in found],
        [Picture("composition", "Epsilon against the number of releases T", _composition_figure(found))],
    )


def _composition_table(scenario: Scenario, curves: Curves) -> Table:
    rows = [[f"{count:,}", *(_cell(curve, count) for curve in curves.values())] for count in TABLE_COUNTS]
    return Table(f"{scenario.title} ({scenario.detail}): epsilon at delta {DELTA:g}", ["T", *curves], rows)


def _cell(curve: Sequence[float], count: int) -> str:
    at = COUNTS.index(count)
    return number(curve[at]) if at < len(curve) else "-"


def _composition_figure(found: Sequence[tuple[Scenario, Curves]]) -> Any:
    figure, axes = plots.grid(2, 2, f"Epsilon after T releases, at delta {DELTA:g}: lower is a tighter proof")
    for ax, (scenario, curves) in zip(axes, found, strict=True):
        plots.describe(ax, scenario.title, scenario.detail, "T", "epsilon")
        plots.lines(ax, COUNTS, curves, _LOOKS)
    return figure


SECTIONS: tuple[Callable[[], Section], ...] = (composition,)


# --- the report -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What was written, and where."""

    folder: Path
    sections: tuple[Section, ...]

    @property
    def tables(self) -> list[Table]:
        return [t for section in self.sections for t in section.tables]

    @property
    def pictures(self) -> list[Picture]:
        return [p for section in self.sections for p in section.pictures]

    def text(self) -> str:
        """For the terminal."""
        blocks = [f"{t.caption}\n\n{table(t.header, t.rows)}" for t in self.tables]
        return "\n\n".join([*blocks, f"With plots: {self.folder / 'report.html'} and {self.folder / 'report.md'}"])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the files and the tables."""
        names = ["report.html", "report.md", *(f"{p.name}.png" for p in self.pictures)]
        tables = [{"caption": t.caption, "header": list(t.header), "rows": list(t.rows)} for t in self.tables]
        return {"files": [str(self.folder / name) for name in names], "tables": tables}


def run(out: Path) -> Report:
    """Compute every section and write report.html, report.md and the plots into ``out``."""
    plots.require()
    out.mkdir(parents=True, exist_ok=True)
    report = Report(out, tuple(section() for section in SECTIONS))
    for picture in report.pictures:
        plots.save(picture.figure, out / f"{picture.name}.png")
    (out / "report.md").write_text(_markdown(report), encoding="utf-8")
    (out / "report.html").write_text(_page(report), encoding="utf-8")
    return report


def _markdown(report: Report) -> str:
    blocks = [f"# {_HEADING}"]
    for section in report.sections:
        blocks += [f"## {section.title}", section.words]
        blocks += [f"![{p.caption}]({p.name}.png)" for p in section.pictures]
        for t in section.tables:
            lines = [t.header, ["---"] * len(t.header), *t.rows]
            blocks += [f"**{t.caption}**", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(blocks) + "\n"


def _page(report: Report) -> str:
    blocks = [_HTML_HEAD, f"<h1>{_HEADING}</h1>"]
    for section in report.sections:
        blocks += [f"<h2>{html.escape(section.title)}</h2>", f"<p>{html.escape(section.words)}</p>"]
        blocks += [f'<img src="{p.name}.png" alt="{html.escape(p.caption)}">' for p in section.pictures]
        blocks += [_html_table(t) for t in section.tables]
    return "\n".join(blocks) + "\n"


def _html_table(t: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "\n".join(row(cells, "td") for cells in t.rows)
    return f"<table>\n<caption>{html.escape(t.caption)}</caption>\n{row(t.header, 'th')}\n{body}\n</table>"


_HEADING = f"dptoolkit {__version__}: what the ways to account give"
_HTML_HEAD = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{_HEADING}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
img {{ max-width: 100%; }}
table {{ border-collapse: collapse; margin: 1.5rem 0; }}
caption {{ text-align: left; font-weight: bold; padding-bottom: .3rem; }}
th, td {{ text-align: right; padding: .2rem .9rem; border-bottom: 1px solid #ddd; }}
</style>"""
