"""The output of commands: text, JSON, and one line on stderr for everything that goes wrong."""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dptoolkit._validate import invalid
from dptoolkit.cli.command import BAD_INPUT, INTERRUPTED
from dptoolkit.cli.wording import in_shell
from dptoolkit.errors import DpToolkitError

TRACEBACK_VARIABLE = "DPTOOLKIT_TRACEBACK"
# The largest text file that is read, such as a ledger; a larger one was not written by us.
_MAX_TEXT = 256 * 2**20


def json_text(record: dict[str, Any]) -> str:
    """The record as JSON."""
    return json.dumps(_finite(record), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no infinity: it becomes the string "inf"."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# --- stdout --------------------------------------------------------------------------------------------------


def write(text: str) -> None:
    """Print the text; a reader that has left, as in ``dptoolkit account ... | head``, is no error."""
    try:
        if text:
            _print(text)
        flush()
    except BrokenPipeError:
        _silence()
    except OSError:
        # For example a full disk. Without this, Python would complain again at exit and change the exit code.
        _silence()
        raise


def _print(text: str) -> None:
    try:
        print(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        print(text.encode(encoding, "backslashreplace").decode(encoding))


def flush() -> None:
    """Flush stdout, if there is one."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _silence() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- stderr --------------------------------------------------------------------------------------------------


def say(message: str) -> None:
    """One line on stderr, whatever the message looks like."""
    if sys.stderr is not None:
        print("dptoolkit: " + " ".join(message.split()), file=sys.stderr)


def refuse(problem: Exception, names: Mapping[str, str] = MappingProxyType({})) -> int:
    """Print in one line why there is no answer, and return exit code 2, as 1 is for checks that failed.

    ``names`` says how the command's arguments are named on the command line.
    """
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(problem)
    say(in_shell(_words(problem), names) if isinstance(problem, DpToolkitError) else _words(problem))
    return BAD_INPUT


def _words(problem: Exception) -> str:
    reason = str(problem)
    if isinstance(problem, DpToolkitError):
        return reason or type(problem).__name__
    if isinstance(problem, OSError):
        return reason or type(problem).__name__
    if isinstance(problem, ArithmeticError):
        return f"the numbers are too large or too small to compute with: {reason}"
    if isinstance(problem, RecursionError):
        return f"the input is nested too deeply: {reason}"
    if isinstance(problem, MemoryError):
        return f"there is not enough memory. {reason}"
    name = f"{type(problem).__name__}: {reason}" if reason else type(problem).__name__
    return f"unexpected {name}. Set {TRACEBACK_VARIABLE}=1 to see where; please report it."


def interrupted(stop: KeyboardInterrupt) -> int:
    """Print that Ctrl-C stopped the command, and what the command says about its finished work."""
    if sys.stderr is not None and sys.stderr.isatty():
        # Start a new line: the terminal has written ^C, perhaps after a line of progress.
        print(file=sys.stderr)
    say(f"stopped. {stop}" if str(stop) else "stopped.")
    return INTERRUPTED


# --- files that are named in options -------------------------------------------------------------------------


def read_text(option: str, path: str, expected: str) -> str:
    """The content of a text file."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_TEXT + 1)
        if len(content) > _MAX_TEXT:
            raise ValueError(f"It has more than {_MAX_TEXT:,} bytes.")
        return content.decode("utf-8")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None)
        raise invalid(option, path, expected, f"{reason}." if reason else f"{problem}") from None


def check_writable(option: str, path: str) -> None:
    """Refuse, before any work is done, a file that cannot be written; an existing file is not changed."""
    file = Path(path)
    try:
        is_new = not file.exists()
        with file.open("ab"):
            pass
        if is_new:
            file.unlink()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise invalid(option, path, "a file that can be written", f"{reason}.") from None


def check_apart(option: str, path: str | None, **inputs: str | None) -> None:
    """Refuse to write to a file that the same command reads or charges; the inputs go by their names."""
    for name, other in inputs.items():
        if path is not None and other is not None and Path(path).resolve() == Path(other).resolve():
            flag = name if name.isupper() else f"--{name}"
            raise invalid(option, path, f"another file than that of {flag}", "It would be overwritten.")


def in_one_line(text: object) -> str:
    """A label or a name from a file, without line breaks and control characters, which a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in str(text))
