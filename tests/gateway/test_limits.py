"""Zones of limits over workers and reloads."""

from __future__ import annotations

import os
import signal

from gateway.conf import load_text
from gateway.site.limits import Zones

CONF = """http {{ upstream u {{ server a:1; }} limit_conn_zone $host zone=c:{size};
limit_req_zone $host zone=r:1m rate={rate}; server {{ listen 1; location / {{
proxy_pass http://u; limit_conn c 2; limit_req zone=r; }} }} }}"""


def test_places_of_a_dead_worker_come_back() -> None:
    zones = Zones(workers=3, worker=None)
    zones.open(load_text(CONF.format(size="1m", rate="1r/s")))
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        zones.bind(1)
        zones.conns["c"].acquire(b"k", 2)
        os.write(told, b".")
        signal.pause()
    assert os.read(ready, 1) == b"."
    zones.bind(2)
    assert zones.conns["c"].acquire(b"k", 2) and not zones.conns["c"].acquire(b"k", 2)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    zones.retire(1)
    assert zones.conns["c"].count(b"k") == 1
    assert zones.conns["c"].acquire(b"k", 2)


def test_a_reload_keeps_what_is_counted() -> None:
    zones = Zones()
    zones.open(load_text(CONF.format(size="1m", rate="1r/s")))
    before = zones.conns["c"], zones.rates["r"]
    assert before[0].acquire(b"k", 1)
    zones.open(load_text(CONF.format(size="2m", rate="5r/s")))
    assert (zones.conns["c"], zones.rates["r"]) == before and before[0].count(b"k") == 1
