"""What replies must look like: OpenAI errors, SSE events, as slow and plain Python.

Invariant: these are oracles, so they share nothing with the code under test.
"""

from __future__ import annotations

import json

from harness.wire import Reply

ERROR_KEYS = {"message", "type", "param", "code"}


def error_of(reply: Reply, status: int, code: str = "") -> dict[str, object]:
    """Checks that `reply` is an error made by the gateway; returns the `error` object."""
    assert reply.status == status, (reply.head.raw, reply.body[:500])
    assert (reply.header("content-type") or "").startswith("application/json"), reply.head.raw
    return _error(reply.body, code)


def _error(text: bytes, code: str) -> dict[str, object]:
    document = json.loads(text)
    assert set(document) == {"error"}, document
    error = document["error"]
    assert set(error) == ERROR_KEYS, error
    assert isinstance(error["message"], str) and error["message"], error
    if code:
        assert error["code"] == code, error
    return dict(error)


def sse_data(stream: bytes) -> list[str]:
    """The data of each event in `stream`, by the letter of the WHATWG rules (UTF-8, no `event:`).

    An event that is not ended by an empty line is not counted: it was cut.
    """
    text = stream.decode("utf-8")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    events: list[str] = []
    data: list[str] = []
    for line in lines[:-1]:
        if not line:
            if data:
                events.append("\n".join(data))
            data = []
        elif line.startswith("data:"):
            value = line[5:]
            data.append(value[1:] if value.startswith(" ") else value)
    return events


def lost_event(stream: bytes, code: str = "upstream_lost") -> dict[str, object]:
    """Checks that an SSE stream ended with the gateway's error event and without [DONE]."""
    events = sse_data(stream)
    assert events, stream[-300:]
    assert "[DONE]" not in events, events[-3:]
    return _error(events[-1].encode(), code)
