"""POST /v1/messages and /v1/messages/count_tokens: the Anthropic interface, as vLLM 0.32 maps it
onto chat. Errors have Anthropic's shape: `{"type": "error", "error": {"type", "message"}}`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from .chat import Shape, conversation, shape, split_reasoning, tool_call_id
from .errors import ApiError, ValidationError, invalid
from .jobs import Job, request_id
from .params import Body, boolean, check_model, generation, integer, parse_body
from .sequence import Sequence as Generation
from .sse import event
from .wire import Reply, Request

if TYPE_CHECKING:
    from .engine import Engine

_OPEN, _CLOSE = '{"text": "', '"}'


def to_chat(body: Mapping[str, Any]) -> Body:
    """The chat body a messages body stands for. Raises ApiError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise invalid("messages", "Input should be a valid list")
    chat: list[Body] = []
    system = body.get("system")
    if system is not None:
        chat.append({"role": "system", "content": _text(system)})
    for message in messages:
        chat += _message(message)
    tools = [{"type": "function", "function": {
        "name": t.get("name"), "description": t.get("description"),
        "parameters": t.get("input_schema")}}
        for t in body.get("tools") or [] if isinstance(t, dict)]
    out: Body = {"messages": chat}
    if tools:
        out["tools"] = tools
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        kind = choice.get("type")
        out["tool_choice"] = {"any": "required", "none": "none"}.get(str(kind), "auto")
        if kind == "tool":
            out["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    return out


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(b.get("text", "")) for b in content if isinstance(b, dict))
    raise invalid("content", "Input should be a valid string or list")


def _message(message: Mapping[str, Any]) -> list[Body]:
    content, role = message.get("content"), message.get("role")
    if role not in ("user", "assistant", "system"):
        raise invalid("messages.role", "Input should be user, assistant or system")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise invalid("messages.content", "Input should be a valid string or list")
    texts, calls, results = [], [], []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "tool_use":
            calls.append({"id": block.get("id"), "type": "function", "function": {
                "name": block.get("name"),
                "arguments": orjson.dumps(block.get("input") or {}).decode()}})
        elif kind == "tool_result":
            results.append({"role": "tool", "content": _text(block.get("content") or "")})
        elif kind not in ("thinking", "redacted_thinking"):
            texts.append(f"[{kind}]")
    main: Body = {"role": role, "content": "\n".join(texts)}
    if calls:
        main["tool_calls"] = calls
    return [*results, main] if texts or calls or not results else results


async def handle(engine: Engine, request: Request, reply: Reply) -> None:
    try:
        await _handle(engine, request, reply)
    except ApiError as exc:
        _error(reply, exc)


async def count_tokens(engine: Engine, request: Request, reply: Reply) -> None:
    try:
        body = parse_body(request)
        check_model(body, engine.settings)
        count = len(conversation(to_chat(body), engine.settings.vocabulary).ids)
    except ApiError as exc:
        _error(reply, exc)
        return
    reply.json(200, {"input_tokens": count, "context_management": {"original_input_tokens": count}})


def _error(reply: Reply, exc: ApiError) -> None:
    if isinstance(exc, ValidationError):
        raise exc
    reply.json(exc.status, {"type": "error", "error": {"type": exc.kind, "message": exc.message}})


async def _handle(engine: Engine, request: Request, reply: Reply) -> None:
    body = parse_body(request)
    model = check_model(body, engine.settings)
    limit = integer(body, "max_tokens")
    if limit is None:
        raise invalid("max_tokens", "Field required", "missing", body)
    if limit <= 0:
        raise invalid("max_tokens", "Value error, max_tokens must be positive")
    chat = to_chat(body)
    talk = conversation(chat, engine.settings.vocabulary)
    form = shape(chat, engine.settings)
    wanted = {**body, "stop": body.get("stop_sequences"), "stream_options": None, "n": None}
    params = generation(wanted, request, engine.settings, len(talk.ids), limit)
    job = Job(engine, request, reply, request_id(request, "chatcmpl"))
    job.add(talk.ids, params, body.get("temperature", 1.0) != 0)
    if boolean(body, "stream"):
        reply.stream()
        await engine.before_tokens(reply)
        job.start(MessageWriter(job, model, form))
        await job.wait()
        return
    await engine.before_tokens(reply)
    job.start()
    await job.wait()
    reply.json(200, whole(job, model, form))


