"""Tables with named columns: read as written, by public rules alone; what does not fit is named and never shown."""

from __future__ import annotations

import csv
import gzip
import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptoolkit import datasets
from dptoolkit.datasets import columns, read_csv, tables
from dptoolkit.errors import InvalidValue, MissingDependency

CLINIC = '''\
patient;"age, years";sex;outcome;"pressure ""sys""";smoking;bmi
P4242;61;f;yes;121.5;never;24.5
P4243;70;m;no;144;"former";
P4244;55;f;no;99;NA;31
'''
RULES = {
    "drop": ["patient"],
    "categories": {"sex": ["f", "m"], "smoking": ["never", "former", "current"]},
    "missing": {"bmi": 25.0, "smoking": "never"},
}
NAMES = ("age, years", "sex=f", "sex=m", 'pressure "sys"', "smoking=never", "smoking=former", "smoking=current", "bmi")
ROWS = [[61, 1, 0, 121.5, 1, 0, 0, 24.5], [70, 0, 1, 144, 0, 1, 0, 25], [55, 1, 0, 99, 1, 0, 0, 31]]


@pytest.fixture
def written(tmp_path):
    def _written(text, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _written


def test_a_clinical_table_is_read_by_public_rules(written):
    X, y, names = read_csv(written(CLINIC), "outcome", **RULES)
    assert names == NAMES and X.tolist() == ROWS and y.tolist() == ["yes", "no", "no"]
    # By number from 1, without a label, and packed.
    assert read_csv(written(CLINIC), 4, **RULES).y.tolist() == ["yes", "no", "no"]
    rules = RULES | {"drop": ["patient", "4"]}
    X, y, names = read_csv(written(gzip.compress(CLINIC.encode()), "t.csv.gz"), **rules)
    assert y is None and X.tolist() == ROWS and names == NAMES


@pytest.mark.parametrize("text", [
    "a,b,y\n1,2,0\n3,-4e1,1\n", "a;b;y\n1;2;0\n3;-40;1\n", "a\tb\ty\n1\t2\t0\n3\t-40\t1\n", "a|b|y\n1|2|0\n3|-40|1",
    '"a","b","y"\n"1","2","0"\n"3","-40","1"\n', "\ufeffa,b,y\r\n1,2,0\r\n\r\n3,-40,1\r\n",
    "a, b, y\n 1 ,2, 0\n3,-40,1 \n",
    'a,"b",y\n1,2,0\n\n  \n3,-40,1\n', "a\rb\r".replace("\r", ",") + "y\r1,2,0\r3,-40,1\r",
])  # fmt: skip
def test_dressings_of_the_same_table(written, text):
    X, y, names = read_csv(written(text), "y")
    assert (X.tolist(), y.tolist(), names) == ([[1, 2], [3, -40]], [0, 1], ("a", "b"))
    assert y.dtype == np.float64


def test_decimal_commas(written):
    path = written("a;y\n1,5;2\n-,25;1,0\n")
    X, y, _ = read_csv(path, "y", decimal=",")
    assert X.tolist() == [[1.5], [-0.25]] and y.tolist() == [2, 1]
    with pytest.raises(InvalidValue, match="numbers with a comma in 'a'.*decimal=','"):
        read_csv(path, "y")
    with pytest.raises(InvalidValue, match="decimal"):
        read_csv(written("a,y\n1,2\n"), "y", decimal=",")
    with pytest.raises(InvalidValue, match="numbers with a point in 'a' .first in line 3."):
        read_csv(written("a;y\n1,5;2\n1.234;1\n"), "y", decimal=",")


@pytest.mark.parametrize("first", ["7.5;a;yes", "7,5;a;yes", "-1,25;a;yes"])
def test_a_record_in_the_first_line_does_not_become_names(written, first):
    """In either decimal mark: names are published with a model."""
    with pytest.raises(InvalidValue, match="line 1: must be a header of names"):
        read_csv(written(f"{first}\n8,5;b;no\n"), 3, drop=[2], decimal=",")


def test_a_missing_label_is_no_class_and_a_class_may_be_a_dash(written):
    for cell in ("<NA>", "-nan", "\\N", "n.a."):
        with pytest.raises(InvalidValue, match="missing cells in the label 'y' .line 3"):
            read_csv(written(f"a,y\n1,yes\n2,{cell}\n"), "y")
    assert read_csv(written("a,y\n1,+\n2,-\n"), "y").y.tolist() == ["+", "-"]
    assert read_csv(written("a,y\n-,0\n2,1\n"), categories={"a": ["-", "2"]}, drop=["y"]).X.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("body", ["1,0.5\n2,1\n", '1,"0.5"\n2,1\n'])
def test_blank_lines_above_the_header_are_skipped_and_counted(written, body):
    assert read_csv(written(f"\n\r\na,b\n{body}"), "b").X.tolist() == [[1], [2]]
    with pytest.raises(InvalidValue, match="line 6"):
        read_csv(written(f"\n\r\na,b\n{body}1,2,3\n"), "b")


def test_features_are_taken_by_name_in_their_order(written):
    X, y, names = read_csv(written("a,text,b,y\n1,x,2,0\n"), features=["b", "a"])
    assert (X.tolist(), y, names) == ([[2, 1]], None, ("b", "a"))


KINDS = [
    ("secret", "text in 'a'"), ("", "missing cells in 'a'"), ("NA", "missing cells"), ("nan", "missing cells"),
    *((cell, "missing cells") for cell in ("NULL", "<NA>", "n.a.", "-NaN", "\\N", "-", "--", "#NULL!")),
    ("?", "missing cells"), ("2024-05-17", "dates in 'a'"), ("17.5.2024", "dates"),
    ("5/17/24", "dates"), ("72 kg", "numbers with a unit"), ("4242%", "numbers with a unit"), ("inf", "infinite"),
    ("1e999", "infinite"), ("1_000", "text"), ("\u0661\u0662", "text"), ("12:30", "text"), ("0x1F", "text"),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "words"), KINDS)
