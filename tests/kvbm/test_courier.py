"""Work that is handed to the courier's loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvbm.conf.model import Remote
from kvbm.remote import StoreError
from kvbm.remote.courier import Courier
from native import _core


def test_work_that_a_loop_came_to_no_more_is_given_up(tmp_path: Path) -> None:
    core = _core.KvbmCore(str(tmp_path / "s"), host_bytes=1 << 22, remote_blocks=100)
    courier = Courier(Remote(f"file://{tmp_path}/store"), core)

    async def work() -> None:
        return

    # Between its last turn and its end a loop takes work that it never begins.
    courier._loop = asyncio.new_event_loop()
    future = courier.run(work())
    assert not future.done()
    courier._loop.close()
    courier._leave()
    assert future.cancelled(), "who waits for it would wait for ever"
    with pytest.raises(StoreError, match="about to end"):
        courier.run(work())
    core.stop()
