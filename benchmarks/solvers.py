"""Private solvers on RCV1-shaped data against plain NumPy and SciPy and against the floor: ratios, one run.

    python -m benchmarks.solvers                       # synthetic rows of the same shape
    python -m benchmarks.solvers --data FOLDER         # the real rcv1_sub, see dptoolkit.datasets.load
    python -m benchmarks.solvers --strict              # exit code 1 if a target is missed

The environment variable DPTOOLKIT_DATA does the same as --data. Warm-up is never timed. Ratios are of processor time,
in which threads add up, so that two threads are not compared with one; the best of several turns taken by all rivals.
Only the ratios mean anything on another machine.
"""

from __future__ import annotations

import argparse
import os
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.lib import plain as _plain
from benchmarks.lib.first_fit import CASES, measure
from benchmarks.lib.race import Best, Check, race, show, verdict
from dptoolkit import datasets, losses, solvers
from dptoolkit.datasets import Dataset

DELTA = 1e-6
IGHT: dict[str, Any] = {"loss": "logistic", "step_size": 4.0, "row_norm": 1.0, "epsilon": 1.0, "delta": DELTA}
SHORT, LONG = 5, 45
RADIUS, STEPS = 50.0, 1000
PLAIN_STEPS = 20


def frank_wolfe_arguments(loss: str, epsilon: float) -> dict[str, Any]:
    """The arguments that all Frank-Wolfe fits of this benchmark have in common."""
    label = {} if losses.get(loss).is_bounded else {"label_bound": 1.0}
    return {"loss": loss, "l1_radius": RADIUS, "feature_bound": 1.0, "epsilon": epsilon, "delta": DELTA, **label}


def read(folder: str | None) -> Dataset:
    """The real set if there is a folder, else synthetic rows of its shape."""
    home = folder or os.environ.get("DPTOOLKIT_DATA")
    return datasets.load("rcv1_sub", data_home=home) if home else datasets.make_rcv1_like(rng=0)


# --- one iteration of hard thresholding ---------------------------------------------------------------


def floor_steps(data: Dataset, sparsity: int, steps: int) -> Callable[[], None]:
    """The floor of an iteration: one pass for X^T r, the margins of s columns, d normal variables."""
    n, d = data.shape
    rng = np.random.default_rng(0)
    features = data.X.T.tocsr()
    r, values = rng.standard_normal(n), rng.standard_normal(sparsity)
    columns = data.X.tocsc()[:, np.sort(rng.choice(d, sparsity, replace=False))]

    def run() -> None:
        for _ in range(steps):
            features @ r
            columns @ values
            rng.standard_normal(d)

    return run


def ight_iteration(data: Dataset, sparsity: int, rounds: int) -> list[Check]:
    """Ours by the difference of a long and a short fit, so that set-up and accounting cancel."""

    def ours(steps: int) -> solvers.FitResult:
        return solvers.dp_ight(data.X, data.y, sparsity=sparsity, steps=steps, rng=0, **IGHT)

    generator, steps = np.random.default_rng(0), LONG - SHORT
    best = race(
        {
            "short": lambda: ours(SHORT),
            "long": lambda: ours(LONG),
            "plain": lambda: _plain.ight_steps(data.X, data.y, "logistic", sparsity, 4.0, 1e-3, steps, generator),
            "floor": floor_steps(data, sparsity, steps),
        },
        rounds,
    )
    one = {
        "ours": Best(best["long"].wall - best["short"].wall, best["long"].cpu - best["short"].cpu),
        "plain": best["plain"],
        "floor": best["floor"],
    }
    text = ", ".join(f"{k} {1e3 * v.wall / steps:.2f} (cpu {1e3 * v.cpu / steps:.2f})" for k, v in one.items())
    print(f"  sparsity {sparsity}, ms an iteration: {text}")
    subject = f"dp_ight iteration, sparsity {sparsity}"
    return [
        Check(f"{subject}: plain / ours", one["plain"].cpu / one["ours"].cpu, 2.5, True),
        Check(f"{subject}: ours / floor", one["ours"].cpu / one["floor"].cpu, 1.5, False),
    ]


# --- Frank-Wolfe --------------------------------------------------------------------------------------


