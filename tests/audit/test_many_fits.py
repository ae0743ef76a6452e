"""Many fits at once are the fits that a user makes one at a time, bit for bit, with their noise and their faults."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import solvers
from dptoolkit.audit import assert_private, presets, streams, targets
from dptoolkit.audit.pairs import Counted, Pair
from dptoolkit.audit.streams import Streams, TrialStreams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.errors import PrivacyViolation
from dptoolkit.mechanisms.noise import exponential
from dptoolkit.mechanisms.randomness import Source
from dptoolkit.solvers.engine import vertex_paths

BUDGET = {"epsilon": 3.0, "delta": 1e-5}
BALL = {"n": 30, "d": 5, "classes": 3, "steps": 6, "l1_radius": 0.5, "feature_bound": 1.0}
PEEL = {"n": 30, "d": 8, "sparsity": 3, "steps": 4, "step_size": 0.7, "radius": 1.0, "feature_bound": 1.0,
        "label_bound": 1.0}  # fmt: skip
RIDGE = {"n": 30, "d": 4, "loss": "logistic", "l2": 0.5, "row_norm": 1.0}
TRANSFER = RIDGE | {"sparsity": 2, "student_steps": 10}
STAGES = RIDGE | {"sparsity": 2, "blocks": 2}
SPLIT = {"n": 30, "d": 4, "rho": 0.5, "row_norm": 1.0, "weight": 0.01, "steps": 3}
VERTEX = {"n": 30, "d": 5, "steps": 6, "l1_radius": 0.5, "feature_bound": 1.0, "loss": "logistic"}
SPARSIFIER = VERTEX | {"d": 9, "count_share": 0.5, "count_steps": 20}
SOFTMAX = {"n": 30, "d": 4, "loss": "softmax", "classes": 3, "row_norm": 1.0, "steps": 5, "step_size": 0.7}
PIPELINE = {"n": 30, "d": 4}
# So long a descent that the number of steps depends on the noisy eigenvalue.
LONGER = PIPELINE | {"epsilon": 8.0, "margin_noise": 4.0}
MULTINOMIAL, PERTURBED = "dp_multinomial_frank_wolfe", "objective_perturbation"
CASES = {
    "multinomial": (MULTINOMIAL, BALL),
    "multinomial, intercept, Laplace": (MULTINOMIAL, BALL | {"fit_intercept": True, "law": "laplace"}),
    "multinomial, columns": (MULTINOMIAL, BALL | {"selection": "columns"}),
    "peeling": ("peeling_iht", PEEL),
    "peeling, many features": ("peeling_iht", PEEL | {"d": 70}),
    "peeling, split": ("peeling_iht", PEEL | {"data": "split"}),
    "peeling, published": ("peeling_iht", PEEL | {"calibration": "published"}),
    "perturbed": (PERTURBED, RIDGE),
    "perturbed, intercept, gamma": (PERTURBED, RIDGE | {"fit_intercept": True, "law": "gamma"}),
    "perturbed, hinge": (PERTURBED, RIDGE | {"loss": "hinge"}),
    "perturbed, ball": (PERTURBED, RIDGE | {"constraint": "l1", "radius": 0.5}),
    "stages": ("two_stage", STAGES | {"fit_intercept": True}),
    "stages, ball": ("two_stage", STAGES | {"constraint": "l2", "radius": 0.5}),
    "splitting": ("dp_admm", SPLIT | {"loss": "huber"}),
    "splitting, l1": ("dp_admm", SPLIT | {"loss": "logistic", "penalty": "l1", "fit_intercept": True}),
    "transfer": ("knowledge_transfer", TRANSFER | {"m": 8}),
    "transfer, ridge": ("knowledge_transfer", TRANSFER | {"teacher": "ridge"}),
    "transfer, test": ("knowledge_transfer", TRANSFER | {"teacher": "propose-test-release", "m": 8}),
    "averaging, classes": ("dp_dual_averaging", SOFTMAX),
    "averaging, classes, intercept": ("dp_dual_averaging", SOFTMAX | {"fit_intercept": True, "sparsity": 2}),
    "transfer, dp-ight": ("knowledge_transfer", TRANSFER | {"teacher": "dp-ight", "steps": 3, "l2": None, "m": 8}),
}
# On sparse rows these make one fit at a time.
ONE_BY_ONE = {
    "vertices": ("dp_frank_wolfe", VERTEX),
    "vertices, intercept, Laplace": ("dp_frank_wolfe", VERTEX | {"fit_intercept": True, "law": "laplace"}),
    "vertices, noise in parts": ("dp_frank_wolfe", VERTEX | {"loss": "huber"}),
    "sparsifier": ("sparsifier", SPARSIFIER),
    "sparsifier, intercept, fixed": ("sparsifier", SPARSIFIER | {"fit_intercept": True, "count": "fixed", "number": 2}),
    "sparsifier, threshold": ("sparsifier", SPARSIFIER | {"count": "threshold", "threshold": 0.05}),
}
PIPELINES = {
    "pipeline": ("dp_pipeline", PIPELINE),
    # Little noise, so that most features are kept, and a short descent, so that the steps are sure.
    "pipeline, many features": ("dp_pipeline", PIPELINE | {"d": 20, "epsilon": 100.0, "margin_noise": 0.05}),
    "pipeline, sparsity": ("dp_pipeline", PIPELINE | {"sparsity": 1}),
    "pipeline, other steps": ("dp_pipeline", LONGER),
    "pipeline, classes": ("dp_pipeline", PIPELINE | {"loss": "softmax", "classes": 3}),
    "pipeline, classes, other steps": ("dp_pipeline", LONGER | {"loss": "softmax", "classes": 3, "sparsity": 2}),
    "pipeline, numbers": ("dp_pipeline", PIPELINE | {"loss": "squared", "row_norm": 1.5, "label_bound": 1.0}),
}
CASES |= ONE_BY_ONE | PIPELINES
LAYOUTS = ("dense", "sparse")


@pytest.fixture(autouse=True)
def _noise_in_parts(request, monkeypatch):
    """Noise for two selections at a time, in the case of that name."""
    if "parts" in request.node.name:
        monkeypatch.setattr(vertex_paths, "_LARGEST_DRAW", 20)


def adversaries(case, layout="dense"):
    """Who sees what is kept: selections on sparse rows, and the sparsifier, keep no iterates.

    Fits of different numbers of steps keep no trace of one size.
    """
    if "other steps" in case:
        return ("final",)
    without = case in ONE_BY_ONE and (layout == "sparse" or "sparsifier" in case)
    return ("final", "releases") if without else ("final", "releases", "iterates")


def make(case, layout="dense"):
    """The plan of a case and two datasets of few different records, the first of which differs."""
    solver, arguments = CASES[case]
    plan, rng = solvers.plan(solver, **BUDGET | arguments), np.random.default_rng(0)
    X, counts = rng.normal(size=(7, plan.d)), np.array([1, 9, 3, 0, 8, 5, 4])
    X[2] = 0.0
    y = rng.integers(0, 2, 7).astype(float)
    other = X.copy()
    other[0] *= -1
    if layout == "sparse":
        which = np.repeat(np.arange(7), counts)
        return plan, Pair(*((sparse.csr_matrix(part[which]), y[which]) for part in (X, other)), plan.adjacency)
    return plan, Pair(*(Counted(part, y, counts) for part in (X, other)), plan.adjacency)


def one_by_one(plan, pair, adversary, bits, first, source):
    """The rows of calls of what ``prepare`` returns, each with a Generator of its own."""
    data = [(d.X, d.y, d.counts) if hasattr(d, "counts") else d for d in (pair.second, pair.first)]
    runs = [solvers.bind(plan, *parts) for parts in data]
    rows = []
    for i, bit in enumerate(bits):
        trace = runs[bit](source.generator(first + i), adversary != "final")
        rows.append({"final": trace.weights, "iterates": trace.iterates, "releases": trace.releases}[adversary])
    return np.array(rows).reshape(len(bits), -1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_bit_for_bit_what_prepare_gives(case, layout, monkeypatch):
    plan, pair = make(case, layout)
    source, first = Streams(3, "trials"), 1000
    bits = source.bits(first, 40)
    if layout == "dense" or case not in ONE_BY_ONE | PIPELINES:
        monkeypatch.setattr(PlanTarget, "_one_by_one", None)
    for adversary in adversaries(case, layout):
        outputs = PlanTarget(plan, pair, adversary).run(bits, first, source)
        assert np.array_equal(outputs, one_by_one(plan, pair, adversary, bits, first, source)), adversary


@pytest.mark.parametrize("case", CASES)
def test_the_public_solver_gives_the_same_model(case, monkeypatch):
    monkeypatch.setattr(Source, "stream", lambda self, key: self.generator)
    plan, pair = make(case)
    source = Streams(0, "trials")
    outputs = PlanTarget(plan, pair, "final").run(np.array([1, 0], np.int8), 5, source)
    arguments = {name: value for name, value in CASES[case][1].items() if name not in ("n", "d")}
    for i, data in enumerate((pair.first, pair.second)):
        X, y = data.expand() if hasattr(data, "expand") else data
        result = getattr(solvers, plan.solver)(X, y, rng=source.generator(5 + i), **BUDGET | arguments)
        assert result.plan == plan
        weights = result.coef
        if getattr(plan.settings, "fit_intercept", case in PIPELINES):
            unit = getattr(getattr(plan.settings, "bounds", None), "level", 1.0)
            intercept = np.asarray(result.intercept)[..., None] / unit
            weights = np.concatenate([weights, intercept], axis=-1)
        # Records that occur often are summed in one go, so the last digits may differ.
        np.testing.assert_allclose(outputs[i], np.ravel(weights), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_cuts_threads_and_room_change_nothing(case, monkeypatch):
    plan, pair = make(case)
    source = Streams(1, "trials")
    bits = source.bits(0, 60)
    target = PlanTarget(plan, pair, adversaries(case)[-1])
    whole = target.run(bits, 0, source)
    cuts = [0, 1, 8, 9, 35, 60]
    monkeypatch.setattr(targets, "_LARGEST", 1000)
    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(lambda a, b: target.run(bits[a:b], a, source), cuts[:-1], cuts[1:]))
    assert np.array_equal(whole, np.concatenate(pieces))
    assert target.run(bits[:0], 0, source).shape[0] == 0
    monkeypatch.setattr(streams, "place", lambda generator: None)
    assert np.array_equal(whole[:9], target.run(bits[:9], 0, source))


@pytest.mark.parametrize("case", CASES)
def test_the_noise_of_a_plan_acts(case):
    """A fault planted in the plan is in what the fast path runs: its outputs are those of the broken solver."""
    plan, pair = make(case)
    half = plan.with_noise(factor=0.5)
    source = Streams(2, "trials")
    bits = source.bits(0, 30)
    adversary = adversaries(case)[:2][-1]
    broken = PlanTarget(half, pair, adversary).run(bits, 0, source)
    assert np.array_equal(broken, one_by_one(half, pair, adversary, bits, 0, source))
    assert not np.array_equal(broken, PlanTarget(plan, pair, adversary).run(bits, 0, source))


def test_fits_of_the_pipeline_part_and_come_back():
    """The cases above have fits that keep other features, and fits that take other steps; else they show little."""
    for case in ("pipeline", "pipeline, other steps", "pipeline, classes, other steps"):
        plan, pair = make(case)
        run = solvers.bind(plan, pair.first.X, pair.first.y, pair.first.counts)
        histories = [run(Streams(3, "trials").generator(1000 + i)).history for i in range(40)]
        assert len({tuple(history["preparation"].kept) for history in histories}) > 1
        assert (len({history["steps"] for history in histories}) > 1) == ("other steps" in case)


@pytest.mark.parametrize("case", [*PIPELINES, "averaging, classes"])
def test_noise_that_trials_share_would_be_seen(case, monkeypatch):
    """The planted fault: one draw for all trials of a call.

    It is that of the eigenvalue and the slopes (one axis), of the column means (two), or of the descent (three).
    """
    plan, pair = make(case)
    source, adversary = Streams(2, "trials"), adversaries(case)[:2][-1]
    bits = source.bits(0, 30)
    right = one_by_one(plan, pair, adversary, bits, 0, source)
    assert np.array_equal(right, PlanTarget(plan, pair, adversary).run(bits, 0, source))
    real = TrialStreams.standard_normal
    for axes in (1, 2, 3) if case in PIPELINES else (3,):

        def shared(self, shape, axes=axes):
            normals = real(self, shape)
            return np.repeat(normals[:1], len(self), axis=0) if len(shape) == axes else normals

        monkeypatch.setattr(TrialStreams, "standard_normal", shared)
        assert not np.array_equal(right, PlanTarget(plan, pair, adversary).run(bits, 0, source)), axes


@pytest.mark.parametrize("solver", [MULTINOMIAL, "peeling_iht", PERTURBED, "two_stage", "dp_admm",
                                    "knowledge_transfer", "dp_frank_wolfe", "sparsifier", "dp_sgd_ht", "dp_scsg_ht",
                                    "dp_svrg_ht"])  # fmt: skip
def test_a_fault_is_found(solver):
    """False alarms of the correct plan have probability 1e-6; the seeds are fixed, so the outcome is too."""
    plan = presets.plan(solver, 2.0, 1e-5)
    pair = presets.pair(plan)
    adversary = "iterates" if solver in ("dp_sgd_ht", "dp_scsg_ht", "dp_svrg_ht") else "releases"
    how = {"adversary": adversary, "trials": 10_000, "power": None, "alpha": 1e-6}
    assert_private(plan, pair, plan.guarantee, **how)
    with pytest.raises(PrivacyViolation):
        assert_private(plan.with_noise(factor=0.2), pair, plan.guarantee, **how)


def test_a_fit_that_fails_is_an_output(monkeypatch):
    """Then all are made one by one, and those that fail are rows of NaN."""
    plan, pair = make("peeling")
    source = Streams(1, "trials")
    bits = source.bits(0, 9)
    good = PlanTarget(plan, pair, "final").run(bits, 0, source)
    kind = type(solvers.bind(plan, *pair.first.expand()))
    real, calls = kind.fits, []

    def breaks(self, rng, trace=False):
        calls.append(len(rng))
        if len(rng) > 1 or len(calls) % 3 == 0:
            raise RuntimeError
        return real(self, rng, trace)

    monkeypatch.setattr(kind, "fits", breaks)
    outputs = PlanTarget(plan, pair, "final").run(bits, 0, source)
    failed = np.isnan(outputs).all(axis=1)
    assert 0 < failed.sum() < 9
    assert np.array_equal(outputs[~failed], good[~failed])


def test_streams_of_trials_are_those_of_their_generators():
    """Also where a draw has a tail that is drawn again: 4 of a million exponentials."""
    source, trials = Streams(4, "t"), np.array([7, 3, 2**40, 8])
    generator = source.generator()
    memory = streams.place(generator)
    assert memory is not None
    many = TrialStreams(generator, memory, trials)
    draws = [exponential(many, (4, 300_000)), many.standard_normal((4, 3)), many.standard_normal((4, 2, 2))]
    again = 0
    for i, trial in enumerate(trials):
        alone = source.generator(int(trial))
        raw = source.generator(int(trial)).standard_exponential(300_000)
        own = [exponential(alone, (300_000,)), alone.standard_normal(3), alone.standard_normal((2, 2))]
        again += int((own[0] != raw).sum())
        assert all(np.array_equal(a[i], b) for a, b in zip(draws, own, strict=True))
    assert again > 0


def test_counts_are_rows_written_out():
    for case in ("multinomial", "peeling", "peeling, split", "averaging, classes", "pipeline", "pipeline, classes"):
        plan, pair = make(case)
        run = solvers.bind(plan, pair.first.X, pair.first.y, pair.first.counts)
        full = solvers.bind(plan, *pair.first.expand())
        a, b = (one(np.random.default_rng(0), True) for one in (run, full))
        np.testing.assert_allclose(a.iterates, b.iterates, rtol=1e-9, atol=1e-12)
        assert run.diagnose(a.weights, a.history) == pytest.approx(full.diagnose(a.weights, a.history))
