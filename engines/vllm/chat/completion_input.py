"""Prompts of completion-like bodies: a string, strings, token ids, lists of token ids."""

from __future__ import annotations

from engines.vllm.chat.chat import flag
from engines.vllm.chat.outcome import Ids, Json, NotKnown, PromptInput, Texts, Why, odd, refused

PROMPTS_MAX = 1024  # VLLM_MAX_COMPLETION_PROMPTS
_ID_MAX = 2**32


def read_completion(body: dict[str, Json]) -> PromptInput:
    """POST /v1/completions. Raises NotKnown."""
    if body.get("prompt_embeds") is not None:
        raise NotKnown(Why.MEDIA, "prompt_embeds are not text")
    if body.get("suffix") is not None:
        raise NotKnown(Why.ELSEWHERE, "a suffix is put in place by the engine")
    prompt = body.get("prompt")
    if prompt is None or prompt == "":
        raise refused("prompt: missing or empty")
    return prompts(prompt, flag(body, "add_special_tokens", True), body)


def read_generate(body: dict[str, Json]) -> PromptInput:
    """POST /inference/v1/generate: token ids in, token ids out. Raises NotKnown."""
    if body.get("features") is not None or body.get("content_parts"):
        raise NotKnown(Why.MEDIA, "token ids with media between them")
    return Ids((_ids(body.get("token_ids")),), cache_salt(body))


def prompts(given: Json, add_special_tokens: bool, body: dict[str, Json]) -> PromptInput:
    """Raises NotKnown."""
    no_truncation(body)
    salt = cache_salt(body)
    if type(given) is str:
        return Texts((given,), add_special_tokens, salt)
    if type(given) is not list:
        raise refused("prompt: not a string or a list of prompts")
    if not given:
        raise odd("prompt: an empty list")
    kind = type(given[0])
    if kind is int:
        return Ids((_ids(given),), salt)
    if len(given) > PROMPTS_MAX:
        raise refused(f"prompt: more than {PROMPTS_MAX} prompts")
    if kind is str:
        if not all(type(prompt) is str for prompt in given):
            raise odd("prompt: strings mixed with others")
        return Texts(tuple(given), add_special_tokens, salt)
    if kind is list:
        return Ids(tuple(_ids(prompt) for prompt in given), salt)
    raise odd("prompt: neither strings nor token ids")


def _ids(given: Json) -> list[int]:
    if type(given) is not list or not given:
        raise odd("prompt: a list of token ids is empty or none")
    if not all(type(token) is int and 0 <= token < _ID_MAX for token in given):
        raise odd("prompt: not all are token ids")
    return given


def cache_salt(body: dict[str, Json]) -> str | None:
    salt = body.get("cache_salt")
    if salt is not None and (type(salt) is not str or not 0 < len(salt) <= 1024):
        raise refused("cache_salt: not a string of 1 to 1024 characters")
    return salt


def no_truncation(body: dict[str, Json]) -> None:
    """Truncation happens on token ids, after what is done here."""
    if body.get("truncate_prompt_tokens") is not None:
        raise NotKnown(Why.OTHER, "truncate_prompt_tokens")
    if body.get("padding") not in (None, "do_not_pad"):
        raise NotKnown(Why.OTHER, "padding")
