"""What an audit runs is what a user runs, trial by trial, however the trials are cut and whoever runs them."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import solvers
from dptoolkit.audit import layout, pairs, streams
from dptoolkit.audit.pairs import Pair
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.mechanisms.randomness import Source
from dptoolkit.solvers.engine import snapshots
from tests.solvers.capture import step_by_step

COMMON = {"n": 30, "d": 6, "sparsity": 2, "epsilon": 3.0, "delta": 1e-5, "step_size": 0.4}
SQUARED, LOGISTIC = {"loss": "squared", "grad_norm": 1.0}, {"loss": "logistic", "row_norm": 1.0}
SGD = {"steps": 7, "batch_size": 6}
SCSG = {"epochs": 3, "snapshot_size": 12, "batch_size": 4}
POISSON = {"sampling": "poisson"}
CASES = {
    "dp_ight squared": ("dp_ight", SQUARED | {"steps": 7}),
    "dp_ight logistic": ("dp_ight", LOGISTIC | {"steps": 7, "fit_intercept": True}),
    "dp_ight zero-out": ("dp_ight", LOGISTIC | {"steps": 7, "adjacency": "zero-out"}),
    "dp_sgd_ht squared": ("dp_sgd_ht", SQUARED | SGD),
    "dp_sgd_ht logistic": ("dp_sgd_ht", LOGISTIC | SGD | {"fit_intercept": True, "l2": 0.1}),
    "dp_sgd_ht poisson": ("dp_sgd_ht", SQUARED | SGD | POISSON),
    "dp_scsg_ht squared": ("dp_scsg_ht", SQUARED | SCSG),
    "dp_scsg_ht poisson": ("dp_scsg_ht", LOGISTIC | SCSG | POISSON | {"option": "II"}),
    "dp_svrg_ht": ("dp_scsg_ht", LOGISTIC | SCSG | {"snapshot_size": 30, "fit_intercept": True}),
}


def make(case):
    solver, more = CASES[case]
    plan = solvers.plan(solver, **COMMON | more)
    return plan, getattr(pairs, solver)(plan)


def offered(plan):
    more = ("gradients", "step") if plan.solver == "dp_ight" else ()
    return ("final", "support", "iterates", *more)


def expected(plan, adversary, trace):
    if adversary == "iterates" and plan.solver == "dp_scsg_ht":
        return layout.epochs_row(plan, trace)
    return {
        "final": lambda: trace.weights,
        "support": lambda: trace.weights != 0,
        "iterates": lambda: trace.iterates,
        "gradients": lambda: trace.releases,
        "step": lambda: trace.releases[0],
    }[adversary]().ravel()


@pytest.mark.parametrize("case", CASES)
def test_bit_for_bit_what_prepare_gives(case):
    plan, pair = make(case)
    source, first, count = Streams(3, "trials"), 1000, 12
    bits = source.bits(first, count)
    assert 0 < bits.sum() < count
    runs = [solvers.bind(plan, data.X, data.y, data.counts) for data in (pair.second, pair.first)]
    for adversary in offered(plan):
        outputs = PlanTarget(plan, pair, adversary).run(bits, first, source)
        for i, bit in enumerate(bits):
            trace = runs[bit](source.generator(first + i), True)
            assert np.array_equal(outputs[i], expected(plan, adversary, trace)), (adversary, i)


@pytest.mark.parametrize("case", CASES)
def test_the_public_solver_gives_the_same_model(case, monkeypatch):
    """What is audited is what runs: the user's function, on the data written out, once both draw from one stream."""
    monkeypatch.setattr(Source, "stream", lambda self, key: self.generator)
    plan, pair = make(case)
    names = ("loss", "grad_norm", "steps", "epochs", "snapshot_size", "batch_size", "option", "sampling", "l2",
             "fit_intercept", "sparsity", "step_size")  # fmt: skip
    arguments = {name: getattr(plan.settings, name) for name in names if hasattr(plan.settings, name)}
    source = Streams(0, "trials")
    outputs = PlanTarget(plan, pair, "final").run(np.array([1, 0], np.int8), 5, source)
    for i, data in enumerate((pair.first, pair.second)):
        X, y = data.expand()
        result = getattr(solvers, plan.solver)(
            X,
            y,
            rng=source.generator(5 + i),
            row_norm=plan.settings.row_norm,
            adjacency=plan.adjacency,
            epsilon=COMMON["epsilon"],
            delta=COMMON["delta"],
            **arguments,
        )
        assert result.plan == plan
        weights = np.append(result.coef, result.intercept) if plan.settings.fit_intercept else result.coef
        # Records that occur often are summed in one go, so the last digits may differ.
        np.testing.assert_allclose(outputs[i], weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_cuts_and_threads_change_nothing(case):
    plan, pair = make(case)
    source = Streams(1, "trials")
    bits = source.bits(0, 40)
    target = pickle.loads(pickle.dumps(PlanTarget(plan, pair, "iterates")))
    whole = target.run(bits, 0, source)
    cuts = [0, 1, 8, 9, 25, 40]
    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(lambda a, b: target.run(bits[a:b], a, source), cuts[:-1], cuts[1:]))
    assert np.array_equal(whole, np.concatenate(pieces))
    assert not np.array_equal(whole[:10], PlanTarget(plan, pair, "iterates").run(bits[:10], 0, Streams(2, "trials")))
    assert target.run(bits[:0], 0, source).shape[0] == 0


