"""Where blocks lie in the arena of kvbm's daemon, and how another process opens it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Seat(NamedTuple):
    """Where a block lies: the first page (4096 bytes) of its slot, and which use of the slot.
    `tier`: where it was found (1 host, 2 disk, 3 remote)."""

    page: int
    generation: int
    tier: int = 1

    @property
    def place(self) -> tuple[int, int]:
        return self.page, self.generation


@dataclass(frozen=True, slots=True)
class ArenaPlace:
    """How another process of this machine opens the arena: descriptor `fd` of process `pid`, which
    is the file `inode` of `size` bytes. `epoch` differs for another daemon's arena."""

    pid: int
    fd: int
    inode: int
    size: int
    epoch: int

    @property
    def path(self) -> str:
        return f"/proc/{self.pid}/fd/{self.fd}"
