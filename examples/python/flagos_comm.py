"""A thin ctypes binding of libflagos_comm.so. Needs nothing but Python itself.

    import flagos_comm
    lib = flagos_comm.Library("target/release/libflagos_comm.so")
    unique_id = lib.get_unique_id()                  # on one rank; hand the bytes to the others
    with lib.communicator(nranks, unique_id, rank) as comm:
        comm.all_reduce(array, op="avg")             # in place

Buffers are numpy arrays, or anything that exports a writable contiguous buffer (`array.array`, `bytearray`).
Their memory is the host's, so communicators are made on the host tier: the module sets
FLAGOSCOMM_TIERS=host unless the variable is set already. All calls block.
"""

import ctypes
import os
import pathlib
import socket
import time

UNIQUE_ID_BYTES = 256

DATA_TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}
REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}

_KINDS = {"b": "int", "h": "int", "i": "int", "l": "int", "q": "int", "n": "int",
          "B": "uint", "H": "uint", "I": "uint", "L": "uint", "Q": "uint", "N": "uint",
          "e": "float", "f": "float", "d": "float"}


class FlagosError(Exception):
    """A call failed. `code` is the library's result, the text is the library's own."""

    def __init__(self, function, code, text):
        super().__init__(f"{function} failed with code {code}: {text}")
        self.code = code


def default_library():
    """The library that `cargo build --release --workspace` leaves in this repository."""
    root = pathlib.Path(__file__).resolve().parents[2]
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    return target / "release" / "libflagos_comm.so"


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * UNIQUE_ID_BYTES)]


_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
_SIGNATURES = {
    "flagosGetVersion": [ctypes.POINTER(_int)],
    "flagosGetUniqueId": [ctypes.POINTER(_UniqueId)],
    "flagosCommInitRank": [ctypes.POINTER(_pointer), _int, ctypes.POINTER(_UniqueId), _int],
    "flagosCommDestroy": [_pointer],
    "flagosCommAbort": [_pointer],
    "flagosAllReduce": [_pointer, _pointer, _size, _int, _int, _pointer, _pointer],
    "flagosBroadcast": [_pointer, _pointer, _size, _int, _int, _pointer, _pointer],
    "flagosReduce": [_pointer, _pointer, _size, _int, _int, _int, _pointer, _pointer],
    "flagosAllGather": [_pointer, _pointer, _size, _int, _pointer, _pointer],
    "flagosReduceScatter": [_pointer, _pointer, _size, _int, _int, _pointer, _pointer],
    "flagosAlltoAll": [_pointer, _pointer, _size, _int, _pointer, _pointer],
    "flagosSend": [_pointer, _size, _int, _int, _pointer, _pointer],
    "flagosRecv": [_pointer, _size, _int, _int, _pointer, _pointer],
    "flagosBarrier": [_pointer, _pointer],
    "flagosGroupStart": [],
    "flagosGroupEnd": [],
}


def _buffer(obj, written):
    """Address, number of elements and data type of a buffer. The caller keeps `obj` alive."""
    view = memoryview(obj)
    if not view.contiguous:
        raise ValueError("the buffer is not contiguous")
    if written and view.readonly:
        raise ValueError("the buffer is read-only")
    kind = _KINDS.get(view.format.lstrip("@=<"))
    data_type = DATA_TYPES.get(f"{kind}{8 * view.itemsize}")
    if data_type is None:
        raise TypeError(f"no data type for buffer format {view.format!r}")
    count = view.nbytes // view.itemsize
    interface = getattr(obj, "__array_interface__", None)
    if interface is not None:
        address = interface["data"][0]
    elif count == 0:
        address = None
    elif view.readonly:
        raise TypeError("a read-only buffer can only be sent from a numpy array")
    else:
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    return address, count, data_type


def _reduction(name):
    if name not in REDUCTIONS:
        raise ValueError(f"there is no operator {name!r}; there are {', '.join(REDUCTIONS)}")
    return REDUCTIONS[name]


class Library:
    """The loaded library."""

    def __init__(self, path=None):
        os.environ.setdefault("FLAGOSCOMM_TIERS", "host")
        path = pathlib.Path(path) if path else default_library()
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; `cargo build --release --workspace` makes it")
        self.path = path
        self._lib = ctypes.CDLL(str(path))
        if not hasattr(self._lib, "flagosGetLastError"):
            raise OSError(f"{path} is no libflagos_comm.so")
        self._lib.flagosGetLastError.argtypes = [_pointer]
        self._lib.flagosGetLastError.restype = ctypes.c_char_p
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._lib, name)
            function.argtypes = arguments
            function.restype = _int

    def call(self, name, *arguments, comm=None):
        """Calls a function of the C header; a result that is not success becomes a FlagosError."""
        code = getattr(self._lib, name)(*arguments)
        if code != 0:
            text = self._lib.flagosGetLastError(comm) or b""
            raise FlagosError(name, code, text.decode(errors="replace"))

    def version(self):
        """Version as one number: major * 10000 + minor * 100 + patch."""
        value = _int()
        self.call("flagosGetVersion", ctypes.byref(value))
        return value.value

    def get_unique_id(self):
        """Names a new communicator. This process serves its rendezvous, so it must be one of the ranks."""
        value = _UniqueId()
        self.call("flagosGetUniqueId", ctypes.byref(value))
        return ctypes.string_at(ctypes.byref(value), UNIQUE_ID_BYTES)

    def communicator(self, nranks, unique_id, rank):
        """Joins the communicator; returns when all ranks have."""
        return Communicator(self, nranks, unique_id, rank)


