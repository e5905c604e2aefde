"""What a store's failures are told as: the reason, whatever stands before it, and nothing else."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from harness.s3 import S3
from harness.waiting import until

from kvbm.conf.model import Remote
from kvbm.remote import StoreError, layout
from kvbm.remote.courier import Courier
from kvbm.remote.store import TIDY_MAX, Store
from native import _core

PRINT = bytes(range(32))
PATHS = [layout.block(PRINT, bytes([n]) * 32) for n in range(100)]


def store(url: str) -> Store:
    remote = Remote("s3://bucket/p", url, "here", access_key="a", secret_key="s", timeout_s=5.0)
    return Store(remote)


def said(work: Coroutine[Any, Any, object]) -> str:
    with pytest.raises(StoreError) as caught:
        asyncio.run(work)
    return str(caught.value)


@pytest.mark.parametrize("fault", ["503", "403"])
def test_the_reason_is_not_cut_off(fault: str) -> None:
    with S3() as server:
        server.fault = "read-only" if fault == "403" else fault
        at = store(server.url)
        for work in (at.create(PATHS[0], b"x"), at.delete_many(PATHS)):
            text = said(work)
            assert f"status code: {fault}" in text
            assert len(text) <= TIDY_MAX
            assert not re.search("[0-9a-f]{64}", text)


def test_why_nobody_is_reached_is_told() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # and does not listen
        text = said(store(f"http://127.0.0.1:{sock.getsockname()[1]}").get(PATHS[0]))
    assert text.endswith("Connection refused")


def test_a_conflict_is_an_answer_to_who_creates_only() -> None:
    with S3() as server:
        server.fault = "409"
        at = store(server.url)
        assert asyncio.run(at.create(PATHS[0], b"x")) is False
        works = (at.get(PATHS[0]), at.get_part(PATHS[0], 0, 9), at.delete_many(PATHS[:2]))
        texts = [said(work) for work in works]
        assert [text for text in texts if "409" not in text] == []


def test_what_no_one_foresaw_leaves_the_store_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    async def probe(_: Store) -> None:
        tries.append(1)
        raise RuntimeError("no one foresaw it")

    monkeypatch.setattr(Store, "probe", probe)
    core = _core.KvbmCore(str(tmp_path / "s"), host_bytes=1 << 20, remote_blocks=1024)
    courier = Courier(Remote(f"file://{tmp_path}/shared", failures=3, pause_s=600.0), core)
    courier.start()
    until(lambda: core.stats()["remote_good"] == 0, "that it is told")
    assert "no one foresaw it" in str(courier.figures()["remote_trouble"])
    courier.stop()
    core.stop()
    assert tries == [1]
