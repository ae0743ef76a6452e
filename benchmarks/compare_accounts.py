"""Epsilons of random events by two versions of the code: what a change of the accounting gained or lost.

    PYTHONPATH=OTHER/TREE python benchmarks/compare_accounts.py --write before.json --count 10000
    python -m benchmarks.compare_accounts --write after.json --count 10000
    python -m benchmarks.compare_accounts --compare before.json after.json
    python -m benchmarks.compare_accounts --check --count 10000 --seconds 480
    python -m benchmarks.compare_accounts --noise

The events are drawn from seeds, so that both versions see the same ones: steps on batches, by Poisson sampling and
without replacement, random rounds, selections, other noise, and compositions of these. A lower bound that is certified
by a pair of neighbours is computed too, where that is cheap. ``--compare`` says by how much the second version is above
the first, at most, and whether any epsilon is below a lower bound. ``--check`` needs one version only: an epsilon must
not be above the one without blocks of steps, nor below what known neighbours attain. ``--noise`` prints the calibrated
noise of ``dp_sgd_ht`` without replacement, by the joined pair and in blocks.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from dptoolkit.accounting import (
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    Geometric,
    Laplace,
    RandomRounds,
    Repeated,
    Subsampled,
    account,
    calibrate,
)
from dptoolkit.accounting.pld import lower_epsilon
from dptoolkit.accounting.pld.blocks import has_blocks
from dptoolkit.accounting.pld.curve import Composition
from dptoolkit.accounting.pld.trees import directions, dominating
from dptoolkit.errors import UnsupportedEvent

# The most that an epsilon may be above that of another version, relatively, and how far below a lower bound rounding
# may put it.
ALLOWED, ROUNDING = 2e-4, 1e-9
KINDS = ("poisson", "without-replacement", "rounds", "selections", "laplace", "gaussian", "two kinds", "mixed")


def drawn(seed: int) -> tuple[str, Event, float]:
    """(kind, event, delta) of a seed."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    return kind, _EVENTS[kind](rng), float(10 ** rng.uniform(-9, -2))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def _steps(rng: np.random.Generator, scheme: str, most: float = 3000.0) -> Event:
    one = Subsampled(Gaussian(_log_uniform(rng, 0.5, 10.0)), scheme, _log_uniform(rng, 1e-3, 0.7))
    return Repeated(one, int(_log_uniform(rng, 1, most)))


def _selections(rng: np.random.Generator) -> Event:
    return Repeated(ExponentialMechanism(_log_uniform(rng, 0.01, 1.0)), int(_log_uniform(rng, 1, 300)))


def _laplace(rng: np.random.Generator) -> Event:
    one = Laplace(_log_uniform(rng, 0.5, 30.0))
    sampled: Event = Subsampled(one, "poisson", _log_uniform(rng, 1e-2, 0.7)) if rng.random() < 0.5 else one
    return Repeated(sampled, int(_log_uniform(rng, 1, 300)))


def _rounds(rng: np.random.Generator) -> Event:
    scheme = "poisson" if rng.random() < 0.7 else "without-replacement"
    one = Subsampled(Gaussian(_log_uniform(rng, 0.7, 10.0)), scheme, _log_uniform(rng, 5e-3, 0.5))
    return Repeated(RandomRounds(one, Geometric(float(rng.uniform(0.5, 0.95)))), int(_log_uniform(rng, 1, 30)))


def _gaussian(rng: np.random.Generator) -> Event:
    return Repeated(Gaussian(_log_uniform(rng, 0.3, 30.0)), int(_log_uniform(rng, 1, 3000)))


_EVENTS = {
    "poisson": lambda rng: _steps(rng, "poisson"),
    "without-replacement": lambda rng: _steps(rng, "without-replacement", 600.0),
    "rounds": _rounds,
    "selections": _selections,
    "laplace": _laplace,
    "gaussian": _gaussian,
    "two kinds": lambda rng: Composed(_steps(rng, "poisson"), _steps(rng, "poisson")),
    "mixed": lambda rng: Composed(_selections(rng), _gaussian(rng), _steps(rng, "poisson")),
}


def write(path: Path, count: int, seconds: float) -> None:
    """Epsilon and, where it is cheap, its lower bound of every event, until the time is up."""
    end, rows = time.process_time() + seconds, []
    for seed in range(count):
        kind, event, delta = drawn(seed)
        start = time.process_time()
        epsilon, lower = account(event).epsilon(delta), None
        if kind in ("poisson", "laplace", "gaussian", "two kinds"):
            lower = lower_epsilon(event, delta)
        rows.append({"kind": kind, "epsilon": epsilon, "lower": lower, "seconds": time.process_time() - start})
        if time.process_time() > end:
            break
        if seed % 200 == 0:
            path.write_text(json.dumps(rows), encoding="utf-8")
    path.write_text(json.dumps(rows), encoding="utf-8")


class Checked(NamedTuple):
    """Epsilon of an event between its lower bound and the epsilon without blocks; None where there is no such bound."""

    kind: str
    epsilon: float
    lower: float | None
    joined: float | None

    @property
    def fault(self) -> str | None:
        """What is wrong; None if nothing is."""
        if self.joined is not None and not self.epsilon <= self.joined * (1 + ALLOWED):
            return f"epsilon {self.epsilon} is above {self.joined}, the one without blocks"
        if self.lower is not None and self.epsilon < self.lower * (1 - ROUNDING):
            return f"epsilon {self.epsilon} is below {self.lower}, which neighbours attain"
        return None


