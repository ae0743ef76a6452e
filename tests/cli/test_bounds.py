"""--bounds: the same model from a table through the shell, the estimator and models.fit; forms of bounds; refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dptoolkit import datasets, models
from dptoolkit.data.column_bounds import ColumnBounds
from dptoolkit.estimators import PrivateSparseClassifier, PrivateSparseRegressor, load
from tests.cli.test_tables import READ, clinic, refused, run  # noqa: F401  (fixtures)

pytestmark = [
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning"),
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning"),
]
BOUNDS = {"age, years": (18, 100), "blood pressure [mmHg]": (50, 260), "bmi": (10, 80)}
WORDS = [f"{name}={low}:{high}" for name, (low, high) in BOUNDS.items()]
FIT = ["--task", "classification", "--epsilon", "2", "--classes", "no", "yes", "--seed", "7", "--out", "m.json"]


def read(folder):
    return datasets.read_csv(
        folder / "clinic.csv", label="readmitted", drop=["patient id"], missing={"bmi": 25, "smoking": "never"},
        categories={"sex": ["f", "m"], "smoking": ["never", "former", "current"]},
    )  # fmt: skip


def test_the_same_model_from_names_units_text_and_gaps_by_every_way(run, clinic):  # noqa: F811
    """Same seed, same bits: shell, models.fit, and an estimator on an array or a frame; and from the file again."""
    code, out, err = run(["fit", "clinic.csv", *FIT, *READ, "--bounds", *WORDS])
    assert code == 0, err
    assert "scales that differ" not in err
    shell = models.load(clinic / "m.json")
    data = read(clinic)
    every = BOUNDS | {"*": (0, 1)}
    direct = models.fit(data.X, data.y, task="classification", classes=["no", "yes"], epsilon=2.0, rng=7,
                        feature_names=data.names, bounds=every)  # fmt: skip
    placed = ColumnBounds.of(every, data.X.shape[1], names=data.names)
    own = {"epsilon": 2.0, "classes": ["no", "yes"], "random_state": 7}
    by_place = PrivateSparseClassifier(bounds=(placed.lower, placed.upper), **own).fit(data.X, data.y)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(data.X, columns=list(data.names))
    by_name = PrivateSparseClassifier(bounds=every, **own).fit(frame, data.y)
    for other in (direct, by_place.model_, by_name.model_):
        np.testing.assert_array_equal(other.coef, shell.coef)
        np.testing.assert_array_equal(other.margins(data.X), shell.margins(data.X))
        assert other.plan == shell.plan
    by_name.save(clinic / "estimator.json")
    again = load(clinic / "estimator.json")
    np.testing.assert_array_equal(again.predict(frame), by_name.predict(frame))
    assert again.get_params()["bounds"]["bmi"] == [10.0, 80.0]
    code, out, _ = run("predict m.json clinic.csv")
    assert code == 0 and out.split() == by_name.predict(frame).tolist()
    assert by_name.score(frame, data.y) > 0.75


def test_labelled_bounds_are_put_in_order_in_fits_and_in_files_of_estimators(clinic):  # noqa: F811
    """Two Series in an order of their own: models.fit, an estimator, and the estimator that is read from its file."""
    pandas = pytest.importorskip("pandas")
    data = read(clinic)
    frame = pandas.DataFrame(data.X, columns=list(data.names))
    placed = ColumnBounds.of(BOUNDS | {"*": (0, 1)}, data.X.shape[1], names=data.names)
    lower, upper = (pandas.Series(own, index=list(data.names)) for own in (placed.lower, placed.upper))
    pair = lower.sort_index(), upper.sort_index(ascending=False)
    own = {"epsilon": 2.0, "classes": ["no", "yes"]}
    expected = models.fit(frame, data.y, task="classification", rng=7, bounds=(placed.lower, placed.upper), **own)
    direct = models.fit(frame, data.y, task="classification", rng=7, bounds=pair, **own)
    estimator = PrivateSparseClassifier(bounds=pair, random_state=7, **own).fit(frame, data.y)
    assert direct.plan == estimator.plan_ == expected.plan
    np.testing.assert_array_equal(direct.coef, expected.coef)
    estimator.save(clinic / "estimator.json")
    again = load(clinic / "estimator.json").fit(frame, data.y)
    np.testing.assert_array_equal(again.coef_, estimator.coef_)
    with pytest.raises(ValueError, match="labels of a bound"):
        models.fit(frame.rename(columns={"bmi": "BMI"}), data.y, task="classification", bounds=pair, **own)


def test_polars_frames_have_names_too(clinic):  # noqa: F811
    polars = pytest.importorskip("polars")
    data = read(clinic)
    frame = polars.DataFrame({name: data.X[:, j] for j, name in enumerate(data.names)})
    own = {"epsilon": 2.0, "classes": ["no", "yes"], "random_state": 7}
    one = PrivateSparseClassifier(bounds=BOUNDS | {"*": (0, 1)}, **own).fit(frame, data.y)
    placed = one.plan_.settings.bounds
    two = PrivateSparseClassifier(bounds=(placed.lower, placed.upper), **own).fit(data.X, data.y)
    np.testing.assert_array_equal(one.coef_, two.coef_)


def test_bounds_in_a_file_are_those_of_the_line(run, clinic):  # noqa: F811
    (clinic / "bounds.json").write_text(json.dumps(BOUNDS))
    lines = [f'"{name}",{low},{high}' for name, (low, high) in BOUNDS.items()]
    (clinic / "bounds.csv").write_text("\n".join(["column,lower,upper", *lines]))
    plans = []
    for words in (WORDS, ["bounds.json"], ["bounds.csv"]):
        code, _, err = run(["fit", "clinic.csv", *FIT, *READ, "--bounds", *words])
        assert code == 0, err
        plans.append(models.load(clinic / "m.json").plan)
    assert plans[0] == plans[1] == plans[2]
    assert run(["fit", "clinic.csv", *FIT, *READ, "--bounds", *WORDS, "--numeric", "bmi"])[0] == 0
    model = models.load(clinic / "m.json")
    assert [model.feature_names[j] for j in model.plan.settings.bounds.numeric] == ["bmi"]


@pytest.mark.parametrize("bounds", ["-5:300", "-5:-1", "-.5:1e3", "-1e-3:0"])
def test_bounds_of_all_columns_may_begin_with_a_minus_sign(run, bounds):  # noqa: F811
    """argparse would take them for an unknown option."""
    size = "plan dp_pipeline --n 9000 --d 5 --epsilon 1 --bounds"
    code, out, err = run(f"{size} {bounds}")
    assert code == 0, err
    assert out == run(f"{size}={bounds}")[1]


def test_an_unknown_option_is_still_one(run):  # noqa: F811
    for word in ("-5x:3", "-x", "--boundz"):
        refused(run(f"plan dp_pipeline --n 9000 --d 5 --epsilon 1 {word}"), word)


def test_a_file_of_bounds_with_one_column_twice_is_refused(run, clinic):  # noqa: F811
    (clinic / "twice.json").write_text('{"bmi": [10, 80], "bmi": [0, 1], "*": [0, 1]}')
    (clinic / "twice.csv").write_text("column,lower,upper\nbmi,10,80\nbmi,0,1\n*,0,1\n")
    for name in ("twice.json", "twice.csv"):
        refused(run(["fit", "clinic.csv", *FIT, *READ, "--bounds", name]), "--bounds", "once per column")


@pytest.mark.parametrize(("columns", "more", "words"), [
    (["age", "bmi"], {"n_features": 4}, "names for 2 of 4 columns"),
    ([0, 1], {}, "not all text"),
    (None, {}, "no names of columns: give a table"),
])  # fmt: skip
def test_bounds_by_name_that_cannot_be_used_say_why(columns, more, words):
    pandas = pytest.importorskip("pandas")
    X, y = np.random.default_rng(0).uniform(0, 50, (40, 2)), np.arange(40) % 2
    table = X if columns is None else pandas.DataFrame(X, columns=columns)
    with pytest.raises(ValueError, match=words):
        models.fit(table, y, task="classification", classes=[0, 1], bounds={"age": (0, 99), "bmi": (0, 80)}, **more)


def test_a_plan_of_a_table_needs_no_data(run):  # noqa: F811
    size = "plan --task classification --n 9000 --d 5 --epsilon 1 --bounds"
    code, out, _ = run(f"{size} age=18:99 bmi=10:80 *=0:1")
    assert code == 0 and "column histograms" in out and "of 5 columns, 2 numeric" in out
    code, out, _ = run("plan dp_pipeline --n 9000 --d 5 --epsilon 1 --bounds=-1:1")
    assert code == 0 and "of 5 columns, 5 numeric" in out
    code, out, _ = run("plan --task regression --n 9000 --d 5 --epsilon 1 --label-bound 1 --bounds 0:50")
    assert code == 0 and "row_norm=1.29" in out
    code, out, _ = run("plan --task classification --n 30 --d 5 --epsilon 1 --bounds 0:50")
    assert code == 0 and "no histograms of columns: the noise of a bin" in out
    refused(run(f"{size} a=0:1 b=0:1"), "--bounds", "Columns without bounds")


@pytest.mark.parametrize(("words", "say"), [
    (["bmi=10"], "COLUMN=LOW:HIGH"), (["bmi=10:80", "bmi=0:1"], "once per column"), (["none.csv"], "No such file"),
    (["clinic.csv"], "column,lower,upper"), (["bmi=10:80", "*=5:1"], "lower <= upper"),
    (["bmi=10:80"], "without bounds"),
    (["bmi=10:80", "body=0:1", "*=0:1"], "no column"), (["bmi=10:inf", "*=0:1"], "finite"),
])  # fmt: skip
def test_bad_bounds_are_refused_before_anything_is_written(run, clinic, words, say):  # noqa: F811
    refused(run(["fit", "clinic.csv", *FIT, *READ, "--bounds", *words]), "--bounds", say)
    assert not (clinic / "m.json").exists()


def test_other_solvers_have_no_bounds(run, clinic):  # noqa: F811
    refused(run(["fit", "clinic.csv", *FIT, *READ, "--solver", "dp-ight", "--row-norm", "1", "--bounds", *WORDS]),
            "--bounds")  # fmt: skip


def test_values_outside_the_bounds_warn_the_holder_of_the_data():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(100, 200, (300, 2)), rng.integers(0, 2, 300)
    fit = {"task": "classification", "classes": [0, 1], "epsilon": 1.0, "rng": 0}
    with pytest.warns(models.ClippingWarning, match="column 0"):
        models.fit(X, y, bounds=([0, 0], [1, 300]), **fit)


def test_a_regressor_takes_bounds_in_place_of_a_row_norm(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.uniform([0, 1000], [100, 5000], (3000, 2))
    y = X[:, 0] / 100 - 0.5
    model = PrivateSparseRegressor(epsilon=2.0, label_bound=0.6, bounds=([0, 0], [120, 9000]), random_state=0)
    assert model.fit(X, y).score(X, y) > 0.8
    model.save(tmp_path / "m.json")
    np.testing.assert_array_equal(load(tmp_path / "m.json").predict(X), model.predict(X))


@pytest.mark.parametrize("change", [
    lambda table: table.update(centre=[0.0]), lambda table: table["borders"].pop(),
    lambda table: table["below"][0].reverse(), lambda table: table["below"].__setitem__(0, [0.0, 0.5]),
    lambda table: table["borders"].__setitem__(0, [0.0, 0.0]),
])  # fmt: skip
def test_a_file_whose_preparation_contradicts_its_bounds_is_refused(tmp_path, change):
    from dptoolkit.models import files

    rng = np.random.default_rng(1)
    X, y = rng.uniform(0, 10, (2000, 2)), rng.integers(0, 2, 2000)
    model = models.fit(X, y, task="classification", classes=[0, 1], epsilon=2.0, rng=0, bounds=(0, 10))
    record = json.loads(json.dumps(files.to_record(model)))
    assert (files.from_record(record).margins(X) == model.margins(X)).all()
    change(record["preparations"][0]["table"])
    with pytest.raises((models.files.InvalidValue, ValueError, IndexError)):
        files.from_record(record)
