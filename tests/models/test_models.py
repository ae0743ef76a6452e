"""Models of every route: their files, and what is refused."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from dptoolkit import estimators, models, solvers
from dptoolkit.accounting import Composed, Gaussian, Ledger, PureDp, Repeated, account
from dptoolkit.accounting.events import from_dict
from dptoolkit.errors import InvalidValue
from dptoolkit.models import files, routes
from dptoolkit.models.joint import joint_plan
from dptoolkit.solvers import bind, fit_many, plan
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.settings import Settings
from dptoolkit.tuning import models as choosing
from tests.estimators.cases import BINARY, NUMBERS, ROWS, THREE

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
BOUNDS = {"row_norm": 1.0}
OPTIONS = {
    "dp_pipeline": {}, "dp_dual_averaging": {}, "dp_ight": {"sparsity": 5},
    "dp_frank_wolfe": {}, "dp_sgd_ht": {},
    "dp_scsg_ht": {"batch_size": 40, "epochs": 3, "snapshot_size": 400}, "dp_svrg_ht": {"batch_size": 400, "epochs": 2},
    "objective_perturbation": {}, "two_stage": {"sparsity": 5, "blocks": 4},
    "peeling_iht": {"sparsity": 5, "steps": 5, "step_size": 0.5, "radius": 2.0},
}  # fmt: skip
CASES = [
    *(("classification", name, "two") for name in routes.solvers_for("classification")),
    *(("classification", name, "three") for name in routes.solvers_for("classification") if name != "two_stage"),
    *(("regression", name, "numbers") for name in routes.solvers_for("regression")),
]
LABELS = {"two": BINARY, "three": THREE, "numbers": NUMBERS}


def fitted(task, solver, y, **more):
    bounds = BOUNDS | ({"label_bound": 1.0} if task == "regression" and solver not in HUBER else {})
    return models.fit(ROWS, LABELS[y], task=task, solver=solver, rng=0, **(bounds | OPTIONS[solver] | more))


# Their loss is bounded, so that labels need no bound.
HUBER = ("objective_perturbation", "two_stage")


def test_every_route_has_options_here():
    assert set(OPTIONS) == {*routes.solvers_for("classification"), *routes.solvers_for("regression")}


@pytest.mark.parametrize(("task", "solver", "y"), CASES, ids=lambda value: str(value))
def test_a_file_holds_the_whole_model(tmp_path, task, solver, y):
    model = fitted(task, solver, y)
    assert model.guarantee.epsilon(1e-5) <= 2.0
    path = tmp_path / "model.json"
    models.save(model, path)
    again = models.load(path)
    assert (again.margins(ROWS) == model.margins(ROWS)).all()
    assert (again.predict(ROWS) == model.predict(ROWS)).all()
    assert again.plan == model.plan and str(again.guarantee) == str(model.guarantee)
    assert (again.steps, again.task, again.solver) == (model.steps, task, solver)
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]


def test_an_estimator_comes_back_from_its_file(tmp_path):
    estimator = estimators.PrivateLassoClassifier(feature_bound=1.0, random_state=0, steps=10).fit(ROWS, THREE)
    estimator.save(tmp_path / "model.json")
    again = estimators.load(tmp_path / "model.json")
    assert again.get_params() == estimator.get_params()
    assert (again.predict(ROWS) == estimator.predict(ROWS)).all()
    assert again.guarantee_ == estimator.guarantee_


@pytest.mark.parametrize("forged", [{"epsilon": 0.01}, {"delta": 0.3}, {"adjacency": "zero-out"}, None])
@pytest.mark.parametrize("y", [BINARY, THREE], ids=["one fit", "a fit a class"])
def test_an_estimator_states_the_budget_of_its_plan(tmp_path, forged, y):
    """A parameter that is left out would be the default's, which is not what the model was fitted with."""
    estimator = estimators.PrivateIHTClassifier(row_norm=1.0, random_state=0, sparsity=5, epsilon=8.0).fit(ROWS, y)
    estimator.save(tmp_path / "m.json")
    record = json.loads((tmp_path / "m.json").read_text())
    params = record["estimator"]["params"]
    assert estimators.load(write(tmp_path / "m.json", record)).epsilon == 8.0
    record["estimator"]["params"] = params | forged if forged else {"random_state": 0}
    with pytest.raises(InvalidValue, match="not the budget of its plan"):
        estimators.load(write(tmp_path / "m.json", record))


