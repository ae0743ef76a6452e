"""Many fits at once are the fits alone: same noise, same models, same guarantees, one pass over X for all."""

from __future__ import annotations

import math
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from benchmarks.suite.counts import counted
from dptoolkit import solvers
from dptoolkit.accounting import Composed, Ledger, Repeated, account
from dptoolkit.data import prepare
from dptoolkit.errors import DpToolkitError
from dptoolkit.kernels import frank_wolfe as kernel
from dptoolkit.mechanisms.randomness import Source
from dptoolkit.solvers.engine import gradients, vertex_paths
from dptoolkit.solvers.engine.vertex_paths import DitheredPath
from dptoolkit.solvers.frame import many
from tests.solvers.capture import Spy, step_by_step

# Where X^T r is computed.
SUMS = ("row_sums", "block_feature_sums")
LOGISTIC = {"loss": "logistic", "row_norm": 1.0, "delta": 1e-6}


def problem(n, d, seed=0, density=0.4):
    """Rows with zeros, some of them rows of zeros, and labels 0 and 1."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < density)
    X[rng.random(n) < 0.2] = 0.0
    return X, (rng.random(n) < 0.5) * 1.0


def plan(name, X, **arguments):
    return solvers.plan(name, n=X.shape[0], d=X.shape[1], **LOGISTIC | arguments)


@contextmanager
def as_if(size):
    """Data take the path of ``size``: one compiled call, step by step, or step by step with compiled sums."""
    compiled_sums = mock.patch.object(gradients, "_WORTH_A_THREAD", 0 if size == "huge" else 10**9)
    with step_by_step() if size != "small" else nullcontext(), compiled_sums:
        yield


def alone(one, X, y, seed):
    """The fit by the public function of the solver."""
    arguments = {name: value for name, value in one.settings.to_dict().items() if value is not None}
    return getattr(solvers, one.solver)(X, y, rng=seed, **arguments)


def check_same(result, single, exactly=True):
    if exactly:
        np.testing.assert_array_equal(result.coef, single.coef)
        assert result.intercept == single.intercept
        assert result.history["noise_scale"] == single.history["noise_scale"]
    else:
        np.testing.assert_allclose(result.coef, single.coef, rtol=1e-9, atol=1e-12)
        assert result.intercept == pytest.approx(single.intercept, rel=1e-9)
    assert result.plan == single.plan
    assert result.guarantee == single.guarantee


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 40), d=st.integers(1, 30), data_seed=st.integers(0, 5),
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=20, unique=True),
    layout=st.sampled_from(["csr", "dense"]), size=st.sampled_from(["small", "large", "huge"]),
    epsilons=st.lists(st.sampled_from([0.5, 2.0, 50.0, math.inf]), min_size=1, max_size=3, unique=True),
    name=st.sampled_from(["dp_ight", "dp_dual_averaging"]), intercept=st.booleans(), kept=st.booleans(),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_every_fit_is_the_fit_alone(n, d, seeds, layout, size, data_seed, epsilons, name, intercept, kept):
    """Bit for bit on sparse and small data; dense sums of large data are taken in another order."""
    X, y = problem(n, d, data_seed)
    given_X = sparse.csr_matrix(X) if layout == "csr" else X
    more = {} if name == "dp_dual_averaging" and not kept else {"sparsity": max(1, d // 3)}
    plans = [
        plan(name, X, epsilon=e, steps=3 + k, step_size=0.5 + k, fit_intercept=intercept, **more)
        for k, e in enumerate(epsilons)
    ]
    with as_if(size):
        together = solvers.fit_many(plans, given_X, y, seeds=seeds)
        singles = [[alone(one, given_X, y, seed) for seed in seeds] for one in plans]
    for row, row_alone in zip(together, singles, strict=True):
        for result, single in zip(row, row_alone, strict=True):
            check_same(result, single, exactly=layout == "csr" or size == "small")


@pytest.mark.filterwarnings("ignore")
def test_losses_and_bounds_may_differ_in_one_block():
    X, y = problem(60, 20)
    plans = [
        plan("dp_ight", X, epsilon=3.0, sparsity=4, steps=4, loss="squared", grad_norm=0.7, row_norm=1.0),
        plan("dp_ight", X, epsilon=1.0, sparsity=4, steps=6, grad_norm=0.2),
        plan("dp_dual_averaging", X, epsilon=1.0, steps=5, step_size=2.0, loss="huber"),
        plan("dp_ight", X, epsilon=1.0, sparsity=4, steps=6, row_norm=0.5),
    ]
    with as_if("huge"), counted() as work:
        together = solvers.fit_many(plans, sparse.csr_matrix(X), y, seeds=[3, 5])
        # Three plans read the same rows: their longest fit has 6 steps. The other row_norm needs 6 passes of its own.
        # Dual averaging keeps all features here: 4 of its 5 margins are passes as well, the first is at zero.
        assert work.read(*SUMS) == 16 * np.count_nonzero(X)
        for row, one in zip(together, plans, strict=True):
            for result, seed in zip(row, [3, 5], strict=True):
                check_same(result, alone(one, sparse.csr_matrix(X), y, seed))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("runs", [1, 7, 16, 17, 33])
def test_one_pass_over_the_data_serves_sixteen_runs(runs):
    X, y = problem(50, 30)
    with as_if("huge"), counted() as work:
        one = plan("dp_ight", X, epsilon=1.0, sparsity=3, steps=5)
        solvers.fit_many(one, sparse.csr_matrix(X), y, runs=runs, randomness="fast")
    assert work.read(*SUMS) == 5 * math.ceil(runs / 16) * np.count_nonzero(X)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["dp_sgd_ht", "dp_frank_wolfe", "peeling_iht"])
def test_other_solvers_run_on_the_same_prepared_data(name):
    X, y = problem(40, 12)
    X = sparse.csr_matrix(X)
    special = {
        "dp_sgd_ht": {"sparsity": 3, "steps": 5, "batch_size": 8},
        "dp_frank_wolfe": {"row_norm": None, "l1_radius": 2.0, "feature_bound": 1.0, "steps": 5},
        "peeling_iht": {
            "loss": None, "row_norm": None, "sparsity": 3, "steps": 3, "step_size": 0.7, "radius": 1.5,
            "label_bound": 1.0, "feature_bound": 1.0,
        },
    }[name]  # fmt: skip
    arguments = {key: value for key, value in (LOGISTIC | special).items() if value is not None}
    one = solvers.plan(name, n=40, d=12, epsilon=2.0, **arguments)
    for result, seed in zip(solvers.fit_many(one, prepare(X), y, seeds=range(3)), range(3), strict=True):
        single = getattr(solvers, name)(X, y, epsilon=2.0, rng=seed, **arguments)
        np.testing.assert_array_equal(result.coef, single.coef)


@pytest.mark.filterwarnings("ignore")
def test_frank_wolfe_over_seeds_budgets_and_radii():
    """Every run is the fit alone, bit for bit, and chooses vertices by draws of its own; X is laid out once."""
    X, y = problem(60, 25)
    X = sparse.csr_matrix(X)
    ball = {"loss": "logistic", "feature_bound": 1.0, "steps": 30, "delta": 1e-6}
    plans = [
        solvers.plan("dp_frank_wolfe", n=60, d=25, epsilon=epsilon, l1_radius=radius, **ball)
        for epsilon in (1.0, 1e3)
        for radius in (2.0, 9.0)
    ]
    with mock.patch.object(vertex_paths, "both_sides", wraps=vertex_paths.both_sides) as layout:
        together = solvers.fit_many(plans, X, y, seeds=[3, 5])
    assert layout.call_count == 1
    for row, one in zip(together, plans, strict=True):
        for result, seed in zip(row, [3, 5], strict=True):
            single = alone(one, X, y, seed)
            check_same(result, single)
            np.testing.assert_array_equal(result.history["vertices"], single.history["vertices"])
    # Also runs of one seed: whoever shares draws would choose the same vertices where nothing is learnt.
    timid = [result.history["vertices"].tolist() for row in together[:2] for result in row]
    assert len({tuple(vertices) for vertices in timid}) == 4


def ball_plan(n, d, **more):
    ball = {"loss": "logistic", "feature_bound": 1.0, "steps": 30, "delta": 1e-6, "l1_radius": 9.0}
    return solvers.plan("dp_frank_wolfe", n=n, d=d, **ball | more)


@contextmanager
def in_threads(count):
    """Runs of Frank-Wolfe in this many threads, whatever the size; the names of those in which fits were made.

    Threads wait for each other before every block of steps, so that their fits overlap as much as they can.
    """
    names, meeting, finish = [], threading.Barrier(count), DitheredPath.finish

    def watched(self, *arguments):
        names.append(threading.current_thread().name)
        return finish(self, *arguments)

    def together(block):
        def watched_block(*arguments):
            # Fits that are made one after the other would wait here for ever: the time is that of a test that fails.
            meeting.wait(120)
            return block(*arguments)

        return watched_block

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(gradients, "_WORTH_A_THREAD", 0))
        stack.enter_context(mock.patch.object(gradients, "processors", lambda: count))
        stack.enter_context(mock.patch.object(DitheredPath, "finish", watched))
        for name in ("dithered_block", "dithered_laplace_block"):
            stack.enter_context(mock.patch.object(kernel, name, together(getattr(kernel, name))))
        yield names


@pytest.mark.filterwarnings("ignore")
def test_frank_wolfe_in_threads_is_the_fit_alone():
    """As many fits at a time as there are processors, each with memory and a stream of its own."""
    X, y = problem(60, 25)
    X = sparse.csr_matrix(X)
    plans = [ball_plan(60, 25, epsilon=1e3), ball_plan(60, 25, epsilon=1e3, law="laplace")]
    seeds, here = range(6), threading.current_thread().name
    with in_threads(3) as names:
        together = solvers.fit_many(plans, X, y, seeds=seeds, trace=7)
    assert len(names) == 12 and here not in names
    with in_threads(1) as names:
        solvers.fit_many(plans, X, y, seeds=seeds)
    assert set(names) == {here}, "no thread for one processor"
    for row, one in zip(together, plans, strict=True):
        for result, seed in zip(row, seeds, strict=True):
            check_same(result, alone(one, X, y, seed))
            assert result.history["iterates"][0][0] == 7


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_fails_in_a_thread_fails_the_call_and_stays_charged():
    X, y = problem(60, 25)
    ledger = Ledger(epsilon=100.0, delta=1e-5)
    broken = mock.patch.object(kernel, "start", side_effect=ArithmeticError("in a thread"))
    with in_threads(2), broken, pytest.raises(ArithmeticError, match="in a thread"):
        solvers.fit_many(ball_plan(60, 25, epsilon=0.1), sparse.csr_matrix(X), y, runs=2, ledger=ledger)
    assert len(ledger.reserved) == 1


def entries_of_all_sizes(seed):
    """Rows, some of them zero, whose sums depend on their order; and labels."""
    rng = np.random.default_rng(seed)
    X = rng.choice([-1, 1], (300, 40)) * 2.0 ** rng.uniform(-60, 0, (300, 40)) * (rng.random((300, 40)) < 0.2)
    X[150:155] = 0.0
    return sparse.csr_matrix(X), np.arange(300) % 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("runs", [1, 3, 16])
def test_a_shared_start_is_summed_row_by_row_as_a_fit_alone_does(runs):
    X, y = entries_of_all_sizes(runs)
    path = solvers.bind(ball_plan(300, 40, epsilon=1.0), X, y)._path
    starts = vertex_paths.dithered_starts([path] * runs, [np.random.default_rng(seed) for seed in range(runs)])
    for start in starts:
        changes, expected = start.levels - path.count / 2, np.zeros(40)
        for change, row in zip(changes, X[path.filled], strict=True):
            expected[row.indices] += change * row.data.astype(np.float32)
        np.testing.assert_array_equal(start.totals, expected)
        assert len(set(changes)) > 1
    assert len({start.theta.tobytes() for start in starts}) == runs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("runs", [1, 2, 7, 16, 17])
def test_frank_wolfe_begins_with_one_pass_for_sixteen_runs(runs):
    """Bit for bit as alone."""
    X, y = entries_of_all_sizes(runs)
    plans = [ball_plan(300, 40, epsilon=1.0), ball_plan(300, 40, epsilon=1e3, l1_radius=4.0, loss="hinge")]
    with mock.patch.object(gradients, "_WORTH_A_THREAD", 0), counted() as work:
        together = solvers.fit_many(plans, X, y, seeds=range(runs))
        # Runs of both plans share the passes.
        assert work.read(*SUMS) == math.ceil(2 * runs / 16) * X.nnz
        assert work.read("dithered_block") < 0.3 * 2 * runs * X.nnz, "few rows are pushed later"
    for row, one in zip(together, plans, strict=True):
        for seed in range(runs):
            check_same(row[seed], alone(one, X, y, seed))


@pytest.mark.filterwarnings("ignore")
def test_which_runs_are_worth_a_thread():
    X, y = problem(60, 25)
    X = sparse.csr_matrix(X)
    exact, textbook = ball_plan(60, 25, epsilon=math.inf), ball_plan(60, 25, epsilon=1.0, refresh=1)
    usual = solvers.bind(ball_plan(60, 25, epsilon=1.0), X, y)
    assert not usual.threads, "small"
    with mock.patch.object(gradients, "_WORTH_A_THREAD", 0):
        assert usual.threads
        assert not any(solvers.bind(one, X, y).threads for one in (exact, textbook))


@pytest.mark.filterwarnings("ignore")
def test_every_run_draws_its_own_planned_noise(monkeypatch):
    """No record has a feature, so all that moves the weights is noise: w = -step_size sum_t scale_t z_t."""
    d, steps = 6, 4
    plans = [plan("dp_ight", np.zeros((4, d)), epsilon=e, sparsity=d, steps=steps, step_size=0.3) for e in (1.0, 9.0)]
    spies: list[Spy] = []

    def watched(rng, ledger, **rest):
        spies.append(Spy(len(spies)))
        return Source.of(spies[-1])

    monkeypatch.setattr(many, "noise_source", watched)
    with step_by_step():
        rows = solvers.fit_many(plans, sparse.csr_matrix((4, d)), np.arange(4) % 2, runs=3, randomness="fast")
    # The first source is made to ask the ledger, and draws nothing.
    assert not spies[0].draws
    for spy, result in zip(spies[1:], [result for row in rows for result in row], strict=True):
        assert [name for name, _ in spy.draws] == ["standard_normal"] * steps
        scales = result.history["noise_scale"]
        assert scales[0] == pytest.approx(result.plan.noise / 2), "half the sensitivity at w = 0"
        total = sum(scale * z for scale, z in zip(scales, spy.of("standard_normal"), strict=True))
        np.testing.assert_allclose(result.coef, -0.3 * total, rtol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_fresh_runs_differ_and_are_releases():
    X, y = problem(30, 5)
    results = solvers.fit_many(plan("dp_ight", X, epsilon=1.0, sparsity=5, steps=2), X, y, runs=4)
    assert len({result.coef.tobytes() for result in results}) == 4
    assert not any("reproducible" in note for result in results for note in result.guarantee.notes)


@pytest.mark.filterwarnings("ignore")
def test_a_ledger_is_charged_for_all_fits_at_once_before_the_data_are_used(monkeypatch):
    X, y = problem(30, 5)
    plans = [plan("dp_ight", X, epsilon=e, sparsity=2, steps=2) for e in (0.5, 1.0)]
    event = Composed(*(Repeated(one.event, 3) for one in plans))
    ledger = Ledger(epsilon=account(event).epsilon(1e-5) * 1.001, delta=1e-5)
    with pytest.raises(DpToolkitError):
        solvers.fit_many(plans, X, y, runs=4, ledger=ledger)
    assert ledger.entries == ()
    with pytest.raises(DpToolkitError, match="rng"):
        solvers.fit_many(plans, X, y, seeds=range(3), ledger=ledger)
    assert ledger.entries == ()
    solvers.fit_many(plans, X, y, runs=3, ledger=ledger)
    assert len(ledger.entries) == 1 and ledger.reserved == ()
    assert account(ledger.event).epsilon(1e-5) == pytest.approx(account(event).epsilon(1e-5), rel=1e-9)

    later = Ledger(epsilon=100.0, delta=1e-5)
    monkeypatch.setattr(many, "_blocks", lambda jobs: pytest.fail("stop"))
    with pytest.raises(pytest.fail.Exception):
        solvers.fit_many(plans, X, y, runs=2, ledger=later)
    assert len(later.reserved) == 1, "a failure after the charge leaves it"


@pytest.mark.filterwarnings("ignore")
def test_bad_input_is_refused_before_anything_is_charged():
    X, y = problem(30, 5)
    one, ledger = plan("dp_ight", X, epsilon=1.0, sparsity=2, steps=2), Ledger(epsilon=9.0, delta=1e-5)
    wider = solvers.plan("dp_ight", n=30, d=6, epsilon=1.0, sparsity=2, steps=2, **LOGISTIC)
    other = plan("dp_ight", X, epsilon=1.0, sparsity=2, steps=2, adjacency="zero-out")
    cases = [
        ((one,), {"seeds": []}, "at least one"), ((one,), {"seeds": [1, 1]}, "same fit"),
        ((one,), {"seeds": 4}, "sequence"), ((one,), {"seeds": [1.5]}, "seeds"), ((one,), {"seeds": [-1]}, "seeds"),
        ((one,), {}, "neither"), ((one,), {"seeds": [1], "runs": 1}, "both"), ((one,), {"runs": 0}, "runs"),
        (([one, one],), {"runs": 1}, "different"), (([one, wider],), {"runs": 1}, "one n and d"),
        ((wider,), {"runs": 1}, "the plan"), (([],), {"runs": 1}, "at least one"), (("dp_ight",), {"runs": 1}, "Plan"),
        (([one, other],), {"runs": 1}, "one adjacency"),
    ]  # fmt: skip
    for (plans,), arguments, words in cases:
        with pytest.raises(DpToolkitError, match=words):
            solvers.fit_many(plans, X, y, ledger=ledger, **arguments)
    with pytest.raises(DpToolkitError):
        solvers.fit_many(one, X, y + 7, runs=1, ledger=ledger)
    assert ledger.entries == ()


@pytest.mark.filterwarnings("ignore")
def test_prepared_data_are_a_copy_and_are_clipped_and_transposed_once():
    X, y = problem(30, 5)
    X = sparse.csr_matrix(X * 10)
    prepared = prepare(X)
    X.data[:] = 1e300
    one = plan("dp_ight", X, epsilon=1.0, sparsity=2, steps=2)
    bounded = [one.settings.bounds.clip(one.settings.validated_rows(prepared), y)[0] for _ in range(2)]
    assert bounded[0] is bounded[1] and bounded[0] is not prepared
    assert bounded[0].transpose() is bounded[1].transpose()
    assert bounded[0].row_norms().max() <= 1.0
    assert prepare(prepared) is prepared and abs(prepared.matrix.data).max() < 1e3


@pytest.mark.filterwarnings("ignore")
def test_iterates_and_diagnostics_are_those_of_the_fit_alone():
    X, y = problem(30, 8)
    one = plan("dp_ight", X, epsilon=1.0, sparsity=2, steps=4)
    X = sparse.csr_matrix(X)
    with step_by_step():
        results = solvers.fit_many(one, X, y, seeds=[1, 2], trace=2, diagnostics=True)
        single = solvers.dp_ight(X, y, epsilon=1.0, sparsity=2, steps=4, rng=2, trace=2, diagnostics=True, **LOGISTIC)
    assert [step for step, *_ in results[1].history["iterates"]] == [2, 4]
    assert results[1].history["not_private"] == single.history["not_private"]


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.frame.outlook.HopelessPlanWarning")
def test_a_ledger_refuses_before_noise_is_made_ready(monkeypatch):
    X, y = problem(40, 3)
    sources, real = [], many.noise_source
    monkeypatch.setattr(many, "noise_source", lambda *rest, **more: (sources.append(rest), real(*rest, **more))[1])
    ledger = Ledger(2.0, 1e-6)
    with pytest.raises(DpToolkitError, match="budget"):
        solvers.fit_many(plan("dp_ight", X, epsilon=1.0, sparsity=2, steps=2), X, y, runs=1000, ledger=ledger)
    assert len(sources) == 1 and not ledger.entries
    with pytest.raises(DpToolkitError, match="a seed"):
        solvers.fit_many(plan("dp_ight", X, epsilon=1.0, sparsity=2, steps=2), X, y, seeds=[1], ledger=ledger)
    assert not ledger.entries
