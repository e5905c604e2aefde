# A leg: one exchange with an engine, its reply relayed to a sink as it comes.

cdef enum:
    L_NEW = 0
    L_CONNECT = 1
    L_WAIT = 2        # request written, no reply head yet
    L_BODY = 3
    L_OVER = 4

cdef enum:
    B_NONE = 0        # the reply has no body
    B_LENGTH = 1
    B_CHUNKED = 2
    B_CLOSE = 3       # ends with the connection

cdef enum:
    O_RAW = 0         # bytes go through as they came
    O_CHUNK = 1       # payload in chunks of ours
    O_PLAIN = 2       # payload alone: a length of ours, or the connection's end
    O_EVENTS = 3      # event stream through the edits, in chunks of ours
    O_COLLECT = 4     # kept whole, then edited
    O_SINK = 5        # payload to a sink that frames it itself

cdef enum:
    REPLY_HEAD_MAX = 65536
    REPLY_FIELDS_MAX = 256
    JSON_TAIL = 4096
    JOIN_MAX = 65536          # a request body up to this size goes out in one piece with its head

_PHASES = ("connect", "connect", "wait", "body", "done")


cdef class RequestPlan:
    """Which client headers go to the engine: all but `drop` (lower case), the hop-by-hop ones, those that
    Connection names, Host, Content-Length and Expect."""
    cdef Names drop

    def __init__(self, drop=()):
        self.drop = Names(list(drop) + _HOP + [b"host", b"expect", b"content-length"])

    cdef bytes head(self, Request r, bytes target, bytes host, bytes extra, long long length, bint chunked):
        """The request head for an engine; `length` < 0 = no Content-Length."""
        cdef Py_ssize_t i, size, at = 0
        cdef Field f
        cdef Field named
        cdef bint has_named = False
        cdef bytes out
        cdef char* o
        cdef char number[64]
        cdef int digits = 0
        if chunked:
            digits = snprintf(number, 64, b"transfer-encoding: chunked\r\n")
        elif length >= 0:
            digits = snprintf(number, 64, b"content-length: %lld\r\n", length)
        size = (len(r.method) + len(target) + len(host) + len(extra) + r.head_bytes + digits + 64)
        out = PyBytes_FromStringAndSize(NULL, size)
        o = PyBytes_AS_STRING(out)
        at = put(o, at, PyBytes_AS_STRING(r.method), PyBytes_GET_SIZE(r.method))
        at = put(o, at, b" ", 1)
        at = put(o, at, PyBytes_AS_STRING(target), PyBytes_GET_SIZE(target))
        at = put(o, at, b" HTTP/1.1\r\nhost: ", 17)
        at = put(o, at, PyBytes_AS_STRING(host), PyBytes_GET_SIZE(host))
        at = put(o, at, b"\r\n", 2)
        for i in range(r.field_count):
            f = r.fields[i]
            if f.name_len == 10 and memcmp(r.raw + f.name, b"connection", 10) == 0:
                named = f
                has_named = True
        for i in range(r.field_count):
            f = r.fields[i]
            if self.drop.has(r.raw + f.name, f.name_len):
                continue
            if has_named and has_token(r.raw + named.value, named.value_len, r.raw + f.name, f.name_len):
                continue
            at = put(o, at, r.raw + f.name, f.name_len)
            at = put(o, at, b": ", 2)
            at = put(o, at, r.raw + f.value, f.value_len)
            at = put(o, at, b"\r\n", 2)
        at = put(o, at, PyBytes_AS_STRING(extra), PyBytes_GET_SIZE(extra))
        at = put(o, at, number, digits)
        at = put(o, at, b"\r\n", 2)
        return out[:at]


cdef inline Py_ssize_t put(char* out, Py_ssize_t at, const char* p, Py_ssize_t n) noexcept:
    memcpy(out + at, p, n)
    return at + n


