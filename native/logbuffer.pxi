# Lines that wait to be written, in one growing buffer: no object is made of a line.

cdef enum:
    ESCAPE_DEFAULT = 0     # nginx: quotes, backslashes and what is not printable ASCII as \xXX; absent = "-"
    ESCAPE_JSON = 1
    ESCAPE_NONE = 2        # as it is, but for what would end the line

cdef const char* _HEX = "0123456789ABCDEF"
cdef const char* _LOWER_HEX = "0123456789abcdef"


@cython.final
cdef class LogBuffer:
    """Lines that wait to be written. `size` bytes of them; take() empties it. Its owner wants to hear of a
    line (`put` says so) once `limit` bytes are there, and of the first line unless `known`."""
    cdef char* data
    cdef Py_ssize_t cap
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t lines
    cdef public Py_ssize_t limit
    cdef public bint known

    def __init__(self, Py_ssize_t limit=65536):
        self.limit = limit

    def __dealloc__(self):
        PyMem_Free(self.data)

    def take(self):
        """The bytes collected so far."""
        out = PyBytes_FromStringAndSize(self.data, self.size)
        self.size = self.lines = 0
        self.known = False
        if self.cap > 2 * self.limit + 65536:     # one line was long, or the limit is a new one
            PyMem_Free(self.data)
            self.data = NULL
            self.cap = 0
        return out

    def put(self, bytes line):
        """One line, given without its end. True: its owner wants to hear of it."""
        self.add(PyBytes_AS_STRING(line), PyBytes_GET_SIZE(line))
        return self.end_line()

    cdef inline bint end_line(self) except -1:
        self.add(b"\n", 1)
        self.lines += 1
        return not self.known or self.size >= self.limit

    cdef int grow(self, Py_ssize_t n) except -1:
        """Room for `n` more bytes."""
        cdef Py_ssize_t want = max(self.cap * 2, self.size + n, 16384)
        cdef char* grown = <char*>PyMem_Realloc(self.data, want)
        if grown == NULL:
            raise MemoryError()
        self.data = grown
        self.cap = want
        return 0

    cdef inline int add(self, const char* p, Py_ssize_t n) except -1:
        if self.size + n > self.cap:
            self.grow(n)
        memcpy(self.data + self.size, p, n)
        self.size += n
        return 0

    cdef int add_number(self, long long v) except -1:
        cdef char digits[24]
        cdef int at = 24
        cdef bint minus = v < 0
        if minus:
            v = -v
        while True:
            at -= 1
            digits[at] = <char>(48 + v % 10)
            v //= 10
            if v == 0:
                break
        if minus:
            at -= 1
            digits[at] = 45
        return self.add(digits + at, 24 - at)

    cdef int add_fixed(self, double v, int decimals) except -1:
        """`v` with 3 or 6 decimals, rounded to nearest; what is below zero is written as zero."""
        cdef long long unit = 1000 if decimals == 3 else 1000000
        cdef long long n
        cdef char digits[8]
        cdef int at
        if not v > 0:
            v = 0
        n = <long long>(v * unit + 0.5)
        self.add_number(n // unit)
        n %= unit
        digits[0] = 46
        for at in range(decimals, 0, -1):
            digits[at] = <char>(48 + n % 10)
            n //= 10
        return self.add(digits, decimals + 1)

    cdef int add_escaped(self, const char* p, Py_ssize_t n, int escape) except -1:
        cdef Py_ssize_t i, at = 0
        cdef uint8_t c
        cdef uint8_t odd = 0
        cdef char* out
        for i in range(n):
            c = <uint8_t>p[i]
            odd |= (c < 32) | (c > 126) | (c == 34) | (c == 92)
        if not odd:
            return self.add(p, n)
        if self.size + 6 * n > self.cap:
            self.grow(6 * n)
        out = self.data + self.size
        for i in range(n):
            c = <uint8_t>p[i]
            if escape == ESCAPE_NONE:
                out[at] = 32 if c == 10 or c == 13 else c
                at += 1
            elif c == 34 or c == 92 or c < 32 or escape == ESCAPE_DEFAULT and c > 126:
                if escape == ESCAPE_DEFAULT:
                    out[at] = 92; out[at + 1] = 120; out[at + 2] = _HEX[c >> 4]; out[at + 3] = _HEX[c & 15]
                    at += 4
                elif c >= 32:
                    out[at] = 92; out[at + 1] = c
                    at += 2
                else:
                    memcpy(out + at, b"\\u00", 4)
                    out[at + 4] = _LOWER_HEX[c >> 4]; out[at + 5] = _LOWER_HEX[c & 15]
                    at += 6
            else:
                out[at] = c
                at += 1
        self.size += at
        return 0
