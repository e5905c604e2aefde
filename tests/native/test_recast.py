"""Members cut out of a body and others written in front, against Python's own reader."""

from __future__ import annotations

import pytest
from harness.json_bodies import BODIES
from hypothesis import given, settings
from hypothesis import strategies as st

from native import reference
from native._core import Recast

CUT = ["stream", "n", "kv_transfer_params", "max_tokens"]


@settings(max_examples=500, deadline=None)
@given(BODIES, st.sampled_from([CUT, [], ["model"], ["messages", "model", "stream_options"]]))
def test_what_stays_means_what_it_meant(body: bytes, cut: list[str]) -> None:
    kept = [(key, value) for key, value in reference.parse(body) if key not in cut]
    got = Recast(cut).apply(body, b'"added":[1]')
    assert list(reference.parse(got)) == [*reference.parse(b'{"added":[1]}'), *kept]
    assert Recast([]).apply(body, b"") == body


def test_all_duplicates_go_however_their_keys_are_written() -> None:
    body = b'{"n":1,"a":1.0,"\\u006e":2 , "a":1e-7,"n":{"n":3}}'
    assert Recast(["n"]).apply(body, b'"x":0') == b'{"x":0,"a":1.0 , "a":1e-7}'


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":1}{', b"nonsense"])
def test_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Recast(CUT).apply(body, b"")
