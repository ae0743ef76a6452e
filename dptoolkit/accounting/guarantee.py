"""A guarantee: a bound on what a release gives away, computed from its event on demand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dptoolkit._validate import delta_value, nonnegative
from dptoolkit.accounting import pld
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.group import GroupGuarantee
from dptoolkit.accounting.methods import METHODS, best_delta, best_epsilon, is_exact
from dptoolkit.accounting.report import Printed, at_most, delta_text
from dptoolkit.accounting.statement import TABLE_DELTAS, guarantee_table
from dptoolkit.accounting.structure import assumptions, total_rho
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent

REFERENCE_DELTA = 1e-5


class Claimed(NamedTuple):
    """A claim that somebody else makes for a release, and whether the conditions of that claim hold here."""

    epsilon: float
    delta: float
    source: str
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Guarantee(Printed):
    """What a release guarantees, computed from the event on demand. ``print`` shows it as a table.

    ``asked_delta`` is the delta that the caller asked for, if any: the table lists it besides the usual ones.
    """

    event: Event
    forced_method: str | None = None
    adjacency: Adjacency | None = None
    notes: tuple[str, ...] = field(default=())
    claimed: Claimed | None = None
    asked_delta: float | None = None

    def __post_init__(self) -> None:
        if self.asked_delta is not None:
            delta_value(self.asked_delta)

    @property
    def deltas(self) -> tuple[float, ...]:
        """The deltas at which epsilon is printed, the largest first."""
        extra = () if self.asked_delta is None else (float(self.asked_delta),)
        return tuple(sorted({*TABLE_DELTAS, *extra}, reverse=True))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon known to hold at ``delta``."""
        delta = delta_value(delta)
        if self.forced_method is None:
            return best_epsilon(self.event, delta)[0]
        return METHODS[self.forced_method].epsilon(self.event, delta)

    def delta(self, epsilon: float) -> float:
        """The smallest delta known to hold at ``epsilon``."""
        epsilon = nonnegative("epsilon", epsilon)
        if self.forced_method is None:
            return best_delta(self.event, epsilon)[0]
        return METHODS[self.forced_method].delta(self.event, epsilon)

    def bounds(self, delta: float) -> pld.Bracket:
        """(lower, upper) bounds on epsilon: upper is guaranteed, and no analysis can prove less than lower.

        An explicit pair of neighbours attains the lower bound; it is 0 where no such pair is known (ZCdp, BestOf).
        """
        upper = self.epsilon(delta)
        if self.forced_method is None and is_exact(self.event):
            return pld.Bracket(upper, upper)
        try:
            lower = pld.lower_epsilon(self.event, delta_value(delta))
        except UnsupportedEvent:
            lower = 0.0
        if lower > upper * (1 + 1e-9):
            raise ArithmeticError(
                f"lower bound {lower} exceeds upper bound {upper} at delta={delta:g} for {self.event!r}: "
                "one of them is wrong. Please report this."
            )
        return pld.Bracket(min(lower, upper), upper)

    def group(self, size: int) -> GroupGuarantee:
        """What holds for any ``size`` records that change together, such as all those of one person."""
        return GroupGuarantee(self, size)

    @property
    def rho(self) -> float:
        """The zCDP parameter, infinite where none is known."""
        try:
            return total_rho(self.event)
        except UnsupportedEvent:
            return math.inf

    @property
    def method(self) -> str:
        """The method behind the answer at delta = 1e-5."""
        return self.method_at(REFERENCE_DELTA)

    def method_at(self, delta: float) -> str:
        """The method behind ``epsilon(delta)``."""
        return self.forced_method or best_epsilon(self.event, delta_value(delta))[1]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true of the mechanism for the guarantee to hold."""
        return tuple(dict.fromkeys(self.notes + tuple(assumptions(self.event))))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the event, the adjacency, epsilon at a few deltas, the assumptions."""
        return {
            "event": self.event.to_dict(),
            "adjacency": None if self.adjacency is None else self.adjacency.value,
            "method": self.method,
            "epsilon": {repr(d): _json_number(self.epsilon(d)) for d in self.deltas},
            "rho": _json_number(self.rho),
            "assumptions": list(self.assumptions),
            "claimed": self._claim_record(),
        }

    def _claim_record(self) -> dict[str, Any] | None:
        if self.claimed is None:
            return None
        record = self.claimed._asdict()
        return record | {"epsilon": _json_number(self.claimed.epsilon), "conditions": list(self.claimed.conditions)}

    def plot(self, path: str | Path) -> None:
        """The privacy profile beside other ways to account, to a PNG, SVG or PDF file."""
        from dptoolkit import plots

        plots.save(plots.profile(self), path)

    def __repr__(self) -> str:
        delta = REFERENCE_DELTA if self.asked_delta is None else self.asked_delta
        adjacency = "" if self.adjacency is None else f", {self.adjacency}"
        return f"<Guarantee: epsilon {_epsilon_words(self, delta)} at delta {delta_text(delta)}{adjacency}>"

    def __str__(self) -> str:
        return guarantee_table(self)


def _epsilon_words(guarantee: Guarantee, delta: float) -> str:
    """Epsilon in few digits; a text that is shown by debuggers must not raise."""
    try:
        return at_most(guarantee.epsilon(delta))
    except (UnsupportedEvent, ArithmeticError):
        return "unknown"


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
