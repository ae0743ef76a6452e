"""One fit by knowledge transfer: the teacher that the plan asks for, its noisy answers, and the student."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, progress
from dptoolkit._validate import SMALLEST
from dptoolkit.data import Rows, clip_entries, clip_rows
from dptoolkit.mechanisms.rng import Generators
from dptoolkit.mechanisms.stability import top_with_gap
from dptoolkit.solvers import public_features
from dptoolkit.solvers.base import Array, Trace, Trials, equal
from dptoolkit.solvers.gradient_iht import Bounded, IhtRun, Steps
from dptoolkit.solvers.noise import constant
from dptoolkit.solvers.plan import Plan, Release
from dptoolkit.solvers.public_features import GivenFeatures
from dptoolkit.solvers.teachers import DP_IGHT, IGHT, RIDGE, SUPPORT, TESTED, scores

if TYPE_CHECKING:
    from dptoolkit.solvers.transfer import KnowledgeTransfer


class Teacher(NamedTuple):
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
        self._known: dict[bytes, Teacher] = {}
        self.size = 2 * (settings.m or 0) + 8 * plan.d
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
        """One fit; its one row of releases: a test's noisy gap, the support, the noisy answers; 0 if absent."""
        (weights, releases, iterates, _), (history,) = self._fits(Generators(rng))
        assert releases is not None and iterates is not None
        return Trace(weights[0], history, releases[0], iterates[0]) if trace else Trace(weights[0], history)

    def fits(self, rng: Generators, trace: bool = False) -> Trials:
        """See ``ManyRuns``."""
        return self._fits(rng)[0]

    def _fits(self, rng: Generators) -> tuple[Trials, list[dict[str, Any]]]:
        """Fits, and the history of each. Those of one teacher are made together."""
        settings, runs = self.settings, len(rng)
        histories: list[dict[str, Any]] = [{} for _ in range(runs)]
        teachers = self._teach(rng, histories)
        weights, answers = np.zeros((runs, self.plan.d)), np.zeros((runs, settings.m or 0))
        for members in equal([id(one) for one in teachers]):
            teacher = teachers[members[0]]
            if teacher is None:
                continue
            matrix = settings.matrix(self.plan.d, teacher.columns)
            answers[members] = self._answers(matrix, teacher, rng, members, histories)
            places = np.arange(self.plan.d) if teacher.columns is None else teacher.columns
            weights[np.ix_(np.array(members), places)] = self._student(matrix, answers[members])
        supports = [history.get("support", np.zeros(settings.sparsity)) for history in histories]
        gaps = [[history.get("noisy_gap", 0.0)] for history in histories]
        columns = np.reshape(gaps, (runs, 1)), np.reshape(supports, (runs, settings.sparsity)), answers
        release = np.concatenate(columns, axis=1)
        return Trials(weights, release[:, None], weights[:, None]), histories

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history); there is one iterate, the student."""
        return self(rng, trace=every > 0).fit(every)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The mean loss of the fit's own records; NOT private."""
        return {"objective": self.settings.terms.objective(np.asarray(self.rows.matrix @ weights), self.y)}

    # --- teachers ----------------------------------------------------------------------------------------------

    def _teach(self, rng: Generators, histories: list[dict[str, Any]]) -> list[Teacher | None]:
        """The teacher of every fit; None where a test forbids to teach. Equal teachers are one object."""
        name, runs = self.settings.teacher, len(rng)
        if name == RIDGE:
            return [self._teacher(None, self.ridge(None))] * runs
        if name == IGHT:
            if not self._teachers:
                self._teachers[b""] = self.ight()
            return [self._teacher(None, self._teachers[b""])] * runs
        if name == DP_IGHT:
            return [self._private_teacher(rng.of(i, self._private.fit), history) for i, history in enumerate(histories)]
        supports = self._supports(rng, histories)
        for history, columns in zip(histories, supports, strict=True):
            if columns is not None:
                history["support"] = columns
        return [None if columns is None else self._teacher(columns, self.ridge(columns)) for columns in supports]

    def _teacher(self, columns: NDArray[np.intp] | None, weights: Array) -> Teacher:
        return self._known.setdefault(b"" if columns is None else columns.tobytes(), Teacher(columns, weights))

    def _private_teacher(self, release: tuple[Array, dict[str, Any]], history: dict[str, Any]) -> Teacher:
        weights, inner = release
        history["noise_scale"] = inner["noise_scale"]
        columns = np.sort(np.argsort(weights == 0, kind="stable")[: self.settings.sparsity])
        history["support"] = columns
        return Teacher(columns, weights[columns])

    def _supports(self, rng: Generators, histories: list[dict[str, Any]]) -> Sequence[NDArray[np.intp] | None]:
        """The largest scores: after Gumbel noise, or exactly where the test allows it."""
        choice, s, runs = self.plan.releases[1], self.settings.sparsity, len(rng)
        if self.settings.teacher == SUPPORT:
            for history in histories:
                history["selection_scale"] = choice.scale
            scores_ = np.broadcast_to(self.scores, (runs, len(self.scores)))
            return list(np.sort(choice.mechanism.top_rows(scores_, s, rng), axis=1))
        columns, gap = top_with_gap(self.scores, s)
        supports: list[NDArray[np.intp] | None] = []
        for i, history in enumerate(histories):
            history["stable"], history["noisy_gap"] = rng.of(i, functools.partial(choice.mechanism.test, gap))
            supports.append(columns if history["stable"] else None)
        return supports

    def ridge(self, columns: NDArray[np.intp] | None) -> Array:
        """The certified ridge on these features; NOT private."""
        key = b"" if columns is None else columns.tobytes()
        if key not in self._teachers:
            part = self.rows if columns is None else self.rows.columns(columns)
            self._teachers[key] = self.settings.ridge(self.plan.n, self.plan.d).fit(part, self.y)
        return self._teachers[key]

    def ight(self) -> Array:
        """The paper's teacher: hard thresholding with an l2 term, without noise; NOT private."""
        settings = self.settings
        assert settings.row_norm is not None and settings.steps is not None
        assert settings.step_size is not None and settings.l2 is not None
        matrix = clip_rows(self.rows, settings.row_norm).matrix
        w: Array = np.zeros(self.plan.d)
        for _ in progress.steps(settings.steps):
            slopes = settings.terms.residual(np.asarray(matrix @ w), self.y)
            v = w - settings.step_size * (np.asarray(matrix.T @ slopes) / self.plan.n + settings.l2 * w)
            top = np.argsort(-np.abs(v), kind="stable")[: settings.sparsity]
            w = np.zeros_like(v)
            w[top] = v[top]
        return w

    # --- answers and student ------------------------------------------------------------------------------------

    def _answers(
        self, matrix: Any, teacher: Teacher, rng: Generators, members: list[int], histories: list[dict[str, Any]]
    ) -> Array:
        """The teacher's answers to the public features, with noise unless the teacher is private itself."""
        exact = np.asarray(matrix @ teacher.weights)
        if self.settings.teacher == DP_IGHT:
            return exact
        release = self._at(teacher.columns)
        for i in members:
            histories[i]["noise_scale"] = release.scale
        values = np.broadcast_to(exact, (len(members), len(exact)))
        return np.asarray(rng.among(members, functools.partial(release.mechanism.release, values)))

    def _at(self, columns: NDArray[np.intp] | None) -> Release:
        """The release of the answers; a part of a given matrix has a smaller norm, and needs less noise."""
        release = self.plan.releases[0]
        if columns is None or not isinstance(self.settings.features, GivenFeatures):
            return release
        movement = self.settings.answers_movement(self.plan.n, self.plan.d, columns)
        # Columns of zeros, or nearly so, keep a noise that can be drawn: nothing may fail once the support is released.
        share = min(max(movement, 2 * SMALLEST) / release.sensitivity, 1.0)
        return replace(release, sensitivity=share * release.sensitivity, scale=share * release.scale)

    def _student(self, matrix: Any, answers: Array) -> Array:
        """Hard thresholding on public features and each row of noisy answers: post-processing."""
        settings = self.settings
        norm = settings.norm(self.plan.d)
        if isinstance(settings.features, GivenFeatures) and settings.on_support:
            norm = max(public_features.operator_norm(matrix), SMALLEST)
        rows = Rows(matrix, hasattr(matrix, "indptr"))
        steps = Steps(settings.student_steps, answers.shape[1] / norm**2, settings.sparsity, False)
        return IhtRun(Bounded(rows, answers[0], losses.get("squared")), steps, constant(0.0)).relabelled(answers)
