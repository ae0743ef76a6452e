"""Plans without hope say so before anything is spent; the others do not."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from dptoolkit import solvers
from dptoolkit.solvers import HopelessPlanWarning
from dptoolkit.solvers.outlook import BEST_FEATURE, SURVIVABLE

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
LOGISTIC = {"loss": "logistic", "row_norm": 1.0}


def warned(name, n, **arguments):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        plan = solvers.plan(name, n=n, d=2000, **BUDGET | arguments)
    found = [w for w in seen if w.category is HopelessPlanWarning]
    assert all(w.filename == __file__ for w in found), "the warning points at the caller"
    return plan, [str(w.message) for w in found]


@pytest.mark.parametrize(("name", "arguments"), [("dp_pipeline", {}), ("dp_dual_averaging", LOGISTIC),
                                                 ("dp_ight", LOGISTIC | {"sparsity": 5}),
                                                 ("objective_perturbation", LOGISTIC)])  # fmt: skip
def test_few_rows_are_hopeless_and_the_rows_it_asks_for_are_not(name, arguments):
    plan, (message,) = warned(name, 20, **arguments)
    assert "rows instead of 20" in message and "epsilon" in message
    needed = int(message.split("What helps: ")[1].split(" rows")[0].replace(",", ""))
    assert not warned(name, needed + 1, **arguments)[1]
    assert warned(name, needed - 2, **arguments)[1]
    assert plan.settings.outlook(plan).error > SURVIVABLE


def test_batches_are_hopeless_too():
    """Their noise does not go like 1/n exactly, so the number of rows that is asked for is approximate."""
    assert "rows instead of 20" in warned("dp_sgd_ht", 20, **LOGISTIC, sparsity=5)[1][0]
    assert not warned("dp_sgd_ht", 200, **LOGISTIC, sparsity=5)[1]


def test_the_noise_of_a_prediction_is_what_a_run_shows():
    """On rows of zeros but one the weights are noise: their spread, times the row norm, is the one that was said.

    One of 400 standard deviations: its estimate is off by less than 0.25 with probability 1 - 1e-10 or so.
    """
    plan, _ = warned("dp_dual_averaging", 500, **LOGISTIC | {"row_norm": 3.0})
    X, y = np.zeros((500, 2000)), np.zeros(500)
    fit = solvers.dp_dual_averaging(X, y, **BUDGET | LOGISTIC | {"row_norm": 3.0}, rng=0)
    said = plan.settings.outlook(plan).noise
    assert 3.0 * fit.coef.std() == pytest.approx(said, rel=0.25)
    assert 3.0 * fit.coef.std() != pytest.approx(2 * said, rel=0.25)


def test_too_much_time_is_hopeless_and_shorter_steps_are_the_help():
    _, (message,) = warned("dp_ight", 2000, **LOGISTIC, sparsity=10, steps=100, step_size=100.0)
    assert "shorter steps" in message
    assert not warned("dp_ight", 2000, **LOGISTIC, sparsity=10, steps=100, step_size=1.0)[1]


def test_without_noise_there_is_hope_and_without_bounds_nothing_is_said():
    assert not warned("dp_dual_averaging", 1, **LOGISTIC, epsilon=math.inf)[1]
    plan, messages = warned("dp_ight", 3, loss="squared", grad_norm=1.0, sparsity=1, steps=3, step_size=1.0)
    assert not messages and plan.settings.outlook(plan) is None and "Outlook" not in str(plan)


def test_plans_print_their_outlook():
    plan, _ = warned("dp_pipeline", 20_000)
    assert "Outlook" in str(plan) and "noise of a prediction" in str(plan) and "below 0.01" in str(plan)
    assert "coin" in str(warned("dp_pipeline", 20)[0])


def test_regression_does_not_speak_of_coins():
    plan, (message,) = warned("dp_dual_averaging", 20, loss="huber", row_norm=1.0)
    assert "coin" not in message and "coin" not in str(plan)


# --- selections ------------------------------------------------------------------------------------------

ENTRIES = {"loss": "logistic", "feature_bound": 1.0}


def test_few_rows_are_hopeless_for_selections_and_the_rows_they_ask_for_are_not():
    plan, (message,) = warned("dp_frank_wolfe", 20, **ENTRIES)
    needed = int(message.split("What helps: ")[1].split(" rows")[0].replace(",", ""))
    assert not warned("dp_frank_wolfe", needed + 1, **ENTRIES)[1]
    assert warned("dp_frank_wolfe", needed - 2, **ENTRIES)[1]
    assert plan.settings.outlook(plan).feature > BEST_FEATURE and "a selection finds a lone feature" in str(plan)
    assert not warned("dp_frank_wolfe", 3, **ENTRIES, epsilon=math.inf)[1]


@pytest.mark.parametrize("calibration", ["tight", "published"])
def test_a_feature_of_the_size_that_is_said_is_found_in_half_of_all_selections(calibration):
    """400 selections among 100 vertices, all but two of them equal: between 150 and 250 with probability 1 - 6e-7."""
    law = {"law": "gumbel", "calibration": calibration}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HopelessPlanWarning)
        plan = solvers.plan("dp_frank_wolfe", n=2000, d=50, steps=1, l1_radius=2.0, **BUDGET | ENTRIES | law)
    y = np.arange(2000.0) % 2
    X = np.zeros((2000, 50))
    X[:, 7] = plan.settings.outlook(plan).feature * (2 * y - 1)
    run = plan.settings.prepare(plan, plan.settings.rows(X), y)
    streams = np.random.default_rng(0).spawn(400)
    found = sum(int(run(stream).history["vertices"][0]) == 7 for stream in streams)
    assert 150 <= found <= 250
