"""One connection to a Dask cluster: checked when it is made, given up with one clear error when it is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import time
from collections.abc import Callable, Sequence, Set
from typing import Any

from dptoolkit._validate import invalid, missing, positive
from dptoolkit.distributed.versions import differences, environment
from dptoolkit.errors import ClusterError

# Seconds to find a scheduler at the address.
CONNECT = 10.0
# Seconds between two looks at the workers while answers are awaited.
_LOOK = 0.5
# Loggers of Dask that write at length about a connection which is lost; our error says it in one line.
_TALKATIVE = ("distributed.client", "distributed.core", "distributed.comm", "distributed.batched", "distributed.utils")


def installed() -> Any:
    """The package ``distributed``; an error that names the extra if it is missing."""
    try:
        import distributed
    except ImportError:
        raise missing("dask", "dask", "for a scheduler") from None
    return distributed


class WorkersReplaced(Exception):
    """All workers to which tasks were pinned are gone, and others are there: ``workers``."""

    def __init__(self, workers: list[str]) -> None:
        super().__init__(f"{len(workers)} other workers")
        self.workers = workers


class Cluster:
    """The workers of a scheduler, all of them with the versions and sources of this process.

    Parameters
    ----------
    scheduler : str or distributed.Client
        The address of a scheduler, or a client that is connected to it and stays open.
    patience : float
        Seconds for which answers are awaited without a single worker.
    """

    def __init__(self, scheduler: Any, patience: float = 60.0) -> None:
        self._patience, self._levels = positive("patience", patience), dict[str, int]()
        distributed = installed()
        self._own = not isinstance(scheduler, distributed.Client)
        if self._own:
            self._silence()
        self.client: Any = self._connected(distributed, scheduler) if self._own else scheduler
        self.address = str(scheduler) if self._own else "of the given client"
        try:
            self.workers = self._checked()
        except BaseException:
            self.close()
            raise

    def _connected(self, distributed: Any, scheduler: Any) -> Any:
        if not isinstance(scheduler, str) or "://" not in scheduler:
            self._restore()
            raise invalid("scheduler", scheduler, "an address such as 'tcp://127.0.0.1:8786', or a distributed.Client")
        try:
            return distributed.Client(scheduler, timeout=min(CONNECT, self._patience), set_as_default=False)
        except (OSError, ValueError, TimeoutError):
            self._restore()
            repair = "Start one with: dask scheduler --host HOST --port PORT"
            raise ClusterError(f"scheduler={scheduler!r}: nothing answers there. {repair}") from None

    def _checked(self) -> list[str]:
        """The addresses of all workers, after each has said what it runs."""
        try:
            self.client.wait_for_workers(1, timeout=min(CONNECT, self._patience))
            # By a function that every Python has, as ours cannot be found where dptoolkit is missing.
            imported = self.client.run(exec, f"import {environment.__module__}", on_error="return")
            lacking = any(isinstance(answer, BaseException) for answer in imported.values())
            found = imported if lacking else self.client.run(environment, on_error="return")
        except TimeoutError:
            repair = f"Start some with: dask worker {self.address}"
            raise ClusterError(f"scheduler={self.address!r}: it has no workers. {repair}") from None
        except Exception as problem:
            raise ClusterError(f"scheduler={self.address!r}: its workers cannot be asked: {_brief(problem)}") from None
        for worker, versions in sorted(found.items()):
            if isinstance(versions, BaseException):
                repair = "Install dptoolkit, the same version, where the worker runs."
                raise ClusterError(f"worker {worker} cannot run dptoolkit: {_brief(versions)} {repair}")
            if other := differences(environment(), versions):
                repair = "Sums would not be the same everywhere: install the same versions."
                raise ClusterError(f"worker {worker} is not like this process: {other}. {repair}")
        return sorted(found)

    def gather(self, futures: Sequence[Any], homes: Set[str] = frozenset()) -> list[Any]:
        """The results of tasks, in order; ClusterError if they cannot be had any more.

        ``homes`` are the workers to which the tasks were pinned. If all of them are gone at one time, Dask never runs
        the tasks, even if others come and may take them: then WorkersReplaced says who is there.
        """
        pending = asyncio.run_coroutine_threadsafe(self._gathered(futures), self.client.loop.asyncio_loop)
        try:
            return list(self._patiently(lambda: pending.result(timeout=_LOOK), concurrent.futures.TimeoutError, homes))
        finally:
            # After a failure or Ctrl-C nobody waits for the answers any more.
            pending.cancel()

    async def _gathered(self, futures: Sequence[Any]) -> Any:
        try:
            return await self.client.gather(list(futures), asynchronous=True)
        except asyncio.CancelledError:
            # Dask has a task wait for every future. It fails when the future is forgotten, and asyncio prints an error
            # that nobody has looked at.
            for task in asyncio.all_tasks():
                if getattr(task.get_coro(), "__qualname__", "") == "Client._gather.<locals>.wait":
                    task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def first(self, finished: queue.Queue[Any]) -> Any:
        """The next entry of a queue that tasks fill; ClusterError if none will come any more."""
        return self._patiently(lambda: finished.get(timeout=_LOOK), queue.Empty)

    def _patiently(self, look: Callable[[], Any], not_yet: type[Exception], homes: Set[str] = frozenset()) -> Any:
        """What ``look`` returns, tried again for as long as there are workers."""
        seen = time.monotonic()
        while True:
            try:
                return look()
            except not_yet:
                if there := self._present():
                    seen = time.monotonic()
                    if homes and homes.isdisjoint(there):
                        raise WorkersReplaced(sorted(there)) from None
                elif time.monotonic() - seen > self._patience:
                    raise self._lost(f"no worker for {self._patience:g} s") from None
            except (Exception, concurrent.futures.CancelledError, asyncio.CancelledError) as problem:
                raise self._lost(_brief(problem)) from None

    def _present(self) -> set[str]:
        """The workers that are there now; none if the scheduler does not answer."""
        if self.client.status != "running":
            return set()
        try:
            return set(self.client.sync(self.client.scheduler.identity, callback_timeout=_LOOK)["workers"])
        except Exception:
            return set()

    def _lost(self, what: str) -> ClusterError:
        return ClusterError(f"scheduler={self.address!r}: the connection or its workers were lost ({what}).")

    def drop(self, futures: Sequence[Any]) -> None:
        """Tasks whose results nobody needs."""
        with contextlib.suppress(Exception):
            self.client.cancel(list(futures), asynchronous=False)

    def submit(self, function: Callable[..., Any], *arguments: Any, key: str, worker: str | None = None) -> Any:
        """A task; ``worker`` is where it should run if that worker is there. Its key must hold no data."""
        pinned = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        try:
            return self.client.submit(function, *arguments, key=key, pure=False, **pinned)
        except Exception as problem:
            raise self._lost(_brief(problem)) from None

    def close(self) -> None:
        """End the connection if it is ours."""
        if self._own and getattr(self, "client", None) is not None:
            with contextlib.suppress(Exception):
                # Whatever is wrong with it, the connection is no longer used.
                self.client.close(timeout=2)
            self._restore()

    def _silence(self) -> None:
        for name in _TALKATIVE:
            logger = logging.getLogger(name)
            self._levels[name] = logger.level
            logger.setLevel(logging.CRITICAL)

    def _restore(self) -> None:
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        self._levels = {}


def _brief(problem: BaseException) -> str:
    """The problem in one line. Arguments of tasks, which Dask may quote, are left out."""
    cause = problem.__cause__ or problem
    if isinstance(cause, ImportError):
        return f"{cause}."
    return f"{type(problem).__name__}."
