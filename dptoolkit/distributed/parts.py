"""Files that hold a block of rows each: LIBSVM text or npz."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dptoolkit._validate import invalid, whole
from dptoolkit.data import check_rows
from dptoolkit.datasets.readers import MAX_BYTES, read_libsvm

_KEYS = "data, indices, indptr, shape and y, or X and y"


@dataclass(frozen=True)
class Part:
    """A file with the records of one block: LIBSVM text, packed or not, or npz.

    ``width`` is the public number of features.
    """

    path: str
    width: int | None

    @property
    def name(self) -> str:
        """The file's name, without its folder."""
        return Path(self.path).name

    def load(self) -> tuple[Any, Any]:
        """(X, y), as the file has them; X is sparse unless an npz file holds an array.

        Privacy
        -------
        Errors name the file and what was expected, never a record.
        """
        if self.path.endswith(".npz"):
            return _read_npz(self.path)
        return read_libsvm(self.path, n_features=self.width, max_bytes=MAX_BYTES)


def _read_npz(path: str) -> tuple[Any, Any]:
    wrong = invalid("path", path, f"an .npz file with {_KEYS}", "distributed.split writes such files.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if "X" in arrays:
                return arrays["X"], arrays["y"]
            entries = arrays["data"], arrays["indices"], arrays["indptr"]
            return sparse.csr_matrix(entries, shape=tuple(arrays["shape"].tolist())), arrays["y"]
    except OSError as problem:
        reason = problem.strerror or "It is no such file"
        raise invalid("path", path, "a file that can be read", f"{reason}.") from None
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        raise wrong from None


def split(X: Any, y: Any, folder: str | os.PathLike[str], blocks: int) -> list[Path]:
    """Write rows and labels as .npz parts of consecutive rows, of about the same number of rows each.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n, d)
        One row per record.
    y : array-like of shape (n,)
        The labels.
    folder : path-like
        A folder that does not exist yet, or is empty.
    blocks : int
        The number of parts, at most n.

    Returns
    -------
    list of Path
        The files, in order.

    Privacy
    -------
    NOT private: the files hold the records themselves, and are as private as they are. Names hold a number only.
    """
    rows = check_rows(X)
    n, labels = rows.shape[0], np.asarray(y)
    count = whole("blocks", blocks, low=1)
    if count > n:
        raise invalid("blocks", count, f"<= n={n}", "A block has at least one row.")
    if labels.shape != (n,):
        raise invalid("y.shape", labels.shape, f"({n},), one label per row of X")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise invalid("folder", str(target), "an empty folder", "Remove its files, or take another name.")
    borders, files = [n * k // count for k in range(count + 1)], []
    for k, (first, last) in enumerate(zip(borders, borders[1:], strict=False)):
        part = rows.matrix[first:last]
        arrays = {"X": part}
        if rows.is_sparse:
            arrays = {"data": part.data, "indices": part.indices, "indptr": part.indptr, "shape": np.array(part.shape)}
        files.append(target / f"part-{k:05d}.npz")
        # Written under another name first: a part is there whole, or not at all.
        draft = target / f".part-{k:05d}.npz"
        np.savez(draft, y=labels[first:last], **arrays)
        os.replace(draft, files[-1])
    return files
