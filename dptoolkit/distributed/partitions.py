"""Rows in blocks that are made of files: here, or on the workers of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dptoolkit._validate import invalid, whole
from dptoolkit.data.blocks import BlockedRows, LocalBlocks
from dptoolkit.datasets.readers import SUFFIXES
from dptoolkit.distributed.blocks import DaskBlocks
from dptoolkit.distributed.parts import Part


def partition(
    parts: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    n_features: int | None = None,
    scheduler: Any = None,
    patience: float = 60.0,
) -> BlockedRows:
    """Rows in blocks, one for every file, which solvers take in place of X, with None in place of y.

    Parameters
    ----------
    parts : path-like, or sequence of path-like
        The files, one block each, in order; or a folder, all of whose files are parts, in the order of their names. A
        file is LIBSVM text, packed or not, or .npz with data, indices, indptr, shape and y, or with X and y.
    n_features : int or None, default None
        Public number of features, needed for LIBSVM text: a narrower block gets columns of zeros, a wider one is
        refused. None takes the width that the .npz files state, which must be the same in all of them.
    scheduler : str, distributed.Client or None, default None
        The address of a Dask scheduler, such as "tcp://127.0.0.1:8786": every worker reads its own blocks, so the files
        must be there for the workers. None keeps all blocks in this process.
    patience : float, default 60.0
        Seconds for which a fit waits without a single worker before it gives up.

    Returns
    -------
    BlockedRows
        The blocks. On a cluster use it as a context manager, which closes the connection at the end.

    Privacy
    -------
    Nothing is released. Blocks answer a fit's questions exactly, so the network and all workers are as trusted as this
    process: use TLS between machines. The number of blocks and their sizes are known to the scheduler.
    """
    files = _files(parts)
    width = None if n_features is None else whole("n_features", n_features, low=1)
    for path in files:
        suffixes = "".join(Path(path).suffixes[-1:])
        if width is None and not path.endswith(".npz"):
            repair = f"{Path(path).name} has no width of its own: one record would decide the shape of the model."
            raise invalid("n_features", None, "given where a part is LIBSVM text", repair)
        if suffixes not in (".npz", ".txt", ".svm", ".libsvm", *SUFFIXES):
            raise invalid("parts", path, "LIBSVM text (.txt, .svm, .libsvm, packed or not) or .npz")
    all_parts = [Part(path, width) for path in files]
    if scheduler is None:
        return LocalBlocks.loading([part.load for part in all_parts], [part.name for part in all_parts])
    return DaskBlocks(scheduler, all_parts, patience)


def _files(parts: Any) -> list[str]:
    if isinstance(parts, (str, os.PathLike)):
        folder = Path(parts)
        if not folder.is_dir():
            raise invalid("parts", str(parts), "a folder, or a sequence of files")
        parts = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    files = [str(os.fspath(path)) for path in parts]
    if not files:
        raise invalid("parts", "none", "at least one file")
    seen: set[str] = set()
    for path in files:
        if (place := os.path.realpath(path)) in seen:
            raise invalid("parts", path, "given once", "A record of two blocks would count twice.")
        seen.add(place)
    return files
