"""The KV hand-over between two vLLM servers, as bytes of requests and replies: what a prefill
engine is asked, what it answers, what a decode engine is told.

The one place that knows vLLM's fields, and where its versions differ:

    0.32   `remote_prefill_cached_tokens`: the decode engine's usage tells what the prefill engine
           found in its cache; all `remote_*` fields are needed, or its core dies. What was put
           into the cache it does not tell: it says 0, and messages count it as input instead.
           A decode engine that refuses a request tells the prefill engine to let go
    before without it, without `remote_request_id`, block ids in one list: the decode engine counts
           all that it was handed as cached, and that number of the usage that clients see has to
           be put right, too. Before 0.21 or so a refusal frees nothing: the lease has to run out

Invariants: a prefill is asked for the same prompt as the answer will be, so nothing that a chat
template may see is touched; what the prefill engine answers is passed on byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from native._core import Recast, Scan, scan

ASKED = b'"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}'
# The field that bounds an answer, by endpoint; these can be handed over.
_LIMITS = {
    b"/v1/chat/completions": b"max_completion_tokens",
    b"/v1/completions": b"max_tokens",
    b"/v1/responses": b"max_output_tokens",
    b"/v1/messages": b"max_tokens",
}
# What a prefill is asked besides: nothing is kept of it.
_MORE = {b"/v1/responses": b',"store":false'}
# How the answer is to be made, not from what: `min_tokens` above the limit, `stream_options`
# without a stream, and logprobs of several answers would be refused; the rest is work for nothing.
_CUT = (
    "kv_transfer_params", "ec_transfer_params", "max_tokens", "max_completion_tokens",
    "max_output_tokens", "min_tokens", "stream", "stream_options", "stream_interval", "n",
    "logprobs", "top_logprobs", "logprob_token_ids", "return_tokens_as_token_ids",
    "return_token_ids", "return_token_offsets", "return_prompt_text", "structured_outputs",
    "include", "store", "background",
)  # fmt: skip
_RECAST = Recast(_CUT)
_OWN = b'"kv_transfer_params":'
# Needed by a decode engine of any version: without one of them its core dies or waits for ever.
_NEEDED = ("remote_block_ids", "remote_engine_id", "remote_host", "remote_port")
_UNSET = frozenset({b"null", b"false"})
# Both engines of a push must know the request by one name. Of X-Request-Id they make it, but for
# responses, where a field of the body has it.
_NAME = b'"request_id"'
# Where a request to be refused goes, and how it is.
RELEASE_PATH = b"/v1/completions"
REFUSED = 400
# Fields that keep a request on one engine: their prompts differ between the legs, or several
# answers would share one hand-over.
_ALONE = ("echo", "use_beam_search", "prompt_logprobs", "prompt_embeds", "truncate_prompt_tokens",
          "background", "previous_response_id")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a prefill engine hands over: what a decode engine is told of it before it has
    answered."""

    engine_id: str
    host: str
    port: int
    tp_size: int

    def params(self, request_id: str) -> bytes:
        """For push: both engines know the request by the id that both were sent."""
        return orjson.dumps({
            "do_remote_prefill": True, "do_remote_decode": False,
            "remote_engine_id": self.engine_id, "remote_request_id": request_id,
            "remote_host": self.host, "remote_port": self.port, "tp_size": self.tp_size,
        })  # fmt: skip


@dataclass(frozen=True, slots=True)
class Handed:
    """What a prefill engine left: `raw` is its `kv_transfer_params`, as they came. `tokens` of the
    prompt, -1 = not said. `cached_tokens` were found in its cache, `created_tokens` put into it:
    what a decode engine would not tell of them by itself, -1 = it does, or nobody does."""

    raw: bytes
    peer: Peer
    tokens: int
    cached_tokens: int
    created_tokens: int


