# One request head, kept as the bytes that came; header names are lower-cased in place.

cdef class Limits:
    """What a listener allows its clients. Bytes, counts and seconds."""
    cdef readonly Py_ssize_t header_bytes
    cdef readonly Py_ssize_t header_count
    cdef readonly double header_timeout_s
    cdef readonly double body_timeout_s
    cdef readonly double keepalive_timeout_s
    cdef readonly double send_timeout_s
    cdef readonly Py_ssize_t keepalive_requests

    def __init__(self, *, header_bytes=65536, header_count=200, header_timeout_s=60.0, body_timeout_s=60.0,
                 keepalive_timeout_s=75.0, send_timeout_s=60.0, keepalive_requests=1000):
        self.header_bytes = header_bytes
        self.header_count = header_count
        self.header_timeout_s = header_timeout_s
        self.body_timeout_s = body_timeout_s
        self.keepalive_timeout_s = keepalive_timeout_s
        self.send_timeout_s = send_timeout_s
        self.keepalive_requests = keepalive_requests


cdef enum:
    TARGET_MAX = 16384

# Never forwarded, in either direction (RFC 9110 §7.6.1); the relay writes its own framing and host.
cdef list _HOP = [b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
                  b"upgrade", b"content-length"]


cdef class Names:
    """A small set of lower-case header names, looked up without making objects."""
    cdef list names
    cdef uint32_t by_length[64]    # bit = first letter & 31

    def __cinit__(self, names):
        cdef bytes name
        self.names = sorted(set(names))
        for i in range(64):
            self.by_length[i] = 0
        for name in self.names:
            self.by_length[min(len(name), 63)] |= 1u << (name[0] & 31)

    cdef bint has(self, const char* p, Py_ssize_t n) noexcept:
        cdef bytes name
        if n == 0 or not self.by_length[n if n < 63 else 63] >> (<uint8_t>p[0] & 31) & 1:
            return False
        for name in self.names:
            if PyBytes_GET_SIZE(name) == n and memcmp(PyBytes_AS_STRING(name), p, n) == 0:
                return True
        return False


cdef Names _hop_names = Names(_HOP)


cdef class Request:
    """One request of a client. Header names are lower case; `target` is as it was sent."""
    cdef char* raw                  # the head, CR LF and all
    cdef readonly Py_ssize_t head_bytes
    cdef Field* fields
    cdef readonly Py_ssize_t field_count
    cdef readonly bytes method
    cdef readonly bytes target
    cdef readonly bytes path
    cdef readonly bytes query       # None without '?'
    cdef bytes authority            # of an absolute-form target
    cdef readonly int version       # 10 or 11
    cdef readonly long long content_length   # -1 = none given
    cdef readonly bint chunked
    cdef readonly bint keep_alive
    cdef readonly bint expects      # 100-continue
    cdef readonly bint upgrade      # asks for another protocol than h2c
    cdef readonly double t_head     # s, monotonic: head complete
    cdef public double t0           # s, monotonic: head and body read
    cdef public bytes body          # None while it is streamed through
    cdef public long long body_limit    # of a chunked body that passes through, 0 = none
    cdef Py_ssize_t charged         # bytes of the worker's body budget held
    cdef public object context      # the pipeline's

    def __dealloc__(self):
        PyMem_Free(self.raw)
        PyMem_Free(self.fields)
        _budget.give(self.charged)

    @property
    def headers(self):
        """[(lower-case name, value)], in the order they came."""
        cdef Py_ssize_t i
        return [
            (self.raw[self.fields[i].name:self.fields[i].name + self.fields[i].name_len],
             self.raw[self.fields[i].value:self.fields[i].value + self.fields[i].value_len])
            for i in range(self.field_count)
        ]

    cpdef bytes get(self, bytes name, default=None):
        """The first header of that lower-case name."""
        cdef Py_ssize_t i, n = PyBytes_GET_SIZE(name)
        cdef const char* key = PyBytes_AS_STRING(name)
        if self.authority is not None and name == b"host":
            return self.authority         # of an absolute target: it counts, whatever Host says (RFC 9112 §3.2.2)
        for i in range(self.field_count):
            if self.fields[i].name_len == n and memcmp(self.raw + self.fields[i].name, key, n) == 0:
                return PyBytes_FromStringAndSize(self.raw + self.fields[i].value, self.fields[i].value_len)
        return default

    cpdef bytes joined(self, bytes name, default=None):
        """All headers of that lower-case name as one: separated by ", ", cookies by "; " (RFC 9110 §5.3,
        RFC 9113 §8.2.3)."""
        cdef Py_ssize_t i, n = PyBytes_GET_SIZE(name)
        cdef const char* key = PyBytes_AS_STRING(name)
        cdef bytes found = None, value
        if self.authority is not None and name == b"host":
            return self.authority
        for i in range(self.field_count):
            if self.fields[i].name_len == n and memcmp(self.raw + self.fields[i].name, key, n) == 0:
                value = PyBytes_FromStringAndSize(self.raw + self.fields[i].value, self.fields[i].value_len)
                found = value if found is None else found + (b"; " if name == b"cookie" else b", ") + value
        return default if found is None else found

    def has_prefix(self, bytes prefix):
        """Does any header name begin so?"""
        cdef Py_ssize_t i, n = PyBytes_GET_SIZE(prefix)
        for i in range(self.field_count):
            if self.fields[i].name_len >= n and memcmp(self.raw + self.fields[i].name, PyBytes_AS_STRING(prefix), n) == 0:
                return True
        return False

    def __repr__(self):
        return f"<Request {self.method.decode()} {self.target.decode()[:80]}>"


