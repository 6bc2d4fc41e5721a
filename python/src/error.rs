//! The exception classes, and the one translation from the error of the core.

use pyo3::exceptions::{PyException, PyKeyboardInterrupt};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use uform::Error;
use uform::vocabulary::Status;

/// One exception class: the status it stands for, its name, its built-in base, and what `help()` says.
type Row = (Status, &'static str, &'static str, &'static str);

const TABLE: &[Row] = &[
    (
        Status::Unsupported,
        "UnsupportedError",
        "NotImplementedError",
        "This build, machine or version cannot do it; take another way.\n\nAttributes: what, why.",
    ),
    (
        Status::Contended,
        "ContendedError",
        "RuntimeError",
        "Another call holds what this one needs; wait, or take another executor.\n\n\
         Attributes: what, holder, waited_seconds.",
    ),
    (
        Status::Invalid,
        "InvalidError",
        "ValueError",
        "A wrong argument or variable; fix the call or the variable.\n\n\
         Attributes: argument, value, origin, reason, contradiction: None, or (value, origin) of another source.",
    ),
    (
        Status::Closed,
        "ClosedError",
        "ValueError",
        "The object was closed before, or made before a fork; open another.\n\nAttributes: what, why.",
    ),
    (
        Status::TimedOut,
        "TimedOutError",
        "TimeoutError",
        "The deadline passed; look at the members named.\n\n\
         Attributes: phase, waited_seconds, missing: the indexes that have not come, last_words: what each was last \
         seen doing.",
    ),
    (
        Status::Disagreed,
        "DisagreedError",
        "ValueError",
        "Members say different things; fix the deployment or the code.\n\nAttributes: field, mine, theirs, index.",
    ),
    (
        Status::Lost,
        "LostError",
        "ConnectionError",
        "A member is gone; restart from a checkpoint.\n\nAttributes: index, host, pid, phase.",
    ),
    (
        Status::Exhausted,
        "ExhaustedError",
        "MemoryError",
        "Memory, descriptors or space ran out; use less, or raise the limit.\n\n\
         Attributes: place, wanted_bytes, free_bytes, remedy.",
    ),
    (
        Status::Vendor,
        "VendorError",
        "RuntimeError",
        "A vendor's library reported an error; its manual knows more.\n\nAttributes: library, call, code, text.",
    ),
    (
        Status::Io,
        "IoError",
        "OSError",
        "The operating system refused an operation; fix the path, the rights or the disk.\n\n\
         Attributes: errno, strerror, filename, operation.",
    ),
    (
        Status::Corrupt,
        "CorruptError",
        "ValueError",
        "Stored data is damaged; take another checkpoint.\n\nAttributes: path, offset, reason.",
    ),
];

/// The number of `EIO`, for failures to which the system gave no number.
const EIO: i32 = 5;

static BASE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static CLASSES: PyOnceLock<Vec<(Status, Py<PyType>)>> = PyOnceLock::new();

fn make_class<'py>(
    py: Python<'py>,
    name: &str,
    bases: &Bound<'py, PyTuple>,
    doc: &str,
) -> PyResult<Py<PyType>> {
    let namespace = PyDict::new(py);
    namespace.set_item("__module__", "uform")?;
    namespace.set_item("__doc__", doc)?;
    Ok(py.get_type::<PyType>().call1((name, bases, namespace))?.cast_into::<PyType>()?.unbind())
}

fn base(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let class = BASE.get_or_try_init(py, || {
        let bases = PyTuple::new(py, [py.get_type::<PyException>()])?;
        make_class(py, "UformError", &bases, "The base of every error of uform.")
    })?;
    Ok(class.bind(py))
}

fn classes(py: Python<'_>) -> PyResult<&'static [(Status, Py<PyType>)]> {
    let classes = CLASSES.get_or_try_init(py, || {
        let builtins = py.import("builtins")?;
        let mut classes = Vec::with_capacity(TABLE.len());
        for (status, name, builtin, doc) in TABLE {
            let bases = PyTuple::new(py, [base(py)?.as_any(), &builtins.getattr(*builtin)?])?;
            classes.push((*status, make_class(py, name, &bases, doc)?));
        }
        Ok::<_, PyErr>(classes)
    })?;
    Ok(classes)
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("UformError", base(py)?)?;
    for ((_, class), (_, name, ..)) in classes(py)?.iter().zip(TABLE) {
        module.add(*name, class)?;
    }
    Ok(())
}

/// The Python exception for an error of the core, with its values as attributes.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error).unwrap_or_else(|failure| failure)
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let Some((_, class)) = classes(py)?.iter().find(|(status, _)| *status == error.status()) else {
        // The one status without a class of its own: the caller's interrupt check ended the wait.
        return Ok(PyKeyboardInterrupt::new_err(error.chain()));
    };
    let class = class.bind(py);
    let value = match error {
        Error::Io { path, operation, source } => {
            let reason = match source.raw_os_error() {
                Some(number) => py.import("os")?.call_method1("strerror", (number,))?.extract()?,
                None => source.to_string(),
            };
            let number = source.raw_os_error().unwrap_or(EIO);
            class.call1((number, format!("cannot {operation}: {reason}"), path.as_os_str()))?
        }
        _ => class.call1((error.chain(),))?,
    };
    fill(&value, error)?;
    Ok(PyErr::from_value(value))
}

