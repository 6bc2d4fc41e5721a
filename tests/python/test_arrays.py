"""Arrays in and out, in a mesh of one process, where every reduction gives back what went in."""

import array
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uform
from harness import run


@pytest.fixture(scope="module")
def mesh() -> Iterator[uform.Mesh]:
    with uform.Mesh.bootstrap(None, None) as mesh:
        yield mesh


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3)])
def test_shapes_and_types_pass(mesh: uform.Mesh, dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    numbers = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    expected = numbers.copy()
    mesh.all_reduce(numbers)
    mesh.broadcast(numbers)
    out = np.zeros_like(numbers)
    mesh.all_reduce(numbers, uform.ReduceOp.MAX, out=out)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(numbers, expected)


def test_other_exporters_pass(mesh: uform.Mesh) -> None:
    numbers = array.array("d", [1.0, 2.0])
    mesh.all_reduce(numbers)
    assert list(numbers) == [1.0, 2.0]
    out = array.array("d", [0.0, 0.0])
    mesh.all_gather(memoryview(numbers), out)
    assert list(out) == [1.0, 2.0]
    # The long of C is 64 bits here, and so is NumPy's int64.
    mesh.all_reduce(array.array("l", [1]), out=np.zeros(1, dtype=np.int64))


def test_strided_arrays_are_read_and_written_where_they_are(mesh: uform.Mesh) -> None:
    views: tuple[Callable[[Any], Any], ...] = (
        lambda grid: grid[:, 1],
        lambda grid: grid[::2],
        lambda grid: grid.T,
        lambda grid: grid[::-1, ::-3],
        lambda grid: grid[1:1, ::-1],
    )
    for view in views:
        grid = np.arange(30, dtype=np.float32).reshape(5, 6)
        source = view(grid)
        before = grid.copy()
        mesh.all_reduce(source)
        np.testing.assert_array_equal(grid, before)
        for call in (mesh.all_reduce, mesh.broadcast, mesh.reduce):
            target = np.full((5, 6), -1, dtype=np.float32)
            call(source, out=view(target))
            np.testing.assert_array_equal(view(target), source)
            view(target)[...] = -1
            assert (target == -1).all()
        for two in (mesh.all_gather, mesh.reduce_scatter, mesh.all_to_all, mesh.gather, mesh.scatter):
            target = np.full((5, 6), -1, dtype=np.float32)
            two(source, view(target))
            np.testing.assert_array_equal(view(target), source)
    wide = np.broadcast_to(np.float32(3), (4,))
    out = np.zeros(8, dtype=np.float32)
    mesh.all_reduce(wide, out=out[::-2])
    assert out.tolist() == [0, 3, 0, 3, 0, 3, 0, 3]
    with pytest.raises(uform.InvalidError, match="two elements in one place"):
        mesh.all_reduce(wide, out=np.lib.stride_tricks.as_strided(out, (4,), (0,)))


def test_overlap_is_in_place_or_refused(mesh: uform.Mesh) -> None:
    numbers = np.arange(10, dtype=np.float64)
    mesh.all_reduce(numbers, out=numbers)
    mesh.all_to_all(numbers[::2], numbers[::2])
    mesh.all_reduce(numbers[::2], out=numbers[1::2])
    assert numbers.tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]
    for array_, out in (
        (numbers[:5], numbers[1:6]),
        (numbers[::2], numbers[::-2][:5]),
        (numbers[:5], numbers[::2]),
    ):
        if array_ is not out and np.shares_memory(array_, out):
            with pytest.raises(uform.InvalidError, match="overlaps out"):
                mesh.all_reduce(array_, out=out)


