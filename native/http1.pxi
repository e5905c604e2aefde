# HTTP/1.1 heads and chunk framing, strict: what two readers could understand differently is refused.
# Sources: RFC 9110, RFC 9112. No bare CR or LF, no folded headers, no space before the colon.

cdef struct Field:
    uint32_t name
    uint32_t name_len
    uint32_t value
    uint32_t value_len

# 1 = token character (RFC 9110 §5.6.2), 2 = may stand in a field value, 4 = may stand in a request target
cdef uint8_t CLASS[256]

cdef void _fill_classes():
    cdef int c
    for c in range(256):
        CLASS[c] = 0
        if c == 9 or c >= 32 and c != 127:
            CLASS[c] |= 2
        if 33 <= c <= 126:
            CLASS[c] |= 4
    for c in b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
        CLASS[c] |= 1

_fill_classes()

cdef Py_ssize_t INCOMPLETE = -1
cdef Py_ssize_t MALFORMED = -2


cdef Py_ssize_t head_end(const char* p, Py_ssize_t n, Py_ssize_t start) noexcept nogil:
    """Offset after the blank line that ends a head, INCOMPLETE, or MALFORMED for a line feed without CR."""
    cdef const char* at
    cdef Py_ssize_t i = start
    while i < n:
        at = <const char*>memchr(p + i, 10, n - i)
        if at == NULL:
            return INCOMPLETE
        i = at - p
        if i == 0 or p[i - 1] != 13:
            return MALFORMED
        if i >= 3 and p[i - 2] == 10 or i == 1:
            return i + 1
        i += 1
    return INCOMPLETE


cdef inline bint same(const char* p, Py_ssize_t n, const char* lower, Py_ssize_t m) noexcept nogil:
    """Case-insensitive equality with a lower-case word."""
    cdef Py_ssize_t i
    cdef uint8_t c
    if n != m:
        return False
    for i in range(n):
        c = p[i]
        if 65 <= c <= 90:
            c += 32
        if c != <uint8_t>lower[i]:
            return False
    return True


cdef Py_ssize_t parse_fields(char* p, Py_ssize_t start, Py_ssize_t end, Field* out, Py_ssize_t limit) noexcept nogil:
    """Reads header lines from `start` to the blank line at `end`; names are lower-cased in place.

    Returns their number, or -1 malformed, -2 more than `limit`."""
    cdef Py_ssize_t i = start, n = 0, name, value, stop
    cdef uint8_t c
    cdef const char* at
    while i < end:
        if p[i] == 13:
            return n if i + 2 == end else -1
        if n == limit:
            return -2
        name = i
        while True:
            c = <uint8_t>p[i]
            if not CLASS[c] & 1:
                break
            if 65 <= c <= 90:
                p[i] = c + 32
            i += 1
        if c != 58 or i == name:
            return -1
        out[n].name = <uint32_t>name
        out[n].name_len = <uint32_t>(i - name)
        i += 1
        while p[i] == 32 or p[i] == 9:
            i += 1
        value = i
        while CLASS[<uint8_t>p[i]] & 2:
            i += 1
        if p[i] != 13 or p[i + 1] != 10:
            return -1
        stop = i
        while stop > value and (p[stop - 1] == 32 or p[stop - 1] == 9):
            stop -= 1
        out[n].value = <uint32_t>value
        out[n].value_len = <uint32_t>(stop - value)
        n += 1
        i += 2
    return -1


cdef long long parse_length(const char* p, Py_ssize_t n) noexcept nogil:
    """A Content-Length value: digits only, at most 18 of them; -1 otherwise."""
    cdef long long v = 0
    cdef Py_ssize_t i
    if n == 0 or n > 18:
        return -1
    for i in range(n):
        if p[i] < 48 or p[i] > 57:
            return -1
        v = v * 10 + (p[i] - 48)
    return v


cdef bint has_token(const char* p, Py_ssize_t n, const char* lower, Py_ssize_t m) noexcept nogil:
    """Is `lower` one of the comma-separated tokens?"""
    cdef Py_ssize_t i = 0, start, stop
    while i < n:
        while i < n and (p[i] == 32 or p[i] == 9 or p[i] == 44):
            i += 1
        start = i
        while i < n and p[i] != 44:
            i += 1
        stop = i
        while stop > start and (p[stop - 1] == 32 or p[stop - 1] == 9):
            stop -= 1
        if same(p + start, stop - start, lower, m):
            return True
    return False


cdef bint named_hop(char* raw, Field* fields, Py_ssize_t count, Field f) noexcept nogil:
    """Does any Connection header name this field? Then it is hop-by-hop too."""
    cdef Py_ssize_t i
    for i in range(count):
        if fields[i].name_len == 10 and memcmp(raw + fields[i].name, b"connection", 10) == 0:
            if has_token(raw + fields[i].value, fields[i].value_len, raw + f.name, f.name_len):
                return True
    return False


cdef Py_ssize_t copy_fields(char* raw, Field* fields, Py_ssize_t count, Names drop, char* out) noexcept:
    """Writes the header lines that go on, `name: value` CR LF, to `out`; returns their length."""
    cdef Py_ssize_t i, at = 0
    cdef bint has_named = False
    cdef Field f
    for i in range(count):
        if fields[i].name_len == 10 and memcmp(raw + fields[i].name, b"connection", 10) == 0:
            # The usual values name nothing.
            has_named = has_named or not (
                same(raw + fields[i].value, fields[i].value_len, b"keep-alive", 10)
                or same(raw + fields[i].value, fields[i].value_len, b"close", 5))
    for i in range(count):
        f = fields[i]
        if drop.has(raw + f.name, f.name_len) or has_named and named_hop(raw, fields, count, f):
            continue
        at = put(out, at, raw + f.name, f.name_len)
        at = put(out, at, b": ", 2)
        at = put(out, at, raw + f.value, f.value_len)
        at = put(out, at, b"\r\n", 2)
    return at


