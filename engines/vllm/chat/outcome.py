"""What reading a request for its prompt can come to: texts, token ids, or why neither is known.

`Unknown` is an answer, not an error: the prompt is then not known here, and nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

# JSON as it was parsed: what a client sent, of any shape.
Json: TypeAlias = Any
Message: TypeAlias = dict[str, Any]


class Why(StrEnum):
    """Why a prompt is not known. The words are label values of a metric."""

    REFUSED = "refused"  # the engine will refuse this request
    MEDIA = "media"  # images, sound and the like: placeholders are the engine's business
    ELSEWHERE = "elsewhere"  # the engine renders this model by code of its own
    STATE = "state"  # part of the prompt lies in an engine's memory
    TEMPLATE = "template"  # no chat template, or one the request brings itself
    ODD = "odd"  # a shape whose reading depends on the engine's coercions
    OTHER = "other"  # an endpoint or field that is not understood


@dataclass(frozen=True, slots=True)
class Texts:
    """Prompts to tokenise, in the engine's order."""

    texts: tuple[str, ...]
    add_special_tokens: bool
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Ids:
    """Prompts that came as token ids."""

    prompts: tuple[list[int], ...]
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    why: Why
    reason: str


PromptInput: TypeAlias = Texts | Ids | Unknown


class NotKnown(Exception):
    """Raised inside this package only; `request.read` makes an `Unknown` of it."""

    def __init__(self, why: Why, reason: str) -> None:
        super().__init__(reason)
        self.why = why
        self.reason = reason


def refused(reason: str) -> NotKnown:
    return NotKnown(Why.REFUSED, reason)


def odd(reason: str) -> NotKnown:
    return NotKnown(Why.ODD, reason)