def frank_wolfe_fit(data: Dataset, loss: str, epsilon: float, rounds: int) -> Check:
    """A whole private fit of ours against the same number of plain steps, of which a few are timed."""
    arguments = frank_wolfe_arguments(loss, epsilon)
    generator = np.random.default_rng(0)
    scale = solvers.plan("dp_frank_wolfe", n=data.shape[0], d=data.shape[1], steps=STEPS, **arguments).noise
    best = race(
        {
            "ours": lambda: solvers.dp_frank_wolfe(data.X, data.y, steps=STEPS, rng=0, **arguments),
            "plain": lambda: _plain.frank_wolfe_steps(data.X, data.y, loss, RADIUS, scale, PLAIN_STEPS, generator),
        },
        rounds,
    )
    ours, plain = best["ours"], Best(*(part * STEPS / PLAIN_STEPS for part in best["plain"]))
    text = ", ".join(f"{k} {1e3 * v.wall:.0f} (cpu {1e3 * v.cpu:.0f})" for k, v in (("ours", ours), ("plain", plain)))
    print(f"  {loss}, epsilon {epsilon:g}, ms a fit: {text}")
    return Check(f"dp_frank_wolfe, {loss}, epsilon {epsilon:g}: plain / ours", plain.cpu / ours.cpu, 50, True)


def objective_gap(data: Dataset, loss: str, epsilon: float, seeds: int) -> Check:
    """How much worse the mean final objective is than that of the textbook iteration, with every residual exact.

    It says something only where both are well below the objective of zero weights, which is printed with them.
    """
    arguments = frank_wolfe_arguments(loss, epsilon)

    def mean_objective(**more: Any) -> float:
        fits = [
            solvers.dp_frank_wolfe(data.X, data.y, steps=STEPS, rng=seed, diagnostics=True, **arguments, **more)
            for seed in range(seeds)
        ]
        return float(np.mean([fit.history["not_private"]["objective"] for fit in fits]))

    dithered, exact = mean_objective(), mean_objective(refresh=1.0)
    zero = losses.get(loss).objective(np.zeros(data.shape[0]), data.y)
    print(
        f"  {loss}, epsilon {epsilon:g}: objective {dithered:.5f}, textbook iteration {exact:.5f}, "
        f"zero weights {zero:.5f} ({seeds} seeds)"
    )
    above = 100 * (dithered / exact - 1)
    return Check(f"dp_frank_wolfe, {loss}, epsilon {epsilon:g}: objective above exact", above, 1, False, "%")


# --- peeling and softmax regression -------------------------------------------------------------------


def step_ratio(name: str, ours: Callable[[int], Any], plain: Callable[[int], Any], rounds: int) -> Check:
    """A step of ours, by the difference of a long and a short fit, against a plain one."""
    best = race(
        {"short": lambda: ours(SHORT), "long": lambda: ours(LONG), "plain": lambda: plain(LONG - SHORT)}, rounds
    )
    one, steps = best["long"].cpu - best["short"].cpu, LONG - SHORT
    print(f"  {name}, cpu ms a step: ours {1e3 * one / steps:.2f}, plain {1e3 * best['plain'].cpu / steps:.2f}")
    return Check(f"{name} step: plain / ours", best["plain"].cpu / one, 1.5, True)


def selection_steps(data: Dataset, rounds: int) -> list[Check]:
    """Solvers whose step is one pass over the data and noise on every coordinate."""
    X, y, generator = data.X, np.asarray(data.y, dtype=float), np.random.default_rng(0)
    classes = np.random.default_rng(1).integers(0, 4, len(y))
    one_hot = np.eye(4)[classes]
    budget: dict[str, Any] = {"feature_bound": 1.0, "epsilon": 1.0, "delta": DELTA, "rng": 0}
    peel: dict[str, Any] = {"sparsity": 50, "step_size": 0.5, "radius": 1.0, "label_bound": 1.0, **budget}
    wolfe: dict[str, Any] = {"classes": 4, "l1_radius": 10.0, **budget}
    return [
        step_ratio(
            "peeling_iht", lambda steps: solvers.peeling_iht(X, y, steps=steps, **peel),
            lambda steps: _plain.peeling_steps(X, y, 50, 0.5, 1.0, 1e-3, steps, generator), rounds,
        ),
        step_ratio(
            "dp_multinomial_frank_wolfe",
            lambda steps: solvers.dp_multinomial_frank_wolfe(X, classes, steps=steps, **wolfe),
            lambda steps: _plain.multinomial_steps(X, one_hot, 10.0, 1e-3, steps, generator), rounds,
        ),
        step_ratio(
            "frank_wolfe", lambda steps: solvers.frank_wolfe(X, y, loss="logistic", l1_radius=RADIUS, steps=10 * steps),
            lambda steps: _plain.frank_wolfe_steps(X, y, "logistic", RADIUS, 0.0, 10 * steps, generator), rounds,
        ),
    ]  # fmt: skip


