"""The audit itself: play, learn, guess, bet, report."""

from __future__ import annotations

import hashlib
import math
import numbers
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, one_of, positive, real, whole
from dptoolkit.audit.attacks import Attack, Rule, best_tails, given, learn, threshold
from dptoolkit.audit.betting import Wealth
from dptoolkit.audit.bounds import ADVANTAGE, ODDS, TAIL, Confident, bound, epsilon_at
from dptoolkit.audit.claims import Claim, as_claim, from_dict, to_dict
from dptoolkit.audit.engine import CallableTarget, Checkpoint, Game, Target, identity
from dptoolkit.audit.pairs.pair import Pair, check_neighbours
from dptoolkit.audit.report import AuditReport
from dptoolkit.audit.statistics import Guesses, trade_off
from dptoolkit.audit.statistics import lower_bound as binomial_lower
from dptoolkit.audit.streams import Streams
from dptoolkit.solvers.base import Plan

Array = NDArray[np.float64]
Bits = NDArray[np.int8]

FIXED, SEQUENTIAL = "fixed", "sequential"
# Shares of the claimed epsilon at which the excess of confident guesses is tried.
_SHARES = (0.2, 0.35, 0.5, 0.7)
# The first trials teach the first rule; then rules are learned again whenever the trials have doubled.
_FIRST = 100
# Seconds of work that a stop may cost an audit that keeps its trials in a file.
_KEPT_SECONDS = 5.0
# Learned attacks and rules look at no more than this many past trials.
_MEMORY = 20_000
# Each may cost a composition; between them the plot is an upper envelope anyway.
_PROFILE_POINTS = 13
ADVERSARIES = ("final", "support", "iterates", "gradients", "releases", "step")


def audit(
    mechanism: Any, pair: Any, claim: Any = None, *, trials: int | None = None, seconds: float | None = None,
    confidence: float = 0.95, alpha: float | None = None, mode: str = FIXED, adversary: str = "final",
    attack: Callable[[Array], Array] | None = None, delta: float | None = None,
    encode: Callable[[Any], Any] | None = None, rng: int = 0, n_jobs: int | None = None,
    progress: Callable[[int, float], None] | bool | None = None, resume: str | Path | None = None,
) -> AuditReport:
    """Attack a mechanism on a pair of neighbours, and bound its privacy loss from below.

    Parameters
    ----------
    mechanism : a Plan, or any callable (dataset, rng) -> output. It must draw all its randomness from the Generator.
    pair : a Pair, or a tuple of two neighbouring datasets; for a Plan, see ``audit.pairs``.
    claim : a typed claim, a Guarantee, an event, or (epsilon, delta); the plan's own guarantee if left out.
    trials, seconds : how long; one of them.
    confidence : of ``epsilon_lower``.  alpha : false-alarm probability of the verdict; 1 - confidence if left out.
    mode : "fixed", exact bounds for a number of trials that does not depend on the outcomes; "sequential", bounds that
        hold at all times, and stops as soon as the claim is refuted at alpha.
    adversary : what a Plan's adversary sees: "final", "support", "iterates", "gradients" or "releases", "step".
    attack : scores of outputs, (trials, features) -> (trials,), larger for the first dataset; learned if left out and
        the pair knows none.
    delta : where epsilons are reported; the claim's own, or 1e-5.
    encode : output -> numbers, for outputs that are not numbers.
    rng : the seed; a trial's stream depends on it and on the trial's number alone.
    n_jobs : workers; None chooses. progress : True for a line on standard error, or called with (trials, seconds).
    resume : a file that keeps the scores after every block; an audit that was killed goes on from there.

    Privacy
    -------
    For test data: outputs are looked at without a budget. Do not point it at data that need protection.
    """
    settings = _settings(trials, seconds, confidence, alpha, mode, rng, n_jobs)
    made = as_pair(pair)
    goal = claim_of(mechanism, claim)
    target = _target(mechanism, made, adversary, encode)
    _check_claim(goal)
    at = goal.reference_delta if delta is None else real("delta", delta, low=0.0, high=1.0, open_high=True)
    if math.isinf(goal.epsilon(at)):
        raise invalid("delta", at, f"one at which {goal} has a finite epsilon")
    statistic = attack or made.scores.get(adversary)
    name = "given" if attack is not None else f"known for this pair ({adversary})"
    session = _Session(target, goal, at, statistic, name, settings, resume)
    session.game.width = _probe(target, settings.seed)
    session.run(progress)
    seen = adversary if isinstance(mechanism, Plan) else "the output"
    # Working out what a pair can reach takes seconds for some; a test suite does not ask for it.
    reach = made.reach.get(adversary) if settings.mode == FIXED else None
    return session.report(made, seen, reach)


@dataclass(frozen=True)
class _Settings:
    trials: int | None
    seconds: float | None
    confidence: float
    alpha: float
    mode: str
    seed: int
    n_jobs: int | None


