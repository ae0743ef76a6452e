"""The ChaCha20 stream cipher (RFC 8439) as a generator of random words, eight blocks side by side.

The state of a block is sixteen 32-bit words: four constants, eight of the key, two of a 64-bit counter of blocks and
two of a stream's number. Written in LLVM's own terms, as Numba keeps arrays of words in memory and not in vector
registers; the ten double rounds are a loop, not a sequence, so that they compile in a fraction of the time.
``kernels.reference.chacha20_block`` is the same in readable Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

# Blocks that are computed together, and 64-bit words of random bits in them.
BLOCKS = 8
WORDS = 8 * BLOCKS
_ROUNDS = 10
# The quarter rounds of a double round: down the columns of the 4 x 4 words, then along the diagonals.
_QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_COUNTER, _CARRY, _HALF = 12, 13, np.uint64(32)
_LOW = np.uint64(2**32 - 1)


@intrinsic
def rounds(typing, state, out, first):  # type: ignore[no-untyped-def]
    """Write the BLOCKS blocks that begin with ``state`` (16, BLOCKS) into ``out``, uint32, from place ``first`` on.

    They are written side by side: word w of all blocks, then word w + 1. The caller checks that they fit.
    """
    if not (state.dtype == out.dtype == types.uint32 and state.layout == out.layout == "C"):
        return None

    def build(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        def pointer(place):  # type: ignore[no-untyped-def]
            return context.make_array(signature.args[place])(context, builder, arguments[place]).data

        lanes, word = ir.VectorType(ir.IntType(32), BLOCKS), ir.IntType(64)
        source = builder.bitcast(pointer(0), lanes.as_pointer())
        goal = builder.bitcast(builder.gep(pointer(1), [arguments[2]]), lanes.as_pointer())

        def at(base, k):  # type: ignore[no-untyped-def]
            return builder.gep(base, [ir.Constant(word, k)])

        def rotated(x, bits):  # type: ignore[no-untyped-def]
            left, right = (ir.Constant(lanes, [b] * BLOCKS) for b in (bits, 32 - bits))
            return builder.or_(builder.shl(x, left), builder.lshr(x, right))

        start = [builder.load(at(source, k), align=4) for k in range(16)]
        words = [cgutils.alloca_once_value(builder, x) for x in start]
        with cgutils.for_range(builder, ir.Constant(word, _ROUNDS)):
            x = [builder.load(place) for place in words]
            for a, b, c, d in _QUARTERS:
                for one, two, three, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                    x[one] = builder.add(x[one], x[two])
                    x[three] = rotated(builder.xor(x[three], x[one]), bits)
            for place, value in zip(words, x, strict=True):
                builder.store(value, place)
        for k in range(16):
            builder.store(builder.add(builder.load(words[k]), start[k]), at(goal, k), align=4)
        return context.get_dummy_value()

    return types.void(state, out, first), build


@njit(cache=True, nogil=True, error_model="numpy")
def fill_words(state: NDArray[Any], out: NDArray[Any]) -> None:
    """Fill ``out``, whole groups of 2 WORDS uint32, with the next blocks; the counters in ``state`` move on.

    ``state`` is (16, BLOCKS): column b belongs to the b-th of the next blocks. The counter is 64 bits long, in two
    words, so that a carry goes from the first into the second.
    """
    for first in range(0, out.shape[0] - 2 * WORDS + 1, 2 * WORDS):
        rounds(state, out, first)
        for b in range(BLOCKS):
            count = np.uint64(state[_COUNTER, b]) | (np.uint64(state[_CARRY, b]) << _HALF)
            count += np.uint64(BLOCKS)
            state[_COUNTER, b] = np.uint32(count & _LOW)
            state[_CARRY, b] = np.uint32(count >> _HALF)
