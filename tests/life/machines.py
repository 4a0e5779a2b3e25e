"""Communicators of the host tier over several machines, which here are network namespaces on one bridge: the kernel is
one, so that UCX is told to use TCP and the bridge's device; everything of ours finds out by itself that no memory can
be shared.

    FLAGOSCOMM_TEST_LIBRARY=target/release/libflagos_comm.so python3 tests/life/machines.py SCENARIO
"""

import ctypes
import ctypes.util
import hashlib
import os
import random
import signal
import sys
import threading
import time

import flagos as f
from flagos import lib
from life import SLACK, check, cycles, cycles_of_pairs, pair_of_threads, possessions, settles
from matrix import ip, named, namespaces, remove, skip
from ranks import Process, main, role, say

SCENARIOS = {}
LIMIT = 3.0
LIVENESS = 0.6
OVER_TCP = {"UCX_TLS": "tcp,self"}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


for _name, _arguments in {
    "AllGather": 3, "Gather": 4, "Scatter": 4, "AlltoAll": 3, "ReduceScatter": 3, "AlltoAllv": 7,
}.items():
    getattr(lib, "flagos" + _name).restype = ctypes.c_int32
_p, _n, _i = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
lib.flagosAllGather.argtypes = [_p, _p, _n, _i, _p, _p]
lib.flagosGather.argtypes = [_p, _p, _n, _i, _i, _p, _p]
lib.flagosScatter.argtypes = [_p, _p, _n, _i, _i, _p, _p]
lib.flagosAlltoAll.argtypes = [_p, _p, _n, _i, _p, _p]
lib.flagosReduceScatter.argtypes = [_p, _p, _n, _i, _i, _p, _p]
lib.flagosAlltoAllv.argtypes = [_p, _p, _p, _p, _p, _p, _i, _p, _p]


# ---- machines

def has_ucx():
    """Whether the system has UCX."""
    if ctypes.util.find_library("ucp"):
        return True
    return skip("the host tier across machines needs UCX (Debian: libucx0)")


