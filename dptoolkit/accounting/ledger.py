"""What was spent so far, and whether the next release can be paid for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dptoolkit._validate import delta_value, flag, invalid, positive, whole
from dptoolkit.accounting.account import Guarantee, account
from dptoolkit.accounting.events import Composed, Event, Repeated, as_event, from_dict
from dptoolkit.accounting.report import at_most, number, table
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import BudgetExceeded, InvalidValue

_FORMAT = "dptoolkit-ledger-1"


@dataclass(frozen=True)
class Entry:
    """``count`` releases of the same event under one label; ``adjacency`` is None where nobody stated it."""

    event: Event
    count: int
    label: str = ""
    adjacency: Adjacency | None = None


def _relation(event: Event, stated: Adjacency | str | None) -> Adjacency | None:
    """The adjacency that is stated or that sampling inside the event fixes; account() refuses a contradiction."""
    return account(event, adjacency=stated).adjacency


class Ledger:
    """An append-only record of releases on one data set, with an optional (epsilon, delta) budget.

    Equal releases in a row are merged. ``spend`` refuses before anything is recorded, so a caller that spends first and
    releases after can never overrun the budget. All releases must be stated for one adjacency: an epsilon for zero-out
    and one for replace-one do not add up to either. A release for which none is stated is taken to be for that one too.
    Fits from a seed are refused unless ``allow_seeds``: their noise can be computed again, so they are no releases.
    """

    def __init__(
        self, epsilon: float | None = None, delta: float | None = None, *, allow_seeds: bool = False
    ) -> None:
        self.allow_seeds = flag("allow_seeds", allow_seeds)
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

    @property
    def adjacency(self) -> Adjacency | None:
        """The adjacency of everything spent, None as long as nobody stated one."""
        return next((e.adjacency for e in self._entries if e.adjacency is not None), None)

    def guarantee(self) -> Guarantee:
        """The guarantee of everything spent."""
        return account(self.event, adjacency=self.adjacency)

    def check(self, event: Event, count: int = 1, adjacency: Adjacency | str | None = None) -> None:
        """Raise if ``count`` more releases of ``event`` would break the budget or mix adjacencies; record nothing."""
        as_event("event", event)
        count = whole("count", count)
        relation = _relation(event, adjacency)
        self._refuse_mixture(relation)
        after = account(Composed(self.event, Repeated(event, count)), adjacency=relation or self.adjacency)
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

    def spend(
        self, event: Event, count: int = 1, label: str = "", adjacency: Adjacency | str | None = None
    ) -> None:
        """Record ``count`` releases of ``event``; refuse, recording nothing, if the budget is short.

        ``adjacency`` is the relation that the event's noise is stated for; sampling inside the event states it too.
        """
        self.check(event, count, adjacency)
        if count == 0:
            return
        entry = Entry(event, count, label, _relation(event, adjacency))
        last = self._entries[-1] if self._entries else None
        if last is not None and last == replace(entry, count=last.count):
            self._entries[-1] = replace(entry, count=last.count + count)
        else:
            self._entries.append(entry)

    def _refuse_mixture(self, relation: Adjacency | None) -> None:
        spent = self.adjacency
        if relation is not None and spent is not None and relation is not spent:
            raise invalid(
                "adjacency", str(relation), f"'{spent}', for which this ledger's releases are stated",
                "Plan this release for that adjacency, or keep a ledger for each.",
            )

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
        entries = [
            {
                "event": e.event.to_dict(), "count": e.count, "label": e.label,
                "adjacency": None if e.adjacency is None else str(e.adjacency),
            }
            for e in self._entries
        ]  # fmt: skip
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
                count, event = whole("count", e["count"], low=1), from_dict(e["event"])
                # Files from before adjacencies were recorded have none.
                relation = _relation(event, e.get("adjacency"))
                ledger._refuse_mixture(relation)
                ledger._entries.append(Entry(event, count, str(e.get("label", "")), relation))
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
        if self.adjacency is not None:
            head += f", {self.adjacency}"
        return head + "\n\n" + table(["label", "event", "count"], rows or [["-", "nothing spent", "0"]])