def checked(seed: int) -> Checked:
    """The event of a seed with both of its bounds."""
    kind, event, delta = drawn(seed)
    trees = directions(event, dominating)
    joined = None
    if len(trees) == 1 and any(map(has_blocks, trees[0])):
        joined = Composition(trees[0], delta).epsilon(delta).value
    try:
        lower = lower_epsilon(event, delta)
    except UnsupportedEvent:
        lower = None
    return Checked(kind, account(event).epsilon(delta), lower, joined)


def check(first: int, count: int, seconds: float) -> str:
    """One line per kind on the events of ``count`` seeds, or of as many as the time allows, and what is wrong."""
    end, found = time.process_time() + seconds, dict[int, Checked]()
    for seed in range(first, first + count):
        found[seed] = checked(seed)
        if time.process_time() > end:
            break
    lines = [_summary(kind, [row for row in found.values() if row.kind == kind]) for kind in KINDS]
    wrong = [f"seed {seed} ({row.kind}): {row.fault}" for seed, row in found.items() if row.fault]
    return "\n".join([*lines, f"{len(found)} events, out of bounds: {wrong or 'none'}"])


def _summary(kind: str, rows: list[Checked]) -> str:
    lowers = [r.epsilon / r.lower for r in rows if r.lower and math.isfinite(r.lower)]
    joined = [r.epsilon / r.joined - 1 for r in rows if r.joined and math.isfinite(r.joined)]
    text = f"{kind:20s} {len(rows):5d} events"
    if lowers:
        text += f", {len(lowers)} lower bounds: epsilon is {min(lowers):.4f} times that or more"
    if joined:
        text += f", {len(joined)} without blocks: change {min(joined):+.1e} to {max(joined):+.1e}"
    return text


def compare(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    """One line per kind, and the seeds that are out of bounds."""
    lines, wrong = [], []
    for kind in KINDS:
        both = [(i, a, b) for i, (a, b) in enumerate(zip(before, after, strict=False)) if a["kind"] == kind]
        changes = [_change(a["epsilon"], b["epsilon"]) for _, a, b in both]
        lowers = [(i, b) for i, _, b in both if b["lower"] is not None]
        wrong += [i for (i, _, _), change in zip(both, changes, strict=True) if change > ALLOWED]
        wrong += [i for i, b in lowers if b["epsilon"] < b["lower"] * (1 - ROUNDING)]
        seconds = [sum(row["seconds"] for _, *rows in both for row in rows[k : k + 1]) for k in (0, 1)]
        spread = f"{min(changes, default=0):+.1e} to {max(changes, default=0):+.1e}"
        lines.append(
            f"{kind:20s} {len(both):5d} events: change {spread}, {len(lowers)} lower bounds, "
            f"CPU {seconds[0]:.0f} s -> {seconds[1]:.0f} s"
        )
    return "\n".join([*lines, f"out of bounds: {sorted(set(wrong)) or 'none'}"])


def _change(before: float, after: float) -> float:
    if before == after:
        return 0.0
    return after / before - 1 if 0 < before < math.inf else math.inf


# Of ``--noise``: the records of a data set, the batch size, the steps, and the budgets.
_PLAN, _BUDGETS = (20_242, 256, 1581), ((1.0, 1e-5), (8.0, 1e-6))


def noises() -> str:
    """Noise multipliers at the same budget, without blocks and with them, one line per budget."""
    records, batch, steps = _PLAN

    def event(noise: float) -> Event:
        return Repeated(Subsampled(Gaussian(noise), "without-replacement", batch / records), steps)

    lines = []
    for epsilon, delta in _BUDGETS:
        blocks = calibrate(event, epsilon, delta)

        def excess(log_noise: float, epsilon: float = epsilon, delta: float = delta) -> float:
            (tree,) = directions(event(math.exp(log_noise)), dominating)
            return Composition(tree, delta).epsilon(delta).value / epsilon - 1

        low = math.log(blocks)
        joined = math.exp(optimize.brentq(excess, low - 0.1, low + 0.5, xtol=1e-6))
        lines.append(
            f"epsilon {epsilon:g}, delta {delta:g}: {joined:.4f} joined, {blocks:.4f} in blocks, "
            f"{blocks / joined - 1:+.1%}"
        )
    return "\n".join(lines)


def main() -> None:
    """Write or compare, by the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true", help="compare with the bounds of this version")
    parser.add_argument("--noise", action="store_true", help="noise of a plan without blocks and with them")
    parser.add_argument("--first", type=int, default=0, help="the first seed of --check")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="largest CPU time")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    options = parser.parse_args()
    if options.write:
        write(options.write, options.count, options.seconds)
    if options.check:
        print(check(options.first, options.count, options.seconds))
    if options.noise:
        print(noises())
    if options.compare:
        print(compare(*(json.loads(path.read_text(encoding="utf-8")) for path in options.compare)))


if __name__ == "__main__":
    main()
