"""Audits that a mechanism could fool: data that it changes, missing numbers, outputs of any size, what is not seen."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit
from dptoolkit.audit import GaussianClaim
from dptoolkit.audit.attacks import learn
from dptoolkit.audit.content import fingerprint
from dptoolkit.audit.engine import CallableTarget
from dptoolkit.audit.pair import Pair
from dptoolkit.audit.streams import Streams
from dptoolkit.data import prepare
from dptoolkit.errors import InvalidValue

ROWS = [np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0])]


# --- a mechanism that changes its dataset ---------------------------------------------------------------------


class Own:
    """A dataset of somebody's own: its rows in a dict, an attribute in a slot, and a lock, which is no data."""

    __slots__ = ("__dict__", "extra")

    def __init__(self, values):
        self.table, self.extra, self.lock = {"rows": [list(values)]}, np.array(values), threading.Lock()


class Rows(list):
    """A list with a name."""

    name = "rows"


@dataclass
class Tree:
    value: float
    parent: object = None
    children: list = field(default_factory=list)


def tree(values):
    """An object that refers to itself."""
    root = Tree(0.0)
    root.children = [Tree(value, root) for value in values.tolist()]
    return root


def pandas_frame(values):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    words = pandas.array(["a", None, "b"], dtype="string")
    return pandas.DataFrame({"x": values, "kind": pandas.Categorical(["u", "v", "u"]), "word": words})


def polars_frame(values):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    return polars.DataFrame({"x": values, "word": ["a", None, "b"], "list": [[1], [], [2, 3]]})


def first_cell(frame):
    frame.iloc[0, 0] = 0.0


def rename(frame):
    frame.columns = ["y", *frame.columns[1:]]


def function(values):
    """A function that keeps its data as an attribute."""

    def read():
        return 0.0

    read.values = values
    return read


DATASETS = {
    "function": (function, lambda data: data.values.fill(0.0)),
    "array": (np.array, lambda data: data.fill(0.0)),
    "array of objects": (lambda v: np.array([[x] for x in v] + [None], dtype=object)[:-1], lambda d: d[0].clear()),
    "structured array": (lambda v: v.view([("x", float)]), lambda data: data.fill(0.0)),
    "masked array": (lambda v: np.ma.array(v, mask=False), lambda data: data.mask.fill(True)),
    "sparse rows": (lambda v: sparse.csr_matrix(v[None]), lambda data: data.data.fill(0.0)),
    "list of dicts": (lambda v: [{"x": float(x)} for x in v], lambda data: data[0].update(x=0.0)),
    "set in a tuple": (lambda v: (set(v.tolist()), v), lambda data: data[0].clear()),
    "pandas, a cell": (pandas_frame, first_cell),
    "pandas, a column": (pandas_frame, lambda frame: frame.insert(0, "new", 0.0)),
    "pandas, a name": (pandas_frame, rename),
    "pandas, a column less": (pandas_frame, lambda frame: frame.pop("word")),
    "pandas series": (lambda v: pandas_frame(v)["x"].copy(), lambda series: series.update(series * 0)),
    "polars, a column": (polars_frame, lambda frame: frame.drop_in_place("word")),
    "polars, values": (polars_frame, lambda frame: frame.replace_column(0, frame["x"] * 0)),
    "own class, in a dict": (Own, lambda data: data.table["rows"][0].clear()),
    "own class, in a slot": (Own, lambda data: data.extra.fill(0.0)),
    "own class, a new attribute": (Own, lambda data: setattr(data, "told", True)),
    "own list": (lambda v: Rows(v.tolist()), lambda data: data.clear()),
    "own list, its attribute": (lambda v: Rows(v.tolist()), lambda data: setattr(data, "name", "told")),
    "object that refers to itself": (tree, lambda data: data.children.clear()),
    "namespace": (lambda v: SimpleNamespace(v=v.tolist()), lambda data: data.v.clear()),
    "iterator": (lambda v: iter(v.tolist()), next),
    "bytes": (lambda v: bytearray(v.tobytes()), lambda data: data.clear()),
    "generator inside": (lambda v: [v, np.random.default_rng(0)], lambda data: data[1].random()),
}


def test_a_dataset_that_is_nested_too_deeply_is_refused():
    nested = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(InvalidValue, match="too deeply nested"):
        fingerprint(nested)


def at_first(pair, erase):
    """A mechanism that tells a dataset at its first call, erases it, and is noise from then on."""
    told = []

    def leaky(data, rng):
        if any(data is one for one in told):
            return rng.standard_normal()
        told.append(data)
        erase(data)
        return (1e6 if data is pair.first else -1e6) + rng.standard_normal()

    return leaky


