"""Workers killed at random under streams: no place is lost or given twice, every count returns."""

from __future__ import annotations

import random

import pytest
from harness import scripts, waiting
from harness.client import Client, prompt, request_bytes

LIMIT = 4  # streams of one key
KEYS = ("a", "b")
STEPS = 40
KILLS = 4


class Streams:
    """The streams that are open, by key, as the clients see them."""

    def __init__(self, tree) -> None:  # type: ignore[no-untyped-def]
        self.tree = tree
        self.open: dict[str, list[Client]] = {key: [] for key in KEYS}

    def ask(self, key: str) -> None:
        """One more, which is let in exactly where there is a place."""
        client = self.tree.client()
        client.send(request_bytes(prompt(True), headers=(("X-Team", key),)))
        status = int(client.head().start[1])
        held = len(self.open[key])
        assert status == (200 if held < LIMIT else 429), (key, held)
        if status == 200:
            client.chunks_until(b"data:")
            self.open[key].append(client)
        else:
            client.close()

    def leave(self, client: Client, key: str) -> None:
        """A client goes; its place is free once the gateway has noticed."""
        self.open[key].remove(client)
        client.reset()
        self.settle()

    def settle(self) -> None:
        count = sum(len(clients) for clients in self.open.values())
        waiting.until(lambda: self.tree.in_flight() == count, f"{count} in flight")

    def bury(self) -> None:
        """Those that a killed worker took along are gone."""
        for key, clients in self.open.items():
            self.open[key] = [client for client in clients if not client.ends_within(0.02)]
        self.settle()


@pytest.mark.parametrize("seed", [1, 2])
def test_limits_and_counts_are_exact_through_kills(tree, seed: int) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(seed)
    one = tree(workers=3)
    one.more = "limit_conn_zone $http_x_team zone=teams:1m;"
    one.locations = f"location /v1/ {{ limit_conn teams {LIMIT}; proxy_pass http://main; }}"
    before = one.processes()
    one.reload()
    one.wait_workers(3, without=tuple(before))  # a zone's memory is inherited
    for engine in one.engines:
        engine.script = scripts.starts(scripts.event("a"))
    streams = Streams(one)
    kills = set(rng.sample(range(5, STEPS), KILLS))
    for step in range(STEPS):
        if step in kills:
            victim = rng.choice(one.processes())
            one.kill(victim)
            one.wait_workers(3, without=(victim,))
            streams.bury()
        held = [(client, key) for key in KEYS for client in streams.open[key]]
        if held and rng.random() < 0.4:
            streams.leave(*rng.choice(held))
        else:
            streams.ask(rng.choice(KEYS))
    for key in KEYS:
        for client in list(streams.open[key]):
            streams.leave(client, key)
        for _ in range(LIMIT + 1):  # all places are there, and not one more
            streams.ask(key)
    assert one.in_flight() == LIMIT * len(KEYS)
    for key in KEYS:
        for client in list(streams.open[key]):
            streams.leave(client, key)
