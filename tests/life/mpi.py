"""Communicators of the host tier over MPI, under the launchers of Open MPI, of MPICH, and of an MPI with the standard
binary interface, each with the ranks in another order than MPI's.

    FLAGOSCOMM_TEST_LIBRARY=target/release/libflagos_comm.so FLAGOSCOMM_TEST_MPI_STANDARD=target/mpi-standard \\
        python3 tests/life/mpi.py SCENARIO

Open MPI and MPICH are the system's (Debian: openmpi-bin, mpich). An MPI with the standard interface comes with the Python
package mpich, in a virtual environment that tests/run makes.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import tempfile
import threading
import time

import flagos as f
from flagos import lib
from life import SLACK, check, cycles, possessions, settles
import machines
from matrix import skip
from ranks import Process, main, role, say

SCENARIOS = {}
STANDARD = os.environ.get("FLAGOSCOMM_TEST_MPI_STANDARD", "")
MULTIPLE, SINGLE = 3, 0


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


# ---- the MPIs that are here

class Mpi:
    """A launcher, and the library that a program of it loads."""

    def __init__(self, name, library, launcher, going_on=(), most=2, env=None):
        self.name, self.library, self.launcher, self.most = name, library, launcher, most
        # Words by which the launcher leaves the others alone when a process dies; MPICH's always ends them.
        self.going_on = going_on
        self.env = {"FLAGOSCOMM_TIERS": "host", "FLAGOSCOMM_HOST_ENGINE": "mpi", "FLAGOSCOMM_TIMEOUT": "30",
                    "FLAGOSCOMM_TEST_MPI": f"{name}:{library}", **(env or {})}

    def start(self, nranks, name, *arguments, unique=None, env=None, going_on=False, processes=None):
        """The launcher with so many processes of a role; the id is served here."""
        options = self.going_on if going_on else ()
        return Process(name, -1, nranks, f.unique_id() if unique is None else unique, arguments, {**self.env, **(env or {})},
                       prefix=(*self.launcher, *options, "-n", str(processes or nranks)))

    def run(self, nranks, name, *arguments, env=None, processes=None, timeout=60):
        """All processes of a role, and neither they nor the launcher have anything to say to standard output; their lines in
        order, and what was written to standard error."""
        with tempfile.TemporaryDirectory(prefix="flagos-mpi-") as folder:
            env = {**(env or {}), "FLAGOSCOMM_TEST_LINES": folder}
            one = self.start(nranks, name, *arguments, env=env, processes=processes)
            one.end(0, timeout)
            check(not one.rest(), self.name)
            lines = []
            for file in os.listdir(folder):
                with open(os.path.join(folder, file), encoding="utf-8") as said:
                    lines += said.read().splitlines()
        return sorted(lines), one.stderr()


def open_mpi():
    launcher = shutil.which("mpirun.openmpi")
    library = "libmpi.so.40"
    if not launcher:
        return skip("the host tier over Open MPI needs it (Debian: openmpi-bin)")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return Mpi("openmpi", library, (launcher, "--oversubscribe"), ("--mca", "orte_enable_recovery", "1"), 4, root)


def mpich():
    launcher = shutil.which("mpiexec.mpich")
    if not launcher:
        return skip("the host tier over MPICH needs it (Debian: mpich)")
    return Mpi("mpich", "libmpich.so.12", (launcher,))


def standard():
    library = os.path.join(STANDARD, "lib", "libmpi_abi.so.1")
    if not STANDARD or not os.path.exists(library):
        return skip("the host tier over an MPI with the standard binary interface needs one (the Python package mpich, which "
                    "tests/run installs below the target folder)")
    launcher = os.path.join(STANDARD, "bin", "mpiexec")
    return Mpi("standard", library, (launcher,), env={"FLAGOSCOMM_ENGINE_PATH": library})


def every_mpi():
    """Those that are here; what is not is said."""
    return [one for one in (open_mpi(), mpich(), standard()) if one]


# ---- inside a process

def world_rank():
    return int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])


def own_rank(nranks):
    """Our rank, which is not MPI's."""
    return (world_rank() + 1) % nranks


