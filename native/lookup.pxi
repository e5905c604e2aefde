# A `map` as requests read it: what a text led to before is found again without running Python.

cdef enum:
    NEVER, ALWAYS, ENDED   # when a map's text can no longer change

cdef enum:
    T_GETTER, T_HEADER, T_ADDR, T_METHOD, T_STATUS, T_MAP

cdef enum:
    ROOTS_KNOWN_MAX = 1024      # texts at the root of maps that read each other whose value is kept

cdef list _STATUSES = [f"{number:03d}" for number in range(600)]


cdef class Lookup:
    """`$name` of a map, as a function from the context to its text. `known`, which its owner fills, holds
    texts whose value depends on nothing else; `work(ctx)` does it all, and keeps the value for the request.
    What `known` has of a text that can no longer change is not kept: it is as quickly found again. Where the
    text is another map's value, `roots` leads from the text that the first of them reads to the last one's."""
    cdef readonly str name
    cdef readonly dict known
    cdef dict roots
    cdef object work
    cdef int code
    cdef object source
    cdef int settled

    def __init__(self, str name, work):
        self.name = name
        self.work = work
        self.known = {}
        self.roots = {}
        self.settled = NEVER

    def read_from(self, str variable, source, str settled):
        """The text looked up: `source(ctx)`, which is `$variable` where that is not None; `settled`, from when
        on it does not change: "never", "always" or "ended"."""
        self.code = T_GETTER
        self.source = source
        if isinstance(source, Lookup):
            self.code = T_MAP
        elif variable is not None and variable.startswith("http_"):
            self.code = T_HEADER
            self.source = variable[5:].lower().replace("_", "-").encode()
        elif variable in ("remote_addr", "request_method", "status"):
            self.code = {"remote_addr": T_ADDR, "request_method": T_METHOD, "status": T_STATUS}[variable]
        self.settled = ("never", "always", "ended").index(settled)

    def __call__(self, ctx):
        return self.read(ctx)

    cdef str read(self, ctx):
        cdef dict made = ctx.made
        cdef object found
        if made is not None:
            found = made.get(self.name)
            if found is not None:
                return found
        elif not ctx.plan.made.plain:
            return ctx.plan.made.read(ctx, self.name)
        if self.settled == ALWAYS or self.settled == ENDED and ctx.t_end:
            # Nothing made: no `set` and no group stands for one of the maps on the way.
            found = self.of_root(self.root(ctx)) if made is None else self.known.get(self.text(ctx))
            if found is not None:
                return found
        return self.work(ctx)

    cdef str root(self, ctx):
        return (<Lookup>self.source).root(ctx) if self.code == T_MAP else self.text(ctx)

    cdef str of_root(self, str root):
        """The value, where every map on the way knows its text; else None."""
        cdef object found
        if self.code != T_MAP:
            return self.known.get(root)
        found = self.roots.get(root)
        if found is None:
            found = self.known.get((<Lookup>self.source).of_root(root))
            if found is not None:
                if len(self.roots) >= ROOTS_KNOWN_MAX:
                    self.roots.clear()
                self.roots[root] = found
        return found

    cdef str text(self, ctx):
        cdef int code = self.code
        cdef Py_ssize_t status
        cdef object value
        if code == T_HEADER:
            return _header_text(ctx.request, self.source)
        if code == T_MAP:
            return (<Lookup>self.source).read(ctx)
        if code == T_ADDR:
            return _host_of(ctx.client.peer)
        if code == T_METHOD:
            return ctx.request.method.decode("latin-1")
        if code == T_STATUS:
            status = ctx.status
            return _STATUSES[status] if 0 <= status < 600 else str(status)
        value = self.source(ctx)
        return "" if value is None else value


cdef str _header_text(request, bytes name):
    """A request header's value, read as latin-1."""
    cdef bytes raw
    if type(request) is Request:
        raw = (<Request>request).joined(name)
    else:                         # made by hand, as tests make it
        raw = request.joined(name)
    return "" if raw is None else raw.decode("latin-1")


cdef str _host_of(str peer):
    """`host:port`, `[host]:port` or `unix:...` without the port."""
    cdef Py_ssize_t end
    if peer.startswith("unix:"):
        return "unix:"
    end = peer.rindex(":")
    return peer[1:end - 1] if peer[0] == "[" else peer[:end]


cdef enum:
    LINES_KNOWN_MAX = 1024      # values of one header whose line is kept
    LINES_KNOWN_CHARS = 256


cdef class HeaderLines:
    """Header lines to add: `constant` ones as one piece, and `rows` of (b"name: ", function from the context
    to its text), evaluated per request."""
    cdef bytes constant
    cdef list names
    cdef list readers
    cdef list known              # value -> line, for values of maps: there are few of them

    def __init__(self, bytes constant, rows):
        self.constant = constant
        self.names = [name for name, _ in rows]
        self.readers = [reader for _, reader in rows]
        self.known = [{} if isinstance(reader, Lookup) else None for reader in self.readers]

    def render(self, ctx):
        """`name: value CR LF ...`; a header whose value is empty is left out, as in nginx."""
        cdef Py_ssize_t i
        cdef bytes lines = self.constant, line
        cdef object reader
        cdef dict known
        cdef str value
        for i in range(len(self.readers)):
            reader = self.readers[i]
            known = self.known[i]
            if known is not None:
                value = (<Lookup>reader).read(ctx)
                line = known.get(value)
                if line is None and value:
                    line = _header_line(self.names[i], value)
                    if len(value) <= LINES_KNOWN_CHARS:
                        if len(known) >= LINES_KNOWN_MAX:
                            known.clear()
                        known[value] = line
            else:
                value = reader(ctx)
                line = _header_line(self.names[i], value) if value else None
            if line is not None:
                lines = lines + line if lines else line
        return lines


cdef bytes _header_line(bytes name, str value):
    """Latin-1; control characters become blanks: nothing in it can end the line."""
    cdef bytes raw = value.encode("latin-1", "replace")
    cdef Py_ssize_t i, at, n = PyBytes_GET_SIZE(raw)
    cdef bytes line = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(name) + n + 2)
    cdef char* out = PyBytes_AS_STRING(line)
    cdef const char* p = PyBytes_AS_STRING(raw)
    cdef uint8_t c
    at = put(out, 0, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    for i in range(n):
        c = <uint8_t>p[i]
        out[at] = 32 if c == 127 or c < 32 and c != 9 else c
        at += 1
    out[at] = 13
    out[at + 1] = 10
    return line
