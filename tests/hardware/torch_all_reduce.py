"""All-reduce through libflagos_comm.so on PyTorch's tensors and streams, beside torch.distributed.

Two processes, each with CUDA and NCCL initialised by torch and a process group alive. Prints PASS, FAIL and SKIP lines.

    python3 torch_all_reduce.py LIBRARY
"""

import ctypes
import os
import socket
import subprocess
import sys
import traceback

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"SKIP  torch  {error}")
    sys.exit(0)

DATA_TYPES = {
    torch.int8: 0, torch.uint8: 1, torch.int32: 2, torch.int64: 4,
    torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9,
}
SUM, MAX = 0, 2


class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 256)]


class Info(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("tier", ctypes.c_int32), ("stream_kind", ctypes.c_int32),
                ("completion", ctypes.c_int32), ("library_version", ctypes.c_int32),
                ("vendor", ctypes.c_char * 32), ("library_path", ctypes.c_char * 1024)]


def mapped(name):
    with open("/proc/self/maps") as maps:
        return sorted({os.path.realpath(line.split(maxsplit=5)[5].strip()) for line in maps if f"/{name}" in line})


class Ours:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.flagosGetLastError.restype = ctypes.c_char_p
        self.lib.flagosGetLastError.argtypes = [ctypes.c_void_p]
        self.lib.flagosAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                             ctypes.c_void_p, ctypes.c_void_p]
        self.comm = ctypes.c_void_p()

    def check(self, result):
        if result != 0:
            raise RuntimeError(f"{result}: {(self.lib.flagosGetLastError(self.comm) or b'').decode()}")

    def all_reduce(self, tensor, op=SUM):
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
        pointer = tensor.data_ptr()
        self.check(self.lib.flagosAllReduce(pointer, pointer, tensor.numel(), DATA_TYPES[tensor.dtype], op, self.comm,
                                            ctypes.c_void_p(stream)))


def lines(rank, name, body):
    """Runs a check on every rank; rank 0 prints one line for all."""
    try:
        detail, failure = body(), None
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        detail, failure = None, f"rank {rank}: {type(error).__name__}: {error}".replace("\n", " ")
    torch.cuda.set_device(rank)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, failure)
    failures = [text for text in found if text]
    if rank == 0:
        print(f"FAIL  torch.{name}  {failures[0]}" if failures else f"PASS  torch.{name}  {detail}", flush=True)
    return not failures


