"""The gateway in front of one pair: both lanes, and what it says of a request afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from e2e import fleet
from e2e.disagg import asks
from e2e.disagg.pair import LEASE_S, MODEL, WEIGHTS, Pair
from harness import waiting
from harness.gateway import Gateway, free_ports

CONFIG = """\
error_log stderr info;

http {{
    upstream pair {{
        model {model};
        server 127.0.0.1:{prefill} role=prefill;
        server 127.0.0.1:{decode} role=decode;
        kv_aware;
        kv_events off;
        tokenizer {tokenizer};
        disaggregate {when};
        kv_lease {lease}s;
        health_check interval=1s timeout=2s fails=2;
        {upstream}
    }}
    access_log {folder}/access.log;
    expose_receipt on;
    {http}
    server {{
        listen 127.0.0.1:{express};
        location / {{ proxy_pass http://pair; {location} }}
    }}
    server {{
        listen 127.0.0.1:{starlette};
        express off;
        location / {{ proxy_pass http://pair; {location} }}
    }}
    server {{
        listen unix:{admin};
        location / {{ admin; }}
        location /metrics {{ metrics; }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a test sets beside the usual configuration."""

    when: str = "always"
    http: str = ""
    upstream: str = ""
    location: str = ""


@dataclass(slots=True)
class Front:
    gateway: Gateway
    lanes: dict[str, str]  # base URL by lane

    def tokens(self) -> str:
        """Where token ids of prompts come from."""
        found: Any = self.gateway.status()
        return str(found["upstreams"]["pair"]["tokenizer"]["state"])

    def wait_handing(self) -> None:
        """Until both lanes hand prompts over: no engine is out, and the two are not kept apart."""
        for number, base_url in enumerate(self.lanes.values()):

            def handed(base_url: str = base_url, number: int = number) -> bool:
                path, body = asks.completion(f"{time.monotonic()} {number}", 100, max_tokens=1)
                reply = httpx.post(base_url + path, json=body, timeout=60)
                return "x-kvgate-prefill" in reply.headers

            waiting.until(handed, "prompts to be handed over", 60)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the gateway's series of that name that carry `labels`."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in self.gateway.metrics().splitlines()
            if line.startswith((f"{name}{{", f"{name} ")) and all(part in line for part in wanted)
        )


@contextmanager
def running(pair: Pair, folder: Path, rules: Rules = Rules()) -> Iterator[Front]:
    """A gateway for as long as the block runs; it must still be alive at the end."""
    express, starlette = free_ports(2)
    folder.mkdir(parents=True, exist_ok=True)
    admin = f"{folder}/admin.sock"
    config = CONFIG.format(
        model=MODEL, prefill=pair.prefill.port, decode=pair.decode.port, when=rules.when,
        lease=LEASE_S, upstream=rules.upstream, http=rules.http, location=rules.location,
        tokenizer=WEIGHTS if fleet.KIND == "vllm" else "remote",
        folder=folder, express=express, starlette=starlette, admin=admin,
    )  # fmt: skip
    process = Gateway(config, folder, admin=admin)
    try:
        process.wait_ready(("127.0.0.1", express))
        made = Front(
            process,
            {
                "express": f"http://127.0.0.1:{express}",
                "starlette": f"http://127.0.0.1:{starlette}",
            },
        )
        # The tokenizer is loaded in the background; prompts that cannot be read go to one engine.
        waiting.until(lambda: made.tokens() in ("local", "engine"), "token ids of prompts", 60)
        yield made
        assert process.alive, process.log()[-4000:]
    finally:
        process.stop()
