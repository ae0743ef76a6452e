"""Blocks that are read again on a Dask worker in this process: other records than before are refused."""

from __future__ import annotations

import gc
import logging
import time

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import distributed as ours
from dptoolkit import solvers
from dptoolkit.accounting import Ledger
from dptoolkit.distributed.cluster import Cluster, WorkersReplaced
from dptoolkit.errors import InvalidValue

dask = pytest.importorskip("distributed")
FIT = {"loss": "logistic", "sparsity": 2, "steps": 3, "row_norm": 1.0, "epsilon": 2.0, "delta": 1e-6, "rng": 1}


@pytest.fixture(scope="module")
def client():
    with dask.Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None) as made:
        yield made


def records(n=60, seed=0):
    X = sparse.random(n, 6, 0.4, "csr", random_state=seed)
    return X, (np.random.default_rng(seed).random(n) < 0.5).astype(float)


def write(path, X, y):
    np.savez(path, data=X.data, indices=X.indices, indptr=X.indptr, shape=np.array(X.shape), y=y)


def changed(how, path):
    """Write the file anew: the same records in a new file, or others of another kind."""
    X, y = records(30)
    with np.load(path) as kept:
        X, y = sparse.csr_matrix((kept["data"], kept["indices"], kept["indptr"]), shape=kept["shape"]), kept["y"]
    if how == "other rows":
        X = X[::-1]
    elif how == "more rows":
        X, y = sparse.vstack([X] * 40, "csr"), np.tile(y, 40)
    elif how == "another value":
        X.data[0] = np.nextafter(X.data[0], 9.0)
    elif how == "another label":
        y[0] = 1 - y[0]
    elif how == "another width":
        X = sparse.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], 7))
    write(path, X, y)


CHANGES = ["other rows", "more rows", "another value", "another label", "another width"]


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("when", ["between two fits", "within a fit"])
def test_a_block_whose_file_has_changed_is_named_and_nothing_is_released(how, when, client, tmp_path):
    files = ours.split(*records(), tmp_path / "parts", 2)
    ledger = Ledger(9.0, 1e-3, allow_seeds=True)
    with ours.partition(files, scheduler=client) as data:
        solvers.dp_ight(data, None, ledger=ledger, **FIT)

        def again():
            changed(how, files[1])
            data._send_out(data._cluster.workers)

        if when == "between two fits":
            again()
        else:
            gather, rounds = data._cluster.gather, iter(range(100))

            def gathered(futures, homes):
                if next(rounds) == 2:
                    again()
                    raise WorkersReplaced(data._cluster.workers)
                return gather(futures, homes)

            data._cluster.gather = gathered
        words = r"block 1 \(part-00001.npz\): it holds other records than when it was first read.*Nothing was released"
        with pytest.raises(InvalidValue, match=words):
            solvers.dp_ight(data, None, ledger=ledger, **FIT)
        assert len(ledger.entries) == (1 if when == "between two fits" else 2)


def test_a_file_with_the_same_records_may_be_read_again(client, tmp_path):
    """Whatever its bytes are, and whatever object holds them."""
    files = ours.split(*records(), tmp_path / "parts", 2)
    expected = solvers.dp_ight(ours.partition(files), None, **FIT).coef
    with ours.partition(files, scheduler=client) as data:
        for _ in range(2):
            assert np.array_equal(solvers.dp_ight(data, None, **FIT).coef, expected)
            changed("nothing", files[1])
            data._send_out(data._cluster.workers)


def test_a_block_that_travels_keeps_its_digest(client, tmp_path):
    import pickle

    from dptoolkit.distributed.blocks import load
    from dptoolkit.distributed.parts import Part
    from dptoolkit.distributed.versions import environment

    (path,) = ours.split(*records(), tmp_path / "parts", 1)
    block = load(Part(str(path), None), environment())
    assert len(block.digest) == 64 and pickle.loads(pickle.dumps(block)).digest == block.digest


def test_an_answer_that_nobody_awaits_any_more_prints_nothing(client, caplog):
    own = Cluster(client)
    futures = [own.submit(time.sleep, 0.5, key=f"sleep-{k}") for k in range(6)]
    with caplog.at_level(logging.DEBUG, "asyncio"):
        with pytest.raises(WorkersReplaced):
            own.gather(futures, frozenset({"gone"}))
        del futures
        time.sleep(1.0)
        gc.collect()
        time.sleep(0.2)
    assert "never retrieved" not in caplog.text
