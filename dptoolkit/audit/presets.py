"""Presets for audits: for every private solver a small plan for which its worst pair shows much of the guarantee."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dptoolkit import solvers
from dptoolkit._validate import invalid, one_of
from dptoolkit.accounting import gaussian
from dptoolkit.audit import pairs
from dptoolkit.audit.claims import Claim, GaussianClaim, ReleaseClaim, as_claim
from dptoolkit.audit.pair import Pair
from dptoolkit.solvers.frame.plan import UNBOUNDED, Plan
from dptoolkit.solvers.frame.settings import PUBLISHED, TIGHT

# The settings of each preset, n and d included; epsilon, delta and calibration are given by the caller.
_CLIPPED: dict[str, Any] = {"loss": "squared", "grad_norm": 1.0, "step_size": 1.0}
_BALL: dict[str, Any] = {"l1_radius": 0.1, "feature_bound": 1.0}
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "dp_ight": {"n": 200, "d": 20, "sparsity": 5, "steps": 20, **_CLIPPED},
    "dp_dual_averaging": {"n": 200, "d": 20, "sparsity": 5, "steps": 20, **_CLIPPED},
    # So few rows that the number of steps is the smallest there is, whatever the eigenvalue.
    "dp_pipeline": {"n": 60, "d": 3},
    "dp_sgd_ht": {"n": 200, "d": 4, "sparsity": 2, "steps": 10, "batch_size": 160, **_CLIPPED},
    # Twenty inner steps, of which the first can show nothing: for an adversary who sees all iterates.
    "dp_scsg_ht": {"n": 5000, "d": 4, "sparsity": 2, "epochs": 1, "snapshot_size": 4000, "batch_size": 200,
                   "option": "II", "sampling": "poisson", "adjacency": "replace-one", **_CLIPPED},
    # There is one inner step an epoch, which starts at the snapshot and so has no noise. The preset is for an adversary
    # who sees the final model.
    "dp_svrg_ht": {"n": 199, "d": 4, "sparsity": 2, "epochs": 10, "batch_size": 100, "option": "II", "loss": "logistic",
                   "row_norm": 1.0, "step_size": 0.01},
    "dp_frank_wolfe": {"n": 100, "d": 4, "loss": "logistic", "steps": 10, **_BALL},
    "sparsifier": {"n": 100, "d": 9, "loss": "logistic", "steps": 10, "count_share": 0.5, **_BALL},
    "dp_multinomial_frank_wolfe": {"n": 100, "d": 4, "classes": 3, "steps": 10, **_BALL},
    # Steps so short that the noise keeps the weights near 0, where the pair is tight.
    "peeling_iht": {"n": 100, "d": 10, "sparsity": 3, "steps": 5, "step_size": 0.01, "radius": 1.0,
                    "feature_bound": 1.0, "label_bound": 1.0},
    # Little curvature beside the regulariser: the minimiser is nearly the noise itself.
    "objective_perturbation": {"n": 100, "d": 1, "loss": "huber", "l2": 1.0, "row_norm": 1.0},
    "two_stage": {"n": 20, "d": 2, "loss": "huber", "l2": 1.0, "row_norm": 1.0, "sparsity": 1, "blocks": 1},
    "knowledge_transfer": {"n": 20, "d": 2, "loss": "huber", "l2": 1.0, "feature_bound": 1.0, "sparsity": 1, "m": 10},
    # So small a penalty that nothing is hidden from an adversary who sees every update.
    "dp_admm": {"n": 20, "d": 2, "loss": "huber", "rho": 1.0, "row_norm": 1.0, "weight": 0.01, "steps": 3},
})  # fmt: skip
# Theorem 5.1 is for batches of fixed size and, for option II, snapshots of a whole number of batches.
_PUBLISHED: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "dp_scsg_ht": {"n": 200, "d": 4, "sparsity": 2, "epochs": 2, "snapshot_size": 160, "batch_size": 80, "option": "II",
                   **_CLIPPED},
    "dp_svrg_ht": {"n": 200, "d": 4, "sparsity": 2, "epochs": 2, "batch_size": 100, "option": "II", **_CLIPPED},
    # The teacher's support flips with one record.
    "knowledge_transfer": {"n": 101, "d": 2, "loss": "squared", "l2": 1.0, "row_norm": 1.0, "feature_bound": 1.0,
                           "label_bound": 1.0, "sparsity": 1},
})  # fmt: skip


def plan(name: str, epsilon: float, delta: float, *, published: bool = False) -> Plan:
    """The plan of a solver's preset."""
    one_of("solver", name, tuple(PRESETS))
    settings = _PUBLISHED.get(name, PRESETS[name]) if published else PRESETS[name]
    calibration = PUBLISHED if published else TIGHT
    return solvers.plan(name, epsilon=epsilon, delta=delta, calibration=calibration, **settings)


def pair(preset: Plan) -> Pair:
    """The worst pair we know for a plan."""
    worst: Pair = getattr(pairs, preset.solver)(preset)
    return worst


def claim(preset: Plan) -> Claim:
    """The claim of a plan: its guarantee or, with published noise, what the paper claims for that noise.

    A paper claims one point (epsilon, delta). As the mechanism is known, the claim is tested as a whole profile: that
    of the same mechanism with the noise that (epsilon, delta) needs, the member of its family with that epsilon.
    """
    own = as_claim(preset.guarantee)
    if preset.guarantee.claimed is None:
        return own
    assert isinstance(own, ReleaseClaim)
    epsilon, delta = preset.guarantee.claimed.epsilon, preset.guarantee.claimed.delta
    if preset.releases[0].law == UNBOUNDED:
        # One Gaussian release that guarantees nothing: its family is that of Gaussian mechanisms.
        return GaussianClaim(gaussian.mu(epsilon, delta))
    return member(own, epsilon, delta)


def member(own: ReleaseClaim, epsilon: float, delta: float) -> ReleaseClaim:
    """The member of a claim's family with this epsilon at ``delta``, from the side of less privacy."""
    low, high = 0.0, 1.0
    while own.weakened(high).epsilon(delta) < epsilon:
        low, high = high, 2 * high
        if high > 1e6:
            raise invalid("epsilon", epsilon, "reached by the family of the claim")
    while high - low > 1e-4 * high:
        middle = math.sqrt(low * high) if low > 0 else 0.5 * high
        low, high = (middle, high) if own.weakened(middle).epsilon(delta) < epsilon else (low, middle)
    return own.weakened(high)
