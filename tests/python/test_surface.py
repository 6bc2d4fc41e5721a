"""The names, numbers and signatures that the interface fixes."""

import enum
import inspect
import pickle

import pytest
import uform

ENUMERATIONS = {
    uform.CPUClass: (
        "SERIAL=1 INTEL_HASWELL=2 INTEL_SIERRA=3 INTEL_SKYLAKE=4 INTEL_ICELAKE=5 AMD_GENOA=6 INTEL_SAPPHIRE=7 "
        "INTEL_GRANITE=8 INTEL_DIAMOND=9 AWS_G2=10 APPLE_M2=11 APPLE_M4=12 AWS_G5=13 NVIDIA_VERA=14 "
        "ALIBABA_C930=15 WASM32_V128=16 WASM64_EXTENDED=17 MONOVERSIONED=18"
    ),
    uform.GPUClass: (
        "NVIDIA_AMPERE=1 NVIDIA_ADA=2 NVIDIA_HOPPER=3 NVIDIA_BLACKWELL=4 NVIDIA_BLACKWELLRTX=5 NVIDIA_RUBIN=6 "
        "AMD_CDNA3=7 AMD_CDNA4=8 AMD_CDNA5=9 APPLE_METAL7=10 APPLE_METAL9=11 APPLE_METAL10=12"
    ),
    uform.GPUVendor: "NVIDIA=1 AMD=2 APPLE=3",
    uform.MultimemTier: "SWITCH_REDUCED=0 PEER_READ=1",
    uform.MeshDomain: "MULTIMEM=0 HOST=1 COLOCATED=2",
    uform.Mood: "BUSY=0 PARKED=1",
    uform.ReduceOp: "SUM=0 PRODUCT=1 MIN=2 MAX=3 AVERAGE=4 BITWISE_AND=5 BITWISE_OR=6 BITWISE_XOR=7",
    uform.Dtype: "F64=1 F32=2 F16=3 BF16=4 I8=5 U8=6 I16=7 U16=8 I32=9 U32=10 I64=11 U64=12 BOOL=13",
}

# The annotations of the interface are in the stub; the signatures at run time have none.
OUT = "out=None, timeout_seconds=0.0, progress=None"
REST = "timeout_seconds=0.0, progress=None"
SAME = f"reproducible=False, {REST}"
SIGNATURES = {
    "Executor.for_ram": "(threads=0, *, memory_domains=None, deferred_limit=0, cpu_class=None)",
    "Executor.on_pool": "(pool, /, *, memory_domains=None, deferred_limit=0, cpu_class=None)",
    "Executor.for_vram": (
        "(devices=None, *, scratch_limit=0, deferred_limit=0, gpu_class=None, memory_domains=None, cpu_class=None)"
    ),
    "Executor.drain": "(self, mood=PARKED)",
    "Executor.__enter__": "(self, /)",
    "Executor.__exit__": "(self, kind, value, traceback, /)",
    "MeshOptions": (
        "(*, host_domain_index=0, host_domain_count=0, gpus_per_multimem_domain=0, directory=None, job=None, "
        "timeout_seconds=0.0)"
    ),
    "Mesh.bootstrap": "(executor, options, /)",
    "Mesh.bootstrap_over_mpi": "(executor, options, communicator=None, /)",
    "Mesh.describe": "(self, /)",
    "Mesh.topology": "(self, /)",
    "Mesh.arena": "(self, byte_count, /)",
    "Arena.array": "(self, shape, dtype=F32, *, device=0)",
    "Mesh.all_reduce": f"(self, array, /, op=SUM, *, out=None, {SAME})",
    "Mesh.reduce": f"(self, array, /, root=0, op=SUM, *, out=None, {SAME})",
    "Mesh.broadcast": f"(self, array, /, root=0, *, {OUT})",
    "Mesh.all_gather": f"(self, array, out, /, *, counts=None, {REST})",
    "Mesh.reduce_scatter": f"(self, array, out, /, op=SUM, *, counts=None, {SAME})",
    "Mesh.all_to_all": f"(self, array, out, /, *, send_counts=None, receive_counts=None, {REST})",
    "Mesh.gather": f"(self, array, out, /, root=0, *, counts=None, {REST})",
    "Mesh.scatter": f"(self, array, out, /, root=0, *, counts=None, {REST})",
    "Mesh.send": f"(self, array, destination, /, *, tag=0, {REST})",
    "Mesh.receive": f"(self, array, source, /, *, tag=0, {REST})",
    "Mesh.barrier": "(self, *, timeout_seconds=0.0)",
    "Mesh.exchange": "(self, payload, /, *, timeout_seconds=0.0)",
    "Mesh.on": "(self, executor, /)",
    "Mesh.deferred": "(self, executor=None, /)",
    "Mesh.split": "(self, color, key=0)",
    "Mesh.domain": "(self, domain, /)",
    "Mesh.shrink": "(self, /)",
    "Mesh.close": "(self, /)",
    "Mesh.__enter__": "(self, /)",
    "Mesh.__exit__": "(self, kind, value, traceback, /)",
    "DeferredMesh.all_reduce": f"(self, array, /, op=SUM, *, out=None, {SAME})",
    "DeferredMesh.broadcast": f"(self, array, /, root=0, *, {OUT})",
    "DeferredMesh.all_gather": f"(self, array, out, /, *, counts=None, {REST})",
    "DeferredMesh.reduce_scatter": f"(self, array, out, /, op=SUM, *, counts=None, {SAME})",
    "DeferredMesh.barrier": "(self, *, timeout_seconds=0.0)",
    "DeferredMesh.exchange": "(self, payload, /, *, timeout_seconds=0.0)",
    "DeferredMesh.arena": "(self, byte_count, /)",
    "DeferredTrainer.step": "(self, *, weight=1.0)",
    "DeferredTrainer.save": "(self, directory, *, step)",
    "DeferredTrainer.load": "(self, directory)",
    "Deferred.done": "(self, /)",
    "Deferred.wait": "(self, timeout_seconds=0.0)",
    "Trainer": "(mesh, parameters, optimizer, *, clip_norm=None)",
    "Trainer.ready": "(self, name)",
    "Trainer.step": "(self, *, weight=1.0)",
    "Trainer.edit": "(self)",
    "Trainer.save": "(self, directory, *, step)",
    "Trainer.load": "(self, directory)",
    "Trainer.on": "(self, executor, /)",
    "Trainer.deferred": "(self, executor=None, /)",
    "SGD": "(learning_rate, *, momentum=0.0, nesterov=False, weight_decay=0.0)",
    "AdamW": "(learning_rate, *, beta1=0.9, beta2=0.999, epsilon=1e-08, weight_decay=0.01)",
    "capabilities_compiled": "()",
    "capabilities_available": "()",
    "gpu_devices": "()",
}

