"""Random streams: every fit draws from a stream of its own that no other thread, plan or budget shares."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid

# A fit takes this many bytes from the Generator it is given, in one call, and seeds its own stream with them.
_ENTROPY_BYTES = 32
# Without a seed NumPy draws 128 bits; a seed of at most this many bits is taken to be chosen by a person.
_CHOSEN_BITS = 64
_KNOWN = (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937)


def as_generator(rng: Any = None, key: Any = None) -> np.random.Generator:
    """A Generator from None (fresh entropy), an integer seed (reproducible, so not private) or a Generator.

    ``key``, a text or an object with a repr, says what an integer seed is used for: other keys give unrelated streams,
    so that one seed at two noise scales does not give noises that cancel. A Generator, or several as one, is returned
    as it is.
    """
    if isinstance(rng, (np.random.Generator, Generators)):
        return rng  # type: ignore[return-value]
    if rng is None:
        return np.random.default_rng()
    if isinstance(rng, numbers.Integral) and not isinstance(rng, bool) and int(rng) >= 0:
        generator = np.random.default_rng(int(rng))
        return generator if key is None else _child(generator, key if isinstance(key, str) else repr(key))
    raise invalid("rng", rng, "None, an integer >= 0 or a numpy.random.Generator")


class Generators:
    """Several Generators as one: the first axis of what is drawn has one entry for each, drawn by that Generator."""

    def __init__(self, *parts: np.random.Generator) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    def standard_normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Standard normals."""
        return np.array([part.standard_normal(self._own(shape)) for part in self._parts])

    def standard_exponential(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Standard exponentials."""
        return np.array([part.standard_exponential(self._own(shape)) for part in self._parts])

    def _own(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one part; another first axis is refused, as NumPy would broadcast one noise to several parts."""
        if shape[:1] != (len(self),):
            raise invalid("shape", shape, f"of {len(self)} parts", "Ask for one part for every Generator.")
        return shape[1:]

    def of(self, part: int, draw: Callable[[np.random.Generator], Any]) -> Any:
        """What ``draw`` returns for the Generator of one part."""
        return draw(self._parts[part])

    def among(self, parts: Sequence[int], draw: Callable[[Generators], Any]) -> Any:
        """What ``draw`` returns for the Generators of some parts."""
        return draw(Generators(*(self._parts[part] for part in parts)))


def exclusive(rng: np.random.Generator) -> AbstractContextManager[Any]:
    """The Generator for this thread alone, for as long as a compiled kernel draws from it.

    Compiled code does not take NumPy's lock by itself, so two threads could draw the same numbers. NumPy's own methods
    take the lock, and in older versions of NumPy it cannot be taken twice: inside the block call kernels only.
    """
    return rng.bit_generator.lock


@dataclass(frozen=True)
class Source:
    """The checked argument ``rng`` of a fit; nothing is drawn from it before ``stream``.

    ``reproducible`` is whether the noise is known to come from a seed that a person chose, directly or by a Generator
    built from such a seed. A Generator of unknown origin is assumed not to be reproducible.
    """

    generator: np.random.Generator
    reproducible: bool
    fresh: bool

    @classmethod
    def of(cls, rng: Any) -> Source:
        """The source for an argument ``rng``."""
        generator = as_generator(rng)
        return cls(generator, rng is not None and _from_a_chosen_seed(generator), rng is None)

    def stream(self, key: str) -> np.random.Generator:
        """A Generator for one fit alone, from what the source draws next and from ``key``.

        The draw is one call, which NumPy makes atomic, so threads that share a Generator get different streams.
        Different keys give different streams even where the draw is the same (one seed, or copies of a Generator). A
        bit generator or Generator class of the caller's own is used as it is, since only it knows how it draws.
        """
        plain = type(self.generator) is np.random.Generator and type(self.generator.bit_generator) in _KNOWN
        return _child(self.generator, key) if plain and not self.fresh else self.generator


def _child(generator: np.random.Generator, key: str) -> np.random.Generator:
    """A new Generator of the same kind, seeded by the next bytes of this one and by a hash of ``key``."""
    entropy = np.frombuffer(generator.bytes(_ENTROPY_BYTES), dtype="<u4").tolist()
    words = np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype="<u4").tolist()
    kind: Any = type(generator.bit_generator)
    return np.random.Generator(kind(np.random.SeedSequence(entropy, spawn_key=tuple(words))))


def _from_a_chosen_seed(generator: np.random.Generator) -> bool:
    entropy = getattr(getattr(generator.bit_generator, "seed_seq", None), "entropy", None)
    if entropy is None:
        return False
    return sum(int(word).bit_length() for word in np.asarray(entropy, dtype=object).flat) <= _CHOSEN_BITS
