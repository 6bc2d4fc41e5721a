"""Verbs on GPU memory in two processes, on stand-ins of CUDA and NCCL: arrays of uform and of other libraries."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

from harness import ROOT, Members, uform_variables

# Two processes with one GPU each; what a test does stands below.
PREAMBLE = """
import ctypes
import os
import uform

index = int(os.environ["UFORM_INDEX"])
driver = ctypes.CDLL("libcuda.so.1")
executor = uform.Executor.for_vram([index], deferred_limit=4)
mesh = uform.Mesh.bootstrap(executor, None)
arena = mesh.arena(1 << 16)
context, stream = ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), index) == 0
assert driver.cuCtxPushCurrent_v2(context) == 0
assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
kept = []

def address_of(array):
    return array.__cuda_array_interface__["data"][0]

def idle(handle):
    while driver.cuStreamQuery(ctypes.c_void_p(handle)) == 600:
        pass

def write(address, values, handle=None):
    source = (ctypes.c_float * len(values))(*values)
    kept.append(source)
    length = ctypes.c_size_t(4 * len(values))
    handle = stream.value if handle is None else handle
    place, on = ctypes.c_uint64(address), ctypes.c_void_p(handle)
    assert driver.cuMemcpyHtoDAsync_v2(place, source, length, on) == 0

def read(address, count):
    found = (ctypes.c_float * count)()
    place = ctypes.c_uint64(address)
    assert driver.cuMemcpyDtoHAsync_v2(found, place, ctypes.c_size_t(4 * count), stream) == 0
    idle(stream.value)
    return list(found)

def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), (words, str(error))
    else:
        raise AssertionError(words)

class Foreign:
    "Memory of another library on this GPU, whose work is on a stream of its own."

    def __init__(self, count, number=index):
        self.count, self.device, self.asked, place = count, (2, number), [], ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(4 * count)) == 0
        self.address, self.own = place.value, ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(self.own), 1) == 0

    def free(self):
        assert driver.cuStreamDestroy_v2(self.own) == 0
        assert driver.cuMemFree_v2(ctypes.c_uint64(self.address)) == 0

class ByInterface(Foreign):
    told = "own"

    @property
    def __cuda_array_interface__(self):
        told = self.own.value if self.told == "own" else self.told
        data = (self.address, False)
        return {"shape": (self.count,), "typestr": "<f4", "data": data, "version": 3, "stream": told}

class Shape(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32),
                ("dimensions", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

class ByDlpack(Foreign):
    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None):
        # The consumer's stream waits for what is on the producer's.
        self.asked.append(stream)
        event = ctypes.c_void_p()
        assert driver.cuEventCreate(ctypes.byref(event), 2) == 0
        assert driver.cuEventRecord(event, self.own) == 0
        assert driver.cuStreamWaitEvent(ctypes.c_void_p(stream), event, 0) == 0
        assert driver.cuEventDestroy_v2(event) == 0
        extent = (ctypes.c_int64 * 1)(self.count)
        kind, ordinal = self.device
        tensor = Shape(self.address, kind, ordinal, 1, 2, 32, 1, ctypes.addressof(extent), None, 0, None, None)
        kept.extend([extent, tensor])
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(tensor), b"dltensor", None)
"""

END = """
assert driver.cuStreamDestroy_v2(stream) == 0
assert driver.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
assert driver.cuDevicePrimaryCtxRelease_v2(index) == 0
mesh.close()
for name, value in list(globals().items()):
    if isinstance(value, (uform.Array, uform.Arena, list)):
        del globals()[name]
del value
executor.__exit__(None, None, None)
print("done")
"""

VERBS = """
array, out = arena.array(4), arena.array(8)
own = [index + 0.5, 2.0, 3.0, 4.0]
write(address_of(array), own)
idle(stream.value)
assert mesh.all_reduce(array) is None
assert read(address_of(array), 4) == [2.0, 4.0, 6.0, 8.0]
mesh.all_gather(array, out)
assert read(address_of(out), 8) == [2.0, 4.0, 6.0, 8.0] * 2
write(address_of(array), own)
idle(stream.value)
mesh.deferred().all_reduce(array, uform.ReduceOp.MAX).wait(30)
assert read(address_of(array), 4)[0] == 1.5
sent, taken = arena.array(3), arena.array(3)
write(address_of(sent), [float(index)] * 3)
idle(stream.value)
for turn in range(2):
    if turn == index:
        mesh.send(sent, 1 - index, tag=3)
    else:
        mesh.deferred().receive(taken, 1 - index, tag=3).wait(30)
assert read(address_of(taken), 3) == [float(1 - index)] * 3
some = arena.array(3)
mesh.all_gather(arena.array(1 + index), some, counts=[1, 2])
parts = [arena.array(2), arena.array((2, 2))]
for part in parts:
    write(address_of(part), [1.0, 2.0])
