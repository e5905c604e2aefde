"""KV events over ZMQ, in vLLM 0.32's exact form: frames topic, 8-byte sequence number, msgpack
batch `[time, [event maps], rank]`; a ROUTER socket replays what is still buffered.

One thread owns both sockets, so live and replayed batches never interleave wrongly, and the
engine's loop only appends to a queue. A full queue loses the oldest batch and counts it: the real
engine would stop instead, which no test wants.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from .cache import Cleared, Event, Removed, Stored, external
from .msgpack import pack
from .settings import EventSettings

END_SEQ = b"\xff" * 8
_DOWN = object()
_RESTART = object()

GARBAGE = b"\xc1 this is no batch"


@dataclass(frozen=True, slots=True)
class Sending:
    """What becomes of one batch."""

    delays_s: tuple[float, ...] = (0.0,)  # one for each time it is sent
    kept: bool = True  # the replay buffer gets it
    garbage: bool = False  # sent as something that is no batch


SEND = Sending()
Faulty = Callable[[], Sending]
# How a replay goes: whole, silent (no answer), hole (all but the second half's first batch), cut
# (the first half, and no sign of an end).
Replayed = Callable[[], str]


def event_map(event: Event, block_size: int, bytes_hashes: bool = False) -> dict[str, Any]:
    """One event as vLLM sends it: a map with a `type`, defaults left out."""
    def told(digest: bytes) -> int | bytes:
        return digest if bytes_hashes else external(digest)

    if isinstance(event, Stored):
        out: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [told(h) for h in event.hashes],
            "parent_block_hash": None if event.parent is None else told(event.parent),
            "token_ids": event.token_ids, "block_size": block_size, "lora_id": event.lora_id,
            "medium": "GPU", "lora_name": event.lora_name, "extra_keys": event.extra_keys,
            "group_idx": 0, "kv_cache_spec_kind": "full_attention",
        }
        if event.session_id is not None:
            out["session_id"] = event.session_id
        return out
    if isinstance(event, Removed):
        return {"type": "BlockRemoved", "block_hashes": [told(event.hash)], "medium": "GPU",
                "group_idx": 0}
    assert isinstance(event, Cleared)
    return {"type": "AllBlocksCleared"}


def event_array(event: dict[str, Any]) -> list[Any]:
    """The same in the form of older versions: values in their order, the name first."""
    order = ["type", "block_hashes", "medium"]
    if event["type"] == "BlockStored":
        order[2:2] = ["parent_block_hash", "token_ids", "block_size", "lora_id"]
        order += ["lora_name", "extra_keys"]
    return [event[name] for name in order if name in event]


def offset_port(endpoint: str | None, rank: int) -> str | None:
    """The endpoint of data-parallel rank `rank`: its port is that much higher, 0 stays 0."""
    if not endpoint or rank == 0:
        return endpoint
    if endpoint.startswith("inproc"):
        return f"{endpoint}_dp{rank}"
    if not endpoint.startswith("tcp"):
        raise ValueError(f"endpoint `{endpoint}` cannot serve rank {rank}: only tcp and inproc can")
    base, _, port = endpoint.rpartition(":")
    return endpoint if port == "0" else f"{base}:{int(port) + rank}"


class Publisher:
    """Publisher of one rank. `publish`, `restart` and `close` are for the engine's thread.

    Raises zmq.ZMQError at construction when an endpoint cannot be bound.
    """

    def __init__(self, settings: EventSettings, rank: int, block_size: int,
                 host: str = "127.0.0.1") -> None:
        self._settings, self._rank, self._block_size = settings, rank, block_size
        self.sending: Faulty = lambda: SEND
        self.replaying: Replayed = lambda: "whole"
        self.next_seq = 0
        self.lost = 0
        self._topic = settings.topic.encode()
        self._queue: deque[Any] = deque()
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(settings.hwm)
        endpoint = offset_port(settings.endpoint, rank)
        assert endpoint is not None
        binds = "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc:", "inproc:"))
        self.endpoint = _bind(self._pub, endpoint, host) if binds else endpoint
        if not binds:
            self._pub.connect(endpoint)
        self._router: zmq.Socket[bytes] | None = None
        self.replay_endpoint = offset_port(settings.replay_endpoint, rank)
        if self.replay_endpoint is not None:
            self._router = self._context.socket(zmq.ROUTER)
            self.replay_endpoint = _bind(self._router, self.replay_endpoint, host)
        self._wake_in = self._context.socket(zmq.PAIR)
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_in.bind("inproc://wake")
        self._wake_out.connect("inproc://wake")
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        self._late: list[tuple[float, int, bytes]] = []
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"kv-events-{rank}")
        self._thread.start()

    def config(self, port: int = 0) -> dict[str, Any]:
        """This rank's entry of GET /kv_event_sources; `port` is told in place of the real one."""
        s = self._settings
        endpoint = f"{self.endpoint.rpartition(':')[0]}:{port}" if port else self.endpoint
        return {
            "enable_kv_cache_events": True, "publisher": s.publisher, "endpoint": endpoint,
            "replay_endpoint": self.replay_endpoint, "buffer_steps": s.buffer_steps, "hwm": s.hwm,
            "max_queue_size": s.max_queue_size, "topic": s.topic,
        }

    def publish(self, events: list[Event]) -> None:
        """Sends one batch; never waits."""
        seq = self.next_seq
        self.next_seq += 1
        self._put((seq, time.time(), events, self.sending()))

    def restart(self) -> None:
        """Sequence numbers start at 0 again and the replay buffer is empty."""
        self.next_seq = 0
        self._put(_RESTART)

    def close(self) -> None:
        self._put(_DOWN)
        self._thread.join(5)
        self._wake_out.close(0)
        self._context.term()

    def _put(self, item: Any) -> None:
        if len(self._queue) >= self._settings.max_queue_size:
            self._queue.popleft()
            self.lost += 1
        self._queue.append(item)
        try:
            self._wake_out.send(b"", zmq.NOBLOCK)
        except zmq.Again:
            return  # the thread has a thousand wake-ups waiting

    # -- the publisher's thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_in, zmq.POLLIN)
        if self._router is not None:
            poller.register(self._router, zmq.POLLIN)
        running = True
        while running:
            wait_ms = None
            if self._late:
                wait_ms = max(0, round((min(self._late)[0] - time.monotonic()) * 1000))
            ready = dict(poller.poll(wait_ms))
            if self._wake_in in ready:
                self._wake_in.recv()
            while self._queue and running:
                running = self._handle(self._queue.popleft())
            self._send_late()
            if self._router is not None and self._router in ready:
                self._replay(self._router)
        for sock in (self._pub, self._router, self._wake_in):
            if sock is not None:
                sock.close(0)

    def _handle(self, item: Any) -> bool:
        if item is _DOWN:
            return False
        if item is _RESTART:
            self._buffer.clear()
            return True
        seq, when, events, sending = item
        told: list[Any] = [
            event_map(e, self._block_size, self._settings.bytes_hashes) for e in events]
        if self._settings.arrays:
            told = [event_array(event) for event in told]
        payload = pack([when, told, self._rank])
        if sending.kept:
            self._buffer.append((seq, payload))
        if sending.garbage:
            payload = GARBAGE
        for delay in sending.delays_s:
            if delay > 0:
                self._late.append((time.monotonic() + delay, seq, payload))
            else:
                self._send(seq, payload)
        return True

    def _send(self, seq: int, payload: bytes) -> None:
        self._pub.send_multipart((self._topic, seq.to_bytes(8, "big"), payload))

    def _send_late(self) -> None:
        now = time.monotonic()
        due = sorted(entry for entry in self._late if entry[0] <= now)
        self._late = [entry for entry in self._late if entry[0] > now]
        for _when, seq, payload in due:
            self._send(seq, payload)

    def _replay(self, router: zmq.Socket[bytes]) -> None:
        frames = router.recv_multipart()
        if len(frames) != 3:
            return
        client, _, start = frames
        first = int.from_bytes(start, "big")
        how = self.replaying()
        if how == "silent":
            return
        batches = [(seq, payload) for seq, payload in self._buffer if seq >= first]
        if how == "hole" and len(batches) > 2:
            del batches[len(batches) // 2]
        if how == "cut":
            del batches[(len(batches) + 1) // 2 :]
        for seq, payload in batches:
            router.send_multipart((client, b"", self._topic, seq.to_bytes(8, "big"), payload))
        if how != "cut":
            router.send_multipart((client, b"", b"", END_SEQ, b""))


def _bind(sock: zmq.Socket[bytes], endpoint: str, host: str) -> str:
    """Binds; a wildcard address with port 0 takes the engine's own address, as vLLM's does."""
    if not endpoint.startswith("tcp://*:0"):
        sock.bind(endpoint)
        return endpoint
    sock.bind(f"tcp://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:0")
    return sock.getsockopt_string(zmq.LAST_ENDPOINT)
