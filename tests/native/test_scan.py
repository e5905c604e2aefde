"""Request bodies read and edited natively mean what the reference says, byte for byte elsewhere."""

import json
import random
import re
import string
import threading
import time

import orjson
import pytest
from harness.json_bodies import BODIES
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from native import reference
from native._core import scan
from native.reference import Members, Number


@settings(max_examples=1000, deadline=None)
@given(BODIES)
@example(b'{"kv_transfer_params":1,"a":2,"ec_transfer_params":3}')
@example(b'{"vllm_xargs":{"kv_transfer_params":{}},"vllm_xargs":{"kv_cache_report_mode":1,"x":1}}')
def test_fields_are_those_of_the_last_duplicate(body: bytes) -> None:
    tree = reference.parse(body)
    found = scan(body)
    assert found.model == reference.text(tree.last("model"))
    assert found.user == reference.text(tree.last("user"))
    assert found.session_id == reference.text(tree.last("session_id"))
    assert found.cache_salt == reference.text(tree.last("cache_salt"))
    assert found.previous_response_id == reference.text(tree.last("previous_response_id"))
    assert found.stream is (reference.boolean(tree.last("stream")) or False)
    assert found.duplicate_model is ([key for key, _ in tree].count("model") > 1)
    options = tree.last("stream_options")
    usage = options.last("include_usage") if isinstance(options, Members) else None
    assert found.include_usage == reference.boolean(usage)
    assert found.empty is (not tree)
    assert body[: found.insert_at].strip() == b"{"
    for name in ("model", "stream", "messages", "n", "max_tokens", "vllm_xargs"):
        span = found.span(name)
        assert (span is None) is (name not in dict(tree))
        if span is not None:
            alone = reference.parse(b'{"v":' + body[slice(*span)] + b"}")
            assert alone.last("v") == tree.last(name)
            assert body[slice(*span)].strip() == body[slice(*span)]


@settings(max_examples=3000, deadline=None)
@given(BODIES, st.randoms(use_true_random=False))
def test_a_mutated_body_is_accepted_exactly_when_it_should_be(
    body: bytes, rnd: random.Random
) -> None:
    text = bytearray(body)
    alphabet = b'{}[]",:\\0123456789-+.eEtrufalsn \n\t\x00\x1f\x7f\x80\xc3\xa9\xed\xa0\xff/*'
    for _ in range(rnd.randint(1, 3)):
        at = rnd.randrange(len(text) + 1)
        match rnd.randrange(4):
            case 0:
                text[at:at] = bytes([rnd.choice(alphabet)])
            case 1:
                text[at : at + 1] = bytes([rnd.choice(alphabet)])
            case 2:
                del text[at : at + rnd.randint(1, 3)]
            case 3:
                del text[at:]
    accepts(bytes(text))


def accepts(body: bytes) -> bool:
    """`scan` agrees with the reference, and with orjson but for what is documented in `json.rs`."""
    try:
        scan(body)
        ours = True
    except ValueError as error:
        assert re.search(r" at byte \d+ \(line \d+, column \d+\)$", str(error))
        ours = False
    try:
        reference.parse(body)
        theirs = True
    except ValueError:
        theirs = False
    assert ours == theirs, body
    try:
        third = isinstance(orjson.loads(body), dict)
    except orjson.JSONDecodeError as error:
        # orjson refuses lone surrogates and numbers beyond a double; the grammar has both.
        third = ours and ("surrogate" in str(error) or "infinity" in str(error))
    if ours or reference_depth_is_fine(body):
        assert ours == third, body
    return ours


