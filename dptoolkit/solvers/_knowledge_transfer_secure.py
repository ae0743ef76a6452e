"""Knowledge transfer with secure noise: integer scores, exact selections, answers on a grid with integer noise.

Privacy
-------
The support is chosen by |S_j|, S the exact integer sum of the records' gradients at weights 0 (data/grids.py). One
record moves two of these scores against each other by at most a public integer: contributions times cap_r times 2 cap_x
where entries are bounded, or times floor(sqrt(2 cap)), cap the largest sum of squares of a row, where norms are. Each
selection is the plan's ExponentialMechanism, exactly. The answers of the certified teacher move by the planned
sensitivity, which includes their rounding errors; rounding them to a grid adds g_o sqrt(m), see ``charged_point``.
What a record contributes to the scores depends on that record and public numbers alone.
"""

from __future__ import annotations

import functools
import math
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import SMALLEST
from dptoolkit.data import Rows
from dptoolkit.data.grids import Grids, entries_on_grid, exact_sum, residuals_on_grid, rows_on_grid
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.randomness import IntegerSelection
from dptoolkit.solvers._knowledge_transfer_features import GivenFeatures
from dptoolkit.solvers._knowledge_transfer_teachers import DP_IGHT, RIDGE, SUPPORT, Teacher, TransferRun
from dptoolkit.solvers.engine.secure_points import charged_point
from dptoolkit.solvers.engine.secure_vertices import SelectionNoise
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.run import Trials
from dptoolkit.solvers.frame.secure import SecurePlan, SecureRelease, not_secure, secure_stream
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._knowledge_transfer import ResolvedTransfer


def secured_transfer(plan: Plan[ResolvedTransfer]) -> Plan:
    """The plan with secure noise and rounding charged; refused for teachers that have none.

    Privacy
    -------
    The event is that of the plan. From public numbers alone.
    """
    settings = plan.settings
    if settings.teacher == DP_IGHT:
        inner = settings.private_teacher()
        made = inner.secured(Plan(inner, plan.n, plan.d, plan.releases))
        return replace(plan, releases=made.releases, secure=made.secure)
    if settings.teacher not in (SUPPORT, RIDGE):
        raise not_secure(f"for the teacher {settings.teacher!r}", f"Use teacher={SUPPORT!r}.")
    answers, point = charged_point(plan.releases[0], settings.m)
    parts: list[SecureRelease] = [point]
    if settings.teacher == SUPPORT:
        choice, grids = plan.releases[1], score_grids(plan)
        text = f"entries with {grids.row_bits} bits, slopes with {grids.residual_bits}"
        parts.append(SelectionNoise(choice.sensitivity, choice.scale, text))
    return replace(plan, releases=(answers, *plan.releases[1:]), secure=SecurePlan(tuple(parts)))


def score_grids(plan: Plan[ResolvedTransfer]) -> Grids:
    """The grids of the scores: of slopes at weights 0, and of entries or of rows."""
    settings = plan.settings
    bound = settings.row_norm if settings.feature_bound is None else settings.feature_bound
    label = math.inf if settings.label_bound is None else settings.label_bound
    return Grids.choose(plan.n, bound, settings.loss_row.residual_limit(0.0, label), 0.0)


def integer_range(plan: Plan[ResolvedTransfer], grids: Grids) -> int:
    """How far one record moves two scores against each other."""
    times = plan.adjacency.contributions * grids.residual_cap(grids.limit)
    return times * (math.isqrt(2 * grids.row_cap) if plan.settings.feature_bound is None else 2 * grids.entry_cap)


class SecureTransferRun(TransferRun):
    """``TransferRun`` with exact selections and answers on a grid; all draws of a fit come from one stream.

    Privacy
    -------
    See the module.
    """

    def __init__(self, plan: Plan[ResolvedTransfer], rows: Rows, y: Array) -> None:
        super().__init__(plan, rows, y)
        assert plan.secure is not None
        # That of the answers or of a private teacher's gradients, and that of the choice of a support.
        self.noise: tuple[Any, ...] = plan.secure.parts

    def _scores(self) -> NDArray[np.int64]:
        """|S_j|; NOT private."""
        grids, scored = score_grids(self.plan), self._scored()
        rows = (rows_on_grid if self.settings.feature_bound is None else entries_on_grid)(scored, grids)
        slopes = self.settings.loss_row.residual(np.zeros(len(self.y)), self.y)
        return np.abs(exact_sum(rows, residuals_on_grid(slopes, grids)))

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``TransferRun``."""
        with ExitStack() as stack:
            opened = [streams.of(i, lambda rng: stack.enter_context(secure_stream(rng))) for i in range(len(streams))]
            return super().fits(Generators(*opened), trace)

    def _supports(self, rng: Generators, histories: list[dict[str, Any]]) -> list[NDArray[np.intp] | None]:
        unit = self.noise[1].unit(integer_range(self.plan, score_grids(self.plan)))

        def top(stream: Any) -> NDArray[np.intp]:
            chosen = IntegerSelection(self.scores, unit, two_sided=False).top(stream, self.settings.sparsity)
            return np.sort(np.array(chosen, dtype=np.intp))

        for history in histories:
            history["selection_scale"] = self.plan.releases[1].scale
        return [rng.of(i, top) for i in range(len(rng))]

    def _answers(
        self, matrix: Any, teacher: Teacher, rng: Generators, members: list[int], histories: list[dict[str, Any]]
    ) -> Array:
        exact = np.asarray(matrix @ teacher.weights)
        if self.settings.teacher == DP_IGHT:
            return exact
        point, share = self.noise[0], self._share(teacher.columns)
        for i in members:
            histories[i]["noise_scale"] = share * self.plan.releases[0].scale
        draw, none = functools.partial(point.noise, len(exact), share=share), np.zeros(len(exact))
        return np.array([point.release(exact, none, rng.of(i, lambda stream: draw(stream=stream))) for i in members])

    def _share(self, columns: NDArray[np.intp] | None) -> float:
        """The part of the noise that the answers on a support need; see ``TransferRun._at``."""
        if columns is None or not isinstance(self.settings.features, GivenFeatures):
            return 1.0
        point, largest = self.noise[0], self.plan.releases[0].sensitivity
        movement = max(self.settings.answers_movement(self.plan.n, self.plan.d, columns), 2 * SMALLEST)
        # What rounding adds is the same on every support.
        needed = movement + (point.growth - 1) * point.planned
        return min(needed / largest * (1 + 2.0**-40), 1.0)
