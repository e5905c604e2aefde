"""POST /v1/chat/completions: request, reply and chunks as vLLM 0.32 has them.

Field order, null fields and the sequence of chunks (role, content..., finish, usage, [DONE]) are
those of its models dumped without unset fields.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from . import tokens
from .errors import ApiError, bad, invalid
from .jobs import Job, request_id
from .params import Body, Stream, boolean, check_model, generation, integer, parse_body
from .sequence import Sequence as Generation
from .settings import Settings
from .sse import DONE, error_event, logprobs_content
from .vocabulary import OWN, NoPrompt, Vocabulary
from .wire import Reply, Request

if TYPE_CHECKING:
    from .engine import Engine

_OPEN_ARGUMENTS, _CLOSE_ARGUMENTS = '{"text": "', '"}'


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of reply the model makes: `tool` is the function it must call."""

    reasoning: int
    tool: str | None
    named: bool
    token_ids: bool
    logprobs: int | None  # how many of the likeliest tokens are told with each; None = none at all
    words: Vocabulary = OWN

    def finish(self, reason: str) -> str:
        if self.tool is not None and not self.named and reason == "stop":
            return "tool_calls"
        return reason


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as the template takes them, and how many reply tokens they already hold."""

    ids: list[int]
    said: int


def conversation(body: Mapping[str, Any], words: Vocabulary) -> Conversation:
    """Renders the messages of a chat body. Raises ApiError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        if "messages" not in body:
            raise invalid("messages", "Field required", "missing", body)
        raise invalid("messages", "Input should be a valid list", "list_type", messages)
    if not messages:
        raise ApiError(400, "Cannot apply chat template to an empty conversation. Provide at least "
                            "one message.")
    resume = boolean(body, "continue_final_message")
    flags = {"continue_final_message": resume}
    if "add_generation_prompt" in body:
        flags["add_generation_prompt"] = boolean(body, "add_generation_prompt", True)
    if resume and body.get("add_generation_prompt"):
        raise ApiError(400, "Cannot set both `continue_final_message` and `add_generation_prompt` "
                            "to True.")
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise invalid("tools", "Input should be a valid list")
    try:
        ids = words.chat({**body, **flags})
    except NoPrompt as exc:
        raise ApiError(400, str(exc)) from exc
    said = len(words.text(tokens.content_text(messages[-1].get("content")))) if resume else 0
    return Conversation(ids, said)


def shape(body: Mapping[str, Any], settings: Settings) -> Shape:
    """Raises ApiError for a tool choice without its tool."""
    choice, tools = body.get("tool_choice"), body.get("tools") or []
    names = [t["function"]["name"] for t in tools
             if isinstance(t, dict) and isinstance(t.get("function"), dict)
             and isinstance(t["function"].get("name"), str)]
    tool: str | None = None
    named = False
    if isinstance(choice, dict):
        function = choice.get("function")
        tool, named = function.get("name") if isinstance(function, dict) else None, True
        if tool not in names:
            raise bad("The tool specified in `tool_choice` does not match any of the specified "
                      "`tools`", "tool_choice")
    elif choice == "required":
        if not names:
            raise bad("When using `tool_choice`, `tools` must be set.", "tool_choice")
        tool = names[0]
    elif choice not in (None, "auto", "none"):
        raise invalid("tool_choice", "Input should be none, auto, required or a named tool")
    return Shape(settings.reasoning_tokens, tool, named, boolean(body, "return_token_ids"),
                 (integer(body, "top_logprobs", 0, low=0) or 0) if boolean(body, "logprobs")
                 else None, settings.vocabulary)


async def handle(engine: Engine, request: Request, reply: Reply) -> None:
    body = parse_body(request)
    model = check_model(body, engine.settings)
    talk = conversation(body, engine.settings.vocabulary)
    stream = Stream.parse(body)
    form = shape(body, engine.settings)
    limit = integer(body, "max_completion_tokens", integer(body, "max_tokens", low=1), low=1)
    params = generation(body, request, engine.settings, len(talk.ids), limit, talk.said)
    name = request_id(request, "chatcmpl")
    job = Job(engine, request, reply, name)
    job.add(talk.ids, params, body.get("temperature", 1.0) != 0)
    headers = engine.id_headers(request)
    if stream.on:
        writer = ChatWriter(job, model, engine.fingerprint, form, stream)
        reply.stream(headers)
        await engine.before_tokens(reply)
        job.start(writer)
        await job.wait()
        return
    await engine.before_tokens(reply)
    job.start()
    await job.wait()
    headers += engine.load_headers(request)
    reply.json(200, whole(job, model, engine.fingerprint, form), headers)


# -- whole reply


def whole(job: Job, model: str, fingerprint: str, form: Shape) -> Body:
    return {
        "id": job.id, "object": "chat.completion", "created": int(time.time()), "model": model,
        "choices": [_choice(seq, form) for seq in job.sequences],
        "service_tier": None, "system_fingerprint": fingerprint, "usage": job.usage(),
        "prompt_logprobs": None,
        "prompt_token_ids": job.sequences[0].tokens[: job.sequences[0].prompt_len]
        if form.token_ids else None,
        "prompt_text": None, "kv_transfer_params": job.kv_transfer_params,
        "ec_transfer_params": None, "metrics": None,
    }


