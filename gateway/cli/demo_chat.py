"""The conversations of `kvgate demo`: held as any client would, printed with answer and receipt.

Each has two turns. The second turn's prompt begins with the first one's, and goes where that lies:
its receipt says how much of it was expected in the engine's cache, its usage how much was found.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx

CHAT = "/v1/chat/completions"
SYSTEM = (
    "You are the guide of a small museum. Answer in one or two plain sentences, name the room that "
    "a visitor should go to, and never invent an exhibit. The rooms are: clocks and maps on the "
    "ground floor, ships and bridges on the first, glass and paper under the roof."
)
TALKS = (
    ("Where are the oldest clocks?", "And what is in the next room?"),
    ("Is there anything about bridges?", "How do I get there?"),
)
Messages = list[dict[str, str]]


def ask(base_url: str, model: str, alias: str) -> bool:
    """Holds the conversations and prints what came back and from where; True = all were answered.
    """
    answered = True
    with httpx.Client(base_url=base_url, timeout=120) as client:
        for number, questions in enumerate(TALKS):
            talk: Messages = [{"role": "system", "content": SYSTEM}]
            name = alias if number else model
            for question in questions:
                print(f"> {question}  [{name}, {'streamed' if number else 'one reply'}]")
                talk.append({"role": "user", "content": question})
                said = (_streamed if number else _whole)(client, name, talk)
                answered &= said is not None
                talk.append({"role": "assistant", "content": said or "..."})
        names = [card["id"] for card in client.get("/v1/models").json()["data"]]
        print(f"models: {', '.join(names)}")
        hello: Messages = [{"role": "user", "content": "Hello"}]
        refused = client.post(CHAT, json=body("no-such-model", hello, stream=False))
        print(f"a model nobody serves: HTTP {refused.status_code}, {_error(refused)}\n")
    return answered


def _whole(client: httpx.Client, model: str, talk: Messages) -> str | None:
    before_s = time.monotonic()
    reply = client.post(CHAT, json=body(model, talk, stream=False))
    if reply.status_code != 200:
        print(f"< HTTP {reply.status_code}, {_error(reply)}\n")
        return None
    answer = reply.json()
    text = str(answer["choices"][0]["message"]["content"])
    print(f"< {' '.join(text.split())}")
    _route(reply, before_s, None, answer["usage"])
    return text if answer["model"] == model else None


def _streamed(client: httpx.Client, model: str, talk: Messages) -> str | None:
    before_s, first_s, done = time.monotonic(), None, False
    pieces: list[str] = []
    usage: dict[str, object] = {}
    with client.stream("POST", CHAT, json=body(model, talk, stream=True)) as reply:
        if reply.status_code != 200:
            reply.read()
            print(f"< HTTP {reply.status_code}, {_error(reply)}\n")
            return None
        print("< ", end="")
        for data in events(reply):
            if data == "[DONE]":
                done = True
                break
            event = json.loads(data)
            usage = event.get("usage") or usage
            text = (event.get("choices") or [{}])[0].get("delta", {}).get("content")
            if text:
                first_s = first_s or time.monotonic() - before_s
                pieces.append(text)
                print(text.replace("\n", " "), end="", flush=True)
        print()
    _route(reply, before_s, first_s, usage)
    return "".join(pieces) if done else None


def events(reply: httpx.Response) -> Iterator[str]:
    """The `data:` lines of a server-sent event stream."""
    for line in reply.iter_lines():
        if line.startswith("data:"):
            yield line[5:].strip()


def _route(
    reply: httpx.Response, before_s: float, first_s: float | None, usage: dict[str, object]
) -> None:
    took_ms = (time.monotonic() - before_s) * 1000
    first = f", first after {first_s * 1000:.0f} ms" if first_s else ""
    receipt = {name[9:]: v for name, v in reply.headers.items() if name.startswith("x-kvgate-")}
    details = usage.get("prompt_tokens_details")
    found = details.get("cached_tokens") if isinstance(details, dict) else None
    print(f"  from {receipt.get('engine', '?')}: {usage.get('completion_tokens', '?')} tokens in "
          f"{took_ms:.0f} ms{first}")  # fmt: skip
    print(f"  prompt of {receipt.get('prompt-tokens', '?')} tokens, "
          f"{receipt.get('matched-tokens', '?')} expected in its cache "
          f"({receipt.get('trust', '?')}), {'?' if found is None else found} found\n")  # fmt: skip


def body(model: str, talk: Messages, stream: bool) -> dict[str, object]:
    asked: dict[str, object] = {
        "model": model,
        "messages": talk,
        "max_tokens": 40,
        "temperature": 0,
        "stream": stream,
    }
    return asked | ({"stream_options": {"include_usage": True}} if stream else {})


def _error(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:200]