idle(stream.value)
mesh.all_reduce(parts)
assert [read(address_of(part), 2) for part in parts] == [[2.0, 4.0]] * 2

host = bytearray(16)
refused(lambda: mesh.all_reduce(array, out=memoryview(host).cast("f")), uform.InvalidError,
        "host memory", f"index {index} ", f"GPU {index} (")
refused(lambda: mesh.all_reduce(arena.array(2, uform.Dtype.I16)), uform.UnsupportedError, "I16", "host memory")
refused(lambda: mesh.all_reduce(array, reproducible=True), uform.UnsupportedError, "reproducible")
refused(lambda: mesh.on(uform.Executor.for_ram(1)).all_reduce(array), uform.InvalidError,
        f"index {index} ", "for_vram", f"CUDA device {index}")
mesh.barrier()
"""

FOREIGN = """
for make in (ByDlpack, ByInterface):
    for _ in range(5):
        theirs = make(4)
        # Not waited for here: the verb's stream waits for theirs.
        write(theirs.address, [1.0 + index, 2.0, 3.0, 4.0], theirs.own.value)
        mesh.all_reduce(theirs)
        assert read(theirs.address, 4) == [3.0, 4.0, 6.0, 8.0], make
        assert all(handle > 2 for handle in theirs.asked) and len(theirs.asked) == (make is ByDlpack)
        write(theirs.address, [1.0 + index, 2.0, 3.0, 4.0], theirs.own.value)
        mesh.deferred().all_reduce(theirs).wait(30)
        assert read(theirs.address, 4) == [3.0, 4.0, 6.0, 8.0], make
        theirs.free()
theirs = ByInterface(2)
for told in (None, 1, 2):
    theirs.told = told
    write(theirs.address, [1.0, 2.0], 2 if told == 2 else 1)
    if told is None:
        idle(1)
    mesh.all_reduce(theirs)
    assert read(theirs.address, 2) == [2.0, 4.0], told
for told in (0, "1", -1):
    theirs.told = told
    refused(lambda: mesh.all_reduce(theirs), uform.InvalidError, "stream")
theirs.free()
elsewhere = ByDlpack(2, number=7)
refused(lambda: mesh.all_reduce(elsewhere), uform.InvalidError,
        "CUDA device 7", f"index {index} ", f"GPU {index} (", "copy the array there")
assert elsewhere.asked == []
elsewhere.free()
nowhere = ByInterface(2)
there, nowhere.address = nowhere.address, 4096
refused(lambda: mesh.all_reduce(nowhere), uform.InvalidError, f"index {index} ", "host memory")
nowhere.address = there
nowhere.free()
mesh.barrier()
"""


TRAINER = """
single = (ctypes.c_float * 6)(*[float(index + position) for position in range(6)])
start = {"weight": memoryview(single).cast("B").cast("f", (2, 3)), "bias": memoryview(single).cast("B").cast("f")[:2]}
optimizer = uform.SGD(1.0)
trainer = uform.Trainer(mesh, start, optimizer)
weight, gradient = trainer.parameters["weight"], trainer.gradients["weight"]
assert (weight.shape, weight.read_only, gradient.read_only) == ((2, 3), True, False)
assert weight.__dlpack_device__() == (2, index)
assert weight.__cuda_array_interface__["data"][1] and not gradient.__cuda_array_interface__["data"][1]
assert read(address_of(weight), 6) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
# On the default stream, which the step waits for.
write(address_of(gradient), [1.0 + index, 2.0, 3.0, 4.0, 5.0, 6.0], 1)
report = trainer.step()
assert (report.step, report.weight, report.skipped) == (1, 2.0, False), report
assert read(address_of(weight), 6) == [-1.5, -1.0, -1.0, -1.0, -1.0, -1.0]
with trainer.edit() as parameters:
    write(address_of(parameters["bias"]), [7.0 + index, 8.0])
    idle(stream.value)
assert read(address_of(trainer.parameters["bias"]), 2) == [7.0, 8.0]
trainer.save(os.path.join(os.path.dirname(__file__), "saved"), step=3)
host = uform.Trainer(mesh.on(uform.Executor.for_ram(1)), start, optimizer)
assert host.load(os.path.join(os.path.dirname(__file__), "saved")) == 3
assert memoryview(host.parameters["weight"]).tolist() == [[-1.5, -1.0, -1.0], [-1.0, -1.0, -1.0]]
assert trainer.deferred().step().wait(30) is not None
del trainer, weight, gradient, parameters, host, report
mesh.barrier()
"""


# Two processes with two GPUs each: every GPU has the place of a process.
SEVERAL = """
import ctypes
import os
import uform

