"""An append-only file of JSON lines, shared by several processes that write one at a time.

The first line says what the file is. Every further line carries its number, so that a lost or a doubled one is noticed.
A line is written whole and is on the disk before ``append`` returns. An incomplete last line (after a full disk or a
power failure) raises an error with a repair; it is never skipped.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from dptoolkit._validate import invalid
from dptoolkit.errors import InvalidValue

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = "dptoolkit-ledger-file-1"


def parse(text: str, what: str) -> Any:
    """The value of JSON text; errors start with ``what``. A name that occurs twice in one object is an error."""
    try:
        return json.loads(text, object_pairs_hook=_no_name_twice)
    except (ValueError, RecursionError) as problem:
        why = "It is nested too deeply." if isinstance(problem, RecursionError) else f"{problem}"
        raise InvalidValue(f"{what} {why}") from None


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("A name occurs twice in one object.")
    return record


class Guard:
    """A lock for the threads of one process, and for other processes if there is a file to lock.

    A thread that holds it may take it again. The file is opened anew for every turn: a file lock belongs to one opening
    of the file, so threads and forked children that each open it for themselves exclude each other. In a child that
    was forked while a thread held the guard, the guard is free, as that thread does not exist there to release it.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self._free()
        _GUARDS.add(self)

    def _free(self) -> None:
        self._lock = threading.RLock()
        self._file: int | None = None
        self.process = os.getpid()

    @contextmanager
    def turn(self) -> Iterator[int | None]:
        """Hold the lock during a ``with`` block, whose value is the open file (None if there is no file)."""
        with self._lock:
            if self.path is None or self._file is not None:
                yield self._file
                return
            try:
                self._file = _open_and_lock(self.path)
                yield self._file
            finally:
                self._close()

    def _close(self) -> None:
        if self._file is not None and fcntl is not None:
            # Unlock explicitly: a child forked in the meantime has the file open too, which would keep the lock.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
        self._file = None

    def after_fork(self) -> None:
        """In a forked child: close the copy of the parent's file without touching the parent's lock, and be free."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
        self._free()


_GUARDS: weakref.WeakSet[Guard] = weakref.WeakSet()


def _free_all() -> None:
    for guard in list(_GUARDS):
        guard.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)


def _open_and_lock(path: str) -> int:
    """The file, open and locked; an error if it is gone, cannot be written or was replaced during the wait."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError as problem:
        raise invalid("path", path, "a ledger's file that can be read and written", f"{problem}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not os.path.samestat(os.fstat(file), os.stat(path)):
            raise invalid("path", path, "the same file all the time", "It was replaced; open the ledger again.")
    except OSError as problem:
        os.close(file)
        raise invalid("path", path, "on a file system with file locks", f"{problem}") from None
    except BaseException:
        os.close(file)
        raise
    return file


class Journal:
    """The lines of one file; ``guard`` is held while they are read or appended to."""

    def __init__(self, path: str, head: bytes) -> None:
        self.path, self.head = path, head
        self.guard = Guard(path)
        self.rewind()

    def rewind(self) -> None:
        """Read from the first line again."""
        self._end, self._lines = len(self.head), 1

    def unread(self) -> Iterator[tuple[int, Any]]:
        """(number, record) of every line not read yet, including those that this object appended."""
        with self.guard.turn() as file:
            assert file is not None
            if os.pread(file, len(self.head), 0) != self.head or os.fstat(file).st_size < self._end:
                raise invalid(
                    "path",
                    self.path,
                    "the ledger that was opened",
                    "The file was replaced or shortened, and what it recorded may be lost. Restore it.",
                )
            text = _read(file, self._end)
            for line in text.splitlines(keepends=True):
                record = _numbered(self.path, self._lines + 1, line)
                yield self._lines + 1, record
                self._end, self._lines = self._end + len(line), self._lines + 1

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line, which is on the disk when this returns; if it cannot be written whole, the file is unchanged."""
        with self.guard.turn() as file:
            assert file is not None
            _append(file, self.path, encoded({"n": self._lines + 1} | dict(record)))


def encoded(record: Mapping[str, Any]) -> bytes:
    """The record as one line of the file."""
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _append(file: int, path: str, line: bytes) -> None:
    before = os.fstat(file).st_size
    try:
        if os.pwrite(file, line, before) < len(line):
            raise OSError("the disk is full")
        os.fsync(file)
    except OSError as problem:
        os.ftruncate(file, before)
        raise invalid("path", path, "a ledger's file that can be written", f"Nothing was recorded: {problem}") from None


def _read(file: int, start: int) -> bytes:
    parts = []
    while part := os.pread(file, 1 << 20, start):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _numbered(path: str, number: int, line: bytes) -> Any:
    where = f"path={path!r}, line {number}:"
    if not line.endswith(b"\n"):
        raise InvalidValue(
            f"{where} must end. Writing it was cut off, so no reservation or spend was granted by it. If nothing was "
            "released without waiting for the ledger, delete this unfinished line; otherwise spend that release anew."
        )
    record = parse(line.decode("utf-8", "replace"), f"{where} must be JSON as the ledger writes it. Restore the file.")
    if not isinstance(record, dict) or record.get("n") != number:
        raise InvalidValue(f"{where} must carry the number {number}. A line was lost or doubled: restore the file.")
    return record


def create(path: str, facts: Mapping[str, Any]) -> None:
    """Create the file with its first line; nothing happens if it exists.

    The file is written under another name and linked to ``path``, so that no process ever sees it without that line.
    """
    needs_locks()
    head = encoded({"format": FORMAT, "id": uuid.uuid4().hex} | dict(facts))
    draft = f"{path}.{uuid.uuid4().hex}.new"
    try:
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _append(file, path, head)
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            os.close(file)
            os.unlink(draft)
        _settle_folder(path)
    except OSError as problem:
        raise invalid("path", path, "a place where a file can be made", f"{problem}") from None


def _settle_folder(path: str) -> None:
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def first_line(path: str) -> tuple[bytes, dict[str, Any]]:
    """The first line of a ledger's file, as bytes and as a record."""
    needs_locks()
    with Guard(path).turn() as file:
        assert file is not None
        line, newline, _ = _read(file, 0).partition(b"\n")
    return line + newline, head_record(line.decode("utf-8", "replace"), f"path={path!r}:")


def head_record(line: str, what: str) -> dict[str, Any]:
    """The record in a file's first line; an error, which starts with ``what``, if it is not a ledger's."""
    requirement = f"must be a ledger's file, with format {FORMAT!r} in its first line."
    record = parse(line, f"{what} {requirement}")
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InvalidValue(f"{what} {requirement} A ledger saved by to_json() is read by from_json().")
    return record


def lines_of(text: str) -> Iterator[tuple[int, Any]]:
    """(number, record) of a journal's text after its first line."""
    for number, line in enumerate(text.encode("utf-8", "replace").splitlines(keepends=True)[1:], 2):
        yield number, _numbered("text", number, line)


def needs_locks() -> None:
    """Raise an error on systems without file locks."""
    if fcntl is None:
        raise InvalidValue(
            "Ledger.open: must run on a system with fcntl file locks (Linux, macOS). Keep a Ledger() in one process, "
            "and save it with to_json()."
        )
