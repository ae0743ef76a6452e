"""The tools of the tests: the shared compile cache, the choice of quick tests, what is left out, warnings."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace

import pytest
from numba.core.caching import IndexDataCacheFile

from tests import compiled, conftest, quick

fcntl = pytest.importorskip("fcntl", reason="where there are no locks of files, workers share no folder")
# What Numba had before the tests put the shared one in its place.
PLAIN = next(kind for kind in IndexDataCacheFile.__mro__ if kind.__module__ == "numba.core.caching")


def opened(kind, folder):
    """Numba's files of one function in a folder."""
    return kind(cache_path=str(folder), filename_base="kernel", source_stamp=1)


# --- compiled kernels -------------------------------------------------------------------------------------


def test_without_a_lock_one_signature_gets_the_code_of_another(tmp_path):
    """Why workers may not share Numba's folder as it is: both read the index before either has written it."""

    class Late(PLAIN):
        def _load_index(self):
            return {}

    class Early(PLAIN):
        def _save_data(self, name, data):
            opened(Late, tmp_path).save("late", "code of late")
            super()._save_data(name, data)

    opened(Early, tmp_path).save("early", "code of early")
    assert opened(PLAIN, tmp_path).load("late") == "code of early"


def test_nobody_else_is_let_in_between_the_index_and_the_code(tmp_path):
    own, shared = tmp_path / "own", tmp_path / "shared"
    shared.mkdir()
    refused = []

    class Watched(PLAIN):
        def _save_data(self, name, data):
            with open(shared / compiled.LOCK) as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            refused.append(name)
            super()._save_data(name, data)

    kind = compiled.share(Watched, own, shared)
    opened(kind, own / "kernels").save("one", "code of one")
    opened(kind, own / "kernels").save("two", "code of two")
    assert refused == ["kernel.1.nbc", "kernel.2.nbc"]
    assert [opened(kind, own / "kernels").load(key) for key in ("one", "two")] == ["code of one", "code of two"]
    assert not own.exists() and (shared / "kernels" / "kernel.nbi").is_file()


def test_children_find_what_is_shared_and_change_nothing_of_it(tmp_path):
    own, shared = tmp_path / "own", tmp_path / "shared"
    (shared / "kernels").mkdir(parents=True)
    opened(compiled.share(PLAIN, own, shared), own / "kernels").save("one", "code of one")
    compiled.copy_for_children(shared, own)
    child = opened(PLAIN, own / "kernels")
    assert child.load("one") == "code of one"
    child.save("one", "another")
    child.save("two", "code of two")
    assert opened(PLAIN, shared / "kernels").load("one") == "code of one"
    assert opened(PLAIN, shared / "kernels").load("two") is None


def test_an_edit_of_a_kernel_has_a_folder_of_its_own(tmp_path):
    (tmp_path / "dptoolkit" / "kernels").mkdir(parents=True)
    kernel = tmp_path / "dptoolkit" / "kernels" / "one.py"
    kernel.write_text("x = 1\n")
    before = compiled.digest(tmp_path)
    kernel.write_text("x = 2\n")
    assert compiled.digest(tmp_path) != before


# --- make quick -------------------------------------------------------------------------------------------


def test_every_test_has_a_case_before_any_has_two():
    names = ["a[1]", "a[2]", "b", "c[1]", "c[2]"]
    costs = {"c": 1.0}
    assert quick.chosen(names, costs, 100.0) == ["a[1]", "b", "c[1]", "a[2]", "c[2]"]
    assert quick.chosen(names, costs, 1.1) == ["a[1]", "b", "c[1]", "a[2]"]
    assert quick.chosen(names, costs, 0.5) == ["a[1]", "b"]


def test_an_unknown_name_is_one_line_with_the_choices(capsys):
    assert quick.run("dp_igth", []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("T=dp_igth: must be a solver, a folder or file of tests/, or a path; did you mean dp_ight")
    assert all(name in line for name in ("dp_frank_wolfe", "accounting", "estimators", "cli", "losses"))


def test_a_solver_finds_its_files():
    for name, module in quick.solver_modules().items():
        found = {path.relative_to(quick.HERE).as_posix() for path in quick.files_of_solver(name, module)}
        assert "solvers/test_bad_input.py" in found and "test_tools.py" not in found
    assert "solvers/test_noise_spy.py" in {
        path.relative_to(quick.HERE).as_posix() for path in quick.files_of_solver("dp_ight", "ight")
    }


def test_costs_are_those_of_tests_that_exist():
    for test in json.loads(quick.COSTS.read_text(encoding="utf-8")):
        path, _, name = test.partition("::")
        text = quick.HERE.parent / path
        # A test that was renamed costs nothing by its new name; a file that is gone says that the list is old.
        assert text.is_file(), f"{test}: gone. Renew the list: CONTRIBUTING.md, Time of the tests"
        assert name.startswith("test_")


# --- what is left out, and warnings -----------------------------------------------------------------------


def item(name, **marks):
    """As much of a test as the choice looks at."""
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda mark: marks.get(mark))


def test_every_other_case_and_slow_tests_are_left_out():
    third = SimpleNamespace(args=(3,))
    items = [item(f"t[{i}]", every=third) for i in range(5)]
    items += [item("s", slow=True), item("u"), item("v[0]", every=third)]
    assert [one.nodeid for one in conftest._left_out(items)] == ["t[1]", "t[2]", "t[4]", "s"]


def test_a_warning_that_is_not_expected_fails_and_says_what_to_do():
    with pytest.raises(UserWarning):
        warnings.warn("nobody expects this", UserWarning, stacklevel=1)
    assert "filterwarnings('ignore::builtins.UserWarning')" in conftest._repair(UserWarning)
