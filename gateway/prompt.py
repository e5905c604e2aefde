"""The prompt phase: from a request's body to the token ids that engines name their blocks by.

In order: the model's own files, ids that the request brings, the engine's `/render` and
`/tokenize`, the bytes of the prompt. Whatever cannot be read is passed on unread: the engine's own
error is what its client shall see, and the reason stands in the receipt.

Invariants: nothing is guessed silently (`Routed.source`, `Routed.reason`); a body or text above a
size is read in a thread; no request is refused here.
"""

from __future__ import annotations

import hashlib
import re
from time import monotonic
from typing import TYPE_CHECKING

import orjson

from engines.vllm.chat import Ids, NotKnown, PromptInput, Texts, read_completion
from gateway.kv.engine_tokens import NoIds, Question
from gateway.kv.routed import Routed
from gateway.paths import PROMPTED
from native._core import Prompt

if TYPE_CHECKING:
    from gateway.context import Context
    from gateway.kv.token_source import TokenSource
    from gateway.kv.vocabulary import Vocabulary

# Parts of a body in an order in which a conversation only grows at its end.
_PARTS = ("tools", "system", "instructions", "messages", "prompt", "input")
_MEDIA = re.compile(rb"data:[^\"\\]{256,}")  # a file in a URL
_WITH_IDS = b"/v1/completions"
_FINAL = frozenset({"refused", "state"})  # an engine would not tell either, or must not be asked


def of(ctx: Context, path: bytes, source: TokenSource, adapters: frozenset[str]) -> Routed:
    """What is known of a request before its prompt is read. `path`: as the engine sees it."""
    assert ctx.group is not None
    kv = Routed(path, ctx.group, source)
    kv.body, kv.scan, kv.sent = ctx.request.body, ctx.scan, ctx.body
    sent = ctx.request.get(b"authorization")
    if sent is not None and b"authorization" not in ctx.plan.drop:
        kv.authorization = sent.decode("latin-1")
    if adapters:
        named = ctx.plan.names(ctx).find(ctx.model)
        model = ctx.model if named is None else named.model
        kv.lora = model if model in adapters else None
    kv.salt = ctx.salt or (ctx.scan.cache_salt if ctx.scan is not None else None) or None
    return kv


def begin(kv: Routed) -> bool:
    """Reads all that can be read at once. False: `finish` has to be awaited. Never raises for
    what a client sent.
    """
    body = kv.body
    if body is None or kv.scan is None or kv.path not in PROMPTED:
        kv.give_up("no_prompt")
        return True
    source = kv.tokens
    vocabulary = source.vocabulary
    if vocabulary is None:
        if source.asks:
            return False
        approximate(kv, source.reason)
        return True
    if not vocabulary.reads_quickly(body):
        return False
    start = monotonic()
    found = vocabulary.read(kv.path, body)
    if isinstance(found, Texts) and not vocabulary.is_quick(found.texts[0]):
        kv.found = found
        kv.tokenize_s = monotonic() - start
        return False
    done = _settle(kv, found, vocabulary)
    kv.tokenize_s = monotonic() - start
    return done


async def finish(kv: Routed) -> None:
    """Reads what `begin` left."""
    start = monotonic()
    source = kv.tokens
    vocabulary = source.vocabulary
    unread = vocabulary is not None and not kv.source and not kv.reason
    if not (unread and await source.in_thread(_read, kv, vocabulary)):
        if source.may_ask:
            await _ask(kv)
        else:
            approximate(kv, kv.reason or source.reason)
    kv.tokenize_s += monotonic() - start


def _read(kv: Routed, vocabulary: Vocabulary) -> bool:
    """`begin` without a care for how long it takes: runs in a thread."""
    found = kv.found
    if found is None:
        assert kv.body is not None
        found = vocabulary.read(kv.path, kv.body)
    return _settle(kv, found, vocabulary)  # type: ignore[arg-type]


def _settle(kv: Routed, found: PromptInput, vocabulary: Vocabulary) -> bool:
    """Makes the prompt of what was read. False: an engine must be asked. Of several prompts the
    first counts: all of them go to one engine.
    """
    source = kv.tokens
    kv.found = None
    try:
        if isinstance(found, Texts):
            scope = kv.lora, kv.salt
            kv.prompt = vocabulary.prompt(
                found.texts[0], found.add_special_tokens, scope, source.block_sizes
            )
            kv.source, kv.alone = "local", len(found.texts) == 1
            return True
        if isinstance(found, Ids):
            _take(kv, found)
            return True
        reason = str(found.why)
    except ValueError:
        reason = "failed"
    kv.reason = reason
    if reason in _FINAL:
        kv.give_up(reason)
        return True
    if reason != "media" and source.may_ask:
        return False
    approximate(kv, reason)
    return True


def _given(kv: Routed) -> Ids | None:
    """Prompts that the client sent as token ids: nobody has to be asked for them."""
    span = None if kv.scan is None or kv.path != _WITH_IDS else kv.scan.span("prompt")
    if span is None or kv.body is None or kv.body[span[0] : span[0] + 1] != b"[":
        return None
    try:
        found = read_completion(orjson.loads(kv.body))
    except (NotKnown, ValueError):  # the engine tells, or says what is wrong with it
        return None
    return found if isinstance(found, Ids) else None


def _take(kv: Routed, found: Ids) -> None:
    kv.prompt = Prompt.of_list(found.prompts[0], kv.lora, kv.salt)
    kv.source, kv.reason, kv.alone = "given", "", len(found.prompts) == 1


async def _ask(kv: Routed) -> None:
    if (found := _given(kv)) is not None:
        _take(kv, found)
        return
    path = kv.path.decode("ascii", "replace")
    question = Question(path, kv.sent or b"", kv.authorization)
    try:
        answer = await kv.tokens.engine.ids(kv.group.latest(), question)
        kv.prompt = Prompt.of_list(answer.ids, kv.lora, kv.salt)
    except NoIds as error:
        if error.reason == "refused":
            kv.give_up(error.reason)
        else:
            approximate(kv, kv.reason or error.reason)
    except ValueError:
        approximate(kv, "failed")
    else:
        kv.source, kv.reason = answer.source, "" if answer.whole else "media"
        kv.alone = answer.alone and answer.whole


def approximate(kv: Routed, reason: str) -> None:
    """The prompt by its bytes: four of them stand for a token."""
    found, body = kv.scan, kv.body
    if found is None or body is None:
        kv.give_up("no_prompt")
        return
    spans = [span for span in map(found.span, _PARTS) if span is not None]
    text = b"".join(body[start:end] for start, end in spans)
    if not text:
        kv.give_up("no_prompt")
        return
    text = _MEDIA.sub(_digest, text)
    text += b" " * (-len(text) % 4)
    kv.prompt = Prompt(text, kv.lora, kv.salt, exact=False)
    kv.source, kv.reason = "bytes", reason


def _digest(found: re.Match[bytes]) -> bytes:
    """A file's contents are no text: their length says nothing of their tokens."""
    return hashlib.blake2b(found[0], digest_size=32).hexdigest().encode()
