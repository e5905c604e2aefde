"""The encoder agrees with msgspec byte for byte."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.sim.msgpack import pack

PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=300), st.binary(max_size=300))
VALUES = st.recursive(
    PLAIN,
    lambda v: st.lists(v, max_size=20) | st.dictionaries(st.text(max_size=8), v, max_size=20),
    max_leaves=40)


@given(VALUES)
def test_packs_as_msgspec_does(value: object) -> None:
    assert pack(value) == msgspec.msgpack.encode(value)


@pytest.mark.parametrize("length", [0, 15, 16, 65_535, 65_536])
def test_long_lists(length: int) -> None:
    assert pack(list(range(length))) == msgspec.msgpack.encode(list(range(length)))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack(1 << 64)
    with pytest.raises(TypeError, match="cannot pack set"):
        pack({1})
