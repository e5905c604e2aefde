"""The base of every error that the gateway itself answers a client with, and its one shape."""

from __future__ import annotations

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
