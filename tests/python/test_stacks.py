"""Stacks of Python in the reports of calls that failed, from members that fail, compute, hang and are stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness import Member, Members, clean_environment, run

START = """
import ctypes, os, sys, time
from pathlib import Path
import numpy as np, uform

mesh = uform.Mesh.bootstrap(None, None)
mesh.barrier()
"""

WAITING = (
    'import os\nos.environ["UFORM_RECORD"] = os.path.abspath("records")'
    + START
    + """
def waits():
    while not Path("go").exists():
        time.sleep(0.01)
    mesh.all_reduce(np.ones(4), timeout_seconds=2)

def computes():
    time.sleep(600)

def hangs():
    # It keeps the interpreter's lock, as a faulty extension does.
    ctypes.PyDLL(None).sleep(600)

def is_stopped():
    time.sleep(600)

print("formed", flush=True)
[waits, computes, hangs, is_stopped][mesh.index]()
"""
)


def report(records: Path) -> str:
    """Give what `uform report` prints."""
    command = [sys.executable, "-m", "uform", "report", str(records)]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def stacks_of(text: str, index: int) -> str:
    """Give what a report says of the stacks of one member."""
    part = text.partition(f"stacks of index {index} (pid ")[2]
    return part.partition("stacks of index ")[0]


def line_of(source: str, text: str) -> str:
    """Give the line of a program as a stack names it."""
    return next(f"line {number} in" for number, line in enumerate(source.splitlines(), 1) if text in line)


def wait_for_stacks(records: Path, index: int, members: list[Member]) -> None:
    """Wait until one that hangs has left its stacks: nobody waits for it as long as that takes."""
    end = time.monotonic() + 60
    while True:
        found = list(records.glob(f"*/index-{index}.*.stacks"))
        if found and "line" in found[0].read_text():
            return
        assert time.monotonic() < end, "\n".join(member.text() for member in members)
        time.sleep(0.05)


def test_all_that_can_give_their_stacks_when_one_waits_in_vain(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    with Members(tmp_path) as members:
        all_of_them = members.start_run(4, WAITING)
        for member in all_of_them:
            member.wait_for("formed")
        os.kill(all_of_them[3].process.pid, signal.SIGSTOP)
        (tmp_path / "go").touch()
        assert all_of_them[0].wait() == 1
        assert "TimedOutError" in all_of_them[0].text()
        assert f"see: uform report {records}" in all_of_them[0].text()
        wait_for_stacks(records, 2, all_of_them)
        text = report(records)
        (own,) = records.glob("*/index-0.*.txt")
        left = own.read_text()
        assert "index 0: in " in left
        assert "index 1: in " in left
        assert "index 3: none, its process is stopped" in left
        assert all(member.process.poll() is None for member in all_of_them[1:]), "they go on"
        for index, (name, call) in enumerate(
            [
                ("waits", "mesh.all_reduce("),
                ("computes", "time.sleep(600)"),
                ("hangs", "ctypes.PyDLL"),
            ]
        ):
            wanted = f'program.py", {line_of(WAITING, call)} {name}'
            assert wanted in stacks_of(text, index), text
        assert stacks_of(text, 3).partition("): ")[2].startswith("none, stopped"), text
        # One that goes on answers what it was asked meanwhile, and works.
        os.kill(all_of_them[3].process.pid, signal.SIGCONT)
        wait_for_stacks(records, 3, all_of_them)
        assert "is_stopped" in stacks_of(report(records), 3)


DISAGREEING = (
    START
    + """
def one():
    mesh.all_reduce(np.ones(4))

def other():
    mesh.deferred().broadcast(np.ones(4)).wait()

for turn in range(3):
    try:
        one() if mesh.index == 0 else other()
    except uform.DisagreedError as error:
        print(error)
    else:
        raise SystemExit("agreed")
    array = np.ones(2)
    mesh.all_reduce(array)
    assert array[0] == mesh.count
mesh.close()
"""
)


def test_members_that_disagree_leave_a_report_and_go_on(tmp_path: Path) -> None:
    source = f'import os\nos.environ["XDG_RUNTIME_DIR"] = {str(tmp_path)!r}' + DISAGREEING
    texts = run(2, source, tmp_path)
    (folder,) = (tmp_path / "uform-records").iterdir()
    for text in texts:
        assert text.count(f"(see: uform report {folder})") == 3
    shown = report(folder)
    for index, (name, call) in enumerate([("one", "    mesh.all_reduce("), ("other", "deferred()")]):
        assert f'program.py", {line_of(source, call)} {name}' in stacks_of(shown, index), shown
        (left,) = folder.glob(f"index-{index}.*.txt")
        assert left.read_text().count(f"index {index}: members disagree on") == 1, left.read_text()


ENDING = (
    START
    + """
import _thread
if mesh.index == 1:
    # The end of its interpreter and the question for its stacks come together.
    _thread.start_new_thread(lambda: [None for _ in iter(int, 1)], ())
    raise SystemExit(0)
try:
    mesh.all_reduce(np.ones(4))
except uform.LostError:
    print("lost")
"""
)


def test_a_member_that_ends_while_it_is_asked_ends_well(tmp_path: Path) -> None:
    for turn in range(5):
        folder = tmp_path / str(turn)
        folder.mkdir()
        source = f'import os\nos.environ["XDG_RUNTIME_DIR"] = {str(folder)!r}' + ENDING
        assert "lost" in run(3, source, folder)[0]
