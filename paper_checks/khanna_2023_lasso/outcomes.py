"""What the runs behind Figures 1 to 5 of Khanna, Lu and Raff 2023 give, and the same as JSON can hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper_checks.shared import Part

Array = NDArray[Any]


@dataclass(frozen=True)
class Outcome:
    """For every noise and method the weights (set, epsilon, feature) and the test errors (set, epsilon)."""

    weights: Mapping[tuple[str, str], Array]
    errors: Mapping[tuple[str, str], Array]
    chosen: Mapping[tuple[str, str], Sequence[float]]


def as_part(found: Outcome) -> Part:
    """All methods as JSON can hold them."""
    curves = [[*key, found.weights[key].tolist(), errors.tolist(), list(found.chosen[key])]
              for key, errors in found.errors.items()]  # fmt: skip
    return {"curves": curves}


def of_part(part: Part) -> Outcome:
    """All methods back."""
    curves = {(noise, name): values for noise, name, *values in part["curves"]}
    weights, errors = ({key: np.array(values[place]) for key, values in curves.items()} for place in (0, 1))
    return Outcome(weights, errors, {key: values[2] for key, values in curves.items()})