def test_an_estimator_is_of_the_class_that_was_fitted(tmp_path):
    """Whose documentation says what was released."""
    estimator = estimators.PrivateIHTClassifier(row_norm=1.0, random_state=0, sparsity=5)
    estimator.fit(ROWS, BINARY).save(tmp_path / "m.json")
    record = json.loads((tmp_path / "m.json").read_text())
    own = {"class": "PrivateSparseClassifier", "params": {"random_state": 0}}
    with pytest.raises(InvalidValue, match="fitted by dp_ight"):
        estimators.load(write(tmp_path / "m.json", record | {"estimator": own}))


def test_an_estimator_that_a_private_search_chose_states_a_budget_that_its_choice_keeps(tmp_path):
    candidate = estimators.PrivateIHTClassifier(row_norm=1.0, sparsity=5)
    found = estimators.PrivateSearchCV(candidate, {"step_size": [1.0, 4.0]}, epsilon=8.0, random_state=0)
    found.fit(ROWS, BINARY).best_estimator_.save(tmp_path / "m.json")
    record = json.loads((tmp_path / "m.json").read_text())
    assert estimators.load(write(tmp_path / "m.json", record)).guarantee_ == found.guarantee_
    with pytest.raises(InvalidValue, match="not the budget of its plan"):
        estimators.load(write(tmp_path / "m.json", edited(record, "estimator", "params", "epsilon", value=0.01)))
    with pytest.raises(InvalidValue, match="not the budget of its plan"):
        estimators.load(write(tmp_path / "m.json", edited(record, "estimator", "params", "epsilon", value="8")))


def test_a_void_guarantee_stays_void_in_a_file(tmp_path):
    X = estimators.MaxAbsScaling(unsafe=True).fit_transform(ROWS)
    estimators.PrivateSparseClassifier().fit(X, BINARY).save(tmp_path / "model.json")
    found = estimators.load(tmp_path / "model.json").guarantee_
    assert math.isinf(found.epsilon(1e-5)) and any("VOID" in note for note in found.notes)


# --- files that are refused ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record():
    return json.loads(json.dumps(files.to_record(fitted("classification", "dp_ight", "two"))))


def write(path, record, digest=True):
    """The file of a record, with the right digest: what somebody with intent could write."""
    body = {key: value for key, value in record.items() if key != "sha256"}
    text = json.dumps(body, sort_keys=True)
    path.write_text(json.dumps(body | ({"sha256": hashlib.sha256(text.encode()).hexdigest()} if digest else {})))
    return path


def edited(record, *places, value):
    copy = json.loads(json.dumps(record))
    inner = copy
    for place in places[:-1]:
        inner = inner[place]
    inner[places[-1]] = value
    return copy


def test_the_edits_below_are_what_makes_the_difference(tmp_path, record):
    assert models.load(write(tmp_path / "m.json", record)).n_features == 12


@pytest.mark.parametrize(("places", "value"), [
    (("guarantee", "epsilon", "1e-05"), 0.5), (("guarantee", "event"), Gaussian(50.0).to_dict()),
    (("guarantee", "event"), Repeated(Gaussian(50.0), 2).to_dict()), (("guarantee", "adjacency"), "zero-out"),
    (("guarantee", "epsilon"), {}), (("plan", "event"), Gaussian(50.0).to_dict()),
    (("plan", "releases", 0, "scale"), 9.0),
    (("plan", "n"), 10**6), (("plan", "d"), 13), (("plan", "settings", "sparsity"), 99), (("shape", 1), 13),
    (("coef", 0, "index", 0), 12), (("coef", 0, "index", 0), -1), (("coef", 0, "value", 0), "x"), (("coef",), []),
    (("intercept",), [0.0, 1.0]), (("classes",), [0.0, 1.0, 2.0]), (("preparations",), []), (("task",), "other"),
    (("solver",), "ight"), (("version",), 2), (("format",), "another"), (("feature_names",), ["a"]),
    (("guarantee", "notes"), 3), (("plan",), None), (("plan", "solver"), "no_such"),
    (("intercept", 0), math.nan), (("guarantee", "rho"), math.inf),
], ids=lambda value: str(value)[:40])  # fmt: skip
def test_an_edited_file_is_refused_even_with_its_digest(tmp_path, record, places, value):
    with pytest.raises(InvalidValue, match=r"m\.json"):
        models.load(write(tmp_path / "m.json", edited(record, *places, value=value)))


