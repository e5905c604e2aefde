"""Inputs of /v1/embeddings, /pooling, /classify, /score, /rerank and /tokenize."""

from __future__ import annotations

from engines.vllm.chat.chat import ChatInput, flag, own_template, render
from engines.vllm.chat.completion_input import cache_salt, no_truncation, prompts
from engines.vllm.chat.messages import Kind
from engines.vllm.chat.model import ModelPrompt
from engines.vllm.chat.outcome import Json, NotKnown, PromptInput, Texts, Why, odd, refused


def read_embeddings(body: dict[str, Json], model: ModelPrompt, exact: bool) -> PromptInput:
    """As `read_pooling`; a conversation may also stand in `input`, and there may be several."""
    given = body.get("input")
    if "messages" not in body and (_is_chat(given) or _are_chats(given)):
        body = {**body, "messages": given}
        del body["input"]
    if _are_chats(body.get("messages")):
        return _chats(body["messages"], body, model, exact)
    return read_pooling(body, model, exact)


def read_pooling(body: dict[str, Json], model: ModelPrompt, exact: bool) -> PromptInput:
    """`input` as for completions, or `messages` as a chat without a prompt for the reply."""
    if "normalize" in body:
        raise refused("normalize was removed")
    if "data" in body:
        raise NotKnown(Why.ELSEWHERE, "`data` is read by a plug-in of the engine")
    if "messages" in body:
        if "input" in body:
            raise odd("both input and messages")
        return _chats([body["messages"]], body, model, exact)
    read = prompts(body.get("input"), flag(body, "add_special_tokens", True), body)
    if not isinstance(read, Texts):
        return read
    return Texts(_lowered(read.texts, model), read.add_special_tokens, read.cache_salt)


def _chats(
    chats: list[Json], body: dict[str, Json], model: ModelPrompt, exact: bool
) -> PromptInput:
    no_truncation(body)
    texts = tuple(_render(chat, body, model, exact) for chat in chats)
    special = flag(body, "add_special_tokens", False)
    return Texts(_lowered(texts, model), special, cache_salt(body))


def _lowered(texts: tuple[str, ...], model: ModelPrompt) -> tuple[str, ...]:
    return tuple(text.lower() for text in texts) if model.lower_case else texts


def _is_chat(given: Json) -> bool:
    return type(given) is list and bool(given) and all(
        type(message) is dict and type(message.get("role")) is str for message in given
    )


def _are_chats(given: Json) -> bool:
    return type(given) is list and bool(given) and all(map(_is_chat, given))


def _render(messages: Json, body: dict[str, Json], model: ModelPrompt, exact: bool) -> str:
    fields = {"add_generation_prompt": flag(body, "add_generation_prompt", False),
              "continue_final_message": flag(body, "continue_final_message", False)}
    chat = ChatInput(messages, None, body.get("chat_template_kwargs"), fields,
                     own_template(body, model), exact, Kind.OTHER)
    return render(chat, model)


def read_scoring(body: dict[str, Json], model: ModelPrompt) -> PromptInput:
    """/score and /rerank of embedding models: the first texts, then the second.

    A classifier reads pairs through a template of its own or with separators: not known here.
    """
    if model.pairs:
        raise NotKnown(Why.ELSEWHERE, "a classifier of pairs builds its prompts in the engine")
    no_truncation(body)
    if body.get("max_tokens_per_query") or body.get("max_tokens_per_doc"):
        raise NotKnown(Why.OTHER, "max_tokens_per_query or max_tokens_per_doc")
    for first, second in (("query", "documents"), ("queries", "documents"), ("queries", "items"),
                          ("data_1", "data_2"), ("text_1", "text_2")):
        if first in body and second in body:
            texts = (*_texts(body[first]), *_texts(body[second]))
            return Texts(_lowered(texts, model), True, cache_salt(body))
    raise refused("nothing to compare")


def _texts(given: Json) -> list[str]:
    texts = given if type(given) is list else [given]
    if not texts:
        raise refused("an empty list of texts")
    if any(type(text) is dict for text in texts):
        raise NotKnown(Why.MEDIA, "content parts to compare")
    if not all(type(text) is str for text in texts):
        raise odd("texts to compare are not strings")
    return texts


def read_tokenize(body: dict[str, Json], model: ModelPrompt, exact: bool) -> PromptInput:
    """/tokenize: a text, or a chat whose effort and documents are not looked at."""
    if "prompt" in body and "messages" in body:
        raise odd("both a prompt and messages")
    if type(body.get("prompt")) is str:
        return Texts((body["prompt"],), flag(body, "add_special_tokens", True))
    fields = {"add_generation_prompt": flag(body, "add_generation_prompt", True),
              "continue_final_message": flag(body, "continue_final_message", False)}
    tools = body.get("tools")
    if tools is not None and type(tools) is not list:
        raise refused("tools: not a list")
    chat = ChatInput(body.get("messages"), tools, body.get("chat_template_kwargs"), fields,
                     own_template(body, model), exact, Kind.OTHER)
    return Texts((render(chat, model),), flag(body, "add_special_tokens", False))
