"""``dptoolkit data``: the sets that are known by name."""

from __future__ import annotations

import argparse
from typing import Any

from dptoolkit._validate import invalid, one_of
from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import json_text

_WHAT = ("list", "describe", "get")


def _data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="WHAT", help="list, describe or get")
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of a set, from the list")
    parser.add_argument("--split", default="train", help="for get: train (default) or test")
    where = "folder with the files; default: the environment variable DPTOOLKIT_DATA, or a cache"
    parser.add_argument("--data-home", metavar="DIR", help=where)


def _data(args: argparse.Namespace) -> tuple[str, int]:
    what = one_of("what", args.what, _WHAT)
    if (args.name is None) != (what == "list"):
        raise invalid("name", args.name, "left out" if what == "list" else "given", "dptoolkit data list shows them.")
    text, record = {"list": _list, "describe": _describe, "get": _get}[what](args)
    return (json_text(record) if args.json else text), FINE


def _list(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    from dptoolkit import datasets
    from dptoolkit.accounting.report import table

    facts = [_facts(name) for name in datasets.names()]
    # What comes after a semicolon is for describe.
    rows = [
        [f["name"], f["task"], str(f["classes"] or "-"), f["from"], f["description"].partition(";")[0]] for f in facts
    ]
    return table(["name", "task", "classes", "from", "what"], rows), {"sets": facts}


def _facts(name: str) -> dict[str, Any]:
    """What is known about a set; the task is named as ``dptoolkit fit`` takes it."""
    from dptoolkit.datasets.catalogue import BUNDLED, FILES
    from dptoolkit.datasets.dataset import REGRESSION

    if name in BUNDLED:
        kind, description = BUNDLED[name]
        source, classes = "scikit-learn", {"digits": 10}.get(name, 2)
    else:
        entry = FILES[name]
        kind, description = entry.task, entry.description
        source = "network" if any(part.sources for part in entry.splits.values()) else "folder"
        classes = 2 if entry.positive is not None else len(entry.labels or ())
    task = "regression" if kind == REGRESSION else "classification"
    return {"name": name, "task": task, "classes": None if task == "regression" else classes, "from": source,
            "description": description}  # fmt: skip


def _describe(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    from dptoolkit import datasets
    from dptoolkit.datasets.catalogue import FILES

    datasets.describe(args.name)
    record = _facts(args.name)
    if args.name in FILES:
        entry = FILES[args.name]
        parts = {
            split: {"files": list(part.files), "sources": [source.url for source in part.sources]}
            for split, part in entry.splits.items()
        }
        record |= {"columns": entry.d, "labels": None if entry.labels is None else list(entry.labels), "parts": parts}
        record["fit"] = None if entry.positive is not None else _fit_line(record)
    return "\n".join(_lines(record)), record


def _fit_line(record: dict[str, Any]) -> str | None:
    """The options of ``dptoolkit fit`` that the set's public facts determine; None for files that fit does not read."""
    if any("idx" in file for part in record["parts"].values() for file in part["files"]):
        return None
    labels = "" if record["labels"] is None else " --classes " + " ".join(f"{label:g}" for label in record["labels"])
    facts = f"--task {record['task']}{labels} --n-features {record['columns']}"
    return f"dptoolkit fit FILE {facts} --epsilon E --out MODEL"


def _lines(record: dict[str, Any]) -> list[str]:
    lines = [f"{record['name']}: {record['description']}", f"task: {record['task']}", f"from: {record['from']}"]
    if "columns" in record:
        labels = record["labels"]
        words = "numbers" if labels is None else ", ".join(f"{label:g}" for label in labels)
        lines += [f"columns: {record['columns']:,}", f"labels: {words}"]
        lines += [f"fit: {record['fit'] or 'not from these files; load them in Python with datasets.load'}"]
    for split, part in record.get("parts", {}).items():
        lines += [f"{split}: {', '.join(part['files'])}", *(f"  {url}" for url in part["sources"])]
    return lines


def _get(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    from dptoolkit.datasets import registry

    registry.describe(args.name)
    paths = [str(path) for path in registry.locate(args.name, args.split, args.data_home)]
    return "\n".join(paths), {"name": args.name, "split": args.split, "files": paths}


COMMAND = Command(
    "List, describe or download data sets that are known by name.",
    """\
  dptoolkit data list
  dptoolkit data describe a9a
  dptoolkit data get a9a --split test
  dptoolkit data get rcv1_sub --data-home ~/data""",
    _data_arguments,
    _data,
    takes_long=True,
)
