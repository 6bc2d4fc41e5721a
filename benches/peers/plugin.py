"""The project as a backend of a bench that compares host collectives: name this file in BENCH_PLUGIN.

BENCH_UFORM is an environment with uform and numpy, and ml_dtypes for bfloat16; .venv of this checkout is the default.
Two backends: `uform` calls on private arrays of NumPy, `uform-arena` on arrays of `mesh.arena`.
The processes of other backends load this file too, without uform: it is imported when it is used.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHECKED_BYTES = 4 * 1200
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


class Uform:
    """Private arrays; `prepare` gives the call alone, as the other backends do."""

    is_shared = False

    def __init__(self) -> None:
        import numpy  # noqa: PLC0415
        import uform  # noqa: PLC0415

        self.numpy, self.uform = numpy, uform
        self.mesh = uform.Mesh.bootstrap(None, None)
        self.rank, self.size = self.mesh.index, self.mesh.count
        # What the bench rewrites before a call, and where a verb with two arrays leaves its result.
        self.x: NDArray[Any] = numpy.zeros(1)
        self.y: NDArray[Any] = numpy.zeros(1)

    def describe(self) -> str:
        """Give the name of the backend."""
        return f"uform {type(self).__name__}"

    def dtype(self, name: str) -> "np.dtype[Any]":
        """Give the NumPy type of that name."""
        if name == "bfloat16":
            import ml_dtypes  # noqa: PLC0415

            name = ml_dtypes.bfloat16
        dtype: np.dtype[Any] = self.numpy.dtype(name)
        return dtype

    def arrays(self, counts: Sequence[int], dtype: str) -> "tuple[list[Any], list[NDArray[Any]]]":
        """Give what the verbs get, and how the bench writes it."""
        if not self.is_shared:
            private: list[NDArray[Any]] = [self.numpy.empty(count, self.dtype(dtype)) for count in counts]
            for array in private:
                array[:] = 0
            return list(private), private
        arena = self.mesh.arena(sum(count * ITEM_BYTES[dtype] + 4096 for count in counts))
        arrays = [arena.array(count, self.uform.Dtype[DTYPES[dtype]]) for count in counts]
        views = [self.numpy.asarray(array) for array in arrays]
        for view in views:
            view[:] = 0
        return list(arrays), views

    def prepare(self, op: str, nbytes: int, dtype: str = "float32") -> Callable[[], None]:
        """Make the arrays of an operation, and give the call on them."""
        if op == "barrier":
            return self.mesh.barrier
        count = max(1, nbytes // ITEM_BYTES[dtype])
        verb: Callable[..., None] = getattr(self.mesh, op)
        if op in ("all_reduce", "broadcast"):
            [array], [self.x] = self.arrays([count], dtype)
            return lambda: verb(array)
        count -= count % self.size
        part = count // self.size
        counts = {"reduce_scatter": (count, part), "all_gather": (part, count), "all_to_all": (count, count)}
        (given, out), (self.x, self.y) = self.arrays(counts[op], dtype)
        return lambda: verb(given, out)

    def check(self) -> None:
        """Run every operation on known values, once beside the descriptors and once in pieces."""
        size, rank = self.size, self.rank
        total = size * (size + 1) / 2
        for op, given, first, last in (
            ("all_reduce", rank + 1, total, total),
            ("reduce_scatter", rank + 1, total, total),
            ("all_gather", rank, 0, size - 1),
            ("broadcast", rank + 5, 5, 5),
            ("all_to_all", rank, 0, size - 1),
        ):
            for nbytes in (CHECKED_BYTES, 1000 * CHECKED_BYTES):
                call = self.prepare(op, nbytes)
                self.x[:] = given
                call()
                found = self.x if op in ("all_reduce", "broadcast") else self.y
                if (found[0], found[-1]) != (first, last):
                    message = f"{op} of {nbytes} bytes gave {found[0]} and {found[-1]} for {first} and {last}"
                    raise ValueError(message)

    def barrier(self) -> None:
        """Wait for all."""
        self.mesh.barrier()

    def gather_max(self, values: Sequence[float]) -> list[float]:
        """Give the largest of all members, place by place."""
        array = self.numpy.array(values, "float64")
        self.mesh.all_reduce(array, self.uform.ReduceOp.MAX)
        return [float(value) for value in array]

    def close(self) -> None:
        """Leave the run."""
        self.mesh.close()


class UformArena(Uform):
    """Arrays of an arena that all processes of the host map."""

    is_shared = True


def trainer(backend: Uform, count: int) -> tuple[Callable[[], None], Callable[[], Any]]:
    """Give one call that reduces gradients and updates parameters.

    The bench times a pair, synchronising and stepping; the first of this pair does nothing.
    """
    numpy, uform = backend.numpy, backend.uform
    parameters = {"all": numpy.full(count, 0.1, "float32")}
    own = uform.Trainer(backend.mesh, parameters, uform.AdamW(1e-3, weight_decay=0.01))
    numpy.asarray(own.gradients["all"])[:] = 0.01
    return (lambda: None), own.step


BACKENDS = {"uform": Uform, "uform-arena": UformArena}
PEERS = {name: name for name in BACKENDS}
TRAIN = {"trainer": trainer}


def start(name: str, count: int, script: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Give the command line and the variables that run a script in so many processes."""
    if name not in PEERS:
        raise ValueError(name)
    checkout = Path(__file__).resolve().parents[2]
    binaries = Path(os.environ.get("BENCH_UFORM", checkout / ".venv")) / "bin"
    command = [binaries / "uform", "launch", "--processes", count, binaries / "python", *script]
    # The launcher puts the index before each line; the bench reads lines that are JSON.
    bare = ["bash", "-o", "pipefail", "-c", r'"$@" | sed -u "s/^\[[0-9]*\] //"', "bash"]
    return [*bare, *map(str, command)], dict(os.environ, OMP_NUM_THREADS="1")
