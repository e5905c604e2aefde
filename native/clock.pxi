# Time and deadlines. One sweep every TICK_S looks at everything that has a deadline: no timer per request,
# none per read. A deadline is therefore met up to TICK_S late.

TICK_S = 0.05


cdef inline double now_s() noexcept nogil:
    """Monotonic seconds, the clock of time.monotonic()."""
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + t.tv_nsec * 1e-9


cdef inline double wall_s() noexcept nogil:
    """Unix seconds."""
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return t.tv_sec + t.tv_nsec * 1e-9


cdef class Timed:
    """A thing with a deadline, a link of the sweep's ring. `deadline` 0 = none."""
    cdef Timed _prev
    cdef Timed _next
    cdef double deadline

    cdef void expired(self, double now):
        pass

    cdef void watch(self):
        """Puts it into the sweep, once."""
        if self._next is None:
            self._prev = _ring._prev
            self._next = _ring
            _ring._prev._next = self
            _ring._prev = self
            if not _sweep.running or _sweep.loop.is_closed():
                _sweep.begin()

    cdef void unwatch(self):
        if self._next is not None:
            self._prev._next = self._next
            self._next._prev = self._prev
            self._prev = None
            self._next = None
        self.deadline = 0


cdef Timed _ring = Timed()
_ring._prev = _ring
_ring._next = _ring


cdef class _Sweep:
    cdef bint running
    cdef object loop

    cdef begin(self):
        self.running = True
        self.loop = asyncio.get_running_loop()
        self.loop.call_later(TICK_S, self.tick)

    def tick(self):
        cdef double now = now_s()
        cdef Timed at = _ring._next
        cdef Timed nxt
        cdef list due = None
        while at is not _ring:
            nxt = at._next
            if at.deadline != 0 and at.deadline <= now:
                # Collected first: what runs now may take any link out of the ring.
                if due is None:
                    due = []
                due.append(at)
            at = nxt
        if due is not None:
            for at in due:
                if at.deadline != 0 and at.deadline <= now:
                    at.expired(now)
        if _ring._next is _ring:
            self.running = False
            self.loop = None
        else:
            self.loop.call_later(TICK_S, self.tick)


cdef _Sweep _sweep = _Sweep()

cdef double _date_until = 0
cdef bytes _date_line = b""


cdef bytes date_line():
    """The `date:` header, made once a second."""
    global _date_until, _date_line
    cdef double now = now_s()
    if now >= _date_until:
        _date_line = _time.strftime("date: %a, %d %b %Y %H:%M:%S GMT\r\n", _time.gmtime()).encode()
        _date_until = now + 1.0 - (_time.time() % 1.0)
    return _date_line
