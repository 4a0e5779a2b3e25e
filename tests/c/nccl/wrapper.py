"""NCCL's functions as Python wrappers look them up and call them: every name of the list, argument types, structs.

usage: wrapper.py LIBNCCL EXPORTS
"""

import ctypes
import sys
import threading
from ctypes import POINTER, Structure, byref, c_byte, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p

UNDEF = -(2**31)


class UniqueId(Structure):
    _fields_ = [("internal", c_byte * 128)]


class Config(Structure):
    _fields_ = [
        ("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int), ("cgaClusterSize", c_int),
        ("minCTAs", c_int), ("maxCTAs", c_int), ("netName", c_char_p), ("splitShare", c_int), ("trafficClass", c_int),
        ("commName", c_char_p), ("collnetEnable", c_int), ("CTAPolicy", c_int), ("shrinkShare", c_int), ("nvlsCTAs", c_int),
        ("nChannelsPerNetPeer", c_int), ("nvlinkCentricSched", c_int),
    ]

    def __init__(self, **given):
        for name, kind in self._fields_:
            if kind is c_int:
                setattr(self, name, UNDEF)
        self.size, self.magic, self.version = ctypes.sizeof(Config), 0xCAFEBEEF, 22809
        for name, value in given.items():
            setattr(self, name, value)


class SimInfo(Structure):
    _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("estimatedTime", c_float)]


assert ctypes.sizeof(UniqueId) == 128 and ctypes.sizeof(Config) == 80 and ctypes.sizeof(SimInfo) == 24
assert Config.netName.offset == 32 and Config.commName.offset == 48 and Config.nChannelsPerNetPeer.offset == 72

