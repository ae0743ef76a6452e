"""What a command consists of, the exit codes, and argparse with our error messages."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import dptoolkit
from dptoolkit.errors import InvalidValue

# Exit codes; 130 is what shells use for a program that Ctrl-C ended (128 + SIGINT).
FINE, CHECK_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_NUMBER = r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"


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


# --- argparse with our error messages: errors are raised as exceptions, and say what was probably meant -------


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of printing its usage."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        # Values that begin with a minus sign and are no options: numbers, and a range such as -5:300.
        self._negative_number_matcher = re.compile(rf"^-{_NUMBER}(:[-+]?{_NUMBER})?$")

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else "."
        raise InvalidValue(f"{message}{end} See {self.prog} --help")

    @property
    def options(self) -> list[str]:
        """Every option that this parser knows."""
        return list(self._option_string_actions)

    @property
    def argument_names(self) -> dict[str, str]:
        """How each argument is named on the command line: "--row-norm", or "DATA" for one without a flag."""
        return {
            action.dest: action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
            for action in self._actions
        }


def parse(commands: Mapping[str, Command], line: Sequence[str]) -> tuple[argparse.Namespace, dict[str, str]]:
    """(the arguments on a command line, how each of them is named there)."""
    name = next(iter(line), "")
    parser, subparsers = build(commands, name)
    if name in subparsers:
        add_options = commands[name].more
        if add_options is not None:
            add_options(subparsers[name], line[1:])
        _refuse_typos(subparsers[name], line[1:])
    _refuse_unknown_command(parser, commands, name)
    args = parser.parse_args(line)
    return args, subparsers[args.command].argument_names


def build(commands: Mapping[str, Command], only: str | None = None) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and that of every command, without what ``more`` adds; options of ``only`` one, or of all."""
    parser = Parser(
        prog="dptoolkit",
        allow_abbrev=False,
        description="Sparse learning under differential privacy.",
        epilog="Each command has its own help, with examples: dptoolkit account --help",
    )
    parser.add_argument("--version", action="version", version=f"dptoolkit {dptoolkit.__version__}")
    rows = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    subparsers = {}
    for key, command in commands.items():
        sub = subparsers[key] = rows.add_parser(
            key,
            help=command.help,
            description=command.help,
            epilog="examples:\n" + command.examples,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if only is None or key == only:
            command.arguments(sub)
        sub.add_argument("--json", action="store_true", help="print JSON")
        if command.takes_long:
            sub.add_argument("--quiet", action="store_true", help="show no progress")
    return parser, subparsers


def _refuse_unknown_command(parser: Parser, commands: Iterable[str], name: str) -> None:
    if name.startswith("-"):
        _refuse_typos(parser, [name])
    elif name and name not in commands and _suggestion(name, commands):
        parser.error(f"invalid choice: {name!r}{_suggestion(name, commands)}")


def _refuse_typos(parser: Parser, tokens: Sequence[str]) -> None:
    """Refuse unknown options first, since argparse would first complain about missing ones."""
    for token in tokens:
        if token == "--":
            return
        option = token.partition("=")[0]
        if token.startswith("-") and len(token) > 1 and not _is_value(token) and option not in parser.options:
            parser.error(f"unrecognized arguments: {option}{_suggestion(option, parser.options)}")


def _suggestion(word: str, choices: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, choices, n=1)
    return f". Did you mean {near[0]}?" if near else ""


def _is_value(token: str) -> bool:
    """Whether it is a number, or a range LOW:HIGH, and so no option in spite of its minus sign."""
    try:
        return len([float(part) for part in token.split(":")]) <= 2
    except ValueError:
        return False
