"""docs/audit-power.md says what the saved results say, and every private solver has its rows."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import audit_power
from benchmarks.audit_power import FACTORS, ROWS_EACH, Search, fingerprint, smallest, updated
from benchmarks.configurations import CONFIGURATIONS, named
from dptoolkit import audit, solvers
from dptoolkit.audit import presets
from dptoolkit.errors import DpToolkitError


@pytest.fixture(scope="module")
def saved():
    return audit_power.load()


def test_page_and_saved_results_agree(saved):
    page = audit_power.PAGE.read_text(encoding="utf-8")
    assert page == audit_power.page(saved), "run: python -m benchmarks.audit_power --page"
    assert page != audit_power.page(saved[1:])


def test_every_private_solver_has_six_rows_or_the_page_says_what_is_missing(saved):
    assert set(CONFIGURATIONS) == set(solvers.PRIVATE)
    missing = 0
    for solver, others in CONFIGURATIONS.items():
        assert len(others) == ROWS_EACH - 1
        names = ["preset, epsilon=1", *(named(arguments) for arguments in others)]
        rows = [row["configuration"] for row in saved if row["solver"] == solver]
        assert rows and rows == names[: len(rows)], solver
        missing += ROWS_EACH - len(rows)
    words = f"{missing} of {ROWS_EACH * len(CONFIGURATIONS)} configurations are not measured yet"
    assert (words in " ".join(audit_power.page(saved).split())) == (missing > 0)
    assert ("not measured yet" in audit_power.page(saved)) == (missing > 0)


def test_rows_that_are_loose_or_without_a_pair_are_named(saved):
    page = audit_power.page(saved)
    for row in saved:
        line = next(line for line in page.splitlines() if f"| {row['solver']} | {row['configuration']} |" in line)
        share = row.get("reach", {}).get(row["adversary"])
        assert ("loose" in line) == (share is not None and share < audit_power.TIGHT)
        assert ("not known" in line) == (row["adversary"] is not None and share is None)
        assert ("no pair" in line) == (row["adversary"] is None)
        assert row["adversary"] is not None or row["why"] in page


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.frame.outlook.HopelessPlanWarning")
def test_rows_without_a_pair_have_none_today(saved):
    """A pair that is found later must not leave the page saying that none is known."""
    known = {(row["solver"], row["configuration"]) for row in saved if row["adversary"] is not None}
    for solver, others in CONFIGURATIONS.items():
        for arguments in (one for one in others if (solver, named(one)) not in known):
            plan = solvers.plan(solver, **arguments | {"delta": audit_power.DELTA})
            with pytest.raises(DpToolkitError):
                presets.pair(plan)


@pytest.mark.parametrize("answer", [*FACTORS, math.inf])
def test_the_bisection_finds_the_smallest_factor(answer):
    asked = []

    def found(factor):
        asked.append(factor)
        return factor >= answer

    assert smallest(found) == (answer if answer in FACTORS else None)
    assert len(asked) <= 4


class Known(Search):
    """Audits that find factor f after 9,000 / (f - 1) trials."""

    def _one(self, factor, trials):
        needed = 9_000 / (factor - 1)
        return needed if needed <= trials else math.inf


def test_many_trials_find_less_missing_noise_than_few():
    plan = presets.plan("dp_ight", 1.0, 1e-5)
    search = Known(plan, presets.pair(plan))
    assert (search.smallest(50_000), search.smallest(5_000)) == (1.2, 3.0)


def test_a_factor_is_found_as_an_audit_finds_it():
    """Gaussian noise on a tight pair: from one seed, so this is what the audit says and not an estimate."""
    plan = presets.plan("dp_ight", 8.0, 1e-5)
    search = Search(plan, presets.pair(plan))
    factor = search.smallest(2_000)
    report = audit.audit(plan.with_noise(factor=1 / factor), search.pair, trials=2_000, mode="sequential", alpha=1e-6,
                         adversary=search.adversary, claim=plan.guarantee)  # fmt: skip
    assert report.violated and 1 < factor <= 1.5


def test_rows_are_kept_until_the_plan_or_the_pair_changes(monkeypatch):
    plan = presets.plan("dp_ight", 8.0, 1e-5)
    pair = presets.pair(plan)
    other = plan.with_noise(factor=0.5)
    marks = {fingerprint(plan, pair), fingerprint(other, pair), fingerprint(plan, None),
             fingerprint(plan, audit.Pair(pair.second, pair.first, description=pair.description))}  # fmt: skip
    assert len(marks) == 4 and fingerprint(plan, presets.pair(plan)) in marks
    monkeypatch.setattr(audit_power, "measured", lambda row, *rest: row | {"few": 1.5})
    first = updated("dp_ight", "one", plan, None, True)
    assert json.loads(json.dumps(first)) == first
    assert updated("dp_ight", "one", plan, first, True) is first
    assert updated("dp_ight", "one", other, first, True) is not first
    # What was measured with few trials only is measured again with many.
    assert updated("dp_ight", "one", plan, first, False) is not first


def test_only_known_solvers_are_measured(capsys):
    with pytest.raises(SystemExit):
        audit_power.main(["--only", "nothing"])
    assert "invalid choice" in capsys.readouterr().err
