"""A league table of private solvers on real data, with their rules and tuned alike on data that are not judged.

    python -m benchmarks.frontier --data FOLDER --part tune      # five settings of every solver on CHOSEN_ON
    python -m benchmarks.frontier --data FOLDER --part rules     # the rules, four budgets, five seeds
    python -m benchmarks.frontier --data FOLDER --part tuned     # the best setting of "tune" at (2, 1e-5), five seeds
    python -m benchmarks.frontier --part report                  # docs/frontier.md's tables and plot, from the files
    python -m benchmarks.frontier --data FOLDER --part must      # dp_pipeline on all rows of rcv1_sub and a9a
    python -m benchmarks.frontier --data FOLDER --part grid      # dp_pipeline's rule beside the best of nine settings
    python -m benchmarks.frontier --data FOLDER --part peer      # diffprivlib's logistic regression, if it is installed
    python -m benchmarks.frontier --data FOLDER --part constants --sets rcv1_sub   # what each constant is worth

The first three save to benchmarks/results/, one file a part, set by set; ``--sets`` runs some of them. Training parts
are cut to ``--rows``; rows have norm 1 and all solvers get the same public bounds. Errors are shares of wrong labels,
for numbers mean squared errors over the variance. Intervals are standard errors over the seeds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks._problems import CHOSEN_ON, CLASSES, JUDGED_ON, NUMBERS, Problem, load
from dptoolkit import solvers
from dptoolkit.accounting.report import table
from dptoolkit.solvers import rules

RESULTS = Path(__file__).parent / "results"
BUDGETS = ((2.0, 1e-5), (1.0, 1e-5), (4.0, 1e-5), (2.0, 0.01))
# One constant changed at a time; the first is the rule as it is.
CONSTANTS: tuple[dict[str, float], ...] = (
    {}, {"RESIDUAL": 0.12}, {"RESIDUAL": 0.5}, {"MARGIN_NOISE": 0.4}, {"MARGIN_NOISE": 0.6}, {"MARGIN_NOISE": 1.2},
    {"SLACK": 1.1}, {"SLACK": 0.3}, {"CUT": 1.0}, {"CUT": 2.5}, {"TEMPERING": 0.0, "MEAN_POWER": 1.0},
    {"TEMPERING": 0.5, "MEAN_POWER": 0.5}, {"LEVEL": 0.1}, {"LEVEL": 0.4},
    {"MEANS_SHARE": 0.05, "DESCENT_SHARE": 0.92}, {"MEANS_SHARE": 0.2, "DESCENT_SHARE": 0.77},
)  # fmt: skip
# What is tuned: a setting is a change of the rule's constants, or for solvers without a rule their own arguments.
Settings = tuple[dict[str, float], ...]
DESCENT: Settings = ({}, {"RESIDUAL": 0.12}, {"RESIDUAL": 0.5}, {"MARGIN_NOISE": 0.4}, {"MARGIN_NOISE": 1.6})
PERTURBED: Settings = tuple({"PERTURBED_MARGIN_NOISE": nu} for nu in (0.3, 0.075, 0.15, 0.6, 1.2))
VERTICES: Settings = ({}, {"HIDDEN_SIGNAL": 0.003}, {"HIDDEN_SIGNAL": 0.012}, {"RADIUS": 1.1}, {"RADIUS": 10.0})


@dataclass(frozen=True)
class Method:
    """A solver, what it is always given, and the settings it may be tuned to; ``rule``: the first is its rule."""

    solver: str
    given: Callable[[Problem], dict[str, Any]]
    settings: Settings
    rule: bool = True
    kinds: tuple[str, ...] = field(default=("binary",))
    widest: float = np.inf

    def takes(self, problem: Problem) -> bool:
        """Whether the method is for such labels, and quick enough for so many features."""
        return problem.kind in self.kinds and problem.X.shape[1] <= self.widest

    def fit(self, problem: Problem, setting: dict[str, float], **more: Any) -> solvers.FitResult:
        """One fit."""
        arguments = self.given(problem) | ({} if self.rule else _scaled(setting, problem.X.shape[0]))
        with changed(setting if self.rule else {}):
            return getattr(solvers, self.solver)(problem.X, problem.y, **arguments, **more)


def _scaled(setting: dict[str, float], n: int) -> dict[str, Any]:
    """Arguments whose name ends with _share are that share of the rows."""
    shares = {name[:-6]: max(round(value * n), 1) for name, value in setting.items() if name.endswith("_share")}
    return shares | {name: value for name, value in setting.items() if not name.endswith("_share")}


def _loss(problem: Problem) -> dict[str, Any]:
    if problem.kind == "classes":
        return {"loss": "softmax", "classes": problem.classes}
    return {"loss": "logistic" if problem.kind == "binary" else "huber"}


def _pipeline(problem: Problem) -> dict[str, Any]:
    return {"loss": "squared", "row_norm": 1.0, "label_bound": 1.0} if problem.kind == "numbers" else _loss(problem)


def _rows(problem: Problem) -> dict[str, Any]:
    return _loss(problem) | {"row_norm": 1.0, "fit_intercept": True}


def _sparse(problem: Problem) -> dict[str, Any]:
    return _rows(problem) | {"sparsity": min(1000, problem.X.shape[1])}


def _batches(problem: Problem) -> dict[str, Any]:
    return _sparse(problem) | {"grad_norm": 0.25, "batch_size": max(problem.X.shape[0] // 20, 1)}


def _entries(problem: Problem) -> dict[str, Any]:
    loss = {"classes": problem.classes} if problem.kind == "classes" else _loss(problem)
    return loss | {"feature_bound": 1.0, "fit_intercept": True}


def _votes(problem: Problem) -> dict[str, Any]:
    return _rows(problem) | {"sparsity": min(50, problem.X.shape[1])}


def _peeled(problem: Problem) -> dict[str, Any]:
    return {"sparsity": min(10, problem.X.shape[1]), "feature_bound": 1.0, "label_bound": 1.0, "radius": 2.0}


_ALL = ("binary", "classes", "numbers")
_STEPS = ((2, 1.0), (2, 8.0), (5, 1.0), (5, 8.0), (10, 4.0))
_EPOCHS = tuple({"epochs": e, "step_size": h} for e, h in _STEPS)
_BALLS = tuple({"l1_radius": r, "steps": t} for r, t in ((3.0, 5), (10.0, 5), (10.0, 20), (30.0, 20), (30.0, 80)))
_PEELS = tuple({"steps": t, "step_size": h} for t, h in ((2, 0.5), (5, 0.5), (10, 0.5), (5, 1.0), (10, 1.0)))
METHODS: dict[str, Method] = {
    "dp_pipeline": Method("dp_pipeline", _pipeline, DESCENT, kinds=_ALL),
    "dp_dual_averaging": Method("dp_dual_averaging", _rows, DESCENT, kinds=_ALL),
    "dp_ight": Method("dp_ight", _sparse, DESCENT, kinds=("binary", "numbers")),
    "dp_sgd_ht": Method("dp_sgd_ht", _sparse, DESCENT, kinds=("binary", "numbers")),
    "objective_perturbation": Method("objective_perturbation", _rows, PERTURBED, kinds=("binary", "numbers")),
    "dp_frank_wolfe": Method("dp_frank_wolfe", _entries, VERTICES, kinds=("binary", "numbers")),
    "dp_svrg_ht": Method("dp_svrg_ht", _batches, _EPOCHS, False, ("binary", "numbers")),
    "dp_scsg_ht": Method(
        "dp_scsg_ht", _batches, tuple(e | {"snapshot_size_share": 0.5} for e in _EPOCHS), False, ("binary", "numbers")
    ),
    "two_stage": Method(
        "two_stage", _votes, tuple({"blocks_share": b} for b in (0.005, 0.01, 0.02, 0.05, 0.1)), False,
        widest=10_000,
    ),
    "sparsifier": Method(
        "sparsifier", lambda p: _entries(p) | {"count": "fixed", "number": min(100, p.X.shape[1])}, _BALLS, False
    ),
    "dp_multinomial_frank_wolfe": Method("dp_multinomial_frank_wolfe", _entries, _BALLS, False, ("classes",)),
    "peeling_iht": Method("peeling_iht", _peeled, _PEELS, False, ("numbers",)),
}  # fmt: skip


@contextmanager
def changed(constants: dict[str, float]) -> Iterator[None]:
    """The rules with other constants."""
    before = {name: getattr(rules, name) for name in constants}
    for name, value in constants.items():
        setattr(rules, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(rules, name, value)


def score(problem: Problem, method: Method, setting: dict[str, float], seeds: int, **budget: Any) -> dict[str, Any]:
    """Fits from several seeds, tested: errors, losses, features and processor seconds."""
    found: dict[str, list[float]] = {"errors": [], "losses": [], "features": [], "seconds": []}
    for seed in range(seeds):
        begin = time.process_time()
        result = method.fit(problem, setting, rng=seed, **budget)
        found["seconds"].append(round(time.process_time() - begin, 3))
        margins = solvers.margins(result, problem.X_test, n_features=problem.X.shape[1])
        found["errors"].append(round(problem.error(margins), 5))
        found["losses"].append(round(problem.loss(margins), 4))
        found["features"].append(int(np.count_nonzero(np.atleast_2d(result.coef).any(axis=0))))
    return found


# --- parts ------------------------------------------------------------------------------------------------


def tune(problems: Iterator[Problem], methods: list[str]) -> Iterator[dict[str, Any]]:
    """Every setting of every method on the sets that are not judged, at (2, 1e-5), two seeds."""
    for problem in problems:
        for name in methods:
            for setting in METHODS[name].settings if METHODS[name].takes(problem) else ():
                found = score(problem, METHODS[name], setting, 2, epsilon=2.0, delta=1e-5)
                yield {"set": problem.name, "plain": problem.plain, "method": name, "setting": setting} | found


def best_setting(name: str, tuned: list[dict[str, Any]]) -> dict[str, float]:
    """The setting with the least error, over that of the plain answer, on average over the sets of "tune"."""
    settings = METHODS[name].settings
    ratios: list[float] = []
    for setting in settings:
        own = [r for r in tuned if r["method"] == name and r["setting"] == setting]
        ratios.append(float(np.mean([np.mean(r["errors"]) / r["plain"] for r in own])) if own else np.inf)
    return settings[int(np.argmin(ratios))]


def evaluate(
    problems: Iterator[Problem], methods: list[str], tuned: list[dict[str, Any]] | None, seeds: int
) -> Iterator[dict[str, Any]]:
    """The rules at all budgets; or, where there are results of "tune", the best settings at the first."""
    for problem in problems:
        n, d = problem.X.shape
        for name in methods:
            method = METHODS[name]
            if not method.takes(problem) or (tuned is None and not method.rule):
                continue
            setting = {} if tuned is None else best_setting(name, tuned)
            for epsilon, delta in BUDGETS if tuned is None else BUDGETS[:1]:
                found = score(problem, method, setting, seeds, epsilon=epsilon, delta=delta)
                yield {"set": problem.name, "n": n, "d": d, "plain": problem.plain, "method": name, "setting": setting,
                       "epsilon": epsilon, "delta": delta} | found  # fmt: skip


def peer(problems: Iterator[Problem], seeds: int) -> None:
    """diffprivlib's logistic regression at epsilon 2, where it is installed; it takes dense rows and two classes."""
    try:
        models = importlib.import_module("diffprivlib.models")
    except ImportError:
        print("diffprivlib is not installed")
        return
    for problem in problems:
        if problem.kind == "binary" and problem.X.shape[1] <= 1000:
            X, X_test = (part.toarray() if sparse.issparse(part) else part for part in (problem.X, problem.X_test))
            fits = (models.LogisticRegression(epsilon=2.0, data_norm=1.0, random_state=s).fit(X, problem.y)
                    for s in range(seeds))  # fmt: skip
            print(problem.name, interval([float(np.mean(fit.predict(X_test) != problem.y_test)) for fit in fits]))


