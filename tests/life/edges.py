"""Calls out of turn, and processes at their limits: what a communicator of the host tier says then.

Scenarios as in life.py; capi/tests/tests/capi/life.rs runs each under its name. By hand:

    FLAGOSCOMM_TEST_LIBRARY=target/release/libflagos_comm.so python3 tests/life/edges.py SCENARIO
"""

import ctypes
import fcntl
import os
import re
import resource
import signal
import threading
import time
import traceback

import flagos as f
from flagos import lib
from life import SLACK, check, fails, limits, pair_of_threads, possessions, settles, told
from ranks import Process, main, role, run, say, start

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


# ---- calls out of turn

@role
def goes_on_after_finalize(rank, nranks, unique):
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    f.ok(lib.flagosCommFinalize(comm), comm)
    calls = {
        "Finalize": lambda: f.ok(lib.flagosCommFinalize(comm), comm),
        "AllReduce": lambda: f.all_reduce(comm),
        "Barrier": lambda: f.ok(lib.flagosBarrier(comm, None), comm),
        "Split": lambda: f.split(comm, 0, 0),
    }
    for name, call in calls.items():
        error, seconds = fails(call)
        check(error.code == f.USAGE and "finalize" in error.words.lower() and seconds < SLACK, name, error, seconds)
    f.destroy(comm)


@scenario
def after_finalize_there_is_destroy_only():
    """A second Finalize, collectives and a split are refused on every rank, in words; Destroy works."""
    for nranks in (1, 3):
        run(nranks, "goes_on_after_finalize", f.unique_id(), env=limits(20))


PHASES = {"Split": "a split", "Finalize": "the finalize of all ranks", "WindowRegister": "the vote on a window"}


def control(name, comm):
    """A control call that needs all ranks; its code."""
    if name == "Split":
        child = ctypes.c_void_p()
        code = lib.flagosCommSplit(comm, 0, 0, ctypes.byref(child), None)
        check(child.value is None, "a child was made")
        return code
    if name == "Finalize":
        return lib.flagosCommFinalize(comm)
    memory, window = (ctypes.c_float * 64)(), ctypes.c_void_p()
    code = lib.flagosCommWindowRegister(comm, memory, ctypes.sizeof(memory), ctypes.byref(window), 0)
    check(window.value is None, "a window was made")
    return code


@role
def cross(_rank, _nranks, _unique, *names):
    ids = f.unique_id(), f.unique_id()

    def body(rank):
        comm, other = (f.init(2, unique, rank) for unique in ids)
        begin = time.monotonic()
        code = control(names[rank], comm)
        seconds, words = time.monotonic() - begin, f.text(comm)
        same = f.all_reduce(other)
        f.destroy(comm)
        f.destroy(other)
        return code, seconds, words, same

    for result in pair_of_threads(body):
        check(isinstance(result, tuple), names, result)
        code, seconds, words, same = result
        check(code == f.USAGE and seconds < SLACK, names, code, seconds, words)
        check(all(PHASES[name] in words for name in names), names, words)
        check(same == [2.0], same)


@scenario
def control_calls_that_differ_are_an_error_on_both_ranks():
    """NU-7: a split, a finalize and a window's registration meet one another, either way round: both are named."""
    pairs = [(one, two) for one in PHASES for two in PHASES if one != two]
    for one in [Process("cross", 0, 2, b"", pair, env=limits(20)) for pair in pairs]:
        one.end()


# ---- no standard streams

def link(path):
    """Where it leads; nothing if it is not there."""
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


def ours_below_three(when):
    """No socket, shared memory or process handle of the library may stay one of the three standard descriptors."""
    for number in range(3):
        path = f"/proc/self/fd/{number}"
        # A new one is there for the moment until it is moved.
        for _ in range(20):
            target = link(path)
            if not any(kind in target for kind in ("socket", "memfd", "pidfd")):
                break
            time.sleep(0.005)
        else:
            check(False, when, number, target)


def writes_to_standard_streams():
    for number in (1, 2):
        try:
            os.write(number, b"words of the program\n" * 20)
        except OSError:
            pass  # nothing is open there


