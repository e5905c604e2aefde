"""A small S3, path style and without signatures, whose answers can be made to fail."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from xml.sax.saxutils import escape

HANG_S = 20.0
ENDLESS = 64 << 20  # bytes
HELD_UP = {"stuck": ("DELETE", "POST"), "held": ("PUT",)}


class S3:
    """Use as a context manager. `fault`: "" = none, 503, 404, 409, hang, reset, half, wrong,
    endless, less; the last four are of objects' bodies: broken off, other bytes, more and fewer
    than the header says; round lists the same again and again; read-only refuses to write; stuck
    holds deletions up until another one, held what is sent. `delay_s`: until an object goes out.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fault = ""
        self.delay_s = 0.0
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()  # of sessions, as requests carried them
        self.poured = 0  # bytes of endless bodies that somebody took
        self.held_up = 0  # requests about blocks that a fault holds up, or has
        self.over = threading.Event()
        handler = type("Handler", (_Handler,), {"store": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))

    def __enter__(self) -> S3:
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def tier(self) -> str:
        """A daemon's `remote` block; the key's file is `key` beside its configuration."""
        return (
            f"remote {{ url s3://bucket/p; endpoint {self.url}; access_key a; secret_key file:key;"
            " upload all; refresh 1s; breaker 50 pause=300ms; timeout 15s; }\n"
        )

    def blocks(self) -> list[str]:
        return [path for path in list(self.objects) if len(path.rpartition("/")[2]) == 64]


class _Handler(BaseHTTPRequestHandler):
    store: S3
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _path(self) -> tuple[str, dict[str, list[str]]]:
        path, _, query = self.path.partition("?")
        name = urllib.parse.unquote(path).removeprefix("/bucket").lstrip("/")
        return name, urllib.parse.parse_qs(query, keep_blank_values=True)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def _faulty(self) -> bool:
        """Whether a fault was the answer."""
        store = self.store
        store.requests.append(self.command)
        store.tokens.add(self.headers.get("x-amz-security-token"))
        if store.fault == "503":
            self._say(503, b"<Error><Code>SlowDown</Code></Error>")
        elif store.fault == "404":
            self._say(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        elif store.fault == "409":
            self._say(409, b"<Error><Code>OperationAborted</Code></Error>")
        elif store.fault == "read-only" and self.command not in ("GET", "HEAD"):
            self._say(403, b"<Error><Code>AccessDenied</Code></Error>")
        elif self.command in HELD_UP.get(store.fault, ()):
            fault = store.fault
            store.held_up += "namespace.json" not in self.path
            while store.fault == fault and not store.over.wait(0.01):
                pass
            return False
        elif store.fault == "hang":
            store.over.wait(HANG_S)
        elif store.fault == "reset":
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            return False
        self.close_connection = True
        return True

    def _say(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self._body()
        if self._faulty():
            return
        name, _ = self._path()
        if name in self.store.objects and self.headers.get("if-none-match") == "*":
            self._say(412)
            return
        self.store.objects[name] = body
        self._say(200, etag='"x"')

    def do_GET(self) -> None:
        if self._faulty():
            return
        name, query = self._path()
        if "list-type" in query:
            self._list(query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
            return
        body = self.store.objects.get(name)
        self.store.over.wait(self.store.delay_s)
        if body is None:
            self._say(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        stamp = {"etag": '"x"', "last_modified": "Mon, 30 Nov 2026 00:00:00 GMT"}
        status, span = 200, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range") or "")
        if span is not None:
            begin, end = int(span[1]), min(int(span[2]) + 1, len(body))
            if begin >= end:
                self._say(416, b"<Error><Code>InvalidRange</Code></Error>")
                return
            stamp["content_range"] = f"bytes {begin}-{end - 1}/{len(body)}"
            status, body = 206, body[begin:end]
        if self.store.fault == "wrong":
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        if self.store.fault in ("half", "endless", "less"):
            self._lie(status, body, stamp)
            return
        self._say(status, body, **stamp)

    def _lie(self, status: int, body: bytes, stamp: dict[str, str]) -> None:
        """Announces all of a body, and sends another number of bytes."""
        fault = self.store.fault
        self.close_connection = True
        self.send_response(status)
        for key, value in stamp.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        if fault == "half":
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            return
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        chunk = body if fault == "endless" else body[:-1]
        framed = f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n"
        with contextlib.suppress(OSError):
            self.wfile.write(framed)
            while fault == "endless" and self.store.poured < ENDLESS:
                self.wfile.write(framed)
                self.store.poured += len(chunk)
            self.wfile.write(b"0\r\n\r\n")

    def do_HEAD(self) -> None:
        name, _ = self._path()
        if self._faulty():
            return
        body = self.store.objects.get(name)
        self.send_response(200 if body is not None else 404)
        self.send_header("last-modified", "Mon, 30 Nov 2026 00:00:00 GMT")
        self.send_header("content-length", str(len(body or b"")))
        self.end_headers()

    def do_DELETE(self) -> None:
        if self._faulty():
            return
        self.store.objects.pop(self._path()[0], None)
        self._say(204)

    def do_POST(self) -> None:
        """Deletes many."""
        body = self._body()
        if self._faulty():
            return
        names = re.findall(r"<Key>(.*?)</Key>", body.decode())
        for name in names:
            self.store.objects.pop(name, None)
        deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
        self._say(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _list(self, prefix: str, delimiter: str) -> None:
        found = sorted((n, d) for n, d in list(self.store.objects.items()) if n.startswith(prefix))
        folders: set[str] = set()
        if delimiter:
            folders = {n[: n.index(delimiter, len(prefix)) + 1] for n, _ in found
                       if delimiter in n[len(prefix) :]}  # fmt: skip
            found = [(n, d) for n, d in found if delimiter not in n[len(prefix) :]]
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size>"
            "<LastModified>2026-11-30T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for name, data in found
        )
        rows += "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in sorted(folders)
        )
        more = "<IsTruncated>false</IsTruncated>"
        if self.store.fault == "round":
            more = "<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
        text = f"<ListBucketResult>{more}{rows}</ListBucketResult>"
        self._say(200, text.encode())