def must(home: Path) -> None:
    """What dp_pipeline must show with its rule on all rows, five seeds."""
    cases = (("rcv1_sub", 2.0, 1e-5, None, 0.055), ("rcv1_sub", 2.0, 0.01, None, 0.047),
             ("rcv1_sub", 2.0, 1e-5, 1000, 0.056), ("a9a", 2.0, 1e-5, None, 0.152))  # fmt: skip
    lines = []
    for name, epsilon, delta, sparsity, limit in cases:
        found = score(load(name, home), METHODS["dp_pipeline"], {}, 5, epsilon=epsilon, delta=delta, sparsity=sparsity)
        mean = float(np.mean(found["errors"]))
        shown = [interval(found["errors"]), f"{limit:g}", "yes" if mean <= limit else "NO"]
        lines.append([name, f"({epsilon:g}, {delta:g})", str(sparsity or "all"), *shown,
                      f"{np.median(found['seconds']):.1f}"])  # fmt: skip
    print(table(["data", "budget", "features", "error", "at most", "shown", "CPU s a fit"], lines))


def grid(problems: Iterator[Problem], seeds: int) -> None:
    """The pipeline's rule beside the best of nine settings, picked on the TEST rows: more than tuning can give."""
    budget = {"epsilon": 2.0, "delta": 1e-5}
    for problem in problems:
        own = score(problem, METHODS["dp_pipeline"], {}, seeds, **budget)["errors"]
        settings = [{"grad_norm": g, "margin_noise": nu} for g in (0.12, 0.25, 0.5) for nu in (0.4, 0.8, 1.6)]
        errors = [score(problem, METHODS["dp_pipeline"], {}, seeds, **budget, **how)["errors"] for how in settings]
        best = min(range(9), key=lambda i: float(np.mean(errors[i])))
        least = float(np.mean(errors[best]))
        within = np.mean(own) <= max(1.25 * least, least + 0.01)
        n, d = problem.X.shape
        print(problem.name, f"{n:,} x {d:,}", interval(own), interval(errors[best]), f"{problem.plain:.4f}",
              "yes" if within else "**no**", settings[best], sep=" | ", flush=True)  # fmt: skip