def _choice(seq: Generation, form: Shape) -> Body:
    reasoning, said = split_reasoning(seq, form.reasoning)
    message: Body = {"role": "assistant", "content": said, "refusal": None, "annotations": None,
                     "audio": None, "function_call": None}
    if form.tool is not None:
        message["content"] = None if not form.named else ""
        message["tool_calls"] = [{
            "id": tool_call_id(), "type": "function",
            "function": {"name": form.tool,
                         "arguments": _OPEN_ARGUMENTS + said + _CLOSE_ARGUMENTS}}]
    message["reasoning"] = reasoning or None
    out = seq.tokens[seq.prompt_len :]
    return {
        "index": seq.index, "message": message,
        "logprobs": _logprobs(out, form),
        "finish_reason": form.finish(seq.finish_reason or "stop"),
        "stop_reason": seq.stop_reason, "token_ids": out if form.token_ids else None,
        "routed_experts": None,
    }


def _logprobs(ids: list[int], form: Shape) -> Body | None:
    return None if form.logprobs is None else {
        "content": logprobs_content(ids, form.logprobs, form.words)}


def split_reasoning(seq: Generation, count: int) -> tuple[str, str]:
    """The first `count` tokens' text, and the rest."""
    if count <= 0:
        return "", seq.text
    words = seq.params.vocabulary
    out = seq.tokens[seq.prompt_len : seq.prompt_len + count]
    pieces = b"".join(map(words.piece, out)).decode("utf-8", "replace")
    head = pieces.removesuffix(tokens.SPECIAL[0])[: len(seq.text)]
    return head, seq.text[len(head) :]


def tool_call_id() -> str:
    return f"chatcmpl-tool-{secrets.token_hex(8)}"


# -- stream


class ChatWriter:
    """Chunks of one streamed chat reply, written from the engine's step."""

    def __init__(self, job: Job, model: str, fingerprint: str, form: Shape,
                 stream: Stream) -> None:
        self._job, self._reply, self._form, self._stream = job, job.reply, form, stream
        head = orjson.dumps({"id": job.id, "object": "chat.completion.chunk",
                             "created": int(time.time()), "model": model})[:-1]
        self._head = b"data: " + head + b',"choices":['
        self._plain = [
            self._head + b'{"index":%d,"delta":{"content":' % i for i in range(len(job.sequences))
        ]
        self._print = b',"system_fingerprint":' + orjson.dumps(fingerprint)
        plain = form.logprobs is None and form.tool is None
        self._simple = plain and not (form.token_ids or form.reasoning or stream.continuous)
        self._open = self._failed = False

    def token(self, seq: Generation, delta: str, token: int) -> None:
        if not self._open:
            self._open = True
            self._roles()
        if seq.error is not None:
            if not self._failed:
                self._failed = True
                self._reply.chunk(error_event(seq.error))
        elif self._simple and seq.finish_reason is None:
            self._reply.chunk(
                b'%b%b},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
                % (self._plain[seq.index], orjson.dumps(delta)))
        elif self._form.tool is not None and seq.output_len > self._form.reasoning:
            self._call(seq, delta, token)
        else:
            self._send(seq, self._text(seq, delta), token, seq.finish_reason)

    def done(self, job: Job) -> None:
        if self._stream.usage and not self._failed:
            usage = job.usage(details=False)
            details = job.prompt_details()
            if details is not None:
                usage["prompt_tokens_details"] = {k: v for k, v in details.items()
                                                  if v is not None}
            self._reply.chunk(b"".join((self._head, b'],"usage":', orjson.dumps(usage),
                                        self._print, b"}\n\n")))
        self._reply.chunk(DONE)
        self._reply.end()

    def _roles(self) -> None:
        form, first = self._form, self._job.sequences[0]
        ids = first.tokens[: first.prompt_len] if form.token_ids else None
        tail = b',"prompt_token_ids":' + orjson.dumps(ids) + b',"prompt_text":null}\n\n'
        for seq in self._job.sequences:
            self._reply.chunk(b"".join((
                self._head, b'{"index":%d,"delta":{"role":"assistant","content":""},' % seq.index,
                b'"logprobs":null,"finish_reason":null}]', self._usage(seq, 0), tail)))

    def _usage(self, seq: Generation, out: int) -> bytes:
        if not self._stream.continuous:
            return b""
        return b',"usage":' + orjson.dumps({
            "prompt_tokens": seq.prompt_len, "total_tokens": seq.prompt_len + out,
            "completion_tokens": out, "completion_tokens_details": None})

    def _send(self, seq: Generation, delta: Body, token: int | None, reason: str | None) -> None:
        form = self._form
        choice: Body = {
            "index": seq.index, "delta": delta,
            "logprobs": _logprobs([token], form) if token is not None else None,
            "finish_reason": None if reason is None else form.finish(reason)}
        if reason is not None:
            choice["stop_reason"] = seq.stop_reason
        choice["token_ids"] = [token] if form.token_ids and token is not None else None
        stamp = self._print if reason is not None and not self._stream.usage else b""
        self._reply.chunk(b"".join((
            self._head, orjson.dumps(choice), b"]", self._usage(seq, seq.output_len), stamp,
            b"}\n\n")))

    def _text(self, seq: Generation, delta: str) -> Body:
        thinking = seq.output_len <= self._form.reasoning
        return {"reasoning": delta} if thinking else {"content": delta}

    def _call(self, seq: Generation, delta: str, token: int) -> None:
        """A tool call: its name alone, pieces of its arguments, an empty delta at the end."""
        if seq.output_len == self._form.reasoning + 1:
            self._send(seq, {"content": None, "tool_calls": [{
                "id": tool_call_id(), "type": "function", "index": 0,
                "function": {"name": self._form.tool}}]}, None, None)
            delta = _OPEN_ARGUMENTS + delta
        if seq.finish_reason == "stop":
            delta += _CLOSE_ARGUMENTS
        self._send(seq, {"content": None, "tool_calls": [
            {"index": 0, "function": {"arguments": delta}}]}, token, None)
        if seq.finish_reason is not None:
            self._send(seq, {}, None, seq.finish_reason)
