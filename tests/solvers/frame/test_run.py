"""The contract of a run: ``fits`` is enough, and every private solver keeps it."""

from __future__ import annotations

import numpy as np
import pytest

from dptoolkit import solvers
from dptoolkit.audit import presets
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers._ight import ResolvedIght
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another

BUDGET = {"epsilon": 1.0, "delta": 1e-5, "loss": "logistic", "sparsity": 2, "steps": 3, "step_size": 0.5,
          "row_norm": 1.0}  # fmt: skip
X = np.random.default_rng(0).normal(size=(20, 3))
Y = (X[:, 0] > 0).astype(float)


class Noise(Run):
    """Nothing but ``fits``: noise, and the number of the records."""

    def __init__(self, rows):
        self.rows = rows

    def fits(self, streams, trace=False):
        weights = len(self.rows) + streams.standard_normal((len(streams), self.rows.shape[1]))
        return Trials(weights, *((weights[:, None], weights[:, None]) if trace else (None, None)),
                      history=lambda i: {"first": float(weights[i, 0])})  # fmt: skip


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(ResolvedIght, "bind", lambda self, plan, rows, y, counts=None: Noise(rows.matrix))
    return solvers.plan("dp_ight", n=20, d=3, **BUDGET)


def test_fits_is_all_that_a_run_has_to_define(toy):
    single = solvers.dp_ight(X, Y, rng=3, trace=True, diagnostics=True, **BUDGET)
    assert single.history["first"] == single.coef[0] and single.history["not_private"] == {}
    ((step, support, values),) = single.history["iterates"]
    assert step == 1 and np.array_equal(support, [0, 1, 2]) and np.array_equal(values, single.coef)
    many = solvers.fit_many(toy, X, Y, seeds=[3, 4])
    assert np.array_equal(many[0].coef, single.coef) and not np.array_equal(*(fit.coef for fit in many))


def test_an_audit_plays_trials_of_it_at_once_and_one_by_one_alike(toy, monkeypatch):
    pair, source = Pair((X, Y), (X, 1 - Y), toy.adjacency), Streams(1, "trials")
    bits = source.bits(0, 9)
    for adversary in ("final", "iterates", "step"):
        together = PlanTarget(toy, pair, adversary).run(bits, 0, source)
        with monkeypatch.context() as patch:
            patch.setattr(Noise, "at_once", lambda self, trace: False)
            assert np.array_equal(together, PlanTarget(toy, pair, adversary).run(bits, 0, source))


def test_a_run_without_fits_cannot_be_made():
    class Half(Run):
        def one(self, rng, trace):
            return Trace(np.zeros(1), {})

    with pytest.raises(TypeError, match="fits"):
        Half()


def test_fits_of_different_lengths_end_with_nan():
    class Uneven(Run):
        def fits(self, streams, trace=False):
            return one_after_another(self, streams, trace)

        def one(self, rng, trace):
            length = int(rng.integers(1, 4))
            return Trace(np.full(2, float(length)), {"length": length}, None, np.full((length, 2), 1.0))

    found = Uneven().fits(Generators(*map(np.random.default_rng, range(8))), True)
    lengths = found.weights[:, 0]
    assert len(set(lengths)) > 1 and found.releases is None
    assert np.array_equal(np.isfinite(found.iterates[:, :, 0]).sum(axis=1), lengths)
    assert [found.one(i).history["length"] for i in range(8)] == lengths.tolist()


@pytest.mark.parametrize("name", solvers.PRIVATE)
def test_every_private_solver_keeps_the_contract(name):
    """One fit is the case of one of ``fits``, bit for bit, with the same history, and the streams do not mix."""
    plan = presets.plan(name, 1.0, 1e-5)
    data = presets.pair(plan).first
    run = solvers.bind(plan, *((data.X, data.y, data.counts) if isinstance(data, Counted) else data))
    assert isinstance(run, Run)
    found = run.fits(Generators(*map(np.random.default_rng, (5, 6))), True)
    for i, seed in enumerate((5, 6)):
        one = run(np.random.default_rng(seed), True)
        assert np.array_equal(one.weights, found.weights[i])
        assert set(one.history) == set(found.one(i).history)
        assert repr(one.history) == repr(found.one(i).history)
        for kept, own in ((found.releases, one.releases), (found.iterates, one.iterates)):
            assert (kept is None) == (own is None)
            assert kept is None or np.array_equal(kept[i][: len(own)], own)
    assert run(np.random.default_rng(5)).releases is None
