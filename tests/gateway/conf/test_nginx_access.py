"""`allow` and `deny`: ours beside a real nginx, with addresses that a header gives it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gateway.conf import load_text
from gateway.conf.model import AccessRule
from gateway.site.access import Access, Networks

NETWORKS = [
    "10.0.0.1", "10.0.0.0/8", "10.0.0.0/31", "192.168.0.0/16", "0.0.0.0/0", "::1", "fd00::/8",
    "2001:db8::/33", "::/0", "unix:", "all",
]  # fmt: skip
ADDRESSES = [
    "10.0.0.1", "10.0.0.2", "10.255.255.255", "11.0.0.0", "192.168.3.4", "8.8.8.8", "::1", "::2",
    "fd00::1", "fdff::", "fe00::1", "2001:db8::1", "2001:db8:8000::1", "::ffff:10.0.0.1",
    "::ffff:8.8.8.8",
]  # fmt: skip
REAL_IP = "set_real_ip_from unix:; real_ip_header X-Address;"


def _rules(rng: random.Random) -> str:
    count = rng.choice([0, 0, 1, 2, 4])
    return "".join(f"{rng.choice(['allow', 'deny'])} {rng.choice(NETWORKS)};" for _ in range(count))


def _server(rng: random.Random, number: int) -> str:
    inner = f"location /a/b {{ {_rules(rng)} proxy_pass http://u; }}"
    outer = f"location /a {{ {_rules(rng)} {inner} proxy_pass http://u; }}"
    listen = f"listen unix:{{folder}}/s; server_name t{number};"
    return f"server {{ {listen} {_rules(rng)} {outer} }}\n"


def test_the_same_clients_may_come(nginx: Any) -> None:
    rng = random.Random(3)
    http = "upstream u { server unix:{folder}/echo; }" + _rules(rng)
    http += "".join(_server(rng, number) for number in range(30))
    echo = "server { listen unix:{folder}/echo; allow all; location / { return 200; } }"
    nginx.start(REAL_IP + http + echo)
    servers = load_text(f"http {{ {http.replace('{folder}', '/x')} }}").servers
    seen = set()
    for number, server in enumerate(servers):
        (outer,) = server.locations
        for path, location in (("/a/x", outer), ("/a/b", *outer.locations)):
            access = Access(location.access)
            for address in rng.sample(ADDRESSES, 5):
                answer = nginx.ask(path, f"t{number}", f"X-Address: {address}\r\n")
                expected = 200 if access.allows(address) else 403
                assert answer.status == expected, (location.access, address)
                seen.add(expected)
            answer = nginx.ask(path, f"t{number}")
            assert answer.status == (200 if access.allows("unix:") else 403), location.access
    assert seen == {200, 403}


@pytest.mark.parametrize("address", ["", "nonsense", "10.0.0.1:80", "10.0.0.256", "[::1]"])
def test_what_is_no_address_fits_no_network(address: str) -> None:
    assert address not in Networks(["0.0.0.0/0", "::/0", "unix:"])
    assert address in Networks(["all"])
    rules = (AccessRule(True, "0.0.0.0/0"), AccessRule(True, "::/0"), AccessRule(False, "all"))
    assert not Access(rules).allows(address)


def test_scope_of_a_link_local_address_does_not_count() -> None:
    assert "fe80::1%eth0" in Networks(["fe80::/10"])


def test_no_rules_allow() -> None:
    assert Access(()).allows("1.2.3.4") and not Access(())
