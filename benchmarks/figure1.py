"""Validation loss against passes over the data and against thresholdings, as in Figure 1 of Liang et al. 2023.

    python -m benchmarks.figure1 --data-home FOLDER --out figure1.png
    python -m benchmarks.figure1 --data-home FOLDER --out small_steps.png --largest-step 10

DP-IGHT, DP-SGD-HT and DP-SCSG-HT on RCV1-like news at (4, 1e-5) and (6, 1e-5), each with tight noise, about 20 passes
and a step size from a sweep at epsilon 4 on the same held-out rows. No budget was charged for that sweep
(docs/dp_sgd_ht_measured.md). 10 is the largest step size that the paper tried. Without --data-home or DPTOOLKIT_DATA,
synthetic rows of the same shape are used.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import datasets, losses, plots, solvers
from dptoolkit.accounting.report import table
from dptoolkit.datasets import Dataset
from dptoolkit.errors import InvalidValue
from dptoolkit.solvers import DeltaWarning

Array = NDArray[np.float64]
# (passes over the data, thresholdings, validation loss) of every released iterate.
Curve = list[tuple[float, float, float]]

EPSILONS, DELTA = (4.0, 6.0), 1e-5
COMMON: dict[str, Any] = {"loss": "logistic", "row_norm": 1.0, "sparsity": 1000, "delta": DELTA}
IGHT: dict[str, Any] = {"steps": 20}
SGD: dict[str, Any] = {"batch_size": 4096, "steps": 99}
SCSG: dict[str, Any] = {"snapshot_size": 10_000, "batch_size": 2000, "epochs": 14, "option": "II"}
STEP_SIZES = {"DP-IGHT": 512.0, "DP-SGD-HT": 128.0, "DP-SCSG-HT": 64.0}
COLOURS = {"DP-IGHT": "#0072B2", "DP-SGD-HT": "#D55E00", "DP-SCSG-HT": "#009E73"}


@dataclass(frozen=True)
class Split:
    """Rows to fit and rows to validate on."""

    fit: Dataset
    held_out: Dataset

    def loss(self, support: Any, values: Any) -> float:
        """The mean logistic loss of held-out rows at these weights."""
        margins = self.held_out.X[:, support] @ values
        return losses.get("logistic").objective(np.asarray(margins), self.held_out.y)


def load(data_home: str | None) -> Split:
    """rcv1_sub with its held-out part, or synthetic rows of that shape."""
    try:
        parts = (datasets.load("rcv1_sub", split=split, data_home=data_home) for split in ("train", "test"))
        return Split(*parts)
    except InvalidValue as reason:
        print(f"{reason}\nSynthetic rows stand in.")
    every = datasets.make_rcv1_like(n=23_756, rng=0)
    cut = 20_242
    first = Dataset(every.X[:cut], every.y[:cut], every.task, every.name)
    return Split(first, Dataset(every.X[cut:], every.y[cut:], every.task, every.name))


# --- the released iterates of each solver -----------------------------------------------------------------


def ight_curve(split: Split, **fit: Any) -> Curve:
    """A pass and a thresholding a step."""
    result = solvers.dp_ight(split.fit.X, split.fit.y, trace=True, **COMMON, **IGHT, **fit)
    return [(step, step, split.loss(*iterate)) for step, *iterate in result.history["iterates"]]


def sgd_curve(split: Split, **fit: Any) -> Curve:
    """batch_size rows and a thresholding a step."""
    result = solvers.dp_sgd_ht(split.fit.X, split.fit.y, trace=True, **COMMON, **SGD, **fit)
    a_step = SGD["batch_size"] / len(split.fit.y)
    return [(step * a_step, step, split.loss(*iterate)) for step, *iterate in result.history["iterates"]]


def scsg_curve(split: Split, **fit: Any) -> Curve:
    """A snapshot's rows, and in every inner step the gradients of batch_size rows at two points."""
    result = solvers.dp_scsg_ht(split.fit.X, split.fit.y, trace=True, **COMMON, **SCSG, **fit)
    curve = []
    for epoch, (steps, *iterate) in enumerate(result.history["iterates"], start=1):
        rows = epoch * SCSG["snapshot_size"] + 2 * steps * SCSG["batch_size"]
        curve.append((rows / len(split.fit.y), steps, split.loss(*iterate)))
    return curve


METHODS = {"DP-IGHT": ight_curve, "DP-SGD-HT": sgd_curve, "DP-SCSG-HT": scsg_curve}


# --- the figure ------------------------------------------------------------------------------------------


def draw(curves: dict[tuple[float, str], Array], out: Path, name: str, seeds: int) -> None:
    """One row of panels an epsilon: loss against passes, loss against thresholdings."""
    figure, panels = plots.grid(len(EPSILONS), 2, f"Sparse logistic regression on {name}, k = {COMMON['sparsity']:,}")
    lowest = min(runs[:, :, 2].min() for runs in curves.values())
    for row, epsilon in enumerate(EPSILONS):
        for column, axis in enumerate(("passes over the data", "hard thresholdings")):
            axes = panels[2 * row + column]
            title, detail = f"epsilon = {epsilon:g}, delta = {DELTA:g}", f"mean and range of {seeds} seeds"
            plots.describe(axes, title, detail, axis, "validation loss")
            for method, colour in COLOURS.items():
                runs = curves[epsilon, method]
                x, loss = runs.mean(axis=0)[:, column], runs[:, :, 2]
                # All start at w = 0, with a loss of log 2.
                x, loss = np.append(0.0, x), np.hstack([np.full((len(loss), 1), np.log(2)), loss])
                axes.plot(x, loss.mean(axis=0), color=colour)
                end, paper = (x[-1], loss.mean(axis=0)[-1]), {"facecolor": "white", "edgecolor": "none", "pad": 1}
                axes.annotate(method, end, (8, 0), textcoords="offset points", color=colour, va="center", bbox=paper)
                axes.fill_between(x, loss.min(axis=0), loss.max(axis=0), color=colour, alpha=0.2, linewidth=0)
            axes.set_ylim(lowest - 0.02, 0.72)
            axes.set_xlim(left=0)
            axes.locator_params(axis="x", integer=True)
    plots.save(figure, out)


def main() -> None:
    """Fit, print the final losses and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-home", help="folder with rcv1_sub; default: DPTOOLKIT_DATA")
    parser.add_argument("--out", type=Path, default=Path("figure1.png"), help="file for the PNG")
    parser.add_argument("--seeds", type=int, default=5, help="number of runs per method")
    parser.add_argument("--largest-step", type=float, default=np.inf, help="largest step size")
    arguments = parser.parse_args()
    plots.require()
    split = load(arguments.data_home)
    curves = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeltaWarning)
        for epsilon in EPSILONS:
            for method, curve in METHODS.items():
                fit = {"epsilon": epsilon, "step_size": min(STEP_SIZES[method], arguments.largest_step)}
                runs = [curve(split, rng=seed, **fit) for seed in range(arguments.seeds)]
                curves[epsilon, method] = np.array(runs)
    rows = [
        [method, f"{epsilon:g}", f"{runs[0, -1, 0]:.1f}", f"{runs[0, -1, 1]:.0f}", f"{runs[:, -1, 2].mean():.3f}"]
        for (epsilon, method), runs in curves.items()
    ]
    print(table(["method", "epsilon", "passes", "thresholdings", "validation loss"], rows))
    draw(curves, arguments.out, split.fit.name, arguments.seeds)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
