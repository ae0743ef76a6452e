"""Rankings as hypotheses: what is said about orders is wrong with probability 1 % at most, over all items together."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from scipy import stats

from paper_checks import curves, family, findings
from paper_checks.__main__ import ROOT, main
from paper_checks.claims import BadClaims, load, selected
from paper_checks.family import ITEMS, LEVEL, SHARE, Compared, decide
from paper_checks.run import Settings, run

PAPERS = selected(ROOT, [])
RANKED = [item for paper in PAPERS for item in paper.items if item.tests]


def _tests(lower, higher=None):
    higher = [1.0] * len(lower) if higher is None else higher
    return [Compared(first, second, "") for first, second in zip(lower, higher, strict=True)]


# --- the rule --------------------------------------------------------------------------------------------------------


def test_holm_rejects_in_order_and_holds_the_family():
    assert family.holm([0.001, 0.02, 0.004], 0.01) == [True, False, True]
    assert family.holm([0.004, 0.004, 0.004], 0.01) == [False, False, False]
    # Without any difference at most one family in a hundred has a rejection: 2000 families, error rate 1e-6.
    rng = np.random.default_rng(0)
    families = sum(any(family.holm(list(rng.random(5)), 0.01)) for _ in range(2000))
    assert families <= stats.binom.isf(1e-6, 2000, 0.01)


def test_an_order_needs_its_largest_p_value_and_a_part_of_it_pays_for_the_choice():
    # Every comparison just passes: the whole order is established, and no single one is.
    found = decide(_tests([SHARE] * 5))
    assert found.kept and not any(found.lower)
    assert not decide(_tests([SHARE / 9] * 4 + [1.01 * SHARE])).kept
    # Three of five: the third smallest p-value counts three times.
    assert decide(_tests([SHARE / 3] * 3 + [1.0] * 2), needed=3).kept
    assert not decide(_tests([SHARE / 2.9] * 3 + [1.0] * 2), needed=3).kept
    # The opposite of one comparison is enough, at the price of all.
    assert decide(_tests([1.0] * 4, [SHARE / 4, 1, 1, 1])).higher == (True, False, False, False)
    assert not any(decide(_tests([1.0] * 4, [SHARE / 3.9, 1, 1, 1])).higher)
    # Decisions of one item share its part.
    assert decide(_tests([SHARE / 2]), parts=2).kept and not decide(_tests([SHARE / 1.9]), parts=2).kept
    assert family.differ([2 * SHARE / 2, 0.5]) == [True, False] and not any(family.differ([2.1 * SHARE / 2, 0.5]))


def test_fourteen_unanimous_pairs_are_enough_and_thirteen_are_not():
    for pairs, kept in ((14, True), (13, False)):
        low, high = np.zeros(pairs), np.ones(pairs)
        assert decide([family.sign(low, high)] * 6).kept == kept
        assert decide([family.sign(high, low)]).higher == (kept,)


@pytest.mark.parametrize("pairs", [5, 14, 18, 40])
def test_p_values_are_exact_tail_probabilities(pairs):
    low, high = np.zeros(pairs), np.ones(pairs)
    for wins in (0, pairs // 2, pairs):
        first = np.where(np.arange(pairs) < wins, low, 2.0)
        found = family.sign(first, high)
        assert found.lower == pytest.approx(stats.binomtest(wins, pairs, alternative="greater").pvalue)
        assert found.higher == pytest.approx(stats.binomtest(wins, pairs, alternative="less").pvalue)
    assert family.sign(low, low).lower == family.sign(low, low).higher == 1.0
    rng = np.random.default_rng(0)
    a, b = rng.random(pairs) + 1, rng.random(pairs) + 1.2
    for found, reference in (
        (family.student(a, b), stats.ttest_rel(np.log(a), np.log(b), alternative="less").pvalue),
        (family.wilcoxon(a, b), stats.wilcoxon(a, b, alternative="less").pvalue),
    ):
        assert found.lower == pytest.approx(reference)
        # An exact discrete test counts the value itself on both sides.
        assert 1 - 1e-9 <= found.lower + found.higher <= 1.2
    printed = family.welch((1.0, 0.2), (1.1, 0.3), pairs)
    t = stats.ttest_ind_from_stats(1.0, 0.2, pairs, 1.1, 0.3, pairs, equal_var=False, alternative="less")
    assert printed.lower == pytest.approx(t.pvalue) and printed.lower + printed.higher == pytest.approx(1)


def test_signed_ranks_with_ties_are_counted_one_by_one():
    first, second = np.array([1.0, 1.0, 2.0, 4.0, 3.0]), np.array([2.0, 2.0, 1.0, 1.0, 3.0])
    # The ranks are 2, 2, 2 and 4; those of positive differences sum to 2 + 4. Of the 16 choices of signs one gives the
    # sum 0, three give 2, four 4, four 6, three 8 and one 10.
    found = family.wilcoxon(first, second)
    assert (found.lower, found.higher) == (12 / 16, 8 / 16)
    assert family.wilcoxon(first, first).lower == 1.0


def test_effect_and_uncertainty_are_in_words():
    first, second = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 3.0])
    error = np.std([-1, -2, 0], ddof=1) / math.sqrt(3)
    assert family.sign(first, second).effect == f"lower in 2 of 2, difference -1 +- {error:.2g}"
    assert family.sign(np.array([1.0, 2.0]), np.array([np.inf, np.inf])).effect == "lower in 2 of 2"
    assert "difference -0.1 +- 0.16, p = " in family.welch((1.0, 0.3), (1.1, 0.4), 10).effect


# --- the error over all items ----------------------------------------------------------------------------------------


def _figure(rng, repetitions, budgets):
    """Errors of three methods without any difference, which share the data and so are dependent."""
    data = rng.normal(size=(repetitions, 1))
    errors = {
        (noise, name): np.exp(data + rng.normal(size=(repetitions, budgets)))
        for noise in (curves.PUBLISHED, curves.TIGHT)
        for name in "abc"
    }
    return curves.Figure([float(k) for k in range(budgets)], errors, {})


def _says_something(found):
    return found.verdict in ("order kept", "order reversed", "depends on reading", "not reached here")


def _wrong_runs(runs, items=ITEMS):
    """In how many runs of all items some item says something about an order, where there is none."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(runs):
        said = False
        for number in range(items):
            if number % 3 == 0:
                found = curves.order(_figure(rng, 16, 2), "a", {"b": ["b"], "c": ["c"]})
            elif number % 3 == 1:
                first, second = rng.random((2, 4, 18))
                found = curves.paired([("x", *pair) for pair in zip(first, second, strict=True)])
            else:
                # One comparison with a continuous p-value: nothing is lost to discreteness.
                p = rng.random()
                found = _verdict(decide(_tests([p], [1 - p])))
            said |= _says_something(found)
        wrong += said
    return wrong