def child(rank, library):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    warm = torch.ones(1, device="cuda")
    dist.all_reduce(warm)  # torch's NCCL communicator exists
    torch.cuda.synchronize()
    before = mapped("libnccl.so")
    ours = Ours(library)
    ok = True

    def join():
        made = Id()
        if rank == 0:
            ours.check(ours.lib.flagosGetUniqueId(ctypes.byref(made)))
        box = [bytes(bytearray(made))]
        dist.broadcast_object_list(box, src=0)
        made = Id.from_buffer_copy(box[0])
        ours.check(ours.lib.flagosCommInitRank(ctypes.byref(ours.comm), 2, ctypes.byref(made), rank))
        info = Info(size=ctypes.sizeof(Info))
        ours.check(ours.lib.flagosCommGetInfo(ours.comm, ctypes.byref(info)))
        used = os.path.realpath(info.library_path.decode())
        assert info.tier == 1, f"tier {info.tier}"
        assert before == [used], f"torch has {before}, ours uses {used}"
        assert mapped("libnccl.so") == before, f"mapped now: {mapped('libnccl.so')}"
        version = ".".join(map(str, torch.cuda.nccl.version()))
        major, minor, patch = info.library_version // 10000, info.library_version // 100 % 100, info.library_version % 100
        assert version.startswith(f"{major}.{minor}.{patch}"), f"torch's NCCL is {version}, ours says {info.library_version}"
        return f"torch {torch.__version__}, one copy of NCCL {version} in the process, torch's: {used}"

    ok &= lines(rank, "same_copy", join)
    if not ok:
        os._exit(1)

    def types():
        for dtype in DATA_TYPES:
            generator = torch.Generator(device="cuda").manual_seed(1 + rank)
            tensor = torch.randint(-50, 50, (100_003,), generator=generator, device="cuda").to(dtype)
            if dtype.is_floating_point:
                tensor = (tensor * 0.37).to(dtype)
            theirs = tensor.clone()
            dist.all_reduce(theirs)
            ours.all_reduce(tensor)
            torch.cuda.synchronize()
            assert torch.equal(tensor, theirs), f"{dtype} differs"
        return f"{len(DATA_TYPES)} types bit for bit like torch.distributed.all_reduce"

    def streams():
        side = torch.cuda.Stream()
        for round_ in range(50):
            with torch.cuda.stream(side):
                tensor = torch.full((1 << 20,), float(rank + round_), device="cuda")
                ours.all_reduce(tensor)
                tensor.mul_(2)
                ours.all_reduce(tensor, MAX)
            side.synchronize()
            wanted = 2 * (2 * round_ + 1)
            assert bool((tensor == wanted).all()), f"round {round_}: {tensor[0].item()} instead of {wanted}"
        return "50 rounds on a side stream between kernels of torch"

    def mixed():
        for round_ in range(50):
            a = torch.full((4096,), float(rank + 1 + round_), device="cuda")
            b = a.clone()
            ours.all_reduce(a)
            torch.cuda.synchronize()
            dist.all_reduce(b)
            torch.cuda.synchronize()
            assert torch.equal(a, b)
        return "50 rounds, ours and torch.distributed in turn"

    def graph():
        static = torch.zeros(65536, device="cuda")
        (static * 2 + 1).sum()  # what torch does at the first use of a kernel is not captured
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            result = static * 2
            ours.all_reduce(result)
            result2 = result + 1
        for round_ in range(5):
            static.fill_(rank + round_)
            captured.replay()
            torch.cuda.synchronize()
            wanted = 2 * (2 * round_ + 1) + 1
            assert bool((result2 == wanted).all()), f"round {round_}: {result2[0].item()} instead of {wanted}"
        return "captured by torch.cuda.graph between kernels of torch, 5 replays with new input"

    def device():
        number = ctypes.c_int()
        for index in (1 - rank, rank):
            torch.cuda.set_device(index)
            ours.check(ours.lib.flagosGetDevice(ctypes.byref(number)))
            assert number.value == index, f"torch is on {index}, flagosGetDevice says {number.value}"
            tensor = torch.full((1000,), float(rank + 1), device=f"cuda:{rank}")
            ours.all_reduce(tensor)
            torch.cuda.synchronize(rank)
            assert bool((tensor == 3).all()), tensor[0].item()
            assert torch.cuda.current_device() == index
        return "torch.cuda.set_device is followed; a call with the other device current is right and leaves it"

    for name, body in [("types", types), ("streams", streams), ("mixed", mixed), ("graph", graph), ("device", device)]:
        ok &= lines(rank, name, body)
    result = ours.lib.flagosCommDestroy(ours.comm)

    def alive():
        assert result == 0, f"destroy gave {result}"
        tensor = torch.ones(10, device="cuda")
        dist.all_reduce(tensor)
        assert tensor[0].item() == 2
        return "ours is destroyed, torch's group still works"

    ok &= lines(rank, "afterwards", alive)
    dist.destroy_process_group()
    sys.exit(0 if ok else 1)


def main():
    library = os.path.abspath(sys.argv[1])
    if len(sys.argv) > 2:
        child(int(sys.argv[2]), library)
        return
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2 or not dist.is_nccl_available():
        print(f"SKIP  torch  torch {torch.__version__} sees {torch.cuda.device_count()} devices; it needs two and NCCL")
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), FLAGOSCOMM_TIERS="native")
    ranks = [subprocess.Popen([sys.executable, os.path.abspath(__file__), library, str(rank)], env=environment) for rank in range(2)]
    codes = []
    for process in ranks:
        try:
            codes.append(process.wait(timeout=80))
        except subprocess.TimeoutExpired:
            codes.append("no end within 80 s")
            for other in ranks:
                other.kill()
    if any(codes):
        print(f"FAIL  torch.processes  they ended with {codes}", flush=True)
        sys.exit(1)


main()
