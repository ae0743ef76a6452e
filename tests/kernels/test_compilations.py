"""How much a first fit compiles: nothing twice without a reason, and no more than was counted when it was last cut.

A second signature of a kernel, a helper that is compiled for two kinds of callers, or an assignment to a slice, which
compiles the text of its error message, add a second each to the first fit; in seconds nobody would notice.
"""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.lib.first_fit import CASES, compilations
from dptoolkit import solvers

# Functions compiled by the first fit, Numba's own included, and how many of them are ours. Numba's own vary with its
# version, so that there is some room for them.
MOST = {
    "dp_ight, csr": (16, 11), "dp_ight, dense": (10, 7), "dp_frank_wolfe, csr": (30, 21),
    "dp_frank_wolfe, dense": (16, 7), "dp_sgd_ht, csr": (24, 12), "dp_scsg_ht, csr": (27, 17),
}  # fmt: skip
# Of ours, those that are compiled both for kernels and for helpers; each is a few lines.
TWICE = {"dp_scsg_ht, csr": {"coin"}}
# Fits for which the kernels of another are enough.
ALIKE = {
    "dp_sgd_ht, csr": ("dp_sgd_ht, dense",),
    "dp_scsg_ht, csr": ("dp_scsg_ht, dense", "dp_svrg_ht, csr", "dp_svrg_ht, dense"),
}


# One case on each of the two kinds of kernels: the thresholds' and the vertices'. A case starts several new processes.
ALWAYS = ("dp_ight, csr", "dp_frank_wolfe, csr")


@pytest.mark.parametrize("case", [c if c in ALWAYS else pytest.param(c, marks=pytest.mark.slow) for c in MOST])
def test_a_first_fit_compiles_no_more_than_it_did(case, tmp_path):
    done = compilations(case, str(tmp_path))
    most, ours = MOST[case]
    own = [one for one in done if one.module.startswith("dptoolkit.")]
    assert len(own) <= ours, sorted(one.function for one in own)
    assert len(done) <= most, sorted(one.function for one in done)
    names = Counter(one.function for one in own)
    assert {name for name, count in names.items() if count > 1} <= TWICE.get(case, set())
    # The error message of a slice assignment is text, which no kernel needs.
    assert not [one for one in done if "unicode" in one.module]
    for again in (case, *ALIKE.get(case, ())):
        assert compilations(again, str(tmp_path)) == [], again


def test_every_solver_has_a_case():
    for name in solvers.PRIVATE:
        assert {f"{name}, csr", f"{name}, dense"} <= set(CASES)
