# The access line, written from the request's and the leg's own fields into a buffer: no Python object per
# value. What it does not know by a code is read by a Python function, and escaped as everything else.

cdef enum:
    LINE_BUFFER = 65536
    MODEL_MAX = 256        # characters of a client's model name that a line shows

cdef enum:
    ESCAPE_DEFAULT = 0     # nginx: quotes, backslashes and what is not printable ASCII as \xXX; absent = "-"
    ESCAPE_JSON = 1
    ESCAPE_NONE = 2        # as it is, but for what would end the line

_CODES = (
    "remote_addr", "request", "request_method", "request_uri", "request_time", "request_length",
    "time_local", "time_iso8601", "msec",
    "upstream_addr", "upstream_status", "upstream_response_time", "upstream_connect_time", "upstream_header_time",
    "ttft", "tpot", "itl_max", "chunks", "prompt_tokens", "completion_tokens", "cached_tokens",
    "status", "body_bytes_sent", "bytes_sent", "request_id", "termination", "lane", "attempts", "model", "stream",
    "engine", "upstream_name", "error_code",
)
cdef enum:
    V_ADDR, V_REQUEST, V_METHOD, V_TARGET, V_TIME, V_LENGTH, \
    V_LOCAL, V_ISO, V_MSEC, \
    V_UADDR, V_USTATUS, V_URESPONSE, V_UCONNECT, V_UHEADER, \
    V_TTFT, V_TPOT, V_ITL, V_CHUNKS, V_PROMPT, V_COMPLETION, V_CACHED, \
    V_STATUS, V_SENT, V_SENT2, V_ID, V_END, V_LANE, V_TRIES, V_MODEL, V_STREAM, V_ENGINE, V_UNAME, V_ERROR, \
    V_HEADER, V_MAP, V_GETTER

cdef const char* _HEX = "0123456789ABCDEF"
cdef const char* _LOWER_HEX = "0123456789abcdef"


