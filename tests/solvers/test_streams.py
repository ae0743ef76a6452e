"""One stream for one fit: no thread, plan or budget shares noise with another, and a seed is no release."""

from __future__ import annotations

import ast
import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import dptoolkit
from dptoolkit import solvers
from dptoolkit.accounting import Ledger
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms import GaussianNoise, GeometricNoise, LaplaceNoise, NoisyMaximum
from dptoolkit.mechanisms.randomness import Source, as_generator, exclusive
from dptoolkit.solvers.engine import descent
from tests.solvers.frame.test_plans import data
from tests.solvers.test_public_facts import PRIVATE

# --- threads ------------------------------------------------------------------------------------------

# A run long enough that two of them overlap in time.
STEPS, WIDTH = 200, 500


def noise_alone(rows=1, **more):
    """A run whose releases are its noise: the records are zero."""
    arguments = {
        "loss": "logistic", "sparsity": 1, "steps": STEPS, "row_norm": 1.0, "adaptive": False, "epsilon": 1.0,
        "delta": 1e-6,
    }  # fmt: skip
    plan = solvers.plan("dp_ight", n=rows, d=WIDTH, **(arguments | more))
    return solvers.bind(plan, np.zeros((rows, WIDTH)), np.zeros(rows))


def in_two_threads(work, times):
    barrier = threading.Barrier(2)

    def loop(_):
        barrier.wait()
        return [work() for _ in range(times)]

    with ThreadPoolExecutor(2) as pool:
        return [found for part in pool.map(loop, range(2)) for found in part]


