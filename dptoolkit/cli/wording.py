"""Messages of the library in the words of the shell: flags in place of Python's arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

# Arguments of the library that go by another name on the command line.
_OTHER_NAMES = MappingProxyType({"rng": "seed", "scheme": "sampling", "gamma": "random_rounds"})
_PHRASES = MappingProxyType({
    "math.inf": "inf", "Use inf": "Use --epsilon inf", "give classes": "give --classes", "in classes": "in --classes",
    "must be None": "must be left out", "Give separator": "Give --separator",
    "X: its columns are": "the columns of the file are",
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
