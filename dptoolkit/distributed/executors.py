"""Where many runs are made: in this process, in threads, in joblib's processes or on a Dask cluster.

A run is a pure function of its item, seeded by the item's name or number. So it does not matter where it runs, in which
order, or whether a lost worker's run is made again: the same run is the same release. Runs are sent in tasks of at
least half a second, because a task costs a cluster about 20 ms.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import queue
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import islice
from typing import Any

from dptoolkit._validate import invalid, missing, whole
from dptoolkit.distributed.cluster import Cluster
from dptoolkit.errors import ClusterError

# The least seconds of work in a task, as far as there are enough runs for all workers.
LEAST = 0.5
Task = list[tuple[int, Any]]


class Executor(ABC):
    """Makes runs: ``each`` gives their results as they are finished."""

    workers: int = 1

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """(number, function(item)) of every item, in any order; what ``function`` raises is raised here.

        Parameters
        ----------
        function : callable
            What is run. It must depend on the item alone: it may be called twice for one item, and one result is used.
        items : sequence
            The arguments, one for each run.
        """
        tasks = _Tasks(items, self.workers)
        with contextlib.closing(self._made(function, tasks)) as made:
            for seconds, results in made:
                tasks.learn(seconds, len(results))
                for number, result, problem in results:
                    if problem is not None:
                        raise problem
                    yield number, result

    def all(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """What ``each`` gives, in the order of the items.

        Parameters
        ----------
        function : callable
            As in ``each``.
        items : sequence
            As in ``each``.
        """
        results: list[Any] = [None] * len(items)
        for number, result in self.each(function, items):
            results[number] = result
        return results

    @abstractmethod
    def _made(self, function: Callable[[Any], Any], tasks: Iterable[Task]) -> Generator[Any, None, None]:
        """``outcomes`` of every task, as they are finished; tasks are asked for as late as possible."""

    def close(self) -> None:  # noqa: B027
        """End what was opened; most have opened nothing."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *problem: Any) -> None:
        self.close()


def outcomes(
    function: Callable[[Any], Any], task: Task, travels: bool = False
) -> tuple[float, list[tuple[int, Any, Exception | None]]]:
    """(seconds, [(number, result, what was raised)]) of the runs of a task.

    An exception is returned, not raised: a cluster would write it to its logs. It ``travels`` to another process.
    """
    began = time.perf_counter()
    made: list[tuple[int, Any, Exception | None]] = []
    for number, item in task:
        try:
            made.append((number, function(item), None))
        except Exception as problem:
            made.append((number, None, _sendable(problem) if travels else problem))
            break
    return time.perf_counter() - began, made


def _sendable(problem: Exception) -> Exception:
    """The exception, or one with its words if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:
        return RuntimeError(f"{type(problem).__name__}: {problem}")
    return problem


class _Tasks:
    """The items in tasks, each as large as the time of earlier runs asks for; made when the next one is needed."""

    def __init__(self, items: Sequence[Any], workers: int) -> None:
        self._items, self._workers, self._next = items, workers, 0
        self._seconds, self._count = 0.0, 0

    def learn(self, seconds: float, count: int) -> None:
        """So many runs took so long."""
        self._seconds, self._count = self._seconds + seconds, self._count + count

    def __iter__(self) -> Iterator[Task]:
        while self._next < len(self._items):
            first = self._next
            self._next = min(first + self._size(len(self._items) - first), len(self._items))
            yield list(enumerate(self._items[first : self._next], start=first))

    def _size(self, left: int) -> int:
        """One until a time is known; never so many that a worker has nothing to do."""
        if not self._count:
            return 1
        enough = math.ceil(LEAST / max(self._seconds / self._count, 1e-6))
        return max(1, min(enough, left // (2 * self._workers)))


class InThisProcess(Executor):
    """One run after the other, here."""

    def _made(self, function: Callable[[Any], Any], tasks: Iterable[Task]) -> Generator[Any, None, None]:
        return (outcomes(function, task) for task in tasks)


class InThreads(Executor):
    """Runs in threads of this process: for compiled code, which releases the interpreter's lock."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def _made(self, function: Callable[[Any], Any], tasks: Iterable[Task]) -> Generator[Any, None, None]:
        waiting = iter(tasks)
        with ThreadPoolExecutor(self.workers) as pool:

            def started(count: int) -> set[Any]:
                return {pool.submit(outcomes, function, task) for task in islice(waiting, count)}

            pending = started(self.workers)
            try:
                while pending:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
                    pending |= started(len(done))
            finally:
                for future in pending:
                    future.cancel()


