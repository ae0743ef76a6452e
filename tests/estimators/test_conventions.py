"""scikit-learn's own checks, none of them excused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from tests.estimators.cases import CLASSIFIERS, MORE_METHODS, REGRESSORS, SEARCHES, TRANSFORMERS


# scikit-learn's checks fit to tiny data, on which estimators warn in their own words and in those of scikit-learn.
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([*CLASSIFIERS, *REGRESSORS, *SEARCHES, *TRANSFORMERS])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(MORE_METHODS[:1])
def test_scikit_learn_conventions_of_another_method_of_the_same_class(estimator, check):
    check(estimator)


def test_a_notebook_shows_an_estimator_without_a_warning():
    """scikit-learn reads docstrings for what it shows and does not know our sections; pytest has filters of its own."""
    program = (
        "from sklearn.pipeline import make_pipeline; from dptoolkit import estimators as e\n"
        "make_pipeline(e.ClipRows(1.0), e.PrivateSparseClassifier(classes=[0, 1]))._repr_html_()\n"
        "e.PrivateSparseRegressor()._repr_html_()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
