"""What the solvers without privacy share: how their docstrings are completed, and how weights become a result."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit.solvers.base import DATA_PARAMETERS, FitResult

Function = TypeVar("Function", bound=Callable[..., Any])

# The parameters that several of these solvers have.
_TEXTS = {
    "loss": f"{losses.described(losses.SCALAR)}.",
    "sparsity": "Number of features that are kept; an intercept is kept besides.",
    "steps": "Number of iterations.",
    "step_size": "Length of a step.",
    "batch_size": "Number of rows of a batch.",
    "l2": "Weight of a term l2/2 |w|^2.",
    "fit_intercept": "Add a column of ones.",
    "rng": "Fresh entropy, a seed or a Generator, from which batches are drawn.",
    "trace": 'True keeps every iterate, a number k every k-th, in history["iterates"] as (step, support, values).',
    "label_values": "The two labels of a binary loss if they are not 0 and 1, the positive one last.",
}
_END = """Returns
-------
FitResult
    The model; its ``guarantee`` and ``plan`` are None.

Privacy
-------
NOT private: no record is bounded and no noise is drawn, so one record can change the whole model."""


def without_privacy(**texts: str) -> Callable[[Function], Function]:
    """Complete the docstring of a solver without privacy, by its signature; ``texts`` describe its own parameters."""

    def complete(function: Function) -> Function:
        described = _TEXTS | texts
        lines = ["Parameters", "----------", DATA_PARAMETERS]
        for name, parameter in list(inspect.signature(function).parameters.items())[2:]:
            kind = "None, int or numpy.random.Generator" if name == "rng" else parameter.annotation
            default = "" if parameter.default is parameter.empty else f", default {parameter.default!r}"
            text = textwrap.fill(described[name], 112, initial_indent="    ", subsequent_indent="    ")
            lines += [f"{name} : {kind}{default}", text]
        function.__doc__ = "\n\n".join([inspect.cleandoc(function.__doc__ or ""), "\n".join(lines), _END])
        return function

    return complete


def plain_result(weights: NDArray[np.float64], history: dict[str, Any], fit_intercept: bool) -> FitResult:
    """The result of a fit without a plan; an intercept's weight is the last."""
    coef, intercept = (weights[:-1], float(weights[-1])) if fit_intercept else (weights, 0.0)
    return FitResult(coef, intercept, None, None, history)
