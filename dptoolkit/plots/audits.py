"""How well an audit told two datasets apart, against what its claim allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.plots.style import COLOURS, describe, grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dptoolkit.audit.report import AuditReport


def trade_off(report: AuditReport) -> Figure:
    """The error rates of an audit's guesses, with their band, against the least error rates that the claim allows.

    Parameters
    ----------
    report : AuditReport
        The report of an audit.
    """
    figure, (axes,) = grid(1, 1, "How well the two datasets were told apart")
    detail = f"{report.trials:,} trials; adversary sees {report.adversary}"
    describe(axes, report.verdict.capitalize(), detail, "false positives", "false negatives")
    trade_off_curve(axes, report)
    return figure


def trade_off_curve(axes: Axes, report: AuditReport) -> None:
    """``trade_off`` drawn on existing axes, whose title the caller sets.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Where to draw.
    report : AuditReport
        The report of an audit.
    """
    curve = report.trade_off
    if curve is None:
        raise invalid("report", "without a trade-off curve", "one that audit() made")
    x, y, (right, up) = curve.false_positive, curve.false_negative, curve.width
    axes.plot(x, y, color=COLOURS[0], label="measured")
    # The band is the curve moved by both widths, towards the origin and away from it.
    border = np.concatenate([np.stack([x - right, y - up], axis=1), np.stack([x + right, y + up], axis=1)[::-1]])
    axes.fill(*border.T, color=COLOURS[0], alpha=0.2, linewidth=0, label=f"band, {report.confidence:.6g} confidence")
    grid_x = np.linspace(0, 1, 201)
    claimed = claimed_trade_off(report.claimed_profile, grid_x)
    axes.plot(grid_x, claimed, color=COLOURS[1], linestyle="--", label="claim")
    axes.plot([0, 1], [1, 0], color=COLOURS[5], linewidth=1, label="blind guess")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False)


def claimed_trade_off(profile: Sequence[tuple[float, float]], false_positive: Any) -> Any:
    """The least false-negative rate that a profile of points (epsilon, delta) allows at each false-positive rate.

    Parameters
    ----------
    profile : sequence of tuple of float
        Points (epsilon, delta) of the claimed profile.
    false_positive : array-like
        False-positive rates.
    """
    x = np.asarray(false_positive, dtype=float)
    least = np.zeros_like(x)
    for epsilon, delta in profile:
        least = np.maximum(least, np.maximum(1 - delta - np.exp(epsilon) * x, np.exp(-epsilon) * (1 - delta - x)))
    return least
