"""Reading a paper's folder: claims.toml, tables.toml and the functions beside them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from paper_checks import family, items, tables
from paper_checks.audits import Audited
from paper_checks.items import TIERS, BadClaims, Item
from paper_checks.verdict import KINDS, Verdict

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ImportError:
        raise ImportError("paper_checks needs tomli before Python 3.11: pip install 'dptoolkit[check]'.") from None

__all__ = ["TIERS", "BadClaims", "Claim", "Paper", "Point", "load", "paper_folders", "selected"]

_CLAIM_KEYS = {
    "id", "where", "states", "check", "with", "tolerance", "why", "note", "point", "audit", "trials", "item", "finding",
    "rank",
}  # fmt: skip
_POINT_KEYS = {"at", "verdict", "factor", "truth", "tier", "audited", "refuted", "trials"}


@dataclass(frozen=True)
class Point:
    """Parameters at which a claim is checked, and what is expected there.

    ``audited`` asks for an audit and says what it finds at least; ``refuted`` that it finds more than is claimed.
    ``trials`` is the number of runs, the claim's own if not given.
    """

    at: Mapping[str, Any]
    verdict: str
    factor: float | None = None
    truth: float | None = None
    tier: str = "fast"
    audited: float | None = None
    refuted: bool = False
    trials: int | None = None


@dataclass(frozen=True)
class Claim:
    """One privacy theorem or constant of a paper."""

    id: str
    where: str
    states: str
    check: Callable[..., Verdict]
    common: Mapping[str, Any]
    tolerance: float
    points: tuple[Point, ...]
    audit: Callable[..., Audited] | None = None
    trials: int = 0
    note: str = ""
    item: str = ""
    why: str = ""
    finding: str = ""
    rank: int = 0


@dataclass(frozen=True)
class Paper:
    """All privacy claims and other items of one paper, its printed tables, its title, and the prefix of its items."""

    name: str
    claims: tuple[Claim, ...]
    items: tuple[Item, ...] = ()
    tables: Mapping[str, tables.Table] = field(default_factory=dict)
    title: str = ""
    key: str = ""


def paper_folders(root: Path, names: Iterable[str]) -> list[Path]:
    """The folders of the named papers, of all papers if none is named."""
    folders = {path.parent.name: path.parent for path in sorted(root.glob("*/claims.toml"))}
    selection = list(names) or list(folders)
    for name in selection:
        if name not in folders:
            raise BadClaims(f"PAPER {name}: must be one of {', '.join(folders)}.")
    return [folders[name] for name in selection]


def selected(root: Path, names: Iterable[str]) -> list[Paper]:
    """The named papers, with the named claims and items only where some are named.

    A paper is named by its folder or by the prefix of its items, as in "IGHT". An item's name says which paper it is
    of; a claim's name must follow its paper's.
    """
    papers = [load(folder) for folder in paper_folders(root, [])]
    looks = sum(item.looks for paper in papers for item in paper.items if item.tests)
    if looks > family.ITEMS:
        words = f"{looks} items have tests, second looks counted"
        raise BadClaims(f"{root}: {words}, and family.ITEMS allows {family.ITEMS}.")
    by_name = {name: paper for paper in papers for name in (paper.name, paper.key) if name}
    by_item = {item.id: paper for paper in papers for item in paper.items}
    by_item |= {claim.item: paper for paper in papers for claim in paper.claims if claim.item}
    chosen: dict[str, list[str]] = {}
    paper = None
    for name in names:
        if name in by_name:
            paper = by_name[name]
            chosen.setdefault(paper.name, [])
        elif name in by_item:
            chosen.setdefault(by_item[name].name, []).append(name)
        elif paper is None:
            folders = ", ".join(paper.name for paper in papers)
            raise BadClaims(f"PAPER {name}: must be one of {folders}, or an item of theirs (see --list).")
        else:
            chosen[paper.name].append(name)
    return [_only(paper, chosen.get(paper.name, [])) for paper in papers if not chosen or paper.name in chosen]


def _only(paper: Paper, ids: list[str]) -> Paper:
    known = [claim.id for claim in paper.claims] + [item.id for item in paper.items]
    known += [claim.item for claim in paper.claims]
    for name in ids:
        if name not in known:
            words = ", ".join(claim.id for claim in paper.claims)
            raise BadClaims(f"CLAIM {name}: must be a paper, an item of --list, or one of {words} of {paper.name}.")
    if not ids:
        return paper
    claims = tuple(claim for claim in paper.claims if claim.id in ids or claim.item in ids)
    return replace(paper, claims=claims, items=tuple(item for item in paper.items if item.id in ids))


def load(folder: Path) -> Paper:
    """The claims and items of the paper in ``folder``, each bound to its function."""
    path = folder / "claims.toml"
    content = _toml(path)
    functions = _Functions(folder)
    claims = tuple(_claim(entry, functions, path) for entry in content.get("claim", ()))
    if not claims:
        raise BadClaims(f"{path}: must hold at least one [[claim]].")
    own = tuple(_item(entry, functions, path) for entry in content.get("item", ()))
    _check_unique([claim.id for claim in claims] + [item.id for item in own], path)
    table_file = folder / "tables.toml"
    printed = tables.read(_toml(table_file)) if table_file.exists() else {}
    return Paper(folder.name, claims, own, printed, content.get("title", ""), content.get("key", ""))


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as problem:
        raise BadClaims(f"{path}: must be TOML. {problem}") from None


def _check_unique(ids: list[str], path: Path) -> None:
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise BadClaims(f"{path}: {', '.join(twice)}: must be there once.")


def _item(entry: Mapping[str, Any], functions: _Functions, path: Path) -> Item:
    where = f"{path}: item {entry.get('id', '?')!r}"
    return items.read(entry, lambda name: functions.find("check", name, where), where)


def _claim(entry: Mapping[str, Any], functions: _Functions, path: Path) -> Claim:
    where = f"{path}: claim {entry.get('id', '?')!r}"
    _check_keys(entry, _CLAIM_KEYS, {"id", "where", "states", "check", "tolerance", "why", "point"}, where)
    check = functions.find("check", entry["check"], where)
    audit = functions.find("audit", entry["audit"], where) if "audit" in entry else None
    points = tuple(_point(point, where) for point in entry["point"])
    _check_audits(points, audit, entry.get("trials", 0), where)
    return Claim(
        entry["id"], entry["where"], entry["states"], check, entry.get("with", {}), entry["tolerance"], points, audit,
        entry.get("trials", 0), entry.get("note", ""), entry.get("item", ""), entry["why"], entry.get("finding", ""),
        entry.get("rank", 0),
    )  # fmt: skip


def _check_audits(points: Iterable[Point], audit: Any, trials: int, where: str) -> None:
    for point in points:
        if point.audited is None and (point.refuted or point.trials is not None):
            raise BadClaims(f"{where}: refuted and trials need audited, what the audit finds at least.")
        if point.audited is not None and (audit is None or not (point.trials or trials)):
            raise BadClaims(f"{where}: an audited point needs audit and trials.")


def _point(entry: Mapping[str, Any], where: str) -> Point:
    _check_keys(entry, _POINT_KEYS, {"at", "verdict"}, where)
    point = Point(**entry)
    if point.verdict not in KINDS:
        raise BadClaims(f"{where}: verdict={point.verdict!r}: must be one of {', '.join(KINDS)}.")
    if point.tier not in TIERS:
        raise BadClaims(f"{where}: tier={point.tier!r}: must be one of {', '.join(TIERS)}.")
    return point


def _check_keys(entry: Mapping[str, Any], allowed_keys: set[str], required_keys: set[str], where: str) -> None:
    if unknown := set(entry) - allowed_keys:
        raise BadClaims(f"{where}: unknown {', '.join(sorted(unknown))}.")
    if absent_keys := required_keys - set(entry):
        raise BadClaims(f"{where}: missing {', '.join(sorted(absent_keys))}.")


class _Functions:
    """The functions of a paper's folder: "name" is one of check.py, "file.name" one of file.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: dict[str, ModuleType] = {}
        if not (folder / "check.py").exists():
            raise BadClaims(f"{folder}: must hold a check.py.")

    def find(self, key: str, name: str, where: str) -> Callable[..., Any]:
        file, _, function = name.rpartition(".")
        file = file or "check"
        if not (self.folder / f"{file}.py").exists():
            raise BadClaims(f"{where}: {key}={name!r}: there is no {file}.py.")
        found = getattr(self._module(file), function, None)
        if not callable(found):
            raise BadClaims(f"{where}: {key}={name!r}: must be a function of {file}.py.")
        return found

    def _module(self, file: str) -> ModuleType:
        # By path, so that a folder works wherever it lies and needs no __init__.py.
        if file not in self.modules:
            name = f"paper_checks_{self.folder.name}_{file}"
            spec = importlib.util.spec_from_file_location(name, self.folder / f"{file}.py")
            assert spec is not None and spec.loader is not None
            self.modules[file] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self.modules[file])
        return self.modules[file]
