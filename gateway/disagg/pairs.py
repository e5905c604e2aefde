"""What this worker knows of an engine as one that hands prompts over: which decode
engines cannot fetch from it, what it is called there, which prompts it is to compute.

Invariant: that a pair of engines does not reach each other says nothing of either alone, so it has
marks of its own, and neither is benched for it. Pure: times are monotonic seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.fleet.marks import Marks

if TYPE_CHECKING:
    from engines.vllm.handoff import Peer
    from native.relay import Leg

PAIR_FAILS = 1
PAIR_BENCH_S = 10.0
PAIRS_MAX = 4096
# Of the prompts behind the first of an engine: so far back none is within the step that runs, or
# the next one. Two of `max_num_batched_tokens` as vLLM has it on large GPUs.
FAR_TOKENS = 2 * 8192
ANY = ""  # in place of a decode engine: it hands over nothing to anybody


class Handing:
    """Of one engine. `peer`: as its last reply had it."""

    __slots__ = ("_marks", "_met", "_queue", "peer")

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self._queue: dict[Leg, int] = {}  # in the order of asking; at most those that are pending
        self._marks: dict[str, Marks] = {}
        self._met: dict[str, str] = {}  # decode engine -> what it met this one as

    # ---- prefills on their way ----

    def asked(self, leg: Leg, tokens: int) -> None:
        """A prefill is about to be sent; `tokens` of it have to be computed."""
        self._queue[leg] = max(tokens, 1)

    def answered(self, leg: Leg) -> None:
        """It has ended."""
        self._queue.pop(leg, None)

    def far(self, leg: Leg) -> bool:
        """Whether the engine has more than FAR_TOKENS to compute before it comes to this one,
        as far as this worker knows. The first may be all but done, so it does not count."""
        ahead, first = 0, True
        for other, tokens in self._queue.items():
            if other is leg:
                break
            ahead += 0 if first else tokens
            first = False
        return ahead > FAR_TOKENS

    # ---- pairs ----

    def met(self, decode: str) -> bool:
        """Whether a decode engine has fetched from this process. Engines greet each other once, so
        what takes long from then on is no greeting."""
        return self.peer is not None and self._met.get(decode) == self.peer.engine_id

    def parted(self, decode: str) -> None:
        """The decode engine may be another process now."""
        self._met.pop(decode, None)

    def bars(self, decode: str, now: float) -> bool:
        """Whether a decode engine, by its address, had better not fetch from here now."""
        return self._barred(decode, now) or self._barred(ANY, now)

    def _barred(self, decode: str, now: float) -> bool:
        marks = self._marks.get(decode)
        if marks is None or not marks.benched:
            return False
        if now <= marks.until:
            return True
        marks.picked(now)  # one trial in each period
        return False

    def failed(self, decode: str, now: float) -> bool:
        """Whether that barred the pair just now."""
        marks = self._marks.get(decode)
        if marks is None:
            if len(self._marks) >= PAIRS_MAX:
                self._marks.clear()
            marks = self._marks[decode] = Marks(PAIR_FAILS, PAIR_BENCH_S)
        return marks.fail(now)

    def succeeded(self, decode: str) -> None:
        self._marks.pop(decode, None)
        self._marks.pop(ANY, None)
        if self.peer is not None:
            if len(self._met) >= PAIRS_MAX:
                self._met.clear()
            self._met[decode] = self.peer.engine_id
