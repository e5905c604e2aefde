# Replies that must change: the model's alias put back, the usage chunk that only the gateway asked for cut.
# Everything else stays byte for byte; the framing is made anew.

cdef enum:
    EDIT_EVENT_MAX = 1 << 20     # an event longer than this passes unchanged


cdef class Edits:
    """`model_to`: what the reply's "model" shall read (empty = leave it). `drop_usage`: cut the usage chunk
    of a stream and the null usage of its other chunks."""
    cdef bytes model_to
    cdef bint drop_usage

    def __init__(self, model_from=b"", model_to=b"", drop_usage=False):
        import json
        self.model_to = json.dumps(model_to.decode("utf-8", "replace"), ensure_ascii=False).encode() if model_to else b""
        self.drop_usage = drop_usage

    cpdef bytes model(self, bytes text):
        """`text` with the first "model" string replaced."""
        cdef const char* p = PyBytes_AS_STRING(text)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(text), i, stop
        cdef const char* at
        if not self.model_to:
            return text
        i = 0
        while True:
            at = <const char*>memmem(p + i, n - i, b'"model"', 7)
            if at == NULL:
                return text
            i = at - p + 7
            while i < n and (p[i] == 32 or p[i] == 9):
                i += 1
            if i < n and p[i] == 58:     # a key, not a value
                break
        i += 1
        while i < n and (p[i] == 32 or p[i] == 9):
            i += 1
        if i >= n or p[i] != 34:
            return text
        stop = i + 1
        while stop < n and p[stop] != 34:
            stop += 2 if p[stop] == 92 else 1
        if stop >= n:
            return text
        return b"%b%b%b" % (text[:i], self.model_to, text[stop + 1:])

    cpdef bytes event(self, bytes text):
        """One whole event, its blank line included; b"" = it is cut."""
        if self.drop_usage:
            if b'"usage":{' in text and b'"choices":[]' in text:
                return b""
            text = text.replace(b',"usage":null', b"", 1)
        return self.model(text)

    cpdef bytes json(self, bytes body):
        """A whole JSON reply: its top-level "model", wherever that stands."""
        from native import _core
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
