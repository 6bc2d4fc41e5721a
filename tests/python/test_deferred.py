"""Deferred calls: awaited in asyncio, waited for, dropped, refused; and callbacks of their progress."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import uform
from harness import clean_environment, run

T = TypeVar("T")


@pytest.fixture
def executor() -> Iterator[uform.Executor]:
    with uform.Executor.for_ram(1, deferred_limit=64) as executor:
        yield executor


@pytest.fixture
def mesh(executor: uform.Executor) -> Iterator[uform.Mesh]:
    with uform.Mesh.bootstrap(executor, None) as mesh:
        yield mesh


class Gate:
    """Holds an executor: a call whose progress callback waits until the gate is opened."""

    def __init__(self, mesh: uform.Mesh) -> None:
        self._opened, entered = threading.Event(), threading.Event()

        def wait(_done: int, _total: int) -> None:
            entered.set()
            assert self._opened.wait(60)

        self.call = mesh.deferred().all_reduce(np.zeros(1, dtype=np.float32), progress=wait)
        assert entered.wait(60)

    def open(self) -> None:
        """Let the call end."""
        self._opened.set()


def awaited(thing: Awaitable[T]) -> T:
    """Await something in a loop of its own, with everything that asyncio may complain about as an error."""

    async def main() -> T:
        return await asyncio.wait_for(thing, 60)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return asyncio.run(main(), debug=True)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("take", [awaited, lambda deferred: deferred.wait()], ids=["await", "wait"])
def test_verbs_give_what_blocking_ones_do(mesh: uform.Mesh, take: Callable[[Any], Any]) -> None:
    deferred = mesh.deferred()
    numbers, out = np.arange(5.0), np.zeros(5)
    assert take(deferred.all_reduce(numbers, uform.ReduceOp.MAX, out=out)) is None
    assert out.tolist() == numbers.tolist()
    assert take(deferred.broadcast(numbers, 0)) is None
    assert take(deferred.all_gather(numbers, out)) is None
    assert take(deferred.reduce_scatter(numbers, out, uform.ReduceOp.SUM)) is None
    assert take(deferred.barrier(timeout_seconds=60)) is None
    assert take(deferred.exchange(b"payload")) == [b"payload"]
    arena = take(deferred.arena(4096))
    assert isinstance(arena, uform.Arena)
    assert np.asarray(arena.array(3)).tolist() == [0.0, 0.0, 0.0]


def test_a_deferred_shows_its_call(mesh: uform.Mesh) -> None:
    gate = Gate(mesh)
    call = mesh.deferred().barrier()
    assert not call.done()
    assert repr(call) == "<uform.Deferred barrier, not done>"
    gate.open()
    call.wait()
    assert call.done()
    assert repr(call) == "<uform.Deferred barrier, done>"
    assert isinstance(call, Awaitable)


def test_a_loop_goes_on_while_it_awaits(mesh: uform.Mesh) -> None:
    gate = Gate(mesh)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while ticks < 20:
            ticks += 1
            await asyncio.sleep(0.001)
        gate.open()

    async def main() -> None:
        await asyncio.gather(tick(), gate.call, mesh.deferred().barrier())

    awaited(main())
    assert ticks == 20


def test_every_awaiter_gets_the_same(mesh: uform.Mesh) -> None:
    gate = Gate(mesh)
    call = mesh.deferred().exchange(b"one")
    wrong = mesh.deferred().all_reduce(np.zeros(2), out=np.zeros(3))

    async def main() -> None:
        tasks = [asyncio.ensure_future(call) for _ in range(3)]
        failing = [asyncio.ensure_future(wrong) for _ in range(3)]
        await asyncio.sleep(0)
        gate.open()
        results = await asyncio.gather(*tasks)
        assert all(result is results[0] for result in results)
        errors = await asyncio.gather(*failing, return_exceptions=True)
        assert all(isinstance(error, uform.InvalidError) for error in errors)
        assert await call is results[0]

    awaited(main())
    assert call.wait() == call.wait() == [b"one"]
    for _ in range(2):
        with pytest.raises(uform.InvalidError):
            wrong.wait()


def test_two_loops_in_two_threads_await_one_executor(mesh: uform.Mesh) -> None:
    gate = Gate(mesh)
    calls = [mesh.deferred().exchange(bytes([number])) for number in range(4)]
    results: list[Any] = []

    async def main() -> None:
        results.extend(await asyncio.gather(*calls))

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    gate.open()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == sorted([[bytes([number])] for number in range(4)] * 2)


def test_a_cancelled_task_leaves_the_call_running(mesh: uform.Mesh) -> None:
    gate = Gate(mesh)
    numbers = np.zeros(3, dtype=np.float32)
    call = mesh.deferred().all_gather(np.ones(3, dtype=np.float32), numbers)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.05)
        assert not call.done()
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        await call

    awaited(main())
    assert numbers.tolist() == [1.0, 1.0, 1.0]


def test_a_wait_that_times_out_can_be_repeated(mesh: uform.Mesh) -> None:
    gate = Gate(mesh)
    call = mesh.deferred().exchange(b"late")
    with pytest.raises(uform.TimedOutError, match="exchange"):
        call.wait(0.05)
    for wrong in (-1.0, float("nan"), "soon"):
        with pytest.raises(uform.InvalidError, match="timeout_seconds"):
            call.wait(wrong)  # type: ignore[arg-type]
    gate.open()
    assert call.wait(60) == [b"late"]


def test_a_held_executor_is_said_by_whoever_waits() -> None:
    with uform.Executor.for_ram(1) as executor, uform.Mesh.bootstrap(executor, None) as mesh:
        gate = Gate(mesh)
        call = mesh.deferred().barrier()
        for take in (awaited, lambda call: call.wait()):
            with pytest.raises(uform.ContendedError, match="all_reduce"):
                take(call)
        with pytest.raises(uform.ContendedError):
            mesh.barrier()
        gate.open()
        gate.call.wait()
        mesh.deferred().barrier().wait()


def test_wrong_arguments_are_raised_at_once(mesh: uform.Mesh) -> None:
    deferred = mesh.deferred()
    numbers = np.zeros(3, dtype=np.float32)
    calls: dict[str, Callable[[], object]] = {
        "array": lambda: deferred.all_reduce("text"),
        "op": lambda: deferred.all_reduce(numbers, "sum"),  # type: ignore[arg-type]
        "root": lambda: deferred.broadcast(numbers, -1),
        "timeout_seconds": lambda: deferred.barrier(timeout_seconds=-1),
        "payload": lambda: deferred.exchange("text"),  # type: ignore[arg-type]
        "byte_count": lambda: deferred.arena(-1),
        "progress": lambda: deferred.all_reduce(numbers, progress=3),  # type: ignore[arg-type]
        "executor": lambda: mesh.deferred(3),  # type: ignore[arg-type]
    }
    for argument, call in calls.items():
        with pytest.raises(uform.InvalidError, match=argument):
            call()
    deferred.barrier().wait()


def test_a_closed_mesh_is_said_by_whoever_waits(executor: uform.Executor) -> None:
    mesh = uform.Mesh.bootstrap(executor, None)
    deferred = mesh.deferred()
    mesh.close()
    for take in (awaited, lambda call: call.wait()):
        with pytest.raises(uform.ClosedError):
            take(deferred.barrier())


def test_a_mesh_on_another_executor(mesh: uform.Mesh) -> None:
    with uform.Executor.for_ram(1, deferred_limit=2) as other:
        elsewhere = mesh.on(other)
        assert elsewhere.executor is other
        assert (elsewhere.index, elsewhere.count) == (mesh.index, mesh.count)
        elsewhere.barrier()
        # One order of calls, over both.
        gate = Gate(mesh)
        calls = [elsewhere.deferred().exchange(b"first"), mesh.deferred(other).exchange(b"second")]
        assert not any(call.done() for call in calls)
        gate.open()
        assert [call.wait() for call in calls] == [[b"first"], [b"second"]]
    with pytest.raises(uform.ClosedError):
        elsewhere.barrier()
    mesh.barrier()
    with pytest.raises(uform.InvalidError, match="executor"):
        mesh.on(None)  # type: ignore[arg-type]


def test_arrays_are_kept_until_the_call_is_done(mesh: uform.Mesh) -> None:
    gate = Gate(mesh)
    numbers = np.ones(1 << 16, dtype=np.float32)
    out = np.zeros(1 << 16, dtype=np.float32)
    there = weakref.ref(numbers)
    call = mesh.deferred().all_gather(numbers, out)
    del numbers
    gc.collect()
    assert there() is not None
    gate.open()
    call.wait()
    # What a thread of the executor let go is freed by the next call of this one.
    mesh.closed  # noqa: B018
    gc.collect()
    assert there() is None
    assert out.sum() == 1 << 16


def test_a_trainer_defers_its_calls(mesh: uform.Mesh, tmp_path: Path) -> None:
    trainer = uform.Trainer(mesh, {"x": np.zeros(2)}, uform.SGD(1.0))
    np.asarray(trainer.gradients["x"])[...] = 1.0
    deferred = trainer.deferred()

    async def main() -> None:
        report = await deferred.step(weight=2.0)
        assert (report.step, report.weight) == (1, 2.0)
        await deferred.save(tmp_path / "steps", step=7)
        await deferred.step()
        assert await deferred.load(tmp_path / "steps") == 7

    awaited(main())
    assert np.asarray(trainer.parameters["x"]).tolist() == [-1.0, -1.0]
    with uform.Executor.for_ram(1) as other:
        assert trainer.on(other).step().step == 2
        assert trainer.deferred(other).step().wait().step == 3
    assert trainer.step().step == 4
    with pytest.raises(uform.InvalidError, match="weight"):
        deferred.step(weight="heavy")  # type: ignore[arg-type]
    with pytest.raises(uform.InvalidError, match="weight"):
        deferred.step(weight=-1.0).wait()


def test_awaiting_leaves_nothing_open(mesh: uform.Mesh) -> None:
    deferred = mesh.deferred()

    async def main() -> None:
        for _ in range(100):
            await asyncio.gather(*(deferred.barrier() for _ in range(4)))
        loop = asyncio.get_running_loop()
        held = descriptors()
        gate = Gate(mesh)
        tasks = [asyncio.ensure_future(call) for call in (gate.call, *(deferred.barrier() for _ in range(8)))]
        await asyncio.sleep(0)
        # One descriptor for all that this loop awaits of the executor.
        assert descriptors() == held + 1
        gate.open()
        await asyncio.gather(*tasks)
        assert descriptors() == held
        assert loop.is_running()

    awaited(main())
    before = descriptors()
    threads = threading.active_count()
    for _ in range(20):
        awaited(main())
    assert descriptors() == before
    assert threading.active_count() == threads


def test_a_loop_that_is_closed_under_its_tasks_leaves_nothing_open(mesh: uform.Mesh) -> None:
    before = descriptors()
    gate = Gate(mesh)
    call = mesh.deferred().barrier()

    async def main() -> None:
        await call

    loop = asyncio.new_event_loop()
    task = loop.create_task(main())
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    loop.set_exception_handler(lambda _loop, _context: None)
    loop.close()
    del loop, task
    assert descriptors() == before
    gate.open()
    call.wait()
    gate.call.wait()


def test_what_failed_keeps_nothing_alive(mesh: uform.Mesh) -> None:
    class Witness:
        pass

    def fail() -> weakref.ref[Witness]:
        witness, calls = Witness(), []
        wrong = mesh.deferred().all_reduce(
            np.zeros(2), out=np.zeros(3), progress=lambda *_: calls.append(wrong)
        )
        calls.append(wrong)
        try:
            awaited(wrong)
        except uform.InvalidError:
            # The exception knows this frame, which knows the call, which knows the exception.
            return weakref.ref(witness)
        raise AssertionError

    before = descriptors()
    there = fail()
    assert descriptors() == before
    assert there() is None


def test_await_needs_a_loop(mesh: uform.Mesh) -> None:
    gate = Gate(mesh)
    call = mesh.deferred().barrier()
    with pytest.raises(RuntimeError, match="loop"):
        next(call.__await__())
    gate.open()
    call.wait()
    # One that is done needs none.
    with pytest.raises(StopIteration):
        next(call.__await__())


# --- Progress -----------------------------------------------------------------------------------------------------


def test_progress_is_told_on_the_executors_threads(mesh: uform.Mesh) -> None:
    numbers = np.zeros(1 << 20, dtype=np.float32)
    told: list[tuple[int, int, int]] = []

    def note(done: int, total: int) -> None:
        told.append((done, total, threading.get_native_id()))

    mesh.all_reduce(numbers, progress=note)
    mesh.broadcast(numbers, progress=note)
    mesh.deferred().all_gather(numbers, np.zeros_like(numbers), progress=note).wait()
    # Each call ends with a report of the whole; a timely one may have said the same just before.
    assert [entry[:2] for entry in told].count((numbers.nbytes, numbers.nbytes)) >= 3
    assert all(done <= total == numbers.nbytes for done, total, _ in told)
    assert threading.get_native_id() not in {entry[2] for entry in told}


def raising(_done: int, _total: int) -> None:
    raise LookupError("out of paper")


@pytest.mark.parametrize("kind", ["blocking", "wait", "await"])
def test_an_exception_of_a_callback_is_raised_by_its_call(mesh: uform.Mesh, kind: str) -> None:
    numbers, out = np.ones(8, dtype=np.float32), np.zeros(8, dtype=np.float32)
    threads = len(os.listdir("/proc/self/task"))

    def call() -> None:
        if kind == "blocking":
            mesh.all_gather(numbers, out, progress=raising)
        else:
            deferred = mesh.deferred().all_gather(numbers, out, progress=raising)
            _ = deferred.wait() if kind == "wait" else awaited(deferred)

    with pytest.raises(LookupError, match="out of paper") as caught:
        call()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "raising"
    assert names[0].startswith("test_an_exception")
    # The call itself has ended well, and the thread is there for the next.
    assert out.tolist() == numbers.tolist()
    assert len(os.listdir("/proc/self/task")) == threads
    mesh.all_reduce(numbers, progress=lambda *_: None)


def test_a_failed_call_has_the_callbacks_exception_as_context() -> None:
    program = """
