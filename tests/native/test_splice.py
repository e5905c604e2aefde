"""Bodies edited natively mean what the reference says, and stay byte for byte elsewhere."""

import json

import pytest
from harness.json_bodies import BODIES
from hypothesis import example, given, settings
from hypothesis import strategies as st

from native import reference
from native._core import rewrite, scan, splice


def cut(body: bytes, spans: list[tuple[int, int]]) -> bytes:
    return splice(body, [(start, end, b"") for start, end in spans])


@settings(max_examples=1000, deadline=None)
@given(BODIES)
@example(b'{ "ec_transfer_params":1 , "kv_transfer_params":2 , "a":3 , "kv_transfer_params":4 }')
def test_strip_cuts_the_forbidden_members_and_nothing_else(body: bytes) -> None:
    tree = reference.parse(body)
    found = scan(body)
    assert reference.parse(cut(body, found.strip)) == reference.stripped(tree)
    assert found.empty_stripped is (not reference.stripped(tree))
    assert found.forbidden is (reference.stripped(tree) != tree)
    for start, end in found.strip:
        piece = body[start:end].strip(b" \t\r\n").strip(b",")
        assert {key for key, _ in reference.parse(b"{" + piece + b"}")} <= reference.FORBIDDEN_XARGS


@settings(max_examples=1000, deadline=None)
@given(BODIES, st.sampled_from([None, "m", 'a"é\\']), st.booleans(), st.booleans())
@example(b'{"stream":true,"stream_options":null}', None, False, True)
@example(
    b'{"stream":true,"stream_options":{"include_usage":0, "include_usage":null}}', None, False, True
)
@example(b'{"model":"x","model":"m"}', "m", False, False)
@example(b'{"stream":"on","kv_transfer_params":1}', "m", True, True)
def test_rewrite_does_what_was_asked_and_no_more(
    body: bytes, model: str | None, strip: bool, include_usage: bool
) -> None:
    tree = reference.parse(body)
    name = None if model is None else json.dumps(model).encode()
    result = rewrite(body, scan(body), name, strip, include_usage)
    wanted = reference.rewritten(tree, model, strip, include_usage)
    assert reference.resolved(reference.parse(result)) == reference.resolved(wanted)
    if model is None and not include_usage:
        assert result == (cut(body, scan(body).strip) if strip else body)
    if result == body:
        assert result is body
    again = scan(result)
    assert rewrite(result, again, name, strip, include_usage) == result
    # Every duplicate but the edited one survives.
    expected = len(reference.stripped(tree) if strip else tree)
    added = len(reference.parse(result)) - expected
    assert added == len({key for key, _ in wanted} - {key for key, _ in tree})


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=40),
    st.lists(st.tuples(st.integers(0, 44), st.integers(0, 44), st.binary(max_size=4)), max_size=5),
)
def test_splice_equals_slicing_or_refuses(body: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    sound = all(
        before[1] <= after[0]
        for before, after in zip(
            [(0, 0, b""), *edits], [*edits, (len(body), len(body), b"")], strict=True
        )
    ) and all(start <= end for start, end, _ in edits)
    if not sound:
        with pytest.raises(ValueError, match="edit"):
            splice(body, edits)
        return
    expected = body
    for start, end, text in reversed(edits):
        expected = expected[:start] + text + expected[end:]
    assert splice(body, edits) == expected


def test_misuse_is_refused() -> None:
    body = b'{"model":"a"}'
    found = scan(body)
    with pytest.raises(ValueError, match="another body"):
        rewrite(body + b" ", found)
    for name in (b"m", b'"m', b'"a"b"', b'"\\"', b"", b'"m" '):
        with pytest.raises(ValueError, match="JSON string"):
            rewrite(body, found, name)
    with pytest.raises(KeyError, match="no place is kept for the field `temperature`"):
        found.span("temperature")
    with pytest.raises(TypeError):
        scan("{}")
    with pytest.raises(AttributeError):
        found.model = "b"