def _verdict(found):
    return findings.Finding("order kept" if found.kept else "order reversed" if any(found.higher) else "tie", "")


_RUNS = 40


def test_without_any_difference_one_run_in_a_hundred_says_something():
    # The number of runs in which anything is said is at most Binomial(40, 1 %): error rate of this test 1e-6.
    assert _wrong_runs(_RUNS) <= stats.binom.isf(1e-6, _RUNS, LEVEL)


def test_a_rule_that_holds_the_error_within_each_item_only_fails_the_simulation(monkeypatch):
    # Each item alone at 1 %, as if there were no others: some of 50 items speaks in a third of the runs or more.
    within = LEVEL / 2

    def alone(tests, needed=None, parts=1):
        lower, higher = [test.lower for test in tests], [test.higher for test in tests]
        return family.Decision(max(lower) <= within, tuple(family.holm(lower, within)),
                               tuple(family.holm(higher, within)))  # fmt: skip

    monkeypatch.setattr(curves, "decide", alone)
    monkeypatch.setitem(globals(), "decide", alone)
    assert _wrong_runs(_RUNS) > stats.binom.isf(1e-6, _RUNS, LEVEL)


def test_one_comparison_without_difference_among_clear_ones_is_said_to_hold_with_the_items_part_at_most():
    # The worst case of "kept": all others hold. The probability is exact, for every number of pairs.
    for pairs in range(1, 60):
        chance = sum(
            math.comb(pairs, wins) / 2**pairs
            for wins in range(pairs + 1)
            if decide(_tests([1e-30, family._tail(wins, pairs), 1e-30])).kept
        )
        assert chance <= SHARE
    # And of "at least u of m": m - u + 1 comparisons hold nothing, by dependence of the worst kind.
    draws = np.random.default_rng(0).random(200_000)
    level = SHARE * 300
    wrong = sum(family.at_least([1e-30, u, (u + 1 / 2) % 1], 2, level) for u in draws)
    assert wrong <= stats.binom.isf(1e-6, len(draws), level)


def test_three_kinds_of_statements_of_all_items_add_up_to_the_level():
    assert pytest.approx(LEVEL) == 3 * SHARE * ITEMS
    assert sum(item.looks for item in RANKED) <= ITEMS


# --- numbers of tests are fixed beforehand ---------------------------------------------------------------------------


