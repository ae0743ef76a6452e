"""Groups of records, and audits of somebody else's code: by name from the command line, and by a pytest fixture."""

from __future__ import annotations

import numpy as np
import pytest

from dptoolkit import audit, solvers
from dptoolkit.audit import pairs, presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.files import load_function, load_pair
from dptoolkit.audit.pair import check_neighbours
from dptoolkit.cli import main
from dptoolkit.errors import PrivacyViolation

pytest_plugins = ["pytester"]
MODULE = """
import numpy as np

def right(data, rng):
    return data.sum() + rng.normal(scale=3.8)

def wrong(data, rng):
    return data.sum() + rng.normal(scale=1.0)

def leaves(data, rng):
    raise SystemExit(3)

def changes(data, rng):
    data += 1
    return data.sum() + rng.normal(scale=3.8)

def alone(data):
    return data.sum()

def words(data, rng):
    return "yes"

def fails(data, rng):
    if data.sum() > 0:
        raise RuntimeError("the record is 1.0")
    return rng.normal()

def nothing(data, rng):
    return None

def sizes(data, rng):
    return rng.random(rng.integers(1, 4))

number = 5
"""


# --- groups --------------------------------------------------------------------------------------------


LOSSES = [{"loss": "squared", "grad_norm": 1.0}, {"loss": "logistic", "row_norm": 1.0}]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_groups(loss):
    """Four records changed together are within the guarantee for four and beyond the one for a single record.

    Both tests have a false-alarm probability of 1e-8, over the seed, which is fixed.
    """
    plan = solvers.plan("dp_ight", n=200, d=5, sparsity=2, steps=10, step_size=0.5, epsilon=1.0, delta=1e-5, **loss)
    pair = pairs.grouped(presets.pair(plan), 4)
    check_neighbours(pair)
    assert pair.size == 4 and pair.first.n == pair.second.n == 200
    how = {"trials": 10_000, "power": None, "alpha": 1e-8}
    audit.assert_private(plan, pair, as_claim(plan.guarantee.group(4)), **how)
    with pytest.raises(PrivacyViolation):
        audit.assert_private(plan, pair, as_claim(plan.guarantee.group(2)), **how)
    # The group's claim has power of its own: a third of the noise is found.
    with pytest.raises(PrivacyViolation):
        audit.assert_private(plan.with_noise(factor=1 / 3), pair, as_claim(plan.guarantee.group(4)), **how)


def test_groups_are_refused_where_they_cannot_be():
    plan = presets.plan("dp_ight", 1.0, 1e-5)
    pair = presets.pair(plan)
    with pytest.raises(ValueError, match="size of the group=500"):
        pairs.grouped(pair, 500)
    with pytest.raises(ValueError, match="counted datasets"):
        pairs.grouped(audit.Pair(np.zeros((3, 1)), np.ones((3, 1))), 2)
    with pytest.raises(ValueError, match="2 records differ"):
        check_neighbours(audit.Pair(*pairs.grouped(pair, 2)))


def test_a_group_by_profile():
    """Where records are sampled there is no event for a group, so its claim is a profile."""
    plan = presets.plan("dp_sgd_ht", 1.0, 1e-5)
    claim = as_claim(plan.guarantee.group(3))
    assert isinstance(claim, audit.ProfileClaim)
    assert claim.epsilon(1e-5) == pytest.approx(plan.guarantee.group(3).epsilon(1e-5), rel=1e-5)


# --- functions and files -------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    (tmp_path / "somebodys_module.py").write_text(MODULE)
    np.savez(tmp_path / "pair.npz", first=np.array([[1.0], [0.0]]), second=np.zeros((2, 1)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "code"), [("right", 0), ("wrong", 1)])
def test_a_function_by_its_name(files, capsys, name, code):
    arguments = ["audit", f"somebodys_module:{name}", "--pair", "pair.npz", "--epsilon", "1", "--family", "gaussian"]
    assert main([*arguments, "--trials", "4000", "--confidence", "0.99999", "--source", "its manual"]) == code
    text = capsys.readouterr().out
    for part in (f"somebodys_module:{name}", "by its manual", "the datasets of pair.npz", "are not seen"):
        assert part in text


