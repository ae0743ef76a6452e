"""How things are measured: the best of several runs for time, a fresh process for memory and imports."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def best_time(work: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """The result, and the seconds of the fastest of ``repeats`` runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return result, min(times)


def in_fresh_process(code: str) -> list[str]:
    """The words that ``code`` prints in a new interpreter."""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return process.stdout.split()


def seconds(value: float) -> str:
    """Readable from microseconds to minutes."""
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:.2f} s"
