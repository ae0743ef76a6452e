"""Somebody else's mechanism by its name, and a pair of datasets from a file."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dptoolkit._validate import invalid, whole
from dptoolkit.audit.pair import Pair

_CONTENTS = "arrays first and second, or first_X, first_y, second_X and second_y"


def load_function(name: str) -> Callable[..., Any]:
    """The function of "module:function"; modules in the working folder are found too."""
    module, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not all(part.isidentifier() for part in module.split(".")):
        raise invalid("mechanism", name, "MODULE:FUNCTION", f"{module!r} is not the name of a module.")
    try:
        function: Any = importlib.import_module(module)
    # Whatever somebody's module does when it is imported, leaving the interpreter included.
    except (Exception, SystemExit) as problem:
        why = f"{type(problem).__name__}: {problem}"
        raise invalid("mechanism", name, "a function of a module that can be imported", why) from None
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise invalid("mechanism", name, "MODULE:FUNCTION", f"{module} has no function {attribute!r}.")
    return function


def load_pair(path: str | Path, size: int = 1) -> Pair:
    """Two datasets from an .npz file: arrays, or (X, y). They may differ in ``size`` records."""
    size, arrays = whole("size of the group", size, low=1), _arrays(path)
    text = f"the datasets of {Path(path).name}" + (f"; up to {size} records changed together" if size > 1 else "")
    if set(arrays) == {"first", "second"}:
        return Pair(arrays["first"], arrays["second"], description=text, size=size)
    if set(arrays) == {"first_X", "first_y", "second_X", "second_y"}:
        one, two = ((arrays[f"{side}_X"], arrays[f"{side}_y"]) for side in ("first", "second"))
        for side, (X, y) in (("first", one), ("second", two)):
            if X.ndim == 0 or y.ndim == 0 or len(X) != len(y):
                shapes = f"{side}_X of shape {X.shape} and {side}_y of shape {y.shape}"
                raise invalid("pair", shapes, "as many labels as rows")
        return Pair(one, two, description=text, size=size)
    repair = "Write it by numpy.savez(file, first=..., second=...)."
    raise invalid("pair", f"a file of {', '.join(sorted(arrays)) or 'nothing'}", f"a file of {_CONTENTS}", repair)


def _arrays(path: str | Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    # A .npy file has no context; a file that is cut off is no zip, or has no data.
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as problem:
        repair = f"Write it by numpy.savez: {_CONTENTS}. ({type(problem).__name__}: {problem})"
        raise invalid("pair", str(path), "an .npz file of numbers that can be read", repair) from None
