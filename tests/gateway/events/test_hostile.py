"""Publishers that send what no engine would, or too much of it: others and their requests go on."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from harness import kv_events as kv
from harness.kv_frames import stored
from harness.watched import TEXT, conf

from gateway.kv import feed, trust
from native._core import Prompt

SIZE = 16


class Voice:
    """A publisher's socket; `say` sends whatever it is told."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.linger = 0
        self._pub.sndhwm = 200
        self.endpoint = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"

    def say(self, *frames: bytes) -> None:
        self._pub.send_multipart(frames)

    def batch(self, number: int, *events: Any, at: float = 0.0) -> None:
        payload = msgspec.msgpack.encode([at or time.time(), events, 0])
        self.say(b"", number.to_bytes(8, "big"), payload)

    def close(self) -> None:
        self._context.destroy(0)


@pytest.fixture
def voice() -> Iterator[Voice]:
    one = Voice()
    yield one
    one.close()


async def joined(watch: Any, sim: Any, voice: Voice, **more: str) -> Any:
    """A gateway that follows an engine, and another one that the voice speaks for."""
    well, odd = sim(), sim()
    gw = await watch(conf(well.address, f"{odd.address} events={voice.endpoint}", **more))
    await gw.wait("exact", at=0)
    await gw.until(lambda: gw.state(1)[0] == "healing", "the odd one to be connected")
    gw.well = well
    return gw


async def goes_on(gw: Any, word: str) -> None:
    """The other engine's events still come, and requests are answered."""
    kv.ask(gw.well, f"{word} " + TEXT)
    prompt = kv.prompt(gw.well, f"{word} " + TEXT)
    await gw.until(lambda: gw.matched(prompt)[0], "the other engine's events")
    assert gw.state(0)[0] == "exact"
    assert (await gw.complete(word)).status_code == 200


async def test_frames_of_any_shape_and_content(sim: Any, watch: Any, voice: Voice) -> None:
    gw = await joined(watch, sim, voice)
    rnd = random.Random(3)
    for number in range(3000):
        count = rnd.randrange(1, 6)
        frames = [rnd.randbytes(rnd.choice((0, 1, 8, 8, 40))) for _ in range(count)]
        if number % 3 == 0:
            frames = [b"", number.to_bytes(8, "big"), rnd.randbytes(rnd.randrange(60))]
        voice.say(*frames)
        if number % 100 == 0:
            await asyncio.sleep(0)
    await goes_on(gw, "noise")
    await gw.until(lambda: gw.status(1)["events"]["malformed"] > 10, "noise to be counted")
    assert gw.state(1)[0] != "exact"


async def test_numbers_at_their_ends(sim: Any, watch: Any, voice: Voice) -> None:
    gw = await joined(watch, sim, voice)
    event = stored(list(range(4 * SIZE)), SIZE)
    for number in (2**64 - 2, 2**64 - 1, 0, 1, 2**63, 1, 0):
        voice.batch(number, event)
        voice.batch(number, at=-1e308)
        voice.batch(number, at=float("nan"))
    await goes_on(gw, "ends")


async def test_two_engines_at_one_endpoint_are_not_believed(
    sim: Any, watch: Any, voice: Voice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind something that passes on what several publish. Their numbers go up and down."""
    monkeypatch.setattr(trust, "RESTARTS_S", 3.0)
    gw = await joined(watch, sim, voice)
    first, second = list(range(4 * SIZE)), list(range(9000, 9000 + 4 * SIZE))
    number = 0
    while gw.state(1) != ("approximate", trust.RESTLESS):
        voice.batch(100 + number, stored(first, SIZE))
        voice.batch(number, stored(second, SIZE))
        number += 1
        await asyncio.sleep(0.01)
        assert number < 1000, gw.state(1)
    await goes_on(gw, "both")

    def one_is_left() -> bool:
        nonlocal number
        voice.batch(number, stored(second, SIZE))
        number += 1
        known = gw.matched(Prompt.of_list([*second, 1]))[1] > 0
        return bool(known and gw.state(1)[0] == "healing")

    await gw.until(one_is_left, "the one that is left to be believed")


async def test_a_flood_of_blocks_stays_within_the_index(
    sim: Any, watch: Any, voice: Voice
) -> None:
    """As many blocks as can be sent: requests and the other engine's events are not held up."""
    gw = await joined(watch, sim, voice, more="")
    hashes = iter(range(1 << 40, 1 << 50))
    event = msgspec.to_builtins(stored(list(range(2000 * SIZE)), SIZE))
    number = 0
    for turn in range(5):
        for _ in range(40):
            event["block_hashes"] = [next(hashes) for _ in range(2000)]
            voice.batch(number, event)
            number += 1
        await goes_on(gw, f"flood {turn}")
    stats = gw.app.table.index.stats()
    assert stats.pairs * 64 <= gw.app.config.kv_index_bytes
    assert gw.status(1)["events"]["batches"] > 0


async def test_a_message_that_is_too_large_ends_its_connection_only(
    sim: Any, watch: Any, voice: Voice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzmq gives such a peer up for good."""
    monkeypatch.setattr(feed, "MESSAGE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(feed, "REDIAL_S", 0.5)
    gw = await joined(watch, sim, voice)
    for number in range(3):
        voice.say(b"", number.to_bytes(8, "big"), bytes(2 << 20))
    await goes_on(gw, "large")
    assert gw.state(1)[0] != "exact"
    number = 100

    def back() -> bool:
        nonlocal number
        voice.batch(number, stored(list(range(4 * SIZE)), SIZE))
        number += 1
        return bool(gw.matched(Prompt.of_list([*range(4 * SIZE), 1]))[1])

    await gw.until(back, "it to be heard again")