index = int(os.environ["UFORM_INDEX"])
driver = ctypes.CDLL("libcuda.so.1")
numbers = [2 * index, 2 * index + 1]
executor = uform.Executor.for_vram(numbers, deferred_limit=4)
mesh = uform.Mesh.bootstrap(executor, None)
described = mesh.describe()
assert (described.first_gpu_index, described.gpus_per_host_domain) == (2 * index, 2), described
arena = mesh.arena(1 << 14)
contexts = {}
for number in numbers:
    contexts[number] = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(contexts[number]), number) == 0

def on(number, call, *arguments):
    "Calls the driver on one of the GPUs, on its default stream, and waits."
    popped = ctypes.c_void_p()
    assert driver.cuCtxPushCurrent_v2(contexts[number]) == 0
    assert call(*arguments, ctypes.c_void_p(1)) == 0
    while driver.cuStreamQuery(ctypes.c_void_p(1)) == 600:
        pass
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0

def place(array):
    return ctypes.c_uint64(array.__cuda_array_interface__["data"][0])

def fresh(*values, dtype=uform.Dtype.F32):
    "An array on each GPU, with the values of its place."
    made = []
    for device, number in enumerate(numbers):
        array = arena.array(len(values), dtype, device=device)
        source = (ctypes.c_float * len(values))(*[value(number) for value in values])
        if dtype == uform.Dtype.F32:
            on(number, driver.cuMemcpyHtoDAsync_v2, place(array), source, ctypes.c_size_t(4 * len(values)))
        made.append(array)
    return made

def read_one(array, number):
    count = array.shape[0]
    target = (ctypes.c_float * count)()
    on(number, driver.cuMemcpyDtoHAsync_v2, target, place(array), ctypes.c_size_t(4 * count))
    return list(target)

def read(arrays):
    return [read_one(array, number) for array, number in zip(arrays, numbers)]

def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), (words, str(error))
    else:
        raise AssertionError(words)

own, one = (lambda place: place + 0.5), (lambda place: 1.0)
arrays = fresh(own, one)
assert mesh.all_reduce(arrays) is None
assert read(arrays) == [[8.0, 4.0]] * 2
# A tuple is as good as a list.
arrays, outs = fresh(own, one), tuple(fresh(*[one] * 8))
mesh.all_gather(tuple(arrays), outs)
assert read(outs) == [[0.5, 1.0, 1.5, 1.0, 2.5, 1.0, 3.5, 1.0]] * 2
mesh.deferred().all_reduce(arrays, uform.ReduceOp.MAX, out=fresh(one, one)).wait(30)
parts = fresh(one)
mesh.reduce_scatter(fresh(own, own, own, own), parts)
assert read(parts) == [[8.0]] * 2
for root in range(4):
    arrays = fresh(own)
    mesh.broadcast(arrays, root)
    assert read(arrays) == [[root + 0.5]] * 2
    # Only the root's arrays are looked at.
    taken = [fresh(one, one, one, one)[place] if number == root else None for place, number in enumerate(numbers)]
    mesh.gather(fresh(own), taken if root in numbers else None, root)
    for position, array in enumerate(taken):
        if array is not None:
            assert read_one(array, numbers[position]) == [0.5, 1.5, 2.5, 3.5]
    given = [fresh(own, own, own, own)[place] if number == root else None for place, number in enumerate(numbers)]
    mesh.scatter(given, arrays, root)
    assert read(arrays) == [[root + 0.5]] * 2
turned = fresh(one, one, one, one)
mesh.all_to_all(fresh(own, own, own, own), turned)
assert read(turned) == [[0.5, 1.5, 2.5, 3.5]] * 2

own_index = f"index {index}"
refused(lambda: mesh.all_reduce(arrays[0]), uform.InvalidError, own_index, "drives 2 GPUs", f"GPU {numbers[1]} (")
refused(lambda: mesh.all_reduce(arrays[:1]), uform.InvalidError, own_index, "arrays for 1 GPUs", "one array for each")
refused(lambda: mesh.all_reduce(arrays[::-1]), uform.InvalidError, own_index, "array 0", f"GPU {numbers[0]} (")
refused(lambda: mesh.all_reduce([arrays[0]] * 2), uform.InvalidError, own_index, "array 1", "on that GPU already")
mixed = [arrays[0], fresh(one, dtype=uform.Dtype.I32)[1]]
refused(lambda: mesh.all_reduce(mixed), uform.InvalidError, own_index, "array 1", "I32", "F32")
mixed = [arrays[0], fresh(one, one)[1]]
refused(lambda: mesh.all_reduce(mixed), uform.InvalidError, own_index, "2 elements", f"GPU {numbers[1]} (")
host = memoryview(bytearray(4)).cast("f")
refused(lambda: mesh.all_reduce([arrays[0], host]), uform.InvalidError, own_index, "host memory")
refused(lambda: mesh.send(arrays, 1 - index), uform.UnsupportedError, own_index, "a process for each GPU")
# In host memory a list is many arrays of one call, as ever.
many = [memoryview(bytearray(8)).cast("f") for _ in range(3)]
for view in many:
    view[0] = 1.0
