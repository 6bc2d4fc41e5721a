"""`python -m uform script.py`: a script that raises ends its process, and the others learn of it."""

import subprocess
import sys
from pathlib import Path

from harness import clean_environment

SCRIPT = """
import sys, threading, time
import numpy
import uform

mesh = uform.Mesh.bootstrap(None, None)
if mesh.index == 1:
    # A thread that would keep an interpreter from ending.
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise ValueError("no such " + sys.argv[1])
try:
    mesh.all_reduce(numpy.ones(3, dtype=numpy.float32))
except uform.LostError as error:
    print("learned:", error, flush=True)
    raise
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter with these arguments."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False
    )


def test_a_script_that_raises_ends_the_job(tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text(SCRIPT)
    launch = ["-m", "uform", "launch", "--processes", "2", "--grace", "60"]
    ended = run(*launch, sys.executable, "-m", "uform", str(script), "file")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "ends: ValueError: no such file" in ended.stderr
    assert "Traceback" in ended.stderr
    assert "index 1 failed first: exit code 1" in ended.stderr


def test_a_script_sees_its_own_arguments_and_folder(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("word = 'found'\n")
    script = tmp_path / "fine.py"
    script.write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.word)\nsys.exit(7)\n")
    ended = run("-m", "uform", str(script), "--flag", "launch")
    assert (ended.returncode, ended.stdout) == (7, "__main__ ['--flag', 'launch'] found\n"), ended.stderr


def test_a_module_is_run_by_its_name() -> None:
    ended = run("-m", "uform", "-m", "platform")
    assert ended.returncode == 0, ended.stderr
    assert "Linux" in ended.stdout


def test_commands_stay_commands() -> None:
    ended = run("-m", "uform", "--version")
    assert (ended.returncode, ended.stdout.split(" ")[0]) == (0, "uform"), ended.stderr
