"""Foreign and broken clients on the ports of an init: they can't stop it, crash it or fill the memory.

Scenarios as in life.py; by hand:

    FLAGOSCOMM_TEST_LIBRARY=target/release/libflagos_comm.so python3 tests/life/foreign.py SCENARIO
"""

import os
import socket
import struct
import threading
import time

import flagos as f
from life import SLACK, check, limits, told
from ranks import Process, main, role, say

SCENARIOS = {}
MANY = 200
HELLO, JOIN = 1, 6


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def frame(kind, body, length=None):
    """A frame of the control channel; its length may be a lie."""
    return struct.pack("<IBBBBI", len(body) if length is None else length, kind, 0, 0, 0, 0) + body


# What a client does: what it says at once, and what it goes on to say, a piece at a time, as long as it is heard.
CLIENTS = {
    "silent": (b"", None),
    "garbage": (bytes(range(256)) * 40, None),
    "a browser": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", None),
    "slow": (b"", [bytes([byte]) for byte in frame(HELLO, bytes(60))]),
    "the wrong secret": (frame(HELLO, bytes(80)), None),
    "the wrong secret at the hub": (frame(JOIN, bytes(20)), None),
    "a huge length": (frame(HELLO, b"", 0xffffffff), None),
    "a large length, and filling it": (frame(HELLO, b"", 60 << 20), [bytes(1 << 20)] * 60),
    "a frame that is just too long": (frame(JOIN, bytes(5000)), None),
    "frames that only ranks send later": (frame(9, bytes(8)) + frame(12, bytes(16)) + frame(3, bytes(8)), None),
}


class Crowd:
    """Many clients of all kinds at some ports, which come again when they are sent away."""

    def __init__(self, ports, many):
        self.stop = threading.Event()
        self.connected = 0
        self.sent = 0
        kinds = list(CLIENTS.values())
        self.threads = [threading.Thread(target=self.one, args=(ports[n % len(ports)], *kinds[n // len(ports) % len(kinds)]))
                        for n in range(many)]
        for thread in self.threads:
            thread.start()

    def one(self, port, first, more):
        while not self.stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                    self.connected += 1
                    client.settimeout(0.5)
                    client.sendall(first)
                    for piece in more or ():
                        if self.stop.is_set():
                            return
                        client.sendall(piece)
                        self.sent += len(piece)
                        if len(piece) == 1:
                            self.stop.wait(0.05)
                    # Until it is sent away.
                    while not self.stop.is_set():
                        try:
                            if client.recv(1) == b"":
                                break
                        except TimeoutError:
                            pass
            except OSError:
                pass
            self.stop.wait(0.05)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def port_of(unique):
    """The port of an id's rendezvous."""
    return struct.unpack_from("<H", unique, 32)[0]


def listening(pid):
    """The TCP ports at which a process listens."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass
    ports = set()
    for line in open(f"/proc/{pid}/net/tcp", encoding="ascii").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def memory(pid):
    """Its resident memory in MiB."""
    for line in open(f"/proc/{pid}/status", encoding="ascii"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no memory")


@role
def serves_and_joins(rank, nranks, _unique):
    """Rank 0 makes the id itself."""
    unique = f.unique_id()
    say(unique.hex())
    joins(rank, nranks, unique)


@role
def joins(rank, nranks, unique):
    begin = time.monotonic()
    try:
        comm = f.init(nranks, unique, rank)
    except f.Failed as error:
        return say(f"{error.code} {time.monotonic() - begin:.2f} {error.words}")
    check(f.all_reduce(comm) == [float(nranks)])
    say(f"0 {time.monotonic() - begin:.2f} ")
    f.destroy(comm)


def besieged(limit):
    """Rank 0 of 2 with a crowd at its two ports: the rendezvous' and that of its children."""
    env = {"FLAGOSCOMM_SOCKET_IFNAME": "=lo", "FLAGOSCOMM_SOCKET_FAMILY": "ipv4", **limits(limit)}
    zero = Process("serves_and_joins", 0, 2, b"", env=env)
    unique = bytes.fromhex(zero.line())
    deadline = time.monotonic() + 10
    while len(ports := listening(zero.pid)) < 2:
        check(time.monotonic() < deadline, "rank 0 does not listen", ports)
        time.sleep(0.01)
    check(port_of(unique) in ports, ports)
    return zero, unique, sorted(ports), env


@scenario
def foreign_clients_do_not_stop_an_init():
    """200 of them, of every kind, at both ports: rank 1 comes, and the init succeeds meanwhile."""
    zero, unique, ports, env = besieged(20)
    before = memory(zero.pid)
    crowd = Crowd(ports, MANY)
    try:
        time.sleep(1.5)
        check(crowd.connected >= MANY / 2, "the crowd is too small", crowd.connected)
        one = Process("joins", 1, 2, unique, env=env)
        for process in (one, zero):
            code, seconds, words = told(process)
            check(code == 0, process.name, code, seconds, words)
        check(seconds < 1.5 + 8 + SLACK, seconds)
        check(memory(zero.pid) - before < 48, "memory grew from", before, "to", memory(zero.pid))
        one.end()
        zero.end()
    finally:
        crowd.end()


@scenario
def foreign_clients_do_not_move_a_deadline():
    """The same, and rank 1 never comes: rank 0 ends at its deadline and names it."""
    zero, _, ports, _ = besieged(2)
    before = memory(zero.pid)
    crowd = Crowd(ports, MANY)
    try:
        code, seconds, words = told(zero)
        check(code == f.TIMEOUT and "rank 1" in words and seconds < 2 + SLACK, code, seconds, words)
        check(memory(zero.pid) - before < 48, "memory grew from", before, "to", memory(zero.pid))
        zero.end()
    finally:
        crowd.end()


@scenario
def more_silent_clients_than_are_heard_make_room():
    """Connections that say nothing fill every place; a rank that comes behind them is let in long before they end."""
    zero, unique, ports, env = besieged(20)
    silent = []
    try:
        for port in ports:
            silent += [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(MANY + 100)]
        one = Process("joins", 1, 2, unique, env=env)
        for process in (one, zero):
            code, seconds, words = told(process)
            check(code == 0 and seconds < 6 + SLACK, process.name, code, seconds, words)
        one.end()
        zero.end()
    finally:
        for client in silent:
            client.close()


if __name__ == "__main__":
    main(SCENARIOS)
