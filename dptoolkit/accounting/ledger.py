"""What was spent so far, and whether the next release can be paid for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dptoolkit._validate import delta_value, positive, whole
from dptoolkit.accounting.account import Guarantee, account
from dptoolkit.accounting.events import Composed, Event, Repeated, as_event, from_dict
from dptoolkit.accounting.report import at_most, number, table
from dptoolkit.errors import BudgetExceeded, InvalidValue

_FORMAT = "dptoolkit-ledger-1"


@dataclass(frozen=True)
class Entry:
    """``count`` releases of the same event under one label."""

    event: Event
    count: int
    label: str = ""


class Ledger:
    """An append-only record of releases on one data set, with an optional (epsilon, delta) budget.

    Equal releases in a row are merged. ``spend`` refuses before anything is recorded, so a caller that spends first and
    releases after can never overrun the budget.
    """

    def __init__(self, epsilon: float | None = None, delta: float | None = None) -> None:
        if (epsilon is None) != (delta is None):
            raise InvalidValue(
                f"epsilon={epsilon!r}, delta={delta!r}: must be given together. "
                "A budget needs both; give neither for none."
            )
        self._budget = None
        if epsilon is not None and delta is not None:
            self._budget = (positive("epsilon", epsilon), delta_value(delta))
        self._entries: list[Entry] = []

    @property
    def budget(self) -> tuple[float, float] | None:
        """(epsilon, delta), or None."""
        return self._budget

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What was spent, in order, equal neighbours merged."""
        return tuple(self._entries)

    @property
    def event(self) -> Event:
        """Everything spent, as one event."""
        return Composed(*(Repeated(e.event, e.count) for e in self._entries))

    def guarantee(self) -> Guarantee:
        """The guarantee of everything spent."""
        return account(self.event)

    def check(self, event: Event, count: int = 1) -> None:
        """Raise BudgetExceeded if ``count`` more releases of ``event`` would break the budget; record nothing."""
        as_event("event", event)
        count = whole("count", count)
        after = account(Composed(self.event, Repeated(event, count)))
        if self._budget is None:
            return
        epsilon, delta = self._budget
        total = after.epsilon(delta)
        if total > epsilon:
            raise BudgetExceeded(
                f"epsilon={total:.6g} at delta={delta:g} after this release: must be <= {epsilon:g}. Spent so far: "
                f"{self.guarantee().epsilon(delta):.6g}. "
                "Release less, add noise, or start a ledger with a larger budget."
            )

    def spend(self, event: Event, count: int = 1, label: str = "") -> None:
        """Record ``count`` releases of ``event``; refuse, recording nothing, if the budget is short."""
        self.check(event, count)
        if count == 0:
            return
        last = self._entries[-1] if self._entries else None
        if last is not None and last.event == event and last.label == label:
            self._entries[-1] = Entry(event, last.count + count, label)
        else:
            self._entries.append(Entry(event, count, label))

    def remaining(self) -> float:
        """epsilon budget minus epsilon spent, at the budget's delta; infinite without a budget.

        Epsilons do not add: a release that costs this much alone may cost less after the others.
        """
        if self._budget is None:
            return math.inf
        return max(self._budget[0] - self.guarantee().epsilon(self._budget[1]), 0.0)

    def to_json(self) -> str:
        """The ledger as JSON text; ``from_json`` reads it back."""
        budget = None if self._budget is None else {"epsilon": self._budget[0], "delta": self._budget[1]}
        entries = [{"event": e.event.to_dict(), "count": e.count, "label": e.label} for e in self._entries]
        return json.dumps({"format": _FORMAT, "budget": budget, "entries": entries}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """The ledger that ``to_json`` wrote. It is taken as it is: what was spent was spent."""
        try:
            record = json.loads(text)
        except ValueError as problem:
            raise InvalidValue(f"text: must be JSON written by to_json(). {problem}") from None
        if not isinstance(record, Mapping) or record.get("format") != _FORMAT:
            raise InvalidValue(f"text: must be JSON with format {_FORMAT!r}, as to_json() writes it.")
        return cls._from_record(record)

    @classmethod
    def _from_record(cls, record: Mapping[str, Any]) -> Ledger:
        try:
            ledger = cls(**(record["budget"] or {}))
            for e in record["entries"]:
                count = whole("count", e["count"], low=1)
                ledger._entries.append(Entry(from_dict(e["event"]), count, str(e.get("label", ""))))
        except (KeyError, TypeError, AttributeError) as problem:
            raise InvalidValue(f"text: must hold budget and entries, as to_json() writes them. {problem!r}") from None
        return ledger

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and (self._budget, self._entries) == (other._budget, other._entries)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ledger(budget={self._budget}, entries={len(self._entries)})"

    def __str__(self) -> str:
        rows = [[e.label or "-", str(e.event), f"{e.count:,}"] for e in self._entries]
        head = "Ledger without budget"
        if self._budget is not None:
            epsilon, delta = self._budget
            spent = self.guarantee().epsilon(delta)
            head = f"Ledger: spent epsilon {at_most(spent)} of {number(epsilon)} at delta {delta:g}"
        return head + "\n\n" + table(["label", "event", "count"], rows or [["-", "nothing spent", "0"]])
