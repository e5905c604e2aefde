"""Measures a live engine: how long prompts take and how fast answers come, and the fit of both.

A bounded number of requests to `/v1/completions` with prompts of token ids drawn at random, so that
no two share a block and nothing is found cached. Prompts go one by one, of each length the quickest
of a few counts: what else the engine does can only add. Answers run together, and count while all
of them run. An engine that serves others meanwhile gives times that are too long.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from native._core import Fit, fit_samples

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# (answers at once, prompt tokens of each)
ANSWERS = ((1, 64), (4, 64), (16, 64), (4, 1024), (8, 1024), (1, 4096), (4, 4096), (16, 2048))
ANSWER_TOKENS = 48
LONGEST = 16384
REPEATS = 3
REQUESTS_MAX = 400
IDS = (100, 900)  # ids that every vocabulary has, and that mean nothing special
REQUEST_S = 120.0


class Failed(Exception):
    """What went wrong, and a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Limits:
    """`requests`, `seconds`: no more are sent once so many were, or so long after the start.
    `tokens`: the longest prompt. `chunk_tokens`: prompt tokens of the engine's steps.
    """

    requests: int = 120
    seconds: float = 120.0
    tokens: int = LONGEST
    chunk_tokens: int = 2048


@dataclass(slots=True)
class Measured:
    """`prefills`: (tokens, 0, ms); `decodes`: (answers, KV tokens, ms per token)."""

    model: str
    requests: int = 0
    prefills: list[tuple[float, float, float]] = field(default_factory=list)
    decodes: list[tuple[float, float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Calibrated:
    measured: Measured
    fit: Fit
    prefill_error: float  # mean, relative
    decode_error: float
    chunk_tokens: int

    def line(self) -> str:
        """For an `upstream` block."""
        values = " ".join(f"{name}={value:.4g}" for name, value in self.fit.values())
        return f"profile neutral {values} chunk={self.chunk_tokens};"


class Engine:
    """One engine under measurement, and what is left of the limits."""

    def __init__(self, client: httpx.AsyncClient, limits: Limits, seed: int) -> None:
        self._client = client
        self._limits = limits
        self._draw = random.Random(seed)
        self._until = time.monotonic() + limits.seconds
        self.model = ""
        self.context = 0
        self.sent = 0

    async def meet(self) -> None:
        """Learns the model's name and how long prompts may be. Raises Failed."""
        response = await self._client.get("v1/models")
        _check(response)
        served = response.json()["data"][0]
        self.model = served["id"]
        self.context = int(served.get("max_model_len") or LONGEST)

    def may(self, requests: int) -> bool:
        within = self.sent + requests <= min(self._limits.requests, REQUESTS_MAX)
        return within and time.monotonic() < self._until

    def fits(self, tokens: int, answer: int) -> bool:
        return tokens <= self._limits.tokens and tokens + answer <= self.context

    def _body(self, tokens: int, answer: int, stream: bool) -> dict[str, Any]:
        self.sent += 1
        ids = [self._draw.randrange(*IDS) for _ in range(tokens)]
        return {
            "model": self.model, "prompt": ids, "max_tokens": answer, "temperature": 0,
            "ignore_eos": True, "stream": stream,
        }  # fmt: skip

    async def prompt_ms(self, tokens: int) -> float:
        """Milliseconds until a prompt alone has its first and only token. Raises Failed."""
        body = self._body(tokens, 1, False)
        start = time.perf_counter()
        response = await self._client.post("v1/completions", json=body)
        _check(response)
        return (time.perf_counter() - start) * 1e3

    async def answer(self, tokens: int) -> list[float]:
        """The times at which the tokens of an answer came, in seconds. Raises Failed."""
        body = self._body(tokens, ANSWER_TOKENS, True)
        times: list[float] = []
        async with self._client.stream("POST", "v1/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
            _check(response)
            async for line in response.aiter_lines():
                if line.startswith("data: {") and '"text"' in line:
                    times.append(time.perf_counter())
        return times


def _check(response: httpx.Response) -> None:
    if response.status_code == 200:
        return
    try:
        hint = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        hint = response.text
    request = response.request
    text = f"{request.method} {request.url.path} answered {response.status_code}"
    raise Failed(text, hint[:300])


async def measure(engine: Engine) -> Measured:
    """Prompts first, then answers; stops where the limits say. Raises Failed, httpx.HTTPError."""
    await engine.meet()
    measured = Measured(engine.model)
    await engine.prompt_ms(LENGTHS[0])  # the first one may find an engine that is not warm
    for tokens in LENGTHS:
        if not (engine.fits(tokens, 1) and engine.may(REPEATS)):
            continue
        times = [await engine.prompt_ms(tokens) for _ in range(REPEATS)]
        measured.prefills.append((tokens, 0, min(times)))
    for answers, tokens in ANSWERS:
        if not (engine.fits(tokens, ANSWER_TOKENS) and engine.may(answers)):
            continue
        streams = await asyncio.gather(*(engine.answer(tokens) for _ in range(answers)))
        step_ms = together(streams)
        if step_ms > 0:
            kv_tokens = answers * (tokens + ANSWER_TOKENS / 2)
            measured.decodes.append((answers, kv_tokens, step_ms))
    measured.requests = engine.sent
    return measured


def together(streams: Sequence[Sequence[float]]) -> float:
    """Milliseconds per token while all answers run; 0 where they never did. A chunk of a stream
    holds as many tokens as all of them do in the mean."""
    if any(len(times) < 2 for times in streams):
        return 0.0
    start = max(times[0] for times in streams)
    end = min(times[-1] for times in streams)
    gaps: list[float] = []
    for times in streams:
        inside = [b - a for a, b in pairwise(times) if a >= start and b <= end]
        per_chunk = ANSWER_TOKENS / len(times)
        gaps += [gap / per_chunk for gap in inside]
    gaps.sort()
    # The middle half: neither the stalls of prompts that came late nor chunks that came at once.
    middle = gaps[len(gaps) // 4 : len(gaps) - len(gaps) // 4]
    return sum(middle) / len(middle) * 1e3 if middle else 0.0


async def calibrate(url: str, key: str, limits: Limits, seed: int = 0) -> Calibrated:
    """Measures the engine at `url`. Raises Failed."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    base = url.rstrip("/") + "/"
    pool = httpx.Limits(max_connections=64)
    try:
        async with httpx.AsyncClient(
            base_url=base, headers=headers, timeout=REQUEST_S, limits=pool
        ) as client:
            measured = await measure(Engine(client, limits, seed))
    except httpx.HTTPError as error:
        raise Failed(f"{url}: {error or type(error).__name__}") from error
    except (json.JSONDecodeError, KeyError, IndexError) as error:
        raise Failed(f"{url}: GET /v1/models is not what vLLM answers") from error
    try:
        fit, prefill, decode = fit_samples(
            measured.prefills, measured.decodes, limits.chunk_tokens
        )
    except ValueError as error:
        raise Failed(str(error), "let it send more requests, or give it more time") from error
    return Calibrated(measured, fit, prefill, decode, limits.chunk_tokens)
