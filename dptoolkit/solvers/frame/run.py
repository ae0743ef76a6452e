"""What a solver with its plan and data in place can do: one fit, many at once, and what each of them shows."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import whole
from dptoolkit.data import Rows
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.types import Array


class Trace(NamedTuple):
    """One fit of a private solver: what it returns and, if asked for, everything it released.

    ``weights`` are all weights, an intercept's last. ``history`` holds the public facts of the fit. ``releases`` is
    what the accountant charges, in order, one row per step: a noisy gradient, or the number of a chosen vertex.
    ``iterates`` are the weights after every step. The last two are None unless the run was asked to keep them.
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


def _nothing(i: int) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Trials:
    """Many fits, as arrays whose first axis is the fit; None for what was not asked for or is not kept.

    ``history(i)`` makes the public facts of fit i, when somebody asks for them: an audit makes a hundred thousand fits
    and looks at none. ``counts`` are the inner steps of every epoch of a variance-reduced run; its releases are the
    snapshot gradients. Where fits differ in length, the shorter ones end with rows of NaN.
    """

    weights: Array
    releases: Array | None = None
    iterates: Array | None = None
    counts: NDArray[np.int64] | None = None
    history: Callable[[int], dict[str, Any]] = field(default=_nothing, kw_only=True)

    def one(self, i: int) -> Trace:
        """Fit i."""
        releases, iterates = (None if kept is None else kept[i] for kept in (self.releases, self.iterates))
        return Trace(self.weights[i], self.history(i), releases, iterates)


class Run(ABC):
    """A private solver with its plan and its bounded data in place.

    A run defines ``fits``. Everything else follows from it, and is overridden where a solver can do more: ``one`` and
    ``fit`` where a single fit has code of its own, ``shared`` and ``fit_block`` where fits of several plans share
    passes over the data, ``trials`` where one compiled call plays an audit's game. What is overridden gives the same
    numbers, bit for bit, so that audits attack what users run.

    Privacy
    -------
    Every fit spends the plan's event. No run charges a ledger, and no fit's weights or noise enter another's.
    """

    # About how many numbers one fit holds in memory, by which an audit decides how many it makes at once.
    size: int = 2**14

    @abstractmethod
    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """As many fits as there are streams, each from a stream of its own; ``trace`` keeps what they release."""

    def one(self, rng: np.random.Generator, trace: bool) -> Trace:
        """One fit; by default the case of one of ``fits``. Override it where a single fit is faster by other code."""
        return self.fits(Generators(rng), trace).one(0)

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit with, if asked for, everything it released."""
        return self.one(rng, trace)

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history), with (step, support, values) of every ``every``-th iterate in history["iterates"]."""
        return self.one(rng, every > 0).fit(every)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """Facts about the fit that are computed from the data; NOT private."""
        return {}

    # --- what some runs can do ------------------------------------------------------------------------

    def at_once(self, trace: bool) -> bool:
        """Whether ``fits`` makes its fits together; if not, it makes one after another, and a caller may as well."""
        return True

    @property
    def shared(self) -> Any:
        """What ``fit_block`` reads: runs of one class on the same object form a block. None if it is quicker alone."""
        return None

    def fit_block(
        self, runs: Sequence[Any], rngs: Sequence[np.random.Generator], every: int = 0
    ) -> list[tuple[Array, dict[str, Any]]]:
        """What ``fit`` of each of ``runs`` returns, with the stream of the same place in ``rngs``."""
        return [run.fit(rng, every) for run, rng in zip(runs, rngs, strict=True)]

    def trials(
        self, other: Any, rng: np.random.Generator, place: Any, first: int, bits: NDArray[Any], trace: bool
    ) -> Trials | None:
        """Trials first, first + 1, ... on these data (bit 1) or the other's, each from its own place of the stream.

        ``place`` is the memory of ``rng`` (audit.streams.place). None where no compiled call can play them.
        """
        return None


def one_after_another(run: Run, streams: Generators, trace: bool) -> Trials:
    """The ``fits`` of a run that makes them one at a time, by its own ``one``."""
    traces = [streams.of(i, functools.partial(run.one, trace=trace)) for i in range(len(streams))]
    releases, iterates = _stacked([one.releases for one in traces]), _stacked([one.iterates for one in traces])
    return Trials(np.array([one.weights for one in traces]), releases, iterates, history=lambda i: traces[i].history)


def _stacked(parts: Sequence[Array | None]) -> Array | None:
    """The arrays as one, with an axis in front; shorter ones end with NaN. None if there are none."""
    arrays = [part for part in parts if part is not None]
    if not arrays:
        return None
    longest = max(len(part) for part in arrays)
    if all(len(part) == longest for part in arrays):
        return np.array(arrays)
    out = np.full((len(arrays), longest, *arrays[0].shape[1:]), np.nan)
    for row, part in zip(out, arrays, strict=True):
        row[: len(part)] = part
    return out


def group_equal(keys: Sequence[Hashable]) -> list[list[int]]:
    """The places of equal keys, grouped: fits with equal keys depend on the same data and can be made together."""
    places: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        places.setdefault(key, []).append(i)
    return list(places.values())


def restore_order(parts: Sequence[tuple[Sequence[int] | NDArray[np.intp], Trials]]) -> Trials:
    """The fits of several parts, each with the places of its fits, as one, in the order of the places."""
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    owners = [(fits, k) for places, fits in parts for k in range(len(places))]

    def together(name: str) -> Any:
        arrays = [getattr(fits, name) for _, fits in parts]
        return None if arrays[0] is None else np.concatenate(arrays)[order]

    def history(i: int) -> dict[str, Any]:
        fits, k = owners[order[i]]
        return fits.history(k)

    weights, *rest = map(together, ("weights", "releases", "iterates", "counts"))
    return Trials(weights, *rest, history=history)


def group_fits(keys: Sequence[Hashable], rng: Generators, make: Callable[[list[int], Generators], Trials]) -> Trials:
    """The fits whose keys are equal made together, by ``make`` from their places and their streams; all in order."""
    parts = [(places, rng.among(places, functools.partial(make, places))) for places in group_equal(keys)]
    return restore_order(parts)


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
