"""Large tables: CPU seconds, peak memory and test error of our default beside scikit-learn and diffprivlib, in one run.

    python -m benchmarks.large_tables --data FOLDER                      # covtype, two and seven classes, all rows
    python -m benchmarks.large_tables --rows 2000000 --columns 50       # a made-up table: how time and memory grow

Every method runs in a process of its own with one thread, on the same training rows in doubles, one after another. The
time is that of the fit alone, including whatever a method does to prepare rows; it is compared with scikit-learn's in
the same run, because machines differ. Memory is the peak of the process during the fit beyond what it held before the
fit, when X was there already. scikit-learn's rows are scaled by its own StandardScaler; diffprivlib's by the public
bounds, which are those of dptoolkit. diffprivlib is skipped where it is not installed (extra "peers"). dptoolkit is run
with both kinds of noise: "dptoolkit" is the default, secure noise, and "dptoolkit, fast noise" a fit from a seed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dptoolkit.accounting.report import table

EPSILON, DELTA = 1.0, 1e-5
# Rows of a fit before the one that is timed.
WARM_UP = 60_000
# Public: what the covtype columns can be, rounded up to what a person would write down.
LOWER = np.array([1500, 0, 0, 0, -300, 0, 0, 0, 0, 0, *[0] * 44], dtype=float)
UPPER = np.array([4000, 360, 90, 1500, 700, 7500, 255, 255, 255, 7500, *[1] * 44], dtype=float)
RESULTS = Path(__file__).parent / "results" / "large_tables.json"


def covtype(home: Path, classes: int) -> tuple[Any, ...]:
    """(X, y, X_test, y_test, lower, upper): a tenth of the rows, drawn once, are for testing."""
    from dptoolkit import datasets

    data = datasets.load("covtype", data_home=home)
    kinds = data.y - data.y.min()
    # The second of the seven kinds of forest against the others, as in covtype.binary.
    y = kinds if classes > 2 else (kinds == 1).astype(float)
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[:58_000], order[58_000:]
    X = np.asarray(data.X, dtype=np.float64)
    return X[train], y[train], X[test], y[test], LOWER, UPPER


def made_up(n: int, d: int) -> tuple[Any, ...]:
    """Correlated columns in units between 1 and 1,000; the test rows are 20,000 more."""
    rng = np.random.default_rng(0)
    unit, weights = np.logspace(0, 3, d), rng.standard_normal(d) / np.sqrt(d)

    def rows(count: int) -> tuple[Any, Any]:
        X = rng.standard_normal((count, d))
        X += rng.standard_normal((count, 1))
        y = (X @ weights + 0.5 * rng.standard_normal(count) > 0).astype(float)
        X *= unit
        return X, y

    return (*rows(n), *rows(20_000), -6 * unit, 6 * unit)


def ours(X: Any, y: Any, lower: Any, upper: Any, classes: int, rng: int | None = None) -> Callable[[Any], Any]:
    """The default, from bounds and budget alone; noise is secure, or fast from a seed."""
    from dptoolkit import models

    model = models.fit(
        X, y, task="classification", classes=tuple(range(classes)), bounds=(lower, upper), epsilon=EPSILON,
        delta=DELTA, rng=rng,
    )  # fmt: skip
    return model.predict


def seeded(X: Any, y: Any, lower: Any, upper: Any, classes: int) -> Callable[[Any], Any]:
    """``ours`` with fast noise from a seed, as in the other benchmarks."""
    return ours(X, y, lower, upper, classes, rng=0)


def scikit(X: Any, y: Any, lower: Any, upper: Any, classes: int) -> Callable[[Any], Any]:
    """Logistic regression without privacy, on standardised columns."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    predict: Callable[[Any], Any] = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, y).predict
    return predict


def diffprivlib(X: Any, y: Any, lower: Any, upper: Any, classes: int) -> Callable[[Any], Any]:
    """Its logistic regression, one class against the rest, on columns scaled to [-1, 1] by the same bounds and map."""
    from diffprivlib.models import LogisticRegression

    from dptoolkit.data.column_bounds import ColumnBounds

    scaled = ColumnBounds.of((lower, upper), X.shape[1]).scaled
    model = LogisticRegression(epsilon=EPSILON, data_norm=float(np.sqrt(X.shape[1])), max_iter=1000, random_state=0)
    model.fit(scaled(X), y)
    return lambda rows: model.predict(scaled(rows))


