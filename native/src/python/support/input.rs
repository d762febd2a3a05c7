//! Bytes-like arguments without copying.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

use crate::format::ids::{Fingerprint, RecordId};
use crate::format::table_entry::EntryBytes;

/// Raises ValueError if arguments are wrong.
pub fn require(are_right: bool, message: &'static str) -> PyResult<()> {
    if are_right { Ok(()) } else { Err(PyValueError::new_err(message)) }
}

/// A C-contiguous buffer of any item type, held as long as this value lives.
///
/// Python code may write to a writable buffer while a call with the GIL released reads it. The
/// callee then sees old or new bytes, or a mixture. It never reads outside the buffer, and checks
/// each result of a computation over these bytes before using it as an index.
pub struct Input(PyUntypedBuffer);

/// The buffer of an object, which must be C-contiguous.
pub fn contiguous(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let view = PyUntypedBuffer::get(object)?;
    let error = || PyBufferError::new_err("the buffer is not C-contiguous");
    view.is_c_contiguous().then_some(view).ok_or_else(error)
}

impl Input {
    pub fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: an exporter keeps this number of bytes in place until the view is released.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
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

/// The arguments of an insertion: fingerprints, and a nonzero id for each.
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
    require(!ids.contains(&RecordId::HOLE), "ids: 0 stands for an absent entry")?;
    Ok(keys.into_iter().zip(ids).collect())
}

impl<'py> FromPyObject<'_, 'py> for Input {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Input> {
        contiguous(&object).map(Input)
    }
}

pub fn pack_u32(items: impl IntoIterator<Item = u32>) -> Vec<u8> {
    items.into_iter().flat_map(u32::to_le_bytes).collect()
}

pub fn pack_u64(items: impl IntoIterator<Item = u64>) -> Vec<u8> {
    items.into_iter().flat_map(u64::to_le_bytes).collect()
}

pub fn pack_ids(ids: impl IntoIterator<Item = RecordId>) -> Vec<u8> {
    pack_u64(ids.into_iter().map(|id| id.0))
}
