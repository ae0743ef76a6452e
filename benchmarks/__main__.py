"""``python -m benchmarks`` runs every benchmark, each in a process of its own so that none warms up another."""

import subprocess
import sys

# benchmarks.utility is left out: it measures error, not time, and takes many minutes.
BENCHMARKS = ("accounting", "imports", "solvers")

if __name__ == "__main__":
    codes = [subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode for name in BENCHMARKS]
    sys.exit(max(codes))
