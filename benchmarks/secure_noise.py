"""Secure noise beside NumPy's: times in one run, and the picture of what an attacker sees.

    python -m benchmarks.secure_noise                                 # times and ratios of samplers, about a minute
    python -m benchmarks.secure_noise --solvers [NAME ...] --data DIR # fits of every solver, secure over fast
    python -m benchmarks.secure_noise --plot docs/secure-noise.png    # the picture of docs/secure-noise.md alone

All rivals take turns in the same process, so that only ratios mean something on a busy machine.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.race import race
from benchmarks.measure import in_fresh_process, seconds
from benchmarks.suite.cases import arguments
from benchmarks.suite.shapes import load
from dptoolkit import solvers
from dptoolkit.accounting.report import table
from dptoolkit.audit import floating_point_attack
from dptoolkit.audit.floating_point import reachable
from dptoolkit.data import check_rows, clip_rows
from dptoolkit.data.grids import Grids, exact_sum, residuals_on_grid, rows_on_grid
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms import NoisyMaximum
from dptoolkit.randomness import (
    IntegerSelection,
    SecureStream,
    largest_noises,
    rounded_laplace,
    rounded_normals,
)

SIZES = (50, 1000, 47_236, 1_000_000)
MULTIPLIER, ROUNDS = 2**38, 15


def repeated(calls: int, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """A job of several calls."""
    return lambda: [function(*arguments) for _ in range(calls)]


def sampler_rows() -> list[list[str]]:
    """Noise of every size: secure, NumPy's, and their ratio."""
    stream, rng, rows = SecureStream(), np.random.default_rng(), []
    laws: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
        ("normal", rounded_normals, rng.standard_normal),
        ("Laplace", rounded_laplace, lambda size: rng.laplace(size=size)),
    )
    for size in SIZES:
        for name, ours, theirs in laws:
            # Many calls of few numbers, so that all jobs take about as long.
            calls = max(1, 20_000 // size)
            rivals = {
                "secure": repeated(calls, ours, stream, MULTIPLIER, size),
                "numpy": repeated(calls, theirs, size),
            }
            times = race(rivals, ROUNDS)
            each = {key: best.wall / calls / size for key, best in times.items()}
            rows.append([f"{name} x {size:,}", nanoseconds(each["secure"]), nanoseconds(each["numpy"]),
                         f"{each['secure'] / each['numpy']:.2f}"])  # fmt: skip
    words = race({"secure": lambda: stream.words(10**6), "numpy": lambda: rng.bit_generator.random_raw(10**6)}, ROUNDS)
    one, two = (words[key].wall / 10**6 for key in ("secure", "numpy"))
    return [*rows, ["64-bit word (PCG64)", nanoseconds(one), nanoseconds(two), f"{one / two:.2f}"]]


def nanoseconds(value: float) -> str:
    """Time of one number."""
    return f"{1e9 * value:.1f} ns"


def anew(scores: Any, unit: float, stream: SecureStream) -> Any:
    """All weights, and one draw."""
    return IntegerSelection(scores, unit).select(stream)


def selection_rows() -> list[list[str]]:
    """A choice among d scores: weights made anew, and one more draw; beside Gumbel noise on every score."""
    stream, rng, rows = SecureStream(), np.random.default_rng(0), []
    for d in (1000, 47_236):
        scores = rng.integers(-(10**6), 10**6, d)
        both, unit = np.concatenate([scores, -scores]).astype(float), 1e-5
        gumbel, ready = NoisyMaximum(1 / unit, 1.0), IntegerSelection(scores, unit)
        times = race({
            "anew": repeated(1, anew, scores, unit, stream), "one more": repeated(100, ready.select, stream),
            "numpy": repeated(1, gumbel.select, both, rng),
        }, ROUNDS)  # fmt: skip
        theirs = times["numpy"].wall
        for name, ours in (("anew", times["anew"].wall), ("one more", times["one more"].wall / 100)):
            rows.append([f"selection of {d:,}, {name}", seconds(ours), seconds(theirs), f"{ours / theirs:.3f}"])
    lazy = race({"lazy": lambda: largest_noises(stream, MULTIPLIER, 20_000_000, 100)}, ROUNDS)["lazy"].wall
    return [*rows, ["100 largest of 20,000,000 noises", seconds(lazy), "", ""]]


def first_use() -> list[list[str]]:
    """CPU seconds of the first draw in a new process, with nothing compiled and with everything cached."""
    code = """
import tempfile, os, subprocess, sys
program = '''
import time
import numpy, numba
start = time.process_time()
from dptoolkit.randomness import SecureStream, rounded_normals
rounded_normals(SecureStream(), 1000, 10)
print(time.process_time() - start)
'''
with tempfile.TemporaryDirectory() as folder:
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], env=os.environ | {"NUMBA_CACHE_DIR": folder},
                              capture_output=True, text=True, check=True)
        print(done.stdout.strip())
"""
    cold, warm = (float(line) for line in in_fresh_process(code))
    return [["first draw, nothing compiled", seconds(cold), "", ""], ["first draw, cached", seconds(warm), "", ""]]


# --- whole fits ------------------------------------------------------------------------------------------

SHAPES = ("rcv1_sub", "a9a", "mnist")


def fit_rows(names: Sequence[str], shapes: Sequence[str], home: str | None, rounds: int) -> Iterator[list[str]]:
    """CPU seconds of a fit of every solver with secure and with fast noise, in turns, and their ratio."""
    for shape in shapes:
        problem = load(shape, home)
        X, y = problem.X, problem.y
        for name in names:
            options, fit = arguments(name, X.shape, 1.0), getattr(solvers, name)

            def run(kind: str, fit: Any = fit, options: Any = options, X: Any = X, y: Any = y) -> Any:
                return fit(X, y, randomness=kind, **options)

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    times = race({kind: partial(run, kind) for kind in ("secure", "fast")}, rounds)
                except InvalidValue as problem_of:
                    yield [name, shape, "-", "-", str(problem_of)]
                    continue
            one, two = times["secure"].cpu, times["fast"].cpu
            yield [name, shape, seconds(one), seconds(two), f"{one / two:.2f}"]


# --- the picture ------------------------------------------------------------------------------------------

N, D, FITS, EPSILON = 200, 20, 40, 0.1


def neighbours() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Two data sets that differ in one record."""
    rng = np.random.default_rng(3)
    X = clip_rows(check_rows(rng.standard_normal((N, D))), 1.0).matrix
    other, y = X.copy(), (rng.random(N) < 0.5).astype(float)
    other[0] = -X[0]
    return (X, y), (other, y)


def fast_plan() -> Any:
    """One step of dp_ight with noise in doubles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solvers.plan(
            "dp_ight", n=N, d=D, loss="logistic", sparsity=D, steps=1, row_norm=1.0, epsilon=EPSILON, delta=1e-6
        )


class SecureStep:
    """The same step on grids: integer sums and rounded noise."""

    def __init__(self, scale: float) -> None:
        self.grids, self.stream = Grids.choose(N, 1.0, 1.0, scale * N), SecureStream()
        self.multiplier = self.grids.multiplier(scale * N)

    def exact(self, data: tuple[Any, Any]) -> Any:
        """The sums in grid units, as doubles, which hold them exactly."""
        X, y = data
        return exact_sum(rows_on_grid(check_rows(X), self.grids), residuals_on_grid(0.5 - y, self.grids)).astype(float)

    def __call__(self, data: tuple[Any, Any], rng: Any = None) -> Any:
        return self.exact(data) + rounded_normals(self.stream, self.multiplier, D)


def maps() -> dict[str, tuple[Any, float]]:
    """For both kinds of noise: which numbers of fits on the first data set the second cannot have led to, and the
    share of fits for which the attacker is certain."""
    first, second = neighbours()
    plan, rng = fast_plan(), np.random.default_rng(0)
    without: Any = solvers.bind(plan.with_noise(factor=0.0), *second)(rng, True).releases
    run: Any = solvers.bind(plan, *first)
    traces = [run(rng, True) for _ in range(FITS)]
    scale = np.asarray(traces[0].history["noise_scale"][0])
    fast = ~reachable(np.array([trace.releases[0] for trace in traces]), without[0], scale)
    report = floating_point_attack(plan, (first, second), trials=500, rng=0)
    step = SecureStep(float(scale))
    draws = np.array([step(first) for _ in range(FITS)])
    secure = ~reachable(draws, step.exact(second), np.asarray(1.0), grid=1.0)
    after = floating_point_attack(step, (first, second), exact=step.exact, scale=1.0, grid=1.0, trials=500, rng=0)
    return {"noise in doubles": (fast, report.certain), "secure noise": (secure, after.certain)}


def draw(path: Path) -> None:
    """The picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.colors import ListedColormap

    figure, axes = plt.subplots(1, 2, figsize=(8, 4.4), sharey=True, layout="constrained")
    for axis, (name, (impossible, certain)) in zip(axes, maps().items(), strict=True):
        axis.imshow(impossible, cmap=ListedColormap(["#e8eef4", "#b3261e"]), vmin=0, vmax=1, aspect="auto")
        axis.set_title(f"{name}\nthe attacker is certain in {certain:.0%} of fits", fontsize=10)
        axis.set_xlabel("released number")
    axes[0].set_ylabel("fit on data set A")
    figure.suptitle(f"Red: B cannot have led to this double (one step of dp_ight, epsilon {EPSILON:g})", fontsize=11)
    figure.savefig(path, dpi=80)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the times, or draw the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secure_noise")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the picture of docs/secure-noise.md instead")
    parser.add_argument("--solvers", nargs="*", metavar="NAME", help="time fits of these solvers; none: of all")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="SHAPE", help="data sets of the fits")
    parser.add_argument("--data", metavar="DIR", help="folder with the real sets; default: synthetic rows")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every fit")
    options = parser.parse_args(argv)
    if options.solvers is not None:
        names = options.solvers or solvers.PRIVATE
        fits = list(fit_rows(names, options.shapes, options.data, options.rounds))
        print(table(["solver", "data", "secure, CPU", "fast, CPU", "ratio"], fits))
        return
    if options.plot is not None:
        draw(options.plot)
        return
    rows = [*sampler_rows(), *selection_rows(), *first_use()]
    print("\nSecure noise, time for each number\n\n" + table(["what", "secure", "numpy", "ratio"], rows))


if __name__ == "__main__":
    main()
