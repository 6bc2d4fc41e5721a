"""The extension module; `uform` re-exports its names."""

import os
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from types import GenericAlias, TracebackType
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar, final

from _typeshed import structseq
from typing_extensions import CapsuleType

__version__: Final[str]

_T_co = TypeVar("_T_co", covariant=True)

# Gets the bytes that are done and the bytes of the whole call.
_Progress: TypeAlias = Callable[[int, int], object]

class CPUClass(IntEnum):
    """The CPU family that kernels dispatch as."""

    SERIAL = 1
    INTEL_HASWELL = 2
    INTEL_SIERRA = 3
    INTEL_SKYLAKE = 4
    INTEL_ICELAKE = 5
    AMD_GENOA = 6
    INTEL_SAPPHIRE = 7
    INTEL_GRANITE = 8
    INTEL_DIAMOND = 9
    AWS_G2 = 10
    APPLE_M2 = 11
    APPLE_M4 = 12
    AWS_G5 = 13
    NVIDIA_VERA = 14
    ALIBABA_C930 = 15
    WASM32_V128 = 16
    WASM64_EXTENDED = 17
    MONOVERSIONED = 18

class GPUClass(IntEnum):
    """The GPU generation that kernels dispatch as."""

    NVIDIA_AMPERE = 1
    NVIDIA_ADA = 2
    NVIDIA_HOPPER = 3
    NVIDIA_BLACKWELL = 4
    NVIDIA_BLACKWELLRTX = 5
    NVIDIA_RUBIN = 6
    AMD_CDNA3 = 7
    AMD_CDNA4 = 8
    AMD_CDNA5 = 9
    APPLE_METAL7 = 10
    APPLE_METAL9 = 11
    APPLE_METAL10 = 12

class GPUVendor(IntEnum):
    """Who made a GPU."""

    NVIDIA = 1
    AMD = 2
    APPLE = 3

class MultimemTier(IntEnum):
    """How the NVLink domains of a run reduce."""

    SWITCH_REDUCED = 0
    PEER_READ = 1

class MeshDomain(IntEnum):
    """Which of the processes of a mesh belong together because of where they are."""

    MULTIMEM = 0
    HOST = 1
    COLOCATED = 2

class Mood(IntEnum):
    """What idle threads of an executor do."""

    BUSY = 0
    PARKED = 1

class ReduceOp(IntEnum):
    """How a collective combines the values of its members, in the order of their indexes."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    AVERAGE = 4
    BITWISE_AND = 5
    BITWISE_OR = 6
    BITWISE_XOR = 7

class Dtype(IntEnum):
    """The element type of an array."""

    F64 = 1
    F32 = 2
    F16 = 3
    BF16 = 4
    I8 = 5
    U8 = 6
    I16 = 7
    U16 = 8
    I32 = 9
    U32 = 10
    I64 = 11
    U64 = 12
    BOOL = 13

@final
class GPUDevice(structseq[Any], tuple[GPUVendor, int, GPUClass | None, int, int, str]):
    """One GPU as this process may use it; its ordinal is its position in gpu_devices()."""

    __match_args__: Final = (
        "vendor",
        "vendor_ordinal",
        "gpu_class",
        "compute_units",
        "memory_bytes",
        "name",
    )
    @property
    def vendor(self) -> GPUVendor: ...
    @property
    def vendor_ordinal(self) -> int: ...
    @property
    def gpu_class(self) -> GPUClass | None: ...
    @property
    def compute_units(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def name(self) -> str: ...

@final
class MeshDescription(structseq[Any], tuple[int, int, int, int, int, MultimemTier, GPUClass | None]):
    """Where this process stands in its mesh."""

    __match_args__: Final = (
        "gpus_per_host_domain",
        "gpus_per_multimem_domain",
        "gpus_per_colocated_domain",
        "host_domain_index",
        "first_gpu_index",
        "multimem_tier",
        "gpu_class",
    )
    @property
    def gpus_per_host_domain(self) -> int: ...
    @property
    def gpus_per_multimem_domain(self) -> int: ...
    @property
    def gpus_per_colocated_domain(self) -> int: ...
    @property
    def host_domain_index(self) -> int: ...
    @property
    def first_gpu_index(self) -> int: ...
    @property
    def multimem_tier(self) -> MultimemTier: ...
    @property
    def gpu_class(self) -> GPUClass | None: ...

class UformError(Exception):
    """The base of every error of uform."""

class UnsupportedError(UformError, NotImplementedError):
    """This build, machine or version cannot do it; take another way."""

    what: str
    why: str

class ContendedError(UformError, RuntimeError):
    """Another call holds what this one needs; wait, or take another executor."""

    what: str
    holder: str
    waited_seconds: float

class InvalidError(UformError, ValueError):
    """A wrong argument or variable; fix the call or the variable."""

    argument: str
    value: str
    origin: str
    reason: str
    contradiction: tuple[str, str] | None

class ClosedError(UformError, ValueError):
    """The object was closed before, or made before a fork; open another."""

    what: str
    why: str

class TimedOutError(UformError, TimeoutError):
    """The deadline passed; look at the members named."""

    phase: str
    waited_seconds: float
    missing: tuple[int, ...]
    last_words: tuple[str, ...]

class DisagreedError(UformError, ValueError):
    """Members say different things; fix the deployment or the code."""

    field: str
    mine: str
    theirs: str
    index: int

class LostError(UformError, ConnectionError):
    """A member is gone; restart from a checkpoint."""

    index: int
    host: str
    pid: int
    phase: str

class ExhaustedError(UformError, MemoryError):
    """Memory, descriptors or space ran out; use less, or raise the limit."""

    place: str
    wanted_bytes: int
    free_bytes: int
    remedy: str

class VendorError(UformError, RuntimeError):
    """A vendor's library reported an error; its manual knows more."""

    library: str
    call: str
    code: int
    text: str

