"""What came of work on the whole object store, while it goes on and at its end. Needs no store."""

from __future__ import annotations

from dataclasses import dataclass, field

NAMED_MAX = 1024  # damaged blocks that are named; later ones are counted only


@dataclass(slots=True)
class Cleared:
    """`blocks`: known ones that lie nowhere in the store any more; `objects` deleted. `failed`:
    objects that could not be (of a drop of single blocks, those blocks); `why`: what stood in the
    way, of those or of looking further.
    """

    blocks: int = 0
    objects: int = 0
    failed: int = 0
    why: str = ""


@dataclass(slots=True)
class Inspected:
    """Blocks; `size`: bytes of their objects. `bad` were not what was written; `failed`: objects
    that could not be read, or if they were bad, not be deleted; `why`: what stood in the way.
    """

    checked: int = 0
    size: int = 0
    bad: int = 0
    failed: int = 0
    why: str = ""
    done: bool = False
    named: list[tuple[bytes, bytes]] = field(default_factory=list)  # namespace, key

    def found_bad(self, fingerprint: bytes, keys: list[bytes]) -> None:
        self.bad += len(keys)
        self.named += [(fingerprint, key) for key in keys[: NAMED_MAX - len(self.named)]]
