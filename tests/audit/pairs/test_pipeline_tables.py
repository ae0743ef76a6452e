"""The pair for tables with bounds: its score is the exact likelihood ratio, an audit finds each fault of a stage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dptoolkit import audit, solvers
from dptoolkit.audit import pairs
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.pair import check_neighbours
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.errors import InvalidValue, PrivacyViolation
from dptoolkit.solvers._pipeline_tables import HISTOGRAMS, MEAN_ROW, TableRun
from tests.statistics import ALPHA

pytestmark = pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning")
# So few records that the number of steps is sure, and so much budget that no stage is left out.
TABLE = {"n": 40, "d": 3, "delta": 1e-5, "bounds": ([-5.0, 10.0, 0.0], [5.0, 300.0, 1.0])}


def make(epsilon=4.0, **more):
    return solvers.plan("dp_pipeline", epsilon=epsilon, **TABLE | more)


def only(plan, query):
    """The plan with so much noise in all other releases that this one is nearly all that is given away."""
    return plan.with_noise(*(r.scale if r.query == query else 20 * r.scale for r in plan.releases))


def sharper(plan, query, factor):
    """The plan with less noise in one release."""
    return plan.with_noise(*(r.scale * factor if r.query == query else r.scale for r in plan.releases))


def test_neighbours_whose_score_is_the_likelihood_ratio():
    """E[e^-L | first] = E[e^L | second] = 1 for the exact log ratio L, by 5 standard errors, and L tells them apart."""
    plan = make(4.0)
    pair = pairs.dp_pipeline(plan)
    check_neighbours(pair)
    source = Streams(1, "test")
    bits = source.bits(0, 500)
    ratio = pair.scores["releases"](PlanTarget(plan, pair, "releases").run(bits, 0, source))
    for values in (-ratio[bits == 1], ratio[bits == 0]):
        weights = np.exp(values)
        assert abs(weights.mean() - 1) <= 5 * weights.std() / math.sqrt(len(weights))
        assert values.mean() < -5 * values.std() / math.sqrt(len(values))


HOW = {"power": None, "alpha": ALPHA, "adversary": "releases"}


def test_the_whole_plan_keeps_its_claim_and_is_found_with_less_noise():
    """One sequential test with a false-alarm rate of 1e-6."""
    plan = make()
    pair = pairs.dp_pipeline(plan)
    assert 0.85 <= pair.reach["releases"] <= 1.0
    audit.assert_private(plan, pair, as_claim(plan.guarantee), trials=600, **HOW)
    with pytest.raises(PrivacyViolation):
        audit.assert_private(plan.with_noise(factor=1 / 3), pair, as_claim(plan.guarantee), trials=800, **HOW)


def counted_twice(plan, patch):
    """A histogram that counts a record twice."""
    counts = TableRun._counts
    patch.setattr(TableRun, "_counts", lambda self, *a: [2 * own for own in counts(self, *a)])
    return plan


def one_column_less(plan, patch):
    """Noise for k - 1 of the k numeric columns."""
    numeric = len(plan.settings.bounds.numeric)
    return sharper(plan, HISTOGRAMS, math.sqrt((numeric - 1) / numeric))


def nonnegative_rows(plan, patch):
    """A centring with the sensitivity of non-negative rows, on ranks, which are signed."""
    return sharper(plan, MEAN_ROW, 1 / math.sqrt(2))


@pytest.mark.parametrize(("fault", "query", "trials"), [
    (counted_twice, HISTOGRAMS, 1500), (one_column_less, HISTOGRAMS, 4000), (nonnegative_rows, MEAN_ROW, 4000),
])  # fmt: skip
def test_every_fault_of_a_stage_is_found(fault, query, trials, monkeypatch):
    """The stage is made to matter by more noise elsewhere; without the fault the same test finds nothing."""
    plan = only(make(40.0), query)
    pair, claim = pairs.dp_pipeline(plan), as_claim(plan.guarantee)
    audit.assert_private(plan, pair, claim, trials=100, **HOW)
    with monkeypatch.context() as patch, pytest.raises(PrivacyViolation):
        audit.assert_private(fault(plan, patch), pair, claim, trials=trials, **HOW)


@pytest.mark.parametrize("more", [
    {"adjacency": "zero-out"}, {"loss": "squared", "label_bound": 1.0}, {"n": 20, "epsilon": 1.0}, {"bounds": (0, 1)},
])  # fmt: skip
def test_plans_without_such_a_pair_are_refused(more):
    with pytest.raises(InvalidValue):
        pairs.dp_pipeline(make(**{"epsilon": 4.0} | more))


def test_the_releases_of_a_fit_have_a_fixed_shape():
    """Which bins are divided depends on the noise, and how long a trace is does not."""
    plan = make(8.0)
    pair = pairs.dp_pipeline(plan)
    run = solvers.bind(plan, pair.first.X, pair.first.y, pair.first.counts)
    shapes = {run(np.random.default_rng(seed), trace=True).releases.shape for seed in range(20)}
    assert len(shapes) == 1
