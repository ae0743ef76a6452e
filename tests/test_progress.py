"""Progress is shown step by step, costs nothing if nobody watches, changes no bit of a fit, and hides what it must."""

from __future__ import annotations

import io
import sys
import threading

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import models, progress, solvers, tuning
from dptoolkit.audit.presets import PRESETS
from dptoolkit.solvers.engine import descent

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
pytestmark = pytest.mark.filterwarnings("ignore")


class Kept(progress.Watch):
    """A watch that remembers what it was told."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def enter(self, stage, depth):
        super().enter(stage, depth)
        self.lines.append(str(self))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = sparse.random(600, 400, density=0.05, random_state=rng, format="csr")
    return X, rng.integers(2, size=600).astype(float)


LOGISTIC = {"loss": "logistic", "row_norm": 1.0}
ENTRIES = {"loss": "logistic", "feature_bound": 1.0, "l1_radius": 5.0, "steps": 40}
# For every solver with a schedule: its arguments, what its first and its last line say, where steps are not all made by
# one compiled call.
SCHEDULES = {
    "dp_ight": (LOGISTIC | {"sparsity": 5, "steps": 30, "step_size": 1.0}, "step 1 of 30", "step 30 of 30"),
    "dp_dual_averaging": (LOGISTIC | {"steps": 30, "step_size": 1.0}, "step 1 of 30", "step 30 of 30"),
    "dp_pipeline": ({}, "step 1 of ", ""),
    "dp_frank_wolfe": (ENTRIES, "step 1 of 40", ""),
    "sparsifier": (ENTRIES | {"count": "fixed", "number": 5}, "step 1 of 40", ""),
    # Batches of random size, so that a part of the schedule has sizes of its own.
    "dp_sgd_ht": (
        LOGISTIC | {"sparsity": 5, "steps": 120, "batch_size": 50, "sampling": "poisson", "adjacency": "zero-out"},
        "step 1 of 120",
        "",
    ),
    "dp_scsg_ht": (
        LOGISTIC | {"sparsity": 5, "epochs": 4, "snapshot_size": 200, "batch_size": 50, "step_size": 1.0},
        "epoch 1 of 4",
        "epoch 4 of 4",
    ),
    "dp_admm": (LOGISTIC, "update 1 of 5", "update 5 of 5"),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_counted_and_the_model_is_the_same_to_the_last_bit(rows, name, monkeypatch):
    monkeypatch.setattr(descent, "SMALL", 0)
    arguments, first, last = SCHEDULES[name]
    fit = lambda: getattr(solvers, name)(*rows, **BUDGET, **arguments, rng=3)  # noqa: E731
    alone, watch = fit(), Kept()
    with progress.watched(watch):
        together = fit()
    assert watch.lines[0].startswith(first) and watch.lines[-1].startswith(last)
    numbers = [int(line.split()[1].replace(",", "")) for line in watch.lines]
    assert numbers == sorted(set(numbers)) and watch.depth == 0
    assert together.coef.tobytes() == alone.coef.tobytes() and together.intercept == alone.intercept


@pytest.mark.parametrize("law", ["gumbel", "laplace"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize(("dense", "refresh"), [(True, 0.25), (False, 0.25), (False, 1.0)])
def test_every_path_of_frank_wolfe_is_counted(rows, law, loss, dense, refresh):
    own = {"feature_bound": 1.0, "l1_radius": 5.0, "steps": 40, "loss": loss, "law": law, "refresh": refresh}
    X, label = rows[0][:, :30], {"label_bound": 1.0} if loss == "squared" else {}
    data = (X.toarray() if dense else X), rows[1]
    alone, watch = solvers.dp_frank_wolfe(*data, **BUDGET, **own, **label, rng=3), Kept()
    with progress.watched(watch):
        together = solvers.dp_frank_wolfe(*data, **BUDGET, **own, **label, rng=3)
    assert watch.lines[0] == "step 1 of 40" and together.coef.tobytes() == alone.coef.tobytes()


def test_no_schedule_is_forgotten():
    """Solvers that are not above: steps of a softmax and of peeling have tests below; the others have no schedule.

    objective_perturbation and two_stage search for a minimiser, and how long that takes depends on the records;
    dp_svrg_ht is dp_scsg_ht with other snapshots; knowledge_transfer asks a teacher.
    """
    others = {"dp_multinomial_frank_wolfe", "peeling_iht", "objective_perturbation", "two_stage", "dp_svrg_ht"}
    assert set(SCHEDULES) | others | {"knowledge_transfer"} == set(PRESETS) == set(solvers.PRIVATE)


def test_searches_for_a_minimiser_are_not_counted(rows):
    watch = Kept()
    with progress.watched(watch):
        solvers.objective_perturbation(*rows, **BUDGET, **LOGISTIC, rng=0)
    assert watch.lines == []


def test_peeling_is_counted():
    rng, watch = np.random.default_rng(0), Kept()
    plan = solvers.plan("peeling_iht", **PRESETS["peeling_iht"], **BUDGET)
    data = rng.uniform(-1, 1, (plan.n, plan.d)), rng.uniform(-1, 1, plan.n)
    with progress.watched(watch):
        solvers.bind(plan, *data).fit(np.random.default_rng(0))
    assert watch.lines[-1] == f"step {plan.settings.steps} of {plan.settings.steps}"


@pytest.mark.parametrize(("solver", "options", "lines"), [
    ("dp_pipeline", {}, ["step 1 of ", "step 2 of "]),
    ("dp_frank_wolfe", {"feature_bound": 1.0, "steps": 3, "l1_radius": 1.0}, ["step 1 of 3", "step 2 of 3"]),
    ("dp_ight", LOGISTIC | {"sparsity": 5, "steps": 3, "step_size": 1.0},
     ["class 1 of 3", "class 1 of 3, step 1 of 3", "class 1 of 3, step 2 of 3", "class 1 of 3, step 3 of 3",
      "class 2 of 3", "class 2 of 3, step 1 of 3"]),
])  # fmt: skip
def test_several_classes_are_counted(rows, solver, options, lines):
    y, watch = np.arange(600) % 3, Kept()
    own = {key: value for key, value in options.items() if key != "loss"}
    fit = lambda: models.fit(rows[0], y, task="classification", solver=solver, classes=[0, 1, 2], rng=1, **own)  # noqa: E731
    with progress.watched(watch):
        together = fit()
    assert [line[: len(start)] for line, start in zip(watch.lines, lines, strict=False)] == lines
    assert together.coef.tobytes() == fit().coef.tobytes()


def test_the_runs_of_a_private_choice_stay_hidden(rows):
    watch = Kept()
    with progress.watched(watch):
        tuning.tune("dp_ight", [{"steps": 3}, {"steps": 5}], *rows, **LOGISTIC, sparsity=5, step_size=1.0, rng=0,
                    epsilon=2.0, delta=1e-5)  # fmt: skip
    assert watch.lines == []


def test_nobody_watching_costs_nothing():
    assert progress.steps(7) == range(7) and progress.at_once(1000) == 1000
    parts = [(1, 2), (3, 4)]
    assert progress.counted(parts, iter(()), 6) is parts


def test_a_fit_that_fails_leaves_no_stage_behind():
    watch = Kept()
    with progress.watched(watch), pytest.raises(ZeroDivisionError):
        for _ in progress.steps(3, "class"):
            for _ in progress.steps(3):
                raise ZeroDivisionError
    assert watch.depth == 0 and watch.lines == ["class 1 of 3", "class 1 of 3, step 1 of 3"]


def test_another_thread_does_not_write_into_the_watch():
    watch = Kept()
    with progress.watched(watch):
        thread = threading.Thread(target=lambda: list(progress.steps(5)))
        thread.start()
        thread.join()
    assert watch.lines == []


# --- what is printed ------------------------------------------------------------------------------------------


def test_a_line_names_the_step_and_the_seconds(monkeypatch):
    screen, seen = io.StringIO(), threading.Event()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress.reported("dp_pipeline", delay=0.001):
        for _ in progress.steps(1500):
            for _ in range(10_000):
                if "step 1 of 1,500" in screen.getvalue() or seen.wait(0.001):
                    break
            break
    assert "dp_pipeline: step 1 of 1,500, 0 s\n" in screen.getvalue()


def test_verbose_says_when_it_begins_and_ends_and_what_to_expect(rows, capsys):
    from dptoolkit.estimators import PrivateSparseClassifier, PrivateSparseRegressor

    silent = PrivateSparseClassifier(classes=[0, 1], random_state=0).fit(*rows)
    assert capsys.readouterr() == ("", "")
    spoken = PrivateSparseClassifier(classes=[0, 1], random_state=0, verbose=True).fit(*rows)
    out, said = capsys.readouterr()
    assert out == "" and said.startswith("dp_pipeline: 600 rows of 400 features\n") and "fitted in " in said
    assert "Outlook" in said and "(s.d.) to a score" in said
    assert silent.coef_.tobytes() == spoken.coef_.tobytes()
    PrivateSparseRegressor(label_bound=1.0, row_norm=1.0, verbose=1).fit(*rows)
    assert "may be predicted worse than by their mean" in capsys.readouterr().err


def test_verbose_is_checked_before_anything_is_spent(rows):
    with pytest.raises(ValueError, match="verbose='yes': must be True, False or a whole number"):
        models.fit(*rows, task="classification", verbose="yes")


def test_verbose_prints_nothing_elsewhere_without_stderr(rows, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    assert models.fit(*rows, task="classification", rng=0, verbose=True).task == "classification"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["audit", "demo", "tune"])
def test_commands_that_fit_many_times_show_no_steps(command, monkeypatch):
    from dptoolkit.cli import output as shell

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with shell.shown(command, silent=False):
        assert progress.steps(4) == range(4)


def test_the_shell_shows_the_step_of_its_stage(monkeypatch):
    from dptoolkit.cli import output as shell

    screen, seen = io.StringIO(), threading.Event()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(shell, "DELAY", 0.001)
    with shell.shown("fit", silent=False):
        shell.stage("dp_pipeline on 9 rows")
        for _ in progress.steps(4):
            for _ in range(10_000):
                if "step 1 of 4" in screen.getvalue() or seen.wait(0.001):
                    break
            break
    assert "dptoolkit: fit: dp_pipeline on 9 rows, step 1 of 4, 0 s\n" in screen.getvalue()
