# The access line, written from the request's and the leg's own fields into a buffer: no Python object per
# value. What it does not know by a code is read by a Python function, and escaped as everything else.

cdef enum:
    MODEL_MAX = 256        # characters of a client's model name that a line shows

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


cdef enum:
    PIECES_MAX = 1024      # texts and variables of one format


cdef struct Piece:
    int code               # a variable, or -1 for text
    const char* text       # owned by the line's list of parts
    Py_ssize_t size


@cython.final
cdef class LogLine:
    """A compiled log format. `parts`: bytes as they are, or (variable's name, function from the context to
    its text or None). `wall`: a function from Unix seconds to (time_local, time_iso8601). `native` False
    uses the functions for everything, which is the reference the fast way is tested against."""
    cdef list parts
    cdef Piece* pieces
    cdef int count
    cdef int escape
    cdef object wall
    cdef long long second
    cdef bytes local
    cdef bytes iso

    def __init__(self, parts, str escape, wall, native=True):
        self.parts = list(parts)
        if len(self.parts) > PIECES_MAX:
            raise ValueError(f"a log format has at most {PIECES_MAX} parts, got {len(self.parts)}")
        self.escape = ("default", "json", "none").index(escape)
        self.wall = wall
        self.second = -1
        self.pieces = <Piece*>PyMem_Malloc(sizeof(Piece) * (len(self.parts) + 1))
        if self.pieces == NULL:
            raise MemoryError()
        for part in parts:
            self._compile(part, native)

    def __dealloc__(self):
        PyMem_Free(self.pieces)

    cdef _compile(self, part, bint native):
        cdef Piece* piece = &self.pieces[self.count]
        value = part
        piece.code = -1
        if not isinstance(part, bytes):
            name, value = part
            piece.code = V_GETTER
            if native and name in _CODES:
                piece.code = _CODES.index(name)
            elif native and isinstance(value, Lookup):
                piece.code = V_MAP
            elif native and name.startswith("http_"):
                piece.code, value = V_HEADER, name[5:].lower().replace("_", "-").encode()
            elif native and name == "client_request_id":
                piece.code, value = V_HEADER, b"x-request-id"
        self.parts[self.count] = value
        if isinstance(value, bytes):
            piece.text = PyBytes_AS_STRING(value)
            piece.size = PyBytes_GET_SIZE(value)
        self.count += 1

    def write(self, ctx, LogBuffer out):
        """Appends the line of a request that has ended, with its line feed. True: the buffer's owner wants to
        hear of it."""
        cdef int i, code
        cdef Piece* piece
        # Contexts made by hand, as tests make them, are read by the functions alone.
        cdef bint real = has_slots(ctx)
        for i in range(self.count):
            piece = &self.pieces[i]
            code = piece.code
            if code < 0:
                out.add(piece.text, piece.size)
            elif code == V_HEADER:
                self._header(ctx.request.joined(self.parts[i]) if not real
                             else (<Request>slot(ctx, C_REQUEST)).joined(self.parts[i]), out)
            elif code == V_MAP:
                self._text((<Lookup>self.parts[i]).read(ctx), out)
            elif code == V_GETTER or not real:
                # A known variable of a hand-made context: its function is still there.
                self._text(self.parts[i](ctx), out)
            else:
                self._code(code, ctx, out)
        return out.end_line()

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

    cdef int _absent(self, LogBuffer out) except -1:
        return out.add(b"-", 1) if self.escape == ESCAPE_DEFAULT else 0

    cdef int _header(self, bytes raw, LogBuffer out) except -1:
        if raw is None:
            return self._absent(out)
        if self.escape == ESCAPE_JSON:
            raw = _utf8(raw)
        return out.add_escaped(PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw), self.escape)

    cdef int _text(self, str value, LogBuffer out) except -1:
        """Text made by the gateway or read as latin-1 from the wire."""
        cdef bytes raw
        if value is None:
            return self._absent(out)
        if PyUnicode_IS_ASCII(value):
            return out.add_escaped(<const char*>PyUnicode_DATA(value), PyUnicode_GET_LENGTH(value), self.escape)
        raw = (<str>value).encode("latin-1", "replace")
        if self.escape == ESCAPE_JSON:
            raw = _utf8(raw)
        return out.add_escaped(PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw), self.escape)

    cdef int _span(self, double start, double end, LogBuffer out) except -1:
        return out.add_fixed(end - start, 3) if start and end else out.add(b"-", 1)

    cdef int _count(self, long long v, LogBuffer out) except -1:
        return self._absent(out) if v < 0 else out.add_number(v)

    cdef int _clock(self, int code, LogBuffer out) except -1:
        cdef double now = wall_s()
        cdef bytes text
        if code == V_MSEC:
            return out.add_fixed(now, 3)
        if <long long>now != self.second:
            self.second = <long long>now
            local, iso = self.wall(self.second)
            self.local = local.encode()
            self.iso = iso.encode()
        text = self.local if code == V_LOCAL else self.iso
        return out.add(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef int _code(self, int code, ctx, LogBuffer out) except -1:
        if code <= V_LENGTH:
            return self._of_request(code, ctx, out)
        if code <= V_MSEC:
            return self._clock(code, out)
        if code <= V_UHEADER:
            return self._of_attempts(code, ctx, out)
        if code <= V_CACHED:
            return self._of_leg(code, ctx, out)
        return self._of_context(code, ctx, out)

    cdef int _of_request(self, int code, ctx, LogBuffer out) except -1:
        cdef Request r = <Request>slot(ctx, C_REQUEST)
        cdef Py_ssize_t length
        cdef double end
        if code == V_ADDR:
            return self._text((<Sink>slot(ctx, C_CLIENT)).host(), out)
        if code == V_TIME:
            end = slot(ctx, C_END)
            return out.add_fixed(end - r.t_head if end else 0.0, 3)
        if code == V_LENGTH:
            length = PyBytes_GET_SIZE(r.body) if r.body is not None else max(r.content_length, 0)
            return out.add_number(r.head_bytes + length)
        if code != V_TARGET:
            out.add_escaped(PyBytes_AS_STRING(r.method), PyBytes_GET_SIZE(r.method), self.escape)
        if code == V_REQUEST:
            out.add(b" ", 1)
        if code != V_METHOD:
            out.add_escaped(PyBytes_AS_STRING(r.target), PyBytes_GET_SIZE(r.target), self.escape)
        return out.add(b" HTTP/1.1" if r.version == 11 else b" HTTP/1.0", 9) if code == V_REQUEST else 0

    cdef int _of_attempts(self, int code, ctx, LogBuffer out) except -1:
        """One value per engine that was asked, separated by commas, as nginx writes $upstream_*."""
        cdef Leg leg
        cdef bint first = True
        cdef tuple attempts = slot(ctx, C_ATTEMPTS)
        if not attempts:
            engine = slot(ctx, C_ENGINE)
            return self._text(engine.address if code == V_UADDR and engine is not None else None, out)
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
        return 0

    cdef int _of_leg(self, int code, ctx, LogBuffer out) except -1:
        cdef Leg leg = slot(ctx, C_LEG)
        cdef long long tokens
        if leg is None:
            return self._absent(out)
        if code == V_CHUNKS:
            return out.add_number(leg.meter.payloads)
        if code == V_PROMPT:
            return self._count(leg.meter.prompt_tokens, out)
        if code == V_COMPLETION:
            return self._count(leg.meter.completion_tokens, out)
        if code == V_CACHED:
            return self._count(leg.meter.cached_tokens, out)
        if not leg.sse:
            return self._absent(out)
        if code == V_ITL:
            return out.add_fixed(leg.meter.gap_max, 6)
        if not leg.meter.first:
            return self._absent(out)
        if code == V_TTFT:
            return out.add_fixed(leg.meter.first - (<Request>slot(ctx, C_REQUEST)).t0, 3)
        tokens = leg.meter.completion_tokens
        if tokens < 0:
            tokens = leg.meter.payloads
        if tokens > 1:
            return out.add_fixed((leg.meter.last - leg.meter.first) / (tokens - 1), 6)
        return self._absent(out)

    cdef int _of_context(self, int code, ctx, LogBuffer out) except -1:
        cdef int status
        cdef str text
        if code == V_STATUS:
            status = slot(ctx, C_STATUS)
            return out.add(b"000", 3) if status == 0 else out.add_number(status)
        if code == V_SENT or code == V_SENT2:
            return out.add_number(slot(ctx, C_SENT))
        if code == V_ID:
            return self._text(slot(ctx, C_ID), out)
        if code == V_END:
            return self._text(slot(ctx, C_TERMINATION), out)
        if code == V_LANE:
            return self._text(slot(ctx, C_LANE), out)
        if code == V_TRIES:
            return out.add_number(len(<tuple>slot(ctx, C_ATTEMPTS)) + (
                1 if not slot(ctx, C_END) and slot(ctx, C_ENGINE) is not None else 0))
        if code == V_MODEL:
            text = slot(ctx, C_MODEL)
            if PyUnicode_GET_LENGTH(text) > MODEL_MAX:
                text = text[:MODEL_MAX]
            return self._text(text or None, out)
        if code == V_STREAM:
            scan = slot(ctx, C_SCAN)
            return out.add(b"1" if scan is not None and scan.stream else b"0", 1)
        if code == V_ERROR:
            error = slot(ctx, C_ERROR)
            return self._text(None if error is None else error.code, out)
        if code == V_ENGINE:
            engine = slot(ctx, C_ENGINE)
            return self._text(None if engine is None else engine.address, out)
        group = slot(ctx, C_GROUP)
        return self._text(None if group is None else group.name, out)


cdef bytes _utf8(bytes raw):
    """Bytes that are UTF-8 stay; others lose what is not ASCII."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode("ascii", "replace").encode("ascii", "replace")
    return raw
