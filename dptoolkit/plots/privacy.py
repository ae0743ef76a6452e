"""What a guarantee says: its privacy profile, other ways to account, an audit's lower bound; and where noise goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.errors import DpToolkitError
from dptoolkit.plots.style import COLOURS, DASHES, describe, grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dptoolkit.accounting.guarantee import Guarantee
    from dptoolkit.audit.report import AuditReport
    from dptoolkit.solvers.frame.plan import Plan

_DELTAS = np.geomspace(1e-2, 1e-9, 15)
# Other ways to account that are drawn for comparison, where they can take the event.
_OTHERS = ("rdp", "zcdp", "advanced")
# One that is larger than the answer by this factor would leave no room for the others.
_WORTH_DRAWING = 4


def profile(guarantee: Guarantee, audit: AuditReport | None = None) -> Figure:
    """Epsilon against delta, with other ways to account; what an audit refutes is shaded.

    Parameters
    ----------
    guarantee : Guarantee
        The guarantee to draw.
    audit : AuditReport or None, default None
        An audit whose refuted region is shaded.
    """
    figure, (axes,) = grid(1, 1, "Privacy profile")
    adjacency = "" if guarantee.adjacency is None else f", {guarantee.adjacency}"
    detail = f"smaller is a stronger promise{adjacency}" + ("" if audit is None else "; shaded: refuted by the audit")
    describe(axes, "Epsilon at each delta", detail, "delta", "epsilon")
    profile_curve(axes, guarantee, audit)
    return figure


def profile_curve(axes: Axes, guarantee: Guarantee, audit: AuditReport | None = None) -> None:
    """``profile`` drawn on existing axes.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Where to draw.
    guarantee : Guarantee
        The guarantee to draw.
    audit : AuditReport or None, default None
        An audit whose refuted region is shaded.
    """
    curve = [guarantee.epsilon(float(d)) for d in _DELTAS]
    if not all(math.isfinite(value) for value in curve):
        raise invalid("guarantee", "infinite at some delta", "one that promises something", "There is nothing to draw.")
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.plot(_DELTAS, curve, color=COLOURS[0], label=f"dptoolkit ({guarantee.method})")
    for i, method in enumerate(_OTHERS, start=1):
        try:
            other = [replace(guarantee, forced_method=method).epsilon(float(d)) for d in _DELTAS]
        except DpToolkitError:
            continue
        if max(other) < _WORTH_DRAWING * max(curve):
            axes.plot(_DELTAS, other, color=COLOURS[i], linestyle=DASHES[i], linewidth=1.5, label=method)
    if audit is not None:
        axes.plot([audit.delta], [audit.epsilon_lower], marker="^", color=COLOURS[6], linestyle="none",
                  label=f"audit: at least {audit.epsilon_lower:.3g}")  # fmt: skip
        # Epsilon grows as delta falls, so that the bound holds for every smaller delta too.
        below = np.asarray([audit.delta, *_DELTAS[audit.delta > _DELTAS]])
        axes.fill_between(below, 0, audit.epsilon_lower, color=COLOURS[1], alpha=0.15, linewidth=0)
    if guarantee.claimed is not None and math.isfinite(guarantee.claimed.epsilon):
        axes.plot([guarantee.claimed.delta], [guarantee.claimed.epsilon], marker="x", color=COLOURS[1],
                  linestyle="none", label="claimed in the paper")  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)


def guarantee_trade_off(guarantee: Guarantee) -> Figure:
    """The least missed-detection rate of any test at each false-alarm rate, with a blind guess beside it.

    Parameters
    ----------
    guarantee : Guarantee
        The guarantee to draw.
    """
    figure, (axes,) = grid(1, 1, "Trade-off curve")
    adjacency = "" if guarantee.adjacency is None else f", {guarantee.adjacency}"
    # Rounded down, so that the sum stays a bound.
    least = math.floor(1000 * (1 - guarantee.advantage)) / 1000
    detail = f"no test is below{adjacency}; errors add up to at least {least:g}"
    describe(axes, "Detecting one record", detail, "false alarms", "missed detections")
    rates = np.linspace(0, 1, 201)
    curve = guarantee.tradeoff(rates)
    axes.plot(rates, curve, color=COLOURS[0], label=f"guaranteed ({guarantee.method})")
    axes.fill_between(rates, 0, curve, color=COLOURS[0], alpha=0.12, linewidth=0)
    axes.plot([0, 1], [1, 0], color=COLOURS[5], linewidth=1, label="blind guess")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False, fontsize=9)
    return figure


def spending(plan: Plan) -> Figure:
    """The noise of every release beside its sensitivity, and the privacy profile of the whole plan.

    Parameters
    ----------
    plan : Plan
        The plan to draw.
    """
    figure, (bars, right) = grid(1, 2, f"Plan for {plan.solver}: n={plan.n:,}, d={plan.d:,}")
    describe(bars, "Noise of each release", "noise scale over sensitivity", "", "")
    names = [f"{r.query}\n{r.count:,} x {r.law}" for r in plan.releases]
    multipliers = [r.scale / r.sensitivity for r in plan.releases]
    bars.barh(names[::-1], multipliers[::-1], color=COLOURS[0], height=0.5)
    for row, value in enumerate(multipliers[::-1]):
        bars.annotate(f"{value:.3g}", (value, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    bars.margins(x=0.15)
    bars.grid(axis="y", visible=False)
    describe(right, "Privacy profile", f"{plan.adjacency}; every release together", "delta", "epsilon")
    profile_curve(right, plan.guarantee)
    figure.subplots_adjust(left=0.24, right=0.97, wspace=0.2)
    return figure


def noise(plans: Mapping[str, Plan]) -> Figure:
    """Noise of the main release of several plans as bars, each with the epsilon that it really gives.

    Parameters
    ----------
    plans : mapping of str to Plan
        The plans to compare, by name.
    """
    if not plans:
        raise invalid("plans", plans, "at least one plan")
    figure, (axes,) = grid(1, 1, "Noise, and the epsilon that it gives")
    describe(axes, "Noise scale of the main release", "at each bar: epsilon at the delta asked for", "", "")
    names = list(plans)[::-1]
    for row, name in enumerate(names):
        plan = plans[name]
        epsilon, claimed = plan.guarantee.epsilon(plan.settings.delta), plan.guarantee.claimed
        broken = claimed is not None and epsilon > claimed.epsilon
        axes.barh(name, plan.noise, color=COLOURS[1 if broken else 0], height=0.5)
        label = f"epsilon {epsilon:.3g}" + ("" if claimed is None else f", claimed {claimed.epsilon:g}")
        axes.annotate(label, (plan.noise, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.margins(x=0.3)
    axes.grid(axis="y", visible=False)
    figure.subplots_adjust(left=0.25, right=0.97)
    return figure
