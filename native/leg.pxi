# A leg: one exchange with an engine. It connects, sends, waits, and hands what comes to its Reply half.

cdef enum:
    L_NEW = 0
    L_CONNECT = 1
    L_WAIT = 2        # request written, no reply head yet
    L_BODY = 3
    L_OVER = 4

cdef enum:
    JOIN_MAX = 65536          # a request body up to this size goes out in one piece with its head

_PHASES = ("connect", "connect", "wait", "body", "done")


cdef class Leg(Reply):
    """One exchange with one engine, its reply relayed to a client. Set target, host, extra, body, edits and
    reply_extra before start(); `owner` hears leg_head (for the plan's hook statuses), leg_first (if hear_first) and,
    once, leg_done."""
    cdef Pool pool
    cdef RequestPlan request_plan
    cdef object owner
    cdef Conn conn
    cdef object connecting
    cdef int state
    cdef int last_state
    cdef bytes head_part           # a reply head that is not complete yet
    cdef bint engine_keeps
    cdef bint upstream_full
    cdef bint held                 # the sink takes no more for now
    cdef bint parked               # its owner wants no more for now
    cdef uint64_t written_before
    cdef double total_deadline
    cdef public bytes target
    cdef public bytes method
    cdef public double total_s     # may only lower the plan's; 0 = as there
    cdef public double not_after   # monotonic s; a request that is not sent by then never is; 0 = no matter
    cdef public double linger_s    # where the client leaves an engine that has not begun: see Pool.linger
    cdef public bytes host
    cdef public bytes extra
    cdef public bytes body
    cdef readonly str error
    cdef readonly str detail
    cdef readonly bint unsent
    cdef readonly bint reused
    cdef readonly list reply_headers
    cdef readonly double t_start
    cdef readonly double t_connected
    cdef readonly double t_sent
    cdef readonly double t_head
    cdef readonly double t_end
    cdef readonly uint64_t bytes_sent
    cdef readonly uint64_t bytes_received

    def __init__(self, sink, Request request, Pool pool, RequestPlan request_plan, ReplyPlan reply_plan, owner):
        self.sink = sink
        self.client = sink if isinstance(sink, Client) else None
        self.request = request
        self.pool = pool
        self.request_plan = request_plan
        self.plan = reply_plan
        self.owner = owner
        self.target = request.target
        self.method = request.method
        self.body = request.body
        self.host = self.extra = self.reply_extra = b""
        self.detail = ""

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
    def created_tokens(self):
        return self.meter.created_tokens

    @property
    def reply(self):
        """The reply's body where it was kept, once it has come as a whole; else None."""
        return self.whole

    @property
    def reply_id(self):
        return self.meter.reply_id[:self.meter.id_len] if self.meter.id_len > 0 else b""

    # ---- start ----

    def start(self):
        cdef Conn conn
        cdef double total
        if self.state != L_NEW:
            raise RuntimeError("a leg starts once")
        if not self.sink.serves(self.request) or self.sink.leg is not None:
            raise RuntimeError("the client is not waiting for this request's reply")
        self.sink.leg = self
        if self.client is not None and self.client.cycle is not None:
            self.client.cycle.leg_used = True
        self.t_start = now_s()
        self.state = self.last_state = L_CONNECT
        total = self.plan.total_s
        if self.total_s and (total == 0 or self.total_s < total):
            total = self.total_s
        self.total_deadline = self.t_start + total if total else 0
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
        if self.not_after and now_s() > self.not_after:
            self.unsent = True
            self.fail("expired", "")
            return
        self.reused = reused
        self.t_connected = self.t_start if reused else now_s()
        self.state = self.last_state = L_WAIT
        self.written_before = conn.written
        conn.served += 1
        if self.body is None:
            length = r.content_length
        else:
            length = len(self.body)
            if length == 0 and r.content_length < 0 and (self.method == b"GET" or self.method == b"HEAD"):
                length = -1
        head = self.request_plan.head(r, self.method, self.target, self.host, self.extra, length,
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
        if self.parked:
            self.hold()

    cdef connect_failed(self, exc):
        if not self.over:
            self.unsent = True
            # A lack of descriptors here says nothing of the engine.
            self._over("no_files" if getattr(exc, "errno", None) in (EMFILE, ENFILE) else "connect",
                       f"{type(exc).__name__}: {exc}")

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
        if not self.held and not self.keep_max and self.conn is not None and not self.conn.lost:
            self.held = True
            self.conn.transport.pause_reading()
            if self.state == L_BODY:
                self._until(now_s(), 0)     # the silence is the client's

    def park(self, bint on):
        """Whether the reply is left with the engine for now. Said before start() or after."""
        self.parked = on
        self.hold() if on else self.release()

    cdef release(self):
        if self.held and not self.parked:
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
            self.take_body(p, n, now, None)
        elif self.state == L_WAIT:
            self._head(p, n)

    cdef _head(self, const char* p, Py_ssize_t n):
        cdef ReplyHead head = ReplyHead()
        cdef bytes data = PyBytes_FromStringAndSize(p, n)
        cdef double now
        cdef Py_ssize_t looked = 0
        if self.head_part is not None:
            looked = PyBytes_GET_SIZE(self.head_part)
            data = self.head_part + data
        if not head.read(data, looked):
            self.head_part = data[head.start:]
            return
        self.head_part = None
        if head.fault is None:
            head.framing(self.method)
        if head.fault is not None:
            self.fail("bad_reply", head.fault)
            return
        now = now_s()
        self.t_head = now
        self.engine_keeps = head.keeps
        self.state = self.last_state = L_BODY
        self._until(now, self.plan.read_s)
        self.take(head)
        if self.status in self.plan.hook:
            self.reply_headers = head.headers()
            if not self.owner.leg_head(self):
                self._over(None, "discarded")
                return
            if self.over:
                return
        self.relay(head, now)

    cdef first_output(self):
        self.hear_first = False
        self.owner.leg_first(self)

    cdef complete(self, bint excess):
        """The whole reply has come."""
        cdef Conn conn = self.conn
        self.finish_json()
        self.conn = None
        if conn is not None:
            # Bytes after a reply, or a request body still on its way: the connection is out of step.
            if self.engine_keeps and not excess and self.body_done and conn.drained():
                if self.held and not conn.lost:
                    conn.transport.resume_reading()
                self.pool.give(conn)
            else:
                self.pool.drop(conn)
        self._over(None, "")

    # ---- the end ----

    cdef upstream_end(self, exc, bint cut):
        """The engine closed: an end of the reply where that is its framing, a fault elsewhere. `cut`: anybody
        on the way may have done it (RFC 9112 §9.8); a stream that has said that it is done is whole even so."""
        if self.over:
            return
        if self.state == L_BODY and self.body_mode == B_CLOSE and exc is None and (not cut or self.meter.done_seen):
            self.end_of_stream(False)
            return
        if self.state == L_WAIT and self.reused and self.bytes_received == 0 and self.body_done:
            # An orderly close (EPIPE: a reset after one) of which no acknowledgement of our bytes came along:
            # the engine had closed before they arrived. A bare reset proves nothing: it carries no such word.
            self.unsent = ((exc is None or isinstance(exc, BrokenPipeError))
                           and not self.conn.acknowledged(self.written_before))
        self.fail("eof" if exc is None else "reset",
                  str(exc) if exc is not None else "its TLS ended without close_notify" if cut else "")

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
        if self.state == L_CONNECT:
            self.unsent = True
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
            if lost_client and self.linger_s and self.body_done and self.meter.first == 0:
                self.pool.linger(conn, self.t_end + self.linger_s)
            else:
                self.pool.drop(conn)
        if sink.leg is self:
            sink.leg = None
            if self.keep_max:
                pass                    # it had nothing of this
            elif error is None and detail != "discarded":
                sink.finished(self.request, self.body_done)
            elif self.relayed and not lost_client:
                self.break_off(error)
        meter_free(&self.meter)
        self.kept = None
        self.json_tail = None
        self.sink = None
        self.client = None
        owner = self.owner
        self.owner = None
        owner.leg_done(self)
