"""Accounting for differential privacy, standing alone: math, NumPy and scipy.special.

    >>> from dptoolkit.accounting import Gaussian, Repeated, Subsampled, account, calibrate
    >>> step = Subsampled(Gaussian(1.5), "poisson", rate=0.01)
    >>> guarantee = account(Repeated(step, 1000))
    >>> round(guarantee.epsilon(1e-5), 2)
    0.92

Describe what was released with events, ask ``account`` what that guarantees, or ``calibrate`` for the smallest noise.
"""

from dptoolkit.accounting import (
    composition,
    events,
    gaussian,
    google,
    objective,
    pld,
    rdp,
    rounds,
    rules,
    sampling,
    selection,
    tradeoff,
    zcdp,
)
from dptoolkit.accounting.calibrate import calibrate
from dptoolkit.accounting.events import (
    ApproxDp,
    BestOf,
    Composed,
    DiscreteGaussian,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NoisyMax,
    ObjectivePerturbation,
    PureDp,
    RandomizedResponse,
    RandomRounds,
    Repeated,
    SampledGroup,
    ShiftedZCdp,
    Subsampled,
    TruncatedPoisson,
    TwoSidedGeometric,
    ZCdp,
)
from dptoolkit.accounting.group import GroupGuarantee
from dptoolkit.accounting.guarantee import Guarantee, account
from dptoolkit.accounting.ledger import Ledger, Reservation
from dptoolkit.accounting.methods import METHODS
from dptoolkit.accounting.rounds import (
    Geometric,
    Logarithmic,
    Poisson,
    TruncatedGeometric,
    TruncatedNegativeBinomial,
)
from dptoolkit.adjacency import Adjacency

__all__ = [
    "METHODS", "Adjacency", "ApproxDp", "BestOf", "Composed", "DiscreteGaussian", "Event", "ExponentialMechanism",
    "Gaussian", "Geometric", "GroupGuarantee", "Guarantee", "Laplace", "Ledger", "Logarithmic", "MixtureOfGaussians",
    "NoisyMax", "ObjectivePerturbation", "Poisson", "PureDp", "RandomRounds", "RandomizedResponse", "Repeated",
    "Reservation", "SampledGroup", "ShiftedZCdp", "Subsampled", "TruncatedGeometric", "TruncatedNegativeBinomial",
    "TruncatedPoisson", "TwoSidedGeometric", "ZCdp", "account", "calibrate", "composition", "events", "gaussian",
    "google", "objective", "pld", "rdp", "rounds", "rules", "sampling", "selection", "tradeoff", "zcdp",
]  # fmt: skip
