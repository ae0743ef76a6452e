"""Progress of a command that takes long: a counter on a terminal, lines in a log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

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
