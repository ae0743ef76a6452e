"""The public ``audit``: what is attacked, on which pair, against which claim, for how long."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dptoolkit._validate import invalid, one_of, positive, real, whole
from dptoolkit.audit import neighbours as neighbouring
from dptoolkit.audit.claims import Claim, as_claim
from dptoolkit.audit.engine import CallableTarget, Target
from dptoolkit.audit.pair import Pair
from dptoolkit.audit.report import AuditReport
from dptoolkit.audit.session import Evidence, Schedule, Session
from dptoolkit.audit.statistics.betting import FIRST, FIXED, SEQUENTIAL
from dptoolkit.audit.streams import Streams
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

ADVERSARIES = ("final", "support", "iterates", "gradients", "releases", "step")


def audit(
    mechanism: Any, pair: Any, claim: Any = None, *, trials: int | None = None, seconds: float | None = None,
    confidence: float = 0.95, alpha: float | None = None, mode: str = FIXED, adversary: str = "final",
    attack: Callable[[Array], Array] | None = None, delta: float | None = None,
    encode: Callable[[Any], Any] | None = None, rng: int = 0, n_jobs: int | None = None,
    progress: Callable[[int, float], None] | bool | None = None, resume: str | Path | None = None,
    neighbours: str = neighbouring.CHECKED, source: str = "",
) -> AuditReport:
    """Attack a mechanism on a pair of neighbours, and bound its privacy loss from below.

    Parameters
    ----------
    mechanism : a Plan, or any callable (dataset, rng) -> output. Of a FederatedPlan one message of its worst client is
        attacked. A callable must leave its dataset as it is, store no answers between calls, and draw all its
        randomness from the Generator; one that gives other outputs when a trial is played again is audited in this
        process alone, and the report says that it cannot be repeated.
    pair : a Pair, or a tuple of two neighbouring datasets; for a Plan, see ``audit.pairs``.
    claim : a typed claim, a Guarantee, an event, or (epsilon, delta); the plan's own guarantee if left out.
    trials : how many trials to play; give this or ``seconds``.
    seconds : how long to play; give this or ``trials``.
    confidence : of ``epsilon_lower``.
    alpha : the false-alarm probability of the verdict; 1 - confidence if left out.
    mode : "fixed" gives exact bounds for a number of trials that does not depend on the outcomes; "sequential" gives
        bounds that hold at all times, and stops as soon as the claim is refuted at alpha.
    adversary : what a Plan's adversary sees: "final", "support", "iterates", "gradients" or "releases", "step".
    attack : scores of outputs, (trials, features) -> (trials,), larger for the first dataset; learned if left out and
        the pair knows none.
    delta : the delta at which epsilons are reported; if left out the claim's own, or 1e-5.
    encode : output -> numbers, for outputs that are not numbers.
    rng : the seed; a trial's stream depends on it and on the trial's number alone.
    n_jobs : the number of workers; None chooses it.
    progress : True for a line on standard error, or a function that is called with (trials, seconds).
    resume : a file in which outputs are saved as they come; an audit that was killed goes on from there.
    neighbours : "checked" refuses a pair of arrays, frames, or tuples of them, whose rows differ in more than one
        record or in none; "as given" takes any pair.
    source : who makes the claim, for the report: a paper, a documentation, a contract.

    Privacy
    -------
    For test data only: the audit looks at outputs without a budget. Do not run it on data that need protection.
    """
    settings = _settings(trials, seconds, confidence, alpha, mode, rng, n_jobs)
    mechanism = attacked(mechanism)
    neighbour_pair = as_pair(pair, neighbours)
    goal = claim_of(mechanism, claim)
    session = _prepared(mechanism, neighbour_pair, goal, settings, adversary, attack, encode, delta, resume)
    session.run(progress)
    view = adversary if isinstance(mechanism, Plan) else "the output"
    # Computing what a pair can reach takes seconds for some pairs, and sequential audits (test suites) do not need it.
    reach = neighbour_pair.reach.get(adversary) if settings.mode == FIXED else None
    own = source or ("the plan's own account" if isinstance(mechanism, Plan) and claim is None else "")
    return session.report(neighbour_pair, view, reach, _name_of(mechanism), own)


def evidence(
    mechanism: Any, pair: Any, claim: Any = None, *, trials: int, alpha: float, mode: str = SEQUENTIAL,
    adversary: str = "final", attack: Callable[[Array], Array] | None = None, delta: float | None = None,
    encode: Callable[[Any], Any] | None = None, rng: int = 0, n_jobs: int | None = None,
    resume: str | Path | None = None, neighbours: str = neighbouring.CHECKED,
) -> Evidence:
    """The verdict of ``audit``, without the bounds on epsilon of its report, which take seconds for some claims.

    Parameters are those of ``audit``; ``trials`` and ``alpha`` must be given, and ``mode`` is "sequential" if left out.

    Returns
    -------
    Evidence
        Whether the claim is refuted at ``alpha``, after how many trials, and what speaks against it.

    Privacy
    -------
    For test data only: see ``audit``.
    """
    mechanism = attacked(mechanism)
    settings, goal = _settings(trials, None, 0.95, alpha, mode, rng, n_jobs), claim_of(mechanism, claim)
    session = _prepared(
        mechanism, as_pair(pair, neighbours), goal, settings, adversary, attack, encode, delta, resume
    )  # fmt: skip
    session.run(None)
    return session.evidence()


def _prepared(
    mechanism: Any, pair: Pair, goal: Claim, settings: Schedule, adversary: str, attack: Any, encode: Any,
    delta: float | None, resume: str | Path | None,
) -> Session:
    """An audit whose trials have not begun, after every check and a few runs of the mechanism."""
    target = _target(mechanism, pair, adversary, encode)
    _check_claim(goal)
    at = goal.reference_delta if delta is None else real("delta", delta, low=0.0, high=1.0, open_high=True)
    if math.isinf(goal.epsilon(at)):
        raise invalid("delta", at, f"one at which {goal} has a finite epsilon")
    statistic = attack or pair.scores.get(adversary)
    name = "given" if attack is not None else f"known for this pair ({adversary})"
    session = Session(target, goal, at, statistic, name, settings, resume)
    probe = _probe(target, settings.seed)
    session.game.width = probe.width
    if not probe.repeats:
        session.without_streams()
    if probe.constant:
        session.with_constant_outputs()
    return session


def _name_of(mechanism: Any) -> str:
    """A name for what was attacked: a solver with its numbers of rows and features, or where a callable is defined."""
    if isinstance(mechanism, Plan):
        return f"{mechanism.solver}, n={mechanism.n:,}, d={mechanism.d:,}"
    inner = getattr(mechanism, "func", mechanism)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{getattr(inner, '__module__', type(inner).__module__)}:{name}"


def _settings(
    trials: Any, seconds: Any, confidence: Any, alpha: Any, mode: Any, rng: Any, n_jobs: Any
) -> Schedule:
    if (trials is None) == (seconds is None):
        raise invalid("trials, seconds", (trials, seconds), "exactly one of them", "For example trials=10_000.")
    if trials is not None:
        trials = whole("trials", trials, low=2 * FIRST, repair="Fewer show nothing.")
    if seconds is not None:
        seconds = positive("seconds", seconds)
    if isinstance(rng, bool) or not isinstance(rng, numbers.Integral) or rng < 0:
        raise invalid("rng", rng, "an integer >= 0", "The audit makes a stream of its own for every trial.")
    if n_jobs is not None:
        n_jobs = whole("n_jobs", n_jobs, low=1)
    confidence = real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)
    alpha = 1 - confidence if alpha is None else real("alpha", alpha, low=0.0, high=1.0, open_low=True, open_high=True)
    return Schedule(trials, seconds, confidence, alpha, one_of("mode", mode, (FIXED, SEQUENTIAL)), int(rng), n_jobs)


def as_pair(pair: Any, neighbours: str = neighbouring.CHECKED) -> Pair:
    """A Pair from a Pair or two datasets, after checking that they are neighbours where that can be checked."""
    if not isinstance(pair, Pair):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise invalid("pair", pair, "a Pair or a tuple of two datasets")
        pair = Pair(*pair)
    neighbouring.check(pair, neighbours)
    return pair


def attacked(mechanism: Any) -> Any:
    """The mechanism; of a federation one message of its worst client."""
    from dptoolkit.federated.plan import FederatedPlan

    return mechanism.attacked() if isinstance(mechanism, FederatedPlan) else mechanism


def claim_of(mechanism: Any, claim: Any) -> Claim:
    """The typed claim; if it is left out, the guarantee of the plan."""
    mechanism = attacked(mechanism)
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


class _ProbeResult(NamedTuple):
    width: int
    repeats: bool
    constant: bool


def _probe(target: Target, seed: int) -> _ProbeResult:
    """How many numbers an output has, whether a trial repeats its output, and whether all on a dataset have the same.

    It is seen from a few runs on each dataset.

    Refuse a mechanism that always fails or that ignores its Generator. A mechanism that fails in one world only is not
    refused, as this is a leak that the trials will show.
    """
    worlds, repeats = [], True
    for bit in (0, 1):
        bits = np.full(16, bit, dtype=np.int8)
        outputs = target.run(bits, 0, Streams(seed, "probe"))
        worlds.append(outputs[~np.isnan(outputs).all(axis=1)])
        if outputs.shape[1] == 0:
            raise invalid("output of the mechanism", "empty", "at least one number")
        replay = target.run(bits[:4], 0, Streams(seed, "probe"))
        repeats = repeats and np.array_equal(replay, outputs[:4], equal_nan=True)
    if not any(len(w) for w in worlds):
        reason = getattr(target, "last_error", "") or "every output is NaN or None"
        repair = "A callable is called as mechanism(dataset, rng), and returns numbers."
        raise invalid("mechanism", f"failed 16 times of 16 ({reason})", "able to run on the pair", repair)
    # A constant mechanism that does draw is rarely random, or loses its noise: the trials will show which. One that has
    # another constant for each dataset gives them away, which the trials will show too.
    alike = [len(w) > 8 and all(np.array_equal(row, w[0], equal_nan=True) for row in w) for w in worlds]
    constant = all(alike) and np.array_equal(worlds[0][0], worlds[1][0], equal_nan=True)
    if constant and isinstance(target, CallableTarget) and not target.draws(Streams(seed, "probe")):
        raise invalid(
            "mechanism", "all runs on both datasets gave the same output", "random, or different on the two datasets",
            "It must draw from the Generator that it is given, not return an answer that it has stored, and the pair "
            "must be one that it tells apart.",
        )
    is_callable = isinstance(target, CallableTarget)
    return _ProbeResult(int(next(w.shape[1] for w in worlds if len(w))), repeats, is_callable and any(alike))
