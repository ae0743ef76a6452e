"""The course of one audit: play trials, learn an attack, guess, bet, report."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, whole
from dptoolkit.audit.attacks import Attack, Rule, best_tails, fixed_attack, learn, threshold
from dptoolkit.audit.claims import Claim, to_dict
from dptoolkit.audit.engine import Checkpoint, Game, Target, identity
from dptoolkit.audit.pair import Pair
from dptoolkit.audit.report import AuditReport
from dptoolkit.audit.statistics import Guesses, trade_off
from dptoolkit.audit.statistics import lower_bound as binomial_lower
from dptoolkit.audit.statistics.betting import FIRST, LESSONS, MEMORY, SEQUENTIAL, Wealth
from dptoolkit.audit.statistics.bounds import Confident, above, bound, epsilon_at, p_value
from dptoolkit.distributed.executors import Executor
from dptoolkit.types import Array

Bits = NDArray[np.int8]

# Outputs are saved to the resume file after this many seconds: a stop loses at most that much work.
_SAVED_SECONDS = 5.0
# Trials of a resumed audit that are played again, to see that the file is of this mechanism.
_COMPARED = 4
# Shares of the claimed epsilon at which the excess of confident guesses is tried.
_SHARES = (0.2, 0.35, 0.5, 0.7)
# Points of the claimed profile in the plot. They are few, as each may cost a composition; between them the plot shows
# an upper envelope.
_PROFILE_POINTS = 13


@dataclass(frozen=True)
class Schedule:
    """How long an audit plays, and how sure it must be."""

    trials: int | None
    seconds: float | None
    confidence: float
    alpha: float
    mode: str
    seed: int
    n_jobs: int | None
    executor: Executor | None = None

    @property
    def verdict_bounds(self) -> bool:
        """Whether a refuted claim is a lower bound at ``confidence``.

        With a fixed number of trials, verdict and bound are one test at two levels. In a sequential audit the verdict
        rests on all bets and the bound on guesses alone: two tests, whose errors must together be within the bound's.
        """
        error = 1 - self.confidence
        return self.alpha <= (0.5 * error if self.mode == SEQUENTIAL else error * (1 + 1e-9))

    @property
    def bound_confidence(self) -> float:
        """The confidence at which the bound is computed, so that its error and the verdict's together are allowed."""
        return self.confidence + self.alpha if self.mode == SEQUENTIAL and self.verdict_bounds else self.confidence


class Evidence(NamedTuple):
    """Whether a claim is refuted, after how many trials a sequential audit was sure, and what speaks against it."""

    refuted: bool
    stopped_at: int | None
    p_value: float
    log_e_value: float