@pytest.mark.parametrize("claim", [["--epsilon", "1", "--family", "gaussian"], ["--epsilon", "0.05", "--delta", "0.1"]])
def test_a_function_and_a_group(files, capsys, claim):
    """What is claimed is about one record, so that two records of a correct function are no violation."""
    np.savez("two.npz", first=np.ones((2, 1)), second=np.zeros((2, 1)))
    arguments = ["audit", "somebodys_module:right", "--pair", "two.npz", *claim]
    how = ["--trials", "20000", "--confidence", "0.99999"]
    assert main([*arguments, "--group", "2", *how]) == 0
    assert "for groups of 2" in capsys.readouterr().out
    # The twin: the claim for one record is refuted by the same outputs.
    assert main([*arguments, "--neighbours", "as given", *how]) == 1


@pytest.mark.parametrize(("arguments", "message"), [
    (["no_such_module:f", "--pair", "pair.npz"], "can be imported"),
    (["somebodys_module:right"], "--pair: must be given"),
    (["somebodys_module:right", "--pair", "somebodys_module.py"], "an .npz file"),
    (["somebodys_module:right", "--pair", "cut.npz"], "an .npz file of numbers that can be read"),
    (["somebodys_module:right", "--pair", "empty.npz"], "an .npz file of numbers that can be read"),
    (["somebodys_module:right", "--pair", "one.npy"], "an .npz file of numbers that can be read"),
    (["somebodys_module:right", "--pair", "short.npz"], "as many labels as rows"),
    (["somebodys_module:right", "--pair", "pair.npz", "--family", "gaussian", "--delta", "0"], "> 0 with --family"),
    (["somebodys_module:leaves", "--pair", "pair.npz"], "SystemExit: 3"),
    (["somebodys_module:changes", "--pair", "pair.npz"], "changes the dataset"),
    (["somebodys_module:alone", "--pair", "pair.npz"], "called as mechanism(dataset, rng)"),
    (["somebodys_module:words", "--pair", "pair.npz"], "must be numbers"),
    (["somebodys_module:nothing_", "--pair", "pair.npz"], "has no function 'nothing_'"),
    (["somebodys_module:nothing", "--pair", "pair.npz"], "every output is NaN or None"),
    (["somebodys_module:sizes", "--pair", "pair.npz"], "1 to 3 numbers': must be of one size"),
    (["somebodys_module:number", "--pair", "pair.npz"], "has no function 'number'"),
    (["somebodys_module:right", "--pair", "pair.npz", "--adversary", "final"], "--adversary final: must be left out"),
    (["somebodys_module:right", "--pair", "pair.npz", "--group", "0"], "size of the group=0: must be >= 1"),
    (["somebodys_module:right", "--pair", "missing.npz"], "--pair 'a file of first_X, second_X': must be a file of"),
    (["somebodys_module:right", "--pair", "objects.npz"], "Object arrays cannot be loaded"),
    (["dp_ight", "--family", "gaussian"], "--family gaussian: must be left out for a solver"),
    (["dp_ight", "--neighbours", "as given"], "--neighbours 'as given': must be left out for a solver"),
    (["dp_ight", "--group", "300"], "size of the group=300: must be <= 200"),
    (["dp_sgd_ht", "--group", "100"], "one that a mechanism can violate"),
    (["failing_module:f", "--pair", "pair.npz"], "ValueError: not today"),
    (["leaving_module:f", "--pair", "pair.npz"], "SystemExit: 4"),
    (["..relative:f", "--pair", "pair.npz"], "not the name of a module"),
    ([":f", "--pair", "pair.npz"], "not the name of a module"),
    (["somebodys_module:right", "--pair", "other.npz"], "first_X, first_y"),
    (["dp_ight", "--pair", "pair.npz"], "left out for a solver"),
    (["dp_ight", "--group", "0"], "size of the group"),
    (["dp_ight", "--group", "2", "--published"], "about one record"),
], ids=str)  # fmt: skip
def test_bad_input(files, capsys, arguments, message):
    np.savez(files / "other.npz", one=np.zeros(2))
    np.savez(files / "missing.npz", first_X=np.eye(3), second_X=np.eye(3))
    np.savez(files / "objects.npz", first=np.array([{}]), second=np.zeros(1))
    np.savez(files / "short.npz", first_X=np.eye(3), first_y=np.zeros(2), second_X=np.eye(3), second_y=np.zeros(3))
    np.save(files / "one.npy", np.zeros(2))
    (files / "cut.npz").write_bytes((files / "pair.npz").read_bytes()[:100])
    (files / "empty.npz").touch()
    (files / "failing_module.py").write_text("raise ValueError('not today')")
    (files / "leaving_module.py").write_text("raise SystemExit(4)")
    assert main(["audit", *arguments, "--epsilon", "1", "--trials", "200"]) == 2
    assert message in capsys.readouterr().err