def why_alone(path: bytes, body: bytes, found: Scan, push: bool = False) -> str:
    """Why one engine must answer this request alone, a word of a closed set; "" = two may. `push`:
    the name of a response must be ours, see `naming`."""
    if path not in _LIMITS:
        return "endpoint"
    if push and path == b"/v1/responses" and _NAME in body:
        return "field"
    if found.n != 1 or _set(body, found, "best_of") not in (None, b"1"):
        return "choices"
    prompt = (_set(body, found, "prompt") or b"").split(b"[", 1)
    if len(prompt) == 2 and not prompt[0] and not prompt[1].lstrip()[:1].isdigit():
        return "prompts"
    if any(_set(body, found, name) is not None for name in _ALONE):
        return "field"
    return "field" if _set(body, found, "truncation") not in (None, b'"disabled"') else ""


def _set(body: bytes, found: Scan, name: str) -> bytes | None:
    """The value of a field as it is written; None where it says nothing."""
    span = found.span(name)
    if span is None:
        return None
    value = body[span[0] : span[1]]
    return None if value in _UNSET else value


def naming(path: bytes, leg_id: str) -> bytes:
    """A member for the bodies of both legs of a push, where they need one: `request_id` of vLLM's
    ResponsesRequest, which is the id of the reply, too."""
    return b'%b:"resp_%b"' % (_NAME, leg_id.encode()) if path == b"/v1/responses" else b""


def prefill_body(path: bytes, body: bytes, name: bytes = b"") -> bytes:
    """The body of a prefill leg: one token of the same prompt, in one piece, handed over. Raises
    ValueError for what is no JSON object."""
    more = _MORE.get(path, b"") + (b"," + name if name else b"")
    return _RECAST.apply(body, b'"%b":1,%b%b' % (_LIMITS[path], ASKED, more))


def decode_body(body: bytes, insert_at: int, raw: bytes, name: bytes = b"") -> bytes:
    """The body of a decode leg: the client's with the parameters in front. `insert_at`: just behind
    its opening brace; it has other members."""
    more = name + b"," if name else b""
    return b"%b%b%b,%b%b" % (body[:insert_at], _OWN, raw, more, body[insert_at:])


def release_body(raw: bytes) -> bytes:
    """A request that a decode engine refuses (`REFUSED`), before it looks at the prompt; of that it
    tells the prefill engine, as of any it was to fetch for (vLLM's `_with_kv_transfer_rejection_
    cleanup`), and that lets the blocks go. Nothing is read, nothing computed. Not for push."""
    return b'{%b%b,"prompt":[0],"max_tokens":1,"temperature":1,"top_p":2}' % (_OWN, raw)


def shortest_body(path: bytes, body: bytes, raw: bytes, name: bytes = b"") -> bytes:
    """The body of a decode leg that has blocks let go by taking them, for one token. For push: a
    prefill engine that writes hears of no refusal, but frees what it has written."""
    more = _MORE.get(path, b"") + (b"," + name if name else b"")
    return _RECAST.apply(body, b'"%b":1,%b%b%b' % (_LIMITS[path], _OWN, raw, more))


def read(reply: bytes, cached_tokens: int, created_tokens: int) -> Handed | None:
    """What a prefill engine's reply hands over; None where it hands over nothing that a decode
    engine could use. The counts are those of its usage, -1 = not said."""
    try:
        span = scan(reply).span("kv_transfer_params")
        raw = b"null" if span is None else reply[span[0] : span[1]]
        params: Any = orjson.loads(raw)
    except ValueError:
        return None
    if not isinstance(params, dict) or not params.get("do_remote_prefill"):
        return None
    if any(params.get(name) is None for name in _NEEDED):
        return None
    try:
        port, ways = int(params["remote_port"]), int(params.get("tp_size") or 1)
        tokens = int(params.get("remote_num_tokens", -1))
    except (TypeError, ValueError):
        return None
    peer = Peer(str(params["remote_engine_id"]), str(params["remote_host"]), port, ways)
    if params.get("remote_prefill_cached_tokens") is not None:
        cached_tokens = -1
    return Handed(raw, peer, tokens, cached_tokens, created_tokens)
