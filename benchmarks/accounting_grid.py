"""Calibration against dp_accounting over a grid of settings: process CPU time, whole call against whole call.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.accounting_grid --measure  # measures what is not saved yet
    python -m benchmarks.accounting_grid --page                            # writes docs/calibration-speed.md
    python -m benchmarks.accounting_grid                                   # prints that page

The noise multiplier of Gaussian steps on Poisson batches. The grid covers the ends of every range: three rates, three
numbers of steps and three epsilons in all combinations, with delta chosen so that every delta meets every pair of the
others (a fractional factorial design), and rate 1 in the same way. One call of dp_accounting takes up to half a minute,
so every setting is saved as it is measured, and a second run goes on where the first one ended.

Both sides look for the noise to a relative tolerance of 1e-5, one after the other in turn, without any answer kept from
before: delta differs in its last digits from call to call. dp_accounting has its own default grid, 1e-4; where that is
too coarse for a thousandth of epsilon, it is asked again with a finer one, unless the first answer took longer than 20
seconds: a finer grid would then take minutes and more memory than there is.
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

from benchmarks import plans
from dptoolkit.accounting import Event, Gaussian, Repeated, Subsampled, calibrate
from dptoolkit.accounting.pld.curve import Composition
from dptoolkit.accounting.pld.trees import directions, dominating

HERE = Path(__file__).parent
SAVED = HERE / "results" / "accounting_grid.jsonl"
PAGE = HERE.parent / "docs" / "calibration-speed.md"
RATES, STEPS, EPSILONS, DELTAS = (1e-4, 1e-2, 0.3), (1, 300, 100_000), (0.1, 1.0, 10.0), (1e-9, 1e-6, 1e-3)
TOLERANCE, PEER_GRIDS, OWN_RUNS = 1e-5, (1e-4, 1e-5), 5
# The relative error of epsilon that a grid may have: for the peer's grid, and for the grid that both are judged by.
PEER_ERROR, REFERENCE_ERROR = 1e-3, 2e-6
WANTED_RATIO, PATIENCE = 20, 20.0


class Setting(NamedTuple):
    """One question: how much noise do ``steps`` releases need for (epsilon, delta)?"""

    rate: float
    steps: int
    epsilon: float
    delta: float

    def event(self, noise: float) -> Event:
        one = Gaussian(noise)
        return Repeated(one if self.rate == 1 else Subsampled(one, "poisson", self.rate), self.steps)

    def peer_event(self, noise: float) -> Any:
        import dp_accounting as peer

        one = peer.GaussianDpEvent(noise)
        step = one if self.rate == 1 else peer.PoissonSampledDpEvent(self.rate, one)
        return peer.SelfComposedDpEvent(step, self.steps)

    @property
    def needs_noise(self) -> bool:
        """Whether sampling alone does not keep the budget: a record is in some batch with this chance."""
        return -math.expm1(self.steps * math.log1p(-self.rate)) > self.delta if self.rate < 1 else True

    def true_epsilon(self, noise: float) -> float:
        """epsilon on a grid whose error is small beside that of both sides; it is an upper bound as theirs are."""
        trees = directions(self.event(noise), dominating)
        return max(Composition(t, self.delta, tolerance=REFERENCE_ERROR).epsilon(self.delta).value for t in trees)


def settings() -> list[Setting]:
    """The grid, without the settings that need no noise."""
    places = itertools.product(range(3), repeat=3)
    sampled = [Setting(RATES[a], STEPS[b], EPSILONS[c], DELTAS[(a + b + c) % 3]) for a, b, c in places]
    full = [Setting(1.0, STEPS[b], EPSILONS[c], DELTAS[(b + c) % 3]) for b, c in itertools.product(range(3), repeat=2)]
    return [one for one in sampled + full if one.needs_noise]


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
            noise, cpu = cpu_time(lambda: calibrate(setting.event, setting.epsilon, delta))  # noqa: B023
            runs.append(cpu)
        return noise

    noise = own(OWN_RUNS // 2 + 1)
    for grid in PEER_GRIDS:
        theirs, seconds = cpu_time(lambda: _peer_calibration(setting, noise, grid))  # noqa: B023
        excess = setting.epsilon / setting.true_epsilon(theirs) - 1
        if excess <= PEER_ERROR or seconds > PATIENCE:
            break
    own(OWN_RUNS // 2)
    return setting._asdict() | {
        "ours": noise, "excess": setting.epsilon / setting.true_epsilon(noise) - 1, "seconds": runs,
        "theirs": theirs, "peer_excess": excess, "peer_seconds": seconds, "peer_grid": grid,
    }  # fmt: skip


def _peer_calibration(setting: Setting, noise: float, grid: float) -> float:
    import dp_accounting as peer

    return float(peer.calibrate_dp_mechanism(
        lambda: peer.pld.PLDAccountant(value_discretization_interval=grid), setting.peer_event,
        setting.epsilon, setting.delta, tol=TOLERANCE * noise,
    ))  # fmt: skip


def saved() -> list[dict[str, Any]]:
    """The results that were measured so far."""
    return [json.loads(line) for line in SAVED.read_text().splitlines()] if SAVED.exists() else []


def measure() -> None:
    """Measure what is not saved yet."""
    measured_settings = {tuple(one[name] for name in Setting._fields) for one in saved()}
    cpu_time(lambda: calibrate(settings()[0].event, 1.0, 1e-4))
    for setting in settings():
        if tuple(setting) not in measured_settings:
            with SAVED.open("a") as file:
                file.write(json.dumps(measured(setting)) + "\n")


# --- the page -----------------------------------------------------------------------------------------

_TOP = """# Speed of calibration

