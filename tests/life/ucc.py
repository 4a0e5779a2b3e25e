"""Communicators of the host tier over UCC: over the stand-in of tests/fakevendor, and over the real one where that is.

    FLAGOSCOMM_TEST_LIBRARY=target/release/libflagos_comm.so FLAGOSCOMM_TEST_UCC_STANDIN=libucc.so.1 \\
        [FLAGOSCOMM_TEST_UCC=/usr/lib/x86_64-linux-gnu/libucc.so.1] python3 tests/life/ucc.py SCENARIO

FLAGOSCOMM_TEST_UCC names the real one, else it is the system's: the README says how to have one.
"""

import ctypes
import ctypes.util
import os
import signal
import sys
import threading
import time

import flagos as f
from flagos import lib
from life import SLACK, check, cycles, cycles_of_pairs
import machines
from machines import LIVENESS, Machines, OVER_TCP, end_of_all, ends
from matrix import named, skip
from ranks import Process, main, role, say

SCENARIOS = {}
STANDIN = os.environ.get("FLAGOSCOMM_TEST_UCC_STANDIN", "")
OLDER = os.environ.get("FLAGOSCOMM_TEST_UCC_OLDER", "")


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


# ---- the libraries that are here

class Ucc:
    """A library, and how it is asked for."""

    def __init__(self, name, path):
        self.name = name
        self.env = {**OVER_TCP, "FLAGOSCOMM_TIERS": "host", "FLAGOSCOMM_HOST_ENGINE": "ucc", "FLAGOSCOMM_TIMEOUT": "20"}
        if path:
            self.env["FLAGOSCOMM_ENGINE_PATH"] = path

    def start(self, nranks, name, *arguments, env=None):
        unique = f.unique_id()
        return [Process(name, rank, nranks, unique, arguments, env={**self.env, **(env or {})}) for rank in range(nranks)]


def stand_in():
    return Ucc("stand-in", STANDIN)


def every_ucc():
    yield stand_in()
    path = os.environ.get("FLAGOSCOMM_TEST_UCC", "")
    if path or ctypes.util.find_library("ucc"):
        yield Ucc("real", path)
    else:
        skip("the host tier over the real UCC needs libucc.so.1 (Debian sid: libucc1, or FLAGOSCOMM_TEST_UCC)")


# ---- numbers

@scenario
def over_ucc_results_are_those_of_shared_memory():
    """Bit by bit, on two machines, on three with different numbers of ranks, and on one; it is UCC, and has nothing to say to
    standard output."""
    for ucc in every_ucc():
        with Machines(3) as some:
            if not some:
                return
            for places in ((0, 1), (0, 1, 1, 2)):
                env = {**ucc.env, "FLAGOSCOMM_LOG": "info", "UCC_LOG_LEVEL": "info", "FLAGOSCOMM_HOST_HIERARCHY": "0"}
                apart = some.start(places, "numbers", env=env)
                got = [one.line(120) for one in apart]
                for one in apart:
                    one.end()
                    check(not one.rest(), ucc.name)
                check("runs on the host tier: UCC 1." in apart[0].stderr(), ucc.name, apart[0].stderr())
                check("UCC  INFO  version:" in apart[0].stderr(), ucc.name)
                together = machines.all_numbers(
                    lambda places=places: some.start([0] * len(places), "numbers", env={"FLAGOSCOMM_HOST_ENGINE": "shm"}),
                    len(places))
                check(got == together, ucc.name, places, got, together)
        here = ucc.start(2, "numbers")
        got = [one.line(120) for one in here]
        check(len(got) == 2, got)
        for one in here:
            one.end()


@scenario
def results_in_layers_over_ucc_are_the_same_on_all_ranks():
    """With more ranks than machines it is UCC between these only."""
    for ucc in every_ucc():
        with Machines(3) as some:
            if not some:
                return
            errors = machines.layers_agree_with_shared_memory(some, (0, 1, 1, 2, 2), ucc.env)
            check("runs on the host tier: UCC 1." in errors and "between 3 machines" in errors, ucc.name, errors)


# ---- what is missing

def refused(ranks, code, *parts):
    """All ranks' inits have failed alike."""
    said = [one.line(30) for one in ranks]
    for one, words in zip(ranks, said):
        check(words.startswith(f"{code} "), one.name, words)
        for part in parts:
            check(part in words, one.name, part, words)
        one.end()


