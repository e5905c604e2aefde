"""An object store that is a dict, driven by the test: it takes the core's errands when it is told
to."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.blocks import Engine, name
from harness.waiting import until

from native import _core

Name = tuple[bytes, bytes]
ROOM = (64, 64, 64)


@dataclass
class Objects:
    """`serve` does what the core wants, once. Sends are stored, fetches answered from there.

    `held` has blocks that lie alone, `bundles` the others; `marks` says which of them were dropped.
    """

    core: _core.KvbmCore
    held: dict[Name, bytes] = field(default_factory=dict)
    bundles: dict[Name, bytes] = field(default_factory=dict)
    marks: dict[Name, set[bytes]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    away: bool = False  # it does not answer

    def __post_init__(self) -> None:
        self.door = self.core.remote()

    def serve(self, patience_s: float = 0.05) -> int:
        """How many errands there were."""
        errands = self.door.errands(*ROOM, patience_s) or []
        self.do(errands)
        return len(errands)

    def drop(self, fingerprint: bytes, keys: list[bytes]) -> _core.KvbmDropped:
        """Drops blocks in every tier, as an operator does."""
        dropped = self.core.drop(fingerprint, keys)
        self.do(dropped.errands)
        return dropped

    def do(self, errands: list[_core.KvbmErrand]) -> None:
        for errand in errands:
            self.seen.append(errand.kind)
            if errand.kind == "send":
                self._send(errand)
            elif errand.kind in ("delete", "mark"):
                self._delete(errand)
            else:
                data = None if self.away else self._find(errand)
                if data is None:
                    self.door.missed(errand, not self.away)
                else:
                    self.door.fetched(errand, data)

    def _send(self, errand: _core.KvbmErrand) -> None:
        fingerprint = errand.fingerprint
        if self.away:
            return
        for bundle, keys, data in self.door.pack(fingerprint, errand.keys):
            if bundle is None:
                self.held.setdefault((fingerprint, keys[0]), data)
                self.door.known(fingerprint, keys)
            else:
                self.bundles.setdefault((fingerprint, bundle), data)
                self.marks.pop((fingerprint, bundle), None)
                self.door.bundled(fingerprint, bundle, data, len(data))

    def _delete(self, errand: _core.KvbmErrand) -> None:
        if errand.bundle is None:
            self.held.pop((errand.fingerprint, errand.keys[0]), None)
            return
        name = (errand.fingerprint, errand.bundle)
        if errand.kind == "mark":
            self.marks.setdefault(name, set()).update(errand.keys)
        else:
            self.bundles.pop(name, None)
            self.marks.pop(name, None)

    def _find(self, errand: _core.KvbmErrand) -> bytes | None:
        if errand.bundle is None:
            return self.held.get((errand.fingerprint, errand.keys[0]))
        whole, part = self.bundles.get((errand.fingerprint, errand.bundle)), errand.range
        assert part is not None
        return None if whole is None else whole[slice(*part)]

    def survey(self) -> None:
        """Tells the core of all that lies here, as a listing would."""
        prints = {row[1] for row in self.core.namespaces()}
        for fingerprint in prints:
            self.door.begin_listing(fingerprint)
        for fingerprint, key in self.held:
            self.door.known(fingerprint, [key])
        for (fingerprint, bundle), data in list(self.bundles.items()):
            if not self.door.unknown(fingerprint, [bundle]):
                continue
            if self.door.bundled(fingerprint, bundle, data[:4096], len(data)) < 0:
                del self.bundles[fingerprint, bundle]
        for (fingerprint, bundle), keys in self.marks.items():
            self.door.dropped(fingerprint, bundle, list(keys))
        for fingerprint in prints:
            self.door.end_listing(fingerprint)

    def load(self, engine: Engine, blocks: list[int]) -> list[int]:
        """Loads into an engine's slots 0, 1, ... while the store serves; the statuses."""
        job = next(engine.jobs)
        names = [name(n) for n in blocks]
        assert engine.client.load(job, names, list(range(len(blocks))))
        until(lambda: (self.serve(0.01), engine.collect(), job in engine.done)[2], "the load")
        return list(engine.done.pop(job).statuses)
