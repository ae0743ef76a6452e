"""The files of data sets: whether they are here, and a mark that changes when they are replaced."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dptoolkit.datasets.registry import FILES, locate
from paper_checks.items import BadClaims


def available(name: str, data_home: str | None) -> bool:
    """Whether all files of a data set are in the folder that was named; nothing is downloaded."""
    if data_home is None and not os.environ.get("DPTOOLKIT_DATA"):
        return False
    try:
        return all(locate(name, split, data_home) for split in FILES[name].splits)
    except (KeyError, OSError, ValueError):
        return False


def mark(names: Iterable[str], data_home: str | None) -> str:
    """Name, size and time of the last change of every file of the data sets; where they lie does not matter."""
    return ";".join(_mark(name, data_home) for name in sorted(names))


def _mark(name: str, data_home: str | None) -> str:
    if not available(name, data_home):
        return f"{name} not here"
    parts = []
    for split in FILES[name].splits:
        try:
            paths = locate(name, split, data_home)
            stats = [(path, path.stat()) for path in paths]
        except (OSError, ValueError):
            parts.append(f"{split} not here")
            continue
        parts += [f"{path.name} {found.st_size} {found.st_mtime_ns}" for path, found in stats]
    return f"{name} {' '.join(parts)}"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Refuse a second run into the same folder while this one lasts: it would remove what this one shares.

    The lock is the process's own, so it ends with it however it ends.
    """
    try:
        import fcntl
    except ImportError:  # no such locks here
        yield
        return
    with (folder / "run.lock").open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise BadClaims(f"--out {folder}: another run writes there; wait for it, or name another folder.") from None
        except OSError:
            # A file system without locks.
            pass
        yield
