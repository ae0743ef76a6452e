"""Pictures of guarantees, plans, models and audits, in one style; they need matplotlib (the extra "plots")."""

from dptoolkit.plots.audits import claimed_trade_off, trade_off, trade_off_curve
from dptoolkit.plots.models import convergence, errors, support, weights
from dptoolkit.plots.privacy import guarantee_trade_off, noise, profile, profile_curve, spending
from dptoolkit.plots.style import COLOURS, apart, budgets, describe, grid, lines, require, save

__all__ = [
    "COLOURS", "apart", "budgets", "claimed_trade_off", "convergence", "describe", "errors", "grid",
    "guarantee_trade_off", "lines", "noise",
    "profile", "profile_curve", "require", "save", "spending", "support", "trade_off", "trade_off_curve",
    "weights",
]  # fmt: skip
