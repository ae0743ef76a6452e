"""Where randomness comes from."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from dptoolkit._validate import invalid


def as_generator(rng: Any = None) -> np.random.Generator:
    """A Generator from None (fresh entropy), an integer seed (reproducible, so not private) or a Generator."""
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is None:
        return np.random.default_rng()
    if isinstance(rng, numbers.Integral) and not isinstance(rng, bool) and int(rng) >= 0:
        return np.random.default_rng(int(rng))
    raise invalid("rng", rng, "None, an integer >= 0 or a numpy.random.Generator")
