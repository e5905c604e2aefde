"""Every error that the gateway itself answers a client with, and the one shape it is written in.

    GatewayError
    ├── ClientError           the request is at fault                           origin "client"
    │   ├── BadRequest 400, InvalidJson 400, ModelRequired 400
    │   ├── Unauthorized 401, Forbidden 403
    │   ├── PathNotFound 404, ModelNotFound 404, MethodNotAllowed 405, RequestTimeout 408
    │   └── BodyTooLarge 413, UriTooLong 414, ExpectationFailed 417, TooManyRequests 429,
    │     HeaderTooLarge 431
    ├── OwnError              the gateway cannot or will not                    origin "gateway"
    │   ├── InternalError 500, NotImplementedHere 501, VersionNotSupported 505
    │   └── Overloaded 503, Draining 503
    └── UpstreamError         an engine is at fault                             origin "upstream"
        ├── ConnectFailed 502, UpstreamLost 502, BadReply 502
        ├── NoEngine 503, EngineStarting 503
        └── UpstreamTimeout 504

Invariant: a `code` is stable, names one class, has a section in `docs/errors.md`, and is the same
word in the reply, the log line and the metric's label. Errors that an engine makes are never
rendered here: they pass unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import orjson

JSON = (b"content-type", b"application/json")


class GatewayError(Exception):
    """Base: an answer that the gateway makes itself.

    `template` is filled with the keyword arguments of the constructor; `hint` is for the operator
    and goes to the docs and the error log, `param` names the request's field at fault (OpenAI's
    `error.param`).
    """

    code: ClassVar[str] = ""
    status: ClassVar[int] = 500
    origin: ClassVar[str] = "gateway"
    type: ClassVar[str] = "server_error"
    template: ClassVar[str] = ""
    hint: ClassVar[str] = ""
    retry_after_s: ClassVar[int] = 0

    def __init__(self, param: str | None = None, **values: object) -> None:
        self.param = param
        self.message = self.template.format(**values)
        super().__init__(self.message)

    def body(self, anthropic: bool = False) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}`, as OpenAI's clients read it.

        `anthropic`: for `/v1/messages`, whose clients look for `"type": "error"` beside it.
        """
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return orjson.dumps({"type": "error", "error": error} if anthropic else {"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Content-type, and Retry-After where trying again makes sense."""
        if self.retry_after_s:
            return [JSON, (b"retry-after", b"%d" % self.retry_after_s)]
        return [JSON]


class ClientError(GatewayError):
    origin = "client"
    type = "invalid_request_error"
    status = 400


class BadRequest(ClientError):
    code = "bad_request"
    template = "{what}"
    hint = "the request is not valid HTTP; the message says which part"


class InvalidJson(ClientError):
    code = "invalid_json"
    template = "The request body is not a JSON object that can be read: {what}"
    hint = "the byte offset in the message counts from the start of the body"


class ModelRequired(ClientError):
    code = "model_required"
    template = "The request names no `model`, and more than one upstream could serve it"
    hint = "add the `model` field; `GET /v1/models` lists the names"


class Unauthorized(ClientError):
    code = "unauthorized"
    status = 401
    type = "authentication_error"
    template = "This endpoint needs `Authorization: Bearer` with the admin token"
    hint = "the token is the `admin_token` of the location; a unix socket needs none"


class Forbidden(ClientError):
    code = "forbidden"
    status = 403
    type = "permission_error"
    template = "{what}"
    hint = "admin endpoints refuse browsers' cross-origin requests"


class PathNotFound(ClientError):
    code = "not_found"
    status = 404
    template = "There is nothing at `{method} {path}`"
    hint = (
        "no location matches, or the path controls the engine and is closed unless the location "
        "says `engine_admin on`"
    )


class ModelNotFound(ClientError):
    code = "model_not_found"
    status = 404
    template = "The model `{model}` does not exist or is not served here"
    hint = "`GET /v1/models` lists the names; `model NAME alias=…` in the upstream declares them"


class MethodNotAllowed(ClientError):
    code = "method_not_allowed"
    status = 405
    template = "`{method}` is not allowed at `{path}`"
    hint = "the message names the method"


class RequestTimeout(ClientError):
    code = "request_timeout"
    status = 408
    template = "{what}"
    hint = "see `client_header_timeout` and `client_body_timeout`"


class BodyTooLarge(ClientError):
    code = "body_too_large"
    status = 413
    template = "{what}"
    hint = "raise `client_max_body_size` of the location"


class UriTooLong(ClientError):
    code = "uri_too_long"
    status = 414
    template = "{what}"
    hint = "see `large_client_header_buffers`"


class ExpectationFailed(ClientError):
    code = "expectation_failed"
    status = 417
    template = "{what}"
    hint = "`Expect: 100-continue` is the only expectation there is"


class TooManyRequests(ClientError):
    code = "too_many_requests"
    status = 429
    type = "rate_limit_error"
    template = "{what}"
    hint = "the limit that was met is named in the message"
    retry_after_s = 1


class HeaderTooLarge(ClientError):
    code = "header_too_large"
    status = 431
    template = "{what}"
    hint = "see `large_client_header_buffers`"


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
