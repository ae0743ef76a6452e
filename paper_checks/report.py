"""The verdicts as text for people and as JSON for programs, made from records."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dptoolkit.accounting.report import at_least
from paper_checks.claims import Claim, Paper
from paper_checks.files import available
from paper_checks.findings import short
from paper_checks.items import Item
from paper_checks.records import Record
from paper_checks.verdict import VERDICTS, overall, worst

_HEAD = ("at", "claimed", "truth", "audited", "verdict", "noise", "corrected noise")
_WIDTH = 120


def table(rows: Sequence[Record], seconds: float) -> str:
    """For every claim what it states, one row per point and why; every item; a line of totals at the end."""
    parts = []
    for paper in dict.fromkeys(row["paper"] for row in rows):
        own = [row for row in rows if row["paper"] == paper]
        names = dict.fromkeys(row["claim"] for row in own)
        texts = (_entry([row for row in own if row["claim"] == name]) for name in names)
        parts.append("\n\n".join([paper, *texts]))
    changes = sum(not row["as_expected"] for row in rows)
    end = "all as expected" if not changes else f"{changes} CHANGED"
    points = [row for row in rows if row["kind"] == "claim"]
    claims = len({(row["paper"], row["claim"]) for row in points})
    total = f"{claims} claims at {len(points)} points and {len(rows) - len(points)} items in {seconds:.1f} s: {end}"
    return "\n\n".join([*parts, total])


def _entry(rows: Sequence[Record]) -> str:
    return _item(rows[0]) if rows[0]["kind"] == "item" else _claim(rows)


def _claim(rows: Sequence[Record]) -> str:
    """One claim: its statement, a row per point, why the verdicts are as they are, and what has changed."""
    details = dict.fromkeys(row["detail"] for row in rows if row["detail"])
    changes = (f"{_at(row)}: {'; '.join(row['changes'])}" for row in rows if not row["as_expected"])
    lines = [_statement(rows[0]), _grid([_HEAD, *map(_cells, rows)])]
    lines += [_wrapped("why: ", text) for text in (rows[0]["note"], *details) if text]
    lines += [_wrapped("NO: ", text) for text in changes]
    return "\n".join(lines)


def _item(row: Record) -> str:
    """One item: its statement, what is printed, what was computed, the verdict and why."""
    lines = [_statement(row)]
    lines += [_wrapped(f"  {key}: ", row[key]) for key in ("published", "computed", "verdict")]
    lines += [_wrapped("  why: ", text) for text in (row["note"], row["detail"]) if text]
    lines += [_wrapped("NO: ", text) for text in row["changes"]]
    return "\n".join(lines)


def listing(papers: Sequence[Paper], data_home: str | None = None) -> str:
    """All claims and items: where they stand, and the expected verdict or the reason why there is none; then counts."""
    parts = []
    for paper in papers:
        lines = [_wrapped(f"{claim.id}: ", f"{claim.where} states: {claim.states}") for claim in paper.claims]
        lines += [_wrapped(f"{item.id}: ", _listed(item, data_home)) for item in paper.items]
        parts.append("\n".join([paper.name, *lines]))
    return "\n\n".join([*parts, _counts(papers)])


def _listed(item: Item, data_home: str | None) -> str:
    words = f"{item.where} states: {item.states} [{item.tier}; {item.verdict or 'not judged: ' + item.pending}]"
    missing = [name for name in item.data if not available(name, data_home)]
    return words + (f" Needs {', '.join(missing)}: name the folder with --data." if missing else "")


def _counts(papers: Sequence[Paper]) -> str:
    """How many items are judged, by paper and by verdict, and why the others are not."""
    lines = []
    for paper in papers:
        judged, pending = counted(paper)
        lines.append(
            f"{paper.name}: {sum(judged.values())} of {sum(judged.values()) + sum(pending.values())} items judged"
        )
        lines.append(_wrapped("  ", _tally(judged)))
        lines += [_wrapped("  not judged: ", _tally(pending))] if pending else []
    totals = [counted(paper) for paper in papers]
    judged = sum((first for first, _ in totals), Counter[str]())
    pending = sum((second for _, second in totals), Counter[str]())
    lines.append(f"all: {sum(judged.values())} of {sum(judged.values()) + sum(pending.values())} items judged")
    lines.append(_wrapped("  ", _tally(judged)))
    return "\n".join(lines)


def counted(paper: Paper) -> tuple[Counter[str], Counter[str]]:
    """The items of a paper by expected verdict, and those not judged by reason. Claims of one item count as one."""
    verdicts: dict[str, list[str]] = {}
    for claim in paper.claims:
        verdicts.setdefault(claim.item or claim.id, []).append(_expected(claim))
    judged = Counter(worst(kinds) for kinds in verdicts.values())
    judged.update(item.verdict for item in paper.items if item.judged)
    return judged, Counter(item.pending for item in paper.items if not item.judged)


def _expected(claim: Claim) -> str:
    """The expected verdict on a whole claim."""
    return overall((point.at, point.verdict) for point in claim.points)


def _tally(counts: Counter[str]) -> str:
    order = [*(word for word in VERDICTS if word in counts), *(key for key in counts if key not in VERDICTS)]
    return ", ".join(f"{counts[key]} {key}" for key in order)


def list_json(papers: Sequence[Paper]) -> str:
    """The same for programs."""
    rows = [
        entry
        for paper in papers
        for entry in (*map(_listed_claim, paper.claims), *map(_listed_item, paper.items))
        if entry.update(paper=paper.name) is None
    ]
    return json.dumps(rows, indent=2)


def _listed_claim(claim: Claim) -> dict[str, Any]:
    return {
        "kind": "claim", "claim": claim.id, "item": claim.item, "where": claim.where, "states": claim.states,
        "note": claim.note, "verdict": _expected(claim), "pending": "",
    }  # fmt: skip


def _listed_item(item: Item) -> dict[str, Any]:
    return {
        "kind": "item", "claim": item.id, "item": item.id, "where": item.where, "states": item.states,
        "note": item.note, "tier": item.tier, "verdict": item.verdict, "pending": item.pending,
    }  # fmt: skip


def _statement(row: Record) -> str:
    return _wrapped(f"{row['claim']}: ", f"{row['where']} states: {row['states']}")


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(head + text, _WIDTH, subsequent_indent="    ", break_long_words=False)


def as_json(rows: Sequence[Record]) -> str:
    """Every record; numbers that JSON lacks are strings."""
    return json.dumps(list(rows), indent=2)


def _cells(row: Record) -> tuple[str, ...]:
    return (_at(row), row["claimed"], truth(row), audited(row), row["verdict"], noise(row), scales(row["corrected"]))


def _at(row: Record) -> str:
    return " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in row["at"].items()) or "-"


def truth(row: Record) -> str:
    """The bounds on what the printed noise gives."""
    lower, upper = float(row["lower"]), float(row["upper"])
    if math.isnan(upper):
        return "-"
    if math.isinf(upper):
        return "no bound" if math.isnan(lower) else "infinite" if math.isinf(lower) else f"{lower:.4g} or more"
    if math.isnan(lower):
        return f"<= {upper:.4g}"
    if lower == upper or math.isclose(lower, upper, rel_tol=1e-3):
        return f"{upper:.4g}"
    return f"{lower:.4g}..{upper:.4g}"


def audited(row: Record) -> str:
    """The lower bound that an audit shows, and beside it the claim that it refutes."""
    if row["audited"] is None:
        return "-"
    lower, claimed = float(row["audited"]), float(row["audited_against"])
    return at_least(lower) + (f" > {claimed:.4g}" if lower > claimed else "")


def noise(row: Record) -> str:
    """Printed noise against needed noise."""
    factor = float(row["factor"])
    if math.isnan(factor):
        return "-"
    if factor == 0:
        return "none is enough"
    return f"{factor:.4g}x needed" if factor >= 1 else f"short {1 / factor:.4g}x"


def scales(corrected: Mapping[str, Any]) -> str:
    """The smallest sufficient noise."""
    finite = {name: float(scale) for name, scale in corrected.items() if math.isfinite(float(scale))}
    return ", ".join(f"{name} {scale:.3g}" for name, scale in finite.items()) or "-"


def summary(rows: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry per claim or item in order, with one verdict and one line for what is published and what is true."""
    entries = []
    for paper, name in dict.fromkeys((row["paper"], row["claim"]) for row in rows):
        own = [row for row in rows if (row["paper"], row["claim"]) == (paper, name)]
        first = own[0]
        if first["kind"] == "item":
            entries.append({**first, "points": []})
            continue
        verdict = overall((row["at"], row["verdict"]) for row in own)
        least = worst(row["verdict"] for row in own)
        shown = next(row for row in own if row["verdict"] == least)
        text = f"{truth(shown)}" if truth(shown) != "-" else noise(shown)
        changes = [change for row in own for change in row["changes"]]
        entries.append({
            **first, "verdict": verdict, "published": f"{shown['claimed']} at {_at(shown)}", "computed": text,
            "rows": [], "points": own, "changes": changes, "as_expected": not changes,
            "detail": "; ".join(dict.fromkeys(row["detail"] for row in own if row["detail"])),
        })  # fmt: skip
    return entries


def values(row: Mapping[str, Any]) -> tuple[str, str]:
    """Published and computed value of a comparison, as text."""
    return _plain(row["published"]), _plain(row["computed"])


_NO_DIGITS = {"inf": "infinite", "-inf": "minus infinite", "nan": "not a number"}


def _plain(value: Any) -> str:
    """A value of a record in words: numbers that JSON lacks are strings there, alone or in a sentence."""
    return re.sub(r"(?<!\S)(-?inf|nan)(?!\w)", lambda found: _NO_DIGITS[found[0]], short(value))


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
