"""A guarantee as text: tables that a person can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dptoolkit.accounting.events import flatten
from dptoolkit.accounting.report import at_least, at_most, delta_text, number, table
from dptoolkit.accounting.structure import words

if TYPE_CHECKING:
    from dptoolkit.accounting.guarantee import Guarantee

TABLE_DELTAS = (1e-3, 1e-5, 1e-7, 1e-9)


def guarantee_table(guarantee: Guarantee) -> str:
    """Mechanisms with count, noise and sensitivity; epsilon at a few deltas with the method; assumptions."""
    adjacency = str(guarantee.adjacency) if guarantee.adjacency else "as the noise was planned for"
    mechanisms = [[*words(part), f"{count:,}"] for part, count in flatten(guarantee.event)]
    epsilons = [[delta_text(d), at_most(guarantee.epsilon(d)), guarantee.method_at(d)] for d in guarantee.deltas]
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
    """A claim about this release next to what is computed; it is called false only if known neighbours break it."""
    assert guarantee.claimed is not None
    epsilon, delta, source, conditions = guarantee.claimed
    lower, upper = guarantee.bounds(delta)
    verdict = "is NOT certified"
    if upper <= epsilon:
        verdict = "holds"
    elif lower > epsilon:
        verdict = f"is FALSE (some neighbours reach {at_least(lower)})"
    claim = f"{source} claims epsilon {number(epsilon)} at delta {delta_text(delta)}"
    line = f"{claim}; this noise gives {at_most(upper)}: the claim {verdict}"
    return "\n".join([line, *(f"- its condition {text}" for text in conditions)])
