"""Side by side: rivals take turns, so that a busy machine slows all of them, and the best of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dptoolkit.accounting.report import table


def race(rivals: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of the fastest of ``rounds`` runs of each; every rival runs once more before, untimed."""
    for run in rivals.values():
        run()
    best = dict.fromkeys(rivals, float("inf"))
    for _ in range(rounds):
        for name, run in rivals.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
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