@pytest.mark.parametrize("name", DATASETS)
def test_a_leak_at_the_first_call_that_erases_its_data_is_noticed(name):
    """Trials alone would not see it. The twin, which leaves its data alone, runs as usual."""
    make, erase = DATASETS[name]
    pair = Pair(*(make(rows.copy()) for rows in ROWS), records=False)
    bits, streams = np.tile(np.array([0, 1], np.int8), 8), Streams(0, "fooled")
    assert CallableTarget(lambda data, rng: rng.random(), pair).run(bits, 0, streams).shape == (16, 1)
    with pytest.raises(InvalidValue, match="changes the dataset"):
        CallableTarget(at_first(pair, erase), pair).run(bits, 0, streams)


def test_an_audit_of_such_a_leak_is_refused():
    make, erase = DATASETS["own class, in a dict"]
    pair = Pair(*(make(rows.copy()) for rows in ROWS))
    assert not audit.evidence(lambda x, rng: rng.random(), pair, GaussianClaim(1.0), trials=200, alpha=1e-6).refuted
    with pytest.raises(InvalidValue, match="changes the dataset"):
        audit.evidence(at_first(pair, erase), pair, GaussianClaim(1.0), trials=200, alpha=1e-6)


def test_probes_notice_it_too():
    def changes(data, rng):
        data["rows"].append(1.0)
        return rng.random()

    assert audit.probes.given_generator(lambda data, rng: rng.random(), {"rows": [1.0]}).passed
    with pytest.raises(InvalidValue, match="changes the dataset"):
        audit.probes.given_generator(changes, {"rows": [1.0]})


@pytest.mark.parametrize("name", DATASETS)
def test_fingerprints_are_of_the_content(name):
    """Equal data have one fingerprint; reading changes none; other data have another."""
    make, erase = DATASETS[name]
    one, same, other = make(ROWS[0].copy()), make(ROWS[0].copy()), make(ROWS[1].copy())
    before = fingerprint(one)
    assert fingerprint(one) == before == fingerprint(same) != fingerprint(other)
    erase(one)
    assert fingerprint(one) != before


def test_prepared_rows_keep_what_is_derived_from_them():
    """That is filled by the first fit, and no change of the data."""
    one, two = (prepare(rows[:, None]) for rows in ROWS)
    before = fingerprint(one)
    one.transpose(), one.caps(1.0), one.cached("anything", list)
    assert fingerprint(one) == before != fingerprint(two)
    one.matrix[0] = 9.0
    assert fingerprint(one) != before


def test_reading_a_frame_is_no_change():
    """Blocks of a frame may be laid out anew when it is read, and values be cached."""
    frame = pandas_frame(ROWS[0])
    frame["y"] = frame["x"] + 1
    before = fingerprint(frame)
    frame.to_numpy(), frame.describe(), frame.sum(numeric_only=True), frame.groupby("kind", observed=True).size()
    assert fingerprint(frame) == before


@pytest.mark.parametrize("data", [(x for x in [1.0]), open], ids=["generator", "stream"])
def test_data_that_cannot_be_compared_are_refused(data, tmp_path, request):
    if data is open:
        data = (tmp_path / "rows").open("w+b", buffering=0)
        request.addfinalizer(data.close)
    with pytest.raises(InvalidValue, match="whose content can be read before and after a run"):
        audit.evidence(lambda x, rng: rng.random(), Pair(data, [1.0]), GaussianClaim(1.0), trials=200, alpha=1e-6)


def test_a_checkpoint_knows_its_frames(tmp_path):
    """Frames counted by their type alone: outputs of one pair were taken for those of another."""
    frames = [pandas_frame(rows) for rows in (*ROWS, np.array([7.0, 7.0, 7.0]))]

    def fair(frame, rng):
        return rng.standard_normal()

    how = {"trials": 200, "resume": tmp_path / "kept"}
    audit.audit(fair, Pair(*frames[:2]), GaussianClaim(1.0), **how)
    audit.audit(fair, Pair(*(pandas_frame(rows) for rows in ROWS)), GaussianClaim(1.0), **how)
    with pytest.raises(InvalidValue, match="belongs to another"):
        audit.audit(fair, Pair(frames[0], frames[2], records=False), GaussianClaim(1.0), **how)


# --- outputs --------------------------------------------------------------------------------------------------

PAIR = 1.0, 0.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_which_numbers_are_missing_is_a_feature(share):
    """One number of two is missing: the first on one dataset, the second on the other. Alpha 1e-6.

    As one kind of failure it would show nothing; the twin, where a coin decides which, is not refuted.
    """

    def pattern(x, rng):
        out = rng.standard_normal(3)
        if rng.random() < share:
            out[int(x)] = math.nan
        return out

    def coin(x, rng):
        out = rng.standard_normal(3)
        out[rng.integers(2)] = math.nan
        return out

    found = audit.audit(pattern, PAIR, GaussianClaim(0.5), trials=1000, alpha=1e-6)
    assert found.violated and found.failures == 0
    assert any("missing" in note for note in found.notes)
    assert not audit.audit(coin, PAIR, GaussianClaim(0.5), trials=1000, alpha=1e-6).violated


