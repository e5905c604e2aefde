"""The questions of `kvgate demo`: asked as any client would, printed with answer and route."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx

CHAT = "/v1/chat/completions"
QUESTIONS = (
    ("What is the capital of France?", False),
    ("What colour is the sky on a clear day?", True),
    ("Name three fruits.", True),
)


def ask(base_url: str, model: str, alias: str) -> bool:
    """Puts the questions and prints what came back and from where; True = all were answered."""
    answered = True
    with httpx.Client(base_url=base_url, timeout=120) as client:
        for number, (question, stream) in enumerate(QUESTIONS):
            name = alias if number == 1 else model
            kind = "streamed" if stream else "one reply"
            print(f"> {question}  [{name}, {kind}]")
            answered &= (_streamed if stream else _whole)(client, name, question)
        names = [card["id"] for card in client.get("/v1/models").json()["data"]]
        print(f"models: {', '.join(names)}")
        refused = client.post(CHAT, json=body("no-such-model", "Hello", stream=False))
        print(f"a model nobody serves: HTTP {refused.status_code}, {_error(refused)}\n")
    return answered


def _whole(client: httpx.Client, model: str, question: str) -> bool:
    before_s = time.monotonic()
    reply = client.post(CHAT, json=body(model, question, stream=False))
    if reply.status_code != 200:
        print(f"< HTTP {reply.status_code}, {_error(reply)}\n")
        return False
    answer = reply.json()
    print(f"< {' '.join(answer['choices'][0]['message']['content'].split())}")
    _route(reply, before_s, answer["usage"]["completion_tokens"], None)
    return bool(answer["model"] == model)


def _streamed(client: httpx.Client, model: str, question: str) -> bool:
    before_s, first_s, done = time.monotonic(), None, False
    pieces = 0
    with client.stream("POST", CHAT, json=body(model, question, stream=True)) as reply:
        if reply.status_code != 200:
            reply.read()
            print(f"< HTTP {reply.status_code}, {_error(reply)}\n")
            return False
        print("< ", end="")
        for data in events(reply):
            if data == "[DONE]":
                done = True
                break
            choices = json.loads(data).get("choices") or [{}]
            text = choices[0].get("delta", {}).get("content")
            if text:
                first_s = first_s or time.monotonic() - before_s
                pieces += 1
                print(text.replace("\n", " "), end="", flush=True)
        print()
    _route(reply, before_s, pieces, first_s)
    return done


def events(reply: httpx.Response) -> Iterator[str]:
    """The `data:` lines of a server-sent event stream."""
    for line in reply.iter_lines():
        if line.startswith("data:"):
            yield line[5:].strip()


def _route(reply: httpx.Response, before_s: float, tokens: int, first_s: float | None) -> None:
    took_ms = (time.monotonic() - before_s) * 1000
    first = f", first after {first_s * 1000:.0f} ms" if first_s else ""
    engine = reply.headers.get("x-engine", "?")
    print(f"  from {engine}: {tokens} tokens in {took_ms:.0f} ms{first}\n")


def body(model: str, question: str, stream: bool) -> dict[str, object]:
    messages = [{"role": "user", "content": question}]
    return {
        "model": model,
        "messages": messages,
        "max_tokens": 40,
        "temperature": 0,
        "stream": stream,
    }


def _error(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:200]
