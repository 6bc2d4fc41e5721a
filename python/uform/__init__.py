"""Collective operations and data-parallel training over host and GPU memory.

`Mesh.bootstrap` joins the processes of a run, whatever launcher started them; the verbs of the mesh move and reduce
arrays between them; a `Trainer` steps shared parameters by everybody's gradients.

    import numpy
    import uform

    with uform.Mesh.bootstrap(None, None) as mesh:
        numbers = numpy.full(4, mesh.index, dtype=numpy.float32)
        mesh.all_reduce(numbers)
"""

from uform._uform import SGD as SGD
from uform._uform import AdamW as AdamW
from uform._uform import Arena as Arena
from uform._uform import Array as Array
from uform._uform import ClosedError as ClosedError
from uform._uform import ContendedError as ContendedError
from uform._uform import CorruptError as CorruptError
from uform._uform import CPUClass as CPUClass
from uform._uform import Deferred as Deferred
from uform._uform import DeferredMesh as DeferredMesh
from uform._uform import DeferredTrainer as DeferredTrainer
from uform._uform import DisagreedError as DisagreedError
from uform._uform import Dtype as Dtype
from uform._uform import Executor as Executor
from uform._uform import ExhaustedError as ExhaustedError
from uform._uform import GPUClass as GPUClass
from uform._uform import GPUDevice as GPUDevice
from uform._uform import GPUVendor as GPUVendor
from uform._uform import InvalidError as InvalidError
from uform._uform import IoError as IoError
from uform._uform import LostError as LostError
from uform._uform import Mesh as Mesh
from uform._uform import MeshDescription as MeshDescription
from uform._uform import MeshDomain as MeshDomain
from uform._uform import MeshOptions as MeshOptions
from uform._uform import Mood as Mood
from uform._uform import MultimemTier as MultimemTier
from uform._uform import ReduceOp as ReduceOp
from uform._uform import StepReport as StepReport
from uform._uform import TimedOutError as TimedOutError
from uform._uform import Topology as Topology
from uform._uform import Trainer as Trainer
from uform._uform import UformError as UformError
from uform._uform import UnsupportedError as UnsupportedError
from uform._uform import VendorError as VendorError
from uform._uform import __version__ as __version__
from uform._uform import capabilities_available as capabilities_available
from uform._uform import capabilities_compiled as capabilities_compiled
from uform._uform import gpu_devices as gpu_devices
