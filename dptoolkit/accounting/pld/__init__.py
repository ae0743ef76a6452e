"""Privacy-loss distributions composed by FFT, with a lower and an upper bound as the answer.

Upper bound. Each dominating pair is replaced by the pair whose divergence connects the dots of the original's on a
grid of losses (Doroshenko et al. 2022, arXiv:2207.04380): the chords of a convex curve lie above it, so the new pair
dominates, and its loss lives on the grid. Lower bound. The loss of a pair that some neighbours attain is rounded to
the grid with its mean kept, so that the sum of the rounding errors is a martingale, bounded by Hoeffding's inequality.

The sum of the losses is found by one FFT after exponential tilting: with tilt t the law of one loss becomes
p(l) exp(t l)/M(t), whose sum is centred where the answer lies, so delta = 1e-18 keeps as many digits as delta = 0.1.
Wrap-around adds mass only (harmless above), mass beyond the window is bounded by Chernoff, and round-off by a floor
added to every grid point. A random number N of rounds is the generating function of N applied to the transform.

Memory: at most 2^22 grid points, about 400 MB at the peak. A composition that would need more gets a coarser grid,
which is looser and still sound.

The rooms, in the order of one account: ``trees`` (events to pairs, and the tree of a whole event), ``grid`` (one pair
on a grid of losses), ``composition`` (the sum of all losses: tilting and the FFT), ``tail`` (delta and epsilon from the
law of the sum), ``curve`` (the grid that is good at one delta) and ``answers`` (both questions, both directions, finer
grids where one is not enough). ``single`` answers for one release, without a grid. For Gaussian steps on batches
without replacement ``game`` follows an adversary through many steps: ``blocks`` from above, which puts pairs of many
steps into the tree, and ``adversary`` from below. ``lower`` has the lower bounds of all events.
"""

from dptoolkit.accounting.pld.answers import (
    Bracket,
    Effort,
    delta,
    delta_answer,
    divergences,
    epsilon,
    epsilon_answer,
    forward_epsilon,
    keeps,
)
from dptoolkit.accounting.pld.curve import Answer
from dptoolkit.accounting.pld.lower import bracket, lower_epsilon, lower_profiles
from dptoolkit.accounting.pld.trees import attained, dominating, has_batches

__all__ = [
    "Answer", "Bracket", "Effort", "attained", "bracket", "delta", "delta_answer", "divergences", "dominating",
    "epsilon", "epsilon_answer", "forward_epsilon", "has_batches", "keeps", "lower_epsilon",
    "lower_profiles",
]  # fmt: skip