cdef inline Py_ssize_t put(char* out, Py_ssize_t at, const char* p, Py_ssize_t n) noexcept nogil:
    memcpy(out + at, p, n)
    return at + n


# ---- chunk framing -------------------------------------------------------------------------------------

cdef enum:
    C_SIZE = 0       # reading the size line; `digits` says whether it has begun
    C_EXT = 1
    C_SIZE_LF = 2
    C_DATA = 3
    C_DATA_CR = 4
    C_DATA_LF = 5
    C_TRAILER = 6    # at the beginning of a trailer line
    C_TRAILER_LINE = 7
    C_TRAILER_LF = 8
    C_END_LF = 9
    C_BLANK = 10     # blanks after the size: only an extension or the line's end may follow
    C_DONE = 11
    C_BAD = 12

cdef enum:
    CHUNK_LINE_MAX = 4096      # extension bytes of one chunk
    TRAILER_MAX = 16384        # bytes of all trailers together

cdef struct Chunked:
    int state
    int digits
    bint odd                   # an extension was seen: the bytes cannot be passed on as they are
    long long left
    Py_ssize_t line            # bytes of the current extension, or of all trailers
    Py_ssize_t last            # where in the buffer just fed the last-chunk line began; -1 = not there


cdef inline void chunked_reset(Chunked* c) noexcept nogil:
    c.state = C_SIZE
    c.digits = 0
    c.odd = False
    c.left = 0
    c.line = 0
    c.last = -1


cdef inline bint chunked_boundary(Chunked* c) noexcept nogil:
    return c.state == C_SIZE and c.digits == 0


cdef Py_ssize_t chunked_feed(Chunked* c, const char* p, Py_ssize_t n, char* out, Py_ssize_t* used) noexcept nogil:
    """Decodes `n` bytes; payload goes to `out` (which holds `n`), its length is returned.

    `used` = bytes consumed (less than n only when the body ended). `c.state` tells C_DONE or C_BAD."""
    cdef Py_ssize_t i = 0, got = 0, take
    cdef uint8_t ch
    cdef Py_ssize_t line_start = 0 if c.state == C_SIZE and c.digits == 0 else -1
    c.last = -1
    while i < n:
        ch = <uint8_t>p[i]
        if c.state == C_DATA:
            take = n - i
            if take > c.left:
                take = c.left
            memcpy(out + got, p + i, take)
            got += take
            i += take
            c.left -= take
            if c.left == 0:
                c.state = C_DATA_CR
            continue
        i += 1
        if c.state == C_SIZE:
            if c.digits == 0:
                line_start = i - 1
            if 48 <= ch <= 57:
                ch -= 48
            elif 97 <= ch <= 102:
                ch -= 87
            elif 65 <= ch <= 70:
                ch -= 55
            elif ch == 13 and c.digits > 0:
                c.state = C_SIZE_LF
                continue
            elif (ch == 59 or ch == 32 or ch == 9) and c.digits > 0:
                c.state = C_EXT if ch == 59 else C_BLANK
                c.odd = True
                c.line = 0
                continue
            else:
                c.state = C_BAD
                break
            if c.digits == 15:
                c.state = C_BAD
                break
            c.left = c.left * 16 + ch
            c.digits += 1
        elif c.state == C_BLANK:
            c.line += 1
            if ch == 59:
                c.state = C_EXT
            elif ch == 13:
                c.state = C_SIZE_LF
            elif ch != 32 and ch != 9 or c.line > CHUNK_LINE_MAX:
                c.state = C_BAD
                break
        elif c.state == C_EXT:
            c.line += 1
            if ch == 13:
                c.state = C_SIZE_LF
            elif not CLASS[ch] & 2 or c.line > CHUNK_LINE_MAX:
                c.state = C_BAD
                break
        elif c.state == C_SIZE_LF:
            if ch != 10:
                c.state = C_BAD
                break
            c.digits = 0
            if c.left:
                c.state = C_DATA
            else:
                c.state = C_TRAILER
                c.last = line_start
                c.line = 0
        elif c.state == C_DATA_CR:
            if ch != 13:
                c.state = C_BAD
                break
            c.state = C_DATA_LF
        elif c.state == C_DATA_LF:
            if ch != 10:
                c.state = C_BAD
                break
            c.state = C_SIZE
        elif c.state == C_TRAILER:
            if ch == 13:
                c.state = C_END_LF
            elif CLASS[ch] & 1:
                c.state = C_TRAILER_LINE
            else:
                c.state = C_BAD
                break
        elif c.state == C_TRAILER_LINE:
            c.line += 1
            if ch == 13:
                c.state = C_TRAILER_LF
            elif not CLASS[ch] & 2 or c.line > TRAILER_MAX:
                c.state = C_BAD
                break
        elif c.state == C_TRAILER_LF:
            if ch != 10:
                c.state = C_BAD
                break
            c.state = C_TRAILER
        elif c.state == C_END_LF:
            c.state = C_DONE if ch == 10 else C_BAD
            break
        else:
            c.state = C_BAD
            break
    used[0] = i
    return got
