"""Streams: whatever an engine writes arrives as written, and a stream that breaks never ends well.

SMG#1878, aisix#111, EA#1398, aisix#177, SMG#1682.
"""

from __future__ import annotations

import json
import time

import pytest
from harness import scripts
from harness.client import prompt, request_bytes
from harness.shapes import lost_event, sse_data
from harness.stage import Conf, Play, Stage
from harness.wire import Short

ENDED_S = 1.0  # a hang, not a measurement; the 100 ms have a test of their own


def chunk_bytes(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


def test_done_inside_generated_text_is_text(stage: Stage, lane: str) -> None:
    """SMG#1878: model output containing `data: [DONE]` ended the stream silently."""
    events = [
        scripts.event("data: [DONE]"),
        scripts.event("\n\ndata: [DONE]\n\n"),
        b'data: {"choices":[{"index":0,"text":"[DONE]"}]}\n\n',
        scripts.event("the rest", finish="stop"),
    ]
    stage.engine.script = scripts.streams(events)
    reply = stage.ask(lane, prompt(True))
    assert reply.body == b"".join(events) + scripts.DONE


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_text_cut_anywhere_arrives_byte_identical(stage: Stage, lane: str, size: int) -> None:
    """aisix#111: a multi-byte character cut at a chunk's edge became U+FFFD."""
    body = b"".join(scripts.event(text) for text in ("日本語🙂", "e\u0301", "\U0001f469\u200d🚀"))
    body += scripts.DONE
    framed = chunk_bytes(*[body[at : at + size] for at in range(0, len(body), size)])
    stage.engine.script = scripts.dribbles(scripts.SSE_HEAD + framed + b"0\r\n\r\n", size)
    reply = stage.ask(lane, prompt(True))
    assert reply.body == body
    assert "日本語🙂" in reply.body.decode()


ODD_STREAMS = {
    "crlf": b'data: {"choices":[{"text":"a"}]}\r\n\r\ndata: [DONE]\r\n\r\n',
    "cr": b'data: {"choices":[{"text":"a"}]}\r\rdata: [DONE]\r\r',
    "no_space": b'data:{"choices":[{"text":"a"}]}\n\ndata:[DONE]\n\n',
    "comments": b': ping\n\ndata: {"choices":[]}\n\n: pong\n\n:\n\ndata: [DONE]\n\n',
    "many_lines": b'data: {"choices":\ndata: [{"text":"a"}]}\n\ndata: [DONE]\n\n',
    "fields": b'event: message\nid: 7\nretry: 10\ndata: {"choices":[]}\n\ndata: [DONE]\n\n',
    "empty": b"\n\n\n\ndata: [DONE]\n\n",
    "bom": b'\xef\xbb\xbfdata: {"choices":[]}\n\ndata: [DONE]\n\n',
    "not_utf8": b'data: {"choices":[{"text":"\xff\xfe"}]}\n\ndata: [DONE]\n\n',
    "not_json": b"data: {{{\n\ndata: \n\ndata\n\ndata: [DONE]\n\n",
}


@pytest.mark.parametrize("name", sorted(ODD_STREAMS))
@pytest.mark.parametrize("size", [1, 4096])
def test_odd_but_legal_streams_pass_unchanged(
    stage: Stage, lane: str, name: str, size: int
) -> None:
    """EA#1398: CRLF, `data:` without a space, comments, several data lines were not understood."""
    body = ODD_STREAMS[name]
    stage.engine.script = scripts.dribbles(
        scripts.SSE_HEAD + chunk_bytes(body) + b"0\r\n\r\n", size
    )
    assert stage.ask(lane, prompt(True)).body == body


@pytest.mark.parametrize("spelling", ["data: ", "data:"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_usage_is_read_from_odd_streams(
    stage: Stage, lane: str, spelling: str, newline: str
) -> None:
    """EA#2149: usage went uncounted when the stream used CRLF or no space."""
    usage = {"prompt_tokens": 1234, "completion_tokens": 4321, "total_tokens": 5555}
    text = json.dumps({"choices": [], "usage": usage})
    body = f"{spelling}{text}{newline * 2}{spelling}[DONE]{newline * 2}".encode()
    stage.engine.script = scripts.streams([body], done=False)
    lines = len(stage.gateway.access())
    assert stage.ask(lane, prompt(True)).body == body
    entry = stage.wait_log(lines + 1)[-1]
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == ("1234", "4321")


CUTS = {
    "between_events": chunk_bytes(scripts.event("a"), scripts.event("b")),
    "mid_event": chunk_bytes(scripts.event("a"), b'data: {"choices":[{"te'),
    "mid_line_end": chunk_bytes(scripts.event("a"), b'data: {"choices":[]}\n'),
    "mid_chunk": chunk_bytes(scripts.event("a")) + b"400\r\ndata: {",
    "mid_chunk_size": chunk_bytes(scripts.event("a")) + b"40",
    "after_chunk_size": chunk_bytes(scripts.event("a")) + b"40\r\n",
    "before_chunk_end": chunk_bytes(scripts.event("a"))[:-2],
    "no_last_chunk": chunk_bytes(scripts.event("a"), b"data: [DO"),
}


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("name", sorted(CUTS))
def test_stream_cut_by_the_engine_ends_with_an_error_event(
    stage: Stage, lane: str, name: str, how: str
) -> None:
    """aisix#177: the engine dropped mid-stream and the client hung, or took it for the end."""
    cut = scripts.Stepwise(CUTS[name], chunked=False, then=how)
    stage.engine.script = cut
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)))
    cut.step()
    client.head()
    payload = client.chunks_until(b'"text": "a"')
    started = time.monotonic()
    cut.step()
    payload += client.chunks_until(b"upstream_lost")
    assert time.monotonic() - started < ENDED_S
    rest = b""
    while part := client.chunk():
        rest += part
    payload += rest
    lost_event(payload)
    assert payload.startswith(scripts.event("a"))
    # The cut event must not be completed by our own: one before it stays whole, ours stands alone.
    assert sse_data(payload)[0] == scripts.event("a").decode()[6:].strip()


