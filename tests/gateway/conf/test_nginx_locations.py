"""Which server, which location: ours beside a real nginx, on the same file and requests."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.conf import ConfigErrors, load_text
from gateway.conf.model import Config, Location, Return
from gateway.site.sites import Row, Site

SERVERS = 40
PREFIXES = ["/", "/a", "/a/", "/ab", "/a/b", "/a/b/", "/b", "/a/bc", "/A"]
REGEXES = ["b$", "^/a", "a/b", "^/$", "c", "^/a/b.", "B", "/a/(b|c)/?$"]
PATHS = [
    "".join(parts)
    for parts in itertools.product(["/", "/a", "/ab", "/A"], ["", "/", "/b", "b"], ["", "/", "c"])
]


MODIFIERS = ["", "", "", "=", "^~", "~", "~*"]


def _location(rng: random.Random, depth: int, around: tuple[str, str], mark: str) -> str:
    """A random location. `around`: modifier and pattern of the block that it is in."""
    modifier = rng.choice(["~", "~*"] if around[0] in ("~", "~*") else MODIFIERS)
    if modifier in ("~", "~*"):
        pattern = rng.choice(REGEXES)
    else:
        pattern = rng.choice([p for p in PREFIXES if p.startswith(around[1])])
    inner = ""
    if depth and modifier != "=":
        inner = _locations(rng, depth - 1, (modifier, pattern), mark)
    mark = f"{mark} {modifier}{pattern}".replace("$", "!")  # no variable is meant
    return f'location {modifier} "{pattern}" {{ {inner} return 200 "{mark}"; }}\n'


def _locations(rng: random.Random, depth: int, around: tuple[str, str], mark: str) -> str:
    """Some locations, no two with one pattern."""
    count = rng.choice([0, 1, 3]) if around[1] else rng.randint(3, 6)
    found: dict[str, str] = {}
    for _ in range(count):
        location = _location(rng, depth, around, f"{mark} {around[1]}")
        found.setdefault(location.split(" {")[0].replace("^~", ""), location)
    return "".join(found.values())


def _server(rng: random.Random, name: str, depth: int = 2) -> str:
    body = _locations(rng, depth, ("", ""), name)
    return f"server {{ listen unix:{{folder}}/s; server_name {name};\n{body} }}\n"


def _disturbed(rng: random.Random, http: str) -> str:
    """The same with one pattern exchanged, so that it may be a duplicate, outside, or inside what
    takes nothing.
    """
    heads = list(re.finditer(r'location (\S*) ".*?"', http))
    head = rng.choice(heads)
    modifier = rng.choice([*MODIFIERS, "@"])
    if modifier == "@":
        new = "location @named"
    else:
        new = f'location {modifier} "{rng.choice(REGEXES if "~" in modifier[:1] else PREFIXES)}"'
    return http[: head.start()] + new + http[head.end() :]


def rows(locations: Sequence[Location]) -> list[Row[Location]]:
    return [(x.modifier, x.pattern, x, rows(x.locations)) for x in locations]


def site(config: Config) -> Site[Location]:
    return Site([(server.names, False, rows(server.locations)) for server in config.servers])


def text(location: Location | None) -> str:
    assert location is not None and isinstance(location.handler, Return)
    assert location.handler.text.constant is not None
    return location.handler.text.constant


def ours(http: str) -> Config | None:
    try:
        return load_text(f"http {{ {http.replace('{folder}', '/x')} }}")
    except ConfigErrors:
        return None


def test_the_same_trees_are_right(nginx: Any) -> None:
    """Also with locations that may not stand inside others, and with duplicates."""
    rng = random.Random(7)
    seen = []
    for number in range(80):
        http = _disturbed(rng, _server(rng, f"t{number}"))
        complaint = nginx.complaint(http)
        assert (ours(http) is not None) == (complaint == ""), http + complaint
        seen.append(complaint)
    text = "".join(seen)
    kinds = ("duplicate location", "is outside location", "inside the exact", "on the server level")
    assert "" in seen and all(kind in text for kind in kinds), text


def test_the_same_location_answers(nginx: Any) -> None:
    rng = random.Random(11)
    http = "".join(_server(rng, f"t{number}") for number in range(SERVERS))
    nginx.start(http)
    config = ours(http)
    assert config is not None
    table = site(config)
    found = set()
    for number in range(SERVERS):
        host = f"t{number}"
        for path in rng.sample(PATHS, 24):
            answer = nginx.ask(path, host)
            location, _ = table.find(host.encode(), path.encode())
            if answer.status == 404:
                assert location is None, (host, path)
            else:
                assert text(location) == answer.body, (host, path)
                found.add(answer.body)
    assert len(found) > SERVERS * 2, "the trees were too plain to tell anything"


NAMES = [
    ["a.example.org"],
    ["*.example.org"],
    [".tree.org", "deep.x.tree.org"],
    ["*.x.tree.org"],
    ["www.*"],
    ["www.tree.*"],
    [r"~^r(?<n>\d+)\."],
    [r"~example\.net$", "*.net"],
    ["default.org"],
    ['""'],
    ["UPPER.org"],
]
HOSTS = [
    "a.example.org", "b.example.org", "example.org", "x.y.example.org", "tree.org", "q.tree.org",
    "x.tree.org", "deep.x.tree.org", "s.x.tree.org", "www.tree.com", "www.other", "www", "r12.org",
    "r.org", "example.net", "www.example.net", "upper.org", "UPPER.ORG", "a.example.org.", "none",
    "a.example.org:8080", "www.example.org", "rwww.tree.org", "www.tree.org", "default.org",
]  # fmt: skip


@pytest.mark.parametrize("default", [0, 8])
def test_the_same_server_answers(nginx: Any, default: int) -> None:
    http = "".join(
        f"server {{ listen unix:{{folder}}/s{' default_server' if i == default else ''};"
        f' server_name {" ".join(names)}; location / {{ return 200 "{i}"; }} }}\n'
        for i, names in enumerate(NAMES)
    )
    nginx.start(http)
    config = ours(http)
    assert config is not None
    # As gateway/site/fronts.py does: the default server of an address stands first.
    servers = sorted(config.servers, key=lambda server: not server.listens[0].default_server)
    table = Site([(server.names, False, rows(server.locations)) for server in servers])
    for host in HOSTS:
        location, _ = table.find(host.encode(), b"/")
        assert text(location) == nginx.ask("/", host).body, host
