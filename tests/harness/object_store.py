"""An object store that is a dict, driven by the test: it takes the core's errands when it is told
to."""

from __future__ import annotations

from dataclasses import dataclass, field

from native import _core

Name = tuple[bytes, bytes]
ROOM = (64, 64, 64)


@dataclass
class Objects:
    """`serve` does what the core wants, once. Sends are stored, fetches answered from there."""

    core: _core.KvbmCore
    held: dict[Name, bytes] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    away: bool = False  # it does not answer

    def __post_init__(self) -> None:
        self.door = self.core.remote()

    def serve(self, patience_s: float = 0.05) -> int:
        """How many errands there were."""
        errands = self.door.errands(*ROOM, patience_s) or []
        for kind, ticket, fingerprint, key in errands:
            self.seen.append(kind)
            name = (fingerprint, key)
            if kind == "send":
                record = self.core.read(fingerprint, key)
                if record is not None and not self.away:
                    self.held.setdefault(name, record)
                    self.door.known(fingerprint, [key], True)
            elif kind == "delete":
                self.held.pop(name, None)
            elif self.away or name not in self.held:
                self.door.missed(ticket, not self.away)
            else:
                self.door.fetched(ticket, self.held[name])
        return len(errands)