import time
import numpy as np, uform

def raising(done, total):
    raise LookupError("out of paper")

with uform.Executor.for_ram(1, deferred_limit=2) as executor:
    mesh = uform.Mesh.bootstrap(executor, None)
    numbers = np.zeros(4, dtype=np.float32)
    try:
        mesh.all_reduce(numbers, out=np.zeros(5, dtype=np.float32), progress=raising)
    except uform.InvalidError as error:
        print("refused", type(error.__context__))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    # Refused before anything was told.
    assert ended.stdout.startswith("refused")


def test_a_callback_cannot_use_what_it_holds(mesh: uform.Mesh) -> None:
    numbers = np.zeros(8, dtype=np.float32)
    seen: list[type[BaseException]] = []

    def greedy(_done: int, _total: int) -> None:
        calls: tuple[Callable[[], object], ...] = (
            mesh.barrier,
            lambda: mesh.all_reduce(numbers.copy()),
            lambda: mesh.deferred().barrier().wait(),
            mesh.executor.drain,
        )
        for call in calls:
            try:
                call()
            except uform.UformError as error:
                seen.append(type(error))

    mesh.all_reduce(numbers, progress=greedy)
    mesh.deferred().all_reduce(numbers, progress=greedy).wait()
    assert seen == [uform.ContendedError] * 8


