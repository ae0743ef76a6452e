"""Trainings a second of audits, for every private solver at its preset, beside the floor: its random numbers alone."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from dptoolkit import solvers
from dptoolkit.accounting.report import table
from dptoolkit.audit import presets
from dptoolkit.audit.engine import Game
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.solvers.frame.outlook import HopelessPlanWarning

BUDGET = 4.0, 1e-5
# Seconds that each measurement is to take.
_SECONDS = 1.0


@dataclass(frozen=True)
class Rate:
    """Trainings a second: by one core's own time and by the wall, by two cores' wall; and the floor of one core."""

    solver: str
    one: float
    one_wall: float
    two_wall: float
    floor: float
    words: float


def measure(solver: str) -> Rate:
    """Whole calls: a new target, which prepares the data, and all its trials; compilation comes before."""
    with warnings.catch_warnings():
        # Presets are made to be attacked, not to be useful.
        warnings.simplefilter("ignore", HopelessPlanWarning)
        plan = presets.plan(solver, *BUDGET)
    pair = presets.pair(plan)
    Game(PlanTarget(plan, pair), 0, "warm up", 1).play(0, 64)
    count, times = 256, _timed(lambda: Game(PlanTarget(plan, pair), 0, "first", 1).play(0, 256))
    count = max(2048, int(count * _SECONDS / max(times[1], 1e-6)) // 1024 * 1024)
    one = _timed(lambda: Game(PlanTarget(plan, pair), 0, "trials", 1).play(0, count))
    two = _timed(lambda: Game(PlanTarget(plan, pair), 0, "trials", 2).play(0, count))
    words = _words(plan, pair)
    return Rate(solver, count / one[1], count / one[0], count / two[0], 1 / (words * _seconds_a_word()), words)


def _timed(job: Callable[[], Any]) -> tuple[float, float]:
    """(seconds by the wall, by the processor)."""
    wall, own = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - wall, time.process_time() - own


def _words(plan: Any, pair: Any) -> float:
    """How many random words of 64 bits one training takes, from where its stream is left."""
    source, words = Streams(0, "words"), []
    first = pair.first
    data = (first.X, first.y, first.counts) if hasattr(first, "counts") else first
    run = solvers.bind(plan, *data)
    for trial in range(20):
        generator = source.generator(trial)
        run(generator)
        state: Any = generator.bit_generator.state
        words.append(4 * int(state["state"]["counter"][0]) - 4 + state["buffer_pos"])
    return max(float(np.mean(words)), 1.0)


def _seconds_a_word() -> float:
    generator, out = Streams(0, "floor").generator(), np.empty(2**20)
    return min(_timed(lambda: generator.random(out=out))[1] for _ in range(3)) / len(out)


def report(rates: list[Rate]) -> str:
    """The table."""
    head = ["solver", "one core", "one core, wall", "two cores, wall", "floor, one core", "random words"]
    cells = [[r.solver, *(f"{value:,.0f}" for value in astuple(r)[1:])] for r in rates]
    return table(head, cells)
