"""The real sets that are known by name: which files they are in, how to read them, and what they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.datasets import connections, readers
from dptoolkit.datasets.dataset import BINARY, MULTICLASS, REGRESSION
from dptoolkit.types import Array

TRAIN, TEST = "train", "test"


@dataclass(frozen=True)
class Source:
    """Where a file can be fetched, packed or not; ``sha256`` is of its unpacked content."""

    url: str
    sha256: str


@dataclass(frozen=True)
class Split:
    """The files of one part of a set, as paths inside the data folder without the suffix of their compression.

    ``sha256`` is of the compressed files with which this registry was checked. ``sources``, if known, has one entry a
    file. ``parts`` are what is read of a file that holds several.
    """

    files: tuple[str, ...]
    sha256: tuple[str, ...]
    sources: tuple[Source, ...] = ()
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """How one set is read: reader(paths, entry, split) -> (X, raw labels).

    ``labels`` are the labels in the files, in the order of their codes 0, 1, ...; None for regression. They are a
    public convention of the set, since the labels that occur in the data could change with one record. ``positive`` is
    the label that is coded 1, with all others 0.
    """

    task: str
    d: int
    description: str
    read: Callable[[list[Path], Entry, Split], tuple[Any, Array]]
    train: Split | None = None
    test: Split | None = None
    dense: bool = False
    labels: tuple[float, ...] | None = (-1.0, 1.0)
    positive: float | None = None

    @property
    def splits(self) -> dict[str, Split]:
        """The parts that exist."""
        return {key: part for key, part in ((TRAIN, self.train), (TEST, self.test)) if part is not None}


def _libsvm(paths: list[Path], entry: Entry, split: Split) -> tuple[Any, Array]:
    X, labels = readers.read_libsvm(paths[0], entry.d)
    return (X.toarray() if entry.dense else X), labels


def _mnist(paths: list[Path], entry: Entry, split: Split) -> tuple[Any, Array]:
    from scipy import sparse

    images, labels = (readers.read_idx(path) for path in paths)
    if labels.ndim != 1 or len(images) != len(labels) or images.size != len(images) * entry.d:
        raise invalid("path", str(paths[0]), f"{entry.d} bytes an image, with a label for each in {paths[1].name}")
    X = sparse.csr_matrix(images.reshape(-1, entry.d)).astype(np.float64)
    # 255 is the largest byte, so the division is public.
    X.data /= 255.0
    return X, labels.astype(float)


def _covtype(paths: list[Path], entry: Entry, split: Split) -> tuple[Any, Array]:
    table = readers.read_numbers(paths[0], entry.d + 1)
    return np.ascontiguousarray(table[:, :-1]), table[:, -1]


def _connections(paths: list[Path], entry: Entry, split: Split) -> tuple[Any, Array]:
    return connections.read(paths[0])


def _x_rays(paths: list[Path], entry: Entry, split: Split) -> tuple[Any, Array]:
    names = [f"{part}_{kind}" for part in split.parts for kind in ("images", "labels")]
    arrays = readers.read_npz(paths[0], names)
    images, labels = arrays[::2], arrays[1::2]
    if any(
        image.dtype != np.uint8 or image.size != label.size * entry.d
        for image, label in zip(images, labels, strict=True)
    ):
        raise invalid("path", str(paths[0]), f"{entry.d} bytes an image, with a label for each")
    # 255 is the largest byte, so the division is public.
    pixels = np.concatenate([image.reshape(-1, entry.d) for image in images]) / 255.0
    return pixels, np.concatenate([label.ravel() for label in labels]).astype(float)


_LIBSVM_SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
_MNIST_SITE = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def _part(file: str, sha256: str, page: str = "", content: str = "") -> Split:
    """One file; ``page`` is where the LIBSVM site has it, and ``content`` the sha256 of what is in it."""
    return Split((file,), (sha256,), (Source(_LIBSVM_SITE + page, content),) if page else ())


def _mnist_sources(*files: tuple[str, str]) -> tuple[Source, ...]:
    return tuple(Source(f"{_MNIST_SITE}{name}.gz", content) for name, content in files)


def _binary(
    d: int, description: str, train: Split | None, test: Split | None = None, dense: bool = False,
    labels: tuple[float, float] = (-1.0, 1.0),
) -> Entry:  # fmt: skip
    return Entry(BINARY, d, description, _libsvm, train, test, dense, labels)


def _label_range(first: int, last: int) -> tuple[float, ...]:
    return tuple(float(label) for label in range(first, last + 1))


_COVTYPE = _part("covtype/covtype.csv", "5087faa89346c62af6424141d4512b74cd850abe42fd10c2064c75288a87310b")

_KDD = _part("kddcup99/kddcup.data_10_percent", "b9a828ce7152ce0ab637b6cba81a0c706213350ed49ebf49ddf04075fd102cc1")


def _x_ray_part(*parts: str) -> Split:
    sha256 = "e1792d3f03751cb101e99f19a63b3c1941436c988665f47853417b05be250cd8"
    return Split(("pneumoniamnist/pneumoniamnist.npz",), (sha256,), parts=parts)


FILES: dict[str, Entry] = {
    "rcv1_sub": _binary(
        47_236, "RCV1 news, CCAT or ECAT against the rest, tf-idf rows of norm 1; not rcv1_train.binary itself",
        _part("rcv1_sub/rcv1_sub_train.binary", "21b6c3ef2e5be61568579d5570ce9124c412711867d71855a872ae993c00aaec"),
        _part("rcv1_sub/rcv1_sub_test.binary", "8e61cd6d05bf24fe77ab7ee23f85213a71b35b0f1ee97d1e22bdeb4caa2e6e52"),
    ),
    "rcv1_sample": _binary(
        47_236, "100 rows of RCV1, a quick stand-in for its shape",
        _part("rcv1_sub/rcv1_sample100.txt", "8a804c421fd3560105f466f2764c38c2006972b2fb2dff17c2a892f537d50bb7"),
    ),
    "a9a": _binary(
        123, "adult census, income above 50k, binary features",
        _part("a9a/a9a", "681a6e8501c90f46a11021b8786f64062768c5130764d1ffca386b9c4217735d",
              "binary/a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
        _part("a9a/a9a.t", "be9350ccafcf466ea8e250982a054b5493a6330a357ac44734aaa47c61c3cb62",
              "binary/a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
    ),
    "w8a": _binary(
        300, "web pages, binary features, 3% positive",
        _part("w8a/w8a", "9a98a7f40e07c7eb1ef5141c60d2b09ee1c4fa753562bcc526ea14ae72da3450",
              "binary/w8a", "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2"),
    ),
    "mushrooms": _binary(
        112, "mushrooms, edible or not, binary features",
        _part("mushrooms/mushrooms", "3858c3db4473745af77765fe8ca48a4f29428838229ff7cb1a2ed7d5285f3403",
              "binary/mushrooms", "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538"),
        labels=(1.0, 2.0),
    ),
    "phishing": _binary(
        68, "phishing sites, rows of norm 1",
        _part("phishing/phishing", "0874d5541017e4167b5c98618efe6fb41acad450b24d1cffa114f6e1db7ad45e"),
        labels=(0.0, 1.0),
    ),
    "splice": _binary(
        60, "DNA splice junctions, values 1 to 4",
        _part("splice/splice", "e4fc0aac9da2da87614d854fd5ec9c65a88adc3b02890f857799dc174352287a"),
        _part("splice/splice.t", "cd1fb8c71297f3c868f522b63e4014e55c2e25da52f9578ed321aa00ef5ef556"),
        dense=True,
    ),
    "colon-cancer": _binary(
        2000, "gene expression, tumour or normal",
        _part("colon-cancer/colon-cancer", "d3f2120d6efaab6984e0300da65803158d483b6655f26756ec5ef3ef1843184b"),
        dense=True,
    ),
    "duke": _binary(
        7129, "gene expression, breast cancer",
        _part("duke/duke", "3fa40d864a8c586f869d0f1024ea6f311d8acae7310ceb1e97a12e595152b1fa"),
        dense=True,
    ),
    "leukemia": _binary(
        7129, "gene expression, two kinds of leukemia",
        _part("leukemia/leukemia", "44e6a87f39c85acbfb9541dfc4d28bd8b4c84c146f212cf1f474f2ced245091c"),
        _part("leukemia/leukemia.t", "82eacced70277a59346597ecbcd4b9674ed443ada83d32c51db2a2f49a95e31e"),
        dense=True,
    ),
    "gisette": _binary(
        5000, "handwritten 4 against 9 with distractors; the test part only", None,
        _part("gisette/gisette_scale.t", "c6fe46ecde1cc6362015d89b6a47a37e7a96ed2d54473d454894bba979ad9ee4"),
        dense=True,
    ),
    "dorothea": _binary(
        88_119, "drug discovery, binary features, 10% positive",
        _part("dorothea/dorothea", "3ade0c02eee80dd9b849fb0b3b573958c62199f48af49fbb18aeaa311d2fe621"),
    ),
    "farm-ads": _binary(
        54_877, "farm advertisements, binary bag of words",
        _part("farm-ads/farm-ads-vect", "45f78da478cad2a1d914d50116e0a85a4d97aeb3f238771249515a1e18508e93"),
    ),
    "acq": _binary(
        9947, "Reuters, corporate acquisitions, tf-idf",
        _part("acq/acq_train.dat", "b7e62fb588b2530a91b00f6c7727683583cc074f8cdf29f5ecea2abe06233162"),
        _part("acq/acq_test.dat", "bbd0c9d721f8050f93e0f1dc1175486c9de1d2807737c4512bc8f9b5b1c9cd85"),
    ),
    "arcene": _binary(
        10_000, "mass spectra, cancer or not",
        _part("arcene/arcene", "d819e65f5b9343aa5dffa41955bc848ae8570a5c030052e844e56ef698843dcf"),
        dense=True,
    ),
    "bodyfat": Entry(
        REGRESSION, 14, "body density from 14 measures in [-1, 1]", _libsvm,
        _part("bodyfat/bodyfat_scale", "542142487b0229267c51a874ff82e6eb878f2f6c66559016edcc6686e993cec7"),
        dense=True, labels=None,
    ),
    "news20": Entry(
        MULTICLASS, 62_061, "20 newsgroups, word counts", _libsvm,
        _part("news20/news20", "ae8b2389bcce9ef47d7f6ac3760eea6e549421a550e3e22b5899033445e3e5b8",
              "multiclass/news20.bz2", "1d6eb77c42e1c78e86f36af834268de933da3607f38e3703aef15f7a9f11e506"),
        labels=_label_range(1, 20),
    ),
    "covtype": Entry(
        MULTICLASS, 54, "forest cover, 7 kinds", _covtype, _COVTYPE, dense=True, labels=_label_range(1, 7)
    ),
    "covtype.binary": Entry(
        BINARY, 54, "forest cover, kind 2 against the rest", _covtype, _COVTYPE, dense=True,
        labels=_label_range(1, 7), positive=2.0,
    ),
    "kddcup99": Entry(
        MULTICLASS, connections.COLUMNS, "connections, normal or one of 22 attacks; names as numbers", _connections,
        _KDD, dense=True, labels=_label_range(0, len(connections.LABELS) - 1),
    ),
    "kddcup99.binary": Entry(
        BINARY, connections.COLUMNS, "connections, normal against attacks; names as numbers", _connections,
        _KDD, dense=True, labels=_label_range(0, len(connections.LABELS) - 1),
        positive=float(connections.LABELS.index("normal")),
    ),
    "pneumoniamnist": Entry(
        BINARY, 784, "chest X-rays, pneumonia against normal, pixels in [0, 1]; train has the parts train and val",
        _x_rays, _x_ray_part("train", "val"), _x_ray_part("test"), dense=True, labels=(0.0, 1.0),
    ),
    "mnist": Entry(
        MULTICLASS, 784, "handwritten digits, pixels in [0, 1]", _mnist,
        Split(
            ("mnist/train-images-idx3-ubyte", "mnist/train-labels-idx1-ubyte"),
            ("71524e2cd1ad2968737f7f2f2ff69cbfc32df8ccddff51593f7cb2d4e0eb5b64",
             "fe03b8bd7915f70bf5aa08be480aa413fbd85afcaa58b35d230d335f284fd88e"),
            _mnist_sources(
                ("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
                ("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
            ),
        ),
        Split(
            ("mnist/t10k-images-idx3-ubyte", "mnist/t10k-labels-idx1-ubyte"),
            ("5634745efa576a17e7d4cf5cd9d09123c75e6538e5114267c2d156edaf519341",
             "ae18e77e031ccde52407f794d123116439864147d33ac992975f85dd4dc42af6"),
            _mnist_sources(
                ("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
                ("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
            ),
        ),
        labels=_label_range(0, 9),
    ),
}  # fmt: skip

BUNDLED: dict[str, tuple[str, str]] = {
    "breast_cancer": (BINARY, "tumour measures, benign or malignant"),
    "digits": (MULTICLASS, "8 x 8 handwritten digits, pixels 0 to 16"),
    "diabetes": (REGRESSION, "disease progression from 10 measures"),
}
