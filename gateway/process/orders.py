"""What the master tells its children, as frozen data.

Reports go the other way as JSON objects with one of these keys:
    ready, applied (generation), failed (generation, why), health (upstream, address, healthy, why),
    models (upstream, cards), responses (rows of id, upstream, address),
    sources (upstream, server, found: where it publishes), ask (upstream, server),
    facts (upstream, server, facts: what it says of itself),
    change (a run-time change and its id)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.conf.model import Config
from gateway.fleet.ledger import Key
from gateway.kv.facts import Facts
from gateway.kv.sources import Found
from gateway.stats import Names

Address = tuple[str, int, str]  # host, port, path of a unix socket


@dataclass(frozen=True, slots=True)
class Process:
    """One child, as the status page shows it. `state`: starting, serving, draining."""

    pid: int
    kind: str  # worker | monitor
    slot: int
    state: str
    started: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class State:
    """Where the whole gateway is in its life."""

    master: int = 0  # its pid
    generation: int = 1
    loaded: float = 0.0  # when this configuration was taken, seconds since the epoch
    reload_error: str = ""  # why the latest reload was refused, "" = it was not
    reload_failed: float = 0.0  # when
    processes: tuple[Process, ...] = ()
    started: int = 0  # workers, since this master began
    died: int = 0  # of these, those that ended unasked
    reloads: int = 0  # of the file, that were taken
    refused: int = 0  # and those that were not


@dataclass(frozen=True, slots=True)
class Sockets:
    """Listening sockets, in the order of the descriptors that come along."""

    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """A new configuration, and the handles of what it names."""

    config: Config
    engines: dict[Key, int]
    series: dict[Names, int]
    generation: int


@dataclass(frozen=True, slots=True)
class News:
    """What has been learnt of engines: why their checks fail, which models they list, where servers
    publish KV events.
    """

    whys: dict[Key, str] = field(default_factory=dict)
    cards: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    sources: dict[Key, Found] = field(default_factory=dict)  # by upstream and server
    facts: dict[Key, Facts] = field(default_factory=dict)  # likewise: what it says of itself

    def plus(self, later: News) -> News:
        return News(
            {**self.whys, **later.whys},
            {**self.cards, **later.cards},
            {**self.sources, **later.sources},
            {**self.facts, **later.facts},
        )

    def of(self, config: Config) -> News:
        """Without what is not about this configuration."""
        lines = [(u.name, line) for u in config.upstreams.values() for line in u.engines]
        engines = {(name, line.address) for name, line in lines}
        servers = {(name, line.server) for name, line in lines}
        return News(
            {key: why for key, why in self.whys.items() if key in engines},
            {name: cards for name, cards in self.cards.items() if name in config.upstreams},
            {key: found for key, found in self.sources.items() if key in servers},
            {key: facts for key, facts in self.facts.items() if key in servers},
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """A server should be asked again where it publishes: for the monitor."""

    upstream: str
    server: str


@dataclass(frozen=True, slots=True)
class Responses:
    """Stored responses that another worker has seen: id, upstream, address."""

    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Reopen:
    """Log files are opened again under their names."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Another worker takes over: no more requests, what runs is finished."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The master's word on a run-time change."""

    id: int
    error: str = ""  # "" = done
    missing: bool = False  # the upstream or server that it names is not there