def test_cells_that_are_no_numbers_are_named_by_column_and_kind_and_not_shown(written, cell, words):
    with pytest.raises(columns.UnfitColumns) as caught:
        read_csv(written(f"id,a,y\n7,1,0\n7,{cell},1\n"), "y")
    message = str(caught.value).partition("table.csv")[2]
    assert words in message and "line 3" in message
    # What stands for nothing, or for infinity, may be a word of the message.
    assert len(cell) < 5 or cell not in message


def test_all_columns_are_named_at_once(written):
    with pytest.raises(InvalidValue) as caught:
        read_csv(written(CLINIC), "outcome")
    message = str(caught.value)
    for words in ("text in 'patient', 'sex', 'smoking' (first in line 2)", "categories={'patient': ['a', 'b', 'c']}",
                  "missing cells in 'bmi' (first in line 3)", "missing={'bmi': 0}"):  # fmt: skip
        assert words in message
    assert "4242" not in message and "never" not in message.replace("never with a mean", "")


def test_a_missing_label_and_an_unknown_category_are_named(written):
    with pytest.raises(InvalidValue, match="missing cells in the label 'y' .line 3.: records without a label"):
        read_csv(written("a,y\n1,0\n2,\n"), "y")
    assert read_csv(written("a,y\n1,mild\n2,None\n"), "y").y.tolist() == ["mild", "None"]
    with pytest.raises(InvalidValue, match="cells outside the categories in 'a' .first in line 3.") as caught:
        read_csv(written("a,y\nu,0\nsecret,1\n"), "y", categories={"a": ["u", "v"]})
    assert "secret" not in str(caught.value)


def test_missing_cells_beside_categories_need_a_category(written):
    path = written("a,y\nu,0\nNA,1\n")
    words = "missing cells beside categories in 'a' .first in line 3.*missing={'a': 'a'}"
    with pytest.raises(InvalidValue, match=words):
        read_csv(path, "y", categories={"a": ["u", "v"]})
    assert read_csv(path, "y", categories={"a": ["u", "v"]}, missing={"a": "v"}).X.tolist() == [[1, 0], [0, 1]]


