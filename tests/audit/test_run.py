"""An audit from end to end: what it refuses, what it counts, and that the same trials give the same report.

Audits have a fixed seed and are deterministic; where a verdict is asserted, its error over all seeds is 1e-6 or stated.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.accounting import Gaussian, Repeated, Subsampled
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import (
    ApproxClaim,
    AuditReport,
    GaussianClaim,
    Pair,
    ProfileClaim,
    PureClaim,
    RenyiClaim,
    assert_private,
)
from dptoolkit.audit.attacks import fixed_attack, learn
from dptoolkit.audit.engine import CallableTarget, Game, flatten, identity
from dptoolkit.audit.pairs import Counted
from dptoolkit.audit.statistics import Guesses, lower_bound
from dptoolkit.audit.statistics.betting import Wealth
from dptoolkit.audit.streams import Streams, seek
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.errors import InvalidValue, PrivacyViolation

PAIR = (1.0, 0.0)


def noisy(x, rng, scale=1.0):
    return x + scale * rng.standard_normal()


def half(x, rng):
    return noisy(x, rng, 0.5)


def vector(x, rng):
    return np.array([x, 0.0]) + rng.standard_normal(2)


def without_time(report):
    return replace(report, seconds=0.0)


@pytest.fixture(scope="module")
def plan():
    return solvers.plan(
        "dp_ight", n=30, d=3, loss="squared", sparsity=1, steps=4, step_size=1.0, epsilon=2.0, delta=1e-5, grad_norm=1.0
    )


@pytest.fixture(scope="module")
def report():
    return audit.audit(noisy, PAIR, GaussianClaim(1.0), trials=3000)


# --- bad input ------------------------------------------------------------------------------------------------


def counted(*rows, counts=None):
    X = np.array(rows, dtype=float)
    return Counted(X, np.zeros(len(X)), np.ones(len(X), np.int64) if counts is None else np.array(counts))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"trials": 1000, "seconds": 1.0}, r"exactly one of them\. For example trials=10_000"),
        ({}, "exactly one of them"),
        ({"trials": 100}, "trials=100: must be >= 200"),
        ({"trials": 1e3}, "trials="),
        ({"seconds": 0.0}, "seconds=0.0"),
        ({"trials": 400, "rng": np.random.default_rng(0)}, "rng=.*an integer >= 0.*streams of all trials"),
        ({"trials": 400, "rng": True}, "rng=True"),
        ({"trials": 400, "rng": -1}, "rng=-1"),
        ({"trials": 400, "confidence": 1.0}, "confidence=1.0: must be > 0 and < 1"),
        ({"trials": 400, "alpha": 0.0}, "alpha=0.0"),
        ({"trials": 400, "mode": "both"}, "mode='both': must be one of 'fixed', 'sequential'"),
        ({"trials": 400, "adversary": "nobody"}, "adversary='nobody': must be one of 'final'"),
        ({"trials": 400, "n_jobs": 0}, "n_jobs=0"),
        ({"trials": 400, "delta": 1.0}, "delta=1.0"),
        ({"trials": 400, "delta": 0.0}, "delta=0.0: must be one at which 1-GDP has a finite epsilon"),
        ({"trials": 400, "attack": lambda outputs: outputs}, r"attack='scores of shape \(100, 1\)': must be one numb"),
    ],
    ids=["both", "neither", "few", "not-whole", "no-time", "generator", "bool", "negative", "confidence", "alpha",
         "mode", "adversary", "n_jobs", "delta-1", "delta-0", "attack"],
)  # fmt: skip
def test_bad_arguments(arguments, words):
    with pytest.raises(InvalidValue, match=words):
        audit.audit(noisy, PAIR, GaussianClaim(1.0), **arguments)


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (3, "mechanism=3: must be a Plan or a callable"),
        (lambda x, rng: 1 / 0, r"failed in 16 of 16 runs \(ZeroDivisionError: division by zero\)"),
        (lambda x, rng: math.nan * rng.random(), r"failed in 16 of 16 runs \(every output is NaN or None\)"),
        (lambda x, rng: None, "returns numbers"),
        (lambda x, rng: np.random.default_rng(0).random(), "gave the same output.*must draw from the Generator"),
        (lambda x, rng: 1.0, "gave the same output"),
        (lambda x, rng: "yes", "output of the mechanism='yes': must be numbers. Give encode="),
        (lambda x, rng: rng.random(rng.integers(1, 4)), "1 to 3 numbers': must be of one size. Give encode="),
        (lambda x, rng: rng.random(0), "output of the mechanism='empty': must be at least one number"),
    ],
    ids=["number", "raises", "nan", "none", "own-seed", "constant", "text", "sizes", "empty"],
)
def test_bad_mechanisms(mechanism, words):
    with pytest.raises(InvalidValue, match=words):
        audit.audit(mechanism, PAIR, GaussianClaim(1.0), trials=400)


@pytest.mark.parametrize(
    "mechanism", [lambda x, rng: x, lambda x, rng: np.random.default_rng(0).random() + x], ids=["no-noise", "own-seed"]
)
def test_a_mechanism_without_noise_is_refuted(mechanism):
    """It needs no luck: each dataset has an output of its own."""
    assert audit.audit(mechanism, PAIR, GaussianClaim(1.0), trials=400, mode="sequential", alpha=1e-6).violated
    with pytest.raises(PrivacyViolation):
        audit.assert_private(mechanism, PAIR, GaussianClaim(1.0))


def test_an_output_that_grows_later_is_refused_too():
    calls = []

    def growing(x, rng):
        calls.append(0)
        return rng.random(2 if len(calls) <= 140 else 3)

    with pytest.raises(InvalidValue, match=r"\[2, 3\] numbers': must be of one size"):
        audit.audit(growing, PAIR, GaussianClaim(1.0), trials=400)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (3, "pair=3: must be a Pair or a tuple of two datasets"),
        ((1.0, 2.0, 3.0), "must be a Pair or a tuple of two"),
        (Pair(counted([1, 0], [0, 1]), counted([0, 1])), "n=2, d=2 and n=1, d=2': must be of equal n and d"),
        (Pair(counted([1, 0], [0, 1], [1, 1]), counted([0, 0], [2, 2], [1, 1])), "2 records differ': must be neigh"),
        (Pair(counted([1, 0]), counted([0, 1]), Adjacency.ZERO_OUT), "must be zero-out neighbours"),
    ],
    ids=["number", "three", "sizes", "two-records", "no-zero-row"],
)
def test_pairs_that_are_not_neighbours(pair, words):
    with pytest.raises(InvalidValue, match=words):
        audit.audit(lambda data, rng: rng.random(), pair, GaussianClaim(1.0), trials=400)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (None, "claim=None: must be a typed claim"),
        (1.0, "claim=1.0: must be a typed claim.*Use PureClaim"),
        (GaussianClaim(0.0), "must be one that a useful mechanism can meet"),
        (GaussianClaim(100.0), "must be one that a mechanism can violate"),
        (ApproxClaim(1e9, 0.5), "which every mechanism meets"),
    ],
    ids=["none", "number", "nothing-allowed", "everything-allowed", "everything-approximate"],
)
def test_impossible_claims(claim, words):
    with pytest.raises(InvalidValue, match=words):
        audit.audit(noisy, PAIR, claim, trials=400)


def test_counts_must_fit():
    with pytest.raises(InvalidValue, match="dataset="):
        Counted(np.zeros((2, 1)), np.zeros(3), np.ones(2, np.int64))
    with pytest.raises(InvalidValue, match="counts=-1"):
        counted([1.0], counts=[-1])


# --- outputs --------------------------------------------------------------------------------------------------


def test_failures_are_an_output():
    def fragile(x, rng):
        if rng.random() < (0.4 if x == 1.0 else 0.02):
            raise RuntimeError("diverged")
        return rng.standard_normal()

    found = audit.audit(fragile, PAIR, GaussianClaim(0.1), trials=2000, alpha=1e-6)
    # About 21% of the trials; the rest of an output says nothing.
    assert 300 < found.failures < 550 and found.violated


@pytest.mark.parametrize("world", [0, 1])
def test_a_failure_points_to_where_it_is_more_frequent(world):
    bits = np.tile([0, 1], 100).astype(np.int8)
    outputs = np.random.default_rng(0).standard_normal((200, 2))
    outputs[np.flatnonzero(bits == world)[:30]] = np.nan
    outputs[np.flatnonzero(bits != world)[:5]] = np.nan
    for attack in (learn(outputs, bits), fixed_attack(lambda x: x[:, 0], "given", outputs, bits)):
        scores = attack.scores(outputs)
        failed = scores[np.isnan(outputs).any(axis=1)]
        assert (failed == (1e300 if world == 1 else -1e300)).all() and np.abs(scores).max() == 1e300


def test_nan_counts_as_a_failure():
    def fragile(x, rng):
        return math.nan if rng.random() < 0.2 else noisy(x, rng)

    found = audit.audit(fragile, PAIR, GaussianClaim(1.0), trials=2000)
    assert 300 < found.failures < 500 and not found.violated and math.isfinite(found.epsilon_lower)


def test_a_whole_block_of_failures_is_survived(tmp_path):
    calls = []

    def late(x, rng):
        calls.append(0)
        if 40 < len(calls) <= 140:
            raise RuntimeError("not yet")
        return vector(x, rng)

    found = audit.audit(late, PAIR, GaussianClaim(1.0), trials=800, resume=tmp_path / "kept")
    assert found.failures == 100 and found.trials == 800


@pytest.mark.filterwarnings("error")
def test_infinite_outputs_are_told_from_finite_ones():
    def overflowing(x, rng):
        return math.inf if rng.random() < (0.5 if x == 1.0 else 0.01) else rng.standard_normal()

    found = audit.audit(overflowing, PAIR, GaussianClaim(0.5), trials=2000, alpha=1e-6)
    assert found.violated and found.failures == 0


def test_a_rare_answer_is_no_fixed_seed():
    # Randomised response that lies once in 3,000 times: 16 equal outputs are likely, and it does draw.
    def response(x, rng):
        return x if rng.random() < 1 / (1 + math.exp(-8.0)) else 1 - x

    found = audit.audit(response, PAIR, PureClaim(8.0), trials=1000, alpha=1e-6)
    assert not found.violated and found.epsilon_lower > 4


@pytest.mark.parametrize(
    ("output", "numbers"),
    [
        (2.5, [2.5]),
        (np.arange(4).reshape(2, 2), [0, 1, 2, 3]),
        ({"b": 2.0, "a": [1.0, 0.5]}, [1.0, 0.5, 2.0]),
        ((1, (2, np.array([3]))), [1, 2, 3]),
        (True, [1.0]),
        (type("Model", (), {"coef_": np.ones((1, 2)), "intercept_": np.array([3.0])})(), [1, 1, 3]),
        (solvers.FitResult(np.ones(2), 0.5, None, None, {}), [1, 1, 0.5]),
    ],
    ids=["number", "matrix", "dict", "nested", "bool", "estimator", "fit"],
)
def test_outputs_become_numbers(output, numbers):
    assert flatten(output).tolist() == numbers


def test_encode_makes_numbers_of_anything():
    found = audit.audit(
        lambda x, rng: "yes" if noisy(x, rng) > 0.5 else "no",
        PAIR,
        GaussianClaim(1.0),
        trials=400,
        encode=lambda s: s == "yes",
    )
    assert found.attack in ("frequencies", "difference") and found.failures == 0 and found.epsilon_lower > 0


# --- what an audit says ---------------------------------------------------------------------------------------


def test_a_fixed_audit_is_one_exact_binomial(report):
    guesses = report.guesses
    assert (report.trials, report.pilot, guesses.trials) == (3000, 100, 2900)
    p = lower_bound(guesses.correct, guesses.made, 0.95)
    expected = GaussianClaim(1.0).weakened(GaussianClaim(1.0).factor_at(2 * p - 1)).epsilon(1e-5)
    assert report.epsilon_lower == pytest.approx(expected)
    assert report.epsilon_claimed == GaussianClaim(1.0).epsilon(1e-5) and report.delta == 1e-5
    assert not report.violated and report.ratio == report.epsilon_lower / report.epsilon_claimed
    assert report.verdict == "no violation found by this attack"


def test_the_report_in_words(report):
    text = str(report)
    for words in ("Audit: no violation found by this attack", "1-GDP", "epsilon at least", "3,000", "seed 0"):
        assert words in text
    assert report.summary().startswith("no violation found by this attack: epsilon >= ")
    assert "private" not in text.split("\n")[0]


def test_a_sequential_audit_stops_early():
    found = audit.audit(half, PAIR, GaussianClaim(1.0), trials=100_000, mode="sequential", alpha=1e-6)
    assert found.violated and found.stopped_at < 1000 and found.trials <= 2 * found.stopped_at
    assert found.e_value >= 1e6
    quiet = audit.audit(noisy, PAIR, GaussianClaim(1.0), trials=2000, mode="sequential", alpha=1e-6)
    assert not quiet.violated and quiet.trials == 2000 and quiet.stopped_at is None


def test_a_sequential_bound_is_below_the_fixed_one():
    arguments = {"trials": 2000, "alpha": 1e-6}
    kinds = [audit.audit(noisy, PAIR, GaussianClaim(1.0), mode=m, **arguments) for m in ("fixed", "sequential")]
    assert kinds[1].epsilon_lower < kinds[0].epsilon_lower
    assert kinds[0].guesses == kinds[1].guesses


def test_assert_private_raises_with_the_report():
    with pytest.raises(PrivacyViolation, match="Audit: violation") as caught:
        assert_private(half, PAIR, GaussianClaim(1.0))
    assert caught.value.report.violated and isinstance(caught.value, AssertionError)
    kept = assert_private(noisy, PAIR, GaussianClaim(1.0))
    assert any("false-alarm probability 1e-06" in note for note in kept.notes)


@pytest.mark.parametrize(("arguments", "words"), [
    ({"seconds": 3.0}, r"seconds=3.0: must be left out of assert_private. Give trials="),
    ({"mode": "fixed"}, r"mode='fixed': must be left out of assert_private. It is always sequential"),
])  # fmt: skip
def test_assert_private_decides_itself_how_long_it_takes(arguments, words):
    with pytest.raises(InvalidValue, match=words):
        assert_private(noisy, PAIR, GaussianClaim(1.0), **arguments)


@pytest.mark.parametrize("mode", ["fixed", "sequential"])
@pytest.mark.parametrize("mechanism", [noisy, half])
@pytest.mark.parametrize("claim", [GaussianClaim(1.0), audit.pld_claim(Gaussian(1.0)), (1.0, 1e-5)], ids=str)
def test_evidence_is_the_verdict_of_the_report(mode, mechanism, claim):
    how = {"trials": 2_000, "mode": mode, "alpha": 1e-3}
    report, evidence = (f(mechanism, PAIR, claim, **how) for f in (audit.audit, audit.evidence))
    assert evidence.refuted == report.violated and evidence.stopped_at == report.stopped_at
    assert (evidence.p_value, evidence.log_e_value) == (report.p_value, report.log_e_value)


def test_evidence_takes_what_its_refusals_advise():
    """A pair of which two records differ is refused with a word about neighbours="as given", and words need encode."""
    far = np.array([1.0, 1.0, 0.0]), np.zeros(3)

    def word(data, rng):
        return "high" if data.sum() + rng.laplace() > 1 else "low"

    how = {"trials": 400, "alpha": 1e-3, "encode": len}
    with pytest.raises(InvalidValue, match="as given"):
        audit.evidence(word, far, (2.0, 0.0), **how)
    assert not audit.evidence(word, far, (2.0, 0.0), neighbours="as given", **how).refuted


@pytest.mark.parametrize(
    ("scale", "verdict"),
    [(1.0, "tight"), (2.0, "over-noised"), (0.5, "under-noised")],
    ids=["exact", "doubled", "halved"],
)
def test_efficiency_on_a_pair_known_to_be_tight(scale, verdict):
    pair = Pair(*PAIR, reach={"final": 1.0})
    found = audit.audit(lambda x, rng: noisy(x, rng, scale), pair, GaussianClaim(1.0), trials=20_000)
    assert found.efficiency == verdict and found.violated == (scale < 1)


def test_efficiency_is_not_known_without_a_reach():
    found = audit.audit(lambda x, rng: noisy(x, rng, 2.0), PAIR, GaussianClaim(1.0), trials=2000)
    assert found.efficiency == "not known"


def test_too_few_trials_do_not_show_too_much_noise():
    pair = Pair(*PAIR, reach={"final": 1.0})
    assert audit.audit(noisy, pair, GaussianClaim(1.0), trials=400).efficiency in ("loose", "tight")


def test_claims_at_one_point_say_what_is_lost():
    found = audit.audit(lambda x, rng: x + rng.laplace(), PAIR, (1.0, 1e-5), trials=2000)
    assert any("one point" in note for note in found.notes)


def test_a_profile_is_judged_as_a_whole():
    claim = ProfileClaim(GaussianClaim(1.0).delta, "a curve")
    fine, wrong = (audit.audit(m, PAIR, claim, trials=3000, alpha=1e-6) for m in (noisy, half))
    assert not fine.violated and 0 < fine.epsilon_lower < fine.epsilon_claimed
    assert wrong.violated and wrong.claim == "a curve"
    assert audit.audit(half, PAIR, claim, trials=3000, alpha=1e-6, mode="sequential").violated


def test_a_plan_brings_its_own_claim(plan):
    found = audit.audit(plan, audit.pairs.dp_ight(plan), trials=2000)
    assert found.epsilon_claimed == pytest.approx(2.0) and found.adversary == "final" and not found.violated
    with pytest.raises(InvalidValue, match="adversary='gradients': must be 'final', 'support' or 'iterates'"):
        stochastic = solvers.plan(
            "dp_sgd_ht", n=30, d=3, loss="squared", sparsity=1, steps=2, step_size=1.0, batch_size=10, epsilon=2.0,
            delta=1e-5, grad_norm=1.0,
        )  # fmt: skip
        PlanTarget(stochastic, Pair(None, None), "gradients")


def test_a_known_statistic_is_used_and_a_learned_one_found():
    known = Pair(np.array([1.0, 0.0]), np.zeros(2), scores={"final": lambda outputs: outputs[:, 0]})
    found = audit.audit(lambda x, rng: x + rng.standard_normal(2), known, GaussianClaim(1.0), trials=2000)
    assert found.attack == "known for this pair (final)"
    learned = audit.audit(lambda x, rng: x + rng.standard_normal(2), tuple(known), GaussianClaim(1.0), trials=4000)
    assert learned.attack in ("difference", "discriminant", "squares")
    assert learned.epsilon_lower > 0.5 * found.epsilon_lower
    backwards = audit.audit(vector, PAIR, GaussianClaim(1.0), trials=2000, attack=lambda outputs: -outputs[:, 0])
    assert backwards.attack == "given" and backwards.epsilon_lower == 0


# --- the same trials, the same report -----------------------------------------------------------------------


def test_the_seed_decides_everything():
    first, again, other = (audit.audit(vector, PAIR, GaussianClaim(1.0), trials=1000, rng=seed) for seed in (5, 5, 6))
    assert without_time(first) == without_time(again) and first.guesses != other.guesses


def test_replay_is_bit_for_bit(plan):
    pair = audit.pairs.dp_ight(plan)
    for mechanism, where, adversary in ((vector, PAIR, "final"), (plan, pair, "final"), (plan, pair, "iterates")):
        seen = []

        def watch(outputs, seen=seen):
            seen.append(outputs.copy())
            return outputs[:, 0]

        found = audit.audit(mechanism, where, GaussianClaim(1.0), trials=400, attack=watch, adversary=adversary)
        # Scored first: the first 100 trials, of which everything is learned; then they and the next 100.
        for trial in (0, 37, 99):
            assert np.array_equal(found.replay(trial), seen[0][trial])
        last = next(rows for rows in reversed(seen) if len(rows) == 200)
        assert np.array_equal(found.replay(399), last[-1])
    with pytest.raises(InvalidValue, match="trial=400: must be < 400"):
        found.replay(400)
    with pytest.raises(InvalidValue, match="Audit again"):
        AuditReport.from_json(found.to_json()).replay(0)


@pytest.mark.parametrize("adversary", ["final", "gradients"])
def test_threads_do_not_matter(plan, adversary):
    pair = audit.pairs.dp_ight(plan)
    one, two = (audit.audit(plan, pair, trials=5000, n_jobs=n, adversary=adversary) for n in (1, 2))
    assert PlanTarget(plan, pair).threads and without_time(one) == without_time(two)


def test_processes_do_not_matter():
    pytest.importorskip("joblib")
    offset = 0.25
    one, two = (
        audit.audit(lambda x, rng: offset + vector(x, rng), PAIR, GaussianClaim(1.0), trials=5000, n_jobs=n)
        for n in (1, 2)
    )
    assert without_time(one) == without_time(two)


def test_trials_depend_on_their_number_alone():
    game = Game(CallableTarget(vector, Pair(*PAIR)), 3, "trials", 1)
    bits, outputs = game.play(0, 3000)
    for first, count in ((0, 1), (1, 1), (1023, 2), (1000, 2000), (2999, 1)):
        part_bits, part = game.play(first, count)
        assert np.array_equal(part_bits, bits[first : first + count])
        assert np.array_equal(part, outputs[first : first + count])
    other = Game(CallableTarget(vector, Pair(*PAIR)), 3, "probe", 1).play(0, 3000)
    assert not np.array_equal(other[0], bits) and not np.isin(other[1], outputs).any()


def test_streams_of_trials_do_not_overlap():
    words = [Streams(0, "trials").generator(i).integers(2**63, size=500) for i in range(20)]
    words += [Streams(*key).generator(0).integers(2**63, size=500) for key in ((0, "probe"), (1, "trials"))]
    assert len(np.unique(words)) == 22 * 500
    moved = Streams(0, "trials").generator(0)
    moved.random(3)
    # Half of a word is left over from these, and must not leak into the next trial.
    moved.integers(5, dtype=np.int32)
    seek(moved, 7)
    fresh = Streams(0, "trials").generator(7)
    first, second = (g.integers(2**30, size=5, dtype=np.int32) for g in (moved, fresh))
    assert np.array_equal(first, second)
    bits = Streams(0, "trials").bits(0, 20_000)
    # Fair to 6 standard deviations: fails for one seed in 5e8.
    assert abs(bits.mean() - 0.5) < 3 / np.sqrt(20_000)
    assert np.array_equal(bits[4090:4100], Streams(0, "trials").bits(4090, 10))


def test_slices_of_a_block_do_not_matter():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 900).astype(np.int8)
    scores = bits + rng.standard_normal(900)
    ends = []
    for cuts in ([100, 900], [100, 101, 500, 900]):
        wealth = Wealth(GaussianClaim(0.7), 0.05)
        wealth.learn(scores[:100], bits[:100])
        for a, b in zip(cuts, cuts[1:], strict=False):
            wealth.bet(scores[a:b], bits[a:b], (scores[a:b] > 0.5) == bits[a:b])
        ends.append((wealth.log_now, wealth.crossed_at, wealth.log_crossing))
    assert ends[0] == pytest.approx(ends[1])


def test_seconds_keep_to_the_time():
    found = audit.audit(noisy, PAIR, GaussianClaim(1.0), seconds=0.3)
    # A busy machine may stand still for seconds; an audit that does not look at the clock would not end.
    assert found.trials >= 200 and 0.3 <= found.seconds < 120


def test_progress_is_told(capsys):
    told = []
    audit.audit(noisy, PAIR, GaussianClaim(1.0), trials=1000, progress=lambda *news: told.append(news))
    assert [done for done, _ in told] == [100, 200, 400, 800, 1000]
    assert all(a <= b for (_, a), (_, b) in zip(told, told[1:], strict=False))
    audit.audit(noisy, PAIR, GaussianClaim(1.0), trials=400, progress=True)
    assert "400 trials" in capsys.readouterr().err


# --- going on after a kill ------------------------------------------------------------------------------------


def cut(path, rows, width, extra=0):
    """What a kill leaves: the first rows, and some bytes of the next."""
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"\n") + 1 + 8 * width * rows + extra])


@pytest.mark.parametrize("mode", ["fixed", "sequential"])
@pytest.mark.parametrize(("rows", "extra"), [(0, 0), (0, 5), (100, 0), (130, 3), (399, 15), (470, 0), (800, 0)])
def test_resumed_audits_give_the_report_of_uninterrupted_ones(tmp_path, mode, rows, extra):
    path = tmp_path / "kept"
    arguments = {"trials": 1000, "mode": mode, "alpha": 1e-6}
    mechanism = half if mode == "sequential" else noisy
    whole = audit.audit(lambda x, rng: [mechanism(x, rng), 0.0], PAIR, GaussianClaim(1.0), resume=path, **arguments)
    # A sequential audit ends after 800 trials here.
    cut(path, rows, 2, extra)
    before = path.stat().st_size
    again = audit.audit(lambda x, rng: [mechanism(x, rng), 0.0], PAIR, GaussianClaim(1.0), resume=path, **arguments)
    assert without_time(again) == without_time(whole)
    assert path.stat().st_size >= before
    alone = audit.audit(lambda x, rng: [mechanism(x, rng), 0.0], PAIR, GaussianClaim(1.0), **arguments)
    assert without_time(alone) == without_time(whole)


def test_a_resumed_audit_does_not_run_kept_trials_again(tmp_path):
    calls = []

    def counting(x, rng):
        calls.append(0)
        return noisy(x, rng)

    audit.audit(counting, PAIR, GaussianClaim(1.0), trials=1000, resume=tmp_path / "kept")
    done = len(calls)
    longer = audit.audit(counting, PAIR, GaussianClaim(1.0), trials=1500, resume=tmp_path / "kept")
    # 40 runs look whether it works, 4 whether the file is of this mechanism, and 500 are new.
    assert len(calls) - done == 544 and longer.trials == 1500
    assert without_time(longer) == without_time(audit.audit(counting, PAIR, GaussianClaim(1.0), trials=1500))


def test_checkpoints_of_other_audits_are_refused(tmp_path, plan):
    path = tmp_path / "kept"
    audit.audit(noisy, PAIR, GaussianClaim(1.0), trials=400, resume=path)
    others = [
        (noisy, PAIR, GaussianClaim(1.0), {"rng": 1}),
        (noisy, PAIR, GaussianClaim(1.1), {}),
        (noisy, (2.0, 0.0), GaussianClaim(1.0), {}),
        (half, PAIR, GaussianClaim(1.0), {}),
        (lambda x, rng: noisy(x, rng), PAIR, GaussianClaim(1.0), {}),
        (noisy, PAIR, GaussianClaim(1.0), {"attack": lambda outputs: outputs[:, 0]}),
    ]
    kept = path.read_bytes()
    for mechanism, pair, claim, more in others:
        with pytest.raises(InvalidValue, match="must be a checkpoint of this audit. It belongs to another"):
            audit.audit(mechanism, pair, claim, trials=400, resume=path, **more)
    assert path.read_bytes() == kept
    pair, halved = audit.pairs.dp_ight(plan), plan.with_noise(0.1)
    audit.audit(plan, pair, GaussianClaim(1.0), trials=400, resume=tmp_path / "plan")
    for other, adversary in ((halved, "final"), (plan, "iterates")):
        with pytest.raises(InvalidValue, match="belongs to another"):
            audit.audit(other, pair, GaussianClaim(1.0), trials=400, resume=tmp_path / "plan", adversary=adversary)


def test_files_that_are_no_checkpoint(tmp_path):
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "json").write_text('{"width": 2}\n')
    for name in ("text", "json"):
        with pytest.raises(InvalidValue, match="must be a checkpoint of an audit"):
            audit.audit(noisy, PAIR, GaussianClaim(1.0), trials=400, resume=tmp_path / name)
    for path in (tmp_path, tmp_path / "no" / "file"):
        with pytest.raises(InvalidValue, match="must be a file in a folder that exists"):
            audit.audit(noisy, PAIR, GaussianClaim(1.0), trials=400, resume=path)
    (tmp_path / "empty").touch()
    assert audit.audit(noisy, PAIR, GaussianClaim(1.0), trials=400, resume=tmp_path / "empty").trials == 400


def test_identity_is_the_same_in_every_process():
    code = (
        "from functools import partial; import numpy as np, hashlib; from dptoolkit.audit.engine import identity;"
        "from dptoolkit.audit import Pair, GaussianClaim;\n"
        "def f(x, rng, a=2): return x + {'p', 'q'}.__len__() * rng.random()\n"
        "pair = Pair(np.arange(3), {'b': 1, 'a': None})\n"
        "found = identity([f, partial(f, a=3), lambda x: x + 1, pair, GaussianClaim(1.0)])\n"
        "print(hashlib.sha256(repr(found).encode()).hexdigest())"
    )
    root = str(Path(__file__).resolve().parents[2])
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_identity_tells_constants_and_closures_apart():
    def adds(k):
        return lambda x, rng: x + k

    def loop(x, rng):
        return loop

    assert identity(adds(1)) == identity(adds(1)) != identity(adds(2))
    assert identity(lambda x: x + 1.5) != identity(lambda x: x + 2.5)
    assert identity(np.zeros(2)) != identity(np.zeros((2, 1))) and identity(loop) == identity(loop)


# --- JSON, merging, plots -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claim",
    [GaussianClaim(1.0), PureClaim(3.0), ApproxClaim(3.0, 1e-4), RenyiClaim([2.0, 8.0, 16.0], [1.0, 4.0, math.inf]),
     Repeated(Gaussian(2.0), 4), Subsampled(Gaussian(1.0), "poisson", 0.9)],
    ids=["GaussianClaim", "PureClaim", "ApproxClaim", "RenyiClaim", "Repeated", "Subsampled"],
)  # fmt: skip
def test_reports_travel_as_json(tmp_path, claim):
    made = audit.audit(noisy, PAIR, claim, trials=800)
    back = AuditReport.from_json(made.to_json())
    assert back == made and back.trade_off.width == made.trade_off.width
    assert np.array_equal(back.trade_off.false_negative, made.trade_off.false_negative)
    assert back.claimed_profile == made.claimed_profile and str(back) == str(made)
    made.to_json(tmp_path / "report.json")
    assert all(AuditReport.from_json(kind(tmp_path / "report.json")) == made for kind in (Path, str))
    record = json.loads(made.to_json())
    assert record["verdict"] == made.verdict and record["guesses"]["correct"] == made.guesses.correct


def test_infinite_numbers_travel_too(report):
    endless = replace(report, epsilon_lower=math.inf, reach=math.nan, e_value=math.inf)
    back = AuditReport.from_json(endless.to_json())
    assert back.epsilon_lower == math.inf and math.isnan(back.reach) and "NaN" not in endless.to_json()


def test_merged_audits_pool_their_counts():
    a, b = (audit.audit(noisy, PAIR, GaussianClaim(1.0), trials=2000, rng=seed) for seed in (0, 1))
    both = a.merge(AuditReport.from_json(b.to_json()))
    assert both.guesses == a.guesses + b.guesses == Guesses(3800, 3800, a.guesses.correct + b.guesses.correct)
    p = lower_bound(both.guesses.correct, 3800, 0.95)
    assert both.epsilon_lower == pytest.approx(GaussianClaim(GaussianClaim(1.0).factor_at(2 * p - 1)).epsilon(1e-5))
    assert both.epsilon_lower == b.merge(a).epsilon_lower and both.trials == 4000
    assert both.log_e_value == pytest.approx(a.log_e_value + b.log_e_value)


def test_merged_odds_pool_their_guesses():
    def laplace(x, rng):
        return x + rng.laplace()

    a, b = (audit.audit(laplace, PAIR, PureClaim(1.0), trials=40_000, rng=seed) for seed in (0, 1))
    assert a.statistic == b.statistic == "odds of confident guesses"
    both = a.merge(b)
    assert both.epsilon_lower == (a.guesses + b.guesses).odds_lower(0.0, 0.95)


def test_what_cannot_be_merged(report):
    with pytest.raises(InvalidValue, match="seed=0: must be different in the two reports"):
        report.merge(report)
    with pytest.raises(InvalidValue, match="claim="):
        report.merge(audit.audit(noisy, PAIR, GaussianClaim(1.2), trials=400, rng=1))
    sequential = [audit.audit(noisy, PAIR, GaussianClaim(1.0), trials=400, mode="sequential", rng=r) for r in (0, 1)]
    with pytest.raises(InvalidValue, match="Multiply the e-values"):
        sequential[0].merge(sequential[1])


def test_plot_writes_a_file(tmp_path, report):
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "trade-off.png")
    assert (tmp_path / "trade-off.png").stat().st_size > 1000
    AuditReport.from_json(report.to_json()).plot(tmp_path / "again.svg")
    assert "claim" in (tmp_path / "again.svg").read_text()
    with pytest.raises(InvalidValue, match="without a trade-off curve"):
        replace(report, trade_off=None).plot(tmp_path / "none.png")


# --- several audits -------------------------------------------------------------------------------------------


def test_a_sweep_averages_its_evidence():
    pairs = [(0.1, 0.0), (1.0, 0.0), (0.5, 0.0)]
    table = audit.sweep(half, pairs, GaussianClaim(1.0), trials=2000, alpha=1e-6)
    assert table.e_value == pytest.approx(np.mean([r.e_value for r in table.reports])) and table.violated
    assert "3 pairs" in str(table) and str(table).count("two datasets") == 3
    assert not audit.sweep(noisy, pairs, GaussianClaim(1.0), trials=1000, alpha=1e-6).violated
    with pytest.raises(InvalidValue, match="at least one pair"):
        audit.sweep(noisy, [], GaussianClaim(1.0), trials=400)


def test_a_search_finds_the_better_pair():
    shifts = [[0.0, 0.5, 1.0]]
    found = audit.search(noisy, lambda shift: (shift, 0.0), shifts, GaussianClaim(1.0), trials=1000, rounds=1)
    assert found.parameters[0] >= 1.0 and found.tried >= 4
    assert audit.audit(noisy, found.pair, GaussianClaim(1.0), trials=400).trials == 400


@pytest.mark.parametrize("claim", [PureClaim(1.0), audit.ZcdpClaim(0.5)], ids=["PureClaim", "ZcdpClaim"])
def test_trials_that_chose_the_statistic_are_not_counted_in_it(claim):
    # Otherwise the better of two bounds would be taken, each at the whole error.
    report = audit.audit(lambda x, rng: x + rng.laplace(), PAIR, claim, trials=8000)
    assert report.guesses.trials <= 8000 - 800
    assert report.pilot == 8000 - report.guesses.trials


def test_a_gaussian_claim_needs_no_choice():
    report = audit.audit(lambda x, rng: x + rng.standard_normal(), PAIR, audit.GaussianClaim(1.0), trials=8000)
    assert report.guesses.trials == 8000 - 100


@pytest.mark.parametrize("name", ["broken", "one_run", "probes"])
def test_documented_modules_are_attributes(name):
    assert getattr(audit, name).__name__ == f"dptoolkit.audit.{name}" and name in dir(audit)


def test_unknown_attributes_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        audit.nothing  # noqa: B018


# --- what a mechanism of somebody else may do ------------------------------------------------------------


@pytest.mark.parametrize("counted", [False, True])
def test_a_mechanism_that_changes_its_dataset_late_is_refused(counted):
    """After the probe, so that all later trials would run on equal data and show nothing."""
    calls = []

    def forgets(data, rng):
        X = data[0] if counted else data
        calls.append(1)
        if len(calls) > 200:
            X[:] = 0.0
        return X.sum() + 0.1 * rng.laplace()

    X = np.zeros((5, 1))
    other = X + np.eye(5, 1)
    pair = Pair(*(Counted(part, np.zeros(5), np.ones(5, np.int64)) for part in (X, other))) if counted else (X, other)
    with pytest.raises(InvalidValue, match="changes the dataset"):
        audit.audit(forgets, pair, (1.0, 0.0), trials=2000)


def test_keys_that_depend_on_the_data_are_refused():
    """Numbers alone are compared, so that keys would be a leak that nobody looks at."""
    pair = np.zeros(3), np.array([1.0, 0.0, 0.0])
    with pytest.raises(InvalidValue, match="keys"):
        audit.audit(lambda x, rng: {f"{x.sum():g}": rng.laplace()}, pair, (1.0, 0.0), trials=2000)
    with pytest.raises(InvalidValue, match="keys"):
        audit.audit(lambda x, rng: [1.0, {"a" if x.sum() else "b": rng.laplace()}], pair, (1.0, 0.0), trials=2000)
    report = audit.audit(lambda x, rng: {1: x.sum() + rng.laplace(), "a": 2.0}, pair, (1.0, 0.0), trials=2000)
    assert not report.violated


def test_identity_of_wide_sparse_rows_needs_no_dense_ones():
    wide = sparse.csr_matrix(([1.0, 2.0], ([0, 1], [5, 7])), shape=(10**5, 10**8))
    other = wide.copy()
    other.data[0] = 3.0
    starts = np.r_[0, 1, np.full(10**5 - 1, 4)]
    listed_twice = sparse.csr_matrix(([1.0, 0.5, 1.5, 0.0], [5, 7, 7, 8], starts), shape=wide.shape)
    assert identity(wide) == identity(wide.copy()) == identity(listed_twice) != identity(other)
