"""What the gateway answers where the request is at fault, or met a limit.

See `gateway.errors`, which has the whole tree.
"""

from __future__ import annotations

import math
from typing import Self

from gateway.error_base import GatewayError


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


class _Limited(ClientError):
    """`limit_conn` or `limit_req`; the status is the location's."""

    status = 429
    type = "rate_limit_error"
    retry_after_s = 1

    @classmethod
    def of(cls, zone: str, status: int, wait_s: float = 0.0) -> Self:
        """With the location's status, and when to come again."""
        made = cls(zone=zone)
        made.status = status  # type: ignore[misc]
        made.retry_after_s = max(1, math.ceil(wait_s - 1e-3))  # type: ignore[misc]
        return made


class RateExceeded(_Limited):
    code = "rate_limit_exceeded"
    template = "Requests come faster than they may (limit `{zone}`)"
    hint = "`limit_req` of the location: rate of its zone, `burst` and `delay`"


class TooManyInFlight(_Limited):
    code = "concurrency_limit_exceeded"
    template = "As many requests are being served as may be at once (limit `{zone}`)"
    hint = "`limit_conn` of the location; a stream counts until its last byte"


class BadPolicy(ClientError):
    code = "policy_header_invalid"
    template = "The header `{header}` must be {expected}"
    hint = "the bounds are those of `policy_header` in the location"
