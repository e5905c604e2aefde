"""Seeds of the request side."""

from __future__ import annotations

from harness.client import chunked, prompt, request_bytes

BODY = prompt()
CHUNKED = (("Transfer-Encoding", "chunked"),)
SEEDS: list[bytes] = [
    request_bytes(method="GET", target="/v1/models"),
    request_bytes(BODY),
    request_bytes(BODY) + request_bytes(method="GET", target="/a?b=c#d"),
    request_bytes(headers=CHUNKED, framed=False) + chunked(BODY, b"more"),
    request_bytes(headers=CHUNKED, framed=False) + chunked(b"x") + request_bytes(b"next"),
    request_bytes(headers=CHUNKED, framed=False) + b"5;a=b\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
    request_bytes(BODY, version="1.0"),
    request_bytes(BODY, version="1.0", headers=(("Connection", "keep-alive"),)) * 2,
    request_bytes(BODY, headers=(("Connection", "close"),)) + request_bytes(b"z"),
    request_bytes(BODY, headers=(("Expect", "100-continue"),)),
    request_bytes(method="HEAD", target="/x", framed=False) * 3,
    request_bytes(method="OPTIONS", target="*", framed=False),
    request_bytes(b"", headers=tuple((f"X-{n}", "v") for n in range(40))),
    b"\r\n\r\n" + request_bytes(b"a"),
    b"POST / HTTP/1.1\r\nHost:x\r\nContent-Length:\t3 \r\nEmpty:\r\n\r\nabc",
]
