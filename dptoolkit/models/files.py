"""A model as JSON text: coefficients, plan and guarantee, checked against each other when they are read back.

Nothing in a file is executed. The digest finds damage and careless edits; it is no signature, so whoever wants to can
write a file that passes. But a file cannot claim a wrong epsilon: what is shown of its guarantee is computed again, the
epsilons from the event, the event from the plan, and the notes from the plan's settings. Budgets, epsilons, rho, the
delta that was asked for and a paper's claim are also compared with that, and a file that states less than it gives away
is refused. Free text is passed on as what the file says (``notes``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dptoolkit
from dptoolkit import solvers
from dptoolkit._validate import invalid, unheard
from dptoolkit.accounting import BestOf, Composed, Gaussian, ZCdp, account, structure
from dptoolkit.accounting.events import Event, from_dict
from dptoolkit.errors import DpToolkitError, InvalidValue, UnsupportedEvent
from dptoolkit.marks import VOID
from dptoolkit.models.joint import ChosenPlan, JointPlan
from dptoolkit.models.model import Model
from dptoolkit.models.notes import from_file, printable
from dptoolkit.models.routes import TASKS, solver_for, solvers_for
from dptoolkit.solvers import HopelessPlanWarning, Plan
from dptoolkit.solvers._pipeline_stages import Preparation
from dptoolkit.solvers._pipeline_tables import TableMap, TablePreparation
from dptoolkit.solvers.frame.secure import FAST, SECURE
from dptoolkit.solvers.frame.settings import PUBLISHED

FORMAT, VERSION = "dptoolkit model", 1
# A file that is larger was not written by us.
MAX_BYTES = 2**30
# Epsilon is computed on grids whose size may differ between versions.
_SAME = 1e-3
# What a file says about the table of the fit.
_COLUMNS = {"label", "features", "categories", "missing"}


def save(model: Model, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write the model, whole or not at all; ``extra`` is kept beside it, as JSON.

    Parameters
    ----------
    model : Model
        What to write.
    path : str or Path
        The file; an existing one is replaced.
    extra : mapping of str to object, or None, default None
        Further values to keep in the file, as JSON.
    """
    record = to_record(model) | ({} if extra is None else {"estimator": dict(extra)})
    record |= {} if model.columns is None else {"columns": dict(model.columns)}
    text = json.dumps(record | {"sha256": _digest(record)}, allow_nan=False)
    check_writable("path", path)
    with replaced(path) as file:
        file.write_bytes(text.encode())


def load(path: str | Path) -> Model:
    """The model in a file that ``save`` wrote; a file that was changed, or is of another version, is refused.

    Parameters
    ----------
    path : str or Path
        A file that ``save`` wrote.
    """
    return read(path)[0]


