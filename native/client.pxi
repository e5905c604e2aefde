# A client's connection. It reads one request at a time; what comes behind it waits, unparsed and bounded,
# until the exchange that runs is over: replies cannot overtake one another.

STREAM = -1      # Gate.head: do not buffer the body
REPLIED = -2     # Gate.head: a reply has been given

cdef enum:
    S_HEAD = 0       # between requests, or reading a head
    S_BODY = 1       # buffering a body
    S_STREAM = 2     # an exchange runs and the body is still passing through
    S_BUSY = 3       # an exchange runs
    S_LINGER = 4     # answered and closing, reading what the client still sends so that it sees the answer
    S_CLOSED = 5

cdef enum:
    READ_AHEAD_MAX = 65536       # unparsed bytes kept behind a running exchange
    LINGER_MAX = 1 << 20         # bytes thrown away after an early answer

cdef double LINGER_S = 2.0

_REASONS = {
    200: b"OK", 201: b"Created", 202: b"Accepted", 204: b"No Content", 301: b"Moved Permanently", 302: b"Found",
    303: b"See Other", 304: b"Not Modified", 307: b"Temporary Redirect", 308: b"Permanent Redirect",
    400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed",
    408: b"Request Timeout", 409: b"Conflict", 411: b"Length Required", 413: b"Content Too Large",
    414: b"URI Too Long", 415: b"Unsupported Media Type", 417: b"Expectation Failed", 422: b"Unprocessable Content",
    429: b"Too Many Requests", 431: b"Request Header Fields Too Large", 499: b"Client Closed Request",
    500: b"Internal Server Error", 501: b"Not Implemented", 502: b"Bad Gateway", 503: b"Service Unavailable",
    504: b"Gateway Timeout", 505: b"HTTP Version Not Supported",
}


cdef bytes status_line(int status):
    return b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Status"))


cdef bint no_body(int status, bytes method):
    return status == 204 or status == 304 or status < 200 or method == b"HEAD"


cdef class Sink(Wire):
    """Where a reply goes. `raw`: takes HTTP/1.1 bytes; otherwise head, payload and end one by one."""
    cdef readonly object listener
    cdef readonly str peer
    cdef readonly str local
    cdef readonly bint tls
    cdef readonly Py_ssize_t requests
    cdef bint raw
    cdef bint write_paused
    cdef Leg leg

    cdef bint serves(self, Request request):
        return False

    cdef write(self, bytes data):
        pass

    cdef write_raw(self, const char* p, Py_ssize_t n):
        pass

    cdef take_head(self, int status, list headers):
        pass

    cdef finished(self, Request request, bint keep):
        """The reply is complete; `keep` = the connection may carry another request."""

    cdef abort(self):
        """The reply cannot be completed: the client must see that."""


