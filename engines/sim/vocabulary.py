"""How a simulated engine makes token ids: by its own scheme (`tokens`), or as a real model does
(`model_folder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from . import tokens


class NoPrompt(ValueError):
    """The request has no prompt that an engine would take."""


class Vocabulary(Protocol):
    def chat(self, body: Mapping[str, Any]) -> list[int]:
        """Of a chat request. Raises NoPrompt."""

    def text(self, text: str) -> list[int]:
        """Of a plain text, as in /v1/completions."""

    def reply(self, token: int) -> int:
        """The id of a token that the simulated model says, by its own scheme."""

    def piece(self, token: int) -> bytes:
        """The bytes of an id; of others than replies they may be unknown, and then none."""


class OwnScheme:
    def chat(self, body: Mapping[str, Any]) -> list[int]:
        resume = bool(body.get("continue_final_message"))
        add = body.get("add_generation_prompt", True)
        try:
            return tokens.render_chat(body["messages"], body.get("tools"), add, resume)
        except ValueError as exc:
            raise NoPrompt(str(exc)) from exc

    def text(self, text: str) -> list[int]:
        return tokens.encode(text)

    def reply(self, token: int) -> int:
        return token

    def piece(self, token: int) -> bytes:
        return tokens.token_bytes(token)


OWN = OwnScheme()
