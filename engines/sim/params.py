"""From a request body to what the engine runs: field types, limits, defaults as vLLM has them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from .errors import ApiError, ValidationError, bad, invalid
from .sequence import Params
from .settings import Lora, Settings
from .wire import Request

Body = dict[str, Any]
_UNBOUNDED = 1 << 40


def parse_body(request: Request) -> Body:
    """The JSON object of a request. Raises ValidationError as vLLM does for anything else."""
    kind = (request.get("content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ValidationError(400, "1 validation error:\n  Unsupported Media Type: Only "
                                   "'application/json' is allowed", kind="Bad Request")
    if not request.body:
        raise invalid("", "Field required", "missing")
    try:
        body = orjson.loads(request.body)
    except orjson.JSONDecodeError as exc:
        raise invalid(str(exc.pos), "JSON decode error", "json_invalid", {}) from exc
    if not isinstance(body, dict):
        raise invalid("", "Input should be a valid dictionary or object to extract fields from",
                      "model_attributes_type", body)
    return body


def integer(body: Mapping[str, Any], field: str, default: int | None = None, *,
            low: int | None = None) -> int | None:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise invalid(field, "Input should be a valid integer", "int_type", value)
    if low is not None and value < low:
        raise bad(f"{field} must be at least {low}, got {int(value)}.", field, int(value))
    return int(value)


def number(body: Mapping[str, Any], field: str, default: float) -> float:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(field, "Input should be a valid number", "float_type", value)
    return float(value)


def boolean(body: Mapping[str, Any], field: str, default: bool = False) -> bool:
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid(field, "Input should be a valid boolean", "bool_type", value)
    return value


def mapping(body: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = body.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(field, "Input should be a valid dictionary", "dict_type", value)
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
            raise bad("Stream options can only be defined when `stream=True`.", "stream_options")
        usage = boolean(options, "include_usage")
        return cls(on, usage, usage and boolean(options, "continuous_usage_stats"))


def check_model(body: Mapping[str, Any], settings: Settings) -> str:
    """The model's name for the reply. Raises ApiError 404 for one not served here."""
    name = body.get("model")
    if name is None or name == "":
        return settings.served_model_names[0]
    if not isinstance(name, str):
        raise invalid("model", "Input should be a valid string", "string_type", name)
    if name not in settings.served_model_names and lora_of(name, settings) is None:
        valid = ", ".join(settings.served_model_names)
        raise ApiError(404, f"The model `{name}` does not exist. Valid aliases: {valid}.",
                       param="model")
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
    raise invalid("stop", "Input should be a valid string or list", "string_type", value)


def _room(settings: Settings, prompt_len: int, max_tokens: int | None) -> int:
    """Tokens left for a reply. Raises ApiError when prompt or reply do not fit the context."""
    longest = settings.max_model_len
    if prompt_len >= longest:
        counted = min(prompt_len, longest + 1)  # the real one stops counting there
        raise bad(
            f"This model's maximum context length is {longest} tokens. However, your prompt "
            f"contains at least {counted} input tokens, which exceeds this limit even without "
            "any output tokens. Please reduce the length of the input prompt.",
            "input_tokens", counted)
    if max_tokens is not None and max_tokens > longest:
        raise bad(f"max_tokens={max_tokens} cannot be greater than max_model_len={longest}. Please "
                  "request fewer output tokens.", "max_tokens", max_tokens)
    room = longest - prompt_len
    if max_tokens is not None and max_tokens > room:
        raise bad(
            f"This model's maximum context length is {longest} tokens. However, you requested "
            f"{max_tokens} output tokens and your prompt contains {prompt_len} input tokens. "
            "Please reduce the length of the input prompt or the number of requested output "
            "tokens.", "input_tokens", prompt_len)
    return room


def generation(body: Mapping[str, Any], request: Request, settings: Settings, prompt_len: int,
               max_tokens: int | None, said: int = 0) -> Params:
    """Parameters of one prompt of `prompt_len` tokens. `said` = tokens of the reply it already
    holds (a continued message). Raises ApiError."""
    room = _room(settings, prompt_len, max_tokens)
    temperature, top_p = number(body, "temperature", 1.0), number(body, "top_p", 1.0)
    if temperature < 0:
        raise bad(f"temperature must be non-negative, got {temperature}.", "temperature",
                  temperature)
    if not 0 < top_p <= 1:
        raise bad(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    n = integer(body, "n", 1) or 0
    if n < 1:
        raise ApiError(400, f"n must be at least 1, got {n}.")
    if n > 1 and temperature == 0:
        raise ApiError(400, f"n must be 1 when using greedy sampling, got {n}.")
    limit = room if max_tokens is None else max_tokens
    least = integer(body, "min_tokens", 0, low=0) or 0
    if least > limit:
        raise ApiError(400, f"min_tokens must be less than or equal to max_tokens={limit}, got "
                            f"{least}.")
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
        raise bad("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    return Params(
        max_tokens=limit,
        length=_UNBOUNDED if endless else max(settings.tokens - said, 1),
        min_tokens=least,
        stop=_stops(body), seed=seed ^ settings.seed ^ (0 if lora is None else lora.id),
        n=n, cache_salt=salt, lora=lora,
        session_id=request.get("x-session-id") or body.get("session_id"),
        report_full=extra.get("kv_cache_report_mode") == "full",
        kv_transfer_params=kv or None, vocabulary=settings.vocabulary,
    )


def of_choice(params: Params, index: int, sampled: bool) -> Params:
    """The parameters of choice `index`: sampled choices differ, greedy ones do not."""
    if index == 0 or not sampled:
        return params
    return replace(params, seed=(params.seed + 0x9E3779B9 * index) & 0xFFFFFFFF)