def test_a_run_that_makes_another_number_of_tests_fails(tmp_path, capsys, monkeypatch):
    import shutil

    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "wang_gu_2019_ight", tmp_path / "wang_gu_2019_ight")
    path = tmp_path / "wang_gu_2019_ight" / "claims.toml"
    text = path.read_text(encoding="utf-8")
    old = 'verdict = "tie"\ntests = 5\n'
    assert text.count(old) == 1
    for new, words in (
        ("tests = 6", "item 'IGHT-T3s': makes 5 tests, and claims.toml fixes tests = 6 beforehand"),
        ("", "makes 5 tests, and claims.toml fixes tests = 0 beforehand"),
        ("tests = 0", "item 'IGHT-T3s': tests=0: must be a whole number, at least 1"),
    ):
        path.write_text(text.replace(old, f'verdict = "tie"\n{new}\n'), encoding="utf-8")
        assert main(["IGHT-T3s"], tmp_path) == 2
        assert words in capsys.readouterr().err


def test_two_decisions_of_an_item_must_share_its_part():
    with family.counted() as made:
        decide(_tests([0.5]), parts=2)
        decide(_tests([0.5, 0.5]), parts=2)
    assert family.problem(3, made) == "" and "makes 3 tests" in family.problem(4, made)
    with family.counted() as made:
        decide(_tests([0.5]))
        decide(_tests([0.5]))
    assert family.problem(2, made) == "decides 2 times, so each must say parts = 2"


def test_more_items_with_tests_than_the_level_is_divided_among_are_refused(monkeypatch):
    looks = sum(item.looks for item in RANKED)
    assert looks > len(RANKED)
    monkeypatch.setattr(family, "ITEMS", looks - 1)
    with pytest.raises(BadClaims, match=f"{looks} items have tests, second looks counted, and family.ITEMS allows"):
        selected(ROOT, ["IGHT-P4"])
    monkeypatch.setattr(family, "ITEMS", looks)
    selected(ROOT, ["IGHT-P4"])


def test_an_item_whose_repetitions_were_raised_after_a_look_pays_for_both_looks():
    for item in RANKED:
        assert (item.looks == 2) == ("after a first look" in item.why), item.id
    raised = [item.id for item in RANKED if item.looks == 2]
    assert raised == ["IGHT-F1b", "IGHT-F1d", "KT-F2b", "KT-F2d"]


def test_a_first_look_that_leads_to_more_repetitions_errs_no_more_often_than_its_looks_allow():
    # Whoever tests 5 pairs, and 10 where nothing was found, errs as often as two items may: the chance is computed on
    # the walk of signs, at a level that few pairs can reach.
    level = 2.0**-5
    chance = 0.0
    for first in range(6):
        found = decide_at(first, 5, level)
        for second in range(6):
            weight = math.comb(5, first) * math.comb(5, second) / 2**10
            chance += weight * (found or decide_at(first + second, 10, level))
    assert level < chance <= 2 * level


def decide_at(wins, pairs, level):
    return family._tail(wins, pairs) <= level


def test_a_verdict_does_not_depend_on_which_items_are_run():
    names = ["IGHT-T3s", "KT-T2s", "SHT-T4s", "SHT-P5"]
    together = {unit.id: record for unit, record, _ in run(ROOT, selected(ROOT, names), Settings())}
    for name in names:
        ((_, record, _),) = run(ROOT, selected(ROOT, [name]), Settings())
        assert record == together[name]


def test_tests_are_made_in_one_place():
    pattern = re.compile(r"binomtest|ttest|wilcoxon\(gain|stats\.wilcoxon|mannwhitney|\bALPHA\b")
    for path in ROOT.rglob("*.py"):
        if path.name != "family.py":
            assert not pattern.search(path.read_text(encoding="utf-8")), path


def test_verdicts_on_orders_come_from_the_family_or_from_arithmetic_on_the_printed_table():
    printed = {"lowest_error"}
    for paper in PAPERS:
        for item in paper.items:
            if item.judged and item.verdict in ("order kept", "order reversed"):
                assert item.tests or item.check.__name__ in printed, item.id


def test_the_front_page_says_how_many_tests_there_are():
    from paper_checks import html, pages

    page = pages.Page([], PAPERS, "command", "today")
    total = sum(item.tests for item in RANKED)
    words = f"Orders rest on {total} tests in {len(RANKED)} items."
    assert words in html.page(page) and words in pages.markdown(page)
    assert f"at most 1%: each item has one part in {ITEMS} of it" in pages.markdown(page)
    assert "taken for IGHT-F1b, IGHT-F1d, KT-F2b, KT-F2d: each counts as two items." in pages.markdown(page)
    assert "Orders rest" not in pages.markdown(pages.Page([], [load(ROOT / "wang_lecture_16")], "command", "today"))
