"""POST /v1/completions: text, lists of texts, token ids, lists of token ids; n choices each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson

from .errors import ApiError, bad, invalid
from .jobs import CHOICES_MAX, Job, request_id
from .params import Body, Stream, boolean, check_model, generation, integer, parse_body
from .sequence import Sequence as Generation
from .sse import DONE, data, error_event, logprobs_lists
from .vocabulary import Vocabulary
from .wire import Reply, Request

if TYPE_CHECKING:
    from .engine import Engine

_MAX_TOKENS_DEFAULT = 16


def prompts(value: Any, words: Vocabulary) -> list[list[int]]:
    """Token ids of each prompt of a `prompt` field. Raises ApiError."""
    if value is None or value == "":
        raise bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if value == []:
        raise ApiError(400, "You must pass at least one prompt")
    if isinstance(value, str):
        return [words.text(value)]
    if isinstance(value, list) and value:
        if all(isinstance(v, str) for v in value):
            return [words.text(v) for v in value]
        if _is_ids(value):
            return [value]
        if all(isinstance(v, list) and (not v or _is_ids(v)) for v in value):
            return value
    raise invalid("prompt", "Input should be a valid string, list of strings or of token ids",
                  "string_type", value)


def _is_ids(value: list[Any]) -> bool:
    return bool(value) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 32 for v in value)


async def handle(engine: Engine, request: Request, reply: Reply) -> None:
    body = parse_body(request)
    model = check_model(body, engine.settings)
    lists = prompts(body.get("prompt"), engine.settings.vocabulary)
    if not all(lists):
        raise ApiError(400, "The decoder prompt cannot be empty")
    if len(lists) > CHOICES_MAX:
        raise ApiError(400, f"at most {CHOICES_MAX} prompts in one request", param="prompt")
    stream = Stream.parse(body)
    if boolean(body, "echo"):
        raise ApiError(400, "`echo` is not supported by the simulated engine.", param="echo")
    if body.get("suffix"):
        raise ApiError(400, "suffix is only supported for models with FIM completion rendering",
                       param="suffix")
    limit = integer(body, "max_tokens", _MAX_TOKENS_DEFAULT, low=1)
    params = [generation(body, request, engine.settings, len(ids), _fit(engine, ids, body, limit))
              for ids in lists]
    job = Job(engine, request, reply, request_id(request, "cmpl"))
    for ids, own in zip(lists, params, strict=True):
        job.add(ids, own, body.get("temperature", 1.0) != 0)
    wants_ids = boolean(body, "return_token_ids")
    logprobs = integer(body, "logprobs", low=0) is not None
    headers = engine.id_headers(request)
    if stream.on:
        reply.stream(headers)
        await engine.before_tokens(reply)
        job.start(CompletionWriter(job, model, engine.fingerprint, stream, (wants_ids, logprobs)))
        await job.wait()
        return
    await engine.before_tokens(reply)
    job.start()
    await job.wait()
    reply.json(200, whole(job, model, engine.fingerprint, (wants_ids, logprobs)), headers)


def _fit(engine: Engine, ids: list[int], body: Body, limit: int | None) -> int | None:
    """The default length gives way to the context's end; a length asked for does not."""
    if body.get("max_tokens") is not None or limit is None:
        return limit
    return min(limit, max(engine.settings.max_model_len - len(ids), 0))


def whole(job: Job, model: str, fingerprint: str, want: tuple[bool, bool]) -> Body:
    return {
        "id": job.id, "object": "text_completion", "created": int(time.time()), "model": model,
        "choices": [_choice(seq, want) for seq in job.sequences],
        "service_tier": None, "system_fingerprint": fingerprint, "usage": job.usage(created=False),
        "kv_transfer_params": job.kv_transfer_params, "ec_transfer_params": None, "metrics": None,
    }


def _choice(seq: Generation, want: tuple[bool, bool]) -> Body:
    ids, logprobs = want
    out = seq.tokens[seq.prompt_len :]
    return {
        "index": seq.index, "text": seq.text,
        "logprobs": logprobs_lists(out, 0, seq.params.vocabulary) if logprobs else None,
        "finish_reason": seq.finish_reason, "stop_reason": seq.stop_reason,
        "token_ids": out if ids else None, "prompt_logprobs": None,
        "prompt_token_ids": seq.tokens[: seq.prompt_len] if ids else None,
        "routed_experts": None,
    }


class CompletionWriter:
    """Chunks of one streamed completion."""

    def __init__(self, job: Job, model: str, fingerprint: str, stream: Stream,
                 want: tuple[bool, bool]) -> None:
        self._job, self._reply, self._stream = job, job.reply, stream
        self._ids, self._logprobs = want
        self._created, self._model, self._fingerprint = int(time.time()), model, fingerprint
        head = orjson.dumps({"id": job.id, "object": "text_completion", "created": self._created,
                             "model": model})[:-1]
        self._head = b"data: " + head + b',"choices":['
        self._print = b',"system_fingerprint":' + orjson.dumps(fingerprint)
        self._simple = not (self._ids or self._logprobs or stream.continuous)
        self._failed = False

    def token(self, seq: Generation, delta: str, token: int) -> None:
        if seq.error is not None:
            if not self._failed:
                self._failed = True
                self._reply.chunk(error_event(seq.error))
        elif self._simple and seq.finish_reason is None:
            self._reply.chunk(
                b'%b{"index":%d,"text":%b,"logprobs":null,"finish_reason":null,"stop_reason":null,'
                b'"prompt_token_ids":null,"token_ids":null}]}\n\n'
                % (self._head, seq.index, orjson.dumps(delta)))
        else:
            self._reply.chunk(self._general(seq, delta, token))

    def done(self, job: Job) -> None:
        if self._stream.usage and not self._failed:
            usage = job.usage(details=False)
            if job.engine.settings.enable_prompt_tokens_details:
                usage["prompt_tokens_details"] = {"cached_tokens": job.cached_tokens}
            self._reply.chunk(data({
                "id": job.id, "object": "text_completion", "created": self._created,
                "model": self._model, "choices": [], "usage": usage,
                "system_fingerprint": self._fingerprint}))
        self._reply.chunk(DONE)
        self._reply.end()

    def _general(self, seq: Generation, delta: str, token: int) -> bytes:
        out, reason = seq.output_len, seq.finish_reason
        first = self._ids and out == 1
        choice = {
            "index": seq.index, "text": delta,
            "logprobs": logprobs_lists(
                [token], len(seq.text) - len(delta), seq.params.vocabulary)
            if self._logprobs else None,
            "finish_reason": reason, "stop_reason": seq.stop_reason,
            "prompt_token_ids": seq.tokens[: seq.prompt_len] if first else None,
            "token_ids": [token] if self._ids else None,
        }
        usage = b""
        if self._stream.continuous:
            usage = b',"usage":' + orjson.dumps({
                "prompt_tokens": seq.prompt_len, "total_tokens": seq.prompt_len + out,
                "completion_tokens": out})
        stamp = self._print if reason is not None and not self._stream.usage else b""
        return b"".join((self._head, orjson.dumps(choice), b"]", usage, stamp, b"}\n\n"))
