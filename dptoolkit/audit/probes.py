"""Cheap checks for faults that do not show in the distribution of one output.

Each probe runs a mechanism a few times, on harmless data, and says in one sentence what it found. A mechanism is a
callable (dataset, rng) -> output, or a Plan with data (X, y). ``seed`` is that of the streams the probe hands out.

Privacy
-------
For test data only: a probe looks at outputs without a budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betaln, chdtr, chdtrc, xlog1py, xlogy

from dptoolkit._validate import invalid, whole
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.content import check_unchanged, fingerprint
from dptoolkit.audit.engine import flatten
from dptoolkit.audit.streams import Streams
from dptoolkit.solvers import bind
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

Mechanism = Callable[[Any, np.random.Generator], Any]
# The false-alarm probability of the one probe that is random, for the size of the noise.
_ALPHA = 1e-9
# Noise that is spread over fewer than this many steps of the output's grid hides little.
_FEW_STEPS = 8


@dataclass(frozen=True)
class Probe:
    """What a probe found: ``passed`` is False if something is wrong, ``finding`` says what."""

    name: str
    passed: bool
    finding: str

    def __str__(self) -> str:
        return f"{self.name}: {'passed' if self.passed else 'FAILED'}. {self.finding}"


def given_generator(mechanism: Any, data: Any, seed: int = 0) -> Probe:
    """All randomness comes from the Generator: equal states give equal outputs, different states different ones.

    Parameters
    ----------
    mechanism : Plan or callable
        What is probed: a plan, or any callable ``(dataset, rng) -> output``.
    data : object
        The dataset of the callable; ``(X, y)`` for a plan.
    seed : int, default 0
        The seed of the Generators.
    """
    run, streams = _runner(mechanism, data, "final"), Streams(seed, "probes")
    generator = streams.generator(0)
    before = _state(generator)
    first, draws = run(generator), _state(generator) != before
    second, others = run(streams.generator(0)), [run(streams.generator(i)) for i in (1, 2, 3)]
    name = "randomness from the given Generator"
    if not _same(first, second):
        return Probe(name, False, "Equal states of the Generator gave different outputs: it draws from elsewhere too, "
                                  "so runs cannot be repeated, and its source is not known.")  # fmt: skip
    if not draws:
        return Probe(name, False, "It never draws from the Generator: a seed of its own makes the noise a constant, "
                                  "which whoever knows the code subtracts.")  # fmt: skip
    if all(_same(first, other) for other in others):
        return Probe(name, False, "Four different Generators gave the same output: what it draws does not reach it.")
    return Probe(name, True, "Equal states gave equal outputs, different states different ones.")


def fresh_fits(fit: Callable[[], Any], name: str = "fresh noise in every fit") -> Probe:
    """Two calls of ``fit`` in a row, as a user makes them, do not repeat their noise.

    Parameters
    ----------
    fit : callable
        Makes one fit, without arguments, and returns its output.
    name : str, default "fresh noise in every fit"
        The name of the probe in its result.
    """
    if _same(flatten(fit()), flatten(fit())):
        return Probe(name, False, "Two fits gave the same output: the seed is used again, and the difference of two "
                                  "fits on different data has no noise at all.")  # fmt: skip
    return Probe(name, True, "Two fits gave different outputs.")


def fresh_steps(mechanism: Any, data: Any, scale: float | None = None, seed: int = 0) -> Probe:
    """Noise is drawn anew in every step.

    Parameters
    ----------
    mechanism : Plan or callable
        What is probed. The output of a callable ``(dataset, rng) -> output`` must be all its noisy queries, (steps,
        width), like the "releases" of a plan.
    data : object
        A dataset for which the query without noise is the same in all steps, for example all zero.
    scale : float or None, default None
        If given, the differences of consecutive steps must also have variance 2 scale^2 (chi-square test, error 1e-9).
    seed : int, default 0
        The seed of the Generator.
    """
    name = "fresh noise in every step"
    releases = _released(mechanism, data, seed)
    if len(releases) < 2:
        raise invalid("mechanism", f"{len(releases)} release(s)", "one with several steps")
    differences = np.diff(releases, axis=0)
    equal = np.flatnonzero((differences == 0).all(axis=1))
    if len(equal):
        return Probe(name, False, f"Steps {equal[0] + 1} and {equal[0] + 2} had the same noise: it cancels in the "
                                  "difference of their releases.")  # fmt: skip
    # Every second difference only, as these share no draw.
    parts = differences[::2].ravel()
    if scale is not None:
        ratio = float((parts**2).sum() / (2 * scale * scale))
        tail = min(float(chdtr(len(parts), ratio)), float(chdtrc(len(parts), ratio)))
        if tail < _ALPHA / 2:
            size = math.sqrt(ratio / len(parts))
            return Probe(name, False, f"Differences of steps are {size:.3g} times as large as fresh noise of the "
                                      "stated scale makes them.")  # fmt: skip
    return Probe(name, True, f"All {len(releases)} steps had noise of their own.")


def noise_everywhere(mechanism: Any, data: Any, runs: int = 64, seed: int = 0) -> Probe:
    """Every coordinate of the output varies.

    Parameters
    ----------
    mechanism : Plan or callable
        What is probed: a plan, or any callable ``(dataset, rng) -> output``.
    data : object
        A dataset that favours no coordinate, for example all zero. Then noise alone selects, and a coordinate that is
        zero in all runs gets no noise.
    runs : int, default 64
        Number of runs.
    seed : int, default 0
        The seed of the Generators.
    """
    runs = whole("runs", runs, low=2)
    run, streams = _runner(mechanism, data, "final"), Streams(seed, "probes")
    outputs = np.array([run(streams.generator(i)) for i in range(runs)])
    constants = np.flatnonzero((outputs == outputs[0]).all(axis=0))
    name = "noise on every coordinate"
    if len(constants):
        which = ", ".join(map(str, constants[:5])) + (", ..." if len(constants) > 5 else "")
        return Probe(name, False, f"Coordinates {which} of {outputs.shape[1]} were the same in all of {runs} runs: "
                                  "their values, or their absence, have no noise.")  # fmt: skip
    return Probe(name, True, f"All {outputs.shape[1]} coordinates varied in {runs} runs.")


def output_grid(mechanism: Any, pair: Any, runs: int = 64, seed: int = 0) -> Probe:
    """Outputs do not lie on a grid that names the dataset, and noise is not rounded away.

    The probe detects integer noise on a fractional query, and noise of about the spacing of floats. It does not detect
    the finer gaps that floating-point samplers leave (Mironov 2012).

    Parameters
    ----------
    mechanism : Plan or callable
        What is probed: a plan, or any callable ``(dataset, rng) -> output``.
    pair : tuple of object
        The two datasets on which the outputs are compared.
    runs : int, default 64
        Number of runs on each dataset.
    seed : int, default 0
        The seed of the Generators.
    """
    name, streams = "grid of the outputs", Streams(seed, "probes")
    worlds = []
    for world, data in enumerate(pair):
        run = _runner(mechanism, data, "final")
        worlds.append(np.array([run(streams.generator(world * runs + i)) for i in range(runs)]))
    for j in range(worlds[0].shape[1]):
        fault = _grid_fault([np.unique(world[:, j]) for world in worlds])
        if fault:
            return Probe(name, False, f"Coordinate {j} of the output: {fault}")
    return Probe(name, True, "The outputs of both datasets share their grid, and the noise spans many of its steps.")


def _grid_fault(values: list[Array]) -> str:
    """The fault, in words, of the distinct values that one coordinate takes on two datasets; "" if there is none."""
    if min(map(len, values)) == 1:
        is_disjoint = len(np.intersect1d(values[0], values[1])) == 0
        return "one dataset has one value only, and the other never gives it: the noise is rounded away." * is_disjoint
    steps = [_step(v) for v in values]
    if 0.0 in steps:
        return ""
    step = min(steps)
    rest = math.fmod(abs(float(values[0][0] - values[1][0])), step) / step
    if 1e-6 < rest < 1 - 1e-6:
        return f"each dataset has a grid of its own, of step {step:.6g}: one output names the dataset."
    spread = max(float(v[-1] - v[0]) for v in values)
    if step <= _spacing(values) and spread < _FEW_STEPS * step:
        return f"noise that spreads over {spread:.6g} is rounded to multiples of {step:.6g}: hardly any is left."
    return ""


def exact_composition(p: float, q: float, count: int, claim: Any, delta: float | None = None) -> Probe:
    """The claim against the exact privacy loss of ``count`` independent coins.

    They show heads with probability p on one dataset and q on the other. This is for accounting faults of a few per
    cent, which no affordable number of trials would show.

    Parameters
    ----------
    p : float
        Probability of heads on one dataset.
    q : float
        Probability of heads on the other dataset.
    count : int
        Number of coins.
    claim : Claim, Guarantee, Event or tuple of float
        What is claimed of all coins together.
    delta : float or None, default None
        The delta at which the epsilons are compared. None uses the claim's own delta.
    """
    goal = as_claim(claim)
    at = goal.reference_delta if delta is None else delta
    epsilon, claimed = coins_epsilon(p, q, count, at), goal.epsilon(at)
    text = f"exactly {epsilon:.4g} at delta {at:g} after {count:,} coins, claimed {claimed:.4g}."
    return Probe("exact composed loss", epsilon <= claimed, f"This pair has epsilon {text}")


def coins_epsilon(p: float, q: float, count: int, delta: float) -> float:
    """The smallest epsilon >= 0 at ``delta`` between Bin(count, p) and Bin(count, q), in either direction."""
    heads = np.arange(count + 1)
    log_choose = -betaln(count - heads + 1, heads + 1) - math.log(count + 1)
    logs = [log_choose + xlogy(heads, x) + xlog1py(count - heads, -x) for x in (p, q)]
    return max(_epsilon(logs[0], logs[1], delta), _epsilon(logs[1], logs[0], delta))


def _epsilon(first: Array, second: Array, delta: float) -> float:
    """Bisection on the hockey-stick divergence of two laws given by their logarithms."""

    def divergence(epsilon: float) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            gap = -np.expm1(np.minimum(epsilon + second - first, 0.0))
        return float((np.exp(first) * np.where(np.isneginf(first), 0.0, gap)).sum())

    low, high = 0.0, 1.0
    if divergence(0.0) <= delta:
        return 0.0
    while divergence(high) > delta:
        high *= 2
        if high > 1e6:
            return math.inf
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if divergence(middle) > delta else (low, middle)
    return low


# --- how mechanisms are run ------------------------------------------------------------------------------


def _runner(mechanism: Any, data: Any, what: str) -> Callable[[np.random.Generator], Array]:
    if not isinstance(mechanism, Plan):
        before = fingerprint(data)

        def checked(rng: np.random.Generator) -> Array:
            output = flatten(mechanism(data, rng))
            check_unchanged(data, before)
            return output

        return checked
    run = bind(mechanism, *data)
    if what == "final":
        return lambda rng: np.asarray(run(rng).weights, dtype=float)
    return lambda rng: np.asarray(run(rng, True).releases, dtype=float)


def _released(mechanism: Any, data: Any, seed: int) -> Array:
    generator = Streams(seed, "probes").generator(0)
    if isinstance(mechanism, Plan):
        releases = _runner(mechanism, data, "releases")(generator)
    else:
        releases = np.asarray(mechanism(data, generator), dtype=float)
    return releases.reshape(len(releases), -1) if releases.ndim else releases.reshape(1, 1)


def _state(generator: np.random.Generator) -> str:
    return repr(generator.bit_generator.state)


def _same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True))


def _step(values: Array) -> float:
    """The largest step of which all differences are whole multiples, by Euclid; 0 for continuous outputs."""
    gaps = np.diff(values).tolist()
    # Differences of sums are exact to a few units in the last place.
    step, tolerance = gaps[0], 64 * float(np.spacing(np.abs(values).max()))
    for gap in gaps[1:]:
        while gap > tolerance:
            step, gap = gap, math.fmod(step, gap)
            gap = 0.0 if step - gap <= tolerance else gap
    return step if step > 1e4 * tolerance else 0.0


def _spacing(values: list[Array]) -> float:
    """The distance of neighbouring floats where the values are, in single precision if all of them fit."""
    largest = np.float64(max(np.abs(v).max() for v in values))
    with np.errstate(over="ignore"):
        single = all(bool((v == v.astype(np.float32)).all()) for v in values)
    return float(np.spacing(largest.astype(np.float32) if single else largest))
