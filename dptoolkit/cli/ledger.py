"""``dptoolkit ledger``: create the ledger of a data set, or show what was spent from it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import dptoolkit
from dptoolkit._validate import invalid, one_of
from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import json_text, read_text
from dptoolkit.errors import DpToolkitError

_WHAT = ("new", "show")


def _ledger_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="WHAT", help="new or show")
    parser.add_argument("file", metavar="FILE", help="file of the ledger: one per data set")
    parser.add_argument("--epsilon", type=float, help="for new: budget of all releases from the data set")
    parser.add_argument("--delta", type=float, default=None, help="for new: delta of the budget, well below 1/n")
    fast = "for new: take fits with --randomness fast, too"
    parser.add_argument("--allow-fast-noise", action="store_true", help=fast)


def _ledger(args: argparse.Namespace) -> tuple[str, int]:
    one_of("what", args.what, _WHAT)
    ledger = _made(args) if args.what == "new" else _shown(args)
    return (json_text(_record(args.file, ledger)) if args.json else _text(args, ledger)), FINE


def _made(args: argparse.Namespace) -> Any:
    for name in ("epsilon", "delta"):
        if getattr(args, name) is None:
            example = f"dptoolkit ledger new {args.file} --epsilon 3 --delta 1e-6"
            raise invalid(name, None, "given for a new ledger", f"For example {example}.")
    if os.path.lexists(args.file):
        repair = f"A budget is fixed once. dptoolkit ledger show {args.file} prints what is left."
        raise invalid("file", args.file, "a file that does not exist", repair)
    if not Path(args.file).absolute().parent.is_dir():
        raise invalid("file", args.file, "in a folder that exists")
    fast = args.allow_fast_noise
    return dptoolkit.accounting.Ledger.open(args.file, args.epsilon, args.delta, allow_fast_noise=fast)


def _shown(args: argparse.Namespace) -> Any:
    for name in ("epsilon", "delta"):
        if getattr(args, name) is not None:
            raise invalid(name, getattr(args, name), "left out for show", "The ledger has its own budget.")
    if args.allow_fast_noise:
        raise invalid("allow_fast_noise", "given", "left out for show", "It is fixed when the ledger is made.")
    return saved_ledger("file", "FILE", args.file)


def saved_ledger(option: str, flag: str, path: str) -> Any:
    """The ledger in a file, of ``Ledger.open`` or ``Ledger.to_json``; the file is only read."""
    text = read_text(option, path, "a file that dptoolkit ledger new, Ledger.open or Ledger.to_json wrote")
    try:
        return dptoolkit.accounting.Ledger.from_json(text)
    except RecursionError:
        raise invalid(option, path, "JSON that is not nested deeply, as a ledger is") from None
    except DpToolkitError as problem:
        words = str(problem).removeprefix("text: ")
        raise type(problem)(f"{flag} {path}: {words} A ledger is made by dptoolkit ledger new.") from None


def _text(args: argparse.Namespace, ledger: Any) -> str:
    from dptoolkit.accounting.report import at_least, delta_text, number

    if args.what == "new":
        epsilon, delta = ledger.budget
        budget = f"epsilon {number(epsilon)} at delta {delta_text(delta)}"
        return f"Ledger {args.file}: budget {budget}\nCharge it with dptoolkit fit ... --ledger {args.file}"
    parts = [str(ledger)]
    if ledger.budget is not None:
        parts.append(
            f"Left: epsilon {at_least(ledger.remaining())}. Epsilons do not add up: a fit whose own epsilon "
            "is larger may still be within the budget."
        )
    if ledger.reserved:
        parts.append(
            f"{len(ledger.reserved)} of the entries are reserved: under way, or left behind by a program that "
            "ended. They count as spent."
        )
    return "\n\n".join(parts)


def _record(path: str, ledger: Any) -> dict[str, Any]:
    budget = None if ledger.budget is None else dict(zip(("epsilon", "delta"), ledger.budget, strict=True))
    spent = None if budget is None else ledger.guarantee.epsilon(budget["delta"])
    adjacency = None if ledger.adjacency is None else ledger.adjacency.value
    return {"file": path, "budget": budget, "spent": spent, "remaining": ledger.remaining(), "adjacency": adjacency,
            "reserved": len(ledger.reserved), "entries": [entry.to_dict() for entry in ledger.entries]}  # fmt: skip


COMMAND = Command(
    "Make the ledger of a data set, which holds its budget, or show what was spent from it.",
    """\
  dptoolkit ledger new patients.ledger --epsilon 3 --delta 1e-6
  dptoolkit ledger show patients.ledger
  dptoolkit fit patients.csv --ledger patients.ledger --task classification --epsilon 1 --out model.json""",
    _ledger_arguments,
    _ledger,
)
