"""How much the first secure draw compiles, and that the next process compiles nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import json, sys
from dptoolkit import randomness
assert "numba" not in sys.modules, "numba was imported too early"
import numba.core.event as event
compiled = []

class Listener(event.Listener):
    def on_start(self, e):
        compiled.append(str(e.data["dispatcher"].py_func.__name__))
    def on_end(self, e):
        pass

event.register("numba:compile", Listener())
import numpy as np
from dptoolkit.data import Grids, check_rows
from dptoolkit.data import grids as g
stream = randomness.SecureStream()
randomness.rounded_normals(stream, 5, 10)
first = len(compiled)
randomness.rounded_laplace(stream, 5, 10)
randomness.largest_noises(stream, 5, 10**6, 3)
randomness.IntegerSelection([1, 2, 3], 0.5).select(stream)
grids = Grids.choose(3, 1.0, 1.0, 5.0)
rows, lengths = g.directions_on_grid(check_rows(np.eye(3)), grids)
g.exact_sum(rows, g.residuals_on_grid(np.ones(3), grids, lengths=lengths))
print(json.dumps([first, compiled]))
"""
# Functions that the first normals compile (words, one sampler, its rounding), and all of ours together.
FIRST, ALL = 3, 15


def compiled(root, folder):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=False, timeout=600,
        env=os.environ | {"NUMBA_CACHE_DIR": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_first_draws_compile_little_and_the_next_process_nothing(root, tmp_path):
    first, names = compiled(root, tmp_path)
    assert first <= FIRST, names
    assert len(names) <= ALL and len(set(names)) == len(names), names
    assert compiled(root, tmp_path) == [0, []]
