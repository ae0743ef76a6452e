"""Clusters: what a round of a fit on blocks costs on 1, 2 and 4 local workers, beside the model; audits on 1 and 2.

    python -m benchmarks.clusters                  # processor seconds, which a loaded machine does not change much
    python -m benchmarks.clusters --only audits
    python -m benchmarks.clusters --only projection    # the model alone: 10^9 rows of 10^8 features

docs/clusters.md explains the model and quotes a run.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dptoolkit import audit, distributed, solvers
from dptoolkit.data.blocks import CheckedBlocks
from dptoolkit.solvers.engine.blocked import GradientTerm

ROUNDS, SUPPORT = 10, 1000
# (name, rows, features, entries of a row)
SHAPES = (("rcv1 size", 20_242, 47_236, 74), ("large", 400_000, 400_000, 20))


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of a round; each constant was measured, on another machine state than the table below.

    ``entry`` is a stored entry, both passes; ``byte`` what the client and the scheduler take in; ``task`` and ``fixed``
    what they do for a task and for a round; ``wire`` a byte on a link; ``draw`` noise and threshold of a coordinate.
    """

    entry: float = 12.8e-9
    byte: float = 1 / 4e8
    task: float = 10e-3
    fixed: float = 15e-3
    wire: float = 8 / 1e10
    draw: float = 93e-9

    def work(self, entries: float, workers: int) -> float:
        """Seconds of each worker."""
        return self.entry * entries / workers

    def client(self, d: float, workers: int) -> float:
        """Processor seconds of the client and the scheduler, without noise."""
        return self.fixed + workers * (self.task + 8 * d * self.byte)

    def round(self, entries: float, d: float, workers: int) -> float:
        """Seconds of a round, all gradients gathered by one client over the network."""
        return self.work(entries, workers) + self.client(d, workers) + 8 * d * workers * self.wire + d * self.draw

    def tree(self, entries: float, d: float, workers: int) -> float:
        """Seconds of a round if workers add up gradients in a tree, and the client gets one."""
        level = 8 * d * (self.wire + self.byte)
        return self.work(entries, workers) + (math.ceil(math.log2(workers)) + 1) * level + self.fixed + d * self.draw

    def owners(self, entries: float, d: float, workers: int, owners: int, message: float = 0.0) -> float:
        """Seconds of a round with coordinate owners, each of which takes in its range of every worker's gradient.

        ``message`` is what one process does for each of the workers * owners messages: Dask's scheduler, about 7 ms.
        """
        share = d / owners
        into = 8 * share * workers * (self.wire + self.byte)
        return self.work(entries, workers) + into + share * self.draw + self.fixed + workers * owners * message

    def most_workers(self, entries: float, d: float) -> float:
        """Beyond so many workers one client's share of a round is larger than the work."""
        return math.sqrt(self.entry * entries / (8 * d * (self.wire + self.byte)))


def projection(costs: Costs, n: float = 1e9, d: float = 1e8, row: float = 100) -> None:
    """A round on data that no machine holds."""
    entries = n * row
    print(f"\n{n:.0e} rows x {d:.0e} features, {row:g} entries a row: {12 * entries / 1e12:.1f} TB; seconds a round")
    print("workers    work  one client    tree | owners: 8 on Dask  8 by MPI  one a worker, Dask  the same, MPI")
    for workers in (16, 64, 256):
        first = costs.work(entries, workers), costs.round(entries, d, workers), costs.tree(entries, d, workers)
        own = [costs.owners(entries, d, workers, k, message) for k in (8, workers) for message in (7e-3, 0.0)]
        print(f"{workers:7d} {first[0]:7.1f} {first[1]:11.1f} {first[2]:7.1f} |"
              f" {own[0]:17.1f} {own[1]:9.1f} {own[2]:19.1f} {own[3]:14.1f}")  # fmt: skip
    print(f"one client takes longer than the work from {costs.most_workers(entries, d):.0f} workers on")


