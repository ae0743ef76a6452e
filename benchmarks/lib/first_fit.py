"""The first fit of every solver in a new process: imports, kernels and accounting included.

    python -m benchmarks.lib.first_fit                        # CPU seconds of all, nothing compiled and kernels cached
    python -m benchmarks.lib.first_fit dp_ight sparsifier     # of some
    python -m benchmarks.lib.first_fit dp_ight --functions    # also what is compiled, and for how long

Times are CPU seconds of the whole process, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.lib.race import Best
from dptoolkit.accounting.report import table

_DATA = """
import numpy as np
from scipy import sparse
generator = np.random.default_rng(0)
n, d, width = 2000, 5000, 20
columns = np.sort(generator.integers(0, d, (n, width)), axis=1).ravel()
X = sparse.csr_matrix((generator.random(n * width) / width, columns, np.arange(0, n * width + 1, width)), shape=(n, d))
D = generator.random((n, 30)) / 30
y = generator.integers(0, 2, n)
budget = dict(epsilon=1.0, delta=1e-6, rng=0)
binary = dict(loss="logistic", row_norm=1.0, **budget)
sgd = dict(sparsity=10, batch_size=64, step_size=1.0, **binary)
l1 = dict(l1_radius=10.0, steps=50, feature_bound=1.0, **budget)
from dptoolkit import solvers
"""
# The first fit of each name on X (CSR, 2,000 x 5,000) or on D (dense, 2,000 x 30).
_CALLS = {
    "dp_ight": "solvers.dp_ight({X}, y, sparsity=10, steps=10, **binary)",
    "dp_frank_wolfe": "solvers.dp_frank_wolfe({X}, y, loss='logistic', **l1)",
    "sparsifier": "solvers.sparsifier({X}, y, **l1)",
    "dp_multinomial_frank_wolfe": "solvers.dp_multinomial_frank_wolfe({X}, y, classes=2, **l1)",
    "peeling_iht": "solvers.peeling_iht({X}, y.astype(float), sparsity=10, steps=10, step_size=0.5, radius=1.0,"
    " feature_bound=1.0, label_bound=1.0, **budget)",
    "dp_sgd_ht": "solvers.dp_sgd_ht({X}, y, steps=20, **sgd)",
    "dp_scsg_ht": "solvers.dp_scsg_ht({X}, y, epochs=2, snapshot_size=640, **sgd)",
    "dp_svrg_ht": "solvers.dp_svrg_ht({X}, y, epochs=2, **sgd)",
    "dp_dual_averaging": "solvers.dp_dual_averaging({X}, y, **binary)",
    "dp_pipeline": "solvers.dp_pipeline({X}, y, **budget)",
    "objective_perturbation": "solvers.objective_perturbation({X}, y, **binary)",
    "two_stage": "solvers.two_stage({X}, y, sparsity=10, blocks=20, **binary)",
    "knowledge_transfer": "solvers.knowledge_transfer({X}, y, sparsity=10, **binary)",
    "dp_admm": "solvers.dp_admm({X}, y, steps=10, **binary)",
    "fit_many": "solvers.fit_many(solvers.plan('dp_ight', n=n, d={X}.shape[1], loss='logistic', sparsity=10, steps=10,"
    " row_norm=1.0, epsilon=1.0, delta=1e-6), {X}, y, seeds=range(8))",
}
_ESTIMATOR = "from dptoolkit import estimators\nestimators.{name}(delta=1e-6, random_state=0{more}).fit({{X}}, y)"
_CALLS |= {
    name + more: _ESTIMATOR.format(name=name, more=more)
    for name, more in (
        ("PrivateSparseClassifier", ""), ("PrivateIHTClassifier", ""), ("PrivateLassoClassifier", ""),
        ("PrivateStochasticIHTClassifier", ""), ("PrivateStochasticIHTClassifier", ", method='svrg'"),
        ("PrivateObjectivePerturbationClassifier", ""),
    )
}  # fmt: skip
# All cases, sorted by name and then by layout.
CASES = {
    f"{name}, {layout}": call.format(X=variable)
    for name, call in _CALLS.items()
    for layout, variable in (("csr", "X"), ("dense", "D"))
}

_TIMED = """
import time
start = time.perf_counter()
{data}
{call}
print(time.perf_counter() - start, time.process_time())
"""
# Numba announces every compilation; one inside another is subtracted from the outer one.
_WATCHED = """
import json, time
from numba.core import event
class Compilations(event.Listener):
    def __init__(self):
        self.open, self.done = [], []
    def on_start(self, announced):
        self.open.append([time.process_time(), 0.0])
    def on_end(self, announced):
        start, inner = self.open.pop()
        spent = time.process_time() - start
        if self.open:
            self.open[-1][1] += spent
        function = announced.data["dispatcher"].py_func
        self.done.append([function.__module__, function.__qualname__, str(announced.data["args"]), spent - inner])
watched = Compilations()
event.register("numba:compile", watched)
{data}
{call}
print(json.dumps(watched.done))
"""


class Compilation(NamedTuple):
    """A function that was compiled for arguments of some types, with the seconds of its own, without its callees."""

    module: str
    function: str
    types: str
    seconds: float


def first_fit(case: str, cache: str) -> Best:
    """Seconds in a new interpreter whose compiled kernels live in the folder ``cache``."""
    return Best(*map(float, _run(_TIMED, case, cache).split()))


def compilations(case: str, cache: str) -> list[Compilation]:
    """What the first fit compiles that is not in the folder ``cache`` yet."""
    return [Compilation(*one) for one in json.loads(_run(_WATCHED, case, cache))]


def _run(program: str, case: str, cache: str) -> str:
    environment = os.environ | {"NUMBA_CACHE_DIR": cache, "OPENBLAS_NUM_THREADS": "1"}
    # As for any user, bytecode is kept from the first run on.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    code = program.format(data=_DATA, call=CASES[case])
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{case}: {process.stderr}")
    return process.stdout


def measure(case: str, rounds: int = 3) -> tuple[Best, Best]:
    """(nothing compiled, kernels cached), the latter the best of ``rounds``."""
    with tempfile.TemporaryDirectory() as cache:
        cold = first_fit(case, cache)
        runs = [first_fit(case, cache) for _ in range(rounds)]
    return cold, Best(min(run.wall for run in runs), min(run.cpu for run in runs))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lib.first_fit", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of the names of cases; default: all")
    parser.add_argument("--functions", action="store_true", help="list the compiled functions")
    options = parser.parse_args(argv)
    cases = [case for case in CASES if not options.names or case.startswith(tuple(options.names))]
    rows = []
    for case in cases:
        cold, warm = measure(case)
        rows.append([case, f"{cold.cpu:.2f}", f"{warm.cpu:.2f}"])
        print(f"{case}: {cold.cpu:.2f} s, then {warm.cpu:.2f} s", file=sys.stderr, flush=True)
        if options.functions:
            with tempfile.TemporaryDirectory() as cache:
                events = compilations(case, cache)
            print(f"\n{case}: {len(events)} compilations, {sum(one.seconds for one in events):.2f} s")
            for one in sorted(events, key=lambda one: -one.seconds):
                print(f"  {one.seconds:6.3f}  {one.module}.{one.function}  {one.types[:150]}")
    print("\nFirst fit, CPU s\n\n" + table(["case", "nothing compiled", "kernels cached"], rows))


if __name__ == "__main__":
    main()
