"""Random numbers from named axes: the same item, data set, solver and repetition draw the same numbers in any order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dptoolkit.distributed.sweeps import named_generator

# What a check that draws takes as its argument ``rng``: rng(data=..., solver=..., repetition=...).
Rng = Callable[..., np.random.Generator]


def generator(
    seed: int, paper: str, item: str, data: str = "", solver: str = "", repetition: int = 0
) -> np.random.Generator:
    """The generator of one place on the axes. Methods that share ``data`` and ``repetition`` can share their rows."""
    return named_generator(seed, paper, item, data, solver, repetition)


def source(seed: int, paper: str, item: str) -> Rng:
    """The generators of one item, by the remaining axes."""

    def rng(data: str = "", solver: str = "", repetition: int = 0) -> np.random.Generator:
        return generator(seed, paper, item, data, solver, repetition)

    return rng
