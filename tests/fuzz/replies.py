"""Seeds of the reply side."""

from __future__ import annotations

from harness import scripts

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
USAGE = (
    b'data: {"id":"c","model":"m1","choices":[],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
)


def _stream(*events: bytes) -> bytes:
    return scripts.SSE_HEAD + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events)


EVENTS = (scripts.event("hello"), scripts.event('"model": "m1" 日本'), USAGE, scripts.DONE)
SEEDS: list[bytes] = [
    OK + b'content-length: 14\r\n\r\n{"model":"m1"}',
    OK + b"content-length: 0\r\n\r\n",
    OK + b'transfer-encoding: chunked\r\n\r\ne\r\n{"model":"m1"}\r\n0\r\n\r\n',
    OK + b"transfer-encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nx-t: 1\r\n\r\n",
    OK + b'\r\n{"model":"m1"}',
    OK.replace(b"1.1", b"1.0") + b"\r\nbody",
    b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 2\r\n\r\nok",
    b"HTTP/1.1 204 No Content\r\nx-a: b\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
    b'HTTP/1.1 429 Too Many\r\nretry-after: 1\r\ncontent-length: 11\r\n\r\n{"error":1}',
    _stream(*EVENTS) + b"0\r\n\r\n",
    _stream(*EVENTS),
    _stream(*[event.replace(b"\n", b"\r\n") for event in EVENTS]) + b"0\r\n\r\n",
    _stream(b"".join(EVENTS)[:50], b"".join(EVENTS)[50:]) + b"0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + b"".join(EVENTS),
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    % len(b"".join(EVENTS))
    + b"".join(EVENTS),
]
