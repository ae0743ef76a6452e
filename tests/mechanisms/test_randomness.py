"""Several Generators as one: what each run draws is its own."""

from __future__ import annotations

import numpy as np
import pytest

from dptoolkit.audit.streams import Streams, TrialStreams, place
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms.randomness import Generators


@pytest.mark.parametrize("draw", ["standard_normal", "standard_exponential"])
def test_several_generators_never_share_a_draw(draw):
    """A first axis of 1 would be stretched over all parts, and give several runs the same noise."""
    several = Generators(*(np.random.default_rng(seed) for seed in range(3)))
    alone = [getattr(np.random.default_rng(seed), draw)(4) for seed in range(3)]
    np.testing.assert_array_equal(getattr(several, draw)((3, 4)), alone)
    for shape in [(1, 4), (4,), (2, 4), ()]:
        with pytest.raises(InvalidValue, match="of 3 parts"):
            getattr(several, draw)(shape)


def test_the_streams_of_trials_never_share_a_draw_either():
    generator = Streams(4, "t").generator()
    memory = place(generator)
    assert memory is not None
    with pytest.raises(InvalidValue, match="of 3 parts"):
        TrialStreams(generator, memory, np.arange(3)).standard_normal((1, 4))
