"""What a configuration file means, once every name is resolved and every value checked.

Frozen data only: no parsing, no I/O. `resolve.py` is the one place that builds it; the gateway
reads it. Times are seconds (`_s`), sizes are bytes, and an absent limit is 0 where the directive
says "0 = none".
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thing was written: for errors, `explain` and the status page."""

    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Var:
    """A variable inside a template: `$name` or `${name}`."""

    name: str


@dataclass(frozen=True, slots=True)
class Template:
    """Text with variables. `parts` holds `str` and `Var`; `constant`: the text, if it has none."""

    parts: tuple[str | Var, ...]

    @property
    def constant(self) -> str | None:
        if not self.parts:
            return ""
        if len(self.parts) == 1 and isinstance(self.parts[0], str):
            return self.parts[0]
        return None


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One `server` line of an upstream: one vLLM server."""

    # As written: "10.0.0.11:8000", "[::1]:8000", "unix:/run/vllm.sock"; the identity over reloads.
    address: str
    host: str  # "" for unix sockets
    port: int  # 0 for unix sockets
    unix_path: str  # "" for TCP
    weight: int = 1
    max_fails: int = 1  # 0 = passive marks off
    fail_timeout_s: float = 10.0
    max_conns: int = 0  # 0 = no limit
    backup: bool = False
    down: bool = False
    drain: bool = False  # set at run time: no new requests, those that only it can answer apart
    role: str = "both"  # prefill | decode | both
    events: str = ""  # ZMQ endpoint of its KV events, "" = ask the engine
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """How an engine is chosen. `key` is the template of `hash`."""

    method: str = "round_robin"  # round_robin | least_conn | hash
    key: Template | None = None
    consistent: bool = False


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """Active check: `health_check interval=5s timeout=2s fails=3 passes=1 uri=/health`."""

    interval_s: float = 5.0
    timeout_s: float = 2.0
    fails: int = 3
    passes: int = 1
    uri: str = "/health"


@dataclass(frozen=True, slots=True)
class Upstream:
    name: str
    engines: tuple[EngineLine, ...]
    models: tuple[str, ...] = ()  # names the engines serve; the first is what aliases stand for
    aliases: tuple[tuple[str, str], ...] = ()  # (alias, model)
    balance: Balance = Balance()
    keepalive: int = 256  # idle connections kept per engine
    keepalive_timeout_s: float = 4.0  # below the 5 s at which vLLM closes an idle connection
    keepalive_requests: int = 0  # 0 = no limit
    health_check: HealthCheck | None = HealthCheck()
    # Bearer token of the gateway's own calls (health, models), not of clients' requests.
    api_key: str = ""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Listen:
    address: str  # as written
    host: str  # "" for unix sockets
    port: int
    unix_path: str
    ssl: bool = False
    default_server: bool = False
    backlog: int = 2048
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class AddHeader:
    name: str
    value: Template
    always: bool = False


@dataclass(frozen=True, slots=True)
class LogFormat:
    name: str
    template: Template
    escape: str = "default"  # default | json | none


@dataclass(frozen=True, slots=True)
class AccessLog:
    path: str  # "off" is an empty tuple on the location; "stderr"/"stdout" or a path
    format: LogFormat


@dataclass(frozen=True, slots=True)
class Proxy:
    """`proxy_pass http://NAME[/uri];` — `upstream` is a declared name, or "" when the model chooses
    (`proxy_pass http://$upstream_by_model;`)."""

    scheme: str  # http | https
    upstream: str
    uri: str | None  # None: the request's target goes through unchanged


@dataclass(frozen=True, slots=True)
class Return:
    """`return CODE [TEXT|URL];`"""

    status: int
    text: Template


@dataclass(frozen=True, slots=True)
class Location:
    modifier: str  # "=" | "^~" | "~" | "~*" | "" (prefix) | "@"
    pattern: str
    handler: Proxy | Return | str  # or "admin" | "metrics" | "none"
    connect_timeout_s: float = 5.0
    send_timeout_s: float = 60.0
    first_byte_timeout_s: float = 600.0
    read_timeout_s: float = 60.0  # between two reads of a reply that has begun
    total_timeout_s: float = 0.0  # 0 = none
    client_max_body_size: int = 64 << 20  # 0 = no limit
    # proxy_set_header; an empty template removes the header.
    set_headers: tuple[tuple[str, Template], ...] = ()
    add_headers: tuple[AddHeader, ...] = ()
    hide_headers: frozenset[str] = frozenset()  # lower case
    # Lower case; proxy_pass_header: let through although otherwise replaced ("server", "date").
    pass_headers: frozenset[str] = frozenset()
    next_upstream: frozenset[str] = frozenset({"error", "timeout"})
    # error timeout invalid_header http_429 http_500 http_502 http_503 http_504 non_idempotent off
    next_upstream_tries: int = 0  # 0 = as many as there are engines
    next_upstream_timeout_s: float = 0.0
    engine_admin: bool = False
    trust_client: bool = False  # keep the fields and headers that a stranger must not set
    express: bool = True  # may be answered without an ASGI task
    expose_receipt: bool = False
    admin_token: str = ""
    access_logs: tuple[AccessLog, ...] = ()
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Server:
    listens: tuple[Listen, ...]
    names: tuple[str, ...]  # server_name, as written; () = ""
    locations: tuple[Location, ...]
    client_header_timeout_s: float = 60.0
    client_body_timeout_s: float = 60.0
    keepalive_timeout_s: float = 75.0
    keepalive_requests: int = 1000  # 0 = no limit
    header_bytes_max: int = 65536  # large_client_header_buffers: number times size
    header_count_max: int = 200
    ssl_certificate: str = ""
    ssl_certificate_key: str = ""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Config:
    file: str
    servers: tuple[Server, ...]
    upstreams: dict[str, Upstream]
    worker_processes: int = 1
    worker_connections: int = 8192
    shutdown_timeout_s: float = 30.0  # worker_shutdown_timeout
    # shutdown_delay: readiness is 503 for so long before listeners close.
    shutdown_delay_s: float = 0.0
    # client_body_buffers_total: request bodies held by one worker.
    body_buffer_total: int = 512 << 20
    error_log: str = "stderr"
    error_level: str = "notice"
    pid: str = ""
    prefix: str = ""
    warnings: tuple[str, ...] = field(default=())
