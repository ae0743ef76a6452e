"""Ctrl-C that always stops the command, although libraries sometimes swallow the exception that it raises."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

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
