"""Loading by name: what is found, and what is said when it is not."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dptoolkit import datasets
from dptoolkit.datasets import readers
from dptoolkit.datasets.catalogue import FILES
from dptoolkit.errors import InvalidValue, MissingDependency

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"
real_files = pytest.mark.skipif(not FOLDER.is_dir(), reason="the folder ../shared/data with the real sets is not there")


def _write(home: Path, name: str, text: str) -> None:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match=r"name='iris': must be one of .*a9a.*rcv1_sub"):
        datasets.load("iris")


def test_missing_folder_says_how_to_give_it(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("DPTOOLKIT_DATA", raising=False)
    with pytest.raises(InvalidValue, match=r"data_home=None.*DPTOOLKIT_DATA"):
        datasets.load("splice")
    with pytest.raises(InvalidValue, match=r"a folder that exists.*DPTOOLKIT_DATA"):
        datasets.load("a9a", data_home=tmp_path / "nowhere")
    with pytest.raises(InvalidValue, match=r"a folder with a9a/a9a, plain or \.gz"):
        datasets.load("a9a", data_home=tmp_path)


def test_a_test_split_has_the_columns_of_the_training_split(monkeypatch, tmp_path) -> None:
    _write(tmp_path, "a9a/a9a.gz", "-1 123:1\n+1 2:1\n")
    _write(tmp_path, "a9a/a9a.t.gz", "+1 3:1\n-1 1:1\n+1 1:1\n")
    monkeypatch.setenv("DPTOOLKIT_DATA", str(tmp_path))
    train, test = datasets.load("a9a"), datasets.load("a9a", split="test")
    assert train.X.shape == (2, 123) and test.X.shape == (3, 123)
    assert np.array_equal(test.y, [1, 0, 1]) and test.task == "binary" and test.name == "a9a"


def test_labels_are_encoded_from_zero(tmp_path) -> None:
    _write(tmp_path, "mushrooms/mushrooms.gz", "1 1:1\n2 2:1\n2 3:1\n")
    assert np.array_equal(datasets.load("mushrooms", data_home=tmp_path).y, [0, 1, 1])


def test_labels_are_those_of_the_convention_whatever_the_file_holds(tmp_path) -> None:
    # A file in which every record is positive, and one more or less record does not change what the others are.
    _write(tmp_path, "mushrooms/mushrooms.gz", "2 2:1\n2 3:1\n")
    assert np.array_equal(datasets.load("mushrooms", data_home=tmp_path).y, [1, 1])
    _write(tmp_path, "mushrooms/mushrooms.gz", "2 2:1\n\n4242 3:1\n")
    with pytest.raises(InvalidValue, match=r"mushrooms.gz', label of row 2: must be one of 1, 2\.$") as caught:
        datasets.load("mushrooms", data_home=tmp_path)
    assert "4242" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_entry_has_labels_in_order(name) -> None:
    labels = FILES[name].labels
    assert (labels is None) == (FILES[name].task == "regression")
    if labels is not None:
        assert list(labels) == sorted(set(labels)) and len(labels) >= 2
        assert FILES[name].positive is None or FILES[name].positive in labels


def test_images_and_labels_that_do_not_fit_are_refused(tmp_path) -> None:
    for images, labels in [((2, 28, 28), 3), ((2, 27, 28), 2)]:
        for file, shape in [("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", (labels,))]:
            head = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
            (tmp_path / "mnist").mkdir(exist_ok=True)
            (tmp_path / "mnist" / file).write_bytes(head + bytes(int(np.prod(shape))))
        with pytest.raises(InvalidValue, match="784 bytes an image"):
            datasets.load("mnist", data_home=tmp_path)


def test_checksum(tmp_path) -> None:
    _write(tmp_path, "w8a/w8a.gz", "1 1:1\n-1 2:1\n")
    datasets.load("w8a", data_home=tmp_path)
    with pytest.raises(InvalidValue, match=r"sha256=.*verify=False"):
        datasets.load("w8a", data_home=tmp_path, verify=True)


def test_a_part_that_does_not_exist_is_refused(tmp_path) -> None:
    with pytest.raises(InvalidValue, match="split='test': must be 'train' for w8a"):
        datasets.load("w8a", split="test", data_home=tmp_path)
    with pytest.raises(InvalidValue, match="split='valid'"):
        datasets.load("w8a", split="valid", data_home=tmp_path)


def test_every_name_has_a_description() -> None:
    assert all(": " in datasets.describe(name) for name in datasets.names())


@pytest.mark.parametrize("name, shape, task", [
    ("breast_cancer", (569, 30), "binary"), ("digits", (1797, 64), "multiclass"), ("diabetes", (442, 10), "regression")
])  # fmt: skip
def test_bundled_sets(name, shape, task) -> None:
    pytest.importorskip("sklearn")
    data = datasets.load(name)
    assert data.shape == shape and data.task == task and len(data.y) == shape[0]


_CONNECTION = "0,tcp,http,SF,181,5450" + ",0" * 35


def test_connections_have_public_numbers_for_names(tmp_path) -> None:
    lines = [f"{_CONNECTION},normal.", _CONNECTION.replace("tcp,http,SF", "udp,whois,SH") + ",warezmaster."]
    _write(tmp_path, "kddcup99/kddcup.data_10_percent.gz", "\n".join(lines) + "\n")
    data = datasets.load("kddcup99", data_home=tmp_path)
    assert np.array_equal(data.X[:, :6], [[0, 1, 24, 9, 181, 5450], [0, 2, 69, 10, 181, 5450]])
    assert data.X.shape == (2, 41) and np.array_equal(data.y, [11, 22])
    assert np.array_equal(datasets.load("kddcup99.binary", data_home=tmp_path).y, [1, 0])


@pytest.mark.parametrize(
    "line",
    [_CONNECTION, f"{_CONNECTION},new.", f"{_CONNECTION},normal.".replace("tcp", "tcpx"), f"{_CONNECTION},0,normal.",
     f"{_CONNECTION[:-1]}x,normal.", ""],
)  # fmt: skip
def test_a_connection_of_another_form_is_named_by_its_line(tmp_path, line) -> None:
    _write(tmp_path, "kddcup99/kddcup.data_10_percent.gz", f"{_CONNECTION},normal.\n{line}\n{_CONNECTION},normal.\n")
    with pytest.raises(InvalidValue, match=r"line 2: must be") as caught:
        datasets.load("kddcup99", data_home=tmp_path)
    assert "5450" not in str(caught.value)


def _x_rays(home: Path, **arrays) -> None:
    (home / "pneumoniamnist").mkdir(exist_ok=True)
    np.savez(home / "pneumoniamnist" / "pneumoniamnist.npz", **arrays)


def test_x_rays_of_two_parts_are_one_training_set(tmp_path) -> None:
    images, labels = (
        np.arange(6 * 784, dtype=np.uint8).reshape(6, 28, 28),
        np.array([[1], [0], [1], [1], [0], [0]], np.uint8),
    )
    _x_rays(tmp_path, **{
        f"{part}_{kind}": array[i : i + 2]
        for i, part in ((0, "train"), (2, "val"), (4, "test"))
        for kind, array in (("images", images), ("labels", labels))
    })  # fmt: skip
    train, test = (datasets.load("pneumoniamnist", split, tmp_path) for split in ("train", "test"))
    assert np.array_equal(train.X, images[:4].reshape(4, -1) / 255) and np.array_equal(train.y, [1, 0, 1, 1])
    assert np.array_equal(test.X, images[4:].reshape(2, -1) / 255) and np.array_equal(test.y, [0, 0])


@pytest.mark.parametrize("fault", ["missing", "objects", "shape", "floats", "text", "cut", "large"])
def test_x_rays_of_another_form(tmp_path, monkeypatch, fault) -> None:
    arrays = {f"{part}_{kind}": np.zeros((2, 28, 28) if kind == "images" else (2, 1), np.uint8)
              for part in ("train", "val") for kind in ("images", "labels")}  # fmt: skip
    if fault == "missing":
        del arrays["val_labels"]
    if fault == "objects":
        arrays["val_images"] = np.array([{}, {}], dtype=object)
    if fault == "shape":
        arrays["val_images"] = np.zeros((2, 28, 27), np.uint8)
    if fault == "floats":
        arrays = {name: array.astype(float) for name, array in arrays.items()}
    _x_rays(tmp_path, **arrays)
    path = tmp_path / "pneumoniamnist" / "pneumoniamnist.npz"
    if fault == "text":
        path.write_bytes(b"not an archive")
    if fault == "cut":
        path.write_bytes(path.read_bytes()[:-200])
    if fault == "large":
        monkeypatch.setattr(readers.read_npz, "__defaults__", (4000,))
    with pytest.raises(InvalidValue, match=r"path=.*pneumoniamnist\.npz"):
        datasets.load("pneumoniamnist", data_home=tmp_path)


def test_bundled_sets_need_scikit_learn(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingDependency, match=r"dptoolkit\[sklearn\]"):
        datasets.load("digits")


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, dptoolkit.datasets; print([m for m in ('sklearn', 'numba', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# name, split, rows, columns, non-zeros: facts about the files, counted once with another reader.
SMALL_FILES = [
    ("a9a", "train", 32561, 123, 451592), ("a9a", "test", 16281, 123, 225731),
    ("mushrooms", "train", 8124, 112, 170604), ("phishing", "train", 11055, 68, 331650),
    ("splice", "train", 1000, 60, 60000), ("splice", "test", 2175, 60, 130500),
    ("acq", "train", 2000, 9947, 94790), ("acq", "test", 600, 9947, 23730),
    ("bodyfat", "train", 252, 14, 3528), ("colon-cancer", "train", 62, 2000, 124000),
    ("rcv1_sample", "train", 100, 47236, 9648), ("pneumoniamnist", "train", 5232, 784, 4096709),
    ("pneumoniamnist", "test", 624, 784, 488564),
]  # fmt: skip
LARGE_FILES = [
    ("rcv1_sub", "train", 20242, 47236, 1516508), ("rcv1_sub", "test", 3514, 47236, 267742),
    ("w8a", "train", 49749, 300, 579586), ("duke", "train", 44, 7129, 313676),
    ("leukemia", "train", 38, 7129, 270902), ("leukemia", "test", 34, 7129, 242386),
    ("gisette", "test", 1000, 5000, 4971000), ("dorothea", "train", 800, 88119, 727760),
    ("farm-ads", "train", 4143, 54877, 817141), ("arcene", "train", 100, 10000, 540941),
    ("news20", "train", 15935, 62061, 1272569), ("mnist", "train", 60000, 784, 8994156),
    ("mnist", "test", 10000, 784, 1511219), ("covtype", "train", 581012, 54, 6901775),
    ("covtype.binary", "train", 581012, 54, 6901775), ("kddcup99", "train", 494021, 41, 5896311),
    ("kddcup99.binary", "train", 494021, 41, 5896311),
]  # fmt: skip


def _check_file(name: str, split: str, n: int, d: int, nonzeros: int) -> None:
    data = datasets.load(name, split, data_home=FOLDER, verify=True)
    assert data.shape == (n, d)
    assert np.count_nonzero(data.X.data if hasattr(data.X, "nnz") else data.X) == nonzeros
    if data.task == "binary":
        assert set(np.unique(data.y)) == {0.0, 1.0}
    if data.task == "multiclass":
        assert np.array_equal(np.unique(data.y), np.arange(data.y.max() + 1))


@real_files
@pytest.mark.parametrize("name, split, n, d, nonzeros", SMALL_FILES)
def test_small_real_files(name, split, n, d, nonzeros) -> None:
    _check_file(name, split, n, d, nonzeros)


@real_files
@pytest.mark.slow
@pytest.mark.parametrize("name, split, n, d, nonzeros", LARGE_FILES)
def test_large_real_files(name, split, n, d, nonzeros) -> None:
    _check_file(name, split, n, d, nonzeros)


def test_every_file_of_the_registry_is_checked_above() -> None:
    checked = {(name, split) for name, split, *_ in SMALL_FILES + LARGE_FILES}
    assert checked == {(name, split) for name, entry in FILES.items() for split in entry.splits}
