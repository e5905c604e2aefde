"""The bytes both ends of the bench agree on: what a client asks and what a stock vLLM would answer.

Everything in a reply follows from the request's nonce and chunk count, so the load generator knows
each byte of a right answer beforehand: a proxy that loses, repeats, reorders or mixes up chunks is
counted as wrong, never as fast. Shapes and sizes are those of vLLM 0.32's OpenAI server behind the
`openai` client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MODEL = b"bench/llama-8b-instruct"
PATH = b"/v1/chat/completions"
CREATED = b"1764000000"
TOKENS = tuple(b" tok%05d" % i for i in range(4096))  # content of chunk i; all of one length
PROMPT_NONCE = b"kvpr-%019d"  # of a request whose messages are those of `prompts`
DONE = b"data: [DONE]\n\n"
SMALL = (
    b'[{"role":"system","content":"You are a helpful assistant."},'
    b'{"role":"user","content":"Give me one sentence about the weather in Zurich."}]'
)
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 24 Nov 2025 16:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\nx-request-id: %s\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
JSON_HEAD = (
    b"HTTP/1.1 %s\r\ndate: Mon, 24 Nov 2025 16:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-length: %d\r\ncontent-type: application/json\r\n\r\n"
)
_MAX_TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')
_INTERVAL = re.compile(rb'"seed":\s*(\d+)')
_NONCE = re.compile(rb'"user":\s*"([0-9a-z-]+)"')
_STREAM = re.compile(rb'"stream":\s*true')
_USAGE = re.compile(rb'"include_usage":\s*true')


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants. `interval_ms` 0: the whole stream at once; `chunks` counts content
    chunks.
    """

    nonce: bytes  # 24 characters
    stream: bool
    chunks: int
    interval_ms: int
    usage: bool
    messages: bytes = SMALL  # JSON


def request(host: bytes, ask: Ask) -> bytes:
    """The request, head and body, as openai-python 1.x sends it (about 600 + 300 bytes)."""
    body = (
        b'{"messages":%s,"model":"%s","max_tokens":%d,"seed":%d,"temperature":0,"user":"%s"%s}'
    ) % (
        ask.messages,
        MODEL,
        ask.chunks,
        ask.interval_ms,
        ask.nonce,
        b',"stream":true' if ask.stream else b"",
    )
    return (
        b"POST %s HTTP/1.1\r\nHost: %s\r\nAccept-Encoding: gzip, deflate\r\n"
        b"Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
        b"User-Agent: OpenAI/Python 1.109.1\r\nX-Stainless-Lang: python\r\n"
        b"X-Stainless-Package-Version: 1.109.1\r\nX-Stainless-OS: Linux\r\n"
        b"X-Stainless-Arch: x64\r\n"
        b"X-Stainless-Runtime: CPython\r\nX-Stainless-Runtime-Version: 3.11.7\r\n"
        b"Authorization: Bearer sk-bench-0123456789abcdef\r\nX-Stainless-Async: false\r\n"
        b"x-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\n"
        b"Content-Length: %d\r\n\r\n%s"
    ) % (PATH, host, len(body), body)


def parse_ask(body: bytes) -> Ask:
    """Read a body back, whether or not a proxy has written the JSON anew. ValueError if it is
    not ours.
    """
    tokens, interval, nonce = (p.search(body) for p in (_MAX_TOKENS, _INTERVAL, _NONCE))
    if not (tokens and interval and nonce):
        raise ValueError(f"not a request of the bench: {body[:200]!r}")
    return Ask(
        nonce=nonce[1],
        stream=_STREAM.search(body) is not None,
        chunks=int(tokens[1]),
        interval_ms=int(interval[1]),
        usage=_USAGE.search(body) is not None,
    )


def prompt_number(nonce: bytes) -> int:
    """Of a request with messages of `prompts`; -1 = it has others."""
    return int(nonce[5:]) if nonce.startswith(PROMPT_NONCE[:5]) else -1


def json_body(nonce: bytes) -> bytes:
    """A non-streaming chat completion of about 600 bytes."""
    return (
        b'{"id":"chatcmpl-%s","object":"chat.completion","created":%s,"model":"%s",'
        b'"choices":[{"index":0,"message":{"role":"assistant","content":"Zurich in November is '
        b'often grey and foggy, with cool, damp days of about six degrees.","refusal":null,'
        b'"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning":null},'
        b'"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],'
        b'"service_tier":null,"system_fingerprint":null,'
        b'"usage":{"prompt_tokens":34,"total_tokens":54,"completion_tokens":20,'
        b'"prompt_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,'
        b'"kv_transfer_params":null}'
    ) % (nonce, CREATED, MODEL)


def event_head(nonce: bytes) -> bytes:
    """Start of every event of a stream; `content_event` and the other events continue it."""
    return (
        b'data: {"id":"chatcmpl-%s","object":"chat.completion.chunk","created":%s,"model":"%s",'
        b'"choices":[{"index":0,"delta":{"content":"'
    ) % (nonce, CREATED, MODEL)


EVENT_TAIL = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
ROLE_TAIL = (
    b'","role":"assistant"},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}\n\n'
)
FINISH_TAIL = (
    b'"},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}]}\n\n'
)
USAGE_TAIL = b'"}}],"usage":{"prompt_tokens":34,"total_tokens":54,"completion_tokens":20}}\n\n'


def chunk(data: bytes) -> bytes:
    """`data` as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def closing_events(head: bytes, usage: bool) -> tuple[bytes, ...]:
    """The events after the last content chunk."""
    return (head + FINISH_TAIL, *((head + USAGE_TAIL,) if usage else ()), DONE)
