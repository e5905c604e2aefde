"""Back-pressure: whoever is slow makes the other side wait, and the gateway's memory stays bounded.

The symptom elsewhere: an unbounded channel between engine and slow reader, until the OOM killer.
"""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from harness import scripts, waiting
from harness.client import prompt, request_bytes
from harness.gateway import PeakRss
from harness.stage import Conf, Play, Stage
from harness.upstream import Peer, Seen

HUNDRED_MB = 100_000_000
GROWTH_KIB = 6 * 1024  # one stream; sockets' buffers are the kernel's


def _largest(name: str) -> int:
    return int(Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[2])


# What two loopback connections may swallow: of a receive buffer half is payload.
KERNEL_BYTES = _largest("tcp_rmem") + 2 * _largest("tcp_wmem")


def hundred(sse: bool) -> tuple[scripts.Script, str]:
    """A 100 MB reply and its payload's digest."""
    payload = scripts.event("z" * 62_000) if sse else bytes(range(256)) * 250
    count = HUNDRED_MB // len(payload)
    digest = hashlib.sha256()
    for _ in range(count):
        digest.update(payload)

    def script(peer: Peer, seen: Seen) -> None:
        if sse:
            peer.send(scripts.SSE_HEAD)
        else:
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (count * len(payload)))
        for _ in range(count):
            peer.chunk_out(payload) if sse else peer.send(payload)
        if sse:
            peer.last_chunk()

    return script, digest.hexdigest()


def slow_reader(stage: Stage, lane: str, sse: bool) -> None:
    stage.engine.script, digest = hundred(sse)
    client = stage.client(lane, receive_buffer=65536)
    with PeakRss(stage.gateway) as memory:
        client.send(request_bytes(prompt(sse)))
        sent = stage.engine.wait_seen().peer.wait_stalled()
        assert sent < KERNEL_BYTES, (
            f"{sent} bytes were taken from the engine for a client that reads nothing"
        )
        # Others are served meanwhile: the socket is paused, not the loop.
        assert stage.ask(lane, method="GET", target="/v1/models").status == 200
        body = client.reply().body
    assert hashlib.sha256(body).hexdigest() == digest
    assert memory.growth_kib < GROWTH_KIB, f"{memory.growth_kib} KiB for one slow reader"


def test_slow_reader_holds_back_a_stream(stage: Stage, lane: str) -> None:
    """Reads nothing, then everything: 100 MB of SSE arrive intact, the engine was blocked."""
    slow_reader(stage, lane, True)


def test_slow_reader_holds_back_a_plain_reply(stage: Stage, lane: str) -> None:
    slow_reader(stage, lane, False)


def test_slow_reader_of_an_edited_stream(play: Play, lane: str) -> None:
    """The event filter must not be the unbounded buffer that the relay is not."""
    stage = play(
        Conf(
            proxy_pass="http://named",
            extra="upstream named { model m1 alias=gpt; server {e0}; health_check off; }",
        )
    )
    stage.engine.script, _ = hundred(True)
    client = stage.client(lane, receive_buffer=65536)
    body = b'{"model":"gpt","stream":true,"prompt":"x"}'
    with PeakRss(stage.gateway) as memory:
        client.send(request_bytes(body))
        assert stage.engine.wait_seen().peer.wait_stalled() < KERNEL_BYTES
    assert memory.growth_kib < GROWTH_KIB


def test_many_slow_readers_are_bounded(stage: Stage, lane: str) -> None:
    """≤ 256 KiB each: forty of them are ten megabytes, not four gigabytes."""
    stage.engine.script = scripts.floods
    clients = [stage.client(lane, receive_buffer=4096) for _ in range(40)]
    with PeakRss(stage.gateway) as memory:
        for client in clients:
            client.send(request_bytes(prompt(True)))
        stage.engine.wait_seen(40)
        waiting.until_still(
            lambda: sum(seen.peer.sent for seen in stage.engine.seen), "all engines to be held", 15
        )
    assert memory.growth_kib < 40 * 256 + 4096, f"{memory.growth_kib} KiB"
    for client in clients:
        client.reset()
    stage.wait_quiet(10)


def test_upload_is_held_back_by_an_engine_that_does_not_read(stage: Stage, lane: str) -> None:
    """60 MB towards an engine that reads only later: the client waits, memory does not grow."""
    go = threading.Event()

    @scripts.unread
    def later(peer: Peer, seen: Seen) -> None:
        go.wait(30)
        scripts.reads_all(peer, seen)

    stage.engine.script = later
    total = 60 << 20
    block = bytes(range(256)) * 256
    client = stage.client(lane)
    client.sock.settimeout(30)
    head = request_bytes(
        target="/v1/audio/transcriptions",
        headers=(("Content-Type", "multipart/form-data"), ("Content-Length", str(total))),
        framed=False,
    )
    sent = [0]

    def write() -> None:
        client.send(head)
        while sent[0] < total:
            client.send(block)
            sent[0] += len(block)

    with PeakRss(stage.gateway) as memory:
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        seen = stage.engine.wait_seen()
        waiting.until_still(lambda: sent[0], "the client to be held back", 15)
        assert sent[0] < KERNEL_BYTES, f"{sent[0]} bytes were taken in"
        go.set()
        assert client.reply().status == 200
        writer.join(10)
    assert seen.body == block * (total // len(block))
    assert memory.growth_kib < GROWTH_KIB


def test_bodies_held_by_all_requests_together_are_bounded(play: Play, lane: str) -> None:
    """client_body_buffers_total: beyond it 503, and room again once the first are done."""
    stage = play(Conf(http="client_body_buffers_total 1m;"))
    big = prompt(pad="x" * 700_000)
    first = stage.client(lane)
    first.send(request_bytes(big)[:-1])
    second = stage.client(lane)

    def refused() -> bool:
        return stage.ask(lane, big).status == 503

    waiting.until(refused, "the budget to be used up", 5)
    first.reset()
    waiting.until(lambda: stage.ask(lane, big).status == 200, "room again", 5)
    assert second.ask(prompt()).status == 200
