//! `ChunkCache`.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::format::ids::{FingerprintCheck, RecordId};
use crate::python::support::input::Input;
use crate::store::chunk_cache::{self, ChunkKey};

#[pyclass(frozen, module = "dedupd_core.native.store")]
pub struct ChunkCache(pub Arc<chunk_cache::ChunkCache>);

/// A chunk as Python names it: its id, its raw length and the start of its fingerprint.
type Key = (u64, u32, u32);

fn key((id, length, check): Key) -> ChunkKey {
    ChunkKey { id: RecordId(id), length, check: FingerprintCheck(check) }
}

#[pymethods]
impl ChunkCache {
    #[new]
    fn new(bytes_max: usize) -> ChunkCache {
        ChunkCache(Arc::new(chunk_cache::ChunkCache::new(bytes_max)))
    }

    /// Bytes [start, end) of a chunk.
    fn part<'py>(
        &self,
        py: Python<'py>,
        chunk: Key,
        start: usize,
        end: usize,
    ) -> Option<Bound<'py, PyBytes>> {
        let raw = self.0.get(&key(chunk))?;
        Some(PyBytes::new(py, raw.get(start..end)?))
    }

    fn has(&self, chunk: Key) -> bool {
        self.0.has(&key(chunk))
    }

    fn keep(&self, chunk: Key, raw: Input) {
        self.0.keep(key(chunk), &Arc::new(raw.bytes().to_vec()));
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    #[getter]
    fn uses(&self) -> (u64, u64) {
        self.0.uses()
    }
}
