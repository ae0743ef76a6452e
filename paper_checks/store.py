"""Records on disk, one file per unit, so that a run that is stopped or killed loses nothing that was finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dptoolkit
from dptoolkit.distributed.sweeps import write_whole
from dptoolkit.distributed.versions import digest
from paper_checks.files import mark
from paper_checks.items import BadClaims

_HERE = Path(__file__).parent
# Modules that only show records. What is in them is not part of a record's fingerprint, so no other module here or in
# a paper's folder may import them.
PRESENTATION = ("__main__.py", "drawing.py", "html.py", "pages.py", "progress.py", "report.py")


class Store:
    """A folder of records.

    A file carries the name of its unit and a fingerprint of everything that its numbers depend on: the paper's folder,
    the code here and in dptoolkit, the seed, and size and time of the item's own data files. A record with another
    fingerprint is computed anew, and so is one without data: they, or a package, may be here now.
    """

    def __init__(self, folder: Path, root: Path, seed: int, data_home: str | None) -> None:
        self.folder, self._root, self._data_home = folder, root, data_home
        own = [path for path in _sources(_HERE, deep=False) if path.name not in PRESENTATION]
        self._base = digest([*own, *_sources(Path(dptoolkit.__file__).parent, deep=True)])
        self._base += f":{seed}"
        self._fingerprints: dict[str, str] = {}
        self._marks: dict[tuple[str, ...], str] = {}

    def load(self, paper: str, name: str, data: Iterable[str] = ()) -> dict[str, Any] | None:
        """What was saved for a unit that needs these data sets: record and seconds, or None."""
        try:
            kept = json.loads(self._path(paper, name).read_text(encoding="utf-8"))
            own = kept["fingerprint"] == self.fingerprint(paper, data) and kept["unit"] == f"{paper} {name}"
            complete = own and kept["record"]["verdict"] != "no data" and kept["seconds"] >= 0
        except (OSError, ValueError, KeyError, TypeError):
            # Not there, or not a whole file of ours.
            return None
        return dict(kept) if complete else None

    def save(
        self, paper: str, name: str, record: dict[str, Any], seconds: float, cpu: float, data: Iterable[str] = ()
    ) -> None:
        """Write one unit, whole or not at all: the record, and seconds on the clock and of the processor."""
        content = {
            "fingerprint": self.fingerprint(paper, data), "unit": f"{paper} {name}", "seconds": seconds,
            "cpu_seconds": cpu, "record": record,
        }  # fmt: skip
        write_whole(self._path(paper, name), json.dumps(content, indent=1))

    @property
    def shared_folder(self) -> Path:
        """The folder of runs that items share, a folder per paper."""
        return self.folder / "shared"

    def _path(self, paper: str, name: str) -> Path:
        return self.folder / paper / f"{_file_name(name)}.json"

    def fingerprint(self, paper: str, data: Iterable[str] = ()) -> str:
        """Of everything that the numbers of a unit of this paper with these data sets depend on."""
        names = tuple(sorted(data))
        if names not in self._marks:
            self._marks[names] = mark(names, self._data_home)
        code = self._of_paper(paper)
        return hashlib.sha256(f"{code}:{self._marks[names]}".encode()).hexdigest() if names else code

    def _of_paper(self, paper: str) -> str:
        if paper not in self._fingerprints:
            own = digest(sorted(path for path in (self._root / paper).iterdir() if path.suffix in (".py", ".toml")))
            self._fingerprints[paper] = hashlib.sha256(f"{self._base}:{own}".encode()).hexdigest()
        return self._fingerprints[paper]


def check_apart(paper: str, names: Iterable[str]) -> None:
    """Refuse units of a paper whose records would be one file, also where a file's name has no capitals."""
    owners: dict[str, str] = {}
    for name in names:
        file = _file_name(name).casefold()
        if (other := owners.get(file)) is not None:
            raise BadClaims(f"{paper}: {other!r} and {name!r}: must have results in two files. Rename one of them.")
        owners[file] = name


def _file_name(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() or c in "-." else "_" for c in name)


def _sources(folder: Path, deep: bool) -> list[Path]:
    return sorted(folder.rglob("*.py") if deep else folder.glob("*.py"))
