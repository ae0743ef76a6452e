"""What must be the same in every process of a fit: Python, the libraries that compute, and our own sources."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import dptoolkit

_LIBRARIES = ("numpy", "scipy", "numba")


@functools.cache
def environment() -> Mapping[str, str]:
    """The versions of this process, by name; "sources" is a digest of the files of dptoolkit."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    found |= {name: metadata.version(name) for name in _LIBRARIES}
    sources = digest(sorted(Path(dptoolkit.__file__).parent.rglob("*.py")))
    return found | {"dptoolkit": dptoolkit.__version__, "sources": sources[:16]}


def digest(paths: Iterable[Path]) -> str:
    """SHA-256 of the names and contents of files."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def differences(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    """What is not the same, in words; "" if nothing is."""
    names = [name for name in own if own[name] != other.get(name)]
    return ", ".join(f"{name} {other.get(name, 'missing')} there, {own[name]} here" for name in names)
