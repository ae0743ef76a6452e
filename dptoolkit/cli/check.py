"""``dptoolkit check``: what papers claim, against what is true."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import dptoolkit
from dptoolkit.cli.command import BAD_INPUT, CHECK_FAILED, FINE, INTERRUPTED, Command
from dptoolkit.cli.output import say
from dptoolkit.errors import InvalidValue

# Seconds in which the checks may end by themselves after Ctrl-C.
_GRACE = 1.0


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    names = "papers, each perhaps followed by some of its claims; all if none is named"
    parser.add_argument("papers", nargs="*", metavar="PAPER [CLAIM]", help=names)
    parser.add_argument("--list", action="store_true", help="what is claimed, without checking it")
    parser.add_argument("--full", action="store_true", help="the slow points too")


def _check(args: argparse.Namespace) -> tuple[str, int]:
    """Run ``python -m paper_checks`` in the checkout, which prints its own output."""
    root = Path(dptoolkit.__file__).resolve().parent.parent
    if not (root / "paper_checks" / "__main__.py").is_file():
        raise InvalidValue("paper_checks is not here: must be run from a checkout. An installed package leaves it out.")
    options = (["--json"] if args.json else []) + (["--tier", "full"] if args.full else [])
    options += ["--list"] if args.list else []
    command = [sys.executable, "-m", "paper_checks", *options, *args.papers]
    with subprocess.Popen(command, cwd=root, env=os.environ | {"PAPER_CHECKS_NAME": "dptoolkit"}) as child:
        return "", _exit_code(child)


def _exit_code(child: subprocess.Popen[bytes]) -> int:
    """The exit code of the checks, which also print what they finished when Ctrl-C stops them."""
    try:
        code = child.wait()
    except KeyboardInterrupt:
        code = _stopped(child)
    if code < 0:
        # Ended by a signal; 1 would mean that a check failed.
        say(f"the checks were ended by signal {-code}.")
        return 128 - code
    return code if code in (FINE, CHECK_FAILED, INTERRUPTED) else BAD_INPUT


def _stopped(child: subprocess.Popen[bytes]) -> int:
    """Wait for the checks to end. A terminal sends Ctrl-C to them too; a signal to this process alone is passed on."""
    try:
        return child.wait(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
    try:
        return child.wait()
    except KeyboardInterrupt:
        # A second Ctrl-C: end at once.
        child.kill()
        raise


COMMAND = Command(
    "What papers claim, compared with what is true.",
    """\
  dptoolkit check
  dptoolkit check --list
  dptoolkit check wang_gu_2019_ight theorem-5.2
  dptoolkit check --full --json""",
    _check_arguments, _check, takes_long=True,
)  # fmt: skip
