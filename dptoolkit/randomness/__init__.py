"""Noise that cannot be undone: a cryptographic stream of words, and exact samplers that draw from it.

docs/secure-noise.md explains the design; proofs stand beside the code.
"""

from dptoolkit.randomness.counts import discrete_gaussian_noise, geometric_noise
from dptoolkit.randomness.largest import LargestNoises, events, largest_noises
from dptoolkit.randomness.sampling import rounded_laplace, rounded_normals
from dptoolkit.randomness.selection import IntegerSelection, unit_for
from dptoolkit.randomness.stream import GENERATOR, SecureStream

__all__ = [
    "GENERATOR", "IntegerSelection", "LargestNoises", "SecureStream", "discrete_gaussian_noise", "events",
    "geometric_noise", "largest_noises", "rounded_laplace", "rounded_normals", "unit_for",
]  # fmt: skip
