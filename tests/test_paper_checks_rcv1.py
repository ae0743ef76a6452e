"""What the tables on RCV1 and the large figures share: splits, the private choice of features, cells, few data sets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from paper_checks import curves, rcv1, transfer
from paper_checks.tables import Table


@pytest.fixture
def files(monkeypatch):
    """200 training and 50 test rows; every row holds its number, so that it can be told where it went."""
    rng = np.random.default_rng(0)
    X = sparse.csr_matrix(
        np.column_stack([np.arange(1.0, 251.0), rng.random((250, 30)) * (rng.random((250, 30)) < 0.3)])
    )
    y = (rng.random(250) < 0.5).astype(float)
    monkeypatch.setattr(rcv1, "_files", lambda data_home: (X[:200], y[:200], X[200:], y[200:]))
    return X, y


def _numbers(X):
    return np.rint(X[:, [0]].toarray().ravel()).astype(int).tolist()


@pytest.mark.parametrize("halved", [False, True])
def test_settings_are_chosen_without_the_test_rows(files, halved):
    reported, held_out = rcv1.splits(None, halved)
    whole, part = reported(np.random.default_rng(1)), held_out(np.random.default_rng(2))
    assert sorted(_numbers(whole.X)) == list(range(1, 201)) and _numbers(whole.X_test) == list(range(201, 251))
    assert sorted(_numbers(part.X) + _numbers(part.X_test)) == list(range(1, 201)) and part.X.shape[0] == 160
    assert (whole.private, part.private) == ((100, 80) if halved else (200, 160))
    X, y = files
    assert all(y[number - 1] == label for number, label in zip(_numbers(part.X), part.y, strict=True))
    # Without halves the split that is reported is that of the files.
    assert (_numbers(whole.X) == list(range(1, 201))) != halved


def test_features_are_the_same_in_training_and_test_rows(files):
    X, _ = files
    split = rcv1.splits(None, True, features=7)[0](np.random.default_rng(3))
    assert split.X.shape == (200, 7) and split.X_test.shape == (50, 7)
    test = X[200:].toarray()
    places = [{place for place in range(31) if np.array_equal(test[:, place], column)}
              for column in split.X_test.toarray().T]  # fmt: skip
    assert all(places)


def test_votes_find_the_feature_that_decides_and_noise_hides_it():
    rng = np.random.default_rng(0)
    X = sparse.csr_matrix(rng.random((2000, 40)) * (rng.random((2000, 40)) < 0.2))
    y = (X[:, [5]].toarray().ravel() > 0).astype(float)
    split = rcv1.Split(X, y, 2000, X, y)
    assert set(rcv1._chosen(split, 1, 50.0, 1e-5, rng)) == {5}
    found = [int(rcv1._chosen(split, 1, 1e-3, 1e-5, rng)[0]) for _ in range(40)]
    assert len(set(found)) > 10


def _figure(value):
    errors = {(noise, "A"): np.full((3, 2), value) for noise in (curves.PUBLISHED, curves.TIGHT)}
    return curves.Figure([1.0, 2.0], errors, {})


def test_a_cell_is_reached_as_a_multiple_of_the_error_without_privacy():
    table = Table("T", ("a", "b"), {"IGHT": (0.1, 0.1), "A": (0.2, 0.3)}, {}, {})

    def verdict(value, readings):
        return rcv1.cells(table, _figure(value), 0.05, {"A": readings}, 1.5, lambda epsilon: epsilon)

    # Up to 1.5 * 2 and 1.5 * 3 times 0.05.
    assert verdict(0.149, ["A"]).verdict == "met" and "A in 2 of 2" in verdict(0.149, ["A"]).computed
    assert verdict(0.151, ["A"]).verdict == "not reached here" and "A in 1 of 2" in verdict(0.151, ["A"]).computed
    figure = _figure(0.3)
    figure.errors[curves.TIGHT, "A"][:] = 0.1
    found = rcv1.cells(table, figure, 0.05, {"A": ["A"]}, 1.5, lambda epsilon: epsilon)
    # With tight noise alone it would be: the published noise decides.
    assert found.verdict == "not reached here" and [row.agrees for row in found.rows[1:]] == [False, True] * 2


def test_the_printed_transfer_is_the_same_on_sparse_rows_and_recovers_the_truth_without_noise():
    rng = np.random.default_rng(0)
    X, public = rng.uniform(-1, 1, (300, 40)), rng.uniform(-1, 1, (300, 40))
    truth = np.zeros(40)
    truth[[3, 8]] = 1.0, -0.7
    settings = {"linear": True, "sparsity": 2, "ridge": 1e-3, "modulus": 1e-3, "covariance": 1 / 3, "step": 2.5,
                "student_step": 2.5, "delta": 1e-5}  # fmt: skip

    def student(kind, epsilon):
        return transfer.published_student(
            kind(X), X @ truth, kind(public), epsilon=epsilon, draw=np.random.default_rng(1), **settings
        )

    assert np.allclose(student(np.asarray, 1e9), truth, atol=0.01)
    for epsilon in (1e9, 1.0):
        assert np.allclose(student(np.asarray, epsilon), student(sparse.csr_matrix, epsilon))
    assert np.linalg.norm(student(np.asarray, 1.0) - truth) > 0.5


@pytest.mark.parametrize(("ratio", "verdict"), [(0.5, "order kept"), (1.0, "tie"), (2.0, "order reversed")])
def test_student_s_test_establishes_on_few_data_sets_what_signs_cannot(ratio, verdict):
    rng = np.random.default_rng(0)
    other = rng.uniform(0.2, 2.0, (5, 2))
    first = other * np.array([0.4, ratio]) * np.exp(0.02 * rng.standard_normal((5, 2)))
    errors = {(noise, name): value for noise in (curves.PUBLISHED, curves.TIGHT)
              for name, value in (("a", first), ("b", other))}  # fmt: skip
    figure = curves.Figure([1.0, 2.0], errors, {})
    found = curves.order(figure, "a", {"b": ["b"]}, test=curves.STUDENT)
    assert found.verdict == verdict and "paired t tests" in found.computed
    assert curves.order(figure, "a", {"b": ["b"]}).verdict == "tie"
    same = curves.Figure([1.0, 2.0], dict.fromkeys(errors, other), {})
    assert curves.order(same, "a", {"b": ["b"]}, test=curves.STUDENT).verdict == "tie"
