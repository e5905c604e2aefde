"""What tests of routing by prompts share: configuration, receipts, waiting on the event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Any

LANES = ("express", "starlette")
DEADLINE_S = 20.0


def conf(addresses: Iterable[str], admin: Path, **how: str) -> str:
    """An http block: the upstream `sim`, kv_aware, and a location that shows receipts. `how`:
    `upstream` and `location` are more directives, `lane` one of LANES; `admin`: a socket's path.
    """
    upstream, location = how.get("upstream", ""), how.get("location", "")
    servers = " ".join(f"server {address};" for address in addresses)
    method = "" if "kv_aware" in upstream else "kv_aware;"
    express = "off" if how.get("lane") == "starlette" else "on"
    return (
        f"upstream sim {{ {servers} {method} health_check off; {upstream} }}"
        f"server {{ listen 127.0.0.1:0; location / {{ proxy_pass http://sim;"
        f" express {express}; expose_receipt on; {location} }} }}"
        f"server {{ listen unix:{admin}; location / {{ admin; }}"
        " location = /metrics { metrics; } }"
    )


async def until(condition: Callable[[], Any], what: str) -> None:
    """Waits for a condition, which may be a coroutine's; fails after DEADLINE_S."""
    end = monotonic() + DEADLINE_S

    async def holds() -> bool:
        value = condition()
        return bool(await value if inspect.isawaitable(value) else value)

    while not await holds():
        assert monotonic() < end, f"this did not happen: {what}"
        await asyncio.sleep(0.01)


async def settled(gw: Any, state: str) -> Any:
    """The token source of `sim`, once it has come to a state."""
    source = gw.app.pipeline.tokens.by_upstream["sim"]
    await until(lambda: source.state == state, f"tokens by {state}, not {source.state}")
    return source


def receipt(reply: Any) -> dict[str, str]:
    """The receipt's headers without their prefix."""
    start = "x-kvgate-"
    return {n[len(start) :]: v for n, v in reply.headers.items() if n.startswith(start)}


def cached(reply: Any) -> int:
    """What the engine says it found in its cache."""
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] or 0)


def chat(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "sim", "messages": messages, "max_tokens": 2, **more}
