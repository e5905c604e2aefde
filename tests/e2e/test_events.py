"""What stock engines tell besides answering: capabilities, and KV events where they say."""

from __future__ import annotations

import struct

import httpx
import msgspec
import zmq
from e2e import cases
from e2e.fleet import BLOCK_SIZE, KIND, MODEL, Engine, Lane
from harness import waiting

from engines.vllm.probe import probe

EVERY_PROMPT = "A long enough prompt fills whole blocks of the cache. " * 12


async def test_an_engine_tells_what_it_can(engines: list[Engine]) -> None:
    async with httpx.AsyncClient(timeout=10) as client:
        for engine, scheme in zip(engines, ("tcp://", "ipc://"), strict=True):
            found = await probe(client, engine.base_url)
            assert found.ready
            assert found.missing == ()
            assert [card.id for card in found.models] == [MODEL]
            assert found.models[0].max_model_len == 2048
            assert found.block_size == BLOCK_SIZE
            assert found.blocks > 8
            assert found.load is not None
            (source,) = found.events
            assert source.rank == 0
            assert source.endpoint.startswith(scheme)
            assert source.replay.startswith("tcp://127.0.0.1:")
            if KIND == "vllm":
                assert found.version == "0.32.0"
                assert found.hash_algorithm == "sha256"


async def test_a_request_through_the_gateway_is_seen_in_the_events_of_its_engine(
    engines: list[Engine], gateway: dict[str, Lane], http: httpx.Client
) -> None:
    async with httpx.AsyncClient(timeout=10) as client:
        found = {engine.address: await probe(client, engine.base_url) for engine in engines}
    path, body = cases.completion(prompt=EVERY_PROMPT, max_tokens=2)
    reply = http.post(gateway["express"].base_url + path, json=body)
    assert reply.status_code == 200, reply.text
    # Asked for again rather than subscribed to: nothing depends on who was there first.
    (source,) = found[reply.headers["x-engine"]].events
    stored = waiting.until(lambda: replayed(source.replay), "a BlockStored event", 10)
    assert {event["block_size"] for event in stored} == {BLOCK_SIZE}
    assert sum(len(event["block_hashes"]) for event in stored) >= 3
    for event in stored:
        assert len(event["token_ids"]) == BLOCK_SIZE * len(event["block_hashes"])


def replayed(endpoint: str) -> list[dict[str, list[int]]]:
    """All BlockStored events that a replay socket still has."""
    stored = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        socket.send_multipart([b"", struct.pack(">Q", 0)])
        while socket.poll(5000):
            _, _, sequence, payload = socket.recv_multipart()
            if sequence == b"\xff" * 8:
                break
            _, events, *_ = msgspec.msgpack.decode(payload)
            stored += [event for event in events if event["type"] == "BlockStored"]
    return stored
