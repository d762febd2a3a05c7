//! `FingerprintMap`.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::input::{Input, pack_u64, pairs};
use crate::map;

/// What a look-up returns for a fingerprint that is not there; so it can't be an id.
const ABSENT: u64 = 0;

#[pyclass(frozen, module = "dedupd.native")]
pub struct FingerprintMap(RwLock<map::FingerprintMap>);

/// The lock is only ever taken with the GIL released, and no Python code runs under it.
impl FingerprintMap {
    fn read(&self) -> RwLockReadGuard<'_, map::FingerprintMap> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, map::FingerprintMap> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl FingerprintMap {
    #[new]
    #[pyo3(signature = (capacity = 0))]
    fn new(capacity: usize) -> PyResult<FingerprintMap> {
        if u32::try_from(capacity).is_err() {
            return Err(PyValueError::new_err(format!("capacity is too large: {capacity}")));
        }
        Ok(FingerprintMap(RwLock::new(map::FingerprintMap::with_capacity(capacity))))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.read().len())
    }

    fn lookup<'py>(&self, py: Python<'py>, fingerprints: Input) -> PyResult<Bound<'py, PyBytes>> {
        let keys = fingerprints.fingerprints("fingerprints")?;
        let ids: Vec<u64> = py.detach(|| {
            let map = self.read();
            keys.iter().map(|key| map.get(key).unwrap_or(ABSENT)).collect()
        });
        Ok(pack_u64(py, ids))
    }

    fn insert(&self, py: Python<'_>, fingerprints: Input, ids: Input) -> PyResult<usize> {
        let rows = pairs(&fingerprints, &ids)?;
        Ok(py.detach(|| {
            let mut map = self.write();
            rows.into_iter().filter(|&(key, id)| map.insert(key, id)).count()
        }))
    }

    fn remove(&self, py: Python<'_>, fingerprints: Input) -> PyResult<usize> {
        let keys = fingerprints.fingerprints("fingerprints")?;
        Ok(py.detach(|| {
            let mut map = self.write();
            keys.iter().filter(|key| map.remove(key)).count()
        }))
    }
}
