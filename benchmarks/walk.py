"""The call path of a fit, counted: how many of our modules one call visits, and how often it changes between them.

    python -m benchmarks.walk         # a first and a second fit of dp_ight, one by rules, and the shell's ``fit``
    python -m benchmarks.walk -v      # with the modules and the number of calls into each

A short path is what a newcomer has to read to follow a fit. Python functions are counted as they are called, by
``sys.setprofile``, in the second of two equal calls, when everything is imported and compiled; only "first fit" counts
the first. Compiled kernels are not seen, but their callers are.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

Call = Callable[[], object]


class Walk:
    """A profile function that counts calls into each module of dptoolkit, and the changes between modules."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.switches = 0
        self._last: str | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith("dptoolkit"):
            return
        self.calls[module] += 1
        self.switches += self._last not in (None, module)
        self._last = module


def walk_of(call: Call, warm: bool = True) -> Walk:
    """The walk of one call, after a first one that is not counted if ``warm``."""
    if warm:
        call()
    walk = Walk()
    sys.setprofile(walk)
    try:
        call()
    finally:
        sys.setprofile(None)
    return walk


def small_fit() -> Call:
    """A fit of dp_ight whose settings are all given."""
    return _fit_of_dp_ight(100, 5, steps=5, step_size=1.0)


def fit_by_rules() -> Call:
    """A fit of dp_ight on a larger table, whose steps and step size follow from rules."""
    return _fit_of_dp_ight(3000, 40)


def _fit_of_dp_ight(n: int, d: int, **settings: Any) -> Call:
    import numpy as np

    from dptoolkit import solvers

    X = np.random.default_rng(0).standard_normal((n, d))
    y = (X[:, 0] > 0) * 1.0
    budget = {"row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    return lambda: solvers.dp_ight(X, y, loss="logistic", sparsity=2, **budget, **settings)


def shell_fit(folder: Path) -> Call:
    """``dptoolkit fit`` on a LIBSVM file of 300 records with six features."""
    import numpy as np

    from dptoolkit import cli

    X = np.random.default_rng(0).standard_normal((300, 6))
    entries = (" ".join(f"{j + 1}:{value:.4f}" for j, value in enumerate(row)) for row in X)
    lines = [f"{int(row[0] > 0)} {text}" for row, text in zip(X, entries, strict=True)]
    (folder / "rows.svm").write_text("\n".join(lines) + "\n")
    line = (
        f"fit {folder}/rows.svm --task classification --classes 0 1 --epsilon 2 --n-features 6 --row-norm 1 "
        f"--out {folder}/model.json --quiet"
    )

    def call() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            status = cli.main(line.split())
        if status != 0:
            raise RuntimeError(f"dptoolkit {line}: exit code {status}, where 0 was expected.")

    return call


def main(arguments: list[str]) -> None:
    """Print the walks; with -v, their modules."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        walks = {
            "dp_ight, first fit": walk_of(small_fit(), warm=False),
            "dp_ight": walk_of(small_fit()),
            "dp_ight by rules": walk_of(fit_by_rules()),
            "dptoolkit fit": walk_of(shell_fit(Path(folder))),
        }
    for name, walk in walks.items():
        print(f"{name}: {len(walk.calls)} modules, {walk.switches} switches")
        if "-v" in arguments:
            for module, count in walk.calls.most_common():
                print(f"    {module.removeprefix('dptoolkit.')} {count}")


if __name__ == "__main__":
    main(sys.argv[1:])
