# Counting requests that have ended as most do. It reads them as the access line does, and leaves all others
# to the function that knows every case, which it is tested against.

cdef enum:
    SUFFIXES_MAX = 16


@cython.final
cdef class Tally:
    """Counts a request that is plain: one leg's complete answer below 400, nothing of the gateway's own, no
    wishes, nothing taken out of it, and every service level kept. `record`: as `Stats.record`. `paths`: ends of paths whose answers
    count as good. The rest are places in the closed sets: what complete, completed and good are there, and
    lanes by name."""
    cdef object record
    cdef list paths
    cdef str complete
    cdef object outcome
    cdef str completed
    cdef object end
    cdef str good
    cdef object word
    cdef dict lanes

    def __init__(self, record, *, paths, complete, completed, good, lanes):
        if len(paths) > SUFFIXES_MAX:
            raise ValueError(f"at most {SUFFIXES_MAX} ends of paths, got {len(paths)}")
        self.record = record
        self.paths = list(paths)
        self.complete, self.outcome = complete
        self.completed, self.end = completed
        self.good, self.word = good
        self.lanes = dict(lanes)

    cdef bint _generates(self, bytes path) except -1:
        cdef bytes suffix
        cdef Py_ssize_t n
        for suffix in self.paths:
            n = PyBytes_GET_SIZE(suffix)
            if PyBytes_GET_SIZE(path) >= n and memcmp(
                    PyBytes_AS_STRING(path) + PyBytes_GET_SIZE(path) - n, PyBytes_AS_STRING(suffix), n) == 0:
                return True
        return False

    def plain(self, ctx):
        """Counts the request, and writes `end` and `word` of it. False: it is not plain, and nothing is done."""
        cdef Request request
        cdef Leg leg
        cdef ReplyPlan plan
        cdef Meter* m
        cdef double times[TIMES]
        cdef int status
        cdef long long made, chunks, length
        cdef bint counts
        if not has_slots(ctx) or slot(ctx, C_LEG) is None:
            return False
        request = <Request>slot(ctx, C_REQUEST)
        leg = <Leg>slot(ctx, C_LEG)
        plan = leg.plan
        status = slot(ctx, C_STATUS)
        if (leg.error is not None or not leg.relayed or plan.series == 0 or not 0 < status < 400
                or slot(ctx, C_ERROR) is not None or slot(ctx, C_TURNED) is not False or slot(ctx, C_POLICY)
                or slot(ctx, C_STRIPPED)
                or slot(ctx, C_TERMINATION) != self.complete or request.method != b"POST"
                or slot(ctx, C_SENT_TARGET) is not request.target):
            return False
        leg.times_into(times, request.t0, <double>slot(ctx, C_END) - request.t_head, True)
        counts = self._generates(slot(ctx, C_PATH))
        if counts and not plan.kept(times, leg.sse):
            return False
        m = &leg.meter
        made = m.completion_tokens
        chunks = m.payloads if leg.sse else -1
        length = PyBytes_GET_SIZE(request.body) if request.body is not None else max(request.content_length, 0)
        put_slot(ctx, C_ENDED, self.completed)
        if counts:
            put_slot(ctx, C_WORD, self.good)
        self.record(
            plan.series, status, self.outcome, self.lanes[slot(ctx, C_LANE)], self.end,
            self.word if counts else 0, 0,
            (times[0], times[1], times[2], times[3], times[4], times[5], times[6], times[7]),
            (m.prompt_tokens, made, m.cached_tokens, chunks, request.head_bytes + length, slot(ctx, C_SENT),
             -1 if not counts else chunks if made < 0 else made, 1 if made < 0 < chunks else 0),
        )
        return True
