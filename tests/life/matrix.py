"""The fault matrix: what happens to one rank of three, when, and on which tier; every other rank's calls return within
their limits, with a text that names it.

FLAGOSCOMM_TEST_STANDINS is the folder with NVIDIA's stand-ins. By hand:

    FLAGOSCOMM_TEST_LIBRARY=target/release/libflagos_comm.so FLAGOSCOMM_TEST_STANDINS=$(cargo run -q \\
        -p flagos-comm-testkit --bin standins) python3 tests/life/matrix.py faults_of_a_rank_everywhere
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

import flagos as f
from flagos import lib
from life import SLACK, check, cycles, pair_of_threads, possessions, settles, thread_names
from ranks import Process, main, role, say

SCENARIOS = {}
NRANKS = 3
LIMIT = 2.0
LIVENESS = 0.6
STANDINS = os.environ.get("FLAGOSCOMM_TEST_STANDINS", "")
# It goes with this process; ranks need none.
SCRATCH = tempfile.TemporaryDirectory(prefix="flagos-matrix-") if "--role" not in sys.argv else None
FOLDER = SCRATCH.name if SCRATCH else ""

for _name, _arguments in {"SetDevice": [ctypes.c_int32], "MemAlloc": [ctypes.c_void_p, ctypes.c_size_t]}.items():
    _function = getattr(lib, "flagos" + _name)
    _function.argtypes = _arguments
    _function.restype = ctypes.c_int32


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def environment(tier):
    env = {"FLAGOSCOMM_TIERS": tier, "FLAGOSCOMM_TIMEOUT": str(LIMIT), "LD_LIBRARY_PATH": "", "FLAGOSCOMM_LIVENESS": ""}
    if tier == "native":
        env.update(LD_LIBRARY_PATH=STANDINS, FLAGOSCOMM_LIVENESS=str(LIVENESS), FAKE_DEVICES="4")
    return env


# ---- a rank

def tell(what, begin, code, words):
    say(f"{what} {code} {time.monotonic() - begin:.2f} {words}")


def ends_at_a_word():
    """What is called is busy inside the library; a line from outside ends the process in order."""
    def listen():
        for line in sys.stdin:
            if line == "exit\n":
                os._exit(0)
            words.append(line)
            heard.set()
    heard, words = threading.Event(), []
    threading.Thread(target=listen, daemon=True).start()
    return heard


@role
def member(rank, nranks, unique, tier, early, moment):
    """One rank's life: init, collectives until one fails, destroy. It says how each has ended."""
    heard = ends_at_a_word()
    if early == "exit":
        os._exit(0)
    if early in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if early == "kill" else signal.SIGSTOP)
    if early == "small files":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    native = tier == "native"
    if native:
        f.ok(lib.flagosSetDevice(rank))
    begin = time.monotonic()
    try:
        comm = f.init(nranks, unique, rank)
    except f.Failed as error:
        return tell("init", begin, error.code, error.words)
    tell("init", begin, 0, "")
    if native:
        data = ctypes.c_void_p()
        f.ok(lib.flagosMemAlloc(ctypes.byref(data), 4096))
    else:
        data = (ctypes.c_float * 1000)()

    def collective():
        code = lib.flagosAllReduce(data, data, 1000, f.FLOAT32, f.SUM, comm, None)
        if code == 0 and native:
            # On a stand-in, as on a device, the waiting is here.
            lib.flagosStreamSynchronize(None)
            code = f.async_error(comm)
        return code

    check(collective() == 0, f.text(comm))
    say("ready")
    if moment == "collective":
        while (code := collective()) == 0:
            begin = time.monotonic()
        tell("collective", begin, code, f.text(comm))
    else:
        heard.wait()
    begin = time.monotonic()
    code = lib.flagosCommDestroy(comm)
    tell("destroy", begin, code, f.text(None) if code else "")


