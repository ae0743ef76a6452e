"""Verdicts on Liang et al. 2023: batches without replacement, with conditions that can fail everywhere."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dptoolkit import solvers
from dptoolkit.accounting import Adjacency, Gaussian, Repeated, Subsampled, rounds
from dptoolkit.accounting.events import Event
from dptoolkit.audit import pairs
from paper_checks.audits import Audited, printed_noise
from paper_checks.constants import published
from paper_checks.verdict import Verdict, bound, judge, unsatisfiable


def theorem_4_1(n: int, batch_size: int, epochs: int, epsilon: float, delta: float) -> Verdict:
    """DP-SGD-HT for a number of passes over the data."""
    steps = round(epochs * n / batch_size)
    return judge(published.sgd_ht_theorem_4_1(n, batch_size, steps, 1.0, epsilon, delta))


def theorem_4_1_range(n: int, epochs: int, epsilon: float, delta: float) -> Verdict:
    """DP-SGD-HT for a number of passes: is there any batch size that meets the conditions?

    With T = epochs n / b the noise per sensitivity grows with b, so the smallest b with enough noise leaves
    the most room under the condition on the order.
    """
    order = 1 + 2 * math.log(1 / delta) / epsilon
    b = max(1, math.ceil(1.5 * n * epsilon / (10 * order * epochs)))
    if b > n or not published.sgd_ht_theorem_4_1(n, b, math.ceil(epochs * n / b), 1.0, epsilon, delta).conditions_hold:
        return unsatisfiable(f"({epsilon:g}, {delta:g})", "no batch size meets the conditions")
    return theorem_4_1(n, b, epochs, epsilon, delta)


def section_6_4(reading: str, n: int, batch_size: int, rounds: int, epsilon: float, delta: float) -> Verdict:
    """A client's noise in the federated experiment, 10 local steps a round, by one of two readings of a guarantee.

    "TensorFlow Privacy": Poisson batches, a record added or removed. "paper": batches of fixed size, a record replaced,
    as Definitions 1 and 3 and Section 6.4 have it.
    """
    steps, rate = 10 * rounds, batch_size / n
    record = published.fed_sgd_ht_section_6_4(batch_size, rate, steps, 1.0, epsilon, delta)
    if reading == "paper":
        return judge(replace(record, conditions=()))
    noise = record.scales["gradient"] * batch_size

    def releases(factor: float) -> Event:
        return Repeated(Subsampled(Gaussian(noise * factor), "poisson", rate), steps)

    return judge(replace(record, conditions=(), releases=releases, attains=releases, adjacency=Adjacency.ZERO_OUT))


def theorem_5_1(grad_norm: float = 1.0, **at: Any) -> Verdict:
    """DP-SCSG-HT."""
    return judge(published.scsg_ht_theorem_5_1(grad_norm=grad_norm, **at))


def theorem_5_1_statement(reading: str, **at: Any) -> Verdict:
    """The variance in the statement: "B^2" as our copy of the text has it, or "B l^2" as in the proof."""
    return theorem_5_1(formula={"B^2": "statement", "B l^2": "proof"}[reading], **at)


def theorem_5_1_range(n: int, epochs: int, epsilon: float, delta: float, option: str) -> Verdict:
    """DP-SCSG-HT: do any b <= B meet the conditions for any number of epochs up to the given one?

    Both conditions are easiest at b = B, one of them grows with B and the other falls, so for each number of
    epochs the smallest B with enough noise decides.
    """
    for count in range(1, epochs + 1):
        constant = rounds.published_factor(count, delta) if option == "I" else 1.0
        order = 1 + 2 * math.log((2 if option == "I" else 1) / delta) / epsilon
        size = math.ceil(math.sqrt(1.5 * n * n * epsilon / (20 * order * constant * count)))
        at: dict[str, Any] = {"n": n, "batch_size": size, "snapshot_size": size, "epochs": count}
        at |= {"epsilon": epsilon, "delta": delta, "option": option}
        if size <= n and published.scsg_ht_theorem_5_1(grad_norm=1.0, **at).conditions_hold:
            return theorem_5_1(**at)
    return unsatisfiable(f"({epsilon:g}, {delta:g})", f"no b <= B meets the conditions for J <= {epochs}")


def theorem_5_1_proof(split: str) -> Verdict:
    """The divergence of a step by Lemma 3.2, over what the proof says it is; noise is its root."""
    return bound(1.0, math.sqrt(published.scsg_lemma_charge(split)), "noise by the paper's own lemma")


# What the printed noise does not depend on.
_FIT: dict[str, Any] = {"d": 4, "sparsity": 2, "loss": "squared", "grad_norm": 1.0, "step_size": 1.0}


def audit_theorem_4_1(trials: int, n: int, batch_size: int, epochs: float, epsilon: float, delta: float) -> Audited:
    """One record among others that are all like its replacement."""
    plan = solvers.plan(
        "dp_sgd_ht", n=n, batch_size=batch_size, steps=round(epochs * n / batch_size), epsilon=epsilon, delta=delta,
        calibration="published", **_FIT,
    )  # fmt: skip
    assert plan.published is not None
    return printed_noise(plan, plan.published, pairs.dp_sgd_ht(plan), trials, "iterates")


def audit_theorem_5_1(trials: int, split: str = "printed", **at: Any) -> Audited:
    """The same pair, which shows the snapshots and not the inner steps."""
    record = published.scsg_ht_theorem_5_1(grad_norm=1.0, split=split, **at)
    base = solvers.plan("dp_scsg_ht", calibration="published", **at, **_FIT)
    plan = base.with_noise(record.scales["inner"], record.scales["snapshot"])
    return printed_noise(plan, record, pairs.dp_scsg_ht(plan), trials, "iterates")
