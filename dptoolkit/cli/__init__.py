"""The ``dptoolkit`` command. A subcommand is one module with one row, COMMAND, found in the table COMMANDS.

Exit codes: 0 fine, 1 a check failed, 2 no answer, told in one line on stderr with nothing on stdout, 130 stopped by
Ctrl-C. What a subcommand needs is imported when it runs, so ``--help`` costs little more than argparse.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dptoolkit.cli import account, audit, check, demo, output, plan
from dptoolkit.cli.command import BAD_INPUT, CHECK_FAILED, FINE, INTERRUPTED, Command
from dptoolkit.cli.interrupts import heard
from dptoolkit.cli.parsing import parse

__all__ = ["BAD_INPUT", "CHECK_FAILED", "COMMANDS", "FINE", "INTERRUPTED", "main"]

COMMANDS: Mapping[str, Command] = MappingProxyType({
    "account": account.COMMAND,
    "audit": audit.COMMAND,
    "check": check.COMMAND,
    "demo": demo.COMMAND,
    "plan": plan.COMMAND,
})  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Only --help and --version leave by SystemExit, as argparse does."""
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt as stop:
        return output.interrupted(stop)
    except SystemExit:
        # The help goes to a reader that may have left.
        output.write("")
        raise
    except Exception as problem:
        return output.refuse(problem)


def _run(line: Sequence[str]) -> int:
    args = parse(COMMANDS, line)
    with heard(), warnings.catch_warnings(record=True) as notes:
        text, code = COMMANDS[args.command].run(args)
    # Told with an answer only: what is refused is told in one line.
    for note in dict.fromkeys(str(note.message) for note in notes):
        output.say(f"warning: {note}")
    output.write(text)
    return code
