"""Runs that several items of a paper share: made once, kept in memory and in files beside the results of items.

A table, its figures and the sentences about them rest on the same fits. The first item that asks for a part makes it;
the others, in this process or another, read it. Its random numbers must come from ``source``, which belongs to no item.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dptoolkit.distributed.sweeps import write_whole
from paper_checks import seeds

Part = dict[str, Any]
# Letters of a part's name in the name of its file, which may not be long.
_READABLE = 80


@dataclass(frozen=True)
class Shared:
    """The shared runs of one paper.

    Attributes
    ----------
    source : Source
        The generators of what is shared, as ``rng`` is those of an item.
    data_home : str or None
        The folder of data sets.
    folder : Path or None
        Where parts are kept; None keeps them in memory only.
    fingerprint : str
        Of everything that the parts depend on: a part with another one is made anew.
    with_data : callable or None
        The fingerprint of parts that also depend on data sets, from their names.
    """

    source: seeds.Source
    data_home: str | None = None
    folder: Path | None = None
    fingerprint: str = ""
    with_data: Callable[[Sequence[str]], str] | None = None
    _made: dict[str, Part] = field(default_factory=dict)

    def part(self, name: str, make: Callable[[], Part], data: Sequence[str] = ()) -> Part:
        """The part of that name, a dictionary that JSON can hold, made now if nobody has made it before.

        ``data`` names the data sets that it is made from: if their files are replaced, so is the part.
        """
        if name not in self._made:
            mark = self.fingerprint if not data or self.with_data is None else self.with_data(data)
            self._made[name] = make() if self.folder is None else self._kept(name, self.folder, mark, make)
        return self._made[name]

    def _kept(self, name: str, folder: Path, mark: str, make: Callable[[], Part]) -> Part:
        # With a digest, because names that differ in marks or capitals alone must not share a file.
        readable = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)[:_READABLE]
        path = folder / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(path.with_suffix(".lock")):
            found = self._read(name, path, mark)
            if found is None:
                # As JSON gives it back, so that a resumed run sees the same numbers and the same types.
                found = json.loads(json.dumps(make()))
                write_whole(path, json.dumps({"fingerprint": mark, "name": name, "part": found}))
        return found

    def _read(self, name: str, path: Path, mark: str) -> Part | None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            own = content["fingerprint"] == mark and content["name"] == name
            return dict(content["part"]) if own else None
        except (OSError, ValueError, KeyError, TypeError):
            # Not there, or not a whole file of ours.
            return None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Other processes wait, so that no two make the same part. A process that dies lets go of the lock."""
    try:
        import fcntl
    except ImportError:  # no such locks here: at worst a part is made twice
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
