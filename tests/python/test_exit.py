"""The end of the interpreter with daemon threads, callbacks and calls that go on; and forks of such a process."""

import sys
import time
from pathlib import Path

import pytest
from harness import Members, run

# Fails if a thread is ended within a frame of Rust, or if something waits for what never comes: by signal, by code, by
# time. A slow destructor makes the end last, so that threads run into it.
PROLOGUE = """
import asyncio, os, sys, threading, time
import numpy as np, uform

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.02)

slow = Slow()
executor = uform.Executor.for_ram(1, deferred_limit=64)
mesh = uform.Mesh.bootstrap(executor, None)
numbers = np.zeros(1 << 10, dtype=np.float32)

def daemon(work):
    started = threading.Event()
    threading.Thread(target=work, args=(started,), daemon=True).start()
    assert started.wait(60)
"""

AWAITING = """
def work(started):
    async def main():
        while True:
            call = mesh.deferred().all_reduce(numbers)
            started.set()
            await call
    asyncio.run(main())

daemon(work)
time.sleep(int(sys.argv[1]) % 10 / 1000)
"""

# One whose call never ends: its executor is held by another one, whose callback waits.
STUCK = """
opened = threading.Event()

def work(started):
    async def main():
        calls = [mesh.deferred().all_reduce(numbers, progress=lambda *_: opened.wait(60))]
        calls += [mesh.deferred().barrier() for _ in range(3)]
        started.set()
        await asyncio.gather(*calls)
    asyncio.run(main())

daemon(work)
"""

CALLBACK = """
def busy(done, total):
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        sum(range(1000))

def work(started):
    while True:
        call = mesh.deferred().all_reduce(numbers, progress=busy)
        started.set()
        call.wait()

daemon(work)
time.sleep(int(sys.argv[1]) % 10 / 1000)
"""

BLOCKING = """
def work(started):
    while True:
        try:
            mesh.all_reduce(numbers)
        except uform.ContendedError:
            pass
        started.set()

for _ in range(3):
    daemon(work)
time.sleep(int(sys.argv[1]) % 10 / 1000)
"""

UNAWAITED = """
out = np.zeros_like(numbers)
numbers[...] = 3.0
for _ in range(16):
    mesh.deferred().all_gather(numbers, out)
"""


def exits(body: str, count: int, folder: Path, abreast: int = 5) -> None:
    """Let so many processes end, some at a time."""
    program = folder / "program.py"
    program.write_text(PROLOGUE + body)
    for first in range(0, count, abreast):
        with Members(folder) as members:
            numbers = range(first, min(first + abreast, count))
            started = [members.start([sys.executable, str(program), str(number)]) for number in numbers]
            for member in started:
                code = member.wait(60)
                assert code == 0, f"ended with {code}:\n{member.text()}"
                assert "Traceback" not in member.text(), member.text()
                assert "Fatal" not in member.text(), member.text()


def test_fifty_exits_while_a_daemon_thread_awaits(tmp_path: Path) -> None:
    exits(AWAITING, 50, tmp_path)


def test_exits_while_a_callback_runs(tmp_path: Path) -> None:
    exits(CALLBACK, 10, tmp_path)


def test_exits_while_daemon_threads_call(tmp_path: Path) -> None:
    exits(BLOCKING, 10, tmp_path)


def test_exits_with_calls_that_nobody_awaits(tmp_path: Path) -> None:
    exits(UNAWAITED, 5, tmp_path)


def test_an_exit_does_not_wait_for_what_never_ends(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROLOGUE + STUCK)
    with Members(tmp_path) as members:
        start = time.monotonic()
        member = members.start([sys.executable, str(program)])
        assert member.wait(60) == 0, member.text()
        # 2 s for calls and 1 s for callbacks, and what starting takes; the callback would last 60 s.
        assert time.monotonic() - start < 3 * (2 + 1)
        assert "before a call does" in member.text()


def test_an_exit_while_a_daemon_thread_awaits_a_peer(tmp_path: Path) -> None:
    program = """
import asyncio, threading, time
import uform

mesh = uform.Mesh.bootstrap(None, None)
mesh.barrier()
if mesh.index == 1:
    time.sleep(1.0)
    raise SystemExit
started = threading.Event()

def work():
    async def main():
        started.set()
        try:
            await mesh.deferred().barrier()
        except uform.LostError:
            pass
    asyncio.run(main())

threading.Thread(target=work, daemon=True).start()
started.wait(60)
time.sleep(0.1)
"""
    run(2, program, tmp_path)


# --- Forks --------------------------------------------------------------------------------------------------------

FORKS = """
import asyncio, multiprocessing, os, sys, threading
import numpy as np, uform

executor = uform.Executor.for_ram(2, deferred_limit=8)
mesh = uform.Mesh.bootstrap(executor, None)
numbers = np.ones(1 << 10, dtype=np.float32)
opened, entered = threading.Event(), threading.Event()

def wait(done, total):
    entered.set()
    opened.wait(60)

# The executor's threads are alive, and one is in a callback.
held = mesh.deferred().all_reduce(numbers, progress=wait)
assert entered.wait(60)
pending = mesh.deferred().exchange(b"pending")

def touch():
    # A worker is no member of the run.
    for name in [name for name in os.environ if name.startswith("UFORM_")]:
        del os.environ[name]

    async def awaiting():
        await pending
    calls = {
        "verb": mesh.barrier,
        "deferred": lambda: mesh.deferred().barrier().wait(),
        "drain": executor.drain,
        "done": pending.done,
        "wait": pending.wait,
        "await": lambda: asyncio.run(awaiting()),
        "arena": lambda: mesh.arena(64),
        "bootstrap": lambda: uform.Mesh.bootstrap(executor, None),
    }
    for name, call in calls.items():
        try:
            call()
        except uform.ClosedError as error:
            assert "fork" in str(error), (name, error)
        else:
            raise AssertionError(name)
    mesh.close()
    executor.__exit__(None, None, None)
    # What is made here works, callbacks included.
    told = []
    with uform.Executor.for_ram(1) as own, uform.Mesh.bootstrap(own, None) as alone:
        alone.deferred().all_reduce(np.ones(4), progress=lambda *pair: told.append(pair)).wait()
    assert told[-1] == (32, 32), told
"""

FORK = (
    FORKS
    + """
child = os.fork()
if child == 0:
    touch()
    # As any Python program ends, with hooks and destructors.
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
opened.set()
held.wait()
assert pending.wait() == [b"pending"] * mesh.count
mesh.barrier()
mesh.close()
print("parent goes on")
"""
)

WORKERS = (
    FORKS
    + """
context = multiprocessing.get_context("fork")
workers = [context.Process(target=touch) for _ in range(3)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join(60)
    assert worker.exitcode == 0, worker.exitcode
opened.set()
held.wait()
assert pending.wait() == [b"pending"] * mesh.count
mesh.close()
print("parent goes on")
"""
)


@pytest.mark.parametrize("program", [FORK, WORKERS], ids=["os.fork", "multiprocessing"])
@pytest.mark.parametrize("count", [1, 2])
def test_forked_children_are_refused_and_end_cleanly(program: str, count: int, tmp_path: Path) -> None:
    for output in run(count, program, tmp_path):
        assert "parent goes on" in output
