"""What was spent so far, and whether the next release can be paid for."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from dptoolkit._validate import delta_value, flag, invalid, positive, whole
from dptoolkit.accounting import journal
from dptoolkit.accounting.account import account
from dptoolkit.accounting.book import Book, Budget, Entry, composed, relation_of
from dptoolkit.accounting.events import Event, as_event
from dptoolkit.accounting.guarantee import Guarantee
from dptoolkit.accounting.journal import Guard, Journal
from dptoolkit.accounting.report import at_most, number, table
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import InvalidValue

_FORMAT = "dptoolkit-ledger-1"


class Reservation:
    """A release that is paid for and not made yet.

    It counts as spent from the start, so that nobody else can spend the same budget. ``confirm`` says that the release
    was made; ``cancel`` gives the budget back, and is right only if nothing that depends on the data has left the
    program. One that is never confirmed, because the program ended in between, stays spent. In a ``with`` block the end
    confirms, and an exception leaves it spent: noise may have been drawn by then.
    """

    def __init__(self, ledger: Ledger, number: int) -> None:
        self._ledger, self._number, self._state = ledger, number, "reserved"

    def __repr__(self) -> str:
        return f"Reservation({self._state})"

    def confirm(self) -> None:
        """The release was made."""
        if self._state != "confirmed":
            self._settle("confirm", "confirmed")

    def cancel(self) -> None:
        """The release was not made and will not be: the budget is as before."""
        self._settle("cancel", "cancelled")

    def _settle(self, do: str, state: str) -> None:
        if self._state != "reserved":
            raise invalid(f"{do} of a reservation", self._state, "done while it is open", "Reserve for every release.")
        self._ledger._settle(do, self._number)
        self._state = state

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None and self._state == "reserved":
            self.confirm()


class Ledger:
    """An append-only record of releases on one data set, with an optional (epsilon, delta) budget.

    Equal releases in a row are merged. ``spend`` and ``reservation`` refuse before anything is recorded, and check and
    record in one step, so that callers who ask first and release after can never overrun the budget together, whichever
    thread they are in. All releases must be stated for one adjacency: an epsilon for zero-out and one for replace-one
    do not add up to either. A release for which none is stated is taken to be for that one too. Fits from a seed are
    refused unless ``allow_seeds``: their noise can be computed again, so they are no releases.

    A ledger in memory belongs to the process that made it: a copy would spend the same budget again, so it is neither
    pickled nor copied, and a forked child cannot spend from it. For several processes, or to outlive a crash, keep it
    in a file: ``Ledger.open(path, epsilon=, delta=)``.

    Privacy
    -------
    Touches no data. What it says of the past is what callers told it: a release that nobody announced is not in it.
    """

    def __init__(
        self, epsilon: float | None = None, delta: float | None = None, *, allow_seeds: bool = False
    ) -> None:
        self.allow_seeds = flag("allow_seeds", allow_seeds)
        self._budget = _checked_budget(epsilon, delta)
        self._book = Book()
        self._journal: Journal | None = None
        self._guard = Guard()
        self._process = os.getpid()

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], epsilon: float | None = None, delta: float | None = None, *,
        allow_seeds: bool = False,
    ) -> Ledger:
        """The ledger that lives in the file ``path``, made with this budget if there is no such file.

        Every process and thread that opens the file spends from the same budget: a file lock keeps them apart, and
        every charge is on the disk before it is granted. A release whose program ended between reserving and confirming
        counts as spent. The file is never shortened: one line of JSON for the budget, then one for every step.

        Parameters
        ----------
        path : on a file system with file locks (a local disk; not every network share has them).
        epsilon, delta : the budget of a new file. That of an existing file stands, and a different one is refused.
        """
        place = os.path.abspath(os.fspath(path))
        given = _checked_budget(epsilon, delta)
        if not os.path.lexists(place):
            if given is None:
                raise invalid("path", place, "a file that exists", "For a new ledger give epsilon and delta.")
            journal.created(place, {"budget": _budget_record(given)})
        ledger = cls._opened(place, given)
        ledger.allow_seeds = flag("allow_seeds", allow_seeds)
        return ledger

    @classmethod
    def _opened(cls, place: str, given: Budget | None = None, head: bytes | None = None) -> Ledger:
        line, facts = journal.first_line(place)
        if head not in (None, line):
            raise invalid("path", place, "the ledger that was sent here", "Another one is in its place.")
        ledger = cls()
        ledger._budget = _read_budget(facts, f"path={place!r}, line 1")
        if given is not None and given != ledger._budget:
            raise invalid(
                "(epsilon, delta)", given, f"{ledger._budget}, the budget in {place}",
                "Leave them out to open it. A budget that was fixed is not changed.",
            )
        ledger._journal = Journal(place, line)
        ledger._guard = ledger._journal.guard
        with ledger._held():
            return ledger

    @contextmanager
    def _held(self, *, to_spend: bool = False) -> Iterator[Book]:
        """The book, up to date, while nobody else can change it."""
        if to_spend and self._journal is None and self._process != os.getpid():
            raise invalid(
                "ledger", f"{self!r} of process {self._process}", f"used there, not in process {os.getpid()}",
                "A copy would spend the budget again: keep it in a file with Ledger.open(path).",
            )
        with self._guard.held():
            if self._journal is not None:
                self._catch_up(self._journal)
            yield self._book

    def _catch_up(self, lines: Journal) -> None:
        if self._process != os.getpid():
            # The parent may have been in the middle of a change.
            self._process, self._book = os.getpid(), Book()
            lines.rewind()
        _replay(self._book, lines.unread(), f"path={lines.path!r}")

    @property
    def budget(self) -> Budget | None:
        """(epsilon, delta), or None."""
        return self._budget

    @property
    def path(self) -> str | None:
        """The file that the ledger lives in, None for one in memory."""
        return None if self._journal is None else self._journal.path

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What was spent, in order, equal neighbours merged; then what is reserved."""
        with self._held() as book:
            return book.entries

    @property
    def reserved(self) -> tuple[Entry, ...]:
        """What is reserved and neither confirmed nor cancelled: under way, or left behind by a crash. It is spent."""
        with self._held() as book:
            return tuple(book.pending.values())

    @property
    def event(self) -> Event:
        """Everything spent, as one event: elementary events with their counts."""
        with self._held() as book:
            return composed(book.total)

    @property
    def adjacency(self) -> Adjacency | None:
        """The adjacency of everything spent, None as long as nobody stated one."""
        with self._held() as book:
            return book.adjacency

    def guarantee(self) -> Guarantee:
        """The guarantee of everything spent."""
        with self._held() as book:
            event, adjacency = composed(book.total), book.adjacency
        return account(event, adjacency=adjacency)

    def check(self, event: Event, count: int = 1, adjacency: Adjacency | str | None = None) -> None:
        """Raise if ``count`` more releases of ``event`` would break the budget or mix adjacencies; record nothing.

        Somebody else may spend right after: to release, ask for a ``reservation``.
        """
        as_event("event", event)
        count, relation = whole("count", count), relation_of(event, adjacency)
        with self._held() as book:
            book.check(self._budget, event, count, relation)

    def spend(
        self, event: Event, count: int = 1, label: str = "", adjacency: Adjacency | str | None = None
    ) -> None:
        """Record ``count`` releases of ``event``; refuse, recording nothing, if the budget is short.

        ``adjacency`` is the relation that the event's noise is stated for; sampling inside the event states it too.
        """
        if whole("count", count) == 0:
            self.check(event, 0, adjacency)
        else:
            self._charge("spend", _entry(event, count, label, adjacency))

    def reservation(
        self, event: Event, count: int = 1, label: str = "", adjacency: Adjacency | str | None = None
    ) -> Reservation:
        """As ``spend``, for a release that may still fail: spent from now on, and to be confirmed after it.

            with ledger.reservation(event, label="mean") as paid:
                ...  # bad input found here: paid.cancel()
        """
        return Reservation(self, self._charge("reserve", _entry(event, count, label, adjacency)))

    def _charge(self, do: str, entry: Entry) -> int:
        """Check and record in one step; the number of the record."""
        with self._held(to_spend=True) as book:
            book.check(self._budget, entry.event, entry.count, entry.adjacency)
            if self._journal is None:
                book.last += 1
                book.reserve(book.last, entry)
                if do == "spend":
                    book.confirm(book.last)
            else:
                record = {"do": do} | entry.to_dict()
                _refuse_unreadable(entry, record)
                self._write(self._journal, record)
            return book.last

    def _settle(self, do: str, number: int) -> None:
        with self._held(to_spend=True) as book:
            if number not in book.pending:
                raise invalid(f"{do} of a reservation", number, "done once", "It was settled elsewhere.")
            if self._journal is not None:
                self._write(self._journal, {"do": do, "of": number})
            else:
                (book.confirm if do == "confirm" else book.cancel)(number)

    def _write(self, lines: Journal, record: Mapping[str, Any]) -> None:
        lines.append(record)
        self._catch_up(lines)

    def remaining(self) -> float:
        """epsilon budget minus epsilon spent, at the budget's delta; infinite without a budget.

        Epsilons do not add: a release that costs this much alone may cost less after the others.
        """
        if self._budget is None:
            return math.inf
        return max(self._budget[0] - self.guarantee().epsilon(self._budget[1]), 0.0)

    def to_json(self) -> str:
        """The ledger as JSON text, what is reserved as spent; ``from_json`` reads it back.

        The text is a record, not a second purse: of two ledgers read from it each would spend what is left.
        """
        budget = None if self._budget is None else _budget_record(self._budget)
        entries = [entry.to_dict() for entry in self.entries]
        return json.dumps({"format": _FORMAT, "budget": budget, "entries": entries}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """The ledger that ``to_json`` wrote, or that is in the text of a ledger's file: what was spent was spent."""
        if not isinstance(text, str):
            raise invalid("text", type(text).__name__, "a string")
        if journal.FORMAT in text.partition("\n")[0]:
            facts, lines = journal.head_record(text.partition("\n")[0], "text:"), journal.lines_of(text)
            return cls._restored(_read_budget(facts, "text"), lines)
        record = journal.parse(text, "text: must be JSON written by to_json().")
        if not isinstance(record, Mapping) or record.get("format") != _FORMAT:
            raise InvalidValue(f"text: must be JSON with format {_FORMAT!r}, as to_json() writes it.")
        entries = record.get("entries")
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise InvalidValue("text: must hold a list of entries, as to_json() writes it.")
        return cls._restored(_read_budget(record, "text"), enumerate(({"do": "spend"} | e for e in entries), 2))

    @classmethod
    def _restored(cls, budget: Budget | None, lines: Iterable[tuple[int, Mapping[str, Any]]]) -> Ledger:
        ledger = cls()
        ledger._budget = budget
        _replay(ledger._book, lines, "text")
        return ledger

    def __reduce__(self) -> tuple[Any, ...]:
        if self._journal is not None:
            return _reopened, (self._journal.path, self._journal.head)
        raise InvalidValue(
            f"ledger={self!r}: must not be pickled or copied. The copy would spend the same budget again, unseen. Keep "
            "it in a file with Ledger.open(path), which all processes share, or save it with to_json()."
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and (self._budget, self.entries) == (other._budget, other.entries)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        place = "" if self._journal is None else f", path={self._journal.path!r}"
        return f"Ledger(budget={self._budget}, entries={len(self._book.settled) + len(self._book.pending)}{place})"

    def __str__(self) -> str:
        entries, guarantee = self.entries, self.guarantee()
        rows = [[e.label or "-", str(e.event), f"{e.count:,}"] for e in entries]
        head = "Ledger without budget"
        if self._budget is not None:
            epsilon, delta = self._budget
            head = f"Ledger: spent epsilon {at_most(guarantee.epsilon(delta))} of {number(epsilon)} at delta {delta:g}"
        if guarantee.adjacency is not None:
            head += f", {guarantee.adjacency}"
        return head + "\n\n" + table(["label", "event", "count"], rows or [["-", "nothing spent", "0"]])


def _reopened(path: str, head: bytes) -> Ledger:
    """A ledger that travelled to another process as the name of its file."""
    return Ledger._opened(path, head=head)


def _checked_budget(epsilon: Any, delta: Any) -> Budget | None:
    if (epsilon is None) != (delta is None):
        raise InvalidValue(
            f"epsilon={epsilon!r}, delta={delta!r}: must be given together. "
            "A budget needs both; give neither for none."
        )
    return None if epsilon is None else (positive("epsilon", epsilon), delta_value(delta))


def _budget_record(budget: Budget) -> dict[str, float]:
    return {"epsilon": budget[0], "delta": budget[1]}


def _read_budget(record: Mapping[str, Any], what: str) -> Budget | None:
    """The budget of a saved ledger: null is none, and anything but null or both numbers is refused."""
    budget = record.get("budget", "nothing")
    if budget is None:
        return None
    if not isinstance(budget, Mapping) or set(budget) != {"epsilon", "delta"} or None in budget.values():
        raise InvalidValue(f"{what}: budget={budget!r}: must be null for none, or hold epsilon and delta.")
    return _checked_budget(**budget)


def _entry(event: Event, count: int, label: str, adjacency: Adjacency | str | None) -> Entry:
    as_event("event", event)
    if not isinstance(label, str):
        raise invalid("label", label, "a string")
    return Entry(event, whole("count", count, low=1), str(label), relation_of(event, adjacency))


def _refuse_unreadable(entry: Entry, record: Mapping[str, Any]) -> None:
    """What could not be read back is not written."""
    try:
        found = Entry.from_dict(json.loads(journal.encoded(record)))
    except (TypeError, ValueError, RecursionError) as problem:
        raise invalid("event", entry.event, "one that from_dict reads back", f"{problem}") from None
    if found != entry:
        raise invalid("event", entry.event, "one that from_dict reads back", f"It becomes {found.event!r}.")


def _replay(book: Book, lines: Iterable[tuple[int, Mapping[str, Any]]], what: str) -> None:
    for line, record in lines:
        try:
            book.apply(line, record)
        except (KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise InvalidValue(f"{what}: record {line} must be as the ledger writes it. {problem!r}") from None
