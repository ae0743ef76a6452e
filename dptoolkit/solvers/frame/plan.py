"""Everything about a private fit that is fixed before the data are seen: its releases, their noise, its plan."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from dptoolkit._validate import invalid, magnitude, noise_scale, nonnegative
from dptoolkit.accounting import (
    Composed,
    Gaussian,
    Guarantee,
    RandomRounds,
    Repeated,
    Subsampled,
    ZCdp,
    account,
    calibrate,
    gaussian,
)
from dptoolkit.accounting.calibrate import SMALLEST
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.guarantee import Claimed
from dptoolkit.accounting.report import Printed, number, table
from dptoolkit.accounting.rounds import RunCountLaw
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import DpToolkitError
from dptoolkit.mechanisms import GaussianNoise, GeometricNoise, LaplaceNoise, NoisyMaximum, SymmetricMaximum
from dptoolkit.mechanisms.objective import GammaTerm, GaussianTerm, Squeeze
from dptoolkit.mechanisms.stability import StabilityTest

if TYPE_CHECKING:
    from dptoolkit.published import Published
    from dptoolkit.solvers.frame.outlook import Outlook
    from dptoolkit.solvers.frame.secure import SecurePlan
    from dptoolkit.solvers.frame.settings import Resolved


# The settings of the solver that a plan is for.
S = TypeVar("S", bound="Resolved", covariant=True)

GAUSSIAN, LAPLACE, GEOMETRIC = "Gaussian", "Laplace", "two-sided geometric"
GUMBEL_MAXIMUM, LAPLACE_MAXIMUM = "Gumbel maximum", "Laplace maximum"
# Among candidates and their negatives, charged for the two that move most.
SYMMETRIC_MAXIMUM = "symmetric Gumbel maximum"
GAUSSIAN_TERM, GAMMA_TERM = "Gaussian linear term", "gamma linear term"
STABILITY_TEST = "Laplace test"
# The law of noise on a query whose sensitivity has no known bound. The noise is drawn, but it guarantees nothing.
UNBOUNDED = "Gaussian, unbounded query"


def _geometric(scale: float, sensitivity: float) -> GeometricNoise:
    return GeometricNoise(sensitivity / scale, round(sensitivity))


class _Unbounded(GaussianNoise):
    """Gaussian noise on a query without a bound; ``sensitivity`` is what a paper assumes."""

    @property
    def event(self) -> Event:  # type: ignore[override]
        """A release for which nothing is guaranteed: rho is infinite."""
        return ZCdp(math.inf)


# A law of noise: (scale, sensitivity) -> the mechanism, which both draws the noise and knows the event of one draw. A
# linear term of an objective also needs the release's squeeze, a test its threshold.
LAWS: dict[str, Callable[..., Any]] = {
    GAUSSIAN: GaussianNoise,
    LAPLACE: LaplaceNoise,
    GEOMETRIC: _geometric,
    GUMBEL_MAXIMUM: lambda scale, sensitivity: NoisyMaximum(scale, sensitivity, "gumbel"),
    SYMMETRIC_MAXIMUM: SymmetricMaximum,
    LAPLACE_MAXIMUM: lambda scale, sensitivity: NoisyMaximum(scale, sensitivity, "laplace"),
    GAUSSIAN_TERM: GaussianTerm,
    GAMMA_TERM: GammaTerm,
    STABILITY_TEST: StabilityTest,
    UNBOUNDED: _Unbounded,
}


@dataclass(frozen=True)
class Sampling:
    """A fresh secret batch for every release: each a share ``rate`` of the records."""

    scheme: str
    rate: float
    adjacency: Adjacency


@dataclass(frozen=True)
class Release:
    """One kind of query that a solver answers with noise, and how often.

    ``sensitivity`` is the L2 sensitivity of a vector (L1 for Laplace noise), or the range of a selection's scores (the
    two largest changes together, for a symmetric one), under the plan's adjacency; ``scale`` is the absolute noise at
    that sensitivity. A solver may lower both by the same factor where a public iterate allows it: their ratio, and so
    the event, stays the same.
    """

    query: str
    law: str
    sensitivity: float
    scale: float
    count: int
    sampling: Sampling | None = None
    round_count_law: RunCountLaw | None = None
    squeeze: Squeeze | None = None
    threshold: float | None = None

    @functools.cached_property
    def mechanism(self) -> Any:
        """The mechanism that draws this release's noise."""
        arguments = tuple(value for value in (self.squeeze, self.threshold) if value is not None)
        return LAWS[self.law](self.scale, self.sensitivity, *arguments)

    @property
    def event(self) -> Event:
        """The event of ONE release, computed from its law, scale and sensitivity; it does not include ``count``."""
        event: Event = self.mechanism.event
        if self.sampling is not None:
            event = Subsampled(event, self.sampling.scheme, self.sampling.rate, self.sampling.adjacency)
        return event if self.round_count_law is None else RandomRounds(event, self.round_count_law)


