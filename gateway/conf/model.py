"""What a configuration file means, once every name is resolved and every value checked.

Frozen data only: no parsing, no I/O. `resolve.py` is the one place that builds it; the gateway
reads it. Times are seconds (`_s`), sizes are bytes, and an absent limit is 0 where the directive
says "0 = none".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.conf.model_kv import (
    INDEX_BYTES,
    NO_KV,
    NOT_DISAGGREGATED,
    Disaggregation,
    KvSettings,
    ServiceLevels,
)
from gateway.conf.model_log import AccessLog, LogFormat, Recording
from gateway.conf.model_rules import (
    NO_LIMITS,
    PLAIN_TLS,
    AccessRule,
    Assign,
    ErrorPage,
    LimitConn,
    LimitReq,
    Limits,
    LimitZone,
    Map,
    MapEntry,
    PolicyHeader,
    ProxyTls,
)
from gateway.conf.model_text import Place, Template, Var

__all__ = [
    "AccessLog",
    "AccessRule",
    "AddHeader",
    "Assign",
    "Balance",
    "Config",
    "Disaggregation",
    "EngineLine",
    "ErrorPage",
    "HealthCheck",
    "KvSettings",
    "LimitConn",
    "LimitReq",
    "LimitZone",
    "Limits",
    "Listen",
    "Location",
    "LogFormat",
    "Map",
    "MapEntry",
    "Place",
    "PolicyHeader",
    "Proxy",
    "ProxyTls",
    "Recording",
    "Return",
    "Server",
    "ServiceLevels",
    "Template",
    "Upstream",
    "Var",
]


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One engine of an upstream: the vLLM server of a `server` line, or with `ranks=N` one
    data-parallel rank of it.
    """

    # As written: "10.0.0.11:8000", "[::1]:8000", "unix:/run/vllm.sock", of a rank with "#0", "#1",
    # ... behind it; the identity over reloads.
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
    replay: str = ""  # ZMQ endpoint that sends past events again, "" = none, or ask the engine
    kvbm: str = ""  # ZMQ endpoint of the events of the kvbm daemon that it loads from, "" = none
    kvbm_replay: str = ""  # of that daemon, as `replay`
    rank: int = -1  # which of the ranks that the server at this address has, -1 = it has none
    ranks: int = 1  # how many
    place: Place | None = None

    @property
    def server(self) -> str:
        """The address of the vLLM server: that of all its ranks."""
        return self.address if self.rank < 0 else self.address.rpartition("#")[0]


@dataclass(frozen=True, slots=True)
class Balance:
    """How an engine is chosen. `key` is the template of `hash`. `ip_hash` takes the first three
    bytes of an IPv4 address and all of an IPv6 address."""

    method: str = "round_robin"  # round_robin | least_conn | hash | random | ip_hash | kv
    key: Template | None = None
    consistent: bool = False
    two: bool = False  # random two: of two drawn by weight, the one with fewer requests


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
    plan_report: str = ""  # file with what the planner said last; "" = none
    kv: KvSettings = NO_KV
    disaggregation: Disaggregation = NOT_DISAGGREGATED
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
    # A socket of its own for each worker; holds for the address, whichever server says so.
    reuseport: bool = False
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class AddHeader:
    name: str
    value: Template
    always: bool = False


@dataclass(frozen=True, slots=True)
class Proxy:
    """`proxy_pass http://NAME[/uri];` — `upstream` is a declared name, or "" when the model chooses
    (`proxy_pass http://$upstream_by_model;`).

    `target` is there where variables are written: all that stands behind `http://`, to be
    evaluated and cut by `resolve_proxy.split_target`; `upstream` is then the name if that part
    holds no variable, else ""."""

    scheme: str  # http | https
    upstream: str
    uri: str | None  # None: the request's target goes through unchanged
    target: Template | None = None


@dataclass(frozen=True, slots=True)
class Return:
    """`return CODE [TEXT|URL];` — 444 closes the connection without a reply."""

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
    recording: Recording | None = None
    # Locations inside this one; they are looked at before the regexes around it, as in nginx.
    locations: tuple[Location, ...] = ()
    captures: tuple[str, ...] = ()  # variables its regex sets: "1", "2", ..., and names
    sets: tuple[Assign, ...] = ()  # the server's, then its own (not those of a block around it)
    error_pages: tuple[ErrorPage, ...] = ()
    slo: ServiceLevels | None = None  # None = that of the upstream
    access: tuple[AccessRule, ...] = ()  # the first that fits decides; none fits: allowed
    limits: Limits = NO_LIMITS
    proxy_tls: ProxyTls = PLAIN_TLS
    policy_headers: tuple[PolicyHeader, ...] = ()
    # (the client's header in lower case, the policy header's name), in file order: the first that
    # a request has counts, after the policy header itself.
    policy_aliases: tuple[tuple[str, str], ...] = ()
    trusted_from: tuple[str, ...] = ()  # networks in CIDR form, "unix:"
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
    send_timeout_s: float = 60.0  # how long a client may take nothing of a reply
    ssl_certificate: str = ""
    ssl_certificate_key: str = ""
    # All pairs of certificate and key; the first is the one above.
    ssl_certificates: tuple[tuple[str, str], ...] = ()
    ssl_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ssl_client_certificate: str = ""  # authorities of client certificates
    ssl_verify_client: str = "off"  # off | on | optional
    name_captures: tuple[str, ...] = ()  # variables that regexes in server_name set
    error_pages: tuple[ErrorPage, ...] = ()  # for requests that no location takes
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
    kv_index_bytes: int = INDEX_BYTES  # kv_index_size: of each worker
    error_log: str = "stderr"
    error_level: str = "notice"
    pid: str = ""
    prefix: str = ""
    maps: dict[str, Map] = field(default_factory=dict)
    conn_zones: dict[str, LimitZone] = field(default_factory=dict)
    req_zones: dict[str, LimitZone] = field(default_factory=dict)
    user: str = ""  # "" = stay who started it
    group: str = ""  # "" = the user's own
    rlimit_nofile: int = 0  # 0 = leave it
    env: tuple[tuple[str, str], ...] = ()  # variables set for the workers
    warnings: tuple[str, ...] = field(default=())
