"""Pairs that are not neighbours are refused, mechanisms with noise of their own are noticed, words fit the verdict."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit
from dptoolkit.accounting import gaussian
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import GaussianClaim, Pair, neighbours
from dptoolkit.errors import InvalidValue

TABLE = np.arange(12.0).reshape(6, 2)


class Frame:
    """What the frames of every library have in common."""

    def __init__(self, values):
        self._values = np.array(values)
        self.shape = self._values.shape

    def to_numpy(self):
        return self._values


def changed(rows, table=TABLE):
    """The table with something else in these rows."""
    other = table.copy()
    other[rows] = other[rows] + 100
    return other


FORMS = {
    "array": lambda X: X,
    "vector": lambda X: X[:, 0].copy(),
    "tuple": lambda X: (X, np.ones(len(X))),
    "labels": lambda X: (np.ones((len(X), 3)), X[:, 0].copy()),
    "dict": lambda X: {"X": X, "y": np.ones(len(X))},
    "csr": sparse.csr_array,
    "csr and labels": lambda X: (sparse.csr_matrix(X), np.ones(len(X))),
    "frame": Frame,
    "frame and series": lambda X: (Frame(X), Frame(np.ones(len(X)))),
    "words": lambda X: Frame(np.array([[str(a), b] for a, b in X], dtype=object)),
    "list": lambda X: X[:, 0].tolist(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_how_many_records_differ(form):
    def check(other):
        neighbours.check(Pair(form(TABLE), form(other)), "checked")

    check(changed([3]))
    check(TABLE[:-1])
    check(changed([3])[::-1].copy())
    for other, words in [
        (changed([1, 3]), "2 records differ"), (changed(slice(None)), "6 records differ"),
        (TABLE[:-2], "6 and 4 records"), (changed([0])[:-1], "2 records differ"), (TABLE.copy(), "the same records"),
    ]:  # fmt: skip
        with pytest.raises(InvalidValue, match=words):
            check(other)
        neighbours.check(Pair(form(TABLE), form(other)), "as given")


def test_missing_values_are_equal_and_columns_are_counted():
    gap = TABLE.copy()
    gap[0, 0] = np.nan
    neighbours.check(Pair(gap, changed([2], gap)), "checked")
    with pytest.raises(InvalidValue, match="same columns"):
        neighbours.check(Pair(TABLE, TABLE[:, :1]), "checked")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_with_missing_words_and_lists_are_compared(library):
    """What a library calls missing is equal to itself, and lists count by what they hold."""
    frames = pytest.importorskip(library, reason=f"{library} is not installed")

    def make(first, lists):
        word = ["a", None, "b"] if library == "polars" else frames.array(["a", None, "b"], dtype="string")
        return frames.DataFrame({"x": [first, 2.0, 3.0], "word": word, "list": lists})

    table = make(1.0, [[1], [], [2, 3]])
    neighbours.check(Pair(table, make(9.0, [[1], [], [2, 3]])), "checked")
    neighbours.check(Pair(table, make(1.0, [[1], [], [2, 4]])), "checked")
    with pytest.raises(InvalidValue, match="2 records differ"):
        neighbours.check(Pair(table, make(9.0, [[1], [], [2, 4]])), "checked")
    with pytest.raises(InvalidValue, match="the same records"):
        neighbours.check(Pair(table, make(1.0, [[1], [], [2, 3]])), "checked")


def test_datasets_without_records():
    """Two of them are equal; one more record makes neighbours of them, two more do not."""
    for shape in ((0,), (0, 2), (0, 2, 3)):
        empty = np.zeros(shape)
        for other in (empty, np.ones((2, *shape[1:]))):
            with pytest.raises(InvalidValue, match="pair"):
                neighbours.check(Pair(empty, other), neighbours.CHECKED)
        neighbours.check(Pair(empty, np.ones((1, *shape[1:]))), neighbours.CHECKED)


def test_a_known_adjacency_is_held_to():
    zeroed = TABLE.copy()
    zeroed[2] = 0
    neighbours.check(Pair(TABLE, zeroed, Adjacency.ZERO_OUT), "checked")
    neighbours.check(Pair(sparse.csr_array(TABLE), sparse.csr_array(zeroed), Adjacency.ZERO_OUT), "checked")
    with pytest.raises(InvalidValue, match="zero-out"):
        neighbours.check(Pair(TABLE, changed([2]), Adjacency.ZERO_OUT), "checked")
    with pytest.raises(InvalidValue, match="one size"):
        neighbours.check(Pair(TABLE, TABLE[:-1], Adjacency.REPLACE_ONE), "checked")


def test_sums_and_scores_are_not_counted_by_entry():
    neighbours.check(Pair(np.ones(4), np.zeros(4), records=False), "checked")


@pytest.mark.parametrize("pair", [(1.0, 0.0), ("a", "b"), ((1.0, 2.0), (3.0, 4.0)), (object(), object())])
def test_what_is_not_understood_is_taken_as_given(pair):
    neighbours.check(Pair(*pair), "checked")


def test_audits_refuse_and_can_be_told():
    def correct(data, rng):
        return np.clip(data, 0, 1).sum() + rng.standard_normal()

    pair = (np.ones(5), np.zeros(5))
    with pytest.raises(InvalidValue, match="5 records differ.*as given"):
        audit.audit(correct, pair, GaussianClaim(1.0), trials=400)
    assert audit.audit(correct, pair, GaussianClaim(1.0), trials=400, neighbours="as given").violated
    with pytest.raises(InvalidValue, match="neighbours='ignored'"):
        audit.audit(correct, pair, GaussianClaim(1.0), trials=400, neighbours="ignored")


# --- noise from elsewhere -------------------------------------------------------------------------------


def test_a_generator_of_its_own_is_noticed():
    own = np.random.default_rng(5)
    found = audit.audit(lambda x, rng: x + own.standard_normal(), (1.0, 0.0), GaussianClaim(1.0), trials=400, n_jobs=2)
    assert "generator of its own" in str(found)
    with pytest.raises(InvalidValue, match="do not repeat"):
        found.replay(3)
    usual = audit.audit(lambda x, rng: x + rng.standard_normal(), (1.0, 0.0), GaussianClaim(1.0), trials=400)
    assert "of its own" not in str(usual) and usual.replay(3).shape == (1,)


# --- words ----------------------------------------------------------------------------------------------

MU = gaussian.mu(1.0, 1e-5)


def half(total, rng):
    return total + 0.5 * rng.standard_normal() / MU


@pytest.mark.parametrize("arguments", [{"mode": "sequential", "alpha": 1e-6}, {}, {"alpha": 1e-3}], ids=str)
@pytest.mark.parametrize("claim", [GaussianClaim(MU), audit.ZcdpClaim(MU**2 / 2), audit.PureClaim(0.5)], ids=str)
def test_a_violation_has_no_words_against_it(claim, arguments):
    found = audit.audit(half, (1.0, 0.0), claim, trials=30_000, **arguments)
    assert found.violated and found.efficiency == "under-noised"
    assert found.epsilon_lower >= found.epsilon_claimed and found.ratio >= 1 and found.noise_factor >= 1
    assert found.epsilon_upper_of_attack >= found.epsilon_lower


def test_a_violation_seen_by_bets_alone_says_so():
    # One point of a profile is refuted by bets on rare events; all guesses together show much less.
    found = audit.audit(half, (1.0, 0.0), audit.ApproxClaim(0.7, 1e-5), trials=200_000, mode="sequential", alpha=1e-6)
    assert found.violated and found.epsilon_lower == 0.7 and found.noise_factor == 1.0
    assert "less than what the claim needs" in str(found) and "tight" not in str(found).split("efficiency")[1][:20]
    # At alpha = 1 - confidence the bound cannot pay for the verdict too, so both are named.
    weak = audit.audit(half, (1.0, 0.0), audit.ApproxClaim(0.7, 1e-5), trials=200_000, mode="sequential")
    assert weak.violated and weak.epsilon_lower < 0.7
    for words in ("epsilon > 0.7", "by guesses alone"):
        assert words in weak.summary()
    assert "as the claim is refuted; by guesses alone" in str(weak) and "less than what the claim needs" in str(weak)


def test_a_bound_above_the_claim_without_a_verdict_says_so():
    found = audit.audit(half, (1.0, 0.0), GaussianClaim(MU), trials=1500, alpha=1e-9)
    assert not found.violated and found.epsilon_lower > found.epsilon_claimed
    assert "audit again with another seed and more trials" in str(found)
