"""Real processes on loopback: equal bits, whoever is killed; one clear error where that cannot be."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import dptoolkit
from dptoolkit import audit, distributed, solvers
from dptoolkit.errors import ClusterError, InvalidValue
from tests.distributed.processes import Cluster, cluster, free_port, kill_group, own_workers

pytest.importorskip("distributed")
pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by /proc")

FIT: dict[str, Any] = {"loss": "logistic", "sparsity": 4, "steps": 8, "row_norm": 1.0, "epsilon": 2.0, "delta": 1e-6}
MARK = 4711.25


def parts(folder: Path, blocks: int = 5) -> list[Path]:
    """Rows in npz parts, with an entry that would be known again in a log."""
    rng = np.random.default_rng(0)
    X = sparse.random(400, 30, 0.3, "csr", random_state=0)
    X.data[:] = MARK * rng.choice([-1, 1], size=len(X.data))
    return distributed.split(X, (rng.random(400) < 0.5).astype(float), folder / "parts", blocks)


def reference(files: list[Path]) -> Any:
    return solvers.dp_ight(distributed.partition(files), None, rng=3, **FIT)


def pids(data: Any) -> dict[str, int]:
    """The process of every worker, by its address."""
    return data._cluster.client.run(os.getpid)


def before_round(data: Any, number: int, do: Any) -> None:
    """Do something right after the tasks of a round were sent, the first being 1."""
    gather, rounds = data._cluster.gather, iter(range(1, 10**6))

    def gathered(futures: Any, homes: Any) -> Any:
        if next(rounds) == number:
            do()
        return gather(futures, homes)

    data._cluster.gather = gathered


def test_a_cluster_works_loses_a_worker_and_is_lost(tmp_path):
    """Everything once, on one cluster: the same bits as here, also without one worker; then the scheduler goes."""
    files = parts(tmp_path)
    expected = reference(files)
    with cluster(tmp_path) as own:
        assert own.listening() == {"127.0.0.1"}
        with distributed.partition(files, scheduler=own.address, patience=60) as data:
            assert len(set(data._homes)) == 2
            assert np.array_equal(solvers.dp_ight(data, None, rng=3, **FIT).coef, expected.coef)
            victim = pids(data)[data._homes[0]]
            before_round(data, 4, lambda: os.kill(victim, signal.SIGKILL))
            assert np.array_equal(solvers.dp_ight(data, None, rng=3, **FIT).coef, expected.coef)
        with distributed.executor(scheduler=own.address) as place:
            plan = solvers.plan("dp_ight", n=20, d=3, **FIT | {"sparsity": 2, "steps": 2})
            pair = audit.pairs.dp_ight(plan)
            here, there = (
                audit.audit(plan, pair, trials=4000, **where) for where in ({"n_jobs": 1}, {"executor": place})
            )
            assert here.epsilon_lower == there.epsilon_lower and here.trials == there.trials
            runs = {f"run {k}": {"scale": k} for k in range(7)}
            assert distributed.sweep(drawn, runs, executor=place) == distributed.sweep(drawn, runs, workers=1)
            with pytest.raises(InvalidValue, match="number 3: must be another"):
                place.all(refuses, range(5))
        with distributed.partition(files, scheduler=own.address) as data:
            before_round(data, 5, lambda: kill_group(own.scheduler))
            with pytest.raises(ClusterError, match="the connection or its workers were lost"):
                solvers.dp_ight(data, None, rng=3, **FIT)
        logs = own.logs()
    assert str(MARK) not in logs and "part-0" not in logs


def drawn(rng: Any, scale: float) -> float:
    return float(scale * rng.standard_normal())


def refuses(number: int) -> int:
    if number == 3:
        raise InvalidValue("number 3: must be another.")
    return number


def test_nothing_at_the_address():
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(ClusterError, match=f"scheduler='{address}': nothing answers there. Start one with"):
        distributed.executor(scheduler=address, patience=1.0)


@pytest.mark.parametrize("scheduler", ["localhost:8786", 8786, ""])
def test_what_is_no_address(scheduler):
    with pytest.raises(InvalidValue, match="scheduler=.*must be an address such as"):
        distributed.executor(scheduler=scheduler)


# --- slow: every way to lose something ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("what", ["worker", "nanny and worker", "worker twice"])
def test_killed_at_a_random_round_the_bits_are_the_same(tmp_path, seed, what):
    files, chance = parts(tmp_path, 7), random.Random(seed)
    expected = reference(files)
    with cluster(tmp_path) as own, distributed.partition(files, scheduler=own.address) as data:
        if what == "nanny and worker":
            before_round(data, chance.randint(1, 9), lambda: kill_group(chance.choice(own.nannies)))
        else:
            rounds = sorted(chance.sample(range(1, 10), 2 if what == "worker twice" else 1))
            before_round(data, rounds[0], lambda: os.kill(chance.choice(list(pids(data).values())), signal.SIGKILL))
            if len(rounds) == 2:
                before_round(data, rounds[1], lambda: os.kill(chance.choice(list(pids(data).values())), signal.SIGKILL))
        assert np.array_equal(solvers.dp_ight(data, None, rng=3, **FIT).coef, expected.coef)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("what", ["worker", "nanny", "nanny and worker"])
def test_killed_at_a_random_moment_the_bits_are_the_same(tmp_path, seed, what):
    """Also within a round; a worker whose nanny alone is killed ends by itself."""
    files, chance = parts(tmp_path, 7), random.Random(seed)
    expected = reference(files)
    with cluster(tmp_path) as own, distributed.partition(files, scheduler=own.address) as data:
        victim, nanny = chance.choice(list(pids(data).values())), chance.choice(own.nannies)
        kill = {
            "worker": lambda: os.kill(victim, signal.SIGKILL), "nanny": nanny.kill,
            "nanny and worker": lambda: kill_group(nanny),
        }[what]  # fmt: skip
        timer = threading.Timer(chance.uniform(0, 0.05), kill)
        before_round(data, chance.randint(1, 8), timer.start)
        assert np.array_equal(solvers.dp_ight(data, None, rng=3, **FIT).coef, expected.coef)
        timer.join()
        assert np.array_equal(solvers.dp_ight(data, None, rng=3, **FIT).coef, expected.coef)
        if what == "nanny":
            own.wait_for(lambda: not any(group_of(pid) == nanny.pid for pid in own.left_over()))


def group_of(pid: int) -> int:
    """The group of a process, 0 if it has just ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