def test_failures_are_counted_without_their_message(files, capsys):
    arguments = ["audit", "somebodys_module:fails", "--pair", "pair.npz", "--epsilon", "1", "--trials", "400"]
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert "The last error was RuntimeError" in text and "the record is" not in text


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("size", [1, 2, 50])
def test_groups_of_any_size(adjacency, size):
    """A false alarm has a probability of 1e-8; a group of one is a record, and the relation of records stays."""
    plan = solvers.plan("dp_ight", n=200, d=4, sparsity=2, steps=5, step_size=0.5, loss="squared", grad_norm=1.0,
                        epsilon=1.0, delta=1e-5, adjacency=adjacency)  # fmt: skip
    pair, group = pairs.grouped(presets.pair(plan), size), plan.guarantee.group(size)
    assert pair.size == size and pair.adjacency == plan.adjacency
    report = audit.audit(plan, pair, group, trials=2_000, mode="sequential", alpha=1e-8)
    assert not report.violated and f"{size} records changed together" in report.pair
    if size == 1:
        assert group.epsilon(1e-5) == pytest.approx(1.0, rel=1e-6)


def test_the_report_of_a_group_says_so(capsys):
    assert main(["audit", "dp_ight", "--epsilon", "0.5", "--group", "2", "--trials", "200"]) == 0
    text = capsys.readouterr().out
    assert "the plan's own account for groups of 2" in text and "2 records changed together" in text


def test_pairs_as_given(files, capsys):
    np.savez(files / "far.npz", first=np.ones((2, 1)), second=np.zeros((2, 1)))
    arguments = ["audit", "somebodys_module:right", "--pair", "far.npz", "--epsilon", "1", "--trials", "200"]
    assert main(arguments) == 2 and "neighbours='as given'" in capsys.readouterr().err
    assert main([*arguments, "--neighbours", "as given"]) == 0


def test_rows_that_are_listed_twice_are_counted_together():
    X, y = np.array([[1.0], [0.0], [0.0]]), np.zeros(3)
    first = audit.pairs.Counted(X, y, np.array([1, 5, 4]))
    second = audit.pairs.Counted(X - 2 * np.eye(3, 1), y, np.array([1, 5, 4]))
    pair = pairs.grouped(audit.Pair(first, second), 8)
    assert pair.first.n == pair.second.n == 10 and sorted(pair.first.counts.tolist()) == [2, 8]


def test_pairs_of_features_and_labels(files):
    X, y = np.eye(3), np.array([0.0, 1.0, 0.0])
    np.savez(files / "xy.npz", first_X=X, first_y=y, second_X=X, second_y=1 - y)
    pair = load_pair(files / "xy.npz", size=3)
    assert np.array_equal(pair.first[0], X) and np.array_equal(pair.second[1], 1 - y) and pair.size == 3
    assert load_function("somebodys_module:right").__name__ == "right"


def test_the_fixture_fails_with_the_report(pytester):
    pytester.makepyfile(
        """
        import numpy as np
        from dptoolkit import audit

        PAIR = np.array([[1.0], [0.0]]), np.zeros((2, 1))
        CLAIM = audit.GaussianClaim(0.5)

        def test_right(assert_private):
            assert_private(lambda data, rng: data.sum() + 2 * rng.normal(), PAIR, CLAIM, power_against=3.0)

        def test_wrong(assert_private):
            assert_private(lambda data, rng: data.sum() + 0.5 * rng.normal(), PAIR, CLAIM, power_against=3.0)
        """
    )
    # The plugin is found by its entry point, as in an environment of its users.
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Audit: violation*", "*0.5-GDP*"])
