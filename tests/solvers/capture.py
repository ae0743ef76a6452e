"""Watch what a solver asks of the data and what noise it draws, while a script decides what is "released".

Two neighbouring data sets under the same script see the same public iterates, so the recorded queries can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from dptoolkit.kernels import frank_wolfe as kernel
from dptoolkit.mechanisms import NoisyMaximum
from dptoolkit.solvers import _peeling
from dptoolkit.solvers.engine import descent
from dptoolkit.solvers.engine.gradients import MeanGradient


class Spy(np.random.Generator):
    """A Generator that keeps every array it hands out: ``draws`` holds (method, copy of the values)."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(np.random.PCG64(seed))
        self.draws: list[tuple[str, Any]] = []
        self.arguments: list[tuple[Any, ...]] = []

    def _keep(self, method: str, *args: Any, **kwargs: Any) -> Any:
        values = getattr(super(), method)(*args, **kwargs)
        self.draws.append((method, np.array(values, copy=True)))
        self.arguments.append(args)
        return values

    def standard_normal(self, *args: Any, **kwargs: Any) -> Any:
        return self._keep("standard_normal", *args, **kwargs)

    def standard_exponential(self, *args: Any, **kwargs: Any) -> Any:
        return self._keep("standard_exponential", *args, **kwargs)

    def geometric(self, *args: Any, **kwargs: Any) -> Any:
        return self._keep("geometric", *args, **kwargs)

    def random(self, *args: Any, **kwargs: Any) -> Any:
        return self._keep("random", *args, **kwargs)

    def normal(self, *args: Any, **kwargs: Any) -> Any:
        return self._keep("normal", *args, **kwargs)

    def laplace(self, *args: Any, **kwargs: Any) -> Any:
        return self._keep("laplace", *args, **kwargs)

    def gumbel(self, *args: Any, **kwargs: Any) -> Any:
        return self._keep("gumbel", *args, **kwargs)

    def exponential(self, *args: Any, **kwargs: Any) -> Any:
        return self._keep("exponential", *args, **kwargs)

    def of(self, method: str) -> list[Any]:
        """What ``method`` returned, in order."""
        return [values for name, values in self.draws if name == method]


@contextmanager
def mean_gradients(iterates: Sequence[Any], step_size: float) -> Iterator[list[tuple[Any, Any, float]]]:
    """Hard thresholding visits 0, then ``iterates``; yields (w, mean gradient, noise scale) of every step.

    The "noisy gradient" handed back is the one that leads to the next iterate; the sparsity must allow it.
    """
    seen: list[tuple[Any, Any, float]] = []
    real = MeanGradient.noisy

    def scripted(self: MeanGradient, support: Any, values: Any, scale: float, rng: Any) -> Any:
        w = np.zeros(self.rows.shape[1])
        w[support] = values
        seen.append((w, np.array(real(self, support, values, 0.0, None)), scale))
        target = iterates[len(seen) - 1] if len(seen) <= len(iterates) else np.zeros_like(w)
        return (w - target) / step_size

    with mock.patch.object(MeanGradient, "noisy", scripted), step_by_step():
        yield seen


@contextmanager
def step_by_step() -> Iterator[None]:
    """No dataset counts as small: gradient hard thresholding takes the path of large data."""
    with mock.patch.object(descent, "SMALL", -1):
        yield


@contextmanager
def uncompiled(choose: Callable[..., int]) -> Iterator[None]:
    """The dense Frank-Wolfe kernel runs as the Python that it is written in, with ``choose`` for its selections."""
    replaced = {"dense_steps": kernel.dense_steps.py_func, "choose": choose}
    with mock.patch.multiple(kernel, **replaced):
        yield


@contextmanager
def selection_scores(chosen: Sequence[int]) -> Iterator[list[tuple[Any, float]]]:
    """Every noisy maximum returns the next of ``chosen``; yields (scores, noise scale) of every selection."""
    seen: list[tuple[Any, float]] = []

    def scripted(self: NoisyMaximum, scores: Any, rng: Any = None, share: float = 1.0) -> int:
        seen.append((np.array(scores, dtype=float), share * self.scale))
        return int(chosen[len(seen) - 1]) % len(scores)

    def scripted_rows(self: NoisyMaximum, scores: Any, rng: Any = None, shares: Any = None) -> Any:
        parts = np.ones(len(scores)) if shares is None else shares
        return np.array([scripted(self, row, None, share) for row, share in zip(scores, parts, strict=True)])

    def scripted_vertex(gradient: Any, scale: float, noise: Any) -> int:
        seen.append((np.concatenate([-gradient, gradient]), scale))
        return int(chosen[len(seen) - 1]) % (2 * len(gradient))

    scripts = {"select": scripted, "select_rows": scripted_rows}
    with mock.patch.multiple(NoisyMaximum, **scripts), uncompiled(scripted_vertex):
        yield seen


@contextmanager
def added_noise() -> Iterator[list[Any]]:
    """Yields what every noisy maximum added to its scores. An argmax alone would seldom show 10% too little noise."""
    seen: list[Any] = []
    real, choose = NoisyMaximum.noisy_rows, kernel.choose

    def watched(self: NoisyMaximum, scores: Any, rng: Any, shares: Any = None) -> Any:
        noisy = real(self, scores, rng, shares)
        seen.extend(noisy - scores)
        return noisy

    def watched_vertex(gradient: Any, scale: float, noise: Any) -> int:
        seen.append(scale * noise)
        return int(choose(gradient, scale, noise))

    with mock.patch.object(NoisyMaximum, "noisy_rows", watched), uncompiled(watched_vertex):
        yield seen


@contextmanager
def peeled_vectors(iterates: Sequence[Any]) -> Iterator[list[Any]]:
    """Peeling returns the next of ``iterates``; yields (vector, share of the noise) of every call."""
    seen: list[Any] = []

    def scripted(v: Any, plan: Any, shares: Any, rng: Any) -> Any:
        seen.append((np.array(v[0]), float(shares[0])))
        vector = np.array(iterates[len(seen) - 1], dtype=float)[None]
        return vector, np.flatnonzero(vector[0])[None]

    with mock.patch.object(_peeling, "peel_rows", scripted):
        yield seen


def both(watch: Callable[[], Any], *fits: Callable[[], Any]) -> list[Any]:
    """What ``watch`` saw during each of the fits."""
    found = []
    for fit in fits:
        with watch() as seen:
            fit()
        found.append(seen)
    return found
