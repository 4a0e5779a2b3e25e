"""What happens to communicators of the host tier when ranks come late, fail, die, fork, exec or exit.

Each scenario is one test (capi/tests/tests/capi/life.rs runs it under its name) and cites what it proves in
docs/bug-reports.md. Run one by hand:

    FLAGOSCOMM_TEST_LIBRARY=target/release/libflagos_comm.so python3 tests/life/life.py SCENARIO
"""

import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import flagos as f
from flagos import lib
from ranks import Process, main, role, run, say, start

SCENARIOS = {}
# A rank that has to notice something within its limits is given this much more on a busy machine.
SLACK = 3.0


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def fails(call, *arguments):
    """The error of a call that must fail, and the seconds it took."""
    begin = time.monotonic()
    try:
        call(*arguments)
    except f.Failed as error:
        return error, time.monotonic() - begin
    raise AssertionError("the call succeeded")


def limits(seconds):
    return {"FLAGOSCOMM_TIMEOUT": str(seconds)}


def check(condition, *words):
    if not condition:
        raise AssertionError(" ".join(map(str, words)))


def fork(body):
    """Runs body in a forked child; the child's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


# ---- roles that many scenarios use

@role
def plain(rank, nranks, unique):
    """Init, one AllReduce, destroy."""
    comm = f.init(nranks, unique, rank)
    check(f.all_reduce(comm, [float(rank)]) == [nranks * (nranks - 1) / 2])
    f.destroy(comm)


@role
def init_and_tell(rank, nranks, unique):
    """How an init ends."""
    begin = time.monotonic()
    try:
        f.destroy(f.init(nranks, unique, rank))
        say("ok")
    except f.Failed as error:
        say(f"{error.code} {time.monotonic() - begin:.2f} {error.words}")


def told(process, timeout=30):
    """What `init_and_tell` and its like said: code, seconds, words."""
    code, seconds, words = process.line(timeout).split(" ", 2)
    return int(code), float(seconds), words


# ---- LD-4

@role
def no_driver(rank, nranks, unique):
    plain(rank, nranks, f.unique_id())


@scenario
def without_a_driver_nothing_panics():
    """LD-4: no driver, no vendor named, nothing on the library path."""
    one = Process("no_driver", 0, 1, b"", env={"LD_LIBRARY_PATH": "", "FLAGOSCOMM_TIERS": "", "GEMS_VENDOR": ""})
    one.end(0)
    check("panicked" not in one.stderr(), one.stderr())


# ---- BT-2

@scenario
def an_id_serves_one_communicator():
    """BT-2: the second use of an id fails at once, and says why."""
    unique = f.unique_id()
    run(2, "plain", unique)
    for again in start(2, "init_and_tell", unique, env=limits(5)):
        code, seconds, words = told(again)
        check(code == f.USAGE and seconds < SLACK and "already used" in words, code, seconds, words)
        again.end()


@scenario
def a_malformed_id_is_refused():
    """BT-2: zero bytes, random bytes, one flipped byte; and an id whose zero bytes matter."""
    good = bytearray(f.unique_id())
    bad = [bytes(256), random.Random(1).randbytes(256)]
    for at in (0, 8, 16, 33, 119, 127):
        flipped = bytearray(good)
        flipped[at] ^= 1
        bad.append(bytes(flipped))
    for unique in bad:
        error, seconds = fails(f.init, 1, unique, 0)
        check(error.code == f.ARGUMENT and "id" in error.words and seconds < SLACK, error)
    f.destroy(f.init(1, bytes(good), 0))


# ---- BT-1, BT-4, BT-5

@scenario
def an_interface_that_does_not_exist_is_said_at_once():
    """BT-4: no match lists what there is; a list, exact names and exclusions are understood."""
    def ask(value):
        code = "import flagos as f; f.unique_id(); print('fine')"
        env = dict(os.environ, FLAGOSCOMM_SOCKET_IFNAME=value, FLAGOSCOMM_LOG="info", PYTHONPATH=os.path.dirname(__file__))
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=20)
    for value in ("nope0", "=l", "^lo,eth,en,wl,docker,br,veth,tun,tap,ens,bond,ib"):
        got = ask(value)
        if value.startswith("^") and got.returncode == 0:
            continue  # this machine has yet another interface
        check(got.returncode != 0 and "lo" in got.stderr and value.lstrip("=^").split(",")[0] in got.stderr, got.stderr)
    for value in ("lo", "=lo", "nope0,lo", "l"):
        got = ask(value)
        check(got.returncode == 0 and "interface lo" in got.stderr, value, got.stderr)


@scenario
def loopback_is_enough():
    """BT-1 and an extra: with the loopback interface alone, in both families where there are both."""
    families = ["ipv4"]
    if os.path.exists("/proc/net/if_inet6") and " lo" in open("/proc/net/if_inet6", encoding="ascii").read():
        families.append("ipv6")
    for family in families:
        env = {"FLAGOSCOMM_SOCKET_IFNAME": "=lo", "FLAGOSCOMM_SOCKET_FAMILY": family}
        zero = Process("serve", 0, 2, b"", env=env)
        unique = bytes.fromhex(zero.line())
        one = Process("plain", 1, 2, unique, env=env)
        zero.end()
        one.end()


@role
def serve(rank, nranks, _unique):
    """Rank 0 makes the id itself."""
    unique = f.unique_id()
    say(unique.hex())
    plain(rank, nranks, unique)


@scenario
def ranks_that_disagree_on_their_number_all_hear_it():
    """BT-5: 2 and 3 ranks: the same error on both, naming the two."""
    unique = f.unique_id()
    ranks = [Process("init_and_tell", 0, 2, unique, env=limits(20)), Process("init_and_tell", 1, 3, unique, env=limits(20))]
    for one in ranks:
        code, seconds, words = told(one)
        check(code == f.USAGE and seconds < 10 and "says 2" in words and "says 3" in words, code, seconds, words)


@scenario
def ranks_that_disagree_on_their_tiers_all_hear_it():
    """BT-5: different settings are one error everywhere, naming the odd rank."""
    unique = f.unique_id()
    ranks = [Process("init_and_tell", rank, 3, unique, env={"FLAGOSCOMM_TIERS": tiers, **limits(20)})
             for rank, tiers in enumerate(["host", "native,host", "host"])]
    for one in ranks:
        code, seconds, words = told(one)
        check(code == f.USAGE and seconds < 10 and "rank 1" in words and "native" in words, code, words)


# ---- HG-1, deadlines

@scenario
def a_rank_that_never_comes_is_named():
    """HG-1: rank 0 of 2 alone; also when it is rank 0 that is missing."""
    for rank in (0, 1):
        one = Process("init_and_tell", rank, 2, f.unique_id(), env=limits(0.5))
        code, seconds, words = told(one)
        check(code == f.TIMEOUT and 0.4 < seconds < 0.5 + SLACK and f"rank {1 - rank}" in words, code, seconds, words)


@scenario
def a_rank_that_dies_during_init_ends_the_init():
    """HG-1: rank 1 of 3 is killed after it connected."""
    unique = f.unique_id()
    dying = Process("init_and_tell", 1, 3, unique, env=limits(30))
    zero = Process("init_and_tell", 0, 3, unique, env=limits(30))
    time.sleep(0.6)
    dying.kill()
    code, seconds, words = told(zero)
    check(code == f.REMOTE and seconds < 10 and "rank 1" in words, code, seconds, words)


@role
def init_for_ever(rank, nranks, unique):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    say("waiting")
    f.init(nranks, unique, rank)


@scenario
def ctrl_c_ends_a_waiting_program():
    """HG-1: nothing of ours blocks SIGINT, also with no deadline at all (0)."""
    for limit in (60, 0):
        one = Process("init_for_ever", 0, 2, f.unique_id(), env=limits(limit))
        one.expect("waiting")
        time.sleep(0.3)
        one.kill(signal.SIGINT)
        one.end(-signal.SIGINT, 5)


@role
def stuck_collective(rank, nranks, unique, leaves):
    comm = f.init(nranks, unique, rank)
    if rank == int(leaves):
        say("in")
        time.sleep(20)
        os._exit(0)
    begin = time.monotonic()
    error, _ = fails(f.all_reduce, comm)
    say(f"{error.code} {time.monotonic() - begin:.2f} {error.words}")


@scenario
def a_collective_that_a_rank_does_not_call_times_out():
    """FLAGOSCOMM_COLLECTIVE_TIMEOUT, and FLAGOSCOMM_TIMEOUT which sets all: the text names the rank and the call."""
    for variable in ("FLAGOSCOMM_COLLECTIVE_TIMEOUT", "FLAGOSCOMM_TIMEOUT"):
        for missing in (0, 1):
            env = {"FLAGOSCOMM_INIT_TIMEOUT": "30", variable: "0.5"}
            ranks = start(2, "stuck_collective", f.unique_id(), missing, env=env)
            code, seconds, words = told(ranks[1 - missing])
            check(code == f.TIMEOUT and 0.4 < seconds < 0.5 + SLACK, code, seconds, words)
            check(f"missing: rank {missing}" in words and "AllReduce(count 1, float32, sum)" in words, words)
            ranks[missing].kill()


@scenario
def zero_means_no_deadline():
    """FLAGOSCOMM_TIMEOUT=0: a late rank is waited for."""
    unique = f.unique_id()
    zero = Process("plain", 0, 2, unique, env=limits(0))
    time.sleep(1.0)
    check(zero.process.poll() is None, zero.stderr())
    Process("plain", 1, 2, unique, env=limits(0)).end()
    zero.end()


# ---- HG-4, LC-1

@role
def leaves_before_use(rank, nranks, unique, leaver):
    comm = f.init(nranks, unique, rank)
    if rank == int(leaver):
        os._exit(0)
    begin = time.monotonic()
    error, _ = fails(f.all_reduce, comm)
    say(f"{error.code} {time.monotonic() - begin:.2f} {error.words}")
    check(f.async_error(comm) != f.SUCCESS)
    begin = time.monotonic()
    f.destroy(comm)
    check(time.monotonic() - begin < SLACK)


@scenario
def a_rank_that_exits_before_the_first_collective_is_noticed():
    """HG-4, both roles: the error comes quickly and names the rank."""
    for leaver in (0, 1):
        ranks = start(2, "leaves_before_use", f.unique_id(), leaver)
        code, seconds, words = told(ranks[1 - leaver])
        check(code == f.REMOTE and seconds < SLACK and f"rank {leaver}" in words, code, seconds, words)
        ranks[1 - leaver].end()


@role
def one_dies(rank, nranks, unique, dying):
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    say("ready")
    if rank == int(dying):
        time.sleep(60)
    sys.stdin.readline()
    begin = time.monotonic()
    deadline = begin + 10
    while f.async_error(comm) == f.SUCCESS and time.monotonic() < deadline:
        time.sleep(0.005)
    state = f.async_error(comm)
    say(f"{state} {time.monotonic() - begin:.2f} {f.text(comm)}")
    begin = time.monotonic()
    f.destroy(comm)
    say(f"{time.monotonic() - begin:.2f}")


@scenario
def destroy_after_a_peer_was_killed_returns():
    """LC-1: kill -9; GetAsyncError tells, the others' destroy is quick. Rank 0 and rank 1 die in turn."""
    for dying in (1, 0):
        ranks = start(3, "one_dies", f.unique_id(), dying)
        for one in ranks:
            one.expect("ready")
        ranks[dying].kill()
        for one in (r for n, r in enumerate(ranks) if n != dying):
            one.go()
        for one in (r for n, r in enumerate(ranks) if n != dying):
            state, seconds, words = told(one)
            check(state == f.REMOTE and seconds < SLACK and f"rank {dying}" in words, state, seconds, words)
            check(float(one.line()) < SLACK)
            one.end()