def test_without_the_memory_of_the_generator_the_trials_are_the_same(monkeypatch):
    for case in ("dp_ight squared", "dp_sgd_ht poisson", "dp_scsg_ht squared"):
        plan, pair = make(case)
        source = Streams(1, "trials")
        bits = source.bits(0, 10)
        fast = PlanTarget(plan, pair, "final").run(bits, 0, source)
        with monkeypatch.context() as patch:
            patch.setattr(streams, "place", lambda generator: None)
            assert np.array_equal(fast, PlanTarget(plan, pair, "final").run(bits, 0, source))


def test_large_data_and_plain_tuples():
    plan, pair = make("dp_ight squared")
    source = Streams(1, "trials")
    bits = source.bits(0, 6)
    counted = PlanTarget(plan, pair, "gradients").run(bits, 0, source)
    plain = Pair(pair.first.expand(), tuple(sparse.csr_matrix(a) if a.ndim == 2 else a for a in pair.second.expand()))
    np.testing.assert_allclose(PlanTarget(plan, plain, "gradients").run(bits, 0, source), counted, rtol=1e-9)
    with step_by_step():
        assert solvers.bind(plan, *plain.first).compiled_records is None
        np.testing.assert_allclose(PlanTarget(plan, plain, "gradients").run(bits, 0, source), counted, rtol=1e-9)


def test_a_failure_is_an_output(monkeypatch):
    plan, pair = make("dp_scsg_ht squared")
    from dptoolkit.solvers._scsg import ScsgRun

    real, calls = ScsgRun.__call__, []

    def breaks(self, rng, trace=False):
        calls.append(1)
        if len(calls) % 3 == 0:
            raise RuntimeError
        return real(self, rng, trace)

    source = Streams(1, "trials")
    bits = source.bits(0, 9)
    good = PlanTarget(plan, pair, "final").run(bits, 0, source)
    monkeypatch.setattr(ScsgRun, "trials", lambda *_: None)
    monkeypatch.setattr(ScsgRun, "__call__", breaks)
    outputs = PlanTarget(plan, pair, "final").run(bits, 0, source)
    assert np.isnan(outputs).all(axis=1).tolist() == [False, False, True] * 3
    assert np.array_equal(outputs[:2], good[:2])
    monkeypatch.setattr(ScsgRun, "__call__", lambda *_: 1 / 0)
    assert np.isnan(PlanTarget(plan, pair, "final").run(bits, 0, source)).all()