@scenario
def without_ucc_the_error_says_what_was_tried_and_how_to_get_it():
    """And what was found but can't be used: another version on one rank, one whose start or meeting fails."""
    ucc = stand_in()

    def pair(first, second):
        unique = f.unique_id()
        return [Process("tells", rank, 2, unique, env={**ucc.env, **env}) for rank, env in enumerate((first, second))]

    refused(pair({}, {"FLAGOSCOMM_ENGINE_PATH": "/nowhere/libucc.so.1"}), f.NOT_SUPPORTED, "rank 1 ",
            "FLAGOSCOMM_HOST_ENGINE=ucc asks for UCC", "/nowhere/libucc.so.1", "libucc1", "FLAGOSCOMM_ENGINE_PATH")
    refused(pair({}, {"FLAGOSCOMM_ENGINE_PATH": OLDER}), f.NOT_SUPPORTED, "different versions", "1.3.0 (", "1.9.0 (")
    refused(pair({}, {"FLAGOSCOMM_HOST_ENGINE": "ucx"}), f.USAGE, "FLAGOSCOMM_HOST_ENGINE")
    for fails, parts in (
            ("ucc_init_version:-5", ("ucc_init of UCC 1.9.0", "Resources are not available")),
            ("ucc_context_create:-5", ("no transport", "libucp.so.0", "ucc_context_create of UCC 1.9.0")),
            ("ucc_team_create_post:-3", ("ucc_team_create_post of UCC",)),
            ("ucc_team_create_test:-6@3", ("ucc_team_create_test of UCC",))):
        refused(pair({}, {"FAKE_FAIL": fails}), f.SYSTEM, "rank 1 ", *parts)
    begin = time.monotonic()
    refused(pair({"FLAGOSCOMM_TIMEOUT": "3"}, {"FLAGOSCOMM_TIMEOUT": "3", "FAKE_FAIL": "ucc_team_create_test:1"}), f.SYSTEM,
            "UCC did not make the team of the ranks in time")
    check(time.monotonic() - begin < 3 + SLACK)


# ---- what goes wrong

@scenario
def a_rank_over_ucc_that_is_killed_ends_the_others():
    """UCC says nothing of it, or that all is done. The others name it at once, inside small and large collectives and a
    receive."""
    for ucc in every_ucc():
        for what, count in (("collective", 2), ("collective", 3_000_000), ("recv", 10)):
            ranks = ucc.start(3, "goes_on", what, count)
            for one in ranks:
                one.expect("ready")
            time.sleep(0.1)
            begin = time.monotonic()
            ranks[2].kill()
            # In a receive rank 1 is no part.
            waiting = ranks[:1] if what == "recv" else ranks[:2]
            times = end_of_all(waiting, (f.REMOTE,), 2)
            print(f"{ucc.name}: {what} of {count}: {(max(times) - begin) * 1000:.0f} ms", flush=True)
            check(max(times) - begin < SLACK, ucc.name, what, count, times, begin)
            for one in waiting:
                one.go()
                one.end()
            ranks[1].kill()


@scenario
def a_rank_over_ucc_that_stops_or_is_cut_off_ends_the_others():
    """By the deadline, or by what ranks watch of each other; and the destroy doesn't wait for it."""
    deadline, watched = {"FLAGOSCOMM_COLLECTIVE_TIMEOUT": "0.8"}, {"FLAGOSCOMM_LIVENESS": str(LIVENESS)}
    for ucc in every_ucc():
        for count, limits in ((2, deadline), (3_000_000, deadline), (2, watched)):
            ranks = ucc.start(2, "goes_on", "collective", count, env=limits)
            for one in ranks:
                one.expect("ready")
            time.sleep(0.1)
            begin = time.monotonic()
            ranks[1].kill(signal.SIGSTOP)
            times = end_of_all(ranks[:1], (f.TIMEOUT, f.REMOTE), 1)
            print(f"{ucc.name}: stopped, {count}, {limits}: {(max(times) - begin) * 1000:.0f} ms", flush=True)
            check(max(times) - begin < 0.8 + SLACK, ucc.name, times, begin)
            ranks[0].go()
            ranks[0].end()
            ranks[1].kill()
        with Machines(2) as some:
            if not some:
                return
            ranks = some.start((0, 1), "goes_on", "collective", 100_000, env={**ucc.env, **deadline})
            for one in ranks:
                one.expect("ready")
            time.sleep(0.1)
            begin = time.monotonic()
            some.cut(1)
            for bad, one in ((1, ranks[0]), (0, ranks[1])):
                code, when, words = ends(one, "failed")
                check(code in (f.TIMEOUT, f.REMOTE) and named(bad, words), ucc.name, code, words)
                print(f"{ucc.name}: cut: {(when - begin) * 1000:.0f} ms", flush=True)
                check(when - begin < 0.8 + SLACK, ucc.name, when, begin)
                ends(one, "again", 0.5)
                ends(one, "destroy")
                one.go()
                one.end()


@scenario
def an_abort_ends_a_wait_over_ucc():
    for ucc in every_ucc():
        ranks = ucc.start(3, "aborts")
        for rank, wanted in ((0, (f.ABORTED,)), (1, (f.REMOTE,))):
            code, _, words = ends(ranks[rank], "aborted")
            check(code in wanted, ucc.name, rank, code, words)
            check(rank == 0 or named(0, words), words)
        ranks[2].go()
        for one in ranks:
            one.end()


@role
def compares(rank, nranks, unique, count):
    """Broadcasts from rank 0 until one fails; whether any that did not was wrong."""
    comm = f.init(nranks, unique, rank)
    count = int(count)
    code, number = 0, 0
    while code == 0:
        number += 1
        data = (ctypes.c_ubyte * count)()
        ctypes.memset(data, number % 251 if rank == 0 else 255, count)
        code = lib.flagosBroadcast(data, data, count, f.UINT8, 0, comm, None)
        if code == 0 and bytes(data) != bytes([number % 251]) * count:
            say("wrong")
            return
    say(f"ended {code} {f.text(comm)}")
    f.destroy(comm)


