"""What becomes of a header that is read as a policy header."""

from __future__ import annotations

import pytest

PATH = "/v1/completions"


@pytest.mark.parametrize("lane", ["express", "starlette"])
async def test_an_alias_acts_and_goes_on(gateway, engine, lane) -> None:  # type: ignore[no-untyped-def]
    """It may be the engine's business as well; an empty `proxy_set_header` keeps it back."""
    one, two = await engine(), await engine()
    servers = f"server {one.address}; server {two.address};"
    gw = await gateway(
        f"upstream a {{ {servers} health_check off; }} policy_header X-KVGate-Session;"
        "policy_header_alias X-Session-Id X-KVGate-Session; expose_receipt on;"
        f"server {{ listen 127.0.0.1:0; express {'on' if lane == 'express' else 'off'};"
        " location / { proxy_pass http://a; }"
        ' location /v1/kept { proxy_pass http://a; proxy_set_header X-Session-Id ""; } }'
    )
    for _ in range(4):
        reply = await gw.client.post(PATH, json={}, headers={"x-session-id": "s1"})
        assert reply.headers["x-kvgate-policy"] == "hash"
    assert sorted([len(one.clients()), len(two.clients())]) == [0, 4]
    mine = one if one.clients() else two
    assert mine.clients()[-1].headers[b"x-session-id"] == b"s1"
    await gw.client.post("/v1/kept", json={}, headers={"x-session-id": "s1"})
    await gw.client.post(PATH, json={}, headers={"x-kvgate-session": "s1"})
    for asked in mine.clients()[4:]:
        assert b"x-session-id" not in asked.headers and b"x-kvgate-session" not in asked.headers
    assert len(mine.clients()) == 6
