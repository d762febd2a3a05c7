//! `Join`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::{Input, pack_u64};
use crate::join;

#[pyclass(frozen, module = "dedupd.native")]
pub struct Join(Mutex<join::Join>);

/// The lock is only ever taken with the GIL released, and no Python code runs under it.
impl Join {
    fn lock(&self) -> MutexGuard<'_, join::Join> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn packed(py: Python<'_>, pairs: join::Pairs) -> Bound<'_, PyBytes> {
    pack_u64(py, pairs.into_iter().flat_map(|(merged, into)| [merged, into]))
}

#[pymethods]
impl Join {
    #[new]
    #[pyo3(signature = (capacity, sample_bits = 0, seed = 0))]
    fn new(capacity: usize, sample_bits: u32, seed: u64) -> PyResult<Join> {
        if capacity >= 1 << 31 {
            return Err(PyValueError::new_err(format!("capacity is too large: {capacity}")));
        }
        Ok(Join(Mutex::new(join::Join::new(capacity, sample_bits, seed))))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().len())
    }

    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> usize {
        py.detach(|| self.lock().bytes())
    }

    fn add(&self, py: Python<'_>, entries: Input, seed: u64, first_id: u64) -> bool {
        let entries = entries.bytes();
        py.detach(|| self.lock().add(entries, seed, first_id))
    }

    fn probe<'py>(
        &self,
        py: Python<'py>,
        entries: Input,
        seed: u64,
        first_id: u64,
    ) -> Bound<'py, PyBytes> {
        let entries = entries.bytes();
        packed(py, py.detach(|| self.lock().probe(entries, seed, first_id)))
    }

    fn finish<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        packed(py, py.detach(|| self.lock().finish()))
    }
}