fn fill(value: &Bound<'_, PyAny>, error: &Error) -> PyResult<()> {
    let py = value.py();
    match error {
        Error::Unsupported { what, why } | Error::Closed { what, why } => {
            value.setattr("what", what)?;
            value.setattr("why", why)
        }
        Error::Contended { what, holder, waited } => {
            value.setattr("what", what)?;
            value.setattr("holder", holder)?;
            value.setattr("waited_seconds", waited.as_secs_f64())
        }
        Error::Invalid { argument, value: given, origin, reason, contradiction } => {
            value.setattr("argument", argument)?;
            value.setattr("value", given)?;
            value.setattr("origin", origin)?;
            value.setattr("reason", reason)?;
            let other = contradiction.as_ref().map(|other| (&other.value, &other.origin));
            value.setattr("contradiction", other)
        }
        Error::TimedOut { phase, waited, missing } => {
            value.setattr("phase", phase)?;
            value.setattr("waited_seconds", waited.as_secs_f64())?;
            value.setattr("missing", PyTuple::new(py, missing.iter().map(|member| member.index))?)?;
            value.setattr("last_words", PyTuple::new(py, missing.iter().map(|member| &member.last_word))?)
        }
        Error::Disagreed { field, mine, theirs, index } => {
            value.setattr("field", field)?;
            value.setattr("mine", mine)?;
            value.setattr("theirs", theirs)?;
            value.setattr("index", index)
        }
        Error::Lost { index, host, pid, phase } => {
            value.setattr("index", index)?;
            value.setattr("host", host)?;
            value.setattr("pid", pid)?;
            value.setattr("phase", phase)
        }
        Error::Exhausted { place, wanted_bytes, free_bytes, remedy } => {
            value.setattr("place", place)?;
            value.setattr("wanted_bytes", wanted_bytes)?;
            value.setattr("free_bytes", free_bytes)?;
            value.setattr("remedy", remedy)
        }
        Error::Vendor { library, call, code, text } => {
            value.setattr("library", library)?;
            value.setattr("call", call)?;
            value.setattr("code", code)?;
            value.setattr("text", text)
        }
        Error::Io { operation, .. } => value.setattr("operation", operation),
        Error::Corrupt { path, offset, reason } => {
            value.setattr("path", path.as_os_str())?;
            value.setattr("offset", offset)?;
            value.setattr("reason", reason)
        }
        _ => Ok(()),
    }
}

/// The exception for an argument of the wrong kind or value, which is shown as Python writes it.
pub(crate) fn invalid(py: Python<'_>, argument: &str, given: &Bound<'_, PyAny>, reason: &str) -> PyErr {
    // An object whose repr fails is still a wrong argument.
    let shown = given.repr().map_or_else(|_| given.get_type().to_string(), |text| text.to_string());
    // One line, whatever the object prints: an array shows as many.
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(120).collect::<String>();
    to_python(py, &Error::invalid(argument, shown, "argument", reason))
}

/// The exception for a name whose behaviour this version does not have.
pub(crate) fn unsupported(py: Python<'_>, what: &str) -> PyErr {
    unsupported_because(py, what, "not in this version")
}

/// The exception for what this version does not do, with the reason.
pub(crate) fn unsupported_because(py: Python<'_>, what: &str, why: &str) -> PyErr {
    to_python(py, &Error::unsupported(what, why))
}

/// The exception with another one as its `__cause__`; what is no `Exception`, such as KeyboardInterrupt, stays itself.
pub(crate) fn chained(py: Python<'_>, error: PyErr, cause: PyErr) -> PyErr {
    if !cause.is_instance_of::<PyException>(py) {
        return cause;
    }
    error.set_cause(py, Some(cause));
    error
}
