"""The data of Tables 1 and 2 and Figures 1 to 5 of Khanna, Lu and Raff 2023, under each reading of what is left open.

Scaling is not stated for the LIBSVM sets: as in the file, or each feature over its largest absolute value. Where both
are the same there is one reading. For the generator it is the number of training rows that is not stated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit import datasets
from dptoolkit.datasets.connections import LABELS
from paper_checks.seeds import Rng

Array = NDArray[Any]
FILE, SCALED = "as in the file", "each feature over its maximum"
FEW, MANY = "6,000 training rows", "8,000 training rows"
# Rows that a step reads at most: a random part of larger sets, with the noise of all their training rows.
_MOST = 10_000
_FILES = {"COVTYPE": "covtype.binary", "SPLICE": "splice", "PHISHING": "phishing", "MUSHROOM": "mushrooms",
          "A9A": "a9a", "W8A": "w8a", "COLON": "colon-cancer", "GISETTE": "gisette"}  # fmt: skip
READINGS = {
    "KDDCUP'99": (SCALED,), "COVTYPE": (FILE, SCALED), "SPLICE": (FILE, SCALED), "PHISHING": (FILE, SCALED),
    "SYNTHETIC": (FEW, MANY), "MUSHROOM": (FILE,), "A9A": (FILE,), "W8A": (FILE,), "COLON": (FILE, SCALED),
    "GISETTE": (FILE,),
}  # fmt: skip
# A part of the data of the paper, or data whose encoding it does not give: shown and not judged.
STAND_INS = ("KDDCUP'99", "GISETTE")
_BENIGN = "normal"
_DENIAL = ("smurf", "neptune", "back", "teardrop", "pod", "land")
_CATEGORIES = (1, 2, 3)


class Problem(NamedTuple):
    """Rows, labels 0 and 1, and the number of rows that a fit would train on, which decides the noise."""

    X: Array
    y: Array
    train: int

    @property
    def bound(self) -> float:
        """The largest absolute value of a feature; the paper asks for at most 1."""
        return float(np.abs(self.X).max())


def problem(column: str, reading: str, rng: Rng, data_home: str | None) -> Problem:
    """One column of the tables under one reading."""
    draw = rng(column)
    if column == "SYNTHETIC":
        train = 6000 if reading == FEW else 8000
        data = datasets.make_khanna(n=train + 2000, rng=draw)
        return Problem(np.asarray(data.X), data.y, train)
    if column == "KDDCUP'99":
        records, y = connections(data_home)
        rows = kddcup_rows(y, draw)
        X, y = kddcup_features(records[rows]), y[rows]
        return Problem(X[:_MOST], y[:_MOST], int(0.8 * len(y)))
    X, y = _libsvm(_FILES[column], data_home)
    part = draw.permutation(len(y))[:_MOST]
    chosen = X[part] if reading == FILE else scaled(X[part], np.abs(X).max(axis=0))
    return Problem(np.ascontiguousarray(chosen), y[part], int(0.8 * len(y)))


def data_of(column: str) -> tuple[str, ...]:
    """The names of the data sets that a column of the tables is made of; the generator needs none."""
    names = {**_FILES, "KDDCUP'99": "kddcup99"}
    return (names[column],) if column in names else ()


def scaled(X: Array, largest: Array) -> Array:
    """Each feature over its largest absolute value; features that are zero stay zero."""
    return np.asarray(X / np.where(largest > 0, largest, 1.0))


def kddcup_rows(y: Array, draw: np.random.Generator, positive: int = 38_420, total: int = 60_000) -> Array:
    """60,000 random rows, of which 38,420 are benign, as in the paper."""
    parts = [
        draw.permutation(np.flatnonzero(y == label))[:size] for label, size in ((1, positive), (0, total - positive))
    ]
    return np.asarray(draw.permutation(np.concatenate(parts)))


@functools.lru_cache(maxsize=2)
def _libsvm(name: str, data_home: str | None) -> tuple[Array, Array]:
    """All rows of a set; SPLICE has two files, and GISETTE is here with its test file alone."""
    splits = {"splice": ("train", "test"), "gisette": ("test",)}.get(name, ("train",))
    parts = [datasets.load(name, split, data_home=data_home) for split in splits]
    dense = [np.asarray(part.X.toarray() if hasattr(part.X, "toarray") else part.X, float) for part in parts]
    return np.vstack(dense), np.concatenate([part.y for part in parts])


@functools.lru_cache(maxsize=1)
def connections(data_home: str | None) -> tuple[Array, Array]:
    """Connections that are benign (1) or denials of service (0); names are numbers."""
    data = datasets.load("kddcup99", data_home=data_home)
    kinds = [LABELS.index(kind) for kind in (_BENIGN, *_DENIAL)]
    rows = np.isin(data.y, kinds)
    return data.X[rows], (data.y[rows] == kinds[0]).astype(float)


def kddcup_features(records: Array) -> Array:
    """The 41 features, of which the three with categories become columns of zeros and ones; rows of norm 1."""
    columns: list[Array] = []
    for number, values in enumerate(records.T):
        categories = np.unique(values) if number in _CATEGORIES else ()
        columns += [(values == category).astype(float) for category in categories] or [values]
    X = np.array(columns).T
    X = scaled(X, np.abs(X).max(axis=0))
    return np.asarray(X / np.linalg.norm(X, axis=1, keepdims=True))


# --- Figures 1 to 5 --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Training, validation and test rows, and the number of training rows that decides the noise."""

    X: Array
    y: Array
    validation: tuple[Array, Array]
    test: tuple[Array, Array]
    train: int
    row_norm: float


def synthetic_rows(draw: np.random.Generator) -> Split:
    """8,000 training rows of the paper's generator, 2,000 for validation, 2,000 others for the test."""
    data = datasets.make_khanna(n=12_000, rng=draw)
    X, y = np.asarray(data.X), data.y
    return Split(X[:8000], y[:8000], (X[8000:10_000], y[8000:10_000]), (X[10_000:], y[10_000:]), 8000, 3.0)


@functools.cache
def kddcup_parts(data_home: str | None, half: int = 0) -> Callable[[np.random.Generator], Split]:
    """Draws random parts of every other row of the file.

    Parts of ``half`` 0 are reported. Settings are chosen on parts of ``half`` 1, which have none of these rows.
    """
    records, y = connections(data_home)

    def make(draw: np.random.Generator) -> Split:
        rows = half + 2 * kddcup_rows(y[half::2], draw)[:12_000]
        # Features are encoded over these rows; a category that none of them has is a feature that is always zero.
        X, labels = kddcup_features(records[rows]), y[rows]
        return Split(X[:8000], labels[:8000], (X[8000:10_000], labels[8000:10_000]), (X[10_000:], labels[10_000:]),
                     48_000, 1.0)  # fmt: skip

    return make