class Program:
    """A program that uses MPI itself."""

    def __init__(self):
        self.name, library = os.environ["FLAGOSCOMM_TEST_MPI"].split(":", 1)
        self.lib = ctypes.CDLL(library)

    def init(self, level):
        """MPI_Init_thread."""
        got = ctypes.c_int(-1)
        # The standard interface's levels are others.
        wanted = level << 10 if self.name == "standard" and level else level
        wanted = 4096 if self.name == "standard" and level == MULTIPLE else wanted
        check(self.lib.MPI_Init_thread(None, None, wanted, ctypes.byref(got)) == 0)

    def finalize(self):
        check(self.lib.MPI_Finalize() == 0)

    def is_finalized(self):
        answer = ctypes.c_int(-1)
        check(self.lib.MPI_Finalized(ctypes.byref(answer)) == 0)
        return answer.value == 1


def ended(body):
    """How something ends: "0", or the code and the words."""
    try:
        body()
        return "0"
    except f.Failed as error:
        return f"{error.code} {error.words}"


def once(nranks, unique):
    """A communicator, one collective, and its end."""
    comm = f.init(nranks, unique, own_rank(nranks))
    check(f.all_reduce(comm, [1.0]) == [float(nranks)])
    f.destroy(comm)


# ---- numbers

@role
def all_the_numbers(_, nranks, unique):
    rank = own_rank(nranks)
    machines.numbers(rank, nranks, unique, title=f"{rank} ")


@scenario
def over_mpi_results_are_those_of_shared_memory():
    """Every operation, on a communicator and its children: bit by bit."""
    for mpi in every_mpi():
        for nranks in range(2, mpi.most + 1, 2):
            lines, errors = mpi.run(nranks, "all_the_numbers", timeout=150)
            over_mpi = [line.split()[1] for line in lines]
            ranks = [Process("numbers_alone", rank, nranks, unique, env={"FLAGOSCOMM_TIERS": "host"})
                     for unique in [f.unique_id()] for rank in range(nranks)]
            together = [one.line(120) for one in ranks]
            for one in ranks:
                one.end()
            check(over_mpi == together, mpi.name, lines, together, errors)


@role
def numbers_alone(rank, nranks, unique, apart=""):
    machines.numbers(rank, nranks, unique, apart)


@role
def numbers_in_layers(_, nranks, unique):
    rank = own_rank(nranks)
    os.environ["FLAGOSCOMM_HOSTID"] = f"machine-{rank // 2}"
    machines.numbers(rank, nranks, unique, "apart", title=f"{rank} ")


@scenario
def results_in_layers_over_mpi_are_the_same_on_all_ranks():
    """Two machines with two ranks each: MPI between them, shared memory inside. What nothing is rounded in is bit by bit what
    ranks get that share memory; the rest is the same on all ranks."""
    nranks = 4
    for mpi in every_mpi():
        if mpi.most < nranks:
            continue
        lines, errors = mpi.run(nranks, "numbers_in_layers", env={"FLAGOSCOMM_LOG": "info"}, timeout=150)
        check("between 2 machines, shared memory inside them" in errors, mpi.name, errors)
        # Each rank has said its number and its digest, and the digest that is common to all.
        exact = [line.split()[1] for line in lines if " " in line]
        common = [line for line in lines if " " not in line]
        check(len(exact) == len(common) == nranks and len(set(common)) == 1, mpi.name, lines)
        unique = f.unique_id()
        ranks = [Process("numbers_alone", rank, nranks, unique, ["apart"], env={"FLAGOSCOMM_TIERS": "host"})
                 for rank in range(nranks)]
        together = [one.line(120) for one in ranks]
        for one in ranks:
            one.line()
            one.end()
        check(exact == together, mpi.name, lines, together)


# ---- who initialises MPI

@role
def initialised_here(_, nranks, unique, again):
    """The library does it all, and MPI is over with the last communicator."""
    parent = f.init(nranks, unique, own_rank(nranks))
    child = f.split(parent, 0, 0)
    f.destroy(parent)
    check(f.all_reduce(child, [1.0]) == [float(nranks)])
    program = Program()
    check(not program.is_finalized())
    f.destroy(child)
    check(program.is_finalized())
    say(ended(lambda: once(nranks, bytes.fromhex(again))))


