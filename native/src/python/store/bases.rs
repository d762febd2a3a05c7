//! `Bases`.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::format::ids::{ContainerNumber, RecordId};
use crate::store::bases;
use crate::store::record_reader::{BaseBytes, CacheUse};

#[pyclass(frozen, module = "dedupd_core.native.store")]
pub struct Bases(pub Arc<bases::Bases>);

#[pymethods]
impl Bases {
    #[new]
    fn new(dir_fd: i32, volume_id: [u8; 16], bytes_max: usize) -> PyResult<Bases> {
        Ok(Bases(Arc::new(bases::Bases::new(dir_fd, volume_id, bytes_max)?)))
    }

    fn raw<'py>(&self, py: Python<'py>, record_id: u64) -> Option<Bound<'py, PyBytes>> {
        let raw = py.detach(|| self.0.raw(RecordId(record_id), CacheUse::Any)).ok()?;
        Some(PyBytes::new(py, &raw))
    }

    fn is_live(&self, py: Python<'_>, record_id: u64) -> bool {
        py.detach(|| self.0.is_live(RecordId(record_id)))
    }

    fn drop(&self, numbers: Vec<u32>) {
        let numbers: Vec<_> = numbers.into_iter().map(ContainerNumber).collect();
        self.0.drop_containers(&numbers);
    }

    fn close(&self) {
        self.0.close();
    }
}
