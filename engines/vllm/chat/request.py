"""From a request's path and body to its prompt: one function for every endpoint that has one."""

from __future__ import annotations

import json
from collections.abc import Callable

import orjson

from engines.vllm.chat import chat
from engines.vllm.chat.completion_input import (
    cache_salt,
    no_truncation,
    read_completion,
    read_generate,
)
from engines.vllm.chat.messages_input import read_messages
from engines.vllm.chat.model import ModelPrompt
from engines.vllm.chat.outcome import Json, NotKnown, PromptInput, Texts, Unknown, Why, refused
from engines.vllm.chat.pooling_input import (
    read_embeddings,
    read_pooling,
    read_scoring,
    read_tokenize,
)
from engines.vllm.chat.responses_input import read_responses
from engines.vllm.chat.tools import InexactNumber

Body = dict[str, Json]
Reader = Callable[[Body, ModelPrompt, bool], PromptInput]


def read(path: str, body: Body | bytes, model: ModelPrompt) -> PromptInput:
    """The prompt the engine will make of this request. `path` is normalised, without a query.

    Raises nothing: what is not known comes back as Unknown, with its reason.
    """
    reader = READERS.get(path)
    if reader is None:
        return Unknown(Why.OTHER, f"{path} is not understood")
    try:
        if not isinstance(body, bytes):
            return _checked(reader(body, model, True))
        fast = _parse(body)
        if fast is not None:
            try:
                return _checked(reader(fast, model, False))
            except InexactNumber:
                pass
        return _checked(reader(_parse_exactly(body), model, True))
    except NotKnown as exc:
        return Unknown(exc.why, exc.reason)
    except RecursionError:
        return Unknown(Why.REFUSED, "nested too deep")


def _parse(body: bytes) -> Body | None:
    """None where orjson does not take it: `json`, which the engine uses, is more lenient."""
    try:
        read = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if type(read) is not dict:
        raise refused("the body is not an object")
    return read


def _parse_exactly(body: bytes) -> Body:
    try:
        read = json.loads(body)
    except ValueError as exc:
        raise refused("the body is not JSON") from exc
    if type(read) is not dict:
        raise refused("the body is not an object")
    return read


def _checked(prompt: PromptInput) -> PromptInput:
    """Text with half of a surrogate pair cannot be tokenised."""
    if isinstance(prompt, Texts):
        for text in prompt.texts:
            if not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError as exc:
                    raise refused("the text is not valid Unicode") from exc
    return prompt


def _chat(body: Body, model: ModelPrompt, exact: bool) -> PromptInput:
    no_truncation(body)
    transfer = body.get("kv_transfer_params")
    if type(transfer) is dict and transfer.get("prompt_token_ids") is not None:
        raise NotKnown(Why.OTHER, "kv_transfer_params bring token ids")
    text = chat.render(chat.read_chat(body, model, exact), model)
    return Texts((text,), chat.flag(body, "add_special_tokens", False), cache_salt(body))


def _completion(body: Body, model: ModelPrompt, exact: bool) -> PromptInput:
    return read_completion(body)


def _generate(body: Body, model: ModelPrompt, exact: bool) -> PromptInput:
    return read_generate(body)


def _scoring(body: Body, model: ModelPrompt, exact: bool) -> PromptInput:
    return read_scoring(body, model)


READERS: dict[str, Reader] = {
    "/v1/chat/completions": _chat,
    "/v1/chat/completions/render": _chat,
    "/v1/completions": _completion,
    "/v1/completions/render": _completion,
    "/inference/v1/generate": _generate,
    "/v1/responses": read_responses,
    "/v1/responses/render": read_responses,
    "/v1/messages": read_messages,
    "/v1/messages/render": read_messages,
    "/v1/messages/count_tokens": read_messages,
    "/v1/embeddings": read_embeddings,
    "/pooling": read_pooling,
    "/classify": read_pooling,
    "/score": _scoring,
    "/v1/score": _scoring,
    "/rerank": _scoring,
    "/v1/rerank": _scoring,
    "/v2/rerank": _scoring,
    "/tokenize": read_tokenize,
}
