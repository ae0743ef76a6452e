"""Rules instead of tuning: clipping, total time, steps and step size from public numbers alone. See docs/rules.md.

After total time tau = steps * step_size, noisy gradient descent carries noise tau * sensitivity / mu on every weight,
whatever the number of steps: T releases of noise sqrt(T) sensitivity / mu, each times tau / T, add up to that. A row of
norm at most R turns it into noise of at most R tau sensitivity / mu on its margin, whatever the number of features. So
the noise that margins may carry, nu, determines tau; steps cost no privacy, and there are as many as keep the descent
stable. All constants are here; they were chosen on rcv1_sub, news20, w8a and a9a.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dptoolkit._validate import LARGEST, SMALLEST, invalid, magnitude, whole
from dptoolkit.accounting import gaussian
from dptoolkit.losses import BINARY, MULTICLASS, REGRESSION, Loss
from dptoolkit.solvers.engine.bounds import GradientBounds

if TYPE_CHECKING:
    from dptoolkit.adjacency import Adjacency
    from dptoolkit.solvers.engine.descent import ThresholdingSettings

# The standard deviation that the noise of a margin may have, as a part of the margin's natural unit. A logistic margin
# of 1 means odds of 2.7. Noise of 0.8 blurs such odds, but the longer descent that it allows is worth more. Predictions
# of numbers get less noise.
MARGIN_NOISE = 0.8
PREDICTION_NOISE = 0.1
# The residual of a binary loss is clipped to this. Then records that are wrong count no more than those that are barely
# right. That is a bias, but it allows a descent that is four times as long.
RESIDUAL = 0.25
# The step size is 1 / (SLACK smoothness); descent is stable for every SLACK above 1/2.
SLACK = 0.55
# The least and the largest number of steps. With fewer the descent is not smooth; more take longer than they are worth,
# and where the rule asks for more, the total time of the descent is cut.
FEWEST, MOST = 20, 1500
# Batches are made so large that the noise multiplier of one batch's gradient is this. They need a tenth more noise than
# whole passes. Smaller batches need much more, because a single release then shows whether a record was in the batch.
BATCH_MULTIPLIER = 4.0
# For objective perturbation: the noise of a margin where the loss is flat; where it is curved the noise is smaller.
PERTURBED_MARGIN_NOISE = 0.3
# For Frank-Wolfe: the noise of all 2d scores may hide a mean of +-x_j/feature_bound up to the first number. The radius
# is the second number times sqrt(steps)/feature_bound.
HIDDEN_SIGNAL, RADIUS = 0.006, 3.3
FEWEST_VERTICES, MOST_VERTICES = 5, 1000


def residual_curvature(loss: Loss, cap: float) -> float:
    """The largest derivative of a residual that is clipped to +-cap."""
    return loss.smoothness if loss.capped_smoothness is None else loss.capped_smoothness(cap)


def first_residual(classes: int) -> float:
    """The norm of a record's softmax residual at weights of zero: what noise and clipping are measured by.

    For two classes it is 1/sqrt(2), which makes the fit a logistic one; each of their two margins carries as much less
    noise as is right for a difference.
    """
    return math.sqrt(1 - 1 / classes)


def margin_noise(bounds: GradientBounds, classes: int = 2) -> float:
    """The standard deviation that a margin's noise may have: for regression, a part of the largest residual."""
    if bounds.loss.task == BINARY:
        return MARGIN_NOISE
    if bounds.loss.task == MULTICLASS:
        return MARGIN_NOISE * first_residual(classes)
    return PREDICTION_NOISE * bounds.gradient / bounds.joint_norm


@functools.lru_cache(maxsize=256)
def budget_mu(epsilon: float, delta: float) -> float:
    """The mu of a Gaussian release that spends the whole budget. It is remembered, because fits are repeated."""
    return math.inf if math.isinf(epsilon) else gaussian.mu(epsilon, delta)


def total_time(bounds: GradientBounds, adjacency: Adjacency, n: int, mu: float, classes: int = 2) -> float:
    """The total time tau after which a margin has the largest noise that it may have; infinite without noise."""
    return margin_noise(bounds, classes) * mu / (bounds.joint_norm * bounds.sensitivity(adjacency, n))