cdef class LogBuffer:
    """Lines that wait to be written. `size` bytes of them; take() empties it."""
    cdef char* data
    cdef Py_ssize_t cap
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t lines

    def __dealloc__(self):
        PyMem_Free(self.data)

    def take(self):
        """The bytes collected so far."""
        out = PyBytes_FromStringAndSize(self.data, self.size)
        self.size = self.lines = 0
        if self.cap > 4 * LINE_BUFFER:
            PyMem_Free(self.data)
            self.data = NULL
            self.cap = 0
        return out

    def put(self, bytes line):
        """One line, given without its end."""
        self.add(PyBytes_AS_STRING(line), PyBytes_GET_SIZE(line))
        self.add(b"\n", 1)
        self.lines += 1

    cdef char* room(self, Py_ssize_t n) except NULL:
        """Where `n` more bytes go."""
        cdef char* grown
        if self.size + n > self.cap:
            self.cap = max(self.cap * 2, self.size + n, LINE_BUFFER + 4096)
            grown = <char*>PyMem_Realloc(self.data, self.cap)
            if grown == NULL:
                raise MemoryError()
            self.data = grown
        return self.data + self.size

    cdef add(self, const char* p, Py_ssize_t n):
        memcpy(self.room(n), p, n)
        self.size += n

    cdef add_number(self, long long v):
        cdef char digits[24]
        cdef int at = 24
        cdef bint minus = v < 0
        if minus:
            v = -v
        while True:
            at -= 1
            digits[at] = <char>(48 + v % 10)
            v //= 10
            if v == 0:
                break
        if minus:
            at -= 1
            digits[at] = 45
        self.add(digits + at, 24 - at)

    cdef add_fixed(self, double v, int decimals):
        """`v` with 3 or 6 decimals, rounded to nearest; what is below zero is written as zero."""
        cdef long long unit = 1000 if decimals == 3 else 1000000
        cdef long long n
        cdef char digits[8]
        cdef int at
        if not v > 0:
            v = 0
        n = <long long>(v * unit + 0.5)
        self.add_number(n // unit)
        n %= unit
        digits[0] = 46
        for at in range(decimals, 0, -1):
            digits[at] = <char>(48 + n % 10)
            n //= 10
        self.add(digits, decimals + 1)

    cdef add_escaped(self, const char* p, Py_ssize_t n, int escape):
        cdef Py_ssize_t i
        cdef uint8_t c
        cdef char* out = self.room(6 * n)
        cdef Py_ssize_t at = 0
        for i in range(n):
            c = <uint8_t>p[i]
            if escape == ESCAPE_NONE:
                out[at] = 32 if c == 10 or c == 13 else c
                at += 1
            elif c == 34 or c == 92 or c < 32 or escape == ESCAPE_DEFAULT and c > 126:
                if escape == ESCAPE_DEFAULT:
                    out[at] = 92; out[at + 1] = 120; out[at + 2] = _HEX[c >> 4]; out[at + 3] = _HEX[c & 15]
                    at += 4
                elif c >= 32:
                    out[at] = 92; out[at + 1] = c
                    at += 2
                else:
                    memcpy(out + at, b"\\u00", 4)
                    out[at + 4] = _LOWER_HEX[c >> 4]; out[at + 5] = _LOWER_HEX[c & 15]
                    at += 6
            else:
                out[at] = c
                at += 1
        self.size += at


cdef class LogLine:
    """A compiled log format. `parts`: bytes as they are, or (variable's name, function from the context to
    its text or None). `wall`: a function from Unix seconds to (time_local, time_iso8601). `native` False
    uses the functions for everything, which is the reference the fast way is tested against."""
    cdef list parts
    cdef list codes
    cdef int escape
    cdef object wall
    cdef long long second
    cdef bytes local
    cdef bytes iso

    def __init__(self, parts, str escape, wall, native=True):
        self.parts = []
        self.codes = []
        for part in parts:
            code, value = V_GETTER, part
            if not isinstance(part, bytes):
                name, value = part
                if native and name in _CODES:
                    code = _CODES.index(name)
                elif native and isinstance(value, Lookup):
                    code = V_MAP
                elif native and name.startswith("http_"):
                    code, value = V_HEADER, name[5:].lower().replace("_", "-").encode()
                elif native and name == "client_request_id":
                    code, value = V_HEADER, b"x-request-id"
            else:
                code = -1
            self.codes.append(code)
            self.parts.append(value)
        self.escape = ("default", "json", "none").index(escape)
        self.wall = wall
        self.second = -1

    def write(self, ctx, LogBuffer out):
        """Appends the line of a request that has ended, with its line feed."""
        cdef Py_ssize_t i
        cdef int code
        cdef bytes raw
        cdef object part
        # Contexts made by hand, as tests make them, are read by the functions alone.
        cdef bint real = type(ctx.request) is Request and (ctx.leg is None or type(ctx.leg) is Leg)
        for i in range(len(self.parts)):
            code = self.codes[i]
            part = self.parts[i]
            if code < 0:
                out.add(PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
            elif code == V_HEADER:
                raw = ctx.request.joined(part)
                if raw is None:
                    self._absent(out)
                else:
                    if self.escape == ESCAPE_JSON:
                        raw = _utf8(raw)
                    out.add_escaped(PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw), self.escape)
            elif code == V_MAP:
                self._text((<Lookup>part).read(ctx), out)
            elif code == V_GETTER or not real:
                self._text(part(ctx), out)
            else:
                self._code(code, ctx, out)
        out.add(b"\n", 1)
        out.lines += 1

    def __call__(self, ctx):
        """The line as text, without its end."""
        cdef LogBuffer out = LogBuffer()
        self.write(ctx, out)
        raw = out.take()
        raw = raw[:len(raw) - 1]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw.decode("latin-1")

    cdef _absent(self, LogBuffer out):
        if self.escape == ESCAPE_DEFAULT:
            out.add(b"-", 1)

    cdef _text(self, str value, LogBuffer out):
        """Text made by the gateway or read as latin-1 from the wire."""
        cdef bytes raw
        if value is None:
            self._absent(out)
            return
        if PyUnicode_IS_ASCII(value):
            out.add_escaped(<const char*>PyUnicode_DATA(value), PyUnicode_GET_LENGTH(value), self.escape)
            return
        raw = (<str>value).encode("latin-1", "replace")
        if self.escape == ESCAPE_JSON:
            raw = _utf8(raw)
        out.add_escaped(PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw), self.escape)

    cdef _span(self, double start, double end, LogBuffer out):
        if start and end:
            out.add_fixed(end - start, 3)
        else:
            out.add(b"-", 1)

    cdef _count(self, long long v, LogBuffer out):
        if v < 0:
            self._absent(out)
        else:
            out.add_number(v)

    cdef _clock(self, int code, LogBuffer out):
        cdef double now = _time.time()
        cdef bytes text
        if code == V_MSEC:
            out.add_fixed(now, 3)
            return
        if <long long>now != self.second:
            self.second = <long long>now
            local, iso = self.wall(self.second)
            self.local = local.encode()
            self.iso = iso.encode()
        text = self.local if code == V_LOCAL else self.iso
        out.add(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef _code(self, int code, ctx, LogBuffer out):
        if code <= V_LENGTH:
            self._of_request(code, ctx, out)
        elif code <= V_MSEC:
            self._clock(code, out)
        elif code <= V_UHEADER:
            self._of_attempts(code, ctx, out)
        elif code <= V_CACHED:
            self._of_leg(code, ctx, out)
        else:
            self._of_context(code, ctx, out)

    cdef _of_request(self, int code, ctx, LogBuffer out):
        cdef Request r = ctx.request
        cdef Py_ssize_t length
        if code == V_ADDR:
            self._text(_host_of(ctx.client.peer), out)
        elif code == V_TIME:
            out.add_fixed(<double>ctx.t_end - r.t_head if ctx.t_end else 0.0, 3)
        elif code == V_LENGTH:
            length = PyBytes_GET_SIZE(r.body) if r.body is not None else max(r.content_length, 0)
            out.add_number(r.head_bytes + length)
        else:
            if code != V_TARGET:
                out.add_escaped(PyBytes_AS_STRING(r.method), PyBytes_GET_SIZE(r.method), self.escape)
            if code == V_REQUEST:
                out.add(b" ", 1)
            if code != V_METHOD:
                out.add_escaped(PyBytes_AS_STRING(r.target), PyBytes_GET_SIZE(r.target), self.escape)
            if code == V_REQUEST:
                out.add(b" HTTP/1.1" if r.version == 11 else b" HTTP/1.0", 9)

    cdef _of_attempts(self, int code, ctx, LogBuffer out):
        """One value per engine that was asked, separated by commas, as nginx writes $upstream_*."""
        cdef Leg leg
        cdef bint first = True
        cdef tuple attempts = ctx.attempts
        if not attempts:
            if code == V_UADDR and ctx.engine is not None:
                self._text(ctx.engine.address, out)
            else:
                self._absent(out)
            return
        for attempt in attempts:
            if not first:
                out.add(b", ", 2)
            first = False
            leg = attempt.leg
            if code == V_UADDR:
                self._text(attempt.engine.address, out)
            elif code == V_USTATUS:
                out.add_number(attempt.status)
            elif code == V_URESPONSE:
                self._span(leg.t_start, leg.t_end, out)
            elif code == V_UCONNECT:
                self._span(leg.t_start, leg.t_connected, out)
            else:
                self._span(leg.t_start, leg.t_head, out)

    cdef _of_leg(self, int code, ctx, LogBuffer out):
        cdef Leg leg = ctx.leg
        cdef long long tokens
        if leg is None:
            self._absent(out)
        elif code == V_CHUNKS:
            out.add_number(leg.meter.payloads)
        elif code == V_PROMPT:
            self._count(leg.meter.prompt_tokens, out)
        elif code == V_COMPLETION:
            self._count(leg.meter.completion_tokens, out)
        elif code == V_CACHED:
            self._count(leg.meter.cached_tokens, out)
        elif not leg.sse:
            self._absent(out)
        elif code == V_ITL:
            out.add_fixed(leg.meter.gap_max, 6)
        elif code == V_TTFT:
            if leg.meter.first:
                out.add_fixed(leg.meter.first - (<Request>ctx.request).t0, 3)
            else:
                self._absent(out)
        else:
            tokens = leg.meter.completion_tokens
            if tokens < 0:
                tokens = leg.meter.payloads
            if tokens > 1 and leg.meter.first:
                out.add_fixed((leg.meter.last - leg.meter.first) / (tokens - 1), 6)
            else:
                self._absent(out)

    cdef _of_context(self, int code, ctx, LogBuffer out):
        cdef int status
        if code == V_STATUS:
            status = ctx.status
            if status == 0:
                out.add(b"000", 3)
            else:
                out.add_number(status)
        elif code == V_SENT or code == V_SENT2:
            out.add_number(ctx.bytes_sent)
        elif code == V_ID:
            self._text(ctx.request_id, out)
        elif code == V_END:
            self._text(ctx.termination, out)
        elif code == V_LANE:
            self._text(ctx.lane, out)
        elif code == V_TRIES:
            out.add_number(len(<tuple>ctx.attempts) + (1 if not ctx.t_end and ctx.engine is not None else 0))
        elif code == V_MODEL:
            self._text(ctx.model[:MODEL_MAX] or None, out)
        elif code == V_STREAM:
            out.add(b"1" if ctx.scan is not None and ctx.scan.stream else b"0", 1)
        elif code == V_ERROR:
            self._text(ctx.error.code if ctx.error is not None else None, out)
        elif code == V_ENGINE:
            self._text(ctx.engine.address if ctx.engine is not None else None, out)
        else:
            self._text(ctx.group.name if ctx.group is not None else None, out)


cdef bytes _utf8(bytes raw):
    """Bytes that are UTF-8 stay; others lose what is not ASCII."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode("ascii", "replace").encode("ascii", "replace")
    return raw
