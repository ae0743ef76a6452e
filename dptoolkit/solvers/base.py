"""What all private solvers share: the plan made without data, the checks before data, and the result."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import LARGEST, delta_value, invalid, magnitude, noise_scale, one_of, real, whole
from dptoolkit.accounting import Composed, Gaussian, Guarantee, Ledger, Repeated, account, calibrate
from dptoolkit.accounting.account import Claimed
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.report import number, table
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import DpToolkitError

if TYPE_CHECKING:
    from dptoolkit.accounting.published import Published

Array = NDArray[np.float64]
TIGHT, PUBLISHED = "tight", "published"


class DeltaWarning(UserWarning):
    """delta is so large that publishing a few whole records would be allowed."""


@dataclass(frozen=True)
class Release:
    """One kind of query that a solver answers with noise, and how often.

    ``sensitivity`` is the L2 sensitivity of a vector, or the range of a selection's scores, under the plan's adjacency;
    ``scale`` is the absolute noise at that sensitivity. A solver may lower both together where a public iterate allows
    it:
    their ratio, and so ``event``, stays.
    """

    query: str
    law: str
    sensitivity: float
    scale: float
    event: Event
    count: int


@dataclass(frozen=True)
class Plan:
    """Everything about a private fit that is fixed before the data are seen. It can be printed, tested and audited."""

    solver: str
    n: int
    d: int
    adjacency: Adjacency
    calibration: str
    releases: tuple[Release, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Determined by the other fields; it holds functions, which never compare equal.
    published: Published | None = field(default=None, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Plans travel to other processes, where audits run them; a read-only mapping does not travel by itself."""
        fields = (self.solver, self.n, self.d, self.adjacency, self.calibration, self.releases)
        return make_plan, (*fields, dict(self.settings), self.published)

    @property
    def event(self) -> Event:
        """What the whole fit releases; a release without noise gives everything away, whatever the others do."""
        if any(r.scale == 0 for r in self.releases):
            return Gaussian(0.0)
        return Composed(*(Repeated(r.event, r.count) for r in self.releases))

    @property
    def sensitivity(self) -> float:
        """The sensitivity of the main release."""
        return self.releases[0].sensitivity

    @property
    def noise(self) -> float:
        """The absolute noise scale of the main release."""
        return self.releases[0].scale

    @property
    def guarantee(self) -> Guarantee:
        """Computed from ``event``; with published noise it also states what the paper claimed."""
        notes = (f"n = {self.n} and all bounds in the plan are public",)
        guarantee = replace(account(self.event, adjacency=self.adjacency), notes=notes)
        if self.published is None:
            return guarantee
        paper = self.published
        conditions = tuple(
            f"{c.text}: {'holds' if c.holds else 'FAILS'} ({c.left:.4g} against {c.right:.4g})"
            for c in paper.conditions
        )
        claimed = Claimed(paper.claim.epsilon, paper.claim.delta, paper.source, conditions)
        return replace(guarantee, claimed=claimed)

    def __str__(self) -> str:
        rows = [
            [r.query, r.law, number(r.sensitivity), number(r.scale), f"{r.count:,}"] for r in self.releases
        ]
        settings = ", ".join(f"{key}={value}" for key, value in self.settings.items() if value is not None)
        head = f"Plan for {self.solver}: n={self.n:,}, d={self.d:,}, {self.adjacency}, calibration {self.calibration}"
        releases = table(["query", "noise", "sensitivity", "scale", "count"], rows)
        return "\n\n".join([f"{head}\n{settings}", releases, str(self.guarantee)])


@dataclass(frozen=True)
class FitResult:
    """A fitted model. ``guarantee`` and ``plan`` are None for non-private fits.

    ``history`` holds public facts of the run (noise scales, chosen vertices); with ``diagnostics=True`` it also holds
    quantities that are NOT private, under the key "not_private".
    """

    coef: Array
    intercept: float | Array
    guarantee: Guarantee | None
    plan: Plan | None
    history: Mapping[str, Any]


class Trace(NamedTuple):
    """One run of a private solver on prepared data: what it returns and, if asked for, everything it released.

    ``weights`` are all weights, an intercept's last. ``releases`` is what the accountant charges, in order, one row a
    step: a noisy gradient, or the number of a chosen vertex. ``iterates`` are the weights after every step. Both are
    None unless the run was asked to keep them.
    """

    weights: Array
    history: dict[str, Any]
    releases: Array | None = None
    iterates: Array | None = None


class Trials(NamedTuple):
    """Many runs at once, as arrays whose first axis is the trial; what was not asked for, or is not kept, is None."""

    weights: Array
    releases: Array | None = None
    iterates: Array | None = None


class Run(Protocol):
    """A private solver with plan and data in place: a call does nothing but the iteration, as often as wanted."""

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace: ...


