"""The written reports: results as JSON, one page of Markdown, and one page of HTML that needs no other file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from dptoolkit.distributed.sweeps import write_whole
from paper_checks import family, html
from paper_checks.claims import Paper
from paper_checks.records import Record
from paper_checks.report import summary, values
from paper_checks.run import Settings
from paper_checks.verdict import VERDICTS

# Findings on the front page.
_FRONT = 10


@dataclass(frozen=True)
class Page:
    """What the written reports show: entries in order, the papers, the command and the day."""

    entries: list[dict[str, Any]]
    papers: Sequence[Paper]
    command: str
    day: str

    @property
    def counts(self) -> Counter[str]:
        """Entries by verdict, in the order of the table of verdicts."""
        counts = Counter(entry["verdict"] for entry in self.entries)
        return Counter({word: counts[word] for word in VERDICTS if counts[word]})

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What is worth knowing first. A sentence about a verdict that has changed is left out: it may not hold."""
        ranked = [entry for entry in self.entries if entry["rank"] and entry["as_expected"]]
        return sorted(ranked, key=lambda entry: entry["rank"])[:_FRONT]

    @property
    def tests(self) -> str:
        """How many tests the rankings make, and the error rate that all of them share; empty without any."""
        ranked = [item for paper in self.papers for item in paper.items if item.tests]
        if not ranked:
            return ""
        words = (
            f"Orders rest on {sum(item.tests for item in ranked)} tests in {len(ranked)} items. The chance that any of "
            f"them is wrong is at most {family.LEVEL:.0%}: each item has one part in {family.ITEMS} of it, whichever "
            "are run."
        )
        if again := [item.id for item in ranked if item.looks > 1]:
            words += f" After a first look more data sets were taken for {', '.join(again)}: each counts as two items."
        return words

    def of(self, paper: Paper) -> list[dict[str, Any]]:
        """The entries of one paper."""
        return [entry for entry in self.entries if entry["paper"] == paper.name]


def write_pages(
    folder: Path, records: Sequence[Record], papers: Sequence[Paper], settings: Settings, names: Sequence[str]
) -> None:
    """Write report.json, report.md, cells.md and report.html into ``folder``."""
    page = Page(summary(records), papers, _command(settings, names), date.today().isoformat())
    write_whole(folder / "report.json", json.dumps(list(records), indent=2) + "\n")
    write_whole(folder / "report.md", markdown(page))
    write_whole(folder / "cells.md", cells(page))
    write_whole(folder / "report.html", html.page(page))


def _command(settings: Settings, names: Sequence[str]) -> str:
    words = ["python -m paper_checks", *names]
    words += [f"--tier {settings.tier}"] if settings.tier != "fast" else []
    words += ["--data FOLDER"] if settings.data_home else []
    words += [f"--seed {settings.seed}"] if settings.seed else []
    return " ".join(words)


def markdown(page: Page) -> str:
    """The report as one page of Markdown."""
    lines = [
        "# What five papers claim, and what is true", "",
        f"Written by `{page.command}` on {page.day}. Do not edit: the next run replaces it.", "",
        _total(page), "", *([page.tests, ""] if page.tests else []), "| verdict | entries | meaning |", "|---|---|---|",
        *(f"| {word} | {count} | {VERDICTS[word].meaning} |" for word, count in page.counts.items()), "",
    ]  # fmt: skip
    if page.findings:
        lines += ["## Worth knowing first", ""]
        lines += [
            f"{i}. {entry['finding']} ({entry['claim']}: {entry['verdict']})"
            for i, entry in enumerate(page.findings, 1)
        ]
        lines += [""]
    for paper in page.papers:
        lines += _section(page, paper)
    return "\n".join(lines).rstrip() + "\n"


def _total(page: Page) -> str:
    changed = [entry["claim"] for entry in page.entries if not entry["as_expected"]]
    end = f"CHANGED: {', '.join(changed)}." if changed else "Every verdict is the expected one."
    return f"{len(page.entries)} claims and items of {len(page.papers)} sources. {end}"


def _section(page: Page, paper: Paper) -> list[str]:
    lines = [f"## {paper.title or paper.name}", "", f"[{paper.name}]({paper.name}/README.md)", ""]
    lines += ["| item | where | published | true or measured | verdict |", "|---|---|---|---|---|"]
    for entry in page.of(paper):
        name = f"{entry['claim']}" + (f" ({entry['item']})" if entry["item"] not in ("", entry["claim"]) else "")
        cells = (name, entry["where"], entry["published"], entry["computed"], f"**{entry['verdict']}**")
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    shown = {entry["claim"] for entry in page.of(paper)}
    pending = {item.id: item.pending for item in paper.items if not item.judged}
    # Items of this tier may be left out on the command line; those of hours are never part of a shorter run.
    pending |= {item.id: "slow tier" for item in paper.items if item.tier == "slow" and item.id not in shown}
    if pending:
        lines += ["", "Not judged:", ""]
        reasons = dict.fromkeys(pending.values())
        lines += [f"- {reason}: {', '.join(id for id, own in pending.items() if own == reason)}." for reason in reasons]
    return [*lines, ""]


def cells(page: Page) -> str:
    """Every number behind the items on tables, beside the printed one, as a page of Markdown."""
    lines = [
        "# Tables of the papers, cell by cell", "",
        f"Written by `{page.command}` on {page.day}. Do not edit: the next run replaces it.", "",
    ]  # fmt: skip
    for entry in page.entries:
        if not entry["where"].startswith("Table") or not entry.get("rows"):
            continue
        lines += [f"## {entry['claim']}: {entry['where']}, {entry['verdict']}", ""]
        lines += ["| cell | printed or expected | true or measured | agrees |", "|---|---|---|---|"]
        for row in entry["rows"]:
            found = (row["label"], *values(row), "yes" if row["agrees"] else "no")
            lines.append("| " + " | ".join(_cell(text) for text in found) + " |")
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*") if not text.startswith("**") else text
