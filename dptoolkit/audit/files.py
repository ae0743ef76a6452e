"""Somebody else's mechanism by its name, and a pair of datasets from a file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.audit.pairs.pair import Pair

_CONTENTS = "arrays first and second, or first_X, first_y, second_X and second_y"


def load_function(name: str) -> Callable[..., Any]:
    """The function of "module:function"; modules in the working folder are found too."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function: Any = importlib.import_module(module)
    except ImportError as problem:
        raise invalid("mechanism", name, "a module that can be imported", str(problem)) from None
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise invalid("mechanism", name, "MODULE:FUNCTION", f"{module} has no function {attribute!r}.")
    return function


def load_pair(path: str | Path, size: int = 1) -> Pair:
    """Two datasets from an .npz file: arrays, or (X, y). They may differ in ``size`` records."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError) as problem:
        raise invalid("pair", str(path), "an .npz file", str(problem)) from None
    text = f"the datasets of {Path(path).name}"
    if set(arrays) == {"first", "second"}:
        return Pair(arrays["first"], arrays["second"], description=text, size=size)
    if set(arrays) == {"first_X", "first_y", "second_X", "second_y"}:
        one, two = ((arrays[f"{side}_X"], arrays[f"{side}_y"]) for side in ("first", "second"))
        return Pair(one, two, description=text, size=size)
    raise invalid("pair", f"a file of {', '.join(sorted(arrays)) or 'nothing'}", f"one of {_CONTENTS}")
