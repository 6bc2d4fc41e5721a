//! The `uform` command for the wheel's console script.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the `uform` command and returns its exit code; arguments[0] is the name of the program.
///
/// python is the interpreter that runs programs whose names end in .py.
#[pyfunction]
#[pyo3(signature = (arguments, python, /))]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>, python: Option<OsString>) -> i32 {
    py.detach(|| uform_launch::run_with_python(arguments, python))
}
