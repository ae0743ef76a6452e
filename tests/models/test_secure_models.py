"""Secure noise of models: by default without a seed, in plans, files, estimators and ledgers; never silently fast."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dptoolkit import models, solvers
from dptoolkit.accounting import Ledger
from dptoolkit.errors import InvalidValue
from dptoolkit.models.notes import UNCHECKED
from dptoolkit.solvers.frame import secure

pytestmark = pytest.mark.filterwarnings("ignore:.*noise is too large")

IGHT = {"loss": "logistic", "sparsity": 3, "steps": 2, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
MODEL = {"task": "classification", "solver": "dp_ight", "sparsity": 3, "steps": 2, "row_norm": 1.0, "delta": 1e-6}


def data(classes=2):
    rng = np.random.default_rng(0)
    return rng.standard_normal((90, 5)), np.arange(90) % classes


def test_the_default_is_secure_without_a_seed_and_fast_with_one():
    assert secure.UNSEEDED == secure.SECURE
    X, y = data()
    assert solvers.dp_ight(X, y, **IGHT).plan.secure is not None
    assert solvers.dp_ight(X, y, rng=0, **IGHT).plan.secure is None
    assert solvers.dp_ight(X, y, rng=np.random.default_rng(), **IGHT).plan.secure is None
    assert solvers.dp_ight(X, y, randomness="fast", **IGHT).plan.secure is None
    # Where no noise is asked for there is none to make secure.
    assert solvers.dp_ight(X, y, **IGHT | {"epsilon": math.inf}).plan.secure is None
    # A plan serves audits and fits with seeds, too.
    plan = solvers.plan("dp_ight", n=90, d=5, **IGHT)
    assert plan.secure is None
    assert all(fit.plan.secure is not None for fit in solvers.fit_many(plan, X, y, runs=2))
    assert all(fit.plan.secure is None for fit in solvers.fit_many(plan, X, y, runs=2, randomness="fast"))
    assert all(fit.plan.secure is None for fit in solvers.fit_many(plan, X, y, seeds=[1, 2]))
    with pytest.raises(InvalidValue, match="seeds='given'"):
        solvers.fit_many(plan, X, y, seeds=[1], randomness="secure")


def test_what_has_no_secure_noise_raises_and_names_the_way_out():
    X, y = data()
    settings = {"loss": "logistic", "l1_radius": 2.0, "feature_bound": 1.0, "steps": 3, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(InvalidValue, match="randomness='fast'"):
        solvers.dp_frank_wolfe(X, y, calibration="published", **settings)
    assert solvers.dp_frank_wolfe(X, y, calibration="published", randomness="fast", **settings).plan.secure is None


def test_a_ledger_takes_fast_noise_only_if_told_to(tmp_path):
    X, y = data()
    ledger = Ledger(epsilon=9.0, delta=1e-5)
    solvers.dp_ight(X, y, ledger=ledger, **IGHT)
    for rng, randomness in ((None, "fast"), (np.random.default_rng(), None)):
        with pytest.raises(InvalidValue, match="randomness='fast'.*allow_fast_noise"):
            solvers.dp_ight(X, y, ledger=ledger, rng=rng, randomness=randomness, **IGHT)
        with pytest.raises(InvalidValue, match="allow_fast_noise"):
            models.fit(*data(3), ledger=ledger, classes=[0, 1, 2], rng=rng, randomness=randomness, **MODEL)
    plan = solvers.plan("dp_ight", n=90, d=5, **IGHT)
    with pytest.raises(InvalidValue, match="allow_fast_noise"):
        solvers.fit_many(plan, X, y, runs=2, randomness="fast", ledger=ledger)
    assert len(ledger.entries) == 1
    # Seeds have an allowance of their own, which covers their noise.
    solvers.dp_ight(X, y, ledger=Ledger(epsilon=9.0, delta=1e-5, allow_seeds=True), rng=0, **IGHT)
    solvers.dp_ight(X, y, ledger=Ledger(epsilon=9.0, delta=1e-5, allow_fast_noise=True), randomness="fast", **IGHT)
    # A file keeps the answer; one that was made without it can be told for one program.
    told, untold = tmp_path / "told", tmp_path / "untold"
    Ledger.open(told, 9.0, 1e-5, allow_fast_noise=True)
    Ledger.open(untold, 9.0, 1e-5)
    assert Ledger.open(told).allow_fast_noise and not Ledger.open(untold).allow_fast_noise
    solvers.dp_ight(X, y, ledger=Ledger.open(told), randomness="fast", **IGHT)
    with pytest.raises(InvalidValue, match="allow_fast_noise"):
        solvers.dp_ight(X, y, ledger=Ledger.open(untold), randomness="fast", **IGHT)
    assert Ledger.open(untold, allow_fast_noise=True).allow_fast_noise


@pytest.mark.parametrize("classes", [2, 3])
def test_models_and_their_files(classes, tmp_path):
    """A file states its noise, marked as not checked, as it cannot prove it."""
    X, y = data(classes)
    model = models.fit(X, y, classes=list(range(classes)), **MODEL)
    assert model.plan.secure is not None and "secure noise (ChaCha20" in str(model.guarantee)
    assert models.plan(90, 5, classes=classes, **MODEL).secure is not None
    models.save(model, tmp_path / "m")
    read = models.load(tmp_path / "m")
    np.testing.assert_array_equal(read.coef, model.coef)
    assert read.guarantee.epsilon(1e-6) == model.guarantee.epsilon(1e-6)
    notes = [note for note in read.guarantee.notes if "secure noise" in note]
    assert notes and all(note.startswith(UNCHECKED) for note in notes)
    assert "as a file states" in str(read.plan)
    seeded = models.fit(X, y, classes=list(range(classes)), rng=0, **MODEL)
    assert seeded.plan.secure is None and "secure noise" not in str(seeded.guarantee)
    with pytest.raises(InvalidValue, match="rng='given'"):
        models.fit(X, y, classes=list(range(classes)), rng=0, randomness="secure", **MODEL)


def test_estimators():
    estimators = pytest.importorskip("dptoolkit.estimators")
    X, y = data()
    own = {"sparsity": 3, "steps": 2, "row_norm": 1.0, "classes": [0, 1]}
    kind = estimators.DPIGHTClassifier if hasattr(estimators, "DPIGHTClassifier") else None
    if kind is None:
        kind, own = estimators.PrivateSparseClassifier, {"classes": [0, 1]}
    assert kind(**own).fit(X, y).plan_.secure is not None
    assert kind(random_state=0, **own).fit(X, y).plan_.secure is None
    assert kind(randomness="fast", **own).fit(X, y).plan_.secure is None
    with pytest.raises(InvalidValue, match="random_state='given'"):
        kind(random_state=0, randomness="secure", **own).fit(X, y)
