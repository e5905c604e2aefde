"""From a request body to what the engine runs: field types, limits, defaults as vLLM has them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from .errors import ApiError, invalid
from .sequence import Params
from .settings import Lora, Settings
from .wire import Request

Body = dict[str, Any]
_UNBOUNDED = 1 << 40


def parse_body(request: Request) -> Body:
    """The JSON object of a request. Raises ApiError as vLLM does for anything else."""
    kind = (request.get("content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(400, "1 validation error:\n  {'loc': 'body', 'msg': 'Unsupported Media "
                            "Type: Only application/json is allowed'}", kind="Bad Request")
    try:
        body = orjson.loads(request.body)
    except orjson.JSONDecodeError as exc:
        raise ApiError(400, f"1 validation error:\n  {{'type': 'json_invalid', 'loc': "
                            f"'body.{exc.pos}', 'msg': 'JSON decode error'}}",
                       param=f"body.{exc.pos}", kind="Bad Request") from exc
    if not isinstance(body, dict):
        raise ApiError(400, "1 validation error:\n  {'loc': 'body', 'msg': 'Input should be a "
                            "valid dictionary'}", param="body", kind="Bad Request")
    return body


def integer(body: Mapping[str, Any], field: str, default: int | None = None, *,
            low: int | None = None) -> int | None:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise invalid(field, "Input should be a valid integer")
    if low is not None and value < low:
        raise ApiError(400, f"{field} must be at least {low}, got {int(value)}.", param=field)
    return int(value)


def number(body: Mapping[str, Any], field: str, default: float, low: float, high: float) -> float:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(field, "Input should be a valid number")
    if not low <= value <= high:
        raise ApiError(400, f"{field} must be in [{low}, {high}], got {value}.", param=field)
    return float(value)


def boolean(body: Mapping[str, Any], field: str, default: bool = False) -> bool:
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid(field, "Input should be a valid boolean")
    return value


def mapping(body: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = body.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(field, "Input should be a valid dictionary")
    return value


@dataclass(frozen=True, slots=True)
class Stream:
    """How the reply is to be streamed."""

    on: bool
    usage: bool
    continuous: bool

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Stream:
        on = boolean(body, "stream")
        options = mapping(body, "stream_options")
        if options and not on:
            raise ApiError(400, "Stream options can only be defined when `stream=True`.",
                           param="stream_options")
        usage = boolean(options, "include_usage")
        return cls(on, usage, usage and boolean(options, "continuous_usage_stats"))


def check_model(body: Mapping[str, Any], settings: Settings) -> str:
    """The model's name for the reply. Raises ApiError 404 for one not served here."""
    name = body.get("model")
    if name is None or name == "":
        return settings.served_model_names[0]
    if not isinstance(name, str):
        raise invalid("model", "Input should be a valid string")
    if name not in settings.served_model_names and lora_of(name, settings) is None:
        raise ApiError(404, f"The model `{name}` does not exist.", param="model")
    return name


def lora_of(name: object, settings: Settings) -> Lora | None:
    """The adapter served under this name."""
    return next((lora for lora in settings.loras if lora.name == name), None)


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(s, str) for s in value):
        return tuple(s for s in value if s)
    raise invalid("stop", "Input should be a valid string or list of strings")


def generation(body: Mapping[str, Any], request: Request, settings: Settings, prompt_len: int,
               max_tokens: int | None, said: int = 0) -> Params:
    """Parameters of one prompt of `prompt_len` tokens. `said` = tokens of the reply it already
    holds (a continued message). Raises ApiError."""
    room = settings.max_model_len - prompt_len
    if room < 0 or (room == 0 and max_tokens != 0):
        raise ApiError(
            400, f"This model's maximum context length is {settings.max_model_len} tokens. However,"
                 f" your request has {prompt_len} input tokens. Please reduce the length of the "
                 "input messages.", param="input_tokens")
    if max_tokens is not None and max_tokens > room:
        raise ApiError(
            400, f"'max_tokens' or 'max_completion_tokens' is too large: {max_tokens}. This model's"
                 f" maximum context length is {settings.max_model_len} tokens and your request has "
                 f"{prompt_len} input tokens ({max_tokens} > {settings.max_model_len} - "
                 f"{prompt_len}).", param="max_tokens")
    temperature = number(body, "temperature", 1.0, 0.0, float("inf"))
    number(body, "top_p", 1.0, 0.0, 1.0)
    seed = integer(body, "seed")
    if temperature == 0:
        seed = 0
    elif seed is None:
        seed = secrets.randbits(32)
    else:
        seed = (seed * 2 + 1) & 0xFFFFFFFF
    endless = boolean(body, "ignore_eos")
    extra = mapping(body, "vllm_xargs")
    kv = mapping(body, "kv_transfer_params")
    lora = lora_of(body.get("model"), settings)
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise ApiError(400, "Parameter 'cache_salt' must be a non-empty string if provided.")
    return Params(
        max_tokens=room if max_tokens is None else max_tokens,
        length=_UNBOUNDED if endless else max(settings.tokens - said, 1),
        min_tokens=integer(body, "min_tokens", 0, low=0) or 0,
        stop=_stops(body), seed=seed ^ settings.seed ^ (0 if lora is None else lora.id),
        n=integer(body, "n", 1, low=1) or 1, cache_salt=salt, lora=lora,
        session_id=request.get("x-session-id") or body.get("session_id"),
        report_full=extra.get("kv_cache_report_mode") == "full",
        kv_transfer_params=kv or None,
    )


def of_choice(params: Params, index: int, sampled: bool) -> Params:
    """The parameters of choice `index`: sampled choices differ, greedy ones do not."""
    if index == 0 or not sampled:
        return params
    return replace(params, seed=(params.seed + 0x9E3779B9 * index) & 0xFFFFFFFF)
