"""The secure stream is ChaCha20 as the RFC has it, and no two streams, threads or processes share words."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import chacha
from dptoolkit.kernels.reference import chacha20_block
from dptoolkit.randomness import SecureStream
from tests.statistics import assert_binomial, assert_chi2, rejected

CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")


def start(key, counter, nonce):
    return [*CONSTANTS, *struct.unpack("<8I", key), counter, *struct.unpack("<3I", nonce)]


# RFC 8439, sections 2.3.2 and A.1: (key, counter, nonce, key stream).
VECTORS = [
    (bytes(range(32)), 1, "000000090000004a00000000",
     "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
     "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"),
    (bytes(32), 0, "00" * 12,
     "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
     "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"),
    (bytes(32), 1, "00" * 12,
     "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
     "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"),
    (bytes(31) + b"\x01", 1, "00" * 12,
     "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
     "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"),
    (b"\x00\xff" + bytes(30), 2, "00" * 12,
     "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
     "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096"),
    (bytes(32), 0, "00" * 11 + "02",
     "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
     "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d"),
]  # fmt: skip


def blocks(state, groups=1):
    """The key stream of whole groups of blocks from here, as one row of sixteen words for every block."""
    full = np.repeat(np.array(state, np.uint32)[:, None], chacha.BLOCKS, axis=1)
    count = (np.uint64(state[12]) | np.uint64(state[13]) << np.uint64(32)) + np.arange(chacha.BLOCKS, dtype=np.uint64)
    full[12], full[13] = count & np.uint64(2**32 - 1), count >> np.uint64(32)
    out = np.zeros(2 * chacha.WORDS * groups, np.uint32)
    chacha.fill_words(full, out)
    return out.reshape(groups, 16, chacha.BLOCKS).transpose(0, 2, 1).reshape(-1, 16)


@pytest.mark.parametrize("key, counter, nonce, expected", VECTORS)
def test_vectors_of_the_rfc(key, counter, nonce, expected):
    state = start(key, counter, bytes.fromhex(nonce))
    words = list(struct.unpack("<16I", bytes.fromhex(expected)))
    assert chacha20_block(state) == words
    assert blocks(state)[0].tolist() == words
    # The twin: nine double rounds are another cipher.
    assert chacha20_block(state, 9) != words


@pytest.mark.parametrize("counter", [0, 2**32 - 3, 2**40 + 2**32 - 9])
def test_every_lane_is_its_block_and_the_counter_carries(counter):
    state = start(bytes(range(32)), counter & 0xFFFFFFFF, struct.pack("<3I", counter >> 32, 7, 9))
    for k, block in enumerate(blocks(state, 3)):
        at = counter + k
        assert block.tolist() == chacha20_block([*state[:12], at & 0xFFFFFFFF, at >> 32, *state[14:]])


def test_a_carry_that_is_dropped_repeats_words():
    """The broken twin: without the carry, block 2^32 is block 0 again."""
    state = start(bytes(range(32)), 2**32 - 1, bytes(12))
    right = blocks(state)[1].tolist()
    assert right == chacha20_block([*state[:12], 0, 1, *state[14:]])
    assert right != chacha20_block([*state[:12], 0, 0, *state[14:]])


def test_words_do_not_depend_on_how_they_are_asked_for():
    whole = SecureStream.seeded(1).words(3000)
    pieces, stream = [], SecureStream.seeded(1)
    for size in (1, 2, 63, 64, 65, 0, 255, 256, 257, 1000):
        pieces.append(stream.words(size))
    joined = np.concatenate(pieces)
    np.testing.assert_array_equal(joined, whole[: len(joined)])
    first = blocks(start(_key(1), 0, bytes(12)))
    np.testing.assert_array_equal(whole[:64], np.ascontiguousarray(first.T).view(np.uint64).ravel())


def _key(seed):
    import hashlib

    return hashlib.sha256(f"dptoolkit test stream {seed}".encode()).digest()


def test_streams_differ():
    draws = [SecureStream().words(4).tolist() for _ in range(5)]
    draws += [SecureStream.seeded(0).words(4).tolist(), SecureStream.seeded(0, 1).words(4).tolist()]
    draws += [SecureStream.seeded(0, 2**32).words(4).tolist(), SecureStream.seeded(1).words(4).tolist()]
    assert len({tuple(draw) for draw in draws}) == 9
    assert not SecureStream().reproducible and SecureStream.seeded(0).reproducible


def test_no_copies_and_no_pickles():
    stream = SecureStream()
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps, lambda s: pickle.dumps({"fit": [s]})):
        with pytest.raises(TypeError, match="cannot be .* Make a new one"):
            attempt(stream)


def test_a_closed_stream_has_no_key_and_draws_no_more():
    with SecureStream() as stream:
        stream.words(3)
        state, buffer = stream._state, stream._buffer
        assert state.any() and buffer.any()
    assert not state.any() and not buffer.any()
    with pytest.raises(ValueError, match="closed"):
        stream.words(1)
    assert "closed" in repr(stream)


def test_words_that_were_given_out_are_not_kept():
    stream = SecureStream.seeded(2)
    stream.words(1)
    before = stream._buffer
    taken = stream.words(10)
    assert taken.any() and not before[:10].any()


def test_threads_share_no_word():
    stream = SecureStream()
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: stream.words(37), range(400)))
    assert len(np.unique(np.concatenate(parts))) == 400 * 37


def _child(stream, pipe, pid_alone):
    if pid_alone:
        # As if the process had been forked by code that does not tell Python: only the number of the process changed.
        stream._pid = -1
    pipe.send(stream.words(50).tolist())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_a_key_of_its_own_and_no_words_of_its_parent():
    stream = SecureStream()
    stream.words(3)
    # Held by another thread at the time of the fork: the child would wait for ever.
    stream._lock.acquire()
    context = multiprocessing.get_context("fork")
    draws = []
    for pid_alone in (False, True):
        ours, theirs = context.Pipe()
        process = context.Process(target=_child, args=(stream, theirs, pid_alone))
        process.start()
        assert ours.poll(30), "the child waits for a lock that nobody will release"
        draws += ours.recv()
        process.join()
    stream._lock.release()
    draws += stream.words(50).tolist()
    assert len(set(draws)) == 150


def test_a_seeded_stream_does_not_survive_a_fork():
    stream = SecureStream.seeded(3)
    stream._pid = -1
    with pytest.raises(ValueError, match="closed"):
        stream.words(1)


def test_without_a_new_key_a_fork_repeats_words(monkeypatch):
    """The broken twin: a child that does not notice the fork draws what its parent draws."""
    parent, child = SecureStream.seeded(4), SecureStream.seeded(4)
    monkeypatch.setattr(child, "_after_fork", lambda: None)
    child._pid = -1
    assert parent.words(5).tolist() == child.words(5).tolist()


def test_bits_are_fair_and_independent_of_their_neighbours():
    words = SecureStream.seeded(5).words(200_000)
    for bit in range(64):
        assert_binomial(int(((words >> np.uint64(bit)) & np.uint64(1)).sum()), len(words), 0.5)
    assert_chi2(np.bincount(words.view(np.uint8), minlength=256), np.ones(256))
    pairs = words.view(np.uint8).astype(int)
    assert_chi2(np.bincount(pairs[:-1] // 16 * 16 + pairs[1:] // 16, minlength=256), np.ones(256))
    # The twin: a stuck bit.
    stuck = words | np.uint64(4)
    rejected(assert_binomial, int(((stuck >> np.uint64(2)) & np.uint64(1)).sum()), len(words), 0.5)


def test_whole_numbers_below_an_end():
    stream = SecureStream.seeded(6)
    assert_chi2(np.bincount([stream.below(7) for _ in range(7000)], minlength=7), np.ones(7))
    assert [stream.below(1) for _ in range(3)] == [0, 0, 0]
    assert 2**64 < max(stream.below(2**130) for _ in range(5)) < 2**130
    # The twin: the rest of a division prefers small numbers.
    folded = np.array([stream.below(16) % 7 for _ in range(7000)])
    rejected(assert_chi2, np.bincount(folded, minlength=7), np.ones(7))
    with pytest.raises(InvalidValue, match="end"):
        stream.below(0)
    assert len(stream.bytes(13)) == 13


@pytest.mark.parametrize("count", [-1, 1.5, True, None, "3"])
def test_bad_numbers_of_words_are_refused(count):
    stream = SecureStream.seeded(1)
    stream.words(3)
    with pytest.raises(InvalidValue, match="count"):
        stream.words(count)
