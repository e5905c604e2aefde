"""Workers under one master: deaths, stops, counts that come back."""

from __future__ import annotations

import json
import os
import signal

from harness import scripts, waiting
from harness.client import prompt, request_bytes


def test_all_counts_are_those_of_all_workers(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree()
    for _ in range(40):
        assert one.ask(prompt()).status == 200

    def total() -> float:
        lines = one.gateway.metrics().splitlines()
        rows = [line for line in lines if line.startswith("kvgate_requests_total{") and "/" in line]
        return sum(float(line.rpartition(" ")[2]) for line in rows if 'upstream="main"' in line)

    assert total() == 40
    assert {total() for _ in range(10)} == {40}
    assert sum(row["pool"]["opened"] for row in one.engine_rows().values()) >= 1


def test_no_worker_gets_most_of_the_clients(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1)
    before = descriptors(one)
    clients = [one.client() for _ in range(100)]

    def shares() -> list[int]:
        now = descriptors(one)
        return [now[pid] - before[pid] for pid in before]

    waiting.until(lambda: sum(shares()) >= 100, "all to be accepted")
    assert min(shares()) >= 25, shares()
    for client in clients:
        client.close()


def descriptors(one) -> dict[int, int]:  # type: ignore[no-untyped-def]
    return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in one.processes()}


def test_a_killed_worker_takes_only_its_own_connections(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree()
    for engine in one.engines:
        engine.script = scripts.starts(scripts.event("a"))
    clients = [one.client() for _ in range(24)]
    for client in clients:
        client.send(request_bytes(prompt(True)))
        client.head()
        client.chunks_until(b"data:")
    assert one.in_flight() == 24
    victim = max(one.processes(), key=lambda pid: len(os.listdir(f"/proc/{pid}/fd")))
    one.kill(victim)
    one.wait_workers(2, without=(victim,))
    survivors = [client for client in clients if not client.ends_within(0.05)]
    assert one.in_flight() == len(survivors) < 24
    for engine in one.engines:
        engine.script = scripts.says()
    for _ in range(10):
        assert one.ask(prompt()).status == 200
    for client in clients:
        client.close()
    waiting.until(lambda: one.in_flight() == 0, "nothing in flight")
    assert "died (signal 9)" in one.gateway.log()


def test_every_worker_knows_who_holds_a_response(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(workers=3)
    for at, engine in enumerate(one.engines):
        engine.script = scripts.says(b'{"id":"resp_%d","object":"response","model":"m1"}' % at)
    with one.client() as client:
        body = json.loads(client.ask(prompt(), target="/v1/responses").body)
    holder = one.engines[int(body["id"][-1])]

    def at_holder() -> bool:
        seen = [len(engine.seen) for engine in one.engines]
        for _ in range(12):
            with one.client() as client:
                client.ask(method="GET", target=f"/v1/responses/{body['id']}")
        return len(holder.seen) == seen[one.engines.index(holder)] + 12

    waiting.until(at_holder, "12 requests in a row to go to the engine that made it")


def test_a_stopped_worker_is_replaced(tree, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("KVGATE_DEV_HEARTBEAT_S", "1")
    one = tree()
    victim = one.processes()[0]
    one.kill(victim, signal.SIGSTOP)
    waiting.until(lambda: "gives no sign of life" in one.gateway.log(), "it is found", 10)
    one.wait_workers(2, without=(victim,))
    for _ in range(10):
        assert one.ask(prompt()).status == 200


def test_a_dead_monitor_is_replaced(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree()
    waiting.until(lambda: one.processes("monitor"), "the monitor's first sign of life", 10)
    (monitor,) = one.processes("monitor")
    one.kill(monitor)
    waiting.until(lambda: one.processes("monitor") not in ([], [monitor]), "another monitor", 10)
    assert one.ask(prompt()).status == 200


def test_workers_end_when_their_master_is_gone(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(top="worker_shutdown_timeout 5s;")
    one.engines[0].script = one.engines[1].script = reply = scripts.Stepwise(
        scripts.event("one"), scripts.event("two")
    )
    client = one.client()
    client.send(request_bytes(prompt(True)))
    reply.step()
    client.head()
    client.chunks_until(b"one")
    children = [pid for pid in one.gateway.pids() if pid != one.gateway.process.pid]
    one.gateway.process.kill()
    reply.step(2)
    client.chunks_until(b"two")
    assert client.chunk() == b""

    def gone() -> bool:
        return not any(alive(pid) for pid in children)

    waiting.until(gone, "workers and monitor to end", 8)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
