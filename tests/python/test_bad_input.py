"""Wrong arguments and wrong orders of calls: a clear error of uform or a TypeError, never a crash, never a leak."""

import asyncio
import contextlib
import gc
import inspect
import math
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uform
from capsule import Producer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


class Hostile:
    """An object whose every special method fails."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)

    def __repr__(self) -> str:
        raise LookupError("repr")

    def __index__(self) -> int:
        raise LookupError("index")

    def __float__(self) -> float:
        raise LookupError("float")

    def __len__(self) -> int:
        raise LookupError("len")

    def __getitem__(self, _: object) -> Any:
        raise LookupError("getitem")

    def __iter__(self) -> Iterator[Any]:
        raise LookupError("iter")

    def __fspath__(self) -> str:
        raise LookupError("fspath")

    def __bool__(self) -> bool:
        raise LookupError("bool")

    def __eq__(self, _: object) -> bool:
        raise LookupError("eq")

    __hash__ = None  # type: ignore[assignment]


class HostileMapping(dict[Any, Any]):
    """A mapping that gives nothing."""

    def items(self) -> Any:
        """Fail."""
        raise LookupError("items")


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-3, 5),
    st.sampled_from([1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), 10**5000]),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7e308, -1.0, 0.5, 3.0]),
    st.sampled_from([np.float32(2), np.int8(1), np.uint64((1 << 64) - 1), np.bool_(True), 1j]),
)
TEXTS = st.sampled_from(
    ["", "a", "sum", "x" * 10000, "\0", "\udcff", b"", b"bytes", bytearray(8), memoryview(b"8")]
)
DTYPES = st.sampled_from(["f4", "f8", "f2", "i4", "i8", "u1", "?", ">f4", "c8", "M8[s]", "S3", "V2", "O"])
ARRAYS = st.one_of(
    st.builds(
        np.zeros,
        st.lists(st.integers(0, 3), max_size=4).map(tuple),
        DTYPES,
    ),
    st.builds(lambda: np.zeros((4, 4), "f4").T),
    st.builds(lambda: np.zeros(8, "f4")[::-2]),
    st.builds(lambda: frozen(np.zeros(3, "f4"))),
    st.builds(lambda device: Producer([1.0, 2.0], device=device), st.integers(0, 20)),
    st.builds(
        lambda code, bits: Producer([1.0, 2.0], code=code, bits=bits), st.integers(0, 20), st.integers(0, 64)
    ),
    st.builds(lambda: np.zeros(3, "f4").__array_interface__),
)
OBJECTS = st.sampled_from(
    [
        None,
        Hostile,
        HostileMapping,
        object(),
        Ellipsis,
        NotImplemented,
        KeyError("error"),
        print,
        uform,
        uform.Mesh,
        uform.Array,
        uform.ReduceOp,
        uform.ReduceOp.AVERAGE,
        uform.ReduceOp.BITWISE_XOR,
        uform.Dtype.BF16,
        uform.Mood.BUSY,
        uform.CPUClass.WASM32_V128,
        uform.CPUClass.SERIAL,
        uform.GPUClass.APPLE_METAL7,
        uform.MeshOptions(),
        uform.SGD(0.1),
        uform.AdamW(0.1),
        {"x": np.zeros(2)},
        {"x": np.zeros(0)},
        {1: 2},
        {"x": None},
        {},
    ]
)
HOSTILE = st.builds(Hostile) | st.builds(HostileMapping, st.just({"x": 1}))
LEAVES = st.one_of(NUMBERS, TEXTS, ARRAYS, OBJECTS, HOSTILE)
ANYTHING = st.one_of(LEAVES, st.lists(LEAVES, max_size=3), st.lists(LEAVES, max_size=3).map(tuple))

PARAMETERS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@contextlib.contextmanager
def refused_clearly() -> Iterator[None]:
    """Let through what a wrong argument may raise: an error of ours with a text, or the interpreter's TypeError."""
    try:
        yield
    except (uform.UformError, TypeError, BufferError) as refusal:
        text = str(refusal)
    else:
        return
    assert text.strip()
    assert "panicked" not in text
    assert "\n" not in text


