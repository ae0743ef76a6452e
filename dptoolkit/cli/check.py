"""``dptoolkit check``: compares what papers claim with what is true."""

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

# What ``python -m paper_checks`` does, for the paper_checks beside this package whatever the user's folder holds: the
# program stays in that folder, as reports are written there.
_PROGRAM = """\
import os, runpy, sys
sys.path[0] = os.environ["PAPER_CHECKS_ROOT"]
runpy.run_module("paper_checks", run_name="__main__", alter_sys=True)
"""
# Seconds in which the checks may end by themselves after Ctrl-C.
_GRACE = 1.0


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    names = "papers (IGHT, KT, LASSO, SHT, LEC), items of papers, or a paper and its claims; default: all"
    parser.add_argument("papers", nargs="*", metavar="PAPER [CLAIM]", help=names)
    parser.add_argument("--list", action="store_true", help="list all claims and verdicts without checking them")
    parser.add_argument("--full", action="store_true", help="also check the slow points")
    parser.add_argument("--data", metavar="FOLDER", help="folder of data sets outside the package")
    parser.add_argument("--workers", metavar="N", help="number of processes")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="run on the workers of a Dask scheduler")
    parser.add_argument("--out", metavar="FOLDER", help="folder of the reports, default report/papers")
    parser.add_argument("--resume", action="store_true", help="continue an earlier run that is saved in --out")


def _check(args: argparse.Namespace) -> tuple[str, int]:
    """Run the paper checks, which print their own output and lie beside the package."""
    root = Path(dptoolkit.__file__).resolve().parent.parent
    if not (root / "paper_checks" / "__main__.py").is_file():
        raise InvalidValue("paper_checks is not beside dptoolkit: reinstall dptoolkit, or run it from a checkout.")
    options = (["--json"] if args.json else []) + (["--tier", "full"] if args.full else [])
    options += [f"--{name}" for name in ("list", "resume") if getattr(args, name)]
    for name in ("data", "workers", "scheduler", "out"):
        options += [f"--{name}", getattr(args, name)] if getattr(args, name) is not None else []
    command = [sys.executable, "-c", _PROGRAM, *options, *args.papers]
    env = os.environ | {"PAPER_CHECKS_NAME": "dptoolkit", "PAPER_CHECKS_ROOT": str(root)}
    with subprocess.Popen(command, env=env) as child:
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
    "Compare what papers claim with what is true.",
    """\
  dptoolkit check
  dptoolkit check --list
  dptoolkit check wang_gu_2019_ight theorem-5.2
  dptoolkit check IGHT-T2s LASSO
  dptoolkit check --full --json""",
    _check_arguments,
    _check,
    takes_long=True,
)
