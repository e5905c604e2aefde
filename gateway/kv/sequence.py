"""What to do with the KV event batches of one engine, by their numbers. Pure: times come in, steps
go out.

A publisher counts its batches from 0, sends each once to whoever listens, and sends those that it
still has again to who asks ("replay from N"). It gives no sign of a restart but the numbers.

    waiting ──connected──→ catching up ──replay over──→ following
                                ↑                          │ gap, restart, connection back, check
                                └──────────────────────────┘

Invariants: what was applied since the last clear is a run of one publisher's batches, without a
hole; `whole`: it begins with the first, or where the engine emptied its cache. Every replay begins
with the last batch that was applied: another one is another publisher's. What comes in meanwhile
waits, within bounds.
"""

from __future__ import annotations

from gateway.kv.fingerprints import Fingerprints
from gateway.kv.pending import Pending
from gateway.kv.tally import Tally

REPLAY_S = 5.0  # without anything from a replay: it has failed
STALL_S = 1.0  # behind its first batch: the engine's socket was full, the rest is asked for again
LOST_S = 10.0  # without a connection: what was known is forgotten
CHECK_S = 60.0  # an engine that says nothing is asked whether that is so
FIRST_CHECK_S = 1.0  # after joining: a batch may have passed before the subscription was in force
TRIES_MAX = 3  # replays in a row that bring nothing new, and joins after failed ones
NEVER = float("inf")
TIME = slice(2, 10)  # of a payload: a big-endian double, whose bytes compare as it does
NOT_CONNECTED = "not connected"
UNPROVED = "its connection was away, and no replay tells whether it has restarted"
LOST = "batches were lost, and its replay does not give them"

# ("apply", payload), ("clear", why), ("ask", first number) and ("hush", 0) drop a replay that runs.
Step = tuple[str, bytes | int | str]


