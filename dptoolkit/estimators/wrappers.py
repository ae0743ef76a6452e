"""Fits that another estimator, a search or a cross-validation of scikit-learn makes: a warning, and a note."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from sklearn.base import BaseEstimator, is_classifier

from dptoolkit import marks
from dptoolkit._validate import warn
from dptoolkit.models.notes import SEARCH_NOTE, WRAPPED_NOTE

# Parts of scikit-learn that call fit once, or belong to its own tests. Everything else in scikit-learn that fits an
# estimator counts as one that fits again and again: a new wrapper is warned of before anybody has looked at it.
_ONE_FIT = ("base", "pipeline", "compose", "utils", "tests")
_SEARCHES = ("model_selection",)
# Parts whose steps are fitted one to what another has made.
_IN_SEQUENCE = ("pipeline", "compose")


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


def is_after_marking() -> bool:
    """Whether scikit-learn calls this fit for marked rows, or in a pipeline with a step that marks them.

    Privacy
    -------
    Other steps of a pipeline copy dense rows, as bagging does, and a copy has no mark (``marks``). What the pipeline
    consists of, and the rows that an estimator around this one was given, tell.
    """
    for part, frame in _calling_frames():
        known = frame.f_locals
        if marks.is_marked(known.get("X")) or (part in _IN_SEQUENCE and _holds_marking(known.get("self"))):
            return True
    return False


def _holds_marking(caller: Any) -> bool:
    parts = caller.get_params(deep=True).values() if isinstance(caller, BaseEstimator) else ()
    return any(getattr(type(part), "marks_rows", False) for part in parts)


def _calling_parts() -> list[str]:
    """The parts of scikit-learn, the innermost first, that called this fit and may make several."""
    return [part for part, _ in _calling_frames() if part not in _ONE_FIT]


def _calling_frames() -> Iterator[tuple[str, FrameType]]:
    """(part of scikit-learn, frame) of all its functions that are being called, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        library, _, rest = str(frame.f_globals.get("__name__", "")).partition(".")
        if library == "sklearn":
            yield rest.partition(".")[0], frame
        frame = frame.f_back


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
