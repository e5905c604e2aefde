"""A stage: one gateway with its scripted engines, both lanes, ready for a test to play on.

Invariant: stages of equal `Conf` are shared by tests one after another, so a stage is handed out
clean (scripts, records) and taken back only when nothing is in flight; one that is not quiet fails
the test that left it so, and is thrown away.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import waiting
from harness.certificate import Certificate
from harness.client import Client
from harness.gateway import Gateway, NoStart, free_ports
from harness.upstream import Engine
from harness.wire import Reply

LANES = ("express", "starlette")
NGINX = os.environ.get("FAULTS_TARGET") == "nginx"
START_TRIES = 3
LIVE_MAX = 5
ACCESS_FIELDS = (
    "lane status request_method request_uri upstream_addr upstream_status body_bytes_sent "
    "request_time termination prompt_tokens completion_tokens"
)


@dataclass(frozen=True)
class Conf:
    """A stage's configuration: what differs from the plain one. All parts are directive text.

    `engines`: number of engines of upstream `main` (placeholders {e0}, {e1}... in `extra`).
    `server_args`: what follows the address on each `server` line.
    """

    engines: int = 1
    server_args: str = "max_fails=0"
    upstream: str = "health_check off;"
    location: str = ""
    server: str = ""
    http: str = ""
    top: str = ""
    extra: str = ""  # more blocks inside http
    locations: str = ""  # more locations in both servers
    proxy_pass: str = "http://main"
    listen_args: str = ""
    unix_engines: bool = False
    tls_engines: str = ""  # folder of the certificate that the engines show
    keepalive_s: float = 5.0  # of the engines
    ready: str = "/kvgate/ready"  # what must answer 200 before the stage is used

    def but(self, **changes: object) -> Conf:
        return replace(self, **changes)  # type: ignore[arg-type]


PLAIN = Conf()


@dataclass(repr=False)
class Stage:
    conf: Conf
    engines: list[Engine]
    gateway: Gateway
    ports: dict[str, int]
    folder: Path
    clients: list[Client] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    def client(self, lane: str, **how: object) -> Client:
        """A connected raw client; closed when the test is over."""
        client = Client(("127.0.0.1", self.ports[lane]), **how)  # type: ignore[arg-type]
        self.clients.append(client)
        return client

    def ask(self, lane: str, body: bytes = b"", **how: object) -> Reply:
        """One request on a connection of its own."""
        with Client(("127.0.0.1", self.ports[lane])) as client:
            return client.ask(body, **how)

    def in_flight(self) -> int:
        """The gateway's own count of exchanges that have not ended, from /kvgate/status."""
        if NGINX:
            return 0
        engines = in_flight_by_engine(self.gateway.status())
        assert min(engines.values(), default=0) >= 0, f"in-flight count below zero: {engines}"
        return sum(engines.values())

    def wait_quiet(self, timeout_s: float = 5.0) -> None:
        """Blocks until the gateway counts nothing in flight."""
        waiting.until(lambda: self.in_flight() == 0, "in-flight counts back to 0", timeout_s)

    def wait_log(self, count: int, timeout_s: float = 5.0) -> list[dict[str, str]]:
        """Blocks until the access log has `count` lines; all of them."""
        waiting.until(
            lambda: len(self.gateway.access()) >= count, f"{count} access-log lines", timeout_s
        )
        return self.gateway.access()

    def open(self) -> None:
        for engine in self.engines:
            engine.reset_records()

    def close(self) -> None:
        """Lets the test's connections go and checks that nothing stays behind."""
        for client in self.clients:
            client.close()
        self.clients.clear()
        assert self.gateway.alive, f"the gateway died:\n{self.gateway.log()[-4000:]}"
        self.wait_quiet()
        failures = [failure for engine in self.engines for failure in engine.failures]
        assert not failures, f"an engine was sent something malformed: {failures}"

    def discard(self) -> None:
        self.gateway.kill()
        self.gateway.stop()
        for engine in self.engines:
            engine.kill()


Play = Callable[[Conf], Stage]


def in_flight_by_engine(status: dict[str, object]) -> dict[str, int]:
    """(engine address → in-flight) of a status document, over all upstreams."""
    found: dict[str, int] = {}
    upstreams = status["upstreams"]
    assert isinstance(upstreams, dict)
    for upstream in upstreams.values():
        for engine in upstream["engines"]:
            found[engine["address"]] = int(engine["in_flight"])
    return found


