"""An object store as it is asked from Python: what it may say, and what of that is believed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from harness.s3 import ENDLESS, S3

from kvbm.conf.model import Remote
from kvbm.remote import StoreError
from kvbm.remote.store import Store

BODY = bytes(range(256)) * 64


@pytest.fixture
def s3() -> Iterator[S3]:
    with S3() as store:
        store.objects["p/x"] = BODY
        yield store


def opened(s3: S3) -> Store:
    return Store(
        Remote("s3://bucket/p", endpoint=s3.url, access_key="a", secret_key="s", timeout_s=20.0)
    )


@pytest.mark.parametrize("count", [7, 2100])
def test_a_listing_that_goes_round_is_given_up(s3: S3, count: int) -> None:
    s3.objects.update({f"p/v1/{n:04}": b"x" for n in range(count)})
    store = opened(s3)

    async def work() -> list[str]:
        return [path async for rows in store.names("v1") for path, _ in rows]

    assert asyncio.run(work()) == [f"v1/{n:04}" for n in range(count)]
    s3.fault = "round"
    with pytest.raises(StoreError, match="v1/0000 came again"):
        asyncio.run(work())


@pytest.mark.parametrize("part", [False, True])
def test_an_object_comes_whole_or_in_part(s3: S3, part: bool) -> None:
    store = opened(s3)
    work = store.get_part("x", 300, 1 << 20) if part else store.get("x")
    assert asyncio.run(work) == (BODY[300:] if part else BODY)


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("fault", ["endless", "less"])
def test_a_body_of_another_length_than_announced_is_none(s3: S3, fault: str, part: bool) -> None:
    store, s3.fault = opened(s3), fault

    async def work() -> None:
        await (store.get_part("x", 0, 4096) if part else store.get("x"))

    with pytest.raises(StoreError, match="bytes came than the"):
        asyncio.run(work())
    assert s3.poured < ENDLESS / 2, "what nobody asked for was taken"


def test_keys_of_the_configuration_go_without_the_token_of_others(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of other keys")
    assert asyncio.run(opened(s3).get("x")) == BODY
    assert s3.tokens == {None}
