"""scikit-learn's own checks, none of them excused."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from tests.estimators.cases import CLASSIFIERS, MORE_METHODS, REGRESSORS, TRANSFORMERS


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([*CLASSIFIERS, *REGRESSORS, *MORE_METHODS[:1], *TRANSFORMERS])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)
