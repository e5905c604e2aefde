# Where a reply goes: the base of a client's connection and of its stand-in behind another ASGI server.

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
    """Where a reply goes. A Client takes HTTP/1.1 bytes, any other head, payload and end one by one."""
    cdef readonly object listener
    cdef readonly str peer
    cdef readonly str local
    cdef readonly bint tls
    cdef readonly Py_ssize_t requests
    cdef bint write_paused
    cdef Leg leg
    cdef str address             # `peer` without its port, once somebody has asked

    cdef str host(self):
        if self.address is None:
            self.address = _host_of(self.peer)
        return self.address

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

    def cut(self):
        """Ends the connection without a reply."""
        self.abort()

    cdef abort(self):
        """The reply cannot be completed: the client must see that."""


cdef class Nobody(Sink):
    """Stands for a client that is not there: takes any leg, one at a time, and nothing of a reply."""

    cdef bint serves(self, Request request):
        return True
