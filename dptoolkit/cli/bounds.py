"""The options --bounds and --numeric: public bounds of the columns of a table, on the command line or in a file."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from dptoolkit._validate import invalid

# The options that are read here, not by the type of the solver's argument.
OPTIONS = ("bounds", "numeric")
_BOUNDS = (
    "public bounds of columns, in their units, chosen without the data: COLUMN=LOW:HIGH per column, where * is all "
    "others; LOW:HIGH for all columns; or a csv file with the columns column, lower and upper, or a json file {column: "
    "[lower, upper]}. Columns of --categories need none. Without bounds rows are used as they are, which suits text"
)
_NUMERIC = "columns that become ranks; if omitted, all whose bounds are not exactly 0:1"
_EXAMPLE = "For example --bounds age=18:99 bmi=10:80 '*=0:1', or --bounds bounds.csv."
# A larger file does not hold bounds.
_MOST_BYTES = 2**26


def bounds_arguments(group: Any) -> None:
    """Both options, of a command whose solver takes bounds."""
    unset = argparse.SUPPRESS
    group.add_argument("--bounds", nargs="+", action="extend", default=unset, metavar="COLUMN=LOW:HIGH", help=_BOUNDS)
    group.add_argument("--numeric", nargs="+", action="extend", default=unset, metavar="COLUMN", help=_NUMERIC)


def bounds_options(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments ``bounds`` and ``numeric`` of a solver, of those of a command line that were given."""
    found: dict[str, Any] = {}
    if args.get("bounds") is not None:
        found["bounds"] = read_bounds(args["bounds"])
    if args.get("numeric") is not None:
        found["numeric"] = [int(word) if word.isdecimal() else word for word in args["numeric"]]
    return found


def read_bounds(words: list[str]) -> Any:
    """(lower, upper) for all columns, or {column: (lower, upper)}."""
    if len(words) == 1 and "=" not in words[0]:
        if (pair := _pair(words[0])) is not None:
            return pair
        return _from_file(words[0])
    found: dict[str, tuple[float, float]] = {}
    for word in words:
        # The names of columns that were made of categories hold an equals sign.
        name, sign, text = word.rpartition("=")
        pair = _pair(text) if sign and name else None
        if pair is None or name in found:
            raise invalid("bounds", word, "COLUMN=LOW:HIGH, once per column", _EXAMPLE)
        found[name] = pair
    return found


def _pair(text: str) -> tuple[float, float] | None:
    """(low, high) of LOW:HIGH; None if it is something else."""
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        return None
    return low, high


def _from_file(path: str) -> dict[str, tuple[float, float]]:
    expected = "COLUMN=LOW:HIGH for each column, LOW:HIGH, or a file of bounds"
    try:
        if Path(path).stat().st_size > _MOST_BYTES:
            raise ValueError
        text = Path(path).read_text(encoding="utf-8-sig")
        found = _json(text) if path.lower().endswith(".json") else _csv(text)
    except OSError as problem:
        raise invalid("bounds", path, expected, f"{problem.strerror}. {_EXAMPLE}") from None
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error):
        form = "{column: [lower, upper]}" if path.lower().endswith(".json") else "lines of column,lower,upper"
        raise invalid("bounds", path, f"a file of bounds, with {form}, once per column", _EXAMPLE) from None
    if not found:
        raise invalid("bounds", path, "a file of bounds", "It has none.")
    return found


def _json(text: str) -> dict[str, tuple[float, float]]:
    found = json.loads(text, object_pairs_hook=_once)
    return {name: (float(low), float(high)) for name, (low, high) in found.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; with one name twice it is refused, where Python would keep the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _csv(text: str) -> dict[str, tuple[float, float]]:
    """Bounds by name; the names of the three columns are checked, so that other files are refused."""
    lines = csv.DictReader(text.splitlines(), skipinitialspace=True)
    found = {}
    for line in lines:
        if set(line) != {"column", "lower", "upper"} or line["column"] in found:
            raise ValueError
        found[line["column"]] = (float(line["lower"]), float(line["upper"]))
    return found


def with_indicators(options: dict[str, Any], table: Any) -> dict[str, Any]:
    """The options with the bounds 0 and 1 of columns that were made of categories, if bounds are given by name."""
    bounds = options.get("bounds")
    if not isinstance(bounds, dict) or table.columns is None:
        return options
    made = {f"{column}={value}" for column, values in table.columns.categories.items() for value in values}
    own = {name: (0.0, 1.0) for name in table.names or () if name in made and name not in bounds}
    return options | {"bounds": {**bounds, **own}}