@role
def outlives(rank, nranks, unique):
    """A rank on a vendor's library that asks for the state until another is gone, and then calls on."""
    f.ok(lib.flagosSetDevice(rank))
    comm = f.init(nranks, unique, rank)
    data = ctypes.c_void_p()
    f.ok(lib.flagosMemAlloc(ctypes.byref(data), 4096))
    f.ok(lib.flagosAllReduce(data, data, 1000, f.FLOAT32, f.SUM, comm, None))
    f.ok(lib.flagosStreamSynchronize(None))
    say("ready")
    begin = time.monotonic()
    while (code := f.async_error(comm)) == 0:
        time.sleep(0.01)
    tell("state", begin, code, f.text(comm))
    begin = time.monotonic()
    code = lib.flagosAllReduce(data, data, 1000, f.FLOAT32, f.SUM, comm, None)
    tell("collective", begin, code, f.text(comm))
    begin = time.monotonic()
    code = lib.flagosCommDestroy(comm)
    tell("destroy", begin, code, f.text(None) if code else "")


# ---- a fault

def shim():
    """The library that does it at a known moment."""
    path = os.path.join(FOLDER, "shim.so")
    if not os.path.exists(path):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", source, "-o", path, "-ldl"], check=True)
    return path


def at_frame(kinds, nth, how):
    return {"LD_PRELOAD": shim(), "SHIM_KINDS": kinds, "SHIM_NTH": str(nth), "SHIM_ACT": how}


