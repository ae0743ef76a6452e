"""Coordinate owners: the merged entries are those of one process, for any number of owners."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptoolkit.distributed import owners
from dptoolkit.errors import InvalidValue

KEY = b"of one fit"
CHUNK = 8


def one_process(exact, s, scale, step, chunk=CHUNK):
    return owners.largest_of(owners.noisy_range(exact, 0, scale, KEY, step, chunk), s)


def by_owners(exact, s, scale, step, count, order=None, kept=None):
    parts = []
    for first, last in owners.ranges(len(exact), count, CHUNK):
        noisy = owners.noisy_range(exact[first:last], first, scale, KEY, step, CHUNK)
        parts.append(owners.largest_of(noisy, s if kept is None else kept, first))
    if order is not None:
        order.shuffle(parts)
    return owners.merged(parts, s)


@given(
    d=st.integers(1, 100), count=st.integers(1, 9), s=st.integers(1, 20), scale=st.sampled_from([0.0, 1e-3, 1.0]),
    step=st.integers(0, 3), data=st.data(),
)  # fmt: skip
def test_the_largest_do_not_depend_on_the_number_of_owners(d, count, s, scale, step, data):
    # Few values, so that there are ties where no noise breaks them.
    exact = np.array(data.draw(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]), min_size=d, max_size=d)))
    one = one_process(exact, s, scale, step)
    many = by_owners(exact, s, scale, step, count, data.draw(st.randoms()))
    assert np.array_equal(one.places, many.places) and np.array_equal(one.values, many.values)
    assert len(one.places) == min(s, d)


def test_owners_that_return_fewer_would_be_noticed():
    exact = np.zeros(64)
    exact[:5] = 100 + np.arange(5)
    right = one_process(exact, 5, 1.0, 0)
    assert set(right.places) == set(range(5))
    assert not np.array_equal(by_owners(exact, 5, 1.0, 0, 4, kept=4).places, right.places)


def test_noise_by_owner_would_be_noticed(monkeypatch):
    """The broken twin: streams that begin anew with every owner depend on how many there are."""
    exact, right = np.zeros(64), one_process(np.zeros(64), 5, 1.0, 0)
    drawn = owners.chunk_noise
    first = iter(range(10**6))
    monkeypatch.setattr(owners, "chunk_noise", lambda key, step, chunk, count: drawn(key, step, next(first) % 2, count))
    assert not np.array_equal(by_owners(exact, 5, 1.0, 0, 4).values, right.values)


def test_every_key_step_and_chunk_has_its_own_noise():
    places = [(key, step, chunk) for key in (b"a", b"b") for step in range(4) for chunk in range(4)]
    noise = np.concatenate([owners.chunk_noise(*place, 50) for place in places])
    assert len(np.unique(noise)) == len(noise) and abs(noise.std() - 1) < 0.15
    assert np.array_equal(owners.chunk_noise(b"a", 1, 2, 50)[:7], owners.chunk_noise(b"a", 1, 2, 7))


@given(d=st.integers(1, 200), count=st.integers(1, 12))
def test_ranges_hold_every_coordinate_once_and_whole_chunks(d, count):
    parts = owners.ranges(d, count, CHUNK)
    assert [k for first, last in parts for k in range(first, last)] == list(range(d))
    assert all(first % CHUNK == 0 for first, _ in parts) and len(parts) <= count


def test_a_chunk_is_not_divided():
    with pytest.raises(InvalidValue, match="first=3: must be a multiple of 8"):
        owners.noisy_range(np.zeros(4), 3, 1.0, KEY, 0, CHUNK)
