"""The solvers of the league table: what each is given, and the five settings that it may be tuned to."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.lib.problems import Problem
from dptoolkit import solvers
from dptoolkit.solvers.frame import rules

# A setting is a mapping. Names in capitals are constants of the rules, all others are arguments of the solver; an
# argument named ..._share_of_rows is that share of the number of rows.
Setting = dict[str, float]
Settings = tuple[Setting, ...]


@contextmanager
def changed(constants: Setting) -> Iterator[None]:
    """The rules with other constants."""
    before = {name: getattr(rules, name) for name in constants}
    for name, value in constants.items():
        setattr(rules, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(rules, name, value)


@dataclass(frozen=True)
class Fits:
    """Margins of the test rows and the number of features of several fits."""

    margins: list[Any]
    features: list[int]


@dataclass(frozen=True)
class Method:
    """A solver, the arguments that it always gets (``given``), and the settings to try for each kind of labels.

    ``rule`` says that the first setting is the solver's own rule. ``widest`` is the largest number of features for
    which it is quick enough.
    """

    solver: str
    given: Callable[[Problem], dict[str, Any]]
    settings: dict[str, Settings]
    rule: bool = True
    widest: float = np.inf

    def takes(self, problem: Problem) -> bool:
        """Whether the method is for such labels, and quick enough for so many features."""
        return problem.kind in self.settings and problem.X.shape[1] <= self.widest

    def fits(self, problem: Problem, setting: Setting, seeds: int, **more: Any) -> Fits:
        """Fits from the seeds 0, 1, ...; ``more`` are the budget and other arguments."""
        n, d = problem.X.shape
        own = {name: value for name, value in setting.items() if not name.isupper()}
        arguments = self.given(problem) | _scaled(own, n, d) | more
        with changed({name: value for name, value in setting.items() if name.isupper()}):
            plan = solvers.plan(self.solver, n=n, d=d, **arguments)
            results = solvers.fit_many(plan, problem.rows, problem.y, seeds=range(seeds))
        return Fits(
            [solvers.margins(result, problem.X_test, n_features=d) for result in results],
            [int(np.count_nonzero(np.atleast_2d(result.coef).any(axis=0))) for result in results],
        )


@dataclass(frozen=True)
class Peer(Method):
    """diffprivlib's logistic regression: dense rows, delta 0, several classes one by one."""

    def takes(self, problem: Problem) -> bool:
        """See ``Method``; False also where diffprivlib is not installed."""
        return super().takes(problem) and importlib.util.find_spec("diffprivlib") is not None

    def fits(self, problem: Problem, setting: Setting, seeds: int, **more: Any) -> Fits:
        """See ``Method``; of the budget it takes epsilon alone."""
        models = importlib.import_module("diffprivlib.models")
        X, X_test = (part.toarray() if sparse.issparse(part) else part for part in (problem.X, problem.X_test))
        margins, features = [], []
        for seed in range(seeds):
            model = models.LogisticRegression(epsilon=more["epsilon"], data_norm=1.0, random_state=seed, **setting)
            model.fit(X, problem.y)
            margins.append(model.decision_function(X_test))
            features.append(int(np.count_nonzero(model.coef_.any(axis=0))))
        return Fits(margins, features)


def _scaled(setting: Setting, n: int, d: int) -> dict[str, Any]:
    """A setting's arguments for n rows of d features."""
    end = "_share_of_rows"
    shares = {name[: -len(end)]: max(round(v * n), 1) for name, v in setting.items() if name.endswith(end)}
    others = {name: value for name, value in setting.items() if not name.endswith(end)}
    return shares | {name: min(int(v), d) if name == "sparsity" else v for name, v in others.items()}


# --- what is given -------------------------------------------------------------------------------------------


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


def _counted(problem: Problem) -> dict[str, Any]:
    return _entries(problem) | {"count": "fixed", "number": min(100, problem.X.shape[1])}


def _votes(problem: Problem) -> dict[str, Any]:
    return _rows(problem) | {"sparsity": min(50, problem.X.shape[1])}


def _taught(problem: Problem) -> dict[str, Any]:
    return _loss(problem) | {"row_norm": 1.0, "sparsity": min(30, problem.X.shape[1])}


def _peeled(problem: Problem) -> dict[str, Any]:
    return {"sparsity": min(10, problem.X.shape[1]), "feature_bound": 1.0, "label_bound": 1.0, "radius": 2.0}


# --- what is tuned -------------------------------------------------------------------------------------------


