//! Results, and writable bytes-like arguments, without copying.

use std::ffi::c_int;

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A C-contiguous writable buffer, held for as long as this value lives.
///
/// Python code that looks at the buffer while a call with the GIL released writes it sees old or
/// new bytes; nothing here reads them back.
pub struct Output(Box<ffi::Py_buffer>);

// SAFETY: the view itself is only touched by the owner of the value.
unsafe impl Send for Output {}
// SAFETY: as above; a shared reference gives no access.
unsafe impl Sync for Output {}

impl Output {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.0.len == 0 {
            return &mut [];
        }
        // SAFETY: an exporter keeps `len` writable bytes at `buf` in place until the release.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf.cast(), self.0.len as usize) }
    }
}

impl<'py> FromPyObject<'_, 'py> for Output {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Output> {
        const FLAGS: c_int = ffi::PyBUF_WRITABLE;
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: `view` is writable and stays where it is until it is released.
        let result = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, FLAGS) };
        if result == 0 { Ok(Output(view)) } else { Err(PyErr::fetch(object.py())) }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // SAFETY: the view was filled by PyObject_GetBuffer; arguments are dropped attached.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) }
    }
}

/// A bytes object to be filled; clearing it first would cost as much as reading does.
pub fn uninitialised(py: Python<'_>, length: usize) -> PyResult<Py<PyBytes>> {
    let length = ffi::Py_ssize_t::try_from(length).map_err(|_| PyMemoryError::new_err(()))?;
    // SAFETY: without a source it gives a new object of that length, or null with an error set.
    let object = unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length);
        Bound::from_owned_ptr_or_err(py, object)?
    };
    Ok(object.cast_into::<PyBytes>()?.unbind())
}