ERRORS = {
    "UnsupportedError": NotImplementedError,
    "ContendedError": RuntimeError,
    "InvalidError": ValueError,
    "ClosedError": ValueError,
    "TimedOutError": TimeoutError,
    "DisagreedError": ValueError,
    "LostError": ConnectionError,
    "ExhaustedError": MemoryError,
    "VendorError": RuntimeError,
    "IoError": OSError,
    "CorruptError": ValueError,
}


def resolve(path: str) -> object:
    found: object = uform
    for name in path.split("."):
        found = getattr(found, name)
    return found


def plain(signature: inspect.Signature) -> str:
    """Write a signature with members of enumerations by their names, and without the mark after a lone self."""
    parameters = [
        parameter.replace(default=Name(parameter.default.name))
        if isinstance(parameter.default, enum.Enum)
        else parameter
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters)).replace("(self, /)", "(self)")


class Name(str):
    """A text that shows without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@pytest.mark.parametrize(
    ("kind", "members"), ENUMERATIONS.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_numbers_are_fixed(kind: type[enum.IntEnum], members: str) -> None:
    assert issubclass(kind, enum.IntEnum)
    assert " ".join(f"{member.name}={member.value}" for member in kind) == members
    first = next(iter(kind))
    assert pickle.loads(pickle.dumps(first)) is first
    assert kind.__doc__


@pytest.mark.parametrize(("path", "signature"), SIGNATURES.items(), ids=SIGNATURES)
def test_signatures_are_fixed(path: str, signature: str) -> None:
    found = resolve(path)
    assert callable(found)
    expected = signature.replace("(self, /)", "(self)")
    written = plain(inspect.signature(found))
    # A method without further parameters may or may not mark self as positional only.
    assert written.replace("(self, /, ", "(self, ").replace("($self", "(self") in {
        expected,
        expected.replace("(self, /, ", "(self, "),
    }


@pytest.mark.parametrize("path", [path for path in SIGNATURES if "__" not in path])
def test_every_name_has_documentation(path: str) -> None:
    assert len(inspect.getdoc(resolve(path)) or "") > 20


def test_struct_sequences_have_their_fields_in_order() -> None:
    fields = "vendor vendor_ordinal gpu_class compute_units memory_bytes name"
    assert " ".join(uform.GPUDevice.__match_args__) == fields
    device = uform.GPUDevice((uform.GPUVendor.AMD, 3, None, 304, 1 << 37, "name"))
    assert isinstance(device, tuple)
    assert (device.n_fields, device.n_sequence_fields) == (6, 6)
    assert device.vendor_ordinal == device[1] == 3
    assert pickle.loads(pickle.dumps(device)) == device
    fields = (
        "gpus_per_host_domain gpus_per_multimem_domain gpus_per_colocated_domain host_domain_index first_gpu_index "
        "multimem_tier gpu_class"
    )
    assert " ".join(uform.MeshDescription.__match_args__) == fields
    with pytest.raises(TypeError):
        uform.MeshDescription((1, 2))


@pytest.mark.parametrize(("name", "builtin"), ERRORS.items(), ids=ERRORS)
def test_errors_have_two_bases(name: str, builtin: type[Exception]) -> None:
    kind = getattr(uform, name)
    assert kind.__bases__ == (uform.UformError, builtin)
    assert kind.__module__ == "uform"
    assert kind.__doc__
    copy = pickle.loads(pickle.dumps(kind("text")))
    assert type(copy) is kind


def test_the_base_of_errors_is_a_plain_exception() -> None:
    assert uform.UformError.__bases__ == (Exception,)


def test_capabilities_name_cpu_classes_in_lower_case_words() -> None:
    words = {member.name.lower() for member in uform.CPUClass}
    compiled, available = uform.capabilities_compiled(), uform.capabilities_available()
    assert "serial" in compiled.split()
    assert "serial" in available.split()
    assert words & set(available.split()) <= words & set(compiled.split())
    assert compiled == compiled.lower()
    assert available == " ".join(available.split())


def test_gpu_devices_is_a_tuple() -> None:
    assert isinstance(uform.gpu_devices(), tuple)
