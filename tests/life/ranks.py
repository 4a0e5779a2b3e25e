"""Ranks as processes: each runs one role, a function of the scenario's file, and talks by lines."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import queue

ROLES = {}


def role(function):
    """Marks a function `function(rank, nranks, id, *arguments)` that a process of its own can run."""
    ROLES[function.__name__] = function
    return function


def say(*words):
    """A line for the scenario: a launcher that passes on what several ranks say may mix it up, so that it names a folder."""
    folder = os.environ.get("FLAGOSCOMM_TEST_LINES")
    if folder:
        with open(os.path.join(folder, str(os.getpid())), "a", encoding="utf-8") as lines:
            print(*words, file=lines)
    else:
        print(*words, flush=True)


class Process:
    """One running rank."""

    def __init__(self, name, rank, nranks, unique, arguments=(), env=None, python=(), prefix=()):
        self.name = f"{name} {rank}"
        self.errors = tempfile.TemporaryFile()
        command = [*prefix, sys.executable, *python, os.path.abspath(sys.argv[0]), "--role", name, str(rank), str(nranks),
                   unique.hex(), *map(str, arguments)]
        full = dict(os.environ)
        full.update(env or {})
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, env=full, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    @property
    def pid(self):
        return self.process.pid

    def line(self, timeout=20):
        """The next line."""
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            self.fail(f"said nothing for {timeout} s")
        if line is None:
            self.process.wait(timeout)
            self.fail("ended without the line")
        return line

    def expect(self, wanted, timeout=20):
        """The next line, which must be this."""
        line = self.line(timeout)
        if line != wanted:
            self.fail(f"said {line!r} instead of {wanted!r}")

    def go(self):
        """The line that the rank waits for."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def fail(self, what):
        self.process.kill()
        self.process.wait()
        raise AssertionError(f"{self.name} {what} (status {self.process.returncode})\n{self.stderr()}")

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def end(self, code=0, timeout=20):
        """Waits for the end with this status; seconds it took."""
        start = time.monotonic()
        try:
            got = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.fail(f"did not end within {timeout} s")
        if got != code:
            self.fail(f"ended with {got} instead of {code}")
        return time.monotonic() - start

    def rest(self):
        """All lines that are left, after the end."""
        lines = []
        while (line := self.lines.get(timeout=20)) is not None:
            lines.append(line)
        return lines

    def kill(self, how=signal.SIGKILL):
        self.process.send_signal(how)


def start(nranks, name, unique, *arguments, env=None):
    """Starts all ranks of one role."""
    return [Process(name, rank, nranks, unique, arguments, env) for rank in range(nranks)]


def run(nranks, name, unique, *arguments, env=None, timeout=30):
    """Starts all ranks of one role, and all must end well; their lines."""
    all_ranks = start(nranks, name, unique, *arguments, env=env)
    for one in all_ranks:
        one.end(0, timeout)
    return [one.rest() for one in all_ranks]


def main(scenarios):
    """`FILE SCENARIO`, or a rank of one."""
    if sys.argv[1] == "--role":
        name, rank, nranks, unique, *arguments = sys.argv[2:]
        ROLES[name](int(rank), int(nranks), bytes.fromhex(unique), *arguments)
    elif sys.argv[1] == "--list":
        print("\n".join(scenarios))
    else:
        for name in sys.argv[1:]:
            start_time = time.monotonic()
            scenarios[name]()
            print(f"{name}: {time.monotonic() - start_time:.2f} s", flush=True)
