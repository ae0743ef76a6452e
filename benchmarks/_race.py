"""Side by side: rivals take turns, so that a busy machine slows all of them, and the best of each counts.

Give rivals jobs of similar length: a job of a millisecond finds a quiet moment on a busy machine, a long one does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dptoolkit.accounting.report import table


class Best(NamedTuple):
    """The smallest seconds of several runs, by the wall and by the processor; threads add up in the latter."""

    wall: float
    cpu: float


def race(rivals: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Best]:
    """The best of ``rounds`` runs of each; every rival runs once more before, untimed."""
    for run in rivals.values():
        run()
    best = dict.fromkeys(rivals, Best(math.inf, math.inf))
    for _ in range(rounds):
        for name, run in rivals.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            best[name] = Best(min(best[name].wall, wall), min(best[name].cpu, cpu))
    return best


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
