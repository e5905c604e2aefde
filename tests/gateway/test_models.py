"""The merged list of models: every field kept, aliases added, the last known good served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from types import SimpleNamespace as Fake

import pytest

from gateway.conf.model import EngineLine, Upstream
from gateway.fleet import models
from gateway.fleet.models import merged, parse

LINE = (EngineLine("e:1", "e", 1, ""),)


def group(name: str, models: tuple[str, ...] = (), **aliases: str) -> Fake:
    return Fake(name=name, conf=Upstream(name, LINE, models, tuple(aliases.items())))


def test_fields_are_kept_and_aliases_added() -> None:
    """PS#892: fields of the card were lost in a merged list."""
    card = {"id": "m", "max_model_len": 9, "permission": [{"x": 1}], "parent": None, "new": 1.5}
    out = merged([(group("u", ("m",), small="m"), [card])])
    assert out == {"m": card, "small": {**card, "id": "small", "root": "m"}}


def test_only_declared_names_and_the_first_upstream_wins() -> None:
    first = (group("u", ("m",)), [{"id": "m", "n": 1}, {"id": "hidden"}])
    second = (group("v"), [{"id": "m", "n": 2}, {"id": "lora"}])
    assert merged([first, second]) == {"m": {"id": "m", "n": 1}, "lora": {"id": "lora"}}


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data":{}}', b"\xff", b'{"data":null}'])
def test_what_is_no_list_is_not_taken(body: bytes) -> None:
    assert parse(body) is None


def test_broken_cards_are_left_out() -> None:
    assert parse(b'{"data":[{"id":"m"},{"id":7},"x",{}]}') == [{"id": "m"}]


def answers(state: dict[str, object]):  # type: ignore[no-untyped-def]
    def answer(method: bytes, target: bytes, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if target == b"/v1/models":
            cards = [{"id": name} for name in state["models"]]  # type: ignore[attr-defined]
            return state["status"], {}, json.dumps({"data": cards}).encode()  # type: ignore[return-value]
        return 200, {}, b"{}"

    return answer


def conf(address: str, more: str = "") -> str:
    return (
        f"upstream main {{ server {address}; health_check off; {more} }}"
        "server { listen 127.0.0.1:0; location / { proxy_pass http://main; } }"
    )


async def test_last_known_good_is_served_while_engines_fail(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    state: dict[str, object] = {"status": 200, "models": ["m"]}
    one = await engine(answers(state))
    gw = await gateway(conf(one.address))
    assert (await gw.client.get("/v1/models")).json()["data"] == [{"id": "m"}]
    state["status"] = 500
    for _ in range(3):
        assert (await gw.client.get("/v1/models")).json()["data"] == [{"id": "m"}]


async def test_engines_that_refuse_the_gateway_get_the_clients_request(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    """PS#150: an engine with a key of its own made the model unknown."""
    one = await engine(answers({"status": 401, "models": []}))
    gw = await gateway(conf(one.address))
    reply = await gw.client.get("/v1/models", headers={"authorization": "Bearer user"})
    assert reply.status_code == 401
    assert one.clients()[-1].headers[b"authorization"] == b"Bearer user"


async def test_the_gateways_own_key(gateway, engine) -> None:  # type: ignore[no-untyped-def]
    one = await engine(answers({"status": 200, "models": ["m"]}))
    gw = await gateway(conf(one.address, "api_key sekret;"))
    assert (await gw.client.get("/v1/models")).status_code == 200
    own = [asked for asked in one.asked if asked.headers.get(b"user-agent") == b"kvgate"]
    assert own[0].headers[b"authorization"] == b"Bearer sekret"
    await gw.client.post("/v1/completions", json={})
    assert b"authorization" not in one.clients()[-1].headers


async def test_unknown_models_of_no_engine(gateway) -> None:  # type: ignore[no-untyped-def]
    gw = await gateway(conf("127.0.0.1:1"))
    reply = await gw.client.get("/v1/models")
    assert reply.status_code == 502 and reply.json()["error"]["code"] == "upstream_unreachable"


async def test_silent_engines_hold_up_nobody(gateway, engine, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The next engine is asked while the first ones say nothing."""
    monkeypatch.setattr(models, "FETCH_TIMEOUT_S", 600.0)
    monkeypatch.setattr(models, "NEXT_S", 0.01)
    deaf = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        for sock in deaf:
            stack.enter_context(sock)
        one = await engine(answers({"status": 200, "models": ["m"]}))
        ports = " ".join(f"server 127.0.0.1:{s.getsockname()[1]};" for s in deaf)
        gw = await gateway(conf(one.address).replace("server ", ports + " server ", 1))
        async with asyncio.timeout(30):
            reply = await gw.client.get("/v1/models")
        assert reply.json()["data"] == [{"id": "m"}]


async def test_engines_that_all_say_nothing_are_given_up_together(gateway, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(models, "FETCH_TIMEOUT_S", 0.2)
    monkeypatch.setattr(models, "NEXT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        servers = "".join(f"server 127.0.0.1:{deaf.getsockname()[1]};" for deaf in (one, two))
        gw = await gateway(
            f"upstream a {{ {servers} health_check off; }} server {{ listen 127.0.0.1:0;"
            " location / { proxy_pass http://a; proxy_first_byte_timeout 100ms; } }"
        )
        reply = await gw.client.get("/v1/models")  # then the client's own request is tried
        assert reply.status_code == 504
        running = [task.get_name() for task in asyncio.all_tasks() if "_ask" in repr(task)]
        assert running == []