class Stages:
    """Live stages by configuration, the least recently used thrown away beyond `LIVE_MAX`."""

    def __init__(self) -> None:
        self._live: OrderedDict[Conf, Stage] = OrderedDict()
        self._root = Path(tempfile.mkdtemp(prefix="kvgate-faults-"))
        self._count = 0

    def get(self, conf: Conf) -> Stage:
        stage = self._live.pop(conf, None)
        if stage is None or not stage.gateway.alive:
            stage = self.fresh(conf)
        self._live[conf] = stage
        while len(self._live) > LIVE_MAX:
            self._live.popitem(last=False)[1].discard()
        stage.open()
        return stage

    def drop(self, stage: Stage) -> None:
        for conf, live in list(self._live.items()):
            if live is stage:
                del self._live[conf]
        stage.discard()

    def fresh(self, conf: Conf) -> Stage:
        """A stage of its own, not shared: for tests that stop the gateway."""
        for attempt in range(START_TRIES):
            self._count += 1
            folder = self._root / str(self._count)
            folder.mkdir()
            engines = [engine_for(conf, folder, index) for index in range(conf.engines)]
            ports = dict(zip(LANES, free_ports(len(LANES)), strict=True))
            admin = "" if NGINX else str(folder / "admin.sock")
            gateway = Gateway(render(conf, engines, ports, folder), folder, admin=admin)
            try:
                gateway.wait_ready(("127.0.0.1", ports[LANES[0]]), conf.ready)
            except NoStart as error:
                if "in use" in str(error) and attempt + 1 < START_TRIES:
                    continue
                raise
            return Stage(conf, engines, gateway, ports, folder)
        raise AssertionError("unreachable")

    def close(self) -> None:
        for stage in self._live.values():
            stage.discard()
        shutil.rmtree(self._root, ignore_errors=True)


def engine_for(conf: Conf, folder: Path, index: int) -> Engine:
    return Engine(
        unix_path=str(folder / f"e{index}.sock") if conf.unix_engines else "",
        tls=Certificate(Path(conf.tls_engines)).server() if conf.tls_engines else None,
        keepalive_s=conf.keepalive_s,
    )


def render(conf: Conf, engines: list[Engine], ports: dict[str, int], folder: Path) -> str:
    """The configuration text: one server per lane, and the admin one on a unix socket."""
    lines = [f"server {engine.address} {conf.server_args};" for engine in engines]
    names = {f"e{index}": engine.address for index, engine in enumerate(engines)}
    body = [f"upstream main {{ {' '.join(lines)} {NGINX_UPSTREAM if NGINX else MODEL}"]
    body += ["" if NGINX else conf.upstream, "}", fill(conf.extra, names), conf.http]
    for lane in LANES:
        express = "" if NGINX else f"express {'on' if lane == 'express' else 'off'};"
        common = f"{express} {conf.location} {NGINX_LOCATION if NGINX else ''}"
        body.append(
            f"server {{ listen 127.0.0.1:{ports[lane]} {conf.listen_args}; {conf.server}\n"
            f"  location / {{ proxy_pass {conf.proxy_pass}; {common} }}\n"
            f"  {fill(conf.locations, {'common': common, **names})} }}"
        )
    if NGINX:
        return f"daemon off; pid {folder}/pid;{NGINX_TOP}{conf.top} http {{ access_log off;" + (
            "\n".join([NGINX_HTTP.format(folder=folder), *body, "}"])
        )
    body.append(
        f"server {{ listen unix:{folder}/admin.sock;\n"
        "  location / { admin; }\n  location = /metrics { metrics; } }"
    )
    log = " ".join(f'"{name}":"${name}"' for name in ACCESS_FIELDS.split()).replace(" ", ",")
    http = f"log_format faults escape=json '{{{log}}}'; access_log {folder}/access.log faults;"
    return "\n".join([f"worker_processes 1; {conf.top}", f"http {{ {http}", *body, "}", ""])


def fill(text: str, names: dict[str, str]) -> str:
    """Replaces {name} for the given names only: configuration text is full of other braces."""
    for name, value in names.items():
        text = text.replace("{" + name + "}", value)
    return text


MODEL = "model m1;"
NGINX_UPSTREAM = "keepalive 64; keepalive_timeout 4s;"
NGINX_LOCATION = (
    "proxy_http_version 1.1; proxy_set_header Connection ''; proxy_buffering off; "
    "proxy_request_buffering off; client_max_body_size 64m;"
)
NGINX_TOP = " events { worker_connections 4096; } "
NGINX_HTTP = (
    "client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; "
    "fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;"
)
