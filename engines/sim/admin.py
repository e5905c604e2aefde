"""Everything that does not generate: models, health, version, load, metrics, tokenizer, control."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import orjson

from . import tokens
from .cache import external
from .chat import conversation
from .engine import VLLM_VERSION
from .errors import ApiError, invalid
from .faults import FaultError
from .metrics import Gauge, render
from .params import boolean, check_model, parse_body
from .sse import token_text
from .wire import Reply, Request

if TYPE_CHECKING:
    from .engine import Engine


async def models(engine: Engine, request: Request, reply: Reply) -> None:
    s, created = engine.settings, int(time.time())
    permission = {
        "id": f"modelperm-{secrets.token_hex(8)}", "object": "model_permission",
        "created": created, "allow_create_engine": False, "allow_sampling": True,
        "allow_logprobs": True, "allow_search_indices": False, "allow_view": True,
        "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
    }
    reply.json(200, {"object": "list", "data": [
        {"id": name, "object": "model", "created": created, "owned_by": "vllm", "root": s.model,
         "parent": None, "max_model_len": s.max_model_len, "permission": [permission]}
        for name in s.served_model_names
    ] + [
        {"id": lora.name, "object": "model", "created": created, "owned_by": "vllm",
         "root": lora.path, "parent": s.served_model_names[0], "max_model_len": None,
         "permission": [permission]}
        for lora in s.loras
    ]})


async def health(engine: Engine, request: Request, reply: Reply) -> None:
    dead = any(core.dead is not None for core in engine.cores)
    reply.send(503 if dead else 200, b"", "")


async def version(engine: Engine, request: Request, reply: Reply) -> None:
    reply.json(200, {"version": VLLM_VERSION})


async def load(engine: Engine, request: Request, reply: Reply) -> None:
    tracked = engine.settings.enable_server_load_tracking
    reply.json(200, {"server_load": engine.in_flight if tracked else 0})


async def kv_event_sources(engine: Engine, request: Request, reply: Reply) -> None:
    port = engine.faults.told_port()
    reply.json(200, {str(rank): p.config(port) for rank, p in enumerate(engine.publishers)
                     if p is not None})


async def reset_prefix_cache(engine: Engine, request: Request, reply: Reply) -> None:
    results = [core.cache.reset() for core in engine.cores]
    reply.json(200, {"success": all(results)})


async def metrics(engine: Engine, request: Request, reply: Reply) -> None:
    page = render([core.metrics for core in engine.cores], _gauges(engine))
    reply.send(200, page, "text/plain; version=1.0.0; charset=utf-8")


def _gauges(engine: Engine) -> list[Gauge]:
    s, name = engine.settings, engine.settings.served_model_names[0]
    ranks = [([("engine", str(c.rank)), ("model_name", name)], c) for c in engine.cores]
    config = [
        ("block_size", str(s.block_size)), ("num_gpu_blocks", str(s.num_gpu_blocks)),
        ("kv_cache_size_tokens", str((s.num_gpu_blocks - 1) * s.block_size)),
        ("prefix_caching_hash_algo", "sha256"), ("enable_prefix_caching", "True"),
        ("cache_dtype", "auto"), ("gpu_memory_utilization", "0.92"),
    ]
    return [
        ("num_requests_running", "Requests in execution batches.",
         [(b, len(c.scheduler.running)) for b, c in ranks]),
        ("num_requests_waiting", "Requests waiting to be processed.",
         [(b, len(c.scheduler.waiting) + len(c.scheduler.remote)) for b, c in ranks]),
        ("num_requests_waiting_by_reason", "Waiting requests by reason.",
         [([*b, ("reason", why)], n) for b, c in ranks
          for why, n in (("capacity", len(c.scheduler.waiting)),
                         ("deferred", len(c.scheduler.remote)))]),
        ("engine_sleep_state", "Engine sleep state.",
         [([*b, ("sleep_state", state)], float(state == "awake")) for b, _ in ranks
          for state in ("awake", "weights_offloaded", "discard_all")]),
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
         [(b, c.cache.usage()) for b, c in ranks]),
        ("cache_config_info", "Information of the LLMEngine CacheConfig",
         [([("engine", str(c.rank)), *config], 1.0) for _, c in ranks]),
    ]


async def tokenize(engine: Engine, request: Request, reply: Reply) -> None:
    body, words = parse_body(request), engine.settings.vocabulary
    check_model(body, engine.settings)
    if "messages" in body:
        ids = conversation(body, words).ids
    elif isinstance(body.get("prompt"), str):
        ids = words.text(body["prompt"])
    else:
        raise invalid("prompt", "Field required", "missing", body)
    texts = [token_text(i, words) for i in ids] if boolean(body, "return_token_strs") else None
    reply.json(200, {"count": len(ids), "max_model_len": engine.settings.max_model_len,
                     "tokens": ids, "token_strs": texts})


async def detokenize(engine: Engine, request: Request, reply: Reply) -> None:
    body = parse_body(request)
    check_model(body, engine.settings)
    ids = body.get("tokens")
    if not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids):
        raise invalid("tokens", "Input should be a valid list", "list_type", ids)
    try:
        reply.json(200, {"prompt": tokens.decode(ids)})
    except ValueError as exc:
        raise ApiError(400, str(exc)) from exc


async def scale_out_disabled(engine: Engine, request: Request, reply: Reply) -> None:
    raise ApiError(403, "Scale-out endpoints are disabled. Restart vllm serve with "
                        "--enable-scale-out to enable them.")


# -- the simulator's own


async def state(engine: Engine, request: Request, reply: Reply) -> None:
    reply.json(200, engine.state())


async def cached(engine: Engine, request: Request, reply: Reply) -> None:
    """Per rank: every cached block hash as events carry it, and its number of copies."""
    reply.json(200, [
        {str(external(h)): n for h, n in core.cache.cached().items()} for core in engine.cores])


async def faults(engine: Engine, request: Request, reply: Reply) -> None:
    """GET shows the scripted faults; POST a list of specs (or {"faults", "clear"}) sets them."""
    if request.method == "POST":
        value: Any
        try:
            value = orjson.loads(request.body or b"[]")
        except orjson.JSONDecodeError as exc:
            raise ApiError(400, f"faults must be JSON: {exc}") from exc
        specs = value.get("faults", []) if isinstance(value, dict) else value
        if not isinstance(specs, list) or not all(isinstance(s, str) for s in specs):
            raise ApiError(400, 'faults must be a list of texts such as "cut:after=3"')
        try:
            engine.faults.replace(specs, keep=isinstance(value, dict) and not value.get("clear"))
        except FaultError as exc:
            raise ApiError(400, str(exc)) from exc
    reply.json(200, engine.faults.state())
