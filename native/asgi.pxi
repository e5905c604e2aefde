# The Starlette lane: an ASGI server for one request of a Client, and the reverse, a Sink that writes
# through another ASGI server's `send`.

_ASGI = {"version": "3.0", "spec_version": "2.4"}


cdef class HeaderView:
    """A request's headers as ASGI wants them, made when somebody looks."""
    cdef Request request

    def __init__(self, Request request):
        self.request = request

    def __iter__(self):
        return iter(self.request.headers)

    def __len__(self):
        return self.request.field_count

    def __getitem__(self, at):
        return self.request.headers[at]


cdef class Cycle:
    """One ASGI exchange on a client connection. An endpoint may answer with `send`, or run a Leg on the
    client it finds in scope["extensions"]["kvgate.client"] and return when that is over."""
    cdef Client client
    cdef Request request
    cdef object task
    cdef object gone          # future: the client left
    cdef object drained       # future: the client takes bytes again
    cdef bint read
    cdef bint started
    cdef bint complete
    cdef bint leg_used
    cdef bint disconnected
    cdef bint bare
    cdef bint chunked
    cdef long long left       # bytes promised by content-length and not sent yet; -1 = not promised
    cdef list head

    def __init__(self, Client client, Request request):
        self.client = client
        self.request = request
        self.left = -1

    def scope(self):
        cdef Request r = self.request
        cdef Client c = self.client
        if c.pairs is None:
            c.pairs = _pair(c.peer), _pair(c.local)
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": "1.1" if r.version == 11 else "1.0",
            "method": r.method.decode("ascii"),
            "scheme": "https" if c.tls else "http",
            "path": _unquote_to_bytes(r.path).decode("utf-8", "replace") if b"%" in r.path else r.path.decode("ascii"),
            "raw_path": r.path,
            "query_string": r.query or b"",
            "root_path": "",
            "headers": HeaderView(r),
            "client": c.pairs[0],
            "server": c.pairs[1],
            "state": {},
            "extensions": {"kvgate.client": c, "kvgate.request": r},
        }

    async def run(self, app):
        cdef Client client = self.client
        cdef Request request = self.request
        try:
            await app(self.scope(), self.receive, self.send)
        except Exception as exc:
            self._failed(exc)
        else:
            if not self.complete and not self.leg_used and client.serves(request) and client.cycle is self:
                self._failed(RuntimeError("the ASGI application returned without an answer"))
        self.disconnect()

    cdef _failed(self, exc):
        cdef Client client = self.client
        cdef Leg leg = client.leg
        client.loop.call_exception_handler({"message": f"fault while serving {self.request!r}", "exception": exc})
        if client.cycle is not self:
            return
        if leg is not None:
            leg.fail("cancelled", "the application failed")
        if not client.serves(self.request) or client.cycle is not self:
            return
        if self.started:
            client.abort()
        else:
            client._refuse(self.request, (500, "internal_error", "the gateway failed; the fault is in its log"))

    async def receive(self):
        if not self.read:
            self.read = True
            return {"type": "http.request", "body": self.request.body or b"", "more_body": False}
        if not self.disconnected and not self.complete:
            if self.gone is None:
                self.gone = self.client.loop.create_future()
            await self.gone
        return {"type": "http.disconnect"}

    async def send(self, message):
        cdef Client client = self.client
        if self.disconnected or client.cycle is not self:
            return
        if message["type"] == "http.response.start":
            self._begin(message)
        elif message["type"] == "http.response.body":
            self._more(message.get("body", b""), message.get("more_body", False))
            if client.write_paused and not self.complete:
                self.drained = client.loop.create_future()
                await self.drained
        else:
            raise RuntimeError(f"unknown ASGI message {message['type']!r}")

    cdef _begin(self, message):
        cdef int status = message["status"]
        cdef bint date = False
        if self.head is not None:
            raise RuntimeError("http.response.start came twice")
        self.bare = no_body(status, self.request.method)
        self.head = [status_line(status), b"server: kvgate\r\n"]
        for name, value in message.get("headers", ()):
            name = name.lower()
            if name == b"content-length":
                self.left = int(value)
            elif name == b"transfer-encoding" or name == b"connection":
                continue
            elif name == b"date":
                date = True
            if b"\r" in value or b"\n" in value or b"\0" in value:
                raise RuntimeError(f"a line break in the value of header {name!r}")
            self.head.append(b"%b: %b\r\n" % (name, value))
        if not date:
            self.head.append(date_line())

    cdef _more(self, bytes body, bint more):
        cdef list out = []
        cdef Client client = self.client
        if self.head is None or self.complete:
            raise RuntimeError("http.response.body out of order")
        if not self.started:
            self.started = True
            out = self.head
            if self.left < 0 and not self.bare:
                if not more:
                    self.left = len(body)
                    out.append(b"content-length: %d\r\n" % self.left)
                elif self.request.version == 11:
                    self.chunked = True
                    out.append(b"transfer-encoding: chunked\r\n")
                else:
                    client.closing_ = True
            out.append(client.connection_line(self.request))
            out.append(b"\r\n")
        if body and not self.bare:
            if self.left >= 0:
                if len(body) > self.left:
                    raise RuntimeError("the body is longer than its content-length")
                self.left -= len(body)
            out.append(b"%x\r\n%b\r\n" % (len(body), body) if self.chunked else body)
        if not more:
            if self.chunked:
                out.append(b"0\r\n\r\n")
            self.complete = True
        if out:
            client.write(b"".join(out))
        if self.complete:
            if self.left > 0 and not self.bare:
                client.abort()
            else:
                client.finished(self.request, client.state == S_BUSY)

    cdef wake(self):
        if self.drained is not None and not self.drained.done():
            self.drained.set_result(None)

    cdef disconnect(self):
        self.disconnected = True
        self.wake()
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)


