#!/usr/bin/env python3
"""Data-parallel training of a small network on scikit-learn's handwritten digits.

Every rank holds the whole network and an equal part of each batch. Rank 0's first weights are broadcast;
in each step every rank computes the gradient of its part, and one all-reduce with Avg turns it into the
gradient of the whole batch. So N ranks do what one process does with the same global batch, up to the
rounding of float32 sums. After each epoch all ranks compare a hash of their weights: they must be identical
to the last bit.

Training needs ctypes and numpy only; scikit-learn is asked for its data set. Examples:

    train_digits.py --ranks 4                       # starts four processes itself
    train_digits.py --ranks 4 --compare             # also trains in one process and compares
    flagos-comm launch -n 4 -- python3 train_digits.py   # joins RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
"""

import argparse
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import sys
import time

# One thread per rank: the ranks are the parallelism here.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np

import flagos_comm

INPUTS, HIDDEN, CLASSES = 64, 32, 10
TEST_SAMPLES = 360


class OutOfStep(Exception):
    """Ranks hold different weights."""


def load_data():
    """The digits, cut into a training and a test part in a fixed random order."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(1).permutation(len(digits.target))
    x = (digits.data[order] / 16.0).astype(np.float32)
    y = digits.target[order]
    return (x[TEST_SAMPLES:], y[TEST_SAMPLES:]), (x[:TEST_SAMPLES], y[:TEST_SAMPLES])


class Network:
    """64 -> 32 -> 10, tanh and softmax. All weights lie in one array, so that one call moves them."""

    SHAPES = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))

    def __init__(self):
        self.weights = np.zeros(sum(int(np.prod(shape)) for shape in self.SHAPES), dtype=np.float32)
        self.gradient = np.zeros_like(self.weights)
        self.w1, self.b1, self.w2, self.b2 = self._views(self.weights)
        self.g_w1, self.g_b1, self.g_w2, self.g_b2 = self._views(self.gradient)

    def _views(self, flat):
        views, start = [], 0
        for shape in self.SHAPES:
            size = int(np.prod(shape))
            views.append(flat[start:start + size].reshape(shape))
            start += size
        return views

    def randomise(self, seed):
        random = np.random.default_rng(seed)
        self.w1[:] = random.normal(0, INPUTS ** -0.5, self.w1.shape)
        self.w2[:] = random.normal(0, HIDDEN ** -0.5, self.w2.shape)

    def forward(self, x):
        hidden = np.tanh(x @ self.w1 + self.b1)
        logits = hidden @ self.w2 + self.b2
        logits -= logits.max(axis=1, keepdims=True)
        exponentials = np.exp(logits)
        return hidden, exponentials / exponentials.sum(axis=1, keepdims=True)

    def backward(self, x, y):
        """Fills the gradient of the mean loss over (x, y) and returns that loss."""
        hidden, probabilities = self.forward(x)
        rows = np.arange(len(y))
        loss = float(-np.log(np.maximum(probabilities[rows, y], 1e-30)).mean())
        delta = probabilities
        delta[rows, y] -= 1
        delta /= np.float32(len(y))
        self.g_w2[:] = hidden.T @ delta
        self.g_b2[:] = delta.sum(axis=0)
        back = (delta @ self.w2.T) * (1 - hidden * hidden)
        self.g_w1[:] = x.T @ back
        self.g_b1[:] = back.sum(axis=0)
        return loss

    def accuracy(self, x, y):
        return float((self.forward(x)[1].argmax(axis=1) == y).mean())


class Alone:
    """What a communicator of one rank does, without a library: the reference for --compare."""

    rank, nranks = 0, 1

    def broadcast(self, buffer, root=0):
        pass

    def all_reduce(self, buffer, op="sum"):
        pass

    def all_gather(self, send, recv):
        recv[:] = send


def check_in_step(comm, weights):
    """Raises OutOfStep unless all ranks hold the same bits."""
    mine = np.frombuffer(hashlib.sha256(weights.tobytes()).digest(), dtype=np.uint8).copy()
    hashes = np.zeros((comm.nranks, len(mine)), dtype=np.uint8)
    comm.all_gather(mine, hashes)
    odd = [rank for rank in range(comm.nranks) if not np.array_equal(hashes[rank], hashes[0])]
    if odd:
        raise OutOfStep(f"the weights of rank {', '.join(map(str, odd))} differ from those of rank 0")


def train(comm, options, report=None):
    """Trains and returns the result as a dictionary; the same on every rank but for the timing."""
    (x, y), test = load_data()
    network = Network()
    if comm.rank == 0:
        network.randomise(options.seed)
    comm.broadcast(network.weights, root=0)

    part = options.batch // comm.nranks
    steps = len(y) // options.batch
    epochs = []
    for epoch in range(1, options.epochs + 1):
        started = time.monotonic()
        order = np.random.default_rng((options.seed, epoch)).permutation(len(y))
        total = np.zeros(1, dtype=np.float64)
        for step in range(steps):
            first = step * options.batch + comm.rank * part
            mine = order[first:first + part]
            total += network.backward(x[mine], y[mine])
            comm.all_reduce(network.gradient, op="avg")
            network.weights -= np.float32(options.rate) * network.gradient
        comm.all_reduce(total, op="avg")
        if options.corrupt == comm.rank and comm.nranks > 1:
            network.weights.view(np.uint32)[0] ^= 1
        check_in_step(comm, network.weights)
        line = {
            "epoch": epoch,
            "loss": float(total[0]) / steps,
            "accuracy": network.accuracy(*test),
            "seconds": time.monotonic() - started,
        }
        epochs.append(line)
        if report:
            report(line)
    return {
        "ranks": comm.nranks,
        "epochs": epochs,
        "weights_sha256": hashlib.sha256(network.weights.tobytes()).hexdigest(),
        "weights": network.weights,
    }


def print_line(line):
    if line["epoch"] == 1:
        print("epoch       loss  test accuracy  seconds")
    print(f"{line['epoch']:5d}  {line['loss']:9.5f}  {line['accuracy']:13.4f}  {line['seconds']:7.3f}", flush=True)


def verdict(result, options):
    """Sentences that say what is wrong with the run; none if all is well."""
    wrong = []
    losses = [line["loss"] for line in result["epochs"]]
    if not all(np.isfinite(losses)) or (len(losses) > 1 and losses[-1] >= losses[0]):
        wrong.append(f"the loss did not fall: first epoch {losses[0]:.5f}, last {losses[-1]:.5f}")
    if options.compare:
        alone = train(Alone(), options)
        by = {
            "accuracy": abs(result["epochs"][-1]["accuracy"] - alone["epochs"][-1]["accuracy"]),
            "loss": abs(losses[-1] - alone["epochs"][-1]["loss"]),
            "weights": float(np.abs(result["weights"] - alone["weights"]).max()),
        }
        result["one_process"] = {
            "loss": alone["epochs"][-1]["loss"],
            "accuracy": alone["epochs"][-1]["accuracy"],
            "difference": by,
        }
        print(
            f"one process with the same global batch: loss {alone['epochs'][-1]['loss']:.5f}, "
            f"test accuracy {alone['epochs'][-1]['accuracy']:.4f}; differences: "
            + ", ".join(f"{name} {value:.2e}" for name, value in by.items())
        )
        # One test sample on the edge between two digits may fall to the other side.
        limits = {
            "accuracy": 1.0 / TEST_SAMPLES + 1e-9,
            "loss": options.tolerance,
            "weights": options.tolerance,
        }
        for name, limit in limits.items():
            if not by[name] <= limit:
                wrong.append(f"{name} differs from one process's by {by[name]:.2e}, more than {limit:.2e}")
    return wrong


def run_rank(rank, nranks, exchange, options):
    """One rank, from its unique id to its exit code."""
    try:
        library = flagos_comm.Library(options.lib)
        unique_id = exchange(library)
        with library.communicator(nranks, unique_id, rank) as comm:
            if rank == 0:
                print(f"{nranks} rank{'s' if nranks > 1 else ''}, global batch {options.batch}, {library.path}")
            result = train(comm, options, print_line if rank == 0 else None)
    except (OutOfStep, flagos_comm.FlagosError, OSError, EOFError, ImportError) as error:
        sys.stderr.write(f"rank {rank}: {error or type(error).__name__}\n")
        return 1
    if rank != 0:
        return 0
    print("all ranks held bit-identical weights after every epoch")
    wrong = verdict(result, options)
    if options.json:
        del result["weights"]
        result["wrong"] = wrong
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr, flush=True)
    return 1 if wrong else 0


def spawned_rank(rank, nranks, pipe, options):
    """Entry of a process that `spawn_ranks` started. The unique id goes through the parent's pipes."""

    def exchange(library):
        if rank == 0:
            pipe.send_bytes(library.get_unique_id())
        return pipe.recv_bytes()

    sys.exit(run_rank(rank, nranks, exchange, options))


