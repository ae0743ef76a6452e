"""A report to look at: each section is one function in SECTIONS that returns its words, tables and pictures."""

from __future__ import annotations

import base64
import html
import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptoolkit import __version__, plots
from dptoolkit._validate import invalid, missing
from dptoolkit.accounting.report import table
from dptoolkit.demo.sections import Picture, Section, Table, audited, composition, digits, synthetic

# A model first, then the attack on it, then the accounting behind both.
SECTIONS: tuple[Callable[[], Section], ...] = (digits, audited, synthetic, composition)


@dataclass(frozen=True)
class Report:
    """The sections that were written, and the folder."""

    folder: Path
    sections: tuple[Section, ...]

    @property
    def tables(self) -> list[Table]:
        return [t for section in self.sections for t in section.tables]

    @property
    def pictures(self) -> list[Picture]:
        return [p for section in self.sections for p in section.pictures]

    def text(self) -> str:
        """The tables as text, for the terminal."""
        blocks = [f"{t.caption}\n\n{table(t.header, t.rows)}" for t in self.tables]
        return "\n\n".join([*blocks, f"With plots, in one file: {self.folder / PAGE}"])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the files and the tables."""
        names = [PAGE, "report.md", *(f"{p.name}.png" for p in self.pictures)]
        tables = [{"caption": t.caption, "header": list(t.header), "rows": list(t.rows)} for t in self.tables]
        return {"files": [str(self.folder / name) for name in names], "tables": tables}


def run(out: Path, progress: Callable[[str], None] = lambda line: None) -> Report:
    """Compute every section and write index.html, which is self-contained, report.md and the plots into ``out``.

    Each section is written as soon as it is finished, so that a run that is stopped leaves its finished sections.
    ``progress`` is told what is being computed.
    """
    plots.require("demo")
    _require_data()
    _require_folder(out)
    report = Report(out, ())
    try:
        for i, section in enumerate(SECTIONS, start=1):
            progress(f"section {i} of {len(SECTIONS)}: {(section.__doc__ or section.__name__).splitlines()[0]}")
            report = Report(out, (*report.sections, section()))
            _write(report)
    except KeyboardInterrupt:
        state = f"{len(report.sections)} of {len(SECTIONS)} sections are finished"
        raise KeyboardInterrupt(f"{state}, in {out}." if report.sections else f"{state}.") from None
    return report


def _write(report: Report) -> None:
    """The report so far; pictures of earlier sections are there already."""
    for picture in report.sections[-1].pictures:
        plots.save(picture.figure, report.folder / f"{picture.name}.png")
    (report.folder / "report.md").write_text(_markdown(report), encoding="utf-8")
    (report.folder / PAGE).write_text(_page(report), encoding="utf-8")


def _require_folder(out: Path) -> None:
    """Refuse, before any work is done, a folder into which nothing can be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise invalid("out", str(out), "a folder that can be written to", f"{reason}.") from None


def _require_data() -> None:
    try:
        import sklearn  # noqa: F401 - its digits are the demo's data
    except ImportError:
        raise missing("scikit-learn", "demo", "for the demo's data") from None


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
        blocks += [f'<img src="{_embedded(p)}" alt="{html.escape(p.caption)}">' for p in section.pictures]
        blocks += [_html_table(t) for t in section.tables]
    return "\n".join(blocks) + "\n"


def _embedded(picture: Picture) -> str:
    """The picture as part of the page."""
    content = io.BytesIO()
    plots.save(picture.figure, content)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _html_table(t: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "\n".join(row(cells, "td") for cells in t.rows)
    content = f"<caption>{html.escape(t.caption)}</caption>\n{row(t.header, 'th')}\n{body}"
    # A table that is wider than the screen scrolls by itself; the page does not.
    return f'<div class="table"><table>\n{content}\n</table></div>'


PAGE = "index.html"
_HEADING = f"dptoolkit {__version__}: a private model, the attack on it, and the accounting behind both"
_HTML_HEAD = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>{_HEADING}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
img {{ max-width: 100%; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 1.5rem 0; }}
caption {{ text-align: left; font-weight: bold; padding-bottom: .3rem; }}
th, td {{ text-align: right; padding: .2rem .9rem; border-bottom: 1px solid #ddd; }}
</style>"""
