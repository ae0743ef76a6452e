"""The worst pair we know for two_stage: the one record that has features decides which feature gets the only vote.

It has the first feature in one dataset and the second in the other, so one count falls while another rises, and the
minimiser moves along whichever of the two was chosen. All other rows are zero, so nobody else votes.
"""

from __future__ import annotations

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pairs.pair import Array, Counted, Pair, Score
from dptoolkit.audit.pairs.perturbed import far_label
from dptoolkit.audit.pairs.selection import check_plan
from dptoolkit.solvers.plan import Plan


def two_stage(plan: Plan) -> Pair:
    """A record along the first feature with a label far away against one along the second, or a zero row."""
    check_plan(plan, "two_stage")
    if plan.d < 2 or not plan.settings.terms.saturates:
        raise invalid("plan", f"d={plan.d}, loss={plan.settings.loss}", "d >= 2 and loss 'huber' for this pair")
    replaced = plan.adjacency is Adjacency.REPLACE_ONE
    label, bound = far_label(plan), plan.settings.row_norm

    def dataset(first: float, second: float) -> Counted:
        X = np.zeros((2, plan.d))
        X[0, :2] = first, second
        return Counted(X, np.array([label, 0.0]), np.array([1, plan.n - 1]))

    score = _score(plan, replaced)
    scores: dict[str, Score] = {"final": score, "releases": score}
    description = "one record with features, which decides the only vote; zero rows"
    return Pair(dataset(bound, 0.0), dataset(0.0, bound if replaced else 0.0), plan.adjacency, description, scores)


def _score(plan: Plan, replaced: bool) -> Score:
    """The log likelihood ratio: of the choice between the two features, and of the weight of each that was chosen."""
    linear, _, votes = plan.releases
    settings = plan.settings
    shift = settings.row_norm / plan.n / linear.scale

    def evidence(weight: Array) -> Array:
        """For a record on this feature: it was chosen for its vote, and the record pulls the weight up."""
        pulled = weight * settings.l2 / linear.scale
        return np.where(weight != 0, 1 / votes.scale + shift * pulled - shift * shift / 2, 0.0)

    def score(features: Array) -> Array:
        weights = np.asarray(features)
        return np.asarray(evidence(weights[:, 0]) - (evidence(weights[:, 1]) if replaced else 0.0))

    return score
