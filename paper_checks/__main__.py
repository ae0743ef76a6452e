"""Command line: python -m paper_checks [paper [claim ...] ...] [--list] [--json] [--tier fast|full]."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

_INTERRUPTED = 130
# ``dptoolkit check`` sets the name under which this program speaks.
_NAME = os.environ.get("PAPER_CHECKS_NAME", "paper_checks")


def _say(message: object) -> None:
    """One line on stderr."""
    print(f"{_NAME}: {' '.join(str(message).split())}", file=sys.stderr)


def _say_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(f"warning: {message}")


try:
    from paper_checks.claims import BadClaims, selected
    from paper_checks.report import as_json, list_json, listing, table
    from paper_checks.run import TIERS, Row, run
except KeyboardInterrupt:
    # Loading takes a second, in which Ctrl-C may come.
    _say("stopped.")
    sys.exit(_INTERRUPTED)

ROOT = Path(__file__).parent


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """0 if every verdict is the expected one, 1 if one has changed, 2 for bad input, 130 if stopped by Ctrl-C."""
    parser = argparse.ArgumentParser(
        "paper_checks", description="Papers' privacy claims against exact accounting."
    )
    parser.add_argument("paper", nargs="*", help="folder names, each perhaps with some of its claims; default all")
    parser.add_argument("--list", action="store_true", help="what is claimed, without checking it")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument(
        "--tier", choices=TIERS, default="fast", help="fast (default), or full: slow points too"
    )
    arguments = parser.parse_args(argv)
    show = as_json if arguments.json else table
    rows: list[Row] = []
    try:
        papers = selected(root, arguments.paper)
        if arguments.list:
            print(list_json(papers) if arguments.json else listing(papers))
            return 0
        for row in run(papers, arguments.tier):
            rows.append(row)
    except BadClaims as problem:
        _say(problem)
        return 2
    except KeyboardInterrupt:
        # Whoever started this may pass the signal on: what is finished is printed all the same.
        _ignore_interrupts()
        if rows:
            print(show(rows), flush=True)
        _say(f"stopped. {len(rows)} points are checked.")
        return _INTERRUPTED
    except Exception as problem:
        # An exit code of 1 says that a claim has changed; a defect says nothing about claims.
        if os.environ.get("DPTOOLKIT_TRACEBACK"):
            raise
        _say(f"unexpected {type(problem).__name__}: {problem}. Set DPTOOLKIT_TRACEBACK=1 to see where.")
        return 2
    print(show(rows))
    return 0 if all(row.as_expected for row in rows) else 1


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    warnings.showwarning = _say_warning
    sys.exit(main())
