"""How good a model is on rows that it was not trained on: one number, whose sensitivity is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit.losses import REGRESSION, Loss
from dptoolkit.solvers import FitResult, margins
from dptoolkit.solvers.settings import public_bound

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """The mean over rows of one number a row: 1 for a right label, or minus the clipped error of a prediction.

    ``bound`` is for regression: labels and predictions are clipped to it.
    """

    loss: Loss
    bound: float | None = None

    def __post_init__(self) -> None:
        if self.loss.task == REGRESSION:
            public_bound("score_bound", self.bound, "the largest |label|, which also bounds predictions")

    @property
    def width(self) -> float:
        """The length of the interval of one row's number, which includes 0, the number of a row that is left out."""
        return 1.0 if self.bound is None else 2.0 * self.bound

    def sensitivity(self, rows: int) -> float:
        """How far one record of the scored rows can move the score.

        Privacy
        -------
        Each row's number is in [0, 1], or in [-2 bound, 0]; one record changes one of ``rows`` numbers, whether
        it is replaced or left out. So the mean moves by at most the interval's length over ``rows``.
        """
        return self.width / rows

    def of(self, model: FitResult, X: Any, y: Array) -> float:
        """The exact score; NOT private unless X and y are public."""
        outputs = margins(model, X)
        if self.bound is not None:
            error = np.clip(outputs, -self.bound, self.bound) - np.clip(y, -self.bound, self.bound)
            # A model that overflowed predicts nothing: its rows count as the worst.
            return -float(np.mean(np.where(np.isnan(error), self.width, np.abs(error))))
        if outputs.ndim == 2:
            return float(np.mean(outputs.argmax(axis=1) == y.argmax(axis=1)))
        return float(np.mean((outputs > 0) == (y > 0.5)))