class Stream:
    """The events of one engine. `replays`: whether there is a socket to ask."""

    def __init__(self, replays: bool, now: float, tally: Tally | None = None) -> None:
        self.replays = replays
        self.next: int | None = None  # number of the batch to apply next
        self.whole = False
        self.why = "not connected yet"  # what is missing, "" where nothing is
        self.lost_at: float | None = now  # None: connected
        self.heard_at: float | None = None  # the latest batch
        self.tally = Tally() if tally is None else tally
        self._purpose = ""  # of the replay that runs: join | gap | check, "" = none does
        self._proof: int | None = None  # the replay should begin with this batch, which is known
        self._behind = False  # there may be batches that nothing has shown yet
        self._got = False  # something of the replay that runs has come
        self._unsure = False  # the connection was away since the last batch
        self._wipe = False  # what is there goes when the replay's first batch comes
        self._deadline = self._check_at = NEVER
        self._tries = 0
        self._joins_left = 0  # that may make up for a failed replay
        self._prints = Fingerprints()
        self._born = b""  # time of the run's first batch
        self._pending = Pending()

    @property
    def exact(self) -> bool:
        """Whether what was applied is all that the engine has said."""
        sure = not self._unsure and not self._behind and self.lost_at is None
        return self.whole and sure

    @property
    def reason(self) -> str:
        """Why it is not exact, "" where it is."""
        if self.lost_at is not None and self.next is not None:
            return "its connection is away"
        return self.why or ("" if self.exact else "its connection was away")

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        if self._purpose:
            return self._deadline
        if self.lost_at is not None:
            return NEVER if self.why == NOT_CONNECTED else self.lost_at + LOST_S
        return self._check_at

    # ---- what happens ----

    def connected(self, now: float) -> list[Step]:
        if self.lost_at is None:
            return []
        self.lost_at = None
        self._pending.take_all()  # they may be of a former life
        if self.next is not None:
            self._unsure = True
            return self._ask(self._purpose or "check", now) if self.replays else []
        self._tries, self._joins_left = 0, TRIES_MAX
        if self.replays:
            self.why = "learning what it holds"
            return self._ask("join", now)
        self.why = "what it held before is unknown: it has no replay endpoint"
        return []

    def disconnected(self, now: float) -> list[Step]:
        if self.lost_at is None:
            self.lost_at = now
        return []

    def live(self, seq: int, payload: bytes, now: float) -> list[Step]:
        """A batch as it is published."""
        self.heard_at = now
        self._check_at = now + CHECK_S if self.replays else NEVER
        calm = self._purpose == "check" and not self._unsure and seq == self.next
        if not self._purpose or calm:
            return self._follow(seq, payload, now)
        last = self._pending.last
        known = self.next if last is None else last + 1
        if known is not None and seq < known:
            if self._prints.same(seq, payload) or (seq, payload) in self._pending:
                self.tally.duplicates += 1
                return []
            return self._restart(seq, payload, now)
        self._pend(seq, payload)
        return []

    def replayed(self, seq: int, payload: bytes, now: float) -> list[Step]:
        """A batch of the replay that runs."""
        if not self._purpose:
            return []
        self._deadline, self._got = now + STALL_S, True
        steps: list[Step] = []
        proof, self._proof = self._proof, None
        if proof is not None and seq == proof:
            if not self._prints.same(seq, payload):
                return [*self._forget(), *self._ask("join", now)]
            self._unsure = False
            return []
        if self.next is None or self._wipe:
            steps = self._begin_at(seq, "what it held before is unknown: its replay begins later")
        elif proof is not None and (seq > self.next or self._unsure):
            self.tally.lost += max(seq - self.next, 0)
            steps = self._begin_at(seq, "batches were lost: its replay begins later")
        assert self.next is not None
        if seq < self.next:
            self.tally.duplicates += 1
            return steps
        if seq > self.next and self._tries < TRIES_MAX:
            # The engine's socket was full: the rest comes by another replay.
            return steps + self._ask("gap", now)
        if seq > self.next:
            self.tally.lost += seq - self.next
            steps += self._begin_at(seq, LOST)
        steps.append(self._take(seq, payload))
        self._pending.drop_first(seq, payload)
        return steps

    def replay_over(self, now: float) -> list[Step]:
        """The replay's end has come."""
        if not self._purpose:
            return []
        if self._proof is not None:  # its history is shorter than what was applied
            return [*self._forget(), *self._ask("join", now)]
        steps = self._begin_at(0, "") if self.next is None or self._wipe else []
        self._check_at = now + (FIRST_CHECK_S if self._purpose == "join" else CHECK_S)
        if self._purpose == "check":
            self._tries = 0
            self._prints.trim()
        self._purpose, self._unsure, self._behind = "", False, False
        if self.whole:
            self.why = ""
        return [*steps, ("hush", 0), *self._drain(now)]

    def tick(self, now: float) -> list[Step]:
        """Time has passed."""
        if now < self.due:
            return []
        if self._purpose:
            return self._ask("gap", now) if self._got else self._fail(now)
        if self.lost_at is not None:
            some = self.next is not None
            self.next, self.whole, self.why = None, False, NOT_CONNECTED
            self._pending.take_all()
            return [("clear", self.why)] if some else []
        again = not self.whole and self._joins_left > 0
        self._joins_left -= again
        return self._ask("join" if again or self.next is None else "check", now)

    def put_off(self, now: float) -> None:
        """The replay that was asked for has just begun, or not yet."""
        self._deadline = now + REPLAY_S

    def incomplete(self, why: str) -> None:
        self.whole, self.why = False, why

    def complete(self) -> None:
        """The engine has emptied its cache, or what it reports of its hits agrees."""
        self.whole, self.why, self._joins_left = True, "", 0

    # ---- what follows from it ----

    def _follow(self, seq: int, payload: bytes, now: float) -> list[Step]:
        if self.next is None:
            self._behind = False
            return [*self._begin_at(seq, self.why), self._take(seq, payload)]
        if self._unsure:  # it may be another engine whose numbers happen to go on
            return [*self._begin_at(seq, UNPROVED), self._take(seq, payload)]
        if seq == self.next:
            self._prints.trim()
            return [self._take(seq, payload)]
        if seq < self.next:
            if self._prints.same(seq, payload):
                self.tally.duplicates += 1
                return []
            return self._restart(seq, payload, now)
        self.tally.gaps += 1
        missing = seq - self.next
        if self.replays:
            self._pend(seq, payload)
            self.why = f"{missing} batches are missing"
            return self._ask("gap", now)
        self.tally.lost += missing
        why = f"{missing} batches were lost: it has no replay endpoint"
        return [*self._begin_at(seq, why), self._take(seq, payload)]

    def _take(self, seq: int, payload: bytes) -> Step:
        self.next, self._tries = seq + 1, 0
        self._born = self._born or payload[TIME]
        self._prints.add(seq, payload)
        self.tally.batches += 1
        return "apply", payload

    def _begin_at(self, seq: int, why: str) -> list[Step]:
        """A new run; what was applied before goes, if anything was."""
        some = self.next is not None
        self.next, self._wipe, self._unsure = seq, False, False
        self.whole = seq == 0
        self.why = "" if self.whole else why
        self._prints, self._born = Fingerprints(), b""
        return [("clear", self.why or "begun anew")] if some else []

    def _restart(self, seq: int, payload: bytes, now: float) -> list[Step]:
        """A live batch has a number that was passed before: the publisher is another."""
        self._pending.take_all()
        steps = self._forget()
        if seq == 0 or not self.replays:
            self._purpose, self._behind = "", False
            begun = self._begin_at(seq, "it has restarted, and its first batches were missed")
            return [*steps, ("hush", 0), *begun, self._take(seq, payload)]
        self._pend(seq, payload)
        return [*steps, *self._ask("join", now)]

    def _forget(self) -> list[Step]:
        self.tally.restarts += 1
        self.next, self.whole, self.why = None, False, "it has restarted"
        self._tries, self._unsure, self._joins_left = 0, False, TRIES_MAX
        return [("clear", self.why)]

    def _ask(self, purpose: str, now: float) -> list[Step]:
        self._purpose = purpose
        self._behind = self._behind or purpose != "check"
        self._got = False
        self._tries += 1
        if self._tries > TRIES_MAX:
            return self._fail(now)
        self._deadline = now + REPLAY_S
        self._wipe = purpose == "join" and self.next is not None
        self._proof = self.next - 1 if purpose != "join" and self.next else None
        self.tally.replays += 1
        return [("ask", self._proof or 0)]

    def _fail(self, now: float) -> list[Step]:
        self.tally.replays_failed += 1
        purpose, self._purpose, self._wipe, self._proof = self._purpose, "", False, None
        steps: list[Step] = [("hush", 0)]
        if purpose == "gap" and self.next is not None:
            first = self._pending.first
            self.tally.lost += max(first - self.next, 1) if first is not None else 1
            self.next, self.whole = None, False
            self.why = LOST
            steps.append(("clear", self.why))
        elif self._unsure:
            self.next, self.whole, self.why, self._unsure = None, False, UNPROVED, False
            steps.append(("clear", self.why))
        elif purpose == "join":
            self.why = "what it held before is unknown: its replay does not answer"
        self._tries = 0
        self._check_at = now + CHECK_S
        return steps + self._drain(now)

    def _drain(self, now: float) -> list[Step]:
        """Batches that waited, until one of them needs another replay."""
        steps: list[Step] = []
        for seq, payload in self._pending.take_all():
            if self.next is not None and payload[TIME] < self._born:
                self.tally.duplicates += 1  # published before all that the replay still had
                continue
            steps += self.live(seq, payload, now)
        return steps

    def _pend(self, seq: int, payload: bytes) -> None:
        if not self._pending.add(seq, payload):
            self.tally.overflows += 1
