"""Bad input: one clear error that names the argument, before any record is used, any noise drawn, any budget spent."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import solvers
from dptoolkit.accounting import Ledger
from dptoolkit.errors import BudgetExceeded, InvalidValue
from dptoolkit.solvers.engine import bounds
from tests.solvers.frame.test_plans import CALLS, data

PRIVATE = list(CALLS)
PLAIN = {
    "ight": {"loss": "logistic", "sparsity": 2, "steps": 3, "step_size": 0.1},
    "frank_wolfe": {"loss": "logistic", "l1_radius": 2.0, "steps": 3},
}
EVERY = CALLS | PLAIN


def refused(name, match, X=None, y=None, error=InvalidValue, **change):
    """The call fails with this message, and neither the generator nor the ledger has noticed it."""
    good_X, good_y = data()
    X, y = good_X if X is None else X, good_y if y is None else y
    more = {}
    if name in CALLS:
        more = {"rng": np.random.default_rng(5), "ledger": Ledger(10.0, 1e-5, allow_seeds=True)} | change
        arguments = CALLS[name] | more
    else:
        arguments = PLAIN[name] | change
    with pytest.raises(error, match=match):
        getattr(solvers, name)(X, y, **arguments)
    if isinstance(more.get("rng"), np.random.Generator):
        untouched = np.random.default_rng(5).bit_generator.state
        assert more["rng"].bit_generator.state == untouched, "noise was drawn"
    if isinstance(more.get("ledger"), Ledger):
        assert not more["ledger"].event.events, "budget was spent"


# --- X and y ------------------------------------------------------------------------------------------


def spoiled(value):
    X, _ = data()
    X[3, 2] = value
    return X


BAD_X = {
    "NaN": spoiled(np.nan),
    "infinity": spoiled(-np.inf),
    "NaN, sparse": sparse.csr_matrix(spoiled(np.nan)),
    "one dimension": np.ones(20),
    "no rows": np.ones((0, 6)),
    "no columns": np.ones((20, 0)),
    "complex": data()[0] + 1j,
    "complex, sparse": sparse.csr_matrix(data()[0] + 1j),
    "strings": data()[0].astype(str),
    "a string": "X",
}


@pytest.mark.parametrize("bad", BAD_X)
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("error")
def test_bad_rows(name, bad):
    refused(name, r"^X.*must be", X=BAD_X[bad])


BAD_Y = {
    "too few": np.arange(19) % 2,
    "a column": (np.arange(20) % 2)[:, None],
    "NaN": np.full(20, np.nan),
    "complex": np.zeros(20) + 1j,
    "strings": np.array(["0", "1"] * 10),
    "a number": 1.0,
}


@pytest.mark.parametrize("bad", BAD_Y)
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("error")
def test_bad_labels(name, bad):
    refused(name, r"^y.*must be", y=BAD_Y[bad])


@pytest.mark.parametrize("name", ["ight", "frank_wolfe", "dp_ight", "dp_frank_wolfe", "sparsifier"])
@pytest.mark.parametrize("values", [(0, 2), (-1, 0, 1), (0.5, 1)])
def test_labels_outside_the_task(name, values):
    refused(name, r"^y='an array with other labels': must be 0 or 1 for", y=np.resize(values, 20))


def test_more_classes_than_said():
    refused("dp_multinomial_frank_wolfe", r"^y=.*must be integers 0 to 1", y=np.arange(20) % 3)
    refused("dp_multinomial_frank_wolfe", r"^classes=1: must be", classes=1)


# --- arguments ----------------------------------------------------------------------------------------

EPSILONS = [0.0, -1.0, math.nan, "1", None, True]
DELTAS = [0.0, 1.0, 1.5, -1e-6, math.nan, None]


@pytest.mark.parametrize("value", EPSILONS)
@pytest.mark.parametrize("name", PRIVATE)
def test_bad_epsilon(name, value):
    refused(name, r"^epsilon=.*must be", epsilon=value)


@pytest.mark.parametrize("value", DELTAS)
@pytest.mark.parametrize("name", PRIVATE)
def test_bad_delta(name, value):
    refused(name, r"^delta=.*must be", delta=value)


@pytest.mark.parametrize("name", PRIVATE)
def test_large_delta_warns(name):
    expected = r"delta=0.05: should be well below 1/n=0.05; .*publishes a random record"
    with pytest.warns(solvers.DeltaWarning, match=expected):
        solvers.plan(name, n=20, d=6, **CALLS[name] | {"delta": 0.05})
    with warnings.catch_warnings():
        warnings.simplefilter("error", solvers.DeltaWarning)
        solvers.plan(name, n=20, d=6, **CALLS[name] | {"delta": 0.049})


COMMON = {
    "steps": [0, -1, 2.0, None, True],
    "adjacency": ["add-remove", None, 1],
    "calibration": ["loose", None],
    "rng": [-1, 1.5, "seed", np.random.RandomState(0)],
    "ledger": [1.0, "ledger", "not a ledger"],
}
OWN = {
    "dp_ight": {
        "loss": ["hinges", "softmax", None], "sparsity": [0, 7, 1.5, None], "step_size": [0.0, -1.0, math.inf],
        "steps": [0, -1, 2.0, True],
        "row_norm": [None, 0.0, -1.0, math.nan, math.inf, "1"], "grad_norm": [0.0, -1.0, math.inf],
    },
    "dp_frank_wolfe": {
        "loss": ["hinges", "softmax"], "l1_radius": [0.0, -1.0, math.inf], "law": ["gauss", "exponential"],
        "feature_bound": [None, 0.0, -1.0, math.inf], "label_bound": [0.0, -1.0],
        "refresh": [-0.1, 1.1, math.nan, None], "steps": [0, -1, 2.0, True],
    },
    "dp_multinomial_frank_wolfe": {
        "classes": [1, 2.5, None], "l1_radius": [0.0], "steps": [0, -1, 2.0, True],
        "feature_bound": [None, 0.0], "selection": ["rows", None],
        "law": ["gauss"],
    },
    "peeling_iht": {
        "sparsity": [0, 7], "step_size": [0.0, None], "radius": [0.0, -1.0, None], "feature_bound": [None, 0.0],
        "label_bound": [None, 0.0], "data": ["half"],
    },
    "sparsifier": {
        "loss": ["hinges", "softmax"], "l1_radius": [0.0], "feature_bound": [None, 0.0],
        "count_share": [None, 0.0, 1.0, -1.0, math.nan, "1"],
        "count": ["all", None], "alpha": [-1.0, math.inf, math.nan], "beta": [1.5, 0.5, math.inf], "rho": [0.0, -1.0],
        "count_steps": [0, 1.5], "law": ["gauss"], "refresh": [2.0],
    },
}  # fmt: skip
BAD_ARGUMENTS = [
    (name, argument, value) for name in PRIVATE for argument, values in (COMMON | OWN[name]).items() for value in values
]


@pytest.mark.parametrize(("name", "argument", "value"), BAD_ARGUMENTS, ids=str)
def test_bad_arguments(name, argument, value):
    refused(name, rf"^{argument}=.*must be", **{argument: value})


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, {a: v}) for name, table in {
        "ight": {"loss": ["hinges"], "sparsity": [0, 7], "steps": [0], "step_size": [0.0, None]},
        "frank_wolfe": {"loss": ["hinges"], "l1_radius": [0.0], "steps": [0]},
    }.items() for a, values in table.items() for v in values],
    ids=str,
)  # fmt: skip
def test_bad_arguments_of_plain_solvers(name, change):
    refused(name, rf"^{next(iter(change))}=.*must be", **change)


UNUSED = {
    "logistic": ({"loss": "logistic", "row_norm": 1.0}, "for the logistic loss"),
    "huber": ({"loss": "huber", "row_norm": 1.0}, "for the huber loss"),
    "hinge": ({"loss": "hinge", "row_norm": 1.0}, "for the hinge loss"),
    "huber, gradients": ({"loss": "huber", "row_norm": 1.0, "grad_norm": 1.0}, "for the huber loss"),
    "squared, gradients": ({"loss": "squared", "row_norm": 1.0, "grad_norm": 1.0}, "with grad_norm"),
}


@pytest.mark.parametrize("bound", ["label_bound", "margin_bound"])
@pytest.mark.parametrize("mode", UNUSED)
def test_a_bound_that_would_change_nothing_is_refused(mode, bound):
    arguments, why = UNUSED[mode]
    refused("dp_ight", rf"^{bound}=2.0: must be None {why}.*leave it out", **arguments, **{bound: 2.0})
    common = {"n": 100, "d": 5, "sparsity": 2, "step_size": 0.1, "epsilon": 1.0, "delta": 1e-6, "batch_size": 5}
    for name, more in (("dp_sgd_ht", {"steps": 3}), ("dp_scsg_ht", {"epochs": 2, "snapshot_size": 50})):
        with pytest.raises(InvalidValue, match=rf"^{bound}=2.0: must be None {why}"):
            solvers.plan(name, **common, **more, **arguments, **{bound: 2.0})


def test_missing_public_bounds_say_what_they_are():
    refused("dp_ight", "row_norm=None: must be given. It is the largest L2 norm.*without looking at", row_norm=None)
    refused("dp_ight", "grad_norm=None: must be given for the squared loss, or both label_bound", loss="squared")
    refused("dp_ight", "row_norm=None: must be given", row_norm=None, grad_norm=1.0)
    refused("dp_ight", "step_size=None: must be given", loss="squared", row_norm=None, grad_norm=1.0)
    refused("dp_ight", "grad_norm=None: must be given", loss="squared", label_bound=1.0)
    refused("dp_frank_wolfe", "feature_bound=None: must be given. It is the largest .entry. of X", feature_bound=None)
    refused("dp_frank_wolfe", "label_bound=None: must be given. It is the largest .label.", loss="squared")
    refused("sparsifier", "label_bound=None: must be given", loss="squared")
    refused("sparsifier", "count_share=0.*It is the share of the private count", count_share=0)
    refused("sparsifier", "epsilon=inf: must be finite for a private count", epsilon=math.inf)
    refused("sparsifier", "number=None.*public number of weights", count="fixed")
    refused("sparsifier", "number=7: must be <= d=6", count="fixed", number=7)
    refused("sparsifier", "threshold=None", count="threshold")


def test_more_blocks_than_rows():
    refused("peeling_iht", "steps=21: must be <= n=20 when the data are split", steps=21, data="split")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dp_ight", {"row_norm": 1e200}),
        ("dp_ight", {"row_norm": 1e-200}),
        ("dp_frank_wolfe", {"feature_bound": 1e200, "l1_radius": 1e200}),
        ("dp_frank_wolfe", {"feature_bound": 1e-200, "l1_radius": 1e-200}),
        ("dp_multinomial_frank_wolfe", {"feature_bound": 1e200, "l1_radius": 1e200}),
        ("peeling_iht", {"feature_bound": 1e200}),
        ("sparsifier", {"feature_bound": 1e200, "l1_radius": 1e200}),
        ("sparsifier", {"count_share": 1e-18}),
    ],
    ids=str,
)
def test_extreme_bounds_are_refused_before_they_overflow(name, change):
    refused(name, "must be", **change)


@pytest.mark.parametrize("name", PRIVATE)
def test_published_noise_needs_a_finite_budget(name):
    refused(name, "^epsilon.*must be.*finite", calibration="published", epsilon=math.inf)


@pytest.mark.parametrize("size", [{"n": 0}, {"n": 1.5}, {"n": None}, {"d": 0}, {"d": "6"}])
@pytest.mark.parametrize("name", PRIVATE)
def test_bad_sizes(name, size):
    with pytest.raises(InvalidValue, match=f"{next(iter(size))}=.*must be"):
        solvers.plan(name, **{"n": 20, "d": 6} | size, **CALLS[name])


# --- the budget ---------------------------------------------------------------------------------------

TOUCHES_DATA = ["clip_rows", "with_intercept", "clip_entries"]


@pytest.mark.parametrize("name", PRIVATE)
def test_a_short_budget_is_refused_before_the_data_are_used(name, monkeypatch):
    def never(*_):
        raise AssertionError("the data were used")

    for function in TOUCHES_DATA:
        monkeypatch.setattr(bounds, function, never)
    with pytest.raises(AssertionError, match="the data were used"):
        getattr(solvers, name)(*data(), **CALLS[name])
    ledger = Ledger(0.3, 1e-6, allow_seeds=True)
    refused(name, r"epsilon=.* after this release: must be <= 0.3", error=BudgetExceeded, ledger=ledger)


@pytest.mark.parametrize("name", PRIVATE)
def test_the_budget_runs_out(name):
    X, y = data()
    ledger, rng = Ledger(2.0, 1e-6, allow_seeds=True), np.random.default_rng(0)
    fits = 0
    with pytest.raises(BudgetExceeded):
        while fits < 10:
            before, state = ledger.to_json(), rng.bit_generator.state
            getattr(solvers, name)(X, y, rng=rng, ledger=ledger, **CALLS[name])
            fits += 1
    assert 1 <= fits <= 4
    assert ledger.to_json() == before and rng.bit_generator.state == state
    assert ledger.guarantee.epsilon(1e-6) <= 2.0


def test_an_infinite_budget_is_refused_by_a_ledger():
    for name in PRIVATE:
        public = {"count": "fixed", "number": 2} if name == "sparsifier" else {}
        refused(name, "after this release", error=BudgetExceeded, epsilon=math.inf, **public)


# --- nothing of the caller's is changed ---------------------------------------------------------------


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix, sparse.coo_matrix], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", EVERY)
def test_input_is_not_changed(name, layout):
    X, y = data()
    y = y * 1.0
    given_X, given_y = layout(X), y.copy()
    kept = copy.deepcopy(given_X)
    getattr(solvers, name)(given_X, given_y, **({"rng": 0} if name in CALLS else {}), **EVERY[name])
    if layout is np.array:
        assert np.array_equal(given_X, kept)
    else:
        for field in ("data", "indices", "indptr", "row", "col"):
            assert np.array_equal(getattr(given_X, field, 0), getattr(kept, field, 0)), field
    assert np.array_equal(given_y, y)


@pytest.mark.parametrize("name", EVERY)
def test_read_only_input_will_do(name):
    X, y = data()
    X.flags.writeable = y.flags.writeable = False
    getattr(solvers, name)(X, y, **EVERY[name])
