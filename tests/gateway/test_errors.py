"""The error tree: stable codes, one shape, documented."""

from pathlib import Path

import orjson
import pytest

from gateway import errors, relay_faults
from gateway.cli import reference

DOCS = Path(__file__).resolve().parents[2] / "docs"
VALUES = {
    "what": "w",
    "zone": "z",
    "header": "h",
    "expected": "e",
    "model": "m",
    "method": "GET",
    "path": "/p",
    "upstream": "u",
    "request_id": "r",
}


def test_codes_are_unique_and_in_their_branch() -> None:
    found = errors.all_errors()
    assert len({cls.code for cls in found}) == len(found) > 20
    for cls in found:
        assert cls.hint and cls.template and cls.code.isidentifier()
        if cls.origin == "client":
            assert 400 <= cls.status < 500
        elif cls.origin == "upstream":
            assert cls.status in (502, 503, 504)


@pytest.mark.parametrize("cls", errors.all_errors(), ids=lambda cls: cls.code)
def test_shape(cls: type[errors.GatewayError]) -> None:
    error = cls("model", **VALUES)
    body = orjson.loads(error.body())["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["code"] == cls.code and body["param"] == "model" and "{" not in body["message"]
    assert (b"content-type", b"application/json") in error.headers()
    retry = [value for name, value in error.headers() if name == b"retry-after"]
    assert bool(retry) == bool(cls.retry_after_s)


def test_messages_stay_json_whatever_they_quote() -> None:
    error = errors.ModelNotFound("model", model='"\n\\\x00日 {x}')
    assert '"\n\\\x00日 {x}' in orjson.loads(error.body())["error"]["message"]


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "errors.md").read_text() == reference.errors_page(), (
        "run `python -m gateway.cli.reference errors > docs/errors.md`"
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("connect", 502), ("connect_timeout", 504), ("send_timeout", 504),
        ("first_byte_timeout", 504),
        ("read_timeout", 504), ("total_timeout", 504), ("reset", 502), ("eof", 502),
        ("bad_reply", 502),
        ("client_timeout", 408), ("client_bad", 400), ("client_too_large", 413), ("cancelled", 503),
    ],
)  # fmt: skip
def test_failed_legs(error: str, status: int) -> None:
    assert relay_faults.from_leg(error, "up").status == status
    if status in (502, 504):  # the engine's fault: its own column of the access log agrees
        assert relay_faults.status(error) == status


@pytest.mark.parametrize("status", [400, 408, 413, 414, 417, 431, 501, 503, 505])
def test_protocol_faults_keep_their_status(status: int) -> None:
    assert relay_faults.from_protocol(status, "m").status == status
