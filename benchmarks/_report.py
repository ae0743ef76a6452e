"""The tables and the plot of docs/frontier.md, from the saved results of benchmarks/frontier.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._problems import CHOSEN_ON, CHOSEN_ON_ALSO
from dptoolkit import plots

PLOT = Path(__file__).parents[1] / "docs" / "frontier.png"
Results = list[dict[str, Any]]


def mean(one: dict[str, Any]) -> float:
    """The mean error over the seeds."""
    return float(np.mean(one["errors"]))


def cell(one: dict[str, Any] | None) -> str:
    """Mean error and its standard error."""
    if one is None:
        return ""
    spread = np.std(one["errors"], ddof=1) / np.sqrt(len(one["errors"]))
    return f"{mean(one):.3f} +- {spread:.3f}"


def report(rules: Results, tuned: Results) -> None:
    """Print the tables as Markdown and write the plot."""
    sets = list(dict.fromkeys(one["set"] for one in rules))
    first = [one for one in rules if (one["epsilon"], one["delta"]) == (2.0, 1e-5)]
    print("### With their rules, at (2, 1e-5)\n")
    _league(sets, first)
    print("\n### Tuned on the sets that are not judged, at (2, 1e-5)\n")
    _league([name for name in sets if any(one["set"] == name for one in tuned)], tuned)
    print("\n### dp_pipeline at four budgets\n")
    _budgets(sets, [one for one in rules if one["method"] == "dp_pipeline"])
    print("\n### dp_pipeline's rule beside the best of all others\n")
    _judged(sets, first, tuned)
    _plot(sets, first)


def _find(results: Results, **key: Any) -> dict[str, Any] | None:
    return next((one for one in results if all(one[name] == value for name, value in key.items())), None)


def _league(sets: list[str], results: Results) -> None:
    methods = list(dict.fromkeys(one["method"] for one in results))
    _print(["data", "rows x features", "plain", *methods], [
        [_named(name), _size(results, name), f"{_any(results, name)['plain']:.3f}",
         *(cell(_find(results, set=name, method=method)) for method in methods)]
        for name in sets
    ])  # fmt: skip


def _budgets(sets: list[str], results: Results) -> None:
    budgets = list(dict.fromkeys((one["epsilon"], one["delta"]) for one in results))
    head = ["data", *(f"({epsilon:g}, {delta:g})" for epsilon, delta in budgets), "loss", "features", "CPU s"]
    lines = []
    for name in sets:
        own = [_find(results, set=name, epsilon=epsilon, delta=delta) for epsilon, delta in budgets]
        one = own[0]
        assert one is not None
        lines.append([_named(name), *(cell(found) for found in own), f"{np.mean(one['losses']):.3f}",
                      f"{np.mean(one['features']):,.0f}", f"{np.median(one['seconds']):.2f}"])  # fmt: skip
    _print(head, lines)


def _judged(sets: list[str], first: Results, tuned: Results) -> None:
    lines = []
    for name in (one for one in sets if one not in (*CHOSEN_ON, *CHOSEN_ON_ALSO)):
        own = _find(first, set=name, method="dp_pipeline")
        assert own is not None
        others = [one for one in (*first, *tuned) if one["set"] == name and one is not own]
        best = min(others, key=mean)
        how = best["method"] + (", tuned" if best in tuned else "")
        within = mean(own) <= max(1.25 * mean(best), mean(best) + 0.01)
        lines.append([name, cell(own), cell(best), how, "yes" if within else "**no**"])
    _print(["data", "dp_pipeline", "best of all others", "which", "within 1.25 times, or 0.01"], lines)


def _any(results: Results, name: str) -> dict[str, Any]:
    found = _find(results, set=name)
    assert found is not None
    return found


def _size(results: Results, name: str) -> str:
    one = _any(results, name)
    return f"{one['n']:,} x {one['d']:,}"


def _named(name: str) -> str:
    return f"{name} (chosen on)" if name in (*CHOSEN_ON, *CHOSEN_ON_ALSO) else name


def _print(head: list[str], lines: list[list[str]]) -> None:
    for line in (head, ["---"] * len(head), *lines):
        print("| " + " | ".join(line) + " |")


def _plot(sets: list[str], first: Results) -> None:
    """Errors over that of the plain answer, one line a set, one mark a method."""
    methods = list(dict.fromkeys(one["method"] for one in first))
    matplotlib = plots.require()
    figure = matplotlib.figure.Figure(figsize=(8.5, 0.3 * len(sets) + 1.6), dpi=120)
    axes = figure.subplots()
    for k, method in enumerate(methods):
        points = [(mean(one) / one["plain"], i) for i, name in enumerate(reversed(sets))
                  if (one := _find(first, set=name, method=method)) is not None]  # fmt: skip
        axes.plot(*zip(*points, strict=True), "os^Dv<"[k % 6], markersize=6, label=method, alpha=0.85)
    axes.set_yticks(range(len(sets)), [_named(name) for name in reversed(sets)])
    axes.axvline(1.0, color="#7F7F7F", linewidth=1)
    axes.set_xlim(0, 1.6)
    axes.set_xlabel("test error over that of the most frequent label (of the mean, for numbers)")
    axes.set_title("Private solvers with their rules at (2, 1e-5), at most 2,000 rows", loc="left", fontsize=11)
    axes.grid(axis="y", color="#E6E6E6")
    axes.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Software": None})