@pytest.mark.slow
def test_all_workers_killed_at_once_are_replaced(tmp_path):
    """Dask alone would wait for ever: it never runs a pinned task that once found no worker at all."""
    files = parts(tmp_path)
    expected = reference(files)
    with cluster(tmp_path) as own, distributed.partition(files, scheduler=own.address) as data:
        before_round(data, 4, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids(data).values()])
        assert np.array_equal(solvers.dp_ight(data, None, rng=3, **FIT).coef, expected.coef)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_scheduler_killed_at_a_random_round_is_one_error(tmp_path, seed):
    files = parts(tmp_path)
    with cluster(tmp_path, 1) as own, distributed.partition(files, scheduler=own.address, patience=10) as data:
        before_round(data, random.Random(seed).randint(1, 9), lambda: kill_group(own.scheduler))
        with pytest.raises(ClusterError, match="were lost"):
            solvers.dp_ight(data, None, rng=3, **FIT)


@pytest.mark.slow
def test_without_any_worker_a_fit_gives_up(tmp_path):
    files = parts(tmp_path)
    with cluster(tmp_path) as own, distributed.partition(files, scheduler=own.address, patience=2) as data:
        before_round(data, 3, lambda: [kill_group(nanny) for nanny in own.nannies])
        with pytest.raises(ClusterError, match="no worker for 2 s"):
            solvers.dp_ight(data, None, rng=3, **FIT)


@pytest.mark.slow
def test_a_lost_block_that_cannot_be_read_again_is_named(tmp_path):
    files = parts(tmp_path)
    with cluster(tmp_path) as own, distributed.partition(files, scheduler=own.address) as data:

        def lose() -> None:
            files[2].unlink()
            os.kill(pids(data)[data._homes[2]], signal.SIGKILL)

        before_round(data, 4, lose)
        with pytest.raises(InvalidValue, match=r"block 2 \(part-00002.npz\): path=.*Nothing was released"):
            solvers.dp_ight(data, None, rng=3, **FIT)


@pytest.mark.slow
def test_runs_go_on_without_a_worker(tmp_path):
    runs = {f"run {k}": {"scale": k} for k in range(40)}
    with cluster(tmp_path) as own, distributed.executor(scheduler=own.address) as place:
        seen = []
        for number, result in place.each(long_run, list(range(40))):
            seen.append((number, result))
            if len(seen) == 5:
                os.kill(next(iter(place._cluster.client.run(os.getpid).values())), signal.SIGKILL)
        assert sorted(seen) == [(k, long_run(k)) for k in range(40)]
        assert distributed.sweep(drawn, runs, executor=place) == distributed.sweep(drawn, runs, workers=1)


def long_run(number: int) -> float:
    rng = np.random.default_rng(number)
    return float(sum(np.linalg.norm(rng.standard_normal((60, 60)) @ rng.standard_normal((60, 60))) for _ in range(300)))


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["dp_dual_averaging", "softmax", "peeling_iht", "dp_frank_wolfe"])
def test_every_solver_has_the_bits_of_one_process(tmp_path, solver):
    from tests.data.test_blocks import BUDGET, CASES

    files = parts(tmp_path)
    name, arguments = CASES[solver]
    function = getattr(solvers, name)
    with cluster(tmp_path) as own, distributed.partition(files, scheduler=own.address) as data:
        here, there = (
            function(rows, None, rng=3, **BUDGET, **arguments) for rows in (distributed.partition(files), data)
        )
    assert np.array_equal(here.coef, there.coef)


def with_worker(own: Cluster, path: str) -> subprocess.Popen[bytes]:
    worker = own.worker(path)
    own.wait_for(lambda: own_workers(own) >= 1)
    return worker


@pytest.mark.slow
def test_workers_without_the_package(tmp_path):
    with cluster(tmp_path, 0) as own:
        with_worker(own, own.without_package())
        with pytest.raises(ClusterError, match="cannot run dptoolkit: No module named 'dptoolkit.*Install dptoolkit"):
            distributed.executor(scheduler=own.address)


@pytest.mark.slow
def test_workers_with_other_sources(tmp_path):
    with cluster(tmp_path, 0) as own:
        copy = tmp_path / "copy" / "dptoolkit"
        shutil.copytree(Path(dptoolkit.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "errors.py").write_text((copy / "errors.py").read_text() + "\n")
        with_worker(own, str(copy.parent))
        with pytest.raises(ClusterError, match="is not like this process: sources .* there, .* here"):
            distributed.partition(parts(tmp_path), scheduler=own.address)


@pytest.mark.slow
def test_a_scheduler_without_workers(tmp_path):
    with cluster(tmp_path, 0) as own, pytest.raises(ClusterError, match="it has no workers. Start some with"):
        distributed.executor(scheduler=own.address, patience=2)
