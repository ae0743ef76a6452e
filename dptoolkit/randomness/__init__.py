"""Noise that cannot be undone: a cryptographic stream of words, and exact samplers that draw from it."""

from dptoolkit.randomness.stream import GENERATOR, SecureStream

__all__ = ["GENERATOR", "SecureStream"]
