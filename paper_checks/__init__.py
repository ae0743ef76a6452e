"""What papers claim about privacy, against what exact accounting says and what an audit shows.

One folder a paper: ``claims.toml`` lists its privacy theorems and noise constants with the verdict we expect
at given parameters, ``check.py`` computes the verdict, ``README.md`` says it in words. ``python -m
paper_checks`` computes them all and fails if one has changed, in either direction.

Where the algorithm is here to be run, some points are ``audited``: many runs on two neighbouring data sets give a
lower bound that owes nothing to the accounting. It must not exceed the computed truth, and where a point says
``refuted`` it must exceed the claim.
"""
