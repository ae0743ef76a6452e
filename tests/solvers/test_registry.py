"""The table of solvers: every row is complete and true, and nothing that belongs to a solver is without a row.

The last part adds the solver of docs/add-a-solver.md at run time, by its row alone, and uses it everywhere.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import pkgutil
import re
import sys
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dptoolkit import audit, cli, models, solvers
from dptoolkit.audit import presets
from dptoolkit.solvers.frame.settings import Settings
from dptoolkit.solvers.registry import CLASSIFICATION, REGRESSION, SOLVERS, TASKS, Solver

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def has(module, name):
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def problems(row):
    """What is wrong with a row, in words; an empty list for a row that is complete and true."""
    found = [f"{field.name} is empty" for field in dataclasses.fields(row)
             if getattr(row, field.name) == "" or (field.name == "tasks" and row.tasks is None)]  # fmt: skip
    for name in (row.name, row.settings, *([row.plain] if row.plain is not None else [])):
        if not has(row.module, name):
            found.append(f"{row.module} has no {name}")
    if found:
        return found
    kind = row.part(row.settings)
    fields = {entry.name for entry in dataclasses.fields(kind)}
    if not issubclass(kind, Settings) or kind.solver != row.name:
        found.append(f"{row.settings} is not the settings class of {row.name}")
    if row.classes != ("classes" in fields):
        found.append("classes says something else than the settings")
    found += [f"{task} is no task" for task in (*row.tasks, *row.unit_rows) if task not in TASKS]
    routes = [*row.tasks.values(), *([row.several[1]] if row.several else [])]
    if not all(set(arguments) <= fields | {"loss"} for arguments in routes):
        found.append("a route gives an argument that the solver does not take")
    if row.several is not None and not (row.several[0] in SOLVERS and SOLVERS[row.several[0]].classes):
        found.append("several names no solver that takes classes")
    if not has(row.pair, row.name):
        found.append(f"{row.pair} has no {row.name}")
    elif row.name not in getattr(importlib.import_module(row.pair), "PRESETS", {}):
        found.append(f"{row.pair} has no preset for {row.name}")
    page = DOCS / f"{row.page}.md"
    if not page.is_file() or row.name not in page.read_text(encoding="utf-8"):
        found.append(f"docs/{row.page}.md does not explain {row.name}")
    return found


@pytest.mark.parametrize("row", SOLVERS.values(), ids=lambda row: row.name)
def test_every_row_is_complete_and_true(row):
    assert problems(row) == []
    assert SOLVERS[row.name] is row


def test_a_missing_or_wrong_field_would_be_found():
    good = SOLVERS["dp_frank_wolfe"]
    for field, wrong in {
        "name": "dp_ight", "module": "dptoolkit.solvers._nothing", "settings": "", "plain": "wolfe",
        "tasks": {"ranking": {}}, "several": ("dp_ight", {}), "pair": "dptoolkit.audit.pairs._ight",
        "page": "dp_ight", "classes": True, "unit_rows": ("ranking",),
    }.items():  # fmt: skip
        assert problems(replace(good, **{field: wrong})), field
    required = {"name", "module", "settings", "tasks", "pair", "page", "classes", "blocks"}
    for field in required:
        with pytest.raises(TypeError, match=field):
            Solver(**{name: getattr(good, name) for name in required - {field}})


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
@pytest.mark.parametrize("name", SOLVERS)
def test_blocks_are_those_of_the_run(name):
    plan = presets.plan(name, 1.0, 1e-5)
    run = solvers.bind(plan, np.zeros((plan.n, plan.d)), np.zeros(plan.n))
    owner = next((kind for kind in type(run).__mro__ if "fit_block" in vars(kind)), None)
    assert (owner is not None and owner.__module__ != "dptoolkit.solvers.frame.run") == SOLVERS[name].blocks


def modules_of(package):
    return [f"{package}.{found.name}" for found in pkgutil.iter_modules(importlib.import_module(package).__path__)
            if found.name.startswith("_")]  # fmt: skip


def test_every_settings_class_has_one_row():
    kinds = [(module, name) for module in modules_of("dptoolkit.solvers")
             for name, kind in vars(importlib.import_module(module)).items()
             if isinstance(kind, type) and issubclass(kind, Settings) and kind.__module__ == module
             and "solver" in vars(kind)]  # fmt: skip
    rows = Counter((row.module, row.settings) for row in SOLVERS.values())
    assert rows == Counter(kinds)


def test_every_pair_and_preset_has_one_row():
    for part in ("PRESETS", "PUBLISHED_PRESETS"):
        found = Counter((module, name) for module in modules_of("dptoolkit.audit.pairs")
                        for name in getattr(importlib.import_module(module), part, {}))  # fmt: skip
        rows = Counter((row.pair, row.name) for row in SOLVERS.values())
        assert found == rows if part == "PRESETS" else found <= rows
    others = {"Counted", "Pair", "counted", "grouped", "natural", "selection", "strongest"}
    assert set(audit.pairs.__all__) - others - {"dp_fed_gd_ht", "dp_fed_sgd_ht"} == set(SOLVERS)


def test_every_page_of_a_solver_has_a_row_and_every_solver_is_in_the_lists_of_the_docs():
    contents = (DOCS / "contents.rst").read_text(encoding="utf-8").partition("Reference")[2].split()
    pages = {row.page for row in SOLVERS.values()}
    assert pages == set(contents) - {"api"}
    index, choosing = ((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in ("index", "choosing"))
    assert all(f"({page}.md)" in index for page in pages)
    assert all(f"`{name}`" in choosing for name in SOLVERS)
    reference = re.findall(r"autofunction:: dptoolkit\.solvers\.(\w+)", (DOCS / "api.md").read_text(encoding="utf-8"))
    assert Counter(reference) == Counter([*solvers._functions(), "plan", "margins", "fit_many"])


def test_editors_see_every_solver():
    tree = ast.parse((ROOT / "dptoolkit/solvers/__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    seen = {(node.module, alias.asname) for node in block.body for alias in node.names}
    rows = {(row.module, name) for name, row in solvers._functions().items()}
    assert seen == rows | {(f"dptoolkit.solvers.{module}", name) for name, module in solvers._FRAME.items()}


def questions(source):
    """Comparisons with the name of a solver."""
    return [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare)
            for part in ast.walk(node) if isinstance(part, ast.Constant) and part.value in SOLVERS]  # fmt: skip


def test_nobody_else_asks_which_solver_it_is():
    """What depends on the solver is a field of its row; only the audit's theory is about solvers by name."""
    assert questions("if plan.solver in ('dp_ight', 'other'): pass")
    for path in (ROOT / "dptoolkit").rglob("*.py"):
        if not {"pairs", "theory"} & set(path.parts):
            assert questions(path.read_text(encoding="utf-8")) == [], path