def test_a_solver_that_cannot_do_the_task_is_refused(tmp_path, record):
    with pytest.raises(InvalidValue, match="Its task or solver is unknown"):
        models.load(write(tmp_path / "m.json", edited(record, "solver", value="peeling_iht")))


def test_a_guarantee_that_fits_together_but_promises_more_than_the_plan_is_refused(tmp_path, record):
    forged = account(Gaussian(50.0), adjacency="replace-one").to_dict()
    own = {key: record["guarantee"][key] for key in ("notes", "asked_delta")}
    with pytest.raises(InvalidValue, match="not that of its plan"):
        models.load(write(tmp_path / "m.json", record | {"guarantee": forged | own}))


def test_a_guarantee_that_agrees_with_the_plan_at_one_delta_alone_is_refused(tmp_path, record):
    pure = account(PureDp(record["guarantee"]["epsilon"]["1e-05"]), adjacency="replace-one")
    forged = pure.to_dict() | {"epsilon": {"1e-05": pure.epsilon(1e-5)}}
    own = {key: record["guarantee"][key] for key in ("notes", "asked_delta")}
    with pytest.raises(InvalidValue, match="not that of its plan"):
        models.load(write(tmp_path / "m.json", record | {"guarantee": forged | own}))


def test_a_file_cannot_call_its_noise_secure(tmp_path):
    """No model is fitted with secure noise: its settings do not hold it, and a file's must not either."""
    model = fitted("classification", "dp_ight", "two")
    plan = model.plan.settings.secured(model.plan)
    record = json.loads(json.dumps(files.to_record(replace(model, plan=plan, guarantee=plan.guarantee))))
    forged = edited(record, "plan", "settings", "randomness", value="secure")
    with pytest.raises(InvalidValue, match="randomness"):
        models.load(write(tmp_path / "m.json", forged))


@pytest.mark.parametrize("count", [1, 2, None])
def test_a_plan_for_fewer_fits_than_there_are_classes_is_refused(tmp_path, count):
    """Every record takes part in every class's fit; None is the plan of one fit alone."""
    model = fitted("classification", "dp_ight", "three")
    fewer = model.plan.part if count is None else replace(model.plan, count=count)
    forged = replace(model, plan=fewer, guarantee=fewer.guarantee)
    files.save(model, tmp_path / "m.json")
    assert models.load(tmp_path / "m.json").plan.count == 3
    files.save(forged, tmp_path / "m.json")
    with pytest.raises(InvalidValue, match="contradict each other"):
        models.load(tmp_path / "m.json")


# --- what a file states about privacy ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def joint():
    """Three classes, one fit each."""
    return json.loads(json.dumps(files.to_record(fitted("classification", "dp_ight", "three", epsilon=8.0))))


@pytest.fixture(scope="module")
def chosen():
    terms = {"epsilon": 8.0, "delta": 1e-5, "expected_runs": 3.0}
    candidates = [{"steps": 3}, {"steps": 5}]
    found = choosing.choose(
        ROWS, BINARY, candidates, task="classification", solver="dp_ight", rng=0, terms=terms, sparsity=5, **BOUNDS
    )
    return json.loads(json.dumps(files.to_record(found.model)))


@pytest.fixture(scope="module")
def published():
    return json.loads(json.dumps(files.to_record(fitted("classification", "dp_ight", "two", calibration="published"))))


def test_untouched_files_of_every_kind_of_plan_are_read(tmp_path, joint, chosen, published):
    for record in (joint, chosen, published):
        again = models.load(write(tmp_path / "m.json", record))
        assert json.loads(json.dumps(files.to_record(again))) == record