def test_a_given_attack_sees_missing_numbers():
    def pattern(x, rng):
        return [math.nan if x == 1.0 else rng.random(), rng.random()]

    found = audit.audit(
        pattern, PAIR, GaussianClaim(0.5), trials=1000, alpha=1e-6, attack=lambda outputs: np.isnan(outputs[:, 0]) * 1.0
    )
    assert found.violated and found.failures == 0


SIZES = [5e-324 * 2**20, 1e-310, 1.0, 1e300]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", ["shift", "spread", "one of many", "both ends"])
def test_no_size_of_outputs_defeats_the_learned_attack(shape, size):
    """Squares of 1e-310 vanish and those of 1e300 overflow. Alpha 1e-6; the twin has the same law on both datasets."""

    def leak(x, rng):
        noise = rng.standard_normal(8)
        if shape == "shift":
            noise[0] += 3 * x
        elif shape == "spread":
            noise *= 1 + 4 * x
        elif shape == "one of many":
            noise[1:] *= 0
            noise[0] = 1.0 if rng.random() < 0.2 + 0.6 * x else 2.0
        else:
            noise[0] += 3 * x
            noise[4:] *= 1e-5 if size > 1 else 1e5
        return size * noise

    how = {"trials": 2000, "alpha": 1e-6}
    assert audit.evidence(leak, PAIR, GaussianClaim(1.0), **how).refuted
    assert not audit.evidence(lambda x, rng: leak(0.0, rng), PAIR, GaussianClaim(1.0), **how | {"trials": 400}).refuted


def test_a_few_infinite_and_huge_outputs_hide_nothing():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 2000).astype(np.int8)
    outputs = 1e-310 * (rng.standard_normal((2000, 2)) + 4 * bits[:, None])
    outputs[:20, 0], outputs[20:40, 0] = math.inf, -1e300
    scores = learn(outputs, bits).scores(outputs)
    assert ((scores > np.median(scores)) == (bits == 1)).mean() > 0.9


# --- what is not looked at ------------------------------------------------------------------------------------


class Fitted:
    """A fitted model in scikit-learn's manner, whose number of steps tells what the coefficients do not."""

    def __init__(self, x, rng):
        self.coef_, self.intercept_, self.n_iter_ = rng.standard_normal(2), 0.0, int(x)


@pytest.mark.parametrize("inside", [False, True])
def test_the_report_of_an_estimator_says_which_attributes_are_not_looked_at(inside):
    def fit(x, rng):
        model = Fitted(x, rng)
        return [model, 1.0] if inside else model

    found = audit.audit(fit, PAIR, GaussianClaim(1.0), trials=400)
    (note,) = [note for note in found.notes if "coef_" in note]
    assert not found.violated and "n_iter_" in note and "encode=" in note
    seen = audit.audit(fit, PAIR, GaussianClaim(1.0), trials=400, alpha=1e-6,
                       encode=lambda model: (model[0] if inside else model).n_iter_)  # fmt: skip
    assert seen.violated and not any("coef_" in note for note in seen.notes)


def test_the_report_of_our_own_fits_says_so_too():
    from dptoolkit import solvers

    def fit(x, rng):
        return solvers.FitResult(rng.standard_normal(2), 0.0, None, None, {"steps": int(x)})

    notes = audit.audit(fit, PAIR, GaussianClaim(1.0), trials=400).notes
    assert any("history" in note for note in notes)


def test_a_stored_answer_is_named():
    """An honest release that is remembered looks like a leak: its trials are one release, seen again and again."""
    stored = {}

    def remembered(x, rng):
        return stored.setdefault(x, x + rng.standard_normal())

    found = audit.audit(remembered, PAIR, GaussianClaim(1.0), trials=400, alpha=1e-6)
    assert found.violated and any("has stored" in note for note in found.notes)
    fresh = audit.audit(lambda x, rng: x + rng.standard_normal(), PAIR, GaussianClaim(1.0), trials=400, alpha=1e-6)
    assert not fresh.violated and not any("stored" in note for note in fresh.notes)
    single = []

    def one_for_all(x, rng):
        single.append(rng.random()) if not single else None
        return single[0]

    with pytest.raises(InvalidValue, match="a stored answer"):
        audit.audit(one_for_all, PAIR, GaussianClaim(1.0), trials=400)
