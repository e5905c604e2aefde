"""What stock engines do to a relay that only passes things on: the reasons for the gateway's rules.

The relay here is the plain one: the prompt to the prefill engine for one token, its
`kv_transfer_params` with the request to the decode engine, nothing else.
"""

from __future__ import annotations

from typing import Any

from e2e.disagg import asks
from e2e.disagg import pair as pairs
from e2e.disagg.asks import Ask
from e2e.disagg.pair import Pair, Prompts
from e2e.fleet import Engine
from harness import waiting

LENGTH = 10 * pairs.BLOCK


def prefill(pair: Pair, ask: Ask) -> dict[str, Any]:
    path, body = ask
    leg = {**body, "max_tokens": 1, "stream": False}
    leg["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
    reply = pairs.post(pair.prefill, path, leg)
    assert reply.status_code == 200, reply.text
    params: dict[str, Any] = reply.json()["kv_transfer_params"]
    return params


def decode(pair: Pair, ask: Ask, params: dict[str, Any]) -> list[int]:
    path, body = ask
    reply = pairs.post(pair.decode, path, {**body, "kv_transfer_params": params})
    assert reply.status_code == 200, reply.text
    return ids_of(reply.json())


def alone(pair: Pair, ask: Ask) -> list[int]:
    reply = pairs.post(pair.single, ask[0], ask[1])
    assert reply.status_code == 200, reply.text
    return ids_of(reply.json())


def ids_of(reply: dict[str, Any]) -> list[int]:
    found: list[int] = reply["choices"][0]["token_ids"]
    return found


def moved(engine: Engine, before: Prompts) -> Prompts:
    """By source, since then, once any token has moved: the count comes after the reply."""
    waiting.until(lambda: pairs.prompts(engine).moved > before.moved, "tokens to move", 10)
    return pairs.prompts(engine) - before


def test_a_plain_relay_moves_the_prompt(pair: Pair) -> None:
    ask = asks.completion("moved", LENGTH)
    before = pairs.prompts(pair.decode)
    assert decode(pair, ask, prefill(pair, ask)) == alone(pair, ask)
    assert moved(pair.decode, before) == Prompts(moved=LENGTH, computed=0, cached=0)
    pair.wait_idle()


def test_stale_params_give_a_plain_relay_a_wrong_answer_with_status_200(pair: Pair) -> None:
    ask = asks.completion("stale", LENGTH)
    before = pairs.prompts(pair.decode)
    expired = pair.prefill.counter(pairs.EXPIRED)
    params = prefill(pair, ask)
    waiting.until(lambda: pair.prefill.counter(pairs.EXPIRED) > expired, "the lease to run out", 60)
    pairs.overwrite(pair.prefill)
    wrong = decode(pair, ask, params)
    assert moved(pair.decode, before).moved == LENGTH
    right = alone(pair, ask)
    # The decode engine has kept the wrong blocks under the right name, and gives them again.
    again = pairs.post(pair.decode, *ask)
    assert wrong != right, "these engines noticed; what guards against it may be too much"
    assert again.status_code == 200 and ids_of(again.json()) != right
    pairs.post(pair.decode, "/reset_prefix_cache", {})
