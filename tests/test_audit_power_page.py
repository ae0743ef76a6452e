"""docs/audit-power.md says what the saved audits say, and no solver is left out."""

from __future__ import annotations

from benchmarks import audit_power
from dptoolkit import solvers


def test_page_and_saved_audits_agree():
    page = audit_power.PAGE.read_text(encoding="utf-8")
    assert page == audit_power.page(audit_power.load()), "run: python -m benchmarks.audit_power --page"


def test_another_result_gives_another_page():
    rows = audit_power.load()
    assert audit_power.page([rows[0] | {"few": 7.0}, *rows[1:]]) != audit_power.page(rows)


def test_every_private_solver_has_its_preset_and_five_configurations():
    rows = audit_power.load()
    for solver in solvers.PRIVATE:
        assert len([row for row in rows if row["solver"] == solver]) == 6, solver


def test_the_smallest_factor_found_is_the_first_of_those_found():
    for first in range(len(audit_power.FACTORS)):
        border = audit_power.FACTORS[first]
        assert audit_power.smallest(lambda factor, border=border: factor >= border) == border
    assert audit_power.smallest(lambda factor: False) is None
