"""Progress of a command that takes long: a counter on a terminal, lines in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

# Seconds before progress is shown for the first time.
DELAY = 2.0
# In a log, each line comes after this many times the time of the line before: 2 s, 6 s, 18 s, ...
_GROWTH = 3.0
_ERASE = "\r\033[K"
_stage = ""


def stage(words: str) -> None:
    """Say what the command is doing now."""
    global _stage
    _stage = words


@contextlib.contextmanager
def shown(command: str, silent: bool) -> Iterator[None]:
    """Show on stderr, while the block runs, how long it has been running; nothing in the first two seconds."""
    if silent or sys.stderr is None:
        yield
        return
    stage("")
    end = threading.Event()
    thread = threading.Thread(target=_report, args=(command, end, sys.stderr.isatty()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _report(command: str, end: threading.Event, terminal: bool) -> None:
    start, wait = time.monotonic(), DELAY
    while not end.wait(wait):
        seconds = time.monotonic() - start
        words = f"dptoolkit: {command}: {_stage + ', ' if _stage else ''}{seconds:.0f} s"
        print(f"{_ERASE}{words}" if terminal else words, end="" if terminal else "\n", file=sys.stderr, flush=True)
        wait = 1.0 if terminal else (_GROWTH - 1) * seconds
    if terminal and time.monotonic() - start >= DELAY:
        print(_ERASE, end="", file=sys.stderr, flush=True)
