"""`kvbm verify --remote`: all that lies in the store is read, what is bad is deleted and told."""

from __future__ import annotations

import json
from pathlib import Path

from harness.blocks import BLOCK
from harness.kvbm_daemon import DISK, Served
from harness.s3 import S3
from harness.stored import (
    ALONE,
    BUNDLES,
    MISS,
    ON_DISK,
    REMOTE,
    Two,
    ask,
    fingerprint,
    keys,
    listed,
    objects,
    s3,
)
from harness.waiting import until


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_verify_reads_the_store_too_if_it_is_asked(two: Two, tmp_path: Path) -> None:
    _, engine, knows, other = two(ALONE)
    shared = tmp_path / "shared"
    assert other.load([4]).ok
    until(lambda: other.lookup([4]) == [ON_DISK], "one on the disk")
    good = ask(knows, "verify", "--remote")
    assert good.returncode == 0, good
    assert [line.split(" read")[0] for line in good.stdout.splitlines()] == [
        "disk: 1 blocks, 68.0 KiB", "remote: 9 blocks, 612.0 KiB",
    ]  # fmt: skip
    by_key = {path.name: path for path in objects(shared)}
    [payload, header, foreign, another] = [by_key[key] for key in keys(engine, 0, 1, 2, 3)]
    flip(payload, 4096 + 77)
    flip(header, 70)
    foreign.write_bytes(another.read_bytes())
    assert ask(knows, "verify").returncode == 0, "the disk is as it was"
    bad = ask(knows, "verify", "--remote", "--json")
    report = json.loads(bad.stdout)
    assert bad.returncode == 1
    assert (report["bad"], report["remote"]["bad"], report["remote"]["checked"]) == (0, 3, 9)
    assert {(row["key"], row["tier"]) for row in report["blocks"]} == {
        (key, "remote") for key in keys(engine, 0, 1, 2)
    }
    assert not any(path.exists() for path in (payload, header, foreign))
    assert knows.tier("remote")["corrupt"] == 3
    assert other.lookup(range(4)) == [MISS] * 3 + [REMOTE]
    assert knows.logged(f"remote: a block is damaged: {fingerprint(engine)} {payload.name}")
    assert ask(knows, "verify", "--remote").returncode == 0


def test_verify_finds_what_is_bad_in_bundles(two: Two, tmp_path: Path) -> None:
    _, _, knows, _ = two(BUNDLES)
    shared = tmp_path / "shared"
    first, second, *_ = sorted(objects(shared, "bundles"), key=lambda path: path.stat().st_size)
    rotten = first.read_bytes()[128:160].hex()
    lost = (second.stat().st_size - 4096) // (4096 + BLOCK)
    flip(first, 4096 + 4096 + 5)
    flip(second, 130)
    ran = ask(knows, "verify", "--remote", "--json")
    report = json.loads(ran.stdout)
    assert (ran.returncode, report["remote"]["bad"]) == (1, 1 + lost)
    assert (report["remote"]["failed"], report["remote"]["why"]) == (0, "")
    assert [row["key"] for row in report["blocks"]] == [rotten]
    assert not second.exists()
    assert [path.name for path in objects(shared, "dropped")] == [rotten]
    found = listed(knows)
    assert (len(found), rotten in found) == (9 - 1 - lost, False)
    assert ask(knows, "verify", "--remote").returncode == 0, "what is marked is no loss"


def test_verify_keeps_to_its_rate_and_ends_with_the_daemon(two: Two) -> None:
    _, _, knows, _ = two(ALONE)
    begun = ask(knows, "verify", "--remote", "--rate", "1", "--no-wait")
    assert (begun.returncode, "under way" in begun.stdout) == (0, True)
    until(lambda: knows.asking.get("/verify")["remote"]["checked"] == 1, "the first block")
    second = ask(knows, "verify", "--remote")
    assert (second.returncode, "is being verified" in second.stderr) == (1, True)
    report = knows.asking.get("/verify")
    assert (report["done"], report["remote"]["checked"]) == (False, 1)
    assert knows.end() == 0


def test_verify_says_what_it_could_not_read(tmp_path: Path, store: S3) -> None:
    (tmp_path / "plain").mkdir()
    with Served(tmp_path / "plain") as plain:
        none = ask(plain, "verify", "--remote")
        assert (none.returncode, "there is no object store" in none.stderr) == (1, True)
    text = s3(tmp_path, store).replace(DISK, "host { size 8m; }")
    with Served(tmp_path, text) as served:
        nothing = ask(served, "verify")
        assert (nothing.returncode, "hint: --remote" in nothing.stderr) == (1, True)
        assert ask(served, "verify", "--remote").returncode == 0
        store.fault = "503"
        away = ask(served, "verify", "--remote")
        assert (away.returncode, "remote: not all" in away.stdout) == (1, True)
