"""Signals of the master: logs, drains, a new program that takes over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from harness import scripts, waiting
from harness.client import prompt, request_bytes


def test_usr1_opens_every_log_again(tree, tmp_path) -> None:  # type: ignore[no-untyped-def]
    errors, access = tmp_path / "error.log", tmp_path / "access.log"
    one = tree(top=f"error_log {errors} info;", access=access)
    assert one.ask(prompt()).status == 200
    for path in (errors, access):
        path.rename(path.with_suffix(".1"))
    one.gateway.signal(signal.SIGUSR1)
    waiting.until(lambda: errors.exists() and access.exists(), "new files")
    for _ in range(20):
        assert one.ask(prompt()).status == 200
    one.gateway.signal(signal.SIGQUIT)
    assert one.gateway.wait_exit() == 0
    lines = access.read_text() + access.with_suffix(".1").read_text()
    assert lines.count("POST /v1/completions") == 21
    assert "kvgate ends" in errors.read_text()


def test_quit_drains_all_workers(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(top="shutdown_delay 500ms; worker_shutdown_timeout 10s;")
    reply = scripts.Stepwise(scripts.event("one"), scripts.event("two"))
    for engine in one.engines:
        engine.script = reply
    clients = [one.client() for _ in range(8)]
    for client in clients:
        client.send(request_bytes(prompt(True)))
    reply.step()
    for client in clients:
        client.head()
        client.chunks_until(b"one")
    one.gateway.signal(signal.SIGQUIT)
    waiting.until(lambda: ready(one) == 503, "readiness to say 503", 2)
    waiting.until(lambda: refused(one), "the listener to close", 3)
    reply.step(2)
    for client in clients:
        client.chunks_until(b"two")
        assert client.chunk() == b""
    assert one.gateway.wait_exit() == 0
    assert not (one.folder / "admin.sock").exists()


def test_winch_drains_workers_and_hup_brings_new_ones(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1, detached=True)
    before = one.processes()
    one.gateway.signal(signal.SIGWINCH)
    waiting.until(lambda: not any(alive(pid) for pid in before), "workers to end", 5)
    assert one.gateway.alive
    one.gateway.signal(signal.SIGHUP)
    one.wait_workers(2, without=tuple(before))
    assert one.ask(prompt()).status == 200


def test_usr2_hands_the_sockets_to_a_new_program(tree) -> None:  # type: ignore[no-untyped-def]
    pid_file = "run.pid"
    one = tree(engines=1, top=f"pid {pid_file};")
    path = one.folder / pid_file
    (engine,) = one.engines
    reply = engine.script = scripts.Stepwise(scripts.event("one"), scripts.event("two"))
    client = one.client()
    client.send(request_bytes(prompt(True)))
    reply.step()
    client.head()
    client.chunks_until(b"one")
    old = one.gateway.process.pid
    one.gateway.signal(signal.SIGUSR2)
    aside = Path(f"{path}.oldbin")
    new = waiting.until(lambda: other_master(one, path, old), "the new program", 10)
    assert aside.read_text().strip() == str(old)
    waiting.until(lambda: serving(one, new), "its workers", 10)
    engine.script = scripts.says()
    for _ in range(20):
        assert one.ask(prompt()).status == 200
    one.gateway.signal(signal.SIGQUIT)
    reply.step(2)
    client.chunks_until(b"two")
    assert client.chunk() == b""
    assert one.gateway.wait_exit() == 0
    try:
        assert path.read_text().strip() == str(new) and not aside.exists()
        assert (one.folder / "admin.sock").exists()
        for _ in range(10):
            assert one.ask(prompt()).status == 200
        assert one.status()["master"] == new
    finally:
        os.kill(new, signal.SIGTERM)
        waiting.until(lambda: not alive(new), "the new program to end", 5)
    assert not path.exists() and not (one.folder / "admin.sock").exists()


def test_a_new_program_that_fails_leaves_the_old_one(tree) -> None:  # type: ignore[no-untyped-def]
    one = tree(engines=1, top="pid run.pid;")
    one.gateway.config_file.write_text("nonsense")
    one.gateway.signal(signal.SIGUSR2)
    waiting.until(lambda: "has ended" in one.gateway.log(), "the new program to end", 10)
    path = one.folder / "run.pid"
    assert path.read_text().strip() == str(one.gateway.process.pid)
    assert one.ask(prompt()).status == 200


def other_master(one, path: Path, old: int) -> int:  # type: ignore[no-untyped-def]
    try:
        pid = int(path.read_text())
    except (OSError, ValueError):
        return 0
    return pid if pid != old else 0


def serving(one, master: int) -> bool:  # type: ignore[no-untyped-def]
    """Whether a worker of that master has answered."""
    status = one.status()
    workers = [p for p in status["processes"] if (p["kind"], p["state"]) == ("worker", "serving")]
    return status["master"] == master and len(workers) == 2


def ready(one) -> int:  # type: ignore[no-untyped-def]
    return int(one.gateway.get("/kvgate/ready")[0])


def refused(one) -> bool:  # type: ignore[no-untyped-def]
    try:
        one.client().close()
    except ConnectionRefusedError:
        return True
    return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
