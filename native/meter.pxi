# The meter of event streams: when generated payload came, how much, and what the engine says of usage.
#
# It looks for keys by their colon. Inside a JSON string every quote is escaped, so `"content":` with a
# plain quote before the colon is always a key, whatever text a model produces. Payload = a non-empty
# content, reasoning, text, tool-call arguments or delta string; role-only, empty, usage and [DONE] are not.

cdef enum:
    CARRY_MAX = 65536     # an event longer than this is judged by its beginning and its last CARRY_TAIL bytes
    CARRY_TAIL = 4096
    ID_MAX = 120

cdef struct Meter:
    double first          # monotonic s of the first payload, 0 = none yet
    double last
    double answer         # of these, the first that is not reasoning, 0 = none yet
    double choice         # of the first event with a choice, payload or not; 0 = none yet, -1 = not a stream of choices
    double choice_last    # of the last event with a choice and no payload, 0 = none yet
    double gap_max        # s
    uint64_t payloads     # events that carried payload
    uint64_t events
    bint done_seen
    bint counted          # the event in `carry` has been counted as payload
    long long prompt_tokens
    long long completion_tokens
    long long cached_tokens
    long long created_tokens
    char reply_id[ID_MAX]
    int id_len            # 0 = not looked for yet, -1 = not there
    char* carry           # an event whose end has not come yet
    Py_ssize_t carry_len
    Py_ssize_t carry_cap
    uint64_t* gaps        # histogram of gaps between payloads, or NULL
    double* bounds
    int bound_count
    double mark           # one more bound, 0 = none; it splits the bucket `mark_at`
    int mark_at
    uint64_t tenancy      # what stands behind the histogram while it is still ours


cdef enum:
    TIMES = 8             # of `Stats.TIMES`


cdef void stream_times_into(double* out, double arrived, double first, double last, double answer, double choice,
                            double choice_last, long long tokens, double duration, bint complete) noexcept nogil:
    """As `stream_times`."""
    cdef int i
    for i in range(TIMES):
        out[i] = -1
    out[3] = duration
    if first > 0:
        out[0] = first - arrived
        out[1] = (last - first) / (tokens - 1) if tokens > 1 else -1
        out[2] = last - arrived if complete else -1
        out[4] = answer - arrived if answer > 0 else -1
        if choice > 0:
            choice_last = max(last, choice_last)
            out[5] = choice - arrived
            out[6] = (choice_last - choice) / (tokens - 1) if tokens > 1 else -1
            out[7] = choice_last - arrived if complete else -1


def stream_times(double arrived, double first, double last, double answer, double choice, double choice_last,
                 long long tokens, double duration, bint complete):
    """The times of a stream, s, in the order of `Stats.TIMES`; -1 = does not apply. Moments as a Meter has them.
    `complete`: it came to its end; without one it has no end to end latency. Definitions: docs/goodput.md."""
    cdef double t[TIMES]
    stream_times_into(t, arrived, first, last, answer, choice, choice_last, tokens, duration, complete)
    return t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]


cdef void meter_reset(Meter* m) noexcept nogil:
    m.first = m.last = m.answer = m.choice = m.choice_last = m.gap_max = 0
    m.payloads = m.events = 0
    m.done_seen = m.counted = False
    m.prompt_tokens = m.completion_tokens = m.cached_tokens = m.created_tokens = -1
    m.id_len = 0
    m.carry = NULL
    m.carry_len = m.carry_cap = 0
    m.gaps = NULL
    m.bound_count = 0
    m.mark = 0
    m.mark_at = -1


cdef void meter_free(Meter* m) noexcept:
    if m.carry != NULL:
        PyMem_Free(m.carry)
        m.carry = NULL
    m.carry_len = m.carry_cap = 0


cdef inline bint key_is(const char* p, Py_ssize_t quote, const char* key, Py_ssize_t m) noexcept nogil:
    """Is the key that ends before the closing quote at `quote` this one?"""
    return quote > m and p[quote - m - 1] == 34 and memcmp(p + quote - m, key, m) == 0


