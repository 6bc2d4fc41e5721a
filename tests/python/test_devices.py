"""GPUs are found without starting their runtimes: a process may fork afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT, clean_environment

ANSWERS = """\
init 0
count 2
cuda 12080
device 0 0 0 GPU-a0 1b 9 0 16896 85520809984 18 0 0 3 0 0 170 0 NVIDIA H100 80GB HBM3
device 1 0 0 GPU-a1 1c 14 3 16896 85520809984 18 0 0 3 0 0 170 0 NVIDIA Next
"""

LOOK = """
import os
import uform

def look():
    devices = uform.gpu_devices()
    assert [device.vendor_ordinal for device in devices] == [1, 0], devices
    assert [device.gpu_class for device in devices] == [None, uform.GPUClass.NVIDIA_HOPPER], devices
    assert devices[1] == (uform.GPUVendor.NVIDIA, 0, uform.GPUClass.NVIDIA_HOPPER, 132, 85520809984,
                          "NVIDIA H100 80GB HBM3"), devices
    assert "cuda-12.8" in uform.capabilities_available().split(), uform.capabilities_available()
    assert "cuda" in uform.capabilities_compiled().split()

look()
for _ in range(3):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            look()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
with uform.Mesh.bootstrap(None, None) as mesh:
    print("members", mesh.count)
"""


def compile_stand_ins(folder: Path) -> None:
    sources = sorted((ROOT / "tests" / "c" / "stand_in").glob("*.c"))
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-pthread", "-Wl,-Bsymbolic"]
    subprocess.run([*command, "-o", str(folder / "stand_in.so"), *map(str, sources)], check=True)
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        (folder / name).symlink_to("stand_in.so")


def run(text: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = clean_environment() | variables
    command = [sys.executable, "-c", text]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_nothing_starts_cuda_and_children_may_be_forked(tmp_path: Path) -> None:
    compile_stand_ins(tmp_path)
    (tmp_path / "answers").write_text(ANSWERS)
    calls = tmp_path / "calls"
    variables = {
        "LD_LIBRARY_PATH": os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")]),
        "STAND_IN_ANSWERS": str(tmp_path / "answers"),
        "STAND_IN_CALLS": str(calls),
        "CUDA_VISIBLE_DEVICES": "GPU-a1,GPU-a0",
    }
    done = run(LOOK, variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "members 1\n"
    called = calls.read_text().split()
    assert called.count("cuInit") == 0, called
    assert 0 < called.count("nvmlInit_v2") == called.count("nvmlShutdown"), called
    assert set(called) == {"nvmlInit_v2", "nvmlShutdown"}, called


OPEN = """
import asyncio
import os
import uform

pin = uform.GPUClass.NVIDIA_AMPERE
with uform.Executor.for_vram([1, 0], scratch_limit=1 << 20, deferred_limit=2, gpu_class=pin) as executor:
    assert executor.threads == 2, executor.threads
    with uform.Mesh.bootstrap(executor, None) as mesh:
        assert mesh.describe().gpus_per_host_domain == 2, mesh.describe()
        asyncio.run(asyncio.wait_for(mesh.deferred().barrier(), 20))
        executor.drain(uform.Mood.BUSY)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            executor.drain()
        except uform.ClosedError as error:
            code = 0 if "before a fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert executor.closed
for devices, words in (([2], "there is no GPU 2"), ([0, 0], "is listed twice"), ([], "names none")):
    try:
        uform.Executor.for_vram(devices)
    except uform.InvalidError as error:
        assert words in str(error), error
    else:
        raise AssertionError(devices)
print("opened")
"""


ARENA = """
import ctypes
import uform

driver = ctypes.CDLL("libcuda.so.1")
executor = uform.Executor.for_vram([1, 0])
mesh = uform.Mesh.bootstrap(executor, None)
arena = mesh.arena(4096)
arrays = [arena.array((2, 3), uform.Dtype.I32, device=device) for device in range(2)]
assert [array.__dlpack_device__() for array in arrays] == [(2, 1), (2, 0)]
context, stream = ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0
assert driver.cuCtxPushCurrent_v2(context) == 0
assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0

told = arrays[0].__cuda_array_interface__
assert (told["shape"], told["typestr"], told["version"], told["strides"]) == ((2, 3), "<i4", 3, None), told
address, read_only = told["data"]
assert not read_only and told["stream"] > 2
values = (ctypes.c_int * 6)(*range(6))
found = (ctypes.c_int * 6)()
assert driver.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(address), values, ctypes.c_size_t(24), stream) == 0
assert driver.cuMemcpyDtoHAsync_v2(found, ctypes.c_uint64(address), ctypes.c_size_t(24), stream) == 0
while driver.cuStreamQuery(stream) == 600:
    pass
