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

    def headers(self) -> list[tuple[str, str]]:
        return []

    def body(self) -> dict[str, Any]:
        return error_body(self.message, self.kind, self.status, self.param)


class RouteError(ApiError):
    """No such path, or not by this method: the framework's own reply, not vLLM's."""

    def __init__(self, status: int, message: str, allow: str = "") -> None:
        super().__init__(status, message)
        self._allow = allow

    def headers(self) -> list[tuple[str, str]]:
        return [("allow", self._allow)] if self._allow else []

    def body(self) -> dict[str, Any]:
        return {"detail": self.message}


def bad(message: str, param: str, value: object = None) -> ApiError:
    """A value vLLM refuses after parsing; it names the parameter in the text, too."""
    shown = f", value={value}" if value is not None else ""
    return ApiError(400, f"{message} (parameter={param}{shown})", param=param)


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class ValidationError(ApiError):
    """A body that does not fit the schema; OpenAI-shaped on every endpoint."""


def invalid(field: str, message: str, kind: str = "value_error",
            given: object = None) -> ValidationError:
    """vLLM's validation error for one field (`""` = the body itself)."""
    where = f"body.{field}" if field else "body"
    if isinstance(given, list | dict):
        given = f"<{type(given).__name__} of {len(given)} items>"
    entry = {"type": kind, "loc": where, "msg": message, "input": str(given)}
    return ValidationError(400, f"1 validation error:\n  {entry}", param=where,
                           kind="Bad Request")