class IoError(UformError, OSError):
    """The operating system refused an operation; fix the path, the rights or the disk."""

    operation: str

class CorruptError(UformError, ValueError):
    """Stored data is damaged; take another checkpoint."""

    path: str
    offset: int
    reason: str

@final
class MeshOptions:
    """What `Mesh.bootstrap` is told instead of finding it out. Immutable."""

    def __new__(
        cls,
        *,
        host_domain_index: int = 0,
        host_domain_count: int = 0,
        gpus_per_multimem_domain: int = 0,
        directory: str | os.PathLike[str] | None = None,
        job: str | None = None,
        timeout_seconds: float = 0.0,
    ) -> Self: ...
    @property
    def host_domain_index(self) -> int: ...
    @property
    def host_domain_count(self) -> int: ...
    @property
    def gpus_per_multimem_domain(self) -> int: ...
    @property
    def directory(self) -> str | None: ...
    @property
    def job(self) -> str | None: ...
    @property
    def timeout_seconds(self) -> float: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...

@final
class Executor:
    """The threads that run the calls of one process, one call at a time; usable in `with`."""

    @classmethod
    def for_ram(
        cls,
        threads: int = 0,
        *,
        memory_domains: Sequence[int] | None = None,
        deferred_limit: int = 0,
        cpu_class: CPUClass | None = None,
    ) -> Executor: ...
    @classmethod
    def on_pool(
        cls,
        pool: int,
        /,
        *,
        memory_domains: Sequence[int] | None = None,
        deferred_limit: int = 0,
        cpu_class: CPUClass | None = None,
    ) -> Executor: ...
    @classmethod
    def for_vram(
        cls,
        devices: Sequence[int] | None = None,
        *,
        scratch_limit: int = 0,
        deferred_limit: int = 0,
        gpu_class: GPUClass | None = None,
        memory_domains: Sequence[int] | None = None,
        cpu_class: CPUClass | None = None,
    ) -> Executor: ...
    @property
    def threads(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def drain(self, mood: Mood = ...) -> None: ...
    def __enter__(self) -> Executor: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class Topology:
    """Who is in a run and what is near what; str() gives a tree for people."""

    def to_json(self) -> str: ...

@final
class Array:
    """An array in memory of uform, C-contiguous; numpy.asarray(array) shares its memory, and keeps it alive."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Dtype: ...
    @property
    def read_only(self) -> bool: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

@final
class Arena:
    """Memory of this process that the processes of its host share, or on the GPUs of the mesh's executor."""

    @property
    def byte_count(self) -> int: ...
    def array(self, shape: int | Sequence[int], dtype: Dtype = ..., *, device: int = 0) -> Array: ...

@final
class Mesh:
    """The processes of a run, joined; usable in `with`."""

    @classmethod
    def bootstrap(cls, executor: Executor | None, options: MeshOptions | None, /) -> Mesh: ...
    @classmethod
    def bootstrap_over_mpi(
        cls, executor: Executor | None, options: MeshOptions | None, communicator: Any = None, /
    ) -> Mesh: ...
    @property
    def index(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def executor(self) -> Executor: ...
    @property
    def closed(self) -> bool: ...
    def describe(self) -> MeshDescription: ...
    def topology(self) -> Topology: ...
    def arena(self, byte_count: int, /) -> Arena: ...
    def all_reduce(
        self,
        array: Any,
        /,
        op: ReduceOp = ...,
        *,
        out: Any = None,
        reproducible: bool = False,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> None: ...
    def reduce(
        self,
        array: Any,
        /,
        root: int = 0,
        op: ReduceOp = ...,
        *,
        out: Any = None,
        reproducible: bool = False,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> None: ...
    def broadcast(
        self,
        array: Any,
        /,
        root: int = 0,
        *,
        out: Any = None,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> None: ...
    def all_gather(
        self,
        array: Any,
        out: Any,
        /,
        *,
        counts: Sequence[int] | None = None,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> None: ...
    def reduce_scatter(
        self,
        array: Any,
        out: Any,
        /,
        op: ReduceOp = ...,
        *,
        counts: Sequence[int] | None = None,
        reproducible: bool = False,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> None: ...
    def all_to_all(
        self,
        array: Any,
        out: Any,
        /,
        *,
        send_counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> None: ...
    def gather(
        self,
        array: Any,
        out: Any,
        /,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> None: ...
    def scatter(
        self,
        array: Any,
        out: Any,
        /,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> None: ...
    def send(
        self,
        array: Any,
        destination: int,
        /,
        *,
        tag: int = 0,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> None: ...
    def receive(
        self,
        array: Any,
        source: int,
        /,
        *,
        tag: int = 0,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> None: ...
    def barrier(self, *, timeout_seconds: float = 0.0) -> None: ...
    def exchange(self, payload: bytes, /, *, timeout_seconds: float = 0.0) -> list[bytes]: ...
    def on(self, executor: Executor, /) -> Mesh: ...
    def deferred(self, executor: Executor | None = None, /) -> DeferredMesh: ...
    def split(self, color: int | None, key: int = 0) -> Mesh | None: ...
    def domain(self, domain: MeshDomain, /) -> Mesh: ...
    def shrink(self) -> Mesh: ...
    def close(self) -> None: ...
    def __enter__(self) -> Mesh: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class DeferredMesh:
    """The verbs of a mesh, each of which returns a Deferred at once; made by Mesh.deferred."""

    def all_reduce(
        self,
        array: Any,
        /,
        op: ReduceOp = ...,
        *,
        out: Any = None,
        reproducible: bool = False,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> Deferred[None]: ...
    def reduce(
        self,
        array: Any,
        /,
        root: int = 0,
        op: ReduceOp = ...,
        *,
        out: Any = None,
        reproducible: bool = False,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> Deferred[None]: ...
    def broadcast(
        self,
        array: Any,
        /,
        root: int = 0,
        *,
        out: Any = None,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> Deferred[None]: ...
    def all_gather(
        self,
        array: Any,
        out: Any,
        /,
        *,
        counts: Sequence[int] | None = None,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> Deferred[None]: ...
    def reduce_scatter(
        self,
        array: Any,
        out: Any,
        /,
        op: ReduceOp = ...,
        *,
        counts: Sequence[int] | None = None,
        reproducible: bool = False,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> Deferred[None]: ...
    def all_to_all(
        self,
        array: Any,
        out: Any,
        /,
        *,
        send_counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> Deferred[None]: ...
    def gather(
        self,
        array: Any,
        out: Any,
        /,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> Deferred[None]: ...
    def scatter(
        self,
        array: Any,
        out: Any,
        /,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> Deferred[None]: ...
    def send(
        self,
        array: Any,
        destination: int,
        /,
        *,
        tag: int = 0,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> Deferred[None]: ...
    def receive(
        self,
        array: Any,
        source: int,
        /,
        *,
        tag: int = 0,
        timeout_seconds: float = 0.0,
        progress: _Progress | None = None,
    ) -> Deferred[None]: ...
    def barrier(self, *, timeout_seconds: float = 0.0) -> Deferred[None]: ...
    def exchange(self, payload: bytes, /, *, timeout_seconds: float = 0.0) -> Deferred[list[bytes]]: ...
    def arena(self, byte_count: int, /) -> Deferred[Arena]: ...

@final
class DeferredTrainer:
    """The calls of a trainer, each of which returns a Deferred at once; made by Trainer.deferred."""

    def step(self, *, weight: float = 1.0) -> Deferred[StepReport]: ...
    def save(self, directory: str | os.PathLike[str], *, step: int) -> Deferred[None]: ...
    def load(self, directory: str | os.PathLike[str]) -> Deferred[int]: ...

@final
class Deferred(Awaitable[_T_co], Generic[_T_co]):
    """A call that was submitted: it runs on the threads of its executor, whether or not anybody waits for it."""

    def done(self) -> bool: ...
    def wait(self, timeout_seconds: float = 0.0) -> _T_co: ...
    def __await__(self) -> Generator[Any, Any, _T_co]: ...
    def __class_getitem__(cls, key: Any) -> GenericAlias: ...
    def _result(self) -> _T_co: ...
    @property
    def _executor(self) -> Executor: ...
    def _bell(self) -> _Bell: ...
    def _ring(self, bell: _Bell) -> None: ...

@final
class _Bell:
    """A descriptor that becomes readable when a call has ended; closed with the last reference."""

    def fileno(self) -> int: ...
    def hear(self) -> None: ...

@final
class SGD:
    """Stochastic gradient descent, with momentum if it is not 0."""

    def __new__(
        cls,
        learning_rate: float,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> Self: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def nesterov(self) -> bool: ...
    @property
    def weight_decay(self) -> float: ...

@final
class AdamW:
    """Adam with decoupled weight decay."""

    def __new__(
        cls,
        learning_rate: float,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> Self: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...

@final
class StepReport:
    """What one step did; the same on every process, except the times."""

    @property
    def step(self) -> int: ...
    @property
    def gradient_norm(self) -> float | None: ...
    @property
    def weight(self) -> float: ...
    @property
    def skipped(self) -> bool: ...
    @property
    def communication_seconds(self) -> float: ...
    @property
    def seconds(self) -> float: ...

@final
class Trainer:
    """Data-parallel steps over a mesh: shared parameters, one process's gradients, one optimizer."""

    def __new__(
        cls,
        mesh: Mesh,
        parameters: Mapping[str, Any],
        optimizer: SGD | AdamW,
        *,
        clip_norm: float | None = None,
    ) -> Self: ...
    @property
    def parameters(self) -> Mapping[str, Array]: ...
    @property
    def gradients(self) -> Mapping[str, Array]: ...
    def parameters_on(self, device: int, /) -> Mapping[str, Array]: ...
    def gradients_on(self, device: int, /) -> Mapping[str, Array]: ...
    def ready(self, name: str) -> None: ...
    def step(self, *, weight: float = 1.0) -> StepReport: ...
    def edit(self) -> AbstractContextManager[Mapping[str, Array]]: ...
    def save(self, directory: str | os.PathLike[str], *, step: int) -> None: ...
    def load(self, directory: str | os.PathLike[str]) -> int: ...
    def on(self, executor: Executor, /) -> Trainer: ...
    def deferred(self, executor: Executor | None = None, /) -> DeferredTrainer: ...

def capabilities_compiled() -> str: ...
def capabilities_available() -> str: ...
def gpu_devices() -> tuple[GPUDevice, ...]: ...
def run_command(arguments: Sequence[str], python: str | None, /) -> int: ...
