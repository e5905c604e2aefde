# What is compiled once per location: which headers go where, which timeouts hold.

cdef class RequestPlan:
    """Which client headers go to the engine: all but `drop` (lower case), the hop-by-hop ones, those that
    Connection names, Host, Content-Length and Expect."""
    cdef Names drop

    def __init__(self, drop=()):
        self.drop = Names(list(drop) + _HOP + [b"host", b"expect", b"content-length"])

    cdef bytes head(self, Request r, bytes method, bytes target, bytes host, bytes extra, long long length, bint chunked):
        """The request head for an engine; `length` < 0 = no Content-Length."""
        cdef Py_ssize_t size, at = 0, i
        cdef bytes out
        cdef char* o
        cdef char number[64]
        cdef int digits = 0
        if chunked:
            digits = snprintf(number, 64, b"transfer-encoding: chunked\r\n")
        elif length >= 0:
            digits = snprintf(number, 64, b"content-length: %lld\r\n", length)
        size = len(method) + len(target) + len(host) + len(extra) + digits + 64
        for i in range(r.field_count):
            # As written here: `name: value` CR LF, whatever blanks the client left out.
            size += r.fields[i].name_len + r.fields[i].value_len + 4
        out = PyBytes_FromStringAndSize(NULL, size)
        o = PyBytes_AS_STRING(out)
        at = put(o, at, PyBytes_AS_STRING(method), PyBytes_GET_SIZE(method))
        at = put(o, at, b" ", 1)
        at = put(o, at, PyBytes_AS_STRING(target), PyBytes_GET_SIZE(target))
        at = put(o, at, b" HTTP/1.1\r\nhost: ", 17)
        at = put(o, at, PyBytes_AS_STRING(host), PyBytes_GET_SIZE(host))
        at = put(o, at, b"\r\n", 2)
        at += copy_fields(r.raw, r.fields, r.field_count, self.drop, o + at)
        at = put(o, at, PyBytes_AS_STRING(extra), PyBytes_GET_SIZE(extra))
        at = put(o, at, number, digits)
        at = put(o, at, b"\r\n", 2)
        if at > size:
            raise SystemError("a request head outgrew its buffer")
        return out[:at]


cdef class ReplyPlan:
    """How replies of a location are relayed: headers hidden (the engine's Server and Date too, unless
    they are in `passed`; then ours stand in their place), timeouts in seconds (0 = none), the statuses
    that `owner.leg_head` is asked about, the histogram of gaps between payload events: `itl` is a
    writable buffer of len(itl_bounds) + 1 counts (u64), their sum (f64, s), one more bound (f64, s; 0 = none),
    how many values of its bucket lie up to it (u64), and a number (u64): once that is another one, the
    histogram counts for somebody else and is left alone."""
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
    cdef uint64_t tenancy
    cdef double bounds[64]
    cdef int bound_count
    cdef double mark
    cdef int mark_at
    cdef readonly uint64_t series     # of the statistics, 0 = none
    cdef double slo[3]                # ttft, tpot, e2el in s; 0 = none

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
            if view.shape[0] < 8 * (len(itl_bounds) + 5):
                raise ValueError(f"the buffer holds {view.shape[0]} bytes, {8 * (len(itl_bounds) + 5)} are needed")
            self.itl_owner = itl
            self.gaps = <uint64_t*>&view[0]
            self.mark = (<double*>(self.gaps + len(itl_bounds) + 2))[0]
            self.mark_at = sum(bound < self.mark for bound in itl_bounds) if self.mark > 0 else -1
            self.tenancy = self.gaps[len(itl_bounds) + 4]
            self.bound_count = len(itl_bounds)
            for i, bound in enumerate(itl_bounds):
                self.bounds[i] = bound

    def count_as(self, uint64_t series, double ttft_s, double tpot_s, double e2el_s):
        """Where requests are counted, and the service levels that they are to keep, 0 = none."""
        self.series = series
        self.slo[0], self.slo[1], self.slo[2] = ttft_s, tpot_s, e2el_s

    cdef bint kept(self, const double* times, bint stream) noexcept:
        """Whether a complete answer kept them. One that is no stream has to keep its end only; a TPOT is kept
        by a stream that has none."""
        if stream and self.slo[0] and not 0 <= times[0] <= self.slo[0]:
            return False
        if stream and self.slo[1] and times[1] > self.slo[1]:
            return False
        return not self.slo[2] or 0 <= times[2] <= self.slo[2]
