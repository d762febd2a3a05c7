//! `Placed`, `NewChunks`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::{pack_u32, pack_u64};
use crate::place::{New, Placed as Inner};
use crate::process::Chunk;

#[pyclass(frozen, module = "dedupd.native")]
pub struct Placed {
    inner: Inner,
    #[pyo3(get)]
    new: (Py<NewChunks>, Py<NewChunks>),
}

impl Placed {
    pub fn of(py: Python<'_>, mut inner: Inner) -> PyResult<Placed> {
        let [first, second] = std::mem::take(&mut inner.new).map(|new| NewChunks::of(py, &new));
        Ok(Placed { inner, new: (Py::new(py, first)?, Py::new(py, second)?) })
    }
}

#[pymethods]
impl Placed {
    #[getter]
    fn duplicate_bytes(&self) -> usize {
        self.inner.duplicate_bytes
    }

    #[getter]
    fn zero_bytes(&self) -> usize {
        self.inner.zero_bytes
    }

    fn ids<'py>(&self, py: Python<'py>, first: u64, first_as_is: u64) -> Bound<'py, PyBytes> {
        pack_u64(py, self.inner.ids([first, first_as_is]))
    }
}

#[pyclass(frozen, module = "dedupd.native")]
pub struct NewChunks {
    length: usize,
    #[pyo3(get)]
    raw_bytes: usize,
    #[pyo3(get)]
    fingerprints: Py<PyBytes>,
    #[pyo3(get)]
    starts: Py<PyBytes>,
    #[pyo3(get)]
    lengths: Py<PyBytes>,
    #[pyo3(get)]
    hints: Py<PyBytes>,
}

impl NewChunks {
    fn of(py: Python<'_>, new: &New) -> NewChunks {
        let chunks = &new.chunks;
        let length = |chunk: &Chunk| chunk.end - chunk.start;
        let fingerprints: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.fingerprint).collect();
        NewChunks {
            length: chunks.len(),
            raw_bytes: chunks.iter().map(length).sum(),
            fingerprints: PyBytes::new(py, &fingerprints).unbind(),
            starts: pack_u32(py, chunks.iter().map(|chunk| chunk.start as u32)).unbind(),
            lengths: pack_u32(py, chunks.iter().map(|chunk| length(chunk) as u32)).unbind(),
            hints: pack_u32(py, new.hints.iter().copied()).unbind(),
        }
    }
}

#[pymethods]
impl NewChunks {
    fn __len__(&self) -> usize {
        self.length
    }
}
