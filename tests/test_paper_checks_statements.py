"""Single items of the paper checks: the formula behind a verdict is right, and each verdict can be unfavourable."""

from __future__ import annotations

import itertools

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


@pytest.mark.parametrize(("loss", "name"), [("logistic", "random"), ("squared", "random"), ("logistic", "zero")])
def test_the_change_of_a_score_is_the_largest_that_records_reach(loss, name):
    rng = np.random.default_rng(0)
    w = 3 * rng.dirichlet(np.ones(5)) * rng.choice([-1, 1], 5) if name == "random" else np.zeros(5)
    records = np.array(list(itertools.product([-1.0, 1.0], repeat=5)))
    margins = records @ w
    slopes = 1 / (1 + np.exp(-margins)) if loss == "logistic" else margins
    gradients = np.concatenate([records * (slopes - y)[:, None] for y in (0, 1)])
    largest = (gradients.max(axis=0) - gradients.min(axis=0)).max()
    change = ITEMS["LASSO-ZERO"][1].check.__globals__["score_change"]
    assert change(w, loss) == pytest.approx(largest)
    assert name == "random" or largest == 1


def test_the_factor_of_the_remark_is_beside_that_of_the_introduction():
    rows = {row.label: row for row in judged("KT-R4.10a").rows}
    literal, other = (
        rows[f"{place}, n 800, d 1000, epsilon 0.8, K~^2 = d/3"] for place in ("Remark 4.10", "introduction")
    )
    assert literal.computed == pytest.approx(1000 / 3 / 640) and not literal.agrees
    assert other.computed == pytest.approx(literal.computed * np.sqrt(np.log(1000))) and other.agrees


def test_runs_are_compared_at_the_printed_number_of_nonzeros(monkeypatch):
    names = ITEMS["LASSO-T2f"][1].check.__globals__
    for nonzeros, verdict in ((17.2, "met"), (21.2, "not reached here")):
        monkeypatch.setitem(names, "_measured", lambda *given, k=nonzeros: (k, 56.0, 59.0))
        found = judged("LASSO-T2f")
        assert found.verdict == verdict
        assert {row.label.split(" rows")[0] for row in found.rows} == {"6,000", "8,000"}


# --- every word can be reached ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "verdict", "arguments"),
    [
        ("LASSO-T2e", "worse", {"plant": ["Sparsifier accuracy", 0, 1.0]}),
        ("LASSO-A2i", "worse", {"top": 1.5}),
        ("LASSO-ZERO", "bound broken", {"constant": 0.5}),
        ("SHT-INTRO", "inconsistent", {"own": {"n_eps": -1.0}}),
        ("SHT-ASM", "inconsistent", {"bounded": 5.0}),
        ("SHT-K*", "inconsistent", {"k_star": 1000}),
        ("SHT-K*", "met", {"entries": 2}),
        ("SHT-5.5", "met", {"psi": 1.0}),
        ("KT-4.5c", "inconsistent", {"fixed_power": -1.0}),
        ("LEC-TITLE", "inconsistent", {"bound": 0.5}),
        ("LEC-16.1", "met", {"dimensions": [10]}),
        ("KT-R4.10a", "worse", {"epsilons": [50.0]}),
    ],
)
def test_a_verdict_can_be_unfavourable_or_met(name, verdict, arguments):
    assert judged(name).verdict != verdict
    assert judged(name, **arguments).verdict == verdict


def test_the_start_is_measured_and_not_assumed():
    zero, random = judged("LASSO-ZERO").rows
    assert zero.computed == 1 and 1.9 < random.computed <= 2


def test_a_reading_that_nothing_computes_says_so():
    for name, arguments in (("KT-R4.4", {}), ("IGHT-CV", {"settings": [10]}), ("LASSO-P5", {"repetitions": 1})):
        row = judged(name, **arguments).rows[-1]
        assert (row.published, row.computed) == ("true by its words", "not computed")
        assert "is not computed" in ITEMS[name][1].computes