@role
def initialised_by_the_program(_, nranks, unique, again):
    """The program's MPI stays the program's, however many communicators come and go."""
    program = Program()
    program.init(MULTIPLE)
    once(nranks, unique)
    say(ended(lambda: once(nranks, bytes.fromhex(again))))
    check(not program.is_finalized())
    program.finalize()
    check(program.is_finalized())


@scenario
def mpi_is_finalised_by_whoever_has_initialised_it():
    """So that no launcher has anything to say: the program, or the last communicator over it; after that MPI is over, which
    the next communicator says."""
    for mpi in every_mpi():
        lines, errors = mpi.run(2, "initialised_here", f.unique_id().hex())
        check(len(lines) == 2 and "improperly" not in errors, mpi.name, errors)
        for words in lines:
            check(words.startswith(f"{f.NOT_SUPPORTED} ") and "finalised it when the last communicator" in words, mpi.name,
                  lines, errors)
        lines, errors = mpi.run(2, "initialised_by_the_program", f.unique_id().hex())
        check(lines == ["0", "0"], mpi.name, lines, errors)


@role
def finalises_too_early(_, nranks, unique):
    """The program ends MPI while a communicator still runs over it, with a thread that calls MPI."""
    program = Program()
    program.init(MULTIPLE)
    comm = f.init(nranks, unique, own_rank(nranks))
    f.all_reduce(comm)
    time.sleep(0.05)
    program.finalize()
    time.sleep(0.1)
    say(ended(lambda: f.all_reduce(comm)))
    f.destroy(comm)


@scenario
def a_program_that_finalises_mpi_too_early_is_told():
    """An error of the call, where MPI would end the process."""
    def attempt(mpi, again):
        try:
            return mpi.run(2, "finalises_too_early")
        except AssertionError as error:
            # MPICH's own end of a program whose other thread is in a call of MPI at that moment.
            if again == 0 or "pthread_mutex_destroy" not in str(error):
                raise
            return attempt(mpi, again - 1)

    for mpi in every_mpi():
        lines, errors = attempt(mpi, 3)
        check(len(lines) == 2, mpi.name, lines, errors)
        check(all("finalised MPI" in words for words in lines), mpi.name, lines)


# ---- what is refused

@role
def tells_after_init(_, nranks, unique, level):
    program = Program()
    if level != "none":
        program.init(int(level))
    say(ended(lambda: once(nranks, unique)))
    if level != "none":
        program.finalize()


@role
def threads_of_a_process(_, nranks, unique):
    results = [None] * nranks

    def body(rank):
        results[rank] = ended(lambda: f.destroy(f.init(nranks, unique, rank)))

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for words in results:
        say(words)


def refused(lines, count, *parts):
    check(len(lines) == count, lines)
    for words in lines:
        check(words.startswith(f"{f.NOT_SUPPORTED} "), words)
        for part in parts:
            check(part in words, part, words)


@scenario
def what_mpi_can_not_do_is_refused_in_words():
    """Processes without a launcher, without its library, with too few threads, of two jobs; and threads as ranks."""
    unique = f.unique_id()
    env = {"FLAGOSCOMM_TIERS": "host", "FLAGOSCOMM_HOST_ENGINE": "mpi", "FLAGOSCOMM_ENGINE_PATH": "/nowhere/libmpi.so"}
    alone = [Process("tells", rank, 2, unique, env=env) for rank in range(2)]
    refused([one.line() for one in alone], 2, "asks for MPI", "/nowhere/libmpi.so")
    for one in alone:
        one.end()
    for mpi in every_mpi():
        unique = f.unique_id()
        alone = [Process("tells", rank, 2, unique, env={**mpi.env, "FLAGOSCOMM_ENGINE_PATH": mpi.library})
                 for rank in range(2)]
        refused([one.line() for one in alone], 2, "no MPI launcher", "mpirun")
        for one in alone:
            one.end()
        lines, _ = mpi.run(2, "tells_after_init", SINGLE)
        refused(lines, 2, "MPI_THREAD_MULTIPLE", "MPI_Init_thread")
        lines, _ = mpi.run(2, "threads_of_a_process", processes=1)
        refused(lines, 2, "ranks 0 and 1 are in one process")
        unique = f.unique_id()
        jobs = [mpi.start(2, "of_a_job_of_its_own", rank, unique=unique, processes=1) for rank in range(2)]
        for job in jobs:
            job.end(0, 30)
            refused(job.rest(), 1, "not of one MPI job", "rank 0", "mpirun")


