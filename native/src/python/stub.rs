//! `exchange_attribute`, `punch_and_settle`.

use pyo3::prelude::*;

use super::files::{Fields, fields_of, identity_of};
use super::sys::{c_string, call};
use crate::stub;

#[pyfunction]
pub fn exchange_attribute(
    py: Python<'_>,
    fd: i32,
    identity: Fields,
    name: &[u8],
    previous: Option<&[u8]>,
    value: &[u8],
) -> PyResult<Option<Fields>> {
    let name = c_string("name", name)?;
    let expected = identity_of(identity);
    let after = call(py, || stub::exchange_attribute(fd, expected, &name, previous, value))?;
    Ok(after.map(fields_of))
}

#[pyfunction]
pub fn punch_and_settle(
    py: Python<'_>,
    fd: i32,
    length: i64,
    atime_ns: i64,
    mtime_ns: i64,
    name: &[u8],
    value: &[u8],
) -> PyResult<()> {
    let name = c_string("name", name)?;
    call(py, || stub::punch_and_settle(fd, length, atime_ns, mtime_ns, &name, value))
}
