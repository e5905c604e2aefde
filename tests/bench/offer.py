"""How requests are offered: at a fixed rate, or again as soon as a connection has its answer.

`Load` holds the connections and their tally. A connection that the other side closes between two
replies is replaced; one that breaks in a reply has been counted as an error before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

import prompts
import wire
from client import Connection, Tally

GRACE_S = 10.0  # how long replies may still come after the last window
OPENING = 50  # connections opened at once
ERRORS = 1000  # after so many, lost connections are no longer replaced: this run is void


Asker = Callable[[], wire.Ask]
Due = Callable[[Connection], None]


class Load:
    """Connections to one proxy (or to the engines themselves) and what came of them."""

    def __init__(self, ports: list[int], pids: list[int]) -> None:
        self.ports = ports
        self.pids = pids
        self.tally = Tally()
        self.loop = asyncio.get_running_loop()
        self.free: deque[Connection] = deque()
        self.busy = 0
        self.lags: list[float] = []  # how late the pacer woke, s: the noise of this machine
        self.asked = 0
        self.opened = 0

    async def open(self, count: int) -> list[Connection]:
        opened: list[Connection] = []
        for start in range(0, count, OPENING):
            batch = range(start, min(start + OPENING, count))
            opened += await asyncio.gather(*(self.connect() for _ in batch))
        return opened

    async def connect(self) -> Connection:
        port = self.ports[self.opened % len(self.ports)]
        self.opened += 1
        host = b"127.0.0.1:%d" % port
        _, connection = await self.loop.create_connection(
            lambda: Connection(self.tally, host), "127.0.0.1", port
        )
        return connection

    def ask(self, stream: bool, chunks: int, interval_ms: int) -> wire.Ask:
        self.asked += 1
        return wire.Ask(b"bench-%018d" % self.asked, stream, chunks, interval_ms, False)

    def ask_prompt(self, first: int) -> wire.Ask:
        """One of `prompts`, each once, from number `first` on."""
        number = first + self.asked
        self.asked += 1
        messages = prompts.messages(number)
        return wire.Ask(wire.PROMPT_NONCE % number, False, 20, 0, False, messages)

    async def wait(self, until: float) -> None:
        while (left := until - monotonic()) > 0:
            await asyncio.sleep(left)

    async def drain(self, deadline_s: float) -> None:
        """Wait for running replies; those that do not come are errors."""
        deadline = monotonic() + deadline_s
        while self.busy and monotonic() < deadline:
            await asyncio.sleep(0.02)
        for _ in range(self.busy):
            self.tally.error("never ended")

    def give_back(self, connection: Connection) -> None:
        self.busy -= 1
        if connection.open:
            self.free.append(connection)
        elif self.tally.errors.total() < ERRORS:
            self.loop.create_task(self.replace())

    async def replace(self) -> None:
        try:
            self.free.append(await self.connect())
        except OSError as error:
            self.tally.error(f"connect: {error.strerror or error}")


async def pace(load: Load, rate: float, seconds: float, ask: Asker, due: Due) -> None:
    """Offer `rate` requests a second for `seconds`; `due(connection)` is called at each one's end.

    Timers have steps of 1 ms, so a few go out at once. One that finds no free connection waits for
    one, and its latency counts from when it should have gone.
    """
    start = monotonic()
    sent, wanted, waiting = 0, 0, False
    while True:
        now = monotonic()
        wanted = int(min(now - start, seconds) * rate)
        while sent < wanted and load.free:
            connection = load.free.popleft()
            load.busy += 1
            sent += 1
            connection.ask(ask(), due, start + sent / rate if waiting else 0.0)
        waiting = sent < wanted
        if now - start >= seconds and (not waiting or now - start >= seconds + GRACE_S):
            break
        await asyncio.sleep(0.001)
        load.lags.append(monotonic() - now - 0.001)
    for _ in range(wanted - sent):
        load.tally.error("never sent: no free connection")


async def keep_asking(load: Load, seconds: float, ask: Asker, due: Due) -> None:
    """Every connection asks again as soon as it has its answer, for `seconds`."""
    until = monotonic() + seconds

    def again(connection: Connection) -> None:
        due(connection)
        if load.free and monotonic() < until:
            load.busy += 1
            load.free.popleft().ask(ask(), again)

    for _ in range(len(load.free)):
        load.busy += 1
        load.free.popleft().ask(ask(), again)
    await load.wait(until)
    await load.drain(GRACE_S)
