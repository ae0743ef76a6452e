"""Certified minimisers, and the sets that constrain them."""