@dataclass(frozen=True)
class Plan(Printed, Generic[S]):
    """Everything about a private fit that is fixed before the data are seen. It can be printed, tested and audited.

    Attributes
    ----------
    settings : Resolved
        The solver's arguments, with every default filled in.
    n : int
        The number of rows.
    d : int
        The number of features.
    releases : tuple of Release
        What a fit releases, the main release first.
    published : Published or None, default None
        The paper's own noise and claim, for calibration "published".
    secure : SecurePlan or None, default None
        The public facts of secure noise, one part per release; None for noise in floating point.
    """

    settings: S
    n: int
    d: int
    releases: tuple[Release, ...]
    # It follows from the other fields, and is left out of comparisons because it holds functions, which never compare
    # equal.
    published: Published | None = field(default=None, compare=False)
    # The public facts of secure noise (frame/secure.py), from which the releases' charge for rounding comes; None
    # where noise is drawn in doubles.
    secure: SecurePlan | None = field(default=None, compare=False, kw_only=True)

    # Plans that are made of others are those of several fits, and no single run can spend their event.
    is_one_fit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for release in self.releases:
            magnitude(f"sensitivity of the {release.query}", release.sensitivity, "Use less extreme public bounds.")
            noise_scale(f"noise of the {release.query}", release.scale)
            if math.isinf(release.scale):
                raise invalid(f"noise of the {release.query}", release.scale, "finite", "Use a larger epsilon.")

    @property
    def solver(self) -> str:
        """The name of the solver."""
        return self.settings.solver

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of every number in the plan."""
        return self.settings.adjacency

    @property
    def calibration(self) -> str:
        """The origin of the noise: "tight" or "published"."""
        return self.settings.calibration

    @property
    def has_noise(self) -> bool:
        """Whether every release has noise; if not, everything is given away."""
        return all(r.scale > 0 for r in self.releases)

    @functools.cached_property
    def event(self) -> Event:
        """The event of the whole fit; if any release has no noise, everything is given away."""
        if not self.has_noise:
            return Gaussian(0.0)
        return Composed(*(Repeated(r.event, r.count) for r in self.releases))

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything in the plan, by which fits of different plans draw from unrelated streams.

        It is exact to the last bit, because two noises of nearly the same scale from the same draws would reveal the
        draws.
        """
        text = json.dumps(_canonical(self.to_dict()), sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def sensitivity(self) -> float:
        """The sensitivity of the main release."""
        return self.releases[0].sensitivity

    @property
    def noise(self) -> float:
        """The absolute noise scale of the main release."""
        return self.releases[0].scale

    def with_noise(self, *scales: float, factor: float = 1.0) -> Plan:
        """The same plan with other noise: one scale for each release, or ``factor`` times the present scales.

        The event and the guarantee are those of the new noise; a paper's claim for the old noise is dropped.

        Parameters
        ----------
        *scales : float
            One scale per release; none keeps the present scales.
        factor : float, default 1.0
            What all scales are multiplied by.
        """
        nonnegative("factor", factor)
        base_scales = scales or tuple(r.scale for r in self.releases)
        if len(base_scales) != len(self.releases):
            raise invalid("scales", scales, f"{len(self.releases)} numbers, one for each release of {self.solver}")
        releases = (replace(r, scale=factor * s) for r, s in zip(self.releases, base_scales, strict=True))
        changed = replace(self, releases=tuple(releases), published=None)
        if self.secure is None:
            return changed
        return replace(changed, secure=self.secure.with_noise([r.scale for r in changed.releases]))

    @property
    def guarantee(self) -> Guarantee:
        """Computed from ``event``; with published noise it also states what the paper claimed."""
        notes = (*self.settings.notes, f"n = {self.n} and all bounds in the plan are public")
        notes = notes if self.secure is None else (*notes, *self.secure.notes)
        delta = None if math.isinf(self.settings.epsilon) else self.settings.delta
        guarantee = replace(account(self.event, adjacency=self.adjacency), notes=notes, asked_delta=delta)
        if self.published is None:
            return guarantee
        paper = self.published
        conditions = tuple(
            f"{c.text}: {'holds' if c.holds else 'FAILS'} ({c.left:.4g} against {c.right:.4g})"
            for c in paper.conditions
        )
        claimed = Claimed(paper.claim.epsilon, paper.claim.delta, paper.source, conditions)
        return replace(guarantee, claimed=claimed)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``solvers.plan(name, n=, d=, **settings)`` makes the same plan from it.

        A plan with secure noise also has the entry "randomness", and is made again with randomness="secure".
        """
        secure = {} if self.secure is None else {"randomness": self.secure.to_dict()}
        return secure | {
            "solver": self.solver, "n": self.n, "d": self.d, "settings": self.settings.to_dict(),
            "releases": [
                {"query": r.query, "law": r.law, "sensitivity": r.sensitivity, "scale": r.scale, "count": r.count}
                for r in self.releases
            ],
            "event": self.event.to_dict(),
        }  # fmt: skip

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def plot(self, path: str | Path) -> None:
        """The noise of each release and the privacy profile, to a PNG, SVG or PDF file.

        Parameters
        ----------
        path : str or Path
            A file ending in .png, .svg or .pdf.
        """
        from dptoolkit import plots

        plots.save(plots.spending(self), path)

    @property
    def outlook(self) -> Outlook | None:
        """How well the plan can be expected to learn, from public numbers; None where that has not been worked out."""
        return self.settings.outlook(self)

    def __repr__(self) -> str:
        releases = ", ".join(f"{r.count:,} x {r.query} ({r.law} {number(r.scale)})" for r in self.releases)
        return f"<Plan for {self.solver}: n={self.n:,}, d={self.d:,}, {self.adjacency}, {self.calibration}; {releases}>"

    def __str__(self) -> str:
        rows = [[r.query, r.law, number(r.sensitivity), number(r.scale), f"{r.count:,}"] for r in self.releases]
        releases = table(["query", "noise", "sensitivity", "scale", "count"], rows)
        remarks = ["\n".join(f"- {remark}" for remark in self.settings.remarks(self))]
        outlook = [] if self.outlook is None else [str(self.outlook)]
        secure = [] if self.secure is None else [str(self.secure)]
        parts = [self._head, releases, *remarks, *secure, str(self.guarantee), *outlook]
        return "\n\n".join(part for part in parts if part)

    @property
    def _head(self) -> str:
        size = f"n={self.n:,}, d={self.d:,}, {self.adjacency}, calibration {self.calibration}"
        return f"Plan for {self.solver}: {size}\n{self.settings}"


def _canonical(value: Any) -> Any:
    """The value in a form that is the same for equal values: 3, 3.0 and NumPy's 3, or a list and an equal tuple."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(entry) for entry in value]
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        exact = float(value)
        return int(exact) if exact.is_integer() else exact
    return value


# How far above the smallest noise that of a plan may be, relatively: a closer search takes longer than many a fit.
TOLERANCE = 1.5e-4
# The most steps towards a first guess, which is exact after one where rho falls with the square of the noise.
_GUESSES = 4


def smallest_noise(make_event: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """The calibrated noise, 0 for an infinite budget."""
    if math.isinf(epsilon):
        return 0.0
    guess = _first_guess(make_event, epsilon, delta)
    # Where sampling alone keeps the budget, a tiny noise is used all the same, because a plan without noise counts as a
    # release of all records.
    return calibrate(make_event, epsilon, delta, relative_tolerance=TOLERANCE, guess=guess) or SMALLEST


def _first_guess(make_event: Callable[[float], Event], epsilon: float, delta: float) -> float | None:
    """About the noise: that with the rho of a Gaussian release that keeps the budget; None where there is no rho."""
    rho, noise = 0.5 * gaussian.mu(epsilon, delta) ** 2, 1.0
    for _ in range(_GUESSES if rho > 0 else 0):
        try:
            own = account(make_event(noise)).rho
        except DpToolkitError:
            return None
        if not 0 < own < math.inf:
            return None
        factor = math.sqrt(own / rho)
        noise *= factor
        if abs(factor - 1) < 0.01:
            break
    return noise if rho > 0 else None


def with_smallest_noise(release: Release, epsilon: float, delta: float) -> Release:
    """The release with the smallest noise that keeps the budget, if nothing else is released."""
    multiplier = _smallest_multiplier(replace(release, query="", sensitivity=1.0, scale=1.0), epsilon, delta)
    return replace(release, scale=release.sensitivity * multiplier)


@functools.lru_cache(maxsize=128)
def _smallest_multiplier(unit: Release, epsilon: float, delta: float) -> float:
    """The noise of a release of sensitivity 1. It is remembered: a search takes milliseconds, and fits are repeated."""
    return smallest_noise(lambda m: Repeated(replace(unit, scale=m).event, unit.count), epsilon, delta)


@functools.lru_cache(maxsize=256)
def gaussian_multiplier(steps: int, epsilon: float, delta: float) -> float:
    """The noise multiplier for ``steps`` Gaussian releases: exact. It is remembered, because fits are repeated."""
    if math.isinf(epsilon):
        return 0.0
    # Raised by one part in 1e12, so that rounding cannot put the sum of the steps above the budget.
    return math.sqrt(steps) / gaussian.mu(epsilon, delta) * (1 + 1e-12)