@role
def of_a_job_of_its_own(_, nranks, unique, rank):
    say(ended(lambda: f.init(nranks, unique, int(rank))))


@role
def tells(rank, nranks, unique):
    say(ended(lambda: f.destroy(f.init(nranks, unique, rank))))


# ---- the choice

@role
def on_a_machine_of_its_own(_, nranks, unique):
    """Ranks that can't share memory, of a program that uses MPI; nobody has named an engine."""
    os.environ["FLAGOSCOMM_HOSTID"] = f"machine-{world_rank()}"
    program = Program()
    program.init(MULTIPLE)
    say(ended(lambda: once(nranks, unique)))
    program.finalize()


@scenario
def mpi_takes_the_place_of_ucx_that_is_missing():
    """If the program has initialised MPI, and nobody has asked for an engine. Where UCX is there, it is UCX."""
    for mpi in every_mpi():
        env = {"FLAGOSCOMM_HOST_ENGINE": "auto", "FLAGOSCOMM_LOG": "info", "FLAGOSCOMM_ENGINE_PATH": "/nowhere/libucp.so.0"}
        lines, errors = mpi.run(2, "on_a_machine_of_its_own", env=env)
        about = {"openmpi": "Open MPI v", "mpich": "MPICH Version: ", "standard": "standard interface"}[mpi.name]
        said = [line for line in errors.splitlines() if "runs on the host tier" in line]
        check(lines == ["0", "0"] and len(said) == 1 and about in said[0], mpi.name, lines, errors)
        if machines.has_ucx():
            env["FLAGOSCOMM_ENGINE_PATH"] = ""
            lines, errors = mpi.run(2, "on_a_machine_of_its_own", env={**env, "UCX_TLS": "tcp,self"})
            check(lines == ["0", "0"] and "runs on the host tier: UCX" in errors, mpi.name, lines, errors)


# ---- several at once, large messages, and what is left

PAIRS = 4


