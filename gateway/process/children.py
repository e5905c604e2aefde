"""The master's children: who they are, whether they live, when one may be started again.

Invariants: a child's slot in shared memory is taken back after its process has been reaped, never
before, and is not lent again until then; a place (0 to the number of workers) has one worker that
serves, and any number of former ones that finish what they began.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic, time

from gateway.log_lines import NOTICE
from gateway.logs import log
from gateway.process.channel import Broken, Channel
from gateway.process.memory import MONITOR_SLOT, Memory
from gateway.process.orders import Process
from gateway.process.worker import FOR_THE_LOOP, Post, Run

BORN_S = 30.0  # until the first heartbeat
BEAT_MAX_S = float(os.environ.get("KVGATE_DEV_HEARTBEAT_S", "10"))  # then it counts as stopped
QUICK_S = 10.0  # a child that lived shorter is started again later
PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
MASTER_ONLY = (signal.SIGHUP, signal.SIGUSR2, signal.SIGWINCH)
CAUGHT = (*FOR_THE_LOOP, *MASTER_ONLY, signal.SIGCHLD)


@dataclass(slots=True)
class Child:
    """`place` of the monitor is -1."""

    pid: int
    kind: str  # worker | monitor
    place: int
    slot: int
    channel: Channel
    started: float  # monotonic s
    state: str = "starting"  # serving, draining
    born: float = field(default_factory=time)  # since the epoch
    beat: float | None = None  # the last one seen
    awake: float = 0.0  # s of the master's own time since that changed
    kill_at: float = float("inf")  # it should have ended by then

    @property
    def staying(self) -> bool:
        return self.state != "draining"

    def public(self) -> Process:
        return Process(self.pid, self.kind, self.slot, self.state, self.born)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def order(self, order: object, descriptors: tuple[int, ...] = ()) -> None:
        """A child that has ended, or is so far behind that it cannot be alive, is ended."""
        try:
            self.channel.order(order, descriptors)
        except Broken as error:
            log.info("%s %d does not listen: %s", self.kind, self.pid, error)
            self.signal(signal.SIGKILL)


@dataclass(slots=True)
class Pause:
    """How long a place stays empty after a death: nothing at first, then longer and longer."""

    deaths: int = 0
    until: float = 0.0

    def death(self, lived_s: float, now: float) -> None:
        self.deaths = self.deaths + 1 if lived_s < QUICK_S else 1
        wait_s = 0.0 if self.deaths == 1 else PAUSE_S * 2.0 ** min(self.deaths - 2, 16)
        self.until = now + min(wait_s, PAUSE_MAX_S)


class Children:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.by_pid: dict[int, Child] = {}
        self.pauses: dict[int, Pause] = {}
        self.started = self.died = 0  # workers
        self._watched = monotonic()

    def __iter__(self) -> Iterator[Child]:
        return iter(list(self.by_pid.values()))

    @property
    def workers(self) -> list[Child]:
        return [child for child in self if child.kind == "worker"]

    def at(self, place: int) -> Child | None:
        """The worker that serves at a place, or the monitor (-1)."""
        return next((c for c in self if c.place == place and c.staying), None)

    def free_slot(self) -> int | None:
        """The lowest: readers look at slots up to the highest that was ever used."""
        taken = {child.slot for child in self}
        return next((n for n in range(1, self.memory.slots) if n not in taken), None)

    def spawn(self, place: int, run: Run, post: Callable[[int, Channel], Post]) -> Child | None:
        """Forks a child; `post(slot, channel)` is what it is born with. None: there is no slot."""
        slot = MONITOR_SLOT if place < 0 else self.free_slot()
        if slot is None or (place < 0 and any(c.place < 0 for c in self)):
            return None
        ours, theirs = Channel.pair()
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
        pid = os.fork()
        if pid == 0:
            self._be_child(ours, run, lambda: post(slot, theirs))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
        theirs.close()
        kind = "monitor" if place < 0 else "worker"
        child = Child(pid, kind, place, slot, ours, monotonic())
        self.by_pid[pid] = child
        self.started += kind == "worker"
        return child

    def _be_child(self, ours: Channel, run: Run, post: Callable[[], Post]) -> None:
        """In the newborn process; never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in CAUGHT:
                ignored = number in MASTER_ONLY
                signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, *MASTER_ONLY})
            ours.close()
            for child in self:
                child.channel.close()
            status = run(post())
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:  # the outermost frame of a process
            log.exception("a process ends by a fault")
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def reap(self) -> list[tuple[Child, int]]:
        """Children that have ended, with their exit status (negative: by that signal)."""
        gone = []
        for child in self:
            try:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = child.pid, 0
            if pid:
                del self.by_pid[child.pid]
                child.channel.close()
                self.memory.retire(child.slot)
                gone.append((child, os.waitstatus_to_exitcode(status)))
        return gone

    def buried(self, child: Child, status: int, expected: bool, now: float) -> None:
        """Says how a child ended, and how long its place waits for the next."""
        how = f"signal {-status}" if status < 0 else f"status {status}"
        if expected or not child.staying:
            log.log(NOTICE, "%s %d has ended (%s)", child.kind, child.pid, how)
            return
        log.critical("%s %d died (%s); it is replaced", child.kind, child.pid, how)
        self.died += child.kind == "worker"
        self.pauses.setdefault(child.place, Pause()).death(now - child.started, now)

    def watch(self, now: float) -> None:
        """Ends children that have stopped or overstayed. Time in which the master itself did not
        run, as when the machine slept, does not count against them.
        """
        awake_s = min(now - self._watched, 1.0)
        self._watched = now
        for child in self:
            beat = self.memory.ledger.core.last_beat(child.slot)
            child.awake = child.awake + awake_s if beat == child.beat else 0.0
            child.beat = beat
            limit_s = BORN_S if beat is None else BEAT_MAX_S
            if child.awake > limit_s:
                log.critical(
                    "%s %d gives no sign of life for %gs: it is killed",
                    child.kind, child.pid, limit_s,
                )  # fmt: skip
                child.awake = 0.0
                child.signal(signal.SIGKILL)
            elif now > child.kill_at:
                log.error("%s %d should have ended: it is killed", child.kind, child.pid)
                child.kill_at = float("inf")
                child.signal(signal.SIGKILL)
