"""Many runs: every place gives the same results, none is lost or made for nothing, and a stopped sweep goes on."""

from __future__ import annotations

import json
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptoolkit import distributed
from dptoolkit.distributed import executors
from dptoolkit.distributed.executors import InProcesses, InThisProcess, InThreads, _Tasks
from dptoolkit.distributed.sweeps import named_generator
from dptoolkit.errors import InvalidValue


def square(number: int) -> int:
    return number * number


def fails_at_three(number: int) -> int:
    if number == 3:
        raise InvalidValue("three: must be another number.")
    return number


@pytest.mark.parametrize(
    "place", [InThisProcess(), InThreads(2), InThreads(3)], ids=["here", "threads", "more threads"]
)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_every_item_has_its_result(place, count):
    assert place.all(square, range(count)) == [k * k for k in range(count)]


def test_processes_take_lambdas_and_give_the_same():
    pytest.importorskip("joblib")
    offset = 5
    with distributed.executor(2) as place:
        assert isinstance(place, InProcesses)
        assert place.all(lambda k: k + offset, range(9)) == [k + offset for k in range(9)]
        with pytest.raises(InvalidValue, match="three"):
            place.all(fails_at_three, range(6))
        assert place.all(square, range(3)) == [0, 1, 4]


@pytest.mark.parametrize("place", [InThisProcess(), InThreads(2)])
def test_what_a_run_raises_is_raised(place):
    with pytest.raises(InvalidValue, match="three: must be another number"):
        place.all(fails_at_three, range(6))


def test_an_exception_that_cannot_travel_keeps_its_words():
    class Local(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def raises(item):
        raise Local("this", "that")

    ((_, _, problem),) = executors.outcomes(raises, [(0, None)], travels=True)[1]
    assert type(problem) is RuntimeError and str(problem) == "Local: this and that"


@given(count=st.integers(0, 200), workers=st.integers(1, 5), seconds=st.floats(1e-4, 2.0))
def test_tasks_hold_every_item_once_and_last_half_a_second(count, workers, seconds):
    tasks, sizes, numbers = _Tasks(range(count), workers), [], []
    for task in tasks:
        numbers += [number for number, _ in task]
        sizes.append((len(task), count - task[0][0]))
        tasks.learn(seconds * len(task), len(task))
    assert numbers == list(range(count))
    for size, left in sizes[1:]:
        # Shorter only where more would leave a worker without work.
        assert size * seconds >= executors.LEAST or size >= left // (2 * workers) or size == left
        assert (size - 1) * seconds < executors.LEAST


@pytest.mark.parametrize(
    "arguments", [{"workers": 2, "scheduler": "tcp://127.0.0.1:1"}, {"workers": 1, "executor": InThisProcess()}]
)
def test_only_one_place_is_given(arguments):
    with pytest.raises(InvalidValue, match="given together"):
        distributed.executor(**arguments)


@pytest.mark.parametrize(("arguments", "words"), [({"workers": 0}, "workers=0"), ({"executor": 3}, "executor='int'")])
def test_what_is_no_place(arguments, words):
    with pytest.raises(InvalidValue, match=words):
        distributed.executor(**arguments)


def test_a_lent_executor_stays_open():
    class Watched(InThisProcess):
        closed = False

        def close(self):
            self.closed = True

    own = Watched()
    distributed.sweep(drawn, {"a": {"scale": 1.0}}, executor=own)
    assert not own.closed


def drawn(rng, scale):
    return scale * rng.standard_normal()


def test_runs_are_seeded_by_their_name_alone():
    runs = {f"scale {k}": {"scale": float(k)} for k in range(5)}
    first = distributed.sweep(drawn, runs, workers=1)
    backwards = distributed.sweep(drawn, dict(reversed(runs.items())), executor=InThreads(3))
    assert first == backwards and list(backwards) == list(reversed(first))
    assert first["scale 2"] == 2 * named_generator(0, "scale 2").standard_normal()
    assert len(set(distributed.sweep(drawn, {name: {"scale": 1.0} for name in runs}, workers=1).values())) == 5
    assert distributed.sweep(drawn, runs, seed=1, workers=1) != first


def test_a_stopped_sweep_goes_on_where_it_was(tmp_path):
    runs, made, lock = {f"r{k}": {"scale": float(k)} for k in range(6)}, [], threading.Lock()

    def counted(rng, scale, stop_at=None):
        with lock:
            made.append(scale)
        if scale == 4 and len(made) < 7:
            raise KeyboardInterrupt
        return [scale, rng.standard_normal()]

    with pytest.raises(KeyboardInterrupt):
        distributed.sweep(counted, runs, folder=tmp_path / "out", workers=1)
    assert made == [0, 1, 2, 3, 4] and len(list((tmp_path / "out").glob("run-*.json"))) == 4
    made += [None] * 3
    results = distributed.sweep(counted, runs, folder=tmp_path / "out", workers=1)
    assert made[8:] == [4, 5] and [value[0] for value in results.values()] == list(range(6))
    assert results == distributed.sweep(counted, runs, workers=1)
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("change", ["seed", "arguments", "function", "half a file"])
def test_saved_results_of_other_runs_are_not_taken(tmp_path, change):
    made = []

    def first(rng, scale):
        made.append("first")
        return scale

    def second(rng, scale):
        made.append("second")
        return -scale

    def run(function=first, scale=1.0, seed=0):
        return distributed.sweep(function, {"a": {"scale": scale}}, seed=seed, folder=tmp_path, workers=1)["a"]

    run()
    (path,) = tmp_path.glob("run-*.json")
    if change == "half a file":
        path.write_text(path.read_text()[:20])
    changes = {"seed": {"seed": 1}, "arguments": {"scale": 2.0}, "function": {"function": second}}
    run(**changes.get(change, {}))
    assert len(made) == 2
    run(**changes.get(change, {}))
    assert len(made) == 2 and json.loads(path.read_text())["name"] == "a"


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(lambda rng: {1, 2}, {}), (lambda rng, x: 1, {"x": np.zeros(3)}), (partial(lambda x, rng: 1, np.zeros(3)), {})],
    ids=["result", "argument", "bound argument"],
)
def test_what_cannot_be_saved_is_refused(tmp_path, function, arguments):
    with pytest.raises(InvalidValue, match="JSON where a folder is given"):
        distributed.sweep(function, {"a": arguments}, folder=tmp_path, workers=1)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidValue, match="folder="):
        distributed.sweep(drawn, {"a": {"scale": 1.0}}, folder=tmp_path / "file", workers=1)