cdef long long read_int(const char* p, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i = 0
    cdef long long v = 0
    while i < n and (p[i] == 32 or p[i] == 10 or p[i] == 9 or p[i] == 13):
        i += 1
    if i == n or p[i] < 48 or p[i] > 57:
        return -1
    while i < n and p[i] >= 48 and p[i] <= 57 and v < <long long>1000000 * 1000000:
        v = v * 10 + (p[i] - 48)
        i += 1
    return v


cdef void read_usage(Meter* m, const char* p, Py_ssize_t n) noexcept nogil:
    """The usage object that begins at p[0] == '{': OpenAI's and Anthropic's names."""
    cdef Py_ssize_t i = 0
    cdef int depth = 0
    cdef long long v
    while i < n:
        if p[i] == 123:
            depth += 1
        elif p[i] == 125:
            depth -= 1
            if depth == 0:
                return
        elif p[i] == 58 and i > 1 and p[i - 1] == 34:
            v = read_int(p + i + 1, n - i - 1)
            if v >= 0:
                if key_is(p, i - 1, b"prompt_tokens", 13) or key_is(p, i - 1, b"input_tokens", 12):
                    m.prompt_tokens = v
                elif key_is(p, i - 1, b"completion_tokens", 17) or key_is(p, i - 1, b"output_tokens", 13):
                    m.completion_tokens = v
                elif key_is(p, i - 1, b"cached_tokens", 13) or key_is(p, i - 1, b"cache_read_input_tokens", 23):
                    m.cached_tokens = v
                elif (key_is(p, i - 1, b"created_cache_tokens", 20) or key_is(p, i - 1, b"cache_write_tokens", 18)
                      or key_is(p, i - 1, b"cache_creation_input_tokens", 27)):
                    m.created_tokens = v
        i += 1


cdef int payload_of(Meter* m, const char* p, Py_ssize_t n) noexcept nogil:
    """What the data of one event carries: 0 no payload, 1 reasoning, 2 an answer; reads usage on the way.
    Once an answer has come, any payload will do."""
    cdef const char* at
    cdef Py_ssize_t i = 0, v
    cdef int found = 0, enough = 2 if m.answer == 0 else 1
    cdef int key
    while i < n:
        at = <const char*>memchr(p + i, 58, n - i)
        if at == NULL:
            break
        i = at - p
        if i >= 2 and p[i - 1] == 34:
            v = i + 1
            while v < n and (p[v] == 32 or p[v] == 9):
                v += 1
            if v + 1 < n:
                if p[v] == 34 and p[v + 1] != 34 and found < enough:
                    key = 0
                    if p[i - 2] == 116:  # content, reasoning_content, text
                        if key_is(p, i - 1, b"content", 7) or key_is(p, i - 1, b"text", 4):
                            key = 2
                        elif key_is(p, i - 1, b"reasoning_content", 17):
                            key = 1
                    elif p[i - 2] == 103:
                        if key_is(p, i - 1, b"reasoning", 9) or key_is(p, i - 1, b"thinking", 8):
                            key = 1
                    elif p[i - 2] == 115:
                        if key_is(p, i - 1, b"arguments", 9):
                            key = 2
                    elif p[i - 2] == 97:
                        if key_is(p, i - 1, b"delta", 5):
                            key = 2
                    elif p[i - 2] == 110:
                        if key_is(p, i - 1, b"partial_json", 12):
                            key = 2
                    if key > found:
                        found = key
                elif p[v] == 123 and p[i - 2] == 101 and key_is(p, i - 1, b"usage", 5):
                    read_usage(m, p + v, n - v)
        i += 1
    return found


cdef bint has_choice(const char* p, Py_ssize_t n) noexcept nogil:
    """Whether the data of an event has a list of choices with something in it."""
    cdef const char* at = <const char*>memmem(p, n, b'"choices":', 10)
    cdef Py_ssize_t i
    if at == NULL:
        return False
    i = at - p + 10
    while i < n and p[i] == 32:
        i += 1
    if i == n or p[i] != 91:
        return False
    i += 1
    while i < n and p[i] == 32:
        i += 1
    return i < n and p[i] != 93


cdef void count_payload(Meter* m, double now) noexcept nogil:
    cdef double gap
    cdef int lo, hi, mid
    m.payloads += 1
    if m.first == 0:
        m.first = now
    else:
        gap = now - m.last
        if gap > m.gap_max:
            m.gap_max = gap
        if m.gaps != NULL and m.gaps[m.bound_count + 4] == m.tenancy:
            lo = 0
            hi = m.bound_count
            while lo < hi:
                mid = (lo + hi) >> 1
                if gap <= m.bounds[mid]:
                    hi = mid
                else:
                    lo = mid + 1
            m.gaps[lo] += 1
            # A mark that has moved since is somebody else's.
            if lo == m.mark_at and gap <= m.mark and (<double*>(m.gaps + m.bound_count + 2))[0] == m.mark:
                m.gaps[m.bound_count + 3] += 1
            # The sum stands after the counts, as a double: one histogram, one writer.
            (<double*>(m.gaps + m.bound_count + 1))[0] += gap
    m.last = now


cdef void read_id(Meter* m, const char* p, Py_ssize_t n) noexcept nogil:
    cdef const char* at
    cdef Py_ssize_t i, length
    m.id_len = -1
    if n > 2048:
        n = 2048
    at = <const char*>memmem(p, n, b'"id":', 5)
    if at == NULL:
        return
    i = at - p + 5
    while i < n and p[i] == 32:
        i += 1
    if i >= n or p[i] != 34:
        return
    at = <const char*>memchr(p + i + 1, 34, n - i - 1)
    if at == NULL:
        return
    length = at - (p + i + 1)
    if 0 < length <= ID_MAX:
        memcpy(m.reply_id, p + i + 1, length)
        m.id_len = <int>length


cdef void meter_event(Meter* m, const char* p, Py_ssize_t n, double now, bint whole) noexcept nogil:
    """One event, or (whole = False) the beginning of one too long to keep."""
    cdef Py_ssize_t i = 0, stop, v, size = 0
    cdef const char* at
    cdef const char* data = NULL
    cdef bint delta = True, thinking = False
    cdef int payload = 0, found
    while i < n:
        at = <const char*>memchr(p + i, 10, n - i)
        stop = n if at == NULL else at - p
        v = stop
        if v > i and p[v - 1] == 13:
            v -= 1
        if v - i > 5 and memcmp(p + i, b"data:", 5) == 0:
            if m.id_len == 0:
                read_id(m, p + i + 5, v - i - 5)
            if v - i <= 12 and memmem(p + i + 5, v - i - 5, b"[DONE]", 6) != NULL:
                m.done_seen = True
            else:
                data = p + i + 5
                size = v - i - 5
                found = payload_of(m, data, size)
                if found > payload:
                    payload = found
        elif v - i > 6 and memcmp(p + i, b"event:", 6) == 0:
            # Named events (responses, messages) repeat the whole text at their end: only deltas are new.
            delta = v - i >= 11 and memcmp(p + v - 5, b"delta", 5) == 0
            if m.answer == 0:
                thinking = memmem(p + i, v - i, b"reasoning", 9) != NULL
        elif not whole and i > 0:
            break
        i = stop + 1
    if payload and delta:
        if not m.counted:
            count_payload(m, now)
            m.counted = True
        if m.answer == 0 and payload == 2 and not thinking:
            m.answer = now
        if m.choice == 0:
            m.choice = now if has_choice(data, size) else -1
    elif whole and data != NULL and not m.counted and m.choice >= 0 and has_choice(data, size):
        if m.choice == 0:
            m.choice = now
        m.choice_last = now
    if whole:
        m.events += 1
        m.counted = False


cdef Py_ssize_t event_end(const char* p, Py_ssize_t n, Py_ssize_t start) noexcept nogil:
    """Offset after the blank line that ends an event, or -1."""
    cdef const char* at
    cdef Py_ssize_t i = start
    while i < n:
        at = <const char*>memchr(p + i, 10, n - i)
        if at == NULL:
            return -1
        i = at - p + 1
        if i < n and p[i] == 10:
            return i + 1
        if i + 1 < n and p[i] == 13 and p[i + 1] == 10:
            return i + 2
    return -1


cdef int carry_add(Meter* m, const char* p, Py_ssize_t n) except -1:
    cdef Py_ssize_t want = m.carry_len + n
    cdef char* grown
    if want > m.carry_cap:
        want = want + 512
        grown = <char*>PyMem_Realloc(m.carry, want)
        if grown == NULL:
            raise MemoryError()
        m.carry = grown
        m.carry_cap = want
    memcpy(m.carry + m.carry_len, p, n)
    m.carry_len += n
    return 0


cdef int meter_feed(Meter* m, const char* p, Py_ssize_t n, double now) except -1:
    """Feeds decoded payload bytes of an event stream, split anywhere."""
    cdef Py_ssize_t i = 0, end, from_
    while True:
        if m.carry_len:
            # The end of the kept event may lie across the edge: look from three bytes before it.
            from_ = m.carry_len - 3 if m.carry_len > 3 else 0
            end = n - i if n - i < CARRY_MAX else CARRY_MAX
            carry_add(m, p + i, end)
            i += end
            end = event_end(m.carry, m.carry_len, from_)
            if end >= 0:
                meter_event(m, m.carry, end, now, True)
                i -= m.carry_len - end
                m.carry_len = 0
                if m.carry_cap > 1024:
                    meter_free(m)
            elif m.carry_len > CARRY_MAX:
                meter_event(m, m.carry, m.carry_len, now, False)
                memmove(m.carry, m.carry + m.carry_len - CARRY_TAIL, CARRY_TAIL)
                m.carry_len = CARRY_TAIL
            if i >= n:
                return 0
            continue
        end = event_end(p, n, i)
        if end < 0:
            if i < n:
                # Everything left belongs to an event that is not complete.
                if n - i > CARRY_MAX:
                    meter_event(m, p + i, n - i, now, False)
                    i = n - CARRY_TAIL
                carry_add(m, p + i, n - i)
            return 0
        meter_event(m, p + i, end - i, now, True)
        i = end
        if i >= n:
            return 0


cdef void meter_json(Meter* m, const char* p, Py_ssize_t n) noexcept nogil:
    """Usage out of the last bytes of a JSON reply: the last `"usage":` that holds an object."""
    cdef Py_ssize_t stop = n, i
    cdef const char* at
    while stop > 8:
        at = <const char*>memrchr(p, 101, stop)   # the e of "usage"
        if at == NULL:
            return
        i = at - p
        stop = i
        if i + 3 < n and p[i + 1] == 34 and key_is(p, i + 1, b"usage", 5) and p[i + 2] == 58:
            i += 3
            while i < n and p[i] == 32:
                i += 1
            if i < n and p[i] == 123:
                read_usage(m, p + i, n - i)
                return
