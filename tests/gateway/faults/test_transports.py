"""Other ways in and out: TLS to the client, unix sockets and TLS to the engine; same promises."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from harness import scripts, waiting
from harness.certificate import Certificate
from harness.client import Client, prompt, request_bytes
from harness.gateway import PeakRss
from harness.shapes import lost_event
from harness.stage import Conf, Play, Stage

BODY = prompt()
UNIX = Conf(unix_engines=True)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("tls"))


def test_engine_on_a_unix_socket(play: Play, lane: str) -> None:
    stage = play(UNIX)
    client = stage.client(lane)
    for _ in range(3):
        assert client.ask(BODY).status == 200
    stage.engine.script = scripts.streams([scripts.event("a")], done=False, then="fin")
    lost_event(client.ask(prompt(True)).body)


def test_missing_unix_socket_is_retried_elsewhere_or_502(play: Play, lane: str) -> None:
    stage = play(UNIX.but(engines=2))
    stage.engines[0].kill()
    try:
        assert [stage.ask(lane, BODY).status for _ in range(4)] == [200] * 4
    finally:
        stage.engines[0].revive()


def tls_listening(certificate: Certificate) -> Conf:
    """The same servers, with `ssl` on their listeners."""
    files = f"ssl_certificate {certificate.file}; ssl_certificate_key {certificate.key};"
    return Conf(server=files, listen_args="ssl")


def tls_client(stage: Stage, lane: str, certificate: Certificate, **how: object) -> Client:
    client = Client(
        ("127.0.0.1", stage.ports[lane]),
        tls=certificate.client(),
        **how,  # type: ignore[arg-type]
    )
    stage.clients.append(client)
    return client


def test_tls_client(play: Play, lane: str, certificate: Certificate) -> None:
    stage = play(tls_listening(certificate))
    client = tls_client(stage, lane, certificate)
    assert client.ask(BODY).status == 200
    stage.engine.script = scripts.streams([scripts.event("a")])
    assert client.ask(prompt(True)).body == scripts.event("a") + scripts.DONE
    big = prompt(pad="x" * (5 << 20))
    stage.engine.script = scripts.says(b"y" * (5 << 20))
    assert client.ask(big).body == b"y" * (5 << 20)
    assert stage.engine.seen[-1].body == big


def test_tls_client_that_leaves(play: Play, lane: str, certificate: Certificate) -> None:
    """PS#634 over TLS: close_notify or RST, the engine is let go."""
    stage = play(tls_listening(certificate))
    stage.engine.script = scripts.starts(scripts.event("a"))
    for reset in (True, False):
        client = tls_client(stage, lane, certificate)
        client.send(request_bytes(prompt(True)))
        client.head()
        seen = stage.engine.seen[-1]
        moment = time.monotonic()
        client.reset() if reset else client.close()
        assert seen.peer.wait_gone(3) - moment < 0.2


def test_tls_slow_reader_is_bounded(play: Play, lane: str, certificate: Certificate) -> None:
    """≤ 768 KiB each under TLS: uvloop's own buffers count."""
    stage = play(tls_listening(certificate))
    stage.engine.script = scripts.floods
    clients = [tls_client(stage, lane, certificate, receive_buffer=4096) for _ in range(10)]
    with PeakRss(stage.gateway) as memory:
        for client in clients:
            client.send(request_bytes(prompt(True)))
        stage.engine.wait_seen(10)
        waiting.until_still(
            lambda: sum(seen.peer.sent for seen in stage.engine.seen), "all engines to be held", 15
        )
    assert memory.growth_kib < 10 * 768 + 4096, f"{memory.growth_kib} KiB"


def test_plain_http_on_a_tls_port_is_no_crash(
    play: Play, lane: str, certificate: Certificate
) -> None:
    stage = play(tls_listening(certificate))
    client = stage.client(lane)
    client.send(request_bytes(BODY))
    assert client.ends_within(3)
    assert tls_client(stage, lane, certificate).ask(BODY).status == 200


def test_tls_engine(own: Play, lane: str, certificate: Certificate, tmp_path: Path) -> None:
    """https:// upstream with a certificate that is not trusted by the system."""
    stage = own(Conf(proxy_pass="https://main", tls_engines=str(certificate.folder)))
    client = stage.client(lane)
    for _ in range(3):
        assert client.ask(BODY).status == 200
    assert stage.engine.seen[0].body == BODY
    stage.engine.script = scripts.streams([scripts.event("a")])
    assert client.ask(prompt(True)).body == scripts.event("a") + scripts.DONE


def test_handshake_that_never_ends_holds_nobody(
    play: Play, lane: str, certificate: Certificate
) -> None:
    stage = play(tls_listening(certificate))
    silent = [stage.client(lane) for _ in range(20)]
    assert tls_client(stage, lane, certificate).ask(BODY).status == 200
    assert isinstance(certificate.client(), ssl.SSLContext) and silent
