//! System calls, with EINTR and errors the way Python's `os` has them.

use std::ffi::CString;
use std::io;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::extents::{self, Range};
use crate::{sys, watchdog};

/// Runs a call without the GIL, again after a signal whose handler raised nothing (PEP 475).
pub fn call<T: Send>(py: Python<'_>, attempt: impl Fn() -> io::Result<T> + Sync) -> PyResult<T> {
    loop {
        match py.detach(&attempt) {
            Ok(value) => return Ok(value),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => py.check_signals()?,
            Err(error) => return Err(os_error(py, &error)),
        }
    }
}

/// OSError from (errno, text) picks its subclass itself.
pub fn os_error(py: Python<'_>, error: &io::Error) -> PyErr {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let text = py
        .import("os")
        .and_then(|os| os.call_method1("strerror", (errno,))?.extract::<String>())
        .unwrap_or_else(|_| error.to_string());
    PyOSError::new_err((errno, text))
}

pub fn c_string(name: &str, bytes: &[u8]) -> PyResult<CString> {
    CString::new(bytes).map_err(|_| PyValueError::new_err(format!("{name} has a NUL byte in it")))
}

#[pyfunction]
pub fn punch_hole(py: Python<'_>, fd: i32, offset: i64, length: i64) -> PyResult<()> {
    call(py, || sys::punch_hole(fd, offset, length))
}

#[pyfunction]
pub fn fallocate_keep_size(py: Python<'_>, fd: i32, offset: i64, length: i64) -> PyResult<()> {
    call(py, || sys::fallocate_keep_size(fd, offset, length))
}

#[pyfunction]
pub fn present_ranges(py: Python<'_>, fd: i32, start: i64, end: i64) -> PyResult<Vec<Range>> {
    call(py, || extents::present(fd, start, end))
}

#[pyfunction]
pub fn unwritten_ranges(py: Python<'_>, fd: i32, end: i64, sync: bool) -> PyResult<Vec<Range>> {
    call(py, || extents::unwritten(fd, end, sync))
}

#[pyfunction]
pub fn syncfs(py: Python<'_>, fd: i32) -> PyResult<()> {
    call(py, || sys::syncfs(fd))
}

#[pyfunction]
pub fn renameat2(
    py: Python<'_>,
    old_dir_fd: i32,
    old: &[u8],
    new_dir_fd: i32,
    new: &[u8],
    flags: u32,
) -> PyResult<()> {
    let (old, new) = (c_string("old", old)?, c_string("new", new)?);
    call(py, || sys::renameat2(old_dir_fd, &old, new_dir_fd, &new, flags))
}

#[pyfunction]
pub fn name_to_handle(py: Python<'_>, fd: i32) -> PyResult<Bound<'_, PyBytes>> {
    let handle = call(py, || sys::name_to_handle(fd))?;
    Ok(PyBytes::new(py, &handle))
}

#[pyfunction]
pub fn open_by_handle(py: Python<'_>, mount_fd: i32, handle: &[u8], flags: i32) -> PyResult<i32> {
    call(py, || sys::open_by_handle(mount_fd, handle, flags))
}

#[pyfunction]
pub fn fgetxattr<'py>(
    py: Python<'py>,
    fd: i32,
    name: &[u8],
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let name = c_string("name", name)?;
    let value = call(py, || sys::fgetxattr(fd, &name))?;
    Ok(value.map(|value| PyBytes::new(py, &value)))
}

#[pyfunction]
pub fn interrupt_reads(py: Python<'_>, fd: i32, thread: i32) -> PyResult<()> {
    watchdog::interrupt_reads(fd, thread).map_err(|error| os_error(py, &error))
}
