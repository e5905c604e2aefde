"""Counts of KV events, of the whole gateway: a front of `native.Counters`. Every worker follows
every engine, so a batch is counted once by each.
"""

from __future__ import annotations

from gateway.kv.tally import Tally
from native._core import Counters

EVICTED, BYTES, BLOCKS = "index_evicted", "index_bytes", "index_blocks"


class EventCounts:
    def __init__(self, workers: int = 1, worker: int | None = 0) -> None:
        """`worker` None: bound later, by `bind`."""
        names = [*Tally().counts(), EVICTED]
        self._counters = Counters(workers, names, [BYTES, BLOCKS])
        self._at = {name: at for at, name in enumerate((*names, BYTES, BLOCKS))}
        self._said = dict.fromkeys(names, 0)
        self.bind = self._counters.bind
        self.retire = self._counters.retire
        if worker is not None:
            self.bind(worker)

    def say(self, tally: Tally, evicted: int) -> None:
        """What has happened in this worker, ever: to its events, and blocks that its index had to
        let go.
        """
        for name, count in {**tally.counts(), EVICTED: evicted}.items():
            if count > self._said[name]:
                self._counters.add(self._at[name], count - self._said[name])
                self._said[name] = count

    def say_index(self, size: int, blocks: int) -> None:
        """What this worker's index holds now, in bytes and (block, engine) pairs."""
        self._counters.set(self._at[BYTES], size)
        self._counters.set(self._at[BLOCKS], blocks)

    def count(self, name: str) -> int:
        return self._counters.value(self._at[name])
