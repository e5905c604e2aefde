"""Requests that two readers could understand differently are refused, and nothing of them goes on.

Request smuggling lives between a lenient front and a strict back: here the front is the strict one.
"""

from __future__ import annotations

import contextlib

import pytest
from harness.client import prompt, request_bytes
from harness.shapes import error_of
from harness.stage import Stage
from harness.wire import Reply

GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = prompt()
SIZE = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)

# name → (bytes, statuses allowed)
REFUSED: dict[str, tuple[bytes, set[int]]] = {
    "cl_and_te": (POST + SIZE + CHUNKED + b"\r\n" + CHUNKS, {400}),
    "te_and_cl": (POST + CHUNKED + SIZE + b"\r\n" + CHUNKS, {400}),
    "cl_twice_same": (POST + SIZE + SIZE + b"\r\n" + BODY, {400}),
    "cl_twice_other": (POST + SIZE + b"Content-Length: 3\r\n\r\n" + BODY, {400}),
    "cl_list": (POST + b"Content-Length: 5, 5\r\n\r\n" + BODY, {400}),
    "cl_plus": (POST + b"Content-Length: +5\r\n\r\n" + BODY, {400}),
    "cl_minus": (POST + b"Content-Length: -5\r\n\r\n" + BODY, {400}),
    "cl_hex": (POST + b"Content-Length: 0x5\r\n\r\n" + BODY, {400}),
    "cl_float": (POST + b"Content-Length: 5.0\r\n\r\n" + BODY, {400}),
    "cl_empty": (POST + b"Content-Length: \r\n\r\n" + BODY, {400}),
    "cl_huge": (POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", {400, 413}),
    "cl_inner_space": (POST + b"Content-Length: 1 1\r\n\r\n" + BODY, {400}),
    "te_twice": (POST + CHUNKED + CHUNKED + b"\r\n" + CHUNKS, {400}),
    "te_list": (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKS, {400, 501}),
    "te_gzip": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS, {400, 501}),
    "te_identity": (POST + b"Transfer-Encoding: identity\r\n" + SIZE + b"\r\n" + BODY, {400, 501}),
    "te_x": (POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS, {400, 501}),
    "te_vt": (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS, {400, 501}),
    "te_quoted": (POST + b'Transfer-Encoding: "chunked"\r\n\r\n' + CHUNKS, {400, 501}),
    "te_space_colon": (POST + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS, {400}),
    "te_on_1_0": (POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + CHUNKS, {400}),
    "cl_space_colon": (POST + b"Content-Length : 5\r\n\r\n" + BODY, {400}),
    "folded": (GET + b"X-A: b\r\n c\r\n\r\n", {400}),
    "folded_first": (b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", {400}),
    "folded_te": (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS, {400}),
    "bare_lf": (GET.replace(b"\r\n", b"\n") + b"\n", {400}),
    "bare_lf_field": (GET + b"X-A: b\nX-B: c\r\n\r\n", {400}),
    "bare_cr_value": (GET + b"X-A: b\rc\r\n\r\n", {400}),
    "bare_cr_name": (GET + b"X\rA: b\r\n\r\n", {400}),
    "cr_cr_lf": (GET + b"X-A: b\r\r\n\r\n", {400}),
    "nul_value": (GET + b"X-A: b\0c\r\n\r\n", {400}),
    "nul_name": (GET + b"X\0A: b\r\n\r\n", {400}),
    "nul_target": (b"GET /v1/\0models HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "control_value": (GET + b"X-A: b\x01\r\n\r\n", {400}),
    "del_value": (GET + b"X-A: b\x7f\r\n\r\n", {400}),
    "no_colon": (GET + b"X-A\r\n\r\n", {400}),
    "no_name": (GET + b": b\r\n\r\n", {400}),
    "space_in_name": (GET + b"X A: b\r\n\r\n", {400}),
    "non_ascii_name": (GET + "X-Ä: b\r\n\r\n".encode(), {400}),
    "no_host": (b"GET /v1/models HTTP/1.1\r\n\r\n", {400}),
    "two_hosts": (GET + b"Host: y\r\n\r\n", {400}),
    "no_target": (b"GET HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "two_spaces": (b"GET  /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "space_in_target": (b"GET /v1/ models HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "tab_for_space": (b"GET\t/v1/models\tHTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "relative_target": (b"GET v1/models HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "non_ascii_target": ("GET /v1/ä HTTP/1.1\r\nHost: x\r\n\r\n".encode(), {400}),
    "bad_method": (b"G@T /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "long_method": (b"G" * 5000 + b" / HTTP/1.1\r\nHost: x\r\n\r\n", {400, 414, 431, 501}),
    "no_version": (b"GET /v1/models\r\n\r\n", {400}),
    "http_0_9": (b"GET /v1/models HTTP/0.9\r\nHost: x\r\n\r\n", {400, 505}),
    "http_2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
    "http_3": (b"GET /v1/models HTTP/3.0\r\nHost: x\r\n\r\n", {400, 505}),
    "http_1_10": (b"GET /v1/models HTTP/1.10\r\nHost: x\r\n\r\n", {400, 505}),
    "lower_version": (b"GET /v1/models http/1.1\r\nHost: x\r\n\r\n", {400}),
    "trailing_space": (b"GET /v1/models HTTP/1.1 \r\nHost: x\r\n\r\n", {400}),
    "connect": (b"CONNECT host:443 HTTP/1.1\r\nHost: host:443\r\n\r\n", {400, 405, 501}),
    "tls_hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xab" * 506, {400}),
    "garbage": (b"\xff\xfe\xfd\r\n\r\n", {400}),
    "unknown_expect": (POST + SIZE + b"Expect: 200-ok\r\n\r\n" + BODY, {417}),
}

BAD_CHUNKS: dict[str, bytes] = {
    "not_hex": b"zz\r\n",
    "minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "plus": b"+5\r\nhello\r\n0\r\n\r\n",
    "0x": b"0x5\r\nhello\r\n0\r\n\r\n",
    "empty_size": b"\r\nhello\r\n0\r\n\r\n",
    "overflow": b"f" * 17 + b"\r\nhello",
    "overflow_to_5": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "lf_only": b"5\nhello\n0\n\n",
    "no_crlf_after_data": b"5\r\nhelloXX0\r\n\r\n",
    "blank_then_junk": b"5 6\r\nhello\r\n0\r\n\r\n",
    "cr_only": b"5\rhello\r0\r\r",
    "long_extension": b"5;" + b"x" * 70000 + b"\r\nhello\r\n0\r\n\r\n",
    "nul_extension": b"5;\0\r\nhello\r\n0\r\n\r\n",
    "endless_trailers": b"5\r\nhello\r\n0\r\n" + b"X-A: b\r\n" * 20000,
}


def assert_refused(stage: Stage, lane: str, data: bytes, statuses: set[int]) -> Reply:
    """Refused in OpenAI shape, the connection over, nothing upstream, not even what lay behind."""
    client = stage.client(lane)
    with contextlib.suppress(ConnectionError):  # it may answer and leave before all is written
        client.send(data + request_bytes(BODY))
    reply = client.reply()
    assert reply.status in statuses, (reply.status, reply.body)
    error_of(reply, reply.status)
    assert reply.header("connection") == "close"
    assert client.ends_within(3), "the connection was kept after a request nobody can delimit"
    assert not client.buffer, f"a second reply: {bytes(client.buffer)[:200]!r}"
    assert stage.ask(lane, BODY).status == 200
    assert [seen.body for seen in stage.engine.seen] == [BODY], "a refused request was forwarded"
    return reply


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_ambiguous_or_malformed_head_is_refused(stage: Stage, lane: str, name: str) -> None:
    """CL+TE, folded lines, bare LF and their kin: 4xx (501, 505), and the connection ends."""
    data, statuses = REFUSED[name]
    assert_refused(stage, lane, data, statuses)


@pytest.mark.parametrize("name", sorted(BAD_CHUNKS))
def test_malformed_chunk_framing_is_refused(stage: Stage, lane: str, name: str) -> None:
    """A chunked body that cannot be read is never forwarded in part (JSON bodies are buffered)."""
    assert_refused(stage, lane, POST + CHUNKED + b"\r\n" + BAD_CHUNKS[name], {400, 413, 431})


ACCEPTED: dict[str, bytes] = {
    "absolute_form": b"POST http://gateway.test/v1/completions HTTP/1.1\r\nHost: gateway.test\r\n"
    + SIZE
    + b"\r\n"
    + BODY,
    "empty_lines_first": b"\r\n\r\n" + request_bytes(BODY),
    "chunk_extension": POST
    + CHUNKED
    + b"\r\n%x;name=value\r\n%b\r\n0;last\r\n\r\n" % (len(BODY), BODY),
    "chunk_trailers": POST + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"X-Sum: 1\r\n\r\n",
    "upper_hex": POST + CHUNKED + b"\r\n%X\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "leading_zeros": POST + CHUNKED + b"\r\n000%x\r\n%b\r\n000\r\n\r\n" % (len(BODY), BODY),
    "te_case": POST + b"transfer-ENCODING: ChunKed\r\n\r\n" + CHUNKS,
    "no_space_after_colon": POST + b"Content-Length:%d\r\n\r\n" % len(BODY) + BODY,
    "tabs_around_value": POST + b"Content-Length:\t%d\t\r\n\r\n" % len(BODY) + BODY,
    "empty_header": POST + b"X-Empty:\r\n" + SIZE + b"\r\n" + BODY,
    "latin1_value": POST + b"X-Name: \xe4\r\n" + SIZE + b"\r\n" + BODY,
    "query": POST.replace(b" HTTP", b"?x=1&y=%20 HTTP") + SIZE + b"\r\n" + BODY,
    "leading_zeros_cl": POST + b"Content-Length: 00%d\r\n\r\n" % len(BODY) + BODY,
}


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_odd_but_legal_request_is_served(stage: Stage, lane: str, name: str, size: int) -> None:
    """LD#1585 and others: what RFC 9112 allows is served, whatever edges its bytes arrive at."""
    client = stage.client(lane)
    client.dribble(ACCEPTED[name], size)
    assert client.reply().status == 200
    seen = stage.engine.wait_seen()
    assert seen.body == BODY
    assert seen.framing == "length" or seen.head.get("content-length") is None
    assert seen.target.partition("?")[0] == "/v1/completions"
    assert client.ask(BODY).status == 200, "the connection was not kept"


def test_query_string_reaches_the_engine_unchanged(stage: Stage, lane: str) -> None:
    """LD#1585: a query string broke the path parser."""
    target = "/v1/completions?x=1&y=a%2Fb&&z"
    assert stage.ask(lane, BODY, target=target).status == 200
    assert stage.engine.seen[0].target == target
