"""The entries of a ledger, and their sums, against which the next release is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dptoolkit._validate import invalid, whole
from dptoolkit.accounting import rdp
from dptoolkit.accounting.events import Composed, Event, Repeated, flatten, from_dict
from dptoolkit.accounting.guarantee import account
from dptoolkit.accounting.structure import all_gaussian
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import BudgetExceeded, InvalidValue, UnsupportedEvent
from dptoolkit.types import Array

# The quick bound grants a release only within this share of the budget. Then the total that the ledger reports later,
# computed by another method, is within the budget too.
_QUICK = 0.99

Budget = tuple[float, float]

# The fields of an entry, and of the lines of a ledger's file that settle one.
ENTRY = ("event", "count", "label", "adjacency")
_SETTLES = ("do", "of")


@dataclass(frozen=True)
class Entry:
    """``count`` releases of the same event under one label; ``adjacency`` is None where nobody stated it."""

    event: Event
    count: int
    label: str = ""
    adjacency: Adjacency | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        relation = None if self.adjacency is None else str(self.adjacency)
        return {"event": self.event.to_dict(), "count": self.count, "label": self.label, "adjacency": relation}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Entry:
        """The entry that ``to_dict`` described; files from before adjacencies were recorded have none.

        Any other field is refused: what it says about the release would be lost.
        """
        refuse_unknown(record, ENTRY, "entry")
        event = from_dict(record["event"])
        label = str(record.get("label", ""))
        return cls(event, whole("count", record["count"], low=1), label, relation_of(event, record.get("adjacency")))


def refuse_unknown(record: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    """Raise an error, which starts with ``what``, for a record with another field than the known ones."""
    unknown = next((key for key in record if key not in known), None)
    if unknown is not None:
        raise InvalidValue(
            f"{what}: field {unknown!r}: must be one of {', '.join(known)}. A later version may have written it; "
            "otherwise restore the text."
        )


def relation_of(event: Event, adjacency: Adjacency | str | None) -> Adjacency | None:
    """The adjacency that is stated or that sampling inside the event fixes; account() refuses a contradiction."""
    return account(event, adjacency=adjacency).adjacency


class Book:
    """Everything charged, and the running sums against which the next release is checked.

    A reservation stays in ``pending`` until it is confirmed or cancelled, and counts as spent all that time. The sums
    are raised before an entry is added and lowered after it is removed, so that an interruption in between leaves
    them too high, never too low.
    """

    def __init__(self) -> None:
        self.settled: list[Entry] = []
        self.pending: dict[int, Entry] = {}
        self.total: dict[Event, int] = {}
        self.curve: Array = np.zeros_like(rdp.DEFAULT_ORDERS)
        self.adjacency: Adjacency | None = None
        self.last = 1

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*self.settled, *self.pending.values())

    def sum_with(self, event: Event, count: int) -> tuple[dict[Event, int], Array]:
        """Everything charged plus ``count`` more of ``event``: counts by elementary event, and the Renyi divergence."""
        total, curve = dict(self.total), self.curve
        for part, times in flatten(Repeated(event, count)):
            total[part] = total.get(part, 0) + times
            with np.errstate(over="ignore", invalid="ignore"):
                curve = curve + _as_float(times) * _divergence(part)
        return total, curve

    def reserve(self, number: int, entry: Entry) -> None:
        self._refuse_mixture(entry.adjacency)
        self.total, self.curve = self.sum_with(entry.event, entry.count)
        self.adjacency = self.adjacency or entry.adjacency
        self.pending[number] = entry

    def confirm(self, number: int) -> None:
        """The reservation joins what is settled; equal neighbours are merged."""
        entry, last = self.pending[number], self.settled[-1] if self.settled else None
        if last is not None and last == replace(entry, count=last.count):
            self.settled[-1] = replace(entry, count=last.count + entry.count)
        else:
            self.settled.append(entry)
        del self.pending[number]

    def cancel(self, number: int) -> None:
        del self.pending[number]
        rest = Book()
        rest.total, rest.curve = rest.sum_with(Composed(*(Repeated(e.event, e.count) for e in self.entries)), 1)
        self.total, self.curve = rest.total, rest.curve
        self.adjacency = next((e.adjacency for e in self.entries if e.adjacency is not None), None)

    def apply(self, number: int, record: Mapping[str, Any]) -> None:
        """Apply one line of a ledger's file, with its number."""
        do = record["do"]
        if do in ("reserve", "spend"):
            refuse_unknown(record, ("n", "do", *ENTRY), f"record {number}")
            self.reserve(number, Entry.from_dict({key: record[key] for key in ENTRY if key in record}))
        else:
            refuse_unknown(record, ("n", *_SETTLES), f"record {number}")
        if do in ("confirm", "cancel", "spend"):
            about = number if do == "spend" else record["of"]
            (self.cancel if do == "cancel" else self.confirm)(about)
        elif do != "reserve":
            raise InvalidValue(f"do={do!r}: must be 'reserve', 'confirm', 'cancel' or 'spend'.")
        self.last = number

    def _refuse_mixture(self, relation: Adjacency | None) -> None:
        if relation is not None and self.adjacency is not None and relation is not self.adjacency:
            raise invalid(
                "adjacency",
                str(relation),
                f"'{self.adjacency}', for which this ledger's releases are stated",
                "Plan this release under that adjacency, or use one ledger per adjacency.",
            )

    def check(self, budget: Budget | None, event: Event, count: int, relation: Adjacency | None) -> None:
        """Raise if ``count`` more of ``event`` would break the budget or mix adjacencies."""
        self._refuse_mixture(relation)
        if budget is None:
            return
        epsilon, delta = budget
        total, curve = self.sum_with(event, count)
        if rdp.to_epsilon(rdp.DEFAULT_ORDERS, curve, delta) <= _QUICK * epsilon:
            return
        after = composed(total)
        if _losses_suffice(after, budget):
            return
        total_epsilon = account(after, adjacency=relation or self.adjacency).epsilon(delta)
        if not total_epsilon <= epsilon:
            raise BudgetExceeded(
                f"epsilon={total_epsilon:.6g} at delta={delta:g} after this release: must be <= {epsilon:g}. "
                f"Spent so far: {account(composed(self.total)).epsilon(delta):.6g}. "
                "Release less, add noise, or start a ledger with a larger budget."
            )


def composed(total: Mapping[Event, int]) -> Composed:
    """The elementary events with their counts as one event."""
    return Composed(*(Repeated(part, count) for part, count in total.items()))


def _losses_suffice(event: Event, budget: Budget) -> bool:
    """Whether the privacy-loss method alone proves the budget; all methods of account() take ten times as long."""
    if all_gaussian(event):
        return False
    try:
        return account(event, "pld").epsilon(budget[1]) <= budget[0]
    except UnsupportedEvent:
        return False


def _as_float(count: int) -> float:
    """A whole number of any size as a float, infinite where it is too large for one."""
    try:
        return float(count)
    except OverflowError:
        return math.inf


@lru_cache(maxsize=4096)
def _divergence(part: Event) -> Array:
    """The Renyi divergence of an elementary event, infinite where none is known: quick to add to the others'."""
    try:
        return rdp.curve(part, rdp.DEFAULT_ORDERS)
    except UnsupportedEvent:
        return np.full_like(rdp.DEFAULT_ORDERS, math.inf)
