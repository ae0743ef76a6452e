"""One audit under way: play, learn, guess, bet, report."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, whole
from dptoolkit.audit.attacks import Attack, Rule, best_tails, given, learn, threshold
from dptoolkit.audit.betting import FIRST, LESSONS, MEMORY, SEQUENTIAL, Wealth
from dptoolkit.audit.bounds import Confident, above, bound, epsilon_at
from dptoolkit.audit.claims import Claim, to_dict
from dptoolkit.audit.engine import Checkpoint, Game, Target, identity
from dptoolkit.audit.pairs.pair import Pair
from dptoolkit.audit.report import AuditReport
from dptoolkit.audit.statistics import Guesses, trade_off
from dptoolkit.audit.statistics import lower_bound as binomial_lower

Array = NDArray[np.float64]
Bits = NDArray[np.int8]

# Seconds of work that a stop may cost an audit that keeps its trials in a file.
_KEPT_SECONDS = 5.0
# Shares of the claimed epsilon at which the excess of confident guesses is tried.
_SHARES = (0.2, 0.35, 0.5, 0.7)
# Each may cost a composition; between them the plot is an upper envelope anyway.
_PROFILE_POINTS = 13


@dataclass(frozen=True)
class Settings:
    """How long an audit plays, and how sure it must be."""

    trials: int | None
    seconds: float | None
    confidence: float
    alpha: float
    mode: str
    seed: int
    n_jobs: int | None

    @property
    def verdict_bounds(self) -> bool:
        """Whether a refuted claim is a lower bound at ``confidence``.

        With a fixed number of trials verdict and bound are one test at two levels. Sequentially the verdict rests on
        all bets and the bound on guesses alone, so the error of the bound has to pay for both.
        """
        error = 1 - self.confidence
        return self.alpha <= (0.5 * error if self.mode == SEQUENTIAL else error * (1 + 1e-9))

    @property
    def bound_confidence(self) -> float:
        """The confidence of the bound that is left when the verdict has been paid for."""
        return self.confidence + self.alpha if self.mode == SEQUENTIAL and self.verdict_bounds else self.confidence


class Session:
    """One audit under way."""

    def __init__(
        self, target: Target, claim: Claim, delta: float, statistic: Any, name: str, settings: Settings, resume: Any
    ) -> None:
        self.target, self.claim, self.delta, self.settings = target, claim, delta, settings
        self._statistic, self._name = statistic, name
        self.game = Game(target, settings.seed, "trials", settings.n_jobs)
        self.wealth = Wealth(claim, settings.alpha)
        self._began = time.perf_counter()
        self._bits = np.zeros(0, np.int8)
        self._correct = np.zeros(0, bool)
        self._failures = 0
        self._memory = np.zeros((0, 0))
        self._recent: list[Array] = []
        self.attack: Attack | None = None
        self.rule: Rule | None = None
        self._confident: Rule | None = None
        self._odds, self._tail_epsilon = Guesses(0, 0, 0), 0.0
        self._learned_at, self._frozen, self._decided = 0, False, False
        self._lessons, self._own_noise = MEMORY, False
        self._checkpoint = None if resume is None else Checkpoint(Path(resume), self._fingerprint())

    def _fingerprint(self) -> str:
        claim = to_dict(self.claim) or str(self.claim)
        known = identity((claim, self.settings.seed, self._name, type(self.target).__name__, vars(self.target)))
        return hashlib.sha256(repr(known).encode()).hexdigest()

    def without_streams(self) -> None:
        """Audit a mechanism that draws from elsewhere: in one process, since copies would draw the same noise."""
        self._own_noise = True
        self.game.alone()

    # --- playing -----------------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        return len(self._bits)

    def run(self, progress: Any) -> None:
        """Blocks of trials, each as long as all before it, in slices short enough to keep to the time."""
        tell, self._began = _teller(progress), time.perf_counter()
        while not self._finished():
            if self.done >= max(FIRST, 2 * self._learned_at):
                self._learn()
            self._play(self._slice())
            tell(self.done, self._elapsed())

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began

    def _finished(self) -> bool:
        if self.settings.mode == SEQUENTIAL and self.wealth.crossed_at is not None:
            return True
        if self.settings.trials is not None:
            return self.done >= self.settings.trials
        return self.done >= 2 * FIRST and self._elapsed() >= (self.settings.seconds or 0.0)

    def _slice(self) -> int:
        if self.done < FIRST:
            return FIRST - self.done
        left = 2 * self._learned_at - self.done
        if self.settings.mode == SEQUENTIAL:
            # Short slices, so that little is played after the evidence is in.
            left = min(left, max(FIRST, self.done // 8))
        if self.settings.trials is not None:
            return min(left, self.settings.trials - self.done)
        # About a fifth of a second, and never past the end.
        rate = self.done / max(self._elapsed(), 1e-3)
        room = max((self.settings.seconds or 0.0) - self._elapsed(), 0.0)
        return max(1, min(left, int(rate * min(max(0.2, 0.1 * room), room)) + 1))

    def _play(self, count: int) -> None:
        bits, outputs = self._outputs(self.done, count)
        self._failures += int(np.isnan(outputs).any(axis=1).sum())
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
            kept = outputs[:room]
            self._memory = kept if len(self._memory) == 0 else np.concatenate([self._memory, kept])
        self._bits = np.concatenate([self._bits, bits])

    def _outputs(self, first: int, count: int) -> tuple[Bits, Array]:
        if self._checkpoint is None:
            return self.game.play(first, count)
        kept = min(self._checkpoint.available(first), count)
        parts = [self._checkpoint.outputs(first, kept)] if kept else []
        # What is missing of a slice is played now: slices, and so the report, are those of an audit without a stop.
        # They are kept every few seconds, as a slice may be half of a long audit.
        while kept < count:
            _, new = self.game.play(first + kept, min(count - kept, self.game.portion(_KEPT_SECONDS)))
            self._checkpoint.append(new)
            parts.append(new)
            kept += len(new)
        return self.game.streams.bits(first, count), np.concatenate(parts)

    # --- learning ----------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """New attack, rules and bets from past trials only; attack and rules are kept once the memory is full."""
        self._learned_at = self.done
        if self._frozen:
            self._learn_bets()
            return
        past, bits = self._memory, self._bits[: len(self._memory)]
        # A rule that abstains rests on the scores it was chosen for.
        if self.attack is None or self._confident is None:
            if self.attack is None or self._statistic is None:
                self._recent = []
            known = self._statistic is not None
            self.attack = given(self._statistic, self._name, past, bits) if known else learn(past, bits)
        scores = self.attack.scores(past)
        self.rule = threshold(scores, bits)
        self.wealth.learn(scores, bits)
        self._choose_confident(scores, bits)
        self._frozen = len(self._memory) == MEMORY

    def _learn_bets(self) -> None:
        """New bets on the scores of an attack that stays: what is rare takes more trials than a memory of outputs."""
        scores = np.concatenate(self._recent)[:LESSONS]
        bits = self._bits[self.done - sum(map(len, self._recent)) :][: len(scores)]
        if len(scores) > self._lessons:
            self._lessons = len(scores)
            self.wealth.learn(scores, bits)

    def _choose_confident(self, scores: Array, bits: Bits) -> None:
        """Once, after a tenth of the trials: guess on the tails only, if the bound is expected to be better for it.

        Whichever is chosen counts from here on: trials that decided between two bounds must not be part of the winner.
        A rule that abstains must not be changed on the way: the number of guesses would then depend on past luck.
        """
        s = self.settings
        if self._decided or s.mode == SEQUENTIAL or self.claim.is_gaussian:
            return
        total = s.trials or int(self.done * (s.seconds or 0.0) / max(self._elapsed(), 1e-3))
        if self.done < min(max(total // 10, 500), MEMORY) or total <= self.done:
            return
        self._decided = True
        self._confident = self._better_tail(scores, bits, total - self.done)
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
        found = (0.0, 0.0, Rule(-math.inf, math.inf))
        for share in _SHARES:
            e = share * self.claim.epsilon(self.claim.reference_delta or 1e-5)
            delta, rule = best_tails(scores, bits, trials, partial(_excess, e, self.settings.confidence))
            factor = self._rough_factor(delta, e) if delta > 0 else 0.0
            found = max(found, (factor, e, rule), key=lambda x: x[0])
        return found

    def _rough_factor(self, delta: float, epsilon: float) -> float:
        """factor_at by two values of the family, for choosing only."""
        weak, full = self.claim.weakened(0.8).delta(epsilon), self.claim.delta(epsilon)
        if not 0 < weak < full < 1:
            return 0.0
        return 0.8 ** (math.log(full / delta) / math.log(full / weak))

    # --- reporting ---------------------------------------------------------------------------------------

    def report(self, pair: Pair, adversary: str, reach: float | None) -> AuditReport:
        """Everything the trials show."""
        s, claim = self.settings, self.claim
        assert self.attack is not None
        sequential, claimed = s.mode == SEQUENTIAL, claim.epsilon(self.delta)
        found = bound(
            claim, self.delta, self._counts(), self._confident_guesses(), self._correct, s.bound_confidence, sequential
        )
        scores = np.concatenate(self._recent) if self._recent else np.zeros(0)
        bits = self._bits[len(self._bits) - len(scores) :]
        stopped = sequential and self.wealth.crossed_at is not None
        log_e = self.wealth.log_crossing if stopped else self.wealth.log_now
        violated = stopped if sequential else found.p_value <= s.alpha
        if violated and s.verdict_bounds:
            found = above(found, claimed)
        return AuditReport(
            claim=str(claim), epsilon_claimed=claimed, delta=self.delta,
            epsilon_lower=found.epsilon, epsilon_upper_of_attack=found.upper, noise_factor=found.factor,
            confidence=s.confidence, mode=s.mode, alpha=s.alpha, violated=violated,
            e_value=math.exp(min(log_e, 700.0)), log_e_value=log_e, p_value=found.p_value,
            stopped_at=(self.wealth.crossed_at or 0) + FIRST if stopped else None,
            trials=self.done, pilot=self.done - found.guesses.trials, failures=self._failures, guesses=found.guesses,
            statistic=found.statistic, attack=self.attack.name, adversary=adversary, pair=pair.description,
            reach=reach, seed=s.seed, seconds=self._elapsed(), notes=self._notes(),
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
        notes = ["A bound for this attack on this pair: another may find more. Events of probability below about "
                 "1/trials, timing and floating-point fingerprints are not seen."]  # fmt: skip
        if self.claim.at_one_point:
            notes.append(
                "The claim fixes one point of the privacy profile; a whole profile (GaussianClaim, a Guarantee) needs "
                "far fewer trials to be refuted."
            )
        if self._own_noise:
            notes.append(
                "A trial played again gave another output: the mechanism draws from a generator of its own, or keeps a "
                "state. So neither the seed nor replay() repeats this audit, and its error probabilities hold only if "
                "those draws are independent from run to run."
            )
        return tuple(notes)

    def _replay(self, trial: int) -> Array:
        trial = whole("trial", trial)
        if trial >= self.done:
            raise invalid("trial", trial, f"< {self.done}, the number of trials")
        return np.asarray(self.target.run(self.game.streams.bits(trial, 1), trial, self.game.streams)[0])


def _excess(epsilon: float, confidence: float, guesses: Guesses, sides: int) -> float:
    return guesses.excess_lower(epsilon, sides, confidence)


def _profile(claim: Claim) -> tuple[tuple[float, float], ...]:
    """Some points (epsilon, delta) of the claim, for the plot."""
    top = claim.epsilon(claim.reference_delta or 1e-5)
    top = top if 0 < top < math.inf else 1.0
    return tuple((float(e), claim.delta(float(e))) for e in np.linspace(0, top, _PROFILE_POINTS))


def _teller(progress: Any) -> Callable[[int, float], None]:
    """What is called after every slice of trials."""
    if callable(progress):
        return progress
    if not progress:
        return lambda done, seconds: None

    def line(done: int, seconds: float) -> None:
        print(f"\r{done:,} trials, {seconds:.0f} s", end="", file=sys.stderr, flush=True)

    return line
