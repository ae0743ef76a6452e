"""What an audit found, in words, numbers, JSON and a plot; two reports of one question merge into one."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.accounting.report import Printed, number, table
from dptoolkit.audit.claims import from_dict
from dptoolkit.audit.statistics import Guesses, TradeOff
from dptoolkit.audit.statistics.betting import SEQUENTIAL
from dptoolkit.audit.statistics.bounds import ADVANTAGE, ODDS, TAIL, Confident, above, bound, p_value

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


# --- What an audit found, in words, numbers, JSON and a plot --------------------------------------------------
VIOLATION, NONE_FOUND = "violation", "no violation found by this attack"
UNDER_NOISED = "under-noised"
# There is too much noise where an exact attack should reach at least the first share of the claim and, with confidence,
# reaches less than the second share of what it should.
_KNOWN_TIGHT, _SLACK = 0.9, 0.95


@dataclass(frozen=True, repr=False)
class AuditReport(Printed):
    """A lower bound on a mechanism's privacy loss, and whether it refutes a claim.

    ``epsilon_lower`` holds at ``delta`` with the stated confidence, within the claim's family (see ``claims``).
    ``e_value`` is evidence against the claim: if it is true, the e-value reaches 1/alpha with probability at most
    alpha, whenever one looks. ``efficiency`` says what a pair that is known to be tight shows about too MUCH noise.
    ``mechanism`` is what was attacked, ``source`` who makes the claim.
    """

    claim: str
    epsilon_claimed: float
    delta: float
    epsilon_lower: float
    epsilon_upper_of_attack: float
    noise_factor: float
    confidence: float
    mode: str
    alpha: float
    violated: bool
    e_value: float
    log_e_value: float
    p_value: float
    stopped_at: int | None
    trials: int
    pilot: int
    failures: int
    guesses: Guesses
    statistic: str
    attack: str
    adversary: str
    pair: str
    reach: float | None
    seed: int
    seconds: float
    notes: tuple[str, ...] = ()
    mechanism: str = ""
    source: str = ""
    trade_off: TradeOff | None = field(default=None, compare=False, repr=False)
    claimed_profile: tuple[tuple[float, float], ...] = field(default=(), compare=False, repr=False)
    claim_record: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    _replay: Callable[[int], Any] | None = field(default=None, compare=False, repr=False)

    @property
    def verdict(self) -> str:
        """Either "violation" or "no violation found by this attack": no audit shows that something is private."""
        return VIOLATION if self.violated else NONE_FOUND

    @property
    def ratio(self) -> float:
        """epsilon_lower over the claimed epsilon."""
        return self.epsilon_lower / self.epsilon_claimed if self.epsilon_claimed > 0 else math.inf

    @property
    def efficiency(self) -> str:
        """How near the claim is: "tight", "loose", "over-noised", "under-noised" or "not known".

        Under-noised where the claim is refuted; over-noised only where the pair is known to be tight.
        """
        if self.violated:
            return UNDER_NOISED
        if self.ratio >= _KNOWN_TIGHT:
            return "tight"
        if self.reach is None or self.reach < _KNOWN_TIGHT:
            return "not known"
        expected = self.reach * self.epsilon_claimed
        return "over-noised" if self.epsilon_upper_of_attack < _SLACK * expected else "loose"

    @property
    def trainings_per_second(self) -> float:
        """Trials over seconds."""
        return self.trials / self.seconds if self.seconds > 0 else math.inf

    def replay(self, trial: int) -> Any:
        """The output of trial number ``trial``, bit for bit; only in the process that made the report."""
        if self._replay is None:
            origin = "loaded from JSON, merged, or of a mechanism whose trials do not repeat"
            raise invalid("report", origin, "the one that audit() returned", "Audit again.")
        return self._replay(trial)

    def merge(self, other: AuditReport) -> AuditReport:
        """Two audits as one: e-values multiply, guesses add. They must ask the same question with different seeds."""
        return merged(self, other)

    def summary(self) -> str:
        """The verdict, the bound, the claim and the number of trials in one line."""
        at = "" if self.delta == 0 else f" at delta {self.delta:g}"
        return (
            f"{self.verdict}: {self._epsilon_words('epsilon', at)}, claimed {number(self.epsilon_claimed)}, "
            f"{self.trials:,} trials"
        )

    def _epsilon_words(self, name: str, at: str) -> str:
        """The bound; if the verdict proves a larger epsilon, that comes first."""
        bound = f"{name} >= {number(self.epsilon_lower)}{at} ({self.confidence:.6g} confidence)"
        if not self.violated or self.epsilon_lower >= self.epsilon_claimed:
            return bound
        verdict = f"{name} > {number(self.epsilon_claimed)}{at} ({1 - self.alpha:.6g} confidence)"
        return f"{verdict}, {bound.removeprefix(name).strip()} by guesses alone"

    def _least_words(self) -> str:
        words = f"{number(self.epsilon_lower)} with confidence {self.confidence:.6g} ({self.mode})"
        if not self.violated or self.epsilon_lower >= self.epsilon_claimed:
            return words
        verdict = f"{number(self.epsilon_claimed)} with confidence {1 - self.alpha:.6g}, as the claim is refuted"
        return f"{verdict}; by guesses alone {words}"

    def _noise_words(self) -> str:
        if self.violated and self.noise_factor <= 1:
            return "less than what the claim needs"
        return f"{number(1 / self.noise_factor)} times what the claim needs" if self.noise_factor > 0 else "anything"

    def _reach_words(self) -> str:
        if self.reach is None:
            return "; what an exact attack on it has was not computed"
        return f"; an exact attack on it has {self.reach:.2f} of the claim"

    def _doubts(self) -> list[str]:
        """A warning if the bound exceeds the claim although the verdict does not refute it."""
        if self.violated or self.epsilon_lower <= self.epsilon_claimed:
            return []
        return [
            f"The bound exceeds the claim at confidence {self.confidence:.6g}, but the evidence does not reach "
            f"alpha {self.alpha:g}: audit again with another seed and more trials."
        ]

    def __repr__(self) -> str:
        return f"<AuditReport: {self.summary()}>"

    def __str__(self) -> str:
        rows = [
            *([["mechanism", self.mechanism]] if self.mechanism else []),
            ["claim", self.claim + (f", by {self.source}" if self.source else ", source not stated")],
            ["epsilon claimed", number(self.epsilon_claimed) + f" at delta {self.delta:g}"],
            ["epsilon at least", self._least_words()],
            ["noise at most", self._noise_words()],
            ["evidence", f"e-value {number(self.e_value)}, p-value {number(self.p_value)}, alpha {self.alpha:g}"],
            ["guesses", f"{self.guesses.correct:,} right of {self.guesses.made:,} ({self.statistic})"],
            ["attack", f"{self.attack}, adversary sees {self.adversary}"],
            ["pair", self.pair + self._reach_words()],
            ["efficiency", self.efficiency],
            ["trials", f"{self.trials:,}, of them {self.pilot:,} to learn from, {self.failures:,} failed"],
            ["seconds", f"{self.seconds:.2f} ({self.trainings_per_second:,.0f} trials a second), seed {self.seed}"],
        ]
        lines = [f"Audit: {self.verdict}", "", table(["", ""], rows).split("\n", 2)[2]]
        return "\n".join([*lines, *(f"  - {note}" for note in (*self._doubts(), *self.notes))])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        record = asdict(replace(self, _replay=None, trade_off=None))
        for name in ("_replay", "trade_off"):
            record.pop(name)
        if self.trade_off is not None:
            record["trade_off"] = {
                "false_positive": self.trade_off.false_positive.tolist(),
                "false_negative": self.trade_off.false_negative.tolist(),
                "width": list(self.trade_off.width),
            }
        record |= {"verdict": self.verdict, "ratio": self.ratio, "efficiency": self.efficiency}
        return {key: _json(value) for key, value in record.items()}

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON text, also written to ``path`` if given."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
        if path is not None:
            Path(path).write_text(text)
        return text

    @classmethod
    def from_json(cls, text: str | Path) -> AuditReport:
        """A report from JSON text or a file."""
        source = Path(text).read_text() if isinstance(text, Path) or not text.lstrip().startswith("{") else text
        record = json.loads(source)
        for derived in ("verdict", "ratio", "efficiency"):
            record.pop(derived, None)
        curve = record.pop("trade_off", None)
        if curve is not None:
            arrays = np.array(curve["false_positive"]), np.array(curve["false_negative"])
            record["trade_off"] = TradeOff(*arrays, (curve["width"][0], curve["width"][1]))
        record["guesses"] = Guesses(**record["guesses"])
        record["notes"] = tuple(record["notes"])
        record["claimed_profile"] = tuple((float(a), float(b)) for a, b in record["claimed_profile"])
        return cls(**{key: _number(key, value) for key, value in record.items()})

    def to_html(self, path: str | Path) -> None:
        """A page with the text and the trade-off curve, in one file."""
        from dptoolkit import plots

        picture = io.BytesIO()
        plots.save(plots.trade_off(self), picture)
        data = base64.b64encode(picture.getvalue()).decode()
        Path(path).write_text(_PAGE.format(text=html.escape(str(self)), data=data), encoding="utf-8")

    def plot(self, path: str | Path) -> None:
        """The measured trade-off with its band, and the claimed one, to a file."""
        from dptoolkit import plots

        plots.save(plots.trade_off(self), path)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Audit</title>
<body style="font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto">
<pre style="white-space: pre-wrap">{text}</pre>
<img alt="trade-off curve" style="max-width: 100%" src="data:image/png;base64,{data}">
"""
_NUMBERS = ("epsilon_claimed", "epsilon_lower", "epsilon_upper_of_attack", "noise_factor", "e_value", "reach")


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(key: str, value: Any) -> Any:
    return float(value) if key in _NUMBERS and isinstance(value, str) else value
