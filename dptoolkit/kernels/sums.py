"""Sums over sparse rows: X^T r for one r or for many at once, and a vector that is scaled and added in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

# Sums that are taken side by side: they fill the vector registers, two sets of them.
LANES = 16
# Features whose sums are put into their rows together, so that the writes are next to each other.
_TILE = 64


@njit(cache=True, nogil=True, error_model="numpy")
def row_sums(
    data: NDArray[Any],
    indices: NDArray[Any],
    indptr: NDArray[Any],
    r: NDArray[Any],
    out: NDArray[Any],
    first: int,
    last: int,
) -> None:
    """out = the sum of r_i x_i over the rows first <= i < last, added up row by row.

    The rows are read as they are stored, and ``out`` stays in the cache: quicker than one sum for each feature.
    """
    for j in range(out.shape[0]):
        out[j] = 0.0
    for i in range(first, last):
        for b in range(indptr[i], indptr[i + 1]):
            out[indices[b]] += r[i] * data[b]


@intrinsic
def lane_sums(typing, data, indices, first, last, half, rows, out):  # type: ignore[no-untyped-def]
    """out[k] = sum of data[b] * rows[indices[b], k] for first <= b < last and k < LANES.

    The sum is that over indices below ``half`` plus that over the others, each in the order of the indices. Written in
    LLVM's own terms, because Numba keeps an array of running sums in memory, not in registers. Products and sums are
    rounded one by one, as in compiled Python. ``rows`` has LANES columns, which the caller checks.
    """
    single = data.dtype == types.float32
    doubles = rows.dtype == out.dtype == types.float64 and (single or data.dtype == types.float64)
    if not (rows.layout == out.layout == data.layout == "C" and doubles):
        return None

    def build(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        def pointer(place):  # type: ignore[no-untyped-def]
            return context.make_array(signature.args[place])(context, builder, arguments[place]).data

        lanes, word = ir.VectorType(ir.DoubleType(), LANES), ir.IntType(64)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        nothing, front = ir.Constant(lanes, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        values, places = pointer(0), pointer(1)
        source, goal = (builder.bitcast(pointer(k), lanes.as_pointer()) for k in (5, 6))
        upper, lower = (cgutils.alloca_once_value(builder, ir.Constant(lanes, [0.0] * LANES)) for _ in range(2))
        b, end = cgutils.alloca_once_value(builder, arguments[2]), arguments[3]

        def index(place):  # type: ignore[no-untyped-def]
            i = builder.load(builder.gep(places, [place]))
            return builder.zext(i, word) if i.type.width < word.width else i

        def step(total, place):  # type: ignore[no-untyped-def]
            entry = builder.load(builder.gep(values, [place]))
            entry = builder.fpext(entry, ir.DoubleType()) if single else entry
            x = builder.insert_element(nothing, entry, front)
            product = builder.fmul(
                builder.shuffle_vector(x, nothing, everywhere),
                builder.load(builder.gep(source, [index(place)]), align=8),
            )
            builder.store(builder.fadd(builder.load(total), product), total)
            builder.store(builder.add(place, ir.Constant(word, 1)), b)

        names = ("upper", "upper index", "upper step", "lower", "lower step", "after")
        above, above_index, above_step, below, below_step, after = (builder.append_basic_block(name) for name in names)
        builder.branch(above)
        builder.position_at_end(above)
        builder.cbranch(builder.icmp_unsigned("<", builder.load(b), end), above_index, after)
        builder.position_at_end(above_index)
        builder.cbranch(builder.icmp_unsigned("<", index(builder.load(b)), arguments[4]), above_step, below)
        builder.position_at_end(above_step)
        step(upper, builder.load(b))
        builder.branch(above)
        builder.position_at_end(below)
        builder.cbranch(builder.icmp_unsigned("<", builder.load(b), end), below_step, after)
        builder.position_at_end(below_step)
        step(lower, builder.load(b))
        builder.branch(below)
        builder.position_at_end(after)
        builder.store(builder.fadd(builder.load(upper), builder.load(lower)), goal, align=8)
        return context.get_dummy_value()

    return types.void(data, indices, first, last, half, rows, out), build


@njit(cache=True, nogil=True, error_model="numpy")
def interleave(rows: NDArray[Any], out: NDArray[Any]) -> None:
    """out[i, k] = rows[k, i]; columns of ``out`` beyond the rows stay as they are."""
    count, n = rows.shape
    for start in range(0, n, _TILE):
        for k in range(count):
            for i in range(start, min(start + _TILE, n)):
                out[i, k] = rows[k, i]


@njit(cache=True, nogil=True, error_model="numpy")
def few_feature_sums(
    t_data: NDArray[Any],
    t_indices: NDArray[Any],
    t_indptr: NDArray[Any],
    half: int,
    r: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """The sums of ``block_feature_sums`` for any number of columns of ``r``."""
    lanes = r.shape[1]
    upper, lower = np.empty(lanes), np.empty(lanes)
    for j in range(out.shape[1]):
        for k in range(lanes):
            upper[k] = lower[k] = 0.0
        for b in range(t_indptr[j], t_indptr[j + 1]):
            x, i = t_data[b], t_indices[b]
            if i < half:
                for k in range(lanes):
                    upper[k] += x * r[i, k]
            else:
                for k in range(lanes):
                    lower[k] += x * r[i, k]
        for k in range(out.shape[0]):
            out[k, j] = upper[k] + lower[k]


@njit(cache=True, nogil=True, error_model="numpy")
def block_feature_sums(
    t_data: NDArray[Any],
    t_indices: NDArray[Any],
    t_indptr: NDArray[Any],
    half: int,
    r: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """out[k] = X^T r_k for every row k of ``out``: each entry of X is read once for all.

    The columns of ``r`` are the r_k: LANES of them, of which those beyond the rows of ``out`` are ignored, or, which is
    quicker for a few, as many as ``out`` has. Each sum is, to the last bit, that of ``row_sums`` over the rows before
    ``half`` plus that over the others.
    """
    if r.shape[1] != LANES:
        few_feature_sums(t_data, t_indices, t_indptr, half, r, out)
        return
    sums, border, width = np.empty((_TILE, LANES)), np.uint64(half), out.shape[1]
    for start in range(0, width, _TILE):
        stop = min(start + _TILE, width)
        for j in range(start, stop):
            lane_sums(t_data, t_indices, t_indptr[j], t_indptr[j + 1], border, r, sums[j - start])
        for k in range(out.shape[0]):
            for j in range(start, stop):
                out[k, j] = sums[j - start, k]


@njit(cache=True, nogil=True, error_model="numpy")
def add_scaled(total: NDArray[Any], values: NDArray[Any], factor: float) -> None:
    """total += factor * values in one pass, each product rounded before it is added, as NumPy does in two."""
    for j in range(total.shape[0]):
        total[j] += factor * values[j]