@scenario
def a_connection_of_uccs_that_breaks_is_no_success():
    """UCC says on both sides that the message is done that was cut; the processes live, and the network that the control
    channel has. One message, one that would go with the headers if these could be that long, and many."""
    for count in (10_000, 40_000, 3_000_000):
        ranks = stand_in().start(2, "compares", count,
                                 env={"FAKE_UCC_BREAK": "9000", "FLAGOSCOMM_COLLECTIVE_TIMEOUT": "0.8"})
        for one in ranks:
            line = one.line(20)
            check(line.startswith(f"ended {f.TIMEOUT} ") or line.startswith(f"ended {f.REMOTE} "), count, one.name, line)
            one.end()


@role
def sums_in_layers(rank, nranks, unique, count):
    """Two machines of two ranks. The third's connection is to break in the second of two sums."""
    os.environ["FLAGOSCOMM_HOSTID"] = f"machine-{rank // 2}"
    comm = f.init(nranks, unique, rank)
    count = int(count)
    for factor in (1, 100):
        if factor == 100 and rank == 2:
            os.environ["FAKE_UCC_BREAK"] = "9000"
        data = (ctypes.c_float * count)(*[factor * (rank + 1.0)] * count)
        code = lib.flagosAllReduce(data, data, count, f.FLOAT32, 0, comm, None)
        if code == 0 and set(data) != {factor * 10.0}:
            say("wrong", sorted(set(data)))
            return
        say("right" if code == 0 else f"ended {code} {f.text(comm)}")
    f.destroy(comm)


@scenario
def a_connection_between_leaders_that_breaks_is_no_success():
    """What a machine's ranks have goes to another in messages that come as a whole, or are sealed: 8000 bytes of each, which
    would travel with the headers if these could be that long, and more."""
    for count, broken in ((2_000, False), (40_000, True)):
        ranks = stand_in().start(4, "sums_in_layers", count, env={"FLAGOSCOMM_COLLECTIVE_TIMEOUT": "0.8"})
        said = []
        for one in ranks:
            one.expect("right")
            line = one.line(20)
            said.append(line)
            check(line == "right" or line.startswith((f"ended {f.TIMEOUT} ", f"ended {f.REMOTE} ")), count, one.name, line)
            one.end()
        check(any(line != "right" for line in said) == broken, count, said)


@scenario
def what_ucc_says_of_an_error_is_said():
    """An error of its progress ends the communicator with UCC's words."""
    ranks = stand_in().start(2, "compares", 100, env={"FAKE_FAIL": "ucc_context_progress:-8@3000+"})
    lines = [one.line(20) for one in ranks]
    check(any("Timeout expired" in line for line in lines), lines)
    for one, line in zip(ranks, lines):
        check(line.startswith("ended "), line)
        one.end()


@role
def destroys(rank, nranks, unique):
    comm = f.init(nranks, unique, rank)
    f.all_reduce(comm)
    begin = time.monotonic()
    f.destroy(comm)
    say(f"{time.monotonic() - begin:.3f}")


@scenario
def a_destroy_does_not_wait_for_ucc():
    """UCC's own end of a context hangs."""
    for one in stand_in().start(2, "destroys", env={"FAKE_HANG": "ucc_context_destroy"}):
        seconds = float(one.line())
        check(0.4 < seconds < 0.5 + SLACK, seconds)
        one.end()


@scenario
def calls_that_differ_over_ucc_are_an_error_on_every_rank():
    for ucc in every_ucc():
        ranks = ucc.start(3, "disagrees")
        for one in ranks[:-1]:
            code, _, words = ends(one, "left")
            check(code == f.REMOTE and named(2, words), ucc.name, code, words)
        for one in ranks:
            one.end()


@scenario
def a_rank_over_ucc_that_leaves_at_once_has_done_its_part():
    """Large collectives, and away: what the last to end still has under way is no error, although the other has closed its
    connections."""
    for ucc in every_ucc():
        for _ in range(6):
            for one in ucc.start(2, "leaves"):
                one.end()


# ---- nothing is left

@role
def ucc_cycles(_rank, _nranks, _unique, count, fails):
    def leave(rank, comm):
        if int(fails) and rank == 0:
            lib.flagosCommAbort(comm)
        else:
            time.sleep(0.01 * int(fails))
            f.destroy(comm)

    cycles_of_pairs(int(count), leave)


@scenario
def cycles_over_ucc_leave_nothing():
    """Descriptors, threads, mappings, names and sockets over cycles of init and destroy, and of init and abort."""
    for ucc in every_ucc():
        for fails in (0, 1):
            count = max(cycles() // 4, 10)
            Process("ucc_cycles", 0, 1, b"", (count, fails), env=ucc.env).end(0, 150)


if __name__ == "__main__":
    main(SCENARIOS)
