//! Results, and writable bytes-like arguments, without copying.

use std::ffi::c_int;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::contiguous;

/// A C-contiguous writable buffer, held as long as this value lives.
///
/// Python code that reads the buffer while a call with the GIL released writes it sees old or new
/// bytes. Native code does not read them back.
pub struct Output(PyUntypedBuffer);

impl Output {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: an exporter keeps this number of writable bytes in place until the release.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

impl<'py> FromPyObject<'_, 'py> for Output {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Output> {
        let view = contiguous(&object)?;
        let error = || PyBufferError::new_err("the buffer is not writable");
        (!view.readonly()).then_some(Output(view)).ok_or_else(error)
    }
}

/// Fills the view of a buffer that `owner` exports: the body of its `__getbuffer__`.
///
/// # Safety
///
/// `view` comes from the interpreter. The bytes are neither moved nor freed while `owner` lives.
/// Python code may write to them unless they are read-only.
pub unsafe fn export<T>(
    owner: &Bound<'_, T>,
    bytes: *mut [u8],
    is_read_only: bool,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let (start, length) = (bytes.cast(), bytes.len() as ffi::Py_ssize_t);
    // SAFETY: as above; the view keeps a reference to the owner.
    let result = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, length, is_read_only.into(), flags)
    };
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// A byte for each flag: 1 or 0.
pub fn flags(items: impl IntoIterator<Item = bool>) -> Vec<u8> {
    items.into_iter().map(u8::from).collect()
}

/// A column of a result, which Python may read repeatedly.
pub fn column(py: Python<'_>, bytes: impl AsRef<[u8]>) -> Py<PyBytes> {
    PyBytes::new(py, bytes.as_ref()).unbind()
}

/// A new bytes object to be filled, with no other owner. Clearing it first would cost as much as
/// reading.
pub struct NewBytes {
    object: Py<PyBytes>,
    start: *mut u8,
    length: usize,
}

impl NewBytes {
    pub fn of(py: Python<'_>, length: usize) -> PyResult<NewBytes> {
        let size = ffi::Py_ssize_t::try_from(length).map_err(|_| PyMemoryError::new_err(()))?;
        // SAFETY: without a source it returns a new object of that length, or null on error.
        let object = unsafe {
            let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
            Bound::from_owned_ptr_or_err(py, object)?
        };
        let object = object.cast_into::<PyBytes>()?;
        let start = object.as_bytes().as_ptr().cast_mut();
        Ok(NewBytes { object: object.unbind(), start, length })
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the object has this length, and no other owner before `finish`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }

    pub fn finish(self) -> Py<PyBytes> {
        self.object
    }
}
