"""Plots in one style: colours that colour-blind readers can tell apart, lines named where they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dptoolkit._validate import missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette; grey for its yellow, which is too pale for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#7F7F7F", "#000000")
DASHES = ("-", (0, (6, 2)), "-.", (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (3, 1.5)), "-")
# No version and no date, so that the bytes of a plot depend only on what it shows.
_METADATA: Mapping[str, Mapping[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
_STYLE = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#E6E6E6", "grid.linewidth": 0.7, "lines.linewidth": 2.0, "font.size": 10,
}  # fmt: skip
# Least distance between two names, as a share of the height of the axes.
_NAME_GAP = 0.064


def grid(rows: int, columns: int, title: str) -> tuple[Figure, list[Axes]]:
    """A figure with rows x columns axes in reading order; no global state, no display needed.

    Parameters
    ----------
    rows : int
        Number of rows of axes.
    columns : int
        Number of columns of axes.
    title : str
        The title of the figure.
    """
    matplotlib = require()
    width, height = 6.4 * columns, 4.1 * rows + 0.7
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=(width, height), dpi=150)
        axes = np.ravel(figure.subplots(rows, columns)).tolist()
    # Margins in inches; the right one has room for the names at the ends of the lines.
    figure.subplots_adjust(
        left=0.7 / width, right=1 - 1.73 / width, bottom=0.53 / height, top=1 - 1.16 / height, wspace=0.52, hspace=0.42
    )
    figure.suptitle(title, x=0.13 / width, y=1 - 0.13 / height, ha="left", va="top", fontsize=15, fontweight="bold")
    return figure, axes


def describe(axes: Axes, title: str, detail: str, xlabel: str, ylabel: str) -> None:
    """A bold title, a line of detail below it, and the axes' names.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        What is described.
    title : str
        The title.
    detail : str
        One line below the title.
    xlabel : str
        The name of the horizontal axis.
    ylabel : str
        The name of the vertical axis.
    """
    axes.set_title(f"{title}\n", loc="left", fontsize=11, fontweight="bold")
    axes.text(0, 1.025, detail, transform=axes.transAxes, fontsize=10, color="#404040")
    axes.set(xlabel=xlabel, ylabel=ylabel)


def lines(axes: Axes, x: Sequence[float], series: Mapping[str, Sequence[float]], looks: Mapping[str, int]) -> None:
    """Log-log lines, each named at its right end; ``looks`` gives a name the same look in every plot.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Where to draw.
    x : sequence of float
        The horizontal positions.
    series : mapping of str to sequence of float
        The heights of each line, by name.
    looks : mapping of str to int
        The number of the colour and dash of each name, so that a name looks the same in every plot.
    """
    axes.set_xscale("log")
    axes.set_yscale("log")
    for name, y in series.items():
        axes.plot(x[: len(y)], y, color=COLOURS[looks[name]], linestyle=DASHES[looks[name]])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.02, y=0.06)
    axes.autoscale_view()
    _name_ends(axes, x, series, looks)


def budgets(
    axes: Axes, epsilons: Sequence[float], series: Mapping[str, Any], looks: Mapping[str, int],
    chance: float | None = None, true_epsilons: Mapping[str, Sequence[float]] | None = None,
) -> None:  # fmt: skip
    """Draw errors against budgets on a logarithmic axis, with each line named at its right end.

    A series with several rows is drawn as their mean, with a band of twice the standard error of the mean. The first
    series is the thickest line.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Where to draw.
    epsilons : sequence of float
        The budgets.
    series : mapping of str to array-like
        The errors of each line: one per budget, or a table with one row per repetition.
    looks : mapping of str to int
        The number of the colour and dash of each name.
    chance : float or None, default None
        The error of a baseline that ignores the features.
    true_epsilons : mapping of str to sequence of float, or None, default None
        The epsilons at which a series is drawn instead of the budgets that it claims, with arrows from the claims.
    """
    axes.set_xscale("log")
    middles, truth = {}, true_epsilons or {}
    for order, (name, errors) in enumerate(series.items()):
        table, x = np.atleast_2d(np.asarray(errors, dtype=float)), truth.get(name, epsilons)
        middle, colour = table.mean(axis=0), COLOURS[looks[name]]
        width, size, layer = (3.5, 6.0, 3.0) if order == 0 else (1.5, 4.0, 2.0)
        axes.plot(
            x, middle, color=colour, linestyle=DASHES[looks[name]], marker="o", linewidth=width, markersize=size,
            zorder=layer,
        )  # fmt: skip
        if len(table) > 1:
            spread = 2 * table.std(axis=0, ddof=1) / len(table) ** 0.5
            axes.fill_between(x, middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)
        if name in truth:
            _from_claims(axes, epsilons, x, middle, colour)
        middles[name] = middle.tolist()
    if chance is not None:
        axes.axhline(chance, color="#404040", linewidth=1, linestyle=":")
        axes.annotate("chance", (epsilons[0], chance), xytext=(0, 3), textcoords="offset points", fontsize=9)
    axes.set_xticks(list(epsilons), [f"{e:g}" for e in epsilons])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.margins(x=0.02, y=0.06)
    _name_ends(axes, epsilons, middles, looks, truth)


def _from_claims(axes: Axes, claims: Sequence[float], truth: Sequence[float], heights: Any, colour: str) -> None:
    """An arrow from the epsilon that is claimed for each point to the true one, which is written at its end."""
    axes.scatter(claims, heights, s=25, facecolors="white", edgecolors=colour, zorder=2)
    for claim, true, height in zip(claims, truth, heights, strict=True):
        arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.2, "shrinkA": 4, "shrinkB": 4}
        axes.annotate("", (true, height), xytext=(claim, height), arrowprops=arrow)
        axes.annotate(
            f"truly {true:.3g}", (true, height), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8,
            color=_ink(colour),
        )  # fmt: skip


def save(figure: Figure, path: str | Path | IO[bytes]) -> None:
    """Write a PNG, SVG or PDF; the same numbers give the same bytes of a PNG, which is also what goes into a stream.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        What to write.
    path : str, Path or file-like
        A file ending in .png, .svg or .pdf, or an open binary stream, which gets a PNG.
    """
    suffix = Path(path).suffix.lower() if isinstance(path, (str, Path)) else ".png"
    with require().rc_context(_STYLE):
        figure.savefig(path, format=suffix[1:] or "png", metadata=_METADATA.get(suffix or ".png"))


def require(extra: str = "plots") -> Any:
    """matplotlib, or MissingDependency before any work is done; ``extra`` is the one to install.

    Parameters
    ----------
    extra : str, default "plots"
        The extra of dptoolkit that the error message asks the user to install.
    """
    try:
        import matplotlib.figure
    except ImportError:
        raise missing("matplotlib", extra, "to draw plots") from None
    return matplotlib


def _name_ends(
    axes: Axes, x: Sequence[float], series: Mapping[str, Sequence[float]], looks: Mapping[str, int],
    own: Mapping[str, Sequence[float]] | None = None,
) -> None:  # fmt: skip
    """Write each line's name beside its end; ``own`` are the x of lines that have others."""
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = {name: to_axes.transform(((own or {}).get(name, x)[len(y) - 1], y[-1])) for name, y in series.items()}
    rising = sorted(ends, key=lambda name: ends[name][1])
    for name, height in zip(rising, apart([ends[name][1] for name in rising], _NAME_GAP), strict=True):
        axes.annotate(
            name,
            xy=tuple(ends[name]),
            xytext=(1.06, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=_ink(COLOURS[looks[name]]),
            va="center",
            fontsize=10,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#B0B0B0", "linewidth": 0.7, "shrinkA": 1, "shrinkB": 1},
        )


def _ink(colour: str) -> tuple[float, ...]:
    """A darker shade: letters need more contrast than lines."""
    return tuple(0.72 * int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """The heights, given in rising order, moved as little as possible to be ``gap`` apart (least squares).

    Parameters
    ----------
    heights : sequence of float
        The heights, in rising order.
    gap : float
        The least distance of two heights.
    """
    pools: list[list[float]] = []
    for i, height in enumerate(heights):
        pools.append([height - i * gap])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    level = [float(np.mean(pool)) for pool in pools for _ in pool]
    return [value + i * gap for i, value in enumerate(level)]
