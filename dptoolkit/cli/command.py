"""What a command consists of, and the exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FINE, CHECK_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Command:
    """One subcommand; ``run`` returns the text to print and the exit code.

    ``arguments`` adds the options to a parser; it is called for every command, so it must be cheap. ``more`` adds
    options that depend on the command line, which is its second argument; it is called for the chosen command only.
    ``takes_long`` is whether progress is shown after two seconds, ``draws`` whether the command draws its own on a
    terminal.
    """

    help: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], tuple[str, int]]
    more: Callable[[argparse.ArgumentParser, Sequence[str]], None] | None = None
    takes_long: bool = False
    draws: bool = False
