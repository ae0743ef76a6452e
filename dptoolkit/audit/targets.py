"""Plans as targets of an audit: the solver runs many times on one of two datasets, and gives rows of numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, one_of
from dptoolkit.audit import layout, streams
from dptoolkit.audit.engine import Target
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.solvers import bind
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.run import Run, Trace, Trials, restore_order
from dptoolkit.types import Array

ADVERSARIES = ("final", "support", "iterates", "gradients", "releases", "step")
# Numbers that the fits which are made at once may keep together, 32 MB.
_LARGEST = 2**22


class PlanTarget(Target):
    """The solver of a plan on the two datasets of a pair, as an adversary sees it.

    adversary: "final", the weights; "support", which of them are not zero; "iterates", the weights after every step;
    "gradients" or "releases", everything that the accountant charges for; "step", the first such release alone.
    """

    # Compiled code and operations on large arrays release the interpreter's lock.
    threads = True

    def __init__(self, plan: Plan, pair: Pair, adversary: str = "final") -> None:
        one_of("adversary", adversary, ADVERSARIES)
        if adversary in ("gradients", "releases", "step") and plan.settings.has_lazy_steps:
            repair = "Its lazy steps never form a whole noisy gradient; the iterates are what it releases."
            raise invalid("adversary", adversary, f"'final', 'support' or 'iterates' for {plan.solver}", repair)
        if adversary in ("iterates", "gradients", "releases") and not plan.settings.is_sure_of_steps(plan):
            repair = "Runs differ in the number of steps, which follows a noisy eigenvalue."
            raise invalid("adversary", adversary, "'final', 'support' or 'step' for this plan", repair)
        self.plan, self.pair, self.adversary = plan, pair, adversary
        # The solver on both datasets, prepared: a call takes one from this list, so that no two threads share one.
        self._idle: list[tuple[Run, Run]] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_idle": []}

    def run(self, bits: NDArray[Any], first: int, source: streams.Streams) -> Array:
        """Outputs (trials, features) of trials first, first + 1, ...; bit 1 runs the pair's first dataset.

        A trial depends on its number and its bit alone. A trial that raises is a row of NaN: a failure is an output.
        """
        try:
            one, two = self._idle.pop()
        except IndexError:
            one, two = self._prepared(self.pair.first), self._prepared(self.pair.second)
        generator = source.generator(first)
        outputs = self._together(one, two, generator, first, bits)
        if outputs is None:
            outputs = self._one_by_one(one, two, generator, first, bits)
        self._idle.append((one, two))
        return outputs

    def _prepared(self, data: Any) -> Run:
        if isinstance(data, Counted):
            return bind(self.plan, data.X, data.y, data.counts)
        X, y = data
        return bind(self.plan, X, y)

    @property
    def _traced(self) -> bool:
        return self.adversary not in ("final", "support")

    def _together(
        self, one: Run, two: Run, generator: np.random.Generator, first: int, bits: NDArray[Any]
    ) -> Array | None:
        """All trials in one compiled call, or many fits at once, where the solver makes them so; else None."""
        memory = streams.place(generator)
        if memory is None:
            return None
        traces = one.trials(two, generator, memory, first, bits, self._traced)
        if traces is None and one.at_once(self._traced) and two.at_once(self._traced):
            traces = self._many(one, two, generator, memory, first, bits)
        return None if traces is None else self._rows(traces, len(bits))

    def _many(
        self, one: Run, two: Run, generator: np.random.Generator, memory: streams.Place, first: int, bits: NDArray[Any]
    ) -> Trials | None:
        """Many fits at once on each of the datasets; None if one of them fails."""
        parts = []
        for run, bit in ((two, 0), (one, 1)):
            trials, at_once = np.flatnonzero(bits == bit), max(1, _LARGEST // run.size)
            parts += [(run, trials[a : a + at_once]) for a in range(0, len(trials), at_once)]
        if not parts:
            return None
        try:
            results = [
                run.fits(streams.TrialStreams(generator, memory, first + trials), self._traced) for run, trials in parts
            ]
        # A failure of one training is the outcome of its trial, so all are run again one by one, which shows whose it
        # is.
        except Exception:
            return None
        return restore_order([(trials, result) for (_, trials), result in zip(parts, results, strict=True)])

    def _rows(self, traces: Trials, count: int) -> Array:
        if self.adversary == "final":
            values = traces.weights
        elif self.adversary == "support":
            values = np.asarray(traces.weights != 0, dtype=float)
        elif traces.counts is not None:
            values = layout.epochs_rows(traces)
        else:
            values = self._asked_for(traces.iterates if self.adversary == "iterates" else traces.releases)
            values = values[:, :1] if self.adversary == "step" else values
        return np.asarray(values).reshape(count, math.prod(values.shape[1:]))

    def _one_by_one(self, one: Run, two: Run, generator: np.random.Generator, first: int, bits: NDArray[Any]) -> Array:
        rows: list[Array | None] = []
        memory = streams.place(generator)
        for i, bit in enumerate(bits.tolist()):
            streams.seek(generator, first + i, memory)
            try:
                trace = (one if bit == 1 else two)(generator, self._traced)
            except Exception:
                rows.append(None)
                continue
            rows.append(self._row(trace))
        size = next((len(row) for row in rows if row is not None), 1)
        nothing = np.full(size, np.nan)
        return np.array([nothing if row is None else row for row in rows]).reshape(len(bits), size)

    def _row(self, trace: Trace) -> Array:
        if self.adversary == "final":
            return np.asarray(trace.weights, dtype=float).ravel()
        if self.adversary == "support":
            return np.asarray(trace.weights != 0, dtype=float).ravel()
        if self.adversary == "iterates" and layout.is_reduced(self.plan):
            return layout.epochs_row(self.plan, trace)
        values = self._asked_for(trace.iterates if self.adversary == "iterates" else trace.releases)
        return np.asarray(values[:1] if self.adversary == "step" else values, dtype=float).ravel()

    def _asked_for(self, values: Array | None) -> Array:
        if values is None:
            raise invalid("adversary", self.adversary, f"one that {self.plan.solver} keeps a trace for")
        return values