def hangs(log, call):
    """Waits until a stand-in's log says that somebody is inside a call that hangs."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if any(call in line and "-> hang" in line for line in open(log, encoding="utf-8")):
                return
        except FileNotFoundError:
            pass
        time.sleep(0.01)
    raise AssertionError(f"nobody is inside {call}")


def do(how, process):
    """The fault, to a running rank."""
    if how == "exit":
        process.process.stdin.write("exit\n")
        process.process.stdin.flush()
    else:
        process.kill(signal.SIGKILL if how == "kill" else signal.SIGSTOP)


def result(process, what, limit):
    """How a call of a rank has ended: code and words. It must have ended in time."""
    line = process.line(limit + 2 * SLACK + 10)
    kind, code, seconds, words = line.split(" ", 3)
    check(kind == what, f"{process.name} said {line!r} and not {what}")
    check(float(seconds) <= limit + SLACK, f"{process.name} took {seconds} s: {line!r}")
    return int(code), words


# A rank's parts and results of exchanges on the wire, and its goodbye.
PARTS, BYE = "7,8", "10"
MOMENTS = ("rendezvous", "agreement", "vendor init", "collective", "destroy")
DEATHS = ("kill", "exit", "stop")


def one_fault(tier, moment, how, bad):
    """One cell of the matrix."""
    log = os.path.join(FOLDER, f"log-{time.monotonic_ns()}")
    unique = f.unique_id()
    env, own, early = environment(tier), {}, ""
    inside = None
    if moment == "rendezvous":
        early = how
    elif moment == "agreement":
        own = at_frame(PARTS, 1, how)
    elif moment == "vendor init" and tier == "native":
        own, inside = {"FAKE_HANG": "ncclCommInitRank"}, "ncclCommInitRank"
    elif moment == "vendor init":
        own = at_frame(PARTS, 3, how)
    elif moment == "destroy" and tier == "native":
        own, inside = {"FAKE_HANG": "ncclCommDestroy"}, "ncclCommDestroy"
    elif moment == "destroy":
        own = at_frame(BYE, 1, how)
    env["FAKE_LOG"] = log
    ranks = [Process("member", rank, NRANKS, unique, (tier, early if rank == bad else "", moment),
                     env={**env, **own} if rank == bad else env) for rank in range(NRANKS)]
    others = [one for rank, one in enumerate(ranks) if rank != bad]
    try:
        if moment == "vendor init" and inside:
            hangs(log, inside)
            do(how, ranks[bad])
        if moment in ("rendezvous", "agreement", "vendor init"):
            for one in others:
                code, words = result(one, "init", LIMIT)
                check(code in (f.REMOTE, f.TIMEOUT), one.name, code, words)
                check(named(bad, words), f"rank {bad} is not named: {words}")
            return
        for one in ranks:
            check(result(one, "init", LIMIT)[0] == 0, one.name)
            one.expect("ready")
        if moment == "collective":
            time.sleep(0.1)
            do(how, ranks[bad])
            for one in others:
                code, words = result(one, "collective", LIMIT)
                check(code in (f.REMOTE, f.TIMEOUT), one.name, code, words)
                check(named(bad, words), f"rank {bad} is not named: {words}")
        else:
            ranks[bad].go()
            if inside:
                hangs(log, inside)
                do(how, ranks[bad])
            else:
                time.sleep(0.2)
            for one in others:
                one.go()
        for one in others:
            # Destroy is local: it needs nobody.
            code, words = result(one, "destroy", LIMIT)
            check(code == 0, one.name, code, words)
            one.end()
    finally:
        for one in ranks:
            one.process.kill()
            one.process.wait()


def named(bad, words):
    """Whether a text names the rank, also among others: 'missing: ranks 0, 2 of 3'."""
    text = words.replace(", ", ",").replace("ranks ", "rank ")
    for rest in text.split("rank ")[1:]:
        listed = rest.split(" ")[0].rstrip(";:.)")
        for part in listed.split(","):
            low, _, high = part.partition("-")
            if low.isdigit() and int(low) <= bad <= int(high if high.isdigit() else low):
                return True
    return False


def cells(tiers, bad_ranks):
    for tier in tiers:
        for moment in MOMENTS:
            for how in DEATHS:
                for bad in bad_ranks:
                    yield tier, moment, how, bad


def run_cells(all_cells):
    """All of them are tried; the first failure is told with its cell."""
    failed, count = [], 0
    for cell in all_cells:
        begin = time.monotonic()
        try:
            one_fault(*cell)
        except AssertionError as error:
            failed.append(f"{cell}: {error}")
        count += 1
        print(f"{time.monotonic() - begin:5.2f} s {cell}{' FAILED' if failed and failed[-1].startswith(str(cell)) else ''}",
              flush=True)
    check(count > 0)
    check(not failed, "\n\n".join(failed))


@scenario
def a_slice_of_the_faults_of_a_rank():
    """Each moment once on each tier, with deaths and ranks in turn."""
    turn = 0
    chosen = []
    for tier in ("host", "native"):
        for moment in MOMENTS:
            chosen.append((tier, moment, DEATHS[turn % 3], (turn // 2 + 1) % NRANKS))
            turn += 1
    run_cells(chosen)


@scenario
def faults_of_a_rank_everywhere():
    """Every death at every moment on both tiers; of rank 0, which the others hear each other through, and of another."""
    run_cells(cells(("host", "native"), (0, 2)))


# ---- ranks that come with something wrong

def wrong(tier, env_bad, bad, code, parts, early="", rank=None, nranks=NRANKS):
    """One rank is not like the others: the same code on all, and a text with these parts."""
    unique = f.unique_id()
    env = environment(tier)
    ranks = [Process("member", rank if rank is not None and r == bad else r, nranks if r == bad else NRANKS, unique,
                     (tier, early if r == bad else "", "wrong"), env={**env, **env_bad} if r == bad else env)
             for r in range(NRANKS)]
    try:
        for one in ranks:
            got, words = result(one, "init", LIMIT)
            check(got == code, tier, one.name, got, words)
            check(all(part in words for part in parts), tier, one.name, parts, words)
    finally:
        for one in ranks:
            one.process.kill()
            one.process.wait()


@scenario
def ranks_that_come_with_something_wrong():
    """A failed init, another version, another number of ranks, a rank that comes twice: alike on all ranks."""
    for bad in (0, 2):
        wrong("native", {"FAKE_FAIL": "ncclCommInitRank:1"}, bad, 1, [f"rank {bad} ", "ncclCommInitRank failed with 1"])
        wrong("native", {"FAKE_CCL_VERSION": "22707"}, bad, f.USAGE, [f"rank {bad} ", "22707", "different versions"])
        for tier in ("host", "native"):
            wrong(tier, {}, bad, f.USAGE, ["says 4", "says 3", f"rank {bad} "], nranks=4)
            wrong(tier, {}, bad, f.USAGE, ["rank 1 came twice"], rank=1)
            wrong(tier, {"FLAGOSCOMM_CHECK": "1"}, bad, f.USAGE, [f"rank {bad} ", "FLAGOSCOMM_CHECK"])
    wrong("native", {"FLAGOSCOMM_LIVENESS": "9"}, 2, f.USAGE, ["rank 2 ", "FLAGOSCOMM_LIVENESS"])
    # Only rank 0 makes the segment of the host tier.
    wrong("host", {}, 0, f.SYSTEM, ["rank 0"], early="small files")


# ---- the network

def skip(why):
    print(f"SKIPPED: {why}", flush=True)


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


def namespaces(count):
    """Network namespaces of our own, or nothing if there can be none."""
    try:
        if os.geteuid() != 0 or ip("-V").returncode != 0:
            return skip("a network that is cut needs root and iproute2")
    except FileNotFoundError:
        return skip("a network that is cut needs iproute2 (ip)")
    names = [f"flagos-{os.getpid()}-{n}" for n in range(count)]
    for name in names:
        made = ip("netns", "add", name)
        if made.returncode != 0 or ip("netns", "exec", name, "true").returncode != 0:
            remove(names)
            return skip(f"no network namespace can be made: {made.stderr.strip()}")
        ip("-n", name, "link", "set", "lo", "up")
    return names


def remove(names):
    for name in names:
        ip("netns", "del", name)


@role
def serves(_rank, _nranks, _unique):
    """Makes an id in this namespace, and serves it."""
    say(f.unique_id().hex())
    sys.stdin.readline()


def cable(here, there):
    """A cable between two namespaces, or nothing if there can be none."""
    made = ip("link", "add", "v0", "netns", here, "type", "veth", "peer", "name", "v1", "netns", there)
    if made.returncode != 0:
        return skip(f"no cable between namespaces (veth): {made.stderr.strip()}")
    for name, device, address in ((here, "v0", "10.77.0.1/24"), (there, "v1", "10.77.0.2/24")):
        ip("-n", name, "addr", "add", address, "dev", device)
        ip("-n", name, "link", "set", device, "up")
    return True


def cut_between_machines(moment):
    """Two namespaces and one cable: ranks 0 and 1 here, rank 2 there."""
    names = namespaces(2)
    if not names:
        return
    processes = []
    try:
        here, there = names
        if not cable(here, there):
            return
        # The name matters: a cable's is taken for a container's, which is used only if nothing else is there.
        env = {**environment("host"), "FLAGOSCOMM_SOCKET_IFNAME": "=v0,v1"}
        serving = Process("serves", 0, 0, b"", env=env, prefix=("ip", "netns", "exec", here))
        processes.append(serving)
        unique = bytes.fromhex(serving.line())
        if moment == "rendezvous":
            ip("-n", there, "link", "set", "v1", "down")
        for rank in range(NRANKS):
            own = at_frame(PARTS, 1, "stop") if moment == "agreement" and rank == 1 else {}
            prefix = ("ip", "netns", "exec", there if rank == 2 else here)
            processes.append(Process("member", rank, NRANKS, unique, ("host", "", ""), env={**env, **own}, prefix=prefix))
        if moment == "agreement":
            # Rank 1 stops where all would exchange what they are, so that the exchange goes on when the cable is cut.
            stopped(processes[2])
            ip("-n", there, "link", "set", "v1", "down")
        for rank, one in enumerate(processes[1:]):
            if moment == "agreement" and rank == 1:
                continue
            code, words = result(one, "init", LIMIT)
            check(code in (f.TIMEOUT, f.REMOTE, f.SYSTEM), one.name, code, words)
            # Who is beyond the cable, or behind the one that stopped, is missing; there, it is who serves.
            if rank != 2:
                check(any(named(r, words) for r in (1, 2) if r != rank), one.name, words)
            else:
                check(named(0, words) or "10.77.0.1" in words or "the process that made the unique id" in words,
                      one.name, words)
    finally:
        for one in processes:
            one.process.kill()
            one.process.wait()
        remove(names)


def stopped(process):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if open(f"/proc/{process.pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()[0] == "T":
            return
        time.sleep(0.01)
    raise AssertionError(f"{process.name} does not stop")


def cut_inside(moment):
    """One namespace whose loopback device goes down: the stand-ins' own connections are no TCP, so that the control
    channel alone is cut, and the ranks are in a collective that nobody fails."""
    names = namespaces(1)
    if not names:
        return
    ranks = []
    try:
        env = environment("native")
        serving = Process("serves", 0, 0, b"", env=env, prefix=("ip", "netns", "exec", names[0]))
        ranks.append(serving)
        unique = bytes.fromhex(serving.line())
        ranks += [Process("member", rank, NRANKS, unique, ("native", "", moment), env=env,
                          prefix=("ip", "netns", "exec", names[0])) for rank in range(NRANKS)]
        for one in ranks[1:]:
            check(result(one, "init", LIMIT)[0] == 0)
            one.expect("ready")
        ip("-n", names[0], "link", "set", "lo", "down")
        if moment == "destroy":
            for one in ranks[1:]:
                one.go()
        else:
            for rank, one in enumerate(ranks[1:]):
                code, words = result(one, "collective", LIVENESS + LIMIT)
                check(code == f.REMOTE and any(named(r, words) for r in range(NRANKS) if r != rank), one.name, words)
                check("FLAGOSCOMM_LIVENESS" in words and "pid" in words, words)
        for one in ranks[1:]:
            check(result(one, "destroy", LIMIT)[0] == 0)
            one.end()
    finally:
        for one in ranks:
            one.process.kill()
            one.process.wait()
        remove(names)


@scenario
def a_rank_that_is_lost_ends_the_communicator():
    """Without a thread that watches: after its state has said so, nothing goes to the vendor any more, and the end
    is an abort, since the vendor's destroy may wait for the rank that is gone."""
    log = os.path.join(FOLDER, "lost.log")
    env = {**environment("native"), "FLAGOSCOMM_LIVENESS": "", "FAKE_LOG": log}
    unique = f.unique_id()
    first = Process("outlives", 0, 2, unique, env=env)
    other = Process("member", 1, 2, unique, ("native", "", "destroy"), env={**env, "FAKE_LOG": ""})
    first.expect("ready")
    check(result(other, "init", LIMIT)[0] == 0)
    other.expect("ready")
    do("kill", other)
    for what in ("state", "collective"):
        code, words = result(first, what, LIMIT)
        check(code == f.REMOTE and named(1, words), what, code, words)
    check(result(first, "destroy", LIMIT)[0] == 0)
    first.end()
    calls = open(log, encoding="utf-8").read()
    check(calls.count("ncclAllReduce(") == 1 and "ncclCommDestroy" not in calls, calls)
    check("ncclCommAbort" in calls, calls)