def stochastic_steps(data: Dataset, rounds: int) -> list[Check]:
    """Solvers whose step is a batch and noise on every coordinate, and dual averaging."""
    X, y, generator = data.X, np.asarray(data.y, dtype=float), np.random.default_rng(0)
    one: dict[str, Any] = {"sparsity": 100, **IGHT, "rng": 0}
    batch: dict[str, Any] = {"batch_size": 64, **one}
    return [
        step_ratio(
            "dp_dual_averaging", lambda steps: solvers.dp_dual_averaging(X, y, steps=steps, **one),
            lambda steps: _plain.dual_averaging_steps(X, y, 100, 4.0, 1e-3, steps, generator), rounds,
        ),
        step_ratio(
            "dp_sgd_ht", lambda steps: solvers.dp_sgd_ht(X, y, steps=20 * steps, **batch),
            lambda steps: _plain.sgd_steps(X, y, 100, 64, 4.0, 1e-3, 20 * steps, generator), min(rounds, 3),
        ),
        step_ratio(
            "dp_scsg_ht epoch", lambda n: solvers.dp_scsg_ht(X, y, epochs=n, snapshot_size=640, **batch),
            lambda n: _plain.reduced_epochs(X, y, 100, 640, 64, 4.0, 1e-3, n, generator), min(rounds, 3),
        ),
        step_ratio(
            "dp_svrg_ht epoch", lambda n: solvers.dp_svrg_ht(X, y, epochs=n // 5, **batch | {"batch_size": 2048}),
            lambda n: _plain.reduced_epochs(X, y, 100, len(y), 2048, 4.0, 1e-3, n // 5, generator), min(rounds, 3),
        ),
    ]  # fmt: skip


def minimisers(rounds: int) -> list[Check]:
    """Solvers that minimise to a certified tolerance, whole fits on dense rows, against L-BFGS to nine digits."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((20_000, 100))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (X[:, 0] + 0.2 * generator.standard_normal(len(X)) > 0).astype(float)
    term = 1e-4 * generator.standard_normal(100)
    fit: dict[str, Any] = {"loss": "logistic", "row_norm": 1.0, "epsilon": 1.0, "delta": DELTA}
    plan = solvers.plan("dp_admm", n=20_000, d=100, steps=10, **fit)
    settings: Any = plan.settings
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "objective_perturbation": (
            lambda: solvers.objective_perturbation(X, y, l2=0.01, rng=0, **fit),
            lambda: _plain.perturbed_minimiser(X, y, 0.01, term, np.zeros(100)),
        ),
        "dp_admm": (
            lambda: solvers.dp_admm(X, y, steps=10, rng=0, **fit),
            lambda: _plain.admm_steps(X, y, settings.rho, settings.weight, plan.noise, 10, generator),
        ),
    }
    checks = []
    for name, (ours, plain) in pairs.items():
        best = race({"ours": ours, "plain": plain}, rounds)
        print(f"  {name}, cpu ms a fit: ours {1e3 * best['ours'].cpu:.1f}, plain {1e3 * best['plain'].cpu:.1f}")
        checks.append(Check(f"{name} fit: plain / ours", best["plain"].cpu / best["ours"].cpu, 1.5, True))
    return checks


# --- memory, first fit, accounting --------------------------------------------------------------------


def peak_memory(data: Dataset, fit: Callable[[], Any]) -> float:
    """The largest memory during ``fit`` beyond the caller's data, in units of the size of X."""
    size = data.X.data.nbytes + data.X.indices.nbytes + data.X.indptr.nbytes
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        fit()
        return (tracemalloc.get_traced_memory()[1] - before) / size
    finally:
        tracemalloc.stop()


def memory_checks(data: Dataset) -> list[Check]:
    """Our copy of X and its transpose, and vectors; Numba's own vectors, O(d), are not seen."""
    arguments = frank_wolfe_arguments("logistic", 1.0)
    fits: dict[str, Callable[[], Any]] = {
        "dp_ight": lambda: solvers.dp_ight(data.X, data.y, sparsity=100, steps=3, rng=0, **IGHT),
        "dp_frank_wolfe": lambda: solvers.dp_frank_wolfe(data.X, data.y, steps=30, rng=0, **arguments),
    }
    peaks = {name: peak_memory(data, fit) for name, fit in fits.items()}
    return [Check(f"{name}: peak memory over size of X", peak, 2.25, False) for name, peak in peaks.items()]


def first_fit_checks() -> list[Check]:
    """The first private fit of a new process, imports included, without and with compiled kernels on disk."""
    checks = []
    for case in CASES:
        cold, warm = measure(case)
        print(f"  {case}, cpu seconds: cold {cold.cpu:.2f}, warm {warm.cpu:.2f}", flush=True)
        checks.append(Check(f"{case}: first fit in a new process, nothing compiled", cold.cpu, 5, False, "s"))
        checks.append(Check(f"{case}: first fit in a new process, kernels cached", warm.cpu, 1, False, "s"))
    return checks


def accounting_times(data: Dataset) -> None:
    """Plans apart from fits: they depend on no data and are remembered within a process."""
    n, d = data.shape
    counter = iter(range(10_000))

    def plan(name: str, **arguments: Any) -> solvers.Plan:
        # A budget that was not asked for before, so that nothing is remembered.
        arguments["epsilon"] = arguments["epsilon"] + 1e-9 * next(counter)
        return solvers.plan(name, n=n, d=d, **arguments)

    ight, wolfe = {"sparsity": 100, "steps": LONG, **IGHT}, {"steps": STEPS, **frank_wolfe_arguments("logistic", 1.0)}
    planning = {"dp_ight": lambda: plan("dp_ight", **ight), "dp_frank_wolfe": lambda: plan("dp_frank_wolfe", **wolfe)}
    best = race(planning, 3)
    print("\nAccounting for a budget that was not asked for before; the fits above had it remembered\n")
    print("\n".join(f"  plan of {name}: {1e3 * times.wall:.1f} ms" for name, times in best.items()))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solvers", description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="FOLDER", help="folder with rcv1_sub; default: the variable DPTOOLKIT_DATA")
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds (default 15)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds to compare objectives (default 3)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a target is missed")
    options = parser.parse_args(argv)
    data = read(options.data)
    print(f"{data}, {data.X.nnz:,} non-zeros")
    checks = show("Hard thresholding", [c for s in (100, 500) for c in ight_iteration(data, s, options.rounds)])
    cases = [("logistic", 1.0), ("logistic", 10.0), ("squared", 1.0)]
    checks += show("Frank-Wolfe", [frank_wolfe_fit(data, loss, epsilon, options.rounds) for loss, epsilon in cases])
    # At this epsilon frequent features are chosen, each of which touches many rows: the result is shown without a
    # target, and not counted.
    frank_wolfe_fit(data, "logistic", 100.0, 3)
    checks += show("Peeling, softmax and exact Frank-Wolfe", selection_steps(data, min(options.rounds, 5)))
    checks += show("Stochastic steps and dual averaging", stochastic_steps(data, min(options.rounds, 5)))
    checks += show("Minimisers", minimisers(min(options.rounds, 5)))
    gaps = [("logistic", 1.0), ("logistic", 10.0), ("logistic", 100.0), ("squared", 1.0)]
    checks += show("Objective", [objective_gap(data, loss, epsilon, options.seeds) for loss, epsilon in gaps])
    checks += show("Memory", memory_checks(data))
    checks += show("First fit", first_fit_checks())
    accounting_times(data)
    return verdict(checks, options.strict)


if __name__ == "__main__":
    raise SystemExit(main())
