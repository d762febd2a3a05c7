//! `ChunkCache`.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::format::ids::{ChunkKey, FingerprintCheck, RecordId};
use crate::store::chunk_cache;

#[pyclass(frozen, module = "dedupd_core.native.store")]
pub struct ChunkCache(pub Arc<chunk_cache::ChunkCache>);

/// The name of a chunk in Python: its id, its raw length and the start of its fingerprint.
pub type Key = (u64, u32, u32);

pub fn key((id, length, check): Key) -> ChunkKey {
    ChunkKey { id: RecordId(id), length, check: FingerprintCheck(check) }
}

#[pymethods]
impl ChunkCache {
    #[new]
    fn new(bytes_max: usize) -> ChunkCache {
        ChunkCache(Arc::new(chunk_cache::ChunkCache::new(bytes_max)))
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
