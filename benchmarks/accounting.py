"""Accounting against dp_accounting: the same question, both answers, both times.

python -m benchmarks.accounting
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from benchmarks.measure import best_time, in_fresh_process, seconds
from dptoolkit.accounting import Event, ExponentialMechanism, Gaussian, Repeated, Subsampled, account, calibrate
from dptoolkit.accounting.report import number, table

RATE, STEPS, DELTA = 0.01, 1000, 1e-5
EXPECTED_MULTIPLIER = 1.4146
# The target for the ratio of calibration times: at least this.
WANTED_RATIO = 20
PEER_GRID = 1e-4


def main() -> None:
    """Print every table."""
    for title, make in TABLES:
        print(f"\n{title}\n\n{make()}", flush=True)


def _poisson(noise: float) -> Event:
    return Repeated(Subsampled(Gaussian(noise), "poisson", RATE), STEPS)


_CALLS = itertools.count(1)


def _fresh_epsilon(event: Event, delta: float = DELTA) -> float:
    """Epsilon, computed without cached answers."""
    return account(event).epsilon(_another(delta))


def _fresh_calibration(make: Callable[[float], Event], epsilon: float) -> float:
    return calibrate(make, epsilon, _another(DELTA))


def _another(delta: float) -> float:
    """The delta with other last digits, so that no cached answer is used."""
    return delta * (1 - 1e-12 * next(_CALLS))


# --- against dp_accounting --------------------------------------------------------------------------


def _peer_event(noise: float) -> Any:
    import dp_accounting as peer

    step = peer.PoissonSampledDpEvent(RATE, peer.GaussianDpEvent(noise))
    return peer.SelfComposedDpEvent(step, STEPS)


def _peer_accountant() -> Any:
    import dp_accounting as peer

    return peer.pld.PLDAccountant(value_discretization_interval=PEER_GRID)


def _peer_calibration() -> float:
    import dp_accounting as peer

    # The same relative tolerance as ours, 1e-5.
    return float(peer.calibrate_dp_mechanism(_peer_accountant, _peer_event, 1.0, DELTA, tol=1e-5 * EXPECTED_MULTIPLIER))


def _peer_epsilon(noise: float) -> float:
    return float(_peer_accountant().compose(_peer_event(noise)).get_epsilon(DELTA))


def calibration() -> str:
    """The noise for (1, 1e-5) over 1000 Poisson steps."""
    ours, our_time = best_time(lambda: _fresh_calibration(_poisson, 1.0), 5)
    theirs, their_time = best_time(_peer_calibration, 2)
    ratio = their_time / our_time
    return "\n".join([
        _versus("noise multiplier", ours, our_time, theirs, their_time),
        f"ratio {ratio:.0f}x, wanted at least {WANTED_RATIO}x: {_verdict(ratio >= WANTED_RATIO)}",
        *(f"{who} within 0.1 % of {EXPECTED_MULTIPLIER}: {_verdict(abs(z / EXPECTED_MULTIPLIER - 1) <= 1e-3)}"
          for who, z in (("dptoolkit", ours), ("dp_accounting", theirs))),
    ])  # fmt: skip


def single_epsilon() -> str:
    """One epsilon of the same event."""
    ours, our_time = best_time(lambda: _fresh_epsilon(_poisson(1.5)), 10)
    theirs, their_time = best_time(lambda: _peer_epsilon(1.5), 3)
    return _versus("epsilon", ours, our_time, theirs, their_time) + f"\nratio {their_time / our_time:.0f}x"


def _versus(what: str, ours: float, our_time: float, theirs: float, their_time: float) -> str:
    peer = f"dp_accounting, PLD grid {PEER_GRID:g}"
    rows = [["dptoolkit", f"{ours:.6f}", seconds(our_time)], [peer, f"{theirs:.6f}", seconds(their_time)]]
    return table(["", what, "time"], rows)


def _verdict(holds: bool) -> str:
    return "yes" if holds else "NO"


# --- alone -------------------------------------------------------------------------------------------


def without_replacement() -> str:
    """Noise for n = 20242, b = 256, 20 epochs: dp_accounting has no tight bound to compare with."""
    n, batch, epochs = 20_242, 256, 20
    steps = epochs * (n // batch)

    def make(noise: float) -> Event:
        return Repeated(Subsampled(Gaussian(noise), "without-replacement", batch / n), steps)

    rows = []
    for epsilon in (2.0, 4.0, 8.0):
        noise, time_taken = best_time(lambda epsilon=epsilon: _fresh_calibration(make, epsilon), 3)  # type: ignore[misc]
        bounds = account(make(noise)).bounds(DELTA)
        rows.append([f"{epsilon:g}", f"{noise:.5f}", number(bounds.lower), number(bounds.upper), seconds(time_taken)])
    return table(["target epsilon", "noise multiplier", "lower", "upper", "time"], rows)


CORNERS = {
    "delta 1e-18": "account(Repeated(Subsampled(Gaussian(1.5), 'poisson', 0.01), 1000)).epsilon(1e-18)",
    "count 10^7, Poisson": "account(Repeated(Subsampled(Gaussian(20.0), 'poisson', 0.001), 10**7)).epsilon(1e-5)",
    "count 10^7, without replacement":
        "account(Repeated(Subsampled(Gaussian(20.0), 'without-replacement', 0.001), 10**7)).epsilon(1e-5)",
    "count 10^7, selections": "account(Repeated(ExponentialMechanism(0.001), 10**7)).epsilon(1e-5)",
    "epsilon 1e3, Poisson": "account(Repeated(Subsampled(Gaussian(0.5), 'poisson', 0.5), 1000)).epsilon(1e-5)",
    "epsilon 1e3, selections": "account(Repeated(ExponentialMechanism(1.0), 6000)).epsilon(1e-5)",
    "random rounds": "account(Repeated(RandomRounds(Gaussian(20.0), Geometric(0.99)), 10)).epsilon(1e-5)",
}  # fmt: skip
_CORNER_CODE = r"""
import re, time
from pathlib import Path
from dptoolkit.accounting import *

def peak():
    # Not resource.getrusage: its peak starts at that of the parent process.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024

before, start = peak(), time.perf_counter()
value = {expression}
print(value, time.perf_counter() - start, peak() - before)
"""


def corners() -> str:
    """Time and peak memory of extreme questions, each in a process of its own; the memory is read from Linux."""
    rows = []
    for name, expression in CORNERS.items():
        value, time_taken, memory = map(float, in_fresh_process(_CORNER_CODE.format(expression=expression)))
        rows.append([name, number(value), seconds(time_taken), f"{memory:.0f} MB"])
    return table(["case", "epsilon", "time", "memory above the imports"], rows)


def selections() -> str:
    """Epsilon of many selections, where the tightest method changes with the count."""
    rows = []
    for count in (10, 100, 1_000, 10_000):
        event = Repeated(ExponentialMechanism(0.1), count)
        epsilon, time_taken = best_time(lambda event=event: _fresh_epsilon(event), 3)  # type: ignore[misc]
        rows.append([f"{count:,}", number(epsilon), account(event).method, seconds(time_taken)])
    return table(["selections at epsilon 0.1", "epsilon", "method", "time"], rows)


TABLES = (
    (f"Calibration of {STEPS} Poisson steps at rate {RATE:g} to (1, {DELTA:g})", calibration),
    ("Epsilon of the same steps at noise multiplier 1.5", single_epsilon),
    ("Calibration without replacement, n = 20242, b = 256, 20 epochs, delta 1e-5", without_replacement),
    ("Selections", selections),
    ("Corner cases", corners),
)

if __name__ == "__main__":
    main()