mesh.all_reduce(many)
assert [view[0] for view in many] == [2.0] * 3
single = (ctypes.c_float * 2)(10.0, 20.0)
trainer = uform.Trainer(mesh, {"weight": memoryview(single).cast("B").cast("f")}, uform.SGD(1.0))
for device, number in enumerate(numbers):
    gradient = trainer.gradients_on(device)["weight"]
    assert gradient.__dlpack_device__() == (2, number)
    source = (ctypes.c_float * 2)(number + 1.0, 2.0)
    on(number, driver.cuMemcpyHtoDAsync_v2, place(gradient), source, ctypes.c_size_t(8))
assert trainer.step().weight == 2.0
for device, number in enumerate(numbers):
    assert read_one(trainer.parameters_on(device)["weight"], number) == [7.5, 18.0]
refused(lambda: trainer.gradients, uform.InvalidError, own_index, "trains on 2 GPUs")
refused(lambda: trainer.parameters_on(2), uform.InvalidError, "device", "2 GPUs")
refused(lambda: trainer.gradients_on(-1), uform.InvalidError, "device")
assert trainer.parameters["weight"].read_only and not gradient.read_only
mesh.barrier()
del array, arrays, outs, parts, taken, given, turned, mixed, gradient, trainer
for number in numbers:
    assert driver.cuDevicePrimaryCtxRelease_v2(number) == 0
mesh.close()
del arena
executor.__exit__(None, None, None)
print("done")
"""


def run_on_gpus(folder: Path, source: str, count: int = 2) -> list[str]:
    """Run a program in two processes that see GPUs; give the calls of the stand-ins."""
    sources = map(str, sorted((ROOT / "tests" / "c" / "stand_in").glob("*.c")))
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-pthread", "-Wl,-Bsymbolic"]
    subprocess.run([*command, "-o", str(folder / "stand_in.so"), *sources, "-lm"], check=True)
    for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libnccl.so.2", "libnvrtc.so.12"):
        (folder / name).symlink_to("stand_in.so")
    answers, rest = (
        ["init 0", f"count {count}", "cuda 12080", f"delay {6000 // count}"],
        "9 0 16896 1048576 18 0 0 0 0 0 0 0 NVIDIA H100",
    )
    answers += [
        f"device {n} 0 0 GPU-0000000{n}-1111-2222-3333-444444444444 1{n} {rest}" for n in range(count)
    ]
    (folder / "answers").write_text("\n".join(answers) + "\n")
    job, program, meeting = f"test-{uuid.uuid4().hex}", folder / "program.py", folder / "meeting"
    program.write_text(source if source is SEVERAL else PREAMBLE + source + END)
    meeting.mkdir(mode=0o700)
    variables = {
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")]),
        "STAND_IN_ANSWERS": str(folder / "answers"),
        "STAND_IN_CALLS": str(folder / "calls"),
    }
    with Members(folder) as members:
        for index in range(2):
            command = [sys.executable, str(program)]
            members.start(command, variables | uform_variables(index, 2, meeting, job))
        for index, member in enumerate(members.all):
            code = member.wait(120)
            assert (code, member.text()) == (0, "done\n"), f"index {index}: {code}\n{member.text()}"
    called = (folder / "calls").read_text().split("\n")
    assert not any(line.startswith("left ") for line in called), called
    return called


def test_verbs_take_arrays_of_an_arena_on_gpus(tmp_path: Path) -> None:
    called = run_on_gpus(tmp_path, VERBS)
    assert (called.count("ncclCommDestroy"), called.count("ncclCommAbort")) == (2, 0), called


def test_verbs_take_arrays_of_other_libraries_behind_their_work(tmp_path: Path) -> None:
    called = run_on_gpus(tmp_path, FOREIGN)
    assert called.count("ncclCommAbort") == 0, called


def test_a_process_gives_one_array_for_each_of_its_gpus(tmp_path: Path) -> None:
    called = run_on_gpus(tmp_path, SEVERAL, 4)
    assert (called.count("ncclCommDestroy"), called.count("ncclCommAbort")) == (4, 0), called


def test_a_trainer_lies_on_the_gpus(tmp_path: Path) -> None:
    called = run_on_gpus(tmp_path, TRAINER)
    assert called.count("cuModuleUnload") == 2, called
    assert called.count("ncclReduceScatter") == 4, called
