# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True
"""The relay: client connections, engine connections and the bytes between them, on the event loop.

Once the head of a reply has been read no Python code runs for its bytes: a `Leg` copies them from the
engine's socket to the client's transport, watches both sides and meters the event stream. Invariants:
the client is always at a framing boundary after a write; a connection serves one exchange at a time, in
the order of its requests; every exchange ends in exactly one `leg_done` or one reply.

The parts share one compiled module so that calls between them are C calls:
http1 (heads, chunk framing), clock (deadlines), wire (writing), meter (event streams), edit (replies that change),
request, sink, reader and client (connections from clients), asgi (the Starlette lane), plan (what a location compiles to),
upstream (connections to engines), reply (a reply on its way), leg (one exchange),
lookup (maps and added header lines), slots (a context as the record reads it), logbuffer and logline (the
access log), tally (counting).
"""

import asyncio
import contextvars
import socket as _socket
import time as _time
from urllib.parse import unquote_to_bytes as _unquote_to_bytes

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.errno cimport EAGAIN, EMFILE, ENFILE, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove
from libc.stdio cimport snprintf

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)
    void* PyUnicode_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)

cdef extern from "string.h" nogil:
    void* memmem(const void*, size_t, const void*, size_t)
    void* memrchr(const void*, int, size_t)

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*)
    int CLOCK_MONOTONIC
    int CLOCK_REALTIME

__version__ = "0.1.0"

include "http1.pxi"
include "clock.pxi"
include "wire.pxi"
include "meter.pxi"
include "request.pxi"
include "sink.pxi"
include "reader.pxi"
include "client.pxi"
include "asgi.pxi"
include "edit.pxi"
include "plan.pxi"
include "upstream.pxi"
include "reply_head.pxi"
include "reply.pxi"
include "leg.pxi"
include "lookup.pxi"
include "slots.pxi"
include "logbuffer.pxi"
include "logline.pxi"
include "tally.pxi"
