"""Fast draws of much noise: the same numbers as NumPy's Generator gives, and the largest of many scores after noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit.mechanisms.noise import exponential
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.mechanisms.selection import NoisyMaximum

# For fewer numbers than this the Generator itself is quicker.
WORTHWHILE = 2048
# The number of words that are taken at a time, which bounds the memory for them.
_BLOCK = 1 << 16
# Bit generators whose raw numbers are the 64-bit words of which a Generator makes its normals.
_OF_WORDS = (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)


def fill_normals(rng: np.random.Generator, out: NDArray[np.float64]) -> None:
    """Fill a contiguous vector with standard normals: ``rng.standard_normal(out=out)``, where both leave rng the same.

    Privacy
    -------
    Every word is used once, also where threads share the Generator: the words of a block are taken in one locked call.
    """
    from_words = _compiled("normals") if _gives_words(rng, out) else None
    if from_words is None:
        rng.standard_normal(out=out)
    else:
        _fill(rng, out, from_words)


def _gives_words(rng: np.random.Generator, out: NDArray[np.float64]) -> bool:
    """Whether NumPy would make its normals of the words of this generator; a generator of the caller's own may not."""
    return len(out) >= WORTHWHILE and type(rng) is np.random.Generator and type(rng.bit_generator) in _OF_WORDS


def _compiled(name: str) -> Callable[..., Any] | None:
    """The kernel, None where this version of Numba does not have the tables; then NumPy gives the same numbers."""
    try:
        from dptoolkit.kernels import draws
    except (ImportError, AttributeError):
        return None
    kernel: Callable[..., Any] = getattr(draws, name)
    return kernel


def _fill(rng: Any, out: NDArray[np.float64], from_words: Callable[..., Any]) -> None:
    raw, place, words = rng.bit_generator.random_raw, 0, np.empty(0, np.uint64)
    while place < len(out):
        # Every place that is still empty takes at least one more word, so no word is left over at the end.
        fresh = raw(min(len(out) - place, _BLOCK))
        words = np.concatenate([words, fresh]) if len(words) else fresh
        place, count = from_words(words, out, place)
        words = words[count:]


def top_rows(
    mechanism: NoisyMaximum, scores: NDArray[np.float64], count: int, rng: Generators, shares: NDArray[np.float64]
) -> NDArray[np.intp]:
    """``mechanism.top_rows(scores, count, rng, shares)`` for Gumbel noise, but few logarithms are computed.

    Privacy
    -------
    One call is ``mechanism.top_event(count)`` for each row whose scores have that share of the range: the same draws,
    one for every score, and the same choice.
    """
    worthwhile = WORTHWHILE <= scores.shape[1] >= count > 0 and mechanism.scale > 0 and mechanism.noise == "gumbel"
    largest_after_gumbel = _compiled("largest_after_gumbel") if worthwhile else None
    if largest_after_gumbel is None:
        return mechanism.top_rows(scores, count, rng, shares)
    indices, sums = np.empty((len(scores), count), np.intp), np.empty(count)
    scales = (mechanism.scale * shares).tolist()
    for row, draw, scale, places in zip(scores, exponential(rng, scores.shape), scales, indices, strict=True):
        if not largest_after_gumbel(row, draw, scale, places, sums):
            mechanism.top_rows(scores, count, rng, shares)  # which says what is wrong
        places[:] = places[np.lexsort((places, -sums))]
    return indices