@role
def two_at_once(_, nranks, *uniques):
    """Pairs of communicators, begun in another order on each rank or at once, and then used at once by two threads."""
    rank = own_rank(nranks)
    uniques = [uniques[0], *map(bytes.fromhex, uniques[1:])]
    failed = []

    def body(which, pair):
        try:
            time.sleep(0.02 * ((which + rank) % 2) * (pair % 2))
            comm = f.init(nranks, uniques[2 * pair + which], rank)
            for turn in range(40):
                got = f.all_reduce(comm, [float(which + turn)] * (5000 if turn % 3 else 3))
                check(set(got) == {float((which + turn) * nranks)}, which, turn)
            f.destroy(comm)
        except Exception as error:  # pylint: disable=broad-except
            failed.append(repr(error))

    # MPI stays as long as this one.
    stays = f.init(nranks, uniques[-1], rank)
    for pair in range(len(uniques) // 2):
        threads = [threading.Thread(target=body, args=(which, pair)) for which in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    f.destroy(stays)
    say(failed or "0")


@scenario
def two_communicators_over_mpi_at_once():
    """Their ranks begin with another one each, and they don't take each other's messages."""
    for mpi in every_mpi():
        lines, errors = mpi.run(2, "two_at_once", *[f.unique_id().hex() for _ in range(2 * PAIRS)])
        check(lines == ["0", "0"], mpi.name, lines, errors)


@role
def large(_, nranks, unique):
    """More than one piece of a message, both ways at once and one way."""
    rank = own_rank(nranks)
    comm = f.init(nranks, unique, rank)
    # Blocks that tell their places.
    data = [machines.bytes_of(f"large {one}", 1_000_003) * 71 for one in range(nranks)]
    count = len(data[0])
    own = (ctypes.c_ubyte * count).from_buffer_copy(data[rank])
    gathered = (ctypes.c_ubyte * (count * nranks))()
    f.ok(lib.flagosAllGather(own, gathered, count, f.UINT8, comm, None), comm)
    check(bytes(gathered) == b"".join(data), rank)
    if rank == 0:
        f.ok(lib.flagosSend(own, count, f.UINT8, 1, comm, None), comm)
    elif rank == 1:
        ctypes.memset(gathered, 0, count)
        f.ok(lib.flagosRecv(gathered, count, f.UINT8, 0, comm, None), comm)
        check(bytes(gathered)[:count] == data[0])
    f.destroy(comm)
    say("0")


@scenario
def large_messages_go_over_mpi_in_pieces():
    for mpi in every_mpi():
        lines, errors = mpi.run(2, "large")
        check(lines == ["0", "0"], mpi.name, lines, errors)


@role
def mpi_cycles(_, nranks, unique, count, *uniques):
    program = Program()
    program.init(MULTIPLE)
    everyone = [unique, *map(bytes.fromhex, uniques)]
    for one in everyone[:3]:
        once(nranks, one)
    time.sleep(0.3)
    before = possessions()
    for one in everyone[3:]:
        once(nranks, one)
    settles(before, f"{count} cycles")
    program.finalize()
    say("0")


@scenario
def cycles_over_mpi_leave_nothing():
    """Descriptors, threads, mappings, names and sockets over cycles of init and destroy."""
    for mpi in every_mpi():
        count = max(cycles() // 5, 10)
        lines, errors = mpi.run(2, "mpi_cycles", count, *[f.unique_id().hex() for _ in range(count + 2)], timeout=150)
        check(lines == ["0", "0"], mpi.name, lines, errors)


# ---- what goes wrong

@role
def with_one_that_fails(_, nranks, unique, how, count):
    """Collectives until the last rank is gone or stopped; how that has ended."""
    rank = own_rank(nranks)
    comm = f.init(nranks, unique, rank)
    data = (ctypes.c_float * int(count))()

    def collective():
        f.ok(lib.flagosAllReduce(data, data, int(count), f.FLOAT32, f.SUM, comm, None), comm)

    for _ in range(3):
        collective()
    if rank == nranks - 1:
        say(f"pid {os.getpid()}")
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL if how == "dies" else signal.SIGSTOP)
    begin = time.monotonic()
    words = ended(lambda: [collective() for _ in range(1_000_000)])
    took = time.monotonic() - begin
    begin = time.monotonic()
    f.destroy(comm)
    say(f"ended {took:.2f} {time.monotonic() - begin:.2f} {words}")


@scenario
def a_rank_over_mpi_that_dies_or_stops_ends_the_others_calls():
    """Dies: the others name it at once, where the launcher lets them. Stops: at the deadline, and the destroy does not wait
    for it."""
    for mpi in every_mpi():
        for how, count in (("dies", 10), ("dies", 500_000), ("stops", 10), ("stops", 500_000)):
            if how == "dies" and not mpi.going_on:
                continue
            env = {"FLAGOSCOMM_COLLECTIVE_TIMEOUT": "0.6"}
            one = mpi.start(2, "with_one_that_fails", how, count, env=env, going_on=True)
            pid = int(one.line().split()[1])
            # Launchers have something to say in between.
            while not (line := one.line(20)).startswith("ended "):
                pass
            ended_after, destroyed_after, code, words = line.split(" ", 4)[1:]
            if how == "stops":
                # Its launcher may have ended it already, when the other was over.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                one.process.wait(20)
            finally:
                one.process.kill()
            check(float(destroyed_after) < 1.5, mpi.name, line)
            if how == "dies":
                check(int(code) == f.REMOTE and "rank 1" in words and float(ended_after) < SLACK, mpi.name, line)
            else:
                check(int(code) == f.TIMEOUT and "rank 1" in words and float(ended_after) < 1.2 + SLACK, mpi.name, line)


if __name__ == "__main__":
    main(SCENARIOS)
