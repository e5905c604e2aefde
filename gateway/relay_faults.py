"""The relay's words for what went wrong, as errors of ours: the one place where they are mapped."""

from __future__ import annotations

from gateway import errors

STOPPING = "the gateway is stopping"  # as the relay says it
# What the relay's parser finds, by status; the message is the relay's.
PROTOCOL: dict[int, type[errors.GatewayError]] = {
    400: errors.BadRequest,
    408: errors.RequestTimeout,
    413: errors.BodyTooLarge,
    414: errors.UriTooLong,
    417: errors.ExpectationFailed,
    431: errors.HeaderTooLarge,
    501: errors.NotImplementedHere,
    503: errors.Overloaded,
    505: errors.VersionNotSupported,
}


def from_protocol(status: int, message: str) -> errors.GatewayError:
    """The error for a fault that the relay found in a client's bytes, or for STOPPING; 400 where
    unknown."""
    if message == STOPPING:
        return errors.Draining()
    return PROTOCOL.get(status, errors.BadRequest)(what=message)


# For the error log: what an operator can picture, beside the relay's word.
WORDS = {
    "connect": "no connection",
    "connect_timeout": "no connection in time",
    "send_timeout": "it took no more of the request in time",
    "first_byte_timeout": "nothing of a reply in time",
    "read_timeout": "it fell silent within its reply",
    "total_timeout": "the exchange took too long",
    "reset": "it reset the connection before its reply was complete",
    "eof": "it closed the connection before its reply was complete",
    "bad_reply": "what it sent is not a valid reply",
    "shutdown": "ended because this gateway stops",
    "no_files": "no file descriptor left for a connection",
    "client_timeout": "the client stopped sending its body",
    "client_too_large": "the client's body grew beyond the limit",
    "client_bad": "the client's body is malformed",
}

_TIMEOUTS = {
    "connect_timeout": "connecting",
    "send_timeout": "sending the request",
    "first_byte_timeout": "waiting for the first byte",
    "read_timeout": "between two reads",
    "total_timeout": "total time",
}


def status(error: str | None) -> int:
    """What `$upstream_status` says of a leg without a reply's head: as the client's would be."""
    return 504 if error in _TIMEOUTS else 502


def from_leg(error: str, upstream: str) -> errors.GatewayError:
    """What became of a leg: the answer where no byte of its reply had gone out, the code that is
    logged and counted where one had.

    `error` is the relay's word. Connection failures are 502, time-outs 504.
    """
    if error == "client_timeout":
        return errors.RequestTimeout(what="The request body did not arrive in time")
    if error == "client_too_large":
        return errors.BodyTooLarge(what="The request body is larger than the location allows")
    if error.startswith("client_"):
        return errors.BadRequest(what="The request body is malformed")
    if error in ("cancelled", "shutdown"):
        return errors.Draining()
    if error == "no_files":
        return errors.Overloaded(what="This gateway has no file descriptor left for an engine")
    if error == "connect":
        return errors.ConnectFailed(upstream=upstream)
    if error in _TIMEOUTS:
        return errors.UpstreamTimeout(upstream=upstream, what=_TIMEOUTS[error])
    if error == "bad_reply":
        return errors.BadReply(upstream=upstream)
    return errors.UpstreamLost(upstream=upstream)