def attempt(call: Callable[..., object], data: st.DataObject) -> None:
    """Call something with anything in each of its places, some left out."""
    positional: list[object] = []
    named: dict[str, object] = {}
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.default is not inspect.Parameter.empty and data.draw(st.booleans()):
            continue
        value = data.draw(ANYTHING, label=name)
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            named[name] = value
    with refused_clearly():
        answer = call(*positional, **named)
        if isinstance(answer, uform.Deferred):
            answer.wait(60.0)


@pytest.fixture(scope="module")
def mesh() -> Iterator[uform.Mesh]:
    # With room in the line: an example may be given up while its call goes on.
    with (
        uform.Executor.for_ram(1, deferred_limit=64) as executor,
        uform.Mesh.bootstrap(executor, None) as mesh,
    ):
        yield mesh


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some text may be a legal name of a checkpoint.
    monkeypatch.chdir(tmp_path)


PATIENT = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

CONSTRUCTORS: dict[str, Callable[..., object]] = {
    "Executor.for_ram": uform.Executor.for_ram,
    "Executor.on_pool": uform.Executor.on_pool,
    "Executor.for_vram": uform.Executor.for_vram,
    "MeshOptions": uform.MeshOptions,
    "SGD": uform.SGD,
    "AdamW": uform.AdamW,
    "Trainer": uform.Trainer,
    "Mesh.bootstrap": uform.Mesh.bootstrap,
}
VERBS = sorted(
    name
    for name, member in vars(uform.Mesh).items()
    if not name.startswith("_") and callable(member) and name not in {"bootstrap", "close", "shrink"}
)
DEFERRED_VERBS = sorted(name for name in vars(uform.DeferredMesh) if not name.startswith("_"))
TRAINER_CALLS = ["ready", "step", "save", "load", "on", "deferred"]


@pytest.mark.parametrize("name", CONSTRUCTORS)
@PATIENT
@given(data=st.data())
def test_constructors_refuse_clearly(name: str, data: st.DataObject) -> None:
    attempt(CONSTRUCTORS[name], data)


@pytest.mark.parametrize("name", VERBS)
@PATIENT
@given(data=st.data())
def test_verbs_refuse_clearly(mesh: uform.Mesh, name: str, data: st.DataObject) -> None:
    attempt(getattr(mesh, name), data)
    assert mesh.exchange(b"still here", timeout_seconds=60.0) == [b"still here"]


@pytest.mark.parametrize("name", DEFERRED_VERBS)
@PATIENT
@given(data=st.data())
def test_deferred_verbs_refuse_clearly(mesh: uform.Mesh, name: str, data: st.DataObject) -> None:
    attempt(getattr(mesh.deferred(), name), data)
    call = mesh.deferred().exchange(b"still here")
    attempt(call.wait, data)
    assert call.wait(60.0) == [b"still here"]


@pytest.mark.parametrize("name", ["step", "save", "load"])
@PATIENT
@given(data=st.data())
def test_deferred_trainers_refuse_clearly(mesh: uform.Mesh, name: str, data: st.DataObject) -> None:
    trainer = uform.Trainer(mesh, {"x": np.zeros(2)}, uform.SGD(0.1))
    attempt(getattr(trainer.deferred(), name), data)
    assert trainer.deferred().step().wait(60.0).step >= 1


@pytest.mark.parametrize("name", TRAINER_CALLS)
@PATIENT
@given(data=st.data())
def test_trainers_refuse_clearly(mesh: uform.Mesh, name: str, data: st.DataObject) -> None:
    trainer = uform.Trainer(mesh, {"x": np.zeros(2)}, uform.SGD(0.1))
    attempt(getattr(trainer, name), data)
    assert trainer.step().step >= 1


