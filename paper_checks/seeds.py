"""Random numbers from named axes: the same item, data set, solver and repetition draw the same numbers in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dptoolkit.distributed.sweeps import named_generator

# What a check that draws takes as its argument ``rng``: rng(data=..., solver=..., repetition=...).
Rng = Callable[..., np.random.Generator]


def generator(
    seed: int, paper: str, item: str, data: str = "", solver: str = "", repetition: int = 0
) -> np.random.Generator:
    """The generator of one place on the axes. Methods that share ``data`` and ``repetition`` can share their rows."""
    return named_generator(seed, paper, item, data, solver, repetition)


@dataclass(frozen=True)
class Source:
    """The generators of one item, by the remaining axes."""

    seed: int
    paper: str
    item: str

    def __call__(self, data: str = "", solver: str = "", repetition: int = 0) -> np.random.Generator:
        return generator(self.seed, self.paper, self.item, data, solver, repetition)

    def of(self, item: str) -> Source:
        """The generators of another item, such as runs that several items share."""
        return replace(self, item=item)


def source(seed: int, paper: str, item: str) -> Source:
    """The generators of one item."""
    return Source(seed, paper, item)
