"""The project as a backend of a bench that compares host collectives: name this file in BENCH_PLUGIN.

BENCH_UFORM is an environment that has uform and numpy (ml_dtypes too for bfloat16); without it .venv of this checkout is taken.
Two backends: `uform` calls on private arrays of NumPy, `uform-arena` on arrays of `mesh.arena`.
"""

import os
import pathlib

CHECKED_BYTES = 4 * 1200
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


class Uform:
    """Private arrays; `prepare` gives the call alone, as the other backends do."""

    is_shared = False

    def __init__(self):
        import numpy
        import uform

        self.numpy, self.uform = numpy, uform
        self.mesh = uform.Mesh.bootstrap(None, None)
        self.rank, self.size = self.mesh.index, self.mesh.count

    def describe(self):
        return f"uform {self.uform.capabilities_compiled().split()[0]} {type(self).__name__}"

    def dtype(self, name):
        if name == "bfloat16":
            import ml_dtypes

            return self.numpy.dtype(ml_dtypes.bfloat16)
        return self.numpy.dtype(name)

    def arrays(self, counts, dtype):
        """What the verbs get, and how the bench writes it."""
        if not self.is_shared:
            arrays = [self.numpy.zeros(count, self.dtype(dtype)) for count in counts]
            for array in arrays:
                array[:] = 0
            return arrays, arrays
        names = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
        arena = self.mesh.arena(sum(count * ITEM_BYTES[dtype] + 4096 for count in counts))
        arrays = [arena.array(count, self.uform.Dtype[names[dtype]]) for count in counts]
        views = [self.numpy.asarray(array) for array in arrays]
        for view in views:
            view[:] = 0
        return arrays, views

    def prepare(self, op, nbytes, dtype="float32"):
        mesh = self.mesh
        if op == "barrier":
            return mesh.barrier
        count = max(1, nbytes // ITEM_BYTES[dtype])
        if op in ("all_reduce", "broadcast"):
            [array], [self.x] = self.arrays([count], dtype)
            verb = getattr(mesh, op)
            return lambda: verb(array)
        count -= count % self.size
        part = count // self.size
        counts = {
            "reduce_scatter": (count, part),
            "all_gather": (part, count),
            "all_to_all": (count, count),
        }[op]
        (array, out), (self.x, self.y) = self.arrays(counts, dtype)
        verb = getattr(mesh, op)
        return lambda: verb(array, out)

    def check(self):
        size, rank = self.size, self.rank
        for op, given, first, last in (
            ("all_reduce", rank + 1, size * (size + 1) / 2, size * (size + 1) / 2),
            ("reduce_scatter", rank + 1, size * (size + 1) / 2, size * (size + 1) / 2),
            ("all_gather", rank, 0, size - 1),
            ("broadcast", rank + 5, 5, 5),
            ("all_to_all", rank, 0, size - 1),
        ):
            # Once beside the descriptors, and once in pieces.
            for nbytes in (CHECKED_BYTES, 1000 * CHECKED_BYTES):
                call = self.prepare(op, nbytes)
                self.x[:] = given
                call()
                found = self.x if op in ("all_reduce", "broadcast") else self.y
                assert found[0] == first and found[-1] == last, (op, nbytes, found[0], found[-1])

    def barrier(self):
        self.mesh.barrier()

    def gather_max(self, values):
        array = self.numpy.array(values, "float64")
        self.mesh.all_reduce(array, self.uform.ReduceOp.MAX)
        return array.tolist()

    def close(self):
        self.mesh.close()


class UformArena(Uform):
    """Arrays of an arena that all processes of the host map."""

    is_shared = True


def trainer(backend, count):
    """One call that reduces gradients and updates parameters; the bench times both, so the first of the pair does nothing."""
    numpy, uform = backend.numpy, backend.uform
    parameters = {"all": numpy.full(count, 0.1, "float32")}
    optimizer = uform.AdamW(1e-3, weight_decay=0.01)
    own = uform.Trainer(backend.mesh, parameters, optimizer)
    numpy.asarray(own.gradients["all"])[:] = 0.01
    return (lambda: None), own.step


BACKENDS = {"uform": Uform, "uform-arena": UformArena}
PEERS = {name: name for name in BACKENDS}
TRAIN = {"trainer": trainer}


def start(name, count, script):
    """The command line and the variables that run a script in so many processes."""
    assert name in PEERS
    checkout = pathlib.Path(__file__).resolve().parents[2]
    binaries = pathlib.Path(os.environ.get("BENCH_UFORM") or checkout / ".venv") / "bin"
    command = [binaries / "uform", "launch", "--processes", count, binaries / "python", *script]
    return [str(word) for word in command], dict(os.environ, OMP_NUM_THREADS="1")
