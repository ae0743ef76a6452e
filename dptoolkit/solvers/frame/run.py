"""What a solver with its plan and data in place can do: one fit, many at once, and what each of them shows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import whole
from dptoolkit.data import Rows
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.types import Array


class Trace(NamedTuple):
    """One run of a private solver on prepared data: what it returns and, if asked for, everything it released.

    ``weights`` are all weights, an intercept's last. ``releases`` is what the accountant charges, in order, one row a
    step: a noisy gradient, or the number of a chosen vertex. ``iterates`` are the weights after every step. Both are
    None unless the run was asked to keep them.
    """

    weights: Array
    history: dict[str, Any]
    releases: Array | None = None
    iterates: Array | None = None

    def fit(self, every: int) -> tuple[Array, dict[str, Any]]:
        """(weights, history), with every ``every``-th iterate and the last in the history; none for 0."""
        if every == 0 or self.iterates is None:
            return self.weights, self.history
        return self.weights, self.history | {"iterates": sparse_iterates(self.iterates, every)}


def sparse_iterates(iterates: Array, every: int) -> list[tuple[int, NDArray[np.intp], Array]]:
    """(step, support, values) of every ``every``-th iterate and of the last."""
    steps = sorted({*range(every, len(iterates) + 1, every), len(iterates)})
    supports = [np.flatnonzero(iterates[t - 1]) for t in steps]
    return [(t, support, iterates[t - 1][support]) for t, support in zip(steps, supports, strict=True)]


class Trials(NamedTuple):
    """Many runs at once, as arrays whose first axis is the trial; None for what was not asked for or is not kept.

    ``counts`` are the inner steps of every epoch of a variance-reduced run; its releases are the snapshot gradients.
    """

    weights: Array
    releases: Array | None = None
    iterates: Array | None = None
    counts: NDArray[np.int64] | None = None


class ManyRuns(Protocol):
    """A run that can make many fits at once; a call makes one by the same code, so audits attack what users run.

    ``size`` is about how many numbers one fit holds in memory.
    """

    size: int

    def fits(self, rng: Generators, trace: bool = False) -> Trials:
        """As many fits as ``rng`` has parts, each with the numbers of its own part."""


def group_equal(keys: Sequence[Hashable]) -> list[list[int]]:
    """The places of equal keys, grouped: fits with equal keys depend on the same data and can be made together."""
    places: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        places.setdefault(key, []).append(i)
    return list(places.values())


def restore_order(parts: Sequence[tuple[Sequence[int] | NDArray[np.intp], Trials]]) -> Trials:
    """The fits of several parts, each with the places of its fits, as one, in the order of the places."""
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    fields: Any = zip(*(fits for _, fits in parts), strict=True)
    arrays: list[Any] = [None if field[0] is None else np.concatenate(field)[order] for field in fields]
    return Trials(*arrays)


def group_fits(
    keys: Sequence[Hashable], rng: Generators, make: Callable[[list[int], Generators], Trials]
) -> Trials:
    """The fits whose keys are equal made together, by ``make`` from their places and their streams; all in order."""
    parts = [(places, rng.among(places, functools.partial(make, places))) for places in group_equal(keys)]
    return restore_order(parts)


class Run(Protocol):
    """A private solver with its plan and its bounded data in place: a call runs the iteration of one fit."""

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit with everything it released, for audits."""

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history), with (step, support, values) of every ``every``-th iterate in history["iterates"]."""

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """Facts about the fit that are computed from the data; NOT private."""


def written_out(rows: Rows, y: Array, counts: NDArray[np.int64] | None) -> tuple[Rows, Array]:
    """The rows and labels with every record repeated as often as it occurs."""
    if counts is None:
        return rows, y
    which = np.repeat(np.arange(len(counts)), counts)
    return rows.take(which), y[which]


def trace_interval(trace: Any) -> int:
    """The number of steps between two iterates that are kept; 0 if none are."""
    if isinstance(trace, (bool, np.bool_)):
        return int(trace)
    return whole("trace", trace, low=1, repair="Or True for every iterate, False for none.")


@runtime_checkable
class BlockRun(Protocol):
    """A run that can share passes over the data with others."""

    @property
    def shared(self) -> Any:
        """What it reads; runs on the same object can be fitted together. None if it is quicker alone."""

    def fit_block(
        self, runs: Any, rngs: Sequence[np.random.Generator], every: int = 0
    ) -> list[tuple[Array, dict[str, Any]]]:
        """What ``fit`` of each of ``runs`` returns, with the stream of the same place in ``rngs``."""
