"""The output of commands: text, JSON, progress, and one line on stderr for everything that goes wrong."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, TextIO

from dptoolkit import progress
from dptoolkit._validate import invalid
from dptoolkit.cli.command import BAD_INPUT, INTERRUPTED
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
        _silence(sys.stdout)
    except OSError:
        # For example a full disk. Without this, Python would complain again at exit and change the exit code.
        _silence(sys.stdout)
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


def _silence(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# --- stderr --------------------------------------------------------------------------------------------------


def say(message: str) -> None:
    """One line on stderr, whatever the message looks like.

    Where nobody reads stderr, as in ``dptoolkit fit ... 2>&1 | head``, the line is lost and the exit code is kept: an
    error here would end a command that has charged a ledger, with the code of a check that failed.
    """
    if sys.stderr is None:
        return
    try:
        print("dptoolkit: " + " ".join(message.split()), file=sys.stderr, flush=True)
    except OSError:
        _silence(sys.stderr)


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


def is_stop(problem: BaseException) -> bool:
    """Whether Ctrl-C is behind an exception: compiled modules that are being loaded turn it into an ImportError."""
    cause = problem.__cause__ or problem.__context__
    return isinstance(problem, KeyboardInterrupt) or (cause is not None and is_stop(cause))


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


# --- Messages of the library in the words of the shell: flags in place of Python's arguments ------------------

# Arguments of the library that go by another name on the command line.
_OTHER_NAMES = MappingProxyType({"rng": "seed", "scheme": "sampling", "gamma": "random_rounds"})
_PHRASES = MappingProxyType({
    "math.inf": "inf", "Use inf": "Use --epsilon inf", "give classes": "give --classes", "in classes": "in --classes",
    "must be None": "must be left out", "Give separator": "Give --separator",
    "X: its columns are": "the columns of the file are",
    "bounds=([0, 0], [120, 300]) for dp_pipeline, or use dptoolkit.estimators.ScaleToBounds(lower, upper)":
        "--bounds age=0:120 bmi=10:80 for dp_pipeline",
    "'*': (0, 1) for indicators": "'*=0:1' for indicators", "no column of X": "no column of the file",
    "Leave randomness and rng out, or make the ledger with allow_fast_noise=True":
        "Leave --randomness out, or make the ledger with --allow-fast-noise",
})  # fmt: skip
# "name=value" at the start of a message; a value with blanks is in quotes or brackets.
_START = re.compile(
    r"(?P<name>\w+)=(?P<value>'[^']*'|\"[^\"]*\"|[\[({].*?[\])}]|[^\s:]+)"
    r"(?=: (?:must|should) |, line |, column |, label )"
)
# Text in quotes is somebody's own: a name of a file or a column. An apostrophe inside a word opens no quotes.
_QUOTED = re.compile(r"(?<!\w)('[^']*'|\"[^\"]*\")(?!\w)")
# A name of several words is an argument's; a single word, such as "loss", may be plain English.
_ARGUMENT = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")


def in_shell(message: str, names: Mapping[str, str]) -> str:
    """The message with arguments named as on the command line; ``names`` says how: {"row_norm": "--row-norm"}."""
    start = _START.match(message)
    head, rest = "", message
    if start is not None:
        known = _known(start["name"], names)
        if known is not None or start["name"] == "path":
            head, rest = _head(known or "", start["value"]), message[start.end() :]
    parts = _QUOTED.split(rest)
    parts[::2] = [_ARGUMENT.sub(lambda match: _known(match[0], names) or match[0], part) for part in parts[::2]]
    words = head + "".join(parts)
    for python, shell in _PHRASES.items():
        words = words.replace(python, shell)
    return words


def _known(name: str, names: Mapping[str, str]) -> str | None:
    return names.get(name) or names.get(_OTHER_NAMES.get(name, ""))


def _head(flag: str, value: str) -> str:
    """A flag and its value as they are typed; a value of None is one that was left out."""
    bare = value[1:-1] if value[:1] in "'\"" and " " not in value and len(value) > 2 else value
    return " ".join(word for word in (flag, "" if value == "None" else bare) if word)


# --- Progress of a command that takes long --------------------------------------------------------------------

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


# --- Ctrl-C, which always stops the command, although libraries sometimes swallow its exception ---------------

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
