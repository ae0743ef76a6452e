"""Where compiled kernels are kept during tests: one folder for all workers, which they write to one at a time.

Numba numbers the files of a function's compiled versions by what its index lists. Two processes that save at the same
moment read the same index, choose the same number, and one overwrites the other: at best an entry is lost and compiled
again, at worst the index of one signature leads to the code of another. So each process holds a lock while it saves or
loads. Processes that tests start know nothing of the lock. They get a folder of their own per worker, filled with links
to what the shared one holds when the worker starts, or when a test asks by ``hand_over``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

LOCK = ".lock"
# (shared folder, the children's folder) of this process, once it is set up.
_FOLDERS: list[tuple[Path, Path]] = []


def digest(root: Path) -> str:
    """The state of the kernels: Numba's cache does not notice an edit in another file, nor all of another Numba."""
    found = hashlib.sha256(f"numba {version('numba')}, numpy {version('numpy')}".encode())
    for path in sorted((root / "dptoolkit" / "kernels").glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No other process that asks is in here at the same time."""
    import fcntl

    with open(folder / LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def share(kind: type, own: Path, shared: Path) -> type:
    """Numba's kind of index file, but with the files below ``own`` in ``shared``, and one process at a time."""

    class Shared(kind):  # type: ignore[misc, valid-type]
        def __init__(self, cache_path: str, **rest: Any) -> None:
            super().__init__(cache_path.replace(str(own), str(shared)), **rest)

        def save(self, key: Any, data: Any) -> None:
            Path(self._cache_path).mkdir(parents=True, exist_ok=True)
            with alone(shared):
                super().save(key, data)

        def load(self, key: Any) -> Any:
            with alone(shared):
                return super().load(key)

    return Shared


def copy_for_children(shared: Path, own: Path) -> None:
    """Fill a folder with links to everything that is shared now; Numba replaces files and never writes into them."""
    shutil.rmtree(own, ignore_errors=True)
    with alone(shared):
        shutil.copytree(shared, own, copy_function=os.link, ignore=shutil.ignore_patterns(LOCK, "*.tmp.*"))


def hand_over() -> None:
    """Let the processes that this one starts from now on find everything that has been compiled so far."""
    for shared, own in _FOLDERS:
        copy_for_children(shared, own)


def set_up(root: Path, worker: str) -> None:
    """Let this process use the shared folder, and the processes that it starts one of their own."""
    here = root / ".numba_cache" / digest(root)
    own, shared = here / worker, here / "shared"
    # Numba reads this at its import, and again when it compiles.
    os.environ["NUMBA_CACHE_DIR"] = str(own)
    try:
        import fcntl  # noqa: F401
    except ImportError:  # Windows has no such locks: every worker compiles for itself.
        return
    from numba.core import caching

    shared.mkdir(parents=True, exist_ok=True)
    _FOLDERS[:] = [(shared, own)]
    hand_over()
    caching.IndexDataCacheFile = share(caching.IndexDataCacheFile, own, shared)