def test_lists_are_one_call(mesh: uform.Mesh) -> None:
    arrays: list[Any] = [np.ones(3, dtype=np.float32), np.ones((2, 2), dtype=np.int64)[:, 0], np.zeros(0)]
    mesh.all_reduce(arrays, reproducible=True)
    mesh.broadcast(tuple(arrays))
    out = [np.zeros_like(one) for one in arrays]
    mesh.all_reduce(arrays, out=out)
    assert all(np.array_equal(one, other) for one, other in zip(arrays, out, strict=True))
    mesh.all_reduce([])
    mesh.deferred().all_reduce(arrays).wait()
    with pytest.raises(uform.InvalidError, match="out"):
        mesh.all_reduce(arrays, out=out[:2])
    with pytest.raises(uform.InvalidError, match="overlaps another"):
        mesh.broadcast([arrays[0], arrays[0]])
    with pytest.raises(uform.InvalidError, match="one array at a time"):
        mesh.all_gather(arrays, out)
    with pytest.raises(uform.InvalidError, match="reproducible"):
        mesh.all_reduce(arrays[0], reproducible=1)  # type: ignore[arg-type]


def test_read_only_arrays_are_refused_as_output(mesh: uform.Mesh) -> None:
    frozen = np.ones(3, dtype=np.float32)
    frozen.flags.writeable = False
    with pytest.raises(uform.InvalidError, match="read-only"):
        mesh.all_reduce(frozen)
    out = np.zeros(3, dtype=np.float32)
    mesh.all_reduce(frozen, out=out)
    assert out.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(uform.InvalidError, match="out"):
        mesh.all_gather(out, b"12345678")


@pytest.mark.parametrize("dtype", [">f4", ">i8", np.complex64, "S4", "M8[s]", [("a", "f4")], object])
def test_unknown_element_types_are_refused(mesh: uform.Mesh, dtype: object) -> None:
    with pytest.raises(uform.InvalidError, match="array"):
        mesh.all_reduce(np.zeros(3, dtype=dtype))


@pytest.mark.parametrize("thing", [None, 3, "text", [1.0, 2.0]])
def test_what_is_no_array_is_refused(mesh: uform.Mesh, thing: object) -> None:
    with pytest.raises(uform.InvalidError, match="buffer protocol"):
        mesh.all_reduce(thing)


def test_two_arrays_must_agree(mesh: uform.Mesh) -> None:
    numbers = np.zeros(3, dtype=np.float32)
    with pytest.raises(uform.InvalidError, match="element type"):
        mesh.all_reduce(numbers, out=np.zeros(3))
    with pytest.raises(uform.UformError):
        mesh.all_reduce(numbers, out=np.zeros(4, dtype=np.float32))
    with pytest.raises(uform.UformError):
        mesh.all_gather(numbers, np.zeros(7, dtype=np.float32))


def test_wrong_arguments_of_verbs_are_refused(mesh: uform.Mesh) -> None:
    numbers = np.zeros(3, dtype=np.float32)
    with pytest.raises(uform.InvalidError, match="root"):
        mesh.broadcast(numbers, 1)
    with pytest.raises(uform.InvalidError, match="op"):
        mesh.all_reduce(numbers, "sum")  # type: ignore[arg-type]
    with pytest.raises(uform.InvalidError, match="timeout_seconds"):
        mesh.barrier(timeout_seconds=-1.0)
    with pytest.raises(uform.InvalidError, match="payload"):
        mesh.exchange("text")  # type: ignore[arg-type]
    with pytest.raises(uform.InvalidError, match="byte_count"):
        mesh.arena(-1)
    with pytest.raises(uform.InvalidError, match="counts"):
        mesh.all_gather(numbers, numbers.copy(), counts=[3, 0])
    with pytest.raises(uform.InvalidError, match="counts"):
        mesh.all_gather(numbers, numbers.copy(), counts=[-3])
    with pytest.raises(uform.InvalidError, match="counts"):
        mesh.gather(numbers, numbers.copy(), counts=3)  # type: ignore[arg-type]
    with pytest.raises(uform.InvalidError, match="counts"):
        mesh.all_to_all(numbers, numbers.copy(), send_counts=[3])
    with pytest.raises(uform.InvalidError, match="array"):
        mesh.scatter(None, None)
    # None of this has harmed the mesh.
    assert mesh.exchange(b"still here") == [b"still here"]


def test_a_message_goes_to_another_member(mesh: uform.Mesh) -> None:
    numbers = np.zeros(1, dtype=np.float32)
    calls: tuple[Callable[[], object], ...] = (
        lambda: mesh.send(numbers, 0),
        lambda: mesh.receive(numbers, 0),
    )
    for call in calls:
        with pytest.raises(uform.InvalidError, match="another member"):
            call()