class Machines:
    """Namespaces `0..count` with an address each on one bridge, or nothing if there can be none."""

    def __init__(self, count):
        self.names = []
        made = namespaces(count + 1) if has_ucx() else None
        if not made:
            return
        self.names, switch = made[:-1], made[-1]
        self.all = made
        self.processes = []
        if ip("-n", switch, "link", "add", "br0", "type", "bridge").returncode != 0:
            self.remove()
            skip("no bridge between network namespaces can be made")
            return
        ip("-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(self.names):
            port = f"p{number}"
            cable = ip("link", "add", port, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", name)
            if cable.returncode != 0:
                self.remove()
                skip(f"no cable between namespaces (veth): {cable.stderr.strip()}")
                return
            ip("-n", switch, "link", "set", port, "master", "br0", "up")
            ip("-n", name, "addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")

    def __bool__(self):
        return bool(self.names)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        for one in self.processes if self.names else []:
            one.process.kill()
            one.process.wait()
        if self.names:
            remove(self.all)
            self.names = []

    def process(self, machine, name, rank, nranks, unique, arguments=(), env=None):
        env = {**OVER_TCP, "UCX_NET_DEVICES": "eth0", "FLAGOSCOMM_TIERS": "host", "FLAGOSCOMM_TIMEOUT": "20", **(env or {})}
        one = Process(name, rank, nranks, unique, arguments, env=env, prefix=("ip", "netns", "exec", self.names[machine]))
        self.processes.append(one)
        return one

    def start(self, places, name, *arguments, env=None):
        """One rank on each of these machines."""
        serving = self.process(places[0], "serves", 0, 0, b"")
        unique = bytes.fromhex(serving.line())
        return [self.process(machine, name, rank, len(places), unique, arguments, env)
                for rank, machine in enumerate(places)]

    def cut(self, machine):
        ip("-n", self.names[machine], "link", "set", "eth0", "down")


# ---- the same numbers wherever the ranks are

def bytes_of(seed, count):
    return random.Random(seed).randbytes(count)


SIZES = {0: 1, 1: 1, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 1, 11: 1}


WITHOUT_HIGHEST_EXPONENT_BIT = bytes(byte & 0xbf for byte in range(256))


def sane(dtype, raw):
    """Bytes that are no NaN in any float: which NaN comes of two is the processor's business."""
    raw = bytearray(raw)
    size = SIZES[dtype]
    if dtype in (f.FLOAT16, f.FLOAT32, f.FLOAT64, f.BFLOAT16):
        raw[size - 1::size] = raw[size - 1::size].translate(WITHOUT_HIGHEST_EXPONENT_BIT)
    return bytes(raw)


ROUNDED = (f.FLOAT16, f.FLOAT32, f.FLOAT64, f.BFLOAT16)
"""Types of which sums and products are rounded."""
SELECTING = (2, 3)
"""Operators whose results are one of their operands."""


def all_operations(comm, rank, nranks, digest, common):
    """Every collective with every type and operator, small and large, out of place and in place. Results that are
    rounded go into `common`, if there is one, as far as all ranks get them."""
    for count in (0, 1, 13, 5001, 150_001):
        for dtype in range(12):
            size = SIZES[dtype]
            if count == 150_001 and dtype not in (f.FLOAT32, f.BFLOAT16):
                continue
            own = sane(dtype, bytes_of(f"{rank} {count} {dtype}", count * size * nranks))
            root = (count + dtype) % nranks
            for in_place in (False, True):
                def call(what, send_bytes, recv_bytes, own_at, *rest):
                    """`own_at`: where in the receive buffer the send buffer lies, in place."""
                    send = (ctypes.c_ubyte * max(send_bytes, 1))()
                    recv = (ctypes.c_ubyte * max(recv_bytes, send_bytes, 1))()
                    ctypes.memmove(send, own, send_bytes)
                    at = send
                    if in_place and own_at is not None:
                        at = ctypes.byref(recv, own_at)
                        ctypes.memmove(at, own, send_bytes)
                    f.ok(what(at, recv, count, dtype, *rest, comm, None), comm)
                    digest.update(bytes(recv))
                block, whole = count * size, count * size * nranks
                for op in range(5) if dtype < 10 else ():
                    if common and dtype in ROUNDED and op not in SELECTING:
                        recv = (ctypes.c_ubyte * max(block, 1))()
                        f.ok(lib.flagosAllReduce(own, recv, count, dtype, op, comm, None), comm)
                        common.update(bytes(recv))
                        continue
                    call(lib.flagosAllReduce, block, block, 0, op)
                    call(lib.flagosReduce, block, block, 0, op, root)
                    if not in_place:
                        call(lib.flagosReduceScatter, whole, block, None, op)
                call(lib.flagosBroadcast, block, block, 0, root)
                call(lib.flagosAllGather, block, whole, rank * block)
                call(lib.flagosGather, block, whole, rank * block if rank == root else None, root)
                call(lib.flagosAlltoAll, whole, whole, 0)
                if not in_place:
                    call(lib.flagosScatter, whole, block, None, root)


def messages(comm, rank, nranks, digest):
    """Rings alone and in groups, small and large."""
    after, before = (rank + 1) % nranks, (rank - 1) % nranks
    if nranks == 1:
        return
    for count in (0, 1, 1000, 300_000):
        send = (ctypes.c_ubyte * max(count, 1)).from_buffer_copy(bytes_of(f"{rank} {count}", max(count, 1)))
        recv = (ctypes.c_ubyte * max(count, 1))()
        for in_group in (True, False):
            if in_group:
                f.ok(lib.flagosGroupStart())
            calls = [lambda: lib.flagosSend(send, count, f.UINT8, after, comm, None),
                     lambda: lib.flagosRecv(recv, count, f.UINT8, before, comm, None)]
            if not in_group and count > 1000 and rank == 0:
                calls.reverse()
            for call in calls:
                f.ok(call(), comm)
            if in_group:
                f.ok(lib.flagosGroupEnd())
            digest.update(bytes(recv))


def sizes(values):
    return (ctypes.c_size_t * len(values))(*values)


def all_to_all_v(comm, rank, nranks, digest):
    for unit in (3, 9000):
        sent = [unit * ((rank * 3 + peer * 5) % 4) for peer in range(nranks)]
        got = [unit * ((peer * 3 + rank * 5) % 4) for peer in range(nranks)]
        def displs(counts):
            return [sum(counts[:at]) for at in range(nranks)]
        send = (ctypes.c_ubyte * (4 * sum(sent) + 1)).from_buffer_copy(bytes_of(f"{rank} {unit}", 4 * sum(sent) + 1))
        recv = (ctypes.c_ubyte * (4 * sum(got) + 1))()
        f.ok(lib.flagosAlltoAllv(send, sizes(sent), sizes(displs(sent)), recv, sizes(got), sizes(displs(got)),
                                 f.INT32, comm, None), comm)
        digest.update(bytes(recv))


@role
def numbers(rank, nranks, unique, apart="", title=""):
    """A digest of what comes of every operation, on a communicator and on its children; `apart`, one of what is rounded
    and the same on all ranks."""
    comm = f.init(nranks, unique, rank)
    digest = hashlib.sha256()
    common = hashlib.sha256() if apart else None
    all_operations(comm, rank, nranks, digest, common)
    all_to_all_v(comm, rank, nranks, digest)
    messages(comm, rank, nranks, digest)
    for color in (rank % 2, rank // 2):
        child = f.split(comm, color, -rank)
        digest.update(repr(f.all_reduce(child, [float(rank)] * 5000)).encode())
        f.destroy(child)
    f.ok(lib.flagosCommFinalize(comm), comm)
    f.destroy(comm)
    say(title + digest.hexdigest())
    if common:
        say(common.hexdigest())


def all_numbers(start, nranks):
    ranks = start()
    lines = [one.line(120) for one in ranks]
    for one in ranks:
        one.end()
    check(len(lines) == nranks)
    return lines


@scenario
def results_in_layers_are_the_same_on_all_ranks():
    """What nothing is rounded in is bit by bit what ranks get that share memory, wherever the ranks are; the rest is the same
    on all ranks."""
    with Machines(3) as machines:
        if not machines:
            return
        for places in ((0, 1, 0, 1), (0, 1, 1, 2, 2)):
            layers_agree_with_shared_memory(machines, places, {})


def layers_agree_with_shared_memory(machines, places, env):
    """What nothing is rounded in, bit by bit; the rest is the same on all ranks. What the first rank has said of its engine."""
    def run(places, env):
        ranks = machines.start(places, "numbers", "apart", env=env)
        lines = [(one.line(120), one.line()) for one in ranks]
        for one in ranks:
            one.end()
        return [exact for exact, _ in lines], {common for _, common in lines}, ranks[0].stderr()
    exact, common, errors = run(places, {**env, "FLAGOSCOMM_LOG": "info"})
    check(len(common) == 1, places, common)
    check("shared memory inside them" in errors, errors)
    together, _, _ = run([0] * len(places), {"FLAGOSCOMM_HOST_ENGINE": "shm"})
    check(exact == together, places, exact, together)
    return errors


@scenario
def results_do_not_depend_on_where_the_ranks_are():
    """Two machines with one rank each, with two each, and three with different numbers: bit by bit what ranks get that
    share memory, if there are no layers."""
    with Machines(3) as machines:
        if not machines:
            return
        for places in ((0, 1), (0, 0, 1, 1), (0, 1, 1, 2, 2)):
            nranks = len(places)
            flat = {"FLAGOSCOMM_HOST_HIERARCHY": "0"}
            apart = all_numbers(lambda: machines.start(places, "numbers", env=flat), nranks)
            together = all_numbers(
                lambda: machines.start([0] * nranks, "numbers", env={"FLAGOSCOMM_HOST_ENGINE": "shm"}), nranks)
            check(apart == together, places, apart, together)


# ---- what it is, and what is missing

@role
def tells(rank, nranks, unique):
    """How an init ends, and one collective."""
    try:
        comm = f.init(nranks, unique, rank)
        f.all_reduce(comm)
        f.destroy(comm)
        say("0")
    except f.Failed as error:
        say(f"{error.code} {error.words}")


@scenario
def without_ucx_the_error_says_what_was_tried_and_what_to_install():
    """The same error on all ranks; a rank that can't share memory with the others, and one that asks for another engine,
    too."""
    unique = f.unique_id()
    missing = {"FLAGOSCOMM_TIERS": "host", "FLAGOSCOMM_HOST_ENGINE": "ucx", "FLAGOSCOMM_TIMEOUT": "20"}
    ranks = [Process("tells", rank, 2, unique, env={**missing, **({"FLAGOSCOMM_ENGINE_PATH": "/nowhere/libucp.so.0"}
                                                               if rank == 1 else {})}) for rank in range(2)]
    for one in ranks:
        words = one.line()
        for part in ("9 ", "rank 1 ", "/nowhere/libucp.so.0", "libucx0", "openmpi", "FLAGOSCOMM_ENGINE_PATH"):
            check(part in words, one.name, part, words)
        one.end()
    unique = f.unique_id()
    ranks = [Process("tells", rank, 2, unique, env={**missing, "FLAGOSCOMM_HOST_ENGINE": ("auto", "shm")[rank]})
             for rank in range(2)]
    for one in ranks:
        words = one.line()
        check(words.startswith(f"{f.USAGE} ") and "FLAGOSCOMM_HOST_ENGINE" in words, words)
        one.end()
    with Machines(2) as machines:
        if not machines:
            return
        for one in machines.start((0, 1), "tells", env={"FLAGOSCOMM_HOST_ENGINE": "shm"}):
            words = one.line()
            check(words.startswith("9 ") and "rank 1 is not on the machine" in words, words)
            one.end()
        # Layers are for all or none.
        unique = bytes.fromhex(machines.process(0, "serves", 0, 0, b"").line())
        ranks = [machines.process(rank % 2, "tells", rank, 3, unique,
                                  env={"FLAGOSCOMM_HOST_HIERARCHY": str(int(rank != 1))}) for rank in range(3)]
        for one in ranks:
            words = one.line()
            check(words.startswith(f"{f.USAGE} ") and "FLAGOSCOMM_HOST_HIERARCHY" in words and "rank 1" in words, words)
            one.end()
        ranks = machines.start((0, 1), "tells", env={"FLAGOSCOMM_LOG": "info"})
        for one in ranks:
            one.expect("0")
            one.end()
        check("runs on the host tier: UCX 1." in ranks[0].stderr(), ranks[0].stderr())
        # UCX, too, writes nothing to standard output: `expect` has seen all of it but this.
        check(all(one.rest() == [] for one in ranks))


@scenario
def machines_that_ucx_does_not_connect_are_named():
    """UCX is told to use a device that leads nowhere: an error within its limit, not a hang."""
    with Machines(2) as machines:
        if not machines:
            return
        begin = time.monotonic()
        ranks = machines.start((0, 1), "tells", env={"UCX_NET_DEVICES": "lo", "FLAGOSCOMM_TIMEOUT": "4"})
        for one in ranks:
            words = one.line()
            check(not words.startswith("0") and "rank" in words, words)
            check(all(name in words for name in ("UCX_NET_DEVICES=lo", "UCX_TLS=tcp,self", "FLAGOSCOMM_SOCKET_IFNAME")), words)
            one.end()
        check(time.monotonic() - begin < 4 + 2 * SLACK)


# ---- what goes wrong

def tell(what, begin, code, words):
    say(f"{what} {code} {time.monotonic() - begin:.3f} {words}")


@role
def goes_on(rank, nranks, unique, what, count):
    """Collectives or a lone receive until one fails, then one more, then destroy; how each has ended and when."""
    comm = f.init(nranks, unique, rank)
    count = int(count)
    data = (ctypes.c_float * count)()

    def call():
        if what == "recv" and rank == 0:
            return lib.flagosRecv(data, count, f.FLOAT32, nranks - 1, comm, None)
        if what == "recv":
            time.sleep(60)
        return lib.flagosAllReduce(data, data, count, f.FLOAT32, 0, comm, None)

    f.ok(lib.flagosAllReduce(data, data, count, f.FLOAT32, f.SUM, comm, None), comm)
    say("ready")
    code = 0
    while code == 0:
        code = call()
    say(f"failed {code} {time.monotonic():.3f} {f.text(comm)}")
    begin = time.monotonic()
    code = call()
    tell("again", begin, code, f.text(comm))
    state = f.async_error(comm)
    begin = time.monotonic()
    code = lib.flagosCommDestroy(comm)
    tell("destroy", begin, code, str(state))
    # Not before it is told: its end would be seen on a machine that is none.
    sys.stdin.readline()


def ends(process, what, limit=SLACK):
    kind, code, seconds, words = process.line(30).split(" ", 3)
    check(kind == what, process.name, kind, code, words)
    check(what == "failed" or float(seconds) < limit, process.name, what, seconds, words)
    return int(code), float(seconds), words


def end_of_all(ranks, codes, bad, texts=()):
    """Every rank's error is one of these and names the bad one; the times of the errors, on the clock of all."""
    times = []
    for one in ranks:
        code, when, words = ends(one, "failed")
        check(code in codes, one.name, code, words)
        check(named(bad, words), one.name, f"rank {bad} is not named: {words}")
        check(all(text in words for text in texts), one.name, words)
        times.append(when)
        # It stays so, at once.
        again, _, words = ends(one, "again", 0.5)
        check(again in codes and named(bad, words), one.name, again, words)
        code, _, state = ends(one, "destroy")
        check(code == 0 and int(state) in codes, one.name, code, state)
    return times


@scenario
def a_rank_that_is_killed_on_another_machine_ends_the_others():
    """The others' errors come within 100 ms, at best of three on a busy machine, and name it; inside small and large
    collectives and a receive."""
    for what, count in (("collective", 2), ("collective", 400_000), ("recv", 10)):
        best = 9.0
        for _ in range(3):
            with Machines(3) as machines:
                if not machines:
                    return
                ranks = machines.start((0, 1, 2), "goes_on", what, count)
                for one in ranks:
                    one.expect("ready")
                time.sleep(0.1)
                begin = time.monotonic()
                ranks[2].kill()
                # In a receive rank 1 is no part.
                waiting = ranks[:1] if what == "recv" else ranks[:2]
                times = end_of_all(waiting, (f.REMOTE,), 2)
                best = min(best, max(times) - begin)
                for one in waiting:
                    one.go()
                    one.end()
            if best < 0.1:
                break
        print(f"{what} of {count}: {best * 1000:.0f} ms", flush=True)
        check(best < 0.1, what, count, best)


@scenario
def a_rank_that_is_killed_in_either_layer_ends_all():
    """Two machines with two ranks each, of which one dies or is stopped: a leader or not, in small and in large collectives.
    All others name it, on both machines, as the kernel tells of it or by the deadline."""
    for bad, count in ((1, 2), (3, 400_000), (2, 2), (2, 400_000)):
        for stops in (False, True):
            with Machines(2) as machines:
                if not machines:
                    return
                limit = {"FLAGOSCOMM_COLLECTIVE_TIMEOUT": "1.5"} if stops else {}
                ranks = machines.start((0, 0, 1, 1), "goes_on", "collective", count, env=limit)
                for one in ranks:
                    one.expect("ready")
                time.sleep(0.1)
                begin = time.monotonic()
                ranks[bad].process.send_signal(signal.SIGSTOP if stops else signal.SIGKILL)
                waiting = [one for rank, one in enumerate(ranks) if rank != bad]
                times = end_of_all(waiting, (f.TIMEOUT, f.REMOTE) if stops else (f.REMOTE,), bad)
                check(max(times) - begin < (1.5 if stops else 0) + SLACK, times, begin)
                for one in waiting:
                    one.go()
                    one.end()


@scenario
def a_cable_that_is_cut_ends_the_collectives_of_all():
    """On both sides, by the deadline, and before it if the ranks watch each other."""
    for limits, texts in (({"FLAGOSCOMM_COLLECTIVE_TIMEOUT": "1.5"}, ()),
                          ({"FLAGOSCOMM_LIVENESS": str(LIVENESS)}, ("FLAGOSCOMM_LIVENESS",))):
        with Machines(2) as machines:
            if not machines:
                return
            ranks = machines.start((0, 0, 1), "goes_on", "collective", 1000, env=limits)
            for one in ranks:
                one.expect("ready")
            time.sleep(0.1)
            begin = time.monotonic()
            machines.cut(1)
            here = end_of_all(ranks[:2], (f.TIMEOUT, f.REMOTE), 2, texts)
            code, when, words = ends(ranks[2], "failed")
            for one in ranks:
                one.go()
                one.end()
            check(code in (f.TIMEOUT, f.REMOTE) and (named(0, words) or named(1, words)), code, words)
            check(max(*here, when) - begin < 1.5 + SLACK, here, when, begin)


@role
def aborts(rank, nranks, unique):
    """Rank 0 is aborted by another thread while all wait for the last rank, which does not call."""
    comm = f.init(nranks, unique, rank)
    if rank == 0:
        threading.Timer(0.3, lambda: lib.flagosCommAbort(comm)).start()
    if rank == nranks - 1:
        say("ready")
        sys.stdin.readline()
        f.destroy(comm)
        return
    data = (ctypes.c_float * 9)()
    begin = time.monotonic()
    code = lib.flagosAllReduce(data, data, 9, f.FLOAT32, 0, comm, None)
    # The text of an aborted one is the thread's.
    tell("aborted", begin, code, f.text(comm if rank else None))
    if rank:
        f.destroy(comm)


@scenario
def an_abort_on_one_machine_ends_the_others():
    with Machines(2) as machines:
        if not machines:
            return
        ranks = machines.start((0, 1, 1), "aborts")
        for rank, wanted in ((0, (f.ABORTED,)), (1, (f.REMOTE,))):
            code, _, words = ends(ranks[rank], "aborted")
            check(code in wanted, rank, code, words)
            check(rank == 0 or named(0, words), words)
        ranks[2].go()
        for one in ranks:
            one.end()


@role
def disagrees(rank, nranks, unique):
    """Different calls are an error everywhere, and the communicator works on."""
    comm = f.init(nranks, unique, rank)
    for number, count in ((1, 4), (3, 100_000)):
        data = (ctypes.c_float * (count + rank))()
        code = lib.flagosAllReduce(data, data, count + rank, f.FLOAT32, 0, comm, None)
        check(code == f.USAGE and f"count {count}, float32" in f.text(comm), code, f.text(comm))
        check(f" #{number} on" in f.text(comm) and f"collective number {number} of" in f.text(comm), f.text(comm))
        check(f.all_reduce(comm) == [float(nranks)])
    # One leaves in order; who still needs it is told so.
    if rank == nranks - 1:
        f.destroy(comm)
        return
    begin = time.monotonic()
    code = lib.flagosBarrier(comm, None)
    tell("left", begin, code, f.text(comm))
    f.destroy(comm)


@scenario
def calls_that_differ_across_machines_are_an_error_on_every_rank():
    for places in ((0, 1), (0, 1, 1), (0, 0, 1, 1)):
        with Machines(2) as machines:
            if not machines:
                return
            ranks = machines.start(places, "disagrees")
            for one in ranks[:-1]:
                code, _, words = ends(one, "left")
                check(code == f.REMOTE and named(len(places) - 1, words), code, words)
            for one in ranks:
                one.end()


@role
def leaves(rank, nranks, unique):
    """Large collectives, and away at once."""
    comm = f.init(nranks, unique, rank)
    count = 700_000
    data = (ctypes.c_float * count)()
    for _ in range(3):
        f.ok(lib.flagosAllReduce(data, data, count, f.FLOAT32, f.SUM, comm, None), comm)
    f.destroy(comm)


@scenario
def a_rank_that_leaves_at_once_has_done_its_part():
    """What the last to end still has under way is no error, although the other has closed its connections."""
    if has_ucx():
        env = {**OVER_TCP, "FLAGOSCOMM_TIERS": "host", "FLAGOSCOMM_HOST_ENGINE": "ucx", "FLAGOSCOMM_TIMEOUT": "20"}
        for _ in range(12):
            unique = f.unique_id()
            for one in [Process("leaves", rank, 2, unique, env=env) for rank in range(2)]:
                one.end()


@role
def hangs_up(rank, nranks, unique, handled):
    """SIGHUP is what it was before: the end of the process, or a handler of the program's."""
    told = []
    signal.signal(signal.SIGHUP, (lambda *_: told.append(1)) if int(handled) else signal.SIG_DFL)
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    say("ready")
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.2)
    check(int(handled) and told == [1], "SIGHUP was taken by somebody else")
    f.destroy(comm)


@scenario
def a_hangup_is_left_to_the_program_over_ucx():
    """UCX has a handler for it unless it is told otherwise."""
    if has_ucx():
        env = {**OVER_TCP, "FLAGOSCOMM_TIERS": "host", "FLAGOSCOMM_HOST_ENGINE": "ucx", "FLAGOSCOMM_TIMEOUT": "20"}
        for handled, code in ((0, -signal.SIGHUP), (1, 0)):
            unique = f.unique_id()
            ranks = [Process("hangs_up", rank, 2, unique, (handled,), env=env) for rank in range(2)]
            for one in ranks:
                one.expect("ready")
            for one in ranks:
                one.go()
            for one in ranks:
                one.end(code)


# ---- without those who are lost

@role
def ends_in_order(rank, nranks, unique, how):
    """Rank 1 leaves, or revokes the communicator, while rank 0 waits for a message of it."""
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    data = (ctypes.c_float * 200_000)()
    if rank == 1:
        sys.stdin.readline()
        f.ok(lib.flagosCommRevoke(comm, 0) if how == "revokes" else lib.flagosCommDestroy(comm), comm)
    else:
        say("ready")
        code = lib.flagosRecv(data, 200_000, f.FLOAT32, 1, comm, None)
        say(code, f.text(comm))
        if how == "revokes":
            check(f.async_error(comm) == f.REMOTE)
    if how == "revokes":
        # What has ended are the operations, and not what it can be split over.
        f.destroy(f.split(comm, 0, 0))
        f.destroy(comm)
    elif rank == 0:
        f.destroy(comm)


@scenario
def what_a_rank_did_that_ended_a_wait_on_another_machine_is_said():
    """And not how UCX found that its connection was closed."""
    for how, words in (("leaves", "has left (destroyed its communicator)"), ("revokes", "revoked the communicator")):
        with Machines(2) as machines:
            if not machines:
                return
            ranks = machines.start((0, 1), "ends_in_order", how)
            ranks[0].expect("ready")
            time.sleep(0.2)
            ranks[1].go()
            said = ranks[0].line()
            check(said.startswith(f"{f.REMOTE} ") and named(1, said) and words in said, how, said)
            for one in ranks:
                one.end()


@role
def revoked_beside(rank, nranks, unique, waiting_in):
    """Rank 0 revokes the communicator while ranks wait that hear of it from their machine first."""
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    data = (ctypes.c_float * 200_000)()
    if rank == 0:
        sys.stdin.readline()
        f.ok(lib.flagosCommRevoke(comm, 0), comm)
    elif rank == 1 or waiting_in == "all_reduce":
        say("ready")
        if waiting_in == "all_reduce":
            code = lib.flagosAllReduce(data, data, 200_000, f.FLOAT32, 0, comm, None)
        else:
            code = lib.flagosRecv(data, 200_000, f.FLOAT32, 0, comm, None)
        text = f.text(comm)
        check(code == f.REMOTE and named(0, text) and "revoked the communicator" in text, code, text)
    f.destroy(f.split(comm, 0, 0))
    f.destroy(comm)


@scenario
def layers_that_a_revoke_ends_can_be_split():
    """Also by ranks that have heard of it through shared memory before they were told over the network."""
    for waiting_in in ("recv", "all_reduce"):
        for _ in range(3):
            with Machines(2) as machines:
                if not machines:
                    return
                ranks = machines.start((0, 0, 1, 1), "revoked_beside", waiting_in)
                for one in ranks[1:] if waiting_in == "all_reduce" else ranks[1:2]:
                    one.expect("ready")
                time.sleep(0.2)
                ranks[0].go()
                for one in ranks:
                    one.end()


@role
def revoked_then_shrunk(rank, nranks, unique):
    """Rank 1 revokes the communicator while all others wait in a collective, and these go on without it at once."""
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    if rank == 1:
        sys.stdin.readline()
        f.ok(lib.flagosCommRevoke(comm, 0), comm)
        say("revoked")
        sys.stdin.readline()
    else:
        say("ready")
        try:
            f.all_reduce(comm)
            check(False, "an all-reduce without rank 1")
        except f.Failed as error:
            check(error.code == f.REMOTE and named(1, str(error)) and "revoked" in str(error), error)
        child = f.shrink(comm, [1], 0)
        check(f.all_reduce(child) == [float(nranks - 1)])
        f.destroy(child)
    f.destroy(comm)


@scenario
def a_revoke_that_is_heard_through_shared_memory_is_passed_on_before_a_shrink():
    """A shrink doesn't read what the ranks of another machine can hear through this one only."""
    for _ in range(2):
        with Machines(2) as machines:
            if not machines:
                return
            ranks = machines.start((0, 0, 1, 1), "revoked_then_shrunk")
            for rank in (0, 2, 3):
                ranks[rank].expect("ready")
            time.sleep(0.2)
            ranks[1].go()
            ranks[1].expect("revoked")
            for rank in (0, 2, 3):
                ranks[rank].end()
            ranks[1].go()
            ranks[1].end()


@role
def broken_off_at_once(rank, nranks, unique):
    """Rank 1 aborts fresh communicators while their first large messages are under way."""
    base = f.init(nranks, unique, rank)
    size = 600_000
    sent, got = (ctypes.c_ubyte * size)(), (ctypes.c_ubyte * size)()
    def abort(comm, after):
        time.sleep(after)
        lib.flagosCommAbort(comm)

    for turn in range(80):
        comm = f.split(base, 0, 0)
        f.ok(lib.flagosBarrier(base, None), base)
        ending = threading.Thread(target=abort, args=(comm, turn % 16 * 0.0002))
        if rank == 1:
            ending.start()
        while True:
            lib.flagosGroupStart()
            lib.flagosSend(sent, size, 1, (rank + 1) % nranks, comm, None)
            lib.flagosRecv(got, size, 1, (rank - 1) % nranks, comm, None)
            if lib.flagosGroupEnd():
                break
        if rank == 1:
            ending.join()
        else:
            f.destroy(comm)
    f.destroy(base)


@scenario
def an_abort_while_ucx_connects_ends_no_process():
    """UCX 1.13 gives up the process if an endpoint is closed before its connection is there."""
    if has_ucx():
        env = {**OVER_TCP, "FLAGOSCOMM_TIERS": "host", "FLAGOSCOMM_HOST_ENGINE": "ucx", "FLAGOSCOMM_TIMEOUT": "20"}
        unique = f.unique_id()
        for one in [Process("broken_off_at_once", rank, 4, unique, (), env=env) for rank in range(4)]:
            one.end()


@role
def shrinks_apart(rank, nranks, unique, dying, way):
    """What is left of a communicator over several machines goes on without a rank, or all ranks of a machine."""
    dying = [int(one) for one in dying.split(",")]
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    say("ready")
    if rank in dying:
        time.sleep(60)
    if way == "abort":
        try:
            while True:
                f.all_reduce(comm)
        except f.Failed as error:
            check(error.code in (f.REMOTE, f.ABORTED), error)
    else:
        sys.stdin.readline()
    child = f.shrink(comm, dying, 1 if way == "abort" else 0)
    alive = [one for one in range(nranks) if one not in dying]
    check(f.numbers(child) == (alive.index(rank), len(alive)), f.numbers(child))
    for count in (1, 30_000):
        check(f.all_reduce(child, [float(rank)] * count) == [float(sum(alive))] * count)
    f.destroy(comm)
    # It outlives its parent, and can be split and shrink again.
    grand = f.split(child, 0, 0)
    check(f.all_reduce(grand) == [float(len(alive))])
    f.destroy(grand)
    if len(alive) > 2 and f.numbers(child)[0] > 0:
        last = f.shrink(child, [0])
        check(f.all_reduce(last) == [float(len(alive) - 1)])
        f.destroy(last)
    f.destroy(child)


@scenario
def a_communicator_over_machines_shrinks():
    """Without a rank that was killed, be it rank 0 or the leader of another machine, or without a whole machine; in layers
    and without; after a failure and at rest."""
    for places, dying, way in (((0, 0, 1, 1), (0,), "abort"), ((0, 0, 1, 1), (2,), "rest"), ((0, 1, 2), (0,), "rest"),
                               ((0, 1, 1, 2), (0, 3), "abort"), ((0, 0, 1), (2,), "abort")):
        with Machines(3) as machines:
            if not machines:
                return
            ranks = machines.start(places, "shrinks_apart", ",".join(map(str, dying)), way)
            for one in ranks:
                one.expect("ready")
            for rank in dying:
                ranks[rank].kill()
                ranks[rank].end(-signal.SIGKILL)
            alive = [one for rank, one in enumerate(ranks) if rank not in dying]
            if way == "rest":
                for one in alive:
                    one.go()
            for one in alive:
                one.end(0, 30)


# ---- nothing is left

@role
def ucx_cycles(_rank, _nranks, _unique, count):
    cycles_of_pairs(int(count), lambda _rank, comm: f.destroy(comm))


@scenario
def cycles_over_ucx_leave_nothing():
    """Descriptors, threads, mappings, names and sockets over cycles of init and destroy."""
    if has_ucx():
        env = {**OVER_TCP, "FLAGOSCOMM_TIERS": "host", "FLAGOSCOMM_HOST_ENGINE": "ucx", "FLAGOSCOMM_TIMEOUT": "20"}
        Process("ucx_cycles", 0, 1, b"", (max(cycles() // 4, 10),), env=env).end(0, 150)


def resident():
    """Memory of this process, in KiB."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@role
def layer_cycles(machine, nmachines, unique, count):
    """Two ranks of one machine as threads; children of the communicator of all come and go."""
    nranks = 2 * nmachines
    parents = [None, None]

    def both(body):
        results = pair_of_threads(body)
        check(results == [0, 0], results)

    def meet(place):
        parents[place] = f.init(nranks, unique, 2 * machine + place)
        f.all_reduce(parents[place])
        return 0

    def once(place):
        child = f.split(parents[place], 0, 0)
        check(f.all_reduce(child) == [float(nranks)])
        # In blocks over both rails.
        check(f.all_reduce(child, [2.0] * 40_000) == [2.0 * nranks] * 40_000)
        f.destroy(child)
        return 0

    def leave(place):
        f.destroy(parents[place])
        return 0

    both(meet)
    for _ in range(20):
        both(once)
    time.sleep(0.3)
    before, memory = possessions(), resident()
    for _ in range(int(count)):
        both(once)
    settles(before, f"{count} cycles")
    say(f"{resident() - memory} KiB more")
    # What allocators keep does not grow with the cycles: some 12 MiB, also after 2000.
    check(resident() - memory < 24 << 10, memory, resident())
    both(leave)


@scenario
def cycles_of_layers_leave_nothing():
    """Descriptors, threads, mappings, memory and abstract sockets over cycles of communicators in layers."""
    with Machines(2) as machines:
        if not machines:
            return
        count = max(cycles() // 4, 10)
        unique = bytes.fromhex(machines.process(0, "serves", 0, 0, b"").line())
        ranks = [machines.process(machine, "layer_cycles", machine, 2, unique, (count,), {"FLAGOSCOMM_LOG": "info"})
                 for machine in range(2)]
        for one in ranks:
            print(one.line(180), flush=True)
            one.end()
        check("shared memory inside them" in ranks[0].stderr(), ranks[0].stderr())


if __name__ == "__main__":
    main(SCENARIOS)
