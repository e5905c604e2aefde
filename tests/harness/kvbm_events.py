"""What a kvbm daemon publishes, by hand; and what an engine has published, to publish it again."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

import msgspec
import zmq

PLACES = {
    "host": {"medium": "CPU", "locality": "LOCAL"},
    "disk": {"medium": "STORAGE", "locality": "LOCAL"},
    "remote": {"medium": "STORAGE", "locality": "REMOTE"},
}


class KvbmEvents:
    """A publisher with a replay socket. Use as a context manager."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._pub, self._replay = (self._context.socket(kind) for kind in (zmq.PUB, zmq.ROUTER))
        ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (self._pub, self._replay)]
        self.endpoint, self.replay = (f"tcp://127.0.0.1:{port}" for port in ports)
        self._kept: list[bytes] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer)

    @property
    def params(self) -> str:
        """Of the `server` lines of engines that reach it."""
        return f"kvbm={self.endpoint} kvbm_replay={self.replay}"

    def publish(self, name: str, hashes: list[int], tier: str) -> None:
        told: dict[str, Any] = {"type": name, "block_hashes": hashes, **PLACES[tier]}
        if name == "BlockStored":
            told |= {"parent_block_hash": None, "token_ids": [], "block_size": 0}
        payload = msgspec.msgpack.encode([time.time(), [told], None])
        with self._lock:
            number = len(self._kept)
            self._kept.append(payload)
            self._pub.send_multipart([b"", number.to_bytes(8, "big"), payload])

    def _answer(self) -> None:
        while not self._over.is_set():
            if not self._replay.poll(50):
                continue
            who, _, first = self._replay.recv_multipart()
            with self._lock:
                kept = list(enumerate(self._kept))[int.from_bytes(first, "big") :]
            for number, payload in kept:
                self._replay.send_multipart([who, b"", b"", number.to_bytes(8, "big"), payload])
            self._replay.send_multipart([who, b"", b"", b"\xff" * 8, b""])

    def __enter__(self) -> KvbmEvents:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._context.destroy(0)


def stored(replay: str) -> list[int]:
    """Hashes of the blocks that an engine has stored, by its replay socket, oldest first."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(replay)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        hashes: list[int] = []
        while True:
            assert socket.poll(10_000), "the replay does not answer"
            _, _, number, payload = socket.recv_multipart()
            if number == b"\xff" * 8:
                return hashes
            for event in msgspec.msgpack.decode(payload)[1]:
                if event["type"] == "BlockStored":
                    hashes += event["block_hashes"]