assert list(found) == list(range(6))

class Counted:
    def __init__(self):
        self.calls = open(CALLS).read().split()
    def __sub__(self, name):
        return self.calls.count(name)

for given, waits in ((None, 1), (1, 1), (2, 1), (stream.value, 1), (-1, 0)):
    before = Counted() - "cuStreamWaitEvent"
    capsule = arrays[0].__dlpack__(stream=given, max_version=(1, 0))
    assert Counted() - "cuStreamWaitEvent" - before == waits, given
    del capsule
for wrong in (0, -2, "1"):
    try:
        arrays[0].__dlpack__(stream=wrong)
    except uform.InvalidError as error:
        assert "stream" in str(error)
    else:
        raise AssertionError(wrong)
for refused, kind in (
    (lambda: memoryview(arrays[0]), BufferError),
    (lambda: arrays[0].__dlpack__(copy=True), BufferError),
    (lambda: arrays[0].__dlpack__(dl_device=(1, 0)), BufferError),
    (lambda: arena.array(1, device=2), uform.InvalidError),
    (lambda: arena.array(1, uform.Dtype.BF16).__cuda_array_interface__, AttributeError),
    (lambda: mesh.all_reduce(arrays[0]), uform.InvalidError),
    (lambda: mesh.all_gather(arrays[0], arrays[1]), uform.InvalidError),
):
    try:
        refused()
    except kind:
        pass
    else:
        raise AssertionError(kind)
while driver.cuStreamQuery(stream) == 600:
    pass
assert driver.cuStreamDestroy_v2(stream) == 0
assert driver.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
assert driver.cuDevicePrimaryCtxRelease_v2(1) == 0
host = uform.Executor.for_ram(1)
shared = mesh.on(host).arena(64).array(4)
assert shared.__dlpack_device__() == (1, 0) and not hasattr(shared, "__cuda_array_interface__")
with executor, mesh:
    pass
del arena, mesh, executor, shared, refused
capsule = arrays[0].__dlpack__()
del arrays
print("kept", capsule is not None)
del capsule
"""


def test_arrays_on_gpus_are_handed_on_with_their_streams(tmp_path: Path) -> None:
    called = on_two_gpus(tmp_path, ARENA.replace("CALLS", repr(str(tmp_path / "calls"))), "kept True\n")
    assert called.count("cuMemAlloc_v2") == called.count("cuMemFree_v2") == 2, called


def test_an_executor_of_streams_opens_and_closes_gpus(tmp_path: Path) -> None:
    called = on_two_gpus(tmp_path, OPEN, "opened\n")
    assert called.count("cuStreamCreate") == called.count("cuStreamDestroy_v2") == 2, called


def on_two_gpus(folder: Path, text: str, said: str) -> list[str]:
    """Give the calls of a program that sees two GPUs, leaves nothing open on them, and says this."""
    compile_stand_ins(folder)
    answers = ["init 0", "count 2", "cuda 12080"]
    rest = "9 0 16896 1048576 18 0 0 0 0 0 0 0 NVIDIA H100"
    answers += [f"device {n} 0 0 GPU-0000000{n}-1111-2222-3333-444444444444 1{n} {rest}" for n in range(2)]
    (folder / "answers").write_text("\n".join(answers) + "\n")
    calls = folder / "calls"
    variables = {
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")]),
        "STAND_IN_ANSWERS": str(folder / "answers"),
        "STAND_IN_CALLS": str(calls),
    }
    done = run(text, variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == said
    called = calls.read_text().split("\n")
    assert not any(line.startswith("left ") for line in called), called
    return called


def test_a_recorded_machine_takes_the_place_of_the_real_one() -> None:
    text = "import uform; print([(gpu.name, gpu.compute_units) for gpu in uform.gpu_devices()])"
    variables = {"UFORM_MACHINE": str(ROOT / "tests/fixtures/machines/h100_8"), "CUDA_VISIBLE_DEVICES": "7,0"}
    done = run(text, variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[('NVIDIA H100 80GB HBM3', 132)] * 2}\n"


@pytest.mark.parametrize("verb", ["gpu_devices", "capabilities_available"])
def test_a_damaged_machine_is_an_error_that_names_the_file(tmp_path: Path, verb: str) -> None:
    text = f"""
import uform
try:
    uform.{verb}()
except uform.CorruptError as error:
    print(error)
"""
    (tmp_path / "machine.json").write_text("{")
    done = run(text, {"UFORM_MACHINE": str(tmp_path)})
    assert f"{tmp_path}/machine.json is corrupt at byte" in done.stdout, done.stderr
