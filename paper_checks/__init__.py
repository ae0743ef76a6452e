"""What papers claim about privacy, against what exact accounting says.

One folder a paper: ``claims.toml`` lists its privacy theorems and noise constants with the verdict we expect
at given parameters, ``check.py`` computes the verdict, ``README.md`` says it in words. ``python -m
paper_checks`` computes them all and fails if one has changed, in either direction.
"""
