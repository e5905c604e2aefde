"""Events that a simulated engine does not make: hybrid models, tiers, publishers by hand."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from harness import kv_events as kv
from harness import waiting

from gateway.kv.events import Subscriber
from gateway.kv.feed import Wanted
from gateway.kv.sources import Source
from native._core import Index, Prompt

KEY = ("main", "hand")


class Publisher:
    """vLLM's frames by hand; `publish` waits until the batch has been taken."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.linger = 0
        port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self.index = Index(64 << 20)
        self.slot = self.index.add_engine()
        self.subscriber = Subscriber(self.index)
        self.subscriber.follow({KEY: Wanted(self.slot, Source(f"tcp://127.0.0.1:{port}"))})
        self._numbers = itertools.count()
        waiting.until(self._subscribed, "the subscription")

    def _subscribed(self) -> bool:
        view = self.subscriber.view(KEY)
        if view is None or not view.connected:
            return False
        self._send([])
        return view.next is not None

    def _send(self, events: list[dict[str, Any]]) -> int:
        number = next(self._numbers)
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._pub.send_multipart([b"", number.to_bytes(8, "big"), payload])
        return number

    def publish(self, *events: dict[str, Any]) -> None:
        number = self._send(list(events))
        waiting.until(
            lambda: (self.subscriber.view(KEY).next or 0) > number,  # type: ignore[union-attr]
            "the batch to be taken",
        )

    def matched(self, tokens: list[int]) -> tuple[int, int, int]:
        """On the device, in host memory, on disk."""
        (found,) = self.index.match(Prompt.of_list(tokens), [self.slot], time.monotonic())
        return found.device, found.host, found.disk

    def close(self) -> None:
        self.subscriber.close()
        self._context.destroy(0)


@pytest.fixture
def hand() -> Iterator[Publisher]:
    one = Publisher()
    yield one
    one.close()


def stored(tokens: list[int], size: int, **more: Any) -> dict[str, Any]:
    """A block's hash is that of all tokens up to its end, whatever its size."""
    ends = range(size, len(tokens) + 1, size)
    return {
        "type": "BlockStored", "block_hashes": [hash(tuple(tokens[:end])) % 2**64 for end in ends],
        "parent_block_hash": None, "token_ids": tokens, "block_size": size, "lora_id": None,
        "medium": "GPU", "lora_name": None, **more,
    }  # fmt: skip


TOKENS = list(range(1000, 1512))


def test_groups_of_a_hybrid_model_are_followed(hand: Publisher) -> None:
    """Scenario 56: a sliding window keeps only the blocks that it reaches back to."""
    window = stored(
        TOKENS, 64, group_idx=1, kv_cache_spec_kind="sliding_window_mla",
        kv_cache_spec_sliding_window=128,
    )  # fmt: skip
    hand.publish(window, stored(TOKENS, 256, group_idx=0, kv_cache_spec_kind="mla_attention"))
    assert hand.matched([*TOKENS, 1]) == (512, 0, 0)
    removed = {"type": "BlockRemoved", "medium": "GPU", "group_idx": 1}
    hand.publish({**removed, "block_hashes": window["block_hashes"][:4]})
    assert hand.matched([*TOKENS, 1]) == (512, 0, 0)
    assert hand.matched(TOKENS[:300]) == (0, 0, 0), "its window is gone there"
    hand.publish(stored(TOKENS, 16, group_idx=2, kv_cache_spec_kind="of_the_future"))
    assert hand.subscriber.view(KEY).standing.state == "exact"  # type: ignore[union-attr]


def test_tiers_without_tokens_are_joined_and_never_raise(hand: Publisher) -> None:
    """Scenarios 74 and 75b: events of lower tiers, some of them without their tokens."""
    device = stored(TOKENS, 16)
    hand.publish(device)
    host = {**device, "medium": "CPU", "token_ids": [], "block_size": 0}
    hand.publish(host)
    gone = {"type": "BlockRemoved", "block_hashes": device["block_hashes"], "medium": "GPU"}
    hand.publish(gone)
    assert hand.matched([*TOKENS, 1]) == (0, 512, 0)
    other = {**host, "block_hashes": [1, 2, 3], "medium": "STORAGE"}
    hand.publish(other, {**other, "medium": "NEW_TIER"}, {"type": "NewEvent", "x": [1]})
    assert hand.matched([*TOKENS, 1]) == (0, 512, 0)
    assert hand.subscriber.view(KEY).standing.state == "exact"  # type: ignore[union-attr]


def test_an_unknown_parent_is_no_credit(hand: Publisher) -> None:
    """Scenario 57: what hangs on blocks that are not known."""
    child = stored(TOKENS, 16)
    child["parent_block_hash"] = 12345
    hand.publish(child)
    assert hand.matched([*TOKENS, 1]) == (0, 0, 0)


def test_the_gateway_takes_no_more_of_a_message_than_it_allows(
    hand: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.kv import feed

    assert feed.MESSAGE_BYTES_MAX == 64 << 20
    hand.publish(stored(TOKENS * 64, 16))  # 32 768 tokens at once are nothing special
    assert hand.matched([*TOKENS, 1])[0] == 512


def test_many_engines_come_and_go_and_leave_nothing() -> None:
    """1000 changes: files stay as many as they were."""
    import os

    followed = kv.Followed()
    with kv.engine() as one, kv.engine() as other:
        first = followed.follow(one)
        followed.wait(first, "exact")

        def files() -> int:
            return len(os.listdir("/proc/self/fd"))

        counts: list[int] = []
        source = kv.source(other)
        for n in range(1000):
            followed.wanted[KEY] = Wanted(1, source)
            followed.subscriber.follow(followed.wanted)
            del followed.wanted[KEY]
            followed.subscriber.follow(followed.wanted)
            followed.subscriber.release(1)
            if n % 250 == 0:
                waiting.until(lambda n=n: len(followed.book.removed) == n + 1, "the changes", 20)
                counts.append(files())
        waiting.until(lambda: len(followed.book.removed) == 1000, "all changes", 20)
        waiting.until(lambda: files() <= counts[0] + 8, f"files to be as before: {counts}", 10)
        followed.wait(first, "exact")
        assert followed.tally(first).restarts == 0
    followed.close()
