"""Many requests under way at once, each in a thread of its own, each with its outcome kept.

Invariant: what a client got is judged as a client would: a reply counts as whole only with status
200 and its proper end, and its tokens are held beside the single engine's.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import httpx
from e2e.disagg import pair as pairs
from e2e.disagg.asks import Ask
from e2e.disagg.pair import Pair
from harness import waiting


@dataclass(slots=True)
class Outcome:
    """What became of one request. `ids`: the token ids that arrived, in order."""

    ask: Ask
    status: int = 0  # 0: no reply head arrived
    ids: list[int] = field(default_factory=list)
    whole: bool = False
    error: str = ""  # the gateway's code, or what the transport said
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    seconds: float = 0.0
    done: bool = False


class Volley:
    """Use as a context manager: leaving it waits for all requests to end, at most `end_s`. The
    lanes given take turns.
    """

    def __init__(self, lanes: Iterable[str], asks: list[Ask], *, end_s: float) -> None:
        self.outcomes = [Outcome(ask) for ask in asks]
        self._end_s = end_s
        self._threads = [
            threading.Thread(target=self._ask, args=(outcome, base_url), daemon=True)
            for outcome, base_url in zip(self.outcomes, itertools.cycle(lanes), strict=False)
        ]

    def __enter__(self) -> Volley:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            waiting.until(self._over, "all requests to end", self._end_s)

    def started(self) -> int:
        """How many have token ids already."""
        return sum(bool(outcome.ids) for outcome in self.outcomes)

    def statuses(self) -> list[int]:
        return sorted(outcome.status for outcome in self.outcomes)

    def _over(self) -> bool:
        return all(outcome.done for outcome in self.outcomes)

    def _ask(self, outcome: Outcome, base_url: str) -> None:
        path, body = outcome.ask
        began_s = time.monotonic()
        try:
            with httpx.stream("POST", base_url + path, json=body, timeout=self._end_s) as reply:
                outcome.status, outcome.headers = reply.status_code, reply.headers
                if body.get("stream") and reply.status_code == 200:
                    self._events(outcome, reply)
                else:
                    self._object(outcome, json.loads(reply.read()))
        except httpx.HTTPError as error:
            outcome.error = repr(error)
        outcome.seconds = time.monotonic() - began_s
        outcome.done = True

    def _events(self, outcome: Outcome, reply: httpx.Response) -> None:
        for line in reply.iter_lines():
            if line.startswith("data: [DONE]"):
                outcome.whole = True
            elif line.startswith("data:"):
                self._object(outcome, json.loads(line[5:]))
        if outcome.error:
            outcome.whole = False

    @staticmethod
    def _object(outcome: Outcome, found: dict[str, object]) -> None:
        error = found.get("error")
        if isinstance(error, dict):
            outcome.error = str(error.get("code"))
            return
        choices = found.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            outcome.ids += choice.get("token_ids") or []
            outcome.whole = not outcome.ask[1].get("stream")


def judge(pair: Pair, outcomes: list[Outcome]) -> None:
    """No token that the single engine would not have given, and no reply whole but short."""
    for outcome in outcomes:
        path, body = outcome.ask
        reply = pairs.post(pair.single, path, {**body, "stream": False, "stream_options": None})
        if reply.status_code != 200:
            assert outcome.status == reply.status_code, outcome
            continue
        right = reply.json()["choices"][0]["token_ids"]
        if outcome.whole:
            assert outcome.ids == right, outcome
        else:
            assert outcome.ids == right[: len(outcome.ids)], outcome
            assert outcome.error or outcome.status not in (0, 200), outcome