def _settings(
    trials: Any, seconds: Any, confidence: Any, alpha: Any, mode: Any, rng: Any, n_jobs: Any
) -> _Settings:
    if (trials is None) == (seconds is None):
        raise invalid("trials, seconds", (trials, seconds), "exactly one of them", "For example trials=10_000.")
    if trials is not None:
        trials = whole("trials", trials, low=2 * _FIRST, repair="Fewer show nothing.")
    if seconds is not None:
        seconds = positive("seconds", seconds)
    if isinstance(rng, bool) or not isinstance(rng, numbers.Integral) or rng < 0:
        raise invalid("rng", rng, "an integer >= 0", "The audit makes a stream of its own for every trial.")
    if n_jobs is not None:
        n_jobs = whole("n_jobs", n_jobs, low=1)
    confidence = real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    alpha = 1 - confidence if alpha is None else real("alpha", alpha, low=0.0, high=1.0, open_low=True, open_high=True)
    return _Settings(trials, seconds, confidence, alpha, one_of("mode", mode, (FIXED, SEQUENTIAL)), int(rng), n_jobs)


def as_pair(pair: Any) -> Pair:
    """A Pair from a Pair or two datasets; what can be checked of neighbours is."""
    if not isinstance(pair, Pair):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise invalid("pair", pair, "a Pair or a tuple of two datasets")
        pair = Pair(*pair)
    check_neighbours(pair)
    return pair


def claim_of(mechanism: Any, claim: Any) -> Claim:
    """The claim, or that of a plan about itself."""
    if claim is None and isinstance(mechanism, Plan):
        return as_claim(mechanism.guarantee)
    return as_claim(claim)


def _check_claim(claim: Claim) -> None:
    variation = claim.delta(0.0)
    if not variation < 1:
        raise invalid("claim", str(claim), "one that promises something", "This one allows everything: delta(0) = 1.")
    if not variation > 0:
        raise invalid("claim", str(claim), "one that allows something", "This one forbids everything: delta(0) = 0.")


def _target(mechanism: Any, pair: Pair, adversary: str, encode: Any) -> Target:
    one_of("adversary", adversary, ADVERSARIES)
    if isinstance(mechanism, Plan):
        from dptoolkit.audit.targets import PlanTarget

        return PlanTarget(mechanism, pair, adversary)
    if not callable(mechanism):
        raise invalid("mechanism", mechanism, "a Plan or a callable (dataset, rng) -> output")
    return CallableTarget(mechanism, pair, encode)


def _probe(target: Target, seed: int) -> int:
    """How many numbers an output has, from a few runs in each world; refuse a mechanism that always fails or that
    ignores its Generator. One that fails in one world only gives that world away, which is for the trials to show."""
    worlds = []
    for bit in (0, 1):
        outputs = target.run(np.full(16, bit, dtype=np.int8), 0, Streams(seed, "probe"))
        worlds.append(outputs[~np.isnan(outputs).any(axis=1)])
        if outputs.shape[1] == 0:
            raise invalid("output of the mechanism", "empty", "at least one number")
    if not any(len(w) for w in worlds):
        reason = getattr(target, "last_error", "") or "every output is NaN"
        raise invalid("mechanism", f"failed 16 times of 16 ({reason})", "able to run on the pair")
    constant = all(len(w) > 8 and (w == w[0]).all() for w in worlds)
    # One that draws is rarely random, or its noise is lost: both are for the trials to show.
    if constant and isinstance(target, CallableTarget) and not target.draws(Streams(seed, "probe")):
        raise invalid(
            "mechanism", "16 runs on one dataset gave the same output", "random",
            "It must draw from the Generator it is given: a fixed seed inside makes every output a fingerprint.",
        )
    return int(next(w.shape[1] for w in worlds if len(w)))


