"""`kvgate upstream ACTION NAME SERVER`: changes the engines of a running gateway.

One call of the admin listener, `POST /kvgate/upstreams/NAME/servers` with a JSON object
`{"action", "server", "params"}`; what may be a parameter is the table's `server` line. Exit status:
0 done, 1 the gateway refused or could not be reached, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote

from gateway.conf import ConfigErrors, read, render_errors
from gateway.conf.engine_line import engine_line
from gateway.conf.model import Config, Location, Server
from gateway.conf.secrets import read_secret
from gateway.conf.units import BadValue

ACTIONS = {
    "add": "take an engine into the upstream, or give one that is there other parameters",
    "remove": "drain an engine and forget it",
    "drain": "send it nothing new; what runs there goes on",
    "ready": "send it requests again",
    "down": "send it nothing, as `down` on its server line",
}
TIMEOUT_S = 10.0
DEFAULT_FILE = "kvgate.conf"
USAGE = 2


@dataclass(frozen=True, slots=True)
class Admin:
    """Where the admin listener is: a socket's path, or a URL. `token`: "" where none is needed."""

    unix_path: str = ""
    url: str = "http://kvgate"
    token: str = ""


class Failed(Exception):
    """What went wrong, and a hint; `status` is the exit status."""

    def __init__(self, message: str, hint: str = "", status: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Failed(message, "kvgate upstream -h lists the options", USAGE)


def main(argv: Sequence[str]) -> int:
    try:
        options = _parser().parse_args(argv)
        params = parameters(options.action, options.server, options.params)
        admin = _named(options.admin) if options.admin else _of_file(options.file, options.prefix)
        token = _token(options.token) if options.token else admin.token
        body = {"action": options.action, "server": options.server, "params": params}
        print(_call(Admin(admin.unix_path, admin.url, token), options.name, body))
    except Failed as error:
        print(f"kvgate: {error}", file=sys.stderr)
        if error.hint:
            print(f"    hint: {error.hint}", file=sys.stderr)
        return error.status
    return 0


def _parser() -> _Parser:
    actions = "\n".join(f"  {word:<8}{doc}" for word, doc in ACTIONS.items())
    parser = _Parser(
        prog="kvgate upstream",
        description="Changes the engines of a running gateway; its file is not written.",
        epilog=f"actions:\n{actions}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("action", choices=ACTIONS, metavar="ACTION")
    add("name", metavar="NAME", help="the upstream")
    add("server", metavar="SERVER", help="the engine, as on its server line, or ADDRESS#RANK")
    add("params", metavar="PARAM", nargs="*", help="as on a server line, for add: weight=2 backup")
    add("-c", metavar="FILE", dest="file", help=f"configuration file (default: {DEFAULT_FILE})")
    add("-p", metavar="PREFIX", dest="prefix", help="where relative paths begin")
    add("--admin", metavar="ADDRESS", help="unix:/path or http://HOST:PORT, in place of the file's")
    add("--token", metavar="TOKEN", help="file:PATH or env:NAME, in place of the file's")
    return parser


def parameters(action: str, server: str, words: Sequence[str]) -> dict[str, str | bool]:
    """The parameters as JSON takes them, checked by the table. Raises Failed."""
    if words and action != "add":
        raise Failed(f'"{action}" takes no parameters', "they go with add", USAGE)
    params: dict[str, str | bool] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name in params:
            raise Failed(f'parameter "{name}" is duplicate', status=USAGE)
        params[name] = value if equals else True
    try:
        engine_line(server if action == "add" else server.partition("#")[0], params)
    except ConfigErrors as error:
        first = error.errors[0]
        raise Failed(first.message, first.hint, USAGE) from None
    return params


def _named(address: str) -> Admin:
    if address.startswith("unix:/"):
        return Admin(unix_path=address[5:])
    if address.startswith(("http://", "https://")):
        return Admin(url=address.rstrip("/"))
    raise Failed(f'"{address}" is not an admin address', "unix:/path or http://HOST:PORT", USAGE)


def _token(written: str) -> str:
    try:
        return read_secret(written, "", os.environ)[0]
    except BadValue as error:
        raise Failed(f"--token: {error.expected}", status=USAGE) from None


def _of_file(file: str | None, prefix: str | None) -> Admin:
    path = file or DEFAULT_FILE
    path = os.path.join(prefix, path) if prefix else path
    try:
        config = read(path, prefix).config
    except ConfigErrors as error:
        print(render_errors(error.errors), file=sys.stderr)
        hint = "-c FILE names the configuration, --admin the listener"
        raise Failed("the admin listener is not known", hint) from None
    return find_admin(config)


def find_admin(config: Config) -> Admin:
    """The first admin listener of a configuration, unix sockets before others. Raises Failed."""
    found = [
        (server, location)
        for server in config.servers
        for location in _flat(server.locations)
        if location.handler == "admin"
    ]
    for server, location in found:
        for listen in server.listens:
            if listen.unix_path:
                return Admin(unix_path=listen.unix_path, token=location.admin_token)
    for server, location in found:
        return Admin(url=_url(server), token=location.admin_token)
    hint = "add server { listen unix:/run/kvgate/admin.sock; location / { admin; } }"
    raise Failed(f"{config.file} has no admin location", hint)


def _flat(locations: tuple[Location, ...]) -> Iterator[Location]:
    for location in locations:
        yield location
        yield from _flat(location.locations)


def _url(server: Server) -> str:
    listen = server.listens[0]
    here = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
    host = here.get(listen.host, f"[{listen.host}]" if ":" in listen.host else listen.host)
    return f"{'https' if listen.ssl else 'http'}://{host}:{listen.port}"


def _call(admin: Admin, name: str, body: dict[str, Any]) -> str:
    """What to print. Raises Failed."""
    import httpx

    where = f"unix:{admin.unix_path}" if admin.unix_path else admin.url
    transport = httpx.HTTPTransport(uds=admin.unix_path or None)
    headers = {"authorization": f"Bearer {admin.token}"} if admin.token else {}
    target = f"{admin.url}/kvgate/upstreams/{quote(name, safe='')}/servers"
    try:
        with httpx.Client(transport=transport, timeout=TIMEOUT_S, headers=headers) as client:
            reply = client.post(target, json=body)
    except httpx.HTTPError as error:
        hint = "is the gateway running, and may you reach its admin listener?"
        raise Failed(f"cannot reach {where}: {error}", hint) from None
    if reply.is_success:
        return f"{name} {body['server']}: {body['action']}"
    raise Failed(_message(reply.status_code, reply.text))


def _message(status: int, text: str) -> str:
    """The message of an error in OpenAI's shape; the status where it has none."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {status}"