@PATIENT
@given(data=st.data())
def test_arenas_and_arrays_refuse_clearly(mesh: uform.Mesh, data: st.DataObject) -> None:
    arena = mesh.arena(4096)
    attempt(arena.array, data)
    attempt(arena.array(3).__dlpack__, data)


@pytest.mark.parametrize("value", [True, False])
def test_a_flag_is_no_number(mesh: uform.Mesh, value: bool) -> None:
    numbers = np.zeros(2, dtype=np.float32)
    calls: dict[str, Callable[[], object]] = {
        "root": lambda: mesh.broadcast(numbers, value),
        "op": lambda: mesh.all_reduce(numbers, value),  # type: ignore[arg-type]
        "timeout_seconds": lambda: mesh.barrier(timeout_seconds=value),
        "byte_count": lambda: mesh.arena(value),
        "shape": lambda: mesh.arena(64).array(value),
        "threads": lambda: uform.Executor.for_ram(value),
        "memory_domains": lambda: uform.Executor.for_ram(1, memory_domains=[value]),
        "host_domain_count": lambda: uform.MeshOptions(host_domain_count=value),
        "learning_rate": lambda: uform.SGD(value),
        "mood": lambda: mesh.executor.drain(value),  # type: ignore[arg-type]
    }
    for argument, call in calls.items():
        with pytest.raises(uform.InvalidError, match=argument) as caught:
            call()
        assert caught.value.argument == argument


def test_wrong_orders_of_calls_are_refused(tmp_path: Path) -> None:
    numbers = np.zeros(2, dtype=np.float32)
    kinds = (uform.Mesh, uform.Executor, uform.Arena, uform.Array, uform.Topology, uform.Deferred)
    for kind in (*kinds, uform.DeferredMesh, uform.DeferredTrainer, uform.StepReport):
        with pytest.raises(TypeError):
            kind()
    with pytest.raises(TypeError):
        uform.Mesh.all_reduce(numbers)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError):
        uform.Mesh.barrier(uform.Executor.for_ram(1))  # type: ignore[arg-type]

    executor = uform.Executor.for_ram(1)
    mesh = uform.Mesh.bootstrap(executor, None)
    trainer = uform.Trainer(mesh, {"x": np.zeros(2)}, uform.SGD(0.1))
    arena = mesh.arena(1 << 12)
    # The same twice, one in the other: each leaves once, and the second has nothing left to do.
    with mesh, mesh, executor, executor:
        mesh.barrier()
    assert mesh.closed
    assert executor.closed
    mesh.__exit__(None, None, None)
    executor.__exit__(None, None, None)
    calls: tuple[Callable[[], object], ...] = (
        mesh.barrier,
        lambda: mesh.all_reduce(numbers),
        lambda: mesh.exchange(b""),
        lambda: mesh.arena(64),
        lambda: mesh.deferred().barrier().wait(),
        lambda: mesh.on(executor).barrier(),
        lambda: trainer.deferred().step().wait(),
        executor.drain,
        lambda: uform.Mesh.bootstrap(executor, None),
        lambda: uform.Trainer(mesh, {"x": np.zeros(2)}, uform.SGD(0.1)),
        trainer.step,
        lambda: trainer.edit().__enter__(),
        lambda: trainer.save(tmp_path / "checkpoint", step=1),
        lambda: trainer.load(tmp_path / "checkpoint"),
    )
    for call in calls:
        with pytest.raises(uform.ClosedError):
            call()
    # What was there is still there.
    assert np.asarray(arena.array(2)).tolist() == [0.0, 0.0]
    assert np.asarray(trainer.parameters["x"]).tolist() == [0.0, 0.0]
    assert (mesh.index, mesh.count, executor.threads) == (0, 1, 1)


