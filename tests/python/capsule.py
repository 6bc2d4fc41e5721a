"""DLPack tensors made by hand, as another library would give them."""

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar

HOST, CUDA, ROCM = 1, 2, 10
FLOAT, INT, BFLOAT = 2, 0, 4
READ_ONLY = 1


class Device(ctypes.Structure):
    """DLDevice."""

    _fields_: ClassVar = [("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32)]


class ElementType(ctypes.Structure):
    """DLDataType."""

    _fields_: ClassVar = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("dimensions", ctypes.c_int32),
        ("dtype", ElementType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Legacy(ctypes.Structure):
    """DLManagedTensor."""

    _fields_: ClassVar = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def new_capsule(managed: Legacy | Versioned, name: bytes) -> Any:
    """Wrap a managed tensor, without a destructor: the test keeps it."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(ctypes.addressof(managed), name, None)


def capsule_name(capsule: Any) -> bytes:
    """Give the name of a capsule, which says whether it was taken."""
    read = ctypes.pythonapi.PyCapsule_GetName
    read.restype = ctypes.c_char_p
    read.argtypes = [ctypes.py_object]
    return bytes(read(capsule))


def tensor_of(capsule: Any) -> Tensor:
    """Give the tensor in a capsule that nobody took."""
    name = capsule_name(capsule)
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype = ctypes.c_void_p
    read.argtypes = [ctypes.py_object, ctypes.c_char_p]
    pointer = read(capsule, name)
    if name == b"dltensor_versioned":
        tensor: Tensor = Versioned.from_address(pointer).tensor
    else:
        tensor = Legacy.from_address(pointer).tensor
    return tensor


class Producer:
    """An object of another library: a few numbers in its own memory, and how often they were given back."""

    def __init__(
        self,
        numbers: Sequence[float],
        *,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        device: int = HOST,
        code: int = FLOAT,
        bits: int = 32,
        lanes: int = 1,
        offset: int = 0,
        flags: int = 0,
        version: tuple[int, int] | None = (1, 0),
    ) -> None:
        self.memory = (ctypes.c_float * (len(numbers) + offset))(*([0.0] * offset), *numbers)
        self.given_back = 0
        self.device = device
        self.asked: list[dict[str, Any]] = []
        self._version = version
        self._shape = list(shape) if shape is not None else [len(numbers)]
        self._extents = (ctypes.c_int64 * max(len(self._shape), 1))(*self._shape)
        self._strides = (ctypes.c_int64 * len(strides))(*strides) if strides is not None else None
        self._deleter = DELETER(self._delete)
        self._flags = flags
        self._tensor = Tensor(
            ctypes.addressof(self.memory),
            Device(device, 0),
            len(self._shape),
            ElementType(code, bits, lanes),
            ctypes.cast(self._extents, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64)) if self._strides else None,
            4 * offset,
        )
        self.managed: Legacy | Versioned | None = None

    def _delete(self, _: int) -> None:
        self.given_back += 1

    def values(self) -> list[float]:
        """Give the numbers that are there now."""
        return list(self.memory)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **keywords: Any) -> Any:
        self.asked.append(keywords)
        if self._version is None:
            if keywords:
                raise TypeError("no keyword arguments before version 1")
            self.managed = Legacy(self._tensor, None, self._deleter)
            return new_capsule(self.managed, b"dltensor")
        major, minor = self._version
        self.managed = Versioned(major, minor, None, self._deleter, self._flags, self._tensor)
        return new_capsule(self.managed, b"dltensor_versioned")
