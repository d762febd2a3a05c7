//! Bytes-like arguments without copying.

use std::ffi::c_int;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::format::ids::{Fingerprint, RecordId};
use crate::format::table_entry::EntryBytes;

/// A C-contiguous buffer of any item type, held for as long as this value lives.
///
/// Python code may write to a writable buffer while a call with the GIL released reads it. The
/// callee then sees old or new bytes, or a mixture; it never reads outside the buffer, and no
/// result of a computation over these bytes is used as an index that was not checked.
pub struct Input(Box<ffi::Py_buffer>);

impl Input {
    fn get(object: &Bound<'_, PyAny>) -> PyResult<Input> {
        const FLAGS: c_int = ffi::PyBUF_SIMPLE;
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: `view` is writable and stays where it is until it is released.
        let result = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, FLAGS) };
        if result == 0 { Ok(Input(view)) } else { Err(PyErr::fetch(object.py())) }
    }

    pub fn bytes(&self) -> &[u8] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: an exporter keeps `len` bytes at `buf` in place until the view is released.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast(), self.0.len as usize) }
    }

    /// Offsets in results are u32.
    pub fn bytes_u32(&self, name: &str) -> PyResult<&[u8]> {
        let bytes = self.bytes();
        match u32::try_from(bytes.len()) {
            Ok(_) => Ok(bytes),
            Err(_) => Err(PyValueError::new_err(format!(
                "{name} has {} bytes: more than 4 GiB - 1",
                bytes.len()
            ))),
        }
    }

    fn items<const N: usize>(&self, name: &str) -> PyResult<impl Iterator<Item = &[u8; N]>> {
        let bytes = self.bytes();
        if bytes.len() % N == 0 {
            Ok(bytes.chunks_exact(N).filter_map(|item| item.first_chunk()))
        } else {
            Err(PyValueError::new_err(format!(
                "{name} has {} bytes: not a multiple of {N}",
                bytes.len()
            )))
        }
    }

    pub fn fingerprints(&self, name: &str) -> PyResult<Vec<&Fingerprint>> {
        Ok(self.items(name)?.collect())
    }

    pub fn entries(&self, name: &str) -> PyResult<Vec<&EntryBytes>> {
        Ok(self.items(name)?.collect())
    }

    pub fn u32s(&self, name: &str) -> PyResult<Vec<u32>> {
        Ok(self.items(name)?.map(|item| u32::from_le_bytes(*item)).collect())
    }

    pub fn ids(&self, name: &str) -> PyResult<Vec<RecordId>> {
        Ok(self.items(name)?.map(|item| RecordId(u64::from_le_bytes(*item))).collect())
    }

    pub fn u64s(&self, name: &str) -> PyResult<Vec<u64>> {
        Ok(self.items(name)?.map(|item| u64::from_le_bytes(*item)).collect())
    }
}

/// The arguments of an insertion: fingerprints, and an id for each, which is not 0.
pub fn pairs<'a>(
    fingerprints: &'a Input,
    ids: &Input,
) -> PyResult<Vec<(&'a Fingerprint, RecordId)>> {
    let keys = fingerprints.fingerprints("fingerprints")?;
    let ids = ids.ids("ids")?;
    if keys.len() != ids.len() {
        return Err(PyValueError::new_err(format!(
            "ids has {} items, fingerprints has {}",
            ids.len(),
            keys.len()
        )));
    }
    if ids.contains(&RecordId::HOLE) {
        return Err(PyValueError::new_err("ids: 0 stands for an absent entry"));
    }
    Ok(keys.into_iter().zip(ids).collect())
}

impl<'py> FromPyObject<'_, 'py> for Input {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Input> {
        Input::get(&object)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // SAFETY: the view was filled by PyObject_GetBuffer; arguments are dropped attached.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) }
    }
}

pub fn pack_u32(py: Python<'_>, items: impl IntoIterator<Item = u32>) -> Bound<'_, PyBytes> {
    let bytes: Vec<u8> = items.into_iter().flat_map(u32::to_le_bytes).collect();
    PyBytes::new(py, &bytes)
}

pub fn pack_u64(py: Python<'_>, items: impl IntoIterator<Item = u64>) -> Bound<'_, PyBytes> {
    let bytes: Vec<u8> = items.into_iter().flat_map(u64::to_le_bytes).collect();
    PyBytes::new(py, &bytes)
}

pub fn pack_ids(py: Python<'_>, ids: impl IntoIterator<Item = RecordId>) -> Bound<'_, PyBytes> {
    pack_u64(py, ids.into_iter().map(|id| id.0))
}
