"""One fit by knowledge transfer: the teacher that the plan asks for, its noisy answers, and the student."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit._validate import SMALLEST
from dptoolkit.data import Rows, clip_entries, clip_rows
from dptoolkit.mechanisms.stability import top_with_gap
from dptoolkit.solvers import public_features
from dptoolkit.solvers.base import Array, Trace
from dptoolkit.solvers.gradient_iht import Bounded, IhtRun, Steps, sparse_iterates
from dptoolkit.solvers.noise import constant
from dptoolkit.solvers.plan import Plan, Release
from dptoolkit.solvers.public_features import GivenFeatures
from dptoolkit.solvers.teachers import DP_IGHT, IGHT, RIDGE, SUPPORT, TESTED, scores

if TYPE_CHECKING:
    from dptoolkit.solvers.transfer import KnowledgeTransfer


class Taught(NamedTuple):
    """A teacher's weights on ``columns``, None for all features."""

    columns: NDArray[np.intp] | None
    weights: Array


class TransferRun:
    """Teacher, answers and student with the data in place; exact scores and teachers are computed once.

    Privacy
    -------
    A call makes the plan's releases: the support, then the noisy answers of the teacher on it. The student sees no
    more than those. Exact scores and teachers never leave the run.
    """

    def __init__(self, plan: Plan, rows: Rows, y: Array) -> None:
        settings: KnowledgeTransfer = plan.settings  # type: ignore[assignment]
        self.plan, self.settings = plan, settings
        self.rows = rows if settings.feature_bound is None else clip_entries(rows, settings.feature_bound)
        bound = settings.label_bound
        self.y = y if bound is None else np.clip(y, -bound, bound)
        # Exact teachers by their features: a run that is called often fits each once.
        self._teachers: dict[bytes, Array] = {}
        if settings.teacher in (SUPPORT, TESTED):
            self.scores = scores(self._scored(), self.y, settings.terms)
        if settings.teacher == DP_IGHT:
            inner = settings.dp_ight()
            self._private = inner.prepare(Plan(inner, plan.n, plan.d, plan.releases), rows, y)

    def _scored(self) -> Rows:
        settings = self.settings
        assert settings.row_norm is not None
        return self.rows if settings.feature_bound is not None else clip_rows(self.rows, settings.row_norm)

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit; its one row of releases: a test's noisy gap, the support, the noisy answers; 0 for what is not."""
        history: dict[str, Any] = {}
        taught = self._teach(rng, history)
        weights = np.zeros(self.plan.d)
        answers: Array = np.zeros(self.settings.m or 0)
        if taught is not None:
            matrix = self.settings.matrix(self.plan.d, taught.columns)
            answers = self._answers(matrix, taught, rng, history)
            kept = slice(None) if taught.columns is None else taught.columns
            weights[kept] = self._student(matrix, answers)
        if not trace:
            return Trace(weights, history)
        support = history.get("support", np.zeros(self.settings.sparsity))
        seen = np.concatenate([[history.get("noisy_gap", 0.0)], support, answers])
        return Trace(weights, history, seen[None], weights[None])

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history); there is one iterate, the student."""
        weights, history, _, iterates = self(rng, trace=every > 0)
        if iterates is not None:
            history["iterates"] = sparse_iterates(iterates, every)
        return weights, history

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The mean loss of the fit's own records; NOT private."""
        return {"objective": self.settings.terms.objective(np.asarray(self.rows.matrix @ weights), self.y)}

    # --- teachers ----------------------------------------------------------------------------------------------

    def _teach(self, rng: np.random.Generator, history: dict[str, Any]) -> Taught | None:
        """The teacher; None if a test forbids to teach."""
        teacher = self.settings.teacher
        if teacher == RIDGE:
            return Taught(None, self.ridge(None))
        if teacher == IGHT:
            if not self._teachers:
                self._teachers[b""] = self.ight()
            return Taught(None, self._teachers[b""])
        if teacher == DP_IGHT:
            weights, inner = self._private.fit(rng)
            history["noise_scale"] = inner["noise_scale"]
            columns = np.sort(np.argsort(weights == 0, kind="stable")[: self.settings.sparsity])
            history["support"] = columns
            return Taught(columns, weights[columns])
        chosen = self._support(rng, history)
        if chosen is None:
            return None
        history["support"] = chosen
        return Taught(chosen, self.ridge(chosen))

    def _support(self, rng: np.random.Generator, history: dict[str, Any]) -> NDArray[np.intp] | None:
        """The largest scores: after Gumbel noise, or exactly where the test allows it."""
        choice, s = self.plan.releases[1], self.settings.sparsity
        if self.settings.teacher == SUPPORT:
            history["selection_scale"] = choice.scale
            return np.sort(choice.mechanism.top(self.scores, s, rng))
        columns, gap = top_with_gap(self.scores, s)
        history["stable"], history["noisy_gap"] = choice.mechanism.test(gap, rng)
        return columns if history["stable"] else None

    def ridge(self, columns: NDArray[np.intp] | None) -> Array:
        """The certified ridge on these features; NOT private."""
        key = b"" if columns is None else columns.tobytes()
        if key not in self._teachers:
            part = self.rows if columns is None else restricted(self.rows, columns)
            self._teachers[key] = self.settings.ridge(self.plan.n, self.plan.d).fit(part, self.y)
        return self._teachers[key]

    def ight(self) -> Array:
        """The paper's teacher: hard thresholding with an l2 term, without noise; NOT private."""
        settings = self.settings
        assert settings.row_norm is not None and settings.steps is not None
        assert settings.step_size is not None and settings.l2 is not None
        matrix = clip_rows(self.rows, settings.row_norm).matrix
        w: Array = np.zeros(self.plan.d)
        for _ in range(settings.steps):
            slopes = settings.terms.residual(np.asarray(matrix @ w), self.y)
            v = w - settings.step_size * (np.asarray(matrix.T @ slopes) / self.plan.n + settings.l2 * w)
            top = np.argsort(-np.abs(v), kind="stable")[: settings.sparsity]
            w = np.zeros_like(v)
            w[top] = v[top]
        return w

    # --- answers and student ------------------------------------------------------------------------------------

    def _answers(self, matrix: Any, taught: Taught, rng: np.random.Generator, history: dict[str, Any]) -> Array:
        """The teacher's answers to the public features, with noise unless the teacher is private itself."""
        exact = np.asarray(matrix @ taught.weights)
        if self.settings.teacher == DP_IGHT:
            return exact
        release = self._at(taught.columns)
        history["noise_scale"] = release.scale
        return np.asarray(release.mechanism.release(exact, rng))

    def _at(self, columns: NDArray[np.intp] | None) -> Release:
        """The release of the answers; a part of a given matrix has a smaller norm, and needs less noise."""
        release = self.plan.releases[0]
        if columns is None or not isinstance(self.settings.features, GivenFeatures):
            return release
        moved = self.settings.answers_movement(self.plan.n, self.plan.d, columns)
        # Columns of zeros, or nearly so, keep a noise that can be drawn: nothing may fail once the support is released.
        share = min(max(moved, 2 * SMALLEST) / release.sensitivity, 1.0)
        return replace(release, sensitivity=share * release.sensitivity, scale=share * release.scale)

    def _student(self, matrix: Any, answers: Array) -> Array:
        """Hard thresholding on public features and noisy answers: post-processing."""
        settings = self.settings
        norm = settings.norm(self.plan.d)
        if isinstance(settings.features, GivenFeatures) and settings.on_support:
            norm = max(public_features.operator_norm(matrix), SMALLEST)
        rows = Rows(matrix, hasattr(matrix, "indptr"))
        steps = Steps(settings.student_steps, len(answers) / norm**2, settings.sparsity, False)
        run = IhtRun(Bounded(rows, answers, losses.get("squared")), steps, constant(0.0))
        return run.fit(np.random.default_rng(0))[0]


def restricted(rows: Rows, columns: NDArray[np.intp]) -> Rows:
    """The rows on these features alone."""
    part = rows.matrix[:, columns]
    return Rows(part if rows.is_sparse else np.ascontiguousarray(part), rows.is_sparse)