FAST = "dptoolkit, fast noise"
METHODS = {"dptoolkit": ours, FAST: seeded, "scikit-learn, not private": scikit, "diffprivlib": diffprivlib}


class Peak:
    """The largest resident memory of this process while the block runs, looked up a hundred times a second."""

    def __enter__(self) -> Peak:
        self.most, self._ends = _resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ends.wait(0.01):
            self.most = max(self.most, _resident())

    def __exit__(self, *_: Any) -> None:
        self._ends.set()
        self._thread.join()


def _resident() -> int:
    """Bytes of resident memory; where Linux's file is missing, the largest so far."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(name: str, source: tuple[Any, ...], classes: int, answer: Any) -> None:
    """Fit one method and send its numbers."""
    make, *arguments = source
    X, y, X_test, y_test, lower, upper = make(*arguments)
    method = METHODS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Imports and compilation are not timed. As many rows as make a plan descend as it does on all of them.
            few = np.random.default_rng(0).permutation(len(y))[:WARM_UP]
            method(X[few], y[few], lower, upper, classes)
        except ImportError:
            answer.send(None)
            return
        before = _resident()
        with Peak() as peak:
            begin = time.process_time()
            predict = method(X, y, lower, upper, classes)
            seconds = time.process_time() - begin
        error = float(np.mean(predict(X_test) != y_test))
    answer.send(
        {
            "method": name, "n": len(y), "d": X.shape[1], "classes": classes, "error": round(error, 4),
            "seconds": round(seconds, 2), "megabytes": round((peak.most - before) / 2**20),
            "megabytes of X": round(X.nbytes / 2**20),
        }
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--classes", type=int, nargs="+", choices=(2, 7), default=[2, 7])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rows", type=int, help="rows of a made-up table, in place of covtype")
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--save", action="store_true", help=f"add the results to {RESULTS.name}")
    options = parser.parse_args()
    if options.rows is None and options.data is None:
        parser.error("--data or --rows is needed")
    tasks = (
        [(2, (made_up, options.rows, options.columns))]
        if options.rows is not None
        else [(classes, (covtype, options.data, classes)) for classes in options.classes]
    )
    # One thread, also in libraries that look at these when they are loaded.
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    context, results = multiprocessing.get_context("spawn"), []
    run = time.strftime("%Y-%m-%d %H:%M")
    for classes, source in tasks:
        for name in options.methods:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=measured, args=(name, source, classes, sender))
            process.start()
            sender.close()
            try:
                if (result := receiver.recv()) is not None:
                    results.append(result | {"set": source[0].__name__, "run": run})
                    print(results[-1], flush=True)
            except EOFError:
                print(f"{name} on {classes} classes failed")
            process.join()
    print(report(results))
    if options.save:
        saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        keys = [tuple(one[key] for key in ("set", "method", "n", "d", "classes")) for one in results]
        kept = [
            one for one in saved if tuple(one[key] for key in ("set", "method", "n", "d", "classes")) not in keys
        ]  # fmt: skip
        RESULTS.write_text(json.dumps(kept + results, indent=1) + "\n")


def report(results: list[dict[str, Any]]) -> str:
    """A table, with times as multiples of scikit-learn's."""
    lines = []
    for one in results:
        base = [
            r for r in results if r["classes"] == one["classes"] and r["n"] == one["n"] and "not private" in r["method"]
        ]
        ratio = f"{one['seconds'] / base[0]['seconds']:.2f}" if base else ""
        lines.append(
            [one["set"], f"{one['n']:,} x {one['d']}", str(one["classes"]), one["method"], f"{one['error']:.4f}",
             f"{one['seconds']:.1f}", ratio, f"{one['megabytes']:,}", f"{one['megabytes of X']:,}"]
        )  # fmt: skip
    return table(
        ["set", "rows", "classes", "method", "error", "CPU s", "of scikit-learn", "MB in the fit", "MB of X"], lines
    )


if __name__ == "__main__":
    main()
