"""Rules instead of tuning: clipping, total time, steps and step size from public numbers alone. See docs/rules.md.

After total time tau = steps * step_size, noisy gradient descent carries noise tau * sensitivity / mu on every weight,
whatever the number of steps: T releases of noise sqrt(T) sensitivity / mu, each times tau / T, add up to that. A row of
norm at most R turns it into noise of at most R tau sensitivity / mu on its margin, whatever the number of features. So
the noise that margins may carry, nu, determines tau; steps cost no privacy, and there are as many as keep the descent
stable. All constants are here; they were chosen on rcv1_sub, news20, w8a and a9a.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dptoolkit._validate import LARGEST, SMALLEST, invalid, magnitude, whole
from dptoolkit.losses import BINARY, Loss
from dptoolkit.solvers.bounds import GradientBounds

if TYPE_CHECKING:
    from dptoolkit.adjacency import Adjacency
    from dptoolkit.solvers.gradient_iht import DpIght

    Kind = TypeVar("Kind", bound=DpIght)

# The noise of a margin, as a part of its natural unit. A logistic margin of 1 is odds of 2.7: noise of 0.8 blurs
# those, and the longer descent that it pays for is worth more. Predictions of numbers are blurred less.
MARGIN_NOISE = 0.8
PREDICTION_NOISE = 0.1
# What a binary loss's residual is clipped to. Records that are right by little count in full, those that are wrong no
# more than they: a bias that pays for four times the descent.
RESIDUAL = 0.25
# A step is 1 / (SLACK smoothness); descent is stable for any above 1/2.
SLACK = 0.55
# Fewer steps are not smooth, more take longer than they are worth; the time shrinks with the number then.
FEWEST, MOST = 20, 1500


def residual_curvature(loss: Loss, cap: float) -> float:
    """The largest derivative of a residual that is clipped to +-cap."""
    return loss.smoothness if loss.capped_smoothness is None else loss.capped_smoothness(cap)


def margin_noise(bounds: GradientBounds) -> float:
    """The standard deviation that a margin's noise may have: for numbers, a part of the largest residual."""
    if bounds.loss.task == BINARY:
        return MARGIN_NOISE
    assert bounds.joint_norm is not None
    return PREDICTION_NOISE * bounds.gradient / bounds.joint_norm


def budget_mu(epsilon: float, delta: float) -> float:
    """The mu of a Gaussian release that spends the whole budget."""
    from dptoolkit.accounting import gaussian

    return math.inf if math.isinf(epsilon) else gaussian.mu(epsilon, delta)


def total_time(bounds: GradientBounds, adjacency: Adjacency, n: int, mu: float) -> float:
    """tau at which a margin carries the noise that it may; infinite without noise."""
    assert bounds.joint_norm is not None
    return margin_noise(bounds) * mu / (bounds.joint_norm * bounds.sensitivity(adjacency, n))


def schedule(time: float, smoothness: float, steps: int | None = None, step: float | None = None) -> tuple[int, float]:
    """(steps, step size) for a total time: stable, and with no more noise than the time stands for.

    Where one of the two is given, it is taken as it is and the other follows.
    """
    longest = 1 / (SLACK * smoothness)
    if steps is None:
        wanted = time / (longest if step is None else step)
        steps = min(max(math.ceil(min(wanted, MOST)), FEWEST), MOST)
    return steps, min(time / steps, longest) if step is None else step


def filled(settings: Kind, n: int) -> Kind:
    """Settings with clipping, steps and step size where they were left out; their bounds are checked."""
    if settings.steps is not None:
        whole("steps", settings.steps, low=1)
    if settings.step_size is not None:
        magnitude("step_size", settings.step_size)
    if settings.steps is not None and settings.step_size is not None:
        return clipped(settings)
    norm = settings.bounds.joint_norm
    if norm is None:
        name = "steps" if settings.steps is None else "step_size"
        raise invalid(name, None, "given", "Without row_norm no rule is known; give row_norm, or steps and step_size.")
    chosen = clipped(settings)
    bounds = chosen.bounds
    curvature = residual_curvature(bounds.loss, bounds.gradient / norm) * norm * norm
    mu = budget_mu(chosen.epsilon, chosen.delta)
    time = min(total_time(bounds, chosen.relation, n, mu), LARGEST)
    steps, step = schedule(time, curvature, chosen.steps, chosen.step_size)
    if not SMALLEST <= step <= LARGEST:
        raise invalid("step_size", None, "given", "Where row_norm or the budget is extreme, no rule is known.")
    return replace(chosen, steps=steps, step_size=step)


def clipped(settings: Kind) -> Kind:
    """Gradients of a binary loss are clipped unless the caller has bounded them, or asks for adaptive noise."""
    norm = settings.bounds.joint_norm
    if settings.grad_norm is not None or settings.adaptive or settings.terms.task != BINARY or norm is None:
        return settings
    return replace(settings, grad_norm=RESIDUAL * settings.terms.residual_bound * norm)


# --- the stages of dp_pipeline --------------------------------------------------------------------------------

# Parts of mu^2 for the column means, the eigenvalue, the descent and the scale. They are used up together.
MEANS_SHARE, EIGENVALUE_SHARE, DESCENT_SHARE, SCALE_SHARE = 0.10, 0.01, 0.87, 0.02
# A feature is kept if its noisy mean is above this many standard deviations of the noise: most of what is kept beyond
# is signal, and what little noise comes with it is weighted down by the descent itself.
CUT = 1.5
# Features are weighted with their mean to minus this power: rare words say more than frequent ones.
TEMPERING = 0.25
# The column that stands for the intercept. Rows have norm 1 with it, so it costs two per cent of their length.
LEVEL = 0.2
# The mean of a prepared column goes like its mean to this power: where rows point on average.
MEAN_POWER = 1 - TEMPERING
# The final scale: halvings of an interval of logarithms, with margins clipped so that one record moves little.
HALVINGS, LARGEST_LOG_SCALE, LARGEST_MARGIN = 4, 1.5, 6.0


# --- dp_admm --------------------------------------------------------------------------------------------------

# Updates: the noise of a margin is the same for any number of them, but every update thresholds its own noise, which
# grows with the root of the number.
UPDATES = 5
# What the penalty makes zeros of, in standard deviations of an update's noise: noise alone passes once in a hundred.
THRESHOLD = 2.6
