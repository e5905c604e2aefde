# A client's connection: what the event loop tells it, what the pipeline and a Leg ask of it.

cdef class Crowd:
    """How many client connections this worker holds at most; `limit` 0 = any number."""
    cdef public Py_ssize_t limit
    cdef readonly Py_ssize_t refused


cdef Crowd _crowd = Crowd()
client_limit = _crowd

cdef extern from "sys/ioctl.h" nogil:
    int ioctl(int, unsigned long, ...)
    unsigned long TIOCOUTQ

cdef extern from "sys/socket.h" nogil:
    struct linger:
        int l_onoff
        int l_linger
    int setsockopt(int, int, int, const void*, unsigned int)
    int SOL_SOCKET
    int SO_LINGER

cdef linger _NO_LINGER
_NO_LINGER.l_onoff = 1
_NO_LINGER.l_linger = 0


cdef class Client(Reader):
    """One client connection; it serves one request at a time, in order."""
    cdef object app
    cdef set registry
    cdef Cycle cycle
    cdef double linger_until
    cdef int unread              # bytes in the kernel's buffer when a stalled client was last looked at
    cdef tuple pairs             # (host, port) of both ends, once the Starlette lane has asked

    def __init__(self, gate, app, listener, registry):
        self.gate = gate
        self.app = app
        self.listener = listener
        self.limits = listener.limits
        self.registry = registry
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
        if _crowd.limit and len(self.registry) > _crowd.limit:
            _crowd.refused += 1
            self._refuse(None, (503, "overloaded", "this worker holds as many connections as it may"))

    def data_received(self, bytes data):
        if self.state == S_HEAD and not self.write_paused:
            self._advance(data)
        elif self.state == S_BODY:
            self._buffer(data, 0)
        elif self.state == S_STREAM:
            self._pass_body(data)
        elif self.state == S_LINGER:
            self.deadline = min(self.linger_until, now_s() + LINGER_QUIET_S)
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
        self.transport = None     # a TLS transport holds us: the ring would stay until a collection
        self.request = None
        self.pending = b""
        self.body_parts = None

    def pause_writing(self):
        cdef Leg leg = self.leg
        self.write_paused = True
        self.unread = -1
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
            self.deadline = now_s() + self.idle_s()
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
            # The client takes nothing: it is treated as gone. One that reads slowly frees no room here for
            # long, as the kernel's own buffer comes first: that it shrinks is a sign of life.
            if self._still_reads():
                self.deadline = now + self.limits.send_timeout_s
            elif self.state == S_BUSY or self.state == S_STREAM:
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

    cdef bint _still_reads(self):
        """Has the client taken bytes out of the kernel's buffer since this was asked last?"""
        cdef int left = 0
        cdef int before = self.unread
        if self.transport is None or ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, &left) != 0:
            return False
        self.unread = left
        return before < 0 or left < before

    # ---- what the pipeline calls ----

    @property
    def closing(self):
        return self.closing_ or self.state == S_CLOSED

    def reply(self, Request request, int status, headers, bytes body, bint close=False):
        """A whole reply made here. Nothing happens when the client has left or is not waiting for it."""
        self.answer(request, status, headers, body, close)

    cdef answer(self, Request request, int status, headers, bytes body, bint close):
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

    def farewell(self, double idle_s):
        """The next head that goes out says close, and a connection that idles for so long is closed: a
        client that is about to ask, or was not told yet, is not cut off."""
        self.farewell_s = idle_s
        if self.state == S_HEAD and not self.pending:
            self.deadline = now_s() + idle_s

    @property
    def tls_object(self):
        """The ssl.SSLObject of the connection, or None."""
        return None if self.transport is None else self.transport.get_extra_info("ssl_object")

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
        elif self.state == S_BODY or (self.state == S_BUSY and (self.cycle is None or not self.cycle.started)):
            self._refuse(self.request, (503, "draining", "the gateway is stopping"))
        if self.transport is not None and self.state != S_CLOSED and self.state != S_LINGER:
            self.shut(False)

    # ---- what a Leg calls ----

    cdef bint serves(self, Request request):
        return self.request is request and (self.state == S_BUSY or self.state == S_STREAM)

    cdef bytes connection_line(self, Request request):
        if not request.keep_alive or self.closing_ or self.farewell_s or (
                self.limits.keepalive_requests and self.requests >= self.limits.keepalive_requests):
            self.closing_ = True
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if request.version == 10 else b""

    cdef double idle_s(self):
        """How long it may idle."""
        return self.farewell_s or self.limits.keepalive_timeout_s

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
        self.deadline = now_s() + (self.limits.header_timeout_s if self.pending else self.idle_s())
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
        self.linger_until = now_s() + LINGER_S
        self.deadline = now_s() + LINGER_QUIET_S
        self._resume_reading()
        if not self.tls and self.transport.can_write_eof():
            self.transport.write_eof()

    cdef abort(self):
        if self.request is not None and self.request.version == 10 and self.fd >= 0:
            # Its reply ends with the connection: only a reset tells that this is not the end of it.
            setsockopt(self.fd, SOL_SOCKET, SO_LINGER, &_NO_LINGER, sizeof(_NO_LINGER))
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