@role
def killed_inside(rank, nranks, unique):
    comm = f.init(nranks, unique, rank)
    say("ready")
    try:
        while True:
            f.all_reduce(comm, [1.0] * 5000)
    except f.Failed as error:
        say(f"{error.code} 0 {error.words}")
        f.destroy(comm)


@scenario
def a_rank_killed_inside_a_collective_frees_the_others():
    """LC-1: no rank hangs, all name the dead one."""
    ranks = start(3, "killed_inside", f.unique_id())
    for one in ranks:
        one.expect("ready")
    time.sleep(0.2)
    ranks[2].kill()
    begin = time.monotonic()
    for one in ranks[:2]:
        code, _, words = told(one)
        check(code == f.REMOTE and "rank 2" in words, code, words)
        one.end()
    check(time.monotonic() - begin < SLACK)


@role
def killed_in_memory(rank, nranks, unique, where):
    count = 1 << 20
    make = f.memory if where == "heap" else lambda n: (ctypes.c_float * n)()
    sent, got = make(count), make(count)
    comm = f.init(nranks, unique, rank)
    done = 0
    try:
        while True:
            f.ok(lib.flagosAllReduce(sent, got, count, f.FLOAT32, f.SUM, comm, None), comm)
            done += 1
            if done == 5:
                say("ready")
    except f.Failed as error:
        say(f"{error.code} 0 {error.words}")
        f.destroy(comm)
    if where == "heap":
        f.free(sent)
        f.free(got)


