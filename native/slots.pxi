# A request's context as the record reads it: its slots at their offsets, which costs a load each where the
# lookup of a name costs a search. Contexts of another class (tests make some) are not read this way.

cdef extern from *:
    """
    #include <structmember.h>
    /* Where the slot of a descriptor lies in its objects; 0 = it is no slot. */
    static Py_ssize_t kv_slot_offset(PyObject* d) {
        if (!Py_IS_TYPE(d, &PyMemberDescr_Type)) return 0;
        PyMemberDef* member = ((PyMemberDescrObject*)d)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : 0;
    }
    #define KV_SLOT(o, at) (*(PyObject**)((char*)(o) + (at)))
    #define kv_put_slot(o, at, value) (KV_SLOT(o, at) = (value))
    """
    Py_ssize_t kv_slot_offset(object)
    PyObject* KV_SLOT(object, Py_ssize_t)
    void kv_put_slot(object, Py_ssize_t, object)

_SLOTS = (
    "client", "request", "leg", "engine", "group", "error", "attempts", "scan",
    "request_id", "lane", "model", "termination", "status", "bytes_sent", "t_end",
    "turned", "policy", "sent", "path", "end", "word", "stripped",
)
cdef enum:
    C_CLIENT, C_REQUEST, C_LEG, C_ENGINE, C_GROUP, C_ERROR, C_ATTEMPTS, C_SCAN, \
    C_ID, C_LANE, C_MODEL, C_TERMINATION, C_STATUS, C_SENT, C_END, \
    C_TURNED, C_POLICY, C_SENT_TARGET, C_PATH, C_ENDED, C_WORD, C_STRIPPED, C_COUNT

cdef Py_ssize_t _offsets[C_COUNT]
cdef object _context_class = None


cdef bint has_slots(ctx):
    """Whether `slot` may be used on it, and the relay's objects are in the slots that they belong in."""
    if type(ctx) is not _context_class and not _learn(type(ctx)):
        return False
    leg = slot(ctx, C_LEG)
    return (type(slot(ctx, C_REQUEST)) is Request and isinstance(slot(ctx, C_CLIENT), Sink)
            and (leg is None or type(leg) is Leg))


cdef bint _learn(cls):
    global _context_class
    cdef Py_ssize_t found[C_COUNT]
    cdef int i
    for i in range(C_COUNT):
        found[i] = kv_slot_offset(getattr(cls, _SLOTS[i], None))
        if found[i] == 0:
            return False
    for i in range(C_COUNT):
        _offsets[i] = found[i]
    _context_class = cls
    return True


cdef inline object slot(ctx, int which):
    """None where nothing was written yet."""
    cdef PyObject* found = KV_SLOT(ctx, _offsets[which])
    return None if found == NULL else <object>found


cdef inline void put_slot(ctx, int which, value):
    cdef PyObject* before = KV_SLOT(ctx, _offsets[which])
    Py_INCREF(value)
    kv_put_slot(ctx, _offsets[which], value)
    Py_XDECREF(before)
