"""The package as a whole: what importing it loads, what its files promise, what a wheel holds."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import dptoolkit

HEAVY = (
    "numba", "llvmlite", "sklearn", "dp_accounting", "matplotlib", "pandas",
    "scipy.optimize", "scipy.stats", "scipy.signal", "scipy.integrate", "scipy.interpolate",
)  # fmt: skip


def _loaded_by(statement: str, root: Path) -> set[str]:
    """The modules that a fresh interpreter has after the statement."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import dptoolkit",
        "import dptoolkit.accounting",
        "import dptoolkit.cli",
        "from dptoolkit import demo, plots",
        "import dptoolkit.audit",
        "import dptoolkit.audit.one_run",
    ],
)
def test_importing_loads_nothing_heavy(statement, root):
    loaded = _loaded_by(statement, root)
    assert "dptoolkit" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_the_accounting_loads_scipy_special_and_no_other_part_of_scipy(root):
    loaded = _loaded_by("import dptoolkit.accounting", root) - _loaded_by("import numpy, scipy.special", root)
    assert "dptoolkit.accounting.pld" in loaded
    assert [name for name in loaded if name.startswith("scipy.")] == []


@pytest.mark.parametrize("statement", ["import dptoolkit", "import dptoolkit.cli"])
def test_the_package_and_its_command_load_without_numpy(statement, root):
    assert "numpy" not in _loaded_by(statement, root)


def test_a_solver_loads_only_what_it_needs(root):
    loaded = _loaded_by("from dptoolkit import solvers\nsolvers.dp_frank_wolfe", root)
    assert "dptoolkit.solvers._frank_wolfe" in loaded
    others = ("_ight", "_peeling", "_scsg", "_sgd", "_sparsifier", "_multinomial_frank_wolfe")
    assert not {f"dptoolkit.solvers.{name}" for name in others} & loaded
    assert "dptoolkit.published" not in loaded


def test_every_solver_can_be_reached():
    from dptoolkit import solvers

    named = set(solvers._functions()) | set(solvers._FRAME)
    assert named <= set(solvers.__all__) == set(dir(solvers))
    assert all(getattr(solvers, name).__name__ == name for name in named)
    with pytest.raises(AttributeError, match="no attribute 'dp_hinge'"):
        _ = solvers.dp_hinge


def test_accounting_of_a_real_event_loads_nothing_heavy(root):
    statement = (
        "from dptoolkit.accounting import *\n"
        "account(Repeated(Subsampled(Gaussian(2.0), 'poisson', 0.1), 10)).epsilon(1e-5)"
    )
    assert [name for name in HEAVY if name in _loaded_by(statement, root)] == []


def test_one_version_everywhere(root):
    versions = re.findall(r"^## \[(\d[^]]*)\]", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] == dptoolkit.__version__
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {dptoolkit.__version__}\n" in citation


def test_every_release_tells_its_privacy_changes_first(root):
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    for release in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        sections = re.findall(r"^### (\w+)", release, re.MULTILINE)
        assert not sections or sections[0] == "Privacy"


def test_a_plain_install_needs_four_packages(root):
    settings = configparser.ConfigParser()
    settings.read(root / "setup.cfg")
    needed = [re.split(r"[<>=]", line)[0] for line in settings["options"]["install_requires"].split()]
    assert needed == ["numpy", "scipy", "numba", "dp-accounting"]


def test_types_are_published():
    assert (Path(dptoolkit.__file__).parent / "py.typed").is_file()


def test_ci_runs_the_tests(root):
    assert os.access(root / ".ci" / "run", os.X_OK)
    assert "exec make test" in (root / ".ci" / "run").read_text(encoding="utf-8")


def test_the_workflow_runs_every_python_that_is_promised(root):
    settings = (root / "setup.cfg").read_text(encoding="utf-8")
    promised = re.findall(r"Programming Language :: Python :: (3\.\d+)", settings)
    workflow = (root / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert re.findall(r'python: "([\d.]+)", numbers: newest', workflow) == promised
    assert re.findall(r'python: "([\d.]+)", numbers: oldest', workflow) == promised[:1]


def test_the_oldest_versions_are_those_that_are_promised(root):
    text = (root / "setup.cfg").read_text(encoding="utf-8")
    lines = (root / ".ci" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.removesuffix(".*").split("==") for line in lines if not line.startswith("#"))
    assert {"numpy", "scipy", "numba"} <= set(pins)
    for name, version in pins.items():
        least = set(re.findall(rf"^    {name}>=([\d.]+)", text, re.MULTILINE))
        assert least and all(one == version or one.startswith(f"{version}.") for one in least), (name, least)


def _make(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "--no-print-directory", *arguments], cwd=root, capture_output=True, text=True)


def test_make_lists_its_targets(root):
    names = [line.split()[0] for line in _make(root, "help").stdout.splitlines()]
    assert set(names) == {"help", "demo", "quick", "test", "lint", "check", "check-full", "bench", "docs", "clean"}


def _refused_python(root: Path, python: str, folder: Path) -> None:
    done = _make(root, f"PYTHON={python}", f"VENV={folder}/env", f"{folder}/env/.installed-demo")
    assert done.returncode != 0
    assert f"PYTHON={python}: must be Python 3.10 or newer with venv." in done.stderr
    assert not (folder / "env").exists()


def test_make_says_that_it_found_no_python(root, tmp_path):
    _refused_python(root, "no-such-python", tmp_path)


def test_make_says_that_python_is_too_old(root, tmp_path):
    old = tmp_path / "python3.9"
    disguise = "import sys; sys.version_info = (3, 9); exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit 0\nexec {sys.executable} -c "{disguise}" "$2"\n')
    old.chmod(0o755)
    _refused_python(root, str(old), tmp_path)


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_the_package_and_nothing_else(root, tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(root)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    both = [path for name in ("dptoolkit", "paper_checks") for path in (root / name).rglob("*")]
    here = {path for path in both if path.is_file() and path.suffix != ".pyc"}
    assert held == {path.relative_to(root).as_posix() for path in here}


@pytest.mark.slow
def test_the_paper_checks_run_from_an_installed_wheel(root, tmp_path):
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(root)]
    subprocess.run(pip, check=True)
    # The environment's own packages, and this wheel before the checkout.
    code = f"import sys; sys.path.insert(0, {str(target)!r}); from dptoolkit.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "check", "IGHT-P4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "IGHT-P4: Section 6" in done.stdout and "all as expected" in done.stdout
    assert (tmp_path / "report" / "papers" / "report.html").is_file() and not (target / "report").exists()
