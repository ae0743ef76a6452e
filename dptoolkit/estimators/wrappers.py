"""Fits that another estimator, a search or a cross-validation of scikit-learn makes: a warning, and a note."""

from __future__ import annotations

import sys
from typing import Any

from sklearn.base import is_classifier

from dptoolkit._validate import warn
from dptoolkit.models.notes import SEARCH_NOTE, WRAPPED_NOTE

# Parts of scikit-learn that call fit once, or belong to its own tests. Everything else in scikit-learn that fits an
# estimator counts as one that fits again and again: a new wrapper is warned of before anybody has looked at it.
_ONE_FIT = ("base", "pipeline", "compose", "utils", "tests")
_SEARCHES = ("model_selection",)


class TuningWarning(UserWarning):
    """Another estimator, a search or a cross-validation fits private models again: every fit spends its budget."""


def wrapper_note(estimator: Any) -> str | None:
    """The note on what fits this estimator, after a warning; None if nothing but the user and a pipeline does."""
    parts = _calling_parts()
    if not parts:
        return None
    is_search = any(part in _SEARCHES for part in parts)
    _warn(estimator, f"sklearn.{parts[-1]}", is_search)
    return SEARCH_NOTE if is_search else WRAPPED_NOTE


def _calling_parts() -> list[str]:
    """The parts of scikit-learn, the innermost first, that called this fit and may make several."""
    frame, parts = sys._getframe(1), []
    while frame is not None:
        library, _, rest = str(frame.f_globals.get("__name__", "")).partition(".")
        part = rest.partition(".")[0]
        if library == "sklearn" and part not in _ONE_FIT:
            parts.append(part)
        frame = frame.f_back  # type: ignore[assignment]
    return parts


def _warn(estimator: Any, caller: str, is_search: bool) -> None:
    if is_search:
        where = "a search or a cross-validation"
        more = ", and scores on held-out records are released without any noise"
        repair = (
            "Choose on public data, let the default rules choose, or use dptoolkit.estimators.PrivateSearchCV, which "
            "makes the choice inside one budget."
        )
    else:
        where = f"another estimator, of {caller}"
        more = ", and whatever else that estimator learns from the records is not covered"
        several = "Classifiers of dptoolkit take several classes in one budget. Otherwise c"
        begin = several if is_classifier(estimator) else "C"
        repair = f"{begin}harge every fit to one ledger, or divide epsilon among the fits."
    warn(
        f"{type(estimator).__name__} is fitted inside {where}. On private data that is not free: each of its fits "
        f"spends epsilon {estimator.epsilon}{more}. {repair}",
        TuningWarning,
    )
