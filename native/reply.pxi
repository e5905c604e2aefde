# A reply on its way from an engine to a sink: raw where the framing allows, else decoded and framed anew.

cdef enum:
    O_RAW = 0         # bytes go through as they came
    O_CHUNK = 1       # payload in chunks of ours
    O_PLAIN = 2       # payload alone: a length of ours, or the connection's end
    O_EVENTS = 3      # event stream through the edits, in chunks of ours
    O_COLLECT = 4     # kept whole, then edited
    O_SINK = 5        # payload to a sink that frames it itself
    O_KEEP = 6        # kept whole, for the owner

cdef enum:
    JSON_TAIL = 4096          # where in a JSON reply its usage is looked for

cdef char _scratch_buffer[READ_SIZE]
cdef char* _scratch = _scratch_buffer


cdef class Reply(Timed):
    """The relaying half of a Leg. After every write the client is at a framing boundary, so that an error
    event can always be put in."""
    cdef Sink sink
    cdef Client client             # the sink, when it is a raw one
    cdef readonly Request request
    cdef ReplyPlan plan
    cdef Meter meter
    cdef Chunked framing
    cdef int body_mode
    cdef int out_mode
    cdef long long left            # of a reply with a length
    cdef list kept                 # [bytes carried] of edited streams, or the parts of a collected reply
    cdef Py_ssize_t kept_size
    cdef bytes json_tail
    cdef bint is_json
    cdef bint over
    cdef bint body_done            # the request body has gone out
    cdef public Edits edits
    cdef public bytes reply_extra
    cdef public Py_ssize_t keep_max    # the reply is kept for the owner, up to so many bytes; 0 = it is passed on
    cdef bytes whole
    cdef public bint hear_first    # its owner hears of the first output, once
    cdef readonly int status
    cdef public int reply_status   # what the client is told instead; 0 = the engine's
    cdef readonly bint relayed
    cdef readonly bint sse
    cdef readonly bytes content_type
    cdef readonly uint64_t bytes_to_client

    def __cinit__(self):
        meter_reset(&self.meter)

    def __dealloc__(self):
        meter_free(&self.meter)

    def times(self, double arrived, double duration, bint complete):
        """As `stream_times`; of an answer that is no stream all but the end to end latency is -1."""
        cdef double t[TIMES]
        self.times_into(t, arrived, duration, complete)
        return t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]

    cdef void times_into(self, double* out, double arrived, double duration, bint complete) noexcept:
        cdef Meter* m = &self.meter
        if self.sse and self.relayed and self.status < 300:
            stream_times_into(out, arrived, m.first, m.last, m.answer, m.choice, m.choice_last,
                              m.payloads if m.completion_tokens < 0 else m.completion_tokens, duration, complete)
            return
        stream_times_into(out, arrived, 0, 0, 0, 0, 0, 0, duration, False)
        if self.relayed and self.status < 300 and complete and m.last:
            out[2] = m.last - arrived

    @property
    def counts(self):
        """Tokens of the prompt, of the answer, of the prompt from a cache, and events with output; -1 = not known."""
        return (self.meter.prompt_tokens, self.meter.completion_tokens, self.meter.cached_tokens,
                self.meter.payloads if self.sse else -1)

    cdef fail(self, str error, str detail):
        pass

    cdef complete(self, bint excess):
        """The whole reply has come; `excess`: and more than that."""

    cdef first_output(self):
        """The first output of the reply has come."""

    cdef take(self, ReplyHead head):
        """The head is there: decides how the body goes on."""
        self.status = head.status
        self.content_type = head.content_type
        self.sse = head.sse
        self.is_json = head.is_json
        self.body_mode = head.body_mode
        self.left = head.length
        chunked_reset(&self.framing)

    cdef relay(self, ReplyHead head, double now):
        """Sends the head on, and what of the body came with it."""
        cdef bytes first = None
        cdef Py_ssize_t n = PyBytes_GET_SIZE(head.data)
        self._choose()
        if self.out_mode == O_KEEP:
            pass
        elif self.out_mode == O_COLLECT:
            self.kept = [head.raw[head.start:head.line_end], head.copied(self.plan.hide)]
        else:
            self.relayed = True
            if self.out_mode == O_SINK:
                self.sink.take_head(self.reply_status or self.status, self._sink_headers(head))
            else:
                first = self._compose(head.raw[head.start:head.line_end], head.copied(self.plan.hide), -1)
        if self.body_mode == B_NONE or self.body_mode == B_LENGTH and self.left == 0:
            if first is not None:
                self.client.write(first)
            if self.out_mode == O_EVENTS:
                self.end_of_stream(head.size < n)     # our framing has an end of its own
            else:
                self.complete(head.size < n)
        elif head.size < n:
            self.take_body(head.raw + head.size, n - head.size, now, first)
        elif first is not None:
            self.client.write(first)

    cdef _choose(self):
        cdef bint modern = self.request.version == 11
        self.meter.gaps = self.plan.gaps
        self.meter.tenancy = self.plan.tenancy
        self.meter.bounds = self.plan.bounds
        self.meter.bound_count = self.plan.bound_count
        self.meter.mark = self.plan.mark
        self.meter.mark_at = self.plan.mark_at
        if self.keep_max:
            self.out_mode = O_KEEP
            self.kept = []
            self.kept_size = 0
        elif self.client is None:
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
        if self.reply_status:
            line = status_line(self.reply_status)
            line = line[:len(line) - 2]
        return b"HTTP/1.1%b\r\n%b%b%b%b%b%b\r\n" % (
            line[8:], b"server: kvgate\r\n" if self.plan.own_server else b"",
            date_line() if self.plan.own_date else b"", copied, self.reply_extra, framing,
            c.connection_line(self.request))

    cdef list _sink_headers(self, ReplyHead head):
        cdef list out = []
        cdef bytes block = head.copied(self.plan.hide) + self.reply_extra
        for line in block.split(b"\r\n"):
            if line:
                name, _, value = line.partition(b": ")
                out.append((name, value))
        if self.edits is None and self.left >= 0 and self.body_mode in (B_LENGTH, B_NONE):
            out.append((b"content-length", b"%d" % self.left))
        return out

    cdef take_body(self, const char* p, Py_ssize_t n, double now, bytes head):
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
            self.complete(used < n)

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
        if self.out_mode == O_COLLECT or self.out_mode == O_KEEP:
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
        cdef Py_ssize_t most = self.keep_max or self.plan.collect_max
        self.kept_size += len(data)
        if self.kept_size > most:
            self.fail("bad_reply", f"a reply that is kept whole is larger than {most} bytes")
        else:
            self.kept.append(data)

    cdef _look(self, const char* p, Py_ssize_t n, double now):
        """The meter's view of decoded bytes."""
        if n == 0:
            return
        if self.sse:
            meter_feed(&self.meter, p, n, now)
            if self.hear_first and self.meter.first != 0:
                self.first_output()
            return
        if self.meter.first == 0:
            self.meter.first = now
            if self.hear_first:
                self.first_output()
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

    cdef end_of_stream(self, bint excess):
        """A reply whose engine sent no end that could be passed on has ended: the client's framing ends."""
        cdef bytes rest = b""
        if self.out_mode == O_EVENTS or self.out_mode == O_SINK and self.sse and self.kept is not None:
            rest = self.kept[0]
        self.bytes_to_client += len(rest)
        if self.out_mode == O_CHUNK or self.out_mode == O_EVENTS and self.request.version == 11:
            self.client.write((b"%x\r\n%b\r\n" % (len(rest), rest) if rest else b"") + b"0\r\n\r\n")
        elif rest:
            self.sink.write(rest)
        self.complete(excess)

    cdef finish_json(self):
        """Usage from the end of a JSON reply; what was collected goes out, edited."""
        if self.out_mode == O_KEEP:
            self.whole = b"".join(self.kept)
            if self.is_json:
                meter_json(&self.meter, PyBytes_AS_STRING(self.whole), PyBytes_GET_SIZE(self.whole))
            return
        if self.json_tail is not None:
            meter_json(&self.meter, PyBytes_AS_STRING(self.json_tail), PyBytes_GET_SIZE(self.json_tail))
        if self.edits is not None and self.is_json and self.kept is not None:
            self._flush_json()

    cdef break_off(self, str error):
        """A reply that has begun cannot be completed: an event stream says so, anything else is cut."""
        cdef bytes event
        cdef Client client = self.client
        cdef Sink sink = self.sink
        if not self.sse or self.body_mode == B_LENGTH and self.out_mode == O_RAW:
            sink.abort()
            return
        event = break_event(error, self.request.path, self.meter.carry_len > 0)
        if client is None:
            sink.write(event)
        elif self.out_mode == O_PLAIN or self.out_mode == O_EVENTS and self.request.version != 11:
            client.closing_ = True
            client.write(event)
        else:
            client.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
        sink.finished(self.request, self.body_done)


cdef bytes break_event(str error, bytes path, bint inside):
    """The event that ends a broken stream. `inside`: the stream broke in the middle of an event, which is
    ended first, so that ours stands alone."""
    cdef str code = "upstream_lost"
    cdef str what = "The engine was lost before the reply was complete"
    if error.endswith("_timeout"):
        code, what = "upstream_timeout", "The engine fell silent before the reply was complete"
    elif error == "shutdown":
        code, what = "shutdown", "The gateway stopped before the reply was complete"
    body = f'{{"error":{{"message":"{what}","type":"server_error","param":null,"code":"{code}"}}}}'
    if path.endswith(b"/messages"):
        text = f'event: error\ndata: {{"type":"error",{body[1:]}\n\n'
    else:
        text = f"data: {body}\n\n"
    return (b"\n\n" if inside else b"") + text.encode()
