"""Races: rivals take turns, so that a busy machine slows all of them alike, and the best time of each counts.

Give rivals jobs of similar length: a job of a millisecond finds a quiet moment on a busy machine, a long one does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dptoolkit.accounting.report import table


class Best(NamedTuple):
    """The smallest seconds of several runs, by the wall and by the processor; threads add up in the latter."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Times:
    """Seconds of every turn, by the wall and by the processor."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def turns(rivals: Mapping[str, Callable[[], Any]], rounds: int, patience: float = math.inf) -> dict[str, Times]:
    """The seconds of ``rounds`` runs of each, one after the other; every rival runs once more before, untimed.

    No round is begun after ``patience`` seconds of processor time, but for the first.
    """
    began = time.process_time()
    for run in rivals.values():
        run()
    times = {name: Times() for name in rivals}
    for number in range(rounds):
        if number and time.process_time() - began > patience:
            break
        for name, run in rivals.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            times[name].cpu.append(time.process_time() - cpu)
            times[name].wall.append(time.perf_counter() - wall)
    return times


def race(rivals: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Best]:
    """The best of ``rounds`` turns of each."""
    return {name: Best(min(times.wall), min(times.cpu)) for name, times in turns(rivals, rounds).items()}


@dataclass(frozen=True)
class Check:
    """A measured number with its target: at least, or at most, ``bound``."""

    subject: str
    value: float
    bound: float
    at_least: bool
    unit: str = "x"

    @property
    def passed(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def cells(self) -> list[str]:
        """One row of the table."""
        sign = ">=" if self.at_least else "<="
        verdict = "PASS" if self.passed else "FAIL"
        return [self.subject, f"{self.value:.3g} {self.unit}", f"{sign} {self.bound:g} {self.unit}", verdict]


def show(title: str, checks: list[Check]) -> list[Check]:
    """Print the checks as a table, and hand them on."""
    print(f"\n{title}\n\n" + table(["measured", "value", "target", ""], [c.cells() for c in checks]), flush=True)
    return checks


def verdict(checks: list[Check], strict: bool) -> int:
    """Print how many targets are met, and which are missed; the exit code, 1 for a miss if ``strict``."""
    misses = [check.subject for check in checks if not check.passed]
    print(f"\n{len(checks) - len(misses)} of {len(checks)} targets met." + "".join(f"\n  missed: {m}" for m in misses))
    return int(strict and bool(misses))
