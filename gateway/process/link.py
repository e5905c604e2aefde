"""A child's end of its channel to the master, on the child's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from itertools import count
from typing import Any

from gateway.process.channel import Broken, Channel, order_of
from gateway.process.orders import Address, Answer, Sockets

ASK_S = 30.0  # how long the master may take over a change
ASKING_MAX = 64


class Link:
    """`obey` is called for every order but those that are handled here; `orphaned` once, when the
    master is gone.
    """

    def __init__(
        self, channel: Channel, obey: Callable[[Any], None], orphaned: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._obey = obey
        self._orphaned = orphaned
        self._ids = count(1)
        self._asking: dict[int, asyncio.Future[Answer]] = {}
        self.sockets: dict[Address, socket.socket] = {}  # received and not yet taken

    def start(self) -> None:
        """Begins to listen to the master; needs a running loop."""
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._readable)

    def stop(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._channel.fileno())
        loop.remove_writer(self._channel.fileno())

    def tell(self, report: dict[str, Any]) -> None:
        """Reports to the master; nothing happens when there is none any more."""
        try:
            self._channel.report(report)
        except Broken:
            return  # the reader finds out too
        if self._channel.behind:
            asyncio.get_running_loop().add_writer(self._channel.fileno(), self._writable)

    async def ask(self, change: dict[str, Any]) -> Answer:
        """Asks the master for a change of upstreams and waits until all workers have made it."""
        if len(self._asking) >= ASKING_MAX:
            return Answer(0, "too many changes are under way")
        number = next(self._ids)
        self._asking[number] = asyncio.get_running_loop().create_future()
        self.tell({"change": {**change, "id": number}})
        try:
            async with asyncio.timeout(ASK_S):
                return await self._asking[number]
        except TimeoutError:
            return Answer(number, f"no answer within {ASK_S:g}s")
        finally:
            del self._asking[number]

    def _readable(self) -> None:
        try:
            frames = self._channel.receive()
        except Broken:
            self.stop()
            self._orphaned()
            return
        for body, descriptors in frames:
            order = order_of(body)
            if isinstance(order, Sockets):
                self._take(order, descriptors)
            elif isinstance(order, Answer):
                waiting = self._asking.get(order.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(order)
            else:
                self._obey(order)

    def _take(self, order: Sockets, descriptors: tuple[int, ...]) -> None:
        for address, number in zip(order.addresses, descriptors, strict=True):
            if address in self.sockets:
                os.close(number)
            else:
                self.sockets[address] = socket.socket(fileno=number)

    def _writable(self) -> None:
        with contextlib.suppress(Broken):  # the reader finds out too
            self._channel.flush()
        if not self._channel.behind:
            asyncio.get_running_loop().remove_writer(self._channel.fileno())
