"""The table of private solvers: one row per solver.

Everything that has to list solvers reads this table: ``dptoolkit.solvers`` and its plans, the routes of
``dptoolkit.models``, the estimators, the worst pairs and presets of ``dptoolkit.audit``, the shell and the tests. A new
solver is its own files and one row here.

Modules are named by text, so that reading the table loads none of them. Text is also how a row can name the solver's
pair in the audit package, which solvers must not import.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLASSIFICATION, REGRESSION = "classification", "regression"
TASKS = (CLASSIFICATION, REGRESSION)


@dataclass(frozen=True, kw_only=True)
class Solver:
    """One private solver: where its parts are, what it can do, and how it is used for a task.

    Attributes
    ----------
    name : str
        The name of the public function, which ``dptoolkit.solvers`` offers.
    module : str
        The module that holds the function and the settings class.
    settings : str
        The name of the settings class.
    plain : str or None
        The function of the same module that runs the algorithm without privacy, if there is one.
    tasks : mapping of str to mapping
        The arguments that the solver always gets for a task of ``models.fit``, for every task that it can do. It is
        empty for a solver that ``models.fit`` does not offer.
    several : (str, mapping) or None
        The solver that fits more than two classes in one model, and the arguments that it always gets. Without one,
        ``models.fit`` makes one fit per class against the rest, and these fits share the budget.
    pair : str
        The module with the solver's worst pair, which is a function of the solver's name, and with the settings of its
        audit preset, which are the entry of that name in ``PRESETS`` and, if the paper's noise needs other ones, in
        ``PUBLISHED_PRESETS``.
    page : str
        The page in docs/ that explains the solver, without its ending.
    classes : bool
        Whether one fit can be a model of more than two classes, whose number is the argument ``classes``.
    blocks : bool
        Whether ``fit_many`` computes several fits together, in shared passes over the data.
    unit_rows : tuple of str
        The tasks for which the solver scales every row to norm 1, so that a bound on the norm changes nothing.
    """

    name: str
    module: str
    settings: str
    plain: str | None = None
    tasks: Mapping[str, Mapping[str, Any]]
    several: tuple[str, Mapping[str, Any]] | None = None
    pair: str
    page: str
    classes: bool
    blocks: bool
    unit_rows: tuple[str, ...] = ()

    def part(self, name: str) -> Any:
        """What the solver's module calls ``name``: the function, its plain version or the settings class."""
        return getattr(importlib.import_module(self.module), name)


_HERE, _PAIRS = "dptoolkit.solvers", "dptoolkit.audit.pairs"
_LOGISTIC, _SOFTMAX, _SQUARED, _HUBER = ({"loss": loss} for loss in ("logistic", "softmax", "squared", "huber"))
_EITHER: Mapping[str, Mapping[str, Any]] = {CLASSIFICATION: _LOGISTIC, REGRESSION: _SQUARED}
# Solvers that need a bounded slope take the Huber loss, whose residuals are clipped.
_ROBUST: Mapping[str, Mapping[str, Any]] = {CLASSIFICATION: _LOGISTIC, REGRESSION: _HUBER}

_ROWS = (
    Solver(
        name="dp_ight", module=f"{_HERE}._ight", settings="DpIght", plain="ight",
        tasks=_EITHER, pair=f"{_PAIRS}._ight", page="dp_ight", classes=False, blocks=True,
    ),
    Solver(
        name="dp_frank_wolfe", module=f"{_HERE}._frank_wolfe", settings="DpFrankWolfe", plain="frank_wolfe",
        tasks=_EITHER, several=("dp_multinomial_frank_wolfe", {}), pair=f"{_PAIRS}._frank_wolfe",
        page="dp_frank_wolfe", classes=False, blocks=True,
    ),
    Solver(
        name="sparsifier", module=f"{_HERE}._sparsifier", settings="Sparsifier",
        tasks={}, pair=f"{_PAIRS}._sparsifier", page="sparsifier", classes=False, blocks=False,
    ),
    Solver(
        name="dp_multinomial_frank_wolfe", module=f"{_HERE}._multinomial_frank_wolfe",
        settings="DpMultinomialFrankWolfe", tasks={}, pair=f"{_PAIRS}._multinomial_frank_wolfe",
        page="dp_multinomial_frank_wolfe", classes=True, blocks=False,
    ),
    Solver(
        name="peeling_iht", module=f"{_HERE}._peeling", settings="PeelingIht",
        tasks={REGRESSION: {}}, pair=f"{_PAIRS}._peeling", page="peeling_iht", classes=False, blocks=False,
    ),
    Solver(
        name="dp_sgd_ht", module=f"{_HERE}._sgd", settings="DpSgdHt", plain="sgd_ht",
        tasks=_EITHER, pair=f"{_PAIRS}._ight", page="dp_sgd_ht", classes=False, blocks=False,
    ),
    Solver(
        name="dp_scsg_ht", module=f"{_HERE}._scsg", settings="DpScsgHt", plain="scsg_ht",
        tasks=_EITHER, pair=f"{_PAIRS}._scsg", page="dp_scsg_ht", classes=False, blocks=False,
    ),
    Solver(
        name="dp_svrg_ht", module=f"{_HERE}._scsg", settings="DpSvrgHt", plain="svrg_ht",
        tasks=_EITHER, pair=f"{_PAIRS}._scsg", page="dp_svrg_ht", classes=False, blocks=False,
    ),
    Solver(
        name="dp_dual_averaging", module=f"{_HERE}._dual_averaging", settings="DpDualAveraging",
        tasks=_EITHER, several=("dp_dual_averaging", _SOFTMAX), pair=f"{_PAIRS}._dual_averaging",
        page="dp_dual_averaging", classes=True, blocks=True,
    ),
    Solver(
        name="dp_pipeline", module=f"{_HERE}._pipeline", settings="DpPipeline",
        tasks=_EITHER, several=("dp_pipeline", _SOFTMAX), pair=f"{_PAIRS}._pipeline", page="dp_pipeline",
        classes=True, blocks=False, unit_rows=(CLASSIFICATION,),
    ),
    Solver(
        name="objective_perturbation", module=f"{_HERE}._objective_perturbation", settings="PerturbedObjective",
        tasks=_ROBUST, pair=f"{_PAIRS}._objective_perturbation", page="objective_perturbation", classes=False,
        blocks=False,
    ),
    Solver(
        name="two_stage", module=f"{_HERE}._two_stage", settings="TwoStage",
        tasks=_ROBUST, pair=f"{_PAIRS}._two_stage", page="two_stage", classes=False, blocks=False,
    ),
    Solver(
        name="knowledge_transfer", module=f"{_HERE}._knowledge_transfer", settings="KnowledgeTransfer",
        tasks={}, pair=f"{_PAIRS}._knowledge_transfer", page="knowledge_transfer", classes=False, blocks=False,
    ),
    Solver(
        name="dp_admm", module=f"{_HERE}._admm", settings="DpAdmm", plain="admm",
        tasks={}, pair=f"{_PAIRS}._admm", page="dp_admm", classes=False, blocks=False,
    ),
)  # fmt: skip
# A plain dict, so that a program can add a row of its own: everything that lists solvers reads it when it is asked.
SOLVERS: dict[str, Solver] = {row.name: row for row in _ROWS}