cdef class Budget:
    """Bytes of request bodies that this worker holds; `limit` 0 = none."""
    cdef public Py_ssize_t limit
    cdef readonly Py_ssize_t used
    cdef readonly Py_ssize_t refused

    cdef bint take(self, Py_ssize_t n) noexcept:
        if self.limit and self.used + n > self.limit:
            self.refused += 1
            return False
        self.used += n
        return True

    cdef void give(self, Py_ssize_t n) noexcept:
        self.used -= n


cdef Budget _budget = Budget()
_budget.limit = 512 << 20
body_budget = _budget


cdef tuple _bad(str message):
    return 400, "bad_request", message


cdef tuple parse_request(Request r, const char* p, Py_ssize_t start, Py_ssize_t end, Limits limits):
    """Fills `r` from the head p[start:end]; returns None, or (status, code, message) of the refusal."""
    cdef Py_ssize_t i, method_end, target_end, n = end - start, fields
    cdef Field* scratch
    r.raw = <char*>PyMem_Malloc(n + 1)
    if r.raw == NULL:
        raise MemoryError()
    memcpy(r.raw, p + start, n)
    r.raw[n] = 0
    r.head_bytes = n
    i = 0
    while CLASS[<uint8_t>r.raw[i]] & 1:
        i += 1
    method_end = i
    if i == 0 or i > 32 or r.raw[i] != 32:
        return _bad("the request line does not begin with a method")
    i += 1
    while CLASS[<uint8_t>r.raw[i]] & 4:
        i += 1
    target_end = i
    if target_end - method_end - 1 > TARGET_MAX:
        return 414, "target_too_long", f"the request target is longer than {TARGET_MAX} bytes"
    if target_end == method_end + 1 or r.raw[i] != 32:
        return _bad("the request target is empty or holds a character that must be percent-encoded")
    if n - i < 11 or memcmp(r.raw + i + 1, b"HTTP/", 5) != 0:
        return _bad("the request line does not end in an HTTP version")
    if memcmp(r.raw + i + 6, b"1.1\r\n", 5) == 0:
        r.version = 11
    elif memcmp(r.raw + i + 6, b"1.0\r\n", 5) == 0:
        r.version = 10
    elif 48 <= r.raw[i + 6] <= 57 and r.raw[i + 7] == 46 and 48 <= r.raw[i + 8] <= 57 and r.raw[i + 9] == 13:
        return 505, "http_version", "only HTTP/1.1 and HTTP/1.0 are spoken here"
    else:
        return _bad("the request line does not end in an HTTP version")
    r.method = PyBytes_FromStringAndSize(r.raw, method_end)
    r.target = PyBytes_FromStringAndSize(r.raw + method_end + 1, target_end - method_end - 1)
    scratch = <Field*>PyMem_Malloc(sizeof(Field) * (limits.header_count + 1))
    if scratch == NULL:
        raise MemoryError()
    fields = parse_fields(r.raw, i + 11, n, scratch, limits.header_count)
    if fields < 0:
        PyMem_Free(scratch)
        if fields == -2:
            return 431, "header_too_large", f"more than {limits.header_count} header lines"
        return _bad("a header line is malformed")
    r.fields = <Field*>PyMem_Realloc(scratch, sizeof(Field) * (fields + 1))
    r.field_count = fields
    return _framing(r) or _target(r)


