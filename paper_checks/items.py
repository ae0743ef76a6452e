"""Items: statements, tables, figures and rankings of a paper, as [[item]] entries of its claims.toml.

An item is either checked by a function of the paper's folder, or listed with the reason why it is not checked here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paper_checks import seeds
from paper_checks.findings import Finding
from paper_checks.shared import Shared
from paper_checks.tables import Table
from paper_checks.verdict import WORDS

# Every tier contains those before it. The slow one takes hours.
TIERS = ("fast", "full", "slow")
_ALWAYS = {"id", "where", "states"}
_CHECKED = {"published", "computes", "check", "tolerance", "why", "verdict", "twin"}
_KEYS = _ALWAYS | _CHECKED | {"with", "tier", "note", "pending", "data", "cost", "finding", "rank", "tests", "looks"}


class BadClaims(ValueError):
    """A claims file, or a name on the command line, that can not be used."""


@dataclass(frozen=True)
class Item:
    """One checkable item of a paper.

    Attributes
    ----------
    check : callable or None
        The function that computes the finding; None if the item is only listed, for the reason ``pending``.
    arguments, twin : mapping
        The published values that the function takes, and others for which its verdict must differ: a check whose
        verdict could not change would show nothing.
    data : tuple of str
        Names of data sets outside the package that the check needs. Without them its verdict is "no data".
    tests : int
        How many comparisons of a ranking the item tests, fixed beforehand (``family``); 0 for an item without any.
    looks : int
        How often the ranking was tested with another number of repetitions, this one included: each look may err.
    cost : float
        About how many seconds the check takes, with the shared runs that it is the first to need: workers begin with
        the longest. Items on the same shared runs have 0.
    finding, rank : str, int
        A sentence for the front page of the report, and its place there.
    """

    id: str
    where: str
    states: str
    published: str = ""
    computes: str = ""
    check: Callable[..., Finding] | None = None
    arguments: Mapping[str, Any] = None  # type: ignore[assignment]
    twin: Mapping[str, Any] = None  # type: ignore[assignment]
    tolerance: float = 0.0
    why: str = ""
    tier: str = "fast"
    verdict: str = ""
    note: str = ""
    pending: str = ""
    data: tuple[str, ...] = ()
    cost: float = 0.0
    finding: str = ""
    rank: int = 0
    tests: int = 0
    looks: int = 1

    @property
    def judged(self) -> bool:
        """Whether there is a check."""
        return self.check is not None


def read(entry: Mapping[str, Any], function: Callable[[str], Callable[..., Any]], where: str) -> Item:
    """The item of one [[item]] entry. ``function`` finds a function of the paper's folder by its name."""
    if unknown := set(entry) - _KEYS:
        raise BadClaims(f"{where}: unknown {', '.join(sorted(unknown))}.")
    needed = _ALWAYS if "pending" in entry else _ALWAYS | _CHECKED
    if absent := needed - set(entry):
        raise BadClaims(f"{where}: missing {', '.join(sorted(absent))}.")
    if "pending" in entry and "check" in entry:
        raise BadClaims(f"{where}: has a check, so it must not be pending.")
    verdict, tier = entry.get("verdict", ""), entry.get("tier", "fast")
    if verdict and verdict not in WORDS:
        raise BadClaims(f"{where}: verdict={verdict!r}: must be one of {', '.join(WORDS)}.")
    if tier not in TIERS:
        raise BadClaims(f"{where}: tier={tier!r}: must be one of {', '.join(TIERS)}.")
    if not isinstance(entry.get("tests", 0), int) or entry.get("tests", 1) < 1:
        raise BadClaims(f"{where}: tests={entry['tests']!r}: must be a whole number, at least 1.")
    if not isinstance(entry.get("looks", 1), int) or entry.get("looks", 1) < 1:
        raise BadClaims(f"{where}: looks={entry['looks']!r}: must be a whole number, at least 1.")
    plain = {key: entry[key] for key in set(entry) - {"check", "with", "twin", "data"}}
    check = function(entry["check"]) if "check" in entry else None
    return Item(
        **plain, check=check, arguments=entry.get("with", {}), twin=entry.get("twin", {}),
        data=tuple(entry.get("data", ())),
    )  # fmt: skip


def find(
    item: Item,
    tables: Mapping[str, Table],
    rng: seeds.Source,
    data_home: str | None,
    arguments: Mapping[str, Any] | None = None,
    shared: Shared | None = None,
) -> Finding:
    """The finding of one item, with its own arguments or others.

    ``shared`` holds runs that other items need too; None makes them anew, in memory.
    """
    if item.check is None:
        raise BadClaims(f"{item.id}: is not checked here: {item.pending}.")
    taken = dict(item.arguments if arguments is None else {**item.arguments, **arguments})
    plant = taken.pop("plant", None)
    for key in [key for key in taken if key == "table" or key.endswith("_table")]:
        taken[key] = _table(tables, taken[key], plant if key == "table" else None, item.id)
    here = Shared(rng, data_home) if shared is None else shared
    offered = {"rng": rng, "tolerance": item.tolerance, "data_home": data_home, "shared": here}
    names = inspect.signature(item.check).parameters
    return item.check(
        **taken, **{name: value for name, value in offered.items() if name in names and name not in taken}
    )


def _table(tables: Mapping[str, Table], name: str, plant: Any, item: str) -> Table:
    if name not in tables:
        raise BadClaims(f"{item}: table={name!r}: must be one of {', '.join(tables)} of tables.toml.")
    table = tables[name]
    # One planted cell [method, column, value], or a list of them.
    for cell in [] if plant is None else plant if isinstance(plant[0], list) else [plant]:
        table = table.planted(*cell)
    return table