cdef class ReplyPlan:
    """How replies of a location are relayed: headers hidden (the engine's Server and Date too, unless
    they are in `passed`; then ours stand in their place), timeouts in seconds (0 = none), the statuses
    that `owner.leg_head` is asked about, the histogram of gaps between payload events: `itl` is a
    writable buffer of len(itl_bounds) + 1 counts (u64) and their sum (f64, s)."""
    cdef Names hide
    cdef bint own_server
    cdef bint own_date
    cdef double connect_s
    cdef double send_s
    cdef double first_byte_s
    cdef double read_s
    cdef double total_s
    cdef set hook
    cdef Py_ssize_t collect_max
    cdef object itl_owner
    cdef uint64_t* gaps
    cdef double bounds[64]
    cdef int bound_count

    def __init__(self, hide=(), *, passed=(), connect_s=5.0, send_s=60.0, first_byte_s=600.0, read_s=60.0, total_s=0.0,
                 hook_statuses=(), itl=None, itl_bounds=(), collect_max=64 << 20):
        cdef uint8_t[::1] view
        hide = (set(hide) | {b"server", b"date"}) - set(passed)
        self.own_server = b"server" in hide
        self.own_date = b"date" in hide
        self.hide = Names(list(hide) + _HOP)
        self.connect_s = connect_s
        self.send_s = send_s
        self.first_byte_s = first_byte_s
        self.read_s = read_s
        self.total_s = total_s
        self.hook = set(hook_statuses)
        self.collect_max = collect_max
        if itl is not None:
            if len(itl_bounds) > 64:
                raise ValueError(f"at most 64 bounds, got {len(itl_bounds)}")
            view = memoryview(itl).cast("B")
            if view.shape[0] < 8 * (len(itl_bounds) + 2):
                raise ValueError(f"the buffer holds {view.shape[0]} bytes, {8 * (len(itl_bounds) + 2)} are needed")
            self.itl_owner = itl
            self.gaps = <uint64_t*>&view[0]
            self.bound_count = len(itl_bounds)
            for i, bound in enumerate(itl_bounds):
                self.bounds[i] = bound


