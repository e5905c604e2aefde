"""The same request to an engine and through the gateway: same status, headers and payload."""

from __future__ import annotations

import httpx
import pytest
from e2e import cases
from e2e.fleet import ALIAS, KIND, MODEL, Engine, Lane
from e2e.payload import Stream, blank, headers_of, stream_of

Asked = tuple[str, dict[str, object]]


def whole(http: httpx.Client, base_url: str, asked: Asked) -> httpx.Response:
    return http.post(base_url + asked[0], json=asked[1])


def streamed(http: httpx.Client, base_url: str, asked: Asked) -> tuple[httpx.Response, Stream]:
    with http.stream("POST", base_url + asked[0], json=asked[1]) as reply:
        assert reply.status_code == 200, reply.read()
        return reply, stream_of(list(reply.iter_lines()))


@pytest.fixture(autouse=True)
def simulated(request: pytest.FixtureRequest) -> None:
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name")
    if KIND == "sim" and name in cases.NOT_SIMULATED:
        pytest.skip("simulated engines do otherwise")


@pytest.fixture(scope="module")
def warm() -> set[str]:
    return set()


def warmed(
    http: httpx.Client, engines: list[Engine], warm: set[str], name: str, asked: Asked
) -> None:
    """Both engines see the request once: cached tokens, which replies report, are then equal."""
    if name not in warm:
        for engine in engines:
            whole(http, engine.base_url, asked)
        warm.add(name)


@pytest.mark.parametrize("name", cases.WHOLE)
def test_a_reply_in_one_piece(
    name: str, lane: Lane, engines: list[Engine], http: httpx.Client, warm: set[str]
) -> None:
    asked = cases.WHOLE[name]
    warmed(http, engines, warm, name, asked)
    direct = whole(http, engines[0].base_url, asked)
    through = whole(http, lane.base_url, asked)
    assert direct.status_code == 200, direct.text
    assert through.status_code == 200, through.text
    assert headers_of(through) == headers_of(direct)
    assert blank(through.json()) == blank(direct.json())
    # Byte for byte where no id or time is in it.
    if "id" not in direct.json():
        assert through.content == direct.content


@pytest.mark.parametrize("name", cases.STREAMED)
def test_a_streamed_reply(
    name: str, lane: Lane, engines: list[Engine], http: httpx.Client, warm: set[str]
) -> None:
    asked = cases.STREAMED[name]
    warmed(http, engines, warm, f"streamed {name}", asked)
    direct, expected = streamed(http, engines[0].base_url, asked)
    through, got = streamed(http, lane.base_url, asked)
    assert headers_of(through) == headers_of(direct)
    assert expected.differs(got) == ""
    assert got.text
    assert len(got.ids) == len(expected.ids)


@pytest.mark.parametrize("name", cases.REFUSED)
def test_what_the_engine_refuses(
    name: str, lane: Lane, engines: list[Engine], http: httpx.Client
) -> None:
    direct = whole(http, engines[0].base_url, cases.REFUSED[name])
    through = whole(http, lane.base_url, cases.REFUSED[name])
    assert 400 <= direct.status_code < 500, direct.text
    assert through.status_code == direct.status_code
    assert headers_of(through) == headers_of(direct)
    assert through.content == direct.content


@pytest.mark.parametrize("name", cases.REFUSED_ANYWHERE)
def test_what_nobody_can_answer(
    name: str, lane: Lane, engines: list[Engine], http: httpx.Client
) -> None:
    path, body = cases.REFUSED_ANYWHERE[name]
    headers = {"content-type": "application/json"}
    direct = http.post(engines[0].base_url + path, content=body, headers=headers)
    through = http.post(lane.base_url + path, content=body, headers=headers)
    assert 400 <= direct.status_code < 500, direct.text
    assert through.status_code == direct.status_code, through.text
    assert through.json()["error"].keys() == {"message", "type", "param", "code"}
    assert through.json()["error"]["message"]
    if name == "unknown model":
        assert through.json()["error"]["param"] == "model"


def test_models_are_listed_as_the_engine_lists_them(
    lane: Lane, engines: list[Engine], http: httpx.Client
) -> None:
    direct = http.get(f"{engines[0].base_url}/v1/models").json()["data"]
    through = http.get(f"{lane.base_url}/v1/models").json()
    assert through["object"] == "list"
    cards = {card["id"]: card for card in through["data"]}
    assert blank(cards[MODEL]) == blank(direct[0])
    assert set(cards) <= {MODEL, ALIAS}


def test_an_alias_comes_back_as_it_was_asked_for(lane: Lane, http: httpx.Client) -> None:
    path, body = cases.chat(model=ALIAS)
    reply = http.post(lane.base_url + path, json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == ALIAS
    _, plain = cases.chat()
    named = http.post(lane.base_url + path, json=plain).json()
    assert reply.json()["choices"] == named["choices"]


def test_an_alias_comes_back_in_every_event(lane: Lane, http: httpx.Client) -> None:
    _, expected = streamed(http, lane.base_url, cases.chat(**cases.USAGE))
    _, got = streamed(http, lane.base_url, cases.chat(model=ALIAS, **cases.USAGE))
    assert got.text == expected.text
    assert got.last == "[DONE]"
    shapes = [shape for each in got.shapes.values() for shape in each]
    assert [shape.replace(ALIAS, MODEL) for shape in shapes] == [
        shape for each in expected.shapes.values() for shape in each
    ]
    shapes += [shape for each in got.plain.values() for shape in each]
    assert all(f'"model": "{ALIAS}"' in shape for shape in shapes if shape != "[DONE]")


def test_a_body_as_large_as_no_prompt_is_still_answered_by_the_engine(
    lane: Lane, engines: list[Engine], http: httpx.Client
) -> None:
    asked = cases.completion(prompt="word " * (2 << 20 >> 2))  # 2.6 MB: over the express limit
    direct = whole(http, engines[0].base_url, asked)
    through = whole(http, lane.base_url, asked)
    assert (through.status_code, through.content) == (direct.status_code, direct.content)
    assert direct.status_code == 400


def test_engines_take_turns(lane: Lane, engines: list[Engine], http: httpx.Client) -> None:
    path, body = cases.chat(max_tokens=1)
    seen = [http.post(lane.base_url + path, json=body).headers["x-engine"] for _ in range(6)]
    assert {address: seen.count(address) for address in set(seen)} == {
        engine.address: 3 for engine in engines
    }


def test_engine_control_is_closed_to_clients(lane: Lane, http: httpx.Client) -> None:
    for method, path in (("GET", "/metrics"), ("GET", "/docs"), ("POST", "/reset_prefix_cache")):
        reply = http.request(method, lane.base_url + path)
        assert reply.status_code == 404, (path, reply.text)
        assert reply.json()["error"]["message"]
