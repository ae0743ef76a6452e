"""Rows in blocks on the workers of a Dask cluster: each worker reads its own, and answers for them."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dptoolkit.data.blocks import Block, BlockedRows, Check, Failure, Summand, answer, loaded
from dptoolkit.distributed.cluster import Cluster, WorkersReplaced
from dptoolkit.distributed.parts import Part
from dptoolkit.distributed.versions import differences, environment

# The answers of so many blocks are in the memory of this process at a time, besides the total.
WAVE = 16


def load(part: Part, expected: Mapping[str, str]) -> Block | Failure:
    """A block, on the worker that this runs on, which may have joined after the others were compared."""
    if other := differences(expected, environment()):
        return Failure(f"its worker is not like the process of the fit: {other}.")
    block = loaded(part.load)
    return block if isinstance(block, Failure) else block.with_digest()


def ask(block: Block | Failure, question: bytes) -> tuple[str, Any]:
    """(digest, answer) of the block; a function of the block and of the question alone, so that it may run twice."""
    return "" if isinstance(block, Failure) else block.digest, answer(block, *pickle.loads(question))


class DaskBlocks(BlockedRows):
    """Blocks on workers; see ``partition``.

    A block is a task that reads a file. Its future is kept for as long as this object, so that the block stays in the
    worker's memory; if that worker is lost, Dask runs the task again on another. A question is a task on that future.
    Neither draws anything: noise in a task could be drawn twice.

    Privacy
    -------
    The noise of a plan is for the records that were counted when the fit began. A file that is read again may have
    changed. So every answer carries a digest of the records that it is made of: the first of a block is kept here, and
    an answer with another one is a Failure, which ends the fit before anything is released.
    """

    def __init__(self, scheduler: Any, parts: Sequence[Part], patience: float) -> None:
        self._cluster, self._parts, self._round = Cluster(scheduler, patience), list(parts), 0
        self._digests: dict[int, str] = {}
        self._send_out(self._cluster.workers)

    def _send_out(self, workers: Sequence[str]) -> None:
        """Have the blocks loaded, each by the worker whose turn it is."""
        self._token = secrets.token_hex(8)
        self._homes = [workers[k % len(workers)] for k in range(len(self._parts))]
        self._futures = [
            self._cluster.submit(load, part, environment(), key=f"dptoolkit-block-{self._token}-{k}", worker=home)
            for k, (part, home) in enumerate(zip(self._parts, self._homes, strict=True))
        ]

    @property
    def names(self) -> Sequence[str]:
        """See ``BlockedRows``."""
        return [part.name for part in self._parts]

    def answers(self, check: Check, summand: Summand | None, public: tuple[Any, ...]) -> Iterator[tuple[int, Any]]:
        """See ``BlockedRows``; in the order of the blocks."""
        question, number = pickle.dumps((check, summand, public)), 0
        while number < len(self._parts):
            try:
                for digest, value in self._asked(question, number):
                    yield number, self._of_the_same_records(number, digest, value)
                    number += 1
            except WorkersReplaced as problem:
                # The rest is asked again: an answer is a function of the block and the question.
                self._send_out(problem.workers)

    def _of_the_same_records(self, number: int, digest: str, value: Any) -> Any:
        """A block's answer, or a Failure if it is made of other records than the block's first answer was."""
        if isinstance(value, Failure) or self._digests.setdefault(number, digest) == digest:
            return value
        return Failure("it holds other records than when it was first read. Restore its file, or call partition again.")

    def _asked(self, question: bytes, first: int) -> Iterator[tuple[str, Any]]:
        """(digest, answer) of the blocks from ``first`` on, in order."""
        self._round += 1
        name, homes = f"dptoolkit-sum-{self._token}-{self._round}", set(self._homes)
        # Deleted as they are used, which tells the workers to forget the answers.
        asked = [
            self._cluster.submit(ask, self._futures[k], question, key=f"{name}-{k}", worker=self._homes[k])
            for k in reversed(range(first, len(self._parts)))
        ]
        while asked:
            wave = [asked.pop() for _ in range(min(WAVE, len(asked)))]
            yield from self._cluster.gather(wave, homes)

    def close(self) -> None:
        """Forget the blocks, and end the connection if it was made here."""
        self._futures = []
        self._cluster.close()
