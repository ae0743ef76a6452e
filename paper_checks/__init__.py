"""What papers claim, against what exact accounting, arithmetic and runs of the same algorithms give.

One folder per paper: ``claims.toml`` lists its privacy claims and its other items with the verdict that we expect,
``tables.toml`` holds its printed tables, the functions beside them compute the verdicts, ``README.md`` says them in
words. ``python -m paper_checks`` computes them all and fails if one has changed, in either direction.

Where the algorithm is here to be run, some points of privacy claims are ``audited``: many runs on two neighbouring data
sets give a lower bound that owes nothing to the accounting. It must not exceed the computed truth, and where a point
says ``refuted`` it must exceed the claim.
"""
