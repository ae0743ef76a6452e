"""The public model that a fit starts from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid
from dptoolkit.types import Array

# Weights as (support, values).
Start = tuple[NDArray[np.int64], Array]
# All weights are 0.
NOTHING: Start = (np.zeros(0, dtype=np.int64), np.zeros(0))
# The largest place that the kernels' integers hold.
LARGEST = 2**63 - 1


class InitialModel(tuple[tuple[int, float], ...]):
    """A public model that a fit starts from: (place, weight) of every weight that is not 0, by place."""

    @classmethod
    def of(cls, initial: Any, width: int, free: int, sparsity: int) -> InitialModel | None:
        """The checked argument ``initial``: None, ``width`` weights, or pairs (place, weight).

        At most ``sparsity`` of the first ``free`` weights may differ from 0; those behind them are intercepts.

        Privacy
        -------
        The model must be public: the noise of the fit hides nothing of it.
        """
        if initial is None:
            return None
        try:
            weights = _weights(np.asarray(initial), width)
        except (TypeError, ValueError):
            repair = "One for every feature, then one for the intercept, if there is one."
            raise invalid("initial", type(initial).__name__, f"None or {width} finite weights", repair) from None
        kept = int(np.count_nonzero(weights[:free]))
        if kept > sparsity:
            repair = "Threshold it first: a step keeps no more."
            raise invalid("initial", f"{kept} weights that are not 0", f"at most sparsity={sparsity} of them", repair)
        return cls((int(j), float(weights[j])) for j in np.flatnonzero(weights))

    @property
    def start(self) -> Start:
        """(support, values)."""
        return np.array([j for j, _ in self], dtype=np.int64), np.array([w for _, w in self], dtype=np.float64)

    def __str__(self) -> str:
        return f"a model with {len(self)} weights"


def are_places(numbers: NDArray[np.int64], width: int) -> bool:
    """Whether these are increasing places below ``width``: compared, as differences of far integers wrap around."""
    return bool(((numbers >= 0) & (numbers < width)).all() and (numbers[1:] > numbers[:-1]).all())


def check_start(start: Start, width: int, room: int) -> Start:
    """A start as the kernels take it: increasing places below ``width``, ``room`` of them at most, and their weights.

    Privacy
    -------
    The kernels check no bounds: another place would be written beyond their arrays, and be counted as one with data.
    """
    support, values = start
    fits = support.dtype == np.int64 and values.dtype == np.float64 and support.ndim == 1
    if not fits or support.shape != values.shape or len(support) > room or not are_places(support, width):
        bound = f"at most {room} increasing places below {width}, each with its weight"
        raise invalid("start", f"{len(support)} places", bound)
    return start


def _weights(given: NDArray[Any], width: int) -> Array:
    """All weights, from themselves or from pairs (place, weight); ValueError for anything else."""
    if given.dtype.kind not in "fiub" or not np.isfinite(given).all():
        raise ValueError
    given = weights = given.astype(np.float64)
    if given.ndim == 2 and given.shape[1:] == (2,):
        places, weights = given[:, 0].astype(np.int64), np.zeros(width)
        if (places != given[:, 0]).any() or not ((places >= 0) & (places < width)).all():
            raise ValueError
        weights[places] = given[:, 1]
    if weights.shape != (width,) or not np.isfinite(weights).all():
        raise ValueError
    return weights


def start_of(initial: InitialModel | None) -> Start:
    """(support, values) of an initial model, which is 0 if none is given."""
    return NOTHING if initial is None else initial.start