@scenario
def a_rank_killed_while_its_memory_is_read_frees_the_others():
    """LC-1: large operations in the others' buffers, in shared memory and by copies of the kernel."""
    for where in ("heap", "private"):
        for _ in range(3):
            ranks = start(3, "killed_in_memory", f.unique_id(), where, env={"FLAGOSCOMM_SINGLE_COPY": "on"})
            for one in ranks:
                one.expect("ready")
            ranks[2].kill()
            begin = time.monotonic()
            for one in ranks[:2]:
                code, _, words = told(one)
                check(code == f.REMOTE and "rank 2" in words, where, code, words)
                one.end()
            check(time.monotonic() - begin < SLACK, where)


@role
def works(rank, nranks, unique):
    """Everything in a row; says how it ended."""
    say("up")
    sys.stdin.readline()
    try:
        comm = f.init(nranks, unique, rank)
        for _ in range(30):
            f.all_reduce(comm, [1.0] * 3000)
            child = f.split(comm, rank % 2, 0)
            f.all_reduce(child)
            f.destroy(child)
        f.destroy(comm)
        say("ok")
    except f.Failed as error:
        say(f"{error.code} {error.words}")
        try:
            f.destroy(comm)
        except NameError:
            pass


@scenario
def a_rank_killed_at_any_moment():
    """HG-1, LC-1: whatever the killed rank was doing, the others end soon, with an error that is not a deadline."""
    chance = random.Random(7)
    rounds = 200 if cycles() > 100 else 24
    for number in range(rounds):
        ranks = start(4, "works", f.unique_id(), env={"FLAGOSCOMM_INIT_TIMEOUT": "3"})
        for one in ranks:
            one.expect("up")
        for one in ranks:
            one.go()
        dying = chance.randrange(4)
        delay = chance.uniform(0.0, 0.1)
        time.sleep(delay)
        ranks[dying].kill()
        begin = time.monotonic()
        for one in (r for n, r in enumerate(ranks) if n != dying):
            line = one.line(30)
            took = time.monotonic() - begin
            # Only of a rank that had not yet connected nobody can know.
            never_came = line.startswith(f"{f.TIMEOUT} ") and f"missing: rank {dying} of 4" in line and "InitRank" in line
            check(line == "ok" or line.startswith(f"{f.REMOTE} ") or never_came, number, dying, delay, line)
            check(took < 10, "round", number, "rank", dying, "killed after", delay, "s:", took, line)
            one.end()


# ---- LC-2

@role
def exits_without_destroy(rank, nranks, unique, how):
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    if how == "thread":
        # Rank 0's daemon thread waits inside a collective that rank 1 never joins.
        if rank == 0:
            threading.Thread(target=lambda: lib.flagosBarrier(comm, None), daemon=True).start()
            time.sleep(0.3)
        sys.exit(0)
    if how == "exit":
        ctypes.CDLL(None).exit(0)
    if how == "os._exit":
        os._exit(0)
    sys.exit(0)


@scenario
def a_program_may_exit_without_destroying():
    """LC-2: exit of C, sys.exit and os._exit of Python, and a daemon thread inside a collective."""
    for how in ("exit", "sys.exit", "os._exit", "thread"):
        ranks = start(2, "exits_without_destroy", f.unique_id(), how)
        for one in ranks:
            one.end(0, 10)
            check(one.stderr() == "" or "panicked" not in one.stderr(), how, one.stderr())


# ---- LC-3