class InProcesses(Executor):
    """Runs in processes of joblib, which also take lambdas."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        try:
            import joblib
        except ImportError:
            raise missing("joblib", "audit", "for more than one process") from None
        self._joblib = joblib

    def can_send(self, thing: Any) -> bool:
        """Whether processes can be given this."""
        try:
            self._joblib.externals.cloudpickle.dumps(thing)
        except (TypeError, AttributeError, pickle.PicklingError):
            return False
        return True

    def _made(self, function: Callable[[Any], Any], tasks: Iterable[Task]) -> Generator[Any, None, None]:
        parallel = self._joblib.Parallel(n_jobs=self.workers, return_as="generator_unordered", pre_dispatch="n_jobs")
        made = parallel(self._joblib.delayed(outcomes)(function, task, travels=True) for task in tasks)
        try:
            # Not by ``yield from``, which would close it first.
            for result in made:  # noqa: UP028
                yield result
        finally:
            # Runs that nobody waits for are stopped. An exception does it without joblib's warning that they are.
            with contextlib.suppress(_Stopped):
                made.throw(_Stopped())


class _Stopped(Exception):
    """Nobody waits for the results any more."""


class OnCluster(Executor):
    """Runs on the workers of a Dask scheduler; see ``Cluster``."""

    def __init__(self, scheduler: Any, patience: float = 60.0) -> None:
        self._cluster, self._token = Cluster(scheduler, patience), secrets.token_hex(8)
        threads = self._cluster.client.nthreads()
        self.workers = max(1, sum(threads.values()))

    def _made(self, function: Callable[[Any], Any], tasks: Iterable[Task]) -> Generator[Any, None, None]:
        import cloudpickle

        # Pickled once, whatever the number of tasks; a worker keeps what it has unpickled.
        payload, name = cloudpickle.dumps(function), f"dptoolkit-runs-{self._token}-{secrets.token_hex(4)}"
        waiting, finished, pending = enumerate(tasks), queue.Queue[Any](), dict[str, Any]()

        def send() -> None:
            # Two tasks a worker: the next one is there when one is finished.
            while len(pending) < 2 * self.workers and (entry := next(waiting, None)) is not None:
                number, task = entry
                future = self._cluster.submit(_outcomes, payload, cloudpickle.dumps(task), key=f"{name}-{number}")
                pending[future.key] = future
                future.add_done_callback(finished.put)

        send()
        try:
            while pending:
                future = self._cluster.first(finished)
                (made,) = self._cluster.gather([future])
                del pending[future.key]
                send()
                yield pickle.loads(made)
        finally:
            if pending:
                self._cluster.drop(list(pending.values()))

    def close(self) -> None:
        """See ``Executor``."""
        self._cluster.close()


@lru_cache(maxsize=4)
def _unpickled(payload: bytes) -> Any:
    return pickle.loads(payload)


def _outcomes(payload: bytes, task: bytes) -> bytes:
    try:
        function, runs = _unpickled(payload), pickle.loads(task)
    except Exception as problem:
        words = f"a worker cannot load the function or its arguments ({type(problem).__name__}: {problem})."
        return pickle.dumps((0.0, [(-1, None, ClusterError(f"{words} Its module must be installed there."))]))
    return pickle.dumps(outcomes(function, runs, travels=True))


def executor(
    workers: int | None = None, *, scheduler: Any = None, executor: Executor | None = None, patience: float = 60.0
) -> Executor:
    """Where runs are made; at most one of the arguments is given.

    Parameters
    ----------
    workers : int or None, default None
        Number of processes of joblib; 1 is this process, and None as many as there are processors.
    scheduler : str, distributed.Client or None, default None
        The address of a Dask scheduler, such as "tcp://127.0.0.1:8786", or a client.
    executor : Executor or None, default None
        One that was made before, and stays open.
    patience : float, default 60.0
        Seconds to wait without a single worker of the scheduler.

    Returns
    -------
    Executor
        A context manager, which closes what it opened.

    Privacy
    -------
    Runs are sent with their data: workers and the network are as trusted as this process.
    """
    given = {"workers": workers, "scheduler": scheduler, "executor": executor}
    if sum(value is not None for value in given.values()) > 1:
        names = ", ".join(name for name, value in given.items() if value is not None)
        raise invalid(names, "given together", "one of them")
    if executor is not None:
        if not isinstance(executor, Executor):
            raise invalid("executor", type(executor).__name__, "a dptoolkit.distributed.Executor")
        return _Lent(executor)
    if scheduler is not None:
        return OnCluster(scheduler, patience)
    count = (os.cpu_count() or 1) if workers is None else whole("workers", workers, low=1)
    return InThisProcess() if count == 1 else InProcesses(count)


class _Lent(Executor):
    """Somebody else's executor, which is not closed here."""

    def __init__(self, owner: Executor) -> None:
        self._owner, self.workers = owner, owner.workers

    def _made(self, function: Callable[[Any], Any], tasks: Iterable[Task]) -> Generator[Any, None, None]:
        return self._owner._made(function, tasks)


__all__ = ["ClusterError", "Executor", "InProcesses", "InThisProcess", "InThreads", "OnCluster", "executor"]
