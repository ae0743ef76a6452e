"""The notes of a model's guarantee: those that this package writes, and how notes from a file are told apart from them.

A note is free text, so a file could say anything in one. What a plan assumes is derived from the plan again. Of the
rest, a note that this package writes is kept as it is, and any other is marked as what the file says. A new note of
the package must be listed in ``OWN``: otherwise it is marked too when its model is read from a file.
"""

from __future__ import annotations

from collections.abc import Iterable

from dptoolkit.marks import VOID
from dptoolkit.solvers.frame.fit import SEEDED_NOTE
from dptoolkit.solvers.frame.secure import SecurePlan

CLASSES_NOTE = "the set of classes was read from the labels and is declared public; give classes to avoid that"
UNITS_NOTE = (
    "every row was scaled to norm 1, in the units of the columns that the model was given (units that differ cost "
    "accuracy, not privacy)"
)
PREPARED_NOTE = (
    "what was fitted to the data before the model (a scaler, an imputer, a vocabulary, a choice of features) is not "
    "covered"
)
WRAPPED_NOTE = (
    "fitted by another estimator, which may make several fits and compute more from the data: this guarantee is that "
    "of one fit alone"
)
SEARCH_NOTE = (
    "fitted by a search or a cross-validation: the other fits, their scores and the choice among them are not counted"
)
WIDTH_NOTE = "the number of columns was read from the data and is declared public; give n_features to avoid that"
OWN = (SEEDED_NOTE, CLASSES_NOTE, UNITS_NOTE, PREPARED_NOTE, SEARCH_NOTE, WRAPPED_NOTE, WIDTH_NOTE)
UNCHECKED = "in the file, not checked: "


def choice_notes(n: int, secure: SecurePlan | None = None) -> tuple[str, ...]:
    """What the guarantee of a private choice on n rows assumes; ``secure`` are the facts of its secure noise."""
    return (
        f"n = {n}, which rows are held out, the candidates and all bounds are public",
        "only the best run is released: no other run's model or score, nor how many there were",
        *(() if secure is None else secure.notes),
    )


def from_file(notes: Iterable[str], assumed: Iterable[str]) -> tuple[str, ...]:
    """What the plan assumes, then the other notes of a file; those that this package does not write are marked."""
    own = tuple(assumed)
    return (*own, *(_marked(text) for text in notes if text not in own))


def _marked(text: str) -> str:
    if text in OWN:
        return text
    line = printable(text)
    return line if line.startswith((VOID, UNCHECKED)) else UNCHECKED + line


def printable(text: object) -> str:
    """Text of a file in one line without control characters, which could imitate the lines around it."""
    return "".join(character for character in " ".join(str(text).split()) if character.isprintable())