def reference_depth_is_fine(body: bytes) -> bool:
    return body.count(b"[") + body.count(b"{") <= reference.DEPTH_MAX


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model":"m" "n":1}', 'expected "," or "}" at byte 13 (line 1, column 14)'),
        (b'{"a":1,\n "\xc3\xa9":tru}', "expected a value at byte 14 (line 2, column 6)"),
        (b"[]", 'expected "{": the body must be a JSON object at byte 0 (line 1, column 1)'),
        (b"", "unexpected end of text at byte 0 (line 1, column 1)"),
        (b'{"a":"\xff"}', "invalid UTF-8 at byte 6 (line 1, column 7)"),
        (b'{"a":NaN}', "expected a value at byte 5 (line 1, column 6)"),
        (b'{"a":1} x', "unexpected data after the JSON object at byte 8 (line 1, column 9)"),
        (b'{"a":"\n"}', "control character in a string at byte 6 (line 1, column 7)"),
        (
            b'{"a":"\\ud8"}',
            'expected four hexadecimal digits after "\\u" at byte 6 (line 1, column 7)',
        ),
        (
            b"\xef\xbb\xbf{}",
            'expected "{": the body must be a JSON object at byte 0 (line 1, column 1)',
        ),
    ],
)
def test_refusals_say_what_and_where(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        scan(body)
    assert not accepts(body)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_encodings_that_pythons_json_guesses_are_refused(encoding: str) -> None:
    body = '{"kv_transfer_params": 1}'.encode(encoding)
    assert json.loads(body) == {"kv_transfer_params": 1}
    with pytest.raises(ValueError):
        scan(body)


def test_depth_128_is_the_limit() -> None:
    def nest(n: int, left: str, right: str) -> bytes:
        return ('{"a":' + left * n + "1" + right * n + "}").encode()

    for left, right in (("[", "]"), ('{"a":', "}")):
        assert accepts(nest(127, left, right))
        with pytest.raises(ValueError, match="nested deeper than 128 levels"):
            scan(nest(128, left, right))
    with pytest.raises(ValueError, match="nested deeper"):
        scan(b'{"a":' + b"[" * 5_000_000)


LAX = st.one_of(
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [10**30, 1.0, 0.0, -0.0, 2.5, None, " 7 ", "1_000", "007", "1e3", "+7", "On", "tRue", "x"]
    ),
    st.from_regex(r"\A[ +-]?[0-9_]{1,4}(\.0{0,2})? ?\Z"),
)


@settings(max_examples=300, deadline=None)
@given(LAX)
def test_values_are_read_as_the_engines_validator_reads_them(value: object) -> None:
    body = encoded({"stream": value, "n": value, "max_tokens": value})
    found = scan(body)
    try:
        assert found.stream is (TypeAdapter(bool | None).validate_python(value) or False)
    except ValidationError:
        assert found.stream is False
    try:
        number = TypeAdapter(int | None).validate_python(value)
    except ValidationError:
        return
    clamped = None if number is None else max(-(2**63), min(2**63 - 1, number))
    assert found.max_tokens == clamped
    assert found.n == (1 if clamped is None else clamped)


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def test_max_tokens_prefers_the_newer_name() -> None:
    assert scan(b'{"max_tokens":1,"max_completion_tokens":2}').max_tokens == 2
    assert scan(b'{"max_tokens":1,"max_completion_tokens":null}').max_tokens == 1
    assert scan(b'{"max_output_tokens":3}').max_tokens == 3
    assert scan(b"{}").max_tokens is None


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 64, 65])
def test_long_strings_end_where_they_end(size: int) -> None:
    rnd = random.Random(size)
    # With the first and last characters around the surrogates and of those that need a pair.
    letters = string.printable + "é漢\ud7ff\ue000\uffff\U00010000\U0010ffff" * 5
    for _ in range(50):
        text = "".join(rnd.choice(letters) for _ in range(size))
        body = json.dumps({"model": text, "user": text}, ensure_ascii=rnd.random() < 0.5).encode()
        found = scan(body)
        assert (found.model, found.user) == (text, text)
        start, end = found.model_span or (0, 0)
        assert json.loads(body[start:end]) == text


def test_large_bodies_are_read_without_the_interpreter_lock() -> None:
    """Another thread gets to run while one call reads a body of 64 MiB."""
    body = b'{"model":"m","messages":[' + b"[1]," * (16 << 20) + b"1]}"

    def runs_beside() -> bool:
        go, span, beside = threading.Event(), [], []

        def reader() -> None:
            go.wait(10)
            span.append(time.monotonic())
            scan(body)
            span.append(time.monotonic())

        thread = threading.Thread(target=reader)
        thread.start()
        go.set()
        while thread.is_alive():
            beside.append(time.monotonic())
        thread.join()
        # Well inside the call, as the lock changes hands around it anyway.
        begin, end = span
        edge = (end - begin) / 5
        return any(begin + edge < moment < end - edge for moment in beside)

    # A busy machine may give the second thread no turn for once.
    assert any(runs_beside() for _ in range(5))


def test_a_tree_is_only_equal_to_the_same_numbers() -> None:
    """The oracle itself: a lost or reformatted number would be seen."""
    assert reference.parse(b'{"a":1.0}') != reference.parse(b'{"a":1}')
    assert reference.parse(b'{"a":1}').last("a") == Number("1")
