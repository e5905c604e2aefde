"""stub"""
from __future__ import annotations
from .errors import ApiError


class Store: ...


def methods(path: str):  # type: ignore
    return None


async def handle(engine, request, reply) -> None:  # type: ignore
    raise ApiError(501, "not yet")