def make_plan(
    solver: str, n: int, d: int, adjacency: Adjacency, calibration: str, releases: tuple[Release, ...],
    settings: Mapping[str, Any], published: Published | None = None,
) -> Plan:
    """A plan whose settings cannot be changed."""
    for release in releases:
        usable(release.query, release.sensitivity)
        noise_scale(f"noise of the {release.query}", release.scale)
        if math.isinf(release.scale):
            raise invalid(f"noise of the {release.query}", release.scale, "finite", "Ask for a larger epsilon.")
    return Plan(solver, n, d, adjacency, calibration, releases, MappingProxyType(dict(settings)), published)


def usable(query: str, sensitivity: float) -> float:
    """The sensitivity, unless the public bounds are so extreme that it, or its noise, could over- or underflow."""
    return magnitude(f"sensitivity of the {query}", sensitivity, "Use less extreme public bounds.")


def check_size(n: Any, d: Any) -> tuple[int, int]:
    """n and d of a plan."""
    return whole("n", n, low=1), whole("d", d, low=1)


def check_budget(epsilon: Any, delta: Any, n: int) -> tuple[float, float]:
    """The requested budget; a delta of 1/n or more is allowed with a warning."""
    epsilon = real("epsilon", epsilon, low=0.0, open_low=True, repair="Use math.inf for a fit without privacy.")
    if math.isinf(epsilon):
        return epsilon, 0.0
    delta = delta_value(delta)
    if delta == 0:
        raise invalid("delta", 0.0, "> 0 for Gaussian noise or composed selections", "For example 1e-6.")
    if delta >= 1 / n:
        warnings.warn(
            f"delta={delta:g}: should be well below 1/n={1 / n:.3g}; a mechanism that publishes a random record whole "
            "has delta = 1/n.",
            DeltaWarning,
            stacklevel=3,
        )
    return epsilon, delta


def check_counts(plan: Plan, shape: tuple[int, int], counts: Any) -> NDArray[np.int64] | None:
    """How often each of the rows occurs, None for once; together they are the plan's n rows of d features."""
    times = None if counts is None else np.array(counts)
    if times is not None and not (times.shape == shape[:1] and times.dtype.kind in "iu" and (times >= 0).all()):
        raise invalid("counts", counts, f"{shape[0]} integers >= 0, one for every row of X")
    n = shape[0] if times is None else int(times.sum())
    if (n, shape[1]) != (plan.n, plan.d):
        given = f"{n} rows of {shape[1]} features"
        raise invalid("X", given, f"the {plan.n} rows of {plan.d} features of the plan for {plan.solver}")
    return None if times is None else times.astype(np.int64)


def check_calibration(calibration: Any) -> str:
    """'tight' or 'published'."""
    return one_of("calibration", calibration, (TIGHT, PUBLISHED))


def check_sparsity(sparsity: Any, d: int) -> int:
    """1 <= sparsity <= d."""
    s = whole("sparsity", sparsity, low=1)
    if s > d:
        raise invalid("sparsity", s, f"<= d={d}", "It counts the features that are kept.")
    return s


def public_bound(name: str, value: Any, meaning: str) -> float:
    """A bound that must be given: it is never learnt from the data."""
    if value is None:
        repair = f"It is {meaning}, chosen without looking at the data; what lies beyond it is clipped."
        raise invalid(name, None, "given", repair)
    return magnitude(name, value)


def check_l2(l2: Any) -> float:
    """The weight of an L2 term, which may be 0."""
    return real("l2", l2, low=0.0, high=LARGEST)


def gaussian_multiplier(steps: int, epsilon: float, delta: float) -> float:
    """The noise multiplier for ``steps`` Gaussian releases: exact."""
    from dptoolkit.accounting import gaussian

    if math.isinf(epsilon):
        return 0.0
    # One part in 1e12 more, so that rounding cannot put the sum of the steps above the budget.
    return math.sqrt(steps) / gaussian.mu(epsilon, delta) * (1 + 1e-12)


def smallest_noise(make_event: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """The calibrated noise, 0 for an infinite budget. The search starts where zCDP, which is cheap, says."""
    if math.isinf(epsilon):
        return 0.0
    try:
        guess = calibrate(make_event, epsilon, delta, method="zcdp", relative_tolerance=0.01)
    except DpToolkitError:
        guess = 1.0
    return calibrate(make_event, epsilon, delta, guess=guess)


def reserve(ledger: Ledger | None, plan: Plan) -> None:
    """Refuse, before the data are used, what the ledger cannot pay for."""
    if ledger is not None:
        if not isinstance(ledger, Ledger):
            raise invalid("ledger", ledger, "a dptoolkit.accounting.Ledger or None")
        ledger.check(plan.event, adjacency=plan.adjacency)


def record(ledger: Ledger | None, plan: Plan) -> None:
    """Spend what was released."""
    if ledger is not None:
        ledger.spend(plan.event, label=plan.solver, adjacency=plan.adjacency)


def split_intercept(w: Array, fit_intercept: bool, level: float = 1.0) -> tuple[Array, float]:
    """(coef, intercept) from weights whose last column, of constant ``level``, is the intercept's."""
    if not fit_intercept:
        return w, 0.0
    return w[:-1], float(w[-1] * level)
