"""How far what is known of an engine's cache is true: a state and its reason. Pure: times come in.

    exact        every event since its cache was empty has been applied
    healing      by events, but something is missing for now
    approximate  by where requests were sent: it publishes nothing, or what it publishes is not
                 believed
    blind        as approximate, and it should not be so: its events do not come

Invariant: the first that holds of these decides: its tokens are not ours, it has no events, its
hits contradict what its events say, it cannot be reached, it is silent under traffic, it
restarts again and again, its stream of events is not whole, the index had no room for all of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

EXACT, HEALING, APPROXIMATE, BLIND = "exact", "healing", "approximate", "blind"
STATES = (EXACT, HEALING, APPROXIMATE, BLIND)

WINDOW = 64  # observations that are held against each other
ENOUGH = 24  # of them, to speak of a system
DISAGREE = 0.5  # share of them that contradict
TOLERANCE = 0.1  # of the tokens, beside two blocks
DRIFT_S = 300.0  # then its events are believed again, from their beginning
QUIET_REQUESTS = 10  # that many requests without an event are traffic
CONTRADICTS = "predictions and the engine's cached tokens disagree"
NOT_ASKED = "it has not said yet where it publishes"
RESTARTS, RESTARTS_S = 5, 60.0  # so many in that time are no restarts
RESTLESS = (
    f"it has restarted {RESTARTS} times within {RESTARTS_S:g}s, by its events: do several engines "
    "publish at its endpoint?"
)
NO_ROOM = "the index has no room for all of its blocks; hint: kv_index_size"


@dataclass(frozen=True, slots=True)
class Standing:
    state: str
    reason: str = ""


class Drift:
    """What was predicted of an engine's hits against what it reports."""

    __slots__ = ("_wrong", "until")

    def __init__(self) -> None:
        self._wrong: deque[bool] = deque(maxlen=WINDOW)
        self.until = 0.0

    def observe(self, predicted: int, actual: int, block_size: int, now: float) -> bool:
        """Token counts of one prompt. True: they have just proved to disagree."""
        larger = max(predicted, actual)
        tolerated = max(2 * block_size, TOLERANCE * larger)
        if larger <= tolerated:
            return False  # both say that nothing much was cached, which proves nothing
        self._wrong.append(abs(predicted - actual) > tolerated)
        if len(self._wrong) < ENOUGH or sum(self._wrong) < DISAGREE * len(self._wrong):
            return False
        self._wrong.clear()
        self.until = now + DRIFT_S
        return True

    @property
    def agrees(self) -> bool:
        """A whole window without a contradiction."""
        return len(self._wrong) == WINDOW and not any(self._wrong)

    def forget(self) -> None:
        self._wrong.clear()


class Silence:
    """Whether an engine publishes nothing although requests go there."""

    __slots__ = ("_heard", "_last", "_seen", "_since", "_start")

    def __init__(self) -> None:
        self._heard: float | None = None
        self._seen = -1  # requests, as last told
        self._last = 0.0  # when they grew
        self._since: float | None = None  # traffic since then, without an event
        self._start = 0  # requests at that time

    def look(self, sent: int, heard_at: float | None, now: float, quiet_s: float) -> str:
        """`sent`: requests that had it compute a block, ever. Why it is called silent, or ""."""
        if heard_at != self._heard or self._seen < 0:
            self._heard, self._seen, self._since = heard_at, sent, None
            return ""
        if sent > self._seen:
            if self._since is None or now - self._last > quiet_s:
                self._since, self._start = now, self._seen
            self._seen, self._last = sent, now
        if self._since is None or not quiet_s or now - self._since < quiet_s:
            return ""
        requests = self._seen - self._start
        if requests < QUIET_REQUESTS:
            return ""
        return f"no KV events for {quiet_s:g}s under traffic"


class Unrest:
    """Whether an engine restarts again and again, by the numbers of its events."""

    __slots__ = ("_seen", "_times")

    def __init__(self) -> None:
        self._seen = 0
        self._times: deque[float] = deque(maxlen=RESTARTS)

    def look(self, restarts: int, now: float) -> bool:
        """`restarts`: ever."""
        self._times.extend([now] * min(max(restarts - self._seen, 0), RESTARTS))
        self._seen = restarts
        return len(self._times) == RESTARTS and now - self._times[0] < RESTARTS_S


class Trust:
    """Of one engine. What is set from outside: `source_why`, `tokens_why`, `stream`."""

    __slots__ = (
        "_forgiven", "_short", "drift", "filled", "restless", "silence", "silent", "source_why",
        "stream", "tokens_why", "unrest", "unusable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tokens_why = ""  # why its token ids are not ours, "" where they are
        self.unusable = False  # not even among themselves
        self.source_why = NOT_ASKED  # why it has no events, "" where it has
        self.stream: Standing | None = None  # of its events, None = none are followed
        self.silent = ""  # why it is called silent
        self.drift = Drift()
        self.silence = Silence()
        self.filled = 0  # prompts of this worker that had it compute a block at least
        self.restless = False  # its events are of several engines, as it seems
        self.unrest = Unrest()
        self._short = 0  # blocks that it announced and that there was no room for
        self._forgiven = 0  # of them, those that its hits have not missed

    def short(self, blocks: int) -> None:
        """How many blocks there was no room for since it was empty."""
        self._short = blocks
        self._forgiven = min(self._forgiven, blocks)

    def forgive(self) -> None:
        """Its hits have been as expected for long."""
        self._forgiven = self._short

    def standing(self, now: float) -> Standing:
        if self.tokens_why:
            return Standing(BLIND if self.unusable else APPROXIMATE, self.tokens_why)
        if self.source_why:
            expected = self.source_why == NOT_ASKED
            return Standing(BLIND if expected else APPROXIMATE, self.source_why)
        if now < self.drift.until:
            return Standing(APPROXIMATE, CONTRADICTS)
        if self.stream is None:
            return Standing(BLIND, NOT_ASKED)
        if self.stream.state != BLIND and self.silent:
            return Standing(BLIND, self.silent)
        if self.restless:
            return Standing(APPROXIMATE, RESTLESS)
        if self.stream.state == EXACT and self._short > self._forgiven:
            return Standing(HEALING, NO_ROOM)
        return self.stream

    def by_events(self, now: float) -> bool:
        return self.standing(now).state in (EXACT, HEALING)
