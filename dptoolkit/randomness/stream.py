"""A stream of random words that nobody can predict or repeat: ChaCha20 with a key of the operating system.

NumPy's generators are made for simulations: from enough of their output the state can be computed, and with it all
noise before and after. Here whoever sees any number of words learns nothing about the others, unless ChaCha20 is
broken.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import weakref
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import whole

Words = NDArray[np.uint64]

GENERATOR = "ChaCha20, keyed by the operating system"
_CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")
_KEY_BYTES, _BLOCKS, _GROUP = 32, 8, 64
# Words that are computed at a time where few are asked for.
_AHEAD = 32 * _GROUP

# All streams of this process, which lose their keys in a forked child: both would draw the same noise.
_streams: weakref.WeakSet[SecureStream] = weakref.WeakSet()


class SecureStream:
    """Uniform 64-bit words from ChaCha20, whose key comes from ``os.urandom``; one stream for one fit.

    It cannot be copied or pickled, because two copies would draw the same noise, and the difference of two releases
    would show the data without any. After a fork the child has a new key. Threads may share a stream: each word is
    given to one of them. ``close``, or leaving a ``with`` block, overwrites the key.

    Privacy
    -------
    The guarantees hold for ideal random bits; ChaCha20 under a secret key is the one idealisation that is left. An
    attacker who reads the memory of the process is not covered.
    """

    reproducible = False

    def __init__(self) -> None:
        self._state: NDArray[np.uint32] = np.zeros((16, _BLOCKS), np.uint32)
        self._buffer: Words = np.zeros(0, np.uint64)
        self._lock, self._pid, self._closed = threading.Lock(), os.getpid(), False
        self._renew(os.urandom(_KEY_BYTES))
        _streams.add(self)

    @classmethod
    def seeded(cls, seed: int, number: int = 0) -> SecureStream:
        """A stream that can be repeated, for tests and audits; NEVER for a release.

        Its key is a hash of ``seed``; ``number`` is the number of the stream, and different ones are unrelated.
        """
        stream = cls()
        text = f"dptoolkit test stream {whole('seed', seed)}".encode()
        stream._renew(hashlib.sha256(text).digest(), whole("number", number))
        stream.reproducible = True
        return stream

    def words(self, count: int) -> Words:
        """The next ``count`` words; nobody gets them again.

        Parameters
        ----------
        count : int
            The number of words.
        """
        count = whole("count", count)
        with self._lock:
            self._check()
            missing = count - len(self._buffer)
            if missing > 0:
                self._extend(missing)
            taken, rest = self._buffer[:count].copy(), self._buffer[count:]
            # What was given out is not kept: a later reader of the memory cannot undo earlier noise.
            self._buffer[:count] = 0
            self._buffer = rest
            return taken

    def bytes(self, count: int) -> bytes:
        """``count`` random bytes, of whole words.

        Parameters
        ----------
        count : int
            The number of bytes.
        """
        return self.words(-(-count // 8)).tobytes()[:count]

    def below(self, end: int) -> int:
        """A whole number from 0 to end - 1, each with the same chance: more bits are drawn until they are below.

        Parameters
        ----------
        end : int
            The number of outcomes.
        """
        length = (whole("end", end, low=1) - 1).bit_length()
        size = -(-length // 64)
        while True:
            draw = int.from_bytes(self.words(size).astype("<u8").tobytes(), "little") & ((1 << length) - 1)
            if draw < end:
                return draw

    def close(self) -> None:
        """Overwrite the key and all words that were computed ahead; the stream draws no more."""
        with self._lock:
            self._closed = True
            self._wipe()

    def __enter__(self) -> SecureStream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        # Only what works while the interpreter ends, too.
        if hasattr(self, "_buffer"):
            self._state[:] = 0
            self._buffer[:] = 0

    def __repr__(self) -> str:
        kind = "from a seed, for tests" if self.reproducible else GENERATOR
        return f"<SecureStream: {kind}{', closed' if self._closed else ''}>"

    def __copy__(self) -> NoReturn:
        self._refuse("copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse("copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse("pickled or sent to another process")

    def _refuse(self, what: str) -> NoReturn:
        message = f"A SecureStream cannot be {what}: two of them would draw the same noise, and noise that is known is"
        raise TypeError(f"{message} none. Make a new one, SecureStream(), where it is needed.")

    def _renew(self, key: Any, number: int = 0) -> None:
        state = np.zeros(16, np.uint32)
        state[:4], state[4:12] = _CONSTANTS, np.frombuffer(key, "<u4")
        state[14], state[15] = number & 0xFFFFFFFF, number >> 32
        self._state[:] = state[:, None]
        self._state[12] = np.arange(_BLOCKS)
        self._buffer[:] = 0
        self._buffer, self._pid = np.zeros(0, np.uint64), os.getpid()
        state[:] = 0

    def _check(self) -> None:
        if self._pid != os.getpid():
            self._after_fork()
        if self._closed:
            raise ValueError("The SecureStream is closed. Make a new one, SecureStream(), for every fit.")

    def _after_fork(self) -> None:
        """In the child: a new key, and nothing of the words that the parent computed ahead."""
        if self.reproducible:
            self._closed = True
        self._renew(os.urandom(_KEY_BYTES))

    def _extend(self, missing: int) -> None:
        """Compute at least ``missing`` more words."""
        from dptoolkit.kernels.chacha import fill_words

        size = max(-(-missing // _GROUP) * _GROUP, _AHEAD)
        fresh: Words = np.empty(size, np.uint64)
        fill_words(self._state, fresh.view(np.uint32))
        if len(self._buffer) == 0:
            self._buffer = fresh
            return
        joined = np.concatenate([self._buffer, fresh])
        self._buffer[:] = 0
        fresh[:] = 0
        self._buffer = joined

    def _wipe(self) -> None:
        self._state[:] = 0
        self._buffer[:] = 0
        self._buffer = np.zeros(0, np.uint64)


def _in_child() -> None:
    """After a fork: a lock that another thread of the parent held would never be released here."""
    for stream in list(_streams):
        stream._lock = threading.Lock()
        stream._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