def _each(name: str, *values: float) -> Settings:
    return tuple({name: value} for value in values)


_DESCENT: Settings = ({}, *_each("RESIDUAL", 0.12, 0.5), *_each("MARGIN_NOISE", 0.4, 1.6))
_NUMBERS: Settings = ({}, *_each("PREDICTION_NOISE", 0.025, 0.05, 0.2, 0.4))
_PIPED: Settings = ({}, *_each("NUMBER_RESIDUAL", 0.1, 0.6), *_each("NUMBER_NOISE", 0.1, 0.4))
_PERTURBED: Settings = ({}, *_each("PERTURBED_MARGIN_NOISE", 0.075, 0.15, 0.6, 1.2))
_VERTICES: Settings = ({}, *_each("FEWEST_VERTICES", 2, 15), *_each("RADIUS", 1.1, 10.0))
_UPDATES: Settings = ({}, *_each("UPDATES", 2, 10))
_TAUGHT: Settings = ({}, *_each("sparsity", 10, 100), *_each("selection_share", 0.3, 0.8))
_BLOCKS = _each("blocks_share_of_rows", 0.005, 0.01, 0.02, 0.05, 0.1)
_EPOCHS: Settings = tuple({"epochs": e, "step_size": h} for e, h in ((2, 1.0), (2, 8.0), (5, 1.0), (5, 8.0), (10, 4.0)))
_SNAPSHOTS: Settings = tuple(one | {"snapshot_size_share_of_rows": 0.5} for one in _EPOCHS)
_BALLS: Settings = tuple(
    {"l1_radius": r, "steps": t} for r, t in ((3.0, 2), (3.0, 10), (10.0, 5), (10.0, 20), (30.0, 80))
)
_PEELS: Settings = tuple({"steps": t, "step_size": h} for t, h in ((2, 0.5), (5, 0.5), (10, 0.5), (5, 1.0), (10, 1.0)))
_PEER: Settings = ({}, *_each("C", 0.01, 0.1, 10.0, 100.0))


def _kinds(binary: Settings, numbers: Settings | None = None, classes: Settings | None = None) -> dict[str, Settings]:
    by_kind = {"binary": binary, "numbers": numbers, "classes": classes}
    return {kind: settings for kind, settings in by_kind.items() if settings is not None}


METHODS: dict[str, Method] = {
    "dp_pipeline": Method("dp_pipeline", _pipeline, _kinds(_DESCENT, _PIPED, _DESCENT)),
    "dp_dual_averaging": Method("dp_dual_averaging", _rows, _kinds(_DESCENT, _NUMBERS, _DESCENT)),
    "dp_ight": Method("dp_ight", _sparse, _kinds(_DESCENT, _NUMBERS)),
    "dp_sgd_ht": Method("dp_sgd_ht", _sparse, _kinds(_DESCENT, _NUMBERS)),
    "objective_perturbation": Method("objective_perturbation", _rows, _kinds(_PERTURBED, _NUMBERS)),
    "dp_admm": Method(
        "dp_admm",
        _rows,
        _kinds((*_UPDATES, *_DESCENT[3:]), (*_UPDATES, *_each("PREDICTION_NOISE", 0.05, 0.2))),
    ),
    "knowledge_transfer": Method("knowledge_transfer", _taught, _kinds(_TAUGHT, _TAUGHT)),
    "two_stage": Method("two_stage", _votes, _kinds(_BLOCKS, _BLOCKS), False, widest=1000),
    "dp_svrg_ht": Method("dp_svrg_ht", _batches, _kinds(_EPOCHS, _EPOCHS), False),
    "dp_scsg_ht": Method("dp_scsg_ht", _batches, _kinds(_SNAPSHOTS, _SNAPSHOTS), False),
    "peeling_iht": Method("peeling_iht", _peeled, {"numbers": _PEELS}, False),
    "dp_frank_wolfe": Method("dp_frank_wolfe", _entries, _kinds(_VERTICES, _VERTICES)),
    "dp_multinomial_frank_wolfe": Method("dp_multinomial_frank_wolfe", _entries, {"classes": _VERTICES}),
    "sparsifier": Method("sparsifier", _counted, _kinds(_BALLS, _BALLS), False),
    "diffprivlib": Peer("diffprivlib", _rows, _kinds(_PEER, None, _PEER), widest=10_000),
}
# The methods that are quick enough to be judged on all rows too.
QUICK = ("dp_pipeline", "dp_dual_averaging", "dp_ight", "dp_sgd_ht", "objective_perturbation", "dp_frank_wolfe")
