"""The floating-point attack: the bits of a release exclude data sets that cannot have led to them.

Noise that is computed in doubles as value + scale * draw does not reach every double. Multiplying by ``scale`` skips up
to half of all doubles, and the sum is rounded again, so that the doubles that can be reached depend on the value: on
the secret. An attacker who knows two neighbouring data sets computes both values, asks for every released number
whether it can be reached from each of them, and is CERTAIN as soon as one of them is excluded. No epsilon is too small
for that, as only the last bits matter. Mironov found it for Laplace noise (2012); Jin and others for Gaussian (2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, one_of, positive, whole
from dptoolkit.accounting.report import Printed, table
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.mechanisms.randomness import as_generator
from dptoolkit.solvers import bind
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

# Doubles on either side of an approximate solution that are tried. Where the outermost one still fits there may be
# more, and the number counts as reachable: an attacker who wants to be certain must not exclude too much.
_EACH_SIDE = 4
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class FloatingPointReport(Printed):
    """What the attacker claimed, with certainty, and how often that was right.

    ``right`` and ``wrong`` count releases for which exactly one data set was left; ``both`` those that both can have
    led to, about which the bits say nothing; ``neither`` those that none can, so that the attacker's model of the
    program is wrong.
    """

    trials: int
    right: int
    wrong: int
    both: int
    neither: int
    target: str

    @property
    def certain(self) -> float:
        """The share of releases whose data set the attacker named, rightly or wrongly."""
        return (self.right + self.wrong) / self.trials

    def __str__(self) -> str:
        rows = [
            ["one data set is left, and it is the right one", f"{self.right:,}"],
            ["one data set is left, and it is the wrong one", f"{self.wrong:,}"],
            ["both data sets can have led to it", f"{self.both:,}"],
            ["neither can: the attacker's model is wrong", f"{self.neither:,}"],
        ]
        head = f"Floating-point attack on {self.target}: certain in {self.certain:.1%} of {self.trials:,} releases"
        return f"{head}\n\n{table(['the released bits', 'releases'], rows)}"


def floating_point_attack(
    mechanism: Any,
    pair: Any,
    *,
    trials: int = 200,
    adversary: str = "step",
    exact: Callable[[Any], Any] | None = None,
    scale: float | None = None,
    grid: float | None = None,
    rng: Any = None,
) -> FloatingPointReport:
    """Tell two neighbouring data sets apart by the last bits of what is released.

    Parameters
    ----------
    mechanism : Plan or callable
        A plan of a solver that releases a noisy mean gradient, such as ``dp_ight``, or any function
        (data set, Generator) -> array of doubles.
    pair : Pair or tuple
        The two data sets, which the attacker knows. For a plan a data set is (X, y).
    trials : int, default 200
        Number of releases, each from one of the two data sets by the toss of a coin.
    adversary : str, default "step"
        For a plan: "step" sees the first noisy gradient, which every guarantee counts as released; "final" sees the
        weights of a fit with a single step.
    exact : callable or None, default None
        For a callable: data set -> the numbers to which it adds noise.
    scale : float or None, default None
        For a callable: its noise is ``scale`` times a double. For an array, one scale for every number.
    grid : float or None, default None
        For an attacker who knows that noise is a multiple of this power of two, instead of a product of doubles: what
        differs from the exact number by anything else cannot be reached.
    rng : None, int or numpy.random.Generator, default None
        Chooses the data sets and, for mechanisms that take one, the noise.

    Returns
    -------
    FloatingPointReport
        How often the attacker was certain, and how often rightly.

    Privacy
    -------
    For tests: it runs the mechanism on data that the caller knows. A report without a certain release does not prove
    that there is no leak; a report with many proves that the guarantee does not hold for the released doubles.
    """
    whole("trials", trials, low=1)
    one_of("adversary", adversary, ("step", "final"))
    if grid is not None and math.frexp(positive("grid", grid))[0] != 0.5:
        raise invalid("grid", grid, "a power of two")
    generator = as_generator(rng)
    first, second = pair if isinstance(pair, Pair) else tuple(pair)
    target: _PlanOutputs | _CallableOutputs
    if isinstance(mechanism, Plan):
        target = _PlanOutputs(mechanism, adversary, (first, second))
        # Who knows the plan knows the grid: releases of secure noise are compared as integers.
        grid = 1.0 if mechanism.secure is not None else grid
    else:
        target = _CallableOutputs(mechanism, exact, scale, (first, second))
    bits = generator.integers(0, 2, trials)
    releases = np.array([target.release(int(bit), generator) for bit in bits], dtype=float).reshape(trials, -1)
    with np.errstate(over="ignore", invalid="ignore"):
        possible = [_possible(releases, value, target, grid) for value in target.values]
    only = [possible[0] & ~possible[1], possible[1] & ~possible[0]]
    named = np.where(only[1], 1, np.where(only[0], 0, -1))
    neither = int((~possible[0] & ~possible[1]).sum())
    right, certain = int((named == bits).sum()), int((named >= 0).sum())
    return FloatingPointReport(trials, right, certain - right, trials - certain - neither, neither, target.name)


class _CallableOutputs:
    """A callable on two data sets, and what its attacker knows."""

    factor: float | None = None

    def __init__(self, mechanism: Any, exact: Any, scale: Any, datasets: tuple[Any, Any]) -> None:
        if not callable(mechanism):
            bound = "a Plan or a function (data set, Generator) -> doubles"
            raise invalid("mechanism", type(mechanism).__name__, bound)
        if exact is None or scale is None:
            repair = "Give exact=function of a data set and scale=number: an attacker knows the program."
            raise invalid("exact and scale", None, "given for a function", repair)
        self._mechanism, self._datasets, self.scale = mechanism, datasets, np.asarray(scale, dtype=float)
        self.values = [np.asarray(exact(data), dtype=float).ravel() for data in datasets]
        self.name = getattr(mechanism, "__name__", type(mechanism).__name__)

    def release(self, which: int, rng: np.random.Generator) -> Array:
        return np.asarray(self._mechanism(self._datasets[which], rng), dtype=float).ravel()


class _PlanOutputs:
    """A solver on two data sets; the exact numbers come from the same code without noise."""

    def __init__(self, plan: Plan, adversary: str, datasets: tuple[Any, Any]) -> None:
        steps = getattr(plan.settings, "steps", None)
        if adversary == "final" and steps != 1:
            raise invalid("adversary", adversary, f"'step' for {plan.solver} with steps={steps}",
                          "The last weights of several steps are not a sum of one number and one noise.")  # fmt: skip
        self._runs, self._final = [_bound(plan, data) for data in datasets], adversary == "final"
        first = plan.settings.first_released(plan)
        others = [0.0 if k == first else release.scale for k, release in enumerate(plan.releases)]
        quiet = [_bound(plan.with_noise(*others), data) for data in datasets]
        traces = [run(np.random.default_rng(0), True) for run in quiet]
        bound = "a plan whose first release is a fixed query plus noise, such as dp_ight's"
        scales = traces[0].history.get("noise_scale")
        if traces[0].releases is None or scales is None or (first == 0 and np.ndim(scales) != 1):
            raise invalid("mechanism", plan.solver, bound)
        self.values = [np.asarray(trace.releases[0], dtype=float).ravel() for trace in traces]
        # What other noise moves is no number that the attacker can compute, such as the minimiser of a noisy objective.
        again = quiet[0](np.random.default_rng(1), True).releases
        if again is None or not np.array_equal(np.ravel(again[0]), self.values[0]):
            repair = "Give a function instead, with exact= and scale=, that fixes the other noise."
            raise invalid("mechanism", plan.solver, bound, repair)
        self._secure = None if plan.secure is None else plan.secure.parts[first]
        if self._secure is not None:
            if self._final:
                raise invalid("adversary", adversary, "'step' for secure noise", "Weights follow from the first step.")
            self.values = [self._secure.integers(value) for value in self.values]
        noisy = self._runs[0](np.random.default_rng(0), True)
        scale = noisy.history["noise_scale"][0] if first == 0 else plan.releases[first].scale
        self.scale = np.asarray(scale, dtype=float)
        self.factor = -float(plan.settings.step_size) if self._final else None
        seen = "noisy gradient" if first == 0 else plan.releases[first].query
        self.name = f"{plan.solver} ({'final weights' if self._final else f'first {seen}'})"

    def release(self, which: int, rng: np.random.Generator) -> Array:
        trace = self._runs[which](rng, True)
        if self._final:
            return np.asarray(trace.weights, dtype=float).ravel()
        assert trace.releases is not None
        release = np.asarray(trace.releases[0], dtype=float).ravel()
        return release if self._secure is None else np.asarray(self._secure.integers(release))


def _bound(plan: Plan, data: Any) -> Any:
    if isinstance(data, Counted):
        return bind(plan, data.X, data.y, data.counts)
    return bind(plan, *data)


def _possible(releases: Array, value: Array, target: Any, grid: float | None) -> Mask:
    """Which releases, one per row, can have come from ``value``, all their numbers together."""
    if target.factor is None:
        return np.asarray(reachable(releases, value, target.scale, grid).all(axis=1))
    # A threshold leaves zeros, which say nothing here; other numbers are factor * sum, rounded.
    fits: Mask = releases == 0
    for sums, is_last in _neighbours(releases / target.factor):
        solves = sums * target.factor == releases
        fits |= solves & (reachable(sums, value, target.scale, grid) | is_last)
    return np.asarray(fits.all(axis=1))


def reachable(sums: Array, value: Array, scale: Array, grid: float | None = None) -> Mask:
    """Which ``sums`` can be value + scale * draw, computed in doubles; with ``grid``, value + a multiple of it.

    The noise z must be a double with fl(value + z) = sum. Rounding is monotone, so these z lie in one interval around
    sum - value, of which the nearest double is tried first and then its neighbours. Each z must itself be fl(scale * x)
    for a double x. If it is for any, it is for one of those next to z / scale: x may err by half a unit of z over
    scale, so where doubles are at least that dense the nearest one does it, and where they are not there is at most one
    on either side.

    Privacy
    -------
    For tests: it looks at a release and at what the caller knows of the data.
    """
    if grid is not None:
        return _on_grid(sums, value, grid)
    if (scale == 0).any():
        return np.asarray(sums == value)
    found = np.zeros(sums.shape, dtype=bool)
    for z, is_last in _neighbours(sums - value):
        fits = value + z == sums
        product = np.zeros(sums.shape, dtype=bool)
        for x, _ in _neighbours(z / scale, each_side=2):
            product |= scale * x == z
        found |= fits & (product | is_last)
    return found


def _on_grid(sums: Array, value: Array, grid: float) -> Mask:
    """Whether sum - value is a multiple of ``grid``, exactly: the rounding error of the difference is computed too."""
    difference = sums - value
    part = sums - difference
    error = (sums - (difference + part)) + (part - value)
    return np.asarray((np.fmod(difference, grid) + np.fmod(error, grid)) % grid == 0)


def _neighbours(centre: Array, each_side: int = _EACH_SIDE) -> list[tuple[Array, bool]]:
    """(doubles, whether they are the outermost) for the doubles next to ``centre``, itself included."""
    found, below, above = [(centre, False)], centre, centre
    for k in range(1, each_side + 1):
        below, above = np.nextafter(below, -np.inf), np.nextafter(above, np.inf)
        found += [(below, k == each_side), (above, k == each_side)]
    return found
