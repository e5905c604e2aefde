"""Replies that must change: the alias is put back, a usage chunk that only we asked for is dropped.

Invariant under test: everything else stays byte-identical, wherever the bytes were cut.
"""

from __future__ import annotations

import json

import pytest
from harness import scripts
from harness.client import prompt, request_bytes
from harness.shapes import lost_event, sse_data
from harness.stage import Conf, Play, Stage
from harness.upstream import Peer, Seen

ALIASED = Conf(proxy_pass="http://named", extra="upstream named { model m1 alias=gpt-4o alias=fast;"
    " server {e0} max_fails=0; health_check off; }")  # fmt: skip
ALIAS = "gpt-4o"
CHUNKED_END = "transfer-encoding: chunked\r\n\r\n0\r\n\r\n"


@pytest.fixture
def aliased(play: Play) -> Stage:
    return play(ALIASED)


def ask_body(stream: bool = False) -> bytes:
    return json.dumps({"prompt": "x", "model": ALIAS, "stream": stream}).encode()


def test_alias_is_spliced_into_the_request(aliased: Stage, lane: str) -> None:
    body = b'{"z":1.0, "model" :  "gpt-4o","prompt":"gpt-4o","m":{"model":"gpt-4o"}, "seed":1e2}'
    assert aliased.ask(lane, body).status == 200
    assert aliased.engine.seen[0].body == body.replace(b'"model" :  "gpt-4o"', b'"model" :  "m1"')


def test_duplicate_model_keys_all_name_the_served_model(aliased: Stage, lane: str) -> None:
    """Python's json takes the last, other readers the first: both must see a served model."""
    body = b'{"model":"gpt-4o","prompt":"x","model":"gpt-4o"}'
    assert aliased.ask(lane, body).status == 200
    pairs = json.loads(aliased.engine.seen[0].body, object_pairs_hook=list)
    assert dict(pairs)["model"] == "m1", pairs


def test_escaped_alias_is_understood(aliased: Stage, lane: str) -> None:
    assert aliased.ask(lane, b'{"model":"gpt\\u002d4o","prompt":"x"}').status == 200
    assert json.loads(aliased.engine.seen[0].body)["model"] == "m1"


REPLIES: dict[str, bytes] = {
    "plain": b'{"id":"1","model":"m1","choices":[{"text":"hi"}]}',
    "spaced": b'{ "id" : "1" , "model" : "m1" , "x" : 1.50 }',
    "last": b'{"id":"1","model":"m1"}',
    "name_in_text": b'{"choices":[{"text":"\\"model\\":\\"m1\\" and m1"}],"model":"m1"}',
}


@pytest.mark.parametrize("name", sorted(REPLIES))
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_alias_is_put_back_in_a_plain_reply(
    aliased: Stage, lane: str, name: str, size: int
) -> None:
    body = REPLIES[name]
    aliased.engine.script = scripts.dribbles(scripts.reply_bytes(body), size)
    reply = aliased.ask(lane, ask_body())
    want = json.loads(body)
    if want["model"] == "m1":
        want["model"] = ALIAS
    assert json.loads(reply.body) == want
    restored = reply.body.replace(b'"%b"' % ALIAS.encode(), b'"m1"')
    assert restored == body, "something else than the name was changed"


def stream_events() -> list[bytes]:
    return [
        scripts.event("hello"),
        scripts.event('the "model":"m1" in text'),
        b'data: {"model":"m1","choices":[]}\n\n',
        b": ping\n\n",
        b'data: {"choices":[{"delta":{"content":"\\"model\\": \\"m1\\""}}],"model":"m1"}\r\n\r\n',
        'data: {"model":"m1","t":"日本🙂"}\n\n'.encode(),
        scripts.DONE,
    ]


def check_stream(got: bytes, sent: bytes) -> None:
    events, wanted = sse_data(got), sse_data(sent)
    assert len(events) == len(wanted)
    for ours, theirs in zip(events, wanted, strict=True):
        if theirs == "[DONE]":
            assert ours == theirs
            continue
        want = json.loads(theirs)
        if "model" in want:
            want["model"] = ALIAS
        assert json.loads(ours) == want


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 40])
def test_alias_is_put_back_in_a_stream_cut_anywhere(aliased: Stage, lane: str, size: int) -> None:
    """Split at every byte: the name is found although no read ever holds the whole event."""
    body = b"".join(stream_events())
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    aliased.engine.script = scripts.dribbles(scripts.SSE_HEAD + framed + b"0\r\n\r\n", size)
    check_stream(aliased.ask(lane, ask_body(True)).body, body)


