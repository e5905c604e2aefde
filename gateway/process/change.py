"""Configurations on their way: from a file or a run-time change, tried, sent to every child,
confirmed by each.

Invariants: one at a time; a refused one leaves no socket and no handle behind; sockets and handles
of what was removed go only when every child has confirmed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from gateway.app import draft
from gateway.conf.errors import ConfigErrors
from gateway.conf.model import Config
from gateway.fleet import upstreams
from gateway.fleet.ledger import Key
from gateway.kv.facts import Facts
from gateway.kv.sources import Found
from gateway.log_lines import NOTICE
from gateway.logs import log, open_error_log
from gateway.process import reload
from gateway.process.channel import DESCRIPTORS_MAX
from gateway.process.identity import entrust_logs, make_folders
from gateway.process.orders import Address, Answer, Apply, Ask, News, Responses, Sockets, State
from gateway.site import fronts

if TYPE_CHECKING:
    from gateway.process.children import Child
    from gateway.process.master import Master

CONFIRM_S = 10.0  # a child that has not followed by then is replaced
WAITING_MAX = 64  # run-time changes in the queue


@dataclass(slots=True)
class Request:
    """A run-time change, and who asked for it."""

    child: Child
    id: int
    body: dict[str, Any]


class Changes:
    def __init__(self, master: Master, config: Config) -> None:
        self._master = master
        self.config = config
        self.generation = 1
        self.addresses: set[Address] = set()
        self.news = News()
        self.state = State(master=os.getpid(), loaded=time())
        self._unconfirmed: set[int] = set()  # pids
        self._confirm_by = 0.0
        self._reload_wanted = False
        self._requests: list[Request] = []
        self._answering: Request | None = None
        self._swept = True

    # ---- what comes in ----

    def reload(self) -> None:
        """HUP."""
        self._reload_wanted = True

    def hear(self, child: Child, report: dict[str, Any]) -> None:
        """A child's report. One that makes no sense is dropped."""
        match report:
            case {"applied": int(generation)} if generation == self.generation:
                self._unconfirmed.discard(child.pid)
            case {"failed": int(generation), "why": str(why)} if generation == self.generation:
                log.error("%s %d cannot take configuration %d: %s; it is replaced",
                          child.kind, child.pid, generation, why)  # fmt: skip
                self._unconfirmed.discard(child.pid)
                self._master.dismiss(child)
            case {"health": {"upstream": str(upstream), "address": str(address), "why": str(why)}}:
                self._learn(child, News(whys={(upstream, address): why}))
            case {"sources": {"upstream": str(upstream), "server": str(server), "found": dict(f)}}:
                found = Found.of_json(f)
                if found is not None:
                    self._learn(child, News(sources={(upstream, server): found}))
            case {"facts": {"upstream": str(upstream), "server": str(server), "facts": dict(f)}}:
                facts = Facts.of_json(f)
                if facts is not None:
                    self._learn(child, News(facts={(upstream, server): facts}))
            case {"ask": {"upstream": str(upstream), "server": str(server)}}:
                monitor = self._master.children.at(-1)
                if monitor is not None:
                    monitor.order(Ask(upstream, server))
            case {"models": {"upstream": str(upstream), "cards": list(cards)}}:
                self._learn(child, News(cards={upstream: cards}))
            case {"responses": list(rows)} if all(_is_row(row) for row in rows):
                order = Responses(tuple((row[0], row[1], row[2]) for row in rows))
                for other in self._master.children.workers:
                    if other is not child:
                        other.order(order)
            case {"change": {"id": int(number)}}:
                if len(self._requests) < WAITING_MAX:
                    self._requests.append(Request(child, number, report["change"]))
                else:
                    child.order(Answer(number, "too many changes are under way"))

    def _learn(self, teller: Child, news: News) -> None:
        """Kept for those who are born later, and passed on to the workers there are."""
        news = news.of(self.config)
        self.news = self.news.plus(news)
        for child in self._master.children.workers:
            if child is not teller:
                child.order(news)

    def forget(self, child: Child) -> None:
        """It has ended."""
        self._unconfirmed.discard(child.pid)
        self._requests = [r for r in self._requests if r.child is not child]
        if self._answering is not None and self._answering.child is child:
            self._answering = None

    # ---- one after the other ----

    def tend(self, now: float) -> None:
        if self._unconfirmed:
            if now > self._confirm_by:
                self._give_up()
            return
        if self._answering is not None:
            self._answering.child.order(Answer(self._answering.id))
            self._answering = None
        if not self._swept:
            self._sweep()
        if self._master.stopping:
            return
        if self._reload_wanted:
            self._reload_wanted = False
            self._from_file()
        elif self._requests:
            self._from_request(self._requests.pop(0))

    def _from_file(self) -> None:
        try:
            loaded = self._master.reread()
            self._take(loaded.config, reloads=1)
        except (ConfigErrors, OSError, ValueError) as error:
            lines = reload.refusal(error)
            for line in lines:
                log.error("reload refused: %s", line)
            self.state = replace(
                self.state, reload_error="\n".join(lines), reload_failed=time(),
                refused=self.state.refused + 1,
            )  # fmt: skip
            self.announce()
            return
        for warning in loaded.config.warnings:
            log.warning("%s", warning)

    def _from_request(self, request: Request) -> None:
        try:
            self._take(upstreams.changed(self.config, request.body))
        except upstreams.Refused as error:
            request.child.order(Answer(request.id, str(error), error.missing))
        except (OSError, ValueError) as error:
            request.child.order(Answer(request.id, str(error)))
        else:
            self._answering = request

    def _take(self, config: Config, reloads: int = 0) -> None:
        """Tries a configuration and sends it out. Raises OSError, ValueError; then nothing has
        changed.
        """
        master = self._master
        self._check_room(config)
        known = set(master.sockets.open)
        try:
            make_folders(config)
            wanted = draft(config, master.memory)
            added = master.sockets.take(wanted, config.worker_processes)
        except (OSError, ValueError):
            self._sweep()
            raise
        try:
            entrust_logs(config)
            master.pid_file.move(config.pid)
        except OSError:
            master.sockets.give_back(added)
            self._sweep()
            raise
        old, self.config = self.config, config
        self.addresses = {one.address for one in wanted}
        self.generation += 1
        self.state = replace(
            self.state, generation=self.generation, loaded=time(), reload_error="",
            reload_failed=0.0, reloads=self.state.reloads + reloads,
        )  # fmt: skip
        open_error_log(config.error_log, config.error_level)
        found = reload.changes(old, config)
        log.log(NOTICE, "configuration %d: %s", self.generation, reload.sentence(found))
        self._swept = False
        self._send(added.keys() - known, replaced=reload.needs_new_workers(old, config))

    def _check_room(self, config: Config) -> None:
        if config.worker_processes * 2 + 2 > self._master.memory.slots:
            raise ValueError(
                f"`worker_processes {config.worker_processes}` is more than this master has room "
                f"for ({self._master.memory.slots // 2 - 1}): it needs a restart, or USR2"
            )

    def _send(self, added: Iterable[Address], replaced: bool) -> None:
        master = self._master
        memory = master.memory
        present = fronts.series(self.config)
        series = {names: row for names, row in memory.stats.series.items() if names in present}
        order = Apply(self.config, dict(memory.ledger.handles), series, self.generation)
        for child in master.children:
            if not child.staying:
                continue
            if replaced and child.kind == "worker":
                master.dismiss(child)
                continue
            if child.kind == "worker":
                self._lend(child, added)
            child.order(order)
            self._unconfirmed.add(child.pid)
        self._confirm_by = monotonic() + CONFIRM_S
        self.announce()

    def _lend(self, child: Child, added: Iterable[Address]) -> None:
        mine = self._master.sockets.of(child.place)
        new = [address for address in added if address in mine]
        for at in range(0, len(new), DESCRIPTORS_MAX):
            some = tuple(new[at : at + DESCRIPTORS_MAX])
            child.order(Sockets(some), tuple(mine[address].fileno() for address in some))

    def _give_up(self) -> None:
        """Children that have not followed in time are replaced."""
        for child in self._master.children:
            if child.pid in self._unconfirmed:
                log.error("%s %d has not taken configuration %d: it is replaced",
                          child.kind, child.pid, self.generation)  # fmt: skip
                self._master.dismiss(child)
        self._unconfirmed.clear()

    # ---- what is left behind ----

    def _present(self) -> set[Key]:
        upstreams = self.config.upstreams.values()
        return {(u.name, line.address) for u in upstreams for line in u.engines}

    def _sweep(self) -> None:
        """Closes sockets and frees handles of what is no longer configured; engines with something
        in flight are looked at again.
        """
        if self.addresses:
            self._master.sockets.keep(self.addresses)
        present = self._present()
        self._swept = not self._master.memory.ledger.sweep(present)
        self._master.memory.stats.sweep(fronts.series(self.config))
        self.news = self.news.of(self.config)

    def announce(self) -> None:
        """Tells every worker how the whole gateway is."""
        children = self._master.children
        processes = tuple(child.public() for child in children)
        self.state = replace(
            self.state, processes=processes, started=children.started, died=children.died
        )
        for child in children.workers:
            child.order(self.state)


def _is_row(row: object) -> bool:
    return isinstance(row, list) and len(row) == 3 and all(isinstance(cell, str) for cell in row)
