"""The client against answers of every kind, cut at every place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from gateway.load.client import Pool, Reply, Target

CHUNK = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM = b"Content-Type: text/event-stream\r\n"


def answer(body: bytes, fields: bytes = STREAM, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body)


GOOD = answer(ROLE + CHUNK + b": a comment\n\n" + CHUNK + USAGE + DONE)
CLOSE = b""


@asynccontextmanager
async def endpoint(pieces: Callable[[], list[bytes]]) -> AsyncIterator[tuple[Pool, list[int]]]:
    """Answers each request with `pieces`. Yields the pool, and how many requests each connection
    had."""
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = len(seen)
        seen.append(0)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n{}")
                seen[mine] += 1
                for piece in pieces():
                    if piece == CLOSE:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = Pool(Target.of(f"http://127.0.0.1:{port}"))
    await pool.resolve()
    try:
        yield pool, seen
    finally:
        pool.close()
        server.close()


async def asked(pool: Pool) -> Reply:
    reply = Reply(monotonic())
    await asyncio.wait_for(pool.send(reply, b"POST / HTTP/1.1\r\n\r\n{}"), 10)
    return reply


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
async def test_a_stream_cut_anywhere_is_the_same_stream(size: int) -> None:
    pieces = [GOOD[at : at + size] for at in range(0, len(GOOD), size)]
    async with endpoint(lambda: pieces) as (pool, seen):
        for _ in range(2):
            reply = await asked(pool)
            assert (reply.end, len(reply.chunks_s), reply.tokens) == ("completed", 2, 2)
            assert (reply.prompt_tokens, reply.cached_tokens) == (7, 4)
            assert reply.sent_s <= reply.choice_s <= reply.chunks_s[0] <= reply.done_s
    assert seen == [2]  # the connection was kept


async def test_line_ends_may_have_returns_and_chunks_be_framed() -> None:
    body = (CHUNK + DONE).replace(b"\n", b"\r\n")
    framed = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + STREAM + b"\r\n"
    async with endpoint(lambda: [head, framed]) as (pool, _):
        reply = await asked(pool)
    assert (reply.end, len(reply.chunks_s), reply.tokens) == ("completed", 1, -1)


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        ([answer(b'{"error":{}}', b"", b"503 Busy")], "status 503"),
        ([answer(b"{}", b"Content-Type: application/json\r\n")], "not a stream"),
        ([answer(CHUNK)], "stream without its end"),
        ([answer(CHUNK + b'data: {"error":{"message":"no"}}\n\n' + DONE)], "error in the stream"),
        ([answer(b"data: {no json}\n\n" + DONE)], "unreadable answer"),
        ([b"who knows\r\n\r\n"], "unreadable answer"),
    ],
)
async def test_what_is_no_answer_is_a_failure_by_cause(sent: list[bytes], cause: str) -> None:
    async with endpoint(lambda: sent) as (pool, _):
        reply = await asked(pool)
        assert (reply.end, reply.cause) == ("failed", cause)
        assert (await asked(pool)).cause == cause  # and the next is asked all the same


async def test_a_connection_lost_in_an_answer_is_a_failure() -> None:
    async with endpoint(lambda: [GOOD[:150], CLOSE]) as (pool, _):
        reply = await asked(pool)
    assert (reply.end, reply.cause) == ("failed", "connection lost")


async def test_a_connection_that_was_closed_while_idle_is_replaced_once() -> None:
    served = iter([[GOOD], [CLOSE]])  # the second request meets a closing connection

    async with endpoint(lambda: next(served, [GOOD])) as (pool, seen):
        assert (await asked(pool)).end == "completed"
        assert (await asked(pool)).end == "completed"
    assert seen == [2, 1]


async def test_a_fresh_connection_that_is_closed_is_a_failure() -> None:
    async with endpoint(lambda: [CLOSE]) as (pool, _):
        reply = await asked(pool)
    assert (reply.end, reply.cause) == ("failed", "closed without an answer")


async def test_another_address_of_the_name_is_tried() -> None:
    async with endpoint(lambda: [GOOD]) as (pool, _):
        pool._addresses = ["127.0.0.2", *pool._addresses]  # where nobody listens
        assert (await asked(pool)).end == "completed"
        assert pool._addresses[0] == "127.0.0.1"


async def test_nobody_listens() -> None:
    pool = Pool(Target("127.0.0.1", 1))
    await pool.resolve()
    reply = await asked(pool)
    assert (reply.end, reply.cause) == ("failed", "cannot connect")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://a:8000", Target("a", 8000)),
        ("https://a/x/v1/", Target("a", 443, "/x", True)),
        ("http://[::1]:80/v1", Target("::1", 80)),
    ],
)
def test_urls(url: str, target: Target) -> None:
    assert Target.of(url) == target


@pytest.mark.parametrize("url", ["a:8000", "ftp://a", "http://", "http://a:b"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|port|Port"):
        Target.of(url)
