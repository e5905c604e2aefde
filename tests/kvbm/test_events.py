"""Events of the daemon: in vLLM's form, numbered, given again; and what the gateway's index makes
of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from harness.blocks import DESCRIPTOR, PROBE, Engine, name
from harness.kvbm_daemon import DISK, Served
from harness.waiting import until

from kvbm.conf.model import Events
from kvbm.events import Kept, Space, events, payload
from kvbm.publisher import Publisher
from native import _core

END = b"\xff" * 8
STORAGE = {"medium": "STORAGE", "locality": "LOCAL", "ownership": "kvbm"}


def number(n: int) -> int:
    """vLLM's number of a test's block."""
    return int.from_bytes(name(n)[24:32], "big")


class Listener:
    """Follows a publisher as the gateway does: live batches, and those it asks for again."""

    def __init__(self, endpoint: str, replay: str = "") -> None:
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.subscribe(b"")
        self.live.connect(endpoint)
        self.replay = replay
        self.batches: list[tuple[int, list[Any]]] = []

    def poll(self) -> None:
        while self.live.poll(0):
            _, seq, data = self.live.recv_multipart()
            self.batches.append((struct.unpack(">Q", seq)[0], msgspec.msgpack.decode(data)))

    def told(self) -> list[dict[str, Any]]:
        self.poll()
        return [event for _, batch in self.batches for event in batch[1]]

    def ask(self, first: int) -> list[tuple[int, list[Any]]]:
        """Everything from a number on, as the replay socket gives it."""
        sock = self.context.socket(zmq.DEALER)
        sock.connect(self.replay)
        sock.send_multipart([b"", struct.pack(">Q", first)])
        found = []
        while True:
            assert sock.poll(10_000), "no answer of the replay socket"
            _, _, seq, data = sock.recv_multipart()
            if seq == END:
                sock.close(linger=0)
                return found
            found.append((struct.unpack(">Q", seq)[0], msgspec.msgpack.decode(data)))

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def core(tmp_path: Path) -> Iterator[_core.KvbmCore]:
    disk = _core.KvbmDisk(str(tmp_path / "disk"), 64 << 20, segment_bytes=1 << 20)
    core = _core.KvbmCore(str(tmp_path / "s"), disk=disk)
    yield core
    core.stop()


@pytest.fixture
def engine(core: _core.KvbmCore, tmp_path: Path) -> Iterator[Engine]:
    with Engine(str(tmp_path / "s")) as engine:
        yield engine.up()


def publisher(core: _core.KvbmCore, **more: Any) -> Publisher:
    options = Events("tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*", **more)
    return Publisher(options, core)


def test_blocks_come_and_go_as_vllm_says_it(core: _core.KvbmCore, engine: Engine) -> None:
    engine.store([1])
    one = publisher(core, topic="kv")
    listener = Listener(one.endpoint, one.replay)
    one.start()
    engine.store([2])
    until(lambda: one.batches >= 2, "the batches")
    engine.client.drop([name(1)])
    until(lambda: any(e["type"] == "BlockRemoved" for e in listener.told()), "the removal")
    batches = listener.ask(0)
    assert [seq for seq, _ in batches] == list(range(len(batches)))
    told = [event for _, batch in batches for event in batch[1]]
    stored = {h for event in told if event["type"] == "BlockStored" for h in event["block_hashes"]}
    assert stored == {number(1), number(2)}
    removed = [event for event in told if event["type"] == "BlockRemoved"]
    assert removed == [{"type": "BlockRemoved", "block_hashes": [number(1)], **STORAGE}]
    first = told[0]
    assert {key: first[key] for key in STORAGE} == STORAGE
    assert (first["token_ids"], first["parent_block_hash"], first["block_size"]) == ([], None, 0)
    assert listener.ask(len(batches) - 1) == batches[-1:]
    assert listener.ask(10**6) == []
    listener.close()
    one.stop()


def test_who_comes_late_is_given_what_is_there(core: _core.KvbmCore, engine: Engine) -> None:
    one = publisher(core, buffer=3)
    one.start()
    for n in range(8):
        engine.store([n])
        until(lambda n=n: one.batches == n + 1, "a batch")  # type: ignore[misc]
    engine.client.drop([name(0)])
    until(lambda: one.batches == 9, "the removal")
    listener = Listener(one.endpoint, one.replay)
    batches = listener.ask(0)
    assert [seq for seq, _ in batches] == list(range(9)), "numbers have no hole"
    held: set[int] = set()
    for _, batch in batches:
        for event in batch[1]:
            hashes = set(event["block_hashes"])
            held = held | hashes if event["type"] == "BlockStored" else held - hashes
    assert held == {number(n) for n in range(1, 8)}
    listener.close()
    one.stop()


def test_the_gateways_index_credits_the_lower_tier(core: _core.KvbmCore, engine: Engine) -> None:
    """The engine's own event tells the tokens of a hash; the daemon's the tier it lies in."""
    tokens = list(range(32))
    device = [{
        "type": "BlockStored", "block_hashes": [number(1), number(2)], "parent_block_hash": None,
        "token_ids": tokens, "block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None,
    }]  # fmt: skip
    gone = [{"type": "BlockRemoved", "block_hashes": [number(1), number(2)], "medium": "GPU"}]
    space = Space.of((0, engine.client.fingerprint or b"", PROBE, DESCRIPTOR))
    keys = engine.client.keys([name(1), name(2)])
    stored = [("stored", 2, 0, key, 1) for key in keys]
    removed = [("removed", 2, 0, keys[1], 1)]
    index = _core.Index(1 << 22)
    slot = index.add_engine()
    prompt = _core.Prompt.of_list([*tokens, 7])

    def matched() -> tuple[int, int, int, int]:
        [match] = index.match(prompt, [slot], 0.0)
        return match.device, match.host, match.disk, match.remote

    index.apply(slot, payload(1.0, device))
    index.apply(slot, payload(2.0, list(events(stored, {0: space}))))
    index.apply(slot, payload(3.0, gone))
    assert matched() == (0, 0, 32, 0)
    index.apply(slot, payload(4.0, list(events(removed, {0: space}))))
    assert matched() == (0, 0, 16, 0)


def test_models_are_kept_apart(core: _core.KvbmCore, engine: Engine) -> None:
    mine, other = publisher(core, model="m"), publisher(core, model="n")
    mine.start()
    other.start()
    engine.store([1])
    until(lambda: mine.batches == 1, "the batch")
    engine.store([2])
    until(lambda: mine.batches == 2, "the batch")
    assert other.batches == 0
    mine.stop()
    other.stop()


def test_every_group_of_layers_is_told(engine: Engine) -> None:
    descriptor = b'{"model":"m","groups":[["a"],["b"]]}'
    space = Space.of((0, engine.client.fingerprint or b"", PROBE, descriptor))
    keys = engine.client.keys([name(1, 0), name(2, 1)])
    assert {number(1), number(2)} <= set(space.hashes(keys))
    assert Space.of((0, b"", PROBE, b"no json")).model == ""


@pytest.mark.parametrize("size", [8, 16, 32])
def test_shorter_hashes_are_told_as_vllm_shortens_them(engine: Engine, size: int) -> None:
    space = Space.of((0, engine.client.fingerprint or b"", PROBE, DESCRIPTOR))
    keys = engine.client.keys([bytes(range(1, size + 1)) + bytes(4)])
    assert space.hashes(keys) == [int.from_bytes(range(size - 7, size + 1), "big")]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbm.events.KEPT_BYTES_MAX", 10)
    kept = Kept(3)
    for n in range(5):
        kept.add(b"%d" % n)
    assert (kept.oldest, list(kept.since(0))) == (2, [(2, b"2"), (3, b"3"), (4, b"4")])
    assert list(kept.since(4)) == [(4, b"4")]
    kept.add(bytes(10))
    assert next(iter(kept.since(0)))[0] == 5
    kept.clear()
    assert (kept.next, list(kept.since(0))) == (0, [])


def test_the_daemon_publishes_what_its_disk_held(tmp_path: Path) -> None:
    text = f"events ipc://{tmp_path}/e replay=ipc://{tmp_path}/r;\n{DISK}"
    with Served(tmp_path, text) as served, Engine(served.socket) as engine:
        engine.up().store(range(3))
        assert served.end() == 0
        served.start()
        listener = Listener(f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r")
        until(lambda: len(listener.ask(0)) >= 1, "the blocks of before")
        told = [event for _, batch in listener.ask(0) for event in batch[1]]
        assert {h for e in told for h in e["block_hashes"]} == {number(n) for n in range(3)}
        [shown] = served.status()["events"]
        assert shown["endpoint"] == f"ipc://{tmp_path}/e"
        listener.close()


def test_the_first_batches_tell_of_every_tier(tmp_path: Path) -> None:
    """Who follows anew must not lose what lies in the store only."""
    disk = _core.KvbmDisk(str(tmp_path / "disk"), 64 << 20, segment_bytes=1 << 20)
    core = _core.KvbmCore(str(tmp_path / "s"), disk=disk, remote_blocks=1000)
    with Engine(str(tmp_path / "s")) as engine:
        engine.up().store([1])
        assert engine.client.fingerprint is not None
        keys = engine.client.keys([name(1), name(2)])
        core.remote().known(engine.client.fingerprint, keys)
        one = publisher(core)
        listener = Listener(one.endpoint, one.replay)
        one.start()
        until(lambda: one.batches >= 2, "the first batches")
        told = [
            [(event["locality"], event["block_hashes"]) for event in batch[1]]
            for _, batch in listener.ask(0)[:2]
        ]
        # Before any change: what is on the disk with its other tiers, then what is not.
        assert told == [[("LOCAL", [number(1)]), ("REMOTE", [number(1)])],
                        [("REMOTE", [number(2)])]]  # fmt: skip
        listener.close()
        one.stop()
    core.stop()
