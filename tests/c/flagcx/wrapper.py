"""FlagCX's functions as its Python wrapper looks them up and calls them: all 41 names, argument types, structs.

usage: wrapper.py LIBFLAGCX
"""

import ctypes
import sys
import threading
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_bool, c_byte, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

result = c_int
comm_t = stream_t = event_t = window_t = buffer_t = c_void_p


class UniqueId(Structure):
    _fields_ = [("internal", c_byte * 256)]


SLOTS = [
    ("deviceSynchronize", []),
    ("deviceMemcpy", [c_void_p, c_void_p, c_size_t, c_int, stream_t]),
    ("deviceMemset", [c_void_p, c_int, c_size_t, c_int, stream_t]),
    ("deviceMalloc", [POINTER(c_void_p), c_size_t, c_int, stream_t]),
    ("deviceFree", [c_void_p, c_int, stream_t]),
    ("setDevice", [c_int]),
    ("getDevice", [POINTER(c_int)]),
    ("getDeviceCount", [POINTER(c_int)]),
    ("getVendor", [c_char_p]),
    ("hostGetDevicePointer", [POINTER(c_void_p), c_void_p]),
    ("streamCreate", [POINTER(stream_t)]),
    ("streamDestroy", [stream_t]),
    ("streamCopy", [POINTER(stream_t), c_void_p]),
    ("streamFree", [stream_t]),
    ("streamSynchronize", [stream_t]),
    ("streamQuery", [stream_t]),
    ("streamWaitEvent", [stream_t, event_t]),
    ("eventCreate", [POINTER(event_t), c_int]),
    ("eventDestroy", [event_t]),
    ("eventRecord", [event_t, stream_t]),
    ("eventSynchronize", [event_t]),
    ("eventQuery", [event_t]),
    ("eventElapsedTime", [POINTER(c_float), event_t, event_t]),
    ("ipcMemHandleCreate", [POINTER(c_void_p), POINTER(c_size_t)]),
    ("ipcMemHandleGet", [c_void_p, c_void_p]),
    ("ipcMemHandleOpen", [c_void_p, POINTER(c_void_p)]),
    ("ipcMemHandleClose", [c_void_p]),
    ("ipcMemHandleFree", [c_void_p]),
]


class DeviceHandle(Structure):
    _fields_ = [(name, CFUNCTYPE(result, *arguments)) for name, arguments in SLOTS]


class DevCommRequirements(Structure):
    _fields_ = [
        ("a", c_bool), *[(f"b{i}", c_int) for i in range(5)], ("c", c_bool), *[(f"d{i}", c_int) for i in range(3)],
    ]


class WaitSignalDesc(Structure):
    _fields_ = [("opCnt", c_uint64), ("peer", c_int)]


