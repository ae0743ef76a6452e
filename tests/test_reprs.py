"""What a notebook shows: one short line for every result, its full text as HTML, and nothing that is not escaped."""

from __future__ import annotations

import dataclasses
import html

import numpy as np
import pytest

from dptoolkit import audit, models, solvers, tuning
from dptoolkit.accounting import BestOf, Gaussian, Ledger, Logarithmic, Repeated, ZCdp, account
from dptoolkit.models.joint import ChosenPlan, joint_plan

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
IGHT = {"loss": "logistic", "sparsity": 3, "steps": 4, "step_size": 1.0, "row_norm": 1.0}
# A user's own text, which must not become markup.
EVIL = "<script>alert(1)</script>"


def _plan(epsilon: float = 2.0) -> solvers.Plan:
    return solvers.plan("dp_ight", n=500, d=8, epsilon=epsilon, delta=1e-5, **IGHT)


def _ledger() -> Ledger:
    ledger = Ledger(3.0, 1e-5)
    ledger.spend(_plan().event, label=EVIL)
    return ledger


def _rows() -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((300, 4))
    return X, np.where(X[:, 0] > 0, EVIL, "b")


def _model() -> models.Model:
    names = ("a", EVIL, "c", "d")
    return models.fit(*_rows(), task="classification", epsilon=20.0, rng=0, feature_names=names)


THINGS = {
    "guarantee": lambda: dataclasses.replace(_plan().guarantee, notes=(EVIL,)),
    "claimed": lambda: solvers.plan("dp_ight", n=500, d=8, epsilon=2.0, delta=1e-5, calibration="published", **IGHT)
    .guarantee,
    "many parts": lambda: account(Repeated(Gaussian(20.0), 9)),
    "no epsilon": lambda: account(BestOf(ZCdp(0.1), Logarithmic(0.5))),
    "plan": _plan, "joint": lambda: joint_plan(_plan, 3, 2.0, 1e-5),
    "chosen": lambda: ChosenPlan(_plan(), BestOf(_plan().event, Logarithmic(0.5)), 600, 1e-5),
    "tuning": lambda: tuning.plan("dp_ight", [{"steps": 2}, {"steps": 4}], n=900, d=8, epsilon=2.0, delta=1e-5,
                                  **{k: v for k, v in IGHT.items() if k != "steps"}),
    "ledger": _ledger, "model": _model,
    "fit": lambda: solvers.dp_ight(_rows()[0], np.ones(300), epsilon=2.0, delta=1e-5, rng=0, **IGHT),
    "report": lambda: audit.audit(lambda x, rng: x + rng.normal(), (0.0, 1.0), (1.0, 1e-5), trials=200, rng=0,
                                  neighbours="as given", source=EVIL),
}  # fmt: skip


@pytest.mark.parametrize("name", THINGS)
def test_a_result_is_shown_in_one_short_line_and_as_escaped_text(name):
    thing = THINGS[name]()
    line = repr(thing)
    assert line.startswith(("<", "Ledger(")) and len(line) <= 240
    page = thing._repr_html_()
    assert page.startswith("<pre>") and page.endswith("</pre>")
    inside = page.removeprefix("<pre>").removesuffix("</pre>")
    assert "<" not in inside and ">" not in inside
    assert html.unescape(inside).strip()
    if name in ("guarantee", "ledger", "model", "report"):
        assert html.escape(EVIL) in inside


def test_the_line_of_a_guarantee_says_what_it_guarantees():
    assert repr(_plan().guarantee) == "<Guarantee: epsilon 2 at delta 1e-05, replace-one>"
    assert repr(account(Gaussian(0.0))) == "<Guarantee: epsilon inf at delta 1e-05>"
    assert repr(account(Gaussian(1.0)).group(3)).startswith("<GroupGuarantee for 3 records")


def test_the_page_of_a_joint_plan_is_its_own_and_not_that_of_its_part():
    assert "3 fits" in THINGS["joint"]()._repr_html_()


def test_a_ledger_is_printed_in_lines_that_fit():
    ledger = _ledger()
    ledger.spend(solvers.plan("dp_pipeline", n=5000, d=8, epsilon=0.5, delta=1e-6).event, label="dp_pipeline")
    assert max(map(len, str(ledger).splitlines())) <= 120