@role
def aborted_by_a_thread(rank, nranks, unique, stream):
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    say("ready")
    if rank == 1:
        deadline = time.monotonic() + 20
        while (state := f.async_error(comm)) == f.SUCCESS and time.monotonic() < deadline:
            time.sleep(0.01)
        say(f"{state} 0 {f.text(comm)}")
        f.destroy(comm)
        return
    result = []

    def wait():
        try:
            if stream == "stream":
                handle = ctypes.c_void_p()
                f.ok(lib.flagosStreamCreate(ctypes.byref(handle)))
                buffer = (ctypes.c_float * 1)()
                f.ok(lib.flagosAllReduce(buffer, buffer, 1, f.FLOAT32, f.SUM, comm, handle), comm)
                f.ok(lib.flagosStreamSynchronize(handle))
            else:
                f.all_reduce(comm)
        except f.Failed as error:
            result.append(error.code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    check(waiting.is_alive())
    begin = time.monotonic()
    f.ok(lib.flagosCommAbort(comm))
    aborted = time.monotonic() - begin
    waiting.join()
    check(result == [f.ABORTED], result)
    check(aborted < 2 and time.monotonic() - begin < 2, aborted, time.monotonic() - begin)
    count = ctypes.c_int32(7)
    check(lib.flagosCommCount(comm, ctypes.byref(count)) == f.ARGUMENT)


@scenario
def abort_frees_a_thread_that_waits_in_a_collective():
    """LC-3: both threads return within 2 s, and the other rank's GetAsyncError reports it."""
    for way in ("null", "stream"):
        ranks = start(2, "aborted_by_a_thread", f.unique_id(), way)
        ranks[0].expect("ready")
        ranks[1].expect("ready")
        ranks[0].end()
        state, _, words = told(ranks[1])
        check(state == f.REMOTE and "rank 0" in words and "abort" in words, state, words)
        ranks[1].end()


@scenario
def abort_of_an_init_that_waits_for_ranks():
    """LC-3: a non-blocking init waits for rank 1; its abort returns, and nothing is left running."""
    for rank in (0, 1):
        comm = f.init(2, f.unique_id(), rank, blocking=0)
        time.sleep(0.2)
        check(f.async_error(comm) == f.IN_PROGRESS)
        value = ctypes.c_float()
        code = lib.flagosAllReduce(ctypes.byref(value), ctypes.byref(value), 1, f.FLOAT32, f.SUM, comm, None)
        check(code == f.USAGE and "initialis" in f.text(comm), code, f.text(comm))
        check(lib.flagosCommDestroy(comm) == f.USAGE, "destroy of an init that goes on")
        begin = time.monotonic()
        f.ok(lib.flagosCommAbort(comm))
        check(time.monotonic() - begin < 2)
        check(lib.flagosCommAbort(comm) == f.ARGUMENT)
    deadline = time.monotonic() + 5
    while any("flagos-init" in name for name in thread_names()) and time.monotonic() < deadline:
        time.sleep(0.02)
    check(not any("flagos-init" in name for name in thread_names()), thread_names())


def thread_names():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(open(f"/proc/self/task/{task}/comm", encoding="ascii").read().strip())
        except FileNotFoundError:
            pass
    return names


@role
def nonblocking(rank, nranks, unique):
    time.sleep(0.2 * rank)
    begin = time.monotonic()
    comm = f.init(nranks, unique, rank, blocking=0)
    check(time.monotonic() - begin < 0.5)
    while (state := f.async_error(comm)) == f.IN_PROGRESS:
        time.sleep(0.002)
    f.ok(state, comm)
    check(f.all_reduce(comm) == [float(nranks)])
    f.destroy(comm)


@scenario
def a_nonblocking_init_completes():
    """LC-3: InProgress at once, then success by GetAsyncError."""
    run(3, "nonblocking", f.unique_id())


@role
def split_aborted(rank, nranks, unique):
    comm = f.init(nranks, unique, rank)
    say("ready")
    if rank == 1:
        sys.stdin.readline()
        f.destroy(comm)
        return
    result = []

    def wait():
        child = ctypes.c_void_p(1)
        result.append(lib.flagosCommSplit(comm, 0, 0, ctypes.byref(child), None))
        result.append(child.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    begin = time.monotonic()
    f.ok(lib.flagosCommAbort(comm))
    waiting.join(10)
    check(not waiting.is_alive() and time.monotonic() - begin < 2, "the split went on", time.monotonic() - begin)
    check(result[0] in (f.ABORTED, f.REMOTE, f.ARGUMENT) and result[1] is None, result)


@scenario
def abort_frees_a_thread_that_waits_in_a_split():
    """LC-3: a split waits for rank 1; the parent's abort ends it."""
    ranks = start(2, "split_aborted", f.unique_id())
    ranks[0].end(0, 20)
    ranks[1].go()
    ranks[1].end()


# ---- an operation on a stream while the thread is in a split

@role
def split_beside_a_stream(rank, nranks, unique):
    comm = f.init(nranks, unique, rank)
    if rank == 0:
        stream = ctypes.c_void_p()
        f.ok(lib.flagosStreamCreate(ctypes.byref(stream)))
        count = 1 << 20
        buffer = (ctypes.c_float * count)()
        f.ok(lib.flagosAllReduce(buffer, buffer, count, f.FLOAT32, f.SUM, comm, stream), comm)
        child = f.split(comm, 0, 0)
        f.ok(lib.flagosStreamSynchronize(stream))
        check(buffer[0] == 1.0 and buffer[count - 1] == 1.0)
    else:
        time.sleep(0.4)
        f.all_reduce(comm, [1.0] * (1 << 20))
        child = f.split(comm, 0, 0)
    check(f.all_reduce(child) == [2.0])
    f.destroy(child)
    f.destroy(comm)


@scenario
def a_split_does_not_stop_an_operation_on_a_stream():
    """Both ranks issue in the same order; on one the operation is still on its stream during the split."""
    run(2, "split_beside_a_stream", f.unique_id(), timeout=10)


# ---- TF-1, TF-3

@role
def forked_before(_rank, _nranks, _unique):
    version = ctypes.c_int32()
    f.ok(lib.flagosGetVersion(ctypes.byref(version)))
    lib.flagosGetErrorString(4)
    f.unique_id()
    pid = fork(lambda: plain(0, 1, f.unique_id()))
    check(os.waitpid(pid, 0)[1] == 0)
    plain(0, 1, f.unique_id())


@scenario
def a_child_of_a_fork_starts_clean():
    """TF-1: the parent has loaded, asked the version and made an id; the child does a whole init."""
    Process("forked_before", 0, 1, b"").end(0, 15)


@role
def keeps_a_child(rank, nranks, _unique):
    unique = f.unique_id()
    pid = fork(lambda: time.sleep(60))
    try:
        say(unique.hex())
        plain(rank, nranks, unique)
        say("used")
        sys.stdin.readline()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@scenario
def a_forked_child_does_not_keep_a_used_id_open():
    """TF-1, BT-2: the listening socket also lies in a child that sleeps; a second use still fails at once."""
    zero = Process("keeps_a_child", 0, 2, b"")
    unique = bytes.fromhex(zero.line())
    Process("plain", 1, 2, unique).end()
    zero.expect("used")
    code, seconds, words = told(Process("init_and_tell", 1, 2, unique, env=limits(5)))
    check(code == f.USAGE and seconds < SLACK and "already used" in words, code, seconds, words)
    zero.go()
    zero.end()


@role
def forked_with_communicator(_rank, _nranks, _unique):
    comm = f.init(1, f.unique_id(), 0)

    def body():
        number = ctypes.c_int32(7)
        value = ctypes.c_float()
        calls = [
            lambda: lib.flagosAllReduce(ctypes.byref(value), ctypes.byref(value), 1, f.FLOAT32, f.SUM, comm, None),
            lambda: lib.flagosCommCount(comm, ctypes.byref(number)),
            lambda: lib.flagosCommGetAsyncError(comm, ctypes.byref(number)),
            lambda: lib.flagosCommSplit(comm, 0, 0, ctypes.byref(ctypes.c_void_p()), None),
            lambda: lib.flagosCommFinalize(comm),
            lambda: lib.flagosCommRevoke(comm, 0),
            lambda: lib.flagosCommAbort(comm),
            lambda: lib.flagosCommDestroy(comm),
        ]
        for at, call in enumerate(calls):
            got = call()
            check(got == f.USAGE, at, got)
            check("fork" in f.text(comm) and "fork" in f.text(None), at, f.text(comm), "|", f.text(None))
        # Its own work as any other process, in places of its own.
        for _ in range(3):
            plain(0, 1, f.unique_id())
        check(lib.flagosCommCount(comm, ctypes.byref(number)) == f.USAGE)

    pid = fork(body)
    check(os.waitpid(pid, 0)[1] == 0)
    check(f.all_reduce(comm) == [1.0])
    f.destroy(comm)


@scenario
def a_communicator_of_before_a_fork_is_refused_in_the_child():
    """TF-1: every call, in words; the parent's works on, and the child makes its own."""
    Process("forked_with_communicator", 0, 1, b"").end(0, 15)


@role
def forked_with_memory(_rank, _nranks, _unique):
    floats = f.memory(3000)
    floats[7] = 5.0

    def body():
        # It sees what the parent has, and has a heap of its own.
        check(floats[7] == 5.0)
        check(lib.flagosMemFree(ctypes.addressof(floats)) == f.ARGUMENT)
        own = f.memory(3000)
        check(own[7] == 0.0 and ctypes.addressof(own) != ctypes.addressof(floats))
        floats[8] = 6.0
        f.free(own)

    pid = fork(body)
    check(os.waitpid(pid, 0)[1] == 0)
    check(floats[7] == 5.0 and floats[8] == 6.0, floats[7], floats[8])
    f.free(floats)


@scenario
def memory_of_before_a_fork_is_shared_with_the_child():
    """TF-1: flagosMemAlloc on the host tier; only the parent can free it."""
    Process("forked_with_memory", 0, 1, b"").end(0, 15)


GLIBC_STACKS = ("double free or corruption", "free(): ", "munmap_chunk(): ")


@role
def forked_while_busy(_rank, _nranks, _unique):
    stop = threading.Event()

    def cycle():
        while not stop.is_set():
            f.destroy(f.init(1, f.unique_id(), 0))

    def misuse():
        number = ctypes.c_int32()
        while not stop.is_set():
            lib.flagosCommCount(0x1234567, ctypes.byref(number))
            lib.flagosAllReduce(None, None, 1, 99, 0, keep, None)

    def streams():
        while not stop.is_set():
            handle = ctypes.c_void_p()
            f.ok(lib.flagosStreamCreate(ctypes.byref(handle)))
            f.ok(lib.flagosStreamDestroy(handle))

    keep = f.init(1, f.unique_id(), 0)
    threads = [threading.Thread(target=t, daemon=True) for t in (cycle, cycle, misuse, misuse, streams)]
    for thread in threads:
        thread.start()

    def body():
        number = ctypes.c_int32()
        check(lib.flagosCommCount(keep, ctypes.byref(number)) == f.USAGE)
        check("fork" in f.text(keep), f.text(keep))
        plain(0, 1, f.unique_id())
        handle = ctypes.c_void_p()
        f.ok(lib.flagosStreamCreate(ctypes.byref(handle)))
        f.ok(lib.flagosStreamDestroy(handle))

    def said_aside():
        os.dup2(aside.fileno(), 2)
        body()

    by_glibc = 0
    for _ in range(60):
        time.sleep(0.003)
        aside = tempfile.TemporaryFile()
        pid = fork(said_aside)
        deadline = time.monotonic() + 10
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise AssertionError("the child hangs")
            time.sleep(0.002)
        aside.seek(0)
        words = aside.read().decode()
        # glibc 2.36 keeps the stacks of the parent's threads for the child's. Of a thread that was just ending it frees
        # some thread-local memory twice then, whoever makes the child's first thread.
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT and words.startswith(GLIBC_STACKS):
            by_glibc += 1
            continue
        check(status == 0, status, words)
    stop.set()
    check(by_glibc <= 3, by_glibc, "children were ended by glibc")


@scenario
def a_fork_while_other_threads_are_inside_the_library():
    """TF-1: 60 forks while threads make, misuse and destroy; each child inits and works."""
    one = Process("forked_while_busy", 0, 1, b"")
    one.end(0, 90)


@role
def executes(rank, nranks, unique):
    comm = f.init(nranks, unique, rank)
    # One more id that is being served, and an init that goes on.
    f.unique_id()
    pending = f.init(2, f.unique_id(), 0, blocking=0)
    time.sleep(0.1)
    if rank == 0:
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False,
                                 stdin=subprocess.PIPE)
        own = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
               if os.path.islink(f"/proc/self/fd/{fd}")}
        check(any("socket" in target for target in own), own)
        time.sleep(0.1)
        theirs = [os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.pid}/fd")]
        bad = [target for target in theirs if "socket" in target or "memfd" in target or "anon" in target]
        check(not bad, bad)
        child.stdin.close()
        child.wait()
    f.ok(lib.flagosCommAbort(pending))
    f.all_reduce(comm)
    f.destroy(comm)


