"""A newcomer's path from a file to a model that is attacked, saved and read again: in Python and through the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, subprocess, sys
from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)
X = rng.standard_normal((4000, 8))
y = np.where(X[:, 0] - X[:, 1] > 0, 1, -1)
lines = (f"{a} " + " ".join(f"{j + 1}:{v:.3f}" for j, v in enumerate(row)) for a, row in zip(y, X))
Path("data.svm").write_text("\\n".join(lines) + "\\n")

# In Python.
from dptoolkit import audit, datasets
from dptoolkit.estimators import PrivateSparseClassifier, load

X, y = datasets.read_libsvm("data.svm", n_features=8)
model = PrivateSparseClassifier(epsilon=2.0, delta=1e-6, classes=[-1, 1]).fit(X[:3000], y[:3000])
assert model.score(X[3000:], y[3000:]) > 0.9
assert 1.99 < model.guarantee_.epsilon(1e-6) <= 2.0
assert "replace-one" in str(model.guarantee_) and "dp_pipeline" in str(model.plan_)
report = audit.audit(model.plan_, audit.pairs.dp_pipeline(model.plan_), model.guarantee_, trials=200, rng=0)
assert not report.violated and report.epsilon_lower <= 2.0
model.save("model.json")
assert (load("model.json").predict(X) == model.predict(X)).all()

# Through the shell.
def shell(line):
    done = subprocess.run([sys.executable, "-m", "dptoolkit", *line.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout

shell("plan dp_pipeline --n 3000 --d 8 --epsilon 2 --delta 1e-6")
shell("fit data.svm --task classification --epsilon 2 --delta 1e-6 --row-norm 1 --classes -1 1 --n-features 8 "
      "--out shell.json")
assert json.loads(shell("evaluate shell.json data.svm --json"))["accuracy"] > 0.9
assert len(shell("predict shell.json data.svm").split()) == 4000
# Either way reads the other's file.
assert json.loads(shell("evaluate model.json data.svm --json"))["accuracy"] > 0.9
print("arrived")
"""


def walk(python: str | Path, folder: Path, **environment: str) -> None:
    done = subprocess.run(
        [python, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert done.stdout.strip() == "arrived", done.stderr


def test_a_newcomer_arrives(tmp_path, root):
    walk(sys.executable, tmp_path, PYTHONPATH=str(root))


@pytest.mark.slow
def test_a_newcomer_arrives_from_a_clean_environment(tmp_path, root):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{root}[sklearn]"], check=True)
    walk(python, tmp_path, PYTHONPATH="")


HOPELESS = """
import warnings
import numpy as np
from dptoolkit import solvers
from dptoolkit.estimators import PrivateSparseClassifier
warnings.simplefilter("error", solvers.HopelessPlanWarning)
try:
    PrivateSparseClassifier(epsilon=0.01, delta=1e-6).fit(np.eye(50), np.arange(50) % 2)
except solvers.HopelessPlanWarning as problem:
    print("too large for 50 rows" in str(problem))
"""


def test_a_hopeless_fit_says_so_before_it_spends(root):
    done = subprocess.run([sys.executable, "-c", HOPELESS], capture_output=True, text=True, check=False, cwd=root)
    assert done.stdout.strip() == "True", done.stderr
