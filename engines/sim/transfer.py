"""stub"""
from __future__ import annotations
from typing import Any
from .core import Core
from .settings import Settings


class Transfer:
    def __init__(self, settings: Settings, cores: list[Core]) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def restart(self) -> None: ...
    def state(self) -> dict[str, Any]:
        return {}