def test_a_failure_that_nobody_waits_for_is_logged() -> None:
    program = """
import gc
import numpy as np, uform

def raising(done, total):
    raise LookupError("out of paper")

with uform.Executor.for_ram(1, deferred_limit=8) as executor:
    mesh = uform.Mesh.bootstrap(executor, None)
    numbers, out = np.ones(4, dtype=np.float32), np.zeros(4, dtype=np.float32)
    mesh.deferred().all_reduce(numbers, out=np.zeros(5, dtype=np.float32))
    mesh.deferred().all_gather(numbers, out, progress=raising)
    executor.drain()
    assert out.tolist() == [1.0] * 4
    mesh.close()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "all_reduce" in ended.stderr
    assert "nobody waited" in ended.stderr
    assert "out of paper" in ended.stderr
    assert all(line.startswith("uform: ") for line in ended.stderr.splitlines())


# --- Tracebacks ---------------------------------------------------------------------------------------------------


def test_an_error_shows_the_line_that_awaits(mesh: uform.Mesh) -> None:
    call = mesh.deferred().all_reduce(np.zeros(2), out=np.zeros(3))

    async def the_one_that_awaits() -> None:
        await call

    with pytest.raises(uform.InvalidError) as caught:
        awaited(the_one_that_awaits())
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.name == "the_one_that_awaits" and frame.line == "await call" for frame in frames)


# --- Several processes --------------------------------------------------------------------------------------------


def test_members_defer_in_one_order(tmp_path: Path) -> None:
    program = """
