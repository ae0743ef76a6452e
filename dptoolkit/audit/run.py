"""The public ``audit``: what is attacked, on which pair, against which claim, for how long."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Callable
from dataclasses import replace
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
from dptoolkit.distributed.executors import Executor
from dptoolkit.distributed.executors import executor as make_executor
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

ADVERSARIES = ("final", "support", "iterates", "gradients", "releases", "step")


def audit(
    mechanism: Any,
    pair: Any,
    claim: Any = None,
    *,
    trials: int | None = None,
    seconds: float | None = None,
    confidence: float = 0.95,
    alpha: float | None = None,
    mode: str = FIXED,
    adversary: str = "final",
    attack: Callable[[Array], Array] | None = None,
    delta: float | None = None,
    encode: Callable[[Any], Any] | None = None,
    rng: int = 0,
    n_jobs: int | None = None,
    scheduler: Any = None,
    executor: Executor | None = None,
    progress: Callable[[int, float], None] | bool | None = None,
    resume: str | Path | None = None,
    neighbours: str = neighbouring.CHECKED,
    source: str = "",
) -> AuditReport:
    """Attack a mechanism on a pair of neighbouring datasets, and bound its privacy loss from below.

    Parameters
    ----------
    mechanism : Plan, FederatedPlan or callable
        What is attacked: a plan, or any callable ``(dataset, rng) -> output``. Of a federated plan, one message of its
        worst client is attacked. A callable must leave its dataset unchanged, store no answers between calls, and draw
        all its randomness from the Generator. If a repeated trial gives another output, the audit runs in this process
        alone, and the report says that it cannot be repeated.
    pair : Pair or tuple
        Two neighbouring datasets. For a plan, ``audit.pairs`` has the worst pair that is known.
    claim : Claim, Guarantee, Event, tuple of float or None, default None
        What is claimed: a typed claim, a guarantee, an event, or ``(epsilon, delta)``. None tests the plan's own
        guarantee.
    trials : int or None, default None
        Number of trials. Give either ``trials`` or ``seconds``.
    seconds : float or None, default None
        Run time in seconds. Give either ``trials`` or ``seconds``.
    confidence : float, default 0.95
        Confidence level of ``epsilon_lower``.
    alpha : float or None, default None
        False-alarm probability of the verdict. None uses 1 - confidence.
    mode : {"fixed", "sequential"}, default "fixed"
        "fixed" gives exact bounds for a number of trials that does not depend on the outcomes. "sequential" gives
        bounds that hold at all times, and stops as soon as the claim is refuted at ``alpha``.
    adversary : {"final", "support", "iterates", "gradients", "releases", "step"}, default "final"
        What the adversary sees of a plan's run. Ignored for a callable, whose adversary sees the output.
    attack : callable or None, default None
        Scores of outputs, ``(trials, features) -> (trials,)``, larger for the first dataset. None uses the score that
        the pair provides, and otherwise learns one.
    delta : float or None, default None
        The delta at which epsilons are reported. None uses the claim's own delta, or 1e-5.
    encode : callable or None, default None
        Converts an output that is not numeric to numbers.
    rng : int, default 0
        The seed. The stream of a trial depends only on this seed and on the number of the trial.
    n_jobs : int or None, default None
        Number of workers. None chooses it.
    scheduler : str, distributed.Client or None, default None
        The address of a Dask scheduler, on whose workers the trials run (docs/clusters.md).
    executor : Executor or None, default None
        Where the trials run; see ``distributed.executor``. Reports do not depend on it.
    progress : bool, callable or None, default None
        True prints a line on standard error; a function is called with ``(trials, seconds)``.
    resume : path-like or None, default None
        A file in which outputs are saved as they come. An interrupted audit continues from this file.
    neighbours : {"checked", "as given"}, default "checked"
        "checked" refuses a pair of arrays, frames, or tuples of them, unless their rows differ in exactly one record.
        "as given" accepts any pair.
    source : str, default ""
        Who makes the claim, for the report: a paper, a documentation page, a contract.

    Returns
    -------
    AuditReport
        The lower bound on epsilon, the verdict on the claim, and how both were obtained.

    Privacy
    -------
    For test data only: an audit looks at outputs without a budget. Do not run it on data that need protection.
    """
    settings = _settings(trials, seconds, confidence, alpha, mode, rng, n_jobs)
    mechanism = attacked(mechanism)
    neighbour_pair = as_pair(pair, neighbours)
    goal = claim_of(mechanism, claim)
    with _place(n_jobs, scheduler, executor) as place:
        settings = replace(settings, executor=place)
        session = _prepared(mechanism, neighbour_pair, goal, settings, adversary, attack, encode, delta, resume)
        session.run(progress)
    view = adversary if isinstance(mechanism, Plan) else "the output"
    # Computing what a pair can reach takes seconds for some pairs, and sequential audits (test suites) do not need it.
    reach = neighbour_pair.reach.get(adversary) if settings.mode == FIXED else None
    own = source or ("the plan's own account" if isinstance(mechanism, Plan) and claim is None else "")
    return session.report(neighbour_pair, view, reach, _name_of(mechanism), own)


def evidence(
    mechanism: Any,
    pair: Any,
    claim: Any = None,
    *,
    trials: int,
    alpha: float,
    mode: str = SEQUENTIAL,
    adversary: str = "final",
    attack: Callable[[Array], Array] | None = None,
    delta: float | None = None,
    encode: Callable[[Any], Any] | None = None,
    rng: int = 0,
    n_jobs: int | None = None,
    resume: str | Path | None = None,
    neighbours: str = neighbouring.CHECKED,
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
    session = _prepared(mechanism, as_pair(pair, neighbours), goal, settings, adversary, attack, encode, delta, resume)
    session.run(None)
    return session.evidence()


def _place(n_jobs: int | None, scheduler: Any, executor: Any) -> contextlib.AbstractContextManager[Executor | None]:
    """Where trials run, open until the audit ends; None lets every game choose for itself."""
    if scheduler is None and executor is None:
        return contextlib.nullcontext()
    if n_jobs is not None:
        raise invalid("n_jobs", n_jobs, "left out where a scheduler or an executor is given")
    return make_executor(scheduler=scheduler, executor=executor)


def _prepared(
    mechanism: Any,
    pair: Pair,
    goal: Claim,
    settings: Schedule,
    adversary: str,
    attack: Any,
    encode: Any,
    delta: float | None,
    resume: str | Path | None,
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


def _settings(trials: Any, seconds: Any, confidence: Any, alpha: Any, mode: Any, rng: Any, n_jobs: Any) -> Schedule:
    if (trials is None) == (seconds is None):
        raise invalid("trials, seconds", (trials, seconds), "exactly one of them", "For example trials=10_000.")
    if trials is not None:
        trials = whole("trials", trials, low=2 * FIRST, repair="Fewer trials cannot refute a claim.")
    if seconds is not None:
        seconds = positive("seconds", seconds)
    if isinstance(rng, bool) or not isinstance(rng, numbers.Integral) or rng < 0:
        raise invalid("rng", rng, "an integer >= 0", "It is the seed of the streams of all trials.")
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
        repair = "Its delta at epsilon 0 is 1, which every mechanism meets."
        raise invalid("claim", str(claim), "one that a mechanism can violate", repair)
    if not variation > 0:
        repair = "Its delta at epsilon 0 is 0, so that outputs must not depend on the data at all."
        raise invalid("claim", str(claim), "one that a useful mechanism can meet", repair)


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
        reason = target.last_error or "every output is NaN or None"
        repair = "A callable is called as mechanism(dataset, rng), and returns numbers."
        raise invalid("mechanism", f"failed in 16 of 16 runs ({reason})", "able to run on the pair", repair)
    # A constant mechanism that does draw is rarely random, or loses its noise: the trials will show which. One that has
    # another constant for each dataset gives them away, which the trials will show too.
    alike = [len(w) > 8 and all(np.array_equal(row, w[0], equal_nan=True) for row in w) for w in worlds]
    constant = all(alike) and np.array_equal(worlds[0][0], worlds[1][0], equal_nan=True)
    if constant and isinstance(target, CallableTarget) and not target.draws(Streams(seed, "probe")):
        raise invalid(
            "mechanism",
            "all runs on both datasets gave the same output",
            "random, or different on the two datasets",
            "It must draw from the Generator that it is given and not return a stored answer. What it computes must "
            "differ between the two datasets.",
        )
    is_callable = isinstance(target, CallableTarget)
    return _ProbeResult(int(next(w.shape[1] for w in worlds if len(w))), repeats, is_callable and any(alike))
