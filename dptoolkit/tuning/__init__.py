"""A private choice among settings: the best of a random number of runs, charged as a whole."""

from dptoolkit.tuning.choice import TuningPlan, grid, plan
from dptoolkit.tuning.search import TuningResult, tune

__all__ = ["TuningPlan", "TuningResult", "grid", "plan", "tune"]
