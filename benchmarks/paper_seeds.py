"""Two runs of the paper checks with other seeds, compared: verdicts, rows of tables, and means beside their intervals.

    python -m paper_checks --tier full --data FOLDER --out one --workers 2
    python -m paper_checks --tier full --data FOLDER --out two --workers 2 --seed 1
    python -m benchmarks.paper_seeds one two

What does not depend on a seed must be the same. Two means of independent runs differ by more than the root of the sum
of their squared 95 % half widths in one case of twenty, and by more than twice that hardly ever: those are listed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper_checks.charts import PRINTED

Record = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """A mean of a curve in both runs. ``apart`` is their distance over the half width of their difference."""

    item: str
    place: str
    first: float
    second: float
    apart: float

    @property
    def paper(self) -> str:
        """The paper's part of the item's name."""
        return self.item.split("-")[0]


def read(folder: str | Path) -> dict[tuple[str, str, str], Record]:
    """The records of a run by paper, claim and point."""
    rows = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
    return {(row["paper"], row["claim"], json.dumps(row.get("at"))): row for row in rows}


def points(item: str, one: Record, two: Record) -> Iterator[Point]:
    """The means with an interval that the charts of both runs have in common."""
    for first, second in zip(one.get("charts", []), two.get("charts", []), strict=True):
        others = {curve["name"]: curve for curve in second["curves"]}
        for curve in first["curves"]:
            other = others.get(curve["name"])
            if other is None or curve["kind"] == PRINTED or not curve["lows"] or not other["lows"]:
                continue
            there = {x: k for k, x in enumerate(other["xs"])}
            for k, x in enumerate(curve["xs"]):
                if x in there:
                    yield _point(item, f"{first['title']}, {curve['name']}, {first['x_label']} {x:g}", curve, k, other,
                                 there[x])  # fmt: skip


def _point(item: str, place: str, one: Record, k: int, two: Record, j: int) -> Point:
    lower, upper = ((one, k), (two, j)) if one["ys"][k] <= two["ys"][j] else ((two, j), (one, k))
    # The half widths that face each other: intervals of logarithms are not symmetric.
    half = math.hypot(lower[0]["highs"][lower[1]] - lower[0]["ys"][lower[1]],
                      upper[0]["ys"][upper[1]] - upper[0]["lows"][upper[1]])  # fmt: skip
    gap = abs(one["ys"][k] - two["ys"][j])
    return Point(item, place, one["ys"][k], two["ys"][j], gap / half if half else math.inf if gap else 0.0)


Runs = list[tuple[str, Record, Record]]


def compare(one: dict[Any, Record], two: dict[Any, Record]) -> str:
    """What differs, as Markdown."""
    if one.keys() != two.keys():
        raise SystemExit("The runs are not of the same claims and items: give two runs of one tier.")
    runs = [(key[1], one[key], two[key]) for key in one]
    head = "# Two runs with other seeds\n\nWritten by `python -m benchmarks.paper_seeds`; what it means is in "
    head += "[the guide](../docs/papers.md#with-another-seed).\n\n"
    return head + "\n".join(f"- {line}" for line in [*_verdicts(runs), *_judged(runs), *_means(runs)])


def _verdicts(runs: Runs) -> Iterator[str]:
    changed = [(item, a["verdict"], b["verdict"]) for item, a, b in runs if a["verdict"] != b["verdict"]]
    yield f"{len(runs) - len(changed)} of {len(runs)} verdicts are the same."
    yield from (f"{item}: {a}, then {b}." for item, a, b in changed)


def _judged(runs: Runs) -> Iterator[str]:
    rows = [(item, *pair) for item, a, b in runs for pair in zip(a.get("rows", []), b.get("rows", []), strict=True)]
    changed = [(item, a, b) for item, a, b in rows if a["agrees"] != b["agrees"]]
    yield f"{len(rows) - len(changed)} of {len(rows)} rows are judged alike."
    for item, a, b in changed:
        yield f"{item}, {a['label']}: {a['computed']} ({_word(a)}), then {b['computed']} ({_word(b)})."


def _means(runs: Runs) -> Iterator[str]:
    found = {(p.place, p.first, p.second): p for item, a, b in runs for p in points(item, a, b)}
    drawn = [point for point in found.values() if point.first != point.second]
    yield f"{_share(drawn)} measured means are further apart than their 95 % intervals allow."
    for paper in dict.fromkeys(point.paper for point in drawn):
        yield f"{paper}: {_share([point for point in drawn if point.paper == paper])}."
    far = sorted((point for point in drawn if point.apart > 2), key=lambda point: -point.apart)
    yield f"{len(far)} means are twice as far apart:"
    for p in far:
        times = f"{p.apart:.1f} times" if math.isfinite(p.apart) else "no interval in four digits"
        yield f"{p.item}, {p.place}: {p.first:.4g}, then {p.second:.4g} ({times})."


def _share(drawn: Sequence[Point]) -> str:
    beyond = sum(point.apart > 1 for point in drawn)
    return f"{beyond} of {len(drawn)}" + (f" ({beyond / len(drawn):.1%})" if drawn else "")


def _word(row: Record) -> str:
    return "agrees" if row["agrees"] else "does not"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_seeds", description=__doc__.split("\n")[0])
    parser.add_argument("first", help="the --out folder of a run")
    parser.add_argument("second", help="that of a run with another --seed")
    arguments = parser.parse_args()
    print(compare(read(arguments.first), read(arguments.second)))


if __name__ == "__main__":
    main()