class _Session:
    """One audit under way."""

    def __init__(
        self, target: Target, claim: Claim, delta: float, statistic: Any, name: str, settings: _Settings, resume: Any
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
        self._checkpoint = None if resume is None else Checkpoint(Path(resume), self._fingerprint())

    def _fingerprint(self) -> str:
        claim = to_dict(self.claim) or str(self.claim)
        known = identity((claim, self.settings.seed, self._name, type(self.target).__name__, vars(self.target)))
        return hashlib.sha256(repr(known).encode()).hexdigest()

    # --- playing -----------------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        return len(self._bits)

    def run(self, progress: Any) -> None:
        """Blocks of trials, each as long as all before it, in slices short enough to keep to the time."""
        tell, self._began = _teller(progress), time.perf_counter()
        while not self._finished():
            if self.done >= max(_FIRST, 2 * self._learned_at):
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
        return self.done >= 2 * _FIRST and self._elapsed() >= (self.settings.seconds or 0.0)

    def _slice(self) -> int:
        if self.done < _FIRST:
            return _FIRST - self.done
        left = 2 * self._learned_at - self.done
        if self.settings.mode == SEQUENTIAL:
            # Short slices, so that little is played after the evidence is in.
            left = min(left, max(_FIRST, self.done // 8))
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
        if len(self._memory) < _MEMORY:
            room = _MEMORY - len(self._memory)
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
        """New attack and rules from past trials only; frozen once the memory is full."""
        self._learned_at = self.done
        if self._frozen:
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
        self._frozen = len(self._memory) == _MEMORY

    def _choose_confident(self, scores: Array, bits: Bits) -> None:
        """Once, after a tenth of the trials: guess on the tails only, if the bound is expected to be better for it.

        Whichever is chosen counts from here on: trials that decided between two bounds must not be part of the winner.
        A rule that abstains must not be changed on the way: the number of guesses would then depend on past luck.
        """
        s = self.settings
        if self._decided or s.mode == SEQUENTIAL or self.claim.is_gaussian:
            return
        total = s.trials or int(self.done * (s.seconds or 0.0) / max(self._elapsed(), 1e-3))
        if self.done < min(max(total // 10, 500), _MEMORY) or total <= self.done:
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
        sequential = s.mode == SEQUENTIAL
        found = bound(
            claim, self.delta, self._counts(), self._confident_guesses(), self._correct, s.confidence, sequential
        )
        scores = np.concatenate(self._recent) if self._recent else np.zeros(0)
        bits = self._bits[len(self._bits) - len(scores) :]
        stopped = sequential and self.wealth.crossed_at is not None
        log_e = self.wealth.log_crossing if stopped else self.wealth.log_now
        violated = stopped if sequential else found.p_value <= s.alpha
        return AuditReport(
            claim=str(claim), epsilon_claimed=claim.epsilon(self.delta), delta=self.delta,
            epsilon_lower=found.epsilon, epsilon_upper_of_attack=found.upper, noise_factor=found.factor,
            confidence=s.confidence, mode=s.mode, alpha=s.alpha, violated=violated,
            e_value=math.exp(min(log_e, 700.0)), log_e_value=log_e, p_value=found.p_value,
            stopped_at=(self.wealth.crossed_at or 0) + _FIRST if stopped else None,
            trials=self.done, pilot=self.done - found.guesses.trials, failures=self._failures, guesses=found.guesses,
            statistic=found.statistic, attack=self.attack.name, adversary=adversary, pair=pair.description,
            reach=reach, seed=s.seed, seconds=self._elapsed(), notes=self._notes(),
            trade_off=trade_off(scores, bits, s.confidence), claimed_profile=_profile(claim),
            claim_record=to_dict(claim), _replay=self._replay,
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
                "The claim fixes one point of the privacy profile; a whole profile (GDP, a Guarantee) needs far fewer "
                "trials to be refuted."
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


def merged(a: AuditReport, b: AuditReport) -> AuditReport:
    """See ``AuditReport.merge``: guesses are pooled, so the bound is that of one audit with all the trials."""
    for name in ("claim", "delta", "pair", "adversary", "mode", "statistic", "confidence", "alpha"):
        if getattr(a, name) != getattr(b, name):
            raise invalid(name, getattr(b, name), f"equal to {getattr(a, name)!r}, as in the other report")
    if a.seed == b.seed:
        raise invalid("seed", b.seed, "different in the two reports", "The same seed gives the same trials again.")
    if a.mode == SEQUENTIAL or a.claim_record is None:
        raise invalid("mode", a.mode, "'fixed', with a typed claim", "Multiply the e-values of sequential audits.")
    claim = from_dict(a.claim_record)
    both = a.guesses + b.guesses
    if a.statistic == TAIL:
        raise invalid("statistic", a.statistic, f"{ADVANTAGE!r} or {ODDS!r} to be pooled", "Audit once, for longer.")
    tail = Confident(both, 0.0, 2) if a.statistic == ODDS else None
    found = bound(claim, a.delta, both, tail, np.zeros(0, bool), a.confidence)
    log_e = a.log_e_value + b.log_e_value
    return replace(
        a, trials=a.trials + b.trials, pilot=a.pilot + b.pilot, failures=a.failures + b.failures, guesses=both,
        seconds=a.seconds + b.seconds, log_e_value=log_e, e_value=math.exp(min(log_e, 700.0)), p_value=found.p_value,
        epsilon_lower=found.epsilon, epsilon_upper_of_attack=found.upper, noise_factor=found.factor,
        violated=found.p_value <= a.alpha, notes=(*a.notes, f"merged with the audit of seed {b.seed}"),
        trade_off=a.trade_off if a.trials >= b.trials else b.trade_off, _replay=None,
    )  # fmt: skip


def _teller(progress: Any) -> Callable[[int, float], None]:
    """What is called after every slice of trials."""
    if callable(progress):
        return progress
    if not progress:
        return lambda done, seconds: None

    def line(done: int, seconds: float) -> None:
        print(f"\r{done:,} trials, {seconds:.0f} s", end="", file=sys.stderr, flush=True)

    return line
