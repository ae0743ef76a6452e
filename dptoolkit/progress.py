"""Progress of a fit: which step of its schedule runs now, for a person who waits.

A solver counts its steps by ``steps`` in place of ``range``. If nobody watches, that is ``range`` itself. ``watched``
names a Watch that loops write to, and ``reported`` prints one from a thread of its own. Where one compiled call makes
all steps, on small data, none of them is shown.

Privacy
-------
Only numbers of a schedule are shown, and a schedule is public: it follows from the plan, or from what was released
already. Loops whose number of rounds depends on records, such as searches for a minimiser, are not counted, and neither
are the runs of a private choice, whose number must stay hidden. The time that is shown depends on the records, as does
the time that a person waits: do not publish it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

Part = TypeVar("Part")

# Seconds before progress is shown for the first time.
DELAY = 2.0
# In a log, each line comes after this many times the time of the line before: 2 s, 6 s, 18 s, ...
_GROWTH = 3.0
_ERASE = "\r\033[K"
# A watched schedule that compiled code runs in one call is cut into about this many calls.
_CALLS = 50


class Stage(NamedTuple):
    """Step ``number`` of ``total``; the first is 1."""

    name: str
    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.name} {self.number:,} of {self.total:,}"


class Watch:
    """Where a fit is: the stages that contain one another, the outermost first."""

    def __init__(self) -> None:
        self._stages: list[Stage] = []

    def enter(self, stage: Stage, depth: int) -> None:
        """Called by a loop when it begins a round."""
        self._stages[depth:] = [stage]

    def leave(self, depth: int) -> None:
        """Called by a loop when it ends."""
        del self._stages[depth:]

    @property
    def depth(self) -> int:
        """The number of loops that are running."""
        return len(self._stages)

    def __str__(self) -> str:
        return ", ".join(map(str, list(self._stages)))


_watch: ContextVar[Watch | None] = ContextVar("_watch", default=None)


@contextlib.contextmanager
def watched(watch: Watch | None) -> Iterator[Watch | None]:
    """Within the block, loops of this thread write to ``watch``; None hides them."""
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


def steps(count: int, name: str = "step") -> Iterable[int]:
    """range(count), of which each number is a step."""
    return counted(range(count), (number + 1 for number in range(count)), count, name)


def counted(parts: Iterable[Part], numbers: Iterable[int], count: int, name: str = "step") -> Iterable[Part]:
    """The parts; each begins at the step of ``count`` that ``numbers`` says, counted from 1."""
    watch = _watch.get()
    return parts if watch is None else _counted(watch, parts, numbers, count, name)


def _counted(watch: Watch, parts: Iterable[Part], numbers: Iterable[int], count: int, name: str) -> Iterator[Part]:
    depth = watch.depth
    try:
        for part, number in zip(parts, numbers, strict=True):
            watch.enter(Stage(name, number, count), depth)
            yield part
    finally:
        watch.leave(depth)


def at_once(count: int) -> int:
    """How many of ``count`` steps compiled code makes in one call: all, or a part if somebody watches."""
    return count if _watch.get() is None else max(-(-count // _CALLS), 1)


# --- printing ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reported(prefix: str, words: Callable[[], str] = str, delay: float | None = None) -> Iterator[None]:
    """Show on stderr, while the block runs, ``words``, where its loops are, and for how long it has been running.

    Nothing is shown in the first seconds. A terminal shows one line that changes, a log single lines, ever fewer.
    """
    if sys.stderr is None:
        yield
        return
    end, watch = threading.Event(), Watch()
    how = sys.stderr.isatty(), DELAY if delay is None else delay
    line = lambda: [words(), str(watch)]  # noqa: E731
    thread = threading.Thread(target=_report, args=(prefix, line, end, *how), daemon=True)
    thread.start()
    try:
        with watched(watch):
            yield
    finally:
        end.set()
        thread.join()


def _report(prefix: str, line: Callable[[], list[str]], end: threading.Event, terminal: bool, delay: float) -> None:
    # Where nobody reads stderr any more, the work goes on without a report.
    with contextlib.suppress(OSError):
        _lines(prefix, line, end, terminal, delay)


def _lines(prefix: str, line: Callable[[], list[str]], end: threading.Event, terminal: bool, delay: float) -> None:
    start, wait = time.monotonic(), delay
    while not end.wait(wait):
        seconds = time.monotonic() - start
        text = f"{prefix}: " + ", ".join(part for part in (*line(), f"{seconds:.0f} s") if part)
        print(f"{_ERASE}{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)
        wait = 1.0 if terminal else (_GROWTH - 1) * seconds
    if terminal and time.monotonic() - start >= delay:
        print(_ERASE, end="", file=sys.stderr, flush=True)
