"""The access log through kills, stops and rotations: every line whole, and lost only what a worker
that was killed had not handed over yet.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from harness import waiting
from harness.client import prompt

from gateway import logs

LINE = re.compile(
    r'(127\.0\.0\.1|unix:) \[\S+\] "[A-Z]+ /\S* HTTP/1\.1" \d{3} \d+ rt=\d+\.\d{3} model="[^"]*" '
    r"up=\S+ engine=\S+ attempts=\d ttft=\S+ tpot=\S+ itl_max=\S+ in=\S+ cached=\S+ out=\S+ "
    r"end=-- err=\S+ id=([0-9a-f]{32}) client_id=\S+"
)


def asked(one, count: int) -> list[str]:  # type: ignore[no-untyped-def]
    """Ids of requests that were answered; the first half of one tells its worker."""
    ids = []
    for _ in range(count):
        with one.client() as client:
            answer = client.ask(prompt())
        assert answer.status == 200
        ids.append(answer.header("x-request-id"))
    return ids


def found(*paths: Path) -> list[str]:
    """Ids of the clients' lines there are. Fails where any line is not whole."""
    ids = []
    for path in paths:
        text = path.read_text() if path.exists() else ""
        assert text == "" or text[-1] == "\n"
        for line in text.splitlines():
            match = LINE.fullmatch(line)
            assert match is not None, line
            ids += [match[2]] if match[1] != "unix:" else []
    return ids


def test_lines_are_whole_whatever_ends_a_worker(tree, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    log, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    one = tree(access=log)
    first = asked(one, 60)
    waiting.until(lambda: set(found(log)) >= set(first), "the flush", logs.FLUSH_S + 10)
    second = asked(one, 60)
    victim = one.processes()[0]
    one.kill(victim)
    one.wait_workers(2, without=(victim,))
    log.rename(rotated)
    one.gateway.signal(signal.SIGUSR1)
    waiting.until(log.exists, "the log to be opened again")
    third = asked(one, 60)
    one.gateway.signal(signal.SIGQUIT)
    assert one.gateway.wait_exit() == 0
    there = found(rotated, log)
    assert len(there) == len(set(there)) and set(there) <= {*first, *second, *third}
    assert set(there) >= {*first, *third}
    lost = set(second) - set(there)
    assert len({id[:16] for id in lost}) <= 1  # of the worker that was killed
    assert set(found(log)) <= {*second, *third}
