"""``dptoolkit demo``: a private model, the attack on it, and the accounting, as tables and plots."""

from __future__ import annotations

import argparse
from pathlib import Path

from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import json_text, say


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="report", metavar="DIR", help="folder for the report, default report")


def _demo(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import demo

    report = demo.run(Path(args.out), say)
    return (json_text(report.to_dict()) if args.json else report.text()), FINE


COMMAND = Command(
    "A private model, the attack on it, and the accounting behind both, as tables and plots (extra: demo).",
    "  dptoolkit demo --out report",
    _demo_arguments,
    _demo,
    takes_long=True,
)
