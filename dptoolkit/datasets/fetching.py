"""Files of known sets, fetched on first use into a cache; a file is used only if its content is the known one."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

from dptoolkit._validate import invalid, missing
from dptoolkit.datasets import files
from dptoolkit.datasets.catalogue import Source
from dptoolkit.errors import DpToolkitError

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
            repair = f"It could not be fetched ({type(problem).__name__}). Fetch it by hand, and pass its folder."
            raise invalid("url", source.url, "reachable", repair) from None
    if hashlib.sha256(files.read_bytes(path)).hexdigest() != source.sha256:
        path.unlink()
        raise invalid("url", source.url, "the file that this registry knows", "It has changed, so it was removed.")
    return path


def _is_packed(url: str) -> bool:
    return any(suffix and url.endswith(suffix) for suffix in files.SUFFIXES)


def _pooch() -> Any:
    try:
        import pooch
    except ImportError:
        raise missing("pooch", "data", "to fetch data sets") from None
    return pooch
