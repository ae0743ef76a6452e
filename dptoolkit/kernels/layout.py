"""Whether two layouts hold the same matrix."""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True, error_model="numpy")
def is_transpose(
    data: NDArray[Any],
    indices: NDArray[Any],
    indptr: NDArray[Any],
    t_data: NDArray[Any],
    t_indices: NDArray[Any],
    t_indptr: NDArray[Any],
) -> bool:
    """Whether two canonical CSR matrices with equally many entries are each other's transpose, entry for entry.

    The entries of the first matrix, in order, are compared with the entries of the second at the next place of the row
    that they belong to. If all agree, every entry of the second was compared, as both have as many.
    """
    places = t_indptr[:-1].copy()
    for i in range(indptr.shape[0] - 1):
        for b in range(indptr[i], indptr[i + 1]):
            j = indices[b]
            place = places[j]
            if place >= t_indptr[j + 1] or t_indices[place] != i or t_data[place] != data[b]:
                return False
            places[j] += 1
    return True
