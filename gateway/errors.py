"""Every error that the gateway itself answers a client with, and the one shape it is written in.

    GatewayError
    ├── ClientError           the request is at fault                           origin "client"
    │   ├── BadRequest 400, InvalidJson 400, ModelRequired 400
    │   ├── Unauthorized 401, Forbidden 403
    │   ├── PathNotFound 404, ModelNotFound 404, MethodNotAllowed 405, RequestTimeout 408
    │   ├── BodyTooLarge 413, UriTooLong 414, ExpectationFailed 417, HeaderTooLarge 431
    │   └── TooManyRequests, RateExceeded, TooManyInFlight 429, BadPolicy 400
    ├── OwnError              the gateway cannot or will not                    origin "gateway"
    │   ├── InternalError 500, NotImplementedHere 501, VersionNotSupported 505
    │   └── Overloaded 503, Draining 503
    └── UpstreamError         an engine is at fault                             origin "upstream"
        ├── ConnectFailed 502, UpstreamLost 502, BadReply 502, UnknownUpstream 502
        ├── NoEngine 503, EngineStarting 503
        └── UpstreamTimeout 504

Invariant: a `code` is stable, names one class, has a section in `docs/errors.md`, and is the same
word in the reply, the log line and the metric's label. Errors that an engine makes are never
rendered here: they pass unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.error_base import JSON as JSON
from gateway.error_base import GatewayError as GatewayError
from gateway.refusals import (
    BadPolicy as BadPolicy,
)
from gateway.refusals import (
    BadRequest as BadRequest,
)
from gateway.refusals import (
    BodyTooLarge as BodyTooLarge,
)
from gateway.refusals import (
    ClientError as ClientError,
)
from gateway.refusals import (
    ExpectationFailed as ExpectationFailed,
)
from gateway.refusals import (
    Forbidden as Forbidden,
)
from gateway.refusals import (
    HeaderTooLarge as HeaderTooLarge,
)
from gateway.refusals import (
    InvalidJson as InvalidJson,
)
from gateway.refusals import (
    MethodNotAllowed as MethodNotAllowed,
)
from gateway.refusals import (
    ModelNotFound as ModelNotFound,
)
from gateway.refusals import (
    ModelRequired as ModelRequired,
)
from gateway.refusals import (
    PathNotFound as PathNotFound,
)
from gateway.refusals import (
    RateExceeded as RateExceeded,
)
from gateway.refusals import (
    RequestTimeout as RequestTimeout,
)
from gateway.refusals import (
    TooManyInFlight as TooManyInFlight,
)
from gateway.refusals import (
    TooManyRequests as TooManyRequests,
)
from gateway.refusals import (
    Unauthorized as Unauthorized,
)
from gateway.refusals import (
    UriTooLong as UriTooLong,
)


class OwnError(GatewayError):
    origin = "gateway"


class InternalError(OwnError):
    code = "internal_error"
    status = 500
    template = "The gateway failed on this request (id {request_id})"
    hint = "this is a defect of the gateway: the error log has the traceback under the same id"


class NotImplementedHere(OwnError):
    code = "not_implemented"
    status = 501
    template = "{what}"
    hint = "the message names the feature of HTTP that is not offered"


class VersionNotSupported(OwnError):
    code = "version_not_supported"
    status = 505
    template = "{what}"
    hint = "HTTP/1.0 and HTTP/1.1 are spoken here"


class Overloaded(OwnError):
    code = "overloaded"
    status = 503
    template = "{what}"
    hint = "see `client_body_buffers_total` and the limit of open files"
    retry_after_s = 1


class Draining(OwnError):
    code = "draining"
    status = 503
    template = "This gateway is shutting down"
    hint = "send the request again: it will reach another instance"
    retry_after_s = 1


class UpstreamError(GatewayError):
    origin = "upstream"


class ConnectFailed(UpstreamError):
    code = "upstream_unreachable"
    status = 502
    template = "No engine of `{upstream}` could be reached"
    hint = "the error log names the address and the system's error"


class UpstreamLost(UpstreamError):
    code = "upstream_lost"
    status = 502
    template = "The engine of `{upstream}` closed the connection before its reply was complete"
    hint = (
        "the engine died or was restarted; the request may have run there, so it is sent again "
        "only with `proxy_next_upstream … non_idempotent`; a stream's last event has this code"
    )


class BadReply(UpstreamError):
    code = "upstream_bad_reply"
    status = 502
    template = "The engine of `{upstream}` sent a reply that is not valid HTTP"
    hint = "the error log has the detail; is this address really an engine's HTTP port?"


class NoEngine(UpstreamError):
    code = "no_engine_available"
    status = 503
    template = "No engine of `{upstream}` is available"
    hint = "all are down, failing their health checks, or at `max_conns`: see `/kvgate/status`"
    retry_after_s = 1


class EngineStarting(UpstreamError):
    code = "engine_starting"
    status = 503
    template = "The models of `{upstream}` are not known yet: no engine has answered"
    hint = "engines that are still loading answer nothing; see `/kvgate/status`"
    retry_after_s = 1


class UnknownUpstream(UpstreamError):
    code = "upstream_unknown"
    status = 502
    template = "The configuration leads this request to `{upstream}`, which is no upstream"
    hint = "`proxy_pass` has variables there: make each of their values a declared upstream"


class UpstreamTimeout(UpstreamError):
    code = "upstream_timeout"
    status = 504
    type = "timeout_error"
    template = "The engine of `{upstream}` did not answer in time ({what})"
    hint = (
        "`proxy_connect_timeout`, `proxy_send_timeout`, `proxy_first_byte_timeout`, "
        "`proxy_read_timeout` or `proxy_total_timeout` was met; the message says which"
    )


def _walk(cls: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for child in cls.__subclasses__():
        if child.code:
            yield child
        yield from _walk(child)


def all_errors() -> tuple[type[GatewayError], ...]:
    """Every class with a code, in the order of the tree."""
    return tuple(_walk(GatewayError))