@scenario
def no_descriptor_survives_exec():
    """TF-3: a child that was started with close_fds=False has no socket and no shared memory of ours."""
    run(2, "executes", f.unique_id())


# ---- EINTR

@role
def interrupted(rank, nranks, unique):
    # A C handler without SA_RESTART, as a profiler would have it; Python's own would do no harm.
    hits = [0]
    signal.signal(signal.SIGALRM, lambda *_: hits.__setitem__(0, hits[0] + 1))
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    time.sleep(0.1 * rank)
    comm = f.init(nranks, unique, rank)
    for _ in range(50):
        check(f.all_reduce(comm, [1.0] * 3000) == [float(nranks)] * 3000)
    time.sleep(0.1 * rank)
    child = f.split(comm, 0, -rank)
    check(f.all_reduce(child) == [float(nranks)])
    f.destroy(child)
    f.destroy(comm)
    signal.setitimer(signal.ITIMER_REAL, 0)
    check(hits[0] > 3, hits)


@scenario
def signals_do_not_disturb():
    """EINTR: SIGALRM every 5 ms without SA_RESTART during init, collectives and a split."""
    run(3, "interrupted", f.unique_id())


# ---- nothing is left

def possessions():
    """What this process holds: descriptors by kind, threads, names in /dev/shm, abstract sockets of ours. Other
    processes have such sockets meanwhile, so only those that a descriptor of this one means count."""
    kinds, inodes = {}, set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            kind, _, which = os.readlink(f"/proc/self/fd/{fd}").partition(":")
        except FileNotFoundError:
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
        if kind == "socket":
            inodes.add(which.strip("[]"))
    shm = [name for name in os.listdir("/dev/shm") if "flagos" in name.lower()]
    unix = [line for line in open("/proc/net/unix", encoding="ascii", errors="replace")
            if "@flagos-comm" in line and line.split()[6] in inodes]
    maps = sum("flagos" in line or "memfd" in line for line in open("/proc/self/maps", encoding="ascii")
               if ".so" not in line)
    return {"fds": kinds, "threads": len(os.listdir("/proc/self/task")), "shm": shm, "unix": len(unix), "maps": maps}