def test_the_claim_of_published_noise_comes_back(tmp_path):
    model = fitted("classification", "dp_ight", "two", calibration="published")
    files.save(model, tmp_path / "m.json")
    assert str(models.load(tmp_path / "m.json").guarantee) == str(model.guarantee)
    assert "claims epsilon" in str(model.guarantee)


def test_the_budget_that_a_joint_plan_states_is_kept_by_its_event(tmp_path, joint):
    assert "within epsilon 8 together" in str(models.load(write(tmp_path / "m.json", joint)).plan)
    for small in (0.01, 7.9):
        with pytest.raises(InvalidValue, match=r"states an epsilon of .* and gives away"):
            models.load(write(tmp_path / "m.json", edited(joint, "plan", "epsilon", value=small)))
    with pytest.raises(InvalidValue, match="states an epsilon"):
        models.load(write(tmp_path / "m.json", edited(joint, "plan", "part", "settings", "epsilon", value=0.01)))
    with pytest.raises(InvalidValue, match="delta"):
        models.load(write(tmp_path / "m.json", edited(joint, "plan", "delta", value=0.3)))


def test_a_delta_that_the_fits_were_not_asked_for_is_refused(tmp_path, joint, chosen):
    """A file that calls 0.3 its delta everywhere else would print a small epsilon for it."""
    for record, words in ((joint, "not that of the fit for each class"), (chosen, "not that of a run")):
        forged = edited(edited(record, "plan", "delta", value=0.3), "guarantee", "asked_delta", value=0.3)
        with pytest.raises(InvalidValue, match=words):
            models.load(write(tmp_path / "m.json", forged))


@pytest.mark.parametrize(("places", "value", "words"), [
    (("plan", "settings", "epsilon"), 0.01, "states an epsilon of 0.01 and gives away"),
    (("guarantee", "asked_delta"), 0.3, "asked_delta"), (("guarantee", "asked_delta"), None, "asked_delta"),
    (("guarantee", "asked_delta"), "x", "asked_delta"), (("guarantee", "rho"), 1e-6, "rho"),
    (("guarantee", "rho"), "x", "contradict each other"), (("plan", "releases", 0, "sensitivity"), 1e-6, "releases"),
    (("plan", "releases", 0, "count"), 1, "releases"), (("plan", "releases", 0, "law"), "Laplace", "releases"),
    (("plan", "releases"), [], "contradict each other"), (("guarantee", "claimed"), {"epsilon": 0.01, "delta": 1e-5,
     "source": "us", "conditions": []}, "claim"), (("guarantee", "epsilon", "0.5"), -1.0, "not that of its plan"),
    (("guarantee", "notes"), ["VOID: nothing holds"], "VOID"),
], ids=lambda value: str(value)[:40])  # fmt: skip
def test_a_number_about_privacy_that_the_event_contradicts_is_refused(tmp_path, record, places, value, words):
    with pytest.raises(InvalidValue, match=words):
        models.load(write(tmp_path / "m.json", edited(record, *places, value=value)))


def test_published_noise_must_be_the_papers(tmp_path, published):
    """Its settings state what the paper claims, which nobody takes for the truth; so the noise must be the paper's."""
    with pytest.raises(InvalidValue, match="not the published"):
        models.load(write(tmp_path / "m.json", edited(published, "plan", "settings", "epsilon", value=0.01)))
    with pytest.raises(InvalidValue, match="claim"):
        models.load(write(tmp_path / "m.json", edited(published, "guarantee", "claimed", "epsilon", value=0.01)))
    with pytest.raises(InvalidValue, match="claim"):
        models.load(write(tmp_path / "m.json", edited(published, "guarantee", "claimed", value=None)))
    with pytest.raises(InvalidValue, match="claim"):
        models.load(write(tmp_path / "m.json", edited(published, "guarantee", "claimed", "delta", value=1e-15)))


def test_tiny_numbers_of_releases_are_compared_too(tmp_path):
    """Gradients of at most 1e-12: a sensitivity of 1e-30 is not nearly theirs."""
    small = json.loads(json.dumps(files.to_record(fitted("classification", "dp_ight", "two", grad_norm=1e-12))))
    assert models.load(write(tmp_path / "m.json", small)).plan.sensitivity < 1e-12
    with pytest.raises(InvalidValue, match="releases"):
        models.load(write(tmp_path / "m.json", edited(small, "plan", "releases", 0, "sensitivity", value=1e-30)))


