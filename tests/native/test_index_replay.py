"""What real vLLM 0.32 engines announced, replayed: the index says what they then had cached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from harness import kv_frames
from harness.kv_capture import SIZE, VECTORS, Capture, hashes, steps

from native._core import Index, Match, Prompt


def fresh(engines: int = 1) -> tuple[Index, list[int]]:
    index = Index(1 << 24)
    return index, [index.add_engine() for _ in range(engines)]


def tiers(match: Match) -> tuple[int, int, int, int]:
    return match.device, match.host, match.disk, match.remote


# --- one engine, requests and frames (kv_events_vllm.jsonl) --------------------------------------


def recording() -> Iterator[tuple[dict[str, Any], list[bytes]]]:
    """Each request with the payloads published while it ran."""
    payloads: list[bytes] = []
    for line in (VECTORS / "kv_events_vllm.jsonl").read_text().splitlines():
        item = json.loads(line)
        if item["kind"] == "frame":
            payloads.append(bytes.fromhex(item["frames_hex"][2]))
        else:
            yield item, payloads
            payloads = []


def computed_from(payloads: list[bytes], positions: dict[int, int]) -> int | None:
    """The block from which an engine stored what it computed; everything before was a hit."""
    first = None
    for payload in payloads:
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] != "BlockStored":
                continue
            parent = event["parent_block_hash"]
            start = 0 if parent is None else positions[parent] + 1
            first = start if first is None else first
            for at, name in enumerate(event["block_hashes"]):
                positions[name] = start + at
    return first


def test_before_every_request_the_match_is_what_the_engine_then_did_not_compute() -> None:
    index, [slot] = fresh()
    positions: dict[int, int] = {}
    matched = {}
    for request, payloads in recording():
        if request["prompt_token_ids"] is not None:
            prompt = Prompt.of_list(request["prompt_token_ids"], None, request["cache_salt"])
            match = index.match(prompt, [slot], 0.0)[0]
            first = computed_from(payloads, positions)
            full = prompt.tokens // SIZE
            # A prompt that fills no block further than its hit stores nothing but its decode.
            assert match.device == min(first or 0, full) * SIZE, request["name"]
            assert match.total == match.device
            matched[request["name"]] = match.device
        for payload in payloads:
            applied = index.apply(slot, payload)
            assert (applied.ignored, applied.malformed, applied.orphans) == ({}, {}, 0)
            assert applied.dp_rank == 0
    assert index.block_size(slot) == SIZE
    hits = {name: tokens for name, tokens in matched.items() if tokens}
    assert hits == {
        "A again (full hit: 2 blocks hit, last recomputed)": 64,
        "B shares 64 tokens with A": 64,
    }


def payloads() -> list[bytes]:
    return [payload for _, batches in recording() for payload in batches]


def contents(index: Index, slot: int) -> list[int]:
    """Tokens matched of every prompt of the recording, with what was decoded after it."""
    found = []
    for request, _ in recording():
        if request["prompt_token_ids"] is not None:
            ids = request["prompt_token_ids"] + request["token_ids"]
            prompt = Prompt.of_list(ids, None, request["cache_salt"])
            found.append(index.match(prompt, [slot], 0.0)[0].device)
    return found


def test_the_state_before_the_reset_is_what_stores_and_removals_leave() -> None:
    index, [slot] = fresh()
    copies: dict[int, int] = {}
    for payload in payloads()[:13]:
        index.apply(slot, payload)
        for event in msgspec.msgpack.decode(payload)[1]:
            change = 1 if event["type"] == "BlockStored" else -1
            for name in event["block_hashes"]:
                copies[name] = copies.get(name, 0) + change
    left = sum(1 for count in copies.values() if count)
    assert min(copies.values()) == 0
    assert index.stats().pairs == left
    expected = []
    for request, _ in recording():
        if request["prompt_token_ids"] is not None:
            ids = request["prompt_token_ids"] + request["token_ids"]
            there = [copies.get(name, 0) > 0 for name in hashes(ids[:-1], request["cache_salt"])]
            expected.append([*there, False].index(False) * SIZE)
    # Of the 4 000-token prompt the 3 000-token one has evicted the end.
    assert contents(index, slot) == expected == [0, 0, 0, 0, 0, 0, 0, 2080, 2976, 0]


def test_a_reset_shows_with_the_next_request_and_leaves_only_what_came_after_it() -> None:
    index, [slot] = fresh()
    for payload in payloads()[:3]:
        index.apply(slot, payload)
    assert contents(index, slot)[0] == 96
    # The engine was reset here, and held that back: the next request is a miss we did not expect.
    applied = index.apply(slot, payloads()[13])
    assert (applied.cleared, applied.stored) == (1, 3)
    assert contents(index, slot) == [96, 96, 64, 0, 0, 0, 0, 0, 0, 96]
    assert index.block_size(slot) == SIZE


def test_a_late_join_is_healed_by_a_replay() -> None:
    index, [slot] = fresh()
    late = payloads()[1:8]
    assert sum(index.apply(slot, payload).orphans for payload in late) > 0
    assert contents(index, slot)[0] == 0
    applied = index.apply(slot, payloads()[0])
    assert applied.adopted > 0
    assert contents(index, slot)[:3] == [96, 96, 96]
    # The last block of A lies there twice: from frames 0 and 1.
    name = msgspec.msgpack.decode(payloads()[1])[1][0]["block_hashes"][0]
    index.apply(slot, kv_frames.batch(kv_frames.removed(name)))
    assert contents(index, slot)[0] == 96
    index.apply(slot, kv_frames.batch(kv_frames.removed(name)))
    assert contents(index, slot)[0] == 64


# --- offloading to host memory, disk and a remote store -------------------------------------------

A, E = steps(10, 7, 3000), steps(10, 11, 4000)


@pytest.fixture(scope="module")
def offload() -> Capture:
    return Capture("kv_events_offload_tiering.txt", [A, E])


def test_tiers_are_told_apart_and_continue_the_device_prefix(offload: Capture) -> None:
    index, [slot] = fresh()
    seen: dict[int, list[tuple[int, int, int, int]]] = {}
    for line in offload.lines:
        applied = index.apply(slot, line.payload)
        assert (applied.ignored, applied.orphans) == ({}, 0)
        found = [index.match(Prompt.of_list(ids), [slot], 0.0)[0] for ids in (A, E)]
        seen[line.seq] = [tiers(match) for match in found]
    whole = 2976  # 93 blocks of the 3 000 tokens
    assert seen[0][0] == (2048, 0, 0, 0)
    assert seen[1][0] == seen[5][0] == (whole, 0, 0, 0), "the device goes first"
    # E has pushed the end of A out of the device, and all but three blocks out of the host.
    # The engine then reported 1 056 tokens from the device and 1 920 from disk.
    assert seen[10][0] == (1056, 0, 1920, 0)
    # 4 000 tokens are 125 blocks; the last one holds the last token and is never a hit.
    assert seen[10][1] == (3968, 0, 0, 0)
    assert seen[12][0] == (1056, 1920, 0, 0), "what was promoted is in the host again"
    assert seen[16][0] == (whole, 0, 0, 0)
    assert seen[16][1] == (2080, 0, 1888, 0)
    assert index.stats().pairs == 93 + 125


def test_offloaded_blocks_without_tokens_are_joined_through_the_devices(offload: Capture) -> None:
    index, [slot] = fresh()
    twin, [other] = fresh()
    for line in offload.lines:
        twin.apply(other, line.payload)
        event = line.event
        if isinstance(event, kv_frames.BlockStored) and event.medium != "GPU":
            event = msgspec.structs.replace(
                event, token_ids=[], block_size=0, parent_block_hash=None, kv_cache_spec_kind=None
            )
        index.apply(slot, kv_frames.batch(event))
    for ids in (A, E):
        prompt = Prompt.of_list(ids)
        assert index.match(prompt, [slot], 0.0) == twin.match(prompt, [other], 0.0)


# --- other engines --------------------------------------------------------------------------------


def test_hashes_of_32_bytes() -> None:
    first, second = steps(109, 59, 672, 50), steps(111, 61, 672, 50)
    capture = Capture("kv_events_bytes_hash.txt", [first, second], as_bytes=True, lines=(0, 2))
    index, [slot] = fresh()
    for line in capture.lines:
        applied = index.apply(slot, line.payload)
        assert applied.malformed == {} and applied.stored
    for ids in (first, second):
        assert index.match(Prompt.of_list([*ids, 1]), [slot], 0.0)[0].device == 672


def test_two_ranks_are_two_engines() -> None:
    ids = list(range(100, 164))
    index, slots = fresh(2)
    capture = Capture("kv_events_dp2.txt", [ids])
    for line in capture.lines:
        applied = index.apply(slots[line.rank], line.payload)
        assert (applied.dp_rank, applied.session) == (line.rank, f"sess-{line.rank}")
        found = index.match(Prompt.of_list([*ids, 1]), slots, 0.0)
        assert [match.device for match in found] == [64, 64 * line.rank]


def test_the_decode_side_of_a_pair() -> None:
    ids = steps(81, 31, 500, 50)
    index, [slot] = fresh()
    capture = Capture("kv_events_pd_decode.txt", [ids], lines=(0, 1, 2))
    found = []
    for line in capture.lines:
        index.apply(slot, line.payload)
        found.append(index.match(Prompt.of_list(ids), [slot], 0.0)[0].device)
    assert found == [480, 0, 480]
