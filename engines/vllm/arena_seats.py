"""What one engine reads and writes in the arena that kvbm's daemon owns (`docs/kvbm-internals.md`).

A block is looked up, fetched into the arena (where it is held), copied to the device, released; or
a seat is reserved, written from the device, committed. Invariants: a block is offered as found only
while it is held for that request; whatever is held is given back when the request has what it came
for, or ends. Seats of a connection that was lost are never named on the next one, where another
block may have the same.

For one thread, the engine's scheduler; no call waits longer than the client does (1 ms).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Sequence
from typing import NamedTuple

from engines.vllm.arena_place import ArenaPlace, Seat
from engines.vllm.block_jobs import (
    BATCH_MAX,
    MISS,
    NO_FAULT,
    TIMEOUT,
    TOUCHED_MAX,
    UNKNOWN,
    Figures,
)
from engines.vllm.doomed import Doomed
from engines.vllm.load_gate import GATED_S, REMOTE, LoadGate, Plan
from native import _core

PENDING, HOST = -1, 1
OK, LOST, THERE = 0, 21, 23
# After vLLM forgot its jobs: steps until no worker is at their seats any more.
STALE_STEPS = 4


class _Fetch(NamedTuple):
    connects: int
    request: str
    names: Sequence[bytes]
    plan: Plan


class ArenaSeats:
    """`load_s`: until a fetch that has not ended is given up."""

    def __init__(self, client: _core.KvbmClient, gate: LoadGate, load_s: float = 2.0) -> None:
        self._client, self._gate = client, gate
        self._load_us = int(load_s * 1e6)
        self._numbers = itertools.count(1)
        self._is_there, self._connects, self._in_step = False, 0, False
        self._places: list[ArenaPlace] = []
        self._doomed = Doomed()
        self._touched: dict[bytes, None] = {}
        # By request: what it wants fetched at the step's end, what is being fetched, what is held.
        self._wanted: dict[str, list[bytes]] = {}
        self._coming: dict[str, dict[bytes, int]] = {}
        self._held: dict[str, dict[bytes, Seat]] = {}
        # Fetches under way; seats that a worker copies from, and to.
        self._fetches: dict[int, _Fetch] = {}
        self._loading: dict[tuple[str, bytes], Seat | None] = {}
        self._writing: dict[bytes, Seat | None] = {}
        self._stale: list[tuple[int, list[Seat], list[Seat]]] = []
        self.figures = Figures()

    @property
    def place(self) -> ArenaPlace | None:
        """The arena that seats are in now."""
        return self._places[-1] if self._places else None

    @property
    def under_way(self) -> bool:
        return bool(self._fetches or self._stale)

    def begin(self, now: float) -> None:
        """Once per step, before all else of it: takes note of what happened meanwhile."""
        if self._in_step:
            return
        self._in_step = True
        ended = self._client.poll()
        self._is_there = self._client.connected
        if not self._is_there or self._is_another():
            self._lose()
        for done in ended:
            self._fetched(done, now)

    def _is_another(self) -> bool:
        """Whether the connection is not the one that seats were given on."""
        return self._client.connects != self._connects

    def _lose(self) -> None:
        """Seats of the connection before: what workers are at is void, the rest was never there."""
        for ours in (self._held, self._coming, self._wanted):
            ours.clear()
        self._loading = dict.fromkeys(self._loading)
        self._writing = dict.fromkeys(self._writing)
        self._stale.clear()
        if self._is_there:
            self._connects = self._client.connects
            self._look_at_arena()

    def _look_at_arena(self) -> None:
        arena = self._client.arena()
        if arena is None:
            self._is_there = False
            return
        fd, size, epoch = arena
        if self._places and self._places[-1].epoch == epoch:
            os.close(fd)
            return
        self._places.append(ArenaPlace(os.getpid(), fd, os.fstat(fd).st_ino, size, epoch))
        # The one before stays open: workers may not have looked at it yet.
        for old in self._places[:-2]:
            os.close(old.fd)
        del self._places[:-2]

    def lookup(self, request: str, name: bytes, tiers: Collection[int], now: float) -> int:
        """The tier that a held block came from, MISS, or PENDING: ask in the next step again.
        `tiers`: those that the request may use."""
        self.begin(now)
        if not self._is_there:
            return MISS
        if (seat := self._held.get(request, {}).get(name)) is not None:
            return seat.tier
        if name in self._coming.get(request, ()):
            return PENDING
        if self._doomed.has(name, now):
            return MISS
        tier = self._client.lookup([name], arena=True)[0]
        if tier in (MISS, UNKNOWN) or tier not in tiers:
            return MISS
        self._coming.setdefault(request, {})[name] = tier
        self._wanted.setdefault(request, []).append(name)
        return PENDING

    def _fetched(self, done: _core.KvbmDone, now: float) -> None:
        connects, request, names, plan = self._fetches.pop(done.job)
        is_late = TIMEOUT in done.statuses
        self._gate.took(plan.daemon_us, plan.tier, done.spent_us, is_late=is_late)
        seats = done.seats or [(0, 0)] * len(names)
        coming, unwanted, failed = self._coming.get(request, {}), [], []
        for name, status, (page, generation) in zip(names, done.statuses, seats, strict=True):
            tier = coming.pop(name, None)
            if status != OK:
                self.figures.failed += 1
                if status not in NO_FAULT:
                    failed.append(name)
            elif connects != self._connects:
                continue
            elif tier is None:
                unwanted.append(Seat(page, generation))
            else:
                self._held.setdefault(request, {})[name] = Seat(page, generation, tier)
        if not coming:
            self._coming.pop(request, None)
        self._release(unwanted)
        self._doomed.add(failed, now)

    def take(self, request: str, names: Sequence[bytes]) -> list[Seat]:
        """What a worker copies from now, of blocks that `lookup` found in this step. What else the
        request has found is let go."""
        held = self._held.pop(request, {})
        seats = [held.pop(name) for name in names]
        self._loading.update(zip(((request, name) for name in names), seats, strict=True))
        self._release(list(held.values()))
        return seats

    def loaded(self, request: str, names: Collection[bytes]) -> None:
        """The worker has copied them."""
        seats = [self._loading.pop((request, name), None) for name in names]
        self.figures.loaded += len(seats)
        self._release([seat for seat in seats if seat is not None])

    def reserve(
        self, names: Sequence[bytes], *, is_chain: bool
    ) -> list[tuple[bytes, Seat]] | None:
        """Seats for a worker to write to, of the blocks that have to be written. None: the daemon
        did not answer in time, ask again."""
        granted: list[tuple[bytes, Seat]] = []
        refused: list[Seat] = []
        for at in range(0, len(names), BATCH_MAX) if self._is_there else ():
            part = names[at : at + BATCH_MAX]
            answers = self._client.reserve(part, chain=is_chain)
            if all(status == LOST for status, _, _ in answers) and not granted:
                return None
            for name, (status, page, generation) in zip(part, answers, strict=True):
                self.figures.shed += status not in (OK, THERE)
                if status == OK:
                    seat = Seat(page, generation)
                    # A worker may still write to one of the connection before by this name.
                    is_void = name in self._writing
                    refused.append(seat) if is_void else granted.append((name, seat))
        if granted and self._is_another():
            refused += [seat for _, seat in granted]
            granted.clear()
        self._commit(refused, discard=True)
        self._writing.update(granted)
        return granted

    def _commit(self, seats: Sequence[Seat], *, discard: bool = False) -> bytes:
        statuses = b""
        for at in range(0, len(seats), BATCH_MAX):
            part = [seat.place for seat in seats[at : at + BATCH_MAX]]
            statuses += self._client.commit(part, discard=discard)
        return statuses

    def written(self, names: Collection[bytes], *, ok: bool) -> None:
        """The worker has copied them: from now on all engines find them. Not `ok`: it has not."""
        known = [(name, self._writing.pop(name)) for name in names if name in self._writing]
        ours = [(name, seat) for name, seat in known if seat is not None]
        statuses = self._commit([seat for _, seat in ours], discard=not ok)
        if not ok:
            self.figures.shed += len(names)
            return
        good = [name for (name, _), status in zip(ours, statuses, strict=True) if status == OK]
        self.figures.stored += len(good)
        self.figures.shed += len(known) - len(good)
        self._doomed.forgive(good)

    def touch(self, names: Collection[bytes]) -> None:
        """Counts a use of blocks, as far as a step's message holds them."""
        room = TOUCHED_MAX - len(self._touched)
        self._touched.update(dict.fromkeys(itertools.islice(names, room)))

    def forget(self, request: str) -> None:
        """It has ended. Seats that a worker is at stay until it is done."""
        self._wanted.pop(request, None)
        self._coming.pop(request, None)
        self._release(list(self._held.pop(request, {}).values()))

    def end_step(self, now: float) -> None:
        self.begin(now)
        self._in_step = False
        for request, names in self._wanted.items():
            for at in range(0, len(names), BATCH_MAX):
                self._fetch(request, names[at : at + BATCH_MAX], now)
        self._wanted.clear()
        if self._touched:
            self._client.touch(list(self._touched))
            self._touched.clear()
        self._stale = [(left - 1, held, writing) for left, held, writing in self._stale]
        while self._stale and self._stale[0][0] <= 0:
            _, held, writing = self._stale.pop(0)
            self._release(held)
            self._commit(writing, discard=True)

    def _fetch(self, request: str, names: list[bytes], now: float) -> None:
        number, coming = next(self._numbers), self._coming.get(request, {})
        tiers = [coming.get(name) for name in names]
        remote, host = tiers.count(REMOTE), tiers.count(HOST)
        plan = self._gate.plan(self._client, len(names), remote, self._load_us, host)
        if plan.limit_us == 0 and host < len(names):
            self.figures.gated += len(names)
            self._doomed.add(names, now, GATED_S)
            self._gate.refuse(self._client, names, now)
        elif self._client.fetch(number, names, deadline_us=plan.limit_us or self._load_us):
            self._fetches[number] = _Fetch(self._client.connects, request, names, plan)
            return
        else:
            self.figures.failed += len(names)
            self._doomed.add(names, now)
        for name in names:
            coming.pop(name, None)

    def reset(self) -> None:
        """vLLM forgets its jobs; workers may still be at their seats for a few steps."""
        for request in [*self._held, *self._coming]:
            self.forget(request)
        held = [seat for seat in self._loading.values() if seat is not None]
        writing = [seat for seat in self._writing.values() if seat is not None]
        if held or writing:
            self._stale.append((STALE_STEPS, held, writing))
        self._loading.clear()
        self._writing.clear()

    def _release(self, seats: Sequence[Seat]) -> None:
        for at in range(0, len(seats), BATCH_MAX):
            self._client.release([seat.place for seat in seats[at : at + BATCH_MAX]])

    def close(self) -> None:
        for place in self._places:
            os.close(place.fd)
        self._places.clear()