def read(path: str | Path) -> tuple[Model, Mapping[str, Any] | None]:
    """(the model, what was kept beside it)."""
    record = _record(path)
    try:
        return from_record(record), record.get("estimator")
    except (DpToolkitError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as problem:
        # The words of an error may quote the file.
        words = printable(problem) if isinstance(problem, DpToolkitError) else "Its parts contradict each other."
        raise invalid("path", str(path), "a model as dptoolkit writes it", words) from None


def check_writable(option: str, path: str | Path) -> None:
    """Refuse, before any work is done, a file that ``replaced`` could not write."""
    try:
        if Path(path).is_dir():
            raise IsADirectoryError(21, "It is a folder")
        handle, name = tempfile.mkstemp(prefix=f".{Path(path).name}.", dir=Path(path).parent)
        os.close(handle)
        os.unlink(name)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise invalid(option, str(path), "a file that can be written", f"{reason}.") from None


@contextlib.contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends well, and is removed when not."""
    target = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# --- to JSON ----------------------------------------------------------------------------------------------------


def to_record(model: Model) -> dict[str, Any]:
    """JSON-ready: everything that ``from_record`` needs to make the model again."""
    return {
        "format": FORMAT, "version": VERSION, "dptoolkit": dptoolkit.__version__, "task": model.task,
        "solver": model.solver, "steps": model.steps, "shape": list(model.coef.shape),
        "coef": [_sparse(row) for row in model.coef], "intercept": model.intercept.tolist(),
        "preparations": [None if how is None else _preparation_record(how) for how in model.preparations],
        "classes": None if model.classes is None else _labels(model.classes),
        "feature_names": None if model.feature_names is None else list(model.feature_names),
        "plan": model.plan.to_dict(), "guarantee": _guarantee_record(model.guarantee),
    }  # fmt: skip


def _sparse(values: NDArray[np.float64]) -> dict[str, list[Any]]:
    places = np.flatnonzero(values)
    return {"index": places.tolist(), "value": values[places].tolist()}


def _labels(classes: NDArray[Any]) -> list[Any]:
    labels: list[Any] = classes.tolist()
    if not all(isinstance(label, (str, int, float, bool)) for label in labels):
        raise invalid("classes", "labels of another type", "strings or numbers in a file", "Use those as labels.")
    return labels


def _preparation_record(how: Preparation) -> dict[str, Any]:
    own = {"index": how.kept.tolist(), "mean": how.means[how.kept].tolist(), "weight": how.weights[how.kept].tolist(),
           "level": how.level}  # fmt: skip
    return own | {"table": how.table.to_dict()} if isinstance(how, TablePreparation) else own


def _guarantee_record(guarantee: Any) -> dict[str, Any]:
    own = {"notes": list(guarantee.notes), "asked_delta": guarantee.asked_delta}
    return guarantee.to_dict() | own


def _digest(record: Mapping[str, Any]) -> str | None:
    """None for a record with NaN or infinity, which are not JSON: a float as 1e999 is read as one."""
    with contextlib.suppress(ValueError):
        text = json.dumps(record, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()
    return None


# --- from JSON --------------------------------------------------------------------------------------------------


def _record(path: str | Path) -> dict[str, Any]:
    """The JSON object in a file, of our format and version, and unchanged."""
    expected = "a model as dptoolkit writes it"
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"It has more than {MAX_BYTES:,} bytes")
        record = json.loads(content)
    except (OSError, ValueError, RecursionError) as problem:
        reason = getattr(problem, "strerror", None) or "It is not JSON"
        raise invalid("path", str(path), expected, f"{reason}.") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise invalid("path", str(path), expected, f"Its format is not {FORMAT!r}.")
    if record.get("version") != VERSION:
        repair = f"This dptoolkit reads version {VERSION}; use the one that wrote it."
        raise invalid("path", str(path), f"a model file of version {VERSION}", repair)
    digest = record.pop("sha256", None)
    if digest is None or digest != _digest(record):
        raise invalid(
            "path",
            str(path),
            expected,
            "Its digest differs, so it was changed or damaged. Fit or copy it again.",
        )
    return record


def from_record(record: Mapping[str, Any]) -> Model:
    """The model of a record; the parts are checked against each other."""
    if record["task"] not in TASKS or record["solver"] not in solvers_for(record["task"]):
        raise InvalidValue("Its task or solver is unknown.")
    rows, d = (int(size) for size in record["shape"])
    coef = np.array([_dense(row, d) for row in record["coef"]])
    intercept = np.array(record["intercept"], dtype=np.float64)
    plan = _plan(record["plan"])
    preparations = tuple(None if how is None else _preparation(how, d, plan) for how in record["preparations"])
    fits = plan.count if isinstance(plan, JointPlan) else 1
    classes = None if record["classes"] is None else np.array(record["classes"])
    names = None if record["feature_names"] is None else tuple(map(str, record["feature_names"]))
    # A record takes part in the fit of every class, and every fit is charged.
    route = solver_for(record["solver"], None if classes is None else len(classes))
    sizes = {coef.shape == (rows, d), intercept.shape == (rows,), len(preparations) == fits, plan.d == d,
             names is None or len(names) == d, classes is None or rows == (1 if len(classes) == 2 else len(classes)),
             bool(np.isfinite(coef).all() and np.isfinite(intercept).all()),
             (plan.solver, fits) == route}  # fmt: skip
    if sizes != {True}:
        raise InvalidValue("Its parts contradict each other.")
    guarantee = _guarantee(record["guarantee"], plan)
    return Model(record["task"], record["solver"], coef, intercept, plan, guarantee, int(record["steps"]), preparations,
                 classes, names, _columns(record.get("columns"), names))  # fmt: skip


def _columns(record: Any, names: tuple[str, ...] | None) -> Mapping[str, Any] | None:
    """How a table is read, None for a model that was fitted to something else; its columns must be the features."""
    if record is None:
        return None
    made = [
        column if column not in record["categories"] else f"{column}={value}"
        for column in record["features"]
        for value in record["categories"].get(column, ("",))
    ]
    missing = record["missing"]
    constants = missing.values() if isinstance(missing, dict) else [missing]
    are_constants = all(value is None or isinstance(value, (int, float, str)) for value in constants)
    if set(record) != _COLUMNS or made != list(names or ()) or not are_constants:
        raise InvalidValue("Its columns are not those of its features.")
    return dict(record)


def _dense(sparse: Mapping[str, Any], d: int) -> NDArray[np.float64]:
    values = np.zeros(d)
    places = np.array(sparse["index"], dtype=np.int64)
    if ((places < 0) | (places >= d)).any():
        raise InvalidValue("A coefficient is outside the columns.")
    values[places] = sparse["value"]
    return values


def _preparation(record: Mapping[str, Any], d: int, plan: Plan) -> Preparation:
    """How rows are prepared; what they are divided by is in the plan's settings."""
    means, weights = (_dense({"index": record["index"], "value": record[key]}, d) for key in ("mean", "weight"))
    settings = plan.settings
    own = (means, weights, float(record["level"]), settings.units)
    if settings.bounds is None:
        return Preparation(*own)
    return TablePreparation(*own, table=TableMap.from_dict(record["table"], settings.bounds, settings.row_norm))


def _plan(record: Mapping[str, Any]) -> Plan:
    """The plan, made again from its settings, with the noise of the file; it must release what the file says."""
    if "part" in record:
        part = _plan(record["part"])
        return _chosen_plan(record, part) if "choice" in record else _joint_plan(record, part)
    # It is no setting: the plan says beside them whether it has secure noise.
    if "randomness" in record["settings"]:
        raise InvalidValue("Its settings name a randomness, which no model has.")
    kind = SECURE if "randomness" in record else FAST
    # How good the plan can be was said at the fit; a delta that allows anything is said again.
    with unheard(HopelessPlanWarning):
        made = solvers.plan(record["solver"], n=record["n"], d=record["d"], randomness=kind, **record["settings"])
    plan = made.with_noise(*(float(release["scale"]) for release in record["releases"]))
    if made.calibration == PUBLISHED:
        plan = replace(plan, published=made.published)
    if plan.secure is not None:
        # A file cannot prove how its noise was drawn, and the guarantee says so.
        plan = replace(plan, secure=replace(plan.secure, is_proved=False))
    if from_dict(record["event"]) != plan.event:
        raise InvalidValue("Its event is not that of its plan.")
    _check_releases(record["releases"], plan)
    _check_noise(made, plan)
    return plan


def _check_releases(stated: list[Mapping[str, Any]], plan: Plan) -> None:
    """The law, the number and the sensitivity of every release must be those of the plan; its noise is the file's."""
    for one, release in zip(stated, plan.releases, strict=True):
        same = (one["law"], one["count"]) == (release.law, release.count)
        if not same or not _is_near(float(one["sensitivity"]), release.sensitivity):
            raise InvalidValue(f"Its releases are not those of its plan: {release.query}.")


def _check_noise(made: Plan, plan: Plan) -> None:
    """The noise must keep the budget that the settings state; published noise, which may not, must be the paper's.

    A later version may ask for less noise than the one that wrote the file: more is always accepted.
    """
    if made.calibration == PUBLISHED:
        pairs = zip(made.releases, plan.releases, strict=True)
        if not all(_is_near(two.scale, one.scale) for one, two in pairs):
            raise InvalidValue("Its noise is not the published one of its settings.")
    else:
        _check_kept(plan, plan.settings.epsilon, plan.settings.delta)


def _check_kept(plan: Plan, epsilon: float, delta: float) -> None:
    """Refuse a budget that the event does not keep."""
    if math.isinf(epsilon):
        return
    given = account(plan.event).epsilon(delta)
    if not given <= epsilon * (1 + _SAME):
        raise InvalidValue(f"Its plan states an epsilon of {epsilon:g} and gives away {given:.4g} at delta {delta:g}.")


def _joint_plan(record: Mapping[str, Any], part: Plan) -> JointPlan:
    """The plan of a fit for each class, which together keep the budget that the file states."""
    plan = JointPlan(part, int(record["count"]), float(record["epsilon"]), float(record["delta"]))
    if plan.delta != part.settings.delta:
        raise InvalidValue("Its delta is not that of the fit for each class.")
    _check_kept(plan, plan.epsilon, plan.delta)
    return plan


def _chosen_plan(record: Mapping[str, Any], part: Plan) -> ChosenPlan:
    """The plan of a choice; one run of it must give away at least what the run that won did, at every delta."""
    event, n, delta = from_dict(record["choice"]), int(record["n"]), float(record["delta"])
    if not isinstance(event, BestOf):
        raise InvalidValue("Its choice is not the best of several runs.")
    if not _is_covered(part.event, event.event):
        raise InvalidValue("Its choice states a smaller privacy loss than its best run has.")
    if n < part.n:
        raise InvalidValue(f"Its choice has {n} rows, of which a run trains on {part.n}.")
    if delta != part.settings.delta:
        raise InvalidValue("Its delta is not that of a run.")
    return ChosenPlan(part, event, n, delta)


def is_stated_budget(plan: Plan, epsilon: Any, delta: Any) -> bool:
    """Whether a plan was asked for this budget; of a choice, whose epsilon is not kept, whether it keeps it."""
    if isinstance(plan, ChosenPlan):
        is_number = isinstance(epsilon, (int, float))
        return bool(is_number and delta == plan.delta and plan.guarantee.epsilon(delta) <= epsilon * (1 + _SAME))
    own = plan if isinstance(plan, JointPlan) else plan.settings
    return bool((epsilon, delta) == (own.epsilon, own.delta))


def _guarantee(record: Mapping[str, Any], plan: Plan) -> Any:
    """The guarantee of the plan, or one that is void, computed again; what the file states must not be less."""
    event, notes = from_dict(record["event"]), [str(note) for note in record["notes"]]
    is_void = event == Gaussian(0.0) != plan.event
    # Two events may agree at the deltas that the file states, and nowhere else.
    if (event != plan.event and not is_void) or record["adjacency"] != plan.adjacency.value:
        raise InvalidValue("Its guarantee is not that of its plan.")
    if any(note.strip().startswith(VOID) for note in notes) and event != Gaussian(0.0):
        raise InvalidValue("Its notes call it VOID, which its event is not.")
    guarantee = plan.guarantee
    if is_void:
        guarantee = replace(account(event, adjacency=plan.adjacency), notes=guarantee.notes)
    _check_stated(record, guarantee)
    return replace(guarantee, notes=from_file(notes, guarantee.notes))


def _check_stated(record: Mapping[str, Any], guarantee: Any) -> None:
    """Refuse numbers about privacy that are smaller than the computed ones, and another delta or claim than the plan's.

    Larger numbers are what an earlier version could prove; the computed ones take their place.
    """
    stated = {float(delta): float(epsilon) for delta, epsilon in record["epsilon"].items()}
    if not stated or not all(_is_enough(stated[delta], guarantee.epsilon(delta)) for delta in stated):
        raise InvalidValue("Its guarantee is not that of its plan.")
    if not _is_enough(float(record["rho"]), guarantee.rho):
        raise InvalidValue("Its rho is not that of its plan.")
    if record["asked_delta"] != guarantee.asked_delta:
        raise InvalidValue("Its asked_delta is not that of its plan.")
    if not _is_same_claim(record["claimed"], guarantee.to_dict()["claimed"]):
        raise InvalidValue("Its claim is not that of its plan's publication.")


def _is_same_claim(stated: Any, own: Any) -> bool:
    """Whether two records of a paper's claim have the same budget; its words may differ between versions."""
    if stated is None or own is None:
        return stated is own
    return all(_is_near(float(stated[name]), float(own[name])) for name in ("epsilon", "delta"))


def _is_enough(stated: float, computed: float) -> bool:
    """Whether a stated epsilon or rho is the computed one or larger; NaN is not."""
    return stated >= computed or math.isclose(stated, computed, rel_tol=_SAME, abs_tol=1e-9)


def _is_near(one: float, other: float) -> bool:
    """Whether two numbers of any size are equal up to what versions may differ in."""
    return math.isclose(one, other, rel_tol=_SAME)


def _is_covered(event: Event, bound: Event) -> bool:
    """Whether ``bound`` is at least as bad as ``event`` at every delta: equal, a ``common_bound``, or more."""
    if bound == event or (isinstance(bound, Composed) and bound.events[:1] == (event,)):
        return True
    if structure.all_gaussian(bound) and structure.all_gaussian(event):
        return structure.total_mu(bound) >= structure.total_mu(event) * (1 - 1e-12)
    try:
        return isinstance(bound, ZCdp) and bound.rho >= structure.total_rho(event) * (1 - 1e-12)
    except UnsupportedEvent:
        return False
