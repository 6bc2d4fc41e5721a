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
    for source, library in (("nvml_stand_in", "libnvidia-ml.so.1"), ("cuda_stand_in", "libcuda.so.1")):
        command = ["cc", "-std=c99", "-fPIC", "-shared", "-o", str(folder / library)]
        subprocess.run([*command, str(ROOT / "tests" / "c" / f"{source}.c")], check=True)


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
