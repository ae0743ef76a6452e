"""Noise and selection: each object holds the sampler and the event of one call."""

from dptoolkit.mechanisms.discrete import DiscreteGaussianNoise
from dptoolkit.mechanisms.noise import GaussianNoise, GeometricNoise, LaplaceNoise
from dptoolkit.mechanisms.randomness import as_generator
from dptoolkit.mechanisms.rounded import RoundedGaussianNoise, RoundedLaplaceNoise
from dptoolkit.mechanisms.selection import NoisyMaximum, SymmetricMaximum

__all__ = [
    "DiscreteGaussianNoise", "GaussianNoise", "GeometricNoise", "LaplaceNoise", "NoisyMaximum", "RoundedGaussianNoise",
    "RoundedLaplaceNoise", "SymmetricMaximum", "as_generator",
]  # fmt: skip