@scenario
def a_network_that_is_cut():
    """The cable between two machines, before the ranks meet and while they agree; the control channel during
    collectives and at the end."""
    for moment in ("rendezvous", "agreement"):
        cut_between_machines(moment)
    for moment in ("collective", "destroy"):
        cut_inside(moment)


# ---- nothing is left

@role
def vendor_cycles(_rank, _nranks, _unique, count, fails):
    fails = fails == "fails"

    def once():
        unique = f.unique_id()

        def body(rank):
            f.ok(lib.flagosSetDevice(rank))
            if fails:
                # Two ranks on one device, or a number of ranks that differs: all are refused.
                try:
                    f.init(2 + rank, unique, rank)
                except f.Failed as error:
                    return error.code
            comm = f.init(2, unique, rank)
            f.destroy(comm)
            return 0

        results = pair_of_threads(body)
        check(results == ([f.USAGE] * 2 if fails else [0, 0]), results)

    for _ in range(3):
        once()
    time.sleep(0.5)
    before = possessions()
    for _ in range(int(count)):
        once()
    settles(before, f"{count} cycles", rendezvous=8 if fails else 0)


@scenario
def cycles_on_a_vendor_leave_nothing():
    """Descriptors, threads (also those that watch), mappings, names and sockets over cycles of init and destroy, and of
    inits that fail, on a stand-in."""
    for fails in ("works", "fails"):
        one = Process("vendor_cycles", 0, 1, b"", (cycles(), fails), env=environment("native"))
        one.end(0, 150)


