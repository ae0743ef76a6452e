"""Files are read as written, and bad ones are refused with a reason."""

from __future__ import annotations

import bz2
import gzip
import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptoolkit.datasets import read_libsvm
from dptoolkit.datasets.readers import read_csv, read_idx
from dptoolkit.errors import InvalidValue

TEXT = b"+1 1:0.5 3:-2e-3 # a remark\n-1\n+1 2:1\n\n-1 5:7 4:1\n"
EXPECTED = [[0.5, 0, -2e-3, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 7]]


@pytest.mark.parametrize("suffix, pack", [
    ("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)
])  # fmt: skip
def test_libsvm_plain_and_compressed(tmp_path, suffix, pack) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(pack(TEXT))
    X, y = read_libsvm(path)
    assert X.format == "csr" and X.has_canonical_format
    assert np.array_equal(X.toarray(), EXPECTED)
    assert np.array_equal(y, [1, -1, 1, -1])


def test_libsvm_width_can_be_given_and_is_enforced(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(TEXT)
    assert read_libsvm(path, 9)[0].shape == (4, 9)
    with pytest.raises(InvalidValue, match="from 1 to 4"):
        read_libsvm(path, 4)


def test_empty_libsvm_file(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    X, y = read_libsvm(path, 3)
    assert X.shape == (0, 3) and y.shape == (0,)


@pytest.mark.parametrize("text", [
    b"1 0:1\n", b"1 1.5:1\n", b"1 1:x\n", b"1 1:1 1:2\n", b"1 1:\n", b"one 1:1\n", b"1 2 1:1\n", b"1 qid:3 1:1\n",
])  # fmt: skip
def test_bad_libsvm_text_is_refused(tmp_path, text) -> None:
    path = tmp_path / "bad"
    path.write_bytes(text)
    with pytest.raises(InvalidValue, match="LIBSVM text file"):
        read_libsvm(path)


@given(st.lists(st.dictionaries(st.integers(1, 70_000), st.floats(allow_nan=False, allow_infinity=False), max_size=6),
                min_size=1, max_size=8))  # fmt: skip
def test_libsvm_round_trip(tmp_path_factory, rows) -> None:
    lines = [f"{i} " + " ".join(f"{column}:{value!r}" for column, value in row.items()) for i, row in enumerate(rows)]
    path = tmp_path_factory.mktemp("libsvm") / "file"
    path.write_text("\n".join(lines))
    X, y = read_libsvm(path, 70_000)
    assert np.array_equal(y, np.arange(len(rows)))
    for i, row in enumerate(rows):
        start, end = X.indptr[i : i + 2]
        assert dict(zip(X.indices[start:end] + 1, X.data[start:end], strict=True)) == row


def test_csv(tmp_path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b,label\n1,2.5,0\n-3,4,1\n")
    assert np.array_equal(read_csv(path), [[1, 2.5, 0], [-3, 4, 1]])


def test_csv_with_a_short_row_is_refused(tmp_path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b,label\n1,2.5,0\n-3,4\n")
    with pytest.raises(InvalidValue, match="table.csv"):
        read_csv(path)


def test_idx(tmp_path) -> None:
    content = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    path = tmp_path / "images"
    head = b"\0\0\x08\x03" + np.array(content.shape, dtype=">u4").tobytes()
    path.write_bytes(head + content.tobytes())
    assert np.array_equal(read_idx(path), content)
    path.write_bytes(head + content.tobytes()[:-1])
    with pytest.raises(InvalidValue, match="12 entries"):
        read_idx(path)
    path.write_bytes(b"GIF89a")
    with pytest.raises(InvalidValue, match="idx file"):
        read_idx(path)