def test_an_edit_has_an_order() -> None:
    with uform.Mesh.bootstrap(None, None) as mesh:
        trainer = uform.Trainer(mesh, {"x": np.zeros(2)}, uform.SGD(0.1))
        edit = trainer.edit()
        with pytest.raises(uform.UformError):
            edit.__exit__(None, None, None)
        with edit, pytest.raises(uform.UformError):
            trainer.edit().__enter__()
        assert trainer.step().step == 1


def counts() -> tuple[int, int]:
    """Give how many descriptors are open, and how many threads there are."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


async def in_a_loop(mesh: uform.Mesh) -> None:
    """Await some calls, and cancel one."""
    task = asyncio.ensure_future(mesh.deferred().barrier())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(
        task, mesh.deferred().barrier(), mesh.deferred().exchange(b""), return_exceptions=True
    )
    await mesh.deferred().barrier()


def one_round(generator: random.Random, wrong: list[Any]) -> None:
    """Make one of everything, use it wrongly, and let it go, closed or not."""
    executor = uform.Executor.for_ram(1, deferred_limit=generator.choice([0, 8]))
    with refused_clearly():
        uform.Executor.for_ram(generator.choice(wrong), memory_domains=generator.choice(wrong))
    with refused_clearly():
        uform.Mesh.bootstrap(executor, generator.choice(wrong))
    with refused_clearly():
        uform.Mesh.bootstrap(None, uform.MeshOptions(host_domain_index=2, host_domain_count=2))
    mesh = uform.Mesh.bootstrap(executor if generator.random() < 0.5 else None, None)
    arena = mesh.arena(4096)
    numbers = np.ones(3, dtype=np.float32)
    for _ in range(5):
        one, two, three = (generator.choice(wrong) for _ in range(3))
        for verb in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "exchange", "arena"):
            with refused_clearly():
                getattr(mesh, verb)(one, two)
        with refused_clearly():
            mesh.all_reduce(numbers, out=three)
        with refused_clearly():
            mesh.barrier(timeout_seconds=one)
        with refused_clearly():
            arena.array(two, three)
        with refused_clearly():
            uform.Trainer(mesh, {"x": one}, uform.SGD(0.1))
        with refused_clearly():
            mesh.deferred().all_reduce(one, progress=two).wait(60.0)
        with refused_clearly(), contextlib.suppress(ValueError):
            mesh.deferred().all_reduce(numbers.copy(), progress=lambda *_: math.sqrt(-1)).wait(60.0)
        with refused_clearly():
            mesh.all_reduce(numbers.copy(), progress=lambda *_: mesh.barrier())
    # One that nobody awaits, one that a loop awaits, and one that it gives up.
    mesh.deferred().barrier()
    mesh.executor.drain()
    with refused_clearly():
        asyncio.run(in_a_loop(mesh))
    mesh.executor.drain()
    arena.array(2).__dlpack__(max_version=(1, 0))
    np.from_dlpack(arena.array(2)).sum()
    trainer = uform.Trainer(mesh, {"x": np.zeros(2)}, uform.SGD(0.1))
    with refused_clearly():
        trainer.load("nothing here")
    with refused_clearly():
        trainer.save("step", step=generator.choice(wrong))
    if generator.random() < 0.5:
        mesh.close()
        with refused_clearly():
            mesh.barrier()
    if generator.random() < 0.5:
        executor.__exit__(None, None, None)


def test_nothing_leaks() -> None:
    generator = random.Random(7)
    wrong: list[Any] = [
        None,
        -1,
        3.5,
        math.nan,
        1 << 70,
        True,
        "text",
        b"bytes",
        [],
        Hostile(),
        HostileMapping(),
        np.zeros(3, "f8")[::-1],
        frozen(np.zeros(3, "f4")),
        np.zeros(2, "O"),
        Producer([1.0], device=2),
        Producer([1.0], code=5),
        uform.MeshOptions(timeout_seconds=1.0),
    ]
    for _ in range(20):
        one_round(generator, wrong)
    before = counts()
    for _ in range(200):
        one_round(generator, wrong)
    assert counts() == before
    assert threading.active_count() == 1
