//! The enumerations as `enum.IntEnum` classes, made from the table of the core.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyInt, PyType};
use uform::vocabulary::{CpuClass, Dtype, GpuClass, GpuVendor, MeshDomain, Mood, MultimemTier, ReduceOp};

use crate::error::invalid;

/// An enumeration of the core that Python sees as an `IntEnum` class.
pub(crate) trait Enumeration: Copy + 'static {
    /// What `help()` shows.
    const DOC: &'static str;

    /// The name of the class.
    fn class_name() -> &'static str;

    /// All values as (name, number), in the order of their numbers.
    fn table() -> Vec<(&'static str, i32)>;

    /// The number of this value.
    fn value(self) -> i32;

    /// The value with this number.
    fn of_value(value: i32) -> Option<Self>;

    /// Where the class is kept.
    fn cell() -> &'static PyOnceLock<Py<PyType>>;

    /// The class.
    fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
        Ok(Self::cell().get_or_try_init(py, || make_class::<Self>(py))?.bind(py))
    }

    /// This value as a member of the class.
    fn to_member(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Self::class(py)?.call1((self.value(),))
    }

    /// The value that a caller gave for `argument`: a member, or a plain `int` that is its number.
    fn of_argument(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = given.py();
        let is_plain = given.get_type().is(py.get_type::<PyInt>());
        let number =
            if is_plain || given.is_instance(Self::class(py)?)? { given.extract().ok() } else { None };
        number.and_then(Self::of_value).ok_or_else(|| {
            invalid(py, argument, given, &format!("must be a member of uform.{}", Self::class_name()))
        })
    }
}

fn make_class<E: Enumeration>(py: Python<'_>) -> PyResult<Py<PyType>> {
    let name = E::class_name();
    let base = py.import("enum")?.getattr("IntEnum")?;
    let keywords = [("module", "uform"), ("qualname", name)].into_py_dict(py)?;
    let class = base.call((name, E::table()), Some(&keywords))?.cast_into::<PyType>()?;
    class.setattr("__doc__", E::DOC)?;
    Ok(class.unbind())
}

macro_rules! enumerations {
    ($( $rust:ident: $doc:literal ),+ $(,)?) => {
        $(
            impl Enumeration for $rust {
                const DOC: &'static str = $doc;

                fn class_name() -> &'static str {
                    Self::PYTHON_NAME
                }

                fn table() -> Vec<(&'static str, i32)> {
                    Self::ALL.iter().map(|value| (value.name(), value.number())).collect()
                }

                fn value(self) -> i32 {
                    self.number()
                }

                fn of_value(value: i32) -> Option<Self> {
                    Self::from_number(value)
                }

                fn cell() -> &'static PyOnceLock<Py<PyType>> {
                    static CELL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
                    &CELL
                }
            }
        )+

        /// Adds the classes to the module.
        pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
            let py = module.py();
            $( module.add($rust::PYTHON_NAME, $rust::class(py)?)?; )+
            Ok(())
        }
    };
}

enumerations! {
    CpuClass: "The CPU family that kernels dispatch as.",
    GpuClass: "The GPU generation that kernels dispatch as.",
    GpuVendor: "Who made a GPU.",
    MultimemTier: "How the NVLink domains of a run reduce.\n\n\
        SWITCH_REDUCED: every multimem domain of two or more GPUs can reduce in the switch.\n\
        PEER_READ: GPUs read each other's memory; also without GPUs, with one, and on AMD.",
    MeshDomain: "Which of the processes of a mesh belong together because of where they are.\n\n\
        MULTIMEM: those whose first GPU is in the multimem domain of this one's first GPU.\n\
        HOST: those that share memory, the host domains of one host.\n\
        COLOCATED: those of the colocated domain, which are all.",
    Mood: "What idle threads of an executor do.\n\nBUSY: spin, for the lowest latency. PARKED: sleep, without CPU time.",
    ReduceOp: "How a collective combines the values of its members, in the order of their indexes.\n\n\
        Bitwise operations are for integers only; AVERAGE of integers rounds toward zero.",
    Dtype: "The element type of an array.",
}

/// A member, or `None` for nothing.
pub(crate) fn to_optional_member<E: Enumeration>(
    py: Python<'_>,
    value: Option<E>,
) -> PyResult<Bound<'_, PyAny>> {
    value.map_or_else(|| Ok(py.None().into_bound(py)), |value| value.to_member(py))
}

/// The value that a caller gave for an optional `argument`.
pub(crate) fn of_optional_argument<E: Enumeration>(
    argument: &str,
    given: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<E>> {
    given.map(|given| E::of_argument(argument, given)).transpose()
}