# --- A solver that is added by its row alone ------------------------------------------------------------------


@pytest.fixture
def dp_means(monkeypatch):
    """The solver, the pair and the row of docs/add-a-solver.md, in two modules, as they would be in the package."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "add-a-solver.md").read_text(encoding="utf-8"), re.M | re.S)
    solver, pair = types.ModuleType("means_solver"), types.ModuleType("means_pair")
    for module in (solver, pair):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(next(block for block in blocks if "class DpMeans" in block), vars(solver))
    exec("import numpy as np\n" + next(block for block in blocks if "def worst_pair" in block), vars(pair))
    pair.dp_means = pair.worst_pair
    exec(next(block for block in blocks if "row = Solver(" in block), own := {})
    row = replace(own["row"], module=solver.__name__, pair=pair.__name__)
    monkeypatch.setitem(SOLVERS, "dp_means", row)
    yield row
    # ``dptoolkit.solvers`` keeps what it has loaded.
    vars(solvers).pop("dp_means", None)


def test_a_solver_is_its_own_files_and_one_row(dp_means, tmp_path, capsys):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 4)) / 2
    y = (X[:, 0] > 0).astype(float)
    bounds = {"row_norm": 1.0, "epsilon": 1.0, "delta": 1e-5}
    assert "dp_means" in solvers.PRIVATE and "dp_means" in dir(solvers) and "dp_means" in dir(audit.pairs)

    plan = solvers.plan("dp_means", n=2000, d=4, **bounds)
    result = solvers.dp_means(X, y, rng=0, **bounds)
    assert result.plan == plan and result.guarantee.epsilon(1e-5) <= 1.0
    assert ((X @ result.coef > 0) == y).mean() > 0.9

    model = models.fit(X, y, task=CLASSIFICATION, solver="dp-means", classes=[0, 1], rng=0, **bounds)
    assert (model.coef[0] == result.coef).all()
    models.save(model, tmp_path / "model.json")
    assert (models.load(tmp_path / "model.json").coef == model.coef).all()
    assert "dp_means" not in models.routes.solvers_for(REGRESSION)

    assert cli.main(["plan", "dp-means", "--n", "2000", "--d", "4", "--row-norm", "1", "--epsilon", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["solver"] == "dp_means"
    assert cli.main(["audit", "dp_means", "--epsilon", "1", "--trials", "2000", "--seed", "0", "--quiet"]) == 0
    assert "dp_means" in capsys.readouterr().out


def test_the_audit_of_the_new_solver_can_fail(dp_means):
    """With a third of the noise; the chance that an honest solver is refuted is at most 1e-6."""
    plan = presets.plan("dp_means", 1.0, 1e-5)
    pair = presets.pair(plan)
    report = audit.audit(plan.with_noise(factor=1 / 3), pair, plan.guarantee, trials=4000, confidence=1 - 1e-6, rng=0)
    assert report.violated


def test_the_new_solver_is_gone_again():
    assert "dp_means" not in solvers.PRIVATE
    with pytest.raises(AttributeError, match="dp_means"):
        _ = solvers.dp_means