def test_client_hears_of_a_cut_within_100_ms(stage: Stage, lane: str) -> None:
    """aisix#177: best of five, since this machine may be busy with other things."""
    took = []
    for _ in range(5):
        cut = scripts.Stepwise(scripts.event("a"), then="fin")
        stage.engine.script = cut
        client = stage.client(lane)
        client.send(request_bytes(prompt(True)))
        cut.step()
        client.head()
        client.chunks_until(b'"text": "a"')
        started = time.monotonic()
        cut.step()
        client.chunks_until(b"upstream_lost")
        took.append(time.monotonic() - started)
    assert min(took) < 0.1, took


def test_head_without_a_byte_of_body_then_death(stage: Stage, lane: str) -> None:
    """The head was relayed and nothing else: still an error event, still no clean end."""
    cut = scripts.Stepwise(then="reset")
    stage.engine.script = cut
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)))
    assert client.head().start[1] == b"200"
    cut.step()
    payload = client.chunks_until(b"\n\n")
    while part := client.chunk():
        payload += part
    lost_event(payload)


NASTY = ['quo"te', "new\nline", "back\\slash", "\u2028", "tab\t", "\x01"]


@pytest.mark.parametrize("name", NASTY)
def test_error_event_is_valid_json_whatever_the_engine_said(
    stage: Stage, lane: str, name: str
) -> None:
    """SMG#1682: the mid-stream error frame quoted upstream text and was not JSON."""
    junk = ("ZZ" + name).encode()
    stage.engine.script = scripts.sends(
        scripts.SSE_HEAD + chunk_bytes(scripts.event("a")) + junk + b"\r\n", then="fin"
    )
    lost_event(stage.ask(lane, prompt(True)).body)


def test_an_engines_own_error_event_passes_unchanged(stage: Stage, lane: str) -> None:
    """An error that the engine reports in the stream is the engine's: not ours to rewrite."""
    body = b'data: {"error":{"message":"CUDA \\"oom\\"","type":"x","code":500}}\n\n' + scripts.DONE
    stage.engine.script = scripts.streams([body], done=False)
    assert stage.ask(lane, prompt(True)).body == body


def test_stream_that_ends_without_done_but_whole_is_left_as_it_is(stage: Stage, lane: str) -> None:
    """A properly framed end is the engine's word: /v1/messages and others have no [DONE]."""
    body = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    stage.engine.script = scripts.streams([body], done=False)
    assert stage.ask(lane, prompt(True)).body == body


def test_close_delimited_stream_ends_where_the_engine_closes(stage: Stage, lane: str) -> None:
    """No length and FIN at the end is legal HTTP/1.0 style framing."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    body = scripts.event("a") + scripts.DONE
    stage.engine.script = scripts.sends(head + body, then="fin")
    assert stage.ask(lane, prompt(True)).body == body


def test_close_delimited_stream_without_done_that_is_reset_is_lost(stage: Stage, lane: str) -> None:
    """RST is no end: the client must be told."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    cut = scripts.Stepwise(scripts.event("a"), head=head, chunked=False, then="reset")
    stage.engine.script = cut
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)))
    cut.step()
    reply_head = client.head()
    payload = client.chunks_until(b"\n\n")
    cut.step()
    try:
        while part := client.chunk():
            payload += part
    except Short:
        return  # a hard cut is an honest end as well
    assert reply_head.get("transfer-encoding") == b"chunked"
    lost_event(payload)


LIVE = Conf(location="proxy_read_timeout 400ms; proxy_first_byte_timeout 5s;")


def test_slow_stream_outlives_the_read_timeout(play: Play, lane: str) -> None:
    """octos#2170: a total timeout killed long streams; silence, not length, is what counts."""
    stage = play(LIVE)
    reply = scripts.Stepwise(*[scripts.event(str(n)) for n in range(8)])
    stage.engine.script = reply
    client = stage.client(lane)
    client.send(request_bytes(prompt(True)))
    client_head = None
    started = time.monotonic()
    for number in range(8):
        assert client_head is None or client.silent_for(0.15)
        reply.step()
        client_head = client_head or client.head()
        client.chunks_until(b'"text": "%d"' % number)
    assert time.monotonic() - started > 0.8, "the stream was not longer than the timeout"
    reply.step()
    assert client.chunk() == b""


def test_silence_beyond_the_read_timeout_ends_with_a_timeout_event(play: Play, lane: str) -> None:
    """octos#2170, second half: silence longer than proxy_read_timeout ends the stream, loudly."""
    stage = play(LIVE)
    stage.engine.script = scripts.starts(scripts.event("a"))
    started = time.monotonic()
    reply = stage.ask(lane, prompt(True))
    assert 0.35 < time.monotonic() - started < 1.5
    error = lost_event(reply.body, "")
    assert "timeout" in str(error["code"]) or "timeout" in str(error["message"]).lower(), error
    stage.engine.seen[0].peer.wait_gone(1)
