"""Two audits of the same question merged into one: guesses are pooled, e-values multiply."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.audit.betting import SEQUENTIAL
from dptoolkit.audit.bounds import ADVANTAGE, ODDS, TAIL, Confident, above, bound, p_value
from dptoolkit.audit.claims import from_dict

if TYPE_CHECKING:
    from dptoolkit.audit.report import AuditReport


_MERGED = "merged with the audit of seed "


def _seeds(report: AuditReport) -> set[int]:
    """The seeds of all audits that a report is made of."""
    others = {int(note.removeprefix(_MERGED)) for note in report.notes if note.startswith(_MERGED)}
    return {report.seed} | others


def merged(a: AuditReport, b: AuditReport) -> AuditReport:
    """See ``AuditReport.merge``: guesses are pooled, so the bound is that of one audit with all the trials."""
    for name in ("claim", "delta", "pair", "adversary", "mode", "statistic", "confidence", "alpha"):
        if getattr(a, name) != getattr(b, name):
            raise invalid(name, getattr(b, name), f"equal to {getattr(a, name)!r}, as in the other report")
    if _seeds(a) & _seeds(b):
        raise invalid("seed", b.seed, "different in the two reports", "The same seed gives the same trials again.")
    if a.mode == SEQUENTIAL or a.claim_record is None:
        raise invalid("mode", a.mode, "'fixed', with a typed claim", "Multiply the e-values of sequential audits.")
    claim = from_dict(a.claim_record)
    pool = a.guesses + b.guesses
    if a.statistic == TAIL:
        raise invalid("statistic", a.statistic, f"{ADVANTAGE!r} or {ODDS!r} to be pooled", "Audit once, for longer.")
    tail = Confident(pool, 0.0, 2) if a.statistic == ODDS else None
    answer = bound(claim, a.delta, pool, tail, np.zeros(0, bool), a.confidence)
    log_e = a.log_e_value + b.log_e_value
    value = p_value(claim, a.delta, pool, tail)
    violated = value <= a.alpha
    if violated and a.alpha <= (1 - a.confidence) * (1 + 1e-9):
        answer = above(answer, a.epsilon_claimed)
    return replace(
        a, trials=a.trials + b.trials, pilot=a.pilot + b.pilot, failures=a.failures + b.failures, guesses=pool,
        seconds=a.seconds + b.seconds, log_e_value=log_e, e_value=math.exp(min(log_e, 700.0)), p_value=value,
        epsilon_lower=answer.epsilon, epsilon_upper_of_attack=answer.upper, noise_factor=answer.factor,
        violated=violated, notes=(*a.notes, *(f"{_MERGED}{seed}" for seed in sorted(_seeds(b)))),
        trade_off=a.trade_off if a.trials >= b.trials else b.trade_off, _replay=None,
    )  # fmt: skip
