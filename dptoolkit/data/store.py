"""Prepared rows in a folder: saved once, opened by any number of processes, which share the memory of the files.

    prepared.save(data.prepare(X, row_norm=1.0), "rows")        # both orientations
    rows = prepared.load("rows")                                # in every process; every solver takes it in place of X

Privacy
-------
A folder is not trusted. Opening checks what every fit relies on, as ``data.prepare`` does: that all entries are finite,
that indices are in order and in range, and that the second orientation is that of the same rows, entry for entry. Norms
and entries are not taken from the folder: the first fit with a public bound compares them with it, and clips. What
opening cannot see is a file that changes later: it would change the records of this fit and of later ones, also beyond
their bounds, as in every array that is shared. Then no guarantee holds until the folder is opened anew.
Files are saved without permission to write. The folder holds the records themselves, and is as private as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid
from dptoolkit.data import Rows, kernel_arrays
from dptoolkit.errors import InvalidValue

_MANIFEST, _FORMAT = "prepared.json", "dptoolkit prepared rows 1"
_SIDES = ("rows", "columns")
# The arrays of each side, with the types that they may have.
_INDICES = ("int32", "int64")
_SPARSE = {"data": ("float64", "float32"), "indices": _INDICES, "indptr": _INDICES}
_DENSE = {"matrix": ("float64",)}
# The number of bytes, or entries, that are checked at a time.
_CHUNK = 1 << 20


def save(rows: Rows, folder: str | os.PathLike[str]) -> Path:
    """Write prepared rows, and their transpose, to a new folder; either all of it is there afterwards, or nothing.

    Parameters
    ----------
    rows : Rows
        What ``data.prepare`` returned.
    folder : path-like
        A folder that does not exist yet; an existing one is refused.

    Returns
    -------
    Path
        The folder.

    Privacy
    -------
    NOT private: the files hold the records themselves, clipped if ``rows`` are.
    """
    if not isinstance(rows, Rows):
        raise invalid("rows", type(rows).__name__, "prepared rows", "data.prepare(X) makes them.")
    if rows.is_marked:
        repair = "Save the rows from before MaxAbsScaling."
        raise invalid("rows", "marked rows", "covered by a guarantee", f"The folder would not keep the mark. {repair}")
    target = Path(folder)
    taken = invalid("folder", str(target), "a folder that does not exist yet", "Remove it, or take another name.")
    if target.exists():
        raise taken
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        digests = {}
        for side, matrix in zip(_SIDES, (rows.matrix, rows.transpose()), strict=True):
            for name in _SPARSE if rows.is_sparse else _DENSE:
                path = draft / f"{side}.{name}.npy"
                np.save(path, np.asarray(getattr(matrix, name) if rows.is_sparse else matrix), allow_pickle=False)
                digests[path.name] = _digest(path)
                path.chmod(0o444)
        facts = {"format": _FORMAT, "shape": rows.shape, "sparse": rows.is_sparse, "digests": digests}
        (draft / _MANIFEST).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        try:
            draft.rename(target)
        except OSError:
            # Another process may have made the folder in the meantime.
            if target.exists():
                raise taken from None
            raise
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return target


def load(folder: str | os.PathLike[str]) -> Rows:
    """The rows that ``save`` wrote, on the memory of the files: processes that open them share it.

    Files are compared with their digests, so that a damaged folder is refused; then the rows are checked anew. A
    process takes memory of its own only for what a fit derives by tighter bounds than the rows were saved with.

    Parameters
    ----------
    folder : path-like
        The folder that ``save`` wrote.

    Returns
    -------
    Rows
        What every solver takes in place of X.

    Privacy
    -------
    Nothing is released, and nothing that a guarantee depends on is taken on trust: see the top of this module.
    """
    home = Path(folder)
    shape, is_sparse, digests = _manifest(home)
    sides = [_side(home, side, digests, is_sparse) for side in _SIDES]
    rows, columns = (_checked(side, size, home) for side, size in zip(sides, (shape, shape[::-1]), strict=True))
    if not _is_transpose(rows, columns, is_sparse):
        raise _damaged(home, "a second orientation of other rows")
    result = Rows(rows, is_sparse)
    result.cached("transpose", lambda: columns)
    return result


def _manifest(home: Path) -> tuple[tuple[int, int], bool, dict[str, str]]:
    """(shape, whether the rows are sparse, digest of every file), as the folder states them."""
    try:
        facts = json.loads((home / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise invalid("folder", str(home), "a folder that prepared.save wrote") from None
    except (ValueError, RecursionError):
        facts = None
    if isinstance(facts, dict) and facts.get("format", _FORMAT) != _FORMAT:
        raise invalid("folder", str(home), f"saved as {_FORMAT!r}", "Save the rows again with this version.")
    try:
        (n, d), is_sparse = facts["shape"], facts["sparse"] is True
        digests = {str(name): str(digest) for name, digest in facts["digests"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(home, f"no facts that can be read in {_MANIFEST}") from None
    if type(n) is not int or type(d) is not int or n < 1 or d < 1:
        raise _damaged(home, "no rows or no features")
    return (n, d), is_sparse, digests


def _side(home: Path, side: str, digests: dict[str, str], is_sparse: bool) -> dict[str, NDArray[Any]]:
    """The arrays of one orientation, by name, on the memory of their files."""
    arrays = {}
    for name, types in (_SPARSE if is_sparse else _DENSE).items():
        path = home / f"{side}.{name}.npy"
        if not path.is_file() or _digest(path) != digests.get(path.name):
            raise _damaged(home, f"another {path.name} than was saved, or none")
        try:
            # Copy on write: kernels see arrays like all others, and nobody can write to the file through them.
            array = np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
        except (OSError, ValueError, EOFError):
            raise _damaged(home, f"no array in {path.name}") from None
        if array.dtype not in types or not array.flags.c_contiguous or array.ndim != (1 if is_sparse else 2):
            raise _damaged(home, f"no array of {' or '.join(types)} in {path.name}")
        arrays[name] = array
    return arrays


def _checked(side: dict[str, NDArray[Any]], shape: tuple[int, int], home: Path) -> Any:
    """One orientation as a matrix: of this shape, finite, and canonical if it is sparse."""
    values = side["data"] if "data" in side else side["matrix"]
    flat = values.reshape(-1)
    if not all(np.isfinite(flat[first : first + _CHUNK]).all() for first in range(0, len(flat), _CHUNK)):
        raise _damaged(home, "NaN or infinity")
    if "matrix" in side:
        if values.shape != shape:
            raise _damaged(home, "another shape than it states")
        return values
    from scipy import sparse

    try:
        matrix = sparse.csr_matrix((values, side["indices"], side["indptr"]), shape=shape, copy=False)
        matrix.check_format(full_check=True)
    except (ValueError, OverflowError):
        raise _damaged(home, "indices out of range") from None
    if not matrix.has_canonical_format:
        raise _damaged(home, "indices that are not in order")
    return matrix


def _is_transpose(rows: Any, columns: Any, is_sparse: bool) -> bool:
    if not is_sparse:
        n, width = rows.shape[0], max(1, _CHUNK // rows.shape[1])
        return all(np.array_equal(columns[:, i : i + width].T, rows[i : i + width]) for i in range(0, n, width))
    from dptoolkit.kernels.layout import is_transpose

    if rows.nnz != columns.nnz or rows.dtype != columns.dtype:
        return False
    return bool(is_transpose(*kernel_arrays(rows), *kernel_arrays(columns)))


def _digest(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _damaged(home: Path, what: str) -> InvalidValue:
    return invalid("folder", str(home), f"as prepared.save wrote it; there is {what}", "Save the rows again.")
