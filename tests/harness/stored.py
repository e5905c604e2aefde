"""Daemons with an object store, and what their commands say of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.blocks import BLOCK, Engine, name
from harness.kvbm_daemon import DISK, Ran, Served, command
from harness.s3 import S3
from harness.waiting import until

REMOTE, ON_DISK, MISS = 3, 2, 0
LOOK = "upload all; refresh 1s; breaker 2 pause=300ms; timeout 1s; concurrency 4;"
ALONE, BUNDLES = "bundle off;", "bundle 300k wait=100ms;"  # four blocks of 64 KiB each
OTHER_PROBE = hashlib.sha256(b"another").digest()


def tiers(url: str, more: str = ALONE, others: str = DISK) -> str:
    return f"{others}\nremote {{ url {url}; {LOOK} {more} }}\n"


def objects(root: Path, folder: str = "") -> list[Path]:
    files = (path for path in root.rglob("*") if path.is_file() and len(path.name) == 64)
    return [path for path in files if not folder or folder in path.parts]


def fingerprint(engine: Engine) -> str:
    found = engine.client.fingerprint
    assert found is not None
    return found.hex()


def keys(engine: Engine, *blocks: int) -> list[str]:
    return [key.hex() for key in engine.client.keys([name(n) for n in blocks])]


def listed(served: Served, *more: str) -> dict[str, list[str]]:
    """Tiers by key, as `kvbm ls` tells them."""
    rows = [json.loads(line) for line in ask(served, "ls", "--json", *more).stdout.splitlines()]
    assert len({row["key"] for row in rows}) == len(rows), "a block comes once"
    assert all(row["bytes"] == BLOCK for row in rows)
    return {row["key"]: row["tiers"] for row in rows}


def ask(served: Served, word: str, *more: str) -> Ran:
    return command(word, "-c", str(served.file), *more)


def drop(served: Served, *more: str, status: int = 0) -> dict[str, Any]:
    ran = ask(served, "drop", "--json", *more)
    assert ran.returncode == status, ran
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def s3(root: Path, store: S3, more: str = ALONE) -> str:
    (root / "key").write_text("s\n")
    at = f"endpoint {store.url}; access_key a; secret_key file:key;"
    return tiers("s3://bucket/p", f"{at} {more}")


def machines(tmp_path: Path) -> Iterator[Callable[[str], tuple[Served, Engine, Served, Engine]]]:
    """One daemon sent blocks 0 to 8, the other knows them, and has none of them itself."""
    parts: list[Any] = []

    def make(more: str) -> tuple[Served, Engine, Served, Engine]:
        text = tiers(f"file://{tmp_path}/shared", more)
        for which in ("one", "two"):
            (tmp_path / which).mkdir()
            parts.append(Served(tmp_path / which, text).__enter__())
        sent, knows = parts
        parts.append(Engine(sent.socket).up())
        parts[-1].store(range(9))
        until(lambda: sent.tier("remote")["sent"] == 9, "the sends", 20.0)
        parts.append(Engine(knows.socket).up())
        until(lambda: parts[-1].lookup(range(9)) == [REMOTE] * 9, "them", 20.0)
        return sent, parts[2], knows, parts[3]

    yield make
    for part in reversed(parts):
        part.__exit__(None, None, None)


Two = Callable[[str], tuple[Served, Engine, Served, Engine]]
