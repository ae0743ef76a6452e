"""Computing the verdicts and comparing them with the expected ones.

The work is cut into units: one point of a privacy claim, or one item. Each unit gives a record, a dictionary that JSON
can hold, and everything that is printed or written is made from records. So a run that was stopped and resumed prints
what an uninterrupted one prints.
"""

from __future__ import annotations

import math
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dptoolkit.distributed import executor
from dptoolkit.solvers import DeltaWarning, HopelessPlanWarning
from paper_checks import claims, family, records, seeds
from paper_checks.audits import Audited
from paper_checks.claims import TIERS, BadClaims, Claim, Paper, Point
from paper_checks.files import available
from paper_checks.findings import Finding
from paper_checks.items import Item, find
from paper_checks.shared import Shared
from paper_checks.store import Store, check_apart
from paper_checks.verdict import Verdict

__all__ = ["TIERS", "Row", "Settings", "Unit", "run", "units"]


@dataclass(frozen=True)
class Settings:
    """What a run is asked for: the tier, the seed of all random numbers, the folder of data sets, where it runs.

    ``scheduler`` is the address of a Dask scheduler, in place of ``workers`` processes. ``store`` is where runs that
    items share are kept; ``run`` sets it.
    """

    tier: str = "fast"
    seed: int = 0
    data_home: str | None = None
    workers: int = 1
    scheduler: str | None = None
    store: Store | None = None


@dataclass(frozen=True)
class Unit:
    """One point of a claim, or an item (``point`` is None)."""

    paper: str
    id: str
    point: int | None = None

    @property
    def name(self) -> str:
        """The unit's name in messages and file names."""
        return self.id if self.point is None else f"{self.id}.{self.point}"


@dataclass(frozen=True)
class Row:
    """One claim at one point: what was expected and what was found."""

    paper: str
    claim: Claim
    point: Point
    verdict: Verdict
    audited: Audited | None = None

    @property
    def changes(self) -> list[str]:
        """The differences from the expectation, in words; empty if there are none."""
        verdict, expected, tolerance = self.verdict, self.point, self.claim.tolerance
        changes = []
        if verdict.kind != expected.verdict:
            changes.append(f"verdict {verdict.kind}, expected {expected.verdict}")
        if expected.factor is not None and not _close(verdict.factor, expected.factor, tolerance):
            changes.append(f"factor {verdict.factor:.6g}, expected {expected.factor:g}")
        if expected.truth is not None and not _close(verdict.truth, expected.truth, tolerance):
            changes.append(f"truth {verdict.truth:.6g}, expected {expected.truth:g}")
        return changes + self._audit_changes()

    def _audit_changes(self) -> list[str]:
        audit, expected = self.audited, self.point.audited
        if audit is None or expected is None:
            return []
        changes = []
        # Accounting and audit contradict each other: one of them is wrong.
        if audit.in_currency and not audit.lower <= self.verdict.upper:
            changes.append(f"audited {audit.lower:.6g}, above the truth {self.verdict.upper:.6g}")
        if not audit.lower <= audit.reach:
            changes.append(f"audited {audit.lower:.6g}, above the {audit.reach:.6g} that its pair reaches")
        if audit.lower < expected:
            changes.append(f"audited {audit.lower:.6g}, expected at least {expected:g}")
        if self.point.refuted and not audit.lower > audit.claimed:
            changes.append(f"audited {audit.lower:.6g}, expected more than the claimed {audit.claimed:g}")
        return changes

    @property
    def as_expected(self) -> bool:
        """Whether verdict, factor, truth and audit are the expected ones."""
        return not self.changes


def units(papers: Iterable[Paper], tier: str) -> list[Unit]:
    """The units of the tier, in the order of the papers' files."""
    tiers = TIERS[: TIERS.index(tier) + 1]
    found = []
    for paper in papers:
        for claim in paper.claims:
            points = enumerate(claim.points)
            found += [Unit(paper.name, claim.id, number) for number, point in points if point.tier in tiers]
        found += [Unit(paper.name, item.id) for item in paper.items if item.judged and item.tier in tiers]
    return found


def run(
    root: Path, papers: Sequence[Paper], settings: Settings, store: Store | None = None, resume: bool = False
) -> Iterator[tuple[Unit, dict[str, Any], float]]:
    """Compute all units, each as soon as it is there: the unit, its record and the seconds it took.

    A ``store`` keeps every record at once; with ``resume`` what it holds already, for the same files and settings, is
    taken from there.
    """
    by_name = {paper.name: paper for paper in papers}
    settings = replace(settings, store=store)
    if store is not None:
        for paper in papers:
            check_apart(paper.name, (unit.name for unit in units([paper], TIERS[-1])))
        # Now, for all processes: a file that is edited during a run must not make its parts look like another run's.
        for paper in papers:
            for data in {(), *(item.data for item in paper.items), *((name,) for i in paper.items for name in i.data)}:
                store.fingerprint(paper.name, data)
        if not resume:
            shutil.rmtree(store.shared_folder, ignore_errors=True)
    todo = []
    for unit in units(papers, settings.tier):
        data = _data(by_name[unit.paper], unit)
        kept = store.load(unit.paper, unit.name, data) if store is not None and resume else None
        if kept is None:
            todo.append(unit)
        else:
            yield unit, kept["record"], kept["seconds"]
    for unit, record, spent in _computed(root, by_name, todo, settings):
        if store is not None:
            store.save(unit.paper, unit.name, record, spent.seconds, spent.cpu, _data(by_name[unit.paper], unit))
        yield unit, record, spent.seconds


