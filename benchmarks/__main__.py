"""``python -m benchmarks`` runs every benchmark, each in a process of its own so that none warms up another."""

import subprocess
import sys

# utility and figure1 are left out: they measure error, not time, and take minutes.
BENCHMARKS = ("accounting", "imports", "solvers", "stochastic", "audit")

if __name__ == "__main__":
    codes = [subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode for name in BENCHMARKS]
    sys.exit(max(codes))