How long `calibrate` and dp_accounting's `calibrate_dp_mechanism` (with privacy-loss distributions) take to find the
noise multiplier of Gaussian steps on Poisson batches, both to a relative tolerance of {tolerance:g}. Times are
processor times on one core, measured alternately: the median of {runs} calls of ours, and one call of dp_accounting.
Both start from their own first guess. dp_accounting starts at noise 1 and below, where its distributions are longest,
so a caller who knows the approximate noise can make it faster. `python -m benchmarks.accounting_grid --measure` fills
`benchmarks/results/accounting_grid.jsonl`, and `--page` writes this page from it.

The settings were fixed in advance: rates {rates}, steps {steps}, epsilons {epsilons} in all combinations, with deltas
{deltas} in turn, and rate 1 in the same way. Settings that need no noise are left out. dp_accounting's distributions
do not support sampling without replacement, so it is not compared.

*Above* is the requested epsilon divided by the epsilon of the noise found, minus 1: how much noise a calibration adds
beyond the necessary. That epsilon is our own bound on a grid whose error is {reference:g}; a negative number means that
dp_accounting's bound is tighter. dp_accounting uses its default grid of {grid:g}. If that adds more than {error:g}, it
uses the grid given in brackets, unless the default already took {patience:g} seconds.

{summary} The settings of rate 1 with 100,000 steps are missing: at the first of them dp_accounting needed an array of
7.9 GB and ran out of memory.

"""


def rendered(results: list[dict[str, Any]]) -> str:
    """The page: one line per setting."""
    rows, ratios = [], []
    for one in sorted(results, key=lambda r: tuple(r[name] for name in Setting._fields)):
        own = sorted(one["seconds"])
        middle, peer = own[len(own) // 2], one["peer_seconds"]
        ratios.append(peer / middle)
        grid = "" if one["peer_grid"] == PEER_GRIDS[0] else f" (grid {one['peer_grid']:g})"
        rows.append([
            f"{one['rate']:g}", f"{one['steps']:,}", f"({one['epsilon']:g}, {one['delta']:g})", f"{one['ours']:.5g}",
            f"{middle * 1e3:.3g}", f"{one['excess']:.0e}", f"{peer * 1e3:,.0f}{grid}", f"{one['peer_excess']:.0e}",
            f"{peer / middle:.0f} ({peer / own[-1]:.0f}-{peer / own[0]:.0f})",
        ])  # fmt: skip
    head = ["rate", "steps", "budget", "multiplier", "ours, ms", "above", "dp_accounting, ms", "above", "ratio"]
    lines = ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows)]
    return _top(ratios, len(settings())) + "\n".join(lines) + "\n\n" + plans.section()


def _top(ratios: list[float], total: int) -> str:
    mean = math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))
    below = sum(ratio < WANTED_RATIO for ratio in ratios)
    summary = f"{len(ratios)} of {total} settings are measured. "
    if ratios:
        summary += f"The ratio is at least {min(ratios):.0f}, {mean:.0f} in the geometric mean, and below "
        summary += f"{WANTED_RATIO} at {below} settings."

    def listed(values: tuple[float, ...]) -> str:
        return ", ".join(f"{value:,}" if value >= 1 else f"{value:g}" for value in values)

    return _TOP.format(
        tolerance=TOLERANCE, runs=OWN_RUNS, rates=listed(RATES), steps=listed(STEPS), epsilons=listed(EPSILONS),
        deltas=listed(DELTAS), reference=REFERENCE_ERROR, grid=PEER_GRIDS[0], error=PEER_ERROR,
        patience=PATIENCE, summary=summary,
    )  # fmt: skip


if __name__ == "__main__":
    if "--measure" in sys.argv[1:]:
        measure()
    elif "--page" in sys.argv[1:]:
        PAGE.write_text(rendered(saved()), encoding="utf-8")
    else:
        print(rendered(saved()))
