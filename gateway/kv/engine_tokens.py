"""Token ids of prompts from the engines: `/render` where they offer it, `/tokenize` else.

What vLLM 0.32 offers: `/v1/…/render` only with `--enable-scale-out`, and 403 without it (others
answered 404, 405 or 501); `/tokenize` always, for chats and completions.

Invariants: an engine that does not offer something is not asked for it again for `FORGET_S`, and
that is logged once; every call has a deadline; an answer of 4xx is about the request, never about
the engine. Requests for ids count in no engine's load.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson

from gateway.fleet.upstream import ControlPlane, Unreachable
from gateway.log_lines import NOTICE
from gateway.logs import log

if TYPE_CHECKING:
    from gateway.fleet.engine import Engine
    from gateway.fleet.engines import Group

TIMEOUT_S = 2.0
TRIES_MAX = 2  # engines asked for one prompt
FORGET_S = 600.0  # after so long an engine is asked again for what it did not offer
NOT_OFFERED = frozenset({401, 403, 404, 405, 501})
RENDERED = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
# What /tokenize takes of a chat, as it is there.
_CHAT_FIELDS = (
    "messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens",
    "chat_template", "chat_template_kwargs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to tokenise: the engine's path, the body as the engine would get it, the client's
    Authorization ("" = none)."""

    path: str
    body: bytes
    authorization: str = ""


@dataclass(frozen=True, slots=True)
class Ids:
    """`source`: render | tokenize. `whole` is false where the ids end before something that only
    the engine knows the tokens of, `alone` where the request has more prompts than this one."""

    ids: list[int]
    source: str
    whole: bool = True
    alone: bool = True


class NoIds(Exception):
    """`reason`: a word of `routed.REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineTokens:
    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._lacking: dict[tuple[str, str, str], float] = {}  # (upstream, engine, path) -> until
        self._turn = 0

    async def ids(self, group: Group, question: Question) -> Ids:
        """Raises NoIds."""
        reason = "unreachable"
        for engine in self._engines(group)[:TRIES_MAX]:
            try:
                return await self.of(group, engine, question)
            except NoIds as error:
                reason = error.reason
                if reason == "refused":
                    break
        raise NoIds(reason)

    async def of(self, group: Group, engine: Engine, question: Question) -> Ids:
        """From this engine. Raises NoIds."""
        if question.path in RENDERED:
            reply = await self._post(group, engine, question.path + "/render", question)
            if reply is not None:
                return _rendered(reply)
        body = tokenize_body(question)
        if body is None:
            raise NoIds("no_tokenizer")
        asked = Question("/tokenize", body, question.authorization)
        reply = await self._post(group, engine, "/tokenize", asked)
        if reply is None:
            raise NoIds("no_tokenizer")
        alone = not isinstance(orjson.loads(question.body).get("prompt"), list)
        return Ids(_ids(reply.get("tokens")), "tokenize", alone=alone)

    def _engines(self, group: Group) -> list[Engine]:
        """Those that may be asked, in turn."""
        now = monotonic()
        up = [engine for engine in group.engines if engine.state(now) == "up"]
        self._turn += 1
        at = self._turn % len(up) if up else 0
        return up[at:] + up[:at]

    async def _post(
        self, group: Group, engine: Engine, path: str, question: Question
    ) -> dict[str, Any] | None:
        """The reply's object; None where the engine does not offer this. Raises NoIds."""
        key = group.name, engine.line.server, path
        now = monotonic()
        if self._lacking.get(key, 0.0) > now:
            return None
        try:
            status, body = await self._control.post(
                group, engine, path, question.body, TIMEOUT_S, question.authorization
            )
        except Unreachable as error:
            log.info("upstream `%s`: %s of %s: %s", group.name, path, engine.address, error)
            raise NoIds("unreachable") from None
        if status in NOT_OFFERED:
            self._lacks(key, now, status)
            return None
        if status != 200:
            raise NoIds("refused" if 400 <= status < 500 else "unreachable")
        try:
            value = orjson.loads(body)
        except ValueError:
            raise NoIds("unreachable") from None
        alone = not isinstance(value, list) or len(value) == 1
        if isinstance(value, list) and value:  # /v1/completions/render: one for each prompt
            value = value[0]
        if not isinstance(value, dict):
            raise NoIds("unreachable")
        return {**value, "alone": alone}

    def _lacks(self, key: tuple[str, str, str], now: float, status: int) -> None:
        if key not in self._lacking:
            log.log(
                NOTICE, "upstream `%s`: engine %s does not offer %s (%d)", *key, status
            )  # fmt: skip
        self._lacking[key] = now + FORGET_S

    def forget(self, upstreams: set[str]) -> None:
        """Drops what is known of upstreams other than these."""
        self._lacking = {k: until for k, until in self._lacking.items() if k[0] in upstreams}


def tokenize_body(question: Question) -> bytes | None:
    """The body of a /tokenize request for the same prompt; None where there is no such form."""
    try:
        body = orjson.loads(question.body)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    out: dict[str, Any] = {"model": body["model"]} if "model" in body else {}
    if question.path == "/v1/chat/completions" and "messages" in body:
        out.update({name: body[name] for name in _CHAT_FIELDS if body.get(name) is not None})
        extra = {n: body[n] for n in ("reasoning_effort", "documents") if body.get(n) is not None}
        if extra:
            kwargs = body.get("chat_template_kwargs")
            out["chat_template_kwargs"] = {**extra, **(kwargs if isinstance(kwargs, dict) else {})}
        return orjson.dumps(out)
    prompt = body.get("prompt" if question.path == "/v1/completions" else "input")
    if isinstance(prompt, list) and prompt:
        prompt = prompt[0]
    if not isinstance(prompt, str) or question.path in ("/v1/responses", "/v1/messages"):
        return None
    return orjson.dumps({**out, "prompt": prompt, "add_special_tokens": True})


def _rendered(reply: dict[str, Any]) -> Ids:
    """Ids of a render. With media they end where the first of it begins: what stands for it there
    is not what its blocks are named by.
    """
    ids = _ids(reply.get("token_ids"))
    features = reply.get("features")
    if features is None:
        return Ids(ids, "render", alone=bool(reply.get("alone", True)))
    places = features.get("mm_placeholders") if isinstance(features, dict) else None
    starts = [
        place["offset"]
        for each in (places.values() if isinstance(places, dict) else ())
        for place in (each if isinstance(each, list) else ())
        if isinstance(place, dict) and isinstance(place.get("offset"), int)
    ]
    return Ids(ids[: max(min(starts, default=0), 0)], "render", whole=False)


def _ids(value: object) -> list[int]:
    if not isinstance(value, list):
        raise NoIds("unreachable")
    return value
