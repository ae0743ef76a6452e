"""Keys of secure fits: one for every fit, in threads, forks and workers, and none that outlives the process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dptoolkit import solvers

pytestmark = pytest.mark.filterwarnings("ignore:.*noise is too large", "ignore:.*multi-threaded:DeprecationWarning")

SETTINGS = {"loss": "logistic", "sparsity": 3, "steps": 2, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}


def release(_=None):
    """The first noisy gradient of a fit on data that are always the same: equal keys give equal numbers."""
    X = np.eye(6)
    plan = solvers.plan("dp_ight", n=6, d=6, randomness="secure", **SETTINGS)
    return tuple(solvers.bind(plan, X, np.arange(6) % 2)(np.random.default_rng(0), True).releases[0])


def forked(connection):
    connection.send([release(), release()])
    connection.close()


def test_no_two_fits_share_a_key():
    """In this process, in threads and in forked children: all releases differ."""
    seen = [release(), release()]
    with ThreadPoolExecutor(4) as pool:
        seen += pool.map(release, range(8))
    if "fork" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("fork")
        for _ in range(2):
            mine, theirs = context.Pipe()
            child = context.Process(target=forked, args=(theirs,))
            child.start()
            seen += mine.recv()
            child.join()
    assert len(set(seen)) == len(seen) >= 10


@pytest.mark.slow
def test_workers_of_joblib_share_no_key():
    joblib = pytest.importorskip("joblib")
    seen = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(release)() for _ in range(4))
    assert len({*seen, release()}) == 5


PROGRAM = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from dptoolkit import solvers
urandom, keys = os.urandom, []
def watched(count):
    key = urandom(count)
    keys.extend([key.hex()] if count == 32 else [])
    return key
os.urandom = watched
rng = np.random.default_rng(0)
X, y = rng.standard_normal((2000, 40)), rng.integers(0, 2, 2000)
plan = solvers.plan("dp_ight", n=2000, d=40, loss="logistic", sparsity=5, steps=10**6, row_norm=1.0, epsilon=1.0,
                    delta=1e-6, randomness="secure")
run = solvers.bind(plan, X, y)
from dptoolkit.solvers.engine import secure
noisy = secure.SecureMeanGradient.noisy
def told(self, *arguments):
    out = noisy(self, *arguments)
    if keys:
        print(keys[-1], flush=True)
        keys.clear()
    return out
secure.SecureMeanGradient.noisy = told
run(None)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_killed_fit_leaves_no_key_on_disk(tmp_path, root):
    """Killed in the middle of its steps: no file of its folders holds the key, as bytes or in hexadecimal digits."""
    own = {name: str(tmp_path) for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME")}
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
                               env=os.environ | own | {"PYTHONPATH": str(root)})  # fmt: skip
    assert program.stdout is not None
    key = program.stdout.readline().strip()
    program.kill()
    assert program.wait() == -signal.SIGKILL and len(key) == 64
    program.stdout.close()
    # A planted copy would be found.
    (tmp_path / "planted").write_bytes(b"..." + bytes.fromhex(key))
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    forms = bytes.fromhex(key), key.encode()
    assert [file.name for file in files if any(form in file.read_bytes() for form in forms)] == ["planted"]
