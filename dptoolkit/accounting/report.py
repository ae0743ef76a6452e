"""Guarantees as text: tables that a person can read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dptoolkit.accounting.events import (
    ApproxDp,
    BestOf,
    Event,
    Gaussian,
    Laplace,
    NoisyMax,
    ObjectivePerturbation,
    RandomRounds,
    Subsampled,
    TwoSidedGeometric,
    ZCdp,
    flatten,
)

if TYPE_CHECKING:
    from dptoolkit.accounting.account import Guarantee


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain text columns, the first one left-aligned and a rule under the header."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def number(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}"


def at_most(value: float) -> str:
    """Four significant digits, rounded up: a printed bound is still a bound."""
    text = f"{value:.4g}"
    if not math.isfinite(value) or float(text) >= value:
        return text
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{float(text) + unit:.4g}"


def at_least(value: float) -> str:
    """Four significant digits, rounded down: for lower bounds."""
    text = f"{value:.4g}"
    if not math.isfinite(value) or float(text) <= value:
        return text
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{float(text) - unit:.4g}"


def guarantee_table(guarantee: Guarantee) -> str:
    """Mechanisms with count, noise and sensitivity; epsilon at a few deltas with the method; assumptions."""
    from dptoolkit.accounting.account import TABLE_DELTAS

    adjacency = str(guarantee.adjacency) if guarantee.adjacency else "as the noise was planned for"
    mechanisms = [[*_describe(part), f"{count:,}"] for part, count in flatten(guarantee.event)]
    epsilons = [[f"{d:g}", at_most(guarantee.epsilon(d)), guarantee.method_at(d)] for d in TABLE_DELTAS]
    parts = [
        f"Guarantee, adjacency: {adjacency}",
        table(["mechanism", "noise", "sensitivity", "count"], mechanisms or [["nothing released", "-", "-", "0"]]),
        table(["delta", "epsilon", "method"], epsilons),
    ]
    if guarantee.rho < float("inf"):
        parts[2] += f"\nzCDP: rho = {at_most(guarantee.rho)}"
    if guarantee.claimed is not None:
        parts.append(_claim_line(guarantee))
    if guarantee.assumptions:
        parts.append("Assumes\n" + "\n".join(f"- {text}" for text in guarantee.assumptions))
    return "\n\n".join(parts)


def _claim_line(guarantee: Guarantee) -> str:
    """What somebody claims for this release beside what is computed; false only where known neighbours break it."""
    assert guarantee.claimed is not None
    epsilon, delta, source, conditions = guarantee.claimed
    lower, upper = guarantee.bounds(delta)
    verdict = "is NOT certified"
    if upper <= epsilon:
        verdict = "holds"
    elif lower > epsilon:
        verdict = f"is FALSE (some neighbours reach {at_least(lower)})"
    claim = f"{source} claims epsilon {number(epsilon)} at delta {delta:g}"
    line = f"{claim}; this noise gives {at_most(upper)}: the claim {verdict}"
    return "\n".join([line, *(f"- its condition {text}" for text in conditions)])


def _describe(event: Event) -> tuple[str, str, str]:
    """(mechanism, noise, sensitivity) of an elementary event: parameters, so to the nearest digit."""
    if isinstance(event, Subsampled):
        inside = _inside(event)
        return f"{event.scheme} rate {number(event.rate)} of {inside[0]}", inside[1], inside[2]
    if isinstance(event, (RandomRounds, BestOf)):
        inside = _inside(event)
        law = event.rounds if isinstance(event, RandomRounds) else event.runs
        word = "random rounds" if isinstance(event, RandomRounds) else "best of"
        return f"{word} {law} of {inside[0]}", inside[1], inside[2]
    name = type(event).__name__
    if isinstance(event, (Gaussian, Laplace)):
        return name, f"multiplier {number(event.noise_multiplier)}", "1 (L2)" if name == "Gaussian" else "1 (L1)"
    if isinstance(event, ObjectivePerturbation):
        kind = f"{name} ({'signed' if event.signed else 'general'})"
        return kind, f"multiplier {number(event.noise_multiplier)}, Jacobian {number(event.jacobian)}", "1 (L2)"
    if isinstance(event, TwoSidedGeometric):
        return name, f"epsilon {number(event.epsilon)}", f"{event.sensitivity} (integer)"
    if isinstance(event, NoisyMax):
        return f"{name} ({event.noise})", f"epsilon {number(event.epsilon)}", "range 1"
    if isinstance(event, ZCdp):
        return name, f"rho {number(event.rho)}", "-"
    if isinstance(event, ApproxDp):
        return name, f"epsilon {number(event.epsilon)}, delta {number(event.delta)}", "-"
    return name, f"epsilon {number(getattr(event, 'epsilon', float('nan')))}", "-"


def _inside(event: Subsampled | RandomRounds | BestOf) -> tuple[str, str, str]:
    parts = [(_describe(part), count) for part, count in flatten(event.event)]
    if not parts:
        return "nothing", "-", "-"
    names = [f"{count:,} x {d[0]}" if count > 1 else d[0] for d, count in parts]
    return " + ".join(names), "; ".join(d[1] for d, _ in parts), "; ".join(d[2] for d, _ in parts)