handle_t = POINTER(DeviceHandle)
REDUCE = [buffer_t, buffer_t, c_size_t, c_int, c_int]
# The wrapper's own argument types, also where they are those of an older FlagCX (PutSignal, Signal, WaitSignal).
FUNCTIONS = {
    "flagcxDeviceHandleInit": [POINTER(handle_t)],
    "flagcxDeviceHandleFree": [handle_t],
    "flagcxGetErrorString": [result],
    "flagcxGetVersion": [POINTER(c_int)],
    "flagcxGetUniqueId": [POINTER(UniqueId)],
    "flagcxCommInitRank": [POINTER(comm_t), c_int, POINTER(UniqueId), c_int],
    "flagcxAllReduce": [*REDUCE, comm_t, stream_t],
    "flagcxReduce": [*REDUCE, c_int, comm_t, stream_t],
    "flagcxAllGather": [buffer_t, buffer_t, c_size_t, c_int, comm_t, stream_t],
    "flagcxReduceScatter": [*REDUCE, comm_t, stream_t],
    "flagcxSend": [buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
    "flagcxRecv": [buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
    "flagcxBroadcast": [buffer_t, buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
    "flagcxGroupStart": [comm_t],
    "flagcxGroupEnd": [comm_t],
    "flagcxCommDestroy": [comm_t],
    "flagcxCommRegister": [comm_t, buffer_t, c_size_t, POINTER(c_void_p), c_int],
    "flagcxOneSideRegister": [comm_t, buffer_t, c_size_t],
    "flagcxOneSideSignalRegister": [comm_t, buffer_t, c_size_t, c_int],
    "flagcxOneSideStagingRegister": [comm_t, buffer_t, c_size_t],
    "flagcxOneSideStagingDeregister": [comm_t],
    "flagcxGet": [comm_t, c_int, c_size_t, c_size_t, c_size_t, c_int, c_int],
    "flagcxPut": [comm_t, c_int, c_size_t, c_size_t, c_size_t, c_int, c_int],
    "flagcxBatchPut": [comm_t, c_int, *[POINTER(c_size_t)] * 3, *[POINTER(c_int)] * 2, c_size_t],
    "flagcxPutSignal": [comm_t, c_int, c_size_t, c_size_t, c_size_t, c_size_t, c_int, c_int, c_uint64],
    "flagcxSignal": [comm_t, c_int, c_size_t, c_uint64],
    "flagcxWaitSignal": [comm_t, c_int, c_size_t, c_uint64, stream_t],
    "flagcxReadCounter": [comm_t, POINTER(c_uint64)],
    "flagcxWaitCounter": [comm_t, c_uint64],
    "flagcxMemAlloc": [POINTER(c_void_p), c_size_t, c_int],
    "flagcxMemFree": [c_void_p, c_int],
    "flagcxCommWindowRegister": [comm_t, buffer_t, c_size_t, POINTER(window_t), c_int, c_int],
    "flagcxCommWindowDeregister": [comm_t, window_t, c_int],
    "flagcxDevCommCreate": [comm_t, POINTER(DevCommRequirements), POINTER(c_void_p)],
    "flagcxDevCommDestroy": [comm_t, c_void_p],
    "flagcxDevMemCreate": [comm_t, c_void_p, c_size_t, window_t, POINTER(c_void_p)],
    "flagcxDevMemDestroy": [comm_t, c_void_p],
    "flagcxDevCommGetDevicePtr": [c_void_p, POINTER(c_void_p)],
    "flagcxDevCommFreeDevicePtr": [c_void_p],
    "flagcxDevMemGetDevicePtr": [c_void_p, POINTER(c_void_p)],
    "flagcxDevMemFreeDevicePtr": [c_void_p],
}
INT8, FLOAT, SUM, IN, OUT = 0, 7, 0, 0, 1


class Library:
    """One missing name is an error, as in the wrapper."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name, arguments in FUNCTIONS.items():
            function = getattr(self.lib, name)
            function.restype = c_char_p if name == "flagcxGetErrorString" else result
            function.argtypes = arguments
        self.handle = handle_t()
        self.check("flagcxDeviceHandleInit", byref(self.handle))
        self.device = self.handle.contents

    def check(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}, {self.lib.flagcxGetErrorString(code).decode()}")

    def on_device(self, name, *arguments):
        code = getattr(self.device, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    def memory(self, size, content=b""):
        place = c_void_p()
        self.on_device("deviceMalloc", byref(place), size, 1, None)
        if content:
            self.on_device("deviceMemcpy", place, content, len(content), IN, None)
        return place

    def read(self, place, kind):
        got = kind()
        self.on_device("deviceMemcpy", byref(got), place, ctypes.sizeof(got), OUT, None)
        return got


def rank(library, number, ranks, unique_id, failures):
    try:
        l, count = library, 1000
        devices, device = c_int(), c_int(-1)
        l.on_device("getDeviceCount", byref(devices))
        l.on_device("setDevice", number % devices.value)
        l.on_device("getDevice", byref(device))
        assert device.value == number % devices.value
        comm, stream, copy = comm_t(), stream_t(), stream_t()
        l.check("flagcxCommInitRank", byref(comm), ranks, byref(unique_id), number)
        l.on_device("streamCreate", byref(stream))
        # A new wrapper around the raw stream for every call, freed right behind it, also inside a group.
        raw = c_void_p.from_address(stream.value)

        def call(name, *arguments):
            l.on_device("streamCopy", byref(copy), raw)
            assert c_void_p.from_address(copy.value).value == raw.value
            l.check(name, *arguments, comm, copy)
            l.on_device("streamFree", copy)

        mine = (c_float * count)(*[number + 1] * count)
        send = l.memory(4 * count, bytes(mine))
        receive = l.memory(4 * count * ranks)

        def got():
            l.on_device("streamSynchronize", stream)
            return list(l.read(receive, c_float * (count * ranks)))

        total = ranks * (ranks + 1) // 2
        call("flagcxAllReduce", send, receive, count, FLOAT, SUM)
        assert got()[:count] == [total] * count
        call("flagcxAllGather", send, receive, count, FLOAT)
        assert got() == [r + 1 for r in range(ranks) for _ in range(count)]
        call("flagcxBroadcast", send, receive, count, FLOAT, ranks - 1)
        assert got()[:count] == [ranks] * count
        call("flagcxReduce", send, receive, count, FLOAT, SUM, 0)
        assert number != 0 or got()[:count] == [total] * count
        call("flagcxReduceScatter", send, receive, count // ranks, FLOAT, SUM)
        assert got()[: count // ranks] == [total] * (count // ranks)
        for word in (comm, None, c_void_p(0xDEADBEEF)):
            l.check("flagcxGroupStart", word)
            call("flagcxSend", send, count, FLOAT, (number + 1) % ranks)
            call("flagcxRecv", receive, count, FLOAT, (number - 1) % ranks)
            l.check("flagcxGroupEnd", word)
            assert got()[:count] == [(number - 1) % ranks + 1] * count
        # What the stale argument types of the one-sided functions make of it: an error.
        assert l.lib.flagcxPutSignal(comm, 0, 0, 0, 8, 0, 0, 0, 1) == 4
        assert l.lib.flagcxSignal(comm, 0, 0, 1) == 4
        assert l.lib.flagcxWaitSignal(comm, 0, 0, 1, stream) == 4
        made = c_void_p(1)
        assert l.lib.flagcxDevCommCreate(comm, byref(DevCommRequirements()), byref(made)) == 9 and not made.value
        handle, window, memory = c_void_p(), window_t(), c_void_p()
        l.check("flagcxMemAlloc", byref(memory), 4096, 0)
        l.check("flagcxCommRegister", comm, memory, 4096, byref(handle), 0)
        l.check("flagcxCommWindowRegister", comm, memory, 4096, byref(window), 0, 0)
        l.check("flagcxCommWindowDeregister", comm, window, 0)
        l.check("flagcxCommDestroy", comm)
        l.check("flagcxMemFree", memory, 0)
        l.on_device("streamDestroy", stream)
        for place in (send, receive):
            l.on_device("deviceFree", place, 1, None)
    except BaseException as error:  # a thread's would be lost
        failures.append(f"rank {number}: {error!r}")


def main():
    assert len(FUNCTIONS) == 41
    assert ctypes.sizeof(DeviceHandle) == 224 and len(SLOTS) == 28
    assert DeviceHandle.streamCreate.offset == 80 and DeviceHandle.eventCreate.offset == 136
    assert DeviceHandle.ipcMemHandleCreate.offset == 184
    assert ctypes.sizeof(UniqueId) == 256 and ctypes.sizeof(WaitSignalDesc) == 16
    library = Library(sys.argv[1])
    for name, _ in SLOTS:
        assert ctypes.cast(getattr(library.device, name), c_void_p).value, name
    version = c_int()
    library.check("flagcxGetVersion", byref(version))
    assert version.value == 10000
    vendor = ctypes.create_string_buffer(64)
    library.on_device("getVendor", vendor)
    assert vendor.value
    for code in range(-2, 12):
        assert library.lib.flagcxGetErrorString(code) not in (b"", b"Not implemented.")

    # AB-2: an older caller, without argument types.
    old = ctypes.CDLL(sys.argv[1])
    for arguments in ((), (None,), (c_void_p(0xDEADBEEF),)):
        assert old.flagcxGroupStart(*arguments) == 0
        assert old.flagcxGroupEnd(*arguments) == 0

    for ranks in (1, 2):
        unique_id, failures = UniqueId(), []
        library.check("flagcxGetUniqueId", byref(unique_id))
        # Over a store, as bytes.
        unique_id = UniqueId.from_buffer_copy(bytes(unique_id))
        threads = [threading.Thread(target=rank, args=(library, r, ranks, unique_id, failures)) for r in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
    library.check("flagcxDeviceHandleFree", library.handle)


main()
