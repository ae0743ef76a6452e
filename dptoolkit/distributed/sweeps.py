"""Many runs, each with a name from which it is seeded: in parallel, saved as they come, continued after a stop."""

from __future__ import annotations

import hashlib
import json
import marshal
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dptoolkit import progress
from dptoolkit._validate import invalid, whole
from dptoolkit.distributed.executors import Executor
from dptoolkit.distributed.executors import executor as make_executor
from dptoolkit.distributed.versions import environment

Runs = Mapping[str, Mapping[str, Any]]


def sweep(
    function: Callable[..., Any],
    runs: Runs,
    *,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    scheduler: Any = None,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """``function(rng=..., **arguments)`` for every run.

    Parameters
    ----------
    function : callable
        What is run. ``rng`` is a Generator of the run's own, made of ``seed`` and the run's name.
    runs : mapping of str to mapping
        The arguments of every run, by its name.
    seed : int, default 0
        The seed of all runs.
    folder : path-like or None, default None
        Where results are saved, one file of JSON per run, as they come. What is there already, from the same function,
        arguments, seed and version, is not run again. None saves nothing; then results may be anything.
    workers : int or None, default None
        As in ``executor``.
    scheduler : str, distributed.Client or None, default None
        As in ``executor``.
    executor : Executor or None, default None
        As in ``executor``.

    Returns
    -------
    dict
        The result of every run, in the order of ``runs``.

    Privacy
    -------
    A run that is made twice, because a worker was lost or a sweep was stopped, draws the same numbers: it is the same
    release. Seeds are for experiments on data that are not private: whoever knows one can remove the noise.
    """
    whole("seed", seed, low=0)
    if not all(isinstance(name, str) for name in runs):
        raise invalid("runs", "names that are not text", "a mapping from names to arguments")
    saved = None if folder is None else Results(Path(folder), f"{_identity(function)}:{seed}")
    results: dict[str, Any] = {}
    if saved is not None:
        results = {name: kept[0] for name in runs if (kept := saved.load(name, runs[name])) is not None}
    todo = [name for name in runs if name not in results]
    if todo:
        with make_executor(workers, scheduler=scheduler, executor=executor) as pool:
            made = pool.each(partial(_one, function, seed), [(name, dict(runs[name])) for name in todo])
            for number, result in progress.counted(made, range(1, len(todo) + 1), len(todo), "run"):
                name = todo[number]
                results[name] = result if saved is None else saved.save(name, runs[name], result)
    return {name: results[name] for name in runs}


def _one(function: Callable[..., Any], seed: int, run: tuple[str, dict[str, Any]]) -> Any:
    name, arguments = run
    return function(rng=named_generator(seed, name), **arguments)


def named_generator(*axes: Any) -> np.random.Generator:
    """A Generator that is made of names and numbers alone, so that it is the same wherever and whenever it is made."""
    text = "\x1f".join(map(str, axes))
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big"))


def _identity(function: Any) -> str:
    """What tells one function from another: its name, its compiled code, and arguments that are bound to it."""
    bound = []
    while isinstance(function, partial):
        bound.append(_json("function", [list(function.args), function.keywords]))
        function = function.func
    code = getattr(function, "__code__", None)
    digest = "" if code is None else hashlib.sha256(marshal.dumps(code)).hexdigest()
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}.{name}:{digest}:{bound}"


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        repair = "Use numbers, texts, lists and dicts, or leave folder out."
        raise invalid(name, type(value).__name__, "JSON where a folder is given", repair) from None


class Results:
    """Results on disk, one file of JSON per run, each written whole or not at all.

    A file carries a fingerprint of what its result depends on: the function's name, the arguments, the seed and the
    versions of all that computes. A result with another fingerprint is computed anew.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        if folder.exists() and not folder.is_dir():
            raise invalid("folder", str(folder), "a folder")
        self.folder, self._owner = folder, owner

    def load(self, name: str, arguments: Mapping[str, Any]) -> tuple[Any] | None:
        """(the result of a run,) if it was saved, else None."""
        try:
            kept = json.loads(self._path(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        same = isinstance(kept, dict) and kept.get("fingerprint") == self._fingerprint(name, arguments)
        return (kept["result"],) if same else None

    def save(self, name: str, arguments: Mapping[str, Any], result: Any) -> Any:
        """Write a result, and return it as it will be read."""
        content = {"name": name, "fingerprint": self._fingerprint(name, arguments), "result": result}
        text = _json(f"result of {name}", content)
        write_whole(self._path(name), text)
        return json.loads(text)["result"]

    def _path(self, name: str) -> Path:
        # A digest, because a name may be too long for a file, or not allowed in one.
        return self.folder / f"run-{hashlib.sha256(name.encode()).hexdigest()[:24]}.json"

    def _fingerprint(self, name: str, arguments: Mapping[str, Any]) -> str:
        facts = [self._owner, name, _json(f"arguments of {name}", dict(arguments)), sorted(environment().items())]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a file so that readers, also after a crash, see the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)
    except BaseException:
        # A disk that is full keeps no half of a file.
        new.unlink(missing_ok=True)
        raise