def test_a_choice_gives_away_at_least_what_its_best_run_did_at_every_delta(tmp_path, chosen):
    """At a delta of 0.9 any two runs give away an epsilon of 0, so that one delta proves nothing."""
    weak = dict(chosen["plan"]["choice"], event=Gaussian(1000.0).to_dict())
    plan = chosen["plan"] | {"choice": weak, "delta": 0.9}
    guarantee = account(from_dict(weak), adjacency="replace-one")
    own = {"notes": [], "asked_delta": 0.9}
    forged = chosen | {"plan": plan, "guarantee": guarantee.to_dict() | own}
    with pytest.raises(InvalidValue, match="a smaller privacy loss than its best run"):
        models.load(write(tmp_path / "m.json", forged))
    with pytest.raises(InvalidValue, match="rows"):
        models.load(write(tmp_path / "m.json", edited(chosen, "plan", "n", value=3)))


def test_notes_that_this_package_does_not_write_are_passed_on_as_such(tmp_path, record):
    """Free text cannot be checked: it is shown as what the file says, in one line, and what the plan assumes stays."""
    claim = "within epsilon 0.01\n\nGuarantee, adjacency: any\x1b[2J"
    own = models.load(write(tmp_path / "m.json", record)).guarantee
    forged = models.load(write(tmp_path / "m.json", edited(record, "guarantee", "notes", value=[claim])))
    *plans, last = forged.guarantee.notes
    assert last == "in the file, not checked: within epsilon 0.01 Guarantee, adjacency: any[2J"
    assert set(plans) < set(own.notes) and any(text.startswith("n = ") for text in plans)
    assert "\n- in the file, not checked: within epsilon 0.01" in str(forged.guarantee)
    # It is marked once, however often it is written and read.
    files.save(forged, tmp_path / "n.json")
    assert models.load(tmp_path / "n.json").guarantee == forged.guarantee
    # A note of the plan with another number is free text as well.
    wrong = [text.replace("n = 4000", "n = 4000000") for text in own.notes]
    assert wrong != list(own.notes)
    found = models.load(write(tmp_path / "m.json", edited(record, "guarantee", "notes", value=wrong))).guarantee.notes
    assert "n = 4000 and" in " ".join(found) and "not checked: n = 4000000" in " ".join(found)


def test_a_file_that_states_more_than_it_gives_away_is_read_with_the_truth(tmp_path, record):
    """A later version may prove less than the one that wrote the file: a model is not lost for it."""
    cautious = edited(record, "guarantee", "epsilon", "1e-05", value=3.0)
    assert models.load(write(tmp_path / "m.json", cautious)).guarantee.epsilon(1e-5) <= 2.0


COLUMNS = {"label": "y", "features": ["a", "b"], "categories": {"b": ["u", "v"]}, "missing": {"a": 1.0}}


@pytest.mark.parametrize(("key", "value"), [
    ("features", ["a"]), ("features", None), ("categories", {"b": ["u", "w"]}), ("categories", []),
    ("missing", {"a": []}), ("more", 1), ("features", ["b", "a"]),
])  # fmt: skip
def test_columns_of_a_file_must_be_those_of_its_features(tmp_path, key, value):
    model = models.fit(ROWS[:, :3], BINARY, task="classification", rng=0, feature_names=("a", "b=u", "b=v"))
    models.save(replace(model, columns=COLUMNS), tmp_path / "m.json")
    assert models.load(tmp_path / "m.json").columns == COLUMNS
    record = json.loads((tmp_path / "m.json").read_text())
    with pytest.raises(InvalidValue, match=r"m\.json"):
        models.load(write(tmp_path / "m.json", record | {"columns": COLUMNS | {key: value}}))


