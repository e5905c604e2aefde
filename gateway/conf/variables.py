"""The variables that templates may name: one table, read by `-t`, by the reference and by the
gateway.

`when` says from which moment of a request a variable has its value; earlier it is empty. A name
that ends in `_` stands for a family: `http_` is `$http_NAME` for any request header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

When = Literal["request", "route", "pick", "reply", "end"]


@dataclass(frozen=True, slots=True)
class Variable:
    """`when`: request = the head is read; route = the body is read and the upstream known; pick =
    an engine is chosen; reply = the reply's head is there; end = the exchange is over."""

    name: str
    when: When
    doc: str


def _of(when: When, lines: str) -> tuple[Variable, ...]:
    pairs = (line.strip().partition("  ") for line in lines.strip().splitlines())
    return tuple(Variable(name, when, doc.strip()) for name, _, doc in pairs)


VARIABLES: tuple[Variable, ...] = (
    *_of(
        "request",
        """
        arg_  value of the query argument NAME, undecoded
        args  the query string, without "?"
        binary_remote_addr  client address as 4 or 16 bytes; a compact hash key
        client_request_id  the X-Request-Id that the client sent
        connection  serial number of the client connection in its worker
        connection_requests  number of requests on this connection so far, with this one
        content_length  Content-Length of the request
        content_type  Content-Type of the request
        cookie_  value of the request cookie NAME
        host  host of the request, lower case, without port; else server_name
        hostname  name of this machine
        http_  value of the request header NAME, "-" written as "_", lower case
        https  "on" on a TLS connection, else empty
        is_args  "?" where the request has a query string, else empty
        msec  current time in seconds with milliseconds
        nginx_version  version of kvgate; kept for log formats taken over from nginx
        pid  process id of the worker
        proxy_add_x_forwarded_for  X-Forwarded-For of the request with the client's address added
        query_string  same as args
        remote_addr  client address; "unix:" on a unix socket
        remote_port  client port
        remote_user  always empty; kept for log formats taken over from nginx
        request  the request line
        request_id  32 hexadecimal digits made by the gateway; the X-Request-Id that engines see
        request_length  bytes of the request, head and body
        request_method  GET, POST, ...
        request_uri  the request target as sent
        scheme  http or https
        server_addr  local address of the connection
        server_name  first name of the server block that took the request
        server_port  local port of the connection
        server_protocol  HTTP/1.0 or HTTP/1.1
        ssl_client_s_dn  subject of the client's certificate, RFC 2253; empty where it has none
        ssl_client_verify  SUCCESS, or NONE for a client without a certificate
        time_iso8601  local time, ISO 8601
        time_local  local time in the form of the common log format
        uri  path of the request, decoded and normalised
        """,
    ),
    *_of(
        "route",
        """
        lane  express or starlette: how the request was served
        model  model name in the request, as the client wrote it
        proxy_host  name in proxy_pass
        stream  1 where the client asked for a stream, else 0
        upstream_by_model  the upstream that serves the request's model; for proxy_pass
        upstream_name  name of the upstream
        """,
    ),
    *_of(
        "pick",
        """
        attempts  number of engines tried
        disaggregate  why two engines served it, or one; empty where that was no question
        engine  address of the engine that answered, as on its server line
        kv_cost_ms  modelled cost of the engine that was chosen, milliseconds
        kv_decide_time  seconds it took to choose
        kv_margin_ms  how much more the second cheapest engine would have cost, milliseconds
        kv_matched_tokens  prompt tokens expected in the engine's cache
        kv_prompt_tokens  tokens of the prompt; fewer where its end is not known
        kv_reason  why the prompt was not read exactly; empty where it was
        kv_source  where its token ids came from: local, given, render, tokenize or bytes
        kv_tier  the expected tokens by tier, as device=96,host=32
        kv_tokenize_time  seconds from the request's body to its token ids
        kv_trust  what is known of the engine's cache: exact, healing, approximate or blind
        upstream_addr  addresses of the engines tried, comma separated
        """,
    ),
    *_of(
        "reply",
        """
        prefill_engine  address of the engine that computed the prompt for another
        prefill_time  seconds of its leg
        sent_http_  value of the reply header NAME
        status  status of the reply
        upstream_connect_time  seconds to connect to each engine, comma separated
        upstream_header_time  seconds to the reply's head of each engine, comma separated
        upstream_http_  value of the header NAME of the engine's reply
        upstream_status  status of each engine's reply, comma separated
        """,
    ),
    *_of(
        "end",
        """
        body_bytes_sent  bytes of the reply's body
        bytes_sent  bytes sent to the client
        cached_tokens  prompt tokens the engine found in its cache; "-" where it did not say
        chunks  events of the stream that carried output
        completion_tokens  tokens made; "-" where the engine did not say
        e2el  seconds from the request to the last output; to the end of what is no stream
        end  how it ended: completed, refused, limited, overloaded, failed or cancelled
        error_code  code of the gateway's own error; empty where there is none
        itl_max  longest gap between two output events, seconds
        prompt_tokens  tokens of the prompt; "-" where the engine did not say
        request_completion  "OK" where the whole reply was sent, else empty
        request_time  seconds from the first byte of the request to the last of the reply
        slo  good, or what broke an SLO: a part of its time (as in `$spent`), or error
        slo_broken  the SLOs that it broke, as ttft,tpot
        spent  where its time went, as queue=0.001,prefill=0.250,decode=1.125; seconds
        termination  who ended the exchange, and in which phase
        tpot  mean seconds per output token after the first
        ttft  seconds from the request, head and body, to the first output event
        ttft_choice  the same to the first event with a choice, be it empty, as vllm bench has it
        upstream_bytes_received  bytes received from each engine, comma separated
        upstream_bytes_sent  bytes sent to each engine, comma separated
        upstream_response_time  seconds of each engine's exchange, comma separated
        """,
    ),
)

_EXACT = {variable.name: variable for variable in VARIABLES}
_FAMILIES = tuple(variable for variable in VARIABLES if variable.name.endswith("_"))


def find(name: str) -> Variable | None:
    """The table's entry for `$name`, families included; None for an unknown name."""
    if name in _EXACT and not name.endswith("_"):
        return _EXACT[name]
    for family in _FAMILIES:
        if name.startswith(family.name) and len(name) > len(family.name):
            return family
    return None


def names() -> list[str]:
    return sorted(_EXACT)


ORDER: tuple[When, ...] = ("request", "route", "pick", "reply", "end")


class Known:
    """The table's variables, and those that one configuration makes itself with `map`, `set` and
    the groups of regular expressions. `own` tells from which moment each has its value."""

    __slots__ = ("own",)

    def __init__(self, own: Mapping[str, When] | None = None) -> None:
        self.own: dict[str, When] = dict(own or {})

    def when(self, name: str) -> When | None:
        """The moment from which `$name` has a value; None for an unknown name."""
        variable = find(name)
        return variable.when if variable is not None else self.own.get(name)

    def names(self) -> list[str]:
        return sorted({*_EXACT, *self.own})


BUILT_IN = Known()