import asyncio
import numpy as np, uform

executor = uform.Executor.for_ram(1, deferred_limit=16)
mesh = uform.Mesh.bootstrap(executor, None)
told = []

async def main():
    deferred = mesh.deferred()
    arrays = [np.full(1 << 12, mesh.index + number, dtype=np.float32) for number in range(8)]
    await asyncio.sleep(0.3 * mesh.index)
    calls = [deferred.all_reduce(array, progress=lambda *pair: told.append(pair)) for array in arrays]
    await asyncio.gather(*calls)
    for number, array in enumerate(arrays):
        assert (array == sum(range(mesh.count)) + number * mesh.count).all(), array
    assert await deferred.exchange(bytes([mesh.index])) == [bytes([index]) for index in range(mesh.count)]

asyncio.run(main())
assert len([1 for done, total in told if done == total]) >= 8
mesh.close()
executor.__exit__(None, None, None)
print("done")
"""
    assert all("done" in output for output in run(3, program, tmp_path))


def test_a_lost_member_is_raised_to_whoever_awaits(tmp_path: Path) -> None:
    program = """
import asyncio, os, sys
import uform

executor = uform.Executor.for_ram(1, deferred_limit=4)
mesh = uform.Mesh.bootstrap(executor, None)
mesh.barrier()
if mesh.index == 1:
    os._exit(0)

async def main():
    calls = [mesh.deferred().barrier() for _ in range(3)]
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, uform.LostError), error
        assert error.index == 1

asyncio.run(main())
mesh.close()
print("done")
"""
    assert "done" in run(2, program, tmp_path)[0]
