"""What the rest of kvgate may assume of an engine, simulated or real.

An engine is an HTTP server with vLLM's interface; `engines.vllm` and `engines.sim` are the two
kinds there are. Whoever starts one sees it as an `EngineServer`. The constants are properties of
the interface (vLLM 0.32.0), not choices of ours.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

Role = Literal["prefill", "decode", "both"]
ROLES: tuple[Role, ...] = ("prefill", "decode", "both")

# An idle connection is closed by the engine after this long (uvicorn's default): a pool that keeps
# connections longer sends requests into connections that are just being closed.
KEEPALIVE_S = 5.0

HEALTH = "/health"  # 200 without a body; 503 when the engine's core has died
MODELS = "/v1/models"
METRICS = "/metrics"
EVENT_SOURCES = "/kv_event_sources"  # KV event endpoints per data-parallel rank, ports resolved

REQUEST_ID = "x-request-id"  # becomes the reply's id; NIXL push matches the two legs by it
RANK = "x-data-parallel-rank"  # 400 when out of range
SESSION = "x-session-id"  # appears as `session_id` in KV events


@runtime_checkable
class EngineServer(Protocol):
    """A started engine process. Leaving the `with` block ends it."""

    @property
    def pid(self) -> int | None: ...

    def kill(self) -> None:
        """Ends it at once, as a crash would."""

    def stop(self) -> object:
        """Ends it in order, by force if it takes too long."""

    def __exit__(self, *_: object) -> object: ...
