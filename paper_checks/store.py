"""Records on disk, one file per unit, so that a run that is stopped or killed loses nothing that was finished."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import dptoolkit
from dptoolkit.distributed.sweeps import write_whole
from dptoolkit.distributed.versions import digest

_HERE = Path(__file__).parent


class Store:
    """A folder of records.

    A file carries a fingerprint of everything that its numbers depend on: the paper's folder, the code here and in
    dptoolkit, the seed and the data folder. A record with another fingerprint is computed anew.
    """

    def __init__(self, folder: Path, root: Path, seed: int, data_home: str | None) -> None:
        self.folder, self._root = folder, root
        self._base = digest([*_sources(_HERE, deep=False), *_sources(Path(dptoolkit.__file__).parent, deep=True)])
        self._base += f":{seed}:{data_home}"
        self._fingerprints: dict[str, str] = {}

    def load(self, paper: str, name: str) -> dict[str, Any] | None:
        """What was saved for a unit: record and seconds, or None."""
        try:
            kept = json.loads(self._path(paper, name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return kept if isinstance(kept, dict) and kept.get("fingerprint") == self.fingerprint(paper) else None

    def save(self, paper: str, name: str, record: dict[str, Any], seconds: float) -> None:
        """Write one unit, whole or not at all."""
        content = {"fingerprint": self.fingerprint(paper), "seconds": seconds, "record": record}
        write_whole(self._path(paper, name), json.dumps(content, indent=1))

    @property
    def shared_folder(self) -> Path:
        """The folder of runs that items share, a folder per paper."""
        return self.folder / "shared"

    def _path(self, paper: str, name: str) -> Path:
        safe = "".join(c if c.isalnum() or c in "-." else "_" for c in name)
        return self.folder / paper / f"{safe}.json"

    def fingerprint(self, paper: str) -> str:
        """Of everything that the numbers of a paper depend on."""
        if paper not in self._fingerprints:
            own = digest(sorted(path for path in (self._root / paper).iterdir() if path.suffix in (".py", ".toml")))
            self._fingerprints[paper] = hashlib.sha256(f"{self._base}:{own}".encode()).hexdigest()
        return self._fingerprints[paper]


def _sources(folder: Path, deep: bool) -> list[Path]:
    return sorted(folder.rglob("*.py") if deep else folder.glob("*.py"))
