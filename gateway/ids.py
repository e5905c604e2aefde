"""Request ids: 32 hexadecimal digits, unique over workers, restarts and gateways."""

from __future__ import annotations

import os
from itertools import count


class Ids:
    """A random half, drawn once, and a counter that starts at a random place: no system call per
    id.
    """

    __slots__ = ("_counter", "_prefix")

    def __init__(self) -> None:
        self._prefix = os.urandom(8).hex()
        self._counter = count(int.from_bytes(os.urandom(6), "big"))

    def next(self) -> str:
        return f"{self._prefix}{next(self._counter):016x}"
