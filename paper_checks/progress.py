"""Progress on stderr: how much of the work is done, as a fraction."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TextIO

# Seconds between two lines where stderr is no terminal.
_PAUSE = 10.0


class Progress:
    """One line that is rewritten on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total, self.done = total, 0
        self.stream = sys.stderr if stream is None else stream
        self._terminal = bool(self.stream is not None and self.stream.isatty())
        self._last = time.monotonic()

    def step(self, name: str) -> None:
        """One more unit is finished."""
        self.done += 1
        line = f"paper_checks: {self.done} of {self.total} ({self.done / self.total:.0%}), last {name}"
        if self._terminal:
            self._print(f"\r{line:<79.79}", end="")
        elif time.monotonic() - self._last >= _PAUSE:
            self._last = time.monotonic()
            self._print(line, end="\n")

    def close(self) -> None:
        """Clear the line."""
        if self._terminal:
            self._print("\r" + " " * 79 + "\r", end="")

    def _print(self, text: str, end: str) -> None:
        # Where nobody reads stderr any more, the work goes on without a report.
        with contextlib.suppress(OSError):
            print(text, end=end, file=self.stream, flush=True)