# ---- abort

@role
def aborted_at(rank, _nranks, _unique, what):
    """The seconds that an abort from another thread takes to wake a waiting one; the best of a few."""
    best = 9.0
    for _ in range(5):
        unique = f.unique_id()
        comms, waiting = [None, None], None
        if what == "collective":
            threads = [threading.Thread(target=lambda r=r: comms.__setitem__(r, f.init(2, unique, r))) for r in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            waiting = threading.Thread(target=lambda: lib.flagosBarrier(comms[0], None))
        elif what == "init":
            comms[0] = f.init(2, unique, int(rank), blocking=0)
            waiting = threading.Thread(target=lambda: wait_for_init(), daemon=True)
        else:
            comms[0] = f.init(2, unreachable(unique), 1, blocking=0)
            waiting = threading.Thread(target=lambda: wait_for_init(), daemon=True)

        def wait_for_init():
            while any("flagos-init" in name for name in thread_names()):
                time.sleep(0.001)

        time.sleep(0.05)
        waiting.start()
        time.sleep(0.1)
        check(waiting.is_alive(), "it does not wait")
        begin = time.monotonic()
        f.ok(lib.flagosCommAbort(comms[0]))
        waiting.join(10)
        check(not waiting.is_alive())
        best = min(best, time.monotonic() - begin)
        if comms[1]:
            lib.flagosCommAbort(comms[1])
    say(f"{best:.3f}")


def unreachable(unique):
    """The same id with an address at the cable that nobody has, and a right checksum: it is looked for for seconds."""
    one = bytearray(unique)
    one[10] = 1
    one[32:56] = bytes([1, 0, 4, 0, 10, 77, 0, 99]) + bytes(16)
    total = 0xcbf29ce484222325
    for byte in one[:120]:
        total = ((total ^ byte) * 0x100000001b3) % (1 << 64)
    one[120:128] = total.to_bytes(8, "little")
    return bytes(one)


@scenario
def abort_wakes_every_wait_at_once():
    """Within 100 ms, at best of five on a busy machine: a collective, an init that waits for ranks, one that connects."""
    env = {"FLAGOSCOMM_TIERS": "host", "FLAGOSCOMM_TIMEOUT": "30"}
    for what, rank in (("collective", 0), ("init", 0), ("init", 1)):
        one = Process("aborted_at", rank, 2, b"", (what,), env=env)
        check(float(one.line(60)) <= 0.1, what, rank)
    names = namespaces(2)
    if not names:
        return
    try:
        if cable(*names):
            one = Process("aborted_at", 1, 2, b"", ("connect",), env=env, prefix=("ip", "netns", "exec", names[0]))
            check(float(one.line(60)) <= 0.1, "connect")
    finally:
        remove(names)


if __name__ == "__main__":
    main(SCENARIOS)
