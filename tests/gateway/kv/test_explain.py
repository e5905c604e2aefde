"""`POST /kvgate/explain` and `kvgate explain`: the decision without the request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.kv import chat, receipt, settled

from gateway.cli import explain as cli_explain
from gateway.kv.routed import TIERS

URL = "/v1/chat/completions"
TERMS = {"drain", "own", "fetch", "ext", "repl", "session"}


@pytest.fixture
async def gw(sim, serve) -> Any:  # type: ignore[no-untyped-def]
    engines = [sim(), sim()]
    made = await serve(engines, upstream="tokenizer remote; model sim alias=small;")
    made.engines = engines
    await settled(made, "engine")
    return made


async def test_it_tells_every_engine_and_every_term(gw) -> None:  # type: ignore[no-untyped-def]
    asked = {"request": chat("the of and to " * 40)}
    reply = await gw.admin.post("/kvgate/explain", json=asked)
    found = reply.json()
    assert reply.status_code == 200, found
    assert (found["upstream"], found["policy"]) == ("sim", "kv")
    assert (found["prompt"]["source"], found["prompt"]["exact"]) == ("tokenize", True)
    assert {row["engine"] for row in found["engines"]} == {e.address for e in gw.engines}
    for row in found["engines"]:
        assert set(row["terms_ms"]) >= TERMS and set(row["matched"]) == set(TIERS)
        assert row["cost_ms"] == pytest.approx(sum(row["terms_ms"].values()), abs=0.01)
        assert (row["filtered"], row["in_flight"], row["waiting"]) == ("", 0, 0)
    costs = [row["cost_ms"] for row in found["engines"]]
    assert costs == sorted(costs) and found["engine"] == found["engines"][0]["engine"]
    # Nothing was sent, counted or charged.
    assert all((e.state()["last_request"] or {}).get("target") != URL for e in gw.engines)
    assert gw.app.memory.kv.count("source/tokenize") == 0


async def test_it_is_the_decision_that_the_request_gets(gw) -> None:  # type: ignore[no-untyped-def]
    body = chat("water long little very after " * 30)
    first = receipt(await gw.client.post(URL, json=body))
    found = (await gw.admin.post("/kvgate/explain", json={"request": body})).json()
    then = receipt(await gw.client.post(URL, json=body))
    rows = {row["engine"]: row for row in found["engines"]}
    assert found["prompt"]["tokens"] == int(first["prompt-tokens"])
    assert rows[then["engine"]]["matched_tokens"] == int(then["matched-tokens"])


async def test_why_an_engine_is_left_out(gw) -> None:  # type: ignore[no-untyped-def]
    group = gw.app.table.groups["sim"]
    group.set_health(group.engines[0], False, "no answer", 0.0)
    found = (await gw.admin.post("/kvgate/explain", json={"request": chat("a b")})).json()
    left = {row["engine"]: row["filtered"] for row in found["engines"]}
    assert left == {group.engines[0].address: "unhealthy", group.engines[1].address: ""}
    assert found["engine"] == group.engines[1].address


async def test_headers_alias_and_text_are_as_in_a_request(gw) -> None:  # type: ignore[no-untyped-def]
    asked = {
        "request": json.dumps(chat("a b", model="small")),
        "headers": {"X-KVGate-Policy": "least", "other": "x"},
    }
    found = (await gw.admin.post("/kvgate/explain", json=asked)).json()
    assert (found["policy"], found["engine"], found["model"]) == ("least_conn", None, "small")
    assert found["prompt"]["tokens"] > 0
    rest = {"request": {"model": "sim", "prompt": "a b"}}
    assert (await gw.admin.post("/kvgate/explain", json=rest)).json()["path"] == "/v1/completions"


@pytest.mark.parametrize(
    ("asked", "status", "what"),
    [
        ([], 400, "object"),
        ({}, 400, "request"),
        ({"request": "{"}, 400, "JSON"),
        ({"request": {"model": "sim"}}, 400, "path"),
        ({"request": {"messages": []}, "upstream": "nobody"}, 400, "nobody"),
        ({"request": {"messages": []}, "path": 7}, 400, "path"),
        ({"request": {"messages": []}, "headers": {"x-kvgate-policy": "best"}}, 400, "Policy"),
        ({"request": {"messages": []}, "headers": 3}, 400, "headers"),
        ({"request": {"messages": []}, "headers": {"X-KVGate-Sesion": "a"}}, 400, "Sesion"),
    ],
)
async def test_what_cannot_be_explained_is_said(gw, asked: Any, status: int, what: str) -> None:  # type: ignore[no-untyped-def]
    reply = await gw.admin.post("/kvgate/explain", json=asked)
    assert reply.status_code == status and what in reply.json()["error"]["message"]


async def test_a_model_that_no_request_could_ask_for(sim, serve) -> None:  # type: ignore[no-untyped-def]
    gw = await serve([sim()], upstream="model sim alias=default; tokenizer off;")
    for model, status in (("sim", 200), ("default", 200), ("", 200), ("other", 404)):
        asked = chat("a", **({"model": model} if model else {}))
        if not model:
            del asked["model"]
        assert (await gw.client.post(URL, json=asked)).status_code == status
        reply = await gw.admin.post("/kvgate/explain", json={"request": asked})
        assert reply.status_code == status, reply.text


async def test_it_is_for_administrators(gw) -> None:  # type: ignore[no-untyped-def]
    reply = await gw.client.post("/kvgate/explain", json={"request": chat("a")})
    assert reply.status_code == 404


async def test_the_lines_for_people(gw) -> None:  # type: ignore[no-untyped-def]
    asked = {"request": chat("the of and to " * 40)}
    found = (await gw.admin.post("/kvgate/explain", json=asked)).json()
    text = cli_explain.text(found)
    lines = text.splitlines()
    assert lines[0] == "upstream  sim" and "tokens, tokenize" in lines[1]
    for word in ("engine", "matched", "cost ms", "drain", "own", "waiting"):
        assert word in lines[4]
    assert len(lines) == 5 + 2
