"""The typed contract of `native.relay` (Cython); times are monotonic seconds, sizes bytes."""

import asyncio
import ssl as ssl_
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, final

__version__: str
TICK_S: float
STREAM: int
REPLIED: int

class Gate(Protocol):
    """What the relay calls, on the event loop. What it raises is logged and answered with 500."""

    def head(self, client: Client, request: Request) -> int:
        """A body is still to come: the largest to buffer in bytes (0 = any), STREAM or REPLIED."""
    def request(self, client: Client, request: Request) -> None:
        """Answer it: client.reply(), a started Leg, or client.run_asgi()."""
    def refuse(
        self, client: Client, request: Request, status: int, code: str, message: str
    ) -> None:
        """The relay refuses what it read: answer with client.reply(..., close=True)."""
    def abandoned(self, client: Client, request: Request) -> None:
        """The client left while its body was read, or before anything was started for it."""

class Owner(Protocol):
    """Whoever started a Leg."""

    def leg_head(self, leg: Leg) -> bool:
        """Only for the plan's hook statuses: True relays the reply, False discards it."""
    def leg_first(self, leg: Leg) -> None:
        """Only where `leg.hear_first`, once: the first event with output, or the first byte of a
        body that is no event stream. It has not gone to the client yet; the leg must not be ended
        here."""
    def leg_done(self, leg: Leg) -> None:
        """Exactly once. `leg.relayed` False: the client has had nothing, answer or try again."""

class Limits:
    header_bytes: int
    header_count: int
    header_timeout_s: float
    body_timeout_s: float
    keepalive_timeout_s: float
    send_timeout_s: float
    keepalive_requests: int
    def __init__(
        self,
        *,
        header_bytes: int = ...,
        header_count: int = ...,
        header_timeout_s: float = ...,
        body_timeout_s: float = ...,
        keepalive_timeout_s: float = ...,
        send_timeout_s: float = ...,
        keepalive_requests: int = ...,
    ) -> None: ...

class Budget:
    limit: int
    @property
    def used(self) -> int: ...
    @property
    def refused(self) -> int: ...

body_budget: Budget

class Crowd:
    limit: int
    @property
    def refused(self) -> int: ...

client_limit: Crowd

class Request:
    method: bytes
    target: bytes
    path: bytes
    query: bytes | None
    version: int
    content_length: int
    chunked: bool
    keep_alive: bool
    expects: bool
    upgrade: bool
    head_bytes: int
    field_count: int
    t_head: float
    t0: float
    body: bytes | None
    body_limit: int
    context: Any
    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...
    def get(self, name: bytes, default: Any = None) -> bytes | None: ...
    def joined(self, name: bytes, default: Any = None) -> bytes | None: ...
    def has_prefix(self, prefix: bytes) -> bool: ...

class Sink:
    listener: Any
    peer: str
    local: str
    tls: bool
    requests: int
    def cut(self) -> None: ...

class Nobody(Sink):
    """Stands for a client that is not there: takes any leg, one at a time, and nothing of a
    reply."""

class Client(Sink):
    def __init__(self, gate: Any, app: Any, listener: Any, registry: set[Client]) -> None: ...
    @property
    def closing(self) -> bool: ...
    @property
    def busy(self) -> bool: ...
    @property
    def tls_object(self) -> ssl_.SSLObject | None: ...
    def reply(
        self,
        request: Request,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        close: bool = False,
    ) -> None: ...
    def run_asgi(self, request: Request) -> None: ...
    def shutdown(self) -> None: ...
    def farewell(self, idle_s: float) -> None: ...
    def kill(self) -> None: ...

class AsgiClient(Sink):
    def __init__(
        self, scope: Any, receive: Any, send: Any, gate: Any, listener: Any
    ) -> None: ...
    @property
    def closing(self) -> bool: ...
    async def run(self) -> None: ...
    def reply(
        self,
        request: Request,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        close: bool = False,
    ) -> None: ...
    def run_asgi(self, request: Request) -> None: ...

class Pool:
    def __init__(
        self,
        *,
        host: str = "",
        port: int = 0,
        unix_path: str = "",
        ssl: ssl_.SSLContext | None = None,
        server_hostname: str | None = None,
        max_idle: int = 256,
        idle_s: float = 4.0,
        max_requests: int = 0,
    ) -> None: ...
    max_idle: int
    idle_s: float
    max_requests: int
    active: int
    opened: int
    reused: int
    connect_errors: int
    closed: bool
    @property
    def idle(self) -> int: ...
    def close(self) -> None: ...

