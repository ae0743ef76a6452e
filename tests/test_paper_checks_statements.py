"""Single items of the paper checks: the formula behind a verdict is right, and each verdict can be unfavourable."""

from __future__ import annotations

import numpy as np
import pytest

from paper_checks import seeds
from paper_checks.__main__ import ROOT
from paper_checks.claims import load, paper_folders
from paper_checks.items import find

PAPERS = [load(folder) for folder in paper_folders(ROOT, [])]
ITEMS = {item.id: (paper, item) for paper in PAPERS for item in paper.items}


def judged(name, **arguments):
    """The finding of an item, with its own arguments or with others in place of some of them."""
    paper, item = ITEMS[name]
    return find(item, paper.tables, seeds.source(0, paper.name, item.id), None, arguments)


# --- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(3))
def test_the_noise_on_kept_coordinates_is_what_a_simulation_gives(place):
    row = judged("SHT-4.2c").rows[place]
    d, k = [(47_236, 1000), (150_360, 200), (784, 200)][place]
    assert f"d {d:,}, k {k:,}" in row.label
    rng = np.random.default_rng(place)
    values = []
    for _ in range(100 if d > 1000 else 2000):
        squares = rng.standard_normal(d) ** 2
        # The support before is any k coordinates that do not depend on the noise: the first ones.
        chosen = np.zeros(d, bool)
        chosen[np.argpartition(squares, d - k)[d - k :]] = True
        chosen[:k] = True
        values.append(squares[chosen].sum() / k)
    error = np.std(values) / np.sqrt(len(values))
    # Five standard errors: an error rate below 1e-6.
    assert abs(np.mean(values) - row.computed) < 5 * error