def repeated(draws):
    """How many numbers occur more than once; with kernels that wait for each other, the draws are those of one seed."""
    values = np.concatenate([np.ravel(d) for d in draws])
    return len(values) - len(np.unique(values))


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning")
def test_threads_that_share_a_generator_share_no_noise():
    run, rng = noise_alone(), np.random.default_rng(0)
    run(np.random.default_rng(1), True)
    assert repeated(in_two_threads(lambda: run(rng, True).releases, 10)) == 0


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning")
def test_fits_in_joblib_threads_share_no_noise():
    joblib = pytest.importorskip("joblib")
    rng = np.random.default_rng(0)
    arguments = {"loss": "logistic", "sparsity": 40, "steps": 1, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    X, y = np.zeros((5, 40)), np.zeros(5)
    fits = joblib.Parallel(n_jobs=4, prefer="threads")(
        joblib.delayed(solvers.dp_ight)(X, y, rng=rng, **arguments) for _ in range(200)
    )
    assert repeated([fit.coef for fit in fits]) == 0


class Nested(np.random.Generator):
    """Runs ``inside`` right after its first draw, as another thread might."""

    def __init__(self, inside):
        super().__init__(np.random.PCG64(0))
        self.inside = inside

    def standard_normal(self, *args, **kwargs):
        drawn = super().standard_normal(*args, **kwargs)
        inside, self.inside = self.inside, lambda: None
        inside()
        return drawn


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning")
def test_calls_of_one_prepared_run_share_no_room_for_noise(monkeypatch):
    """Step by step, on data too large for one compiled call: what one call drew, another must not write over."""
    monkeypatch.setattr(descent, "SMALL", 0)
    run = noise_alone(steps=2)
    assert run.compiled_records is None
    alone = run(np.random.default_rng(0), True).releases
    nested = run(Nested(lambda: run(np.random.default_rng(1))), True).releases
    assert np.array_equal(alone, nested)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_kernel_waits_for_the_generator(name):
    """While another thread holds the Generator a kernel draws nothing. A kernel that did not wait would be done."""
    X, y = data()
    plan = solvers.plan(name, n=20, d=6, **PRIVATE[name])
    run, rng = solvers.bind(plan, sparse.csr_matrix(X), y), np.random.default_rng(0)
    expected = run(np.random.default_rng(0)).weights
    found = []
    thread = threading.Thread(target=lambda: found.append(run(rng).weights))
    with exclusive(rng):
        thread.start()
        thread.join(0.3)
        assert not found, "drew from a Generator that another thread holds"
    thread.join(60)
    assert np.array_equal(found[0], expected)


KERNELS = {
    "iht_fit", "iht_trials", "sgd_steps", "sgd_trials", "reduced_steps", "reduced_trials", "dithered", "gram_block",
    "laplace_vertex", "exponential_vertex", "add_records",
}  # fmt: skip


def calls_outside(tree):
    """Names of drawing kernels that are called outside ``with exclusive(...)``, and what else is called inside."""
    outside, inside = [], []

    def visit(node, held):
        if isinstance(node, ast.With):
            names = [getattr(getattr(item.context_expr, "func", None), "id", "") for item in node.items]
            held = held or "exclusive" in names
            for child in node.body:
                visit(child, held)
            return
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in KERNELS and not held:
                outside.append(name)
            if held and name not in KERNELS:
                inside.append(name)
        for child in ast.iter_child_nodes(node):
            visit(child, held)

    visit(tree, False)
    return outside, inside


def test_every_drawing_kernel_is_called_with_the_generator_held_and_nothing_else_is():
    """The second half is for older NumPy, whose lock would wait for itself in a method of the Generator."""
    found = 0
    for path in sorted((Path(dptoolkit.__file__).parent / "solvers").rglob("*.py")):
        text = path.read_text()
        outside, inside = calls_outside(ast.parse(text))
        assert not outside and not inside, (path.name, outside, inside)
        found += text.count("with exclusive(")
    assert found >= 7
    # The check sees a fault.
    assert calls_outside(ast.parse("iht_fit(rng)"))[0] == ["iht_fit"]
    assert calls_outside(ast.parse("with exclusive(rng):\n    rng.random()"))[1] == ["random"]


# --- one seed, two plans ------------------------------------------------------------------------------

ONE_STEP = {"loss": "squared", "sparsity": 20, "steps": 1, "step_size": 1.0, "grad_norm": 1.0, "delta": 1e-6}


def normals(**change):
    """The standard normals of a fit of one step on zero records."""
    seed = change.pop("rng", 0)
    fit = solvers.dp_ight(np.zeros((50, 20)), np.zeros(50), **(ONE_STEP | {"epsilon": 1.0, "rng": seed} | change))
    return np.sort(-fit.coef / fit.plan.noise)


@pytest.mark.parametrize(
    "change",
    [{"epsilon": 2.0}, {"epsilon": 1.0 + 1e-12}, {"delta": 1e-7}, {"adjacency": "zero-out"}, {"grad_norm": 2.0},
     {"calibration": "published"}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("source", [lambda: 7, lambda: np.random.default_rng(7)], ids=["seed", "generator"])
def test_one_seed_at_two_plans_gives_unrelated_noise(change, source):
    """One seed at epsilon 1 and 2 gave noises that cancel; copies of one Generator did, too."""
    one, two = normals(rng=source()), normals(rng=source(), **change)
    assert np.array_equal(one, normals(rng=source()))
    assert not np.isclose(one, two, rtol=1e-6).any()


def test_noises_of_two_budgets_do_not_cancel():
    X, y = np.random.default_rng(3).uniform(-1, 1, (50, 20)), np.ones(50)
    fits = [solvers.dp_ight(X, y, **ONE_STEP, epsilon=e, rng=0) for e in (1.0, 2.0)]
    scales = [fit.plan.noise for fit in fits]
    exact = solvers.dp_ight(X, y, **ONE_STEP, epsilon=np.inf).coef
    combined = (scales[1] * fits[0].coef - scales[0] * fits[1].coef) / (scales[1] - scales[0])
    assert np.linalg.norm(combined - exact) > scales[1]


@pytest.mark.parametrize("name", PRIVATE)
def test_every_solver_draws_by_its_plan(name, monkeypatch):
    keys = []
    stream = Source.stream
    monkeypatch.setattr(Source, "stream", lambda self, key: keys.append(key) or stream(self, key))
    X, y = data()
    fit = getattr(solvers, name)(X, y, rng=0, **PRIVATE[name])
    assert keys == [fit.plan.fingerprint]


def test_fingerprints():
    plan = solvers.plan("dp_ight", n=100, d=20, **ONE_STEP, epsilon=1.0)
    same = solvers.plan("dp_ight", n=100, d=20, **(ONE_STEP | {"grad_norm": np.float32(1), "step_size": 1}), epsilon=1)
    assert plan.fingerprint == same.fingerprint == copy.deepcopy(plan).fingerprint
    others = [
        solvers.plan("dp_ight", n=n, d=d, **(ONE_STEP | change), epsilon=1.0)
        for n, d, change in [(101, 20, {}), (100, 21, {}), (100, 20, {"steps": 2}), (100, 20, {"step_size": 2.0}),
                             (100, 20, {"sparsity": 19}), (100, 20, {"fit_intercept": True})]
    ]  # fmt: skip
    assert len({plan.fingerprint, *(other.fingerprint for other in others)}) == 7


@pytest.mark.parametrize("draw", [
    lambda scale: GaussianNoise(scale, 1.0).release(np.zeros(20), rng=0) / scale,
    lambda scale: LaplaceNoise(scale, 1.0).release(np.zeros(20), rng=0) / scale,
    lambda scale: NoisyMaximum(scale, 1.0).noisy(np.zeros(20), rng=0) / scale,
], ids=["gaussian", "laplace", "gumbel"])  # fmt: skip
def test_one_seed_at_two_scales_of_a_mechanism(draw):
    assert np.array_equal(draw(1.0), draw(1.0))
    assert not np.isclose(draw(1.0), draw(2.0), rtol=1e-6).any()


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937"])
def test_a_stream_is_of_the_callers_kind_and_moves_the_generator_on(kind):
    rng = np.random.Generator(getattr(np.random, kind)(5))
    first, second = Source.of(rng).stream("a"), Source.of(rng).stream("a")
    assert type(first.bit_generator).__name__ == kind and first is not rng
    assert first.random() != second.random()
    again = Source.of(np.random.Generator(getattr(np.random, kind)(5)))
    other = Source.of(np.random.Generator(getattr(np.random, kind)(5)))
    assert again.stream("a").random() != other.stream("b").random()


def test_a_generator_of_the_callers_own_making_is_used_as_it_is():
    class Own(np.random.Generator):
        pass

    class Bits(np.random.PCG64):
        pass

    for rng in (Own(np.random.PCG64(1)), np.random.Generator(Bits(1))):
        assert Source.of(rng).stream("a") is rng


# --- a seed is no release -----------------------------------------------------------------------------

SEEDS = [0, np.int64(3), np.random.default_rng(0), np.random.default_rng([1, 2]), np.random.default_rng(4).spawn(1)[0]]
FRESH = [
    None, np.random.default_rng(), np.random.default_rng().spawn(1)[0], np.random.Generator(np.random.Philox(key=1)),
]  # fmt: skip


@pytest.mark.parametrize("name", PRIVATE)
def test_a_guarantee_says_that_a_seeded_fit_is_no_release(name):
    X, y = data()
    seeded, fresh = (getattr(solvers, name)(X, y, rng=rng, **PRIVATE[name]) for rng in (0, None))
    assert "reproducible from its seed, so not a release" in str(seeded.guarantee)
    assert "not a release" not in str(fresh.guarantee)
    # The last bits of a sensitivity differ: secure noise charges for rounding.
    assert fresh.guarantee.epsilon(1e-6) == pytest.approx(seeded.guarantee.epsilon(1e-6), rel=1e-6)


def test_what_counts_as_a_seed():
    assert [Source.of(rng).reproducible for rng in SEEDS] == [True] * len(SEEDS)
    assert [Source.of(rng).reproducible for rng in FRESH] == [False] * len(FRESH)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_ledger_refuses_seeds_unless_told_otherwise(name):
    X, y = data()
    ledger = Ledger(10.0, 1e-5)
    for rng in SEEDS:
        state = copy.deepcopy(rng.bit_generator.state) if isinstance(rng, np.random.Generator) else None
        with pytest.raises(InvalidValue, match="unpredictable where a ledger is charged.*allow_seeds=True"):
            getattr(solvers, name)(X, y, rng=rng, ledger=ledger, **PRIVATE[name])
        assert state is None or np.all(state["state"]["state"] == rng.bit_generator.state["state"]["state"])
    assert not ledger.entries
    getattr(solvers, name)(X, y, ledger=ledger, **PRIVATE[name])
    assert len(ledger.entries) >= 1
    allowing = Ledger(10.0, 1e-5, allow_seeds=True)
    getattr(solvers, name)(X, y, rng=0, ledger=allowing, **PRIVATE[name])
    assert allowing.entries


def test_a_ledger_takes_no_text_for_yes():
    with pytest.raises(InvalidValue, match="allow_seeds='no': must be True or False"):
        Ledger(1.0, 1e-5, allow_seeds="no")


def test_as_generator_by_key():
    assert as_generator(0, "a").random() == as_generator(0, "a").random() != as_generator(0, "b").random()
    rng = np.random.default_rng(0)
    assert as_generator(rng, "a") is rng


def test_a_mechanism_never_shows_its_value():
    with pytest.raises(InvalidValue) as problem:
        GeometricNoise(1.0, 1).release(41.5)
    assert "41" not in str(problem.value)
