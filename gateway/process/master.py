"""The master process: owns the configuration and the listening sockets, and lives through its
children.

It serves nothing and has neither threads nor an event loop, so that it can fork at any time: one
loop waits for signals (through a wake-up descriptor), reports and ends of children.

Invariants: a configuration is tried whole before anything changes, and a refused one changes
nothing; workers keep running over a reload; every child that dies unasked is replaced.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from time import monotonic

from gateway.app import draft
from gateway.conf.load import Loaded
from gateway.conf.model import Config
from gateway.log_lines import NOTICE
from gateway.logs import close_error_log, log, open_error_log
from gateway.process import handover, monitor, worker
from gateway.process.change import Changes
from gateway.process.channel import Broken, Channel, report_of
from gateway.process.children import Child, Children
from gateway.process.identity import entrust_logs, make_folders
from gateway.process.memory import Memory, slots_for
from gateway.process.orders import Leave, Reopen
from gateway.process.sockets import ListenError, Sockets
from gateway.process.worker import Post

FAILED, CANNOT_BIND = 1, 3
TICK_S = 0.25
FAST_S = 2.5  # a fast stop takes this long at most
GRACE_S = 5.0  # beyond `worker_shutdown_timeout`
START_DEATHS_MAX = 3  # workers that die before any has served: the start has failed
SIGNALS = (
    signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGWINCH, signal.SIGCHLD,
)  # fmt: skip


class Master:
    def __init__(self, config: Config, reread: Callable[[], Loaded[Config]]) -> None:
        self.reread = reread
        self.memory = Memory(slots_for(config.worker_processes))
        self.children = Children(self.memory)
        self.sockets = Sockets(inherited=handover.inherited())
        self.pid_file = handover.PidFile(config.pid)
        self.changes = Changes(self, config)
        self.stopping = ""  # fast, graceful
        self.resting = False  # WINCH: no workers until HUP
        self.close_at = float("inf")  # when the listening sockets close, in a graceful stop
        self.successor = 0  # pid of a new program's master
        self.served = False  # whether any worker ever has
        self._deaths = 0
        self._bell, self._ring = socket.socketpair()

    @property
    def config(self) -> Config:
        return self.changes.config

    # ---- life ----

    def start(self) -> None:
        """Takes all that the first configuration needs. Raises OSError, ValueError."""
        entrust_logs(self.config)
        self.sockets.take(draft(self.config, self.memory), self.config.worker_processes)
        self.sockets.keep(self.sockets.open)
        self.pid_file.write()
        for sock in (self._bell, self._ring):
            sock.setblocking(False)
        signal.set_wakeup_fd(self._ring.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, _nothing)
        log.log(NOTICE, "kvgate starts with `%s`, pid %d", self.config.file, os.getpid())

    def run(self) -> int:
        """Until a signal ends it; the exit status."""
        while True:
            self.tend(monotonic())
            if self._deaths >= START_DEATHS_MAX and not self.served:
                log.critical("no worker could start")
                self._end()
                return FAILED
            if self.stopping and not self.children.workers:
                self._end()
                return 0
            for child in self._wait():
                self._listen_to(child)
            for number in self._signals():
                self._heed(number)
            self._bury()

    def _wait(self) -> list[Child]:
        """Sleeps until something happens; children who have reported."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        for child in self.children:
            poll.register(child.channel, select.POLLIN | select.POLLOUT * child.channel.behind)
        ready = dict(poll.poll(TICK_S * 1000))
        for child in self.children:
            if ready.get(child.channel.fileno(), 0) & select.POLLOUT:
                with contextlib.suppress(Broken):  # its end is found by reading
                    child.channel.flush()
        unread = ~select.POLLOUT
        return [c for c in self.children if ready.get(c.channel.fileno(), 0) & unread]

    def _signals(self) -> list[signal.Signals]:
        """Those that have come, each once, in the order of their numbers."""
        try:
            return [signal.Signals(number) for number in sorted(set(self._bell.recv(4096)))]
        except BlockingIOError:
            return []

    def _end(self) -> None:
        for child in self.children:
            child.signal(signal.SIGKILL if child.kind == "worker" else signal.SIGTERM)
        self.sockets.close(unlink=not self.successor)
        self.pid_file.remove()
        log.log(NOTICE, "kvgate ends, pid %d", os.getpid())

    # ---- signals ----

    def _heed(self, number: signal.Signals) -> None:
        match number:
            case signal.SIGTERM | signal.SIGINT:
                self._stop("fast", signal.SIGTERM, FAST_S)
            case signal.SIGQUIT if self.stopping:
                self._stop("fast", signal.SIGTERM, FAST_S)  # a second one ends the drain
            case signal.SIGQUIT:
                self._drain()
            case signal.SIGHUP if not self.stopping:
                self.resting = False
                self.changes.reload()
            case signal.SIGUSR1:
                self.reopen()
            case signal.SIGUSR2 if not self.stopping:
                self._hand_over()
            case signal.SIGWINCH if not _has_terminal():
                self.rest()
            case _:
                pass

    def _stop(self, how: str, number: signal.Signals, limit_s: float) -> None:
        self.stopping = how
        for child in self.children.workers:
            child.signal(number)
            child.kill_at = min(child.kill_at, monotonic() + limit_s)

    def _drain(self) -> None:
        """Workers say 503 and close after the delay; the master's own sockets go then too."""
        config = self.config
        limit_s = config.shutdown_timeout_s or float("inf")
        self._stop("graceful", signal.SIGQUIT, config.shutdown_delay_s + limit_s + GRACE_S)
        self.close_at = monotonic() + config.shutdown_delay_s

    def reopen(self) -> None:
        """Opens the logs again, in every process."""
        try:
            make_folders(self.config)
            entrust_logs(self.config)
            open_error_log(self.config.error_log, self.config.error_level)
        except OSError as error:
            log.error("the error log cannot be opened again: %s", error)
        for child in self.children:
            child.order(Reopen())

    def rest(self) -> None:
        """Drains the workers only; HUP starts new ones."""
        log.log(NOTICE, "workers are drained; HUP starts new ones")
        self.resting = True
        for child in self.children.workers:
            self.dismiss(child)

    def dismiss(self, child: Child) -> None:
        """A worker finishes what it does and ends."""
        if child.staying:
            child.state = "draining"
            child.order(Leave())
            limit_s = self.config.shutdown_timeout_s or float("inf")
            child.kill_at = monotonic() + limit_s + GRACE_S

    def _hand_over(self) -> None:
        if self.successor:
            log.error("USR2: a new program runs already, pid %d", self.successor)
            return
        self.pid_file.step_aside()
        try:
            self.successor = handover.start(self.sockets.open)
        except OSError as error:
            log.error("USR2: the new program cannot be started: %s", error)
            self.pid_file.step_back()
        else:
            log.log(NOTICE, "USR2: a new program starts, pid %d", self.successor)

    # ---- children ----

    def tend(self, now: float) -> None:
        """What is due: missing children, stopped ones, sockets to close, handles to free."""
        self.children.watch(now)
        if now >= self.close_at:
            self.close_at = float("inf")
            self.sockets.close(unlink=not self.successor)
        if not self.stopping:
            places = 0 if self.resting else self.config.worker_processes
            for place in range(-1, places):
                pause = self.children.pauses.get(place)
                if self.children.at(place) is None and (pause is None or now >= pause.until):
                    self.spawn(place)
            for child in self.children.workers:
                if child.place >= places:
                    self.dismiss(child)
        self.changes.tend(now)

    def spawn(self, place: int) -> None:
        def post(slot: int, channel: Channel) -> Post:
            """In the child: what is the master's alone is let go."""
            self._bell.close()
            self._ring.close()
            mine = self.sockets.of(place) if place >= 0 else {}
            for address, socks in self.sockets.open.items():
                for sock in socks:
                    if sock is not mine.get(address):
                        sock.close()
            state, news = self.changes.state, self.changes.news
            return Post(slot, self.config, self.memory, channel, mine, state, news)

        self.children.spawn(place, monitor.run if place < 0 else worker.run, post)
        self.changes.announce()

    def _listen_to(self, child: Child) -> None:
        try:
            reports = [report_of(body) for body, _ in child.channel.receive()]
        except Broken:
            # Its end is noticed by SIGCHLD; one that closed its channel and lives is ended.
            child.signal(signal.SIGKILL)
            return
        for report in reports:
            if "ready" in report:
                child.state = "serving" if child.staying else child.state
                self.served = self.served or child.kind == "worker"
                self.changes.announce()
            else:
                self.changes.hear(child, report)

    def _bury(self) -> None:
        gone = self.children.reap()
        for child, status in gone:
            if child.kind == "worker" and child.state == "starting":
                self._deaths += 1
            self.children.buried(child, status, bool(self.stopping), monotonic())
            self.changes.forget(child)
        if gone:
            self.changes.announce()
        if self.successor:
            pid, _ = os.waitpid(self.successor, os.WNOHANG)
            if pid:
                log.error("the new program, pid %d, has ended", pid)
                self.successor = 0
                self.pid_file.step_back()


def _nothing(number: int, frame: object) -> None:
    """A signal's number is read from the wake-up descriptor."""


def _has_terminal() -> bool:
    """A terminal sends WINCH whenever its size changes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def run(config: Config, reread: Callable[[], Loaded[Config]]) -> int:
    """Serves until a signal ends it; the exit status (0 ended, 1 failed, 3 cannot bind)."""
    try:
        make_folders(config)
        open_error_log(config.error_log, config.error_level)
        master = Master(config, reread)
        master.start()
    except ListenError as error:
        print(f"kvgate: {error}", file=sys.stderr)
        return CANNOT_BIND
    except (OSError, ValueError) as error:
        path = getattr(error, "filename", None)
        print(f"kvgate: {f'{path}: {error.args[1]}' if path else error}", file=sys.stderr)
        return FAILED
    status = master.run()
    if not close_error_log():
        os._exit(status)
    return status
