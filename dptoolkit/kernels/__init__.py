"""The only Numba code. Import a kernel module on use: importing dptoolkit must not load numba.

Rules: a kernel and every helper it calls live in ONE file (the cache does not notice edits elsewhere); a loss enters by
its integer id; no fastmath; a Generator is passed in. reference.py is the same in readable NumPy and is the
specification.
"""
