"""A private choice with secure noise: exact numbers of runs, integer scores, one generator for everything."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dptoolkit import solvers, tuning
from dptoolkit.accounting import Ledger
from dptoolkit.accounting.rounds import TruncatedNegativeBinomial
from dptoolkit.errors import InvalidValue
from dptoolkit.randomness import SecureStream
from dptoolkit.randomness.rounds import geometric_rounds, logarithmic_rounds
from dptoolkit.tuning import search
from tests.statistics import assert_chi2, assert_ks, rejected

pytestmark = pytest.mark.filterwarnings("ignore:.*noise is too large", "ignore:.*too much noise")

CHOICE = {"loss": "logistic", "sparsity": 4, "row_norm": 1.0, "epsilon": 2.0, "delta": 1e-6, "expected_runs": 4}


def data(n=200):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 6))
    return X, (X[:, 0] > 0).astype(float)


@pytest.mark.parametrize("eta", [1.0, 0.0], ids=["geometric", "logarithmic"])
def test_the_number_of_runs_has_its_law(eta):
    """Chi-square against the law that is charged; twin: a geometric number that is always kept."""
    gamma, stream, count = 0.125, SecureStream.seeded(1), 4000
    law = TruncatedNegativeBinomial(eta, gamma)
    draw = geometric_rounds if eta == 1 else logarithmic_rounds
    draws = np.array([draw(stream, Fraction(gamma)) for _ in range(count)])
    k = np.arange(1, 12)
    chances = gamma * (1 - gamma) ** (k - 1) if eta == 1 else (1 - gamma) ** k / k / math.log(1 / gamma)
    seen = np.append([(draws == j).sum() for j in k], (draws > k[-1]).sum())
    expected = np.append(chances, 1 - chances.sum())
    assert_chi2(seen, expected)
    assert abs(draws.mean() - law.mean) < 6 * draws.std() / math.sqrt(count)
    other = geometric_rounds if eta == 0 else logarithmic_rounds
    wrong = np.array([other(stream, Fraction(gamma)) for _ in range(count)])
    rejected(assert_chi2, np.append([(wrong == j).sum() for j in k], (wrong > k[-1]).sum()), expected)


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_scores_are_whole_numbers_with_rounded_noise(loss):
    bounds = {"label_bound": 1.0, "margin_bound": 1.0} if loss == "squared" else {}
    settings = CHOICE | {"loss": loss, **bounds}
    own = {"score_bound": 1.0} if loss == "squared" else {}
    plan = tuning.plan("dp_ight", [{"steps": 2}, {"steps": 3}], n=200, d=6, randomness="secure", **settings, **own)
    X, y = data()
    model = solvers.dp_ight(X, y, rng=0, steps=2, **{k: v for k, v in settings.items() if k != "expected_runs"})
    stream, scale = SecureStream.seeded(2), plan.score.scale
    scores = np.array([plan.scoring.noisy(model, X, y, scale, stream) for _ in range(400)])
    exact = plan.scoring.of(model, X, y)
    assert_ks((scores - exact) / scale, "norm")
    rejected(assert_ks, 0.5 * (scores - exact) / scale, "norm")
    # A row's contribution is from 0 to the width, whatever the model predicts.
    each = plan.scoring.each(model, X * 1e300, y)
    assert (each >= 0).all() and each.max() <= plan.scoring.width


def test_a_secure_choice_is_made_and_charged():
    X, y = data()
    ledger = Ledger(epsilon=3.0, delta=1e-5)
    candidates = [{"steps": 2}, {"steps": 3}]
    result = tuning.tune("dp_ight", candidates, X, y, randomness="secure", ledger=ledger, **CHOICE)
    assert result.plan.secure is not None and "secure noise" in str(result.guarantee) and len(ledger.entries) == 1
    assert result.model.plan.secure is not None
    with pytest.raises(InvalidValue, match="rng='given'"):
        tuning.tune("dp_ight", candidates, X, y, randomness="secure", rng=0, **CHOICE)
    with pytest.raises(InvalidValue, match="rng='given'"):
        search.tune_by(result.plan, X, y, rng=0)