def test_an_arena_gives_arrays_that_numpy_shares(mesh: uform.Mesh) -> None:
    arena = mesh.arena(4096)
    assert arena.byte_count >= 4096
    given = arena.array((2, 3), uform.Dtype.F64)
    assert (given.shape, given.dtype, given.read_only) == ((2, 3), uform.Dtype.F64, False)
    one, other = np.asarray(given), np.asarray(given)
    assert one.shape == (2, 3)
    assert one.dtype == np.float64
    assert one.ctypes.data % 64 == 0
    one[...] = 7.0
    assert other.sum() == 42.0
    mesh.all_reduce(given)
    view = memoryview(given)  # type: ignore[arg-type]
    assert np.asarray(view).sum() == 42.0
    # Arrays of one arena do not overlap.
    np.asarray(arena.array(3))[...] = 1.0
    assert other.sum() == 42.0
    single = arena.array(())
    assert np.asarray(single).shape == ()
    assert np.asarray(arena.array((3, 0), uform.Dtype.I32)).shape == (3, 0)


@pytest.mark.parametrize("dtype", list(uform.Dtype))
def test_every_element_type_is_exported(mesh: uform.Mesh, dtype: uform.Dtype) -> None:
    names = {"F": "float", "I": "int", "U": "uint"}
    if dtype == uform.Dtype.BF16:
        name = "uint16"
    elif dtype == uform.Dtype.BOOL:
        name = "bool"
    else:
        name = names[dtype.name[0]] + dtype.name[1:]
    expected: np.dtype[Any] = np.dtype(name)
    found = np.asarray(mesh.arena(64).array(2, dtype)).dtype
    assert found == expected
    assert found.num == expected.num


def test_members_add_arrays_of_every_type_as_what_they_are(tmp_path: Path) -> None:
    source = """
import ml_dtypes
import numpy as np
import uform

with uform.Mesh.bootstrap(None, None) as mesh:
    for dtype in uform.Dtype:
        array = mesh.arena(4096).array(2, dtype)
        view = np.asarray(array)
        if dtype == uform.Dtype.BF16:
            view = view.view(ml_dtypes.bfloat16)
        view[...] = mesh.index + 1
        mesh.all_reduce(array, uform.ReduceOp.MAX if dtype == uform.Dtype.BOOL else uform.ReduceOp.SUM)
        assert view.tolist() == [True, True] if dtype == uform.Dtype.BOOL else [3, 3], (dtype, view)
    print("played")
"""
    assert all("played" in text for text in run(2, source, tmp_path))


def test_an_arena_refuses_what_does_not_fit(mesh: uform.Mesh) -> None:
    arena = mesh.arena(64)
    with pytest.raises(uform.ExhaustedError) as caught:
        arena.array(arena.byte_count)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.wanted_bytes == 4 * arena.byte_count
    for shape in (-1, (1 << 62, 8), "3", 1.5, [1] * 65):
        with pytest.raises(uform.InvalidError, match="shape"):
            arena.array(shape)  # type: ignore[arg-type]
    with pytest.raises(uform.InvalidError, match="dtype"):
        arena.array(1, "f4")  # type: ignore[arg-type]


def test_an_array_outlives_its_mesh_and_arena() -> None:
    with uform.Mesh.bootstrap(None, None) as mesh:
        numbers = np.asarray(mesh.arena(1 << 16).array(1 << 14))
        numbers[...] = 3.0
    del mesh
    gc.collect()
    assert numbers.sum() == 3.0 * (1 << 14)


def test_a_closed_mesh_raises() -> None:
    mesh = uform.Mesh.bootstrap(None, None)
    mesh.close()
    mesh.close()
    assert mesh.closed
    with pytest.raises(uform.ClosedError):
        mesh.all_reduce(np.zeros(1, dtype=np.float32))
    with pytest.raises(uform.ClosedError):
        mesh.exchange(b"")
    assert mesh.count == 1
    assert '"' in mesh.topology().to_json()
