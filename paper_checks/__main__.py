"""Command line: python -m paper_checks [paper ...] [--json] [--tier fast|full]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paper_checks.claims import BadClaims, load, paper_folders
from paper_checks.report import as_json, table
from paper_checks.run import TIERS, run

ROOT = Path(__file__).parent


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """0 if every verdict is the expected one, 1 if one has changed, 2 for bad input."""
    parser = argparse.ArgumentParser(
        "paper_checks", description="Papers' privacy claims against exact accounting."
    )
    parser.add_argument("paper", nargs="*", help="folder names; all papers if none is given")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument(
        "--tier", choices=TIERS, default="fast", help="fast (default), or full: slow points too"
    )
    arguments = parser.parse_args(argv)
    try:
        papers = [load(folder) for folder in paper_folders(root, arguments.paper)]
        rows = run(papers, arguments.tier)
    except BadClaims as problem:
        print(problem, file=sys.stderr)
        return 2
    print(as_json(rows) if arguments.json else table(rows))
    return 0 if all(row.as_expected for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
