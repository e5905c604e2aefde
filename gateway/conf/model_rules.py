"""What a configuration says about requests besides where they go: variables of its own, error
pages, who may come, limits, policy headers, TLS towards engines. Frozen data only.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.conf.model_text import Place, Template

EMPTY = Template(())


@dataclass(frozen=True, slots=True)
class MapEntry:
    """One line of a `map`. `kind`: exact | leading ("*.a.b" as ".a.b") | trailing ("a.*" as "a.") |
    domain (".a.b": itself and all below) | regex | regex_any_case. Keys but regexes are lower
    case: nginx's maps ignore case."""

    kind: str
    key: str
    value: Template


@dataclass(frozen=True, slots=True)
class Map:
    """`map SOURCE $NAME { ... }`: exact keys first, then the longest leading and the longest
    trailing wildcard, then regexes in file order, else `default`. `entries` are in file order.
    Groups of a regex that matched are variables in its value and afterwards."""

    name: str
    source: Template
    entries: tuple[MapEntry, ...]
    default: Template = EMPTY
    hostnames: bool = False  # keys are host names: a final dot of the text does not count
    volatile: bool = False  # evaluated anew at each use; else once per request
    when: str = "request"  # from which moment on it has its value, as `variables.When`
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Assign:
    """`set $NAME VALUE;`: the value is worked out once, in the order of the lines."""

    name: str
    value: Template


@dataclass(frozen=True, slots=True)
class ErrorPage:
    """`error_page CODES [=[STATUS]] TARGET;` for replies that the gateway makes itself.

    `status`: None keeps the error's own, 0 takes that of what answers instead. Exactly one of
    `named` (a location's name without "@"), `uri` (a path, matched as a new GET) and `url` (a
    redirect) is written; the others are "" or None."""

    codes: frozenset[int]
    status: int | None
    named: str = ""
    uri: Template | None = None
    url: Template | None = None


@dataclass(frozen=True, slots=True)
class AccessRule:
    """`allow` or `deny`. `network`: "all", "unix:", or a network in CIDR form."""

    allow: bool
    network: str


@dataclass(frozen=True, slots=True)
class LimitZone:
    """`limit_conn_zone` or `limit_req_zone`. A request whose key is empty is not counted."""

    name: str
    key: Template
    entries: int  # keys held at once; the least recently used free one makes room
    rate: float = 0.0  # limit_req_zone: requests per second
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class LimitConn:
    """`limit_conn ZONE N;` — held for the whole life of a stream."""

    zone: str
    limit: int


@dataclass(frozen=True, slots=True)
class LimitReq:
    """`limit_req zone=NAME burst=N delay=N;` — more than `burst` above the rate is refused. Of
    these, the first `delay` pass at once and the rest wait; None (`nodelay`): all pass at once."""

    zone: str
    burst: int = 0
    delay: int | None = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a location's requests are held to."""

    conns: tuple[LimitConn, ...] = ()
    conn_status: int = 429
    conn_log_level: str = "error"  # info | notice | warn | error
    reqs: tuple[LimitReq, ...] = ()
    req_status: int = 429
    req_log_level: str = "error"  # of refusals; waits are logged one level below


@dataclass(frozen=True, slots=True)
class PolicyHeader:
    """A header by which a request may choose: see `policies.py` for kinds and `policies.read`.

    `name` is written as the gateway writes it. `allow`: the words that may be asked for, () = any.
    `low`, `high`: bounds in seconds or as numbers. `trusted`: only from `trusted_from`."""

    name: str
    kind: str  # enum | token | duration | integer | number
    allow: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class ProxyTls:
    """TLS towards engines, for `proxy_pass https://`. Paths are absolute or ""."""

    verify: bool = False
    trusted_certificate: str = ""
    certificate: str = ""
    certificate_key: str = ""
    name: Template | None = None  # to check and to send; None: the upstream's name
    server_name: bool = False  # whether the name is sent (SNI)


NO_LIMITS = Limits()
PLAIN_TLS = ProxyTls()
