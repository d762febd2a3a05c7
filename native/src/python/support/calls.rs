//! System calls that handle EINTR and errors like Python's `os`.

use std::ffi::CString;
use std::io;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

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

/// OSError chooses its subclass from (errno, text).
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
