"""KV event batches that wait until a replay is over, in the order they came.

Invariant: bounded in number and bytes; when they are too many all go, since a hole among them
could not be told from a gap, and a gap is filled by the next replay.
"""

from __future__ import annotations

from collections import deque

BATCHES_MAX = 4096
BYTES_MAX = 32 << 20

Batch = tuple[int, bytes]


class Pending:
    __slots__ = ("_batches", "_bytes")

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, batch: Batch) -> bool:
        return batch in self._batches

    @property
    def first(self) -> int | None:
        return self._batches[0][0] if self._batches else None

    @property
    def last(self) -> int | None:
        return self._batches[-1][0] if self._batches else None

    def add(self, seq: int, payload: bytes) -> bool:
        """False: there were too many, and none is left."""
        self._batches.append((seq, payload))
        self._bytes += len(payload)
        if len(self._batches) <= BATCHES_MAX and self._bytes <= BYTES_MAX:
            return True
        self.take_all()
        return False

    def drop_first(self, seq: int, payload: bytes) -> None:
        """Takes the first off where it is this one."""
        if self._batches and self._batches[0] == (seq, payload):
            self._bytes -= len(self._batches.popleft()[1])

    def take_all(self) -> deque[Batch]:
        batches, self._batches, self._bytes = self._batches, deque(), 0
        return batches
