//! `Window`.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::input::Input;
use crate::records::Row;
use crate::window as plain;

#[pyclass(frozen, module = "dedupd.native")]
pub struct Window(plain::Window);

#[pymethods]
impl Window {
    #[new]
    fn new(
        data_fd: i32,
        table_fd: i32,
        seed: u64,
        wanted: Vec<Row>,
        head: Input,
        helpers: usize,
    ) -> PyResult<Window> {
        let window = plain::Window::begin(data_fd, table_fd, seed, &wanted, head.bytes(), helpers)?;
        Ok(Window(window))
    }

    fn finish(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.finish().is_some())
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let Some(bytes) = slf.get().0.finish() else {
            return Err(PyBufferError::new_err("a record of the window is not as expected"));
        };
        // SAFETY: `view` comes from the interpreter; the view, which is for reading, keeps a
        // reference to this object, whose bytes neither move nor change while it lives.
        let result = unsafe {
            let start = bytes.as_ptr().cast_mut().cast();
            let length = bytes.len() as ffi::Py_ssize_t;
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags)
        };
        if result == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
