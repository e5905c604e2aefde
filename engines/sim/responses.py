"""POST /v1/responses, GET and cancel of stored ones: the OpenAI Responses interface.

What was answered stays in this engine's memory (as with VLLM_ENABLE_RESPONSES_API_STORE=1), so
`previous_response_id` and GET work at the engine that answered and nowhere else.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .chat import Shape, conversation, shape
from .errors import ApiError, invalid
from .jobs import Job
from .params import Body, boolean, check_model, generation, integer, mapping, parse_body
from .response_items import ResponseWriter, output_items, to_messages
from .wire import Reply, Request

if TYPE_CHECKING:
    from .engine import Engine

STORED_MAX = 10_000
Endpoint = Callable[["Engine", Request, Reply], Awaitable[None]]


@dataclass(slots=True)
class Stored:
    response: Body
    messages: list[Body]
    job: Job | None = None


class Store:
    """The latest responses by id."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, Stored] = OrderedDict()
        self.tasks: set[asyncio.Task[None]] = set()

    def put(self, item: Stored) -> None:
        self._items[item.response["id"]] = item
        if len(self._items) > STORED_MAX:
            self._items.popitem(last=False)

    def get(self, name: str) -> Stored:
        item = self._items.get(name)
        if item is None:
            raise ApiError(404, f"Response with id '{name}' not found.", param="response_id",
                           kind="invalid_request_error")
        return item


class _Nobody(Reply):
    """Stands for the client of a background response, who has gone with an id."""

    __slots__ = ()


def methods(path: str) -> Mapping[str, Endpoint] | None:
    """Endpoints of `/v1/responses/ID` and `/v1/responses/ID/cancel`."""
    parts = path.split("/")[3:]
    if len(parts) == 1 and parts[0]:
        return {"GET": _retrieve}
    if len(parts) == 2 and parts[1] == "cancel":
        return {"POST": _cancel}
    return None


async def _retrieve(engine: Engine, request: Request, reply: Reply) -> None:
    reply.json(200, engine.responses.get(request.path.split("/")[3]).response)


async def _cancel(engine: Engine, request: Request, reply: Reply) -> None:
    item = engine.responses.get(request.path.split("/")[3])
    if item.response["status"] not in ("queued", "in_progress"):
        raise ApiError(400, "Cannot cancel a synchronous response.", param="response_id",
                       kind="invalid_request_error")
    item.response["status"] = "cancelled"
    if item.job is not None:
        item.job.abort()
    reply.json(200, item.response)


async def handle(engine: Engine, request: Request, reply: Reply) -> None:
    body = parse_body(request)
    model = check_model(body, engine.settings)
    before = body.get("previous_response_id")
    messages = engine.responses.get(str(before)).messages.copy() if before is not None else []
    if body.get("input") is None:
        raise invalid("input", "Field required", "missing", body)
    messages += to_messages(body["input"])
    instructions = body.get("instructions")
    lead = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    chat = {"messages": lead + messages, "tools": _tools(body), "tool_choice": _choice(body)}
    talk = conversation(chat, engine.settings.vocabulary)
    form = shape(chat, engine.settings)
    limit = integer(body, "max_output_tokens", low=1)
    room = engine.settings.max_model_len - len(talk.ids)
    params = generation({**body, "n": None}, request, engine.settings, len(talk.ids),
                        None if limit is None else max(min(limit, room), 0))
    background, stored = boolean(body, "background"), boolean(body, "store", True)
    if background and not stored:
        raise ApiError(400, "background can only be used when `store` is true", param="background")
    sink = _Nobody(reply.conn, request) if background else reply
    job = Job(engine, request, sink, str(body.get("request_id") or f"resp_{secrets.token_hex(8)}"))
    job.add(talk.ids, params, body.get("temperature", 1.0) != 0)
    answer = skeleton(job, body, model, params.max_tokens)
    item = Stored(answer, messages, job)
    if stored:
        engine.responses.put(item)
    if background:
        answer["status"] = "queued"
        reply.json(200, answer)
        task = asyncio.get_running_loop().create_task(_run(item, form))
        engine.responses.tasks.add(task)
        task.add_done_callback(engine.responses.tasks.discard)
    elif boolean(body, "stream"):
        reply.stream()
        writer = ResponseWriter(job, answer, form, lambda: finish(item, form))
        await engine.before_tokens(reply)
        job.start(writer)
        await job.wait()
    else:
        await engine.before_tokens(reply)
        job.start()
        await job.wait()
        reply.json(200, finish(item, form))


async def _run(item: Stored, form: Shape) -> None:
    assert item.job is not None
    item.response["status"] = "in_progress"
    try:
        item.job.start()
        await item.job.wait()
    except ApiError:
        item.response["status"] = "failed"
        return
    if item.response["status"] != "cancelled":
        finish(item, form)


def _tools(body: Mapping[str, Any]) -> list[Body] | None:
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools:
        return None
    return [{"type": "function", "function": {
        "name": t.get("name"), "description": t.get("description"),
        "parameters": t.get("parameters")}} for t in tools if isinstance(t, dict)]


def _choice(body: Mapping[str, Any]) -> Any:
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice if isinstance(choice, str) else None


def skeleton(job: Job, body: Mapping[str, Any], model: str, max_tokens: int) -> Body:
    """The response object before anything was said, all fields in vLLM's order."""
    mapping(body, "metadata")
    return {
        "id": job.id, "created_at": int(time.time()), "incomplete_details": None,
        "instructions": body.get("instructions"), "metadata": body.get("metadata"), "model": model,
        "object": "response", "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "temperature": float(body.get("temperature", 1.0)),
        "tool_choice": body.get("tool_choice", "auto" if body.get("tools") else "none"),
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0), "background": bool(body.get("background")),
        "max_output_tokens": max_tokens, "max_tool_calls": body.get("max_tool_calls"),
        "previous_response_id": body.get("previous_response_id"), "prompt": None,
        "reasoning": body.get("reasoning"), "service_tier": body.get("service_tier", "auto"),
        "status": "in_progress", "text": body.get("text"), "top_logprobs": None,
        "truncation": body.get("truncation", "disabled"), "usage": None, "user": body.get("user"),
        "presence_penalty": body.get("presence_penalty", 0.0),
        "frequency_penalty": body.get("frequency_penalty", 0.0),
        "kv_transfer_params": None, "ec_transfer_params": None,
        "input_messages": None, "output_messages": None,
    }


def finish(item: Stored, form: Shape) -> Body:
    """Fills the response in when its generation has ended; what was said joins the history."""
    job, answer = item.job, item.response
    assert job is not None
    seq = job.sequences[0]
    answer["output"] = output_items(seq, form)
    cut = seq.finish_reason == "length"
    answer["status"] = "incomplete" if cut else "completed"
    if cut:
        answer["incomplete_details"] = {"reason": "max_output_tokens"}
    cached = job.cached_tokens if job.engine.settings.enable_prompt_tokens_details else 0
    answer["usage"] = {
        "input_tokens": seq.prompt_len,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0,
                                 "input_tokens_per_turn": [], "cached_tokens_per_turn": []},
        "output_tokens": seq.output_len,
        "output_tokens_details": {
            "reasoning_tokens": min(form.reasoning, seq.output_len), "tool_output_tokens": 0,
            "output_tokens_per_turn": [], "tool_output_tokens_per_turn": []},
        "total_tokens": len(seq.tokens),
    }
    answer["kv_transfer_params"] = job.kv_transfer_params
    item.messages.append({"role": "assistant", "content": seq.text})
    item.job = None
    return answer
