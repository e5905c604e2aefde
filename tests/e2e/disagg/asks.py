"""A hundred requests of mixed length and kind, all of them greedy or seeded.

Each is a path and a body. Prompts differ from their first token on, so no request gains from the
one before it, and are drawn from a seed, so every run asks the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from e2e import cases
from e2e.disagg.pair import BLOCK, MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
Ask = tuple[str, dict[str, object]]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
# How many tokens lie in one event hangs on timing, so streams to compare are without token ids.
STREAM = {**USAGE, "return_token_ids": False}
# Around the borders of a block and of a chunk of prefill, and in between.
LENGTHS = (
    1, 2, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1,
    100, 200, 333, 512, 777, 1000, 1500, 2047, 2048, 2049, 3000,
)  # fmt: skip
WORDS = ("river", "stone", "market", "engine", "window", "garden", "letter", "bridge", "winter")


def ids(seed: str, count: int) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(100, 40_000) for _ in range(count)]


def words(seed: str, count: int) -> str:
    drawn = random.Random(seed)
    return seed + " " + " ".join(drawn.choice(WORDS) for _ in range(count))


def completion(seed: str, length: int, /, **fields: object) -> Ask:
    body = {
        "model": MODEL, "prompt": ids(seed, length), "temperature": 0, "max_tokens": 12,
        "return_token_ids": True, **fields,
    }  # fmt: skip
    return COMPLETIONS, body


def talk(seed: str, count: int) -> list[dict[str, object]]:
    return [
        {"role": "system", "content": words(f"{seed} system", count)},
        {"role": "user", "content": words(f"{seed} user", 8)},
        {"role": "assistant", "content": "Ünïcode: 日本語, \u2028 and \U0001f40d too."},
        {"role": "user", "content": [{"type": "text", "text": 'And "quotes" \\ please.'}]},
    ]


def chat(seed: str, count: int, /, **fields: object) -> Ask:
    body = {
        "model": MODEL, "messages": talk(seed, count), "temperature": 0, "max_tokens": 12, **fields
    }  # fmt: skip
    return CHAT, body


def messages(seed: str, count: int, /, **fields: object) -> Ask:
    asked = [{"role": "user", "content": words(seed, count)}]
    return MESSAGES, {
        "model": MODEL, "messages": asked, "temperature": 0, "max_tokens": 12, **fields
    }  # fmt: skip


def response(seed: str, count: int, /, **fields: object) -> Ask:
    return RESPONSES, {
        "model": MODEL, "input": words(seed, count), "temperature": 0, "max_output_tokens": 12,
        **fields,
    }  # fmt: skip


# What a client may ask for that would not be valid, or not be cheap, as a prefill of one token.
AWKWARD: dict[str, dict[str, object]] = {
    "min_tokens": {"min_tokens": 8, "ignore_eos": True},
    "logprobs": {"logprobs": 3},
    "seeded and streamed": {"temperature": 0.7, "seed": 5, **STREAM},
    "n": {"n": 2, "temperature": 0.8, "seed": 7},
    "streamed n": {
        "n": 2,
        "temperature": 0.8,
        "seed": 7,
        "stream": True,
        "return_token_ids": False,
    },
    "echo": {"echo": True, "max_tokens": 4},
    "prompt logprobs": {"prompt_logprobs": 1, "max_tokens": 4},
    "one token": {"max_tokens": 1},
    "stop": {"stop": [" the", "\n"], "max_tokens": 40},
    "seeded": {"temperature": 0.9, "seed": 11, "top_p": 0.9},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5},
    "unknown field": {"a_field_nobody_knows": {"kept": [1, None]}, "user": "u-1"},
}
AWKWARD_CHAT: dict[str, dict[str, object]] = {
    "limit by its new name": {"max_tokens": None, "max_completion_tokens": 9},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "min_tokens streamed": {"min_tokens": 8, **USAGE},
    "n streamed": {"n": 2, "temperature": 0.8, "seed": 7, "stream": True},
    "forced tool": {"tools": [cases.TOOL], "tool_choice": cases.CALL, "max_tokens": 30},
    "forced tool streamed": {
        "tools": [cases.TOOL], "tool_choice": cases.CALL, "max_tokens": 30, **USAGE
    },
    "tool if it likes": {"tools": [cases.TOOL], "tool_choice": "auto"},
    "json": {"response_format": {"type": "json_object"}, "max_tokens": 30},
    "schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "w", "schema": cases.TOOL["function"]["parameters"]},  # type: ignore[index]
        },
        "max_tokens": 30,
    },
    "no limit said": {"max_tokens": None, "stop": ["e"]},
}  # fmt: skip


def hundred(run: str) -> Iterator[tuple[str, Ask]]:
    """Names and requests; another `run` makes other prompts."""
    for length in LENGTHS:
        yield f"{length} tokens", completion(f"{run} whole {length}", length)
        yield f"{length} tokens streamed", completion(f"{run} stream {length}", length, **STREAM)
    for name, fields in AWKWARD.items():
        yield name, completion(f"{run} {name}", 150, **fields)
    for name, fields in AWKWARD_CHAT.items():
        yield f"chat, {name}", chat(f"{run} {name}", 100, **fields)
    yield "two prompts", completion(run, 1, prompt=[ids(f"{run} a", 80), ids(f"{run} b", 120)])
    yield "one of many", completion(run, 1, prompt=[ids(f"{run} c", 90)])
    yield "text", completion(run, 1, prompt=words(f"{run} text", 200))
    yield "two texts", completion(run, 1, prompt=["Once upon", words(run, 60)], echo=True)
    for count in (1, 10, 60, 200, 500, 1200):
        yield f"chat of {count} words", chat(f"{run} {count}", count)
        yield f"chat of {count} words streamed", chat(f"{run} s{count}", count, **USAGE)
        yield f"messages of {count} words", messages(f"{run} m{count}", count)
        yield f"response of {count} words", response(f"{run} r{count}", count)
    for count in (40, 400):
        yield (
            f"messages of {count} words streamed",
            messages(f"{run} ms{count}", count, stream=True),
        )
        yield (
            f"response of {count} words streamed",
            response(f"{run} rs{count}", count, stream=True),
        )
    yield "chat with a cache salt", chat(f"{run} salt", 100, cache_salt="a tenant")
    yield "chat with token ids", chat(f"{run} ids", 100, return_token_ids=True)