def schedule(time: float, smoothness: float, steps: int | None = None, step: float | None = None) -> tuple[int, float]:
    """(steps, step size) for a total time: stable, and with no more noise than the time stands for.

    Where one of the two is given, it is taken as it is and the other follows.
    """
    longest = 1 / (SLACK * smoothness)
    if steps is None:
        count = time / (longest if step is None else step)
        steps = min(max(math.ceil(min(count, MOST)), FEWEST), MOST)
    return steps, min(time / steps, longest) if step is None else step


# Descent along released second moments: the least number of steps; how many times more steps plain descent must need in
# the worst case for the second moments to be worth their noise; and the most columns of their matrix.
PRECONDITIONED_STEPS, WORTH, MOST_COLUMNS = 40, 40, 1000


def preconditioned_steps(time: float, curvature: float, width: int, noise: float) -> int:
    """Steps of a descent along second moments of ``width`` columns that have this noise.

    The noise is a symmetric matrix whose eigenvalues are at most about sqrt(2 width) * noise. The ridge, T / (SLACK
    time), must be as large as that, times the curvature: then the step is stable in every direction.
    """
    floor = curvature * math.sqrt(2 * width) * noise
    return max(PRECONDITIONED_STEPS, math.ceil(min(SLACK * time * floor, LARGEST)))


def is_preconditioned(time: float, curvature: float, width: int, noise: float) -> bool:
    """Whether the second moments are worth their noise: a decision on public numbers alone.

    Plain descent takes SLACK curvature time steps if all rows have the same direction, and fewer in proportion to the
    largest eigenvalue of their second moments, which is not known when the plan is made.
    """
    if width > MOST_COLUMNS:
        return False
    return SLACK * curvature * time >= WORTH * preconditioned_steps(time, curvature, width, noise)


def filled(settings: ThresholdingSettings, steps: int | None, adjacency: Adjacency, n: int) -> dict[str, Any]:
    """The values of clipping, steps and step size, also where they were left out; the bounds are checked."""
    if steps is not None:
        whole("steps", steps, low=1)
    if settings.step_size is not None:
        magnitude("step_size", settings.step_size)
    own = replace(settings, grad_norm=clipping(settings))
    if steps is not None and settings.step_size is not None:
        return {"grad_norm": own.grad_norm, "steps": steps, "step_size": settings.step_size}
    bounds, norm = own.bounds, own.bounds.joint_norm
    if math.isinf(norm):
        name = "steps" if steps is None else "step_size"
        raise invalid(name, None, "given", "The rule needs row_norm: give it, or give steps and step_size.")
    curvature = residual_curvature(bounds.loss, bounds.gradient / norm) * norm * norm + own.penalty
    mu = budget_mu(own.epsilon, own.delta)
    time = min(total_time(bounds, adjacency, n, mu, own.class_count or 2), LARGEST)
    count, step = schedule(time, curvature, steps, own.step_size)
    if not SMALLEST <= step <= LARGEST:
        raise invalid("step_size", None, "given", "There is no rule for such an extreme row_norm or budget.")
    return {"grad_norm": own.grad_norm, "steps": count, "step_size": step}


def clipping(settings: ThresholdingSettings) -> float | None:
    """The bound of a gradient: a classifier's is clipped unless its caller bounds it or asks for adaptive noise."""
    loss, norm = settings.loss_row, settings.bounds.joint_norm
    if settings.grad_norm is not None or settings.adaptive or loss.task == REGRESSION or math.isinf(norm):
        return settings.grad_norm
    return _usual_residual(loss, settings.class_count or 2) * norm


def _usual_residual(loss: Loss, classes: int) -> float:
    """The bound to which a classifier's residual is clipped; for softmax half of the first one, as for two classes."""
    if loss.task == MULTICLASS:
        return 2 * RESIDUAL * first_residual(classes)
    return RESIDUAL * loss.residual_norm(math.inf, math.inf)


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
    margin_limit = PERTURBED_MARGIN_NOISE if bounds.loss.task == BINARY else margin_noise(bounds)
    l2 = bounds.joint_norm * bounds.sensitivity(adjacency, n) / (budget_mu(epsilon, delta) * margin_limit)
    return max(l2, bounds.smoothness / n * max(1.0, 2 / epsilon))