cdef _pair(str address):
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else (address, None)


cdef class AsgiClient(Sink):
    """A client behind another ASGI server (an in-memory test client, say): the same gate, the same Leg,
    the same meter; what the Leg relays goes through `send`."""
    cdef object scope
    cdef object receive
    cdef object send
    cdef object gate
    cdef Request request
    cdef object queue_event
    cdef list queue
    cdef Py_ssize_t queued
    cdef bint over
    cdef bint broken
    cdef object task

    def __init__(self, scope, receive, send, gate, listener):
        self.scope, self.receive, self.send = scope, receive, send
        self.gate, self.listener = gate, listener
        self.peer = ":".join(map(str, scope.get("client") or ("unix", "")))
        self.local = ":".join(map(str, scope.get("server") or ("unix", "")))
        self.tls = scope.get("scheme") == "https"
        self.requests = 1
        self.queue = []

    @property
    def closing(self):
        return self.over

    cdef Request _request(self):
        cdef Request r = Request()
        cdef list lines = []
        scope = self.scope
        target = scope.get("raw_path") or scope["path"].encode()
        if scope.get("query_string"):
            target = target + b"?" + scope["query_string"]
        lines.append(b"%b %b HTTP/1.1\r\n" % (scope["method"].encode(), target))
        has_host = False
        for name, value in scope["headers"]:
            has_host = has_host or name == b"host"
            lines.append(b"%b: %b\r\n" % (name, value))
        if not has_host:
            lines.append(b"host: localhost\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        bad = parse_request(r, head, 0, len(head), self.listener.limits)
        r.t_head = now_s()
        self.request = r
        if bad is not None:
            r.t0 = r.t_head
            self.gate.refuse(self, r, *bad)
            return None
        return r

    async def run(self):
        """Serves the request of the scope; returns when the reply is complete."""
        cdef Request r
        cdef Leg leg
        self.queue_event = asyncio.Event()
        r = self._request()
        if r is not None and await self._body(r):
            r.t0 = now_s()
            self.gate.request(self, r)
        watch = asyncio.ensure_future(self._watch())
        try:
            while True:
                while self.queue:
                    message = self.queue.pop(0)
                    self.queued -= len(message.get("body", b""))
                    await self.send(message)
                    if self.write_paused and self.queued < WRITE_LOW:
                        self.write_paused = False
                        leg = self.leg
                        if leg is not None:
                            leg.release()
                if self.over:
                    break
                self.queue_event.clear()
                await self.queue_event.wait()
        finally:
            watch.cancel()
            leg = self.leg
            if leg is not None:
                leg.fail("client_gone", "")
        if self.broken:
            raise ConnectionError("the engine's reply broke off")

    async def _body(self, Request r):
        parts = []
        size = 0
        limit = self.gate.head(self, r) if r.chunked or r.content_length > 0 else 0
        if limit == REPLIED:
            return False
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                self.over = True
                self.gate.abandoned(self, r)
                return False
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if limit > 0 and size > limit:
                self.gate.refuse(self, r, 413, "body_too_large", f"the request body is larger than {limit} bytes")
                return False
            if not message.get("more_body"):
                r.body = b"".join(parts)
                return True

    async def _watch(self):
        cdef Leg leg
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if not self.over:
            self.over = True
            leg = self.leg
            if leg is not None:
                leg.fail("client_gone", "")
            self.queue_event.set()

    cdef bint serves(self, Request request):
        return self.request is request and not self.over

    cdef _put(self, dict message):
        cdef Leg leg
        self.queue.append(message)
        self.queued += len(message.get("body", b""))
        if self.queued > WRITE_HIGH and not self.write_paused:
            self.write_paused = True
            leg = self.leg
            if leg is not None:
                leg.hold()
        self.queue_event.set()

    cdef take_head(self, int status, list headers):
        self._put({"type": "http.response.start", "status": status, "headers": headers})

    cdef write(self, bytes data):
        self._put({"type": "http.response.body", "body": data, "more_body": True})

    cdef finished(self, Request request, bint keep):
        self.leg = None
        self._put({"type": "http.response.body", "body": b"", "more_body": False})
        self.over = True

    cdef abort(self):
        self.leg = None
        self.over = self.broken = True
        self.queue_event.set()

    def reply(self, Request request, int status, headers, bytes body, bint close=False):
        if self.over or self.leg is not None:
            return
        lines = [(name.lower(), value) for name, value in headers]
        lines.append((b"content-length", b"%d" % len(body)))
        self.take_head(status, lines)
        if body and not no_body(status, request.method):
            self.write(body)
        self.finished(request, True)

    def run_asgi(self, Request request):
        self.task = asyncio.ensure_future(self.gate.serve(self, request))
