"""The admin listener of a running gateway, as the companions of the command line find and ask it.

Invariant: everything that can go wrong is one `Failed`, with what was being done and a hint.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from gateway.conf import ConfigErrors, read, render_errors
from gateway.conf.model import Config, Location, Server
from gateway.conf.secrets import read_secret
from gateway.conf.units import BadValue

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


class Parser(argparse.ArgumentParser):
    """The options of a companion, those that lead to the admin listener included. A usage mistake
    is a `Failed`, too.
    """

    def error(self, message: str) -> NoReturn:
        raise Failed(message, f"{self.prog} -h lists the options", USAGE)

    def add_admin(self) -> None:
        """To be called last, so that help shows a companion's own options first."""
        add = self.add_argument
        add("-c", metavar="FILE", dest="file", help=f"configuration file (default: {DEFAULT_FILE})")
        add("-p", metavar="PREFIX", dest="prefix", help="where relative paths begin")
        add(
            "--admin",
            metavar="ADDRESS",
            help="unix:/path or http://HOST:PORT, in place of the file's",
        )
        add("--token", metavar="TOKEN", help="file:PATH or env:NAME, in place of the file's")


def status_of(work: Callable[[], None]) -> int:
    """The exit status; what failed is on stderr."""
    try:
        work()
    except Failed as error:
        print(f"kvgate: {error}", file=sys.stderr)
        if error.hint:
            print(f"    hint: {error.hint}", file=sys.stderr)
        return error.status
    return 0


def asked_for(options: argparse.Namespace) -> Admin:
    """By `--admin` and `--token`, or the configuration file. Raises Failed."""
    admin = named(options.admin) if options.admin else of_file(options.file, options.prefix)
    return Admin(admin.unix_path, admin.url, token(options.token)) if options.token else admin


def named(address: str) -> Admin:
    if address.startswith("unix:/"):
        return Admin(unix_path=address[5:])
    if address.startswith(("http://", "https://")):
        return Admin(url=address.rstrip("/"))
    raise Failed(f'"{address}" is not an admin address', "unix:/path or http://HOST:PORT", USAGE)


def token(written: str) -> str:
    try:
        return read_secret(written, "", os.environ)[0]
    except BadValue as error:
        raise Failed(f"--token: {error.expected}", status=USAGE) from None


def of_file(file: str | None, prefix: str | None) -> Admin:
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


def get(admin: Admin, path: str) -> Any:
    """As `post`, without a body."""
    return _call(admin, "GET", path, None)


def post(admin: Admin, path: str, body: dict[str, Any]) -> Any:
    """The reply's JSON. Raises Failed: nobody answers, or the gateway refuses."""
    return _call(admin, "POST", path, body)


def _call(admin: Admin, method: str, path: str, body: dict[str, Any] | None) -> Any:
    import httpx

    where = f"unix:{admin.unix_path}" if admin.unix_path else admin.url
    transport = httpx.HTTPTransport(uds=admin.unix_path or None)
    headers = {"authorization": f"Bearer {admin.token}"} if admin.token else {}
    try:
        with httpx.Client(transport=transport, timeout=TIMEOUT_S, headers=headers) as client:
            reply = client.request(method, f"{admin.url}{path}", json=body)
    except httpx.HTTPError as error:
        hint = "is the gateway running, and may you reach its admin listener?"
        raise Failed(f"cannot reach {where}: {error}", hint) from None
    if not reply.is_success:
        raise Failed(_message(reply.status_code, reply.text))
    return reply.json()


def _message(status: int, text: str) -> str:
    """The message of an error in OpenAI's shape; the status where it has none."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {status}"
