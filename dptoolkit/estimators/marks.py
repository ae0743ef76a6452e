"""A mark on rows that were prepared in a way which no guarantee covers; it travels with them to the estimator."""

from __future__ import annotations

from typing import Any

import numpy as np

_NAME = "void_reason"


class MarkedArray(np.ndarray):
    """An array that knows why no guarantee covers what is fitted to it; slices and copies of it know too."""

    void_reason: str | None

    def __array_finalize__(self, other: Any) -> None:
        self.void_reason = getattr(other, _NAME, None)


def marked(X: Any, reason: str | None) -> Any:
    """X with the mark; unchanged without a reason."""
    if reason is None:
        return X
    rows = X if hasattr(X, "tocsr") else np.asarray(X).view(MarkedArray)
    setattr(rows, _NAME, reason)
    return rows


def reason_of(X: Any) -> str | None:
    """Why no guarantee covers what is fitted to X; None if nothing is known against it."""
    return getattr(X, _NAME, None)