def test_no_error_prints_control_characters_of_a_file(tmp_path, record):
    """They could clear a terminal and write lines of their own."""
    event = {"type": "Gaussian", "\x1b[2J\r\n epsilon 0.01": 1.0}
    with pytest.raises(InvalidValue, match="epsilon 0.01") as found:
        models.load(write(tmp_path / "m.json", edited(record, "plan", "event", value=event)))
    assert str(found.value).isprintable()


BESIDE = ["text", True, ["a"], {"class": ["a"]}, {"class": "PrivateIHTClassifier", "params": "x"}]


@pytest.mark.parametrize("own", BESIDE)
def test_what_is_beside_a_model_must_be_an_estimator(tmp_path, record, own):
    path = write(tmp_path / "m.json", record | {"estimator": own})
    assert models.load(path).n_features == 12
    with pytest.raises(InvalidValue, match="the file of an estimator"):
        estimators.load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": "dptoolkit model"}', "\x00\xff", "[" * 10**5])
def test_what_is_no_model_is_refused(tmp_path, text):
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(InvalidValue, match="a model"):
        models.load(path)


def test_a_changed_number_without_its_digest_is_refused(tmp_path, record):
    path = write(tmp_path / "m.json", record)
    text = path.read_text()
    path.write_text(text.replace('"steps": ', '"steps": 1'))
    with pytest.raises(InvalidValue, match="digest"):
        models.load(path)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(InvalidValue, match="JSON"):
        models.load(path)
    with pytest.raises(InvalidValue, match="model"):
        models.load(tmp_path / "nothing.json")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.json"
    path.write_text("old")
    model = fitted("classification", "dp_ight", "two")
    broken = object()
    with pytest.raises(TypeError):
        models.save(model, path, {"params": broken})
    with pytest.raises(RuntimeError), files.replaced(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


# --- plans of several classes --------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 20.0])
@pytest.mark.parametrize("count", [3, 20])
def test_a_joint_plan_keeps_its_budget_and_uses_it(epsilon, count):
    def plan_for(part):
        return plan("dp_ight", n=5000, d=20, loss="logistic", sparsity=5, row_norm=1.0, epsilon=part, delta=1e-6)

    found = joint_plan(plan_for, count, epsilon, 1e-6)
    assert 0.99 * epsilon < found.guarantee.epsilon(1e-6) <= epsilon
    assert found.event == Repeated(found.part.event, count)
    # A part that were given the whole budget would be far above it together with the others.
    assert found.part.guarantee.epsilon(1e-6) < 0.9 * epsilon


@pytest.mark.parametrize(("arguments", "word"), [
    ({"task": "ranking"}, "task"), ({"task": "classification", "solver": "peeling_iht"}, "solver"),
    ({"task": "classification", "solver": "dp_ight", "loss": "squared"}, "loss"),
    ({"task": "regression", "solver": "dp_ight", "row_norm": 1.0}, "grad_norm"),
])  # fmt: skip
def test_wrong_requests_are_refused(arguments, word):
    with pytest.raises(InvalidValue, match=word):
        models.fit(ROWS, BINARY, **arguments)


def test_what_is_left_out_is_left_to_the_solvers_rule():
    """The model's plan is that of the solver itself, called with nothing but bounds and budget."""
    shared = {"n": len(ROWS), "d": 12, "epsilon": 2.0, "delta": 1e-5, "fit_intercept": True}
    direct = plan("objective_perturbation", loss="logistic", row_norm=1.0, **shared)
    assert fitted("classification", "objective_perturbation", "two").plan == direct
    assert fitted("classification", "dp_frank_wolfe", "two").plan == plan(
        "dp_frank_wolfe", loss="logistic", feature_bound=1.0, **shared
    )


def test_several_classes_of_frank_wolfe_have_a_rule_for_all_their_vertices():
    found = fitted("classification", "dp_frank_wolfe", "three").plan.settings
    chosen = rules.vertices(len(ROWS), 3 * 12, 1.0, None, rules.budget_mu(2.0, 1e-5))
    assert (found.steps, found.l1_radius) == chosen
    with pytest.raises(InvalidValue, match="steps=None: must be given for selection='columns'"):
        fitted("classification", "dp_frank_wolfe", "three", selection="columns", l1_radius=1.0)


def test_several_classes_are_one_softmax_model_where_there_is_one():
    model = fitted("classification", "dp_pipeline", "three")
    assert model.plan.settings.loss == "softmax" and len(model.preparations) == 1
    assert fitted("classification", "dp_ight", "three").plan.count == 3


def test_numbers_and_strings_are_different_labels():
    with pytest.raises(InvalidValue, match="other labels"):
        models.fit(ROWS, BINARY, task="classification", classes=["0.0", "1.0"])
    with pytest.raises(InvalidValue, match="several types"):
        models.fit(ROWS, np.array([1, "a"] * 2000, dtype=object), task="classification")


def test_a_warning_that_is_an_error_spends_nothing():
    """One fit per class: the plan is warned of before the ledger is charged, and once."""
    few = {"task": "classification", "solver": "dp_ight", "classes": [0, 1, 2], "row_norm": 1.0, "epsilon": 0.5}
    X, y = np.eye(20), np.arange(20) % 3
    ledger = Ledger(epsilon=9.0, delta=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(solvers.HopelessPlanWarning):
            models.fit(X, y, ledger=ledger, **few)
    assert not ledger.entries and not ledger.reserved
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        models.fit(X, y, delta=0.06, ledger=Ledger(epsilon=9.0, delta=0.06), **few)
    kinds = [w.category.__name__ for w in seen]
    assert sorted(kinds) == ["DeltaWarning", "HopelessPlanWarning"]


def test_a_file_in_no_folder_is_refused_by_its_own_name(tmp_path):
    model = models.fit(np.eye(20), np.arange(20) % 2, task="classification", classes=[0, 1])
    with pytest.raises(InvalidValue, match=r"nowhere/model.json': must be a file that can be written\. No such"):
        models.save(model, tmp_path / "nowhere" / "model.json")


def test_a_plan_of_several_fits_is_warned_of():
    """As its fit is: the plan is where a user looks first."""
    few = {"task": "classification", "solver": "dp_ight", "classes": 3, "row_norm": 1.0, "epsilon": 0.5}
    with pytest.warns(solvers.HopelessPlanWarning) as found:
        models.plan(20, 20, **few)
    assert [w.filename for w in found] == [__file__]


def test_a_joint_plan_has_the_releases_of_all_fits():
    """Releases, event and print are those of all classes; the event of the releases is the event of the plan."""
    made = plans_of(4)
    one, counts = made.part, [release.count for release in made.releases]
    assert counts == [4 * release.count for release in one.releases] and counts != [r.count for r in one.releases]
    composed = Composed(*(Repeated(release.event, release.count) for release in made.releases))
    assert account(composed).epsilon(1e-6) == account(made.event).epsilon(1e-6)
    assert f"{counts[0]:,}" in str(made).split("count", 1)[1].split("\n")[2]
    quiet = made.with_noise(factor=2.0)
    assert quiet.event == Repeated(one.with_noise(factor=2.0).event, 4) and quiet.count == 4


def test_no_single_run_can_spend_the_event_of_several():
    made = plans_of(3)
    for use in (lambda: bind(made, ROWS, BINARY), lambda: fit_many(made, ROWS, BINARY, runs=1)):
        with pytest.raises(InvalidValue, match="a JointPlan': must be the plan of one fit"):
            use()


def plans_of(count):
    return joint_plan(
        lambda share: plan("dp_ight", n=len(ROWS), d=12, loss="logistic", sparsity=5, row_norm=1.0, epsilon=share,
                           delta=1e-6), count, 2.0, 1e-6)  # fmt: skip


def test_a_fit_of_several_classes_is_planned_once(monkeypatch):
    """Besides one plan with the whole budget, which shows how epsilon depends on the noise."""
    made, real = [], Settings.plan
    monkeypatch.setattr(Settings, "plan", lambda self, n, d: made.append(self.epsilon) or real(self, n, d))
    labels = np.arange(len(ROWS)) % 4
    model = models.fit(ROWS, labels, task="classification", solver="dp_ight", classes=range(4), row_norm=1.0,
                       sparsity=5, epsilon=2.0, delta=1e-5, rng=0)  # fmt: skip
    assert made == [2.0, model.plan.part.settings.epsilon]
