"""What stock engines do to a relay that only passes things on: the reasons for the gateway's rules.

The relay here is the plain one: the prompt to the prefill engine for one token, its
`kv_transfer_params` with the request to the decode engine, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e.disagg import asks
from e2e.disagg import pair as pairs
from e2e.disagg.asks import Ask
from e2e.disagg.pair import Pair
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


def after(read: Callable[[], float], before: float, grown: float, what: str) -> None:
    waiting.until(lambda: read() - before >= grown, what, 10)
    assert read() - before == grown


def test_a_plain_relay_moves_the_prompt(pair: Pair) -> None:
    ask = asks.completion("moved", LENGTH)
    computed = pairs.tokens(pair.decode, pairs.LOCAL)
    moved = pairs.tokens(pair.decode, pairs.EXTERNAL)
    assert decode(pair, ask, prefill(pair, ask)) == alone(pair, ask)
    after(lambda: pairs.tokens(pair.decode, pairs.EXTERNAL), moved, LENGTH, "the prompt to move")
    assert pairs.tokens(pair.decode, pairs.LOCAL) == computed
    pair.wait_idle()


def test_stale_params_give_a_plain_relay_a_wrong_answer_with_status_200(pair: Pair) -> None:
    ask = asks.completion("stale", LENGTH)
    moved = pairs.tokens(pair.decode, pairs.EXTERNAL)
    expired = pair.prefill.counter(pairs.EXPIRED)
    params = prefill(pair, ask)
    waiting.until(lambda: pair.prefill.counter(pairs.EXPIRED) > expired, "the lease to run out", 60)
    for number in range(2 * pairs.KV_BYTES // 1024 // pairs.PREFILL_LEN):
        path, body = asks.completion(f"over it {number}", pairs.PREFILL_LEN - 100, max_tokens=1)
        assert pairs.post(pair.prefill, path, body).status_code == 200
    wrong = decode(pair, ask, params)
    after(lambda: pairs.tokens(pair.decode, pairs.EXTERNAL), moved, LENGTH, "tokens to be moved")
    right = alone(pair, ask)
    # The decode engine has kept the wrong blocks under the right name, and gives them again.
    again = pairs.post(pair.decode, *ask)
    assert wrong != right, "these engines noticed; what guards against it may be too much"
    assert again.status_code == 200 and ids_of(again.json()) != right
    pairs.post(pair.decode, "/reset_prefix_cache", {})
