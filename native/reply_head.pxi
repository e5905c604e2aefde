# The head of an engine's reply, parsed once; it lives until its headers have gone on.

cdef enum:
    REPLY_HEAD_MAX = 65536
    REPLY_FIELDS_MAX = 256

cdef enum:
    B_NONE = 0        # the reply has no body
    B_LENGTH = 1
    B_CHUNKED = 2
    B_CLOSE = 3       # ends with the connection


cdef class ReplyHead:
    """`read` fills it; `fault` says what is wrong with it, `size` where its body begins in `data`."""
    cdef bytes data
    cdef char* raw
    cdef Py_ssize_t start         # of the final head in `data`: interim ones come before it
    cdef Py_ssize_t line_end
    cdef Py_ssize_t size
    cdef Field fields[REPLY_FIELDS_MAX]
    cdef Py_ssize_t count
    cdef str fault
    cdef int status
    cdef bytes content_type
    cdef bint sse
    cdef bint is_json
    cdef bint keeps               # the engine will take another request on the connection
    cdef int body_mode
    cdef long long length         # of the body, -1 = not said

    cdef bint read(self, bytes data, Py_ssize_t looked):
        """Parses `data`, of which `looked` bytes are known not to end a head. False = not complete, then
        `start` says what of it is still needed. Interim replies (1xx) are skipped."""
        cdef char* raw = PyBytes_AS_STRING(data)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data), start = 0, end, skip = looked - 3 if looked > 3 else 0
        cdef int status
        self.data = data
        self.raw = raw
        while True:
            end = head_end(raw + start, n - start, skip)
            self.start = start
            if end == INCOMPLETE and n - start <= REPLY_HEAD_MAX:
                return False
            if end < 0:
                self.fault = "the reply head is malformed or too large"
                return True
            end += start
            # "HTTP/1.x NNN ..." CR LF
            if (end - start < 14 or memcmp(raw + start, b"HTTP/1.", 7) != 0 or raw[start + 8] != 32
                    or raw[start + 7] < 48 or raw[start + 7] > 57):
                self.fault = "the reply does not begin with an HTTP/1 status line"
                return True
            status = <int>parse_length(raw + start + 9, 3)
            if status < 100 or status > 599 or raw[start + 12] != 32 and raw[start + 12] != 13:
                self.fault = "the reply's status is not a number from 100 to 599"
                return True
            if status >= 200:
                break
            if status == 101:
                self.fault = "the engine switched protocols, which nobody asked for"
                return True
            start = end        # an interim reply: not for the client
            skip = 0
        self.status = status
        self.size = end
        self._fields()
        return True

    cdef _fields(self):
        cdef Py_ssize_t i
        cdef const char* at = <const char*>memchr(self.raw + self.start, 13, self.size - self.start)
        if at == NULL or at[1] != 10:
            self.fault = "the reply's status line is malformed"
            return
        self.line_end = at - self.raw
        for i in range(self.start, self.line_end):
            if not CLASS[<uint8_t>self.raw[i]] & 2:
                self.fault = "the reply's status line holds a control character"
                return
        self.count = parse_fields(self.raw, self.line_end + 2, self.size, self.fields, REPLY_FIELDS_MAX)
        if self.count < 0:
            self.fault = "a header line of the reply is malformed"

    cdef framing(self, bytes method):
        """How the body comes (RFC 9112 §6.3), what it is, whether the connection lives on."""
        cdef Py_ssize_t i
        cdef Field f
        cdef const char* name
        cdef const char* value
        cdef bint chunked = False, close = False, keep = False, coded = False
        cdef long long length = -1
        for i in range(self.count):
            f = self.fields[i]
            name = self.raw + f.name
            value = self.raw + f.value
            if f.name_len == 14 and memcmp(name, b"content-length", 14) == 0:
                if length >= 0 and length != parse_length(value, f.value_len):
                    self.fault = "two different Content-Length headers"
                    return
                length = parse_length(value, f.value_len)
                if length < 0:
                    self.fault = "Content-Length is not a number"
                    return
            elif f.name_len == 17 and memcmp(name, b"transfer-encoding", 17) == 0:
                if chunked or not same(value, f.value_len, b"chunked", 7):
                    self.fault = "a Transfer-Encoding other than chunked"
                    return
                chunked = True
            elif f.name_len == 10 and memcmp(name, b"connection", 10) == 0:
                close = close or has_token(value, f.value_len, b"close", 5)
                keep = keep or has_token(value, f.value_len, b"keep-alive", 10)
            elif f.name_len == 12 and memcmp(name, b"content-type", 12) == 0:
                self.content_type = value[:f.value_len]
                self.sse = f.value_len >= 17 and same(value, 17, b"text/event-stream", 17)
                self.is_json = f.value_len >= 16 and same(value, 16, b"application/json", 16)
            elif f.name_len == 16 and memcmp(name, b"content-encoding", 16) == 0:
                coded = not same(value, f.value_len, b"identity", 8)
        if coded:
            # Coded bytes are not looked into, and not edited.
            self.sse = self.is_json = False
        self.keeps = not close and (self.raw[self.start + 7] == 49 or keep)
        if no_body(self.status, method):
            self.body_mode = B_NONE
        elif chunked:
            # Both framings: chunked counts, the connection is not used again (RFC 9112 §6.3).
            if length >= 0:
                self.keeps = False
            self.body_mode = B_CHUNKED
        elif length >= 0:
            self.body_mode = B_LENGTH
        else:
            self.body_mode = B_CLOSE
            self.keeps = False
        self.length = length

    cdef bytes copied(self, Names hide):
        """The reply's header lines that go on to the client."""
        cdef Py_ssize_t i, size = 0
        cdef bytes out
        for i in range(self.count):
            size += self.fields[i].name_len + self.fields[i].value_len + 4
        out = PyBytes_FromStringAndSize(NULL, size)
        size = copy_fields(self.raw, self.fields, self.count, hide, PyBytes_AS_STRING(out))
        return out[:size]

    cdef list headers(self):
        """[(lower-case name, value)], as they came."""
        cdef Py_ssize_t i
        return [
            (self.raw[self.fields[i].name:self.fields[i].name + self.fields[i].name_len],
             self.raw[self.fields[i].value:self.fields[i].value + self.fields[i].value_len])
            for i in range(self.count)
        ]