class Session:
    """One audit in progress, with its trials so far."""

    def __init__(
        self, target: Target, claim: Claim, delta: float, statistic: Any, name: str, settings: Schedule, resume: Any
    ) -> None:
        self.target, self.claim, self.delta, self.settings = target, claim, delta, settings
        self._statistic, self._name = statistic, name
        self.game = Game(target, settings.seed, "trials", settings.n_jobs, settings.executor)
        self.wealth = Wealth(claim, settings.alpha)
        self._began = time.perf_counter()
        self._bits: Bits = np.zeros(0, np.int8)
        self._correct = np.zeros(0, bool)
        # Runs that failed, and outputs of which some numbers are missing.
        self._failures = self._gaps = 0
        self._memory: Array = np.zeros((0, 0))
        self._recent: list[Array] = []
        self.attack: Attack | None = None
        self.rule: Rule | None = None
        self._confident: Rule | None = None
        self._odds, self._tail_epsilon = Guesses(0, 0, 0), 0.0
        self._learned_at, self._frozen, self._decided = 0, False, False
        self._lessons, self._own_noise, self._constant = MEMORY, False, False
        self._checkpoint = None if resume is None else Checkpoint(Path(resume), self._fingerprint())

    def _fingerprint(self) -> str:
        claim = to_dict(self.claim) or str(self.claim)
        parts = identity((claim, self.settings.seed, self._name, type(self.target).__name__, vars(self.target)))
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def without_streams(self) -> None:
        """Prepare for a mechanism that does not draw from its Generator: one process, as copies would share noise."""
        self._own_noise = True
        self.game.alone()

    def with_constant_outputs(self) -> None:
        """Note that all first runs on one of the datasets gave the same output."""
        self._constant = True

    # --- playing -----------------------------------------------------------------------------------------

    @property
    def trial_count(self) -> int:
        return len(self._bits)

    @property
    def stopped_at(self) -> int | None:
        """The trial at which a sequential audit had its evidence; None without evidence, or in another mode."""
        if self.settings.mode != SEQUENTIAL or self.wealth.crossed_at is None:
            return None
        return self.wealth.crossed_at + FIRST

    def run(self, progress: Any) -> None:
        """Play blocks of trials, each as long as all before it, in slices short enough to end on time."""
        tell, self._began = _teller(progress), time.perf_counter()
        while not self._finished():
            if self.trial_count >= max(FIRST, 2 * self._learned_at):
                self._learn()
            self._play(self._slice())
            tell(self.trial_count, self._elapsed())

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began

    def _finished(self) -> bool:
        if self.stopped_at is not None:
            return True
        if self.settings.trials is not None:
            return self.trial_count >= self.settings.trials
        return self.trial_count >= 2 * FIRST and self._elapsed() >= (self.settings.seconds or 0.0)

    def _slice(self) -> int:
        if self.trial_count < FIRST:
            return FIRST - self.trial_count
        count = 2 * self._learned_at - self.trial_count
        if self.settings.mode == SEQUENTIAL:
            # Short slices, so that few trials are played after the evidence suffices.
            count = min(count, max(FIRST, self.trial_count // 8))
        if self.settings.trials is not None:
            return min(count, self.settings.trials - self.trial_count)
        # About a fifth of a second, and never past the end.
        rate = self.trial_count / max(self._elapsed(), 1e-3)
        room = max((self.settings.seconds or 0.0) - self._elapsed(), 0.0)
        return max(1, min(count, int(rate * min(max(0.2, 0.1 * room), room)) + 1))

    def _play(self, count: int) -> None:
        bits, outputs = self._outputs(self.trial_count, count)
        missing = np.isnan(outputs)
        self._failures += int(missing.all(axis=1).sum())
        self._gaps += int((missing.any(axis=1) & ~missing.all(axis=1)).sum())
        if self.attack is not None and self.rule is not None:
            scores = self.attack.scores(outputs)
            correct = self.rule.guess(scores) == bits
            self.wealth.bet(scores, bits, correct)
            self._correct = np.concatenate([self._correct, correct])
            self._recent.append(scores)
            if self._confident is not None:
                self._odds = self._odds + self._confident.play(scores, bits)
        if len(self._memory) < MEMORY:
            room = MEMORY - len(self._memory)
            part = outputs[:room]
            self._memory = part if len(self._memory) == 0 else np.concatenate([self._memory, part])
        self._bits = np.concatenate([self._bits, bits])

    def _outputs(self, first: int, count: int) -> tuple[Bits, Array]:
        if self._checkpoint is None:
            return self.game.play(first, count)
        available = min(self._checkpoint.available(first), count)
        if available and first == 0:
            self._compare_with_file(min(available, _COMPARED))
        parts = [self._checkpoint.outputs(first, available)] if available else []
        # The trials that the file lacks are played now, so that slices, and with them the report, are those of an audit
        # that was never stopped. They are saved every few seconds, as a slice may be half of a long audit.
        while available < count:
            _, new = self.game.play(first + available, min(count - available, self.game.portion(_SAVED_SECONDS)))
            self._checkpoint.append(new)
            parts.append(new)
            available += len(new)
        return self.game.streams.bits(first, count), np.concatenate(parts)

    def _compare_with_file(self, count: int) -> None:
        """Play the first trials again: a file of another mechanism's trials would give that one's verdict."""
        assert self._checkpoint is not None
        _, again = self.game.play(0, count)
        if not np.array_equal(again, self._checkpoint.outputs(0, count), equal_nan=True):
            raise invalid(
                "resume",
                "a file whose trials this mechanism does not repeat",
                "of the same mechanism and pair",
                "Start again with another file.",
            )

    # --- learning ----------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """New attack, rules and bets from past trials only; attack and rules are kept once the memory is full."""
        self._learned_at = self.trial_count
        if self._frozen:
            self._learn_bets()
            return
        past, bits = self._memory, self._bits[: len(self._memory)]
        # Once there is a rule that abstains, the attack stays: the rule was chosen for its scores.
        if self.attack is None or self._confident is None:
            if self.attack is None or self._statistic is None:
                self._recent = []
            is_known = self._statistic is not None
            self.attack = fixed_attack(self._statistic, self._name, past, bits) if is_known else learn(past, bits)
        scores = self.attack.scores(past)
        self.rule = threshold(scores, bits)
        self.wealth.learn(scores, bits)
        self._choose_confident(scores, bits)
        self._frozen = len(self._memory) == MEMORY

    def _learn_bets(self) -> None:
        """New bets for an attack that stays: rare events take more trials to learn than the memory of outputs holds."""
        scores = np.concatenate(self._recent)[:LESSONS]
        bits = self._bits[self.trial_count - sum(map(len, self._recent)) :][: len(scores)]
        if len(scores) > self._lessons:
            self._lessons = len(scores)
            self.wealth.learn(scores, bits)

    def _choose_confident(self, scores: Array, bits: Bits) -> None:
        """Once, after a tenth of the trials, choose to guess on the tails only if that should give a better bound.

        Only later trials count for the bound, because trials that decided between two bounds must not be part of the
        winner. A rule that abstains must not be changed later, as the number of guesses would depend on past luck.
        """
        s = self.settings
        if self._decided or s.mode == SEQUENTIAL or self.claim.is_gaussian:
            return
        total = s.trials or int(self.trial_count * (s.seconds or 0.0) / max(self._elapsed(), 1e-3))
        if self.trial_count < min(max(total // 10, 500), MEMORY) or total <= self.trial_count:
            return
        self._decided = True
        self._confident = self._better_tail(scores, bits, total - self.trial_count)
        self._correct = np.zeros(0, bool)

    def _better_tail(self, scores: Array, bits: Bits, trials: int) -> Rule | None:
        """A rule for the tails that is expected to give a better bound than all guesses; None if there is none."""
        level = self.settings.confidence
        right = float(self._correct.mean()) if len(self._correct) else 0.5
        low = binomial_lower(int(right * trials), trials, level)
        factor = self.claim.factor_at(max(0.0, 2 * low - 1))
        if self.claim.any_mechanism:
            expected, rule = best_tails(scores, bits, trials, lambda g, sides: g.odds_lower(self.delta, level))
            return rule if expected > epsilon_at(self.claim, factor, self.delta) else None
        best, self._tail_epsilon, rule = self._best_tail(scores, bits, trials)
        return rule if best > factor else None

    def _best_tail(self, scores: Array, bits: Bits, trials: int) -> tuple[float, float, Rule]:
        """(expected factor, epsilon, rule) of the excess of confident guesses at the most promising epsilon."""
        best = (0.0, 0.0, Rule(-math.inf, math.inf))
        for share in _SHARES:
            e = share * self.claim.epsilon(self.claim.reference_delta or 1e-5)
            delta, rule = best_tails(scores, bits, trials, partial(_excess, e, self.settings.confidence))
            factor = self._rough_factor(delta, e) if delta > 0 else 0.0
            best = max(best, (factor, e, rule), key=lambda x: x[0])
        return best

    def _rough_factor(self, delta: float, epsilon: float) -> float:
        """An estimate of ``claim.factor_at`` from two members of the family, for choosing a rule only."""
        weak, full = self.claim.weakened(0.8).delta(epsilon), self.claim.delta(epsilon)
        if not 0 < weak < full < 1:
            return 0.0
        return 0.8 ** (math.log(full / delta) / math.log(full / weak))

    # --- reporting ---------------------------------------------------------------------------------------

    def evidence(self) -> Evidence:
        """What all trials so far say of the claim."""
        value, stop = p_value(self.claim, self.delta, self._counts(), self._confident_guesses()), self.stopped_at
        refuted = stop is not None if self.settings.mode == SEQUENTIAL else value <= self.settings.alpha
        return Evidence(refuted, stop, value, self.wealth.log_now if stop is None else self.wealth.log_crossing)

    def report(self, pair: Pair, adversary: str, reach: float | None, mechanism: str, source: str) -> AuditReport:
        """The report of all trials so far."""
        s, claim = self.settings, self.claim
        assert self.attack is not None
        evidence, claimed = self.evidence(), claim.epsilon(self.delta)
        result = bound(
            claim, self.delta, self._counts(), self._confident_guesses(), self._correct, s.bound_confidence,
            s.mode == SEQUENTIAL,
        )  # fmt: skip
        scores = np.concatenate(self._recent) if self._recent else np.zeros(0)
        bits = self._bits[len(self._bits) - len(scores) :]
        if evidence.refuted and s.verdict_bounds:
            result = above(result, claimed)
        return AuditReport(
            claim=str(claim), epsilon_claimed=claimed, delta=self.delta,
            epsilon_lower=result.epsilon, epsilon_upper_of_attack=result.upper, noise_factor=result.factor,
            confidence=s.confidence, mode=s.mode, alpha=s.alpha, violated=evidence.refuted,
            e_value=math.exp(min(evidence.log_e_value, 700.0)), log_e_value=evidence.log_e_value,
            p_value=evidence.p_value, stopped_at=evidence.stopped_at,
            trials=self.trial_count, pilot=self.trial_count - result.guesses.trials, failures=self._failures,
            guesses=result.guesses, statistic=result.statistic, attack=self.attack.name, adversary=adversary,
            pair=pair.description, reach=reach, seed=s.seed, seconds=self._elapsed(), notes=self._notes(),
            mechanism=mechanism, source=source,
            trade_off=trade_off(scores, bits, s.confidence), claimed_profile=_profile(claim),
            claim_record=to_dict(claim), _replay=None if self._own_noise else self._replay,
        )  # fmt: skip

    def _counts(self) -> Guesses:
        return Guesses(len(self._correct), len(self._correct), int(self._correct.sum()))

    def _confident_guesses(self) -> Confident | None:
        if self._confident is None or self._odds.made == 0:
            return None
        return Confident(self._odds, self._tail_epsilon, self._confident.sides)

    def _notes(self) -> tuple[str, ...]:
        notes = [
            "A bound for this attack on this pair: another may find more. Events of probability below about "
            "1/trials, timing and floating-point fingerprints are not seen."
        ]
        if self.claim.at_one_point:
            notes.append(
                "The claim fixes one point of the privacy profile; a whole profile (GaussianClaim, a Guarantee) needs "
                "far fewer trials to be refuted."
            )
        if self._failures:
            notes.append(
                f"{self._failures:,} runs raised an error or gave NaN or None. An adversary sees that a run failed, so "
                f"a failure is an output like others.{self._last_failure()}"
            )
        if self._gaps:
            notes.append(f"{self._gaps:,} outputs have missing numbers (NaN). Which are missing is looked at as well.")
        unseen = self.target.unseen
        if unseen:
            notes.append(f"Only {unseen}: a leak there is not found. Give encode=, output -> numbers, to look at more.")
        if self._constant:
            notes.append(
                "All first runs on one of the datasets gave the same output: the mechanism is hardly random there, or "
                "it returns an answer that it has stored. Trials with a stored answer are one release seen many times "
                "and say nothing about it: let every call compute its answer anew."
            )
        if self._own_noise:
            notes.append(
                "A trial played again gave another output: the mechanism draws from a generator of its own, or keeps a "
                "state. So neither the seed nor replay() repeats this audit, and its error probabilities hold only if "
                "those draws are independent from run to run."
            )
        return tuple(notes)

    def _last_failure(self) -> str:
        """The kind of the last error that is known; its message stays out of the report, as it may quote a record."""
        kind = self.target.last_error.partition(":")[0]
        return f" The last error was {kind}." if kind else ""

    def _replay(self, trial: int) -> Array:
        trial = whole("trial", trial)
        if trial >= self.trial_count:
            raise invalid("trial", trial, f"< {self.trial_count}, the number of trials")
        return np.asarray(self.target.run(self.game.streams.bits(trial, 1), trial, self.game.streams)[0])


def _excess(epsilon: float, confidence: float, guesses: Guesses, sides: int) -> float:
    return guesses.excess_lower(epsilon, sides, confidence)


def _profile(claim: Claim) -> tuple[tuple[float, float], ...]:
    """Some points (epsilon, delta) of the claim, for the plot."""
    top = claim.epsilon(claim.reference_delta or 1e-5)
    top = top if 0 < top < math.inf else 1.0
    return tuple((float(e), claim.delta(float(e))) for e in np.linspace(0, top, _PROFILE_POINTS))


def _teller(progress: Any) -> Callable[[int, float], None]:
    """The function that is called with (trials, seconds) after every slice of trials."""
    if callable(progress):
        return progress
    if not progress:
        return lambda trials, seconds: None

    def line(trials: int, seconds: float) -> None:
        print(f"\r{trials:,} trials, {seconds:.0f} s", end="", file=sys.stderr, flush=True)

    return line
