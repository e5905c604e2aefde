"""KV events on the wire: frames, replay, faults, and a subscriber that rebuilds the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engines.sim.events import offset_port
from engines.sim.process import SimEngine

Start = Callable[..., SimEngine]
PROMPT = "the water of the land over the sea " * 6


def test_a_batch_has_vllms_form(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing()
    with subscriber(engine) as sub:
        ask(engine, PROMPT)
        seq, (event,) = sub.batch()
        ids = event["token_ids"]
        blocks = len(event["block_hashes"])
        assert list(event) == [
            "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
            "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"]
        assert blocks == len(ids) // 16 == len(event["extra_keys"]) and len(ids) % 16 == 0
        assert event["medium"] == "GPU" and event["parent_block_hash"] is None
        ask(engine, PROMPT + "and then more of the same again and again and again and again")
        later, (child,) = sub.batch()
        assert later == seq + 1
        assert child["parent_block_hash"] == event["block_hashes"][-1]


def test_salt_changes_every_hash_and_is_told_on_the_first_block(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing()
    with subscriber(engine) as sub:
        ask(engine, PROMPT)
        plain = sub.batch()[1][0]
        ask(engine, PROMPT, cache_salt="mine")
        salted = sub.batch()[1][0]
        assert salted["token_ids"] == plain["token_ids"]
        assert not set(salted["block_hashes"]) & set(plain["block_hashes"])
        assert salted["extra_keys"][0] == ["mine"] and set(salted["extra_keys"][1:]) == {None}


def test_adapters_have_hashes_and_texts_of_their_own(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing("--lora-modules", "sql=/adapters/sql")
    with subscriber(engine) as sub:
        ask(engine, PROMPT)
        base = sub.batch()[1][0]
        ask(engine, PROMPT, model="sql")
        own = sub.batch()[1][0]
    assert (own["lora_name"], own["lora_id"]) == ("sql", 1)
    assert own["extra_keys"] == [["sql"]] * len(own["block_hashes"])
    assert not set(own["block_hashes"]) & set(base["block_hashes"])
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 4}
    said = [engine.call("POST", "/v1/completions", {**body, "model": m})[1]["choices"][0]["text"]
            for m in ("m", "sql")]
    assert said[0] != said[1]
    card = engine.call("GET", "/v1/models")[1]["data"][1]
    assert (card["id"], card["root"], card["parent"]) == ("sql", "/adapters/sql", "m")


def test_hashes_are_equal_on_all_engines(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    hashes = []
    for engine in (publishing(), publishing()):
        with subscriber(engine) as sub:
            ask(engine, PROMPT)
            hashes.append(sub.batch()[1][0]["block_hashes"])
    assert hashes[0] == hashes[1]


def test_a_subscriber_rebuilds_the_cache_through_evictions(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing("--num-gpu-blocks", 24)
    with subscriber(engine) as sub:
        for i in range(12):
            ask(engine, f"request {i % 5} " * (10 + 5 * (i % 4)))
        last = engine.state()["event_seq"][0] - 1
        seq = -1
        while seq < last:
            seq, events = sub.batch()
            sub.apply(events)
        assert sub.cached() == engine.call("GET", "/sim/cached")[1][0]
        assert len(sub.cached()) > 5


def test_a_reset_is_told_with_the_next_step_only(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing()
    with subscriber(engine) as sub:
        before = engine.state()["event_seq"]
        assert engine.call("POST", "/reset_prefix_cache")[1] == {"success": True}
        assert engine.state()["event_seq"] == before
        ask(engine, PROMPT)
        kinds = [e["type"] for e in sub.batch()[1]]
        assert kinds == ["AllBlocksCleared", "BlockStored"]


def test_a_late_subscriber_replays_from_any_point(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing()
    for i in range(5):
        ask(engine, f"number {i} " * 20)
    with subscriber(engine) as sub:
        everything = sub.replay(0)
        assert [s for s, _ in everything] == list(range(len(everything)))
        assert sub.replay(3) == everything[3:]
        assert sub.replay(10_000) == []
        assert sub.cached() == engine.call("GET", "/sim/cached")[1][0]


def test_the_replay_buffer_is_bounded(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing(buffer_steps=2)
    with subscriber(engine) as sub:
        for i in range(4):
            ask(engine, f"number {i} " * 20)
        last = engine.state()["event_seq"][0]
        assert [s for s, _ in sub.replay(0)] == [last - 2, last - 1]


def test_lost_batches_leave_a_gap_that_the_replay_fills(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing()
    with subscriber(engine) as sub:
        engine.faults(["events_drop:times=1"])
        ask(engine, "first " + PROMPT)
        ask(engine, "second " + PROMPT)
        seq, _events = sub.batch()
        assert seq == engine.state()["event_seq"][0] - 1
        assert [s for s, _ in sub.replay(seq - 1)] == [seq - 1, seq]
        engine.faults(["events_lost:times=1"])
        ask(engine, "third " + PROMPT)
        assert [s for s, _ in sub.replay(seq)] == [seq]


def test_doubled_and_late_batches_keep_their_numbers(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing()
    with subscriber(engine) as sub:
        engine.faults(["events_dup:times=1"])
        ask(engine, "first " + PROMPT)
        one, two = sub.batch(), sub.batch()
        assert one == two
        engine.faults(["events_late:ms=1500,times=1"])
        ask(engine, "second " + PROMPT)
        ask(engine, "third " + PROMPT)
        assert [sub.batch()[0], sub.batch()[0]] == [one[0] + 2, one[0] + 1]


def test_a_restart_begins_anew(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing()
    with subscriber(engine) as sub:
        ask(engine, PROMPT)
        first = sub.batch()
        engine.faults(["restart"])
        assert engine.state()["event_seq"] == [0]
        assert engine.call("GET", "/sim/cached")[1] == [{}]
        ask(engine, PROMPT)
        assert sub.batch() == (0, first[1])
        assert [s for s, _ in sub.replay(0)] == [0]


def test_sequence_numbers_alone_can_restart(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing()
    with subscriber(engine) as sub:
        cached = engine.call("GET", "/sim/cached")[1]
        engine.faults(["seq_restart"])
        ask(engine, "another " + PROMPT)
        assert sub.batch()[0] == 0
        assert cached[0].items() <= engine.call("GET", "/sim/cached")[1][0].items()


def test_ranks_have_endpoints_and_numbers_of_their_own(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing("--data-parallel-size", 2)
    with subscriber(engine, 0) as zero, subscriber(engine, 1) as one:
        assert zero.source["endpoint"] != one.source["endpoint"]
        ask(engine, PROMPT, rank=1, session="s1")
        event = one.batch()[1][0]
        assert event["session_id"] == "s1"
        assert not zero.live.poll(0)


@pytest.mark.parametrize(("endpoint", "rank", "expected"), [
    ("tcp://*:5557", 0, "tcp://*:5557"), ("tcp://*:5557", 2, "tcp://*:5559"),
    ("tcp://*:0", 1, "tcp://*:0"), ("inproc://x", 1, "inproc://x_dp1"), (None, 3, None)])
def test_ports_are_offset_by_rank(
    endpoint: str | None, rank: int, expected: str | None
) -> None:
    assert offset_port(endpoint, rank) == expected


def test_an_ipc_endpoint_serves_rank_zero_only() -> None:
    assert offset_port("ipc:///x", 0) == "ipc:///x"
    with pytest.raises(ValueError, match="cannot serve rank 1"):
        offset_port("ipc:///x", 1)


def test_garbage_is_sent_and_the_replay_has_it_right(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing()
    with subscriber(engine) as sub:
        engine.faults(["events_garbage:times=1"])
        ask(engine, PROMPT)
        _topic, seq, payload = sub.recv(sub.live)
        with pytest.raises(msgspec.DecodeError):
            msgspec.msgpack.decode(payload)
        number = int.from_bytes(seq, "big")
        assert [s for s, _ in sub.replay(number)] == [number]


def test_a_replay_may_stay_out_or_have_a_hole(
    publishing: Start, subscriber: Any, ask: Any
) -> None:
    engine = publishing()
    with subscriber(engine) as sub:
        for i in range(5):
            ask(engine, f"number {i} " * 20)
        last = engine.state()["event_seq"][0]
        engine.faults(["replay_silent:times=1"])
        sub.asker.send_multipart([b"", bytes(8)])
        assert not sub.asker.poll(200)
        engine.faults(["replay_hole:times=1"])
        numbers = [s for s, _ in sub.replay(last - 4)]
        assert len(numbers) == 3 and numbers[0] == last - 4 and numbers[-1] == last - 1
        assert [s for s, _ in sub.replay(last - 4)] == [last - 4, last - 3, last - 2, last - 1]


def test_it_may_tell_a_port_where_nobody_publishes(publishing: Start) -> None:
    engine = publishing()
    real = engine.call("GET", "/kv_event_sources")[1]["0"]["endpoint"]
    engine.faults(["sources_port:port=9,times=1"])
    assert engine.call("GET", "/kv_event_sources")[1]["0"]["endpoint"].endswith(":9")
    assert engine.call("GET", "/kv_event_sources")[1]["0"]["endpoint"] == real


def test_hashes_of_32_bytes(publishing: Start, subscriber: Any, ask: Any) -> None:
    engine = publishing("--kv-events-bytes-hashes")
    with subscriber(engine) as sub:
        ask(engine, PROMPT)
        event = sub.batch()[1][0]
        assert {len(one) for one in event["block_hashes"]} == {32}
        ask(engine, PROMPT + "and then more of the same again and again and again and again")
        assert sub.batch()[1][0]["parent_block_hash"] == event["block_hashes"][-1]


def test_events_as_arrays(publishing: Start, subscriber: Any, ask: Any) -> None:
    engine = publishing("--kv-events-arrays")
    with subscriber(engine) as sub:
        ask(engine, PROMPT)
        name, hashes, parent, ids, size, lora, medium, *_ = sub.batch()[1][0]
        assert (name, parent, size, lora, medium) == ("BlockStored", None, 16, None, "GPU")
        assert len(hashes) == len(ids) // 16
