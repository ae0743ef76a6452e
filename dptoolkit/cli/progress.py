"""Progress of a command that takes long, and Ctrl-C that always stops it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from dptoolkit import progress

# Seconds before progress is shown for the first time.
DELAY = progress.DELAY
_stage = ""


def stage(words: str) -> None:
    """Say what the command is doing now."""
    global _stage
    _stage = words


@contextlib.contextmanager
def shown(command: str, silent: bool) -> Iterator[None]:
    """Show on stderr, while the block runs, what it does and for how long; nothing in the first two seconds."""
    if silent or sys.stderr is None:
        yield
        return
    stage("")
    # Other commands fit many times, and the steps of one fit say nothing about how far they are.
    steps = contextlib.nullcontext() if command == "fit" else progress.watched(None)
    with progress.reported(f"dptoolkit: {command}", lambda: _stage, DELAY), steps:
        yield


# --- Ctrl-C that always stops the command, although libraries sometimes swallow the exception that [...] ------

# Seconds after which a stop that seems to have been swallowed is raised again.
_AGAIN = 2.0


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C, and again every few seconds until the block is left.

    Compiled code calls back into Python in places where an exception is dropped, and an audit would then run to its
    end. Nothing is changed where signals are ignored or handled by other code, or outside the main thread.
    """
    ours = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    alarm = signal.signal(signal.SIGALRM, _raise)
    signal.signal(signal.SIGINT, _raise)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, alarm)


def _raise(number: int, frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    raise KeyboardInterrupt