def test_an_empty_category_stands_for_missing_cells(written):
    X, _, names = read_csv(written("a,y\nu,0\nNA,1\n,0\n"), "y", categories={"a": ["u", ""]})
    assert X.tolist() == [[1, 0], [0, 1], [0, 1]] and names == ("a=u", "a=")


def test_one_constant_for_all_columns(written):
    text = "a,b,y\n1,,0\nNA,2,1\n"
    assert read_csv(written(text), "y", missing=-1).X.tolist() == [[1, -1], [-1, 2]]
    for value in (math.nan, math.inf, "mean", True):
        with pytest.raises(InvalidValue, match="missing"):
            read_csv(written(text), "y", missing=value)


BAD = [
    ("a,b\n1,2\n3\n", {}, "line 3: must be 2 cells with ',' between them"), ("a,b\n1,2,4242\n", {}, "line 2"),
    ("1,2\n3,4\n", {}, "line 1: must be a header of names"), ("", {}, "at least one row"),
    ("a,b\n", {}, "at least one"),
    ("a,b\n\"1,2\n3,4\n", {}, "line 2: must be a row of a csv file. A quote"), ("a,\"b\n1,2\n", {}, "quote"),
    (b"a,b\n1,2\n3,\xff4242\n", {}, "line 3: must be UTF-8 text"), ("a,a\n1,2\n", {}, "column 'a': must have a unique"),
    (",a\n0,2\n", {}, "column 1: must have a name"), ("a;\n0;\n", {"label": 2}, "column 2: must have a name"),
    ("a,b;c\n1,2\n", {}, "separator=None"),
    ("a,b\n1,2\n", {"label": "c"}, "label='c': must be a column of .*'a', 'b'"),
    ("a,b\n1,2\n", {"label": 3}, "label=3"),
    ("a,b\n1,2\n", {"drop": ["c"]}, "drop='c'"), ("a,b\n1,2\n", {"features": ["a", "a"]}, "features"),
    ("a,b\n1,2\n", {"label": "a", "features": ["a"]}, "another column"), ("a\n1\n", {"label": "a"}, "a feature"),
    ("a,b\n1,2\n", {"categories": {"c": ["x", "y"]}}, "categories='c'"),
    ("a,b\n1,2\n", {"missing": {"c": 1}}, "missing='c'"),
    ("a,b\n1,2\n", {"categories": {"a": "xy"}}, "a list of values"), ("a,b\n1,2\n", {"drop": "a"}, "a list of columns"),
    ("a,b\n1,2\n", {"categories": {"a": ["x", "x"]}}, "different values"), ("a,b\n1,2\n", {"decimal": "x"}, "decimal"),
    ("a,b\nx,2\n", {"categories": {"a": ["x"]}, "missing": {"a": "z"}}, "one of the categories"),
    ("a,b\n1,2\n", {"separator": ",,"}, "separator"), ("a,b\n1,2\n", {"max_bytes": 3}, "at most 3 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "words"), BAD)
def test_what_is_no_such_table_is_refused(written, text, options, words):
    with pytest.raises(InvalidValue, match=words) as caught:
        read_csv(written(text), **options)
    assert "4242" not in str(caught.value).replace(str(written(text)), "")


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
CELLS = st.one_of(NUMBERS.map(repr), st.integers(-(10**20), 10**20).map(str))


@given(st.lists(st.tuples(CELLS, CELLS, st.text("ab,;\"\n 'é", max_size=4)), min_size=1, max_size=5), st.booleans())
def test_what_the_standard_library_writes_is_read_back(tmp_path_factory, rows, quote_all):
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL)
    writer.writerows([("a", "b", "label"), *((x, y, f"k{word}") for x, y, word in rows)])
    path.write_bytes(text.getvalue().encode())
    X, y, _ = read_csv(path, "label")
    assert X.tolist() == [[float(a), float(b)] for a, b, _ in rows]
    assert y.tolist() == [f"k{word}".strip() for _, _, word in rows]


def test_the_quick_way_and_the_careful_one_agree(written, monkeypatch):
    rng = np.random.default_rng(0)
    table = rng.standard_normal((50, 4))
    text = "a,b,c,y\n" + "\n".join(",".join(map(repr, row)) for row in table.tolist())
    quick = read_csv(written(text), "y")
    monkeypatch.setattr(tables, "_plain", lambda *arguments: None)
    monkeypatch.setattr(tables, "_CHUNK", 7)
    careful = read_csv(written(text), "y")
    assert np.array_equal(quick.X, careful.X) and np.array_equal(quick.y, careful.y)
    monkeypatch.setattr(columns, "_quick", lambda cells: None)
    assert np.array_equal(read_csv(written(text), "y").X, quick.X)


def test_the_first_record_decides_nothing_about_the_others(written):
    """A category that no record has gets a column, and the constants do not depend on any cell."""
    first = read_csv(written("a,b,y\nu,1,0\nv,,1\n"), "y", categories={"a": ["u", "v", "w"]}, missing=3.0)
    other = read_csv(written("a,b,y\nw,9,0\nv,,1\n"), "y", categories={"a": ["u", "v", "w"]}, missing=3.0)
    assert first.names == other.names and first.X[1].tolist() == other.X[1].tolist() == [0, 1, 0, 3]


# --- parquet --------------------------------------------------------------------------------------------------


def _frame_file(path):
    polars = pytest.importorskip("polars", reason="parquet files need polars")
    frame = polars.DataFrame(
        {"age": [61, 70, None], "sex": ["f", None, "m"], "died": [True, False, True], "grade": ["x", "y", "y"]}
    )
    frame.write_parquet(path)
    return path


def test_a_parquet_file_is_read_by_the_same_rules(tmp_path):
    path = _frame_file(tmp_path / "t.parquet")
    rules = {"categories": {"sex": ["f", "m"], "died": ["0", "1"]}, "missing": {"age": 50.0, "sex": "f"}}
    X, y, names = datasets.read_parquet(path, "grade", **rules)
    assert names == ("age", "sex=f", "sex=m", "died=0", "died=1")
    assert X.tolist() == [[61, 1, 0, 0, 1], [70, 1, 0, 1, 0], [50, 0, 1, 0, 1]] and y.tolist() == ["x", "y", "y"]
    assert datasets.read_parquet(path, "died", drop=["sex", "grade"], missing=0).y.tolist() == [1, 0, 1]
    with pytest.raises(InvalidValue, match="missing cells in 'age' .first in record 3.*text in 'sex'"):
        datasets.read_parquet(path, "grade")


def test_dates_and_damaged_parquet_files_are_refused(tmp_path):
    polars = pytest.importorskip("polars", reason="parquet files need polars")
    path = tmp_path / "t.parquet"
    frame = polars.DataFrame({"a": [1.0], "when": ["2024-05-17"]})
    frame.with_columns(polars.col("when").str.to_date()).write_parquet(path)
    with pytest.raises(InvalidValue, match="dates in 'when'"):
        datasets.read_parquet(path)
    path.write_bytes(b"PAR1 4242")
    with pytest.raises(InvalidValue, match="a parquet file") as caught:
        datasets.read_parquet(path)
    assert "4242" not in str(caught.value).replace(str(path), "")
    with pytest.raises(InvalidValue, match="No such file"):
        datasets.read_parquet(tmp_path / "nothing.parquet")


def test_pandas_columns_are_told_like_those_of_polars():
    pandas = pytest.importorskip("pandas", reason="this is about pandas")
    frame = pandas.DataFrame({"a": [1.0, None], "b": pandas.array([1, None], dtype="Int64"), "c": ["x", None],
                              "d": [True, False], "e": pandas.to_datetime(["2024-05-17", "2024-05-18"])})  # fmt: skip
    for name, expected in (("a", [1, math.nan]), ("b", [1, math.nan]), ("d", [1, 0])):
        assert np.array_equal(tables._series(frame, name), expected, equal_nan=True)
    assert tables._series(frame, "c") == ["x", ""] and tables._series(frame, "e") is None


def test_parquet_without_a_reader_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingDependency, match=r"dptoolkit\[parquet\]"):
        datasets.read_parquet(tmp_path / "t.parquet")