comm_t = stream_t = window_t = buffer_t = c_void_p
BUFFERS = [buffer_t, buffer_t, c_size_t, c_int]
FUNCTIONS = {
    "GetVersion": [POINTER(c_int)],
    "GetUniqueId": [POINTER(UniqueId)],
    "GetErrorString": [c_int],
    "GetLastError": [comm_t],
    "CommInitRank": [POINTER(comm_t), c_int, UniqueId, c_int],
    "CommInitRankConfig": [POINTER(comm_t), c_int, UniqueId, c_int, POINTER(Config)],
    "CommInitRankScalable": [POINTER(comm_t), c_int, c_int, c_int, POINTER(UniqueId), POINTER(Config)],
    "CommInitAll": [POINTER(comm_t), c_int, POINTER(c_int)],
    "CommFinalize": [comm_t],
    "CommDestroy": [comm_t],
    "CommAbort": [comm_t],
    "CommRevoke": [comm_t, c_int],
    "CommSplit": [comm_t, c_int, c_int, POINTER(comm_t), POINTER(Config)],
    "CommShrink": [comm_t, POINTER(c_int), c_int, POINTER(comm_t), POINTER(Config), c_int],
    "CommGetAsyncError": [comm_t, POINTER(c_int)],
    "CommCount": [comm_t, POINTER(c_int)],
    "CommCuDevice": [comm_t, POINTER(c_int)],
    "CommUserRank": [comm_t, POINTER(c_int)],
    "CommRegister": [comm_t, buffer_t, c_size_t, POINTER(c_void_p)],
    "CommDeregister": [comm_t, c_void_p],
    "CommWindowRegister": [comm_t, buffer_t, c_size_t, POINTER(window_t), c_int],
    "CommWindowDeregister": [comm_t, window_t],
    "MemAlloc": [POINTER(c_void_p), c_size_t],
    "MemFree": [c_void_p],
    "RedOpCreatePreMulSum": [POINTER(c_int), c_void_p, c_int, c_int, comm_t],
    "RedOpDestroy": [c_int, comm_t],
    "GroupStart": [],
    "GroupEnd": [],
    "GroupSimulateEnd": [POINTER(SimInfo)],
    "AllReduce": [*BUFFERS, c_int, comm_t, stream_t],
    "Reduce": [*BUFFERS, c_int, c_int, comm_t, stream_t],
    "ReduceScatter": [*BUFFERS, c_int, comm_t, stream_t],
    "AllGather": [*BUFFERS, comm_t, stream_t],
    "AlltoAll": [*BUFFERS, comm_t, stream_t],
    "Broadcast": [*BUFFERS, c_int, comm_t, stream_t],
    "Gather": [*BUFFERS, c_int, comm_t, stream_t],
    "Scatter": [*BUFFERS, c_int, comm_t, stream_t],
    "Bcast": [buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
    "Send": [buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
    "Recv": [buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
}
FLOAT, SUM = 7, 0
SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, IN_PROGRESS = 0, 4, 5, 7


class Library:
    """One missing name is an error, as for a program that binds all its symbols at its start. `p`: by the second names."""

    def __init__(self, path, exports, prefix):
        self.lib = ctypes.CDLL(path)
        with open(exports) as names:
            for name in names.read().split():
                getattr(self.lib, name)
        for name, arguments in FUNCTIONS.items():
            function = getattr(self.lib, f"{prefix}nccl{name}")
            function.argtypes = arguments
            function.restype = c_char_p if name in ("GetErrorString", "GetLastError") else c_int
            setattr(self, name, function)

    def check(self, result):
        if result != SUCCESS:
            raise RuntimeError(f"{self.GetErrorString(result).decode()}: {self.GetLastError(None).decode()}")


def ranks(nccl, number, body):
    """Threads, each a rank with a communicator."""
    made = UniqueId()
    nccl.check(nccl.GetUniqueId(byref(made)))
    failures = []

    def run(rank):
        try:
            comm = comm_t()
            config = Config(commName=b"from Python", splitShare=1)
            copied = UniqueId.from_buffer_copy(bytes(made))  # as it travels: 128 bytes
            nccl.check(nccl.CommInitRankConfig(byref(comm), number, copied, rank, byref(config)))
            body(comm, rank)
            nccl.check(nccl.CommDestroy(comm))
            assert nccl.CommDestroy(comm) == INVALID_ARGUMENT
        except BaseException as error:  # noqa: BLE001
            failures.append(f"rank {rank}: {error!r}")

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def on_host(nccl, number):
    def body(comm, rank):
        value, device = c_int(-1), c_int(-1)
        nccl.check(nccl.CommCount(comm, byref(value)))
        assert value.value == number
        nccl.check(nccl.CommCuDevice(comm, byref(device)))
        assert device.value == 0
        memory = c_void_p()
        nccl.check(nccl.MemAlloc(byref(memory), 4096))
        values = (c_float * 8).from_address(memory.value)
        values[:] = [rank + i for i in range(8)]
        nccl.check(nccl.AllReduce(memory, memory, 8, FLOAT, SUM, comm, None))
        assert list(values) == [sum(r + i for r in range(number)) for i in range(8)], list(values)
        out = (c_float * (8 * number))()
        values[:] = [rank] * 8
        nccl.check(nccl.AllGather(memory, out, 8, FLOAT, comm, None))
        assert list(out) == [float(i // 8) for i in range(8 * number)], list(out)
        op, scalar = c_int(), c_float(0.5)
        nccl.check(nccl.RedOpCreatePreMulSum(byref(op), byref(scalar), FLOAT, 1, comm))
        assert op.value >= 5
        values[:] = [2.0] * 8
        nccl.check(nccl.AllReduce(memory, memory, 8, FLOAT, op, comm, None))
        assert list(values) == [float(number)] * 8, list(values)
        nccl.check(nccl.RedOpDestroy(op, comm))
        nccl.check(nccl.MemFree(memory))

    ranks(nccl, number, body)


def anywhere(nccl, number):
    """No memory is touched, so it runs on any accelerator."""
    version = c_int()
    nccl.check(nccl.GetVersion(byref(version)))
    assert 21800 <= version.value <= 22809, version.value

    def body(comm, rank):
        nccl.check(nccl.AllReduce(None, None, 0, FLOAT, SUM, comm, None))
        child = comm_t()
        nccl.check(nccl.CommSplit(comm, 0 if rank == 0 else -1, 0, byref(child), None))
        assert (child.value is not None) == (rank == 0)
        if child.value:
            nccl.check(nccl.CommAbort(child))
        assert nccl.AllReduce(None, None, 1, 99, SUM, comm, None) == INVALID_ARGUMENT
        assert b"99" in nccl.GetLastError(comm), nccl.GetLastError(comm)
        state = c_int(-1)
        nccl.check(nccl.CommGetAsyncError(comm, byref(state)))
        assert state.value == SUCCESS

    # Threads of Python's have a current device each, and all the first one: one rank is enough there.
    ranks(nccl, number, body)
    comm, made = comm_t(), UniqueId()
    nccl.check(nccl.GetUniqueId(byref(made)))
    assert nccl.CommInitRankConfig(byref(comm), 1, made, 0, byref(Config(blocking=0))) in (SUCCESS, IN_PROGRESS)
    state = c_int(IN_PROGRESS)
    while state.value == IN_PROGRESS:
        nccl.check(nccl.CommGetAsyncError(comm, byref(state)))
    assert state.value == SUCCESS
    nccl.check(nccl.CommDestroy(comm))
    info = SimInfo(ctypes.sizeof(SimInfo), 0x74685283, 22809, 0)
    assert nccl.GroupSimulateEnd(byref(info)) == INVALID_USAGE


def main():
    import os

    for prefix in ("", "p"):
        nccl = Library(sys.argv[1], sys.argv[2], prefix)
        host = os.environ["EXPECTED_VENDOR"] == "HOST"
        anywhere(nccl, 2 if host else 1)
        if host:
            on_host(nccl, 3)


main()
