"""Clients that leave at any moment leave nothing behind on either engine."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from e2e.disagg import asks, front
from e2e.disagg import pair as pairs
from e2e.disagg.asks import USAGE
from e2e.disagg.front import Front
from e2e.disagg.pair import LEASE_S, Pair
from e2e.disagg.volley import Volley, judge

from gateway.disagg.transfer import ENDS

CLIENTS, AT_ONCE = 300, 12
GONE_S = 8.0  # less than a lease: freed because somebody said so, not because time ran out


@pytest.fixture(scope="module")
def through(pair: Pair, folder: Path) -> Iterator[Front]:
    with front.running(pair, folder / "leaving") as made:
        yield made


def leave(base_url: str, number: int, longest: int, stay_s: float) -> None:
    """Asks, reads whatever comes for `stay_s`, and closes."""
    stream = USAGE if number % 2 else {}
    length = 50 + 97 * number % (longest - 50)
    path, body = asks.completion(
        f"leaving {base_url} {longest} {number}", length, max_tokens=64, **stream
    )
    raw = json.dumps(body).encode()
    address = urlsplit(base_url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        client.sendall(
            f"POST {path} HTTP/1.1\r\nHost: e2e\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n".encode()
            + raw
        )
        threading.Event().wait(stay_s)  # the moment of leaving is what the test is about


@pytest.mark.long
@pytest.mark.parametrize("longest", [150, 2500])  # most leave while answered; while in a queue
@pytest.mark.parametrize("lane", ["express", "starlette"])
def test_three_hundred_that_leave_at_random_moments(
    lane: str, longest: int, pair: Pair, through: Front
) -> None:
    """No lease runs out but, now and then, the last: an idle decode engine may tell the prefill
    engine no sooner than with its next request."""
    pair.wait_idle()
    drawn = random.Random(f"{lane} {longest}")
    stays = [drawn.choice((0.002, 0.02, 0.1, 0.4, 1.0)) * drawn.random() for _ in range(CLIENTS)]
    before = pair.prefill.counter(pairs.EXPIRED)

    def some(first: int) -> None:
        for number in range(first, CLIENTS, AT_ONCE):
            leave(through.lanes[lane], number, longest, stays[number])

    threads = [threading.Thread(target=some, args=(first,)) for first in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    last_s = time.monotonic()
    pair.wait_idle(120)  # the prefills that go on are a queue, on two slow cores
    idle_s = time.monotonic() - last_s
    lost = pair.prefill.counter(pairs.EXPIRED) - before
    ends = {end: through.metric("kvgate_transfers_total", end=end) for end in ENDS}
    print(f"e2e: {CLIENTS} left, {lost:.0f} leases ran out, idle after {idle_s:.1f} s: {ends}")
    assert lost <= CLIENTS // 100
    after = [asks.completion(f"after {lane} {longest} {number}", 300) for number in range(4)]
    with Volley([through.lanes[lane]], after, end_s=60) as volley:
        pass
    assert all(one.whole for one in volley.outcomes)
    judge(pair, volley.outcomes)


@pytest.mark.parametrize("lane", ["express", "starlette"])
def test_what_fits_the_prefill_engine_and_not_the_decode_engine(
    lane: str, pair: Pair, through: Front
) -> None:
    """The decode engine's refusal reaches the client, and the prefill engine is told at once."""
    lengths = (pairs.DECODE_LEN + 1, pairs.DECODE_LEN + 100)
    asked = [asks.completion(f"too long {length}", length) for length in lengths]
    refused = [pairs.post(pair.decode, *ask).json() for ask in asked]
    before = pair.prefill.counter(pairs.EXPIRED)
    with Volley([through.lanes[lane]], asked, end_s=60) as volley:
        pass
    assert volley.statuses() == [400, 400]
    assert [one.error for one in volley.outcomes] == [
        str(each["error"]["code"]) for each in refused
    ]
    pair.wait_idle(min(GONE_S, LEASE_S - 2))
    assert pair.prefill.counter(pairs.EXPIRED) == before
