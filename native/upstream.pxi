# Connections to engines. One pool per engine; idle connections are closed before the engine would close
# them. All engine sockets read into one buffer: what is read is copied on before the next read.

cdef enum:
    READ_SIZE = 65536

cdef bytearray _read_buffer = bytearray(READ_SIZE)
cdef char* _read_at = _read_buffer

cdef enum:
    IPPROTO_TCP_ = 6
    TCP_INFO_ = 11
    BYTES_ACKED_AT = 120         # offset of tcpi_bytes_acked in Linux's struct tcp_info


cdef class Conn(Wire):
    """One connection to an engine: idle in its pool, or lent to one Leg."""
    cdef Pool pool
    cdef Leg leg
    cdef Py_ssize_t served        # exchanges begun on it
    cdef bint lost
    cdef uint64_t written         # request bytes handed to it so far
    cdef bint lingers             # what comes is thrown away

    def connection_made(self, transport):
        self.attach(transport)
        self.watch()

    def get_buffer(self, Py_ssize_t hint):
        return _read_buffer

    # A leg lets go of its connection and its sink when it ends: whoever calls into one holds it meanwhile.

    def buffer_updated(self, Py_ssize_t n):
        cdef Leg leg = self.leg
        if leg is not None:
            leg.received(_read_at, n)
        elif not self.lingers:
            self.discard()     # bytes nobody asked for

    def eof_received(self):
        cdef Leg leg = self.leg
        if leg is not None:
            leg.upstream_end(None, False)
        else:
            self.discard()
        return False

    def connection_lost(self, exc):
        cdef Leg leg = self.leg
        self.lost = True
        self.unwatch()
        self.pool.forget(self)
        if leg is not None:
            # An end without `eof_received` before: TLS that was cut off, not ended (no close_notify).
            leg.upstream_end(exc, exc is None and self.pool.target["ssl"] is not None)
        self.fd = -1
        self.transport = None     # a TLS transport holds us: the ring would keep buffers until a collection

    def pause_writing(self):
        cdef Leg leg = self.leg
        if leg is not None:
            leg.body_flow(True)

    def resume_writing(self):
        cdef Leg leg = self.leg
        if leg is not None:
            leg.body_flow(False)

    cdef void expired(self, double now):
        self.discard()

    cdef discard(self):
        self.pool.forget(self)
        self.deadline = 0
        if not self.lost:
            self.shut(True)

    cdef bint quiet(self) noexcept:
        """Is it still open, with nothing to read? The end of an idle connection may not have been read yet."""
        cdef char byte
        if self.fd < 0:
            return True
        return recv(self.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 and errno == EAGAIN

    cdef bint acknowledged(self, uint64_t before) noexcept:
        """Has the engine's host acknowledged any byte after the first `before`? True where nobody can tell
        (unix sockets, TLS, other systems): then the request may have been seen."""
        cdef uint8_t info[256]
        cdef unsigned int size = 256
        cdef uint64_t acked
        if not self.pool.plain_tcp or getsockopt(self.fd, IPPROTO_TCP_, TCP_INFO_, info, &size) != 0:
            return True
        if size < BYTES_ACKED_AT + 8:
            return True
        memcpy(&acked, info + BYTES_ACKED_AT, 8)
        return acked > before + 1     # the SYN counts as one


cdef class Pool:
    """The connections to one engine."""
    cdef dict target
    cdef list idle_
    cdef object connecting
    cdef readonly Py_ssize_t max_idle
    cdef readonly double idle_s
    cdef readonly Py_ssize_t max_requests
    cdef readonly Py_ssize_t active
    cdef readonly Py_ssize_t opened
    cdef readonly Py_ssize_t reused
    cdef public Py_ssize_t connect_errors
    cdef readonly bint closed
    cdef bint tcp
    cdef bint plain_tcp

    def __init__(self, *, host="", port=0, unix_path="", ssl=None, server_hostname=None,
                 max_idle=256, idle_s=4.0, max_requests=0):
        self.target = {"ssl": ssl}
        if ssl is not None:
            # "": no name is sent and none is checked.
            self.target["server_hostname"] = (host or "localhost") if server_hostname is None else server_hostname
        if unix_path:
            self.target["path"] = unix_path
        else:
            self.target["host"] = host
            self.target["port"] = port
        self.tcp = not unix_path
        self.plain_tcp = self.tcp and ssl is None
        self.max_idle = max_idle
        self.idle_s = idle_s
        self.max_requests = max_requests
        self.idle_ = []

    @property
    def idle(self):
        return len(self.idle_)

    def close(self):
        """Idle connections close now, lent ones when they come back."""
        self.closed = True
        for conn in list(self.idle_):
            (<Conn>conn).discard()

    cdef Conn take(self):
        """An idle connection, the latest used one, or None."""
        cdef Conn conn
        while self.idle_:
            conn = self.idle_.pop()
            if not conn.lost and not conn.transport.is_closing() and conn.quiet():
                conn.deadline = 0
                self.active += 1
                self.reused += 1
                return conn
            conn.discard()
        return None

    cdef give(self, Conn conn):
        """A connection comes back after a complete reply."""
        self.active -= 1
        conn.leg = None
        if (self.closed or conn.lost or len(self.idle_) >= self.max_idle
                or self.max_requests and conn.served >= self.max_requests):
            conn.discard()
            return
        conn.deadline = now_s() + self.idle_s
        self.idle_.append(conn)

    cdef drop(self, Conn conn):
        """A lent connection that cannot be used again."""
        self.active -= 1
        conn.leg = None
        conn.discard()

    cdef linger(self, Conn conn, double until):
        """A lent connection is left open until then, whatever comes on it, and closed: an engine that was
        told to fetch something has the time to begin, so that it tells the holder when it is cut off."""
        self.active -= 1
        conn.leg = None
        conn.lingers = True
        conn.deadline = until

    cdef forget(self, Conn conn):
        if conn.leg is None and conn in self.idle_:
            self.idle_.remove(conn)

    cdef connect(self, Leg leg):
        """Opens a connection for `leg`; it hears connected() or connect_failed(). The task runs in an
        empty context, so that a pooled connection keeps nothing of the request that opened it."""
        leg.connecting = asyncio.get_running_loop().create_task(
            self._connect(leg), context=contextvars.Context())

    async def _connect(self, Leg leg):
        cdef Conn conn = Conn()
        conn.pool = self
        loop = asyncio.get_running_loop()
        try:
            if self.tcp:
                await loop.create_connection(lambda: conn, **self.target)
            else:
                await loop.create_unix_connection(lambda: conn, **self.target)
        except (OSError, ValueError) as exc:   # ssl.SSLError and gaierror are OSErrors
            self.connect_errors += 1
            leg.connecting = None
            leg.connect_failed(exc)
            return
        self.opened += 1
        self.active += 1
        leg.connecting = None
        if leg.over:
            self.give(conn)
        else:
            leg.connected(conn, False)