def spawn_ranks(options):
    """Starts the ranks and waits; when one fails, the others are stopped."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(options.ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=spawned_rank, args=(rank, options.ranks, theirs, options))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        try:
            unique_id = pipes[0].recv_bytes()
            for pipe in pipes:
                pipe.send_bytes(unique_id)
        except (EOFError, BrokenPipeError):
            pass  # that rank has ended; its exit code says so below
        running = {process.sentinel: process for process in processes}
        failed = False
        while running:
            # After the first failure the others have ten seconds to notice it themselves.
            ready = multiprocessing.connection.wait(list(running), timeout=10 if failed else None)
            if not ready:
                break
            for sentinel in ready:
                process = running.pop(sentinel)
                process.join()
                failed = failed or process.exitcode != 0
        return 1 if failed else 0
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, metavar="N",
                        help="start N processes (default 2); left out under a launcher that sets RANK and WORLD_SIZE")
    parser.add_argument("--lib", type=pathlib.Path, metavar="PATH",
                        help="libflagos_comm.so to load (default: the one under target/release)")
    parser.add_argument("--epochs", type=int, default=12, metavar="N", help="passes over the data (default 12)")
    parser.add_argument("--batch", type=int, default=96, metavar="N",
                        help="global batch, a multiple of the number of ranks (default 96)")
    parser.add_argument("--rate", type=float, default=0.5, metavar="R", help="learning rate (default 0.5)")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="seed of weights and order (default 7)")
    parser.add_argument("--compare", action="store_true",
                        help="also train in one process with the same global batch; fail if the loss or a weight differs "
                             "by more than --tolerance, or the test accuracy by more than one sample")
    parser.add_argument("--tolerance", type=float, default=1e-3, metavar="T",
                        help="tolerance of --compare, absolute (default 1e-3)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--corrupt", type=int, metavar="RANK",
                        help="flip one bit of a weight on this rank after each epoch, to see the check fail")
    options = parser.parse_args(arguments)
    options.launched = options.ranks is None and "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if options.launched:
        options.ranks = int(os.environ["WORLD_SIZE"])
    elif options.ranks is None:
        options.ranks = 2
    if options.ranks < 1:
        parser.error("--ranks must be at least 1")
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")
    if options.batch < 1 or options.batch % options.ranks != 0:
        parser.error(f"--batch {options.batch} is not a multiple of {options.ranks} ranks: "
                     "the parts of a batch must be equal for their mean gradient to be the batch's")
    return options


def main():
    options = parse()
    if not options.launched:
        return spawn_ranks(options)
    rank = int(os.environ["RANK"])
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = os.environ.get("MASTER_PORT")
    if port is None and options.ranks > 1:
        print("RANK and WORLD_SIZE are set but MASTER_PORT is not; use --ranks N to start the ranks here",
              file=sys.stderr)
        return 2
    port = int(port or 0)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # torchrun itself listens on MASTER_PORT
    return run_rank(
        rank, options.ranks,
        lambda library: flagos_comm.exchange_id(library, rank, options.ranks, address, port),
        options,
    )


if __name__ == "__main__":
    sys.exit(main())
