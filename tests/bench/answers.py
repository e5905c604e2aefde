"""A server of streamed completions whose times follow from the length that is asked for.

Every answer has a time line of its own: no queue, no batch, so that the same requests get the same
answers from whatever sends them. It notes when a request was there and when it wrote each token.
"""

from __future__ import annotations

import asyncio
import json
import threading
from statistics import fmean, median
from time import monotonic
from typing import Any, cast

import httptools

FIRST_S = 1.0  # plus FIRST_STEP_S for each of seven kinds of length
FIRST_STEP_S = 0.05
GAP_S = 0.05
GAP_STEP_S = 0.005
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
KIND = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "sim"}
KINDS = 7
START_S = 10.0


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


class Connection(asyncio.Protocol):
    def __init__(self, noted: list[list[float]]) -> None:
        self.noted = noted
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        now = monotonic()
        body, self.body = self.body, b""
        if (method := self.parser.get_method()) != b"POST":
            models = b'{"object":"list","data":[{"id":"sim","object":"model"}]}'
            fields = b"Content-Type: application/json\r\nContent-Length: %d" % len(models)
            self.transport.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % fields)
            if method != b"HEAD":
                self.transport.write(models)
            return
        self.task = asyncio.get_running_loop().create_task(self.answer(json.loads(body), now))

    async def answer(self, asked: dict[str, Any], now: float) -> None:
        count = asked["max_tokens"]
        kind = count % KINDS
        due, gap = now + FIRST_S + kind * FIRST_STEP_S, GAP_S + kind * GAP_STEP_S
        times = [now]
        self.transport.write(HEAD)
        for number in range(count):
            await asyncio.sleep(max(0.0, due + number * gap - monotonic()))
            reason = "length" if number == count - 1 else None
            text = {"index": 0, "text": " the", "finish_reason": reason}
            # Times are noted before the write: a writer that wakes the reader may be put aside.
            times.append(monotonic())
            self.transport.write(framed(event(KIND | {"choices": [text]})))
        prompt = asked["prompt"]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count,
                 "total_tokens": len(prompt) + count}  # fmt: skip
        last = event(KIND | {"choices": [], "usage": usage}) + b"data: [DONE]\n\n"
        self.transport.write(framed(last) + b"0\r\n\r\n")
        self.noted.append(times)


class Answers:
    """The server, in a thread of its own, on a port that the system chose."""

    def __init__(self) -> None:
        self.noted: list[list[float]] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Answers:
        self._thread.start()
        if not self._ready.wait(START_S):
            raise RuntimeError("the server did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            self._loop.create_server(lambda: Connection(self.noted), "127.0.0.1", 0)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._loop.call_soon(self._ready.set)
        self._loop.run_forever()
        server.close()

    def served(self, requests: int) -> dict[str, dict[str, float]]:
        """In ms, of the last `requests` answers, by the names of `kvgate load`."""
        if len(self.noted) < requests:
            raise RuntimeError(f"{len(self.noted)} answers, not {requests}")
        last = self.noted[-requests:]
        values = {
            "ttft_sent_s": [times[1] - times[0] for times in last],
            "tpot_s": [(times[-1] - times[1]) / (len(times) - 2) for times in last],
            "e2el_sent_s": [times[-1] - times[0] for times in last],
        }
        return {
            name: {"mean": fmean(of) * 1e3, "p50": median(of) * 1e3} for name, of in values.items()
        }