@contextmanager
def local_cluster(workers: int) -> Iterator[Any]:
    """A client of so many worker processes on loopback; the scheduler runs in this process."""
    import distributed as dask

    options = {"host": "127.0.0.1", "dashboard_address": None, "worker_dashboard_address": None}
    with (
        dask.LocalCluster(n_workers=workers, threads_per_worker=1, memory_limit=0, **options) as cluster,
        dask.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(workers)
        yield client


def processor_seconds(client: Any) -> float:
    """Of all workers, since they started."""
    return float(sum(client.run(time.process_time).values()))


def rows_and_labels(n: int, d: int, row: int) -> tuple[Any, Any]:
    """Random sparse rows of unit norm."""
    rng = np.random.default_rng(0)
    entries, starts = rng.integers(0, d, size=n * row, dtype=np.int32), np.arange(0, n * row + 1, row)
    X = sparse.csr_matrix((np.full(n * row, row**-0.5), entries, starts), shape=(n, d))
    X.sum_duplicates()
    return X, (rng.random(n) < 0.5).astype(float)


def rounds(blocks: CheckedBlocks, term: GradientTerm, d: int) -> tuple[float, float, Any]:
    """(processor seconds here, seconds, the last total) of a round; two rounds before are not counted."""
    rng = np.random.default_rng(1)
    points = [(np.sort(rng.choice(d, SUPPORT, False)), rng.standard_normal(SUPPORT)) for _ in range(ROUNDS)]
    for point in points[:2]:
        blocks.total(term, *point)
    used, began = time.process_time(), time.perf_counter()
    total = [blocks.total(term, *point) for point in points][-1]
    return (time.process_time() - used) / ROUNDS, (time.perf_counter() - began) / ROUNDS, total


def fits(costs: Costs) -> None:
    """Rounds on one process and on clusters, one block a worker, beside the model."""
    print("milliseconds a round (processor time, and what a clock showed)")
    print("shape      workers | workers: seen, model | client: seen, model | clock")
    for name, n, d, row in SHAPES:
        X, y = rows_and_labels(n, d, row)
        entries = X.nnz
        settings: dict[str, Any] = {"loss": "logistic", "sparsity": SUPPORT, "steps": 2, "row_norm": 1.0}
        plan = solvers.plan("dp_ight", n=n, d=d, epsilon=1.0, delta=1e-7, **settings)
        term = GradientTerm(plan.settings, n)
        with tempfile.TemporaryDirectory() as folder:
            here = _asked(distributed.split(X, y, Path(folder, "one"), 1), plan, term, d)
            print(
                f"{name:10s}    here |        {1e3 * here[0]:7.1f}        |                     | {1e3 * here[1]:6.0f}"
            )
            for workers in (1, 2, 4):
                parts = distributed.split(X, y, Path(folder, str(workers)), workers)
                with local_cluster(workers) as client:
                    own, clock, total, used = _asked(parts, plan, term, d, client)
                alone = _asked(parts, plan, term, d)[2]
                assert np.array_equal(alone, total), "other bits than one process that sums the same blocks"
                seen = used, costs.work(entries, 1), own, costs.client(d, workers), clock
                words = "{:7.1f} {:7.1f}      | {:6.1f} {:6.1f}       | {:6.0f}".format(*(1e3 * part for part in seen))
                print(f"{name:10s} {workers:7d} | {words}")


def _asked(parts: Any, plan: Any, term: GradientTerm, d: int, client: Any = None) -> Any:
    """What ``rounds`` gives, and with a client also the processor seconds of all workers in a round."""
    with distributed.partition(parts, scheduler=client) as data:
        blocks = data.checked(plan.settings, None, None, None)
        if client is None:
            return rounds(blocks, term, d)
        rounds(blocks, term, d)
        before = processor_seconds(client)
        own = rounds(blocks, term, d)
        return *own, (processor_seconds(client) - before) / (ROUNDS + 2)


def noisy_sum(data: Any, rng: np.random.Generator) -> float:
    """A mechanism in plain Python, which holds the interpreter's lock."""
    return float(sum(float(x) for x in data) + rng.normal())


def audits(trials: int) -> None:
    """The same audit here, in two processes and on one and two workers."""
    pair = np.ones(2000), np.append(np.zeros(1), np.ones(1999))
    claim = audit.GaussianClaim(1.0)
    print(f"\nan audit of {trials:,} trials of a Python function: seconds by the clock (best of 2), processor seconds")

    def measured(name: str, **where: Any) -> None:
        clock, used, lower = [], [], set()
        for _ in range(2):
            before, began = _all_processor_seconds(where.get("executor")), time.perf_counter()
            lower.add(audit.audit(noisy_sum, pair, claim, trials=trials, **where).epsilon_lower)
            clock.append(time.perf_counter() - began)
            used.append(_all_processor_seconds(where.get("executor")) - before)
        print(f"{name:18s} {min(clock):6.1f} {min(used):6.1f}   epsilon_lower {lower.pop():.6f}")

    measured("this process", n_jobs=1)
    with distributed.executor(2) as place:
        place.all(abs, range(4))
        measured("2 of joblib", executor=place)
    for workers in (1, 2):
        with local_cluster(workers) as client, distributed.executor(scheduler=client) as place:
            measured(f"{workers} of Dask", executor=place)


def _all_processor_seconds(place: Any) -> float:
    """Of this process and of all that it has started."""
    import psutil

    def used(process: Any) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    own = psutil.Process(os.getpid())
    return used(own) + sum(used(child) for child in own.children(recursive=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clusters", description=__doc__)
    parser.add_argument("--only", choices=("fits", "audits", "projection"))
    parser.add_argument("--trials", type=int, default=100_000)
    options = parser.parse_args()
    costs = Costs()
    if options.only in (None, "fits"):
        fits(costs)
    if options.only in (None, "audits"):
        audits(options.trials)
    if options.only in (None, "projection"):
        projection(costs)


if __name__ == "__main__":
    main()
