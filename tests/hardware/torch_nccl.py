"""PyTorch's own NCCL process group over our libnccl.so.2, which is preloaded, beside a plain run.

Two processes and two devices, blocking and non-blocking communicators. Every result must be bit for bit that of the
run without ours. Prints PASS, FAIL and SKIP lines.

    python3 torch_nccl.py LIBNCCL LOG_FOLDER
"""

import ctypes
import os
import socket
import subprocess
import sys
import time

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"SKIP  torch_nccl  {error}")
    sys.exit(0)

SECONDS = 70
MODES = {"blocking": "0", "nonblocking": "1"}


def mapped():
    with open("/proc/self/maps") as maps:
        files = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line and "libnccl" in line.rsplit("/", 1)[1]}
    return sorted({os.path.realpath(file) for file in files if "libnccl-" not in os.path.basename(file)})


def numbers(rank, count, dtype=torch.float32, salt=0):
    generator = torch.Generator().manual_seed(1000 * salt + rank + 1)
    tensor = torch.randn(count, generator=generator) * 100
    return tensor.to(dtype).cuda()


def collectives(rank):
    results = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8):
        for op in ("SUM", "MAX", "AVG" if dtype.is_floating_point else "MIN"):
            tensor = numbers(rank, 100_003, dtype, 1)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            results[f"all_reduce.{dtype}.{op}"] = tensor
    # PyTorch makes this operator with ncclRedOpCreatePreMulSum.
    tensor = numbers(rank, 5000, salt=2)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.25))
    results["all_reduce.premul_sum"] = tensor
    tensor = numbers(rank, 30_000, salt=3)
    dist.reduce(tensor, 1)
    results["reduce"] = tensor if rank == 1 else torch.zeros(1)
    tensor = numbers(rank, 30_000, salt=4)
    dist.broadcast(tensor, 1)
    results["broadcast"] = tensor
    gathered = torch.empty(2 * 12_345, device="cuda")
    dist.all_gather_into_tensor(gathered, numbers(rank, 12_345, salt=5))
    results["all_gather"] = gathered
    several = [torch.empty(7, device="cuda") for _ in range(2)]
    dist.all_gather(several, numbers(rank, 7, salt=6))
    results["all_gather.list"] = torch.cat(several)
    part = torch.empty(10_000, device="cuda")
    dist.reduce_scatter_tensor(part, numbers(rank, 20_000, salt=7))
    results["reduce_scatter"] = part
    # PyTorch 2.11 takes NCCL's "in progress" for an error there, so without ours too.
    if os.environ["TORCH_NCCL_USE_COMM_NONBLOCKING"] == "0":
        swapped = torch.empty(20_000, device="cuda")
        dist.all_to_all_single(swapped, numbers(rank, 20_000, salt=8))
        results["all_to_all"] = swapped
        sizes = [[100, 500], [200, 200]]
        split, other = sizes[rank], [row[rank] for row in sizes]
        uneven = torch.empty(sum(other), device="cuda")
        dist.all_to_all_single(uneven, numbers(rank, sum(split), salt=9), other, split)
        results["all_to_all.uneven"] = uneven
    received = torch.empty(50_000, device="cuda")
    if rank == 0:
        dist.send(numbers(rank, 50_000, salt=10), 1)
        dist.recv(received, 1)
    else:
        dist.recv(received, 0)
        dist.send(numbers(rank, 50_000, salt=10), 0)
    results["send_recv"] = received
    both = torch.empty(50_000, device="cuda")
    calls = [dist.P2POp(dist.isend, numbers(rank, 50_000, salt=11), 1 - rank), dist.P2POp(dist.irecv, both, 1 - rank)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    results["batch_isend_irecv"] = both
    tensors = [numbers(rank, 1000 + i, salt=12) for i in range(10)]
    with dist._coalescing_manager(device=torch.device("cuda", rank)):
        for tensor in tensors:
            dist.all_reduce(tensor)
    results["coalesced"] = torch.cat(tensors)
    rounds = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in rounds:
        work.wait()
    results["asynchronous"] = torch.cat(tensors)
    return results


def groups(rank):
    pair = dist.new_group([0, 1])
    tensor = numbers(rank, 3000, salt=13)
    dist.all_reduce(tensor, group=pair)
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    own = numbers(rank, 3000, salt=14)
    dist.all_reduce(own, group=alone)
    dist.barrier()
    box = [f"from rank {rank}" if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    assert box == ["from rank 0"], box
    return {"new_group": tensor, "new_group.alone": own}


def training(rank):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 64)).cuda()
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=1)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for step in range(5):
        generator = torch.Generator().manual_seed(100 * step + rank)
        batch = torch.randn(64, 512, generator=generator).cuda()
        target = torch.randn(64, 64, generator=generator).cuda()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(wrapped(batch), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"ddp.losses": torch.stack(losses), "ddp.parameters": parameters}


