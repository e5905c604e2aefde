# Replies that must change: the model's alias put back, the usage chunk that only the gateway asked for cut.
# Everything else stays byte for byte; the framing is made anew.

cdef enum:
    EDIT_EVENT_MAX = 1 << 20     # an event longer than this passes unchanged


cdef bint model_value(const char* p, Py_ssize_t n, Py_ssize_t* start, Py_ssize_t* stop) noexcept nogil:
    """Where the reply names its model: a string under "model" at the top of the event's object, or in its
    "response" (responses) or "message" (messages). A "model" in metadata or text is the user's own."""
    cdef Py_ssize_t i = 0, key = -1, key_end = -1, from_
    cdef int depth = 0
    cdef bint inside = False          # within response or message
    while i < n:
        if p[i] == 34:
            from_ = i
            i += 1
            while i < n and p[i] != 34:
                i += 2 if p[i] == 92 else 1
            if i >= n:
                return False
            i += 1
            key, key_end = from_, i   # perhaps: a colon must follow
            continue
        if p[i] == 123 or p[i] == 91:
            depth += 1
            if depth == 2:
                inside = p[i] == 123 and (named(p, key, key_end, b"response", 8)
                                          or named(p, key, key_end, b"message", 7))
            key = -1
        elif p[i] == 125 or p[i] == 93:
            depth -= 1
            if depth == 1:
                inside = False
        elif p[i] == 58 and key >= 0 and (depth == 1 or depth == 2 and inside):
            if named(p, key, key_end, b"model", 5):
                i += 1
                while i < n and (p[i] == 32 or p[i] == 9):
                    i += 1
                if i >= n or p[i] != 34:
                    return False
                start[0] = i
                i += 1
                while i < n and p[i] != 34:
                    i += 2 if p[i] == 92 else 1
                stop[0] = i + 1
                return i < n
        elif p[i] == 44:
            key = -1
        i += 1
    return False


cdef inline bint named(const char* p, Py_ssize_t start, Py_ssize_t stop, const char* word, Py_ssize_t n) noexcept nogil:
    return start >= 0 and stop - start == n + 2 and memcmp(p + start + 1, word, n) == 0


cdef bytes USAGE = b'"usage":'
# What a prompt's usage is called by chat completions and completions, responses, messages.
# Beside: not among the input tokens, where those are counted.
cdef bytes CACHED_BESIDE = b'"cache_read_input_tokens":'
cdef bytes CREATED_BESIDE = b'"cache_creation_input_tokens":'
cdef tuple CACHED = (b'"cached_tokens":', CACHED_BESIDE)
cdef tuple CREATED = (b'"created_cache_tokens":', b'"cache_write_tokens":', CREATED_BESIDE)


cdef bytes put_number(bytes text, bytes name, long long value, bint relative, long long* before):
    """`text` with the number behind the last `name` in a usage object replaced, or, `relative`, made larger by
    `value`, but not below 0. `before`: what it was; -1, and the text unchanged, where there is no number."""
    cdef Py_ssize_t at = text.rfind(name), i
    before[0] = -1
    if at < 0 or text.rfind(USAGE, 0, at) < 0:
        return text
    at += len(name)
    while at < len(text) and text[at] == 32:
        at += 1
    i = at
    while i < len(text) and 48 <= text[i] <= 57:
        i += 1
    if i == at:
        return text
    before[0] = int(text[at:i])
    if relative:
        value = max(0, value + before[0])
    return b"%b%d%b" % (text[:at], value, text[i:])


cdef class Edits:
    """`model_to`: what the reply's "model" shall read (empty = leave it). `drop_usage`: cut the usage chunk
    of a stream and the null usage of its other chunks. `with_usage`: what it shall count of the prompt."""
    cdef bytes model_to
    cdef bint drop_usage
    cdef bint counts
    cdef long long cached, created    # -1 = leave it

    def __init__(self, model_to=b"", drop_usage=False):
        import json
        self.model_to = json.dumps(model_to.decode("utf-8", "replace"), ensure_ascii=False).encode() if model_to else b""
        self.drop_usage = drop_usage
        self.cached = self.created = -1

    def with_usage(self, long long cached, long long created):
        """The same edits, and the usage says that so many of the prompt's tokens were found in a cache, and so
        many put into one; -1 = as the reply has it."""
        cdef Edits more = Edits()
        more.model_to = self.model_to
        more.drop_usage = self.drop_usage
        more.count(cached, created)
        return more

    def count(self, long long cached, long long created):
        """Sets these numbers, which may be known only after the reply has begun."""
        self.cached, self.created = cached, created
        self.counts = cached >= 0 or created >= 0

    cdef bytes _usage(self, bytes text):
        """The counts of a usage object; there are few, and none in other events."""
        cdef long long before = -1
        if self.cached >= 0:
            for name in CACHED:
                text = put_number(text, name, self.cached, False, &before)
                if before >= 0 and name is CACHED_BESIDE:
                    text = put_number(text, b'"input_tokens":', before - self.cached, True, &before)
        if self.created >= 0:
            for name in CREATED:
                text = put_number(text, name, self.created, False, &before)
                if before >= 0 and name is CREATED_BESIDE:
                    text = put_number(text, b'"input_tokens":', before - self.created, True, &before)
        return text

    cpdef bytes model(self, bytes text):
        """`text` with the reply's own "model" replaced; see model_value."""
        cdef Py_ssize_t i = 0, stop = 0
        if not self.model_to:
            return text
        if not model_value(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text), &i, &stop):
            return text
        return b"%b%b%b" % (text[:i], self.model_to, text[stop:])

    cpdef bytes event(self, bytes text):
        """One whole event, its blank line included; b"" = it is cut."""
        if self.drop_usage:
            if b'"usage":{' in text and b'"choices":[]' in text:
                return b""
            text = text.replace(b',"usage":null', b"", 1)
        if self.counts and USAGE in text:
            text = self._usage(text)
        return self.model(text)

    cpdef bytes json(self, bytes body):
        """A whole JSON reply: its top-level "model", wherever that stands."""
        from native import _core
        if self.counts:
            body = self._usage(body)
        if not self.model_to:
            return body
        try:
            span = _core.scan(body).model_span
        except ValueError:
            return body
        return body if span is None else b"%b%b%b" % (body[:span[0]], self.model_to, body[span[1]:])


cdef bytes filter_events(Edits edits, bytes data, list carry):
    """Feeds payload bytes split anywhere; returns the edited events that are complete. `carry` is [bytes]."""
    cdef bytes text = carry[0] + data if carry[0] else data
    cdef Py_ssize_t n = PyBytes_GET_SIZE(text), i = 0, end
    cdef list out = []
    while True:
        end = event_end(PyBytes_AS_STRING(text), n, i)
        if end < 0:
            break
        out.append(edits.event(text[i:end]))
        i = end
    if n - i > EDIT_EVENT_MAX:
        out.append(text[i:])
        i = n
    carry[0] = text[i:] if i < n else b""
    return b"".join(out)
