"""Compiled random numbers are NumPy's own, number for number, and leave the Generator where NumPy leaves it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import draws as kernel
from dptoolkit.mechanisms import NoisyMaximum
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers.engine import draws
from tests.solvers.capture import Spy

KINDS = [np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937]


def pair(kind=np.random.PCG64, seed=7):
    return np.random.Generator(kind(seed)), np.random.Generator(kind(seed))


def next_words(rng):
    return rng.bit_generator.random_raw(3).tolist()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_normals_are_those_of_the_generator(kind):
    """Two million of them: 500 lie beyond the last layer, 25,000 were decided by a second word."""
    ours, theirs = pair(kind)
    out = np.empty(2_000_000)
    draws.fill_normals(ours, out)
    np.testing.assert_array_equal(out, theirs.standard_normal(len(out)))
    assert next_words(ours) == next_words(theirs)
    assert (np.abs(out) > 3.7).sum() > 300


@given(st.integers(0, 500), st.integers(1, 300))
def test_words_may_end_anywhere(seed, count):
    """A number that lacks words is left for the next call, with its words."""
    ours, theirs = pair(seed=seed)
    words, out = ours.bit_generator.random_raw(4 * 300), np.empty(300)
    place, at, ends = 0, 0, np.random.default_rng(seed)
    while place < len(out):
        stop = at + int(ends.integers(0, count + 1))
        place, used = kernel.normals(words[at:stop], out, place)
        assert used <= stop - at
        # Without progress more words must come.
        count, at = (count + 1 if used == 0 else count), at + used
    np.testing.assert_array_equal(out, theirs.standard_normal(300))


@pytest.mark.parametrize("block", [1, 2, 3, 1000])
def test_blocks_of_words_change_nothing(block, monkeypatch):
    monkeypatch.setattr(draws, "_BLOCK", block)
    ours, theirs = pair(seed=block)
    out = np.empty(draws.WORTHWHILE)
    draws.fill_normals(ours, out)
    np.testing.assert_array_equal(out, theirs.standard_normal(len(out)))
    assert next_words(ours) == next_words(theirs)


def test_a_generator_of_the_callers_own_draws_in_its_own_way():
    spy, out = Spy(3), np.empty(draws.WORTHWHILE)
    draws.fill_normals(spy, out)
    assert [name for name, _ in spy.draws] == ["standard_normal"]
    np.testing.assert_array_equal(out, np.random.default_rng(3).standard_normal(len(out)))


def test_without_the_tables_numpy_draws(monkeypatch):
    monkeypatch.setattr(draws, "_compiled", lambda name: None)
    ours, theirs = pair()
    out = np.empty(draws.WORTHWHILE)
    draws.fill_normals(ours, out)
    np.testing.assert_array_equal(out, theirs.standard_normal(len(out)))


# --- the largest after Gumbel noise -----------------------------------------------------------------------


def sizes(seed, runs, spread, width=draws.WORTHWHILE):
    return np.abs(np.random.default_rng(seed).standard_normal((runs, width))) * spread


@pytest.mark.parametrize("shares", [None, np.array([1.0, 0.5, 0.25])])
@pytest.mark.parametrize("count", [1, 7, 50, draws.WORTHWHILE])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 30.0, 1e6])
def test_the_largest_after_gumbel_noise_are_those_of_the_mechanism(spread, count, shares):
    """Where noise decides, where scores decide, and between; from the same draws, which leave the streams alike."""
    scores, mechanism, shares = sizes(count, 3, spread), NoisyMaximum(0.7, 1.0), np.array([1.0, 0.5, 0.01])
    (a, b), (c, d), (e, f) = (pair(seed=seed) for seed in range(3))
    ours = draws.top_rows(mechanism, scores, count, Generators(a, c, e), shares)
    theirs = mechanism.top_rows(scores, count, Generators(b, d, f), shares)
    np.testing.assert_array_equal(ours, theirs)
    assert [next_words(one) for one in (a, c, e)] == [next_words(one) for one in (b, d, f)]


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("level", [0.0, 1e15])
def test_of_equal_sums_the_first_are_kept_as_the_mechanism_keeps_them(level, share):
    """Sums are equal where there is no noise, and where scores are so large that noise is rounded to their last bit."""
    scores, mechanism = np.full((1, draws.WORTHWHILE), level), NoisyMaximum(0.3, 1.0)
    scores[0, -1] += 1.0
    ours, theirs = pair()
    np.testing.assert_array_equal(
        draws.top_rows(mechanism, scores, 20, Generators(ours), np.array([share])),
        mechanism.top_rows(scores, 20, Generators(theirs), np.array([share])),
    )


def test_a_logarithm_that_is_bounded_from_the_wrong_side_is_seen():
    """The broken twin: with the power of two above instead of below, some of the largest are passed over."""
    scores, exponentials = sizes(1, 1, 0.1)[0], np.random.default_rng(2).standard_exponential(draws.WORTHWHILE)

    def chosen(largest):
        places, sums = np.empty(50, np.intp), np.empty(50)
        assert largest(scores, exponentials, 1.0, places, sums)
        return sorted(places.tolist())

    right = np.sort(np.argsort(scores - np.log(exponentials))[-50:]).tolist()
    source = inspect.getsource(kernel.largest_after_gumbel.py_func).replace("- 1023", "- 1022")
    broken: dict = dict(vars(kernel))
    exec(compile(source.partition("\n")[2], "broken", "exec"), broken)
    assert chosen(kernel.largest_after_gumbel) == right
    assert chosen(broken["largest_after_gumbel"]) != right


def test_scores_that_are_not_finite_are_refused_as_the_mechanism_refuses_them():
    scores = sizes(0, 2, 1.0)
    scores[1, 5] = np.inf
    with pytest.raises(InvalidValue, match="finite"):
        draws.top_rows(NoisyMaximum(1.0, 1.0), scores, 3, Generators(*pair()), np.ones(2))


@pytest.mark.parametrize("count", [0, draws.WORTHWHILE + 1])
def test_a_count_that_the_mechanism_refuses_is_refused(count):
    with pytest.raises(InvalidValue, match="count"):
        draws.top_rows(NoisyMaximum(1.0, 1.0), sizes(0, 1, 1.0), count, Generators(pair()[0]), np.ones(1))


def test_without_noise_and_for_other_noise_the_mechanism_decides():
    scores = sizes(0, 1, 1.0)
    without = draws.top_rows(NoisyMaximum(0.0, 1.0), scores, 5, Generators(pair()[0]), np.ones(1))
    np.testing.assert_array_equal(without[0], np.argsort(-scores[0])[:5])
    with pytest.raises(InvalidValue, match="gumbel"):
        draws.top_rows(NoisyMaximum(1.0, 1.0, "laplace"), scores, 5, Generators(pair()[0]), np.ones(1))
