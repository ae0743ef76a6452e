"""The report as one HTML page: front page with counts and findings, then paper by paper. No scripts, no other files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from paper_checks.charts import of_record
from paper_checks.drawing import STYLE, drawn
from paper_checks.findings import MARKS, short
from paper_checks.report import audited, noise, truth, values
from paper_checks.verdict import VERDICTS

if TYPE_CHECKING:
    from paper_checks.claims import Paper
    from paper_checks.pages import Page

_STYLE = """
:root{--good:#1a7f37;--plain:#57606a;--bad:#b42318;--line:#d8dee4;--soft:#f6f8fa;--ink:#1f2328;--paper:#fff}
@media (prefers-color-scheme:dark){:root{--good:#3fb950;--plain:#9198a1;--bad:#ff7b72;--line:#3d444d;--soft:#151b23;
--ink:#e6edf3;--paper:#0d1117}}
:root{color-scheme:light dark}*{box-sizing:border-box}
body{margin:0 auto;max-width:1000px;padding:1rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper)}
h1{font-size:1.8rem;line-height:1.25;margin:.6rem 0}
h2{display:flex;justify-content:space-between;align-items:baseline;gap:.5rem 1rem;margin-top:2.6rem;
border-bottom:2px solid var(--line);font-size:1.3rem;line-height:1.3}
a{color:inherit}code{font-size:.9em;background:var(--soft);padding:.1em .3em;border-radius:4px;overflow-wrap:anywhere}
.badge{display:inline-block;padding:0 .6em;border-radius:1em;color:var(--paper);font-size:.82rem;font-weight:600;
white-space:nowrap}
.good{background:var(--good)}.plain{background:var(--plain)}.bad{background:var(--bad)}
.bar{display:flex;gap:2px;height:.6rem;border-radius:.3rem;overflow:hidden;margin:.3rem 0}
.key{font-size:.85rem;color:var(--plain);margin:.2rem 0 1rem}.key i{display:inline-block;width:.7em;height:.7em;
border-radius:50%;margin-right:.35em}.key span{white-space:nowrap;margin-right:.7em}
.counts{display:grid;grid-template-columns:repeat(auto-fill,minmax(190px,1fr));gap:.4rem;padding:0;list-style:none}
.counts .badge{font-size:.74rem}
.counts li{border:1px solid var(--line);border-radius:6px;padding:.3rem .6rem;display:flex;
justify-content:space-between;align-items:center;gap:.2rem .6rem;flex-wrap:wrap}
.first{padding-left:0;list-style:none;counter-reset:n}.first li{counter-increment:n;margin:.5rem 0;padding-left:2.4rem;
position:relative}.first li::before{content:counter(n);position:absolute;left:0;top:.1rem;width:1.6rem;height:1.6rem;
border-radius:50%;background:var(--soft);border:1px solid var(--line);text-align:center;font-size:.85rem;
line-height:1.5rem;font-weight:600}
.contents{padding:0;list-style:none}.contents>li{border:1px solid var(--line);border-radius:8px;padding:.5rem .8rem;
margin:.5rem 0}.contents ul{padding:0;list-style:none;display:grid;gap:.15rem 1rem;
grid-template-columns:repeat(auto-fill,minmax(min(100%,270px),1fr));font-size:.9rem;margin:.4rem 0}
.contents ul li{display:flex;justify-content:space-between;gap:.5rem;align-items:baseline;min-width:0}
.contents ul a{overflow-wrap:anywhere}.contents .badge{font-size:.7rem}
.card{border:1px solid var(--line);border-left:5px solid var(--plain);border-radius:8px;padding:.7rem 1rem;
margin:1rem 0;scroll-margin-top:1rem}.card:target{outline:2px solid var(--plain)}
.card[data-tone=good]{border-left-color:var(--good)}.card[data-tone=bad]{border-left-color:var(--bad)}
.card h3{margin:0 0 .3rem;font-size:1rem;display:flex;gap:.2rem .6rem;flex-wrap:wrap;align-items:center}
.card h3 span:first-child{overflow-wrap:anywhere}.states{font-size:1.05rem;margin:.2rem 0 .5rem;overflow-wrap:anywhere}
.where{color:var(--plain);font-weight:400}
dl{display:grid;grid-template-columns:9.5rem 1fr;gap:.15rem .8rem;margin:.4rem 0}dt{color:var(--plain)}
dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.88rem}
th,td{border-bottom:1px solid var(--line);padding:.2rem .6rem;text-align:left;vertical-align:top}
summary{cursor:pointer;color:var(--plain)}svg{display:block;margin:.5rem 0;max-width:100%;height:auto}
.no{color:var(--bad);font-weight:600}.up{font-size:.8rem;font-weight:400;white-space:nowrap}
@media (max-width:560px){body{padding:.7rem}dl{grid-template-columns:1fr;gap:0}dt{margin-top:.3rem;font-size:.85rem}
.card{padding:.6rem .7rem}h1{font-size:1.5rem}.counts .badge{font-size:.66rem}.counts>li{padding:.3rem .45rem}
.counts{grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}}
"""
# The colours of verdicts, in words.
_TONES = {"good": "for the claim", "plain": "neither", "bad": "against the claim"}


def page(content: Page) -> str:
    """The whole page."""
    parts = [_front(content), *(_paper(content, paper) for paper in content.papers)]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    title = "What five papers claim, and what is true"
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>{title}</title><style>{_STYLE}{STYLE}</style></head>'
        f'<body><h1 id="top">{title}</h1>{"".join(parts)}</body></html>\n'
    )


def _front(content: Page) -> str:
    changed = [entry for entry in content.entries if not entry["as_expected"]]
    state = (
        f'<p class="no">{len(changed)} verdicts have changed: ' + ", ".join(_link(entry) for entry in changed) + "</p>"
        if changed
        else "<p>Every verdict is the expected one.</p>"
    )
    counts = "".join(
        f'<li title="{escape(VERDICTS[word].meaning)}">{_badge(word)}<b>{count}</b></li>'
        for word, count in content.counts.items()
    )
    meanings = "".join(
        f"<tr><td>{_badge(word)}</td><td>{escape(VERDICTS[word].meaning)}</td></tr>" for word in VERDICTS
    )
    return (
        f"<p>{len(content.entries)} claims and items of {len(content.papers)} sources, each beside what exact "
        f"accounting, arithmetic or a run of the same algorithm gives. Written by "
        f"<code>{escape(content.command)}</code> on {content.day}. {escape(content.tests)} {_of_intervals(content)}</p>"
        f"{state}"
        f"{_bar(content.entries)}{_key(content.entries)}<ul class=counts>{counts}</ul>"
        f"<details><summary>What the verdicts mean</summary><div class=wide><table>{meanings}</table></div></details>"
        f"{_findings(content)}{_contents(content)}"
    )


def _of_intervals(content: Page) -> str:
    """What the intervals of curves leave out: another run of the same item also chooses settings anew."""
    if not any(entry.get("charts") for entry in content.entries):
        return ""
    return "Intervals of curves are for the chosen settings and, where rows are divided once, for that division."


def _tones(entries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counts = Counter(VERDICTS[entry["verdict"]].tone for entry in entries)
    return {tone: counts[tone] for tone in _TONES}


def _bar(entries: Sequence[Mapping[str, Any]]) -> str:
    """The shares of verdicts for a claim, neither, and against it; the key beside it has the numbers."""
    parts = "".join(
        f'<span class="{tone}" style="flex:{count}"></span>' for tone, count in _tones(entries).items() if count
    )
    return f'<div class=bar aria-hidden="true">{parts}</div>'


def _key(entries: Sequence[Mapping[str, Any]]) -> str:
    words = "".join(
        f'<span><i class="{tone}"></i>{count} {_TONES[tone]}</span> ' for tone, count in _tones(entries).items()
    )
    return f"<p class=key>{words}</p>"


def _findings(content: Page) -> str:
    if not content.findings:
        return ""
    rows = "".join(
        f"<li>{escape(entry['finding'])} {_badge(entry['verdict'])} {_link(entry)}</li>" for entry in content.findings
    )
    return f"<h2>Worth knowing first</h2><ol class=first>{rows}</ol>"


def _contents(content: Page) -> str:
    """Papers with their entries, each a link."""
    parts = []
    for paper in content.papers:
        own = content.of(paper)
        links = "".join(f"<li>{_link(entry)}{_badge(entry['verdict'])}</li>" for entry in own)
        pictures = sum(bool(entry.get("charts")) for entry in own)
        curves = f", {pictures} with curves" if pictures else ""
        parts.append(
            f'<li><a href="#{escape(paper.name)}"><b>{escape(paper.title or paper.name)}</b></a>{_bar(own)}{_key(own)}'
            f"<details><summary>{len(own)} claims and items{curves}</summary><ul>{links}</ul></details></li>"
        )
    return f"<h2>Contents</h2><ul class=contents>{''.join(parts)}</ul>"


def _paper(content: Page, paper: Paper) -> str:
    cards = "".join(map(_card, content.of(paper)))
    pending = [item for item in paper.items if not item.judged]
    rows = "".join(
        f"<tr><td>{escape(item.id)}</td><td>{escape(item.where)}: {escape(item.states)}</td><td>{escape(item.pending)}"
        "</td></tr>"
        for item in pending
    )
    rest = (
        f"<details><summary>{len(pending)} items not judged, with the reason</summary><div class=wide><table>{rows}"
        "</table></div></details>"
        if pending
        else ""
    )
    up = '<a class=up href="#top">to the top</a>'
    return f'<h2 id="{escape(paper.name)}">{escape(paper.title or paper.name)}{up}</h2>{cards}{rest}'


def _card(entry: Mapping[str, Any]) -> str:
    """Verdict, claim, what is published, true and measured, the picture, what it rests on, and the numbers."""
    name = entry["claim"] + (f" ({entry['item']})" if entry["item"] not in ("", entry["claim"]) else "")
    changes = "".join(f'<p class="no">{escape(change)}</p>' for change in entry["changes"])
    facts = [("published", entry["published"]), *_truths(entry), ("note", entry["note"])]
    basis = [("computed by", entry.get("computes", "")), ("detail", entry["detail"])]
    basis.append(("rests on", f"tolerance {entry['tolerance']:g}: {entry['why']}"))
    tone = VERDICTS[entry["verdict"]].tone
    return (
        f'<div class=card data-tone={tone} id="{_anchor(entry)}"><h3><span>{escape(name)}</span>'
        f"<span class=where>{escape(entry['where'])}</span>{_badge(entry['verdict'])}</h3>"
        f"<p class=states>{escape(entry['states'])}</p>{_facts(facts)}{changes}{_picture(entry)}{_facts(basis)}"
        f"{_numbers(entry)}</div>"
    )


def _truths(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is true or measured; beside a proved bound what an audit showed."""
    if entry["kind"] == "item":
        return [("true or measured", entry["computed"])]
    shown = [audited(point) for point in entry["points"] if point["audited"] is not None]
    return [("true", entry["computed"]), ("measured", f"audits show at least {'; '.join(shown)}" if shown else "")]


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{key}</dt><dd>{escape(text)}</dd>" for key, text in facts if text) + "</dl>"


def _picture(entry: Mapping[str, Any]) -> str:
    """The item's curves; else its published and computed values as marks."""
    charts = [of_record(chart) for chart in entry.get("charts", ())]
    return drawn(charts) or picture(entry["rows"], entry.get("marks", MARKS))


def _numbers(entry: Mapping[str, Any]) -> str:
    """The numbers behind a verdict: points of a claim, or comparisons of an item."""
    if entry["points"]:
        head: tuple[str, ...] = _POINT_HEAD
        rows = [_point(point) for point in entry["points"]]
    elif entry["rows"]:
        head = ("", *entry["marks"], "agree")
        rows = [(row["label"], *values(row), "yes" if row["agrees"] else "no") for row in entry["rows"]]
    else:
        return ""
    return (
        f"<details><summary>{len(rows)} numbers behind it</summary><div class=wide>{_table(head, rows)}</div></details>"
    )


_POINT_HEAD = ("at", "claimed", "truth", "audited", "verdict", "noise")


def _point(row: dict[str, Any]) -> tuple[str, ...]:
    at = ", ".join(f"{key}={value}" for key, value in row["at"].items()) or "-"
    return at, row["claimed"], truth(row), audited(row), row["verdict"], noise(row)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def picture(rows: Sequence[Mapping[str, Any]], marks: Sequence[str] = MARKS) -> str:
    """Published values as open diamonds beside computed ones as dots, one line per comparison; empty if not numbers.

    ``marks`` names the two values where they are something else, such as what a condition needs and what is there.
    """
    pairs = [
        (row["label"], float(row["published"]), float(row["computed"]), row["agrees"])
        for row in rows
        if all(isinstance(row[key], (int, float)) for key in ("published", "computed"))
    ]
    if not 2 <= len(pairs) <= 24:
        return ""
    numbers = [number for _, *both, _ in pairs for number in both]
    place = _axis(numbers)
    lines = "".join(
        _marks(_ROW * index, label, place(published), place(computed), agrees)
        for index, (label, published, computed, agrees) in enumerate(pairs)
    )
    bottom = _ROW * len(pairs) + 12
    words = f"diamond: {marks[0]}; dot: {marks[1]}" + ("; logarithmic axis" if _logarithmic(numbers) else "")
    legend = (
        _text(_LEFT, bottom, short(min(numbers)))
        + _text(_RIGHT, bottom, short(max(numbers)), "end")
        + _text(_LEFT, bottom + 14, words)
    )
    return (
        f'<svg viewBox="0 0 340 {bottom + 20}" width="340" role="img" aria-label="{escape(" and ".join(marks))}">'
        f"{lines}{legend}</svg>"
    )


# A row of a picture holds its label above its marks, so that a picture fits a narrow screen.
_ROW, _LEFT, _RIGHT = 28, 8, 332


def _marks(top: int, label: str, published: float, computed: float, agrees: bool) -> str:
    y = top + 20
    colour = "var(--good)" if agrees else "var(--bad)"
    return (
        _text(_LEFT, top + 10, _brief(label))
        + f'<line x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}" stroke="var(--line)"/>'
        f'<line x1="{published:.1f}" y1="{y}" x2="{computed:.1f}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
        f'<circle cx="{computed:.1f}" cy="{y}" r="3.5" fill="{colour}"/>'
        f'<path d="M{published - 5:.1f} {y}l5 -5l5 5l-5 5z" fill="none" stroke="currentColor" stroke-width="1.3"/>'
    )


def _text(x: int, y: int, words: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="11" fill="currentColor" text-anchor="{anchor}">{escape(words)}</text>'


def _brief(label: str) -> str:
    """A label that fits beside the picture."""
    text = label.split(" (")[0]
    return text if len(text) <= 56 else text[:55].rstrip() + "\u2026"


def _axis(numbers: Sequence[float]) -> Any:
    """The place of a number on the picture, on a logarithmic axis where the numbers span a factor above 30."""
    scale = math.log if _logarithmic(numbers) else float
    low, high = scale(min(numbers)), scale(max(numbers))
    width = (high - low) or 1.0
    return lambda number: _LEFT + (_RIGHT - _LEFT) * (scale(number) - low) / width


def _logarithmic(numbers: Sequence[float]) -> bool:
    return min(numbers) > 0 and max(numbers) > 30 * min(numbers)


def _badge(word: str) -> str:
    return f'<span class="badge {VERDICTS[word].tone}">{escape(word)}</span>'


def _anchor(entry: Mapping[str, Any]) -> str:
    return escape(f"{entry['paper']}-{entry['claim']}")


def _link(entry: Mapping[str, Any]) -> str:
    return f'<a href="#{_anchor(entry)}">{escape(entry["claim"])}</a>'
