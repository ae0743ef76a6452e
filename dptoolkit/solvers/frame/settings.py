"""Typed settings of a solver: what a caller asks for, and what a plan holds.

The solver's plan, its public function with signature and docstring, and its JSON all come from its settings. A class
derived from Settings says what a caller may choose (its fields, which may be None), which values are allowed and how
defaults are filled in (``resolved``). A class derived from Resolved has the same fields, and nothing that the solver
needs is None: it says what is released (``releases``) and what runs on the data (``bind``). Numbers that follow from
the choices are properties, never stored.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import textwrap
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from dptoolkit._validate import LARGEST, delta_value, flag, invalid, magnitude, one_of, real, warn, whole
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_classes, check_labels, check_rows
from dptoolkit.losses import MULTICLASS, Loss
from dptoolkit.solvers.frame import outlook
from dptoolkit.solvers.frame.outlook import Outlook
from dptoolkit.solvers.frame.plan import Plan, Release
from dptoolkit.solvers.frame.secure import not_secure
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.data.blocks import CheckedBlocks
    from dptoolkit.published import Published
    from dptoolkit.solvers.frame.run import Run


TIGHT, PUBLISHED = "tight", "published"
Self = TypeVar("Self", bound="Settings")
Kind = TypeVar("Kind", bound="Resolved")


class DeltaWarning(UserWarning):
    """delta is so large that publishing a few whole records would be allowed."""


def setting(text: str, **default: Any) -> Any:
    """A field of a settings class; ``text`` is its description in the generated docstrings."""
    return field(metadata={"text": text}, **default)


@dataclass(frozen=True, kw_only=True)
class Settings(ABC):
    """The settings that all private solvers share."""

    solver: ClassVar[str]

    epsilon: float = setting(
        "Epsilon of the total budget of the fit; ``math.inf`` adds no noise, but records are still clipped."
    )
    delta: float = setting("Delta of the total budget; must be above 0 unless epsilon is infinite.", default=0.0)
    adjacency: Adjacency | str | None = setting(
        'Which datasets are neighbours: "replace-one" or "zero-out".', default=Adjacency.REPLACE_ONE
    )
    calibration: str = setting(
        '"tight" for the exact accounting, or "published" for the paper\'s own constant; the guarantee then '
        "states the claim and the truth.",
        default=TIGHT,
    )

    # --- what a solver defines ---------------------------------------------------------------------

    @property
    @abstractmethod
    def loss_row(self) -> Loss:
        """The row of the loss table."""

    @abstractmethod
    def resolved(self, n: int, d: int) -> Resolved:
        """These settings for n rows and d features, every value checked and every default filled in.

        An adjacency that was given is an Adjacency already.
        """

    def validated_rows(self, X: Any, n_features: int | None = None) -> Rows:
        """X in the layout that the solver works on; ``n_features`` is its public width."""
        rows = check_rows(X, n_features, copy=not self.reads_in_place)
        if rows.is_single and not self.reads_single:
            repair = "The solver would convert them to float64 at every step: use data.prepare(X) without dtype."
            raise invalid("X", "rows in single precision", f"float64 for {self.solver} with these settings", repair)
        return rows

    @property
    def reads_single(self) -> bool:
        """Whether rows in single precision are read as they are."""
        return False

    @property
    def reads_in_place(self) -> bool:
        """Whether a fit reads a dense X in blocks, never writes to it, and keeps nothing of it: it needs no copy."""
        return False

    def labels(self, y: Any, n: int, label_values: Any = None) -> Array:
        """Checked labels, one per row; ``label_values`` are the public two of a binary loss."""
        return check_labels(y, n, self.loss_row, label_values)

    # Whether the solver takes rows in blocks, which ``bind_blocks`` binds.
    takes_blocks: ClassVar[bool] = False

    def check_blocks(self) -> None:
        """Refuse rows in blocks before they are read, where the solver needs one matrix."""
        if not self.takes_blocks:
            raise invalid("X", "rows in blocks", f"one matrix for {self.solver}", "See docs/clusters.md for others.")

    @property
    def class_count(self) -> int | None:
        """The public number of classes where there is a weight for each of them; None elsewhere."""
        return None

    # --- what is derived from it --------------------------------------------------------------------

    def plan(self, n: Any, d: Any) -> Plan:
        """The plan of a fit with these settings, made without data."""
        n, d = whole("n", n, low=1), whole("d", d, low=1)
        self._check_common(n)
        settings = self._in_doubles().resolved(n, d)
        Adjacency.parse(settings.adjacency)
        paper = None
        if settings.calibration == PUBLISHED:
            if math.isinf(settings.epsilon):
                raise invalid("epsilon", settings.epsilon, "finite with calibration='published'")
            paper = settings.published(n, d)
        plan = Plan(settings, n, d, settings.releases(n, d, paper), paper)
        outlook.warn(plan)
        return plan

    def _check_common(self, n: int) -> None:
        one_of("calibration", self.calibration, (TIGHT, PUBLISHED))
        if self.adjacency is not None:
            Adjacency.parse(self.adjacency)
        check_budget(self.epsilon, self.delta, n)
        for entry in dataclasses.fields(self):
            if entry.type in ("bool", bool):
                flag(entry.name, getattr(self, entry.name))

    def _in_doubles(self: Self) -> Self:
        """The same with Python's own numbers: a sensitivity must not be rounded to single precision."""
        own = {name: _own_number(value) for name, value in self._values().items()}
        adjacency = None if self.adjacency is None else Adjacency.parse(self.adjacency)
        return dataclasses.replace(self, **own | {"adjacency": adjacency})

    def _values(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def settled(self, kind: type[Kind], **values: Any) -> Kind:
        """These settings, with ``values`` for what was left out, as ``kind``: the last step of ``resolved``."""
        own = self._values() | values
        return kind(**own | {"adjacency": Adjacency.parse(own["adjacency"])})

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the arguments that make these settings again."""
        return {name: _plain(value) for name, value in self._values().items()}

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._values().items() if value is not None)


@dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """Settings that a plan holds: every value is checked and nothing that the solver needs is left out.

    A solver whose caller has to give everything derives its one class from this one, and ``resolved`` checks it.
    """

    # What a trace of the solver's run has. Lazy steps have the law of steps with a noisy gradient, but never form that
    # gradient, so that the iterates are what is released. A run with epochs has snapshots and inner steps.
    has_lazy_steps: ClassVar[bool] = False
    has_epochs: ClassVar[bool] = False

    adjacency: Adjacency = setting(
        'Which datasets are neighbours: "replace-one" or "zero-out".', default=Adjacency.REPLACE_ONE
    )

    @abstractmethod
    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """What a fit releases, the main release first, with its noise."""

    def published(self, n: int, d: int) -> Published:
        """The paper's own noise and claim."""
        raise invalid("calibration", PUBLISHED, f"'tight' for {self.solver}", "No published constant is known.")

    @abstractmethod
    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> Run:
        """The solver with its plan and data in place: validation and clipping are done, nothing is drawn.

        Privacy
        -------
        Nothing is released before a run; each run is ``plan.event``. ``counts`` says how often each row occurs.
        """

    def bind_blocks(self, plan: Plan, blocks: CheckedBlocks) -> Run:
        """``bind`` for rows in blocks: no block is asked before a run, and settings that need one matrix are refused.

        Privacy
        -------
        As for ``bind``. A block answers with the exact sum of its records' terms; noise is drawn after the last.
        """
        raise invalid("X", "rows in blocks", f"one matrix for {self.solver} with these settings")

    def secured(self, plan: Plan) -> Plan:
        """The plan with ``Plan.secure``, one part per release, and with what rounding adds to each sensitivity.

        Every release has noise. A solver with secure noise overrides this; settings for which it has none raise
        ``not_secure`` (frame/secure.py).

        Privacy
        -------
        Refused by solvers whose noise is drawn in doubles: none falls back to it silently.
        """
        raise not_secure(f"for {self.solver}")

    def first_released(self, plan: Plan) -> int:
        """The number of the release, in the plan, that is the first row of a trace's releases."""
        return 0

    def outlook(self, plan: Plan) -> Outlook | None:
        """How well the plan can be expected to learn, from public numbers; None where that has not been worked out."""
        return None

    def remarks(self, plan: Plan) -> tuple[str, ...]:
        """What is printed below the releases of the plan: for example which release is left out, and why."""
        return ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Further notes for the guarantee."""
        return ()

    @property
    def has_intercept(self) -> bool:
        """Whether the last weight is that of an intercept."""
        return False

    @property
    def iterations(self) -> int:
        """The number of iterations that the plan fixes; 1 where the solver has none of its own."""
        return 1

    def is_sure_of_steps(self, plan: Plan) -> bool:
        """Whether all fits of the plan take as many steps, so that their traces are of one length."""
        return True

    @property
    def label_limit(self) -> float | None:
        """The public bound of |y|; None where labels have none."""
        return None

    def width(self, d: int) -> int:
        """The number of weights for d features: one more with an intercept."""
        return d + 1 if self.has_intercept else d

    def model(self, weights: Array) -> tuple[Array, float | Array]:
        """(coef, intercept) from the weights of a run, whose last column is the intercept's if there is one."""
        return (weights[:-1], float(weights[-1])) if self.has_intercept else (weights, 0.0)


def warn_of(plan: Plan) -> None:
    """The warnings that making the plan gives, for a caller who made it without them."""
    check_budget(plan.settings.epsilon, plan.settings.delta, plan.n)
    outlook.warn(plan)


def _own_number(value: Any) -> Any:
    """NumPy's numbers and truth values as Python's; whatever else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Adjacency):
        return str(value)
    # JSON has no infinity; float("inf") reads it back.
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def build(kind: type[Self], arguments: dict[str, Any]) -> Self:
    """Settings from keyword arguments; the error for a wrong name says what was probably meant."""
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name in arguments:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f" Did you mean {near[0]!r}?" if near else f" It takes {', '.join(fields)}."
            raise TypeError(f"{kind.solver}() got an unexpected argument {name!r}.{hint}")
    lacking = [n for n, f in fields.items() if n not in arguments and _is_required(f)]
    if lacking:
        raise TypeError(f"{kind.solver}() also needs {', '.join(lacking)}.")
    return kind(**{name: _read(value) for name, value in arguments.items()})


def _read(value: Any) -> Any:
    """The value as ``to_dict`` wrote it."""
    return math.inf if isinstance(value, str) and value == "inf" else value


def _is_required(entry: Any) -> bool:
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING


def keywords(kind: type[Settings]) -> list[inspect.Parameter]:
    """The fields as keyword parameters, required ones first."""
    fields = sorted(dataclasses.fields(kind), key=lambda f: not _is_required(f))
    return [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=f.type,
            default=inspect.Parameter.empty if _is_required(f) else f.default,
        )
        for f in fields
    ]


def describe(kind: type[Settings]) -> str:
    """The numpydoc lines of all fields, one parameter each."""
    lines = []
    for parameter in keywords(kind):
        text = kind.__dataclass_fields__[parameter.name].metadata["text"]
        default = "" if parameter.default is inspect.Parameter.empty else f", default {_literal(parameter.default)}"
        lines += [f"{parameter.name} : {parameter.annotation}{default}", textwrap.fill(text, 112, **_INDENT)]
    return "\n".join(lines)


_INDENT: dict[str, Any] = {"initial_indent": "    ", "subsequent_indent": "    "}


def _literal(value: Any) -> str:
    return repr(str(value)) if isinstance(value, (str, Adjacency)) else repr(value)


# --- checks that several solvers share ------------------------------------------------------------------


def check_budget(epsilon: Any, delta: Any, n: int) -> tuple[float, float]:
    """The requested budget; a delta of 1/n or more is allowed with a warning."""
    epsilon = real("epsilon", epsilon, low=0.0, open_low=True, repair="Use math.inf for a fit without privacy.")
    if math.isinf(epsilon):
        return epsilon, 0.0
    delta = delta_value(delta)
    if delta == 0:
        raise invalid("delta", 0.0, "> 0 for Gaussian noise or composed selections", "For example 1e-6.")
    if delta >= 1 / n:
        warn(
            f"delta={delta:g}: should be well below 1/n={1 / n:.3g}; a mechanism that publishes a random record whole "
            "has delta = 1/n.",
            DeltaWarning,
        )
    return epsilon, delta


def check_sparsity(sparsity: Any, d: int) -> int:
    """1 <= sparsity <= d."""
    s = whole("sparsity", sparsity, low=1)
    if s > d:
        raise invalid("sparsity", s, f"<= d={d}", "It is the number of features that are kept.")
    return s


def public_bound(name: str, value: Any, meaning: str) -> float:
    """A bound that must be given: it is never learnt from the data."""
    if value is None:
        repair = f"It is {meaning}, chosen without looking at the data; what lies beyond it is clipped."
        raise invalid(name, None, "given", " ".join([repair, *BOUND_EXAMPLES.get(name, ())]))
    return magnitude(name, value)


# The unit of a bound and an example of it, where a user has to choose one.
BOUND_EXAMPLES = {
    "row_norm": ("It is in the unit of X: for example 5.48 = sqrt(30) for 30 columns that lie within [-1, 1].",),
    "feature_bound": ("It is in the unit of X: for example 120 for an age in years, 1 for columns within [-1, 1].",),
    "label_bound": ("It is in the unit of y: for example 300 for a blood pressure that never exceeds 300 mmHg.",),
}


def check_classes_setting(loss: Loss, classes: Any) -> None:
    """classes is given for softmax, and for nothing else."""
    if loss.task == MULTICLASS:
        whole("classes", classes, low=2, repair="It is the public number of classes.")
    elif classes is not None:
        raise invalid("classes", classes, f"None for loss {loss.name!r}", "Use loss='softmax' for several classes.")


def class_labels(y: Any, n: int, classes: Any, label_values: Any) -> Array:
    """One-hot labels."""
    if label_values is not None:
        raise invalid("label_values", label_values, "None", "Classes are the integers 0, ..., classes-1.")
    return check_classes(y, n, whole("classes", classes, low=2))


def check_l2(l2: Any) -> float:
    """The weight of an L2 term, which may be 0."""
    return real("l2", l2, low=0.0, high=LARGEST)
