"""Calibration against dp_accounting over a grid of settings: process CPU time, whole call against whole call.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.accounting_grid            # the table of the saved results
    OPENBLAS_NUM_THREADS=1 python -m benchmarks.accounting_grid --measure  # measures what is not saved yet

One call of dp_accounting takes 2 to 25 s, so every setting is saved as it is measured, and a second run goes on where
the first one ended. Both sides look for the noise to a relative tolerance of 1e-5, one after the other in turn, without
any answer kept from before: delta differs in its last digits from call to call.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from dptoolkit.accounting import Event, Gaussian, Laplace, Repeated, Subsampled, calibrate
from dptoolkit.accounting.report import table

SAVED = Path(__file__).parent / "results" / "accounting_grid.jsonl"
NOISES, SCHEMES = ("gaussian", "laplace"), ("poisson", "without-replacement")
RATES, STEPS = (0.001, 0.01, 0.1, 1.0), (10, 100, 1_000, 10_000)
BUDGETS = ((0.5, 1e-5), (8.0, 1e-8), (2.0, 1e-5), (0.5, 1e-8), (8.0, 1e-5))
TOLERANCE, PEER_GRID, OWN_RUNS = 1e-5, 1e-4, 5
WANTED_RATIO = 20


class Setting(NamedTuple):
    """One question: how much noise do ``steps`` releases need for (epsilon, delta)?"""

    noise: str
    scheme: str
    rate: float
    steps: int
    epsilon: float
    delta: float

    def event(self, noise: float) -> Event:
        one = Gaussian(noise) if self.noise == "gaussian" else Laplace(noise)
        return Repeated(one if self.rate == 1 else Subsampled(one, self.scheme, self.rate), self.steps)

    def peer_event(self, noise: float) -> Any:
        import dp_accounting as peer

        one = peer.GaussianDpEvent(noise) if self.noise == "gaussian" else peer.LaplaceDpEvent(noise)
        step = one if self.rate == 1 else peer.PoissonSampledDpEvent(self.rate, one)
        return peer.SelfComposedDpEvent(step, self.steps)

    @property
    def peer_can(self) -> bool:
        """dp_accounting's privacy-loss distributions know no sampling without replacement."""
        return self.scheme == "poisson"


def settings() -> list[Setting]:
    """The grid, budgets in turn, so that a part of it covers all rates. Rate 1 is the same under both schemes."""
    return [
        Setting(noise, scheme, rate, steps, *budget)
        for noise, budget, scheme, steps, rate in itertools.product(NOISES, BUDGETS, SCHEMES, STEPS, RATES)
        if (rate < 1 or scheme == "poisson") and (noise == "gaussian" or steps <= 1_000)
    ]


def cpu_time(work: Callable[[], float]) -> tuple[float, float]:
    """The result and the seconds of process time."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def measured(setting: Setting) -> dict[str, Any]:
    """Own runs before and after the peer's one."""
    runs: list[float] = []

    def own(times: int) -> float:
        for _ in range(times):
            delta = setting.delta * (1 - 1e-12 * (len(runs) + 1))
            noise, spent = cpu_time(lambda: calibrate(setting.event, setting.epsilon, delta))  # noqa: B023
            runs.append(spent)
        return noise

    noise = own(OWN_RUNS // 2 + 1)
    record = setting._asdict() | {"ours": noise, "theirs": None, "peer_seconds": None}
    if setting.peer_can:
        record["theirs"], record["peer_seconds"] = cpu_time(lambda: _peer_calibration(setting, noise))
    own(OWN_RUNS // 2)
    return record | {"seconds": runs}


def _peer_calibration(setting: Setting, noise: float) -> float:
    import dp_accounting as peer

    return float(peer.calibrate_dp_mechanism(
        lambda: peer.pld.PLDAccountant(value_discretization_interval=PEER_GRID), setting.peer_event,
        setting.epsilon, setting.delta, tol=TOLERANCE * noise,
    ))  # fmt: skip


def saved() -> list[dict[str, Any]]:
    """What was measured so far."""
    return [json.loads(line) for line in SAVED.read_text().splitlines()] if SAVED.exists() else []


def measure() -> None:
    """Measure what is not saved yet."""
    known = {tuple(one[name] for name in Setting._fields) for one in saved()}
    cpu_time(lambda: calibrate(settings()[0].event, 1.0, 1e-4))
    for setting in settings():
        if tuple(setting) not in known:
            with SAVED.open("a") as file:
                file.write(json.dumps(measured(setting)) + "\n")


def report(results: list[dict[str, Any]]) -> str:
    """One line a setting: both noises, both times, the ratio of the medians and its range over the own runs."""
    rows, ratios = [], []
    for one in sorted(results, key=lambda r: tuple(r[name] for name in Setting._fields)):
        own = sorted(one["seconds"])
        middle = own[len(own) // 2]
        cells = ["", "", ""]
        if one["peer_seconds"] is not None:
            peer = one["peer_seconds"]
            ratios.append(peer / middle)
            cells = [f"{peer * 1e3:.0f}", f"{one['theirs'] / one['ours'] - 1:+.1e}",
                     f"{peer / middle:.0f} ({peer / own[-1]:.0f} to {peer / own[0]:.0f})"]  # fmt: skip
        budget = f"({one['epsilon']:g}, {one['delta']:g})"
        rows.append([one["noise"], one["scheme"], f"{one['rate']:g}", f"{one['steps']:,}", budget,
                     f"{one['ours']:.5f}", f"{middle * 1e3:.0f}", *cells])  # fmt: skip
    head = ["noise", "sampling", "rate", "steps", "budget", "multiplier", "ms", "peer ms", "peer's noise", "ratio"]
    lines = [table(head, rows), f"{len(results)} of {len(settings())} settings are measured."]
    if ratios:
        middle = math.exp(sum(map(math.log, ratios)) / len(ratios))
        below = sum(ratio < WANTED_RATIO for ratio in ratios)
        lines.append(f"Ratios: least {min(ratios):.0f}, mean (of logs) {middle:.0f}; below {WANTED_RATIO}: {below}.")
    return "\n".join(lines)


if __name__ == "__main__":
    if "--measure" in sys.argv[1:]:
        measure()
    print(report(saved()))
