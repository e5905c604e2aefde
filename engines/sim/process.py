"""Simulated engines for tests and demos: as subprocesses, or in a thread of this process.

    with SimEngine("--tokens", "8") as engine:
        httpx.post(engine.url + "/v1/chat/completions", json=...)
        engine.state()["aborted"]

A process is killed when its `with` block ends; nothing survives a failing test.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import cli
from .server import Server

_ROOT = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S = 30.0
POLL_S = 0.01


class SimFailed(RuntimeError):
    """The engine ended or stayed silent before it was ready."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


class SimEngine:
    """One engine. `args` are those of `kvgate sim`; port 0 unless one is given.

    `thread=True` runs it in a thread of this process: faster to start, but it shares the GIL.
    """

    def __init__(self, *args: object, thread: bool = False, stderr: Any = None) -> None:
        self.args = [str(a) for a in args]
        if "--port" not in self.args and "--uds" not in self.args:
            self.args += ["--port", "0"]
        self._thread_mode, self._stderr = thread, stderr
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: _EngineThread | None = None
        self.url = ""

    # -- life

    def start(self) -> SimEngine:
        """Starts and waits until it listens. Raises SimFailed."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        if self._thread_mode:
            self._thread = _EngineThread(self.args)
            self._thread.start()
            return
        env = dict(os.environ)
        env["PYTHONPATH"] = os.pathsep.join(
            [str(_ROOT), *filter(None, [env.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engines.sim", *self.args], env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=self._stderr)

    def wait_ready(self) -> None:
        if self._thread is not None:
            self.url = self._thread.wait_ready(READY_TIMEOUT_S)
            return
        assert self._process is not None and self._process.stdout is not None
        timer = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        timer.start()
        line = self._process.stdout.readline().decode().strip()
        timer.cancel()
        if not line.startswith("ready "):
            self.stop()
            raise SimFailed(f"engine `{' '.join(self.args)}` did not become ready: {line!r}")
        self.url = line.removeprefix("ready ")

    def stop(self) -> None:
        """Ends it in order (SIGTERM), then by force."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def kill(self) -> None:
        """SIGKILL, as a crash; the object can be started anew on the same port."""
        process = self._process
        assert process is not None, "only a subprocess can be killed"
        port = self.port
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        self._process = None
        if "--port" in self.args:
            self.args[self.args.index("--port") + 1] = str(port)

    def pause(self) -> None:
        """SIGSTOP: alive, its sockets open, and silent."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> SimEngine:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- what it is and does

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1]) if not self.url.startswith("unix:") else 0

    @property
    def address(self) -> str:
        """`host:port` or `unix:PATH`, as a server line of the gateway's configuration takes it."""
        return self.url if self.url.startswith("unix:") else self.url.split("://", 1)[1]

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request on a connection of its own; the reply's JSON, or its text."""
        connection: http.client.HTTPConnection
        if self.url.startswith("unix:"):
            connection = _UnixConnection(self.url.removeprefix("unix:"))
        else:
            host, port = self.address.rsplit(":", 1)
            connection = http.client.HTTPConnection(host, int(port), timeout=30)
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = {} if body is None else {"content-type": "application/json"}
            connection.request(method, path, data, headers)
            reply = connection.getresponse()
            raw = reply.read()
            kind = reply.getheader("content-type") or ""
            return reply.status, json.loads(raw) if "json" in kind else raw.decode()
        finally:
            connection.close()

    def state(self) -> dict[str, Any]:
        value: dict[str, Any] = self.call("GET", "/sim/state")[1]
        return value

    def faults(self, specs: Iterable[str]) -> None:
        """Replaces the scripted faults. Raises ValueError for a spec the engine refuses."""
        status, value = self.call("POST", "/sim/faults", list(specs))
        if status != 200:
            raise ValueError(value["error"]["message"])

    def metrics(self) -> str:
        text: str = self.call("GET", "/metrics")[1]
        return text

    def wait_for(self, condition: Callable[[dict[str, Any]], bool],
                 timeout_s: float = 5.0) -> dict[str, Any]:
        """The first state that meets `condition`. Raises TimeoutError with the last one."""
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.state()
            if condition(state):
                return state
            if time.monotonic() > deadline:
                raise TimeoutError(f"engine state never met the condition: {state}")
            time.sleep(POLL_S)


def start_all(engines: Iterable[SimEngine]) -> None:
    """Starts several at once: their start-up overlaps."""
    launched = list(engines)
    for engine in launched:
        engine.launch()
    for engine in launched:
        engine.wait_ready()


class _EngineThread(threading.Thread):
    def __init__(self, args: list[str]) -> None:
        super().__init__(daemon=True, name="sim-engine")
        self._config = cli.settings(args)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._halt: asyncio.Event | None = None
        self._url = ""
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as exc:
            self._error = exc
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._halt = asyncio.get_running_loop(), asyncio.Event()
        server = Server(self._config)
        try:
            await server.start()
            self._url = server.url
            self._ready.set()
            await self._halt.wait()
        finally:
            await server.stop()

    def wait_ready(self, timeout_s: float) -> str:
        if not self._ready.wait(timeout_s) or not self._url:
            raise SimFailed(f"engine thread did not become ready: {self._error}")
        return self._url

    def stop(self) -> None:
        if self._loop is not None and self._halt is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._halt.set)
        self.join(10)