cdef bint host_is_plain(const char* p, Py_ssize_t n) noexcept nogil:
    """Letters, digits and -._~%:[] only: what else a URI's host may hold does not name a server."""
    cdef Py_ssize_t i
    cdef uint8_t c
    for i in range(n):
        c = <uint8_t>p[i]
        if not (48 <= c <= 58 or 65 <= c <= 91 or 97 <= c <= 122
                or c == 93 or c == 45 or c == 46 or c == 95 or c == 126 or c == 37):
            return False
    return True


cdef tuple _framing(Request r):
    """Content-Length, Transfer-Encoding, Connection, Host, Expect, Upgrade: read once, conflicts refused."""
    cdef Py_ssize_t i
    cdef Field f
    cdef const char* v
    cdef const char* name
    cdef int hosts = 0
    cdef bint close = False, keep = False, coded = False
    r.content_length = -1
    for i in range(r.field_count):
        f = r.fields[i]
        name = r.raw + f.name
        v = r.raw + f.value
        if f.name_len == 4 and memcmp(name, b"host", 4) == 0:
            hosts += 1
            if not host_is_plain(v, f.value_len):
                return _bad("the Host header is not a host and a port")
        elif f.name_len == 14 and memcmp(name, b"content-length", 14) == 0:
            if r.content_length >= 0:
                return _bad("more than one Content-Length")
            r.content_length = parse_length(v, f.value_len)
            if r.content_length < 0:
                return _bad("Content-Length is not a number")
        elif f.name_len == 17 and memcmp(name, b"transfer-encoding", 17) == 0:
            if coded:
                return _bad("more than one Transfer-Encoding")
            coded = True
            if not same(v, f.value_len, b"chunked", 7):
                return 501, "transfer_encoding", "the only Transfer-Encoding understood is chunked"
            r.chunked = True
        elif f.name_len == 10 and memcmp(name, b"connection", 10) == 0:
            close = close or has_token(v, f.value_len, b"close", 5)
            keep = keep or has_token(v, f.value_len, b"keep-alive", 10)
        elif f.name_len == 6 and memcmp(name, b"expect", 6) == 0:
            if not same(v, f.value_len, b"100-continue", 12):
                return 417, "expectation", "the only expectation understood is 100-continue"
            r.expects = r.version == 11
        elif f.name_len == 7 and memcmp(name, b"upgrade", 7) == 0:
            r.upgrade = r.upgrade or not has_token(v, f.value_len, b"h2c", 3)
    if r.chunked and r.content_length >= 0:
        return _bad("both Content-Length and Transfer-Encoding")
    if r.chunked and r.version == 10:
        return _bad("Transfer-Encoding in an HTTP/1.0 request")
    if hosts > 1 or hosts == 0 and r.version == 11:
        return _bad("a request needs exactly one Host header")
    r.keep_alive = not close and (r.version == 11 or keep)
    return None


cdef tuple _target(Request r):
    """origin-form, absolute-form (its authority is kept) or `*`; splits path and query."""
    cdef bytes target = r.target
    cdef Py_ssize_t at
    if r.method == b"PRI":       # reserved for HTTP/2's preface (RFC 9113 §3.4)
        return 505, "http_version", "HTTP/2 is not spoken here"
    if r.method == b"CONNECT":
        return 501, "method", "CONNECT is not offered"
    if not target.startswith(b"/"):
        if target == b"*" and r.method == b"OPTIONS":
            r.path = target
            return None
        at = target.find(b"://")
        if at <= 0 or not target[:at].lower() in (b"http", b"https"):
            return _bad("the request target must be a path")
        target = target[at + 3:]
        for at in range(len(target)):
            if target[at] in b"/?":
                break
        else:
            at = len(target)
        r.authority = target[:at]
        target = target[at:] if target[at:].startswith(b"/") else b"/" + target[at:]
        r.target = target
    at = target.find(b"?")
    if at < 0:
        r.path = target
    else:
        r.path = target[:at]
        r.query = target[at + 1:]
    return None
