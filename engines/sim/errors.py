"""Error replies in vLLM's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 403: "PermissionDeniedError",
          500: "InternalServerError", 501: "NotImplementedError", 503: "ServiceUnavailableError"}


class ApiError(Exception):
    """An answer other than 200, raised anywhere below a handler."""

    def __init__(self, status: int, message: str, *, param: str | None = None,
                 kind: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.kind = kind or _TYPES.get(status) or HTTPStatus(status).phrase

    def body(self) -> dict[str, Any]:
        return error_body(self.message, self.kind, self.status, self.param)


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def invalid(field: str, message: str) -> ApiError:
    """A body that does not fit the schema: vLLM's validation error."""
    return ApiError(400, f"1 validation error:\n  {{'loc': 'body.{field}', 'msg': '{message}'}}",
                    param=f"body.{field}", kind="Bad Request")