def constants(problems: Iterator[Problem], seeds: int) -> None:
    """The error of dp_pipeline at (2, 1e-5) with one constant changed at a time."""
    sets, lines = list(problems), []
    for change in CONSTANTS:
        found = [score(p, METHODS["dp_pipeline"], change, seeds, epsilon=2.0, delta=1e-5) for p in sets]
        text = ", ".join(f"{name}={value:g}" for name, value in change.items()) or "the rule"
        lines.append([text, *(interval(one["errors"]) for one in found)])
    print(table(["constants", *(problem.name for problem in sets)], lines))


def interval(errors: list[float]) -> str:
    """Mean and standard error."""
    spread = np.std(errors, ddof=1) / np.sqrt(len(errors)) if len(errors) > 1 else float("nan")
    return f"{np.mean(errors):.4f} +- {spread:.4f}"


# --- files ------------------------------------------------------------------------------------------------


def read(part: str) -> list[dict[str, Any]]:
    """What was saved of a part, in the order of the sets."""
    lines = (RESULTS / f"frontier_{part}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def save(part: str, found: Iterator[dict[str, Any]]) -> None:
    """Write each result as it comes; results of the same set, method, setting and budget are replaced."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"frontier_{part}.jsonl"
    for one in found:
        key = {name: one.get(name) for name in ("set", "method", "setting", "epsilon", "delta")}
        kept = [old for old in (read(part) if path.exists() else []) if any(old.get(k) != v for k, v in key.items())]
        path.write_text("".join(json.dumps(line) + "\n" for line in [*kept, one]))
        print(one["set"], one["method"], one["setting"], interval(one["errors"]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("tune", "rules", "tuned", "report", "must", "grid", "peer", "constants")
    parser.add_argument("--part", choices=parts, required=True)
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2000)
    chosen = parser.parse_args()
    if chosen.part == "report":
        from benchmarks._report import report

        report(read("rules"), read("tuned"))
        return
    every = [*CHOSEN_ON, *JUDGED_ON, *CLASSES, *NUMBERS]
    usual = [*CHOSEN_ON, "news20, 20 classes", "covtype, elevation"] if chosen.part == "tune" else every
    problems = (load(name, chosen.data, chosen.rows) for name in chosen.sets or usual)
    with warnings.catch_warnings():
        # A delta of 0.01 is the papers'; hopeless sets are part of the table.
        warnings.simplefilter("ignore", UserWarning)
        if chosen.part == "must":
            must(chosen.data)
        elif chosen.part == "grid":
            grid(problems, chosen.seeds)
        elif chosen.part == "peer":
            peer(problems, chosen.seeds)
        elif chosen.part == "constants":
            constants(problems, chosen.seeds)
        elif chosen.part == "tune":
            save("tune", tune(problems, chosen.methods))
        else:
            save(chosen.part, evaluate(problems, chosen.methods, read("tune") if chosen.part == "tuned" else None,
                                       chosen.seeds))  # fmt: skip


if __name__ == "__main__":
    main()
