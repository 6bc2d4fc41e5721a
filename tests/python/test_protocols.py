"""DLPack, `__array_interface__` and bfloat16, in a mesh of one process."""

import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import capsule
import ml_dtypes
import numpy as np
import pytest
import uform
from capsule import Producer


@pytest.fixture(scope="module")
def mesh() -> Iterator[uform.Mesh]:
    with uform.Mesh.bootstrap(None, None) as mesh:
        yield mesh


@pytest.mark.parametrize("version", [(1, 0), (1, 7), None])
def test_a_tensor_is_written_in_place_and_given_back_once(
    mesh: uform.Mesh, version: tuple[int, int] | None
) -> None:
    numbers = Producer([1.0, 2.0, 3.0], version=version)
    out = Producer([0.0] * 3, version=version)
    mesh.all_gather(numbers, out)
    assert out.values() == [1.0, 2.0, 3.0]
    assert (numbers.given_back, out.given_back) == (1, 1)
    if version:
        # Without a copy: a result must not go to one.
        assert out.asked == [{"max_version": (1, 0), "copy": False}]
    else:
        assert out.asked[-1] == {}


def test_offsets_shapes_and_strides_are_read(mesh: uform.Mesh) -> None:
    source = np.array([5.0, 6.0], dtype=np.float32)
    out = Producer([0.0, 0.0], offset=3)
    mesh.all_reduce(source, out=out)
    assert out.values() == [0.0, 0.0, 0.0, 5.0, 6.0]
    single = Producer([9.0], shape=())
    mesh.all_reduce(single)
    mesh.all_reduce(Producer([], shape=(0, 3), strides=(7, 7)))
    mesh.all_reduce(Producer([1.0] * 6, shape=(2, 1, 3), strides=(3, 99, 1)))
    turned = Producer([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], shape=(3, 2), strides=(1, 3))
    grid = np.zeros((3, 2), dtype=np.float32)
    mesh.all_reduce(turned, out=grid)
    assert grid.tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    back = Producer([0.0] * 6, offset=3, shape=(2, 3), strides=(-3, 1))
    mesh.all_reduce(np.arange(6, dtype=np.float32), out=back)
    assert back.values() == [3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("flags", [capsule.READ_ONLY, 2])
def test_read_only_tensors_and_copies_are_refused_as_output(mesh: uform.Mesh, flags: int) -> None:
    frozen = Producer([1.0, 2.0], flags=flags)
    with pytest.raises(uform.InvalidError, match="read-only"):
        mesh.all_reduce(frozen)
    assert (frozen.given_back, frozen.values()) == (1, [1.0, 2.0])
    out = np.zeros(2, dtype=np.float32)
    mesh.all_reduce(frozen, out=out)
    assert out.tolist() == [1.0, 2.0]
    assert frozen.given_back == 2


@pytest.mark.parametrize(
    ("device", "name", "kind"),
    [
        (2, "CUDA device 0.*with this NVIDIA GPU", uform.InvalidError),
        (10, "HIP device 0.*with this AMD GPU", uform.InvalidError),
        (13, "managed", uform.UnsupportedError),
        (99, "99", uform.UnsupportedError),
    ],
)
def test_tensors_of_gpus_are_refused_by_name_on_host_threads(
    mesh: uform.Mesh, device: int, name: str, kind: type[uform.UformError]
) -> None:
    tensor = Producer([1.0], device=device)
    with pytest.raises(kind, match=name):
        mesh.all_reduce(tensor)
    # Asked for its device alone: the memory was not touched.
    assert tensor.asked == []


def test_a_device_that_is_not_the_tensors_is_seen(mesh: uform.Mesh) -> None:
    tensor = Producer([1.0], device=2)
    tensor.device = 1
    with pytest.raises(uform.UnsupportedError, match="CUDA"):
        mesh.all_reduce(tensor)
    assert tensor.given_back == 1


def test_pinned_memory_is_host_memory(mesh: uform.Mesh) -> None:
    mesh.all_reduce(Producer([1.0], device=3))
    mesh.all_reduce(Producer([1.0], device=11))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"version": (2, 0)}, "DLPack 1"),
        ({"code": 5, "bits": 64}, "element type"),
        ({"lanes": 4}, "element type"),
        ({"shape": (-1,)}, "extent"),
        ({"shape": (1 << 62, 1 << 62)}, "bytes"),
        ({"shape": (1,) * 65}, "64 dimensions"),
    ],
)
def test_tensors_that_are_not_understood_are_given_back(
    mesh: uform.Mesh, arguments: dict[str, Any], text: str
) -> None:
    tensor = Producer([1.0], **arguments)
    with pytest.raises(uform.InvalidError, match=text):
        mesh.all_reduce(tensor)
    assert tensor.given_back == 1