cdef class Client(Sink):
    cdef object gate
    cdef object app
    cdef object loop
    cdef set registry
    cdef Limits limits
    cdef int state
    cdef bytes pending
    cdef list body_parts
    cdef Py_ssize_t body_have
    cdef long long body_max      # 0 = no limit
    cdef long long body_left     # of a body with a length that passes through
    cdef Chunked framing
    cdef Request request
    cdef Cycle cycle
    cdef bint read_paused
    cdef bint closing_
    cdef bint processing

    def __init__(self, gate, app, listener, registry):
        self.gate = gate
        self.app = app
        self.listener = listener
        self.limits = listener.limits
        self.registry = registry
        self.raw = True
        self.pending = b""

    # ---- asyncio protocol ----

    def connection_made(self, transport):
        self.loop = asyncio.get_running_loop()
        self.attach(transport)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.tls = transport.get_extra_info("sslcontext") is not None
        self.registry.add(self)
        self.watch()
        self.deadline = now_s() + self.limits.header_timeout_s

    def data_received(self, bytes data):
        if self.state == S_HEAD and not self.write_paused:
            self._advance(data)
        elif self.state == S_BODY:
            self._buffer(data, 0)
        elif self.state == S_STREAM:
            self._pass_body(data)
        elif self.state == S_LINGER:
            self.body_have += len(data)
            if self.body_have > LINGER_MAX:
                self.shut(True)
        elif self.state == S_BUSY or self.state == S_HEAD:
            self.pending = self.pending + data if self.pending else data
            if len(self.pending) > READ_AHEAD_MAX:
                self._pause_reading()

    def eof_received(self):
        if self.state == S_BUSY or self.state == S_STREAM or self.state == S_BODY:
            self._left()
        self.fd = -1
        return False

    def connection_lost(self, exc):
        if self.state == S_BUSY or self.state == S_STREAM or self.state == S_BODY:
            self._left()
        self.state = S_CLOSED
        self.fd = -1
        self.unwatch()
        self.registry.discard(self)
        self.request = None
        self.pending = b""
        self.body_parts = None

    def pause_writing(self):
        cdef Leg leg = self.leg
        self.write_paused = True
        self.deadline = now_s() + self.limits.send_timeout_s
        if leg is not None:
            leg.hold()

    def resume_writing(self):
        cdef bytes data
        cdef Leg leg
        self.write_paused = False
        if self.state == S_BUSY or self.state == S_STREAM:
            self.deadline = 0
        elif self.state == S_HEAD:
            self.deadline = now_s() + self.limits.keepalive_timeout_s
            self._resume_reading()
            if self.pending and not self.processing:
                data = self.pending
                self.pending = b""
                self._advance(data)
        leg = self.leg
        if leg is not None:
            leg.release()
        if self.cycle is not None:
            self.cycle.wake()

    cdef void expired(self, double now):
        cdef Leg leg = self.leg
        self.deadline = 0
        if self.write_paused:
            # The client takes nothing: it is treated as gone.
            if self.state == S_BUSY or self.state == S_STREAM:
                self._left()
            else:
                self.shut(True)
        elif self.read_paused and self.state == S_BUSY:
            # A paused read hides the client's leaving: look at the socket instead.
            if _hung_up(self.transport):
                self._left()
            else:
                self.deadline = now + TICK_S
        elif self.state == S_HEAD:
            if self.pending:
                self._refuse(None, (408, "request_timeout", "the request head did not arrive in time"))
            else:
                self.shut(False)
        elif self.state == S_BODY:
            self._refuse(self.request, (408, "request_timeout", "the request body did not arrive in time"))
        elif self.state == S_STREAM and leg is not None:
            leg.fail("client_timeout", "the request body did not arrive in time")
        elif self.state == S_LINGER or self.state == S_CLOSED:
            self.shut(True)

    # ---- requests ----

    cdef _advance(self, bytes data):
        """Parses and starts what `data` holds, one request after another, as far as replies allow."""
        if self.pending:
            data = self.pending + data
            self.pending = b""
        if self.processing:
            self.pending = data
            return
        self.processing = True
        try:
            while data and self.state == S_HEAD and not self.write_paused:
                self._one(data)
                if self.state != S_HEAD or self.pending is data:
                    return
                data = self.pending
                self.pending = b""
            self.pending = data
        finally:
            self.processing = False

    cdef _one(self, bytes data):
        """Takes one request off `data`, or keeps all of it as `pending` when the head is not complete."""
        cdef const char* p = PyBytes_AS_STRING(data)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data), start = 0, end
        cdef Request r
        cdef tuple bad
        while start + 1 < n and p[start] == 13 and p[start + 1] == 10 and start < 8:
            start += 2   # empty lines before a request (RFC 9112 §2.2)
        if start == n or start + 1 == n and p[start] == 13:
            self.pending = data
            return
        if not CLASS[<uint8_t>p[start]] & 1:
            self._refuse(None, _bad("this is not HTTP/1.1"))
            return
        end = head_end(p, n, start)
        if end == MALFORMED:
            self._refuse(None, _bad("a line of the request head ends in a bare line feed"))
            return
        if end == INCOMPLETE or end - start > self.limits.header_bytes:
            if n - start > self.limits.header_bytes:
                if memchr(p + start, 10, n - start) == NULL:
                    self._refuse(None, (414, "target_too_long", "the request line is too long"))
                else:
                    self._refuse(None, (431, "header_too_large",
                                        f"the request head is longer than {self.limits.header_bytes} bytes"))
                return
            if not self.pending and self.requests:
                self.deadline = now_s() + self.limits.header_timeout_s
            self.pending = data
            return
        r = Request()
        self.requests += 1
        bad = parse_request(r, p, start, end, self.limits)
        self.request = r
        r.t_head = now_s()
        if bad is None and r.upgrade:
            bad = 501, "upgrade", "no other protocol is offered on this connection"
        if bad is not None:
            self._refuse(r, bad)
            return
        self._take_body(r, data, end)

    cdef _take_body(self, Request r, bytes data, Py_ssize_t end):
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data), length
        if not r.chunked and r.content_length <= n - end:
            length = r.content_length if r.content_length > 0 else 0
            if length and not _budget.take(length):
                self._refuse(r, (503, "overloaded", "too many request bodies are held right now"))
                return
            r.charged = length
            r.body = data[end:end + length] if length else b""
            self.pending = data[end + length:] if end + length < n else b""
            self._dispatch(r)
            return
        self.pending = b""
        cdef long long limit = self._ask(r)
        if limit == REPLIED or self.state == S_CLOSED or self.request is not r:
            return
        if limit > 0 and r.content_length > limit:
            self._too_large(r, limit)
            return
        if r.expects and end == n:
            self.put(b"HTTP/1.1 100 Continue\r\n\r\n")
        chunked_reset(&self.framing)
        self.body_parts = []
        self.body_have = 0
        if limit == STREAM:
            self.body_left = r.content_length
            self.state = S_STREAM
            if end < n:
                self.body_parts.append(data[end:])
            self._pause_reading()
            r.t0 = r.t_head
            self._call(r)
        else:
            self.body_max = limit
            self.state = S_BODY
            self.deadline = r.t_head + self.limits.body_timeout_s
            if end < n:
                self._buffer(data, end)

    cdef long long _ask(self, Request r) except? -9:
        """Gate.head; a fault of ours there is a 500, not a lost connection."""
        self.state = S_BODY
        try:
            return self.gate.head(self, r)
        except Exception as exc:
            self._fault(r, exc)
            return REPLIED

    cdef _buffer(self, bytes data, Py_ssize_t start):
        """More of a body that is kept until it is complete."""
        cdef Request r = self.request
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data), take = n - start, used = 0
        cdef bint done
        cdef bytes part
        if r.chunked:
            part = PyBytes_FromStringAndSize(NULL, take)
            take = chunked_feed(&self.framing, PyBytes_AS_STRING(data) + start, n - start,
                                PyBytes_AS_STRING(part), &used)
            if self.framing.state == C_BAD:
                self._refuse(r, _bad("the request body's chunk framing is malformed"))
                return
            part = part[:take]
            done = self.framing.state == C_DONE
        else:
            used = r.content_length - self.body_have
            if used > take:
                used = take
            part = data if start == 0 and used == n else data[start:start + used]
            take = used
            done = self.body_have + take == r.content_length
        self.body_have += take
        if self.body_max > 0 and self.body_have > self.body_max:
            self._too_large(r, self.body_max)
            return
        if not _budget.take(take):
            self._refuse(r, (503, "overloaded", "too many request bodies are held right now"))
            return
        r.charged += take
        self.body_parts.append(part)
        if not done:
            self.deadline = now_s() + self.limits.body_timeout_s
            return
        r.body = self.body_parts[0] if len(self.body_parts) == 1 else b"".join(self.body_parts)
        self.body_parts = None
        self.pending = data[start + used:] if start + used < n else b""
        self._dispatch(r)

    cdef _dispatch(self, Request r):
        r.t0 = now_s()
        self.state = S_BUSY
        self.deadline = 0
        self._call(r)

    cdef _call(self, Request r):
        self.deadline = 0
        try:
            self.gate.request(self, r)
        except Exception as exc:
            self._fault(r, exc)

    cdef _fault(self, Request r, exc):
        """A fault of ours: said to the loop's handler (it logs), answered with a 500."""
        self.loop.call_exception_handler({"message": f"fault while serving {r!r}", "exception": exc})
        if self.leg is None and self.request is r and self.state in (S_BODY, S_STREAM, S_BUSY):
            self._refuse(r, (500, "internal_error", "the gateway failed; the fault is in its log"))

    cdef _too_large(self, Request r, long long limit):
        self._refuse(r, (413, "body_too_large", f"the request body is larger than {limit} bytes"))

    cdef _refuse(self, Request r, tuple bad):
        """An answer to what cannot be served, after which the connection ends."""
        self.closing_ = True
        self.body_parts = None
        self.pending = b""
        if r is None:
            r = Request()
            r.method = b"-"
            r.target = r.path = b""
            r.version = 11
            r.t_head = now_s()
            self.request = r
        if r.t0 == 0:
            r.t0 = r.t_head
        if self.state == S_HEAD:
            self.state = S_BUSY
        status, code, message = bad
        try:
            self.gate.refuse(self, r, status, code, message)
        except Exception as exc:
            self.loop.call_exception_handler({"message": "fault while refusing a request", "exception": exc})
        if self.request is r and self.state in (S_BODY, S_STREAM, S_BUSY):
            self.reply(r, status, (), b"", True)

    # ---- what the pipeline calls ----

    @property
    def closing(self):
        return self.closing_ or self.state == S_CLOSED

    def reply(self, Request request, int status, headers, bytes body, bint close=False):
        """A whole reply made here. Nothing happens when the client has left or is not waiting for it."""
        cdef list out
        cdef bint bare
        cdef bint unread
        if self.request is not request or self.leg is not None:
            return
        if self.state != S_BODY and self.state != S_STREAM and self.state != S_BUSY:
            return
        unread = self.state != S_BUSY
        if close or unread:
            self.closing_ = True
        bare = no_body(status, request.method)
        out = [status_line(status), b"server: kvgate\r\n", date_line()]
        for name, value in headers:
            out.append(b"%b: %b\r\n" % (name, value))
        if not (status == 204 or status == 304 or status < 200):
            out.append(b"content-length: %d\r\n" % len(body))
        out.append(self.connection_line(request))
        out.append(b"\r\n")
        if not bare:
            out.append(body)
        self.put(b"".join(out))
        self.finished(request, not unread)

    def run_asgi(self, Request request):
        """The Starlette lane: the application answers, or runs a Leg and returns when it is over."""
        self.cycle = Cycle(self, request)
        self.cycle.task = self.loop.create_task(self.cycle.run(self.app))

    def shutdown(self):
        """No more requests: closes now when idle, else after the reply that runs."""
        self.closing_ = True
        if self.state == S_HEAD:
            self.shut(False)

    @property
    def busy(self):
        """A request is being read or answered."""
        return self.state != S_CLOSED and (self.state != S_HEAD or self.pending != b"")

    def kill(self):
        """The end of a drain: what runs is ended as well as its state allows, then the connection goes."""
        cdef Leg leg = self.leg
        self.closing_ = True
        if leg is not None:
            leg.fail("shutdown", "the gateway is stopping")
        if self.transport is not None and self.state != S_CLOSED and self.state != S_LINGER:
            self.shut(False)

    # ---- what a Leg calls ----

    cdef bint serves(self, Request request):
        return self.request is request and (self.state == S_BUSY or self.state == S_STREAM)

    cdef bytes connection_line(self, Request request):
        if not request.keep_alive or self.closing_ or (
                self.limits.keepalive_requests and self.requests >= self.limits.keepalive_requests):
            self.closing_ = True
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if request.version == 10 else b""

    cdef write(self, bytes data):
        self.put(data)

    cdef write_raw(self, const char* p, Py_ssize_t n):
        self.put_raw(p, n)

    cdef finished(self, Request request, bint keep):
        cdef bytes data
        self.leg = None
        self.cycle = None
        self.request = None
        if self.state == S_CLOSED:
            return
        if self.closing_ or not keep:
            self._end(keep)
            return
        self.state = S_HEAD
        self.deadline = now_s() + (self.limits.header_timeout_s if self.pending else self.limits.keepalive_timeout_s)
        self._resume_reading()
        if self.pending and not self.processing and not self.write_paused:
            data = self.pending
            self.pending = b""
            self._advance(data)

    cdef _end(self, bint read_all):
        """Closes. Where the client may still be sending, its bytes are read for a moment first: closing
        at once would reset the connection and could take the answer with it."""
        if read_all and not self.pending:
            self.state = S_CLOSED
            self.deadline = now_s() + self.limits.send_timeout_s
            self.shut(False)
            return
        self.state = S_LINGER
        self.pending = b""
        self.body_have = 0
        self.deadline = now_s() + LINGER_S
        self._resume_reading()
        if not self.tls and self.transport.can_write_eof():
            self.transport.write_eof()

    cdef abort(self):
        self.state = S_CLOSED
        self.leg = None
        self.cycle = None
        self.request = None
        self.deadline = now_s() + self.limits.send_timeout_s
        self.shut(False)

    cdef _left(self):
        """The client is gone: whatever runs for it stops."""
        cdef Request r = self.request
        cdef Leg leg = self.leg
        cdef Cycle cycle = self.cycle
        cdef int was = self.state
        self.state = S_CLOSED
        self.leg = None
        self.cycle = None
        self.body_parts = None
        self.shut(True)
        if cycle is not None:
            cycle.disconnect()
        if leg is not None:
            leg.fail("client_gone", "")
        elif r is not None:
            try:
                self.gate.abandoned(self, r)
            except Exception as exc:
                self.loop.call_exception_handler({"message": "fault in abandoned()", "exception": exc})
        self.request = None

    # ---- a body that passes through ----

    cdef pump(self, Leg leg):
        """The leg is connected: what waits of the body goes out, and reading goes on."""
        cdef list parts = self.body_parts
        self.body_parts = None
        if self.state != S_STREAM or parts is None:
            return
        for part in parts:
            self._pass_body(part)
            if self.state != S_STREAM:
                return
        if not leg.upstream_full:
            self._resume_reading()
            self.deadline = now_s() + self.limits.body_timeout_s

    cdef _pass_body(self, bytes data):
        cdef Request r = self.request
        cdef Leg leg = self.leg
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data), used = 0, take
        cdef bytes part
        cdef bint done
        if self.body_parts is not None:   # not connected yet
            self.body_parts.append(data)
            return
        if r.chunked:
            part = PyBytes_FromStringAndSize(NULL, n)
            take = chunked_feed(&self.framing, PyBytes_AS_STRING(data), n, PyBytes_AS_STRING(part), &used)
            if self.framing.state == C_BAD:
                leg.fail("client_bad", "the request body's chunk framing is malformed")
                return
            done = self.framing.state == C_DONE
            part = b"%x\r\n%b\r\n" % (take, part[:take]) if take else b""
            if done:
                part += b"0\r\n\r\n"
        else:
            used = self.body_left if self.body_left < n else n
            self.body_left -= used
            done = self.body_left == 0
            part = data if used == n else data[:used]
        if done:
            self.state = S_BUSY
            self.deadline = 0
            self.pending = data[used:] if used < n else b""
            r.t0 = now_s()
        else:
            self.deadline = now_s() + self.limits.body_timeout_s
        leg.send_body(part, done)

    cdef body_flow(self, bint full):
        """The engine takes no more for now, or again."""
        if self.state == S_STREAM:
            if full:
                self._pause_reading()
                self.deadline = 0
            else:
                self._resume_reading()
                self.deadline = now_s() + self.limits.body_timeout_s

    cdef _pause_reading(self):
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()
            if self.state == S_BUSY and self.deadline == 0:
                self.deadline = now_s() + TICK_S

    cdef _resume_reading(self):
        if self.read_paused:
            self.read_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()


cdef str _address(name):
    if isinstance(name, tuple):
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
    return f"unix:{name}" if name else "unix:"


cdef bint _hung_up(transport):
    """Has the other side closed its half, whatever still waits to be read?"""
    import select
    cdef int fd = transport.get_extra_info("socket").fileno()
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def serve_protocol(gate, app, listener, registry=None):
    """A protocol factory for one listening socket. `listener.limits` is a Limits; `registry` (a set)
    holds the open connections, for draining."""
    connections = set() if registry is None else registry

    def factory():
        return Client(gate, app, listener, connections)

    return factory
