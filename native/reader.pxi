# The reading half of a client's connection: heads and bodies, one request at a time. What comes behind a
# request waits, unparsed and bounded, until its exchange is over: replies cannot overtake one another.

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
    TURN_MAX = 32                # requests of one connection in one turn of the loop
    TARGET_LINE_MAX = TARGET_MAX + 64

# After an early answer what the client still sends is thrown away for a while, as nginx does.
cdef double LINGER_S = 30.0
cdef double LINGER_QUIET_S = 5.0


cdef class Reader(Sink):
    cdef object gate
    cdef object loop
    cdef Limits limits
    cdef int state
    cdef bytes pending           # a head so far, or what was sent ahead
    cdef list body_parts
    cdef Py_ssize_t body_have
    cdef long long body_max      # 0 = no limit
    cdef long long body_left     # of a body with a length that passes through
    cdef Chunked framing
    cdef Request request
    cdef bint read_paused
    cdef bint closing_
    cdef bint processing

    cdef answer(self, Request request, int status, headers, bytes body, bint close):
        """A whole reply made here; see Client.reply."""

    # ---- requests ----

    cdef _advance(self, bytes data):
        """Parses and starts what `data` holds, one request after another, as far as replies allow."""
        cdef int turn
        if self.pending:
            data = self.pending + data
            self.pending = b""
        if self.processing:
            self.pending = data
            return
        self.processing = True
        try:
            for turn in range(TURN_MAX):
                if not data or self.state != S_HEAD or self.write_paused:
                    self.pending = data
                    return
                self._one(data)
                if self.state != S_HEAD or self.pending is data:
                    return
                data = self.pending
                self.pending = b""
            self.pending = data
        finally:
            self.processing = False
        if data:
            # Requests that are answered at once come in a flood: other clients have their turn first.
            self._pause_reading()
            self.loop.call_soon(self._go_on)

    def _go_on(self):
        cdef bytes data
        if self.state == S_HEAD and not self.processing and not self.write_paused:
            self._resume_reading()
            if self.pending:
                data = self.pending
                self.pending = b""
                self._advance(data)

    cdef _one(self, bytes data):
        """Takes one request off `data`, or keeps all of it as `pending` when the head is not complete."""
        cdef const char* p = PyBytes_AS_STRING(data)
        cdef const char* at
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
                at = <const char*>memchr(p + start, 10, n - start)
                if at == NULL or at - (p + start) > TARGET_LINE_MAX:
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
            r.version = 11
            r.t_head = now_s()
            self.request = r
        if r.t0 == 0:
            r.t0 = r.t_head
        if r.method is None:      # the request line could not be read
            r.method = b"-"
        if r.path is None:
            r.target = r.path = r.target or b""
        if self.state == S_HEAD:
            self.state = S_BUSY
        status, code, message = bad
        try:
            self.gate.refuse(self, r, status, code, message)
        except Exception as exc:
            self.loop.call_exception_handler({"message": "fault while refusing a request", "exception": exc})
        if self.request is r and self.state in (S_BODY, S_STREAM, S_BUSY):
            self.answer(r, status, (), b"", True)

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
            self.body_have += take
            if r.body_limit > 0 and self.body_have > r.body_limit:
                leg.fail("client_too_large", f"the request body is larger than {r.body_limit} bytes")
                return
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
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
