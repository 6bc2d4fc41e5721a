//! Arguments of Python as values of Rust; each refusal names the argument and shows what was given.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::error::invalid;

/// A count, an index or a number of bytes: an integer of 0 or more.
pub(crate) fn count(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<usize> {
    let refuse = || invalid(given.py(), argument, given, "must be an integer, 0 or more");
    if is_flag(given) { Err(refuse()) } else { given.extract().map_err(|_| refuse()) }
}

/// A color: an integer of 0 or more, up to 64 bits.
pub(crate) fn color(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<u64> {
    let refuse = || invalid(given.py(), argument, given, "must be an integer, 0 or more, or None");
    if is_flag(given) { Err(refuse()) } else { given.extract().map_err(|_| refuse()) }
}

/// A key: an integer of 64 bits.
pub(crate) fn key(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<i64> {
    let refuse = || invalid(given.py(), argument, given, "must be an integer of 64 bits");
    if is_flag(given) { Err(refuse()) } else { given.extract().map_err(|_| refuse()) }
}

/// Whether it is True or False: integers in Python, and a mistake wherever a number is wanted.
pub(crate) fn is_flag(given: &Bound<'_, PyAny>) -> bool {
    given.is_instance_of::<PyBool>()
}

/// A sequence of counts.
pub(crate) fn counts(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let refuse = || invalid(given.py(), argument, given, "must be a sequence of integers, each 0 or more");
    let items = given.extract::<Vec<Bound<'_, PyAny>>>().map_err(|_| refuse())?;
    items.iter().map(|item| count(argument, item)).collect()
}

/// The same, where leaving it out means a value.
pub(crate) fn count_or(argument: &str, given: Option<&Bound<'_, PyAny>>, absent: usize) -> PyResult<usize> {
    given.map_or(Ok(absent), |given| count(argument, given))
}

/// A real number.
pub(crate) fn number(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<f64> {
    let refuse = || invalid(given.py(), argument, given, "must be a number");
    if is_flag(given) { Err(refuse()) } else { given.extract().map_err(|_| refuse()) }
}

/// The same, where leaving it out means a value.
pub(crate) fn number_or(argument: &str, given: Option<&Bound<'_, PyAny>>, absent: f64) -> PyResult<f64> {
    given.map_or(Ok(absent), |given| number(argument, given))
}

/// A path: `str` or anything with `__fspath__` that gives one.
pub(crate) fn path(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    given.extract().map_err(|_| invalid(given.py(), argument, given, "must be a str or os.PathLike"))
}

/// Text.
pub(crate) fn text(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<String> {
    given.extract().map_err(|_| invalid(given.py(), argument, given, "must be a str of valid Unicode"))
}

/// A sequence of ordinals.
pub(crate) fn ordinals(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let refuse = || invalid(given.py(), argument, given, "must be a sequence of integers, each 0 or more");
    let items = given.extract::<Vec<Bound<'_, PyAny>>>().map_err(|_| refuse())?;
    let ordinal = |item: &Bound<'_, PyAny>| if is_flag(item) { None } else { item.extract().ok() };
    items.iter().map(ordinal).collect::<Option<_>>().ok_or_else(refuse)
}
