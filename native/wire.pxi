# The writing side of a connection. The event loop's transport puts a write off to the end of its turn: with
# hundreds of streams in one turn, the first chunk waits for the last. So bytes go to the socket at once, and
# through the transport only what the socket does not take, and all of TLS.

cdef extern from "sys/socket.h" nogil:
    ssize_t send(int, const void*, size_t, int)
    ssize_t recv(int, void*, size_t, int)
    int getsockopt(int, int, int, void*, unsigned int*)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    int MSG_PEEK


cdef enum:
    WRITE_HIGH = 65536           # bytes waiting for a peer before whoever feeds it is paused
    WRITE_LOW = 16384


cdef class Wire(Timed):
    """`fd` is the socket to write to directly, or -1: TLS, or a transport that has been closed. It is cleared
    before the transport lets go of the socket, so that no write can reach another connection."""
    cdef object transport
    cdef int fd
    cdef bint queued            # the transport may still hold bytes: they go first

    def __cinit__(self):
        self.fd = -1

    cdef attach(self, transport):
        self.transport = transport
        transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        if transport.get_extra_info("sslcontext") is None:
            self.fd = transport.get_extra_info("socket").fileno()

    cdef shut(self, bint now):
        """Closes: after what is queued has gone out, or now."""
        self.fd = -1
        if self.transport is not None:
            if now:
                self.transport.abort()
            else:
                self.transport.close()

    cdef bint direct(self):
        if self.fd < 0:
            return False
        if self.queued:
            if self.transport.get_write_buffer_size():
                return False
            self.queued = False
        return True

    cdef bint drained(self):
        """Has everything that was written gone to the socket?"""
        return not self.queued or self.transport is None or self.transport.get_write_buffer_size() == 0

    cdef put(self, bytes data):
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data), sent
        if self.direct():
            sent = send(self.fd, PyBytes_AS_STRING(data), n, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent == n:
                return
            # A full socket, or an error: the transport meets it again and says so in its own way.
            self.queued = True
            if sent > 0:
                data = data[sent:]
        if self.transport is not None:
            self.transport.write(data)

    cdef put_raw(self, const char* p, Py_ssize_t n):
        cdef Py_ssize_t sent = 0
        if self.direct():
            sent = send(self.fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent == n:
                return
            self.queued = True
            if sent < 0:
                sent = 0
        if self.transport is not None:
            self.transport.write(PyBytes_FromStringAndSize(p + sent, n - sent))
