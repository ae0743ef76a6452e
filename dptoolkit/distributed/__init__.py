"""More than one process or machine: fits on rows that workers hold, and many runs at once.

``partition`` makes rows in blocks that solvers take in place of X; ``sweep`` makes many runs, seeded by their names;
``executor`` is where audits, sweeps and checks of papers run: in this process, in joblib's, or on a Dask cluster.
Nothing here is needed on one machine. A cluster needs the extra ``dptoolkit[dask]``.
"""

from __future__ import annotations

from dptoolkit.distributed.executors import Executor, executor
from dptoolkit.distributed.partitions import partition
from dptoolkit.distributed.parts import split
from dptoolkit.distributed.sweeps import sweep

__all__ = ["Executor", "executor", "partition", "split", "sweep"]
