"""Reading claims.toml and the check.py beside it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from paper_checks.audits import Audited
from paper_checks.verdict import KINDS, Verdict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TIERS = ("fast", "full")
_CLAIM_KEYS = {"id", "where", "states", "check", "with", "tolerance", "why", "note", "point", "audit", "trials"}
_POINT_KEYS = {"at", "verdict", "factor", "truth", "tier", "audited", "refuted", "trials"}


class BadClaims(ValueError):
    """A claims file, or a name on the command line, that can not be used."""


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


@dataclass(frozen=True)
class Paper:
    """All claims of one paper."""

    name: str
    claims: tuple[Claim, ...]


def paper_folders(root: Path, names: Iterable[str]) -> list[Path]:
    """The folders of the named papers, of all papers if none is named."""
    folders = {path.parent.name: path.parent for path in sorted(root.glob("*/claims.toml"))}
    selection = list(names) or list(folders)
    for name in selection:
        if name not in folders:
            raise BadClaims(f"PAPER {name}: must be one of {', '.join(folders)}.")
    return [folders[name] for name in selection]


def selected(root: Path, names: Iterable[str]) -> list[Paper]:
    """The named papers; a name after a paper's may be one of its claims, and then only those are taken."""
    papers = [path.name for path in paper_folders(root, [])]
    claims_of: dict[str, list[str]] = {}
    paper = None
    for name in names:
        if name in papers or paper is None:
            paper = name
            claims_of.setdefault(name, [])
        else:
            claims_of[paper].append(name)
    folders = paper_folders(root, claims_of)
    return [_only(load(folder), claims_of.get(folder.name, [])) for folder in folders]


def _only(paper: Paper, ids: list[str]) -> Paper:
    ids_of_paper = [claim.id for claim in paper.claims]
    for name in ids:
        if name not in ids_of_paper:
            raise BadClaims(f"CLAIM {name}: must be a paper, or one of {', '.join(ids_of_paper)} of {paper.name}.")
    return Paper(paper.name, tuple(claim for claim in paper.claims if not ids or claim.id in ids))


def load(folder: Path) -> Paper:
    """The claims of the paper in ``folder``, each bound to its function in check.py."""
    path = folder / "claims.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as problem:
        raise BadClaims(f"{path}: must be TOML. {problem}") from None
    module = _module(folder)
    claims = tuple(_claim(entry, module, path) for entry in content.get("claim", ()))
    if not claims:
        raise BadClaims(f"{path}: must hold at least one [[claim]].")
    return Paper(folder.name, claims)


def _claim(entry: Mapping[str, Any], module: ModuleType, path: Path) -> Claim:
    where = f"{path}: claim {entry.get('id', '?')!r}"
    _check_keys(entry, _CLAIM_KEYS, {"id", "where", "states", "check", "tolerance", "why", "point"}, where)
    check = _function("check", entry, module, where)
    audit = _function("audit", entry, module, where) if "audit" in entry else None
    points = tuple(_point(point, where) for point in entry["point"])
    _check_audits(points, audit, entry.get("trials", 0), where)
    return Claim(
        entry["id"], entry["where"], entry["states"], check, entry.get("with", {}), entry["tolerance"], points, audit,
        entry.get("trials", 0), entry.get("note", ""),
    )  # fmt: skip


def _function(key: str, entry: Mapping[str, Any], module: ModuleType, where: str) -> Callable[..., Any]:
    function = getattr(module, entry[key], None)
    if not callable(function):
        raise BadClaims(f"{where}: {key}={entry[key]!r}: must be a function of check.py.")
    return function


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


def _module(folder: Path) -> ModuleType:
    # By path, so that a folder works wherever it lies and needs no __init__.py.
    spec = importlib.util.spec_from_file_location(f"paper_checks_{folder.name}", folder / "check.py")
    if spec is None or spec.loader is None or not (folder / "check.py").exists():
        raise BadClaims(f"{folder}: must hold a check.py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
