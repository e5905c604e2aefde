"""The modelled load of a gateway's engines, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import Any

from native._core import Prompt


def load(gw: Any) -> list[tuple[int, int, int, int, float]]:
    """Of each engine: in flight, waiting for a first token, decoding, KV tokens, work queued."""
    group = gw.app.table.groups["sim"]
    (team,) = group.teams
    core = gw.app.memory.ledger.core
    rows = team.scorer.explain(Prompt(b"\0" * 64), b"\1" * len(team.engines), 0.0)
    return [
        (core.inflight(e.slot), row.waiting, row.running, row.kv_tokens,
         core.load(e.slot).prefill_tokens)
        for e, row in zip(team.engines, rows, strict=True)
    ]  # fmt: skip


def idle(gw: Any) -> bool:
    return all(not any(row) for row in load(gw))


def predicted(gw: Any) -> int:
    """Blocks that are expected only because their prompt was sent a moment ago."""
    index = gw.app.table.index
    index.match(Prompt.of_list([1]), [0], monotonic())
    return int(index.stats().predicted)


async def leave_early(url: str, body: dict[str, Any], after_s: float) -> None:
    """Asks, and closes its connection after a while, whatever has come by then."""
    host, _, port = url.partition("://")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    try:
        async with asyncio.timeout(after_s):
            while await reader.read(65536):
                pass
    except TimeoutError:
        pass
    writer.close()
