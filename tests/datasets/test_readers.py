"""Files are read as written, and bad ones are refused with a reason."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptoolkit.datasets import read_libsvm
from dptoolkit.datasets.readers import WidthWarning, read_idx, read_numbers
from dptoolkit.errors import InvalidValue

TEXT = b"+1 1:0.5 3:-2e-3 # a remark\n-1\n+1 2:1\n\n-1 5:7 4:1\n"
EXPECTED = [[0.5, 0, -2e-3, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 7]]


@pytest.mark.parametrize(
    "suffix, pack", [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_libsvm_plain_and_compressed(tmp_path, suffix, pack) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(pack(TEXT))
    X, y = read_libsvm(path, 5)
    assert X.format == "csr" and X.has_canonical_format
    assert np.array_equal(X.toarray(), EXPECTED)
    assert np.array_equal(y, [1, -1, 1, -1])


def test_libsvm_width_can_be_given_and_is_enforced(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(TEXT)
    assert read_libsvm(path, 9)[0].shape == (4, 9)
    with pytest.raises(InvalidValue, match="from 1 to 4"):
        read_libsvm(path, 4)


@pytest.mark.parametrize("text", [
    b"1 0:1\n", b"1 1.5:1\n", b"1 1:x\n", b"1 1:1 1:2\n", b"1 1:\n", b"one 1:1\n", b"1 2 1:1\n", b"1 qid:3 1:1\n",
])  # fmt: skip
def test_bad_libsvm_text_is_refused(tmp_path, text) -> None:
    path = tmp_path / "bad"
    path.write_bytes(text)
    with pytest.raises(InvalidValue, match="LIBSVM text"):
        read_libsvm(path, 9)


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
    assert np.array_equal(read_numbers(path, 3), [[1, 2.5, 0], [-3, 4, 1]])


def test_csv_with_a_short_row_is_refused(tmp_path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b,label\n1,2.5,0\n-3,4\n")
    with pytest.raises(InvalidValue, match="table.csv"):
        read_numbers(path, 3)


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


# --- what is wrong is named by file and line, and never shown ------------------------------------------------

# Bytes, the line at fault, and words of what was expected. 4242 and "secret" stand for a record's own content.
BAD_LIBSVM = [
    (b"1 1:0.5 4242\n", 1, "column:value"),
    (b"1 2:\n", 1, "column:value"),
    (b"1 1:0.5 7\n1 2:\n", 1, "column:value"),
    # Lines that are wrong by as much in opposite directions.
    (b"1 1:2 4242\n1:3\n", 1, "column:value"),
    (b"1 1:2\n-1 2 4242:5 1\n", 2, "column:value"),
    (b"1 1:2\n1 1:2:4242 3\n", 2, "column:value"),
    (b"1\n1 1 :4242\n", 2, "column:value"),
    (b"1\n1 1: 4242\n", 2, "column:value"),
    (b"1\n1 1:4242,2:3\n", 2, "column:value"),
    (b"1\n:4242 1:2\n", 2, "column:value"),
    (b"1\n1 1::4242\n", 2, "column:value"),
    (b"1\n1:4242\n", 2, "one label"),
    (b"1\n1,4242 1:2\n", 2, "one label"),
    (b"1\nsecret 1:2\n", 2, "one label"),
    (b"1\n1 qid:4242 1:2\n", 2, "qid"),
    (b"1\n1 1:secret\n", 2, "number"),
    (b"1\n1 1:42-42\n", 2, "number"),
    (b"1\n1 1:1.5.4242\n", 2, "number"),
    (b"1\n1 1:4_242\n", 2, "number"),
    (b"1\n1 1:0x4242\n", 2, "number"),
    (b"1\n1 1:4242\x002:3\n", 2, "number"),
    (b"1\n1 1:secr\xc3\xa9t\n", 2, "number"),
    (b"1\n1 1:\xff4242\n", 2, "number"),
    (b"1\n1 1:\xd9\xa4\n", 2, "number"),
    (b"1 1:1\n\n\n1 1:nan\n", 4, "finite"),
    (b"1 1:1\n1 1:inf 2:4242\n", 2, "finite"),
    (b"1 1:1\n1 1:4242e999\n", 2, "finite"),
    (b"1 1:1\nnan 1:4242\n", 2, "finite"),
    (b"1 1:1\r\n-inf 1:4242\r\n", 2, "finite"),
    (b"1 1:1\n1 0:4242\n", 2, "from 1 to"),
    (b"1 1:1\n1 -3:4242\n", 2, "from 1 to"),
    (b"1 1:1\n1 1.5:4242\n", 2, "integers"),
    (b"1 1:1\n1 nan:4242\n", 2, "finite"),
    (b"1 1:1\n1 99999999999:4242\n", 2, "n_features"),
    (b"1 1:1\n1 424200000:1\n", 2, "n_features"),
    (b"1 1:1\n# 7\n1 3:1 2:1 3:4242\n", 3, "at most once"),
    (b"1 1:1\r-1 1:4242\r", 1, "line"),
    (b"", None, "at least one"),
    (b"\n \r\n\t\n", None, "at least one"),
    (b"# 4242\n", None, "at least one"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("text", "line", "expected"), BAD_LIBSVM)
def test_what_is_wrong_in_libsvm_text_is_named_but_not_shown(tmp_path, text, line, expected) -> None:
    _is_refused(lambda path: read_libsvm(path), tmp_path, text, line, expected)


def _is_refused(read, tmp_path, text, line, expected) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(text)
    with pytest.raises(InvalidValue) as caught:
        read(path)
    message = str(caught.value)
    assert "bad.txt" in message and expected in message
    assert re.search(r", line (\d+):", message) is None if line is None else f", line {line}:" in message
    # The folder's own name is not the record's.
    told = message.replace(str(path), "").replace("2147483647", "")
    assert "4242" not in told and "secr" not in told and "\n" not in told


@pytest.mark.filterwarnings("ignore::dptoolkit.datasets.readers.WidthWarning")
@pytest.mark.parametrize("text", [
    TEXT.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + TEXT, TEXT.rstrip(b"\n"), TEXT.replace(b" ", b" \t "),
    b"# h\xe9ader\n" + TEXT, TEXT.replace(b"\n", b" \n"), b"\n\n" + TEXT,
])  # fmt: skip
def test_dressings_of_the_same_libsvm_text(tmp_path, text) -> None:
    path = tmp_path / "file"
    path.write_bytes(text)
    X, y = read_libsvm(path)
    assert np.array_equal(X.toarray(), EXPECTED) and np.array_equal(y, [1, -1, 1, -1])


LINES = st.lists(st.text(alphabet="01:. -#\t", max_size=12), max_size=6)


def _plainly(lines: list[str]) -> list[tuple[float, dict[int, float]]] | None:
    """The rows, by a reader too simple to be wrong; None if a line is not as it must be."""
    rows = []
    for line in lines:
        tokens = line.split("#", 1)[0].split()
        if not tokens:
            continue
        try:
            pairs = [token.split(":") for token in tokens[1:]]
            row = {int(float(column)): float(value) for column, value in pairs}
            whole = all(float(column) == int(float(column)) >= 1 for column, _ in pairs)
            if len(row) != len(pairs) or not whole:
                return None
            rows.append((float(tokens[0]), row))
        except ValueError:
            return None
    return rows or None


@pytest.mark.filterwarnings("ignore::dptoolkit.datasets.readers.WidthWarning")
@settings(max_examples=1000)
@given(LINES)
def test_libsvm_lines_are_read_or_refused_as_a_plain_reader_does(tmp_path_factory, lines) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.txt"
    path.write_text("\n".join(lines), encoding="ascii", newline="")
    expected = _plainly(lines)
    if expected is None:
        with pytest.raises(InvalidValue):
            read_libsvm(path, 200)
        return
    X, y = read_libsvm(path)
    assert np.array_equal(y, [label for label, _ in expected])
    rows = [dict(zip(r.indices + 1, r.data, strict=True)) for r in (X[i] for i in range(len(expected)))]
    assert rows == [row for _, row in expected]


def test_a_width_told_from_the_data_is_said(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(TEXT)
    with pytest.warns(WidthWarning, match="n_features"):
        read_libsvm(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_libsvm(path, 5)


@pytest.mark.parametrize("has_labels", [False, None])
def test_records_without_labels_are_read(tmp_path, has_labels) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1:0.5 3:-2e-3 # a remark\n2:1\n5:7 4:1\n\n")
    X, y = read_libsvm(path, 5, has_labels=has_labels)
    assert y is None
    assert np.array_equal(X.toarray(), [EXPECTED[0], EXPECTED[2], EXPECTED[3]])
    # A blank line may be a record without entries, and would move all that follow.
    path.write_bytes(b"1:0.5\n\n2:1\n")
    with pytest.raises(InvalidValue, match="line 2: must be a record"):
        read_libsvm(path, 5, has_labels=has_labels)
    path.write_bytes(TEXT)
    assert read_libsvm(path, 5, has_labels=None)[1] is not None


@pytest.mark.parametrize("width", [0, -1, 2.0, True, "5", 2**31, float("nan")])
def test_a_width_that_is_none_is_refused(tmp_path, width) -> None:
    path = tmp_path / "file"
    path.write_bytes(TEXT)
    with pytest.raises(InvalidValue, match="n_features"):
        read_libsvm(path, width)


BAD_CSV = [
    (b"a,b\n1,2\n3\n4,5,6\n", 3, "2 numbers"),
    (b"a,b\n1,2,4242\n3\n", 2, "2 numbers"),
    (b"a,b,c\n1,,2\n3 4242,5,6\n", 2, "3 numbers"),
    (b"a,b,c\n1,2,\n4242 1,2,3\n", 2, "3 numbers"),
    (b"a,b\n,1 4242\n", 2, "2 numbers"),
    (b"a,b\n1,secret\n", 2, "number"),
    (b'a,b\n\n1,2\n"4242",3\n', 4, "number"),
    (b"a,b\n1,2\n3,\xff4242\n", 3, "number"),
    (b"a,b\n1,2\n3,nan\n", 3, "finite"),
    (b"a,b\n1,2\n-inf,4242\n", 3, "finite"),
    (b"a;b\n1;4242\n", 2, "number"),
    (b"4242,2\n3,4\n", 1, "header"),
    (b"a,b\n", None, "at least one"),
    (b"", None, "at least one"),
    (b"a,b\n\r\n \n", None, "at least one"),
]


@pytest.mark.parametrize(("text", "line", "expected"), BAD_CSV)
def test_what_is_wrong_in_a_csv_is_named_but_not_shown(tmp_path, text, line, expected) -> None:
    width = text.partition(b"\n")[0].count(b",") + 1
    _is_refused(lambda path: read_numbers(path, width), tmp_path, text, line, expected)


@pytest.mark.parametrize("text", [
    b"a,b\r\n1,2\r\n\r\n3,4\r\n", b"\xef\xbb\xbfa,b\n1,2\n3,4", b"a, b\n 1 ,\t2\n3,4 \n\n",
])  # fmt: skip
def test_dressings_of_the_same_csv(tmp_path, text) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text)
    assert np.array_equal(read_numbers(path, 2), [[1, 2], [3, 4]])


def test_the_width_of_a_csv_can_be_given(tmp_path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"a,b\n1,2\n")
    assert read_numbers(path, 2).shape == (1, 2)
    with pytest.raises(InvalidValue, match="line 1: must be a header of 3 names"):
        read_numbers(path, 3)


# --- files that are damaged, missing or too large ------------------------------------------------------------

PACKERS = [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]


@pytest.mark.parametrize(("suffix", "pack"), PACKERS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
def test_a_cut_off_archive_is_refused(tmp_path, suffix, pack, share) -> None:
    path = tmp_path / f"bad{suffix}"
    packed = pack(b"".join(b"1 1:%d 2:%d\n" % (i, i * i) for i in range(3000)))
    path.write_bytes(packed[: int(share * len(packed))])
    with pytest.raises(InvalidValue, match=f"bad{suffix}"):
        read_libsvm(path, 2)


@pytest.mark.parametrize(("suffix", "pack"), PACKERS)
def test_a_damaged_or_misnamed_archive_is_refused(tmp_path, suffix, pack) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(TEXT)
    with pytest.raises(InvalidValue, match=f"{suffix} file that can be uncompressed"):
        read_libsvm(path, 9)
    packed = bytearray(pack(TEXT * 100))
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(bytes(packed))
    with pytest.raises(InvalidValue, match=f"{suffix} file that can be uncompressed"):
        read_libsvm(path, 9)


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), *PACKERS])
def test_what_unpacks_to_more_than_the_limit_is_refused(tmp_path, suffix, pack) -> None:
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(pack(b"1 1:2\n" + b"\n" * 1_000_000))
    assert read_libsvm(path, 1, max_bytes=1_000_006)[0].shape == (1, 1)
    with pytest.raises(InvalidValue, match="at most 1,000,005 bytes.*max_bytes"):
        read_libsvm(path, 1, max_bytes=1_000_005)


def test_a_bomb_is_not_unpacked_beyond_the_limit(tmp_path) -> None:
    # 100 MB of zeros in 100 kB; the limit stops the reader after one piece.
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(100_000_000), compresslevel=9))
    tracemalloc.start()
    with pytest.raises(InvalidValue, match="at most 1,000 bytes"):
        read_libsvm(path, 1, max_bytes=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("name", ["nowhere.txt", "folder", "nowhere.gz", "nul\0l"])
def test_what_is_no_file_is_refused(tmp_path, name) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidValue, match="must be a file that can be read"):
        read_libsvm(tmp_path / name, 3)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08", b"\0\0\x08\0", b"\0\0\x08\x03\0\0", b"\0\0\x08\x02" + b"\xff" * 8]
)
def test_an_idx_file_that_is_cut_off_is_refused(tmp_path, content) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(InvalidValue, match="idx file"):
        read_idx(path)
