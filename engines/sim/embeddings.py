"""POST /v1/embeddings: deterministic unit vectors from token ids."""

from __future__ import annotations

import base64
import random
import struct
import time
from typing import TYPE_CHECKING, Any

from . import text
from .completions import prompts
from .errors import ApiError, invalid
from .jobs import pick_core, request_id
from .params import check_model, integer, parse_body
from .wire import Reply, Request

if TYPE_CHECKING:
    from .engine import Engine

DIMENSIONS = 64


def vector(ids: list[int], dimensions: int, seed: int) -> list[float]:
    """A unit vector that depends on the token ids only."""
    numbers = random.Random(text.digest(ids) ^ seed)
    values = [numbers.gauss(0, 1) for _ in range(dimensions)]
    norm = sum(v * v for v in values) ** 0.5
    return [v / norm for v in values]


async def handle(engine: Engine, request: Request, reply: Reply) -> None:
    body = parse_body(request)
    model = check_model(body, engine.settings)
    if body.get("input") is None:
        raise invalid("input", "Field required", "missing", body)
    lists = prompts(body["input"], engine.settings.vocabulary)
    limit = engine.settings.max_model_len
    for ids in lists:
        if len(ids) > limit:
            raise ApiError(400, f"This model's maximum context length is {limit} tokens. However, "
                                f"you requested {len(ids)} tokens in the input for embedding "
                                "generation. Please reduce the length of the input.")
    dimensions = integer(body, "dimensions", DIMENSIONS, low=1) or DIMENSIONS
    form = body.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise invalid("encoding_format", "Input should be float or base64")
    core = pick_core(engine, request)
    await engine.before_tokens(reply)
    await core.compute(sum(map(len, lists)))
    total = sum(map(len, lists))
    core.metrics.add("prompt_tokens", total)
    data = []
    for at, ids in enumerate(lists):
        values: Any = vector(ids, dimensions, engine.settings.seed)
        if form == "base64":
            values = base64.b64encode(struct.pack(f"<{dimensions}f", *values)).decode()
        data.append({"index": at, "object": "embedding", "embedding": values})
    reply.json(200, {
        "id": request_id(request, "embd"), "object": "list", "created": int(time.time()),
        "model": model, "data": data,
        "usage": {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0,
                  "prompt_tokens_details": None, "completion_tokens_details": None}})
