"""Rows in blocks: the same bits wherever they are and whenever they answer, the plan's sensitivity, failures."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import solvers
from dptoolkit.accounting import Ledger
from dptoolkit.data.blocks import BlockedRows, Failure, LocalBlocks, Summand, answer, in_order
from dptoolkit.errors import InvalidValue
from dptoolkit.solvers.engine.blocked import GradientTerm
from dptoolkit.solvers.frame.settings import build

N, D = 120, 9
BUDGET = {"epsilon": 2.0, "delta": 1e-6}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dp_ight": ("dp_ight", {"loss": "logistic", "sparsity": 3, "steps": 4, "row_norm": 1.0, "fit_intercept": True}),
    "clipped": ("dp_ight", {"loss": "squared", "sparsity": 3, "steps": 3, "row_norm": 2.0, "grad_norm": 0.2}),
    "dp_dual_averaging": ("dp_dual_averaging", {"loss": "logistic", "sparsity": 3, "steps": 4, "row_norm": 1.0}),
    "softmax": (
        "dp_dual_averaging",
        {"loss": "softmax", "classes": 2, "sparsity": 3, "steps": 3, "row_norm": 1.0, "fit_intercept": True},
    ),
    "peeling_iht": (
        "peeling_iht",
        {"sparsity": 3, "steps": 3, "step_size": 0.5, "radius": 2.0, "feature_bound": 1.0, "label_bound": 1.0},
    ),
    "dp_frank_wolfe": (
        "dp_frank_wolfe",
        {"loss": "logistic", "l1_radius": 4.0, "steps": 5, "feature_bound": 1.0, "refresh": 1, "fit_intercept": True},
    ),
    "laplace": ("dp_frank_wolfe", {"loss": "squared", "l1_radius": 4.0, "steps": 5, "feature_bound": 1.0,
                                   "label_bound": 1.0, "refresh": 1, "law": "laplace"}),
    "dp_pipeline": ("dp_pipeline", {"loss": "logistic"}),
    "pipeline of classes": ("dp_pipeline", {"loss": "softmax", "classes": 2, "sparsity": 3}),
    "pipeline of numbers": ("dp_pipeline", {"loss": "squared", "row_norm": 2.0, "label_bound": 1.0}),
}  # fmt: skip


def records(seed: int = 0, n: int = N) -> tuple[Any, Any]:
    """Sparse rows, some of them empty or beyond the bounds, and labels."""
    rng = np.random.default_rng(seed)
    X = sparse.random(n, D, 0.4, "csr", random_state=seed)
    X.data = rng.normal(size=len(X.data)) * 3
    return X, (rng.random(n) < 0.5).astype(float)


def cut(X: Any, y: Any, cuts: list[int]) -> list[tuple[Any, Any]]:
    edges = [0, *sorted(set(cuts)), X.shape[0]]
    return [(X[a:b], y[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


class Elsewhere(LocalBlocks):
    """Blocks that answer in another order, from copies that forget all they derived, some of them twice."""

    def __init__(self, parts: Any, order: Any) -> None:
        super().__init__(parts)
        self.order = order

    def answers(self, check, summand, public):
        for k in self.order:
            question = pickle.loads(pickle.dumps((check, summand, public)))
            block = pickle.loads(pickle.dumps(self._blocks[k]))
            answer(block, *question)
            yield k, answer(block, *question)


def fitted(case: str, X: Any, y: Any, **more: Any) -> Any:
    solver, arguments = CASES[case]
    return getattr(solvers, solver)(X, y, rng=5, **BUDGET, **arguments, **more)


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_bits_do_not_depend_on_where_blocks_are_or_when_they_answer(case, data):
    cuts = data.draw(st.lists(st.integers(1, N - 1), max_size=5))
    X, y = records(data.draw(st.integers(0, 3)))
    parts = cut(X, y, cuts)
    order = data.draw(st.permutations(range(len(parts))))
    one, other = fitted(case, LocalBlocks(parts), None), fitted(case, Elsewhere(parts, order), None)
    assert np.array_equal(one.coef, other.coef) and np.array_equal(one.intercept, other.intercept)


@pytest.mark.parametrize("case", CASES)
def test_blocks_give_the_fit_of_one_matrix(case):
    """One block bit for bit where the fit of one matrix goes step by step; several up to the rounding of their sums."""
    X, y = records(1, 7000)
    plain, one, many = (fitted(case, *data) for data in (
        (X, y), (LocalBlocks([(X, y)]), None), (LocalBlocks(cut(X, y, [5, 3000, 3001])), None)))  # fmt: skip
    if case != "laplace":  # One matrix with few features keeps X^T X for the squared loss.
        assert np.array_equal(plain.coef, one.coef)
    np.testing.assert_allclose(many.coef, plain.coef, atol=1e-12)
    assert many.guarantee.epsilon(1e-6) == plain.guarantee.epsilon(1e-6) and many.plan.event == plain.plan.event


def test_sums_in_the_order_of_arrival_would_differ(monkeypatch):
    """The broken twin: without the order of the blocks the same answers give other bits."""
    parts = cut(*records(), list(range(7, N, 7)))
    right = fitted("dp_ight", LocalBlocks(parts), None).coef
    monkeypatch.setattr("dptoolkit.data.blocks.in_order", lambda answers: (value for _, value in answers))
    wrong = [
        fitted("dp_ight", Elsewhere(parts, np.random.default_rng(k).permutation(len(parts))), None).coef
        for k in range(3)
    ]
    assert any(not np.array_equal(right, other) for other in wrong)


@dataclass(frozen=True)
class Counts(Summand):
    """A sum of integers, beyond what doubles add up exactly."""

    def prepared(self, rows, labels):
        return len(labels)

    def term(self, prepared, *public):
        return np.array([2**60 + prepared])


def test_sums_of_integers_stay_integers():
    X, y = records()
    blocks = LocalBlocks(cut(X, y, [1, 50])).checked(build(solvers.settings_class("dp_ight"), {
        "epsilon": 1.0, "loss": "logistic", "sparsity": 1}), None, None, None)  # fmt: skip
    assert blocks.shape == (N, D) and blocks.total(Counts()).tolist() == [3 * 2**60 + N]


@given(order=st.permutations(range(6)))
def test_answers_come_in_the_order_of_the_blocks(order):
    assert list(in_order((k, k) for k in order)) == list(range(6))


@given(data=st.data())
def test_one_record_moves_the_total_by_at_most_the_sensitivity(data):
    n, d = 12, 4
    entries = st.floats(-5, 5, width=16)
    matrix = np.array(data.draw(st.lists(st.lists(entries, min_size=d, max_size=d), min_size=n, max_size=n)))
    y, w = np.arange(n) % 2.0, np.array(data.draw(st.lists(entries, min_size=d, max_size=d)))
    other, record = matrix.copy(), data.draw(st.integers(0, n - 1))
    other[record] = data.draw(st.lists(entries, min_size=d, max_size=d))
    labels = y.copy()
    labels[record] = data.draw(st.sampled_from([0.0, 1.0]))
    plan, one, two = totals(matrix, y, other, labels, w)
    assert np.linalg.norm(one - two) <= plan.sensitivity * (1 + 1e-9)


def test_some_record_moves_the_total_by_the_sensitivity():
    matrix, y = np.full((12, 4), 5.0), np.zeros(12)
    labels = y.copy()
    labels[3] = 1.0
    plan, one, two = totals(matrix, y, matrix, labels, np.zeros(4))
    assert np.linalg.norm(one - two) >= 0.9 * plan.sensitivity


def totals(matrix: Any, y: Any, other: Any, labels: Any, w: Any) -> Any:
    """(plan, total of one dataset in three blocks, total of the other) at public weights."""
    settings = {"loss": "logistic", "sparsity": 2, "steps": 2, "row_norm": 1.0, "grad_norm": 0.3}
    plan = solvers.plan("dp_ight", n=len(y), d=matrix.shape[1], **settings, **BUDGET)
    sums = []
    for rows, target in ((matrix, y), (other, labels)):
        blocks = LocalBlocks(cut(rows, target, [2, 7])).checked(plan.settings, None, None, None)
        sums.append(blocks.total(GradientTerm(plan.settings, plan.n), np.arange(len(w)), w))
    return plan, *sums


# --- what goes wrong ----------------------------------------------------------------------------------------------


class Failing(LocalBlocks):
    """Block 1 is lost in round ``when``, and cannot be loaded again."""

    def __init__(self, parts: Any, when: int) -> None:
        super().__init__(parts)
        self.when, self.rounds = when, 0

    def answers(self, check, summand, public):
        self.rounds += 1
        if self.rounds == self.when:
            self._blocks[1] = Failure("path='part-1.npz': must be a file that can be read.")
        return super().answers(check, summand, public)


class NoDraws(np.random.Generator):
    """A stream from which nothing may be drawn."""

    def standard_normal(self, *size: Any, **more: Any) -> Any:
        raise AssertionError("noise was drawn")


def test_a_block_that_is_lost_ends_the_fit_with_its_number():
    blocks = Failing(cut(*records(), [40, 80]), when=3)
    with pytest.raises(InvalidValue, match=r"block 1 \(2 of 3\): path='part-1.npz'.* Nothing was released"):
        fitted("dp_ight", blocks, None)
    assert blocks.rounds == 3


def test_no_noise_is_drawn_before_every_block_has_answered():
    plan = solvers.plan("dp_ight", n=N, d=D, **CASES["dp_ight"][1], **BUDGET)
    blocks = Failing(cut(*records(), [40, 80]), when=2)
    run = plan.settings.bind_blocks(plan, blocks.checked(plan.settings, None, None, None))
    with pytest.raises(InvalidValue, match="block 1"):
        run.fit(NoDraws(np.random.PCG64(0)))


X, Y = records()
GOOD = cut(X, Y, [40, 80])


def replaced(k: int, X_k: Any = None, y_k: Any = None) -> LocalBlocks:
    own = list(GOOD)
    own[k] = (own[k][0] if X_k is None else X_k, own[k][1] if y_k is None else y_k)
    return LocalBlocks(own)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        (replaced(2, y_k=np.full(40, 7.0)), r"block 2 .*: y=.*must be 0 or 1"),
        (replaced(1, y_k=np.zeros(3)), r"block 1 .*: y.shape=\(3,\): must be \(40,\)"),
        (replaced(0, X_k=sparse.csr_matrix(np.full((40, D), np.nan))), r"block 0 .*: X"),
        (replaced(1, X_k=sparse.random(40, D + 1, 0.5, "csr")), r"block 1 .*10 features.*must be 9 features wide"),
        (replaced(1, X_k=np.zeros((0, D)), y_k=np.zeros(0)), r"block 1 .*at least \(1, 1\)"),
        (replaced(1, X_k="text"), r"block 1 "),
    ],
    ids=["labels", "shapes", "nan", "widths", "empty", "text"],
)  # fmt: skip
def test_a_bad_block_is_named_and_costs_nothing(blocks, words):
    ledger = Ledger(epsilon=3.0, delta=1e-5, allow_seeds=True)
    with pytest.raises(InvalidValue, match=words):
        fitted("dp_ight", blocks, None, ledger=ledger)
    assert not ledger.event.events, "budget was spent"


@pytest.mark.parametrize(
    ("solver", "arguments", "words"),
    [
        ("dp_ight", {"y": np.zeros(N)}, "y='ndarray': must be None where X is in blocks"),
        ("dp_ight", {"diagnostics": True}, "diagnostics=True: must be False"),
        ("dp_ight", {"randomness": "secure", "rng": None}, "'fast' where X is in blocks"),
        ("peeling_iht", {"data": "split"}, "data='split': must be 'full'"),
        ("dp_frank_wolfe", {"refresh": 0.5}, "refresh=0.5: must be 1"),
        ("dp_frank_wolfe", {"epsilon": np.inf}, "finite where X is in blocks"),
    ],
)  # fmt: skip
def test_what_needs_one_matrix_is_refused_before_the_ledger_is_charged(solver, arguments, words):
    ledger = Ledger(epsilon=3.0, delta=1e-5, allow_seeds=True)
    own = {"y": None, "rng": 1, **BUDGET, **CASES[solver][1], **arguments}
    with pytest.raises(InvalidValue, match=words):
        getattr(solvers, solver)(LocalBlocks(GOOD), own.pop("y"), ledger=ledger, **own)
    assert not ledger.event.events, "budget was spent"


def test_solvers_that_need_one_matrix_say_so_before_a_block_is_read():
    class Unread(BlockedRows):
        names = ("a",)

        def answers(self, check, summand, public):
            raise AssertionError("a block was asked")

    arguments = {"loss": "logistic", "sparsity": 2, "steps": 2, "batch_size": 5, "row_norm": 1.0, "step_size": 0.1}
    with pytest.raises(InvalidValue, match="X='rows in blocks': must be one matrix for dp_sgd_ht"):
        solvers.dp_sgd_ht(Unread(), None, rng=1, **arguments, **BUDGET)


def test_a_block_shows_no_record():
    (block,) = LocalBlocks([(np.full((2, 2), 4711.0), np.zeros(2))])._blocks
    assert repr(block) == "<Block>" and "4711" not in repr(answer(block, None, None, ()))
