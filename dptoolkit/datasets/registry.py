"""Real data sets by name: fetched once, checked, and read."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from dptoolkit._validate import flag, invalid, missing, one_of
from dptoolkit.datasets import readers
from dptoolkit.datasets.catalogue import BUNDLED, FILES, TEST, TRAIN, Entry, Source
from dptoolkit.datasets.dataset import Dataset
from dptoolkit.errors import DpToolkitError, InvalidValue
from dptoolkit.types import Array

CACHE_VARIABLE = "DPTOOLKIT_CACHE"


def cache_folder() -> Path:
    """Where fetched files are kept: DPTOOLKIT_CACHE, or the user's cache."""
    folder = os.environ.get(CACHE_VARIABLE)
    return Path(folder).expanduser() if folder else Path(_pooch().os_cache("dptoolkit"))


def fetched(file: str, source: Source) -> Path:
    """The file in the cache, fetched if it is not there.

    What comes over the network is unpacked by our own reader, within its limits, and compared with the known content;
    a file that differs is removed.
    """
    pooch = _pooch()
    path = cache_folder() / (file + "".join(Path(source.url).suffixes[-1:] if _is_packed(source.url) else []))
    if not path.is_file():
        # pooch would log a hash with the advice to note it; the hash that counts is in the catalogue.
        pooch.get_logger().setLevel(logging.WARNING)
        try:
            pooch.retrieve(source.url, known_hash=None, fname=path.name, path=path.parent)
        except DpToolkitError:
            raise
        except Exception as problem:
            repair = f"It could not be fetched ({type(problem).__name__}). Download it by hand, and pass its folder."
            raise invalid("url", source.url, "reachable", repair) from None
    if hashlib.sha256(readers.read_bytes(path)).hexdigest() != source.sha256:
        path.unlink()
        repair = "The downloaded file differs, so it was removed."
        raise invalid("url", source.url, "the file whose digest is recorded here", repair)
    return path


def _is_packed(url: str) -> bool:
    return any(suffix and url.endswith(suffix) for suffix in readers.SUFFIXES)


def _pooch() -> Any:
    try:
        import pooch
    except ImportError:
        raise missing("pooch", "data", "to fetch data sets") from None
    return pooch


# --- Loading a real data set by name, from files in a folder of the user's or from scikit-learn ---------------

DATA_VARIABLE = "DPTOOLKIT_DATA"


def names() -> list[str]:
    """All names that ``load`` knows."""
    return sorted([*FILES, *BUNDLED])


def describe(name: str) -> str:
    """One line about a set.

    Parameters
    ----------
    name : str
        One of ``names()``.
    """
    _check_name(name)
    task, text = (FILES[name].task, FILES[name].description) if name in FILES else BUNDLED[name]
    return f"{task}: {text}"


def load(name: str, split: str = TRAIN, data_home: str | Path | None = None, verify: bool = False) -> Dataset:
    """Load a real data set by its name.

    Labels of binary sets are 0 for the smaller and 1 for the larger one of the set's convention; classes are counted
    from 0. Values of X are those of the file. Nothing is scaled by the data: solvers clip to public bounds.

    Parameters
    ----------
    name : str
        One of ``names()``. breast_cancer, digits and diabetes come with scikit-learn; the others are files.
    split : {"train", "test"}, default "train"
        Which part of the set. Some sets have no "test" part; both parts have the same columns.
    data_home : path-like or None, default None
        The folder with the files, one folder per set. None uses the environment variable DPTOOLKIT_DATA. Files may be
        plain or end in .gz, .xz or .bz2. Without either, sets whose source is known are fetched on first use into a
        cache (DPTOOLKIT_CACHE, or the user's own) by the extra ``data``.
    verify : bool, default False
        Whether to compare the SHA-256 of the files with the recorded ones.

    Returns
    -------
    Dataset
        The rows, the labels and the task.

    Privacy
    -------
    Width and label set come from the registry, not from the files: a record with another column or label is an error,
    which names its place and not its content.
    """
    _check_name(name)
    one_of("split", split, (TRAIN, TEST))
    flag("verify", verify)
    if name in BUNDLED:
        return _load_bundled(name, split)
    entry = FILES[name]
    if split not in entry.splits:
        raise invalid("split", split, f"{next(iter(entry.splits))!r} for {name}", "This set has no other part.")
    part = entry.splits[split]
    paths = locate(name, split, data_home)
    if verify:
        for path, expected in zip(paths, part.sha256, strict=True):
            _verify(path, expected)
    X, labels = entry.read(paths, entry, part)
    return Dataset(X, _encode(labels, entry, paths[-1]), entry.task, name, entry.description)


def locate(name: str, split: str = TRAIN, data_home: str | Path | None = None) -> list[Path]:
    """The files of a part of a set: in the folder of the user's, or else in the cache, fetched if need be."""
    _check_name(name)
    part = FILES[name].splits.get(split) if name in FILES else None
    if part is None:
        raise invalid("split", split, f"a part of {name} that is read from files")
    if part.sources and data_home is None and not os.environ.get(DATA_VARIABLE):
        from dptoolkit.datasets.registry import fetched

        return [fetched(file, source) for file, source in zip(part.files, part.sources, strict=True)]
    home = _home(data_home)
    return [_find(home, file) for file in part.files]


def _check_name(name: str) -> None:
    if name not in FILES and name not in BUNDLED:
        raise invalid("name", name, "one of " + ", ".join(names()))


def _encode(labels: Array, entry: Entry, path: Path) -> Array:
    """Labels coded as Dataset promises. The set of labels is public; the error for any other label does not show it."""
    if entry.labels is None:
        return labels
    convention = np.array(entry.labels)
    if not np.isin(labels, convention).all():
        row = int(np.flatnonzero(~np.isin(labels, convention))[0]) + 1
        words = ", ".join(f"{label:g}" for label in entry.labels)
        raise InvalidValue(f"path={str(path)!r}, label of row {row}: must be one of {words}.")
    if entry.positive is not None:
        return (labels == entry.positive).astype(float)
    # The labels of an entry are in increasing order.
    return np.searchsorted(convention, labels).astype(float)


def _home(data_home: str | Path | None) -> Path:
    folder = data_home if data_home is not None else os.environ.get(DATA_VARIABLE)
    repair = f"Pass the folder that holds the files, or set the environment variable {DATA_VARIABLE}."
    if not folder:
        raise invalid("data_home", data_home, "given for a set that is read from files", repair)
    home = Path(folder).expanduser()
    if not home.is_dir():
        raise invalid("data_home", str(folder), "a folder that exists", repair)
    return home


def _find(home: Path, file: str) -> Path:
    for suffix in readers.SUFFIXES:
        path = home / (file + suffix)
        if path.is_file():
            return path
    suffixes = ", ".join(suffix for suffix in readers.SUFFIXES if suffix)
    raise invalid("data_home", str(home), f"a folder with {file}, plain or {suffixes}", "Put the file there.")


def _verify(path: Path, expected: str) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != expected:
        raise invalid("sha256", digest, f"{expected} for {path.name}", "Use verify=False for another copy of the data.")


def _load_bundled(name: str, split: str) -> Dataset:
    try:
        from sklearn import datasets as bundled
    except ImportError:
        raise missing("scikit-learn", "sklearn", f"to load {name}") from None
    if split != TRAIN:
        raise invalid("split", split, f"'train' for {name}", "scikit-learn has one part only.")
    X, y = getattr(bundled, f"load_{name}")(return_X_y=True)
    task, description = BUNDLED[name]
    return Dataset(np.asarray(X, dtype=float), np.asarray(y, dtype=float), task, name, description)
