"""The ``dptoolkit`` command. A subcommand is one module with one row, COMMAND, found in the table COMMANDS.

Exit codes: 0 for success, 1 if a check failed, 2 if there is no answer (one line on stderr says why, and stdout is
empty), 130 if stopped by Ctrl-C. Subcommands import what they need when they run, so ``--help`` costs little more than
argparse.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dptoolkit.cli import (
    account,
    audit,
    check,
    completion,
    data,
    demo,
    evaluate,
    federated,
    fit,
    ledger,
    output,
    plan,
    predict,
    show,
    tune,
)
from dptoolkit.cli.command import BAD_INPUT, CHECK_FAILED, FINE, INTERRUPTED, Command, parse
from dptoolkit.cli.output import heard, in_shell, shown

__all__ = ["BAD_INPUT", "CHECK_FAILED", "COMMANDS", "FINE", "INTERRUPTED", "main"]

COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "account": account.COMMAND,
        "audit": audit.COMMAND,
        "check": check.COMMAND,
        "completion": completion.command(lambda: COMMANDS),
        "data": data.COMMAND,
        "demo": demo.COMMAND,
        "evaluate": evaluate.COMMAND,
        "federated": federated.COMMAND,
        "fit": fit.COMMAND,
        "ledger": ledger.COMMAND,
        "plan": plan.COMMAND,
        "predict": predict.COMMAND,
        "show": show.COMMAND,
        "tune": tune.COMMAND,
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Only --help and --version leave by SystemExit, as argparse does."""
    names: dict[str, str] = {}
    try:
        return _run(sys.argv[1:] if argv is None else list(argv), names)
    except KeyboardInterrupt as stop:
        return output.interrupted(stop)
    except SystemExit:
        # Flush the help text; its reader may have left, as in ``dptoolkit --help | head``.
        output.write("")
        raise
    except Exception as problem:
        if output.is_stop(problem):
            return output.interrupted(KeyboardInterrupt())
        return output.refuse(problem, names)


def _run(line: Sequence[str], names: dict[str, str]) -> int:
    """Run a command; ``names`` is filled with the names of its arguments, for errors."""
    args, known = parse(COMMANDS, line)
    names |= known
    draws = COMMANDS[args.command].draws and sys.stderr is not None and sys.stderr.isatty()
    silent = getattr(args, "quiet", True) or draws
    with heard(), warnings.catch_warnings(record=True) as notes, shown(args.command, silent):
        text, code = COMMANDS[args.command].run(args)
    # Warnings are printed only with an answer; a refusal is one line. Classes were named before the fit.
    said = [str(note.message) for note in notes if note.category.__name__ != "ClassesWarning"]
    for note in dict.fromkeys(said):
        output.say(f"warning: {in_shell(note, names)}")
    output.write(text)
    return code