def child(rank, file):
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    results = {}
    for part in (collectives, groups, training):
        results.update({name: tensor.cpu() for name, tensor in part(rank).items()})
    torch.cuda.synchronize()
    try:
        ctypes.c_char.in_dll(ctypes.CDLL(None), "flagos_comm_instance")
        ours = True
    except ValueError:
        ours = False
    facts = {"ours": ours, "mapped": mapped(), "version": torch.cuda.nccl.version()}
    began = time.monotonic()
    dist.destroy_process_group()
    facts["destroy"] = time.monotonic() - began
    torch.save({"results": results, "facts": facts}, file)


def run(folder, name, extra):
    """Both ranks of one run: what they saved, or what went wrong."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), FLAGOSCOMM_TIERS="native",
                       CUBLAS_WORKSPACE_CONFIG=":4096:8", **extra)
    files = [os.path.join(folder, f"torch_nccl.{name}.{rank}.pt") for rank in range(2)]
    logs = [os.path.join(folder, f"torch_nccl.{name}.{rank}.log") for rank in range(2)]
    ranks = []
    for rank in range(2):
        with open(logs[rank], "w") as log:
            command = [sys.executable, os.path.abspath(__file__), "--rank", str(rank), files[rank]]
            ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    codes, until = [], time.monotonic() + SECONDS
    for process in ranks:
        try:
            codes.append(process.wait(timeout=max(1, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            codes.append(f"no end within {SECONDS} s")
            process.kill()
    if any(codes):
        rank = next(i for i, code in enumerate(codes) if code)
        with open(logs[rank], errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        return None, f"rank {rank} ended with {codes[rank]}: {' | '.join(lines[-3:])}"[:1500]
    saved = [torch.load(file) for file in files]
    for file in files:
        os.remove(file)
    return saved, None


def main():
    library, folder = os.path.realpath(sys.argv[1]), os.path.abspath(sys.argv[2])
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2 or not dist.is_nccl_available():
        print(f"SKIP  torch_nccl  torch {torch.__version__} sees {torch.cuda.device_count()} devices; it needs two and NCCL")
        return 0
    failed = False

    def line(good, name, text):
        nonlocal failed
        failed |= not good
        print(f"{'PASS' if good else 'FAIL'}  torch_nccl.{name}  {text}".replace("\n", " "), flush=True)

    for mode, flag in MODES.items():
        variables = {"TORCH_NCCL_USE_COMM_NONBLOCKING": flag}
        plain, trouble = run(folder, f"plain.{mode}", variables)
        if plain is None:
            print(f"SKIP  torch_nccl.{mode}  not without ours either: {trouble}".replace("\n", " "), flush=True)
            continue
        if plain[0]["facts"]["ours"]:
            line(False, f"{mode}.plain", "ours is in the plain run")
            continue
        # Our own lines go to the ranks' logs.
        over, trouble = run(folder, f"ours.{mode}", dict(variables, LD_PRELOAD=library, FLAGOSCOMM_LOG="info"))
        if over is None:
            line(False, mode, trouble)
            continue
        theirs = plain[0]["facts"]["mapped"]
        facts = over[0]["facts"]
        used = [file for file in facts["mapped"] if file != library]
        line(facts["ours"] and library in facts["mapped"] and used == theirs, f"{mode}.in_use",
             f"ours is preloaded and mapped, the one NCCL below is {used} (plain: {theirs}), torch sees version "
             f"{'.'.join(map(str, facts['version'][:3]))}; the group's end took {facts['destroy']:.2f} s")
        with open(os.path.join(folder, f"torch_nccl.ours.{mode}.0.log"), errors="replace") as log:
            said = [text.strip() for text in log if "communicator" in text and "native" in text]
        line(bool(said), f"{mode}.log", f"{len(said)} communicators of ours: {said[0] if said else 'no line says so'}"[:400])
        different = [f"{name} of rank {rank}" for rank in range(2) for name, tensor in plain[rank]["results"].items()
                     if not torch.equal(tensor, over[rank]["results"][name])]
        names = len(plain[0]["results"])
        line(not different, f"{mode}.results", f"{names} results, bit for bit those of the plain run"
             if not different else f"{len(different)} of {2 * names} differ: {', '.join(different[:5])}")
    return 1 if failed else 0


if sys.argv[1] == "--rank":
    child(int(sys.argv[2]), sys.argv[3])
else:
    sys.exit(main())
