"""The ledger: what was spent so far, and whether the budget allows the next release."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

from dptoolkit._validate import delta_value, flag, invalid, positive, whole
from dptoolkit.accounting.events import Event, as_event
from dptoolkit.accounting.guarantee import Guarantee, account
from dptoolkit.accounting.ledger import journal
from dptoolkit.accounting.ledger.book import ENTRY, Book, Budget, Entry, composed, refuse_unknown, relation_of
from dptoolkit.accounting.ledger.journal import Guard, Journal
from dptoolkit.accounting.report import Printed, at_most, delta_text, number, table
from dptoolkit.accounting.structure import brief
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import InvalidValue

_FORMAT = "dptoolkit-ledger-1"
# The fields of the saved text, and of a file's first line.
_TEXT, _HEAD = ("format", "budget", "entries"), ("format", "id", "budget", "allow_fast_noise")


class Reservation:
    """A release that is charged to the ledger and has not happened yet.

    It counts as spent from the start, so that nobody else can spend the same budget. ``confirm`` says that the release
    has happened; ``cancel`` returns the budget, and is right only if nothing that depends on the data has left the
    program. A reservation that is never confirmed, because the program ended in between, stays spent. The end of a
    ``with`` block confirms it; an exception inside leaves it spent, since noise may have been drawn by then.
    """

    def __init__(self, ledger: Ledger, number: int) -> None:
        self._ledger, self._number, self._state = ledger, number, "reserved"

    def __repr__(self) -> str:
        return f"Reservation({self._state})"

    def confirm(self) -> None:
        """Record that the release has happened."""
        if self._state != "confirmed":
            self._settle("confirm", "confirmed")

    def cancel(self) -> None:
        """Return the budget, as the release has not happened and will not."""
        self._settle("cancel", "cancelled")

    def _settle(self, do: str, state: str) -> None:
        if self._state != "reserved":
            raise invalid(
                f"{do} of a reservation",
                self._state,
                "done while it is open",
                "Make a new reservation for every release.",
            )
        self._ledger._settle(do, self._number)
        self._state = state

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None and self._state == "reserved":
            self.confirm()


class Ledger(Printed):
    """An append-only record of releases on one data set, with an optional (epsilon, delta) budget.

    Equal releases in a row are merged. ``spend`` and ``reservation`` check the budget and record the release in one
    step, and record nothing if they refuse. Callers in different threads who charge first and release afterwards can
    therefore never exceed the budget together. All releases must be stated for one adjacency, because an epsilon for
    zero-out and one for replace-one do not add up to either; a release without a stated adjacency is taken to be for
    the ledger's. Fits from a seed are refused unless ``allow_seeds``: anybody who knows the seed can compute their
    noise, so they have no privacy. Fits with noise in doubles are refused unless ``allow_fast_noise``.

    A ledger in memory belongs to the process that made it: a copy would spend the same budget again, so it cannot be
    pickled or copied, and a forked child cannot spend from it. For several processes, or to outlive a crash, keep it
    in a file: ``Ledger.open(path, epsilon=, delta=)``.

    Parameters
    ----------
    epsilon : float or None, default None
        The epsilon of the budget; None for no budget.
    delta : float or None, default None
        The delta of the budget, given together with epsilon.
    allow_seeds : bool, default False
        Whether fits that were made with a seed may be charged, for tests on data that are not private.
    allow_fast_noise : bool, default False
        Whether fits whose noise is drawn in doubles (``randomness="fast"``) may be charged. The last digits of such a
        release can show which data it was made of, whatever its epsilon. Fits with a seed need ``allow_seeds`` alone.

    Privacy
    -------
    Touches no data. It knows only the releases that callers announced: one that nobody announced is not in it.
    """

    def __init__(
        self, epsilon: float | None = None, delta: float | None = None, *, allow_seeds: bool = False,
        allow_fast_noise: bool = False,
    ) -> None:  # fmt: skip
        self.allow_seeds = flag("allow_seeds", allow_seeds)
        self.allow_fast_noise = flag("allow_fast_noise", allow_fast_noise)
        self._budget = _checked_budget(epsilon, delta)
        self._book = Book()
        self._journal: Journal | None = None
        self._guard = Guard()
        self._process = os.getpid()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        allow_seeds: bool = False,
        allow_fast_noise: bool = False,
    ) -> Ledger:
        """The ledger that lives in the file ``path``, made with this budget if there is no such file.

        Every process and thread that opens the file spends from the same budget: a file lock keeps them apart, and
        every charge is on the disk before it is granted. A release whose program ended between reserving and confirming
        counts as spent. The file is never shortened: one line of JSON for the budget, then one for every step.

        Parameters
        ----------
        path : path-like
            The file, on a file system with file locks (a local disk; not every network share has them).
        epsilon : float or None, default None
            The epsilon of the budget of a new file. The budget of an existing file cannot change; a different one is
            refused.
        delta : float or None, default None
            The delta of the budget of a new file, given together with epsilon.
        allow_seeds : bool, default False
            Whether fits that were made with a seed may be charged.
        allow_fast_noise : bool, default False
            Whether fits with noise in doubles may be charged. A new file keeps the answer; a file that was made so
            allows it for everybody who opens it. Files of earlier versions do not.
        """
        place = os.path.abspath(os.fspath(path))
        budget = _checked_budget(epsilon, delta)
        if not os.path.lexists(place):
            if budget is None:
                raise invalid("path", place, "a file that exists", "For a new ledger give epsilon and delta.")
            fast = {"allow_fast_noise": True} if flag("allow_fast_noise", allow_fast_noise) else {}
            journal.create(place, {"budget": _budget_record(budget), **fast})
        ledger = cls._from_file(place, budget)
        ledger.allow_seeds = flag("allow_seeds", allow_seeds)
        ledger.allow_fast_noise |= flag("allow_fast_noise", allow_fast_noise)
        return ledger

    @classmethod
    def _from_file(cls, place: str, budget: Budget | None = None, head: bytes | None = None) -> Ledger:
        line, facts = journal.first_line(place)
        if head not in (None, line):
            raise invalid("path", place, "the ledger that was sent here", "Another ledger has replaced it.")
        ledger = cls()
        refuse_unknown(facts, _HEAD, f"path={place!r}, line 1")
        ledger._budget = _read_budget(facts, f"path={place!r}, line 1")
        ledger.allow_fast_noise = facts.get("allow_fast_noise") is True
        if budget is not None and budget != ledger._budget:
            raise invalid(
                "(epsilon, delta)",
                budget,
                f"{ledger._budget}, the budget in {place}",
                "Leave them out to open the file. The budget of a ledger cannot change.",
            )
        ledger._journal = Journal(place, line)
        ledger._guard = ledger._journal.guard
        with ledger._turn():
            return ledger

    @contextmanager
    def _turn(self, *, to_spend: bool = False) -> Iterator[Book]:
        """Hold the lock during a ``with`` block, whose value is the book with every line of the file applied."""
        if to_spend and self._journal is None and self._process != os.getpid():
            raise invalid(
                "ledger",
                f"{self!r} of process {self._process}",
                f"used there, not in process {os.getpid()}",
                "A copy would spend the budget again. To share a ledger, keep it in a file with Ledger.open(path).",
            )
        with self._guard.turn():
            if self._journal is not None:
                self._catch_up(self._journal)
            yield self._book

    def _catch_up(self, lines: Journal) -> None:
        if self._process != os.getpid():
            # This is a forked child, and the parent may have been in the middle of a change: read everything again.
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
        """The entries that were spent, in order, with equal neighbours merged; then the reservations."""
        with self._turn() as book:
            return book.entries

    @property
    def reserved(self) -> tuple[Entry, ...]:
        """Reservations neither confirmed nor cancelled: under way, or left behind by a crash. They count as spent."""
        with self._turn() as book:
            return tuple(book.pending.values())

    @property
    def event(self) -> Event:
        """Everything spent, as one event: elementary events with their counts."""
        with self._turn() as book:
            return composed(book.total)

    @property
    def adjacency(self) -> Adjacency | None:
        """The adjacency of everything spent, None as long as nobody stated one."""
        with self._turn() as book:
            return book.adjacency

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of everything spent; its table lists the delta of the budget."""
        with self._turn() as book:
            event, adjacency = composed(book.total), book.adjacency
        delta = None if self._budget is None else self._budget[1]
        return replace(account(event, adjacency=adjacency), asked_delta=delta)

    def check(self, event: Event, count: int = 1, adjacency: Adjacency | str | None = None) -> None:
        """Raise if ``count`` more releases of ``event`` would exceed the budget or mix adjacencies; record nothing.

        The answer may be outdated at once, because others may spend from the same ledger: before a release, make a
        ``reservation``.

        Parameters
        ----------
        event : Event
            What would be released.
        count : int, default 1
            How often.
        adjacency : Adjacency, str or None, default None
            As for ``spend``.
        """
        as_event("event", event)
        count, relation = whole("count", count), relation_of(event, adjacency)
        with self._turn() as book:
            book.check(self._budget, event, count, relation)

    def spend(self, event: Event, count: int = 1, label: str = "", adjacency: Adjacency | str | None = None) -> None:
        """Record ``count`` releases of ``event``; refuse, recording nothing, if the budget is short.

        Parameters
        ----------
        event : Event
            What is released.
        count : int, default 1
            How often.
        label : str, default ""
            A name for the table.
        adjacency : Adjacency, str or None, default None
            The relation that the event's noise is stated for. Sampling inside the event states it too; None otherwise
            means the ledger's.

        Raises
        ------
        BudgetExceeded
            If the budget is short.
        InvalidValue
            If the ledger holds releases for another adjacency.
        """
        if whole("count", count) == 0:
            self.check(event, 0, adjacency)
        else:
            self._charge("spend", _entry(event, count, label, adjacency))

    def reservation(
        self, event: Event, count: int = 1, label: str = "", adjacency: Adjacency | str | None = None
    ) -> Reservation:
        """As ``spend``, for a release that may still fail: it counts as spent now and is confirmed afterwards.

            with ledger.reservation(event, label="mean") as paid:
                ...  # bad input found here: paid.cancel()

        Parameters
        ----------
        event : Event
            What is released.
        count : int, default 1
            How often.
        label : str, default ""
            A name for the table.
        adjacency : Adjacency, str or None, default None
            As for ``spend``.

        Returns
        -------
        Reservation
            It is confirmed by ``confirm`` or at the end of a ``with`` block, and returned to the budget by ``cancel``.
        """
        return Reservation(self, self._charge("reserve", _entry(event, count, label, adjacency)))

    def _charge(self, do: str, entry: Entry) -> int:
        """Check and record in one step; returns the number of the record."""
        with self._turn(to_spend=True) as book:
            book.check(self._budget, entry.event, entry.count, entry.adjacency)
            if self._journal is None:
                book.last += 1
                book.reserve(book.last, entry)
                if do == "spend":
                    book.confirm(book.last)
            else:
                _refuse_unreadable(entry)
                self._write(self._journal, {"do": do} | entry.to_dict())
            return book.last

    def _settle(self, do: str, number: int) -> None:
        with self._turn(to_spend=True) as book:
            if number not in book.pending:
                raise invalid(f"{do} of a reservation", number, "done once", "It was confirmed or cancelled elsewhere.")
            if self._journal is not None:
                self._write(self._journal, {"do": do, "of": number})
            else:
                (book.confirm if do == "confirm" else book.cancel)(number)

    def _write(self, lines: Journal, record: Mapping[str, Any]) -> None:
        lines.append(record)
        self._catch_up(lines)

    def remaining(self) -> float:
        """The budget's epsilon minus the epsilon spent, at the budget's delta; infinite without a budget.

        Epsilons do not add up: a release whose own epsilon is larger than this may still be within the budget.
        """
        if self._budget is None:
            return math.inf
        return max(self._budget[0] - self.guarantee.epsilon(self._budget[1]), 0.0)

    def to_json(self) -> str:
        """The ledger as JSON text, with reservations as spent; ``from_json`` reads it back.

        The text is a record and not a second budget: two ledgers read from it would each spend what is left.
        """
        budget = None if self._budget is None else _budget_record(self._budget)
        entries = [entry.to_dict() for entry in self.entries]
        return json.dumps({"format": _FORMAT, "budget": budget, "entries": entries}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """The ledger in the text that ``to_json`` wrote, or in the text of a ledger's file."""
        if not isinstance(text, str):
            raise invalid("text", type(text).__name__, "a string")
        if journal.FORMAT in text.partition("\n")[0]:
            facts, lines = journal.head_record(text.partition("\n")[0], "text:"), journal.lines_of(text)
            refuse_unknown(facts, _HEAD, "text: line 1")
            return cls._restored(_read_budget(facts, "text"), lines)
        record = journal.parse(text, "text: must be JSON written by to_json().")
        if not isinstance(record, Mapping) or record.get("format") != _FORMAT:
            raise InvalidValue(f"text: must be JSON with format {_FORMAT!r}, as to_json() writes it.")
        refuse_unknown(record, _TEXT, "text")
        entries = record.get("entries")
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise InvalidValue("text: must hold a list of entries, as to_json() writes it.")
        for line, entry in enumerate(entries, 2):
            refuse_unknown(entry, ENTRY, f"text: record {line}")
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
        entries, guarantee = self.entries, self.guarantee
        rows = [[e.label or "-", brief(e.event), f"{e.count:,}"] for e in entries]
        head = "Ledger without budget"
        if self._budget is not None:
            epsilon, delta = self._budget
            cost = at_most(guarantee.epsilon(delta))
            head = f"Ledger: spent epsilon {cost} of {number(epsilon)} at delta {delta_text(delta)}"
        if guarantee.adjacency is not None:
            head += f", {guarantee.adjacency}"
        return head + "\n\n" + table(["label", "event", "count"], rows or [["-", "nothing spent", "0"]])


def _reopened(path: str, head: bytes) -> Ledger:
    """Unpickle a ledger: it is sent to another process as the name and first line of its file."""
    return Ledger._from_file(path, head=head)


def _checked_budget(epsilon: Any, delta: Any) -> Budget | None:
    if (epsilon is None) != (delta is None):
        raise InvalidValue(
            f"epsilon={epsilon!r}, delta={delta!r}: must be given together. A budget needs both; give neither for none."
        )
    return None if epsilon is None else (positive("epsilon", epsilon), delta_value(delta))


def _budget_record(budget: Budget) -> dict[str, float]:
    return {"epsilon": budget[0], "delta": budget[1]}


def _read_budget(record: Mapping[str, Any], what: str) -> Budget | None:
    """The budget of a saved ledger, None for null; anything but null or both numbers is refused."""
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


def _refuse_unreadable(entry: Entry) -> None:
    """Raise an error, before writing, for an entry that could not be read back."""
    try:
        copy = Entry.from_dict(json.loads(journal.encoded(entry.to_dict())))
    except (TypeError, ValueError, RecursionError) as problem:
        raise invalid("event", entry.event, "one that from_dict reads back", f"{problem}") from None
    if copy != entry:
        raise invalid("event", entry.event, "one that from_dict reads back", f"It becomes {copy.event!r}.")


def _replay(book: Book, lines: Iterable[tuple[int, Mapping[str, Any]]], what: str) -> None:
    for line, record in lines:
        try:
            book.apply(line, record)
        except (KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise InvalidValue(f"{what}: record {line} must be as the ledger writes it. {problem!r}") from None