def usage(job: Job, output: int, *, final: bool) -> Body:
    """Input tokens without those read from or put into the cache, where the engine reports them."""
    details = job.prompt_details() if final else None
    if details is None:
        return {"input_tokens": job.prompt_tokens, "output_tokens": output}
    read, created = details["cached_tokens"], details["created_cache_tokens"]
    return {"input_tokens": max(job.prompt_tokens - read - created, 0), "output_tokens": output,
            "cache_creation_input_tokens": created, "cache_read_input_tokens": read}


def stop_reason(seq: Generation, form: Shape) -> tuple[str, str | None]:
    if seq.finish_reason == "length":
        return "max_tokens", None
    if form.tool is not None:
        return "tool_use", None
    if seq.stop_reason is not None:
        return "stop_sequence", seq.stop_reason
    return "end_turn", None


def whole(job: Job, model: str, form: Shape) -> Body:
    seq = job.sequences[0]
    reasoning, said = split_reasoning(seq, form.reasoning)
    content: list[Body] = []
    if reasoning:
        content.append({"type": "thinking", "thinking": reasoning,
                        "signature": secrets.token_hex(8)})
    if form.tool is not None:
        content.append({"type": "tool_use", "id": tool_call_id(), "name": form.tool,
                        "input": {"text": said}})
    elif said or not content:
        content.append({"type": "text", "text": said})
    reason, stopped = stop_reason(seq, form)
    out: Body = {"id": job.id, "type": "message", "role": "assistant", "content": content,
                 "model": model, "stop_reason": reason}
    if stopped is not None:
        out["stop_sequence"] = stopped
    out["usage"] = usage(job, seq.output_len, final=True)
    if job.kv_transfer_params is not None:
        out["kv_transfer_params"] = job.kv_transfer_params
    return out


class MessageWriter:
    """Events of one streamed message: start, blocks of one kind each, delta, stop."""

    def __init__(self, job: Job, model: str, form: Shape) -> None:
        self._job, self._reply, self._model, self._form = job, job.reply, model, form
        self._kind: str | None = None
        self._index = -1
        self._open = False

    def _send(self, name: str, value: Body) -> None:
        self._reply.chunk(event(name, {"type": name, **value}))

    def token(self, seq: Generation, delta: str, token: int) -> None:
        if not self._open:
            self._open = True
            self._send("message_start", {"message": {
                "id": self._job.id, "type": "message", "role": "assistant", "content": [],
                "model": self._model, "stop_reason": None, "stop_sequence": None,
                "usage": usage(self._job, 0, final=False)}})
        if seq.error is not None:
            self._send("error", {"error": {"type": "internal_error", "message": seq.error}})
        elif seq.output_len <= self._form.reasoning:
            self._delta("thinking", "thinking_delta", "thinking", delta)
        elif self._form.tool is not None:
            first = self._kind != "tool_use"
            closing = _CLOSE if seq.finish_reason == "stop" else ""
            self._delta("tool_use", "input_json_delta", "partial_json",
                        (_OPEN if first else "") + delta + closing)
        else:
            self._delta("text", "text_delta", "text", delta)

    def _delta(self, kind: str, delta_kind: str, field: str, text: str) -> None:
        if not text:
            return
        if self._kind != kind:
            self._close()
            self._kind = kind
            self._index += 1
            block: Body = {"type": kind}
            if kind == "tool_use":
                block |= {"id": tool_call_id(), "name": self._form.tool, "input": {}}
            else:
                block[kind] = ""
            self._send("content_block_start", {"content_block": block, "index": self._index})
        self._send("content_block_delta",
                   {"delta": {"type": delta_kind, field: text}, "index": self._index})

    def _close(self) -> None:
        if self._kind == "thinking":
            self._send("content_block_delta", {
                "delta": {"type": "signature_delta", "signature": secrets.token_hex(8)},
                "index": self._index})
        if self._kind is not None:
            self._send("content_block_stop", {"index": self._index})
            self._kind = None

    def done(self, job: Job) -> None:
        seq = job.sequences[0]
        self._close()
        if seq.error is None:
            reason, stopped = stop_reason(seq, self._form)
            self._send("message_delta", {
                "delta": {"stop_reason": reason, "stop_sequence": stopped},
                "usage": usage(job, seq.output_len, final=True)})
        self._send("message_stop", {})
        self._reply.end()
