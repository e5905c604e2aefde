"""Start, find and stop what is measured: kvgate (both lanes), nginx, vllm-router, or any other
command.

Each proxy runs alone, as one worker on the proxy's core, with an access log (or its nearest) to a
file, kept-alive connections on both sides, round robin over the same two engines and a limit on
connections far above the load. vllm-router is a thread pool: pinned to one core it starts one
thread, as the others do.
"""

from __future__ import annotations

import http.client
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import proc
import wire

ROOT = Path(__file__).parents[2]
VLLM_ROUTER = "0.1.17"
START_S = 60.0
STOP_S = 10.0

NGINX_CONF = """
worker_processes 1; daemon off; pid @DIR@/nginx.pid; error_log @DIR@/error.log warn;
worker_rlimit_nofile 20000;
events { worker_connections 9000; }
http {
    access_log @DIR@/access.log combined;
    client_body_temp_path @DIR@/b; proxy_temp_path @DIR@/p; fastcgi_temp_path @DIR@/f;
    uwsgi_temp_path @DIR@/u; scgi_temp_path @DIR@/s;
    upstream bench {
        server 127.0.0.1:@A@; server 127.0.0.1:@B@;
        keepalive 256; keepalive_timeout 4s;
    }
    limit_conn_zone $server_name zone=all:1m;
    server {
        listen 127.0.0.1:@PORT@ backlog=4096; server_name bench;
        keepalive_requests 1000000; client_max_body_size 64m; tcp_nodelay on;
        location /v1/ {
            limit_conn all 9000;
            proxy_pass http://bench; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_buffering off; proxy_read_timeout 600s;
        }
    }
}
"""
KVGATE_CONF = """
worker_processes 1; pid @DIR@/kvgate.pid; error_log @DIR@/error.log notice;
events { worker_connections 9000; }
http {
    access_log @DIR@/access.log;
    upstream bench { server 127.0.0.1:@A@; server 127.0.0.1:@B@; keepalive 256; }
    server {
        listen 127.0.0.1:@PORT@ backlog=4096;
        keepalive_requests 1000000;
        location /v1/ { proxy_pass http://bench; proxy_read_timeout 600s; express @EXPRESS@; }
        location = /metrics { metrics; }
    }
}
"""


@dataclass(slots=True)
class Proxy:
    """A running proxy. `process` leads a session of its own, so that stopping reaches all of it."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    metrics: str  # URL, of those that have one

    def pids(self) -> list[int]:
        return proc.tree(self.process.pid)

    def stop(self) -> None:
        stop(self.process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """TERM, then KILL what is left of the process's session."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a proxy is to run: its folder and ports, the engines' ports and where these publish
    KV events (live, replayed), the model's folder, a kvgate configuration or none.
    """

    folder: Path
    port: int
    engines: tuple[int, int]
    kvgate_conf: str = KVGATE_CONF
    tokenizer: str = ""
    events: tuple[tuple[str, str], ...] = ()
    metrics_port: int = 0

    def fill(self, text: str, **more: str) -> str:
        a, b = self.engines
        values = {"DIR": str(self.folder), "PORT": str(self.port), "A": str(a), "B": str(b)}
        values |= {"TOKENIZER": self.tokenizer} | more
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        return text

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


def nginx_binary() -> str:
    return shutil.which("nginx") or "/usr/sbin/nginx"  # Debian keeps it off a user's PATH


def nginx_command(site: Site) -> list[str]:
    user = "user root;" if os.geteuid() == 0 else ""  # its folder is private to who runs the bench
    conf = site.write("nginx.conf", user + site.fill(NGINX_CONF))
    return [
        nginx_binary(),
        "-p",
        str(site.folder),
        "-c",
        conf,
        "-e",
        str(site.folder / "error.log"),
    ]


def kvgate_command(express: str, file: str = "") -> Callable[[Site], list[str]]:
    """`file`: a configuration beside this file; "" = the site's."""

    def command(site: Site) -> list[str]:
        text = (Path(__file__).parent / file).read_text() if file else site.kvgate_conf
        conf = site.write("kvgate.conf", site.fill(text, EXPRESS=express))
        return [sys.executable, "-m", "gateway", "-c", conf]

    return command


def cache() -> Path:
    return Path(os.environ.get("KVGATE_CACHE", "~/.cache/kvgate")).expanduser()