def _data(paper: Paper, unit: Unit) -> tuple[str, ...]:
    """The data sets that a unit needs; a point of a privacy claim needs none."""
    return next((item.data for item in paper.items if unit.point is None and item.id == unit.id), ())


class Spent(NamedTuple):
    """Seconds on the clock, and of the processor: other programs may use the machine too."""

    seconds: float
    cpu: float


def _computed(
    root: Path, papers: Mapping[str, Paper], todo: list[Unit], settings: Settings
) -> Iterator[tuple[Unit, dict[str, Any], Spent]]:
    if settings.scheduler is None and (settings.workers == 1 or len(todo) < 2):
        for unit in todo:
            yield unit, *compute(papers[unit.paper], unit, settings)
        return
    todo = _longest_first(papers, todo)
    with executor(settings.workers if settings.scheduler is None else None, scheduler=settings.scheduler) as pool:
        for number, (record, spent) in pool.each(partial(_in_worker, root, settings), todo):
            yield todo[number], record, spent


def _longest_first(papers: Mapping[str, Paper], todo: list[Unit]) -> list[Unit]:
    """The order in which workers take units: by the ``cost`` of items, else as before. Results do not depend on it.

    Of items on the same shared runs the one that names their cost makes them. The others come late, when the runs are
    there, so that no worker waits for another.
    """
    costs = {(paper.name, item.id): item.cost for paper in papers.values() for item in paper.items}
    return sorted(todo, key=lambda unit: -costs.get((unit.paper, unit.id), 0.0))


_PAPERS: dict[str, Paper] = {}


def _in_worker(root: Path, settings: Settings, unit: Unit) -> tuple[dict[str, Any], Spent]:
    if unit.paper not in _PAPERS:
        _PAPERS[unit.paper] = claims.load(root / unit.paper)
    return compute(_PAPERS[unit.paper], unit, settings)


def compute(paper: Paper, unit: Unit, settings: Settings) -> tuple[dict[str, Any], Spent]:
    """The record of one unit, and the time it took."""
    start, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        # Audits run small plans with a paper's noise: whether their models would be of use is not the question.
        warnings.simplefilter("ignore", HopelessPlanWarning)
        warnings.simplefilter("ignore", DeltaWarning)
        record = _record(paper, unit, settings)
    return record, Spent(time.perf_counter() - start, time.process_time() - cpu)


def _record(paper: Paper, unit: Unit, settings: Settings) -> dict[str, Any]:
    if unit.point is None:
        (item,) = (item for item in paper.items if item.id == unit.id)
        return records.of_item(paper, item, _finding(paper, item, settings))
    (claim,) = (claim for claim in paper.claims if claim.id == unit.id)
    return records.of_point(paper, _row(paper.name, claim, claim.points[unit.point]))


def _finding(paper: Paper, item: Item, settings: Settings) -> Finding:
    if missing := [name for name in item.data if not available(name, settings.data_home)]:
        return Finding("no data", f"not found: {', '.join(missing)}. Name their folder with --data.")
    rng = seeds.source(settings.seed, paper.name, item.id)
    try:
        with family.counted() as made:
            found = find(item, paper.tables, rng, settings.data_home, shared=_shared(paper, settings))
    except (TypeError, ValueError) as problem:
        raise BadClaims(f"{paper.name}: item {item.id!r}: {problem}") from problem
    if found.verdict != "no data" and (wrong := family.problem(item.tests, made)):
        raise BadClaims(f"{paper.name}: item {item.id!r}: {wrong}.")
    return found


_SHARED: dict[tuple[object, ...], Shared] = {}


def _shared(paper: Paper, settings: Settings) -> Shared:
    """The runs that the items of a paper share, one object per process."""
    store = settings.store
    folder = None if store is None else store.shared_folder / paper.name
    mark = "" if store is None else store.fingerprint(paper.name)
    key = (paper.name, settings.seed, settings.data_home, folder, mark)
    if key not in _SHARED:
        # No item has this name: what is shared belongs to none of them.
        source = seeds.source(settings.seed, paper.name, "shared runs")
        print_of = None if store is None else partial(store.fingerprint, paper.name)
        _SHARED[key] = Shared(source, settings.data_home, folder, mark, print_of)
    return _SHARED[key]


def _row(paper: str, claim: Claim, point: Point) -> Row:
    at = {**claim.common, **point.at}
    try:
        verdict = claim.check(**at)
        audited = _audit(claim, point, at)
    except (TypeError, ValueError) as problem:
        raise BadClaims(f"{paper}: claim {claim.id!r} at {dict(point.at)}: {problem}") from problem
    return Row(paper, claim, point, verdict, audited)


def _audit(claim: Claim, point: Point, at: dict[str, Any]) -> Audited | None:
    if point.audited is None or claim.audit is None:
        return None
    return claim.audit(trials=point.trials or claim.trials, **at)


def _close(value: float, expected: float, tolerance: float) -> bool:
    if math.isnan(expected) or math.isinf(expected):
        return value == expected or (math.isnan(value) and math.isnan(expected))
    return abs(value - expected) <= tolerance * abs(expected)