def test_what_is_no_fresh_capsule_is_refused(mesh: uform.Mesh) -> None:
    class Stale(Producer):
        kept: Any = None

        def __dlpack__(self, **_: Any) -> Any:
            return self.kept

    stale = Stale([1.0])
    for kept in (None, 3, "text"):
        stale.kept = kept
        with pytest.raises(uform.InvalidError, match="fresh"):
            mesh.all_reduce(stale)
    stale.kept = Producer.__dlpack__(stale)
    mesh.all_reduce(stale)
    assert capsule.capsule_name(stale.kept) == b"used_dltensor_versioned"
    with pytest.raises(uform.InvalidError, match="fresh"):
        mesh.all_reduce(stale)
    assert stale.given_back == 1


def test_what_a_producer_raises_is_the_cause(mesh: uform.Mesh) -> None:
    class Failing:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            raise LookupError("gone")

    with pytest.raises(uform.InvalidError, match="DLPack") as caught:
        mesh.all_reduce(Failing())
    assert isinstance(caught.value.__cause__, LookupError)

    class Interrupting(Failing):
        def __dlpack__(self, **_: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mesh.all_reduce(Interrupting())


def test_bfloat16_of_numpy_comes_in(mesh: uform.Mesh) -> None:
    numbers = np.arange(4).astype(ml_dtypes.bfloat16)
    assert numbers.__array_interface__["typestr"] == "<V2"
    out = np.zeros(4, dtype=ml_dtypes.bfloat16)
    mesh.broadcast(numbers, out=out)
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0]
    out[...] = 0
    mesh.all_gather(numbers, out)
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(uform.InvalidError, match="BF16"):
        mesh.all_gather(numbers, np.zeros(4, dtype=np.float16))
    out.flags.writeable = False
    with pytest.raises(uform.InvalidError, match="read-only"):
        mesh.broadcast(out)
    mesh.broadcast(np.zeros(4, dtype=ml_dtypes.bfloat16)[::2])
    mesh.broadcast(np.ones((), dtype=ml_dtypes.bfloat16))
    for other in (np.zeros(2, dtype="V2"), np.zeros(2, dtype=ml_dtypes.float8_e4m3fn)):
        with pytest.raises(uform.InvalidError, match="element type"):
            mesh.broadcast(other)


class Described:
    """An object that has nothing but a description."""

    def __init__(self, interface: object) -> None:
        self.__array_interface__ = interface


def interface_of(array: np.ndarray[Any, Any], **changes: object) -> dict[str, object]:
    return {**array.__array_interface__, **changes}


def test_a_description_alone_is_enough(mesh: uform.Mesh) -> None:
    numbers = np.arange(6, dtype=np.int64).reshape(2, 3)
    out = np.zeros_like(numbers)
    mesh.all_gather(Described(interface_of(numbers)), Described(interface_of(out)))
    assert out.tolist() == numbers.tolist()
    # Without an address the memory is that of another object.
    data = bytearray(numbers.tobytes())
    described = Described({"version": 3, "typestr": "<i8", "shape": (2,), "data": data, "offset": 32})
    last = np.zeros(2, dtype=np.int64)
    mesh.all_gather(described, last)
    assert last.tolist() == [4, 5]
    mesh.all_gather(last * 10, described)
    assert np.frombuffer(data, dtype=np.int64).tolist() == [0, 1, 2, 3, 40, 50]
    described = Described({"version": 3, "typestr": "<i8", "shape": (2,), "data": bytes(data)})
    with pytest.raises(uform.InvalidError, match="read-only"):
        mesh.all_reduce(described)


@pytest.mark.parametrize(
    "changes",
    [
        {"typestr": ">f4"},
        {"typestr": "<c8"},
        {"typestr": "<f"},
        {"typestr": ""},
        {"typestr": 5},
        {"typestr": "<V2"},
        {"shape": 3},
        {"shape": (-1,)},
        {"shape": ("3",)},
        {"shape": (1 << 62, 1 << 62)},
        {"strides": (1, 2, 3)},
        {"strides": (8,), "data": b"1234" * 3},
        {"strides": (-4,), "data": b"1234" * 3},
        {"strides": (1 << 62,)},
        {"strides": ("4",)},
        {"data": None},
        {"data": (0, False)},
        {"data": ("0", False)},
        {"data": (1, 2, 3)},
        {"data": b"123"},
        {"data": b"1234" * 3, "offset": 4},
        {"data": b"1234" * 3, "offset": -4},
        {"mask": np.zeros(3, dtype=bool)},
    ],
    ids=str,
)
def test_descriptions_that_are_not_understood_are_refused(
    mesh: uform.Mesh, changes: dict[str, object]
) -> None:
    numbers = np.zeros(3, dtype=np.float32)
    with pytest.raises(uform.InvalidError, match="array"):
        mesh.all_reduce(Described(interface_of(numbers, **changes)), out=numbers)