class Communicator:
    """One rank of a communicator. As a context it is destroyed at the end, or aborted by an exception."""

    def __init__(self, library, nranks, unique_id, rank):
        if len(unique_id) != UNIQUE_ID_BYTES:
            raise ValueError(f"a unique id has {UNIQUE_ID_BYTES} bytes, not {len(unique_id)}")
        self.nranks, self.rank = nranks, rank
        self._library = library
        self._handle = _pointer()
        library.call("flagosCommInitRank", ctypes.byref(self._handle), nranks,
                     ctypes.byref(_UniqueId.from_buffer_copy(unique_id)), rank)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self.destroy()
        else:
            self.abort()

    def _call(self, name, *arguments):
        self._library.call(name, *arguments, self._handle, None, comm=self._handle)

    def destroy(self):
        """Frees the communicator in order."""
        handle, self._handle = self._handle, _pointer()
        if handle:
            self._library.call("flagosCommDestroy", handle)

    def abort(self):
        """Ends everything on the communicator and tells the other ranks."""
        handle, self._handle = self._handle, _pointer()
        if handle:
            self._library.call("flagosCommAbort", handle)

    def _pair(self, send, recv, send_parts=1, recv_parts=1):
        """Checks that recv holds recv_parts/send_parts times what send holds."""
        source, count, data_type = _buffer(send, written=False)
        target, room, target_type = _buffer(recv, written=True)
        if data_type != target_type:
            raise TypeError("the two buffers have different data types")
        if count * recv_parts != room * send_parts:
            raise ValueError(f"{count} elements to send and {room} to receive do not fit together")
        return source, target, count, data_type

    def all_reduce(self, send, recv=None, op="sum"):
        """Reduces over all ranks, in place if `recv` is not given."""
        source, target, count, data_type = self._pair(send, send if recv is None else recv)
        self._call("flagosAllReduce", source, target, count, data_type, _reduction(op))

    def broadcast(self, buffer, root=0):
        """Copies the root's buffer over that of every other rank."""
        address, count, data_type = _buffer(buffer, written=True)
        self._call("flagosBroadcast", address, address, count, data_type, root)

    def reduce(self, send, recv=None, op="sum", root=0):
        """Reduces to the root, in place if `recv` is not given."""
        source, target, count, data_type = self._pair(send, send if recv is None else recv)
        self._call("flagosReduce", source, target, count, data_type, _reduction(op), root)

    def all_gather(self, send, recv):
        """Puts every rank's `send` behind one another into `recv`."""
        source, target, count, data_type = self._pair(send, recv, recv_parts=self.nranks)
        self._call("flagosAllGather", source, target, count, data_type)

    def reduce_scatter(self, send, recv, op="sum"):
        """Reduces `send`; each rank keeps its block."""
        source, target, count, data_type = self._pair(send, recv, send_parts=self.nranks)
        self._call("flagosReduceScatter", source, target, count // self.nranks, data_type, _reduction(op))

    def all_to_all(self, send, recv):
        """Sends one block of `send` to each rank."""
        source, target, count, data_type = self._pair(send, recv)
        if count % self.nranks != 0:
            raise ValueError(f"{count} elements can't be cut into {self.nranks} blocks")
        self._call("flagosAlltoAll", source, target, count // self.nranks, data_type)

    def send(self, buffer, peer):
        """Sends to one rank, which calls `recv`."""
        address, count, data_type = _buffer(buffer, written=False)
        self._call("flagosSend", address, count, data_type, peer)

    def recv(self, buffer, peer):
        """Receives from one rank, which calls `send`."""
        address, count, data_type = _buffer(buffer, written=True)
        self._call("flagosRecv", address, count, data_type, peer)

    def barrier(self):
        """Returns when every rank has entered."""
        self._call("flagosBarrier")


def exchange_id(library, rank, nranks, address, port, timeout=60.0):
    """Hands rank 0's new unique id to all ranks over one TCP port (MASTER_ADDR and MASTER_PORT of launchers)."""
    deadline = time.monotonic() + timeout
    if rank == 0:
        unique_id = library.get_unique_id()
        if nranks > 1:
            with socket.create_server((address, port), backlog=nranks) as server:
                for _ in range(nranks - 1):
                    server.settimeout(max(0.001, deadline - time.monotonic()))
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(unique_id)
        return unique_id
    while True:
        try:
            with socket.create_connection((address, port), timeout=1.0) as connection:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                received = bytearray()
                while len(received) < UNIQUE_ID_BYTES:
                    part = connection.recv(UNIQUE_ID_BYTES - len(received))
                    if not part:
                        raise ConnectionError("rank 0 closed the connection before the unique id was through")
                    received += part
                return bytes(received)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 did not listen on {address}:{port} within {timeout:g} s") from None
            time.sleep(0.02)
