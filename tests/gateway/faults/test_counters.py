"""What is counted up is counted down, whatever ends a request; nothing grows with traffic.

R#215, SMG#2064, PS#1001, LL#12685, SMG#1679.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import scripts, waiting
from harness.client import Client, prompt, request_bytes
from harness.gateway import PeakRss
from harness.stage import Conf, Play, Stage, in_flight_by_engine
from harness.upstream import Peer, Seen, answer_ok
from harness.wire import Malformed, Short

CANCELS = 300
THREADS = 12


def moody(rng: random.Random) -> scripts.Script:
    """An engine that does, request by request, whatever an engine can do."""
    lock = threading.Lock()
    moods: list[scripts.Script] = [
        answer_ok,
        answer_ok,
        scripts.hangs,
        scripts.resets,
        scripts.closes,
        scripts.starts(scripts.event("a"), scripts.event("b")),
        scripts.streams([scripts.event(str(n)) for n in range(20)]),
        scripts.streams([scripts.event("a")], done=False, then="reset"),
        scripts.streams([scripts.event("a")], done=False, then="fin"),
        scripts.says(b"{}" * 5000),
        scripts.says(b'{"error":1}', 400),
        scripts.says(b'{"error":1}', 503),
        scripts.sends(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\nshort", then="fin"),
        scripts.sends(b"rubbish\r\n\r\n", then="fin"),
    ]

    def script(peer: Peer, seen: Seen) -> None:
        with lock:
            mood = rng.choice(moods)
        mood(peer, seen)

    return script


def visit(address: tuple[str, int], seed: int) -> None:
    """One client that leaves at a random moment in a random way."""
    rng = random.Random(seed)
    data = request_bytes(prompt(rng.random() < 0.5))
    if rng.random() < 0.2:
        data = request_bytes(
            b"u" * 5000,
            target="/v1/audio/transcriptions",
            headers=(("Content-Type", "multipart/form-data"),),
        )
    cut = len(data) if rng.random() < 0.7 else rng.randrange(len(data))
    client = Client(address, timeout_s=rng.choice([0.01, 0.05, 0.3]))
    try:
        client.send(data[:cut])
        for _ in range(rng.randrange(4)):
            if not client.fill(rng.choice([1, 100, 65536])):
                break
    except (OSError, Short, Malformed):
        pass
    way = rng.randrange(4)
    try:
        if way == 0:
            client.half_close()
    except OSError:
        pass
    client.reset() if way == 1 else client.close()


RANDOM = Conf(
    engines=2,
    server_args="max_fails=2 fail_timeout=50ms",
    location="proxy_next_upstream error timeout http_503 non_idempotent;",
)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_in_flight_returns_to_zero_after_random_cancels(play: Play, lane: str, seed: int) -> None:
    """R#215: the load counter leaked on disconnect, 400 a day, and all traffic went to one node."""
    stage = play(RANDOM)
    rng = random.Random(seed)
    for engine in stage.engines:
        engine.script = moody(rng)
    address = ("127.0.0.1", stage.ports[lane])
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda n: visit(address, seed * 10_000 + n), range(CANCELS // 3)))
    stage.wait_quiet(10)
    for engine in stage.engines:
        engine.script = answer_ok
        engine.failures.clear()
    assert stage.ask(lane, prompt()).status == 200


def test_count_is_taken_when_the_request_is_sent_not_when_it_streams(own: Play, lane: str) -> None:
    """SMG#1714: load counted from the first byte made a burst pile up on one engine."""
    stage = own(Conf(engines=4, upstream="least_conn; health_check off;"))
    for engine in stage.engines:
        engine.script = scripts.hangs
    for _ in range(40):
        stage.client(lane).send(request_bytes(prompt(True)))
    for engine in stage.engines:
        engine.wait_seen(10)
    counts = in_flight_by_engine(stage.gateway.status())
    assert sorted(counts.values()) == [10] * 4, counts


def test_memory_does_not_grow_with_streams(own: Play, lane: str) -> None:
    """LL#12685: 10^5 streams, a third cancelled; here 4 500, and the slope must be flat."""
    stage = own(Conf())
    stage.engine.script = scripts.streams([scripts.event("t" * 200) for _ in range(5)])
    address = ("127.0.0.1", stage.ports[lane])

    def some(seed: int) -> None:
        rng = random.Random(seed)
        client = Client(address)
        for _ in range(50):
            client.send(request_bytes(prompt(True)))
            if rng.random() < 0.3:
                client.head()
                client.reset()
                client = Client(address)
            else:
                assert client.reply().body.endswith(scripts.DONE)
        client.close()

    def batch(start: int) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(some, range(start, start + 30)))
        stage.engine.reset_records()
        stage.engine.script = scripts.streams([scripts.event("t" * 200) for _ in range(5)])
        stage.wait_quiet()

    batch(0)  # pools, caches and allocator arenas reach their size
    with PeakRss(stage.gateway) as memory:
        batch(100)
        batch(200)
        after = stage.gateway.rss_kib()
    assert after - memory.before < 3 * 1024, f"{after - memory.before} KiB for 3 000 streams"


def series(stage: Stage) -> int:
    lines = stage.gateway.metrics().splitlines()
    return sum(1 for line in lines if line and not line.startswith("#"))


def test_metric_series_are_bounded(own: Play, lane: str) -> None:
    """SMG#1679: labels from paths, models and clients grew without end."""
    stage = own(Conf(engines=2))

    def rounds(start: int, count: int) -> None:
        for number in range(start, start + count):
            with Client(("127.0.0.1", stage.ports[lane])) as client:
                client.ask(
                    prompt(), target=f"/v1/x{number}", headers=(("User-Agent", f"c{number}"),)
                )
                client.ask(prompt(model=f"model-{number}"))
                client.ask(method="GET", target=f"/nowhere/{number}", framed=False)
                client.ask(method=f"M{number}", target="/v1/models", framed=False)

    rounds(0, 50)
    few = series(stage)
    assert few > 10, "no metrics at all: nothing was tested"
    rounds(1000, 1000)
    many = series(stage)
    assert many <= few + 5, f"{few} series became {many}"
    text = stage.gateway.metrics()
    assert "model-1500" not in text and "x1500" not in text and "vllm:" not in text


def test_own_replies_are_not_metered(stage: Stage, lane: str) -> None:
    """EA#2513: a locally made error was read for usage like an engine's reply."""
    lines = len(stage.gateway.access())
    name = '"usage":{"prompt_tokens":777,"completion_tokens":888}'
    assert stage.ask(lane, prompt(model=name)).status == 404
    entry = stage.wait_log(lines + 1)[-1]
    assert entry["status"] == "404"
    assert entry["prompt_tokens"] in ("", "-") and entry["completion_tokens"] in ("", "-")


def test_counts_never_jump_below_zero_under_load(play: Play, lane: str) -> None:
    """LD#1739: in flight went negative, and the negative one won every pick."""
    stage = play(RANDOM)
    rng = random.Random(7)
    for engine in stage.engines:
        engine.script = moody(rng)
    address = ("127.0.0.1", stage.ports[lane])
    samples: list[int] = []
    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(visit, address, 70_000 + n) for n in range(60)]

        def done() -> bool:
            samples.append(min(in_flight_by_engine(stage.gateway.status()).values()))
            return all(future.done() for future in running)

        waiting.until(done, "the visitors to be gone", 30)
    assert min(samples) >= 0
    stage.wait_quiet(10)
    for engine in stage.engines:
        engine.failures.clear()
