"""What a running gateway and its configuration say to the planner: the recording, the engines that
are up, their memory and step times, the SLO; and which of it was measured.

Invariant: whatever is missing is one `Failed` with what to write; nothing is changed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.cli import admin_client
from gateway.cli.companion import DEFAULT_FILE, Failed
from gateway.conf import ConfigErrors, read, render_errors
from gateway.conf.model import Config, Location, Proxy, Upstream
from gateway.planner.roles import ROLES

STREAMS = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class Live:
    """`engines` that are up, `prefill` of them for prompts alone, so many for `both`; `mode` as
    `disaggregate` has it. `kv_tokens` of one engine, 0 = the profile's; `chunk_tokens` likewise;
    `constants` of the profile line. SLOs in seconds, 0 =
    none. `report`: where the planner's is kept, "" = nowhere. `measured`, `assumed`: sentences."""

    trace: Path
    upstream: str
    engines: int
    prefill: int
    both: int
    mode: str
    kv_tokens: int
    profile: str
    constants: tuple[tuple[str, float], ...]
    chunk_tokens: int
    ttft_s: float
    tpot_s: float
    report: str
    measured: tuple[str, ...]
    assumed: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--live", action="store_true", help="read a running gateway: its recording and engines")
    add("--upstream", default="", metavar="NAME", help="with --live, where there are several")


def look(options: argparse.Namespace) -> Live:
    """Raises Failed."""
    config = _config(options)
    admin = admin_client.asked_for(options) if options.admin else admin_client.find_admin(config)
    upstream = _upstream(config, options.upstream)
    trace = _trace(config, upstream.name)
    found = admin_client.get(admin, "/kvgate/status")["upstreams"].get(upstream.name)
    if found is None:
        raise Failed(
            f"the running gateway has no upstream {upstream.name}", "was it reloaded since?"
        )
    up = [engine for engine in found["engines"] if engine["state"] == "up"]
    if not up:
        raise Failed(f"no engine of {upstream.name} is up", "kvgate upstream list shows them")
    return _live(upstream, trace, up)


def said(measured: Iterable[str], assumed: Iterable[str]) -> list[str]:
    """For people."""
    lines = [f"measured: {line}" for line in measured]
    return [*lines, *(f"assumed:  {line}" for line in assumed)]


def _live(upstream: Upstream, trace: Path, up: list[dict[str, Any]]) -> Live:
    kv, roles = upstream.kv, Counter(str(engine["role"]) for engine in up)
    measured = [
        f"arrivals and lengths: recorded in {trace}",
        f"engines: {_roles(upstream, roles)}",
    ]
    assumed = _unlike(upstream, roles)
    tokens, who = _memory(up)
    if who == "engine":
        measured.append(f"KV memory: {tokens} tokens of an engine, as engines say")
    else:
        source = "written in kv_capacity" if who == "kv_capacity" else f"the profile {kv.profile}"
        assumed.append(f"KV memory: {source}; engines that are asked for metrics say it")
    if kv.fit:
        measured.append(f"step times: the profile line of {upstream.name}")
    else:
        assumed.append(f"step times: the profile {kv.profile}; kvgate calibrate measures an engine")
    return Live(
        trace=trace,
        upstream=upstream.name,
        engines=len(up),
        prefill=roles["prefill"],
        both=roles["both"],
        mode=upstream.disaggregation.mode,
        kv_tokens=tokens,
        profile=kv.profile,
        constants=kv.fit,
        chunk_tokens=kv.chunk_tokens,
        ttft_s=kv.ttft_s,
        tpot_s=kv.tpot_s,
        report=upstream.plan_report,
        measured=tuple(measured),
        assumed=tuple(assumed),
    )


def _roles(upstream: Upstream, roles: Counter[str]) -> str:
    """What is up, by what it may do."""
    parts = ", ".join(f"{roles[role]} {role}" for role in ROLES if roles[role])
    mode = upstream.disaggregation.mode
    return f"{roles.total()} of {upstream.name} are up, {parts}; `disaggregate {mode}`"


def _unlike(upstream: Upstream, roles: Counter[str]) -> list[str]:
    """What a replay of the engines as they are does otherwise than the gateway."""
    said = []
    if roles["prefill"] == roles.total():
        said.append("as it is now: it is not replayed, as no engine that is up may answer")
    elif roles["prefill"] and not upstream.disaggregation.wanted:
        said.append("as it is now: without engines of role prefill, which get nothing")
    if upstream.disaggregation.roles == "elastic":
        said.append("as it is now: roles stay what they are, though they are elastic")
    if not upstream.kv.aware:
        said.append("routing: by cost and cached prefix (`kv_aware`), which is not configured")
    return said


def _memory(up: list[dict[str, Any]]) -> tuple[int, str]:
    """(tokens of the smallest, who says so); 0 where caches are not followed."""
    known = [engine["kv"] for engine in up if engine["kv"]]
    if len(known) < len(up):
        return 0, "profile"
    least = min(known, key=lambda one: int(one["capacity_tokens"]))
    return int(least["capacity_tokens"]), str(least["capacity_from"])


def _config(options: argparse.Namespace) -> Config:
    path = options.file or DEFAULT_FILE
    path = os.path.join(options.prefix, path) if options.prefix else path
    try:
        return read(path, options.prefix).config
    except ConfigErrors as error:
        print(render_errors(error.errors), file=sys.stderr)
        raise Failed("--live reads the configuration", "-c FILE names it") from None


def _upstream(config: Config, wanted: str) -> Upstream:
    names = ", ".join(config.upstreams)
    if wanted:
        if wanted not in config.upstreams:
            raise Failed(f"there is no upstream {wanted}", f"there are {names}")
        return config.upstreams[wanted]
    if len(config.upstreams) != 1:
        raise Failed("which upstream?", f"--upstream NAME: one of {names}")
    return next(iter(config.upstreams.values()))


def _trace(config: Config, upstream: str) -> Path:
    found = {
        location.recording.path
        for server in config.servers
        for location in _flat(server.locations)
        if location.recording is not None
        and isinstance(location.handler, Proxy)
        and location.handler.upstream in ("", upstream)
    }
    files = sorted(found - set(STREAMS))
    if not files:
        raise Failed(
            f"requests to {upstream} are not recorded in a file",
            "record logs/requests.trace secret=file:PATH; in its location",
        )
    if len(files) > 1:
        raise Failed(
            f"requests to {upstream} are recorded in {', '.join(files)}",
            "name the one to read in place of --live",
        )
    return Path(files[0])


def _flat(locations: tuple[Location, ...]) -> Iterator[Location]:
    for location in locations:
        yield location
        yield from _flat(location.locations)
