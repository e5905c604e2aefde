"""stub"""
from __future__ import annotations
from typing import Any
from .cache import Event
from .settings import EventSettings


class Publisher:
    next_seq = 0

    def __init__(self, settings: EventSettings, rank: int) -> None: ...
    def publish(self, events: list[Event]) -> None: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...
    def config(self) -> dict[str, Any]:
        return {}
