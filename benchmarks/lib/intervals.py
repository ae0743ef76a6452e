"""A mean over seeds and its standard error, as tables show them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean; 0 for one value."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def interval(values: Sequence[float], digits: int = 4) -> str:
    """The mean, and its standard error if there is more than one value."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {standard_error(values):.{digits}f}"
