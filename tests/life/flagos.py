"""The C functions of libflagos_comm.so as the scenarios in this folder call them, with nothing in between, so
that every result code can be looked at. `FLAGOSCOMM_TEST_LIBRARY` names the library."""

import ctypes
import os

lib = ctypes.CDLL(os.environ["FLAGOSCOMM_TEST_LIBRARY"])

SUCCESS, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE, IN_PROGRESS, NOT_SUPPORTED = 0, 2, 3, 4, 5, 6, 7, 9
TIMEOUT, ABORTED = 100, 101
INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16 = range(10)
SUM, PROD, MAX, MIN, AVG = range(5)

_p, _n, _i = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
UNDEFINED = -(1 << 31)


class Id(ctypes.Structure):
    """flagosUniqueId"""
    _fields_ = [("bytes", ctypes.c_ubyte * 256)]


class Config(ctypes.Structure):
    """flagosConfig_t, everything undefined but what is given."""
    _fields_ = [("size", _n), ("magic", ctypes.c_uint32), ("version", ctypes.c_uint32), ("blocking", _i),
                ("vendorNonblocking", _i), ("initTimeoutMs", ctypes.c_int64), ("collectiveTimeoutMs", ctypes.c_int64),
                ("destroyTimeoutMs", ctypes.c_int64), ("name", ctypes.c_char_p), ("description", ctypes.c_char_p),
                ("tiers", ctypes.c_char_p), ("netName", ctypes.c_char_p), ("device", _i), ("knobs", _i * 15)]

    def __init__(self, **given):
        super().__init__(size=ctypes.sizeof(Config), magic=4054189504, version=100, blocking=UNDEFINED,
                         vendorNonblocking=UNDEFINED, initTimeoutMs=UNDEFINED, collectiveTimeoutMs=UNDEFINED,
                         destroyTimeoutMs=UNDEFINED, device=UNDEFINED, knobs=(_i * 15)(*[UNDEFINED] * 15))
        for name, value in given.items():
            setattr(self, name, value)


for _name, _arguments in {
    "GetVersion": [_p], "GetUniqueId": [_p], "CommInitRank": [_p, _i, _p, _i],
    "CommInitRankConfig": [_p, _i, _p, _i, _p], "CommInitAll": [_p, _i, _p], "CommDestroy": [_p], "CommAbort": [_p],
    "CommFinalize": [_p], "CommCount": [_p, _p], "CommUserRank": [_p, _p], "CommGetAsyncError": [_p, _p],
    "CommSplit": [_p, _i, _i, _p, _p], "CommShrink": [_p, _p, _i, _p, _p, _i], "CommRevoke": [_p, _i],
    "CommWindowRegister": [_p, _p, _n, _p, _i], "MemAlloc": [_p, _n], "MemFree": [_p],
    "AllReduce": [_p, _p, _n, _i, _i, _p, _p], "Broadcast": [_p, _p, _n, _i, _i, _p, _p],
    "Send": [_p, _n, _i, _i, _p, _p], "Recv": [_p, _n, _i, _i, _p, _p], "Barrier": [_p, _p],
    "Reduce": [_p, _p, _n, _i, _i, _i, _p, _p],
    "GroupStart": [], "GroupEnd": [], "StreamCreate": [_p], "StreamDestroy": [_p], "StreamSynchronize": [_p],
}.items():
    _function = getattr(lib, "flagos" + _name)
    _function.argtypes = _arguments
    _function.restype = _i
lib.flagosGetLastError.argtypes = [_p]
lib.flagosGetLastError.restype = ctypes.c_char_p
lib.flagosGetErrorString.argtypes = [_i]
lib.flagosGetErrorString.restype = ctypes.c_char_p


def text(comm=None):
    """The words of the last error."""
    return lib.flagosGetLastError(comm).decode()


class Failed(Exception):
    """A call that was to succeed did not."""

    def __init__(self, code, words):
        super().__init__(f"code {code}: {words}")
        self.code = code
        self.words = words


def ok(code, comm=None):
    """The call must have succeeded."""
    if code != SUCCESS:
        raise Failed(code, text(comm))


def unique_id():
    """The 256 bytes of a new id, served by this process."""
    value = Id()
    ok(lib.flagosGetUniqueId(ctypes.byref(value)))
    return bytes(value.bytes)


def init(nranks, unique, rank, **config):
    """Joins a communicator; the handle."""
    comm = _p(1)
    value = Id.from_buffer_copy(unique)
    if config:
        code = lib.flagosCommInitRankConfig(ctypes.byref(comm), nranks, ctypes.byref(value), rank,
                                            ctypes.byref(Config(**config)))
        if code == IN_PROGRESS:
            code = SUCCESS
    else:
        code = lib.flagosCommInitRank(ctypes.byref(comm), nranks, ctypes.byref(value), rank)
    if code != SUCCESS:
        assert comm.value is None, "the handle is NULL after a failure"
    ok(code)
    return comm


def all_reduce(comm, values=(1.0,), op=SUM, stream=None):
    """The result of an AllReduce of a few floats."""
    buffer = (ctypes.c_float * len(values))(*values)
    ok(lib.flagosAllReduce(buffer, buffer, len(values), FLOAT32, op, comm, stream), comm)
    return list(buffer)


def memory(count):
    """So many floats of flagosMemAlloc."""
    pointer = _p()
    ok(lib.flagosMemAlloc(ctypes.byref(pointer), 4 * count))
    return (ctypes.c_float * count).from_address(pointer.value)


def free(floats):
    """Gives memory of `memory` back."""
    ok(lib.flagosMemFree(ctypes.addressof(floats)))


def async_error(comm):
    """The communicator's asynchronous state."""
    state = _i(-1)
    ok(lib.flagosCommGetAsyncError(comm, ctypes.byref(state)))
    return state.value


def destroy(comm):
    """Destroys it."""
    ok(lib.flagosCommDestroy(comm))


def split(comm, color, key):
    """The child, or None."""
    child = _p(1)
    ok(lib.flagosCommSplit(comm, color, key, ctypes.byref(child), None), comm)
    return child if child.value else None


def shrink(comm, excluded, flags=0):
    """The child of the others."""
    child = _p(1)
    ok(lib.flagosCommShrink(comm, (_i * len(excluded))(*excluded), len(excluded), ctypes.byref(child), None, flags),
       comm)
    return child


def numbers(comm):
    """Its rank and number of ranks."""
    rank, count = _i(-1), _i(-1)
    ok(lib.flagosCommUserRank(comm, ctypes.byref(rank)))
    ok(lib.flagosCommCount(comm, ctypes.byref(count)))
    return rank.value, count.value
