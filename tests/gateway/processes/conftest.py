"""A gateway with several workers that tests reload, kill and replace."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import waiting
from harness.client import Client
from harness.gateway import Gateway, free_ports
from harness.upstream import Engine
from harness.wire import Reply

Made = Callable[..., "Tree"]


class Tree:
    """One gateway process tree. `servers` is the text inside its upstream `main`."""

    def __init__(
        self,
        folder: Path,
        engines: list[Engine],
        *,
        workers: int = 2,
        top: str = "",
        access: Path | None = None,
        detached: bool = False,
    ) -> None:
        """`access`: a log of request lines; `detached`: without a controlling terminal."""
        self.folder = folder
        self.engines = engines
        self.workers = workers
        self.top = top if "error_log" in top else f"error_log stderr info; {top}"
        self.access = access
        self.port, self.port2 = free_ports(2)
        self.server_args: dict[str, str] = {}
        self.upstream = "health_check off;"
        self.more = ""  # inside http
        self.locations = ""
        folder.mkdir(parents=True, exist_ok=True)
        admin = str(folder / "admin.sock")
        self.gateway = Gateway(self.text(), folder, admin=admin, detached=detached)
        self.gateway.wait_ready(("127.0.0.1", self.port))
        self.wait_workers(workers)

    # ---- configuration

    def text(self) -> str:
        lines = "".join(
            f"server {e.address} {self.server_args.get(e.address, 'max_fails=0')};"
            for e in self.engines
        )
        log = f"access_log {self.access};" if self.access else "access_log off;"
        return (
            f"worker_processes {self.workers}; {self.top}\n"
            f"http {{ {log} {self.more}\n"
            f" upstream main {{ {lines} model m1; {self.upstream} }}\n"
            f" server {{ listen 127.0.0.1:{self.port};\n"
            f"  location / {{ proxy_pass http://main; }} {self.locations} }}\n"
            f" server {{ listen unix:{self.folder}/admin.sock;\n"
            "  location / { admin; } location = /metrics { metrics; } } }\n"
        )

    def write(self) -> None:
        self.gateway.config_file.write_text(self.text())

    def reload(self) -> int:
        """Writes the file, sends HUP, waits until every process has taken it; the generation."""
        before = self.generation
        self.write()
        self.gateway.signal(signal.SIGHUP)
        waiting.until(lambda: self.generation == before + 1, f"generation {before + 1}", 10)
        return before + 1

    # ---- what it says

    def status(self) -> dict[str, Any]:
        return self.gateway.status()

    @property
    def generation(self) -> int:
        return int(self.status()["generation"])

    def processes(self, kind: str = "worker", state: str = "serving") -> list[int]:
        return [
            p["pid"] for p in self.status()["processes"] if (p["kind"], p["state"]) == (kind, state)
        ]

    def wait_workers(self, count: int, without: tuple[int, ...] = ()) -> list[int]:
        """Waits until `count` workers serve, none of them of `without`; their pids."""

        def there() -> list[int] | None:
            try:
                pids = self.processes()
            except (OSError, AssertionError, ValueError):
                return None  # the one that answered has just died
            return pids if len(pids) == count and not set(pids) & set(without) else None

        found = waiting.until(there, f"{count} workers serving, without {without}", 15)
        assert found is not None
        return found

    def engine_rows(self) -> dict[str, dict[str, Any]]:
        return {e["address"]: e for e in self.status()["upstreams"]["main"]["engines"]}

    def in_flight(self) -> int:
        return sum(int(row["in_flight"]) for row in self.engine_rows().values())

    # ---- talking to it

    def client(self, port: int = 0) -> Client:
        return Client(("127.0.0.1", port or self.port))

    def ask(self, body: bytes, port: int = 0) -> Reply:
        with self.client(port) as client:
            return client.ask(body)

    def post(self, path: str, document: dict[str, Any]) -> tuple[int, Any]:
        with Client(str(self.folder / "admin.sock")) as client:
            reply = client.ask(json.dumps(document).encode(), target=path)
            return reply.status, json.loads(reply.body)

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(pid, number)

    def close(self) -> None:
        self.gateway.kill()
        self.gateway.stop()
        for engine in self.engines:
            engine.kill()


@pytest.fixture
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Made]:
    """`tree(engines=2, workers=2, top="...")` starts one."""
    made: list[Tree] = []

    def start(engines: int = 2, **how: Any) -> Tree:
        folder = tmp_path / str(len(made))
        made.append(Tree(folder, [Engine() for _ in range(engines)], **how))
        return made[-1]

    yield start
    for one in made:
        if getattr(request.node, "failed", False):
            print(one.gateway.log()[-6000:])
        one.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    """Shows the tail of the gateway's log with a failure."""
    report = yield
    item.failed = getattr(item, "failed", False) or report.failed  # type: ignore[attr-defined]
    return report