@role
def without_streams(rank, nranks, unique):
    out = os.fdopen(fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 100), "w", buffering=1)
    for number in range(3):
        os.close(number)
    code = 1
    try:
        if rank == 0:
            unique = f.unique_id()
            ours_below_three("after the id")
            out.write(unique.hex() + "\n")
        comm = f.init(nranks, unique, rank)
        ours_below_three("after init")
        for _ in range(3):
            writes_to_standard_streams()
            check(f.all_reduce(comm, [float(rank)] * 5000) == [1.0] * 5000)
        child = f.split(comm, 0, -rank)
        ours_below_three("after a split")
        writes_to_standard_streams()
        check(f.all_reduce(child) == [2.0])
        f.destroy(child)
        check(f.all_reduce(comm) == [2.0])
        f.destroy(comm)
        out.write("fine\n")
        code = 0
    except BaseException:
        out.write(traceback.format_exc().replace("\n", " | ") + "\n")
    finally:
        os._exit(code)


@scenario
def a_program_without_standard_streams_works():
    """0, 1 and 2 are closed before the first call; nothing of ours takes their place, also while logging."""
    for level in ("warn", "trace"):
        env = {"FLAGOSCOMM_LOG": level, **limits(5)}
        zero = Process("without_streams", 0, 2, b"", env=env)
        line = zero.line()
        check("|" not in line, line)
        one = Process("without_streams", 1, 2, bytes.fromhex(line), env=env)
        said = [process.line() for process in (zero, one)]
        check(said == ["fine", "fine"], level, said)
        for process in (zero, one):
            process.end()


# ---- limits of the process

@role
def small_files(rank, nranks, unique):
    # Python ignores this signal; a program in C does not.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, 100 << 10))
    error, seconds = fails(f.init, nranks, unique, rank)
    say(f"{error.code} {seconds:.2f} {error.words}")


@scenario
def a_limit_on_the_size_of_files_is_an_error_and_no_signal():
    """RLIMIT_FSIZE holds for shared memory too, and exceeding it would be SIGXFSZ."""
    for nranks in (1, 2):
        for one in start(nranks, "small_files", f.unique_id(), env=limits(10)):
            code, seconds, words = told(one)
            check(code == f.SYSTEM and seconds < SLACK and "size of files" in words, nranks, code, seconds, words)
            one.end()


def lowest_free():
    """The next descriptor that the process will get."""
    fd = os.dup(2)
    os.close(fd)
    return fd


@role
def few_descriptors(_rank, _nranks, unique, nranks, *ids):
    nranks = int(nranks)
    # What the first use opens is open then.
    pair_of_threads(lambda rank: f.destroy(f.init(2, unique, rank)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused = 0
    for spare, unique in enumerate(map(bytes.fromhex, ids)):
        results = [None] * nranks

        def body(rank, unique=unique, results=results):
            try:
                f.destroy(f.init(nranks, unique, rank))
            except f.Failed as error:
                results[rank] = error

        # The limit is on numbers, so there may be no holes.
        fillers = []
        top = max(int(name) for name in os.listdir("/proc/self/fd"))
        while lowest_free() < top:
            fillers.append(os.dup(2))
        kept = lowest_free()
        resource.setrlimit(resource.RLIMIT_NOFILE, (kept + spare, hard))
        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(nranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)
        if results == [None] * nranks:
            break
        refused += 1
        codes = [result.code if result else 0 for result in results]
        # A rank may hear of it from the other, or only that this one never came.
        words = [result.words for result in results if result and result.code == f.SYSTEM]
        check(words and all("too many open" in text.lower() for text in words), spare, codes, results)
        limit = f"may have {kept + spare} open files at once (ulimit -n"
        check(all(limit in text for text in words), limit, results)
        check(all(code in (0, f.SYSTEM, f.REMOTE, f.TIMEOUT) for code in codes), spare, codes, results)
    check(0 < refused < len(ids), refused, "times refused")


@scenario
def no_descriptor_left_is_a_system_error():
    """With no descriptor to spare, then with one, and so on until init succeeds: a system error in its words."""
    # Other processes serve the ids.
    for nranks in (1, 2):
        ids = [f.unique_id().hex() for _ in range(40)]
        Process("few_descriptors", 0, 1, f.unique_id(), [nranks, *ids], env=limits(0.4)).end(0, 40)


VERY_MANY = 200_000


@role
def initialises_very_many(_rank, _nranks, _unique):
    f.destroy(f.init(1, f.unique_id(), 0))
    time.sleep(0.1)
    before = possessions()
    comms = (ctypes.c_void_p * VERY_MANY)()
    error, seconds = fails(lambda: f.ok(lib.flagosCommInitAll(comms, VERY_MANY, None)))
    check(error.code in (f.SYSTEM, f.ARGUMENT) and seconds < 5, error, seconds)
    check(not any(comms), "handles are left")
    say(error.words)
    settles(before, "an InitAll of very many ranks")


@scenario
def very_many_ranks_in_one_process_are_refused():
    """CommInitAll of 200000 ranks: quickly, naming what the machine lacks for it, and nothing is left."""
    one = Process("initialises_very_many", 0, 1, b"")
    words = one.line(60)
    # The number of what there can be, and no word of communicators that don't exist.
    check(set(re.findall(r"\d+", words)) - {str(VERY_MANY)} and "exist already" not in words, words)
    one.end(0, 30)


@role
def many_ranks_few_files(_rank, nranks, _unique):
    """All ranks in this process, with files for some of their connections."""
    unique = f.unique_id()
    results = [None] * nranks
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1 + nranks, hard))

    def body(rank):
        try:
            f.init(nranks, unique, rank)
        except f.Failed as error:
            results[rank] = error

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    check(None not in results, results)
    codes = {result.code for result in results}
    check(codes <= {f.SYSTEM, f.REMOTE, f.TIMEOUT}, codes, results)
    words = [result.words for result in results if "ulimit -n" in result.words]
    check(any("open files at once" in text and "needs up to" in text for text in words), results)


