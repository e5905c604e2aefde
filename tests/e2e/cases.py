"""Requests whose answers must be the same through the gateway as from the engine."""

from __future__ import annotations

from e2e.fleet import MODEL

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ASK = [{"role": "user", "content": "What is the capital of France?"}]
LONG_TALK = [
    {"role": "system", "content": "You are terse. Ünïcode: 日本語, \u2028 and \U0001f40d too."},
    {"role": "user", "content": "Name a fruit."},
    {"role": "assistant", "content": "Apple."},
    {"role": "user", "content": [{"type": "text", "text": 'Another, and "quotes" \\ please.'}]},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}
CALL = {"type": "function", "function": {"name": "weather"}}


def chat(**fields: object) -> tuple[str, dict[str, object]]:
    return CHAT, {
        "model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 12, **fields
    }  # fmt: skip


def completion(**fields: object) -> tuple[str, dict[str, object]]:
    return COMPLETIONS, {
        "model": MODEL, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, **fields
    }  # fmt: skip


def messages(**fields: object) -> tuple[str, dict[str, object]]:
    return "/v1/messages", {
        "model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 12, **fields
    }  # fmt: skip


def response(**fields: object) -> tuple[str, dict[str, object]]:
    return "/v1/responses", {
        "model": MODEL, "input": "Name a fruit.", "temperature": 0, "max_output_tokens": 12,
        **fields,
    }  # fmt: skip


USAGE = {"stream": True, "stream_options": {"include_usage": True}}
WHOLE = {
    "chat": chat(),
    "chat with everything": chat(
        messages=LONG_TALK, n=2, temperature=0.5, logprobs=True, top_logprobs=2,
        stop=["\n\n\n"], seed=7, user="u-1", return_token_ids=True,
        a_field_nobody_knows={"kept": [1, None]},
    ),
    "chat with a tool": chat(tools=[TOOL], tool_choice=CALL, max_tokens=60),
    "completion": completion(),
    "completion of two prompts": completion(prompt=["Once upon", "In the end"], echo=True),
    "completion of token ids": completion(prompt=[36218, 15876, 5], logprobs=1),
    "messages": messages(),
    "response": response(),
    "tokenize": ("/tokenize", {"model": MODEL, "messages": ASK}),
    "detokenize": ("/detokenize", {"model": MODEL, "tokens": [36218, 15876]}),
    "count_tokens": ("/v1/messages/count_tokens", {"model": MODEL, "messages": ASK}),
}  # fmt: skip
STREAMED = {
    "chat": chat(stream=True),
    "chat with usage": chat(**USAGE),
    "chat with usage all along": chat(
        stream=True, stream_options={"include_usage": True, "continuous_usage_stats": False}
    ),
    "chat with two choices": chat(messages=LONG_TALK, n=2, temperature=0.5, seed=7, **USAGE),
    "chat with a tool": chat(tools=[TOOL], tool_choice=CALL, max_tokens=60, **USAGE),
    "completion": completion(stream=True),
    "completion with usage": completion(**USAGE),
    "messages": messages(stream=True),
    "response": response(stream=True),
}
# Refused by the engine: the refusal must come through as it is.
REFUSED = {
    "prompt too long": completion(prompt="word " * 4000),
    "negative max_tokens": chat(max_tokens=-1),
    "no messages": (CHAT, {"model": MODEL}),
    "temperature is text": chat(temperature="hot"),
    "streamed and refused": chat(stream=True, temperature=-3),
    "tool without parser's name": chat(tools=[TOOL], tool_choice={"type": "function"}),
    "bad previous response": response(previous_response_id="resp_0"),
    "no such method of ours": ("/v1/embeddings", {"model": MODEL, "input": "x"}),
}
# What simulated engines do otherwise.
NOT_SIMULATED = frozenset({"completion of two prompts", "no such method of ours"})
# Refused by whoever sees it first: status and shape must agree, wording may differ.
REFUSED_ANYWHERE = {
    "unknown model": (
        CHAT,
        b'{"model":"no-such-model","messages":[{"role":"user","content":"x"}]}',
    ),
    "not JSON": (CHAT, b'{"model":'),
    "an array": (CHAT, b"[]"),
    "empty": (CHAT, b""),
    "not UTF-8": (CHAT, b'{"model":"\xff\xfe"}'),
}