def test_adversaries():
    plan, pair = make("dp_sgd_ht squared")
    for adversary in ("gradients", "step", "releases"):
        with pytest.raises(ValueError, match="'final', 'support' or 'iterates' for dp_sgd_ht"):
            PlanTarget(plan, pair, adversary)
    with pytest.raises(ValueError, match="adversary"):
        PlanTarget(plan, pair, "everything")
    plan, pair = make("dp_ight squared")
    source = Streams(0, "t")
    bits = source.bits(0, 4)
    everything = PlanTarget(plan, pair, "gradients").run(bits, 0, source)
    assert np.array_equal(everything, PlanTarget(plan, pair, "releases").run(bits, 0, source))
    assert np.array_equal(everything[:, :6], PlanTarget(plan, pair, "step").run(bits, 0, source))


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.frame.outlook.HopelessPlanWarning")
def test_runs_of_different_lengths_have_no_rows():
    """The steps of this dp_pipeline follow a noisy eigenvalue; with few records all runs take the fewest."""
    plan = solvers.plan("dp_pipeline", n=500, d=6, epsilon=10.0, delta=1e-5)
    pair = pairs.dp_pipeline(plan)
    for adversary in ("iterates", "gradients", "releases"):
        with pytest.raises(ValueError, match="differ in the number of steps"):
            PlanTarget(plan, pair, adversary)
    for adversary in ("final", "support", "step"):
        assert len(PlanTarget(plan, pair, adversary).run(np.ones(20, np.int8), 0, Streams(0, "trials"))) == 20
    few = solvers.plan("dp_pipeline", n=40, d=2, epsilon=4.0, delta=1e-5)
    target = PlanTarget(few, pairs.dp_pipeline(few), "releases")
    assert len(target.run(np.ones(20, np.int8), 0, Streams(0, "trials"))) == 20


def test_epochs_are_read_as_they_are_written():
    """Numbers of steps, snapshots and iterates of every epoch, cut off and filled up to one length."""
    plan, pair = make("dp_scsg_ht squared")
    run, source = solvers.bind(plan, *pair.first.expand()), Streams(5, "t")
    most, epochs = layout.most_inner_steps(plan), 3
    assert most == 9
    traces = [run(source.generator(i), True) for i in range(40)]
    found = layout.read_epochs(plan, np.array([layout.epochs_row(plan, trace) for trace in traces]))
    seen = set()
    for i, trace in enumerate(traces):
        counts = trace.history["inner_steps"]
        assert np.array_equal(found.counts[i], counts)
        assert np.array_equal(found.snapshots[i], trace.history["snapshots"])
        assert len(trace.iterates) == counts.sum()
        assert np.array_equal(trace.weights, trace.iterates[-1] if len(trace.iterates) else np.zeros(6))
        before, start = np.zeros(6), 0
        for e in range(epochs):
            steps = trace.iterates[start : start + counts[e]]
            for t in range(most):
                wanted = steps[min(t, counts[e] - 1)] if counts[e] else before
                assert np.array_equal(found.iterates[i, e, t], wanted)
            before, start = (steps[-1] if counts[e] else before), start + counts[e]
            seen.add("none" if counts[e] == 0 else "many" if counts[e] > most else "some")
    assert seen == {"none", "some", "many"}


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("case", [case for case in CASES if "ight" not in case])
def test_counted_rows_are_records_written_out(case, few, monkeypatch):
    """The same batches of the same records; the gradient of a row is computed once, so the last digits may differ."""
    plan, pair = make(case)
    X, y, counts = mixed(pair.first)
    if not few:
        monkeypatch.setattr(snapshots, "_FEW_ENTRIES", 0)
    counted, which = solvers.bind(plan, X, y, counts), np.repeat(np.arange(len(y)), counts)
    written = solvers.bind(plan, X[which], y[which])
    for seed in range(5):
        a, b = (run(np.random.default_rng(seed), True) for run in (counted, written))
        np.testing.assert_allclose(a.iterates, b.iterates, rtol=1e-9, atol=1e-12)
        assert np.array_equal(a.weights, a.iterates[-1]) and a.releases is None
    assert counted.diagnose(a.weights, a.history) == pytest.approx(written.diagnose(a.weights, a.history))


def mixed(data):
    """The pair's records among others, all of them several times, one of them never."""
    rng = np.random.default_rng(0)
    X = np.concatenate([data.X, rng.normal(size=(4, data.X.shape[1]))])
    counts = np.array([3] * (len(X) - 1) + [0])
    counts[-2] += data.n - counts.sum()
    return X, np.append(data.y, rng.integers(0, 2, 4).astype(float)), counts


def test_small_is_decided_by_the_different_rows():
    plan = solvers.plan("dp_ight", **COMMON | SQUARED | {"steps": 2, "n": 10**6, "d": 20, "delta": 1e-9})
    pair = pairs.dp_ight(plan)
    assert pair.first.n == 10**6
    assert solvers.bind(plan, pair.first.X, pair.first.y, pair.first.counts).compiled_records is not None