def test_other_descriptions_are_refused(mesh: uform.Mesh) -> None:
    for thing in (Described(None), Described({}), np.ndarray, np.float32, Producer, Described):
        with pytest.raises(uform.InvalidError):
            mesh.all_reduce(thing)

    class Broken:
        @property
        def __array_interface__(self) -> object:
            raise LookupError

    with pytest.raises(uform.InvalidError, match="__array_interface__") as caught:
        mesh.all_reduce(Broken())
    assert isinstance(caught.value.__cause__, LookupError)


DLPACK = {
    uform.Dtype.F64: (2, 64),
    uform.Dtype.F32: (2, 32),
    uform.Dtype.F16: (2, 16),
    uform.Dtype.BF16: (4, 16),
    uform.Dtype.I8: (0, 8),
    uform.Dtype.U8: (1, 8),
    uform.Dtype.I16: (0, 16),
    uform.Dtype.U16: (1, 16),
    uform.Dtype.I32: (0, 32),
    uform.Dtype.U32: (1, 32),
    uform.Dtype.I64: (0, 64),
    uform.Dtype.U64: (1, 64),
    uform.Dtype.BOOL: (6, 8),
}


@pytest.mark.parametrize("dtype", list(uform.Dtype))
@pytest.mark.parametrize("newest", [None, (0, 8), (1, 0), (1, 3)])
def test_every_element_type_is_exported_by_dlpack(
    mesh: uform.Mesh, dtype: uform.Dtype, newest: tuple[int, int] | None
) -> None:
    given = mesh.arena(256).array((3, 2), dtype)
    assert given.__dlpack_device__() == (1, 0)
    made = given.__dlpack__(max_version=newest)
    is_versioned = newest is not None and newest >= (1, 0)
    assert capsule.capsule_name(made) == (b"dltensor_versioned" if is_versioned else b"dltensor")
    tensor = capsule.tensor_of(made)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (*DLPACK[dtype], 1)
    assert (tensor.device.kind, tensor.dimensions, tensor.byte_offset) == (1, 2, 0)
    assert (tensor.shape[:2], tensor.strides[:2]) == ([3, 2], [2, 1])
    shared = np.asarray(given)
    assert tensor.data == shared.ctypes.data


def test_numpy_takes_arrays_by_dlpack(mesh: uform.Mesh) -> None:
    given = mesh.arena(256).array((2, 2))
    taken = np.from_dlpack(given)
    np.asarray(given)[...] = 3.0
    assert taken.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    copied = np.from_dlpack(given, copy=True)
    np.asarray(given)[...] = 4.0
    assert copied.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    copied[...] = 5.0
    assert np.from_dlpack(mesh.arena(64).array(())).shape == ()
    assert np.from_dlpack(mesh.arena(64).array((0, 4))).shape == (0, 4)
    # And verbs take an Array, whichever way they read it.
    mesh.all_reduce(given)


def test_an_export_outlives_everything_else() -> None:
    with uform.Mesh.bootstrap(None, None) as mesh:
        given = mesh.arena(1 << 16).array(1 << 14)
        np.asarray(given)[...] = 3.0
        taken = np.from_dlpack(given)
        unused = given.__dlpack__(max_version=(1, 0))
    del mesh, given
    gc.collect()
    assert taken.sum() == 3.0 * (1 << 14)
    del unused
    gc.collect()


def test_read_only_arrays_are_exported_as_such() -> None:
    with uform.Mesh.bootstrap(None, None) as mesh:
        trainer = uform.Trainer(mesh, {"x": np.ones(2)}, uform.SGD(0.1))
        parameter = trainer.parameters["x"]
        made = parameter.__dlpack__(max_version=(1, 0))
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype = ctypes.c_void_p
        pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        assert capsule.Versioned.from_address(pointer(made, b"dltensor_versioned")).flags == 1
        with pytest.raises(BufferError, match="max_version"):
            parameter.__dlpack__()
        assert capsule.capsule_name(parameter.__dlpack__(copy=True)) == b"dltensor"
        assert not np.from_dlpack(parameter).flags.writeable
        with pytest.raises(uform.InvalidError, match="read-only"):
            mesh.all_reduce(parameter)


def test_wrong_arguments_of_an_export_are_refused(mesh: uform.Mesh) -> None:
    given = mesh.arena(64).array(2)
    for name, value in (
        ("stream", 1),
        ("max_version", 1),
        ("max_version", ("1", 0)),
        ("dl_device", 1),
        ("copy", "yes"),
    ):
        with pytest.raises(uform.InvalidError, match=name):
            given.__dlpack__(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="stays there"):
        given.__dlpack__(dl_device=(2, 0))
    given.__dlpack__(dl_device=(1, 0), stream=None, copy=False)