def test_alias_stream_split_at_each_single_place(aliased: Stage, lane: str) -> None:
    """Every two-part split of the stream's bytes, on one connection."""
    body = b"".join(stream_events()[1:5]) + scripts.DONE
    client = aliased.client(lane)
    for at in range(1, len(body), 3):
        aliased.engine.script = scripts.streams([body[:at], body[at:]], done=False)
        check_stream(client.ask(ask_body(True)).body, body)


def test_edited_events_are_not_held_back(aliased: Stage, lane: str) -> None:
    """An event goes out when it is complete, not when the next one comes."""
    reply = scripts.Stepwise(scripts.event("one"), scripts.event("two"))
    aliased.engine.script = reply
    client = aliased.client(lane)
    client.send(request_bytes(ask_body(True)))
    reply.step()
    client.head()
    client.chunks_until(b'"text": "one"')
    reply.step(2)
    client.chunks_until(b'"text": "two"')


@pytest.mark.parametrize("framing", ["content-length: 0\r\n\r\n", CHUNKED_END, "\r\n"])
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_empty_reply_that_would_be_edited_ends(
    aliased: Stage, lane: str, kind: str, framing: str
) -> None:
    """Nothing to edit is no reason to wait: an empty body ends at once, in each framing."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{framing}"
    then = "fin" if framing == "\r\n" else ""
    aliased.engine.script = scripts.sends(head.encode(), then=then)
    client = aliased.client(lane, timeout_s=3)
    assert client.ask(ask_body(True)).body == b""


@pytest.mark.parametrize("how", ["fin", "reset"])
def test_edited_stream_that_is_cut_ends_with_an_error_event(
    aliased: Stage, lane: str, how: str
) -> None:
    aliased.engine.script = scripts.streams(
        [scripts.event("a"), b'data: {"model":"m1","choi'], done=False, then=how
    )
    body = aliased.ask(lane, ask_body(True)).body
    lost_event(body)
    assert b'"model": "gpt-4o"' in body


@pytest.mark.parametrize("colon", [" :", ": ", " : ", ":\t"])
def test_alias_is_put_back_whatever_the_spacing(aliased: Stage, lane: str, colon: str) -> None:
    """JSON allows blanks on both sides of the colon."""
    event = f'data: {{"choices":[],"model"{colon}"m1"}}\n\n'.encode()
    aliased.engine.script = scripts.streams([event])
    check_stream(aliased.ask(lane, ask_body(True)).body, event + scripts.DONE)


def test_huge_event_passes_the_filter(aliased: Stage, lane: str) -> None:
    """An event larger than any buffer (logprobs, images) passes, edited or as it is."""
    event = b'data: {"model":"m1","x":"' + b"y" * (3 << 20) + b'"}\n\n'
    aliased.engine.script = scripts.streams([event, scripts.event("after")])
    body = aliased.ask(lane, ask_body(True)).body
    restored = body.replace(b'"gpt-4o"', b'"m1"')
    assert restored == event + scripts.event("after") + scripts.DONE
    assert b'"model": "gpt-4o"' in body, "the event behind the huge one was not edited"


def usage_if_asked(peer: Peer, seen: Seen) -> None:
    """As vLLM: a usage chunk with empty choices only where the request asked for it."""
    asked = (json.loads(seen.body).get("stream_options") or {}).get("include_usage")
    events = [scripts.event("a"), scripts.event("b")]
    if asked:
        usage = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}
        data = {"id": "cmpl-1", "model": "m1", "choices": [], "usage": usage}
        events.append(b"data: " + json.dumps(data).encode() + b"\n\n")
    scripts.streams(events)(peer, seen)


def test_usage_chunk_is_seen_by_those_who_asked_only(stage: Stage, lane: str) -> None:
    """A usage chunk that the gateway asked for must not surprise a client that did not."""
    stage.engine.script = usage_if_asked
    quiet = stage.ask(lane, prompt(True))
    assert b"usage" not in quiet.body and quiet.body.endswith(scripts.DONE)
    asked = stage.ask(lane, prompt(True, stream_options={"include_usage": True}))
    assert b'"prompt_tokens": 11' in asked.body
    refused = stage.ask(lane, prompt(True, stream_options={"include_usage": False}))
    assert b"usage" not in refused.body