@scenario
def ranks_without_files_for_their_connections_say_how_many_they_need():
    """Above 128 ranks too, where a tree spreads the connections: the limit, and what a rank needs, in words."""
    for nranks in (24, 140):
        one = Process("many_ranks_few_files", 0, nranks, b"", env=limits(6))
        one.end(0, 60)


# ---- deadlines and the dead

@role
def has_no_time(rank, nranks, unique):
    error, seconds = fails(f.init, nranks, unique, rank)
    say(f"{error.code} {seconds:.2f} {error.words}")


@scenario
def a_deadline_that_has_passed_at_once_is_a_timeout():
    """HG-1: a microsecond: a timeout, or a remote error that speaks of another's; no text has an empty list."""
    for nranks, ranks in ((2, (0, 1)), (2, (1,)), (2, (0,)), (3, (0, 1, 2))):
        unique = f.unique_id()
        codes = set()
        for one in [Process("has_no_time", rank, nranks, unique, env=limits("0.000001")) for rank in ranks]:
            code, seconds, words = told(one)
            heard = code == f.REMOTE and "gave up waiting" in words
            check((code == f.TIMEOUT or heard) and seconds < SLACK, nranks, code, seconds, words)
            check("()" not in words and "( )" not in words, words)
            codes.add(code)
            one.end()
        check(f.TIMEOUT in codes, codes)


@role
def serves_and_waits(rank, nranks, _unique):
    unique = f.unique_id()
    say(unique.hex())
    f.init(nranks, unique, rank)


@role
def joins(rank, nranks, unique):
    comm = f.init(nranks, unique, rank, blocking=0)
    say("joining")
    begin = time.monotonic()
    while (state := f.async_error(comm)) == f.IN_PROGRESS:
        time.sleep(0.005)
    say(f"{state} {time.monotonic() - begin:.2f} {f.text(comm)}")
    f.ok(lib.flagosCommAbort(comm))


@scenario
def ranks_that_wait_hear_that_the_rendezvous_has_died():
    """HG-1: who has joined learns of a remote error, not of misuse; a second use of an id remains misuse."""
    zero = Process("serves_and_waits", 0, 4, b"", env=limits(20))
    unique = bytes.fromhex(zero.line())
    others = [Process("joins", rank, 4, unique, env=limits(20)) for rank in (1, 2)]
    for one in others:
        one.expect("joining")
    time.sleep(0.4)
    zero.kill()
    for one in others:
        code, seconds, words = told(one)
        check(code == f.REMOTE and seconds < SLACK and words, code, seconds, words)
        one.end()
    unique = f.unique_id()
    run(2, "plain", unique)
    again = Process("init_and_tell", 1, 2, unique, env=limits(5))
    code, seconds, words = told(again)
    check(code == f.USAGE and seconds < SLACK and "already used" in words, code, seconds, words)


if __name__ == "__main__":
    main(SCENARIOS)
