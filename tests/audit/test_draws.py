"""Tests that draw by hypothesis draw the same in every worker, whatever has run there before."""

from __future__ import annotations

import importlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[tuple[int, str]]:
    found = []

    @settings(derandomize=True, database=None, max_examples=200)
    @given(st.integers(), st.floats())
    def collect(whole, number):
        found.append((whole, repr(number)))

    collect()
    return found


@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE", "ci") != "ci", reason="nightly draws are new every time")
def test_draws_do_not_depend_on_the_modules_that_are_loaded(tmp_path, monkeypatch):
    providers = pytest.importorskip("hypothesis.internal.conjecture.providers")
    if not hasattr(providers, "_get_local_constants"):
        pytest.skip("this Hypothesis has no such name, and conftest.py cannot switch its constants off")
    before = drawn()
    assert len(set(before)) > 100
    (tmp_path / "module_with_constants.py").write_text("SEEN = 987_654_321, 12345.678, 1e-77\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("module_with_constants")
    assert drawn() == before