def vertices(n: int, d: int, feature_bound: float, label_bound: float | None, mu: float) -> tuple[int, float]:
    """(steps, radius) of private Frank-Wolfe: as many selections as leave a feature's signal above the noise.

    One selection of T has Gumbel noise of about 2 sqrt(T)/(n mu) on the mean gradient, in units of its largest entry,
    and the largest of 2d such draws is log(2d) times that. For numbers the radius is what reaches the label's bound.
    """
    reach = HIDDEN_SIGNAL * n * mu / (2 * math.log(2 * d))
    steps = round(min(max(reach * reach, FEWEST_VERTICES), MOST_VERTICES))
    return steps, (RADIUS * math.sqrt(steps) if label_bound is None else label_bound) / feature_bound


# --- the stages of dp_pipeline --------------------------------------------------------------------------------

# The parts of mu^2 for the column means, the eigenvalue, the descent and the scale; they add up to 1.
MEANS_SHARE, EIGENVALUE_SHARE, DESCENT_SHARE, SCALE_SHARE = 0.10, 0.01, 0.87, 0.02
# A feature is kept if its noisy mean is above this many standard deviations of the noise. Most of these features are
# signal, and the descent gives little weight to the few that are noise.
CUT = 1.5
# Features are weighted with their mean to minus this power: rare words say more than frequent ones.
TEMPERING = 0.25
# The entry of the intercept's column. Rows have norm 1 with it, so it takes two per cent of their length.
LEVEL = 0.2
# The mean of a prepared column is about proportional to its noisy mean to this power, which gives the average direction
# of prepared rows.
MEAN_POWER = 1 - TEMPERING
# The final scale: the number of halvings, the interval of its logarithm (from minus to plus this), and the bound to
# which margins are clipped, so that one record moves a slope little.
HALVINGS, LARGEST_LOG_SCALE, LARGEST_MARGIN = 4, 1.5, 6.0
# Numbers: the column of the intercept, what a gradient is clipped to, and the noise of a prediction, the last two in
# units of the label's bound.
NUMBER_LEVEL, NUMBER_RESIDUAL, NUMBER_NOISE = 0.4, 0.25, 0.2
# Tables with public bounds: the parts of mu^2 for the ranks of columns and for centring, which the other stages share
# where a stage is left out; the number of releases of a histogram, and of its bins; the largest noise of a bin's share,
# and the longest noise of a mean row, at which the stage is of use.
RANKS_SHARE, CENTRE_SHARE = 0.10, 0.05
ROUNDS, BINS, RANKS_NOISE, CENTRE_NOISE = 3, 16, 0.2, 1.0
# A bin that holds more than this share of the records is divided again.
PARTED_SHARE = 0.4
# A classifier's rows are centred if the squared length of their mean is estimated above this.
CENTRED_FROM = 0.25
# Regression on tables: the share of records on each side that may lie outside the range to which a column is scaled,
# and what a gradient is clipped to, in units of the label's bound.
SPREAD_TAIL, TABLE_RESIDUAL = 0.02, 0.10


def table_norm(d: int) -> float:
    """The norm of a row of d columns that are spread evenly over [-1, 1]."""
    return math.sqrt(d / 3)


def pipeline_bounds(loss: Loss, classes: int, is_table: bool = False) -> tuple[float, float, float]:
    """(usual, largest bound of a gradient at rows of norm 1, noise of a margin) of dp_pipeline."""
    if loss.task == REGRESSION:
        return TABLE_RESIDUAL if is_table else NUMBER_RESIDUAL, 2.0, NUMBER_NOISE
    noise = MARGIN_NOISE * (first_residual(classes) if loss.task == MULTICLASS else 1.0)
    return _usual_residual(loss, classes), loss.residual_norm(math.inf, math.inf), noise


# --- dp_admm --------------------------------------------------------------------------------------------------

# The number of updates. The noise of a margin does not depend on it, but every update thresholds its own noise, which
# grows with the root of this number.
UPDATES = 5
# The penalty sets weights below this many standard deviations of an update's noise to zero; noise alone exceeds it once
# in a hundred times.
THRESHOLD = 2.6
