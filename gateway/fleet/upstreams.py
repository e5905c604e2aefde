"""Changes of upstreams at run time: a request becomes another configuration. Pure.

What is changed here lasts until the next reload, which goes back to the file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gateway.conf.errors import ConfigErrors
from gateway.conf.load import load_text
from gateway.conf.model import Config, EngineLine, Upstream

ACTIONS = ("add", "remove", "drain", "ready", "down")
_WORD = re.compile(r"[A-Za-z0-9_.:/\[\]\-]{1,300}")
_SERVER = re.compile(r"[A-Za-z0-9_.:/\[\]\-]{1,300}(#[0-9]{1,3})?")
_NAME = re.compile(r"[a-z_]{1,40}")


class Refused(ValueError):
    """The change is not made; the text says why. `missing`: what it names is not there."""

    def __init__(self, why: str, missing: bool = False) -> None:
        super().__init__(why)
        self.missing = missing


def changed(config: Config, change: dict[str, Any]) -> Config:
    """The configuration after `{"upstream", "action", "server", "params"}`: `server` is one engine
    or all ranks of one server. Raises Refused.
    """
    name, action, server = (change.get(key) for key in ("upstream", "action", "server"))
    upstream = config.upstreams.get(name) if isinstance(name, str) else None
    if upstream is None:
        raise Refused(f"there is no upstream `{name}`", missing=True)
    if action not in ACTIONS:
        raise Refused(f"`action` must be one of {', '.join(ACTIONS)}")
    if not isinstance(server, str) or not _SERVER.fullmatch(server):
        raise Refused("`server` must be HOST:PORT or unix:PATH")
    params = change.get("params") or {}
    if not isinstance(params, dict):
        raise Refused("`params` must be an object")
    there = [line for line in upstream.engines if server in (line.address, line.server)]
    if action == "add":
        engines = _added(upstream, server, params, bool(there))
    elif not there:
        raise Refused(f"upstream `{name}` has no server {server}", missing=True)
    else:
        engines = (
            _without(upstream, server)
            if action == "remove"
            else _marked(upstream, server, str(action))
        )
    upstreams = {**config.upstreams, upstream.name: replace(upstream, engines=engines)}
    return replace(config, upstreams=upstreams)


def _added(
    upstream: Upstream, server: str, params: dict[str, Any], there: bool
) -> tuple[EngineLine, ...]:
    if "#" in server:
        raise Refused("`server` names one rank: add the server, with `ranks`")
    if there:
        raise Refused(f"upstream `{upstream.name}` has {server} already")
    return (*upstream.engines, *parsed(server, params))


def _without(upstream: Upstream, server: str) -> tuple[EngineLine, ...]:
    if "#" in server:
        raise Refused("`server` names one rank: remove the server, or use `down`")
    left = tuple(line for line in upstream.engines if server not in (line.address, line.server))
    if not left:
        raise Refused(f"{server} is the last server of upstream `{upstream.name}`; use `down`")
    return left


def _marked(upstream: Upstream, server: str, action: str) -> tuple[EngineLine, ...]:
    return tuple(
        replace(line, drain=action == "drain", down=action == "down")
        if server in (line.address, line.server)
        else line
        for line in upstream.engines
    )


def parsed(server: str, params: dict[str, Any]) -> tuple[EngineLine, ...]:
    """The engines of a `server` line, by the rules of the configuration language. Raises Refused.
    """
    words = []
    for name, value in params.items():
        text = str(value)
        if not _NAME.fullmatch(name) or not (value is True or _WORD.fullmatch(text)):
            raise Refused(f"`params`: {name!r} is no parameter of a server")
        if value is not False:
            words.append(name if value is True else f"{name}={text}")
    line = f"server {server} {' '.join(words)};"
    try:
        text = f"http {{ upstream u {{ {line} }} server {{ listen 1; return 404; }} }}"
        return load_text(text, "(change)").upstreams["u"].engines
    except ConfigErrors as error:
        raise Refused("; ".join(one.message for one in error.errors)) from None