def stream_times(
    arrived: float,
    first: float,
    last: float,
    answer: float,
    choice: float,
    choice_last: float,
    tokens: int,
    duration: float,
    complete: bool,
) -> tuple[float, ...]: ...

class RequestPlan:
    def __init__(self, drop: Iterable[bytes] = ()) -> None: ...

class ReplyPlan:
    def __init__(
        self,
        hide: Iterable[bytes] = (),
        *,
        passed: Iterable[bytes] = (),
        connect_s: float = 5.0,
        send_s: float = 60.0,
        first_byte_s: float = 600.0,
        read_s: float = 60.0,
        total_s: float = 0.0,
        hook_statuses: Iterable[int] = (),
        itl: Any = None,
        itl_bounds: Sequence[float] = (),
        collect_max: int = ...,
    ) -> None: ...
    @property
    def series(self) -> int: ...
    def count_as(self, series: int, ttft_s: float, tpot_s: float, e2el_s: float) -> None: ...

class Edits:
    def __init__(self, model_to: bytes = b"", drop_usage: bool = False) -> None: ...
    def model(self, text: bytes) -> bytes: ...
    def event(self, text: bytes) -> bytes: ...
    def json(self, body: bytes) -> bytes: ...
    def with_usage(self, cached: int, created: int) -> Edits: ...
    def count(self, cached: int, created: int) -> None: ...

class Leg:
    request: Request
    target: bytes
    method: bytes
    total_s: float
    not_after: float
    linger_s: float
    keep_max: int
    host: bytes
    extra: bytes
    body: bytes | None
    reply_extra: bytes
    hear_first: bool
    edits: Edits | None
    status: int
    reply_status: int
    error: str | None
    detail: str
    relayed: bool
    unsent: bool
    reused: bool
    sse: bool
    content_type: bytes | None
    reply_headers: list[tuple[bytes, bytes]] | None
    t_start: float
    t_connected: float
    t_sent: float
    t_head: float
    t_end: float
    bytes_sent: int
    bytes_received: int
    bytes_to_client: int
    def __init__(
        self,
        sink: Sink,
        request: Request,
        pool: Pool,
        request_plan: RequestPlan,
        reply_plan: ReplyPlan,
        owner: Any,
    ) -> None: ...
    @property
    def reply(self) -> bytes | None: ...
    @property
    def phase(self) -> str: ...
    @property
    def t_first(self) -> float: ...
    @property
    def t_last(self) -> float: ...
    def times(self, arrived: float, duration: float, complete: bool) -> tuple[float, ...]: ...
    @property
    def counts(self) -> tuple[int, int, int, int]: ...
    @property
    def itl_max(self) -> float: ...
    @property
    def chunks(self) -> int: ...
    @property
    def events(self) -> int: ...
    @property
    def done_seen(self) -> bool: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def created_tokens(self) -> int: ...
    @property
    def reply_id(self) -> bytes: ...
    def start(self) -> None: ...
    def park(self, on: bool) -> None: ...
    def cancel(self, why: str = "cancelled") -> None: ...

@final
class LogBuffer:
    limit: int
    known: bool
    def __init__(self, limit: int = 65536) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def lines(self) -> int: ...
    def put(self, line: bytes) -> bool: ...
    def take(self) -> bytes: ...

class Lookup:
    @property
    def name(self) -> str: ...
    @property
    def known(self) -> dict[str, str]: ...
    def __init__(self, name: str, work: Callable[[Any], str]) -> None: ...
    def read_from(
        self, variable: str | None, source: Callable[[Any], str | None], settled: str
    ) -> None: ...
    def __call__(self, ctx: Any) -> str: ...

class HeaderLines:
    def __init__(
        self, constant: bytes, rows: list[tuple[bytes, Callable[[Any], str]]]
    ) -> None: ...
    def render(self, ctx: Any) -> bytes: ...

@final
class LogLine:
    def __init__(
        self,
        parts: Sequence[bytes | tuple[str, Callable[[Any], str | None]]],
        escape: str,
        wall: Callable[[int], tuple[str, str]],
        native: bool = True,
    ) -> None: ...
    def write(self, ctx: Any, out: LogBuffer) -> bool: ...
    def __call__(self, ctx: Any) -> str: ...

@final
class Tally:
    def __init__(
        self,
        record: Callable[..., object],
        *,
        paths: Iterable[bytes],
        complete: tuple[str, int],
        completed: tuple[str, int],
        good: tuple[str, int],
        lanes: Mapping[str, int],
    ) -> None: ...
    def plain(self, ctx: Any) -> bool: ...

def serve_protocol(
    gate: Any, app: Any, listener: Any, registry: set[Client] | None = None
) -> Callable[[], asyncio.BaseProtocol]: ...
