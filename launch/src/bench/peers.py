"""Times one verb of another library: what `uform bench --against` runs, as `python -c`.

probe LIBRARY VERB DTYPE OP says what is installed. measure LIBRARY VERB DTYPE OP COUNT ROOT SECONDS ROUNDS SIZES prints
a line of JSON for each size. The rounds are those of `uform bench`: a barrier, so many calls, the median of the mean
over members.
"""

# A library is imported only where it is the one that is asked for.
# ruff: noqa: PLC0415

import json
import os
import signal
import sys
import tempfile
import threading
import time

ROUND_SECONDS = 200e-6
CALL_LIMIT = 4096
LEAST_ROUNDS, MOST_ROUNDS = 5, 20_000

VERBS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
)
COMBINING = ("all_reduce", "reduce", "reduce_scatter")

TORCH_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I8": "int8",
    "U8": "uint8",
    "I32": "int32",
    "I64": "int64",
}
TORCH_OPS = {
    "SUM": "SUM",
    "PRODUCT": "PRODUCT",
    "MIN": "MIN",
    "MAX": "MAX",
    "BITWISE_AND": "BAND",
    "BITWISE_OR": "BOR",
    "BITWISE_XOR": "BXOR",
}
MPI_TYPES = {
    "F64": ("DOUBLE", 8),
    "F32": ("FLOAT", 4),
    "I8": ("INT8_T", 1),
    "U8": ("UINT8_T", 1),
    "I16": ("INT16_T", 2),
    "U16": ("UINT16_T", 2),
    "I32": ("INT32_T", 4),
    "U32": ("UINT32_T", 4),
    "I64": ("INT64_T", 8),
    "U64": ("UINT64_T", 8),
}
MPI_OPS = {
    "SUM": "SUM",
    "PRODUCT": "PROD",
    "MIN": "MIN",
    "MAX": "MAX",
    "BITWISE_AND": "BAND",
    "BITWISE_OR": "BOR",
    "BITWISE_XOR": "BXOR",
}