cdef class Leg(Timed):
    """One exchange with one engine. See the module's stub for what its owner hears and may read."""
    cdef Sink sink
    cdef Client client             # the sink, when it is a raw one
    cdef readonly Request request
    cdef Pool pool
    cdef RequestPlan request_plan
    cdef ReplyPlan plan
    cdef object owner
    cdef Conn conn
    cdef object connecting
    cdef int state
    cdef bint over
    cdef int body_mode
    cdef int out_mode
    cdef long long left            # of a reply with a length
    cdef Chunked framing
    cdef Meter meter
    cdef bytes head_part           # a reply head that is not complete yet
    cdef list kept                 # [bytes carried] of edited streams, or the parts of a collected reply
    cdef Py_ssize_t kept_size
    cdef bytes json_tail
    cdef bint is_json
    cdef bint bare
    cdef bint engine_keeps
    cdef bint upstream_full
    cdef bint held                 # the sink takes no more for now
    cdef bint body_done            # the request body has gone out
    cdef uint64_t written_before
    cdef double total_deadline
    cdef double quiet_since
    cdef public bytes target
    cdef public bytes host
    cdef public bytes extra
    cdef public bytes body
    cdef public bytes reply_extra
    cdef public Edits edits
    cdef readonly int status
    cdef readonly str error
    cdef readonly str detail
    cdef readonly bint relayed
    cdef readonly bint unsent
    cdef readonly bint reused
    cdef readonly bint sse
    cdef readonly bytes content_type
    cdef readonly list reply_headers
    cdef readonly double t_start
    cdef readonly double t_connected
    cdef readonly double t_sent
    cdef readonly double t_head
    cdef readonly double t_end
    cdef readonly uint64_t bytes_sent
    cdef readonly uint64_t bytes_received
    cdef readonly uint64_t bytes_to_client
    cdef int last_state
    cdef bint meter_cut            # the stream broke inside an event

    def __cinit__(self):
        meter_reset(&self.meter)

    def __init__(self, sink, Request request, Pool pool, RequestPlan request_plan, ReplyPlan reply_plan, owner):
        self.sink = sink
        self.client = sink if isinstance(sink, Client) else None
        self.request = request
        self.pool = pool
        self.request_plan = request_plan
        self.plan = reply_plan
        self.owner = owner
        self.target = request.target
        self.body = request.body
        self.host = self.extra = self.reply_extra = b""
        self.detail = ""

    def __dealloc__(self):
        meter_free(&self.meter)

    # ---- what its owner reads ----

    @property
    def phase(self):
        return _PHASES[self.last_state]

    @property
    def t_first(self):
        return self.meter.first

    @property
    def t_last(self):
        return self.meter.last

    @property
    def itl_max(self):
        return self.meter.gap_max

    @property
    def chunks(self):
        return self.meter.payloads

    @property
    def events(self):
        return self.meter.events

    @property
    def done_seen(self):
        return self.meter.done_seen

    @property
    def prompt_tokens(self):
        return self.meter.prompt_tokens

    @property
    def completion_tokens(self):
        return self.meter.completion_tokens

    @property
    def cached_tokens(self):
        return self.meter.cached_tokens

    @property
    def reply_id(self):
        return self.meter.reply_id[:self.meter.id_len] if self.meter.id_len > 0 else b""

    # ---- start ----

    def start(self):
        cdef Conn conn
        if self.state != L_NEW:
            raise RuntimeError("a leg starts once")
        if not self.sink.serves(self.request) or self.sink.leg is not None:
            raise RuntimeError("the client is not waiting for this request's reply")
        self.sink.leg = self
        if self.client is not None and self.client.cycle is not None:
            self.client.cycle.leg_used = True
        self.t_start = now_s()
        self.state = self.last_state = L_CONNECT
        self.total_deadline = self.t_start + self.plan.total_s if self.plan.total_s else 0
        self.watch()
        conn = self.pool.take()
        if conn is not None:
            self.connected(conn, True)
        else:
            self._until(self.t_start, self.plan.connect_s)
            self.pool.connect(self)

    cdef connected(self, Conn conn, bint reused):
        cdef bytes head
        cdef long long length
        cdef Request r = self.request
        self.conn = conn
        conn.leg = self
        self.reused = reused
        self.t_connected = self.t_start if reused else now_s()
        self.state = self.last_state = L_WAIT
        self.written_before = conn.written
        conn.served += 1
        if self.body is None:
            length = r.content_length
        else:
            length = len(self.body)
            if length == 0 and r.content_length < 0 and (r.method == b"GET" or r.method == b"HEAD"):
                length = -1
        head = self.request_plan.head(r, self.target, self.host, self.extra, length,
                                      self.body is None and r.chunked)
        if self.body is None:
            self._send(head)
            if self.client is not None:
                self.client.pump(self)
        else:
            self.body_done = True
            if len(self.body) <= JOIN_MAX:
                self._send(head + self.body if self.body else head)
            else:
                self._send(head)
                self._send(self.body)
            self.t_sent = now_s()
            self._until(self.t_sent, self.plan.first_byte_s)
        self.body = None

    cdef connect_failed(self, exc):
        if not self.over:
            self.unsent = True
            self._over("connect", f"{type(exc).__name__}: {exc}")

    cdef _send(self, bytes data):
        self.conn.written += PyBytes_GET_SIZE(data)
        self.bytes_sent += PyBytes_GET_SIZE(data)
        self.conn.put(data)

    cdef send_body(self, bytes data, bint done):
        """More of a request body that passes through."""
        cdef double now = now_s()
        if self.state != L_WAIT and self.state != L_BODY:
            return
        if data:
            self._send(data)
        if done:
            self.body_done = True
            self.t_sent = now
            if self.state == L_WAIT:
                self._until(now, self.plan.first_byte_s)
        elif self.state == L_WAIT:
            # The client sets the pace; its own timeout watches it.
            self._until(now, self.plan.send_s if self.upstream_full else 0)

    cdef body_flow(self, bint full):
        self.upstream_full = full
        if self.body_done:
            return
        if self.state == L_WAIT:
            self._until(now_s(), self.plan.send_s if full else 0)
        if self.client is not None:
            self.client.body_flow(full)

    # ---- deadlines ----

    cdef _until(self, double now, double seconds):
        """The next deadline: `seconds` from now (0 = none), or the total one when that is sooner."""
        cdef double at = now + seconds if seconds else 0
        if self.total_deadline and (at == 0 or at > self.total_deadline):
            at = self.total_deadline
        self.deadline = at

    cdef void expired(self, double now):
        if self.total_deadline and now >= self.total_deadline:
            self.fail("total_timeout", "")
        elif self.state == L_CONNECT:
            self.unsent = True
            self.fail("connect_timeout", "")
        elif self.state == L_WAIT:
            self.fail("first_byte_timeout" if self.body_done else "send_timeout", "")
        else:
            self.fail("read_timeout", "")

    # ---- flow ----

    cdef hold(self):
        """The client takes no more: its engine waits."""
        if not self.held and self.conn is not None and not self.conn.lost:
            self.held = True
            self.conn.transport.pause_reading()
            if self.state == L_BODY:
                self._until(now_s(), 0)     # the silence is the client's

    cdef release(self):
        if self.held:
            self.held = False
            if self.conn is not None and not self.conn.lost:
                self.conn.transport.resume_reading()
            if self.state == L_BODY:
                self._until(now_s(), self.plan.read_s)

    # ---- the reply ----

    cdef received(self, const char* p, Py_ssize_t n):
        cdef double now
        self.bytes_received += n
        if self.state == L_BODY:
            now = now_s()
            self._until(now, self.plan.read_s)
            self._body(p, n, now, None)
        elif self.state == L_WAIT:
            self._head(p, n)

    cdef _head(self, const char* p, Py_ssize_t n):
        cdef bytes data
        cdef Py_ssize_t size, end, fields, start = 0, from_ = 0
        cdef Field scratch[REPLY_FIELDS_MAX]
        cdef char* raw
        cdef const char* at
        cdef int status
        if self.head_part:
            from_ = len(self.head_part) - 3
            data = self.head_part + PyBytes_FromStringAndSize(p, n)
        else:
            data = PyBytes_FromStringAndSize(p, n)
        raw = PyBytes_AS_STRING(data)
        size = PyBytes_GET_SIZE(data)
        while True:
            end = head_end(raw + start, size - start, from_ if from_ > 0 else 0)
            if end == INCOMPLETE and size - start <= REPLY_HEAD_MAX:
                self.head_part = data[start:]
                return
            if end < 0:
                self.fail("bad_reply", "the reply head is malformed or too large")
                return
            end += start
            # "HTTP/1.x NNN ..." CR LF
            if end - start < 14 or memcmp(raw + start, b"HTTP/1.", 7) != 0 or raw[start + 8] != 32:
                self.fail("bad_reply", "the reply does not begin with an HTTP/1 status line")
                return
            status = <int>parse_length(raw + start + 9, 3)
            if status < 100 or status > 999 or raw[start + 12] != 32 and raw[start + 12] != 13:
                self.fail("bad_reply", "the reply's status is not a number of three digits")
                return
            if status >= 200:
                break
            if status == 101:
                self.fail("bad_reply", "the engine switched protocols, which nobody asked for")
                return
            start = end        # an interim reply: not for the client
            from_ = 0
            if start == size:
                self.head_part = None
                return
        self.head_part = None
        self.status = status
        at = <const char*>memchr(raw + start, 13, end - start)
        if at == NULL or at[1] != 10:
            self.fail("bad_reply", "the reply's status line is malformed")
            return
        fields = parse_fields(raw, at - raw + 2, end, scratch, REPLY_FIELDS_MAX)
        if fields < 0:
            self.fail("bad_reply", "a header line of the reply is malformed")
            return
        self._reply(raw, start, at - raw, end, scratch, fields, data)

    cdef _reply(self, char* raw, Py_ssize_t start, Py_ssize_t line_end, Py_ssize_t end,
                Field* fields, Py_ssize_t count, bytes data):
        """The final head is there: decide how the body comes and how it goes on."""
        cdef double now = now_s()
        cdef str bad
        cdef Request r = self.request
        self.t_head = now
        bad = self._reply_framing(raw, start, fields, count)
        if bad is not None:
            self.fail("bad_reply", bad)
            return
        self.state = self.last_state = L_BODY
        self._until(now, self.plan.read_s)
        if self.status in self.plan.hook:
            self.reply_headers = [
                (raw[fields[i].name:fields[i].name + fields[i].name_len],
                 raw[fields[i].value:fields[i].value + fields[i].value_len]) for i in range(count)]
            if not self.owner.leg_head(self):
                self._over(None, "discarded")
                return
            if self.over:
                return
        self._out_mode()
        head = None
        if self.out_mode == O_SINK:
            self.relayed = True
            self.sink.take_head(self.status, self._sink_headers(raw, fields, count))
        elif self.out_mode != O_COLLECT:
            head = self._client_head(raw + start, line_end - start, raw, fields, count, -1)
            self.relayed = True
        else:
            self.kept = [raw[start:line_end], self._copied(raw, fields, count)]
        if self.body_mode == B_NONE or self.body_mode == B_LENGTH and self.left == 0:
            if head is not None:
                self.client.write(head)
            self._complete(end < PyBytes_GET_SIZE(data))
            return
        if end < PyBytes_GET_SIZE(data):
            self._body(raw + end, PyBytes_GET_SIZE(data) - end, now, head)
        elif head is not None:
            self.client.write(head)

    cdef str _reply_framing(self, char* raw, Py_ssize_t start, Field* fields, Py_ssize_t count):
        cdef Py_ssize_t i
        cdef Field f
        cdef const char* name
        cdef const char* value
        cdef bint chunked = False, close = False, keep = False
        cdef long long length = -1
        for i in range(count):
            f = fields[i]
            name = raw + f.name
            value = raw + f.value
            if f.name_len == 14 and memcmp(name, b"content-length", 14) == 0:
                if length >= 0 and length != parse_length(value, f.value_len):
                    return "two different Content-Length headers"
                length = parse_length(value, f.value_len)
                if length < 0:
                    return "Content-Length is not a number"
            elif f.name_len == 17 and memcmp(name, b"transfer-encoding", 17) == 0:
                if chunked or not same(value, f.value_len, b"chunked", 7):
                    return "a Transfer-Encoding other than chunked"
                chunked = True
            elif f.name_len == 10 and memcmp(name, b"connection", 10) == 0:
                close = close or has_token(value, f.value_len, b"close", 5)
                keep = keep or has_token(value, f.value_len, b"keep-alive", 10)
            elif f.name_len == 12 and memcmp(name, b"content-type", 12) == 0:
                self.content_type = value[:f.value_len]
                self.sse = f.value_len >= 17 and same(value, 17, b"text/event-stream", 17)
                self.is_json = f.value_len >= 16 and same(value, 16, b"application/json", 16)
            elif f.name_len == 16 and memcmp(name, b"content-encoding", 16) == 0:
                self.bare = not same(value, f.value_len, b"identity", 8)
        if self.bare:
            # Coded bytes are not looked into, and not edited.
            self.sse = self.is_json = False
        self.engine_keeps = not close and (raw[start + 7] == 49 or keep)
        if no_body(self.status, self.request.method):
            self.body_mode = B_NONE
            self.left = length
        elif chunked:
            # Both framings: chunked counts, the connection is not used again (RFC 9112 §6.3).
            if length >= 0:
                self.engine_keeps = False
            self.body_mode = B_CHUNKED
            chunked_reset(&self.framing)
        elif length >= 0:
            self.body_mode = B_LENGTH
            self.left = length
        else:
            self.body_mode = B_CLOSE
            self.engine_keeps = False
        return None

    cdef _out_mode(self):
        cdef bint modern = self.request.version == 11
        self.meter.gaps = self.plan.gaps
        self.meter.bounds = self.plan.bounds
        self.meter.bound_count = self.plan.bound_count
        if self.client is None:
            self.out_mode = O_SINK
        elif self.body_mode == B_NONE:
            self.out_mode = O_PLAIN
        elif self.edits is not None and self.is_json:
            self.out_mode = O_COLLECT
            self.kept_size = 0
        elif self.edits is not None and self.sse:
            self.out_mode = O_EVENTS
            self.kept = [b""]
        elif self.body_mode == B_LENGTH:
            self.out_mode = O_RAW
        elif not modern:
            self.out_mode = O_PLAIN
        elif self.body_mode == B_CHUNKED:
            self.out_mode = O_RAW
        else:
            self.out_mode = O_CHUNK

    cdef bytes _copied(self, char* raw, Field* fields, Py_ssize_t count):
        """The reply's header lines that go on to the client."""
        cdef Py_ssize_t i, at = 0, size = 0
        cdef Field f
        cdef Field named
        cdef bint has_named = False
        cdef bytes out
        for i in range(count):
            size += fields[i].name_len + fields[i].value_len + 4
            if fields[i].name_len == 10 and memcmp(raw + fields[i].name, b"connection", 10) == 0:
                named = fields[i]
                has_named = True
        out = PyBytes_FromStringAndSize(NULL, size)
        for i in range(count):
            f = fields[i]
            if self.plan.hide.has(raw + f.name, f.name_len):
                continue
            if has_named and has_token(raw + named.value, named.value_len, raw + f.name, f.name_len):
                continue
            at = put(PyBytes_AS_STRING(out), at, raw + f.name, f.name_len)
            at = put(PyBytes_AS_STRING(out), at, b": ", 2)
            at = put(PyBytes_AS_STRING(out), at, raw + f.value, f.value_len)
            at = put(PyBytes_AS_STRING(out), at, b"\r\n", 2)
        return out[:at]

    cdef bytes _client_head(self, const char* line, Py_ssize_t line_len, char* raw, Field* fields,
                            Py_ssize_t count, long long length):
        return self._compose(line[:line_len], self._copied(raw, fields, count), length)

    cdef bytes _compose(self, bytes line, bytes copied, long long length):
        """The head for a raw client: the engine's status line and headers, our framing."""
        cdef Client c = self.client
        cdef bytes framing = b""
        if self.body_mode == B_NONE:
            # What a GET would have said (HEAD), or what 304 repeats.
            if self.left >= 0 and self.status != 204:
                framing = b"content-length: %d\r\n" % self.left
        elif length >= 0:
            framing = b"content-length: %d\r\n" % length
        elif self.out_mode == O_RAW and self.body_mode == B_LENGTH:
            framing = b"content-length: %d\r\n" % self.left
        elif self.out_mode == O_PLAIN or self.out_mode == O_EVENTS and self.request.version != 11:
            c.closing_ = True
        else:
            framing = b"transfer-encoding: chunked\r\n"
        if not self.body_done:
            c.closing_ = True
        return b"HTTP/1.1%b\r\n%b%b%b%b%b%b\r\n" % (
            line[8:], b"server: kvgate\r\n" if self.plan.own_server else b"",
            date_line() if self.plan.own_date else b"", copied, self.reply_extra, framing,
            c.connection_line(self.request))

    cdef list _sink_headers(self, char* raw, Field* fields, Py_ssize_t count):
        cdef list out = []
        cdef bytes block = self._copied(raw, fields, count) + self.reply_extra
        for line in block.split(b"\r\n"):
            if line:
                name, _, value = line.partition(b": ")
                out.append((name, value))
        if self.edits is None and self.left >= 0 and self.body_mode in (B_LENGTH, B_NONE):
            out.append((b"content-length", b"%d" % self.left))
        return out

    cdef _body(self, const char* p, Py_ssize_t n, double now, bytes head):
        """Body bytes, the first of them together with the client's head."""
        cdef Py_ssize_t used = n, got
        cdef bint boundary, done = False
        if self.body_mode == B_CHUNKED:
            boundary = chunked_boundary(&self.framing)
            self.framing.odd = False
            got = chunked_feed(&self.framing, p, n, _scratch, &used)
            if self.framing.state == C_BAD:
                if head is not None:
                    self.client.write(head)
                self.fail("bad_reply", "the reply's chunk framing is malformed")
                return
            done = self.framing.state == C_DONE
            self._look(_scratch, got, now)
            if self.out_mode == O_RAW:
                self._raw_chunks(p, used, got, boundary and not self.framing.odd, done, head)
            else:
                self._payload(_scratch[:got], done, head)
        else:
            if self.body_mode == B_LENGTH:
                if used > self.left:
                    used = self.left
                self.left -= used
                done = self.left == 0
            self._look(p, used, now)
            if self.out_mode == O_RAW:
                self.bytes_to_client += used
                if head is None:
                    self.client.write_raw(p, used)
                else:
                    self.client.write(head + p[:used])
            else:
                self._payload(p[:used], done, head)
        if done and not self.over:
            self._complete(used < n)

    cdef _raw_chunks(self, const char* p, Py_ssize_t used, Py_ssize_t got, bint whole, bint done, bytes head):
        """Chunks go through as they are where this read began and ended between two; else the payload is
        put into a chunk of ours, so that the client is between two chunks after every write."""
        cdef bytes out
        self.bytes_to_client += got
        if whole and not done and chunked_boundary(&self.framing):
            if head is None:
                self.client.write_raw(p, used)
                return
            out = p[:used]
        elif whole and done and self.framing.last >= 0:
            out = p[:self.framing.last]      # trailers are dropped: the end is ours
        else:
            out = b"%x\r\n%b\r\n" % (got, _scratch[:got]) if got else b""
        if done:
            out += b"0\r\n\r\n"
        if head is not None:
            out = head + out
        if out:
            self.client.write(out)

    cdef _payload(self, bytes data, bint done, bytes head):
        """Decoded payload in the form that the client or sink takes."""
        cdef bytes out = data
        if self.out_mode == O_COLLECT:
            self._collect(data)
            return
        if self.out_mode == O_EVENTS:
            out = filter_events(self.edits, data, self.kept)
            if done and self.kept[0]:
                out += self.kept[0]
        elif self.out_mode == O_SINK and self.edits is not None:
            if self.sse:
                if self.kept is None:
                    self.kept = [b""]
                out = filter_events(self.edits, data, self.kept)
                if done:
                    out += self.kept[0]
            elif self.is_json:
                if self.kept is None:
                    self.kept = []
                self._collect(data)
                return
        self.bytes_to_client += len(out)
        if self.out_mode == O_SINK:
            if out:
                self.sink.write(out)
            return
        if self.out_mode == O_CHUNK or self.out_mode == O_EVENTS and self.request.version == 11:
            out = b"%x\r\n%b\r\n" % (len(out), out) if out else b""
            if done:
                out += b"0\r\n\r\n"
        if head is not None:
            out = head + out
        if out:
            self.client.write(out)

    cdef _collect(self, bytes data):
        self.kept_size += len(data)
        if self.kept_size > self.plan.collect_max:
            self.fail("bad_reply", f"a reply that must be edited is larger than {self.plan.collect_max} bytes")
        else:
            self.kept.append(data)

    cdef _look(self, const char* p, Py_ssize_t n, double now):
        """The meter's view of decoded bytes."""
        if n == 0:
            return
        if self.sse:
            meter_feed(&self.meter, p, n, now)
            return
        if self.meter.first == 0:
            self.meter.first = now
        self.meter.last = now
        if self.is_json:
            if self.meter.id_len == 0:
                read_id(&self.meter, p, n)
            if n >= JSON_TAIL:
                self.json_tail = p[n - JSON_TAIL:n]
            else:
                self.json_tail = self.json_tail + p[:n] if self.json_tail else p[:n]
                if len(self.json_tail) > JSON_TAIL:
                    self.json_tail = self.json_tail[len(self.json_tail) - JSON_TAIL:]

    cdef _complete(self, bint excess):
        """The whole reply has come."""
        cdef Conn conn = self.conn
        if self.json_tail is not None:
            meter_json(&self.meter, PyBytes_AS_STRING(self.json_tail), len(self.json_tail))
        if self.edits is not None and self.is_json and self.kept is not None and not self.bare:
            self._flush_json()
        self.conn = None
        if conn is not None:
            # Bytes after a reply, or a request body still on its way: the connection is out of step.
            if self.engine_keeps and not excess and self.body_done:
                if self.held and not conn.lost:
                    conn.transport.resume_reading()
                self.pool.give(conn)
            else:
                self.pool.drop(conn)
        self._over(None, "")

    cdef _flush_json(self):
        cdef bytes body
        if self.out_mode == O_COLLECT:
            body = self.edits.json(b"".join(self.kept[2:]))
            self.relayed = True
            self.bytes_to_client += len(body)
            self.client.write(self._compose(self.kept[0], self.kept[1], len(body)) + body)
        else:
            body = self.edits.json(b"".join(self.kept))
            self.bytes_to_client += len(body)
            self.sink.write(body)

    # ---- the end ----

    cdef upstream_end(self, exc):
        """The engine closed: an end of the reply where that is its framing, a fault elsewhere."""
        if self.over:
            return
        if self.state == L_BODY and self.body_mode == B_CLOSE and exc is None:
            if self.out_mode == O_CHUNK or self.out_mode == O_EVENTS and self.request.version == 11:
                if self.out_mode == O_EVENTS and self.kept[0]:
                    self.client.write(b"%x\r\n%b\r\n" % (len(self.kept[0]), self.kept[0]))
                self.client.write(b"0\r\n\r\n")
            elif self.out_mode == O_EVENTS and self.kept[0]:
                self.client.write(self.kept[0])
            self._complete(False)
            return
        if self.state == L_WAIT and self.reused and self.bytes_received == 0 and self.body_done:
            # An orderly close (EPIPE: a reset after one) of which no acknowledgement of our bytes came along:
            # the engine had closed before they arrived. A bare reset proves nothing: it carries no such word.
            self.unsent = ((exc is None or isinstance(exc, BrokenPipeError))
                           and not self.conn.acknowledged(self.written_before))
        self.fail("eof" if exc is None else "reset", "" if exc is None else str(exc))

    def cancel(self, why="cancelled"):
        """Ends the leg; its owner hears leg_done with this error."""
        self.fail(why, "")

    cdef fail(self, str error, str detail):
        if not self.over:
            self._over(error, detail)

    cdef _over(self, str error, str detail):
        """The one way out. After it the client is free again, or its stream has been ended."""
        cdef Conn conn = self.conn
        cdef Sink sink = self.sink
        cdef object task = self.connecting
        cdef bint lost_client = error == "client_gone"
        self.over = True
        self.unwatch()
        self.state = L_OVER
        self.error = error
        self.detail = detail
        self.t_end = now_s()
        self.conn = None
        self.connecting = None
        if error is None and detail != "discarded":
            self.last_state = L_OVER
        if task is not None:
            task.cancel()
        if conn is not None:
            self.pool.drop(conn)
        self.meter_cut = self.meter.carry_len > 0
        meter_free(&self.meter)
        if sink.leg is self:
            sink.leg = None
            if error is None and detail != "discarded":
                sink.finished(self.request, self.body_done)
            elif self.relayed and not lost_client:
                self._break(sink)
        self.kept = None
        self.json_tail = None
        self.sink = None
        self.client = None
        owner = self.owner
        self.owner = None
        owner.leg_done(self)

    cdef _break(self, Sink sink):
        """A reply that has begun cannot be completed: an event stream says so, anything else is cut."""
        cdef bytes event
        cdef Client client = self.client
        if not self.sse:
            sink.abort()
            return
        event = self._break_event()
        if client is None:
            sink.write(event)
            sink.finished(self.request, False)
            return
        if self.out_mode == O_PLAIN or self.out_mode == O_EVENTS and self.request.version != 11:
            client.closing_ = True
            client.write(event)
        elif self.body_mode == B_LENGTH and self.out_mode == O_RAW:
            client.abort()      # a stream with a length: cutting it short is the only way to say it
            return
        else:
            client.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
        client.finished(self.request, self.body_done)

    cdef bytes _break_event(self):
        cdef str code = "upstream_timeout" if self.error.endswith("_timeout") else "upstream_lost"
        cdef bytes body = (b'{"error":{"message":"The engine %b before the reply was complete",'
                           b'"type":"server_error","param":null,"code":"%b"}}' % (
                               b"fell silent" if code == "upstream_timeout" else b"was lost", code.encode()))
        # An event that was cut in the middle is ended first, so that ours stands alone.
        cdef bytes before = b"\n\n" if self.meter_cut else b""
        if self.request.path.endswith(b"/messages"):
            body = b'{"type":"error",' + body[1:]
            return before + b"event: error\ndata: " + body + b"\n\n"
        return before + b"data: " + body + b"\n\n"


cdef char _scratch_buffer[READ_SIZE]
cdef char* _scratch = _scratch_buffer
