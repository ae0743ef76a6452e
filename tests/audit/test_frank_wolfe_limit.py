"""What a pair of records can show of Frank-Wolfe's guarantee, where the residual depends on the weights.

The best plan of which selections keep the residuals large and which show the record, found by dynamic programming in a
model of the weights: in the model no order of selections shows more. That is an argument, not a proof for all pairs of
records. LIMITATIONS.md and ``audit/theory/control.py`` state these numbers.
"""

from __future__ import annotations

import numpy as np
import pytest


def best_share(radius: float, steps: int) -> float:
    """The largest root of the mean of (sigmoid(radius s) / sigmoid(radius))^2 over the selections that show the record.

    s is the share of the weights that lies on vertices which lower the margins of both records. A selection of such a
    vertex adds to s and shows nothing; any other one shows the record and takes the step's share away from s. Steps are
    2 / (t + 2), as the solver's.
    """
    s = np.linspace(0.0, 1.0, 801)
    shown = ((1 + np.exp(-radius)) / (1 + np.exp(-radius * s))) ** 2
    value = np.zeros_like(s)
    for t in range(steps, 0, -1):
        kept = (1 - 2 / (t + 2)) * s
        value = np.maximum(shown + np.interp(kept, s, value), np.interp(kept + 2 / (t + 2), s, value))
    return float(np.sqrt(value[0] / steps))


@pytest.mark.parametrize(("steps", "share"), [(20, 0.681), (200, 0.669), (1000, 0.667)])
def test_no_order_of_selections_shows_more_at_radius_3_in_the_model(steps, share):
    assert best_share(3.0, steps) == pytest.approx(share, abs=2e-3)


def test_a_small_ball_and_a_large_one_show_nearly_all():
    assert best_share(0.1, 20) > 0.95
    assert best_share(100.0, 200) > 0.95
