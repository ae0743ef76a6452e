"""Gradient solvers on rows in blocks: the blocks' exact gradients are added up in order, and noise is drawn here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dptoolkit.data import Rows
from dptoolkit.data.blocks import CheckedBlocks, Summand
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers.engine.bounds import NoiseLaw
from dptoolkit.solvers.engine.descent import IhtRun, ResolvedThresholding, Steps
from dptoolkit.solvers.engine.draws import fill_normals
from dptoolkit.solvers.engine.gradients import MeanGradient
from dptoolkit.solvers.engine.initial import NOTHING
from dptoolkit.solvers.engine.softmax import SoftmaxRun
from dptoolkit.solvers.frame.run import Trials, one_after_another
from dptoolkit.types import Array


@dataclass(frozen=True)
class GradientTerm(Summand):
    """(1/n) sum over the block of clip(residual_i) x_i, at sparse weights: its ``MeanGradient``, times its share of n.

    Privacy
    -------
    NOT private. Each record is clipped by the settings' public bounds alone, so that the total over all blocks is the
    query of ``dp_ight``, with its sensitivity.
    """

    settings: ResolvedThresholding
    n: int

    def prepared(self, rows: Rows, labels: Array) -> MeanGradient:
        """See ``Summand``."""
        bounds = self.settings.bounds
        clipped, y, caps = bounds.clip(rows, labels)
        return MeanGradient(clipped, y, self.settings.loss_row, bounds.largest_margin, caps)

    def term(self, prepared: MeanGradient, *public: Any) -> Array:
        """See ``Summand``; ``public`` is (support, values)."""
        return mean_term(prepared, self.n, *public)


def mean_term(gradient: MeanGradient, n: int, support: Any, values: Array) -> Array:
    """The exact mean gradient of some of n records, times their share of the n.

    Privacy
    -------
    NOT private.
    """
    exact = gradient.noisy(support, values, 0.0, None)
    return np.asarray(exact * (len(gradient.y) / n))


class BlockedMeanGradient:
    """The mean gradient of all blocks, with noise; see ``MeanGradient``.

    Privacy
    -------
    One call of ``noisy`` with scale > 0 is Gaussian(scale / sensitivity). The noise is drawn once, after every block
    has answered: if one does not, nothing is drawn and nothing is returned.
    """

    def __init__(self, blocks: CheckedBlocks, summand: Summand) -> None:
        self.blocks, self.summand = blocks, summand

    def noisy(self, support: Any, values: Array, scale: float, rng: np.random.Generator | None) -> Array:
        """See ``MeanGradient``."""
        total: Array = self.blocks.total(self.summand, support, values)
        if scale > 0 and rng is not None:
            from dptoolkit.kernels.sums import add_scaled

            noise = np.empty(len(total))
            fill_normals(rng, noise)
            add_scaled(total, noise, scale)
        return total


class BlockedIhtRun(IhtRun):
    """``IhtRun`` step by step on blocks, which are asked for their gradient at every step.

    Privacy
    -------
    The releases are those of ``IhtRun``.
    """

    def __init__(
        self, blocks: CheckedBlocks, summand: Summand, width: int, iteration: Steps, noise_at: NoiseLaw
    ) -> None:
        self._lay_out(width, iteration, noise_at, NOTHING)
        self._blocks, self._summand, self.compiled_records, self._idle = blocks, summand, None, []

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``."""
        return one_after_another(self, streams, trace)

    def at_once(self, trace: bool) -> bool:
        """See ``Run``."""
        return False

    @property
    def shared(self) -> None:
        """Nothing: no records are here."""
        return None

    def _mean_gradient(self) -> Any:
        return BlockedMeanGradient(self._blocks, self._summand)


@dataclass(frozen=True)
class SoftmaxTerm(Summand):
    """(1/n) sum over the block of clip(r_i) x_i^T, one row per class, at weights that are zero but on few features.

    Privacy
    -------
    NOT private. Each record is clipped by the settings' public bounds alone.
    """

    settings: ResolvedThresholding
    n: int

    def prepared(self, rows: Rows, labels: Array) -> SoftmaxRun:
        """See ``Summand``."""
        bounded, _, caps = self.settings.bounds.clip(rows, np.zeros(0))
        return softmax_records(bounded, labels, caps)

    def term(self, prepared: SoftmaxRun, *public: Any) -> Array:
        """See ``Summand``; ``public`` is (features, the classes' weights of each)."""
        return softmax_term(prepared, self.n, *public)


def softmax_records(rows: Rows, labels: Array, caps: Array | None) -> SoftmaxRun:
    """A block's records, of which only ``mean_gradient`` is used."""
    return SoftmaxRun(rows, labels, caps, Steps(1, 1.0, None, False), 0.0)


def softmax_term(records: SoftmaxRun, n: int, features: Any, values: Array) -> Array:
    """The exact mean gradient of some of n records, times their share of the n.

    Privacy
    -------
    NOT private.
    """
    weights = np.zeros(records.shape)
    weights[:, features] = values
    return np.asarray(records.mean_gradient(weights) * (len(records.labels) / n))


class BlockedSoftmaxRun(SoftmaxRun):
    """``SoftmaxRun`` on blocks, one fit at a time.

    Privacy
    -------
    The releases are those of ``SoftmaxRun``.
    """

    def __init__(
        self, blocks: CheckedBlocks, summand: Summand, shape: tuple[int, int], iteration: Steps, noise: float
    ) -> None:
        self._blocks, self._summand, self.shape, self.iteration, self.noise = blocks, summand, shape, iteration, noise

    def mean_gradient(self, weights: Array) -> Array:
        """See ``SoftmaxRun``; of every fit in turn."""
        return np.array([self._total(one) for one in weights])

    def _total(self, weights: Array) -> Array:
        features = np.flatnonzero(weights.any(axis=0))
        total: Array = self._blocks.total(self._summand, features, weights[:, features])
        return total
