"""``dptoolkit demo``: tables and plots that compare the ways to account."""

from __future__ import annotations

import argparse
from pathlib import Path

from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import json_text


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="report", metavar="DIR", help="folder for the report, default report")


def _demo(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import demo

    report = demo.run(Path(args.out))
    return (json_text(report.to_dict()) if args.json else report.text()), FINE


COMMAND = Command(
    "Tables and plots that compare the ways to account.",
    "  dptoolkit demo --out report",
    _demo_arguments, _demo, takes_long=True,
)  # fmt: skip