def model_folder(folder: Path) -> str:
    """A model's tokenizer and chat template: a real small one where it is in the cache, else the
    one that the tests make.
    """
    real = cache() / "SmolLM2-135M-Instruct"
    if (real / "tokenizer.json").exists():
        return str(real)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from harness import model_folder

    return str(model_folder.write(folder / "model"))


def vllm_router_binary() -> Path:
    """Its own virtual environment, built once from PyPI and kept outside the clone."""
    home = cache() / f"vllm-router-{VLLM_ROUTER}"
    binary = home / "bin" / "vllm-router"
    if not binary.exists():
        print(f"bench: building {home} from PyPI", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        pip = [str(home / "bin" / "pip"), "install", "--quiet", f"vllm-router=={VLLM_ROUTER}"]
        subprocess.run(pip, check=True, stdout=sys.stderr)
    return binary


def vllm_router_command(policy: str) -> Callable[[Site], list[str]]:
    def command(site: Site) -> list[str]:
        urls = [f"http://127.0.0.1:{port}" for port in site.engines]
        where = ["--host", "127.0.0.1", "--port", str(site.port)]
        limits = ["--max-concurrent-requests", "9000", "--worker-startup-check-interval", "1"]
        metrics = ["--prometheus-port", str(site.metrics_port)]
        logs = ["--log-level", "info", "--log-dir", str(site.folder)]
        choice = ["--worker-urls", *urls, "--policy", policy]
        if policy == "kv_aware":
            choice += static_sources(urls, site.events)
        return [str(vllm_router_binary()), *where, *choice, *limits, *metrics, *logs]

    return command


def static_sources(urls: list[str], events: tuple[tuple[str, str], ...]) -> list[str]:
    """Where the engines publish: it does not find that out of a stock vLLM by itself. It makes no
    token ids for HTTP workers either, but asks them (`/render`, else `/tokenize`).
    """
    words = ["--kv-event-model", wire.MODEL.decode(), "--kv-event-block-size", "16"]
    for url, (live, replayed) in zip(urls, events, strict=True):
        words += ["--kv-event-source", f"{url}={live}"]
        words += ["--kv-event-replay-source", f"{url}={replayed}"]
    return words


COMMANDS: dict[str, Callable[[Site], list[str]]] = {
    "kvgate": kvgate_command("on"),
    "kvgate_starlette": kvgate_command("off"),
    "kvgate_realistic": kvgate_command("on", "realistic.conf"),
    "kvgate_kv": kvgate_command("on", "kv.conf"),
    "kvgate_kv_starlette": kvgate_command("off", "kv.conf"),
    "nginx": nginx_command,
    "vllm_router": vllm_router_command("round_robin"),
    "vllm_router_kv_aware": vllm_router_command("kv_aware"),
    "vllm_router_cache_aware": vllm_router_command("cache_aware"),
}


def add_command(text: str) -> str:
    """Register `NAME=COMMAND` (with @PORT@, @A@, @B@, @DIR@ in it) as one more proxy; return its
    name.
    """
    name, _, line = text.partition("=")
    if not name or not line:
        raise SystemExit(f"--extra {text!r}: expected NAME=COMMAND")
    COMMANDS[name] = lambda site: shlex.split(site.fill(line))
    return name


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(name: str, site: Site, core: set[int]) -> Proxy:
    """Start a proxy and wait until it serves a chat request. RuntimeError with its log if it
    does not.
    """
    command = COMMANDS[name](site)
    log = site.folder / f"{name}.out"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, core),
        )
    ours = name.startswith("kvgate")
    metrics = f"http://127.0.0.1:{site.port if ours else site.metrics_port}/metrics"
    proxy = Proxy(name, site.port, process, log, metrics)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if answers(site.port):
            return proxy
        time.sleep(0.1)
    proxy.stop()
    tail = log.read_bytes()[-2000:].decode(errors="replace")
    raise RuntimeError(f"{name} did not start: {shlex.join(command)}\n{tail}")


def answers(port: int) -> bool:
    ask = wire.Ask(b"bench-ready-000000000000", False, 1, 0, False)
    body = wire.request(b"", ask).partition(b"\r\n\r\n")[2]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", wire.PATH.decode(), body, {"content-type": "application/json"})
        return connection.getresponse().read() == wire.json_body(ask.nonce)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
