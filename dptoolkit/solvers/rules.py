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
from dptoolkit.losses import BINARY, MULTICLASS, REGRESSION, Loss
from dptoolkit.solvers.bounds import GradientBounds

if TYPE_CHECKING:
    from dptoolkit.adjacency import Adjacency
    from dptoolkit.solvers.thresholding import ThresholdingSettings

    Kind = TypeVar("Kind", bound=ThresholdingSettings)

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
# The noise multiplier of one batch's gradient for which the rule makes batches large enough. Those cost a tenth more
# noise than whole passes do; smaller ones cost much more, as one release then tells whether a record was in the batch.
BATCH_MULTIPLIER = 4.0
# Objective perturbation: the noise of a margin where the loss is flat. Where it is curved there is less.
PERTURBED_MARGIN_NOISE = 0.3
# Frank-Wolfe: the mean of +-x_j/feature_bound that the noise of all 2d scores may hide, and the radius in units of
# sqrt(steps)/feature_bound.
HIDDEN_SIGNAL, RADIUS = 0.006, 3.3
FEWEST_VERTICES, MOST_VERTICES = 5, 1000


def residual_curvature(loss: Loss, cap: float) -> float:
    """The largest derivative of a residual that is clipped to +-cap."""
    return loss.smoothness if loss.capped_smoothness is None else loss.capped_smoothness(cap)


def margin_noise(bounds: GradientBounds) -> float:
    """The standard deviation that a margin's noise may have: for numbers, a part of the largest residual."""
    if bounds.loss.task == BINARY:
        return MARGIN_NOISE
    # Two classes are told apart by the difference of two margins.
    if bounds.loss.task == MULTICLASS:
        return MARGIN_NOISE / math.sqrt(2)
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
    curvature = residual_curvature(bounds.loss, bounds.gradient / norm) * norm * norm + chosen.penalty
    mu = budget_mu(chosen.epsilon, chosen.delta)
    time = min(total_time(bounds, chosen.relation, n, mu), LARGEST)
    steps, step = schedule(time, curvature, chosen.steps, chosen.step_size)
    if not SMALLEST <= step <= LARGEST:
        raise invalid("step_size", None, "given", "Where row_norm or the budget is extreme, no rule is known.")
    return replace(chosen, steps=steps, step_size=step)  # type: ignore[call-arg]  # those that have steps


def clipped(settings: Kind) -> Kind:
    """Gradients of a classifier are clipped unless the caller has bounded them, or asks for adaptive noise."""
    norm = settings.bounds.joint_norm
    if settings.grad_norm is not None or settings.adaptive or settings.terms.task == REGRESSION or norm is None:
        return settings
    return replace(settings, grad_norm=RESIDUAL * settings.terms.residual_norm(math.inf, math.inf) * norm)


def batch_size(n: int, steps: int, mu: float) -> int:
    """Rows of a batch: so many that the noise of ``steps`` batches is hardly more than that of whole passes.

    T releases of whole passes need a multiplier of sqrt(T)/mu; batches of a share q need about q sqrt(T)/mu, as long as
    that is well above 1.
    """
    share = BATCH_MULTIPLIER * mu / math.sqrt(steps)
    return n if share >= 1 else max(math.ceil(n * share), 1)


def penalty(bounds: GradientBounds, adjacency: Adjacency, n: int, epsilon: float, delta: float) -> float:
    """l2 of objective perturbation: a linear term's noise moves a margin by at most row norm * noise / l2.

    It is never below curvature/n, nor so small that the change of volume, log(1 + curvature/(n l2)), takes more than
    half of epsilon.
    """
    assert bounds.joint_norm is not None and bounds.smoothness is not None
    allowed = PERTURBED_MARGIN_NOISE if bounds.loss.task == BINARY else margin_noise(bounds)
    wanted = bounds.joint_norm * bounds.sensitivity(adjacency, n) / (budget_mu(epsilon, delta) * allowed)
    return max(wanted, bounds.smoothness / n * max(1.0, 2 / epsilon))


def vertices(n: int, d: int, feature_bound: float, label_bound: float | None, mu: float) -> tuple[int, float]:
    """(steps, radius) of private Frank-Wolfe: as many selections as leave a feature's signal above the noise.

    One selection of T has Gumbel noise of about 2 sqrt(T)/(n mu) on the mean gradient, in units of its largest entry,
    and the largest of 2d such draws is log(2d) times that. For numbers the radius is what reaches the label's bound.
    """
    reach = HIDDEN_SIGNAL * n * mu / (2 * math.log(2 * d))
    steps = round(min(max(reach * reach, FEWEST_VERTICES), MOST_VERTICES))
    return steps, (RADIUS * math.sqrt(steps) if label_bound is None else label_bound) / feature_bound


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
# Numbers: the column of the intercept, what a gradient is clipped to, and the noise of a prediction, the last two in
# units of the label's bound.
NUMBER_LEVEL, NUMBER_RESIDUAL, NUMBER_NOISE = 0.4, 0.25, 0.2


def pipeline_bounds(loss: Loss) -> tuple[float, float, float]:
    """(usual, largest bound of a gradient at rows of norm 1, noise of a margin) of dp_pipeline."""
    if loss.task == REGRESSION:
        return NUMBER_RESIDUAL, 2.0, NUMBER_NOISE
    largest = loss.residual_norm(math.inf, math.inf)
    return RESIDUAL * largest, largest, MARGIN_NOISE / (math.sqrt(2) if loss.task == MULTICLASS else 1.0)


# --- dp_admm --------------------------------------------------------------------------------------------------

# Updates: the noise of a margin is the same for any number of them, but every update thresholds its own noise, which
# grows with the root of the number.
UPDATES = 5
# What the penalty makes zeros of, in standard deviations of an update's noise: noise alone passes once in a hundred.
THRESHOLD = 2.6
