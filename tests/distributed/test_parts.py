"""Files of blocks: what is written is read again, and what is wrong is said before or with the number of the block."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import distributed, solvers
from dptoolkit.distributed.parts import Part
from dptoolkit.distributed.versions import differences, environment
from dptoolkit.errors import InvalidValue

FIT = {"loss": "logistic", "sparsity": 2, "steps": 3, "row_norm": 1.0, "epsilon": 2.0, "delta": 1e-6, "rng": 1}


def records(dense: bool = False):
    rng = np.random.default_rng(0)
    X = sparse.random(50, 6, 0.4, "csr", random_state=0)
    return X.toarray() if dense else X, (rng.random(50) < 0.5).astype(float)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("blocks", [1, 3, 50])
def test_parts_hold_the_rows(tmp_path, dense, blocks):
    X, y = records(dense)
    files = distributed.split(X, y, tmp_path, blocks)
    loaded = [Part(str(path), None).load() for path in files]
    assert [path.name for path in files] == sorted(path.name for path in tmp_path.iterdir()) and len(files) == blocks
    rows = np.vstack([part.toarray() if sparse.issparse(part) else part for part, _ in loaded])
    assert np.array_equal(rows, X if dense else X.toarray())
    assert np.array_equal(np.concatenate([labels for _, labels in loaded]), y)


def test_libsvm_text_and_npz_are_the_same_blocks(tmp_path):
    X, y = records()
    files = distributed.split(X, y, tmp_path / "npz", 3)
    texts = []
    for k, path in enumerate(files):
        part, labels = Part(str(path), None).load()
        lines = []
        for i, label in enumerate(labels):
            row = part[[i]]
            pairs = zip(row.indices, row.data.tolist(), strict=True)
            lines.append(
                " ".join([f"{label:g}", *(f"{j + 1}:{value!r}" for j, value in pairs)])
                .replace("np.float64(", "")
                .replace(")", "")
            )
        texts.append(tmp_path / (f"{k}.svm.gz" if k == 1 else f"{k}.svm"))
        text = "\n".join(lines).encode()
        texts[-1].write_bytes(gzip.compress(text) if k == 1 else text)
    one = solvers.dp_ight(distributed.partition(tmp_path / "npz"), None, **FIT)
    two = solvers.dp_ight(distributed.partition(texts, n_features=6), None, **FIT)
    assert np.array_equal(one.coef, two.coef)


def test_a_public_width_adds_columns(tmp_path):
    distributed.split(*records(), tmp_path, 2)
    assert solvers.dp_ight(distributed.partition(tmp_path), None, n_features=9, **FIT).coef.shape == (9,)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("part-00001.npz", b"no zip", r"block 1 \(part-00001.npz\): path=.*must be an .npz file with"),
        ("part-00001.npz", None, r"block 1 \(part-00001.npz\): path=.*No such file"),
        ("part-00001.svm", b"1 1:0.5\n0 seven:1\n", r"block 1 \(part-00001.svm\): .*line 2"),
        ("part-00001.svm", b"1 7:0.5\n", r"block 1 \(part-00001.svm\): .*integers from 1 to 6"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named_with_its_block(tmp_path, name, content, words):
    files = [*distributed.split(*records(), tmp_path / "parts", 1), tmp_path / name]
    if content is not None:
        files[1].write_bytes(content)
    with pytest.raises(InvalidValue, match=words) as problem:
        solvers.dp_ight(distributed.partition(files, n_features=6), None, **FIT)
    assert "seven" not in str(problem.value)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "parts='none'"),
        ("missing", "must be a folder, or a sequence of files"),
        (["a.npz", "b.svm"], "n_features=None: must be given where a part is LIBSVM text"),
    ],
)
def test_parts_that_cannot_be(parts, words):
    with pytest.raises(InvalidValue, match=words):
        distributed.partition(parts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"blocks": 0}, "blocks=0"),
        ({"blocks": 51}, "blocks=51: must be <= n=50"),
        ({"y": np.zeros(3)}, r"y.shape=\(3,\)"),
    ],
)
def test_what_cannot_be_split(tmp_path, arguments, words):
    X, y = records()
    with pytest.raises(InvalidValue, match=words):
        distributed.split(X, arguments.get("y", y), tmp_path / "new", arguments.get("blocks", 2))
    assert not (tmp_path / "new").exists()


def test_parts_do_not_mix_with_other_files(tmp_path):
    distributed.split(*records(), tmp_path, 2)
    with pytest.raises(InvalidValue, match="must be an empty folder"):
        distributed.split(*records(), tmp_path, 2)


@pytest.mark.parametrize("how", ["twice", "another spelling", "a link", "a link in the folder"])
def test_a_file_is_one_block(how, tmp_path):
    """A record of two blocks would count twice, and move a sum twice as far as its sensitivity."""
    first, second = distributed.split(*records(), tmp_path / "parts", 2)
    link = first.parent / "part-00009.npz" if how == "a link in the folder" else tmp_path / "link.npz"
    link.symlink_to(first)
    parts = {
        "twice": [first, second, first], "another spelling": [first, tmp_path / "parts" / ".." / "parts" / first.name],
        "a link": [first, link], "a link in the folder": tmp_path / "parts",
    }[how]  # fmt: skip
    with pytest.raises(InvalidValue, match="parts='.*npz': must be given once. A record of two blocks would count"):
        distributed.partition(parts)


def test_versions_are_compared_by_name():
    own = environment()
    assert {"python", "numpy", "scipy", "numba", "dptoolkit", "sources", "machine"} == set(own)
    assert differences(own, dict(own)) == ""
    other = dict(own) | {"numpy": "1.0"}
    del other["numba"]
    assert differences(own, other) == f"numpy 1.0 there, {own['numpy']} here, numba missing there, {own['numba']} here"
