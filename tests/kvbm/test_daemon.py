"""The whole daemon: started, administered, reloaded, stopped; its commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from harness.blocks import BLOCK, Engine, name
from harness.kvbm_daemon import DISK, Served, command
from harness.waiting import until

from kvbm.asking import Asking, NoAnswer
from kvbm.conf.model import Address
from kvbm.metrics import EVERY


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, f"pid run/kvbm.pid;\nhost {{ size 8m; }}\n{DISK}") as served:
        yield served


def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number: int = sock.getsockname()[1]
        return number


def test_it_keeps_blocks_over_its_own_restart(served: Served) -> None:
    pid = served.root / "run" / "kvbm.pid"
    assert served.process is not None
    assert int(pid.read_text()) == served.process.pid
    with Engine(served.socket) as engine:
        engine.up().store([1, 2, 3])
        assert served.tier("disk")["blocks"] == 3
        assert served.end() == 0
        assert not pid.exists()
        served.start()
        until(lambda: engine.lookup([1, 2, 3]) == [2, 2, 2], "the blocks again")
        assert engine.load([2]).ok
        assert engine.holds(0, 2)
        assert served.tier("disk")["stored"] == 0


def test_its_sockets_are_for_their_owner_alone(served: Served) -> None:
    for path in ("run/kvbm.sock", "run/kvbm-admin.sock"):
        assert stat.S_IMODE((served.root / path).stat().st_mode) == 0o600
    assert stat.S_IMODE((served.root / "run").stat().st_mode) == 0o700
    assert served.end() == 0
    assert not (served.root / "run/kvbm-admin.sock").exists()


def test_commands_show_and_drop(served: Served) -> None:
    where = ("-c", str(served.file))
    with Engine(served.socket) as engine:
        engine.up().store(range(5))
        fingerprint = engine.client.fingerprint
        keys = engine.client.keys([name(n) for n in range(5)])
        assert fingerprint is not None
        shown = command("stat", *where)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "1 engines connected" in shown.stdout
        assert f"namespace {fingerprint.hex()[:16]}  model=m" in shown.stdout
        assert json.loads(command("stat", *where, "--json").stdout)["tiers"]["disk"]["blocks"] == 5
        rows = [json.loads(line) for line in command("ls", *where, "--json").stdout.splitlines()]
        assert {row["key"] for row in rows} == {key.hex() for key in keys}
        assert {(row["namespace"], row["bytes"]) for row in rows} == {(fingerprint.hex(), BLOCK)}
        assert len(command("ls", *where, "-n", "2").stdout.splitlines()) == 2
        assert command("ls", *where, fingerprint.hex()[:4].upper()).stdout.count("\n") == 5
        nobody = command("ls", *where, "ffff0000")
        assert (nobody.returncode, nobody.stdout) == (1, "")
        assert "no namespace begins with `ffff0000`" in nobody.stderr
        done = command("verify", *where)
        assert (done.returncode, done.stdout.split(",")[0]) == (0, "disk: 5 blocks")
        dropped = command("drop", *where, fingerprint.hex()[:8], keys[0].hex(), keys[1].hex())
        assert dropped.stdout == "blocks dropped: host 0, disk 2, remote 0 (0 objects)\n"
        assert engine.lookup(range(5)) == [0, 0, 2, 2, 2]
        everything = command("drop", *where, "--all")
        assert everything.stdout == "blocks dropped: host 0, disk 3, remote 0 (0 objects)\n"
        assert engine.lookup(range(5)) == [0] * 5


def test_verify_finds_what_rotted(served: Served) -> None:
    with Engine(served.socket) as engine:
        engine.up().store([0])
        engine.store([1])
        engine.store([2])
        rotten = engine.client.keys([name(0)])[0].hex()
        fingerprint = engine.client.fingerprint
    assert fingerprint is not None
    assert served.end() == 0
    [segment] = [p for p in (served.root / "disk/kvbm-v1").glob("segment-*") if b"KVBMREC1" in
                 p.read_bytes()]  # fmt: skip
    data = bytearray(segment.read_bytes())
    data[2 * 4096 + 100] ^= 1
    segment.write_bytes(data)
    served.start()
    where = ("-c", str(served.file))
    done = command("verify", *where)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1:] == [f"{fingerprint.hex()[:16]}  {rotten}  disk"]
    block = {"namespace": fingerprint.hex(), "key": rotten, "certain": True, "tier": "disk"}
    assert served.asking.get("/verify")["blocks"] == [block]
    assert served.logged(f"a block is damaged and was forgotten: {fingerprint.hex()} {rotten}")
    assert served.tier("disk")["corrupt"] == 1
    again = command("verify", *where, "--json")
    assert (again.returncode, json.loads(again.stdout)["blocks"]) == (0, [])


def test_commands_say_what_is_wrong(served: Served, tmp_path: Path) -> None:
    where = ("-c", str(served.file))
    assert command("drop", *where).returncode == 2
    for unset in (("", "--all"), ("", "00" * 32)):  # a script's variable that is not set
        refused = command("drop", *where, *unset)
        assert (refused.returncode, "give at least 4 digits" in refused.stderr) == (1, True)
    bad = command("drop", *where, "ffff0000", "00" * 32)
    assert (bad.returncode, "no namespace begins with `ffff0000`" in bad.stderr) == (1, True)
    gone = command("stat", "--admin", f"unix:{tmp_path}/nobody.sock")
    assert gone.returncode == 1
    assert "hint: is the daemon running?" in gone.stderr
    second = command("serve", *where)
    assert second.returncode == 1
    assert "cannot listen at unix:" in second.stderr
    assert command("frobnicate").returncode == 2


def test_metrics_are_the_declared_ones(served: Served) -> None:
    with Engine(served.socket) as engine:
        engine.up().store([1])
    reply = httpx.Client(transport=httpx.HTTPTransport(uds=str(served.asking.address.unix_path)))
    text = reply.get("http://kvbm/metrics").text
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    declared = {metric.name for metric in EVERY}
    assert families <= declared
    off = ("kvbm_remote", "kvbm_breaker", "kvbm_event")
    assert {m.name for m in EVERY if not m.name.startswith(off)} <= families
    assert 'kvbm_stored_total{tier="disk"} 1.0' in text
    assert 'kvbm_blocks{tier="disk"} 1.0' in text


def test_tcp_needs_the_token_and_metrics_do_not(tmp_path: Path) -> None:
    admin, metrics = port(), port()
    text = (
        f"admin unix:run/kvbm-admin.sock;\nadmin 127.0.0.1:{admin};\nadmin_token file:token;\n"
        f"metrics 127.0.0.1:{metrics};\n{DISK}"
    )
    (tmp_path / "token").write_text("sesame\n")
    with Served(tmp_path, text) as served:
        with Asking(Address("127.0.0.1", admin)) as asking, pytest.raises(NoAnswer, match="token"):
            asking.get("/status")
        with Asking(Address("127.0.0.1", admin), "sesame") as asking:
            assert asking.get("/health") == {"running": True}
        base = f"http://127.0.0.1:{admin}/drop"
        headers = {"authorization": "Bearer sesame", "origin": "http://evil.example"}
        assert httpx.post(base, headers=headers, json={"all": True}).status_code == 403
        scraped = httpx.get(f"http://127.0.0.1:{metrics}/metrics")
        assert "kvbm_blocks" in scraped.text
        assert httpx.get(f"http://127.0.0.1:{metrics}/status").status_code == 404
        (tmp_path / "token").write_text("other\n")
        served.send(signal.SIGHUP)
        until(lambda: served.logged("changed: admin_token"), "the reload")
        with Asking(Address("127.0.0.1", admin), "other") as asking:
            assert asking.get("/health") == {"running": True}


def test_a_wrong_file_changes_nothing(served: Served) -> None:
    served.file.write_text("error_log kvbm.log; disk { pth x; }")
    served.send(signal.SIGHUP)
    until(lambda: served.logged("not reloaded"), "the refusal")
    until(lambda: served.logged('unknown directive "pth"'), "its reason")
    served.file.write_text(f"error_log kvbm.log info; connections 9;\nhost {{ size 9m; }}\n{DISK}")
    served.send(signal.SIGHUP)
    until(lambda: served.logged("a change of `connections` needs a restart"), "the reload")
    assert served.status()["state"] == "ok"


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("GET", "/blocks?cursor=x", b"", "`x` is no number"),
        ("POST", "/drop", b"{", "no JSON"),
        ("POST", "/drop", b"[]", "must be a JSON object"),
        ("GET", "/blocks?limit=%C2%B2", b"", "is no number"),
        ("POST", "/drop", b"{}", "keys"),
        ("POST", "/drop", b'{"keys": ["00"]}', "keys"),
        ("POST", "/drop", b'{"all": true, "namespace": null}', "keys"),
        ("POST", "/drop", b'{"all": true, "namespace": 12345}', "keys"),
        ("POST", "/drop", b'{"all": true, "namespace": ""}', "at least 4 digits"),
        ("POST", "/drop", b'{"all": true, "keys": ["00"]}', "keys"),
        ("POST", "/drop", b'{"all": true, "namepsace": "aaaa"}', "keys"),
        ("POST", "/verify", b'{"rate": -1}', "bytes a second"),
        ("POST", "/verify", b'{"rate": true}', "bytes a second"),
        ("POST", "/verify", b'{"remote": "yes"}', "true or false"),
        ("POST", "/prefetch", b'{"namespace": "aaaa", "keys": []}', "block_bytes"),
    ],
)
def test_bad_requests_are_told(
    served: Served, method: str, path: str, body: bytes, words: str
) -> None:
    """A drop that says something else than it means to say is not one of everything."""
    transport = httpx.HTTPTransport(uds=served.asking.address.unix_path)
    with httpx.Client(transport=transport) as client:
        reply = client.request(method, f"http://kvbm{path}", content=body)
    assert reply.status_code == 400
    assert words in reply.json()["error"]


def test_a_hint_brings_blocks_into_the_arena(served: Served) -> None:
    with Engine(served.socket) as engine:
        engine.up().store(range(4))
        fingerprint = engine.client.fingerprint
        assert fingerprint is not None
        chain = [name(n) for n in range(4)]
        assert engine.client.lookup(chain, arena=True) == bytes([2] * 4)
        body = {
            "namespace": fingerprint.hex(), "block_bytes": BLOCK,
            "hashes": [one[:32].hex() for one in chain[:2]],
        }  # fmt: skip
        assert served.asking.post("/prefetch", body) == {"taken": 2}
        until(lambda: engine.client.lookup(chain, arena=True) == bytes([1, 1, 2, 2]), "two of them")
        engine.client.prefetch(chain)
        until(lambda: engine.client.lookup(chain, arena=True) == bytes([1] * 4), "all of them")


def test_a_disk_without_room_costs_stores_and_nothing_else(tmp_path: Path) -> None:
    text = "disk { path disk; size 64m; segment 1m; sync 50ms; }"
    with Served(tmp_path, text) as served, Engine(served.socket) as engine:
        engine.up().store([1])
        served.end()
        # ENOSPC whenever the journal is written.
        served.environment["KVBM_TEST_POINTS"] = "journal.write=28"
        served.start()
        until(lambda: engine.up().lookup([1]) == [2], "the block")
        engine.store([2])
        until(lambda: served.status()["state"] == "degraded", "that it is seen", 10.0)
        assert "No space left" in served.tier("disk")["trouble"]
        until(lambda: served.logged("disk: takes no blocks: "), "a line in the log")
        assert list(engine.store([3]).statuses) == [6]
        assert engine.load([1]).ok
        assert engine.holds(0, 1)
        shown = command("stat", "-c", str(served.file)).stdout
        assert "trouble: " in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_strangers_are_turned_away_and_allowed_users_are_not(tmp_path: Path) -> None:
    script = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX);"
        " s.settimeout(1); s.connect(sys.argv[1]); print(s.recv(9))"
    )
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        path = f"{open_to_all}/kvbm.sock"
        text = f"socket {path} mode=0666;\nadmin unix:run/kvbm-admin.sock;\n{DISK}"

        def stranger() -> str:
            command = [sys.executable, "-c", script, path]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            return done.stdout + done.stderr

        with Served(tmp_path, text) as served:
            said = stranger()
            assert "b''" in said or "ConnectionResetError" in said, said
            assert served.status()["counters"]["connections_refused_uid"] == 1
            served.file.write_text(f"error_log kvbm.log info;\nallow_user 65534;\n{text}")
            served.send(signal.SIGHUP)
            until(lambda: served.logged("changed: allow_user"), "the reload")
            # Let in, it has to say HELLO within 5 s, which is more than this one waits.
            assert "TimeoutError" in stranger()
            assert served.status()["counters"]["connections_refused_uid"] == 1