def settles(before, what, seconds=6, rendezvous=0):
    """Waits until this process holds no more than before, but for so many rendezvous that tell latecomers why they
    failed (a thread and a socket each)."""
    deadline = time.monotonic() + seconds
    while True:
        now = possessions()
        sockets = [held["fds"].pop("socket", 0) for held in (now, before)]
        threads = [held.pop("threads") for held in (now, before)]
        same = now == before
        for held, number, count in zip((now, before), sockets, threads):
            held["fds"]["socket"] = number
            held["threads"] = count
        if same and sockets[0] <= sockets[1] + rendezvous and threads[0] <= threads[1] + rendezvous:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"after {what}: {now} instead of {before}; threads {thread_names()}")
        time.sleep(0.05)


def cycles():
    return int(os.environ.get("FLAGOSCOMM_TEST_CYCLES", "100"))


def pair_of_threads(body):
    """Runs body(rank) on two threads; the results."""
    results = [None, None]

    def one(rank):
        try:
            results[rank] = body(rank)
        except f.Failed as error:
            results[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def cycles_of_pairs(count, leave):
    """Two ranks that are threads meet, work and leave(rank, comm), so many times: nothing stays."""
    def once():
        unique = f.unique_id()

        def body(rank):
            comm = f.init(2, unique, rank)
            f.all_reduce(comm)
            leave(rank, comm)
            return 0

        results = pair_of_threads(body)
        check(results == [0, 0], results)

    for _ in range(3):
        once()
    time.sleep(0.3)
    before = possessions()
    for _ in range(count):
        once()
    settles(before, f"{count} cycles")


@role
def cycles_of_init(_rank, _nranks, _unique):
    def once():
        unique = f.unique_id()

        def body(rank):
            comm = f.init(2, unique, rank)
            f.all_reduce(comm)
            child = f.split(comm, 0, 0)
            f.all_reduce(child)
            (f.destroy if rank == 0 else lambda c: f.ok(lib.flagosCommAbort(c)))(child)
            f.destroy(comm)
        results = pair_of_threads(body)
        check(results == [None, None], results)

    for _ in range(3):
        once()
    time.sleep(0.3)
    before = possessions()
    for _ in range(cycles()):
        once()
    settles(before, f"{cycles()} cycles")


@role
def cycles_of_visits(rank, nranks, unique):
    """Communicators whose ranks use each other's memory, made anew each time, and the memory as well."""
    comm = f.init(nranks, unique, rank)

    def once(number):
        count = 100_000 + 1000 * (number % 7)
        sent, got = f.memory(count), f.memory(count)
        child = f.split(comm, 0, 0)
        sent[count - 1] = 2.0
        f.ok(lib.flagosAllReduce(sent, got, count, f.FLOAT32, f.SUM, child, None), child)
        check(got[0] == 0.0 and got[count - 1] == 2.0 * nranks, got[0], got[count - 1])
        f.destroy(child)
        f.free(sent)
        f.free(got)

    for number in range(10):
        once(number)
    f.all_reduce(comm)
    before = possessions()
    for number in range(cycles()):
        once(number)
    f.all_reduce(comm)
    settles(before, f"{cycles()} cycles")
    f.destroy(comm)


@scenario
def cycles_of_shared_memory_leave_nothing():
    """Mappings and descriptors of the others' heaps go with the communicator, memory when it is freed."""
    run(2, "cycles_of_visits", f.unique_id(), timeout=60)


@scenario
def cycles_of_init_and_destroy_leave_nothing():
    """Descriptors, threads, mappings, /dev/shm names and sockets over 100 cycles (FLAGOSCOMM_TEST_CYCLES)."""
    Process("cycles_of_init", 0, 1, b"").end(0, 120)


@role
def cycles_of_failed_init(_rank, _nranks, _unique):
    def disagree():
        unique = f.unique_id()
        results = pair_of_threads(lambda rank: f.destroy(f.init(2 + rank, unique, rank)))
        check(all(isinstance(r, f.Failed) and r.code == f.USAGE for r in results), results)

    def malformed():
        fails(f.init, 1, bytes(256), 0)

    def missing():
        error, _ = fails(lambda: f.init(2, f.unique_id(), 0, initTimeoutMs=5))
        check(error.code == f.TIMEOUT, error)

    def aborted():
        comm = f.init(2, f.unique_id(), 0, blocking=0)
        f.ok(lib.flagosCommAbort(comm))

    def tiers():
        unique = f.unique_id()
        names = [b"host", b"native,host"]
        results = pair_of_threads(lambda rank: f.destroy(f.init(2, unique, rank, tiers=names[rank])))
        check(all(isinstance(r, f.Failed) and r.code == f.USAGE for r in results), results)

    f.destroy(f.init(1, f.unique_id(), 0))
    time.sleep(0.3)
    before = possessions()
    failing = [disagree, malformed, missing, aborted, tiers]
    for number in range(cycles()):
        failing[number % len(failing)]()
    settles(before, f"{cycles()} failed inits", rendezvous=8)
    if cycles() > 100:
        # And these end too.
        settles(before, f"{cycles()} failed inits", 40)
    # And none of this keeps the process from working.
    f.destroy(f.init(1, f.unique_id(), 0))


@scenario
def cycles_of_failed_init_leave_nothing():
    """The same for inits that fail: disagreement, bad ids, missing ranks, aborts."""
    Process("cycles_of_failed_init", 0, 1, b"").end(0, 120)


# ---- split, shrink, revoke

@role
def shrinks(rank, nranks, unique, dying, way):
    dying = int(dying)
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    say("ready")
    if rank == dying:
        time.sleep(60)
    if way == "revoke":
        error, _ = fails(lambda: [f.all_reduce(comm) for _ in range(10 ** 9)])
        check(error.code in (f.REMOTE, f.ABORTED), error)
        f.ok(lib.flagosCommRevoke(comm, 0))
        error, _ = fails(f.all_reduce, comm)
        check(error.code in (f.ABORTED, f.USAGE), error)
        check(f.async_error(comm) != f.SUCCESS)
    elif way == "abort":
        error, _ = fails(lambda: [f.all_reduce(comm) for _ in range(10 ** 9)])
    else:
        sys.stdin.readline()
    child = f.shrink(comm, [dying], 1 if way == "abort" else 0)
    new_rank, count = f.numbers(child)
    check(count == nranks - 1 and new_rank == rank - (rank > dying), new_rank, count)
    check(f.all_reduce(child, [float(new_rank)]) == [count * (count - 1) / 2])
    f.destroy(comm)
    # The child outlives its parent, and can be split.
    grand = f.split(child, new_rank % 2, 0)
    check(f.all_reduce(grand) == [float(f.numbers(grand)[1])])
    f.destroy(grand)
    f.destroy(child)


@scenario
def a_communicator_shrinks_after_a_rank_was_killed():
    """Shrink without the dead rank, be it rank 0 or another: by flag 1, after a revoke, and at rest."""
    for way in ("abort", "revoke", "rest"):
        for dying in (0, 2):
            ranks = start(4, "shrinks", f.unique_id(), dying, way, env=limits(15))
            for one in ranks:
                one.expect("ready")
            ranks[dying].kill()
            ranks[dying].end(-signal.SIGKILL)
            for number, one in enumerate(ranks):
                if number != dying and way == "rest":
                    one.go()
            for number, one in enumerate(ranks):
                if number != dying:
                    one.end(0, 20)


@role
def splits(rank, nranks, unique):
    comm = f.init(nranks, unique, rank)
    # Colours, reversed keys.
    child = f.split(comm, rank % 2, -rank)
    members = [r for r in range(nranks) if r % 2 == rank % 2][::-1]
    check(f.numbers(child) == (members.index(rank), len(members)), f.numbers(child))
    check(f.all_reduce(child, [float(rank)]) == [float(sum(members))])
    # Non-members, on the child.
    grand = f.split(child, 5 if members.index(rank) == 0 else -1, 0)
    check((grand is not None) == (members.index(rank) == 0))
    if grand is not None:
        check(f.numbers(grand) == (0, 1))
    # The parent goes first.
    f.destroy(comm)
    check(f.all_reduce(child) == [float(len(members))])
    f.destroy(child)
    if grand is not None:
        check(f.all_reduce(grand) == [1.0])
        f.destroy(grand)


@scenario
def splits_of_splits():
    """Colours, keys, non-members, a split of a split, and children that outlive their parent."""
    run(5, "splits", f.unique_id())


@role
def split_after_death(rank, nranks, unique, dying):
    comm = f.init(nranks, unique, rank)
    say("ready")
    if rank == int(dying):
        time.sleep(60)
    sys.stdin.readline()
    begin = time.monotonic()
    error, _ = fails(f.split, comm, 0, 0)
    check(error.code == f.REMOTE and f"rank {dying}" in error.words, error)
    check(time.monotonic() - begin < SLACK)
    f.destroy(comm)


@scenario
def a_split_with_a_dead_rank_fails_everywhere():
    """A split needs all ranks of the parent: it fails at once where one is dead."""
    for dying in (0, 1):
        ranks = start(3, "split_after_death", f.unique_id(), dying)
        for one in ranks:
            one.expect("ready")
        ranks[dying].kill()
        ranks[dying].end(-signal.SIGKILL)
        for number, one in enumerate(ranks):
            if number != dying:
                one.go()
        for number, one in enumerate(ranks):
            if number != dying:
                one.end(0, 20)


# ---- LC-5, mixed ranks

@scenario
def a_process_may_start_over_and_change_its_environment():
    """LC-5: 30 times init and destroy; the vendor was chosen once, and a later GEMS_VENDOR changes nothing."""
    plain(0, 1, f.unique_id())
    libc = ctypes.CDLL(None)
    for number in range(30):
        libc.setenv(b"GEMS_VENDOR", [b"nvidai", b"nvidia", b"ascend"][number % 3], 1)
        plain(0, 1, f.unique_id())
    libc.unsetenv(b"GEMS_VENDOR")


@role
def two_thread_ranks(process, processes, unique):
    per = 2
    nranks = processes * per
    results = []

    def one(rank):
        comm = f.init(nranks, unique, rank)
        for _ in range(20):
            results.append(f.all_reduce(comm, [float(rank)] * 100))
        f.destroy(comm)
    threads = [threading.Thread(target=one, args=(process * per + t,)) for t in range(per)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(results == [[nranks * (nranks - 1) / 2] * 100] * (20 * per), len(results))


@scenario
def threads_and_processes_as_ranks_of_one_communicator():
    """2 processes with 2 thread ranks each; 8 processes with 1."""
    run(2, "two_thread_ranks", f.unique_id())
    run(8, "plain", f.unique_id())


@role
def mismatch(rank, nranks, unique, which):
    comm = f.init(nranks, unique, rank)
    big = (ctypes.c_float * 4096)()
    zero, other = rank != 1, rank == 1
    calls = {
        "count": lambda: lib.flagosAllReduce(big, big, 100 if zero else 200, f.FLOAT32, f.SUM, comm, None),
        "dtype": lambda: lib.flagosAllReduce(big, big, 100 if zero else 200, f.FLOAT32 if zero else f.BFLOAT16,
                                             f.SUM, comm, None),
        "kind": lambda: lib.flagosAllReduce(big, big, 100, f.FLOAT32, f.SUM, comm, None) if zero
        else lib.flagosBroadcast(big, big, 100, f.FLOAT32, 0, comm, None),
        "op": lambda: lib.flagosAllReduce(big, big, 100, f.FLOAT32, f.SUM if zero else f.MAX, comm, None),
        "root": lambda: lib.flagosBroadcast(big, big, 100, f.FLOAT32, int(other), comm, None),
    }
    begin = time.monotonic()
    code = calls[which]()
    say(f"{code} {time.monotonic() - begin:.2f} {f.text(comm)}")
    f.destroy(comm)


@scenario
def calls_that_differ_are_an_error_on_every_rank():
    """NU-7: counts, data types of equal size, kinds, operators, roots: each rank hears both values."""
    both = {"count": ("count 100", "count 200"), "dtype": ("float32", "bfloat16"),
            "kind": ("AllReduce", "Broadcast"), "op": ("sum", "max"), "root": ("root 0", "root 1")}
    fields = {"count": "count", "dtype": "count and data type", "kind": "operation", "op": "operator", "root": "root"}
    for which, words in both.items():
        for one in start(3, "mismatch", f.unique_id(), which, env=limits(20)):
            code, seconds, got = told(one)
            check(code == f.USAGE and seconds < 10, which, code, seconds, got)
            check(all(word in got for word in words) and "ranks 0, 2 called" in got and "but rank 1 called" in got,
                  which, got)
            check(f"of this communicator, in {fields[which]}: ranks 0, 2" in got, which, got)
            one.end()


@role
def init_time(rank, nranks, unique):
    best = 1e9
    begin = time.monotonic()
    comm = f.init(nranks, unique, rank)
    best = time.monotonic() - begin
    f.destroy(comm)
    say(f"{best:.6f}")


@scenario
def the_cost_of_init():
    """Reported, not gated: 8 ranks of one machine. The ranks are already there (threads), so it is agreement alone."""
    times = []
    for _ in range(10):
        unique = f.unique_id()
        gate = threading.Barrier(8)
        took = []

        def one(rank, unique=unique, gate=gate, took=took):
            gate.wait()
            begin = time.monotonic()
            comm = f.init(8, unique, rank)
            took.append(time.monotonic() - begin)
            f.destroy(comm)
        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(len(took) == 8)
        times.append(max(took) * 1e3)
    times.sort()
    print(f"init of 8 ranks on one machine: best {times[0]:.1f} ms, median {times[5]:.1f} ms on {os.cpu_count()} cores")


if __name__ == "__main__":
    main(SCENARIOS)