def fail(reason):
    """End this process with a line that `uform bench` shows."""
    print(f"uform-bench-peer: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def end_with_input():
    """End this process as soon as its standard input ends: whoever started it is gone."""

    def watch():
        # Not through sys.stdin, whose lock an interpreter that ends would wait for.
        while os.read(0, 4096):
            pass
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


class Gloo:
    """The gloo backend of torch.distributed."""

    def __init__(self, dtype, op, index, count, folder):
        """Join the other processes."""
        import torch
        import torch.distributed

        self.torch, self.distributed = torch, torch.distributed
        self.dtype = getattr(torch, TORCH_TYPES[dtype])
        self.width = torch.empty(0, dtype=self.dtype).element_size()
        self.op = getattr(torch.distributed.ReduceOp, TORCH_OPS[op])
        self.index, self.count = index, count
        address = f"file://{folder}/meeting"
        torch.distributed.init_process_group("gloo", init_method=address, rank=index, world_size=count)

    def array(self, elements):
        """Zeros."""
        return self.torch.zeros(elements, dtype=self.dtype)

    def barrier(self):
        """Wait for all."""
        self.distributed.barrier()

    def shared(self, value):
        """Give all members what index 0 says."""
        number = self.torch.tensor([value], dtype=self.torch.float64)
        self.distributed.broadcast(number, 0)
        return float(number[0])

    def mean(self, values):
        """Give the mean over members of each value."""
        numbers = self.torch.tensor(values, dtype=self.torch.float64)
        self.distributed.all_reduce(numbers)
        return (numbers / self.count).tolist()

    def call(self, verb, root, given, out):
        """Give a function that makes one call."""
        d, op, n = self.distributed, self.op, self.count
        parts = list(out.chunk(n)) if out is not None and out.numel() >= n else []
        own = self.index == root
        return {
            "all_reduce": lambda: d.all_reduce(out, op),
            "reduce": lambda: d.reduce(out, root, op),
            "broadcast": lambda: d.broadcast(out, root),
            "all_gather": lambda: d.all_gather(parts, given),
            "reduce_scatter": lambda: d.reduce_scatter_tensor(out, given, op),
            "all_to_all": lambda: d.all_to_all_single(out, given),
            "gather": lambda: d.gather(given, parts if own else None, root),
            "scatter": lambda: d.scatter(out, list(given.chunk(n)) if own else None, root),
            "barrier": d.barrier,
        }[verb]


class Mpi:
    """The MPI of mpi4py."""

    def __init__(self, dtype, op, count):
        """Initialise MPI."""
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD
        self.index, self.count = self.comm.Get_rank(), self.comm.Get_size()
        if self.count != count:
            fail(
                f"MPI says that there are {self.count} processes of {count}: mpirun is not that of mpi4py's MPI"
            )
        name, self.width = MPI_TYPES[dtype]
        self.dtype, self.op = getattr(MPI, name), getattr(MPI, MPI_OPS[op])
        self.double, self.in_place, self.sum = MPI.DOUBLE, MPI.IN_PLACE, MPI.SUM

    def array(self, elements):
        """Zeros that are in memory."""
        return bytearray(b"\0" * (elements * self.width))

    def barrier(self):
        """Wait for all."""
        self.comm.Barrier()

    def shared(self, value):
        """Give all members what index 0 says."""
        return self.comm.bcast(value, 0)

    def mean(self, values):
        """Give the mean over members of each value."""
        everybody = self.comm.allgather(values)
        return [sum(column) / self.count for column in zip(*everybody, strict=True)]

    def call(self, verb, root, given, out):
        """Give a function that makes one call."""
        c, op, own = self.comm, self.op, self.index == root
        send = [given, self.dtype] if given is not None else None
        receive = [out, self.dtype] if out is not None else None
        reduced = (self.in_place, receive) if own else (receive, None)
        return {
            "all_reduce": lambda: c.Allreduce(self.in_place, receive, op),
            "reduce": lambda: c.Reduce(*reduced, op, root),
            "broadcast": lambda: c.Bcast(receive, root),
            "all_gather": lambda: c.Allgather(send, receive),
            "reduce_scatter": lambda: c.Reduce_scatter_block(send, receive, op),
            "all_to_all": lambda: c.Alltoall(send, receive),
            "gather": lambda: c.Gather(send, receive if own else None, root),
            "scatter": lambda: c.Scatter(send if own else None, receive, root),
            "barrier": c.Barrier,
        }[verb]


def timed(library, call, seconds, rounds):
    """Give the median over rounds of the mean over members of the seconds that a call takes."""

    def play(calls):
        library.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start

    calls = 1
    play(calls)
    while True:
        taken = library.shared(play(calls))
        if taken >= ROUND_SECONDS or calls >= CALL_LIMIT:
            break
        calls *= 4
    rounds = rounds or min(max(int(seconds / max(taken, 1e-9)), LEAST_ROUNDS), MOST_ROUNDS)
    times = sorted(library.mean([play(calls) / calls for _ in range(rounds)]))
    return times[len(times) // 2]


def measure(library, verb, root, seconds, rounds, sizes):
    """Time all sizes; index 0 prints."""
    n = library.count
    for size in sizes:
        elements = -(-size // library.width)
        part = -(-elements // n)
        given, out = {
            "all_gather": (part, part * n),
            "gather": (part, part * n),
            "reduce_scatter": (part * n, part),
            "scatter": (part * n, part),
            "all_to_all": (part * n, part * n),
        }.get(verb, (None, elements))
        given = None if given is None else library.array(given)
        taken = timed(library, library.call(verb, root, given, library.array(out)), seconds, rounds)
        if library.index == 0:
            print(json.dumps({"bytes": size, "microseconds": 1e6 * taken}), flush=True)


def run_gloo(count, dtype, op, rest):
    """Start the processes of gloo, and end all when one fails."""
    # All of them are on this host.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="uform-bench-gloo-") as folder:
        children = []
        for index in range(count):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                end_with_input()
                try:
                    measure(Gloo(dtype, op, index, count, folder), *rest)
                except BaseException as error:  # noqa: BLE001 - whatever it is, this process ends here
                    fail(f"gloo, rank {index}: {type(error).__name__}: {error}")
                os._exit(0)
            children.append(child)
        failed = False
        while children:
            child, status = os.wait()
            children.remove(child)
            if status != 0 and not failed:
                failed = True
                for other in children:
                    os.kill(other, signal.SIGKILL)
    sys.exit(1 if failed else 0)


def probe(library, verb, dtype, op):
    """Say what is installed, or why it cannot make this call."""
    types, ops = (TORCH_TYPES, TORCH_OPS) if library == "gloo" else (MPI_TYPES, MPI_OPS)
    try:
        if library == "gloo":
            import torch
            import torch.distributed

            if not torch.distributed.is_gloo_available():
                raise ImportError("torch was built without gloo")
            what = f"gloo of torch {torch.__version__}"
        else:
            import mpi4py

            mpi4py.rc.initialize = False
            from mpi4py import MPI

            name = MPI.Get_library_version().split(",")[0].split("\n")[0].strip().replace("\t", " ")
            what = f"{name}, mpi4py {mpi4py.__version__}"
    except (ImportError, OSError, RuntimeError) as error:
        package = "torch" if library == "gloo" else "mpi4py"
        lines = str(error).splitlines() or [type(error).__name__]
        print(f"absent {package} is not installed for {sys.executable}: {lines[0]}")
        return
    if dtype not in types:
        print(f"absent it does not know elements of type {dtype.lower()}")
    elif verb in COMBINING and op not in ops:
        print(f"absent it does not know the operation {op.lower()}")
    else:
        print(f"installed {what}")


def main(arguments):
    """Do what the arguments ask."""
    action, library, verb, dtype, op = arguments[:5]
    if verb not in VERBS:
        fail(f"unknown verb {verb}")
    if action == "probe":
        probe(library, verb, dtype, op)
        return
    count, root, seconds, rounds, sizes = arguments[5:10]
    sizes = [int(size) for size in sizes.split(",")]
    rest = (verb, int(root), float(seconds), int(rounds), sizes)
    # A verb that combines nothing may have an operation that a library does not know.
    known = TORCH_OPS if library == "gloo" else MPI_OPS
    op = op if op in known else "SUM"
    if library == "gloo":
        run_gloo(int(count), dtype, op, rest)
    mpi = Mpi(dtype, op, int(count))
    if mpi.index == 0:
        end_with_input()
    measure(mpi, *rest)
    mpi.barrier()


if __name__ == "__main__":
    main(sys.argv[1:])
