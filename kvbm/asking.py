"""Asking a running daemon over its admin address, for the command line."""

from __future__ import annotations

from typing import Any

import httpx

from kvbm.conf.model import Address

TIMEOUT_S = 15.0


class NoAnswer(Exception):
    """The daemon could not be asked, or said no; the text is for people."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Asking:
    """One daemon. Use as a context manager."""

    def __init__(self, address: Address, token: str = "") -> None:
        self.address = address
        path = address.unix_path
        transport = httpx.HTTPTransport(uds=path) if path else httpx.HTTPTransport()
        base = "http://kvbm" if path else f"http://{address}"
        headers = {"authorization": f"Bearer {token}"} if token and not path else {}
        self._client = httpx.Client(
            base_url=base, transport=transport, headers=headers, timeout=TIMEOUT_S
        )

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, **query: str | int) -> Any:
        return self._ask("GET", path, params=query)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", path, json=body)

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        try:
            reply = self._client.request(method, path, **more)
        except httpx.HTTPError as error:
            hint = "is the daemon running? -c FILE or --admin ADDRESS says where it is"
            raise NoAnswer(f"no answer at {self.address}: {error}", hint) from None
        try:
            document = reply.json()
        except ValueError:
            raise NoAnswer(f"{self.address} is no kvbm daemon ({reply.status_code})") from None
        if reply.is_error:
            why = document.get("error") if isinstance(document, dict) else None
            raise NoAnswer(str(why or f"{path}: {reply.status_code}"))
        return document
