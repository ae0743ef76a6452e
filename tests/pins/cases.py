"""What is pinned: the data, the arguments of every private solver, the events, and the lines of the shell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dptoolkit.accounting import (
    ApproxDp,
    BestOf,
    Composed,
    DiscreteGaussian,
    Event,
    ExponentialMechanism,
    Gaussian,
    Geometric,
    Laplace,
    Logarithmic,
    NoisyMax,
    ObjectivePerturbation,
    PureDp,
    RandomizedResponse,
    RandomRounds,
    Repeated,
    Subsampled,
    TruncatedGeometric,
    TwoSidedGeometric,
    ZCdp,
)
from dptoolkit.datasets import make_rcv1_like

BUDGET = {"epsilon": 1.5, "delta": 1e-6}
_ROWS = {"loss": "logistic", "row_norm": 1.0}
_KEEP = {"sparsity": 4}
_BATCH = {**_ROWS, **_KEEP, "batch_size": 24, "step_size": 1.0}
_BALL = {"l1_radius": 5.0, "feature_bound": 1.0}
_NUMBERS = {"loss": "squared", "label_bound": 1.0}
# The arguments of every private solver, for small and large data.
SOLVERS: dict[str, dict[str, Any]] = {
    "dp_ight": {**_ROWS, **_KEEP, "steps": 8, "step_size": 2.0},
    "dp_dual_averaging": {**_ROWS, **_KEEP, "steps": 8, "step_size": 2.0},
    "dp_pipeline": {},
    "dp_frank_wolfe": {"loss": "logistic", **_BALL, "steps": 40},
    "sparsifier": {**_BALL, "steps": 20, "count_steps": 20},
    "dp_multinomial_frank_wolfe": {**_BALL, "classes": 2, "steps": 10},
    "peeling_iht": {**_KEEP, "steps": 5, "step_size": 0.5, "radius": 1.0, "feature_bound": 1.0, "label_bound": 1.0},
    "objective_perturbation": {**_ROWS, "l2": 0.01},
    "two_stage": {**_ROWS, **_KEEP, "l2": 0.02, "blocks": 5},
    "knowledge_transfer": {**_ROWS, **_KEEP, "student_steps": 5, "m": 40},
    "dp_sgd_ht": {**_BATCH, "steps": 12},
    "dp_scsg_ht": {**_BATCH, "epochs": 3, "snapshot_size": 48, "option": "II"},
    "dp_svrg_ht": {**_BATCH, "epochs": 2, "option": "II"},
    "dp_admm": {**_ROWS, "steps": 3},
}
# Further paths of each solver, on small data: other losses, options, samplings, an intercept, more classes.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "dp_ight": {
        "intercept": {"fit_intercept": True}, "rules": {"steps": None, "step_size": None},
        "adaptive": {"adaptive": True}, "zero-out": {"adjacency": "zero-out"},
        "squared": {**_NUMBERS, "margin_bound": 1.0},
        "clipped gradients": {"grad_norm": 0.3, "row_norm": None, "loss": "squared"},
        "hinge": {"loss": "hinge"}, "huber": {"loss": "huber"}, "without noise": {"epsilon": math.inf},
    },
    "dp_dual_averaging": {
        "softmax": {"loss": "softmax", "classes": 3}, "rules": {"steps": None, "step_size": None},
        "all features": {"sparsity": None, "fit_intercept": True},
    },
    "dp_pipeline": {
        "softmax": {"loss": "softmax", "classes": 3}, "numbers": {**_NUMBERS, "row_norm": 1.0},
        "sparse": {"sparsity": 3}, "zero-out": {"adjacency": "zero-out"},
    },
    "dp_frank_wolfe": {
        "rules": {"steps": None, "l1_radius": None}, "intercept": {"fit_intercept": True}, "squared": _NUMBERS,
        "laplace": {"law": "laplace"}, "zero-out": {"adjacency": "zero-out"}, "hinge": {"loss": "hinge"},
    },
    "sparsifier": {
        "fixed": {"count": "fixed", "number": 3}, "threshold": {"count": "threshold", "threshold": 0.1},
        "squared": _NUMBERS,
    },
    "dp_multinomial_frank_wolfe": {
        "three": {"classes": 3}, "intercept": {"classes": 3, "fit_intercept": True},
        "rules": {"classes": 3, "steps": None, "l1_radius": None},
    },
    "peeling_iht": {"zero-out": {"adjacency": "zero-out"}},
    "objective_perturbation": {
        "huber": {"loss": "huber"}, "hinge": {"loss": "hinge"}, "rules": {"l2": None},
        "l1 ball": {"constraint": "l1", "radius": 2.0}, "group ball": {
            "constraint": "group-l1", "radius": 2.0, "group_size": 2},
        "l2 ball": {"constraint": "l2", "radius": 2.0, **_NUMBERS}, "intercept": {"fit_intercept": True},
        "gamma": {"law": "gamma"},
    },
    "two_stage": {"huber": {"loss": "huber"}, "share": {"vote_share": 0.3}},
    "knowledge_transfer": {
        "huber": {"loss": "huber", "teacher": "ridge", "m": None},
        "dp-ight": {"teacher": "dp-ight", "steps": 5, "step_size": 1.0},
        "support": {"teacher": "support"}, "tested": {"teacher": "propose-test-release"},
    },
    "dp_sgd_ht": {
        "without replacement": {"sampling": "without-replacement"}, "poisson": {"sampling": "poisson"},
        "zero-out": {"adjacency": "zero-out", "sampling": "poisson"}, "intercept": {"fit_intercept": True},
        "squared": {**_NUMBERS, "margin_bound": 1.0}, "rules": {"steps": None, "batch_size": None, "step_size": None},
        "l2": {"l2": 0.1},
    },
    "dp_scsg_ht": {
        "option I": {"option": "I"}, "poisson": {"sampling": "poisson"}, "intercept": {"fit_intercept": True},
        "squared": {**_NUMBERS, "margin_bound": 1.0}, "l2": {"l2": 0.1},
    },
    "dp_svrg_ht": {"option I": {"option": "I"}, "without replacement": {"sampling": "without-replacement"}},
    "dp_admm": {
        "rules": {"steps": None}, "l1": {"penalty": "l1"}, "huber": {"loss": "huber"},
        "intercept": {"fit_intercept": True},
    },
}  # fmt: skip
LAYOUTS, SIZES = ("dense", "csr"), ("small", "large")


def data(layout: str, size: str) -> tuple[Any, Any]:
    """(X, labels 0 and 1). Large is above every size at which a solver takes another path."""
    if size == "small":
        X, y = _table(120, 12)
        return (X if layout == "dense" else sparse.csr_matrix(X)), y
    if layout == "dense":
        return _table(700, 120)
    found = make_rcv1_like(n=6000, d=9000, nonzeros=40, rng=0)
    return found.X, found.y


def _table(n: int, d: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, d))
    X[rng.random((n, d)) < 0.4] = 0.0
    X[0], X[1] = 0.0, 50 * X[1]
    return X, (X[:, 0] + 0.3 * rng.standard_normal(n) > 0).astype(float)


def targets(arguments: dict[str, Any], y: Any, X: Any) -> Any:
    """Labels of the kind that the arguments ask for, made of those of ``data``."""
    if arguments.get("classes") == 3:
        first = np.asarray(X[:, [1]].todense() if sparse.issparse(X) else X[:, [1]]).ravel()
        return y + (first > 0.5)
    return 1.5 * y - 0.7 if "label_bound" in arguments else y


def events() -> dict[str, Event]:
    """Events of every kind and structure."""
    poisson = Subsampled(Gaussian(1.1), "poisson", 0.02)
    fixed = Subsampled(Gaussian(2.5), "without-replacement", 0.05)
    both = Subsampled(Gaussian(3.0), "poisson", 0.03, "replace-one")
    perturbed = ObjectivePerturbation(2.0, 0.1)
    return {
        "gaussian": Gaussian(1.3), "laplace": Laplace(2.0), "geometric": TwoSidedGeometric(0.4, 3),
        "discrete": DiscreteGaussian(2.7, 2), "response": RandomizedResponse(0.8, 4),
        "exponential": ExponentialMechanism(0.7), "noisy max": NoisyMax(0.5), "permute": NoisyMax(0.5, "exponential"),
        "pure": PureDp(0.6), "approximate": ApproxDp(0.3, 1e-7), "zcdp": ZCdp(0.05), "objective": perturbed,
        "objective, signed": ObjectivePerturbation(1.5, 0.3, True, "zero-out"),
        "gaussians": Repeated(Gaussian(12.0), 100), "laplaces": Repeated(Laplace(20.0), 50),
        "selections": Repeated(ExponentialMechanism(0.1), 60), "poisson steps": Repeated(poisson, 400),
        "fixed steps": Repeated(fixed, 100), "replace-one steps": Repeated(both, 200),
        "few poisson steps": Repeated(poisson, 7),
        "poisson laplace": Repeated(Subsampled(Laplace(2.0), "poisson", 0.1), 30),
        "discrete steps": Repeated(DiscreteGaussian(9.0, 1), 40), "pures": Repeated(PureDp(0.05), 30),
        "approximates": Repeated(ApproxDp(0.05, 1e-8), 20), "zcdps": Repeated(ZCdp(0.001), 100),
        "rounds": RandomRounds(Gaussian(9.0), Geometric(0.9)),
        "cut rounds": RandomRounds(poisson, TruncatedGeometric(0.8, 50)),
        "best of": BestOf(Gaussian(4.0), Logarithmic(0.7)),
        "mixed": Composed(Repeated(Gaussian(8.0), 10), Repeated(poisson, 50), ExponentialMechanism(0.2), PureDp(0.1)),
        "nested": Repeated(Composed(Repeated(Gaussian(20.0), 5), Laplace(30.0)), 9),
        "objective and gaussian": Composed(perturbed, Gaussian(40.0)), "no noise": Gaussian(0.0), "nothing": Composed(),
    }  # fmt: skip


DELTAS, EPSILONS = (1e-5, 3.3e-9, 0.01), (0.1, 1.0, 4.0)


def calibrations() -> dict[str, tuple[Any, float, float]]:
    """(noise -> event, epsilon, delta) by name."""
    shapes: dict[str, Any] = {
        "gaussian": Gaussian,
        "laplace": Laplace,
        "gaussians": lambda s: Repeated(Gaussian(s), 73),
        "poisson": lambda s: Repeated(Subsampled(Gaussian(s), "poisson", 0.01), 300),
        "fixed": lambda s: Repeated(Subsampled(Gaussian(s), "without-replacement", 0.01), 100),
        "selections": lambda s: Repeated(ExponentialMechanism(1 / s), 40),
        "rounds": lambda s: RandomRounds(Gaussian(s), Geometric(0.9)),
        "objective": lambda s: ObjectivePerturbation(s, 0.05),
        "mixed": lambda s: Composed(Repeated(Gaussian(s), 9), Repeated(ExponentialMechanism(2 / s), 7)),
    }
    budgets = ((0.5, 1e-6), (2.0, 1e-5))
    return {f"{name} {e:g} {d:g}": (make, e, d) for name, make in shapes.items() for e, d in budgets}


_FIT = "fit two.svm --epsilon 2 --delta 1e-6 --n-features 6 --row-norm 1 --seed 3 --task classification --classes -1 1"
_TUNE = "tune two.svm --task classification --epsilon 2 --delta 1e-6 --classes -1 1 --n-features 6 --row-norm 1"
# Lines of the shell, run in this order in one folder; see ``shell_files``.
SHELL = (
    "account --gaussian 1.5 --steps 100 --delta 1e-5",
    "account --gaussian 1.1 --sampling poisson --rate 0.01 --steps 1000 --delta 1e-5 --delta 1e-7 --bracket",
    "account --gaussian 3 --steps 10 --delta 1e-5 --compare --json",
    "account --gaussian --steps 10 --calibrate 1 --delta 1e-5",
    "account --ledger ledger.json --delta 1e-5",
    "account --gaussian 1 --delta 2",
    "plan dp_ight --n 1000 --d 50 --epsilon 1 --delta 1e-6 --loss logistic --sparsity 5 --row-norm 1",
    "plan dp_scsg_ht --n 5000 --d 50 --epsilon 1 --delta 1e-6 --loss logistic --sparsity 5 --row-norm 1 --epochs 2"
    " --batch-size 50 --snapshot-size 500 --step-size 1 --json",
    "plan no_such --n 10 --d 5",
    f"{_FIT} --out default.json",
    f"{_FIT} --solver dp-ight --sparsity 3 --steps 6 --step-size 2 --out ight.json --json",
    f"{_FIT} --solver objective-perturbation --out objective.json",
    "fit three.svm --epsilon 2 --n-features 6 --row-norm 1 --seed 3 --task classification --classes 0 1 2"
    " --solver dp-sgd-ht --sparsity 3 --out three.json",
    "fit numbers.csv --epsilon 2 --n-features 6 --row-norm 2 --label-bound 1 --seed 3 --task regression"
    " --out numbers.json",
    "predict ight.json two.svm --out predicted.txt",
    "predict three.json three.svm --probabilities --out probabilities.txt",
    "evaluate ight.json two.svm",
    "evaluate three.json three.svm --json",
    "evaluate numbers.json numbers.csv",
    f"{_TUNE} --solver dp-ight --sparsity 3 --grid steps=5,10 --plan",
    f"{_TUNE} --solver dp-ight --sparsity 3 --grid steps=5,10 --seed 4 --out tuned.json",
    "audit dp_ight --epsilon 1 --trials 400",
    "audit dp_frank_wolfe --epsilon 1 --trials 400 --published --sequential --json",
    "audit nothing_known --epsilon 1",
    "data list",
    "completion bash",
)
# Files that these commands write, which are pinned too.
WRITTEN = (
    "default.json", "ight.json", "objective.json", "three.json", "numbers.json", "tuned.json", "predicted.txt",
    "probabilities.txt",
)  # fmt: skip


def shell_files() -> Iterator[tuple[str, str]]:
    """(name, text) of the files that the lines of the shell read."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 6))
    rows = [" ".join(f"{j + 1}:{value:.4f}" for j, value in enumerate(row)) for row in X]
    two, three = np.where(X[:, 0] > 0, 1, -1), np.digitize(X[:, 0], [-0.4, 0.4])
    for name, labels in (("two.svm", two), ("three.svm", three)):
        yield name, "".join(f"{label} {row}\n" for label, row in zip(labels, rows, strict=True))
    head = ",".join([f"f{j}" for j in range(6)] + ["y"])
    lines = [",".join(f"{value:.4f}" for value in (*row, np.clip(row[0], -1, 1))) for row in X]
    yield "numbers.csv", "\n".join([head, *lines]) + "\n"
